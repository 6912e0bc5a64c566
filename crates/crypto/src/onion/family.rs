//! The key of a family of relays: each relay of the family says in its server descriptor that the key has certified it, so that clients put no two of them
//! on one path, and nobody gets into a family without its key. Proposal 321 ("happy families"); cert-spec "List of certificate types" (`FAMILY_V_IDENTITY`).
//!
//! The file is C tor's (`tor --keygen-family`, `NAME.secret_family_key`): relays of both kinds can be of one family.

use std::fmt;

use data_encoding::BASE64_NOPAD;
use hoplite_wire::cell::cert::{CertKind, Ed25519Cert, KeyKind};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use super::{identity::hours, service_keys::Expanded};
use crate::signing::is_signed;

const FILE: &[u8; 32] = b"== ed25519v1-secret: fmly-id ==\0";
/// For how many seconds a relay is certified: its descriptor is made again long before. As in C tor.
const CERTIFIED: u64 = 30 * 24 * 3600;

/// Who has it can make relays members.
#[derive(Clone)]
pub struct FamilyKey {
    expanded: Expanded,
    public: [u8; 32],
}

/// Why there is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FamilyKeyError {
    /// The file is no key of a family.
    #[error("expected a file NAME.secret_family_key, 96 bytes")]
    NoSecret,
    /// The system has no randomness.
    #[error("the system gives no random bytes")]
    NoRandomness,
}

impl FamilyKey {
    /// A new one.
    ///
    /// # Errors
    /// [`FamilyKeyError::NoRandomness`].
    pub fn generate() -> Result<Self, FamilyKeyError> {
        let mut seed = Zeroizing::new([0; 32]);
        let filled = SystemRandom::new().fill(seed.as_mut_slice());
        filled.map_err(|_| FamilyKeyError::NoRandomness)?;
        Ok(Self::of(Expanded::of_seed(&seed)))
    }

    /// Reads C tor's file: its tag, and the expanded secret.
    ///
    /// # Errors
    /// [`FamilyKeyError::NoSecret`].
    pub fn from_file(bytes: &[u8]) -> Result<Self, FamilyKeyError> {
        let secret = bytes
            .strip_prefix(FILE)
            .and_then(|secret| secret.try_into().ok());
        let secret: &[u8; 64] = secret.ok_or(FamilyKeyError::NoSecret)?;
        Ok(Self::of(Expanded::of_bytes(secret)))
    }

    /// The file that [`FamilyKey::from_file`] reads.
    pub fn file(&self) -> Zeroizing<Vec<u8>> {
        let mut file = Zeroizing::new(Vec::with_capacity(96));
        file.extend_from_slice(FILE);
        file.extend_from_slice(self.expanded.bytes());
        file
    }

    fn of(expanded: Expanded) -> Self {
        let public = expanded.public();
        Self { expanded, public }
    }

    /// The family's id, as C tor's `FamilyId` has it and microdescriptors behind `ed25519:`.
    pub fn id(&self) -> String {
        BASE64_NOPAD.encode(&self.public)
    }

    /// Says that the relay of this Ed25519 identity is of the family (type 12), for thirty days.
    pub fn certify(&self, identity: &[u8; 32], now: u64) -> Vec<u8> {
        let certificate = Ed25519Cert {
            kind: CertKind::FAMILY_V_IDENTITY,
            expires_hours: hours(now, CERTIFIED),
            key_kind: KeyKind::ED25519,
            key: *identity,
            signed_with: Some(self.public),
        };
        let mut bytes = Vec::new();
        certificate.write(&mut bytes);
        let signature = self.expanded.sign(&self.public, &bytes);
        bytes.extend_from_slice(&signature);
        bytes
    }
}

/// The family that a certificate says the relay of this identity is of, if it is right and of today.
pub fn family_of(certificate: &[u8], identity: &[u8; 32], now: u64) -> Option<[u8; 32]> {
    let read = Ed25519Cert::parse(certificate).ok()?;
    let family = read.cert.signed_with?;
    let is_right = read.cert.kind == CertKind::FAMILY_V_IDENTITY
        && read.cert.key_kind == KeyKind::ED25519
        && read.cert.key == *identity
        && read.cert.expires() >= now
        && is_signed(&family, read.signed, read.signature);
    is_right.then_some(family)
}

impl fmt::Debug for FamilyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FamilyKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_737_600;

    #[test]
    fn who_is_certified_is_of_the_family_for_a_month_and_nobody_else_is() {
        let key = FamilyKey::generate().expect("made");
        let certificate = key.certify(&[7; 32], NOW);
        let family = family_of(&certificate, &[7; 32], NOW).expect("of the family");
        assert_eq!(BASE64_NOPAD.encode(&family), key.id());
        assert_eq!(family_of(&certificate, &[8; 32], NOW), None);
        assert_eq!(
            family_of(&certificate, &[7; 32], NOW + 31 * 24 * 3600),
            None
        );
        for changed in 0..certificate.len() {
            let mut other = certificate.clone();
            other[changed] ^= 1;
            assert_eq!(family_of(&other, &[7; 32], NOW), None, "byte {changed}");
        }
    }

    #[test]
    fn a_key_is_kept_in_c_tors_file() {
        let key = FamilyKey::generate().expect("made");
        let file = key.file();
        assert_eq!(file.len(), 96);
        let again = FamilyKey::from_file(&file).expect("read");
        assert_eq!((again.id(), again.file()), (key.id(), key.file()));
        for bad in [&file[..95], b"", &[0; 96][..]] {
            assert_eq!(
                FamilyKey::from_file(bad).err(),
                Some(FamilyKeyError::NoSecret)
            );
        }
        assert_eq!(format!("{key:?}"), "FamilyKey(hidden)");
    }

    /// A key that `tor --keygen-family` (0.4.9.11) has made, and what it prints.
    #[test]
    fn a_key_of_c_tors_has_the_id_that_it_says() {
        let secret = "1094eed87a3ef5a68787aadd2b39eb6c014d93a7496b4c576b48d602e5c9b75136873af712e3bf8ca74d32c182fec87d58026ab05fd8f6d7ee30ed1a32ce2b01";
        let secret = data_encoding::HEXLOWER
            .decode(secret.as_bytes())
            .expect("hexadecimal");
        let key = FamilyKey::from_file(&[&FILE[..], &secret].concat()).expect("read");
        assert_eq!(key.id(), "QLeyNJ8aVInEOJZOGrM8RCvilNt1DzlcpbRI78IkY+I");
    }
}
