//! The same over HTTP/2, for clients without UDP.

use hoplite_http::h2::{Config, Exchange, Session};
use hoplite_overlay::Batch;
use hoplite_relay::Handle;
use hoplite_testing::{PATIENCE, relay::relay, soon, targets};
use hoplite_wire::{
    ProxyError, RequestHead, ResponseHead,
    forwarding::{FORWARDING, Offer, Transform},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{dialer, inbox, tcp, udp};

async fn connect(relay: &Handle) -> Session {
    let link = dialer(relay).tls(&hoplite_overlay::Terms::default()).await;
    let stream = link.expect("connected").into_inner();
    Session::client(stream, &Config::default())
        .await
        .expect("spoken to")
}

async fn ask(session: &Session, head: RequestHead) -> (Exchange, ResponseHead) {
    let mut exchange = session.request(&head).await.expect("sent");
    let answer = soon(exchange.response()).await.expect("answered");
    (exchange, answer)
}

#[tokio::test]
async fn a_tcp_tunnel_carries_bytes_both_ways_and_ends_in_order() {
    let relay = relay(|_| ());
    let session = connect(&relay).await;
    let (exchange, answer) = ask(&session, tcp(targets::tcp_echo().await)).await;
    assert_eq!(answer.status, 200);
    let sent = vec![5; 300_000];
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
async fn a_udp_tunnel_goes_over_capsules() {
    let relay = relay(|_| ());
    let session = connect(&relay).await;
    let (exchange, answer) = ask(&session, udp(targets::udp_echo().await)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("capsule-protocol"), Some(&b"?1"[..]));
    let (sink, mut received) = inbox();
    let flow = exchange.datagrams(sink);
    flow.send(Batch::one(b"over TCP"));
    let back = soon(received.recv()).await;
    assert_eq!(back.expect("open"), &b"over TCP"[..]);
}

#[tokio::test]
async fn forwarding_is_not_for_http_2() {
    let relay = relay(|config| config.forwarding.identity = true);
    let session = connect(&relay).await;
    let offer = Offer {
        transforms: vec![Transform::Identity],
        key: None,
    };
    let head = udp(targets::udp_echo().await).with_offer(&offer);
    let (_, answer) = ask(&session, head).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header(FORWARDING), None);
}

#[tokio::test]
async fn refusals_are_the_same() {
    let relay = relay(|config| config.egress.allow.clear());
    let session = connect(&relay).await;
    let (_, answer) = ask(&session, tcp("169.254.169.254:80")).await;
    let error = answer.header("proxy-status").and_then(ProxyError::parse);
    assert_eq!(
        (answer.status, error),
        (403, Some(ProxyError::DestinationIpProhibited))
    );
}

#[tokio::test]
async fn a_target_that_resets_resets_the_stream() {
    let relay = relay(|_| ());
    let session = connect(&relay).await;
    let (exchange, _) = ask(&session, tcp(targets::tcp_reset().await)).await;
    let mut stream = exchange.into_stream();
    stream.write_all(b"x").await.expect("open");
    soon(stream.read(&mut [0; 1])).await.expect_err("reset");
}

#[tokio::test]
async fn a_drain_waits_for_open_tunnels() {
    let relay = relay(|_| ());
    let session = connect(&relay).await;
    let (exchange, _) = ask(&session, tcp(targets::tcp_echo().await)).await;
    let drained = tokio::spawn(relay.drain(PATIENCE));
    let mut stream = exchange.into_stream();
    stream.write_all(b"going on").await.expect("open");
    let mut back = [0; 8];
    stream.read_exact(&mut back).await.expect("open");
    stream.shutdown().await.expect("open");
    stream.read_to_end(&mut Vec::new()).await.expect("finished");
    drop(stream);
    assert!(
        drained.await.expect("no panic"),
        "everything ended in order"
    );
}
