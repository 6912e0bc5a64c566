//! Ed25519 (RFC 8032): keys that sign, and signatures that are checked. Relays sign what they say of themselves and who they are on a
//! channel (cert-spec), authorities what they vote.

use std::{fmt, str::FromStr};

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

/// Before the secret's base64url in a file, so that nobody takes it for the public key.
const PREFIX: &str = "ed25519-secret:";

/// A secret key. Its seed is wiped from memory when it is dropped.
pub struct SigningKey {
    seed: Zeroizing<[u8; 32]>,
    pair: Ed25519KeyPair,
}

/// Why there is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SigningError {
    /// The system has no randomness.
    #[error("the system gives no random bytes")]
    NoRandomness,
    /// The text is no secret key.
    #[error("expected `ed25519-secret:` and 32 bytes in base64url")]
    NoKey,
}

impl SigningKey {
    /// A new key.
    ///
    /// # Errors
    /// [`SigningError::NoRandomness`].
    pub fn generate() -> Result<Self, SigningError> {
        Self::from_seed(Self::fresh_seed()?)
    }

    /// A secret that nobody has, for [`SigningKey::from_seed`].
    ///
    /// # Errors
    /// [`SigningError::NoRandomness`].
    pub(crate) fn fresh_seed() -> Result<Zeroizing<[u8; 32]>, SigningError> {
        let mut seed = Zeroizing::new([0; 32]);
        let filled = SystemRandom::new().fill(seed.as_mut_slice());
        filled.map_err(|_| SigningError::NoRandomness)?;
        Ok(seed)
    }

    /// The key of this seed (RFC 8032 §5.1.5).
    ///
    /// # Errors
    /// [`SigningError::NoKey`]: never, in fact.
    pub fn from_seed(seed: Zeroizing<[u8; 32]>) -> Result<Self, SigningError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_slice());
        let pair = pair.map_err(|_| SigningError::NoKey)?;
        Ok(Self { seed, pair })
    }

    /// Who signs.
    pub fn public(&self) -> [u8; 32] {
        let mut key = [0; 32];
        key.copy_from_slice(self.pair.public_key().as_ref());
        key
    }

    /// Signs `message`, whose first bytes must say what kind of message it is. Were the library to fail, the signature would be zeros,
    /// which nobody accepts.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        let made = self.pair.try_sign(message).ok();
        made.and_then(|made| made.as_ref().try_into().ok())
            .unwrap_or([0; 64])
    }

    /// RFC 8032's private key: the secret itself.
    pub fn seed(&self) -> &[u8; 32] {
        &self.seed
    }

    /// The secret as a text, for a file of its owner.
    pub fn secret(&self) -> Zeroizing<String> {
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.encode(self.seed.as_slice()));
        Zeroizing::new(format!("{PREFIX}{}\n", bytes.as_str()))
    }
}

/// Whether `signature` is that of `key` over `message`. A key of small order signs nothing: it would sign everything.
pub fn is_signed(key: &[u8; 32], message: &[u8], signature: &[u8]) -> bool {
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

impl FromStr for SigningKey {
    type Err = SigningError;

    fn from_str(text: &str) -> Result<Self, SigningError> {
        let bytes = text.trim().strip_prefix(PREFIX);
        let bytes = bytes.filter(|bytes| bytes.len() == 43);
        let mut seed = Zeroizing::new([0; 32]);
        let read = bytes.map(|bytes| URL_SAFE_NO_PAD.decode_slice(bytes, seed.as_mut_slice()));
        match read {
            Some(Ok(32)) => Self::from_seed(seed),
            _ => Err(SigningError::NoKey),
        }
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onion::testing::{bytes, hex};

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
            let key = SigningKey::from_seed(Zeroizing::new(bytes(secret))).expect("a key");
            assert_eq!(key.public(), bytes(public));
            let message = hex(message);
            assert_eq!(key.sign(&message), bytes(signature));
            assert!(is_signed(&key.public(), &message, &hex(signature)));
        }
    }

    #[test]
    fn another_message_key_or_signature_is_refused() {
        let key = SigningKey::generate().expect("a key");
        let other = SigningKey::generate().expect("a key");
        let signature = key.sign(b"this");
        assert!(is_signed(&key.public(), b"this", &signature));
        assert!(!is_signed(&key.public(), b"that", &signature));
        assert!(!is_signed(&other.public(), b"this", &signature));
        assert!(!is_signed(&key.public(), b"this", &signature[..63]));
        assert!(!is_signed(&key.public(), b"this", &[]));
    }

    /// With the neutral element as key, R = S·B is a signature of every message: here S = 0, so R is the neutral element too.
    #[test]
    fn a_key_of_small_order_signs_nothing() {
        let neutral = SMALL_ORDER[1];
        let mut signature = [0; 64];
        signature[..32].copy_from_slice(&neutral);
        let accepted = UnparsedPublicKey::new(&ED25519, &neutral).verify(b"all", &signature);
        assert!(accepted.is_ok(), "the library alone accepts it");
        assert!(!is_signed(&neutral, b"all", &signature));
    }

    #[test]
    fn a_secret_is_read_back_from_its_text_and_never_printed() {
        let key = SigningKey::generate().expect("made");
        let again: SigningKey = key.secret().parse().expect("read");
        assert_eq!(again.public(), key.public());
        assert_eq!(format!("{key:?}"), "SigningKey(hidden)");
        for wrong in ["", "ed25519-secret:", "ed25519-secret:AAAA"] {
            assert_eq!(wrong.parse::<SigningKey>().err(), Some(SigningError::NoKey));
        }
    }
}
