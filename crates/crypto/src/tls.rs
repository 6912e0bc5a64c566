//! TLS configurations of both ends. Ciphers come from ring, the hybrid group X25519MLKEM768 from aws-lc-rs:
//! what is recorded today cannot be read with tomorrow's quantum computer. TLS 1.3 (RFC 8446).

#[cfg(test)]
mod tests;

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::Resumption,
    crypto::{CryptoProvider, aws_lc_rs, ring},
    pki_types::{CertificateDer, pem::PemObject},
    server::NoServerSessionStorage,
    version::{TLS12, TLS13},
};

use crate::{Certificates, Pin, verify::Verifier};

/// HTTP/3 (RFC 9114 §3.1).
pub const ALPN_H3: &[u8] = b"h3";
/// HTTP/2 over TLS (RFC 9113 §3.2).
pub const ALPN_H2: &[u8] = b"h2";
/// HTTP/1.1 over TLS (RFC 7301 §6).
pub const ALPN_HTTP1: &[u8] = b"http/1.1";
/// Circuits of cells over QUIC, version 1 of ours. Over TCP Tor names no protocol.
pub const ALPN_CHANNEL: &[u8] = b"tor-quic-h1";

/// How a client knows that a relay is the one it means.
#[derive(Clone, Debug, PartialEq)]
pub enum Trust {
    /// By its key: one of these pins. Names and dates of the certificate do not matter.
    Pins(Vec<Pin>),
    /// By the authorities of the Web PKI, and its name.
    WebPki,
    /// By these authorities (DER certificates) alone, and its name.
    Roots(Vec<CertificateDer<'static>>),
    /// Not by TLS: any certificate will do whose key the relay has. Who it is, the link handshake of a channel proves by that certificate
    /// (tor-spec: "CERTS cells"); there is no use of it without that.
    Channel,
}

impl Trust {
    /// The authorities of a PEM text; `None` if there is none in it.
    pub fn roots(pem: &[u8]) -> Option<Self> {
        let roots: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        roots
            .ok()
            .filter(|roots| !roots.is_empty())
            .map(Self::Roots)
    }
}

/// The primitives of every connection: AES-128-GCM first, since it is the fastest here by half.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
            ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
            ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
            ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            ring::cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            ring::cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![
            aws_lc_rs::kx_group::X25519MLKEM768,
            ring::kx_group::X25519,
            ring::kx_group::SECP256R1,
            ring::kx_group::SECP384R1,
        ],
        ..ring::default_provider()
    })
}

/// A client's configuration: TLS 1.3 alone, no session tickets, since a ticket links the connections of different tokens.
///
/// # Errors
/// If a root certificate cannot be read.
pub fn client_tls(trust: &Trust, alpn: &[&[u8]]) -> Result<ClientConfig, rustls::Error> {
    let provider = provider();
    let builder =
        ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&TLS13])?;
    let builder = match trust {
        Trust::Pins(pins) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier::pinned(pins.clone(), &provider))),
        Trust::Channel => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier::any(&provider))),
        Trust::WebPki => builder.with_root_certificates(web_pki()),
        Trust::Roots(roots) => builder.with_root_certificates(store(roots)?),
    };
    let mut config = builder.with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

fn web_pki() -> RootCertStore {
    RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    }
}

fn store(roots: &[CertificateDer<'static>]) -> Result<RootCertStore, rustls::Error> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root.clone())?;
    }
    Ok(store)
}

/// A relay's configuration: TLS 1.3, and over TCP also 1.2 for older clients of the proxy protocol.
/// No session tickets, whoever the client is: what it would show of them later links its visits.
///
/// # Errors
/// Never with the provider above; the TLS library's signature has one.
pub fn server_tls(
    certificates: Arc<Certificates>,
    alpn: &[&[u8]],
) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13, &TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}
