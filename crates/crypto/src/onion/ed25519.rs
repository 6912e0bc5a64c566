//! Ed25519: keys that sign and signatures that are checked. `identity` signs certificates with it, `directory` descriptors and lists.
//! RFC 8032; cert-spec.

use std::fmt;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

/// The octets of a signature.
pub const SIGNATURE: usize = 64;

/// A key cannot be made: the system has no randomness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("making an Ed25519 key: the system has no randomness")]
pub struct NoKey;

/// A signing key. The library wipes it when it is dropped.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    public: [u8; 32],
}

impl SigningKey {
    /// A secret that nobody has, for [`SigningKey::from_secret`].
    ///
    /// # Errors
    /// See [`NoKey`].
    pub fn fresh_secret() -> Result<Zeroizing<[u8; 32]>, NoKey> {
        let mut octets = Zeroizing::new([0; 32]);
        let filled = SystemRandom::new().fill(octets.as_mut_slice());
        filled.map_err(|_| NoKey)?;
        Ok(octets)
    }

    /// The key of a stored secret (RFC 8032's 32-octet private key).
    ///
    /// # Errors
    /// See [`NoKey`].
    pub fn from_secret(secret: &[u8; 32]) -> Result<Self, NoKey> {
        let pair = Ed25519KeyPair::from_seed_unchecked(secret).map_err(|_| NoKey)?;
        let public = pair.public_key().as_ref().try_into().map_err(|_| NoKey)?;
        Ok(Self { pair, public })
    }

    /// A new key that is stored nowhere.
    ///
    /// # Errors
    /// See [`NoKey`].
    pub fn generate() -> Result<Self, NoKey> {
        Self::from_secret(&*Self::fresh_secret()?)
    }

    /// Its public half.
    pub fn public(&self) -> &[u8; 32] {
        &self.public
    }

    /// Signs. What is signed says what it is by its first octets, so that no signature serves two ends.
    ///
    /// # Errors
    /// See [`NoKey`].
    pub fn sign(&self, message: &[u8]) -> Result<[u8; SIGNATURE], NoKey> {
        let signature = self.pair.try_sign(message).map_err(|_| NoKey)?;
        signature.as_ref().try_into().map_err(|_| NoKey)
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(hidden)")
    }
}

/// Whether `signature` is that of `key` over `message`. A key of small order signs nothing: it would sign everything.
pub fn verify(key: &[u8; 32], message: &[u8], signature: &[u8]) -> bool {
    let right = UnparsedPublicKey::new(&ED25519, key).verify(message, signature);
    right.is_ok() && !is_small_order(key)
}

/// The y coordinates of the eight points of small order, and the two that are written unreduced; the sign bit says nothing here.
const SMALL_ORDER: [[u8; 32]; 7] = [
    y(0x00, 0x00, 0x00),
    y(0x01, 0x00, 0x00),
    [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98,
        0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53,
        0xfc, 0x05,
    ],
    [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67,
        0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac,
        0x03, 0x7a,
    ],
    y(0xec, 0xff, 0x7f),
    y(0xed, 0xff, 0x7f),
    y(0xee, 0xff, 0x7f),
];

/// An octet, thirty equal ones, an octet.
const fn y(first: u8, middle: u8, last: u8) -> [u8; 32] {
    let mut octets = [middle; 32];
    octets[0] = first;
    octets[31] = last;
    octets
}

fn is_small_order(key: &[u8; 32]) -> bool {
    let mut key = *key;
    if let Some(last) = key.last_mut() {
        *last &= 0x7f;
    }
    SMALL_ORDER.contains(&key)
}

#[cfg(test)]
mod tests;
