//! Clients whose transport parameters say absurd things of their acknowledgements: served like any other, and forgotten like any other.
//! RFC 9000 §18.2 (max_ack_delay), draft-ietf-quic-ack-frequency §3 (min_ack_delay).

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use futures_util::future::join_all;
use hoplite_crypto::{ALPN_H3, Trust, client_tls};
use hoplite_http::h3::{self, Session};
use hoplite_quic::{ClientConfig, ConnectError, Endpoint, crypto};
use hoplite_relay::Handle;
use hoplite_testing::{PATIENCE, relay::relay, soon, targets};
use hoplite_wire::{tuning::AckPolicy, varint};
use quinn_proto::{Side, transport_parameters::TransportParameters};

use crate::{
    support::{Tunnel, connect, udp},
    tap::Tap,
};

const MAX_ACK_DELAY: u64 = 0x0b;
const MIN_ACK_DELAY: u64 = 0xff04_de1b;

/// A client's cryptography that tells the relay other parameters.
struct Absurd {
    inner: Arc<crypto::rustls::QuicClientConfig>,
    parameters: Vec<(u64, u64)>,
}

impl crypto::ClientConfig for Absurd {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        name: &str,
        parameters: &TransportParameters,
    ) -> Result<Box<dyn crypto::Session>, ConnectError> {
        let mut bytes = Vec::new();
        parameters.write(&mut bytes);
        let mut out = without(&bytes, &[MAX_ACK_DELAY, MIN_ACK_DELAY]);
        for (id, value) in &self.parameters {
            varint::write(&mut out, *id);
            varint::write(&mut out, varint::len(*value) as u64);
            varint::write(&mut out, *value);
        }
        let absurd = TransportParameters::read(Side::Server, &mut &*out).expect("allowed");
        crypto::ClientConfig::start_session(self.inner.clone(), version, name, &absurd)
    }
}

fn without(mut bytes: &[u8], ids: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let all = bytes;
        let id = varint::read(&mut bytes).expect("an id");
        let length = varint::read(&mut bytes).expect("a length");
        let (_, rest) = bytes.split_at(usize::try_from(length).expect("small"));
        bytes = rest;
        if !ids.contains(&id) {
            out.extend_from_slice(&all[..all.len() - rest.len()]);
        }
    }
    out
}

/// A connection of such a client by way of `tap`; it lives as long as the endpoint.
async fn dial(relay: &Handle, tap: &Tap, parameters: &[(u64, u64)]) -> (Endpoint, Session) {
    let tls = client_tls(&Trust::Pins(vec![relay.pin()]), &[ALPN_H3]).expect("TLS");
    let absurd = Absurd {
        inner: Arc::new(tls.try_into().expect("QUIC")),
        parameters: parameters.to_vec(),
    };
    let endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
    let config = ClientConfig::new(Arc::new(absurd));
    let dialling = endpoint.connect_with(config, tap.address, "localhost");
    let connection = soon(dialling.expect("begun")).await.expect("connected");
    (
        endpoint,
        Session::client(connection, &h3::Config::default()),
    )
}

/// What may be said of acknowledgements: the most, the least, and what is against all reason.
const SAID: [&[(u64, u64)]; 5] = [
    &[(MAX_ACK_DELAY, 16_383), (MIN_ACK_DELAY, 16_383_000)],
    &[(MAX_ACK_DELAY, 16_383), (MIN_ACK_DELAY, 0)],
    &[(MAX_ACK_DELAY, 1), (MIN_ACK_DELAY, 1000)],
    &[(MAX_ACK_DELAY, 0)],
    &[(MIN_ACK_DELAY, 25_000)],
];

#[tokio::test]
async fn clients_with_absurd_delays_are_served_and_forgotten_like_any_other() {
    let policies = [AckPolicy::Auto, AckPolicy::Extension];
    let cases = policies.map(|acks| SAID.map(|said| is_served_and_forgotten(acks, said)));
    join_all(cases.into_iter().flatten()).await;
}

async fn is_served_and_forgotten(acks: AckPolicy, said: &[(u64, u64)]) {
    let relay = relay(|config| {
        config.tunnel.acks = acks;
        config.limits.idle_connection = Duration::from_secs(1);
    });
    let target = targets::udp_echo().await;
    let tap = Tap::new(relay.addresses()[0]).await;
    let (_endpoint, session) = dial(&relay, &tap, said).await;
    let mut exchange = session.request(&udp(target)).await.expect("sent");
    let answer = exchange.response().await.expect("answered");
    assert_eq!(answer.status, 200);
    let mut tunnel = Tunnel::new(exchange);
    for _ in 0..20 {
        assert_eq!(tunnel.echo(&[7; 1000]).await, &[7; 1000][..]);
    }
    // From here on the client says nothing, and the relay waits for it in vain.
    drop(tap);
    nobody_is_left(&relay).await;
    let client = connect(&relay).await;
    let mut other = client.udp(target).await;
    assert_eq!(other.echo(b"another client").await, &b"another client"[..]);
}

async fn nobody_is_left(relay: &Handle) {
    let gone = async {
        let open = "hoplite_relay_connections_open{transport=\"quic\"} 0";
        while !relay.metrics().text().contains(open) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let gone = tokio::time::timeout(PATIENCE, gone).await;
    assert!(gone.is_ok(), "{}", relay.metrics().text());
}
