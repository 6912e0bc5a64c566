//! Starting, draining, reloading, and what the metrics say.

use std::{net::SocketAddr, time::Duration};

use hoplite_relay::{Handle, Relay, StartError};
use hoplite_testing::{
    PATIENCE,
    relay::{config, identity, relay, start},
    soon, targets,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{connect, tcp, udp};

#[tokio::test]
async fn a_drain_closes_what_is_left_at_its_end() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let (_open, _) = client.ask(tcp(targets::tcp_echo().await)).await;
    assert!(!relay.drain(Duration::from_millis(50)).await);
    soon(client.link.connection().closed()).await;
}

#[tokio::test]
async fn dropping_the_handle_stops_the_relay_and_frees_its_port() {
    let relay = relay(|_| ());
    let mut config = config();
    config.listen = relay.addresses().to_vec();
    assert!(matches!(
        Relay::start(&config, &identity()),
        Err(StartError::Listen { .. })
    ));
    drop(relay);
    let again = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Ok(relay) = Relay::start(&config, &identity()) {
                return relay;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let again = again.await.expect("the port is free");
    connect(&again).await;
}

#[tokio::test]
async fn a_reload_shows_a_new_certificate_from_the_next_handshake_on() {
    let relay = relay(|_| ());
    let before = connect(&relay).await;
    let old = relay.pin();
    relay
        .reload(&config().auth, Some(&identity()))
        .expect("reloaded");
    assert!(relay.pin() != old);
    connect(&relay).await;
    assert_eq!(before.status(tcp(targets::tcp_echo().await)).await, 200);
}

/// The first line of what the operator is answered.
/// A relay that answers who asks for its metrics, also by these names, and where it does.
fn measured(hosts: &[&str]) -> (Handle, SocketAddr) {
    let mut config = config();
    config.metrics.listen = Some("127.0.0.1:0".parse().expect("address"));
    let hosts = hosts.iter().map(|host| host.parse().expect(host));
    config.metrics.hosts = hosts.collect();
    let relay = start(&config);
    let address = relay.metrics_address().expect("served");
    (relay, address)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the operator's prober is no flow"
)]
async fn ask(address: SocketAddr, what: &str, host: &str) -> String {
    let stream = tokio::net::TcpStream::connect(address).await;
    let mut stream = stream.expect("connected");
    let request = format!("{what} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    let sent = stream.write_all(request.as_bytes()).await;
    sent.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("answered");
    text
}

async fn probe(address: SocketAddr, what: &str) -> String {
    let text = ask(address, what, "x").await;
    text.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_relay_that_drains_lives_and_is_not_ready() {
    let (relay, address) = measured(&[]);
    for fine in ["GET /ready", "HEAD /ready", "GET /live"] {
        assert_eq!(probe(address, fine).await, "HTTP/1.1 200 OK");
    }
    assert!(probe(address, "POST /ready").await.contains("405"));
    assert!(probe(address, "GET /").await.contains("404"));

    let client = connect(&relay).await;
    let (open, _) = client.ask(tcp(targets::tcp_echo().await)).await;
    let drain = tokio::spawn(relay.drain(PATIENCE));
    soon(async { while !probe(address, "GET /ready").await.contains("503") {} }).await;
    assert_eq!(probe(address, "GET /live").await, "HTTP/1.1 200 OK");
    drop((open, client));
    assert!(soon(drain).await.expect("drained"));
}

#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "the operator's prober is no flow"
)]
async fn who_connects_to_the_metrics_and_says_nothing_keeps_nobody_out() {
    let (_relay, address) = measured(&[]);
    let mut idle = Vec::new();
    for _ in 0..100 {
        let stream = tokio::net::TcpStream::connect(address).await;
        idle.push(stream.expect("connected"));
    }
    assert_eq!(soon(probe(address, "GET /live")).await, "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn an_address_of_a_relay_does_not_tell_what_ends_connections_at_another() {
    let mut config = config();
    config.listen = vec!["127.0.0.1:0".parse().expect("address"); 2];
    config.limits.shards = 1;
    let relay = start(&config);
    let [first, second] = relay.addresses() else {
        unreachable!("two addresses");
    };
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await;
    let socket = socket.expect("bound");
    // Of a connection that this address does not know.
    let mut packet = [0x5a; 100];
    packet[0] = 0x40;
    let mut tokens = Vec::new();
    for address in [first, second, first] {
        let mut answer = [0; 1500];
        let told = async {
            loop {
                socket.send_to(&packet, address).await.expect("sent");
                let pause = Duration::from_millis(200);
                let told = tokio::time::timeout(pause, socket.recv_from(&mut answer)).await;
                if let Ok(Ok((length, from))) = told
                    && from == *address
                {
                    return length;
                }
            }
        };
        let length = soon(told).await;
        // RFC 9000 §10.3: the last 16 bytes.
        tokens.push(answer[..length][length - 16..].to_vec());
    }
    assert_eq!(tokens[0], tokens[2]);
    assert_ne!(tokens[0], tokens[1]);
}

#[tokio::test]
async fn a_page_whose_name_resolves_to_the_relay_reads_no_metrics() {
    let (_relay, address) = measured(&["relay.internal"]);
    let port = address.port();
    for own in [
        "localhost",
        "127.0.0.1",
        "[::1]",
        "192.0.2.1",
        "Relay.Internal",
    ] {
        let text = ask(address, "GET /metrics", &format!("{own}:{port}")).await;
        assert!(text.starts_with("HTTP/1.1 200"), "{own}: {text}");
        assert!(text.contains("# EOF"), "{own}: {text}");
    }
    for other in [
        "page.example",
        "localhost.page.example",
        "127.0.0.1.page.example",
        "page.example\r\nhost: localhost",
        "",
    ] {
        let text = ask(address, "GET /metrics", other).await;
        assert!(text.starts_with("HTTP/1.1 4"), "{other}: {text}");
        assert!(!text.contains("hoplite_relay"), "{other}: {text}");
    }
    // Whoever balances asks by whatever name, and learns nothing else.
    assert_eq!(probe(address, "GET /ready").await, "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn the_metrics_name_nobody() {
    let (relay, address) = measured(&[]);
    let client = connect(&relay).await;
    client.udp(targets::udp_echo().await).await.echo(b"x").await;
    client.status(tcp("127.0.0.1:1")).await;
    client.status(udp("secret.test:443")).await;
    let text = ask(address, "GET /metrics", "localhost").await;
    assert!(
        text.starts_with("HTTP/1.1 200") && text.contains("# EOF"),
        "{text}"
    );
    assert!(
        text.contains("requests_total{method=\"connect_udp\",outcome=\"ok\"} 1"),
        "{text}"
    );
    for private in ["127.0.0.1", "secret", "localhost", "::1"] {
        assert!(!text.contains(private), "{private} is in {text}");
    }
}

#[tokio::test]
async fn a_relay_that_everybody_could_use_does_not_start() {
    let mut config = config();
    config.listen = vec!["0.0.0.0:0".parse().expect("address")];
    let error = Relay::start(&config, &identity()).expect_err("open to all");
    assert!(error.to_string().starts_with("auth.token"), "{error}");
    config.auth.open = true;
    let relay = start(&config);
    drop(relay);
}
