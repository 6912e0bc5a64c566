//! Ed25519: keys that sign and signatures that are checked.
//! RFC 8032; cert-spec.

use std::fmt;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

/// The bytes of a signature.
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
        let mut bytes = Zeroizing::new([0; 32]);
        let filled = SystemRandom::new().fill(bytes.as_mut_slice());
        filled.map_err(|_| NoKey)?;
        Ok(bytes)
    }

    /// The key of a stored secret (RFC 8032's 32-byte private key).
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

    /// Signs. What is signed says what it is by its first bytes, so that no signature serves two ends.
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

/// A byte, thirty equal ones, a byte.
const fn y(first: u8, middle: u8, last: u8) -> [u8; 32] {
    let mut bytes = [middle; 32];
    bytes[0] = first;
    bytes[31] = last;
    bytes
}

fn is_small_order(key: &[u8; 32]) -> bool {
    let mut key = *key;
    if let Some(last) = key.last_mut() {
        *last &= 0x7f;
    }
    SMALL_ORDER.contains(&key)
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{bytes, hex},
        *,
    };

    /// Secret, public key, message, signature: tests 1, 2 and 3.
    const VECTORS: [[&str; 4]; 3] = [
        [
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155
         5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ],
        [
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da
         085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ],
        [
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac
         18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
        ],
    ];

    #[test]
    fn the_signatures_of_rfc_8032_come_out_and_are_accepted() {
        for [secret, public, message, signature] in VECTORS {
            let key = SigningKey::from_secret(&bytes(secret)).expect("a key");
            assert_eq!(key.public(), &bytes(public));
            let message = hex(message);
            assert_eq!(key.sign(&message).expect("signed"), bytes(signature));
            assert!(verify(key.public(), &message, &hex(signature)));
        }
    }

    #[test]
    fn another_message_key_or_signature_is_refused() {
        let key = SigningKey::generate().expect("a key");
        let other = SigningKey::generate().expect("a key");
        let signature = key.sign(b"this").expect("signed");
        assert!(verify(key.public(), b"this", &signature));
        assert!(!verify(key.public(), b"that", &signature));
        assert!(!verify(other.public(), b"this", &signature));
        assert!(!verify(key.public(), b"this", &signature[..63]));
        assert!(!verify(key.public(), b"this", &[]));
    }

    /// With the neutral element as key, R = S·B is a signature of every message: here S = 0, so R is the neutral element too.
    #[test]
    fn a_key_of_small_order_signs_nothing() {
        let neutral = SMALL_ORDER[1];
        let mut signature = [0; SIGNATURE];
        signature[..32].copy_from_slice(&neutral);
        let accepted = UnparsedPublicKey::new(&ED25519, &neutral).verify(b"all", &signature);
        assert!(accepted.is_ok(), "the library alone accepts it");
        assert!(!verify(&neutral, b"all", &signature));
    }

    #[test]
    fn nothing_secret_is_printed() {
        let key = SigningKey::generate().expect("a key");
        assert_eq!(format!("{key:?}"), "SigningKey(hidden)");
    }
}
