//! Ed25519 keys and signatures as documents, configuration files and URLs write them: `ed25519:` and base64url without padding.

use std::{fmt, str::FromStr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

/// An Ed25519 public key: who a relay or an authority is. `Debug` hides it (it ends in logs).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; 32]);

/// An Ed25519 signature.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature(pub [u8; 64]);

/// The text is no key or no signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `ed25519:` and 32 octets in base64url, as `hoplite keygen` prints them")]
pub struct KeyError;

/// Base64url without padding: for octets that need no name.
pub(super) fn encode(octets: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(octets)
}

pub(super) fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    // A longer text is not decoded at all.
    (text.len() <= N.saturating_mul(2)).then_some(())?;
    URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let octets = text.strip_prefix("ed25519:").and_then(decode);
        octets.map(Self).ok_or(KeyError)
    }
}

impl FromStr for Signature {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        decode(text).map(Self).ok_or(KeyError)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ed25519:{}", encode(&self.0))
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signature(hidden)")
    }
}
