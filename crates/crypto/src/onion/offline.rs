//! A signing key that a relay has for some weeks or months, certified by an identity whose secret is kept elsewhere: who breaks into the relay can be it
//! until the certificate ends, and not for ever. tor-spec "Keys and names" (`KP_relaysign_ed`); C tor's `OfflineMasterKey`.
//!
//! Its text is the file `signing.key` in the identity's directory; the whole of it is made again, where the identity is, before its time is over.

use std::{fmt, str::FromStr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hoplite_wire::cell::cert::{CertKind, Ed25519Cert, KeyKind};
use zeroize::Zeroizing;

use super::identity::hours;
use crate::{SigningError, SigningKey, signing::is_signed};

/// The first line; nobody takes the file for something public.
const HEAD: &str = "hoplite-signing-key 1";
/// The most bytes that a text has.
const TEXT: usize = 1024;

/// A signing key with its certificate (type 4).
#[derive(Clone)]
pub struct CertifiedSigningKey {
    seed: Zeroizing<[u8; 32]>,
    certificate: Vec<u8>,
    identity: [u8; 32],
    expires: u64,
}

/// The text is no signing key with its certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSigningKey {
    /// It is not written as such a text is.
    #[error("it is no signing key file of version 1: its line {0} is wrong")]
    Malformed(usize),
    /// The certificate is not the key's, or no identity has signed it.
    #[error("its certificate is not one of its key by an identity")]
    Uncertified,
}

impl CertifiedSigningKey {
    /// A new one, which `master` certifies for so many seconds.
    ///
    /// # Errors
    /// [`SigningError`].
    pub fn issue(master: &SigningKey, now: u64, lifetime: u64) -> Result<Self, SigningError> {
        let seed = SigningKey::fresh_seed()?;
        let key = SigningKey::from_seed(seed.clone())?;
        let certificate = Ed25519Cert {
            kind: CertKind::SIGNING,
            expires_hours: hours(now, lifetime),
            key_kind: KeyKind::ED25519,
            key: key.public(),
            signed_with: Some(master.public()),
        };
        let mut bytes = Vec::new();
        certificate.write(&mut bytes);
        bytes.extend_from_slice(&master.sign(&bytes));
        Ok(Self {
            seed,
            certificate: bytes,
            identity: master.public(),
            expires: certificate.expires(),
        })
    }

    /// Who has certified it: the relay's identity.
    pub fn identity(&self) -> &[u8; 32] {
        &self.identity
    }

    /// Until when, in seconds since 1970.
    pub fn expires(&self) -> u64 {
        self.expires
    }

    /// The certificate, which everybody may see.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// The key.
    ///
    /// # Errors
    /// [`SigningError`]: never, in fact.
    pub fn key(&self) -> Result<SigningKey, SigningError> {
        SigningKey::from_seed(self.seed.clone())
    }

    /// All of it as a text, for a file of its owner.
    pub fn text(&self) -> Zeroizing<String> {
        let secret = Zeroizing::new(URL_SAFE_NO_PAD.encode(self.seed.as_slice()));
        let certificate = URL_SAFE_NO_PAD.encode(&self.certificate);
        let mut text = Zeroizing::new(String::with_capacity(TEXT));
        let parts = [
            HEAD,
            "\ncertificate ",
            &certificate,
            "\nsecret ",
            &secret,
            "\n",
        ];
        parts.iter().for_each(|part| text.push_str(part));
        text
    }
}

impl FromStr for CertifiedSigningKey {
    type Err = NoSigningKey;

    fn from_str(text: &str) -> Result<Self, NoSigningKey> {
        let wrong = NoSigningKey::Malformed;
        let text = text.get(..text.len().min(TEXT)).unwrap_or_default();
        let mut lines = text.lines();
        lines
            .next()
            .filter(|line| *line == HEAD)
            .ok_or_else(|| wrong(1))?;
        let certificate = lines
            .next()
            .and_then(|line| line.strip_prefix("certificate "));
        let certificate = certificate.and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
        let certificate = certificate.ok_or_else(|| wrong(2))?;
        let mut seed = Zeroizing::new([0; 32]);
        let secret = lines.next().and_then(|line| line.strip_prefix("secret "));
        let secret = secret.filter(|text| text.len() == 43);
        let read = secret.map(|text| URL_SAFE_NO_PAD.decode_slice(text, seed.as_mut_slice()));
        if !matches!(read, Some(Ok(32))) {
            return Err(wrong(3));
        }
        if lines.next().is_some() {
            return Err(wrong(4));
        }
        let key = SigningKey::from_seed(seed.clone()).map_err(|_| wrong(3))?;
        let (identity, certified, expires) =
            read_certificate(&certificate).ok_or(NoSigningKey::Uncertified)?;
        if certified != key.public() {
            return Err(NoSigningKey::Uncertified);
        }
        Ok(Self {
            seed,
            certificate,
            identity,
            expires,
        })
    }
}

/// The signing key that this identity has certified, if the certificate is right and was not over at this time.
pub fn certified_key(certificate: &[u8], identity: &[u8; 32], at: u64) -> Option<[u8; 32]> {
    let (by, key, expires) = read_certificate(certificate)?;
    (by == *identity && expires >= at).then_some(key)
}

/// The identity, the key, and until when, of a certificate that the identity has signed.
fn read_certificate(certificate: &[u8]) -> Option<([u8; 32], [u8; 32], u64)> {
    let read = Ed25519Cert::parse(certificate).ok()?;
    let identity = read.cert.signed_with?;
    let is_right = read.cert.kind == CertKind::SIGNING
        && read.cert.key_kind == KeyKind::ED25519
        && is_signed(&identity, read.signed, read.signature);
    is_right.then(|| (identity, read.cert.key, read.cert.expires()))
}

impl fmt::Debug for CertifiedSigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertifiedSigningKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onion::identity::{RelayIdentity, Why};

    const NOW: u64 = 1_795_737_600;
    const DAY: u64 = 24 * 3600;

    fn issued() -> (SigningKey, CertifiedSigningKey) {
        let master = SigningKey::generate().expect("a key");
        let issued = CertifiedSigningKey::issue(&master, NOW, 30 * DAY).expect("issued");
        (master, issued)
    }

    #[test]
    fn a_key_is_read_back_and_certified_by_its_identity_until_its_time_is_over() {
        let (master, issued) = issued();
        let again: CertifiedSigningKey = issued.text().parse().expect("read");
        assert_eq!(again.text(), issued.text());
        assert_eq!(again.identity(), &master.public());
        let key = again.key().expect("a key").public();
        let certified = |identity: &[u8; 32], at| certified_key(again.certificate(), identity, at);
        assert_eq!(certified(&master.public(), NOW + 30 * DAY), Some(key));
        assert_eq!(certified(&master.public(), NOW + 31 * DAY), None);
        assert_eq!(certified(&[1; 32], NOW), None);
        assert_eq!(format!("{again:?}"), "CertifiedSigningKey(hidden)");
    }

    #[test]
    fn a_key_with_anothers_certificate_is_none() {
        let (_, one) = issued();
        let (_, other) = issued();
        let line = |key: &CertifiedSigningKey, number: usize| {
            let text = key.text();
            text.lines().nth(number).expect("a line").to_owned()
        };
        let mixed = format!("{HEAD}\n{}\n{}\n", line(&one, 1), line(&other, 2));
        let refused = mixed.parse::<CertifiedSigningKey>().err();
        assert_eq!(refused, Some(NoSigningKey::Uncertified));
        for (from, to, wrong) in [
            ("key 1", "key 2", 1),
            ("certificate ", "certificate !", 2),
            ("secret ", "secret A", 3),
        ] {
            let text = one.text().replace(from, to);
            let refused = text.parse::<CertifiedSigningKey>().err();
            assert_eq!(refused, Some(NoSigningKey::Malformed(wrong)));
        }
    }

    #[test]
    fn a_relay_is_its_identity_without_the_secret_and_stays_it_until_the_certificate_ends() {
        let (master, issued) = issued();
        let relay = RelayIdentity::offline(&issued, NOW).expect("a relay");
        assert_eq!(relay.peer().ed25519, master.public());
        assert_eq!(relay.signing_certificate(), issued.certificate());
        assert!(!relay.is_due(NOW + DAY) && relay.is_due(NOW + 16 * DAY));
        let renewed = relay.renewed(NOW + 16 * DAY).expect("renewed");
        assert_eq!(renewed.signing_certificate(), issued.certificate());
        assert!(!renewed.is_due(NOW + 17 * DAY));
        let late = RelayIdentity::offline(&issued, NOW + 31 * DAY);
        assert!(matches!(late, Err(Why::Expired(_))));
    }
}
