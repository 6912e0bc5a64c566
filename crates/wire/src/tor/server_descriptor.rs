//! What a relay says of itself to Tor's authorities: its server descriptor. Grammar only: it is signed by `hoplite_directory::tor`.
//! dir-spec "Server descriptor format", "Nonterminals in server descriptors". The extra-info document that belongs to it is [`super::extra_info`]'s.
//!
//! A document is written in two steps, since its two signatures are over what stands before them: [`ServerDescriptor::write`],
//! then [`put_ed25519_signature`] and [`put_rsa_signature`].

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    ops::RangeInclusive,
    str::FromStr,
};

use super::{
    FAMILY, Item, Items, base64, date, encode, hex, number, once, put_object, seconds, to_hex,
};
use crate::directory::{Malformed, Ports};

/// Bytes of a server descriptor; C tor takes no more.
pub const DESCRIPTOR: usize = 20_000;
/// Letters and digits of a nickname.
pub const NICKNAME: usize = 19;
/// Characters of the contact.
pub const CONTACT: usize = 256;
/// Certificates by keys of families; authorities may refuse more (proposal 321).
pub const FAMILY_CERTIFICATES: usize = 3;
/// Rules of an exit policy.
pub const EXIT_RULES: usize = 256;

/// What stands before a document when the SHA-256 of both is signed by the signing key.
pub const ED25519_PREFIX: &str = "Tor router descriptor signature v1";

const CERTIFICATE: &str = "ED25519 CERT";
const RSA_KEY: &str = "RSA PUBLIC KEY";
const TAP_CROSS: &str = "CROSSCERT";
const SIGNATURE: &str = "SIGNATURE";
const FAMILY_CERTIFICATE: &str = "FAMILY CERT";
pub(super) const ED25519_SIGNATURE: &str = "router-sig-ed25519";
const RSA_SIGNATURE: &str = "router-signature";

/// A relay, as it describes itself.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerDescriptor {
    /// What is not proven.
    pub about: About,
    /// What is.
    pub keys: Keys,
    /// The digests of the extra-info document that is handed in with it.
    pub extra_info: Option<ExtraInfoDigests>,
}

/// What a relay says of itself that nobody can prove.
#[derive(Clone, PartialEq, Eq)]
pub struct About {
    /// Its name: see [`is_nickname`].
    pub nickname: String,
    /// Where channels over TLS are accepted.
    pub address: SocketAddrV4,
    /// Where else.
    pub address_v6: Option<SocketAddrV6>,
    /// What it can carry.
    pub bandwidth: Bandwidth,
    /// Which program on which system.
    pub platform: String,
    /// When this was said, in seconds since 1970.
    pub published: u64,
    /// For how many seconds it has been running.
    pub uptime: u64,
    /// When it last had more to do than it can, in seconds since 1970, if that is not long ago (`overload-general`): by the hour.
    pub overloaded: Option<u64>,
    /// Who runs it: one line.
    pub contact: Option<String>,
    /// Subprotocols: `Link=4-5 Relay=2-4`, in the order of their names.
    pub protocols: String,
    /// It keeps descriptors of onion services.
    pub hsdir: bool,
    /// It is a directory cache, over circuits (`tunnelled-dir-server`).
    pub directory_cache: bool,
    /// RSA identities of relays of the same operator; it counts where they say so too.
    pub family: Vec<[u8; 20]>,
    /// To which IPv4 addresses it connects: the first rule that fits counts.
    pub exit: Vec<ExitRule>,
    /// To which ports of IPv6 addresses.
    pub exit_v6: Option<Ports>,
}

/// In bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// What it is willing to carry for long.
    pub average: u64,
    /// What it is willing to carry for a moment.
    pub burst: u64,
    /// What it has carried.
    pub observed: u64,
}

/// A relay's keys, and how they vouch for each other.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// The Ed25519 identity.
    pub ed25519: [u8; 32],
    /// A signing key, certified by it (type 4).
    pub signing: Vec<u8>,
    /// The RSA identity: SHA-1 of `rsa`.
    pub rsa_id: [u8; 20],
    /// Its key in DER (PKCS #1).
    pub rsa: Vec<u8>,
    /// The onion key for TAP in DER (PKCS #1): nobody uses it, and authorities ask for it.
    pub tap: Vec<u8>,
    /// By that key, over the RSA identity's SHA-1 and the Ed25519 identity.
    pub tap_cross: Vec<u8>,
    /// The onion key for ntor.
    pub ntor: [u8; 32],
    /// The Ed25519 identity, certified by the onion key (type 10).
    pub ntor_cross: Vec<u8>,
    /// Whether the onion key as one of Ed25519 is a point whose x is negative.
    pub ntor_sign: bool,
    /// The Ed25519 identity, certified by keys of families (type 12).
    pub families: Vec<Vec<u8>>,
}

/// How an extra-info document is named.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ExtraInfoDigests {
    /// SHA-1 of what its RSA signature is over.
    pub sha1: [u8; 20],
    /// SHA-256 of all of it.
    pub sha256: [u8; 32],
}

/// One line of an exit policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitRule {
    /// Whether these targets are connected to.
    pub accepts: bool,
    /// A network and the length of its prefix; without one all.
    pub net: Option<(Ipv4Addr, u8)>,
    /// Port 0 is none.
    pub ports: RangeInclusive<u16>,
}

/// A document that was read, none of whose signatures has been checked.
#[derive(Clone, PartialEq, Eq)]
pub struct Signed<'a> {
    /// What it says.
    pub descriptor: ServerDescriptor,
    /// What the Ed25519 signature is over, behind [`ED25519_PREFIX`] and by its SHA-256.
    pub ed25519_signed: &'a str,
    /// By the signing key.
    pub ed25519_signature: [u8; 64],
    /// What the RSA signature is over, by its SHA-1.
    pub rsa_signed: &'a str,
    /// By the RSA identity.
    pub rsa_signature: Vec<u8>,
}

/// Whether a text can be a relay's nickname.
pub fn is_nickname(text: &str) -> bool {
    (1..=NICKNAME).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Whether a text can be the contact: one line that can be shown.
pub fn is_contact(text: &str) -> bool {
    let shown = |c: char| c == ' ' || c.is_ascii_graphic();
    (1..=CONTACT).contains(&text.len()) && text.chars().all(shown) && text.trim() == text
}

impl ServerDescriptor {
    /// Writes it until the space behind which its Ed25519 signature stands.
    pub fn write(&self) -> String {
        let (about, keys) = (&self.about, &self.keys);
        let (nickname, address) = (&about.nickname, about.address);
        let mut text = format!(
            "router {nickname} {} {} 0 0\n",
            address.ip(),
            address.port()
        );
        put_certificate(&keys.signing, &mut text);
        text.push_str(&format!("master-key-ed25519 {}\n", encode(&keys.ed25519)));
        if let Some(address) = about.address_v6 {
            text.push_str(&format!("or-address {address}\n"));
        }
        about.write_head(&mut text);
        text.push_str(&format!("fingerprint {}\n", in_fours(&keys.rsa_id)));
        text.push_str(&format!("uptime {}\n", about.uptime));
        if let Some(digests) = self.extra_info {
            let (sha1, sha256) = (to_hex(&digests.sha1), encode(&digests.sha256));
            text.push_str(&format!("extra-info-digest {sha1} {sha256}\n"));
        }
        keys.write(&mut text);
        about.write_tail(&mut text);
        text.push_str(ED25519_SIGNATURE);
        text.push(' ');
        text
    }

    /// Reads a signed one.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &str) -> Result<Signed<'_>, Malformed> {
        let mut items = Items::within(text, DESCRIPTOR, DESCRIPTOR)?;
        let mut fields = Fields::default();
        while let Some(item) = items.next()? {
            if item.keyword == RSA_SIGNATURE {
                let rsa_signed = items.until(0, item.body)?;
                let rsa_signature = item.labelled(SIGNATURE, &items)?;
                let ended = items.position() == text.len();
                let whole = fields.whole(rsa_signed, rsa_signature).filter(|_| ended);
                return whole.ok_or_else(|| items.wrong("the descriptor lacks something"));
            }
            if item.start > 0 && fields.router.is_none() {
                return Err(items.wrong("no server descriptor"));
            }
            fields.take(item, &items)?;
        }
        Err(items.wrong("no signature"))
    }
}

impl About {
    fn write_head(&self, text: &mut String) {
        text.push_str(&format!("platform {}\n", self.platform));
        text.push_str(&format!("proto {}\n", self.protocols));
        text.push_str(&format!("published {}\n", date(self.published)));
        let Bandwidth {
            average,
            burst,
            observed,
        } = self.bandwidth;
        text.push_str(&format!("bandwidth {average} {burst} {observed}\n"));
        if let Some(at) = self.overloaded {
            text.push_str(&format!("overload-general 1 {}\n", date(at)));
        }
    }

    fn write_tail(&self, text: &mut String) {
        if self.hsdir {
            text.push_str("hidden-service-dir\n");
        }
        if self.directory_cache {
            text.push_str("tunnelled-dir-server\n");
        }
        if !self.family.is_empty() {
            let ids = self.family.iter().map(|id| format!("${}", to_hex(id)));
            text.push_str(&format!("family {}\n", ids.collect::<Vec<_>>().join(" ")));
        }
        if let Some(contact) = &self.contact {
            text.push_str(&format!("contact {contact}\n"));
        }
        for rule in &self.exit {
            text.push_str(&format!("{rule}\n"));
        }
        if let Some(ports) = &self.exit_v6 {
            text.push_str(&format!("ipv6-policy accept {ports}\n"));
        }
    }
}

impl Keys {
    fn write(&self, text: &mut String) {
        text.push_str("onion-key\n");
        put_object(RSA_KEY, &self.tap, text);
        text.push_str("signing-key\n");
        put_object(RSA_KEY, &self.rsa, text);
        text.push_str("onion-key-crosscert\n");
        put_object(TAP_CROSS, &self.tap_cross, text);
        text.push_str(&format!("ntor-onion-key {}\n", encode(&self.ntor)));
        let sign = u8::from(self.ntor_sign);
        text.push_str(&format!("ntor-onion-key-crosscert {sign}\n"));
        put_object(CERTIFICATE, &self.ntor_cross, text);
        for certificate in &self.families {
            text.push_str("family-cert\n");
            put_object(FAMILY_CERTIFICATE, certificate, text);
        }
    }
}

/// Continues a document until the line behind which its RSA signature stands.
pub fn put_ed25519_signature(signature: &[u8; 64], text: &mut String) {
    text.push_str(&format!("{}\n{RSA_SIGNATURE}\n", encode(signature)));
}

/// Ends a document.
pub fn put_rsa_signature(signature: &[u8], text: &mut String) {
    put_object(SIGNATURE, signature, text);
}

pub(super) fn put_certificate(certificate: &[u8], text: &mut String) {
    text.push_str("identity-ed25519\n");
    put_object(CERTIFICATE, certificate, text);
}

/// `ABCD 0123 …`
fn in_fours(id: &[u8; 20]) -> String {
    let fours: Vec<_> = id.chunks(2).map(to_hex).collect();
    fours.join(" ")
}

impl fmt::Display for ExitRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.accepts { "accept " } else { "reject " })?;
        match self.net {
            None => f.write_str("*")?,
            Some((address, 32)) => write!(f, "{address}")?,
            Some((address, length)) => write!(f, "{address}/{length}")?,
        }
        match (*self.ports.start(), *self.ports.end()) {
            (0 | 1, u16::MAX) => f.write_str(":*"),
            (low, high) if low == high => write!(f, ":{low}"),
            (low, high) => write!(f, ":{low}-{high}"),
        }
    }
}

/// The text is no line of an exit policy about IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoExitRule;

impl FromStr for ExitRule {
    type Err = NoExitRule;

    fn from_str(text: &str) -> Result<Self, NoExitRule> {
        let (verb, pattern) = text.split_once(' ').ok_or(NoExitRule)?;
        let accepts = match verb {
            "accept" => true,
            "reject" => false,
            _ => return Err(NoExitRule),
        };
        let (net, ports) = pattern.rsplit_once(':').ok_or(NoExitRule)?;
        Ok(Self {
            accepts,
            net: exit_net(net).ok_or(NoExitRule)?,
            ports: exit_ports(ports).ok_or(NoExitRule)?,
        })
    }
}

fn exit_net(text: &str) -> Option<Option<(Ipv4Addr, u8)>> {
    if text == "*" {
        return Some(None);
    }
    let (address, length) = text.split_once('/').unwrap_or((text, "32"));
    let length: u8 = number(length).filter(|length| *length <= 32)?;
    Some(Some((address.parse().ok()?, length)))
}

fn exit_ports(text: &str) -> Option<RangeInclusive<u16>> {
    if text == "*" {
        return Some(1..=u16::MAX);
    }
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let (low, high) = (number(low)?, number(high)?);
    (low > 0 && low <= high).then_some(low..=high)
}

impl ExitRule {
    /// Whether the rule is about this target.
    pub fn fits(&self, target: SocketAddrV4) -> bool {
        let inside = self.net.is_none_or(|(net, length)| {
            let shift = u32::from(32_u8.saturating_sub(length));
            let bits = |ip: Ipv4Addr| ip.to_bits().checked_shr(shift).unwrap_or(0);
            bits(net) == bits(*target.ip())
        });
        inside && self.ports.contains(&target.port())
    }
}

/// What was read so far.
#[derive(Default)]
struct Fields<'a> {
    router: Option<(String, SocketAddrV4)>,
    signing: Option<Vec<u8>>,
    ed25519: Option<[u8; 32]>,
    address_v6: Option<SocketAddrV6>,
    platform: Option<String>,
    protocols: Option<String>,
    published: Option<u64>,
    bandwidth: Option<Bandwidth>,
    rsa_id: Option<[u8; 20]>,
    uptime: Option<u64>,
    overloaded: Option<u64>,
    extra_info: Option<ExtraInfoDigests>,
    rsa: Option<Vec<u8>>,
    tap: Option<Vec<u8>>,
    tap_cross: Option<Vec<u8>>,
    ntor: Option<[u8; 32]>,
    ntor_cross: Option<(bool, Vec<u8>)>,
    hsdir: Option<()>,
    directory_cache: Option<()>,
    family: Option<Vec<[u8; 20]>>,
    families: Vec<Vec<u8>>,
    contact: Option<String>,
    exit: Vec<ExitRule>,
    exit_v6: Option<Ports>,
    signature: Option<(&'a str, [u8; 64])>,
}

impl<'a> Fields<'a> {
    fn take(&mut self, item: Item<'a>, items: &Items<'a>) -> Result<(), Malformed> {
        if self.signature.is_some() {
            return Err(items.wrong("something stands between the signatures"));
        }
        let said = item.arguments;
        match item.keyword {
            "router" => once(&mut self.router, router(said), items),
            "identity-ed25519" => {
                let certificate = item.labelled(CERTIFICATE, items)?;
                once(&mut self.signing, Some(certificate), items)
            }
            "master-key-ed25519" => once(&mut self.ed25519, base64(said), items),
            "or-address" => {
                // Of several the first counts.
                let address: Option<SocketAddr> = said.parse().ok();
                if let (Some(SocketAddr::V6(address)), None) = (address, self.address_v6) {
                    self.address_v6 = Some(address);
                }
                Ok(())
            }
            "signing-key" => {
                let key = item.labelled(RSA_KEY, items)?;
                once(&mut self.rsa, Some(key), items)
            }
            "onion-key" => once(&mut self.tap, Some(item.labelled(RSA_KEY, items)?), items),
            "onion-key-crosscert" => {
                let cross = item.labelled(TAP_CROSS, items)?;
                once(&mut self.tap_cross, Some(cross), items)
            }
            "ntor-onion-key" => once(&mut self.ntor, base64(said), items),
            "ntor-onion-key-crosscert" => {
                let sign = ["0", "1"].iter().position(|sign| *sign == said);
                let cross = sign.map(|sign| sign == 1).zip(
                    item.object
                        .filter(|(label, _)| *label == CERTIFICATE)
                        .map(|(_, bytes)| bytes),
                );
                once(&mut self.ntor_cross, cross, items)
            }
            "family-cert" => {
                self.families
                    .push(item.labelled(FAMILY_CERTIFICATE, items)?);
                let fits = self.families.len() <= FAMILY_CERTIFICATES;
                fits.then_some(()).ok_or_else(|| items.wrong("family-cert"))
            }
            "accept" | "reject" => {
                let rule = format!("{} {said}", item.keyword).parse();
                let rule = rule.map_err(|_| items.wrong("exit policy"))?;
                self.exit.push(rule);
                let fits = self.exit.len() <= EXIT_RULES;
                fits.then_some(()).ok_or_else(|| items.wrong("exit policy"))
            }
            ED25519_SIGNATURE => {
                // Through the space.
                let end = ED25519_SIGNATURE.len().saturating_add(1);
                let signed = items.until(0, item.start.saturating_add(end))?;
                let signature = base64(said).map(|signature| (signed, signature));
                once(&mut self.signature, signature, items)
            }
            keyword => self.take_about(keyword, said, items),
        }
    }

    fn take_about(
        &mut self,
        keyword: &str,
        said: &str,
        items: &Items<'_>,
    ) -> Result<(), Malformed> {
        match keyword {
            "platform" => once(&mut self.platform, Some(said.to_owned()), items),
            "proto" => once(&mut self.protocols, Some(said.to_owned()), items),
            "published" => once(&mut self.published, seconds(said), items),
            "bandwidth" => once(&mut self.bandwidth, bandwidth(said), items),
            "fingerprint" => once(&mut self.rsa_id, hex(&said.replace(' ', "")), items),
            "uptime" => once(&mut self.uptime, number(said), items),
            // Of other versions nothing is known.
            "overload-general" => match said.strip_prefix("1 ") {
                Some(at) => once(&mut self.overloaded, seconds(at), items),
                None => Ok(()),
            },
            "extra-info-digest" => once(&mut self.extra_info, digests(said), items),
            "hidden-service-dir" => once(&mut self.hsdir, Some(()), items),
            "tunnelled-dir-server" => once(&mut self.directory_cache, Some(()), items),
            // Who is named by a nickname is left out: nicknames are anybody's.
            "family" => {
                let ids = said.split(' ').filter_map(|id| hex(id.strip_prefix('$')?));
                once(&mut self.family, Some(ids.take(FAMILY).collect()), items)
            }
            "contact" => once(&mut self.contact, Some(said.to_owned()), items),
            "ipv6-policy" => {
                let ports = said.strip_prefix("accept ").map(str::parse);
                let ports = ports.and_then(Result::ok);
                once(&mut self.exit_v6, ports, items)
            }
            _ => Ok(()),
        }
    }

    fn whole(self, rsa_signed: &'a str, rsa_signature: Vec<u8>) -> Option<Signed<'a>> {
        let (nickname, address) = self.router?;
        let (ntor_sign, ntor_cross) = self.ntor_cross?;
        let (ed25519_signed, ed25519_signature) = self.signature?;
        let descriptor = ServerDescriptor {
            about: About {
                nickname,
                address,
                address_v6: self.address_v6,
                bandwidth: self.bandwidth?,
                platform: self.platform?,
                published: self.published?,
                uptime: self.uptime?,
                overloaded: self.overloaded,
                contact: self.contact,
                protocols: self.protocols?,
                hsdir: self.hsdir.is_some(),
                directory_cache: self.directory_cache.is_some(),
                family: self.family.unwrap_or_default(),
                exit: self.exit,
                exit_v6: self.exit_v6,
            },
            keys: Keys {
                ed25519: self.ed25519?,
                signing: self.signing?,
                rsa_id: self.rsa_id?,
                rsa: self.rsa?,
                tap: self.tap?,
                tap_cross: self.tap_cross?,
                ntor: self.ntor?,
                ntor_cross,
                ntor_sign,
                families: self.families,
            },
            extra_info: self.extra_info,
        };
        Some(Signed {
            descriptor,
            ed25519_signed,
            ed25519_signature,
            rsa_signed,
            rsa_signature,
        })
    }
}

/// `nickname address ORPort SOCKSPort DirPort`.
fn router(arguments: &str) -> Option<(String, SocketAddrV4)> {
    let mut words = arguments.split(' ');
    let nickname = words.next().filter(|word| is_nickname(word))?;
    let address = words.next()?.parse().ok()?;
    let port = number(words.next()?)?;
    Some((nickname.to_owned(), SocketAddrV4::new(address, port)))
}

pub(super) fn bandwidth(arguments: &str) -> Option<Bandwidth> {
    let mut words = arguments.split(' ').map(number);
    Some(Bandwidth {
        average: words.next()??,
        burst: words.next()??,
        observed: words.next()??,
    })
}

fn digests(arguments: &str) -> Option<ExtraInfoDigests> {
    let (sha1, sha256) = arguments.split_once(' ')?;
    Some(ExtraInfoDigests {
        sha1: hex(sha1)?,
        sha256: base64(sha256)?,
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

hidden!(ServerDescriptor, About, Keys, ExtraInfoDigests, Signed<'_>);

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*};

    use super::*;

    fn rules() -> impl Strategy<Value = ExitRule> {
        let ports = (1..=u16::MAX, 1..=u16::MAX).prop_map(|(a, b)| a.min(b)..=a.max(b));
        let net = option::of((any::<Ipv4Addr>(), 0..=32_u8));
        (any::<bool>(), net, ports).prop_map(|(accepts, net, ports)| ExitRule {
            accepts,
            net,
            ports,
        })
    }

    fn abouts() -> impl Strategy<Value = About> {
        let texts = (
            "[A-Za-z0-9]{1,19}",
            "Hoplite [0-9.]{1,8}",
            option::of("[!-~]{1,20}"),
        );
        let addresses = (any::<SocketAddrV4>(), option::of(any::<[u16; 8]>()));
        let numbers = (0..7_000_000_000_u64, any::<[u64; 4]>());
        let rest = (
            any::<bool>(),
            vec(rules(), 0..6),
            any::<bool>(),
            vec(any::<[u8; 20]>(), 0..3),
        );
        (texts, addresses, numbers, rest).prop_map(|(texts, addresses, numbers, rest)| {
            let (published, [average, burst, observed, uptime]) = numbers;
            About {
                nickname: texts.0,
                address: addresses.0,
                address_v6: addresses
                    .1
                    .map(|ip| SocketAddrV6::new(ip.into(), 443, 0, 0)),
                bandwidth: Bandwidth {
                    average,
                    burst,
                    observed,
                },
                platform: texts.1,
                published,
                uptime,
                overloaded: rest.0.then_some(published / 3600 * 3600),
                contact: texts.2,
                protocols: "Link=4-5 Relay=2-4".into(),
                hsdir: rest.0,
                directory_cache: rest.2,
                family: rest.3,
                exit: rest.1,
                exit_v6: rest.2.then(Ports::all),
            }
        })
    }

    fn descriptors() -> impl Strategy<Value = ServerDescriptor> {
        let keys = (any::<[u8; 32]>(), any::<[u8; 20]>(), any::<bool>());
        let digests = option::of((any::<[u8; 20]>(), any::<[u8; 32]>()));
        (abouts(), keys, vec(any::<u8>(), 0..300), digests).prop_map(
            |(about, (key, rsa_id, ntor_sign), bytes, digests)| ServerDescriptor {
                about,
                keys: Keys {
                    ed25519: key,
                    signing: bytes.clone(),
                    rsa_id,
                    rsa: bytes.clone(),
                    tap: bytes.clone(),
                    tap_cross: bytes.clone(),
                    ntor: key,
                    ntor_cross: bytes.clone(),
                    ntor_sign,
                    families: vec![bytes; usize::from(ntor_sign) * FAMILY_CERTIFICATES],
                },
                extra_info: digests.map(|(sha1, sha256)| ExtraInfoDigests { sha1, sha256 }),
            },
        )
    }

    #[test]
    fn dates_are_written_as_they_are_read() {
        for (at, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_251_199, "2024-02-29 23:59:59"),
            (1_709_251_200, "2024-03-01 00:00:00"),
            (1_795_737_600, "2026-11-27 00:00:00"),
            (1_798_761_599, "2026-12-31 23:59:59"),
        ] {
            assert_eq!((date(at).as_str(), seconds(text)), (text, Some(at)));
        }
    }

    #[test]
    fn the_first_rule_that_fits_is_found_by_network_and_port() {
        let rule: ExitRule = "reject 10.0.0.0/8:20-25".parse().expect("a rule");
        let fits = |text: &str| rule.fits(text.parse().expect("an address"));
        assert!(fits("10.255.0.1:25") && fits("10.0.0.0:20"));
        assert!(!fits("11.0.0.1:25") && !fits("10.0.0.1:26"));
        let all: ExitRule = "accept *:*".parse().expect("a rule");
        assert!(all.fits("192.0.2.1:1".parse().expect("an address")));
        for bad in [
            "accept",
            "accept *",
            "permit *:*",
            "accept 10.0.0.0/33:*",
            "accept *:0",
            "accept *:9-8",
            "accept [::]:80",
        ] {
            assert_eq!(bad.parse::<ExitRule>(), Err(NoExitRule), "{bad}");
        }
    }

    #[test]
    fn who_shows_too_many_families_is_refused() {
        let one = "family-cert\n-----BEGIN FAMILY CERT-----\nAAAA\n-----END FAMILY CERT-----\n";
        let wrong = |count: usize| {
            let text = format!("router a 1.2.3.4 5 0 0\n{}", one.repeat(count));
            ServerDescriptor::parse(&text).err().map(|error| error.what)
        };
        assert_eq!(wrong(3), Some("no signature"));
        assert_eq!(wrong(4), Some("family-cert"));
    }

    #[test]
    fn names_and_contacts_that_would_break_the_document_are_none() {
        assert!(is_nickname("amber1") && !is_nickname("") && !is_nickname("a b"));
        assert!(!is_nickname("a-b") && !is_nickname(&"a".repeat(20)));
        assert!(is_contact("op <op@example.org>") && !is_contact("a\nreject *:*"));
        assert!(!is_contact("") && !is_contact(" a"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(descriptor in descriptors(), ed25519 in vec(any::<u8>(), 64), rsa in vec(any::<u8>(), 0..128)) {
            let ed25519_signature: [u8; 64] = ed25519.try_into().expect("64 bytes");
            let mut text = descriptor.write();
            let ed25519_signed = text.clone();
            put_ed25519_signature(&ed25519_signature, &mut text);
            let rsa_signed = text.clone();
            put_rsa_signature(&rsa, &mut text);
            let read = ServerDescriptor::parse(&text);
            let written = Signed { descriptor, ed25519_signed: &ed25519_signed, ed25519_signature, rsa_signed: &rsa_signed, rsa_signature: rsa };
            prop_assert!(read == Ok(written));
            let longer = format!("{text}uptime 1\n");
            prop_assert!(ServerDescriptor::parse(&longer).is_err());
            let (shorter, _) = text.split_at(text.len() - 5);
            prop_assert!(ServerDescriptor::parse(shorter).is_err());
        }

        #[test]
        fn rules_are_read_again(rule in rules()) {
            prop_assert_eq!(rule.to_string().parse(), Ok(rule));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "(router a 1.2.3.4 5 0 0\n)?([a-z0-9-]{1,16}( [ -~]{0,30})?\n){0,20}") {
            drop(ServerDescriptor::parse(&text));
        }
    }
}
