//! A relay's certificate chain and private key, read from PEM or made new.
//! A new one is self-signed: clients recognise it by its pin, so neither its names nor its dates carry trust.

use std::fmt;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::{
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use zeroize::Zeroizing;

use crate::Pin;

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

    /// The SHA-256 of the certificate itself, as TLS shows it: what a channel's link handshake binds to.
    pub fn certificate_sha256(&self) -> [u8; 32] {
        let first = self.chain.first().map(AsRef::as_ref);
        let hash = ring::digest::digest(&ring::digest::SHA256, first.unwrap_or_default());
        let mut octets = [0; 32];
        let pairs = octets.iter_mut().zip(hash.as_ref());
        pairs.for_each(|(to, from)| *to = *from);
        octets
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_identity_is_read_back_and_can_sign() {
        let new = Identity::generate(&["relay.example".into(), "192.0.2.1".into()]).expect("made");
        let identity =
            Identity::from_pem(new.certificate.as_bytes(), new.key.as_bytes()).expect("read");
        identity.certified(&crate::provider()).expect("fits");
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
}
