//! The three texts of an onion service's descriptor, one inside the other: the wrapper that directories (HSDir) keep, the first layer, for those who
//! know the service's address, and the second, for those whom it has authorised. Grammar only: what is signed and encrypted is checked and opened
//! by `crypto::onion::descriptor`. rend-spec-v3, "Hidden service descriptors: outer wrapper", "First layer plaintext format", "Second layer
//! plaintext format".
//!
//! Lines that are not known are passed over, and what must be there once must not be there twice. A text is written as C tor writes it.

use std::{borrow::Cow, fmt};

use base64::{Engine, engine::general_purpose::STANDARD};

use super::{Item, Items, base64, encode, number, once, put_object};
use crate::protocols::includes;
use crate::{
    cell::circuit::{HandshakeType, LinkSpecifier},
    directory::Malformed,
};

/// Bytes of a descriptor where consensuses say nothing else (`HSV3MaxDescriptorSize`).
pub const DESCRIPTOR: usize = 50_000;
/// Introduction points of a descriptor.
pub const INTRODUCTION_POINTS: usize = 20;
/// Minutes for which directories keep a descriptor.
pub const LIFETIMES: std::ops::RangeInclusive<u16> = 30..=720;
/// Minutes for which services have theirs kept.
pub const LIFETIME: u16 = 180;

const CERTIFICATE: &str = "ED25519 CERT";
const MESSAGE: &str = "MESSAGE";

/// The outer wrapper. No signature has been checked by reading it.
#[derive(Clone, PartialEq, Eq)]
pub struct Wrapper<'a> {
    /// Minutes for which directories keep it, within [`LIFETIMES`].
    pub lifetime: u16,
    /// The descriptor's signing key, certified by the blinded key.
    pub certificate: Vec<u8>,
    /// Of two descriptors of one blinded key, the one with the greater number counts.
    pub revision: u64,
    /// The first layer, encrypted.
    pub superencrypted: Vec<u8>,
    /// By the signing key, over a prefix and `signed`.
    pub signature: [u8; 64],
    /// All before the signature's line.
    pub signed: &'a str,
}

impl<'a> Wrapper<'a> {
    /// Reads a text of at most `most` bytes.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &'a str, most: usize) -> Result<Self, Malformed> {
        let mut items = Items::within(text, most, most)?;
        let head = items.next()?;
        if !head.is_some_and(|item| item.keyword == "hs-descriptor" && item.arguments == "3") {
            return Err(items.wrong("no descriptor of version 3"));
        }
        let mut fields = Fields::default();
        while let Some(item) = items.next()? {
            if item.keyword != "signature" {
                fields.take(item, &items)?;
                continue;
            }
            if item.body != text.len() {
                return Err(items.wrong("something follows the signature"));
            }
            let signature = base64(item.arguments).ok_or_else(|| items.wrong("signature"))?;
            let whole = fields.whole(signature, items.until(0, item.start)?);
            return whole.ok_or_else(|| items.wrong("the descriptor lacks something"));
        }
        Err(items.wrong("no signature"))
    }

    /// Writes what is to be signed.
    pub fn write_signed(
        lifetime: u16,
        certificate: &[u8],
        revision: u64,
        superencrypted: &[u8],
    ) -> String {
        let mut text = format!("hs-descriptor 3\ndescriptor-lifetime {lifetime}\n");
        text.push_str("descriptor-signing-key-cert\n");
        put_object(CERTIFICATE, certificate, &mut text);
        text.push_str(&format!("revision-counter {revision}\nsuperencrypted\n"));
        put_object(MESSAGE, superencrypted, &mut text);
        text
    }

    /// Writes the signature behind that.
    pub fn write_signature(signature: &[u8; 64], text: &mut String) {
        text.push_str(&format!("signature {}\n", encode(signature)));
    }
}

/// What was read so far of a wrapper.
#[derive(Default)]
struct Fields {
    lifetime: Option<u16>,
    certificate: Option<Vec<u8>>,
    revision: Option<u64>,
    superencrypted: Option<Vec<u8>>,
}

impl Fields {
    fn take(&mut self, item: Item<'_>, items: &Items<'_>) -> Result<(), Malformed> {
        match item.keyword {
            "hs-descriptor" => Err(items.wrong("a descriptor inside another")),
            "descriptor-lifetime" => {
                let minutes = number(item.arguments).filter(|it| LIFETIMES.contains(it));
                once(&mut self.lifetime, minutes, items)
            }
            "descriptor-signing-key-cert" => {
                let object = item.labelled(CERTIFICATE, items)?;
                once(&mut self.certificate, Some(object), items)
            }
            "revision-counter" => once(&mut self.revision, number(item.arguments), items),
            "superencrypted" => {
                let object = item.labelled(MESSAGE, items)?;
                once(&mut self.superencrypted, Some(object), items)
            }
            _ => Ok(()),
        }
    }

    fn whole(self, signature: [u8; 64], signed: &str) -> Option<Wrapper<'_>> {
        Some(Wrapper {
            lifetime: self.lifetime?,
            certificate: self.certificate?,
            revision: self.revision?,
            superencrypted: self.superencrypted?,
            signature,
            signed,
        })
    }
}

/// One whom the service has authorised, or nobody: which, only he can tell.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthClient {
    /// By which he finds his line.
    pub id: [u8; 8],
    /// Of the cipher.
    pub iv: [u8; 16],
    /// The descriptor cookie, encrypted for him.
    pub cookie: [u8; 16],
}

/// What the first layer has.
#[derive(Clone, PartialEq, Eq)]
pub struct FirstLayer {
    /// The service's key for this descriptor alone, X25519.
    pub ephemeral_key: [u8; 32],
    /// At least one.
    pub clients: Vec<AuthClient>,
    /// The second layer, encrypted.
    pub encrypted: Vec<u8>,
}

impl FirstLayer {
    /// Reads a plaintext, with the zeros that pad it; its last line may lack its end, as C tor's does.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(plaintext: &[u8]) -> Result<Self, Malformed> {
        let text = plain(plaintext)?;
        let mut items = Items::within(&text, text.len(), text.len())?;
        let (mut kind, mut ephemeral_key, mut encrypted) = (None, None, None);
        let mut clients = Vec::new();
        while let Some(item) = items.next()? {
            match item.keyword {
                "desc-auth-type" => {
                    let known = (item.arguments == "x25519").then_some(());
                    once(&mut kind, known, &items)?;
                }
                "desc-auth-ephemeral-key" => {
                    once(&mut ephemeral_key, base64(item.arguments), &items)?;
                }
                "auth-client" => {
                    let client = AuthClient::parse(item.arguments);
                    clients.push(client.ok_or_else(|| items.wrong("auth-client"))?);
                }
                "encrypted" => {
                    let object = item.labelled(MESSAGE, &items)?;
                    once(&mut encrypted, Some(object), &items)?;
                }
                _ => {}
            }
        }
        let lacks = || items.wrong("the first layer lacks something");
        kind.filter(|()| !clients.is_empty()).ok_or_else(lacks)?;
        Ok(Self {
            ephemeral_key: ephemeral_key.ok_or_else(lacks)?,
            clients,
            encrypted: encrypted.ok_or_else(lacks)?,
        })
    }

    /// Writes it without padding.
    pub fn write(&self) -> String {
        let key = STANDARD.encode(self.ephemeral_key);
        let mut text = format!("desc-auth-type x25519\ndesc-auth-ephemeral-key {key}\n");
        for client in &self.clients {
            let (id, iv, cookie) = (&client.id, &client.iv, &client.cookie);
            let fields = [encode(id), encode(iv), encode(cookie)].join(" ");
            text.push_str(&format!("auth-client {fields}\n"));
        }
        text.push_str("encrypted\n");
        put_object(MESSAGE, &self.encrypted, &mut text);
        // "C Tor does not include a final newline."
        text.truncate(text.len().saturating_sub(1));
        text
    }
}

impl AuthClient {
    fn parse(arguments: &str) -> Option<Self> {
        let mut words = arguments.split_ascii_whitespace();
        Some(Self {
            id: base64(words.next()?)?,
            iv: base64(words.next()?)?,
            cookie: base64(words.next()?)?,
        })
    }
}

/// What the second layer has: how the service is reached.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecondLayer {
    /// Circuit handshakes that the service speaks with rendezvous points: ntor is among them.
    pub create2_formats: Vec<HandshakeType>,
    /// Clients have to show the service who they are when they introduce themselves, by an Ed25519 key.
    pub is_intro_auth_required: bool,
    /// The service does not hide where it is.
    pub is_single_onion_service: bool,
    /// The service has congestion control (`FlowCtrl=2`), with so many cells to each SENDME (proposal 324).
    pub congestion_control: Option<u8>,
    /// Where clients introduce themselves: [`INTRODUCTION_POINTS`] at most.
    pub points: Vec<IntroductionPoint>,
}

/// What a descriptor says of one introduction point. No certificate has been checked by reading it.
#[derive(Clone, PartialEq, Eq)]
pub struct IntroductionPoint {
    /// Who and where the relay is, as a block of link specifiers: a client says it "verbatim, in the same order". See [`LinkSpecifier::parse_all`].
    pub link_specifiers: Vec<u8>,
    /// The relay's onion key, for ntor.
    pub onion_key: [u8; 32],
    /// The key by which the relay knows the service, certified by the descriptor's signing key.
    pub auth_key: Vec<u8>,
    /// The key that clients encrypt for, X25519.
    pub enc_key: [u8; 32],
    /// The same key as an Ed25519 key, certified by the descriptor's signing key.
    pub enc_key_cert: Vec<u8>,
}

impl SecondLayer {
    /// Reads a plaintext, with the zeros that may pad it. An introduction point that lacks something, or has it twice or unreadable, is left out: it
    /// may be of a kind that is not known yet.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(plaintext: &[u8]) -> Result<Self, Malformed> {
        let text = plain(plaintext)?;
        let mut items = Items::within(&text, text.len(), super::OBJECT)?;
        let mut layer = Self::default();
        let (mut formats, mut authentication) = (None, None);
        let (mut single, mut control) = (None, None);
        let mut open = None::<Point>;
        let mut points = 0_usize;
        while let Some(item) = items.next()? {
            match (item.keyword, &mut open) {
                ("introduction-point", _) => {
                    layer.close(open.take());
                    points = points.saturating_add(1);
                    if points > INTRODUCTION_POINTS {
                        return Err(items.wrong("too many introduction points"));
                    }
                    open = Some(Point::begin(item.arguments));
                }
                (_, Some(point)) => point.take(item, &items),
                ("create2-formats", None) => {
                    once(&mut formats, handshakes(item.arguments), &items)?;
                }
                ("intro-auth-required", None) => {
                    let mut kinds = item.arguments.split_ascii_whitespace();
                    let known = kinds.any(|kind| kind == "ed25519").then_some(());
                    once(&mut authentication, known, &items)?;
                }
                ("single-onion-service", None) => once(&mut single, Some(()), &items)?,
                ("flow-control", None) => {
                    once(&mut control, flow_control(item.arguments), &items)?;
                }
                _ => {}
            }
        }
        layer.close(open);
        layer.create2_formats = formats.ok_or_else(|| items.wrong("no create2-formats"))?;
        layer.is_intro_auth_required = authentication.is_some();
        layer.is_single_onion_service = single.is_some();
        layer.congestion_control = control.flatten();
        Ok(layer)
    }

    fn close(&mut self, point: Option<Point>) {
        self.points.extend(point.and_then(Point::whole));
    }

    /// Writes it: [`INTRODUCTION_POINTS`] at most.
    pub fn write(&self) -> String {
        let formats = self.create2_formats.iter();
        let formats: Vec<_> = formats.map(|format| format.0.to_string()).collect();
        let mut text = format!("create2-formats {}\n", formats.join(" "));
        if self.is_intro_auth_required {
            text.push_str("intro-auth-required ed25519\n");
        }
        if self.is_single_onion_service {
            text.push_str("single-onion-service\n");
        }
        if let Some(increment) = self.congestion_control {
            text.push_str(&format!("flow-control 1-2 {increment}\n"));
        }
        for point in self.points.iter().take(INTRODUCTION_POINTS) {
            point.write(&mut text);
        }
        text
    }
}

impl IntroductionPoint {
    fn write(&self, text: &mut String) {
        let specifiers = STANDARD.encode(&self.link_specifiers);
        text.push_str(&format!("introduction-point {specifiers}\n"));
        let onion_key = STANDARD.encode(self.onion_key);
        text.push_str(&format!("onion-key ntor {onion_key}\nauth-key\n"));
        put_object(CERTIFICATE, &self.auth_key, text);
        let enc_key = STANDARD.encode(self.enc_key);
        text.push_str(&format!("enc-key ntor {enc_key}\nenc-key-cert\n"));
        put_object(CERTIFICATE, &self.enc_key_cert, text);
    }
}

/// What was read so far of an introduction point.
#[derive(Default)]
struct Point {
    link_specifiers: Option<Vec<u8>>,
    onion_key: Option<[u8; 32]>,
    auth_key: Option<Vec<u8>>,
    enc_key: Option<[u8; 32]>,
    enc_key_cert: Option<Vec<u8>>,
    is_odd: bool,
}

impl Point {
    fn begin(arguments: &str) -> Self {
        let block = super::BASE64.decode(arguments).ok();
        let block = block.filter(|block| LinkSpecifier::parse_all(block).is_ok());
        Self {
            link_specifiers: block,
            ..Self::default()
        }
    }

    fn take(&mut self, item: Item<'_>, items: &Items<'_>) {
        // Of another kind than ntor there may be any number.
        let key = item.arguments.strip_prefix("ntor ");
        let taken = match (item.keyword, key) {
            ("onion-key", Some(key)) => once(&mut self.onion_key, base64(key), items),
            ("enc-key", Some(key)) => once(&mut self.enc_key, base64(key), items),
            ("auth-key", _) => {
                let object = item.labelled(CERTIFICATE, items).ok();
                once(&mut self.auth_key, object, items)
            }
            ("enc-key-cert", _) => {
                let object = item.labelled(CERTIFICATE, items).ok();
                once(&mut self.enc_key_cert, object, items)
            }
            _ => Ok(()),
        };
        self.is_odd |= taken.is_err();
    }

    fn whole(self) -> Option<IntroductionPoint> {
        (!self.is_odd).then_some(())?;
        Some(IntroductionPoint {
            link_specifiers: self.link_specifiers?,
            onion_key: self.onion_key?,
            auth_key: self.auth_key?,
            enc_key: self.enc_key?,
            enc_key_cert: self.enc_key_cert?,
        })
    }
}

/// Must have ntor.
fn handshakes(arguments: &str) -> Option<Vec<HandshakeType>> {
    let words = arguments.split_ascii_whitespace();
    let formats: Option<Vec<_>> = words.map(|word| number(word).map(HandshakeType)).collect();
    formats.filter(|formats| formats.contains(&HandshakeType::NTOR))
}

/// `1-2 31`; within, `None` where congestion control is not among the versions.
fn flow_control(arguments: &str) -> Option<Option<u8>> {
    let mut words = arguments.split_ascii_whitespace();
    let (versions, increment) = (words.next()?, number(words.next()?)?);
    (increment > 0).then(|| includes(versions, 2).then_some(increment))
}

/// The text before the padding, with an end to its last line.
fn plain(plaintext: &[u8]) -> Result<Cow<'_, str>, Malformed> {
    let padding = plaintext.iter().rev().take_while(|byte| **byte == 0);
    let end = plaintext.len().saturating_sub(padding.count());
    let text = plaintext.get(..end).map(str::from_utf8);
    let Some(Ok(text)) = text else {
        return Err(Malformed {
            line: 1,
            what: "no text",
        });
    };
    Ok(if text.ends_with('\n') {
        text.into()
    } else {
        format!("{text}\n").into()
    })
}

/// Keys, and where relays are, stay out of every log.
macro_rules! hidden {
    ($($type:ty),+) => {
        $(impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($type), "(hidden)"))
            }
        })+
    };
}

hidden!(
    Wrapper<'_>,
    AuthClient,
    FirstLayer,
    SecondLayer,
    IntroductionPoint
);

#[cfg(test)]
mod tests;
