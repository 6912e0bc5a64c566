//! Ed25519 (RFC 8032): the keys with which relays sign what they say of themselves, and authorities what they vote.

use std::{fmt, str::FromStr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    rand::{SecureRandom, SystemRandom},
    signature::{Ed25519KeyPair, KeyPair},
};
use zeroize::Zeroizing;

use crate::onion::ed25519::verify;

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
        let mut seed = Zeroizing::new([0; 32]);
        let filled = SystemRandom::new().fill(seed.as_mut_slice());
        filled.map_err(|_| SigningError::NoRandomness)?;
        Self::from_seed(seed)
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

    /// Signs `message`, whose first bytes must say what kind of message it is.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        let mut signature = [0; 64];
        signature.copy_from_slice(self.pair.sign(message).as_ref());
        signature
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

/// Whether `key` has signed `message`; a key of small order signs nothing.
pub fn is_signed(key: &[u8; 32], message: &[u8], signature: &[u8; 64]) -> bool {
    verify(key, message, signature)
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

    fn bytes<const N: usize>(hex: &str) -> [u8; N] {
        let byte = |i: usize| {
            u8::from_str_radix(hex.get(2 * i..2 * i + 2).expect("there"), 16).expect("hex")
        };
        std::array::from_fn(byte)
    }

    /// RFC 8032 §7.1, test 2.
    #[test]
    fn the_published_vector_holds() {
        let seed = bytes("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb");
        let key = SigningKey::from_seed(Zeroizing::new(seed)).expect("a key");
        let public = bytes("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c");
        let signature = bytes(
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        );
        assert_eq!(key.public(), public);
        assert_eq!(key.sign(&[0x72]), signature);
        assert!(is_signed(&public, &[0x72], &signature));
        assert!(!is_signed(&public, &[0x73], &signature));
    }

    #[test]
    fn a_secret_is_read_back_from_its_text_and_never_printed() {
        let key = SigningKey::generate().expect("made");
        let again: SigningKey = key.secret().parse().expect("read");
        assert_eq!(again.public(), key.public());
        assert!(!format!("{key:?}").contains("secret"));
        for wrong in ["", "ed25519-secret:", "ed25519-secret:AAAA"] {
            assert_eq!(wrong.parse::<SigningKey>().err(), Some(SigningError::NoKey));
        }
    }
}
