//! A relay's certificate chain and private key, read from PEM or made new.
//! A new one is self-signed: clients recognise it by its pin, so neither its names nor its dates carry trust.

use std::{fmt, str::FromStr};

use base64::{
    Engine,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use ring::digest::{SHA256, digest};
use rustls::{
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// A certificate chain with its key.
pub struct Identity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    pin: Pin,
}

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The PEM text holds no certificate.
    #[error("no certificate in the PEM text")]
    NoCertificate,
    /// The PEM text holds no private key.
    #[error("no private key in the PEM text")]
    NoKey,
    /// The first certificate is not X.509.
    #[error("the first certificate cannot be read")]
    BadCertificate,
    /// The key does not belong to the certificate, or is of a kind that cannot sign.
    #[error("the key does not fit the certificate: {0}")]
    Mismatch(#[source] rustls::Error),
    /// A name cannot stand in a certificate.
    #[error("the certificate cannot be made: {0}")]
    Make(#[source] rcgen::Error),
}

/// A new identity as PEM texts, to be stored.
pub struct NewIdentity {
    /// The certificate.
    pub certificate: String,
    /// The private key, PKCS #8.
    pub key: Zeroizing<String>,
}

impl Identity {
    /// Makes a P-256 key and a certificate for `names` (host names or addresses), and gives both as PEM.
    ///
    /// # Errors
    /// [`IdentityError::Make`].
    pub fn generate(names: &[String]) -> Result<NewIdentity, IdentityError> {
        let key = KeyPair::generate().map_err(IdentityError::Make)?;
        let mut params = CertificateParams::new(names).map_err(IdentityError::Make)?;
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "hoplite relay");
        params.not_before = rcgen::date_time_ymd(2025, 1, 1);
        params.not_after = rcgen::date_time_ymd(2125, 1, 1);
        let certificate = params.self_signed(&key).map_err(IdentityError::Make)?;
        Ok(NewIdentity {
            certificate: certificate.pem(),
            key: Zeroizing::new(key.serialize_pem()),
        })
    }

    /// Reads a chain (end entity first) and its key.
    ///
    /// # Errors
    /// Each of [`IdentityError`] but `Make`.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
        let chain = chain.map_err(|_| IdentityError::NoCertificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| IdentityError::NoKey)?;
        let first = chain.first().ok_or(IdentityError::NoCertificate)?;
        let pin = Pin::of_certificate(first).ok_or(IdentityError::BadCertificate)?;
        Ok(Self { chain, key, pin })
    }

    /// How clients recognise it.
    pub fn pin(&self) -> Pin {
        self.pin
    }

    /// When the certificate ends, in seconds since 1970; `None` if it ended before that.
    pub fn expires(&self) -> Option<u64> {
        let (_, certificate) = x509_parser::parse_x509_certificate(self.chain.first()?).ok()?;
        u64::try_from(certificate.validity().not_after.timestamp()).ok()
    }

    /// The SHA-256 of the certificate itself, as TLS shows it: what a channel's link handshake binds to.
    pub fn certificate_sha256(&self) -> [u8; 32] {
        let first = self.chain.first().map(AsRef::as_ref);
        let hash = digest(&SHA256, first.unwrap_or_default());
        let mut bytes = [0; 32];
        let pairs = bytes.iter_mut().zip(hash.as_ref());
        pairs.for_each(|(to, from)| *to = *from);
        bytes
    }

    pub(crate) fn certified(
        &self,
        provider: &CryptoProvider,
    ) -> Result<CertifiedKey, IdentityError> {
        CertifiedKey::from_der(self.chain.clone(), self.key.clone_key(), provider)
            .map_err(IdentityError::Mismatch)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(hidden)")
    }
}

impl fmt::Debug for NewIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewIdentity(hidden)")
    }
}

// A pin: the SHA-256 of a certificate's SubjectPublicKeyInfo (RFC 7469 §2.4). It names a key, whatever certificate holds it.
// Written `sha256:` and base64; hex and the URL-safe alphabet are read too.

/// What recognises a relay. It is public.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin([u8; 32]);

/// The text is no pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pin is `sha256:` and 32 bytes in base64, as `hoplite keygen` prints it")]
pub struct PinError;

impl Pin {
    /// The pin of a DER-encoded SubjectPublicKeyInfo.
    pub(crate) fn of_spki(spki: &[u8]) -> Self {
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
            .map(|pair| pair.iter().fold(0, |byte, nibble| (byte << 4) | nibble))
            .collect(),
    )
}

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let body = text.strip_prefix("sha256:").ok_or(PinError)?;
        let bytes = from_hex(body)
            .or_else(|| engine(&STANDARD).decode(body).ok())
            .or_else(|| engine(&URL_SAFE).decode(body).ok())
            .ok_or(PinError)?;
        bytes.try_into().map(Self).map_err(|_| PinError)
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_new_identity_is_read_back_and_can_sign() {
        let new = Identity::generate(&["relay.example".into(), "192.0.2.1".into()]).expect("made");
        let identity =
            Identity::from_pem(new.certificate.as_bytes(), new.key.as_bytes()).expect("read");
        identity.certified(&crate::provider()).expect("fits");
        // 2125-01-01.
        assert_eq!(identity.expires(), Some(4_891_363_200));
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let a = Identity::generate(&[]).expect("made");
        let b = Identity::generate(&[]).expect("made");
        let mixed = Identity::from_pem(a.certificate.as_bytes(), b.key.as_bytes()).expect("read");
        assert!(matches!(
            mixed.certified(&crate::provider()),
            Err(IdentityError::Mismatch(_))
        ));
    }

    #[test]
    fn texts_without_certificate_or_key_say_so() {
        let new = Identity::generate(&[]).expect("made");
        let certificate = new.certificate.as_bytes();
        assert!(matches!(
            Identity::from_pem(b"", new.key.as_bytes()),
            Err(IdentityError::NoCertificate)
        ));
        assert!(matches!(
            Identity::from_pem(certificate, certificate),
            Err(IdentityError::NoKey)
        ));
    }

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
        fn what_is_printed_is_read_back(bytes: [u8; 32]) {
            prop_assert_eq!(Pin(bytes).to_string().parse(), Ok(Pin(bytes)));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "(sha256:)?.{0,80}") {
            prop_assert!(text.parse::<Pin>().is_err() || text.starts_with("sha256:"));
        }
    }
}
