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

#[derive(Debug)]
pub(crate) struct PinVerifier {
    pins: Vec<Pin>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// The certificate's key is none of the pinned ones.
#[derive(Debug)]
struct WrongPin;

impl PinVerifier {
    pub(crate) fn new(pins: Vec<Pin>, provider: &Arc<CryptoProvider>) -> Self {
        Self {
            pins,
            algorithms: provider.signature_verification_algorithms,
        }
    }
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = Pin::of_certificate(end_entity).ok_or(CertificateError::BadEncoding)?;
        if self
            .pins
            .iter()
            .fold(false, |found, pin| found | pin.matches(&shown))
        {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::Other(rustls::OtherError(Arc::new(WrongPin))).into())
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
