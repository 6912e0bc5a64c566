//! Recognises a relay by its pin: the key counts, nothing else in the certificate.
//! The handshake's signature is checked as ever (RFC 8446 §4.4.3), so that the peer has the key that it shows.

use std::{error, fmt, sync::Arc};

use rustls::{
    CertificateError, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use crate::Pin;

/// The peer must have the key of its certificate, and the certificate must be one of the wanted.
#[derive(Debug)]
pub(crate) struct Verifier {
    wanted: Wanted,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Which certificates are taken.
#[derive(Debug)]
enum Wanted {
    Pinned(Vec<Pin>),
    /// What it is worth is proven elsewhere: see [`crate::Trust::Channel`].
    Any,
}

/// The certificate's key is none of the pinned ones.
#[derive(Debug)]
struct WrongPin;

impl Verifier {
    /// Takes certificates with one of these keys.
    pub(crate) fn pinned(pins: Vec<Pin>, provider: &Arc<CryptoProvider>) -> Self {
        Self::new(Wanted::Pinned(pins), provider)
    }

    /// Takes every certificate.
    pub(crate) fn any(provider: &Arc<CryptoProvider>) -> Self {
        Self::new(Wanted::Any, provider)
    }

    fn new(wanted: Wanted, provider: &Arc<CryptoProvider>) -> Self {
        Self {
            wanted,
            algorithms: provider.signature_verification_algorithms,
        }
    }
}

impl Wanted {
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), CertificateError> {
        let Self::Pinned(pins) = self else {
            return Ok(());
        };
        let shown = Pin::of_certificate(certificate).ok_or(CertificateError::BadEncoding)?;
        match pins
            .iter()
            .fold(false, |found, pin| found | pin.matches(&shown))
        {
            true => Ok(()),
            false => Err(CertificateError::Other(rustls::OtherError(Arc::new(
                WrongPin,
            )))),
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.wanted.check(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Whether a failed handshake failed because the relay is not the expected one: no other road will help.
pub fn is_identity_mismatch(error: &(dyn error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if matches!(error.downcast_ref(), Some(Error::InvalidCertificate(_))) {
            return true;
        }
        let inner = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref);
        next = inner.map(|e| e as _).or_else(|| error.source());
    }
    false
}

impl fmt::Display for WrongPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the certificate's key is not the pinned one")
    }
}

impl error::Error for WrongPin {}
