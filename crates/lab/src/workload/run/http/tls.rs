//! TLS of the HTTP workloads. The server shows a certificate that it makes at its start.
//! The client takes any certificate: the lab measures the way to its own server and has nothing to hide from it. For nothing else.

use std::sync::Arc;

use hoplite_crypto::{ALPN_H2, ALPN_H3, ALPN_HTTP1, Certificates, Identity, provider, server_tls};
use rustls::{
    ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    version::TLS13,
};

use super::super::{TransferError, trouble::Fault};

/// Takes any certificate; its owner must still have the key.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The client's side of HTTP/2 or HTTP/3.
pub(super) fn client(version: u8) -> Result<Arc<ClientConfig>, TransferError> {
    let provider = provider();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(&[&TLS13]);
    let mut config = builder
        .map_err(|why| Fault::Misc.because(why))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        .with_no_client_auth();
    let alpn = if version == 3 { ALPN_H3 } else { ALPN_H2 };
    config.alpn_protocols = vec![alpn.to_vec()];
    // Every connection is a first one.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// The server's side: for TCP, and for QUIC.
pub(super) fn server() -> Result<[Arc<ServerConfig>; 2], Box<dyn std::error::Error + Send + Sync>> {
    let new = Identity::generate(&["localhost".into()])?;
    let identity = Identity::from_pem(new.certificate.as_bytes(), new.key.as_bytes())?;
    let certificates = Certificates::new(&identity)?;
    let tcp = server_tls(Arc::clone(&certificates), &[ALPN_H2, ALPN_HTTP1])?;
    let quic = server_tls(certificates, &[ALPN_H3])?;
    Ok([Arc::new(tcp), Arc::new(quic)])
}
