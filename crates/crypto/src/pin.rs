//! A pin: the SHA-256 of a certificate's SubjectPublicKeyInfo (RFC 7469 §2.4). It names a key, whatever certificate holds it.
//! Written `sha256:` and base64; hex and the URL-safe alphabet are read too.

use std::{fmt, str::FromStr};

use base64::{
    Engine,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use ring::digest::{SHA256, digest};
use subtle::ConstantTimeEq;

/// What recognises a relay. It is public.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin([u8; 32]);

/// The text is no pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pin is `sha256:` and 32 octets in base64, as `hoplite keygen` prints it")]
pub struct PinError;

impl Pin {
    /// The pin of a DER-encoded SubjectPublicKeyInfo.
    pub fn of_spki(spki: &[u8]) -> Self {
        let mut pin = [0; 32];
        pin.copy_from_slice(digest(&SHA256, spki).as_ref());
        Self(pin)
    }

    /// The pin of a DER-encoded certificate's key; `None` if it is no certificate.
    pub fn of_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        Some(Self::of_spki(certificate.public_key().raw))
    }

    pub(crate) fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl From<[u8; 32]> for Pin {
    fn from(digest: [u8; 32]) -> Self {
        Self(digest)
    }
}

impl From<Pin> for [u8; 32] {
    fn from(pin: Pin) -> Self {
        pin.0
    }
}

fn engine(alphabet: &base64::alphabet::Alphabet) -> GeneralPurpose {
    let config =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(alphabet, config)
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let nibbles: Option<Vec<u8>> = text
        .chars()
        .map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()))
        .collect();
    Some(
        nibbles?
            .chunks(2)
            .map(|pair| pair.iter().fold(0, |octet, nibble| (octet << 4) | nibble))
            .collect(),
    )
}

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let body = text.strip_prefix("sha256:").ok_or(PinError)?;
        let octets = from_hex(body)
            .or_else(|| engine(&STANDARD).decode(body).ok())
            .or_else(|| engine(&URL_SAFE).decode(body).ok())
            .ok_or(PinError)?;
        octets.try_into().map(Self).map_err(|_| PinError)
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", engine(&STANDARD).encode(self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pin(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hex_and_both_alphabets_are_read() {
        let pin = Pin([0xfb; 32]);
        let hex = format!("sha256:{}", "fb".repeat(32));
        let safe = pin
            .to_string()
            .replace('+', "-")
            .replace('/', "_")
            .replace('=', "");
        for text in [pin.to_string(), hex, safe] {
            assert_eq!(text.parse(), Ok(pin), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(octets: [u8; 32]) {
            prop_assert_eq!(Pin(octets).to_string().parse(), Ok(Pin(octets)));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "(sha256:)?.{0,80}") {
            prop_assert!(text.parse::<Pin>().is_err() || text.starts_with("sha256:"));
        }
    }
}
