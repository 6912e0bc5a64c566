//! What a relay of circuits keeps: the secret of its identity and those of its onion keys, the current one and the last, as one text.
//! The text is the file `onion.key` in the identity's directory.
//! tor-spec, "Keys and names". The text is ours alone: `keyword value` lines in one order, secrets in base64url.

use std::{fmt, str::FromStr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hoplite_wire::{
    OnionKey as PublicKey,
    cell::cert::{CertKind, Ed25519Cert, KeyKind},
};
use zeroize::Zeroizing;

use super::{
    OnionKey, OnionKeys,
    identity::{RelayIdentity, hours},
    offline::CertifiedSigningKey,
    service_keys::Expanded,
};
use crate::{SigningError, SigningKey};

/// The first line; nobody takes the file for something public.
const HEAD: &str = "hoplite-onion-secret 1";
/// The line of an identity whose secret is here, and of one whose public half alone is.
const HERE: &str = "identity ";
const ELSEWHERE: &str = "offline-identity ";
/// For how many seconds an onion key vouches for the identity: it is told of again long before.
const NTOR_CROSS: u64 = 30 * 24 * 3600;
/// The most bytes that a text has.
const TEXT: usize = 1024;

/// Secrets of a relay. They are wiped from memory when dropped, and never printed.
#[derive(Clone)]
pub struct Secrets {
    identity: Identity,
    current: Zeroizing<[u8; 32]>,
    /// When the current onion key was made, in seconds since 1970.
    since: u64,
    last: Option<Zeroizing<[u8; 32]>>,
}

/// The relay's identity.
#[derive(Clone)]
enum Identity {
    Here(Zeroizing<[u8; 32]>),
    /// Its public half: the secret is elsewhere, and has certified a signing key.
    Elsewhere([u8; 32]),
}

/// An onion key that vouches for the relay's identity. dir-spec, "ntor-onion-key-crosscert". All of it is public.
#[derive(Clone, PartialEq, Eq)]
pub struct CertifiedNtor {
    /// The onion key.
    pub public: [u8; 32],
    /// The identity, certified by the onion key (type 10).
    pub certificate: Vec<u8>,
    /// Whether the onion key as one of Ed25519 is a point whose x is negative.
    pub sign: bool,
}

/// Why there are no secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretsError {
    /// The system has no randomness.
    #[error("the system gives no random bytes")]
    NoRandomness,
    /// The text is none that a relay has stored.
    #[error("it is no onion key file of version 1: its line {0} is wrong")]
    Malformed(usize),
    /// The identity is not here, and there is no signing key that it has certified.
    #[error("the identity's secret is kept elsewhere, and there is no signing key of it here")]
    Offline,
    /// The signing key is of another identity.
    #[error("the signing key is certified by another identity")]
    OtherIdentity,
    /// The signing key's time is over.
    #[error("the signing key's certificate has expired")]
    Expired,
}

impl Secrets {
    /// New ones.
    ///
    /// # Errors
    /// [`SecretsError::NoRandomness`].
    pub fn fresh(now: u64) -> Result<Self, SecretsError> {
        Self::of_identity(RelayIdentity::fresh_secret()?, now)
    }

    /// A new onion key for an identity that is there already: RFC 8032's private key.
    ///
    /// # Errors
    /// [`SecretsError::NoRandomness`].
    pub fn of_identity(identity: Zeroizing<[u8; 32]>, now: u64) -> Result<Self, SecretsError> {
        Self::new(Identity::Here(identity), now)
    }

    /// A new onion key for an identity whose secret is elsewhere.
    ///
    /// # Errors
    /// [`SecretsError::NoRandomness`].
    pub fn offline(identity: [u8; 32], now: u64) -> Result<Self, SecretsError> {
        Self::new(Identity::Elsewhere(identity), now)
    }

    fn new(identity: Identity, now: u64) -> Result<Self, SecretsError> {
        let current = OnionKey::fresh_secret().map_err(|_| SecretsError::NoRandomness)?;
        Ok(Self {
            identity,
            current,
            since: now,
            last: None,
        })
    }

    /// With a new onion key; the current one becomes the last, which is still accepted.
    ///
    /// # Errors
    /// [`SecretsError::NoRandomness`].
    pub fn rotated(&self, now: u64) -> Result<Self, SecretsError> {
        let next = Self::new(self.identity.clone(), now)?;
        Ok(Self {
            last: Some(self.current.clone()),
            ..next
        })
    }

    /// Without the identity's secret, which is kept elsewhere from now on; of a relay that has none the same.
    ///
    /// # Errors
    /// [`SecretsError::NoRandomness`]: never, in fact.
    pub fn without_identity(&self) -> Result<Self, SecretsError> {
        Ok(Self {
            identity: Identity::Elsewhere(self.public()?.identity),
            ..self.clone()
        })
    }

    /// Without the last onion key, whose time is over.
    #[must_use]
    pub fn retired(&self) -> Self {
        Self {
            last: None,
            ..self.clone()
        }
    }

    /// When the current onion key was made, in seconds since 1970.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Whether the last onion key is still accepted.
    pub fn has_last(&self) -> bool {
        self.last.is_some()
    }

    /// Whether the identity's secret is elsewhere.
    pub fn is_offline(&self) -> bool {
        matches!(self.identity, Identity::Elsewhere(_))
    }

    /// Who the relay is on its channels, with a new signing key.
    ///
    /// # Errors
    /// [`SecretsError::NoRandomness`]; [`SecretsError::Offline`].
    pub fn identity(&self, now: u64) -> Result<RelayIdentity, SecretsError> {
        self.identity_by(None, now)
    }

    /// Who the relay is on its channels; where the identity's secret is elsewhere, by the signing key that it has certified.
    ///
    /// # Errors
    /// [`SecretsError`].
    pub fn identity_by(
        &self,
        signing: Option<&CertifiedSigningKey>,
        now: u64,
    ) -> Result<RelayIdentity, SecretsError> {
        match (&self.identity, signing) {
            (Identity::Here(secret), _) => Ok(RelayIdentity::from_secret(secret, now)?),
            (Identity::Elsewhere(_), None) => Err(SecretsError::Offline),
            (Identity::Elsewhere(public), Some(signing)) if signing.identity() != public => {
                Err(SecretsError::OtherIdentity)
            }
            (Identity::Elsewhere(_), Some(signing)) => {
                RelayIdentity::offline(signing, now).map_err(|_| SecretsError::Expired)
            }
        }
    }

    /// What circuit handshakes are answered with, by a relay that is `identity`.
    ///
    /// # Errors
    /// [`SecretsError::NoRandomness`].
    pub fn keys(&self, identity: &RelayIdentity) -> Result<OnionKeys, SecretsError> {
        let peer = identity.peer();
        let last = self.last.as_ref().map(pair).transpose()?;
        let current = pair(&self.current)?;
        Ok(OnionKeys::new(peer.rsa_id(), peer.ed25519, current, last))
    }

    /// The identity as the key that signs what the relay says of itself to the directory.
    ///
    /// # Errors
    /// [`SecretsError::Offline`].
    pub fn signing_key(&self) -> Result<SigningKey, SecretsError> {
        match &self.identity {
            Identity::Here(secret) => Ok(SigningKey::from_seed(secret.clone())?),
            Identity::Elsewhere(_) => Err(SecretsError::Offline),
        }
    }

    /// What clients write of the relay.
    ///
    /// # Errors
    /// [`SecretsError::NoRandomness`].
    pub fn public(&self) -> Result<PublicKey, SecretsError> {
        Ok(PublicKey {
            identity: match &self.identity {
                Identity::Here(_) => self.signing_key()?.public(),
                Identity::Elsewhere(public) => *public,
            },
            ntor: *pair(&self.current)?.public(),
        })
    }

    /// The current onion key as Tor's directory is told of it.
    ///
    /// # Errors
    /// [`SecretsError::NoRandomness`]: never, in fact.
    pub fn certified_ntor(&self, now: u64) -> Result<CertifiedNtor, SecretsError> {
        let public = self.public()?;
        let certificate = Ed25519Cert {
            kind: CertKind::NTOR_CROSS,
            expires_hours: hours(now, NTOR_CROSS),
            key_kind: KeyKind::ED25519,
            key: public.identity,
            signed_with: None,
        };
        let (key, signer) = Expanded::of_x25519(&self.current);
        let mut bytes = Vec::new();
        certificate.write(&mut bytes);
        let signature = key.sign(&signer, &bytes);
        bytes.extend_from_slice(&signature);
        Ok(CertifiedNtor {
            public: public.ntor,
            certificate: bytes,
            sign: signer.last().is_some_and(|last| last >> 7 == 1),
        })
    }

    /// All of it as a text, for a file of its owner.
    pub fn text(&self) -> Zeroizing<String> {
        let encode = |bytes: &[u8; 32]| Zeroizing::new(URL_SAFE_NO_PAD.encode(bytes));
        let (keyword, identity) = match &self.identity {
            Identity::Here(secret) => (HERE, encode(secret)),
            Identity::Elsewhere(public) => (ELSEWHERE, encode(public)),
        };
        let current = encode(&self.current);
        let mut text = Zeroizing::new(String::with_capacity(TEXT));
        let parts: [&str; 7] = [
            HEAD,
            "\n",
            keyword,
            &identity,
            "\ncurrent ",
            &current,
            "\nsince ",
        ];
        parts.iter().for_each(|part| text.push_str(part));
        text.push_str(&self.since.to_string());
        text.push('\n');
        if let Some(last) = &self.last {
            text.push_str("last ");
            text.push_str(&encode(last));
            text.push('\n');
        }
        text
    }
}

impl FromStr for Secrets {
    type Err = SecretsError;

    fn from_str(text: &str) -> Result<Self, SecretsError> {
        let mut lines = Lines {
            lines: text.get(..text.len().min(TEXT)).unwrap_or_default().lines(),
            number: 0,
        };
        if lines.next() != Some(HEAD) {
            return Err(SecretsError::Malformed(1));
        }
        let identity = if lines.begins(ELSEWHERE) {
            Identity::Elsewhere(*lines.secret(ELSEWHERE)?)
        } else {
            Identity::Here(lines.secret(HERE)?)
        };
        let current = lines.secret("current ")?;
        let since = lines.next().and_then(|line| line.strip_prefix("since "));
        let since = since.and_then(|text| text.parse().ok());
        let since = since.ok_or_else(|| lines.wrong())?;
        let last = match lines.clone().next() {
            Some(_) => Some(lines.secret("last ")?),
            None => None,
        };
        match lines.next() {
            None => Ok(Self {
                identity,
                current,
                since,
                last,
            }),
            Some(_) => Err(lines.wrong()),
        }
    }
}

/// The lines of a text, counted.
#[derive(Clone)]
struct Lines<'a> {
    lines: std::str::Lines<'a>,
    number: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.number = self.number.saturating_add(1);
        self.lines.next()
    }

    fn begins(&self, keyword: &str) -> bool {
        let next = self.lines.clone().next();
        next.is_some_and(|line| line.starts_with(keyword))
    }

    fn wrong(&self) -> SecretsError {
        SecretsError::Malformed(self.number)
    }

    fn secret(&mut self, keyword: &str) -> Result<Zeroizing<[u8; 32]>, SecretsError> {
        let text = self.next().and_then(|line| line.strip_prefix(keyword));
        let text = text.filter(|text| text.len() == 43);
        let mut bytes = Zeroizing::new([0; 32]);
        let read = text.map(|text| URL_SAFE_NO_PAD.decode_slice(text, bytes.as_mut_slice()));
        match read {
            Some(Ok(32)) => Ok(bytes),
            _ => Err(self.wrong()),
        }
    }
}

fn pair(secret: &Zeroizing<[u8; 32]>) -> Result<OnionKey, SecretsError> {
    OnionKey::from_secret(secret).map_err(|_| SecretsError::NoRandomness)
}

impl From<SigningError> for SecretsError {
    fn from(_: SigningError) -> Self {
        Self::NoRandomness
    }
}

impl fmt::Debug for CertifiedNtor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertifiedNtor(hidden)")
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use curve25519_dalek::montgomery::MontgomeryPoint;

    use super::*;
    use crate::signing::is_signed;

    const NOW: u64 = 1_700_000_000;

    #[test]
    fn secrets_are_read_back_and_are_the_same_relay() {
        let first = Secrets::fresh(NOW).expect("made");
        for secrets in [first.clone(), first.rotated(NOW + 9).expect("rotated")] {
            let again: Secrets = secrets.text().parse().expect("read");
            assert_eq!(again.text(), secrets.text());
            assert_eq!(again.public(), secrets.public());
            assert_eq!(again.since(), secrets.since());
        }
    }

    /// As whoever reads it from the directory does: the signer is the onion key, turned into one of Ed25519 by its sign.
    #[test]
    fn an_onion_key_vouches_for_the_identity_by_a_signature_of_its_own() {
        for _ in 0..8 {
            let secrets = Secrets::fresh(NOW).expect("made");
            let certified = secrets.certified_ntor(NOW).expect("certified");
            let point = MontgomeryPoint(certified.public).to_edwards(u8::from(certified.sign));
            let signer = point.expect("on the curve").compress().0;
            let read = Ed25519Cert::parse(&certified.certificate).expect("a certificate");
            assert!(is_signed(&signer, read.signed, read.signature));
            assert_eq!(read.cert.key, secrets.public().expect("a key").identity);
            assert_eq!(read.cert.kind, CertKind::NTOR_CROSS);
            assert!(read.cert.expires() >= NOW + 28 * 24 * 3600);
            let other = Secrets::fresh(NOW).expect("made");
            assert!(certified != other.certified_ntor(NOW).expect("certified"));
        }
    }

    #[test]
    fn a_rotation_keeps_the_identity_and_the_last_key() {
        let first = Secrets::fresh(NOW).expect("made");
        let then = first.rotated(NOW + 1).expect("rotated");
        let (before, after) = (
            first.public().expect("a key"),
            then.public().expect("a key"),
        );
        assert_eq!(before.identity, after.identity);
        assert_ne!(before.ntor, after.ntor);
        let keys = then.keys(&then.identity(NOW).expect("made")).expect("keys");
        assert!(keys.find(&before.ntor).is_ok() && keys.find(&after.ntor).is_ok());
        let later = then.retired();
        let keys = later
            .keys(&later.identity(NOW).expect("made"))
            .expect("keys");
        assert!(keys.find(&before.ntor).is_err() && keys.find(&after.ntor).is_ok());
    }

    #[test]
    fn what_is_published_is_what_the_parts_say() {
        let secrets = Secrets::fresh(NOW).expect("made");
        let identity = secrets.identity(NOW).expect("made");
        let published = secrets.keys(&identity).expect("keys").published();
        assert_eq!(PublicKey::from(published), secrets.public().expect("a key"));
        assert!(super::super::RelayKeys::from(secrets.public().expect("a key")) == published);
    }

    #[test]
    fn a_wrong_line_is_named() {
        let text = Secrets::fresh(NOW).expect("made").text();
        let wrong = |from: &str, to: &str| text.replace(from, to).parse::<Secrets>().err();
        assert_eq!(
            wrong("secret 1", "secret 2"),
            Some(SecretsError::Malformed(1))
        );
        assert_eq!(
            wrong("identity ", "identity A"),
            Some(SecretsError::Malformed(2))
        );
        assert_eq!(wrong("current", "curent"), Some(SecretsError::Malformed(3)));
        assert_eq!(
            wrong("since 1", "since x"),
            Some(SecretsError::Malformed(4))
        );
        let more = format!("{}more\n", text.as_str()).parse::<Secrets>();
        assert_eq!(more.err(), Some(SecretsError::Malformed(5)));
        assert_eq!(
            "".parse::<Secrets>().err(),
            Some(SecretsError::Malformed(1))
        );
    }

    #[test]
    fn without_the_identity_a_relay_is_by_a_key_of_that_identity_alone() {
        let master = SigningKey::generate().expect("a key");
        let secrets = Secrets::offline(master.public(), NOW).expect("made");
        let again: Secrets = secrets.text().parse().expect("read");
        assert!(again.is_offline() && again.text() == secrets.text());
        assert_eq!(again.public().expect("a key").identity, master.public());
        assert_eq!(again.identity(NOW).err(), Some(SecretsError::Offline));
        assert_eq!(again.signing_key().err(), Some(SecretsError::Offline));
        let issue = |master: &SigningKey| CertifiedSigningKey::issue(master, NOW, 3600);
        let signing = issue(&master).expect("issued");
        let by = |signing, now| again.identity_by(Some(signing), now);
        let relay = by(&signing, NOW).expect("a relay");
        assert_eq!(relay.peer().ed25519, master.public());
        assert_eq!(by(&signing, NOW + 7201).err(), Some(SecretsError::Expired));
        let other = issue(&SigningKey::generate().expect("a key")).expect("issued");
        assert_eq!(by(&other, NOW).err(), Some(SecretsError::OtherIdentity));
        let rotated = again.rotated(NOW).expect("rotated");
        assert!(rotated.is_offline());
        let here = Secrets::fresh(NOW).expect("made");
        let moved = here.without_identity().expect("moved");
        assert!(moved.is_offline() && moved.public() == here.public());
    }

    #[test]
    fn debug_tells_nothing() {
        let secrets = Secrets::fresh(NOW).expect("made");
        assert_eq!(format!("{secrets:?}"), "Secrets(hidden)");
    }
}
