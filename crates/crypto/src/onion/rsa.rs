//! RSA as Tor uses it: who a relay or an authority is, and what they have signed; and the key of a relay of ours.
//! tor-spec "Preliminaries"; RFC 8017 §8.2, §A.1.
//!
//! Signatures are PKCS #1 v1.5 over a hash without its name. They are checked by plain arithmetic on public numbers, and made by the crate `rsa`, whose
//! arithmetic on secret numbers is in constant time and blinded besides.

use std::{convert::Infallible, fmt, ops::RangeInclusive};

use num_bigint::BigUint;
use ring::{
    digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};
use rsa::{
    Pkcs1v15Sign, RsaPrivateKey,
    pkcs1::{DecodeRsaPrivateKey, EncodeRsaPrivateKey, EncodeRsaPublicKey, LineEnding},
    rand_core::{TryCryptoRng, TryRng},
};
use shake::{ExtendableOutput, Shake256, Update, XofReader};
use x509_parser::{prelude::FromDer, public_key::RSAPublicKey};
use zeroize::Zeroizing;

use crate::SigningError;

/// Lengths of authorities' keys, in bits.
const AUTHORITY: RangeInclusive<u64> = 2048..=4096;

/// Bits of a relay's key.
const RELAY: u64 = 1024;

/// The most bytes that the file of a relay's key has: one of 1,024 bits takes 900.
const FILE: usize = 4096;

/// A public key whose exponent is 65,537, which is what Tor's keys have; larger ones would only cost us time.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    modulus: BigUint,
    id: [u8; 20],
}

impl PublicKey {
    /// The key of an authority (DER, PKCS #1).
    pub fn authority(der: &[u8]) -> Option<Self> {
        Self::read(der, AUTHORITY)
    }

    /// The key of a relay (DER, PKCS #1).
    pub fn relay(der: &[u8]) -> Option<Self> {
        Self::read(der, RELAY..=RELAY)
    }

    /// A key of this many bits.
    pub(super) fn read(der: &[u8], bits: RangeInclusive<u64>) -> Option<Self> {
        let (rest, key) = RSAPublicKey::from_der(der).ok()?;
        let modulus = BigUint::from_bytes_be(key.modulus);
        let exponent = BigUint::from_bytes_be(key.exponent);
        let right = rest.is_empty()
            && bits.contains(&modulus.bits())
            && modulus.bit(0)
            && exponent == exponent_of_all();
        right.then(|| Self {
            modulus,
            id: sha1(der),
        })
    }

    /// SHA-1 of the key: Tor's identity digest, or fingerprint.
    pub fn id(&self) -> [u8; 20] {
        self.id
    }

    /// Whether `signature` is one over `content`, a hash or whatever it is taken for.
    pub fn signed(&self, signature: &[u8], content: &[u8]) -> bool {
        let length = usize::try_from(self.modulus.bits().div_ceil(8)).unwrap_or(usize::MAX);
        let number = BigUint::from_bytes_be(signature);
        // RFC 8017 §9.2: at least eight bytes of padding.
        let padding = length.checked_sub(content.len().saturating_add(3));
        let Some(padding) = padding.filter(|padding| *padding >= 8) else {
            return false;
        };
        if signature.len() != length || number >= self.modulus {
            return false;
        }
        let expected = [&[1][..], &vec![0xff; padding], &[0], content].concat();
        number.modpow(&exponent_of_all(), &self.modulus) == BigUint::from_bytes_be(&expected)
    }
}

fn exponent_of_all() -> BigUint {
    BigUint::from(65_537_u32)
}

/// Tor names keys by it; of texts, an authority's certificate alone is signed by it.
pub fn sha1(bytes: &[u8]) -> [u8; 20] {
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes);
    hash.as_ref().first_chunk().copied().unwrap_or_default()
}

/// What a consensus is signed by, and a microdescriptor named by.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let hash = digest(&SHA256, bytes);
    hash.as_ref().first_chunk().copied().unwrap_or_default()
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PublicKey(hidden)")
    }
}

/// The key of a relay's RSA identity, 1,024 bits long. It is wiped from memory when it is dropped, and never printed.
pub struct SecretKey {
    key: RsaPrivateKey,
    public: PublicKey,
    der: Vec<u8>,
}

/// A text is no key that a relay may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an RSA key of 1024 bits with the exponent 65537, in PEM (`RSA PRIVATE KEY`)")]
pub struct NoKey;

impl SecretKey {
    /// A new key. It takes some tenths of a second.
    ///
    /// # Errors
    /// [`SigningError::NoRandomness`].
    pub fn generate() -> Result<Self, SigningError> {
        let bits = usize::try_from(RELAY).unwrap_or(usize::MAX);
        let key = RsaPrivateKey::new(&mut Random::seeded()?, bits);
        let key = key.map_err(|_| SigningError::NoRandomness)?;
        Self::of(key).map_err(|_| SigningError::NoKey)
    }

    /// The key of a file, as C tor's `secret_id_key` is.
    ///
    /// # Errors
    /// [`NoKey`].
    pub fn from_pem(text: &str) -> Result<Self, NoKey> {
        let text = text.get(..text.len().min(FILE)).ok_or(NoKey)?;
        Self::of(RsaPrivateKey::from_pkcs1_pem(text).map_err(|_| NoKey)?)
    }

    fn of(key: RsaPrivateKey) -> Result<Self, NoKey> {
        let der = key.to_public_key().to_pkcs1_der().map_err(|_| NoKey)?;
        let der = der.as_bytes().to_vec();
        let public = PublicKey::read(&der, RELAY..=RELAY).ok_or(NoKey)?;
        Ok(Self { key, public, der })
    }

    /// What [`SecretKey::from_pem`] reads, for a file of its owner.
    ///
    /// # Errors
    /// [`NoKey`]: never, in fact.
    pub fn pem(&self) -> Result<Zeroizing<String>, NoKey> {
        self.key.to_pkcs1_pem(LineEnding::LF).map_err(|_| NoKey)
    }

    /// The public half.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// The public half in DER (PKCS #1), as documents of the directory have it.
    pub fn public_der(&self) -> &[u8] {
        &self.der
    }

    /// A signature over `content`: a hash, or whatever it is taken for, of 117 bytes at most.
    ///
    /// # Errors
    /// [`SigningError`].
    pub fn sign(&self, content: &[u8]) -> Result<Vec<u8>, SigningError> {
        let scheme = Pkcs1v15Sign::new_unprefixed();
        let signed = self
            .key
            .sign_with_rng(&mut Random::seeded()?, scheme, content);
        signed.map_err(|_| SigningError::NoKey)
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rsa::SecretKey(hidden)")
    }
}

/// Random bytes without end out of a seed of the system's: once it is there nothing can fail, which is what the crate `rsa` asks for.
struct Random(<Shake256 as ExtendableOutput>::Reader);

impl Random {
    fn seeded() -> Result<Self, SigningError> {
        let mut seed = Zeroizing::new([0; 32]);
        let filled = SystemRandom::new().fill(seed.as_mut_slice());
        filled.map_err(|_| SigningError::NoRandomness)?;
        let mut state = Shake256::default();
        state.update(seed.as_slice());
        Ok(Self(state.finalize_xof()))
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read(&mut bytes);
        bytes
    }
}

impl TryRng for Random {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(u32::from_le_bytes(self.bytes()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(u64::from_le_bytes(self.bytes()))
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Infallible> {
        self.0.read(out);
        Ok(())
    }
}

impl TryCryptoRng for Random {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_key_has_signed_is_its_own_over_that_alone() {
        let key = SecretKey::generate().expect("made");
        let hash = sha1(b"a document");
        let signature = key.sign(&hash).expect("signed");
        assert_eq!(signature.len(), 128);
        assert!(key.public().signed(&signature, &hash));
        assert!(!key.public().signed(&signature, &sha1(b"another")));
        let other = SecretKey::generate().expect("made");
        assert!(!other.public().signed(&signature, &hash));
        assert!(key.sign(&[1; 118]).is_err(), "no room for the padding");
    }

    #[test]
    fn a_stored_key_is_the_same_again_and_no_other_text_is_one() {
        let key = SecretKey::generate().expect("made");
        let text = key.pem().expect("a text");
        assert!(text.starts_with("-----BEGIN RSA PRIVATE KEY-----\n"));
        let again = SecretKey::from_pem(&text).expect("read");
        assert_eq!(again.public().id(), key.public().id());
        assert_eq!(again.public_der(), key.public_der());
        let changed = text.replacen('M', "N", 1);
        let (half, _) = text.split_at(400);
        for bad in ["", half, &changed, &" ".repeat(FILE + 1)] {
            assert_eq!(SecretKey::from_pem(bad).err(), Some(NoKey));
        }
        assert_eq!(format!("{key:?}"), "rsa::SecretKey(hidden)");
    }
}
