use std::sync::Arc;

use rustls::{
    ClientConfig, ClientConnection, Connection, Error, NamedGroup, ProtocolVersion, ServerConfig,
    ServerConnection, crypto::ring, pki_types::ServerName, sign::CertifiedKey,
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
    let mut octets = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut octets).unwrap();
    }
    let mut left = octets.as_slice();
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
