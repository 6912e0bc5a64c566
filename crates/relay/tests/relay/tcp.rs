//! CONNECT.

use bytes::Bytes;
use hoplite_http::h3::H3Error;
use hoplite_testing::{relay::relay, soon, targets};
use hoplite_wire::{ProxyError, RequestHead, h3::Code};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{connect, tcp};

#[tokio::test]
async fn a_tunnel_carries_bytes_both_ways_and_ends_in_order() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let (exchange, answer) = client.ask(tcp(targets::tcp_echo().await)).await;
    assert_eq!(answer.status, 200);
    let sent: Vec<u8> = (0..300_000u32).map(|n| n.to_le_bytes()[0]).collect();
    let (mut read, mut write) = tokio::io::split(exchange.into_stream());
    let bytes = sent.clone();
    let writing = tokio::spawn(async move {
        write.write_all(&bytes).await.expect("open");
        write.shutdown().await.expect("open");
    });
    let mut back = Vec::new();
    read.read_to_end(&mut back).await.expect("finished");
    writing.await.expect("written");
    assert!(back == sent, "the bytes changed on the way");
}

#[tokio::test]
async fn a_target_by_name_is_looked_up_by_the_relay() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let port = targets::tcp_echo().await.port();
    let head = tcp(format!("localhost:{port}"));
    assert_eq!(client.status(head).await, 200);
}

#[tokio::test]
async fn a_target_where_nobody_listens_is_told_apart() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let refused = client.refusal(tcp(targets::nobody().await)).await;
    assert_eq!(refused, (502, Some(ProxyError::ConnectionRefused)));
}

#[tokio::test]
async fn a_target_that_resets_resets_the_stream() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let (exchange, answer) = client.ask(tcp(targets::tcp_reset().await)).await;
    assert_eq!(answer.status, 200);
    let (mut sender, mut receiver) = exchange.split();
    sender.write(Bytes::from_static(b"x")).await.expect("open");
    let error = soon(receiver.data()).await.expect_err("reset");
    assert!(
        matches!(error, H3Error::Reset(Code::CONNECT_ERROR)),
        "{error}"
    );
}

#[tokio::test]
async fn a_silent_tunnel_is_closed_after_its_time() {
    let relay = relay(|config| config.limits.idle_stream = std::time::Duration::from_millis(5));
    let client = connect(&relay).await;
    let (exchange, _) = client.ask(tcp(targets::tcp_echo().await)).await;
    let (_sender, mut receiver) = exchange.split();
    soon(receiver.data()).await.expect_err("reset");
}

#[tokio::test]
async fn a_client_that_does_not_read_one_tunnel_can_use_another() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let flood = targets::tcp_flood(64 << 20).await;
    let (_unread, answer) = client.ask(tcp(flood)).await;
    assert_eq!(answer.status, 200);
    let (exchange, _) = client.ask(tcp(targets::tcp_echo().await)).await;
    let mut stream = exchange.into_stream();
    stream.write_all(b"still here").await.expect("open");
    let mut back = [0; 10];
    stream.read_exact(&mut back).await.expect("open");
    assert_eq!(&back, b"still here");
}

#[tokio::test]
async fn requests_that_are_not_for_a_relay_get_small_answers() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let get = RequestHead {
        method: "GET".into(),
        protocol: None,
        scheme: Some("https".into()),
        authority: "relay".into(),
        path: Some("/".into()),
        headers: Vec::new(),
    };
    assert_eq!(client.status(get).await, 405);
    let mut other = RequestHead::connect_udp("relay", "/");
    assert_eq!(client.status(other.clone()).await, 404);
    other.protocol = Some("websocket".into());
    assert_eq!(client.status(other).await, 501);
    for authority in ["example.com", "example.com:0", "example.com:x"] {
        assert_eq!(client.status(tcp(authority)).await, 400, "{authority}");
    }
}
