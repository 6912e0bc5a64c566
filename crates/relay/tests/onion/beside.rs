//! MASQUE and circuits on one port number: each is served, and neither where it is not wanted.

use std::sync::Arc;

use hoplite_channel::How;
use hoplite_crypto::{ALPN_HTTP1, Trust, client_tls};
use hoplite_link::Peer;
use hoplite_masque::{Config as ClientConfig, Path, Relay as Known};
use hoplite_overlay::{Direct, Overlay, Terms};
use hoplite_relay::{Handle, config::LinkKind};
use hoplite_testing::{relay::number, soon, targets};
use hoplite_wire::Target;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::support::{client, echo, echoes, path, refused, relay};

fn masque(relay: &Handle) -> Path {
    let known = Known {
        peer: Peer {
            name: "r".into(),
            address: Target::from(relay.addresses()[0]),
            trust: Trust::Pins(vec![relay.pin()]),
        },
        token: None,
        tokens: None,
        template: None,
        mode: None,
    };
    let below: Arc<dyn Overlay> = Arc::new(Direct::new());
    Path::new(vec![known], &below, &Arc::new(ClientConfig::default())).expect("a path")
}

#[tokio::test]
async fn masque_is_served_beside_circuits() {
    let both = relay(|_| ());
    let target = targets::tcp_echo().await;
    let (masque, onion) = (masque(&both), client(path([&both]), How::Quic));
    for _ in 0..2 {
        let stream = soon(masque.open_stream(&target.into(), &Terms::default())).await;
        echo(stream.expect("opens"), 100_000).await;
        echoes(&onion, &Terms::default(), 100_000).await;
    }
    assert_eq!(
        number(
            &both,
            "hoplite_relay_requests_total{method=\"connect\",outcome=\"ok\"}"
        ),
        2
    );
    assert_eq!(
        number(
            &both,
            "hoplite_relay_requests_total{method=\"onion\",outcome=\"ok\"}"
        ),
        2
    );
    assert_eq!(
        number(&both, "hoplite_relay_connections_total{transport=\"quic\"}"),
        1
    );
}

/// What a relay answers over TLS to `CONNECT` in HTTP/1.1.
#[expect(
    clippy::disallowed_methods,
    reason = "the client of an HTTPS proxy has no overlay"
)]
async fn connect(relay: &Handle, alpn: &[&[u8]]) -> String {
    let tls = client_tls(&Trust::Pins(vec![relay.pin()]), alpn).expect("valid");
    let stream = TcpStream::connect(relay.addresses()[0]).await;
    let name = ServerName::try_from("localhost").expect("a name");
    let connecting = TlsConnector::from(Arc::new(tls)).connect(name, stream.expect("connected"));
    let mut stream = connecting.await.expect("spoken to");
    let target = targets::tcp_page("a page").await;
    let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\nGET / HTTP/1.1\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn http_1_1_is_told_from_cells_with_and_without_alpn() {
    let both = relay(|_| ());
    for alpn in [&[ALPN_HTTP1] as &[&[u8]], &[]] {
        let answer = soon(connect(&both, alpn)).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("a page"),
            "{answer}"
        );
    }
    echoes(&client(path([&both]), How::Tls), &Terms::default(), 1000).await;
}

#[tokio::test]
async fn channels_come_in_over_what_is_configured_alone() {
    let target = targets::tcp_echo().await;
    for (carrier, other) in [(LinkKind::Quic, How::Tls), (LinkKind::Tls, How::Quic)] {
        let one = relay(|config| config.onion.channels = vec![carrier]);
        refused(&client(path([&one]), other), target).await;
        echoes(&client(path([&one]), How::Raced), &Terms::default(), 1000).await;
    }
}

#[tokio::test]
async fn a_relay_without_onion_serves_no_circuits() {
    let with = relay(|_| ());
    let without = relay(|config| config.onion.enabled = false);
    assert!(without.onion_key().is_none() && without.rekey().is_none());
    let mut wanted = path([&with]);
    wanted[0].addresses = without.addresses().to_vec();
    let target = targets::tcp_echo().await;
    for how in [How::Quic, How::Tls] {
        refused(&client(wanted.clone(), how), target).await;
    }
    let stream = soon(masque(&without).open_stream(&target.into(), &Terms::default())).await;
    echo(stream.expect("opens"), 1000).await;
    assert!(!without.metrics().text().contains("onion_circuits"));
}
