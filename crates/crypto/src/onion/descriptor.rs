//! The descriptor of an onion service: what it tells the clients that know its address, through directories (HSDir) that do not. A service makes a
//! [`Descriptor`] public, a directory or a client reads a [`SignedDescriptor`], and a client opens that. rend-spec-v3, "Generating and publishing
//! hidden service descriptors". The grammar of the texts is `hoplite_wire::tor::service_descriptor`'s.
//!
//! Directories may send anything: a text is bounded before it is read, signatures are checked before anything is decrypted, and nothing is
//! decrypted that is not authentic. That no older descriptor is sent again is the caller's to check, by [`SignedDescriptor::revision`].

use std::fmt;

use curve25519_dalek::montgomery::MontgomeryPoint;
use hoplite_wire::{
    cell::{
        cert::{CertKind, Ed25519Cert, KeyKind},
        circuit::HandshakeType,
    },
    directory::Malformed,
    tor::service_descriptor as text,
};
use ring::rand::{SecureRandom, SystemRandom};
use shake::{ExtendableOutput, Shake256, Update, XofReader};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{
    Refused,
    client_authorisation::{ClientKey, ClientSecret, Cookie, nobody},
    hs_ntor::{IntroductionKeys, mac},
    keys::KeyPair,
    ntor3::encipher_from,
    service_keys::{BlindedKey, BlindedSecret, sha3_256},
};
use crate::signing::{SigningKey, is_signed};

const SIGNATURE: &[u8] = b"Tor onion service descriptor sig v3";
const FIRST: &[u8] = b"hsdir-superencrypted-data";
const SECOND: &[u8] = b"hsdir-encrypted-data";

/// The first layer's plaintext is padded to a multiple of this.
const PADDING: usize = 10_000;
/// The number of clients is made a multiple of this.
const CLIENTS: usize = 16;
/// Hours for which the descriptor's signing key is certified: as in C tor, for a descriptor may be around for two days and a bit.
const CERTIFIED: u64 = 54;
const HOUR: u64 = 3600;

/// Why a descriptor is not believed or not opened, or not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// It, or a layer of it, cannot be read.
    #[error("the descriptor cannot be read: {0}")]
    Malformed(#[from] Malformed),
    /// Its signing key is not certified by a blinded key.
    #[error("the descriptor's signing key is not certified by its service")]
    Uncertified,
    /// The certificate's time is over, by our clock.
    #[error("the descriptor has expired: check this machine's clock")]
    Expired,
    /// It was changed, or somebody else wrote it.
    #[error("the descriptor is not signed by its service")]
    Forged,
    /// It is another service's, or the same one's in another time period.
    #[error("the descriptor is of another onion service or another time period")]
    OtherKey,
    /// The first layer is not for this address.
    #[error("the descriptor cannot be opened with the onion service's address")]
    Unauthentic,
    /// The second layer is for authorised clients.
    #[error("the onion service is for clients that it has authorised, and there is no key for it")]
    NeedsAuthorisation,
    /// The client's key is none of those.
    #[error("the onion service has not authorised the key that there is for it")]
    NotAuthorised,
    /// A client's key, or an introduction point's, is no point of the curve, or gives no secret.
    #[error("a client or an introduction point of the descriptor has a key that gives no secret")]
    BadKey,
    /// What is to be told does not fit: too many introduction points or clients, or a lifetime that no directory takes.
    #[error("the descriptor would have more introduction points or clients than directories take")]
    TooLong,
    /// The system has no randomness, or the library not the cipher.
    #[error("a descriptor cannot be made: the system has no randomness")]
    System,
}

impl From<Refused> for DescriptorError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::BadKey => Self::BadKey,
            _ => Self::System,
        }
    }
}

/// How a service is reached.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// The service does not hide where it is.
    pub is_single_onion_service: bool,
    /// Clients have to show who they are when they introduce themselves.
    pub is_intro_auth_required: bool,
    /// The service has congestion control, with so many cells to each SENDME (proposal 324).
    pub congestion_control: Option<u8>,
    /// Where clients introduce themselves, 20 at most. With none the service lives, and does not want to be reached.
    pub points: Vec<IntroductionPoint>,
}

/// Where, and by which keys, clients introduce themselves.
#[derive(Clone, PartialEq, Eq)]
pub struct IntroductionPoint {
    /// Who and where the relay is, as a block of link specifiers: a client says it "verbatim, in the same order".
    pub link_specifiers: Vec<u8>,
    /// The relay's onion key, for ntor.
    pub onion_key: [u8; 32],
    /// By which the relay knows the service (`KP_hs_ipt_sid`), Ed25519.
    pub auth_key: [u8; 32],
    /// That clients encrypt for (`KP_hss_ntor`), X25519.
    pub enc_key: [u8; 32],
}

impl IntroductionPoint {
    /// What a client encrypts its introduction with; the subcredential is the descriptor's.
    pub fn keys(&self, subcredential: [u8; 32]) -> IntroductionKeys {
        IntroductionKeys {
            auth: self.auth_key,
            encryption: self.enc_key,
            subcredential,
        }
    }
}

/// By whom a descriptor is made public, and for whom.
#[derive(Clone, Copy)]
pub struct Publication<'a> {
    /// The service, in one time period.
    pub key: &'a BlindedSecret,
    /// Of that period.
    pub subcredential: [u8; 32],
    /// Signs all descriptors of that period, so that `key` need not.
    pub signing: &'a SigningKey,
    /// Greater than that of any descriptor before it in that period.
    pub revision: u64,
    /// Minutes for which directories keep it, 30 to 720.
    pub lifetime: u16,
    /// Those who may open it; nobody: all who know the address.
    pub authorised: &'a [ClientKey],
    /// The time, in seconds since 1970.
    pub now: u64,
    /// Bytes that directories take (`HSV3MaxDescriptorSize`).
    pub most: usize,
}

impl Descriptor {
    /// The text for directories.
    ///
    /// # Errors
    /// `TooLong`; `BadKey`; `System`.
    pub fn publish(&self, publication: &Publication<'_>) -> Result<String, DescriptorError> {
        let fits = self.points.len() <= text::INTRODUCTION_POINTS
            && text::LIFETIMES.contains(&publication.lifetime);
        fits.then_some(()).ok_or(DescriptorError::TooLong)?;
        let second = self.second_layer(publication)?.write();
        let first = publication.first_layer(second.as_bytes())?.write();
        let mut first = first.into_bytes();
        first.resize(first.len().next_multiple_of(PADDING), 0);
        let superencrypted = publication.layer(None).seal(first)?;
        let (key, blinded) = (publication.signing.public(), publication.key.public());
        let until = publication
            .now
            .saturating_add(CERTIFIED * HOUR)
            .div_ceil(HOUR);
        let certificate = certificate(
            CertKind::HS_DESCRIPTOR_SIGNING,
            key,
            *blinded.as_bytes(),
            until,
            |signed| publication.key.sign(signed),
        );
        let (lifetime, revision) = (publication.lifetime, publication.revision);
        let mut text =
            text::Wrapper::write_signed(lifetime, &certificate, revision, &superencrypted);
        let signature = publication
            .signing
            .sign(&[SIGNATURE, text.as_bytes()].concat());
        text::Wrapper::write_signature(&signature, &mut text);
        let fits = text.len() <= publication.most;
        fits.then_some(text).ok_or(DescriptorError::TooLong)
    }

    fn second_layer(
        &self,
        publication: &Publication<'_>,
    ) -> Result<text::SecondLayer, DescriptorError> {
        let points = self.points.iter().map(|point| publication.point(point));
        Ok(text::SecondLayer {
            create2_formats: vec![HandshakeType::NTOR],
            is_intro_auth_required: self.is_intro_auth_required,
            is_single_onion_service: self.is_single_onion_service,
            congestion_control: self.congestion_control,
            points: points.collect::<Result<_, _>>()?,
        })
    }
}

impl Publication<'_> {
    /// The layer around the first plaintext, or, with what the cookie is if there is one, around the second.
    fn layer<'a>(&'a self, second: Option<Option<&'a Cookie>>) -> Layer<'a> {
        Layer {
            key: self.key.public(),
            cookie: second.flatten(),
            subcredential: &self.subcredential,
            revision: self.revision,
            constant: if second.is_some() { SECOND } else { FIRST },
        }
    }

    fn first_layer(&self, second: &[u8]) -> Result<text::FirstLayer, DescriptorError> {
        let ephemeral = KeyPair::generate()?;
        let mut cookie = Cookie::default();
        random(cookie.as_mut_slice())?;
        let authorised = self.authorised.iter();
        let lines =
            authorised.map(|client| client.authorised(&ephemeral, &self.subcredential, &cookie));
        let mut lines = lines.collect::<Result<Vec<_>, _>>()?;
        let number = lines.len().max(1).next_multiple_of(CLIENTS);
        while lines.len() < number {
            lines.push(nobody()?);
        }
        let cookie = (!self.authorised.is_empty()).then_some(&cookie);
        Ok(text::FirstLayer {
            ephemeral_key: *ephemeral.public(),
            clients: shuffled(lines)?,
            encrypted: self.layer(Some(cookie)).seal(second.to_vec())?,
        })
    }

    fn point(&self, point: &IntroductionPoint) -> Result<text::IntroductionPoint, DescriptorError> {
        let enc_key = ed25519_of(&point.enc_key).ok_or(DescriptorError::BadKey)?;
        // Rounded down: a certificate does not tell the service's clock.
        let until = (self.now / HOUR).saturating_add(CERTIFIED);
        let by = self.signing.public();
        let certify =
            |kind, key| certificate(kind, key, by, until, |signed| self.signing.sign(signed));
        Ok(text::IntroductionPoint {
            link_specifiers: point.link_specifiers.clone(),
            onion_key: point.onion_key,
            auth_key: certify(CertKind::HS_INTRO_AUTHENTICATE, point.auth_key),
            enc_key: point.enc_key,
            enc_key_cert: certify(CertKind::HS_NTOR_CROSS, enc_key),
        })
    }
}

/// In an order that says nothing.
fn shuffled<T>(items: Vec<T>) -> Result<Vec<T>, DescriptorError> {
    let drawn = items.into_iter().map(|item| {
        let mut order = [0; 16];
        random(&mut order).map(|()| (order, item))
    });
    let mut drawn = drawn.collect::<Result<Vec<_>, _>>()?;
    drawn.sort_unstable_by_key(|(order, _)| *order);
    Ok(drawn.into_iter().map(|(_, item)| item).collect())
}

fn random(bytes: &mut [u8]) -> Result<(), DescriptorError> {
    let filled = SystemRandom::new().fill(bytes);
    filled.map_err(|_| DescriptorError::System)
}

/// A certificate that carries the key it is signed with.
fn certificate(
    kind: CertKind,
    key: [u8; 32],
    by: [u8; 32],
    until: u64,
    sign: impl FnOnce(&[u8]) -> [u8; 64],
) -> Vec<u8> {
    let certificate = Ed25519Cert {
        kind,
        expires_hours: u32::try_from(until).unwrap_or(u32::MAX),
        key_kind: KeyKind::ED25519,
        key,
        signed_with: Some(by),
    };
    let mut bytes = Vec::new();
    certificate.write(&mut bytes);
    let signature = sign(&bytes);
    bytes.extend_from_slice(&signature);
    bytes
}

/// What a certificate says, if it is of this kind and signed by the key that it carries, which is `by` where that is given.
fn certified(
    bytes: &[u8],
    kind: CertKind,
    by: Option<&[u8; 32]>,
    now: u64,
) -> Result<Ed25519Cert, DescriptorError> {
    let read = Ed25519Cert::parse(bytes).map_err(|_| DescriptorError::Uncertified)?;
    let cert = read.cert;
    let signer = cert.signed_with.ok_or(DescriptorError::Uncertified)?;
    let fits = cert.kind == kind
        && cert.key_kind == KeyKind::ED25519
        && by.is_none_or(|by| *by == signer)
        && is_signed(&signer, read.signed, read.signature);
    fits.then_some(()).ok_or(DescriptorError::Uncertified)?;
    if cert.expires() < now {
        return Err(DescriptorError::Expired);
    }
    Ok(cert)
}

/// The Ed25519 key of an X25519 key, with a sign of zero. Proposal 228, appendix A.
fn ed25519_of(key: &[u8; 32]) -> Option<[u8; 32]> {
    let point = MontgomeryPoint(*key).to_edwards(0)?;
    Some(point.compress().0)
}

/// A descriptor that its blinded key has signed: what a directory keeps. What it says is hidden, also from the directory.
#[derive(Clone, PartialEq, Eq)]
pub struct SignedDescriptor {
    key: BlindedKey,
    signing: [u8; 32],
    revision: u64,
    lifetime: u16,
    expires: u64,
    superencrypted: Vec<u8>,
}

impl SignedDescriptor {
    /// Reads a text of at most `most` bytes ([`text::DESCRIPTOR`] where consensuses say nothing else) and checks who wrote it. `now` is in seconds
    /// since 1970.
    ///
    /// # Errors
    /// `Malformed`, `Uncertified`, `Expired`, `Forged`.
    pub fn parse(text: &str, most: usize, now: u64) -> Result<Self, DescriptorError> {
        let read = text::Wrapper::parse(text, most)?;
        let kind = CertKind::HS_DESCRIPTOR_SIGNING;
        let cert = certified(&read.certificate, kind, None, now)?;
        let signed = [SIGNATURE, read.signed.as_bytes()].concat();
        if !is_signed(&cert.key, &signed, &read.signature) {
            return Err(DescriptorError::Forged);
        }
        let key = cert.signed_with.ok_or(DescriptorError::Uncertified)?;
        Ok(Self {
            key: BlindedKey::from_bytes(key),
            signing: cert.key,
            revision: read.revision,
            lifetime: read.lifetime,
            expires: cert.expires(),
            superencrypted: read.superencrypted,
        })
    }

    /// Whose it is, in one time period.
    pub fn key(&self) -> BlindedKey {
        self.key
    }

    /// Of two descriptors of one key, the one with the greater number counts.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Minutes for which a directory keeps it.
    pub fn lifetime(&self) -> u16 {
        self.lifetime
    }

    /// After this, in seconds since 1970, nobody believes it.
    pub fn expires(&self) -> u64 {
        self.expires
    }

    /// What it says to a client that looked for the descriptor of `key`, whose subcredential it has, and whom the service may have authorised.
    /// Introduction points that are not certified are left out.
    ///
    /// # Errors
    /// `OtherKey`, `Unauthentic`, `Malformed`, `NeedsAuthorisation`, `NotAuthorised`, `BadKey`.
    pub fn open(
        &self,
        key: &BlindedKey,
        subcredential: &[u8; 32],
        client: Option<&ClientSecret>,
        now: u64,
    ) -> Result<Descriptor, DescriptorError> {
        if self.key != *key {
            return Err(DescriptorError::OtherKey);
        }
        let layer = Layer {
            key: self.key,
            cookie: None,
            subcredential,
            revision: self.revision,
            constant: FIRST,
        };
        let opened = layer.open(&self.superencrypted)?;
        let first = text::FirstLayer::parse(&opened.ok_or(DescriptorError::Unauthentic)?)?;
        let cookie =
            client.map(|client| client.cookie(&first.ephemeral_key, subcredential, &first.clients));
        let cookie = cookie.transpose()?.flatten();
        let layer = Layer {
            cookie: cookie.as_ref(),
            constant: SECOND,
            ..layer
        };
        let closed = match client {
            None => DescriptorError::NeedsAuthorisation,
            Some(_) => DescriptorError::NotAuthorised,
        };
        let opened = layer.open(&first.encrypted)?.ok_or(closed)?;
        Ok(self.read(text::SecondLayer::parse(&opened)?, now))
    }

    fn read(&self, layer: text::SecondLayer, now: u64) -> Descriptor {
        let points = layer.points.into_iter();
        Descriptor {
            is_single_onion_service: layer.is_single_onion_service,
            is_intro_auth_required: layer.is_intro_auth_required,
            congestion_control: layer.congestion_control,
            points: points.filter_map(|point| self.point(point, now)).collect(),
        }
    }

    fn point(&self, point: text::IntroductionPoint, now: u64) -> Option<IntroductionPoint> {
        let certified = |bytes, kind| certified(bytes, kind, Some(&self.signing), now).ok();
        let auth = certified(&point.auth_key, CertKind::HS_INTRO_AUTHENTICATE)?;
        let enc = certified(&point.enc_key_cert, CertKind::HS_NTOR_CROSS)?;
        (ed25519_of(&point.enc_key)? == enc.key).then_some(())?;
        Some(IntroductionPoint {
            link_specifiers: point.link_specifiers,
            onion_key: point.onion_key,
            auth_key: auth.key,
            enc_key: point.enc_key,
        })
    }
}

/// How one layer is encrypted. rend-spec-v3, "Deriving hidden service descriptor encryption keys".
struct Layer<'a> {
    key: BlindedKey,
    /// The second layer's, if clients are authorised.
    cookie: Option<&'a Cookie>,
    subcredential: &'a [u8; 32],
    revision: u64,
    constant: &'static [u8],
}

const SALT: usize = 16;
const MAC: usize = 32;

impl Layer<'_> {
    fn seal(&self, mut plaintext: Vec<u8>) -> Result<Vec<u8>, DescriptorError> {
        let mut drawn = [0; 32];
        random(&mut drawn)?;
        let hashed = sha3_256(&[&drawn]);
        let salt = hashed.first_chunk::<SALT>();
        let salt = salt.ok_or(DescriptorError::System)?;
        let keys = self.keys(salt);
        encipher_from(keys.counter, &keys.cipher, &mut plaintext)?;
        let mac = keys.mac(salt, &plaintext);
        Ok([&salt[..], &plaintext, mac.as_slice()].concat())
    }

    /// The plaintext, unless it is not authentic.
    fn open(&self, sealed: &[u8]) -> Result<Option<Vec<u8>>, DescriptorError> {
        let parts = sealed.split_first_chunk::<SALT>();
        let parts = parts.and_then(|(salt, rest)| Some((salt, rest.split_last_chunk::<MAC>()?)));
        let Some((salt, (encrypted, mac))) = parts else {
            return Ok(None);
        };
        let keys = self.keys(salt);
        if !bool::from(keys.mac(salt, encrypted).as_slice().ct_eq(mac)) {
            return Ok(None);
        }
        let mut plaintext = encrypted.to_vec();
        encipher_from(keys.counter, &keys.cipher, &mut plaintext)?;
        Ok(Some(plaintext))
    }

    fn keys(&self, salt: &[u8; SALT]) -> LayerKeys {
        let mut hash = Shake256::default();
        hash.update(self.key.as_bytes());
        if let Some(cookie) = self.cookie {
            hash.update(cookie.as_slice());
        }
        for part in [
            &self.subcredential[..],
            &self.revision.to_be_bytes(),
            salt,
            self.constant,
        ] {
            hash.update(part);
        }
        let mut stream = hash.finalize_xof();
        let mut keys = LayerKeys::default();
        stream.read(keys.cipher.as_mut_slice());
        stream.read(&mut keys.counter);
        stream.read(keys.mac.as_mut_slice());
        keys
    }
}

#[derive(Default)]
struct LayerKeys {
    cipher: Zeroizing<[u8; 32]>,
    counter: [u8; 16],
    mac: Zeroizing<[u8; 32]>,
}

impl LayerKeys {
    /// `D_MAC`.
    fn mac(&self, salt: &[u8; SALT], encrypted: &[u8]) -> Zeroizing<[u8; 32]> {
        const SALT_LENGTH: [u8; 8] = (SALT as u64).to_be_bytes();
        mac(self.mac.as_slice(), &[&SALT_LENGTH, salt, encrypted])
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Descriptor(hidden)")
    }
}

impl fmt::Debug for IntroductionPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IntroductionPoint(hidden)")
    }
}

impl fmt::Debug for Publication<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Publication(hidden)")
    }
}

impl fmt::Debug for SignedDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignedDescriptor(hidden)")
    }
}

#[cfg(test)]
mod tests;
