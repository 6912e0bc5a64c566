//! TLS configurations of both ends. Ciphers come from ring, the hybrid group X25519MLKEM768 from aws-lc-rs:
//! what is recorded today cannot be read with tomorrow's quantum computer. TLS 1.3 (RFC 8446).

use std::{
    error, fmt,
    sync::{Arc, Once},
    thread,
};

use arc_swap::ArcSwap;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, ring, verify_tls12_signature,
        verify_tls13_signature,
    },
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert},
    sign::CertifiedKey,
    version::{TLS12, TLS13},
};

use crate::{Identity, IdentityError, Pin, Proof};

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
///
/// The first call in a process begins to gather entropy, on a thread of its own that ends by itself.
pub fn provider() -> Arc<CryptoProvider> {
    prepare();
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

/// Has the first random bytes of aws-lc drawn beside what else a process does when it starts. It gathers entropy from the processor's jitter before
/// them, once in each process, which takes some 60 ms: the first key exchange, at either end, would wait for it.
fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let draw = || drop(aws_lc_rs::kx_group::X25519MLKEM768.start());
        // Without a thread the first connection does it.
        drop(thread::Builder::new().name("entropy".into()).spawn(draw));
    });
}

/// A client's configuration: TLS 1.3 alone, no session tickets, since a ticket links the connections of different tokens.
///
/// # Errors
/// If a root certificate cannot be read.
pub fn client_tls(trust: &Trust, alpn: &[&[u8]]) -> Result<ClientConfig, Error> {
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

fn store(roots: &[CertificateDer<'static>]) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root.clone())?;
    }
    Ok(store)
}

/// A relay's configuration: TLS 1.3, and over TCP also 1.2 for older clients of the proxy protocol.
/// No session tickets, whoever the client is: what it would show of them later links its visits. So no early data (0-RTT) either,
/// which could be replayed.
///
/// # Errors
/// Never with the provider above; the TLS library's signature has one.
pub fn server_tls(certificates: Arc<Certificates>, alpn: &[&[u8]]) -> Result<ServerConfig, Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13, &TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

// The certificate that a relay shows, replaceable while it runs (SIGHUP): new handshakes show the new one.

/// What the TLS stack asks for a certificate.
pub struct Certificates(ArcSwap<CertifiedKey>);

impl Certificates {
    /// Shows `identity`.
    ///
    /// # Errors
    /// [`IdentityError::Mismatch`] if its key is not that of its certificate.
    pub fn new(identity: &Identity) -> Result<Arc<Self>, IdentityError> {
        let key = identity.certified(&provider())?;
        Ok(Arc::new(Self(ArcSwap::from_pointee(key))))
    }

    /// Shows `identity` from the next handshake on.
    ///
    /// # Errors
    /// As [`Self::new`]; the old one stays.
    pub fn replace(&self, identity: &Identity) -> Result<(), IdentityError> {
        self.0.store(Arc::new(identity.certified(&provider())?));
        Ok(())
    }

    /// How clients recognise what is shown now.
    pub fn pin(&self) -> Option<Pin> {
        Pin::of_certificate(self.0.load().end_entity_cert().ok()?)
    }

    /// Proves that the holder of the key that is shown now says `message`, as [`Proof::is_of`] wants it; none if the key signs in no known way.
    pub fn prove(&self, message: &[u8]) -> Option<Proof> {
        Proof::by(&self.0.load(), message)
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates(hidden)")
    }
}

// Recognises a relay by its pin: the key counts, nothing else in the certificate.
// The handshake's signature is checked as ever (RFC 8446 §4.4.3), so that the peer has the key that it shows.

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
        if pins
            .iter()
            .fold(false, |found, pin| found | pin.matches(&shown))
        {
            Ok(())
        } else {
            Err(CertificateError::Other(rustls::OtherError(Arc::new(
                WrongPin,
            ))))
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

/// Whether a failed handshake failed because the relay is not the expected one: no other path will help.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::{
        ClientConfig, ClientConnection, Connection, Error, NamedGroup, ProtocolVersion,
        ServerConfig, ServerConnection, crypto::ring, pki_types::ServerName, sign::CertifiedKey,
    };

    use super::{ALPN_H2, Trust, client_tls, provider, server_tls};
    use crate::{Certificates, Identity, NewIdentity, Pin, is_identity_mismatch};

    const NAME: &str = "relay.example";

    fn made() -> NewIdentity {
        Identity::generate(&[NAME.to_owned()]).unwrap()
    }

    fn read(new: &NewIdentity) -> Identity {
        Identity::from_pem(new.certificate.as_bytes(), new.key.as_bytes()).unwrap()
    }

    fn server(identity: &Identity) -> ServerConfig {
        server_tls(Certificates::new(identity).unwrap(), &[ALPN_H2]).unwrap()
    }

    fn client(trust: &Trust) -> ClientConfig {
        client_tls(trust, &[ALPN_H2]).unwrap()
    }

    fn pinned(identity: &Identity) -> ClientConfig {
        client(&Trust::Pins(vec![Pin::of_spki(b"another"), identity.pin()]))
    }

    /// What both ends know after a handshake in memory.
    struct Met {
        client: ClientConnection,
        server: ServerConnection,
    }

    fn pass(from: &mut Connection, to: &mut Connection) -> Result<(), Error> {
        let mut bytes = Vec::new();
        while from.wants_write() {
            from.write_tls(&mut bytes).unwrap();
        }
        let mut left = bytes.as_slice();
        while !left.is_empty() {
            to.read_tls(&mut left).unwrap();
            to.process_new_packets()?;
        }
        Ok(())
    }

    fn meet_as(name: &str, client: ClientConfig, server: ServerConfig) -> Result<Met, Error> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut near = Connection::from(ClientConnection::new(Arc::new(client), name).unwrap());
        let mut far = Connection::from(ServerConnection::new(Arc::new(server)).unwrap());
        while near.wants_write() || far.wants_write() {
            pass(&mut near, &mut far)?;
            pass(&mut far, &mut near)?;
        }
        match (near, far) {
            (Connection::Client(client), Connection::Server(server)) => Ok(Met { client, server }),
            _ => unreachable!("made above"),
        }
    }

    fn meet(client: ClientConfig, server: ServerConfig) -> Result<Met, Error> {
        meet_as(NAME, client, server)
    }

    fn group(met: &Met) -> NamedGroup {
        met.server.negotiated_key_exchange_group().unwrap().name()
    }

    /// A client with nothing but ring, as others have it.
    fn plain_client(
        identity: &NewIdentity,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> ClientConfig {
        let Trust::Roots(roots) = Trust::roots(identity.certificate.as_bytes()).unwrap() else {
            unreachable!("made of a PEM text")
        };
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(super::store(&roots).unwrap())
            .with_no_client_auth()
    }

    #[test]
    fn the_hybrid_group_and_the_fastest_cipher_are_agreed_on() {
        let identity = read(&made());
        let met = meet(pinned(&identity), server(&identity)).unwrap();
        assert_eq!(group(&met), NamedGroup::X25519MLKEM768);
        let suite = met.client.negotiated_cipher_suite().unwrap().suite();
        assert_eq!(suite, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
        assert_eq!(met.client.alpn_protocol(), Some(ALPN_H2));
    }

    #[test]
    fn clients_without_the_hybrid_group_are_met_with_x25519() {
        let new = made();
        let met = meet(
            plain_client(&new, &rustls::version::TLS13),
            server(&read(&new)),
        )
        .unwrap();
        assert_eq!(group(&met), NamedGroup::X25519);
    }

    #[test]
    fn an_older_client_is_served_over_tls_1_2() {
        let new = made();
        let met = meet(
            plain_client(&new, &rustls::version::TLS12),
            server(&read(&new)),
        )
        .unwrap();
        assert_eq!(
            met.server.protocol_version(),
            Some(ProtocolVersion::TLSv1_2)
        );
    }

    #[test]
    fn our_client_does_not_go_below_tls_1_3() {
        let identity = read(&made());
        let old = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Certificates::new(&identity).unwrap());
        assert!(meet(pinned(&identity), old).is_err());
    }

    #[test]
    fn another_relay_is_recognised_as_such() {
        let (expected, other) = (read(&made()), read(&made()));
        let error = meet(pinned(&expected), server(&other)).err().unwrap();
        assert!(is_identity_mismatch(&error), "{error}");
        let wrapped = std::io::Error::new(std::io::ErrorKind::InvalidData, error);
        assert!(is_identity_mismatch(&wrapped));
    }

    #[test]
    fn a_pinned_relay_may_have_any_name() {
        let identity = read(&made());
        assert!(meet_as("elsewhere.example", pinned(&identity), server(&identity)).is_ok());
    }

    #[test]
    fn whoever_shows_the_certificate_without_having_its_key_is_refused() {
        let (expected, impostor) = (read(&made()), read(&made()));
        let key = provider()
            .key_provider
            .load_private_key(impostor.key.clone_key())
            .unwrap();
        let mut config = server(&impostor);
        let shown = CertifiedKey::new(expected.chain.clone(), key);
        config.cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(shown));
        let error = meet(pinned(&expected), config).err().unwrap();
        assert!(is_identity_mismatch(&error), "{error}");
    }

    #[test]
    fn an_authority_of_ones_own_vouches_for_its_names_only() {
        let new = made();
        let trust = Trust::roots(new.certificate.as_bytes()).unwrap();
        let identity = read(&new);
        assert!(meet(client(&trust), server(&identity)).is_ok());
        let error = meet_as("elsewhere.example", client(&trust), server(&identity)).err();
        assert!(is_identity_mismatch(&error.unwrap()));
        assert_eq!(Trust::roots(b"no certificate"), None);
    }

    #[test]
    fn the_web_pki_does_not_vouch_for_a_certificate_that_was_just_made() {
        let error = meet(client(&Trust::WebPki), server(&read(&made()))).err();
        assert!(is_identity_mismatch(&error.unwrap()));
    }

    #[test]
    fn a_replaced_certificate_is_shown_from_the_next_handshake_on() {
        let (old, new) = (read(&made()), read(&made()));
        let certificates = Certificates::new(&old).unwrap();
        let config = server_tls(Arc::clone(&certificates), &[ALPN_H2]).unwrap();
        assert!(meet(pinned(&old), config.clone()).is_ok());
        certificates.replace(&new).unwrap();
        assert!(meet(pinned(&new), config.clone()).is_ok());
        assert!(meet(pinned(&old), config).is_err());
    }

    #[test]
    fn nobody_is_given_a_ticket() {
        let new = made();
        let config = plain_client(&new, &rustls::version::TLS13);
        let server = server(&read(&new));
        for _ in 0..2 {
            let met = meet(config.clone(), server.clone()).unwrap();
            assert_eq!(met.client.tls13_tickets_received(), 0);
            assert_eq!(
                met.client.handshake_kind(),
                Some(rustls::HandshakeKind::Full)
            );
        }
    }
}
