//! The public half of RSA as Tor uses it: who a relay or an authority is, and what they have signed.
//! tor-spec "Preliminaries"; RFC 8017 §8.2.2.
//!
//! Signatures are PKCS #1 v1.5 over a hash without its name, which the libraries rightly refuse: so it is plain arithmetic on public numbers.
//! No RSA key is made here and nothing is signed with one: that would need arithmetic in constant time.

use std::{fmt, ops::RangeInclusive};

use num_bigint::BigUint;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use x509_parser::{prelude::FromDer, public_key::RSAPublicKey};

/// Lengths of authorities' keys, in bits.
const AUTHORITY: RangeInclusive<u64> = 2048..=4096;

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
