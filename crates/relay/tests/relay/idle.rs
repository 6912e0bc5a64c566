//! Connections that are held and not used, by many addresses: honest newcomers are served all the same.

use std::{net::Ipv4Addr, time::Duration};

use hoplite_crypto::{ALPN_H2, ALPN_HTTP1};
use hoplite_testing::{
    PATIENCE,
    relay::{metric, relay, until_metric},
    soon, targets,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    admission::entry,
    support::{connect, quic_from, tcp, tls_from, try_connect},
};

/// The address of the attacker with this number.
fn attacker(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 9, 9, number + 1)
}

#[tokio::test]
async fn many_addresses_with_many_idle_connections_keep_nobody_out() {
    let relay = relay(|config| {
        config.limits.connections = 64;
        config.limits.connections_per_client = 16;
        config.limits.waiting = 40;
        config.limits.waiting_per_client = 12;
    });
    let mut held = Vec::new();
    let mut streams = Vec::new();
    for _ in 0..10 {
        for number in 0..8 {
            held.extend(quic_from(&relay, attacker(number)).await.ok());
            for alpn in [ALPN_H2, ALPN_HTTP1] {
                streams.extend(tls_from(&relay, attacker(number), &[alpn]).await.ok());
            }
        }
    }
    let client = connect(&relay).await;
    let mut tunnel = client.udp(targets::udp_echo().await).await;
    assert!(metric(&relay, "connections_ended_total{cause=\"displaced\"}") > 100.0);
    // And it keeps its place while more come.
    for _ in 0..10 {
        for number in 0..8 {
            held.extend(quic_from(&relay, attacker(number)).await.ok());
        }
    }
    assert_eq!(tunnel.echo(b"still there").await, &b"still there"[..]);
    until_metric(&relay, "connections_open{transport=\"quic\"}", |count| {
        count <= 41.0
    })
    .await;
}

#[tokio::test]
async fn half_a_handshake_over_tcp_keeps_nobody_out() {
    let relay = relay(|config| {
        config.limits.connections = 16;
        config.limits.connections_per_client = 8;
        config.limits.waiting = 16;
        config.limits.waiting_per_client = 8;
    });
    let mut held = Vec::new();
    for number in 0..60 {
        held.push(silent(relay.addresses()[0], attacker(number % 6)).await);
    }
    let mut client = tls_from(&relay, Ipv4Addr::LOCALHOST, &[ALPN_HTTP1]).await;
    let client = client.as_mut().expect("spoken to");
    let target = targets::tcp_echo().await;
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    client.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = [0; 12];
    client.read_exact(&mut answer).await.expect("answered");
    assert_eq!(&answer, b"HTTP/1.1 200");
}

/// A TCP connection whose TLS never begins.
#[expect(clippy::disallowed_methods, reason = "an attacker is no flow")]
async fn silent(relay: std::net::SocketAddr, source: Ipv4Addr) -> tokio::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind((source, 0).into()).expect("an address");
    socket.connect(relay).await.expect("connected")
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed_after_its_time_and_one_with_a_tunnel_is_not() {
    let relay = relay(|config| config.limits.first_request = Duration::from_secs(2));
    let busy = connect(&relay).await;
    let mut tunnel = busy.udp(targets::udp_echo().await).await;
    let (_endpoint, quic) = quic_from(&relay, attacker(0)).await.expect("connected");
    let mut h2 = tls_from(&relay, attacker(1), &[ALPN_H2])
        .await
        .expect("TLS");
    h2.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .expect("sent");
    let mut h1 = tls_from(&relay, attacker(2), &[ALPN_HTTP1])
        .await
        .expect("TLS");
    let closed = async {
        quic.closed().await;
        drop(h2.read_to_end(&mut Vec::new()).await);
        drop(h1.read_to_end(&mut Vec::new()).await);
    };
    let closed = tokio::time::timeout(PATIENCE, closed).await;
    assert!(closed.is_ok(), "{}", relay.metrics().text());
    until_metric(
        &relay,
        "connections_ended_total{cause=\"no_request\"}",
        |n| n == 3.0,
    )
    .await;
    assert_eq!(tunnel.echo(b"still there").await, &b"still there"[..]);
}

#[tokio::test]
async fn requests_without_a_token_do_not_keep_a_connection_open() {
    let relay = relay(|config| {
        config.limits.first_request = Duration::from_millis(300);
        config.auth.token.push(entry("secret"));
    });
    let client = connect(&relay).await;
    let target = targets::tcp_echo().await;
    let asking = async {
        while let Ok(mut exchange) = client.session.request(&tcp(target)).await {
            if let Ok(answer) = exchange.response().await {
                assert_eq!(answer.status, 407);
            }
        }
    };
    let closed = tokio::time::timeout(PATIENCE, asking).await;
    assert!(closed.is_ok(), "{}", relay.metrics().text());
    assert_eq!(
        metric(&relay, "connections_ended_total{cause=\"no_request\"}"),
        1.0
    );
}

#[tokio::test]
async fn connections_that_rest_between_requests_go_when_places_are_short() {
    let relay = relay(|config| {
        config.limits.connections = 3;
        config.limits.connections_per_client = 3;
    });
    let target = targets::tcp_echo().await;
    let mut resting = Vec::new();
    for _ in 0..3 {
        let (endpoint, connection) = quic_from(&relay, attacker(0)).await.expect("connected");
        let session = hoplite_http::h3::Session::client(connection, &Default::default());
        let mut exchange = session.request(&tcp(target)).await.expect("sent");
        assert_eq!(exchange.response().await.expect("answered").status, 200);
        drop(exchange);
        resting.push((endpoint, session));
    }
    // Until the relay has seen the ends of the tunnels they keep their places.
    let newcomer = async {
        loop {
            if let Ok(client) = try_connect(&relay).await {
                break client;
            }
            tokio::task::yield_now().await;
        }
    };
    let client = soon(newcomer).await;
    assert_eq!(client.status(tcp(target)).await, 200);
}
