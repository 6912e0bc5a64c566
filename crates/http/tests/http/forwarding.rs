//! Capsules of forwarded mode on the request stream of a UDP flow.

use std::sync::atomic::Ordering::Relaxed;

use bytes::{Bytes, BytesMut};
use hoplite_http::h3::H3Error;
use hoplite_quic::{self as quic};
use hoplite_testing::soon;
use hoplite_wire::{
    ResponseHead,
    forwarding::{Capsule, Malformed},
    h3::Code,
    varint,
};

use crate::pair::{End, pair, pair_with, udp_head};

fn register(id: &'static [u8]) -> Capsule {
    let id = Bytes::from_static(id);
    Capsule::RegisterClientCid { id }
}

#[tokio::test]
async fn capsules_go_both_ways_in_order() {
    let pair = pair().await;
    let (client, server) = pair.flow().await;
    let capsules = [
        register(b"client"),
        Capsule::AckTargetCid {
            id: Bytes::from(vec![7; 255]),
            virtual_id: Bytes::from(vec![8; 255]),
            reset_token: Bytes::from(vec![9; 255]),
        },
        Capsule::MaxConnectionIds { sequence: 3 },
    ];
    for (from, to) in [(&client, &server), (&server, &client)] {
        for capsule in &capsules {
            assert!(from.flow.send_capsule(capsule));
        }
        let wanted = capsules.clone().map(Ok);
        assert_eq!(to.sink.take_capsules(3).await, wanted);
    }
}

#[tokio::test]
async fn a_client_registers_before_it_is_answered() {
    let pair = pair().await;
    let (exchange, mut incoming) = pair.request(&udp_head()).await;
    let client = End::new(exchange);
    assert!(client.flow.send_capsule(&register(b"early")));
    let answer = ResponseHead::new(200);
    incoming.exchange.respond(&answer).await.expect("answered");
    let server = End::new(incoming.exchange);
    let seen = server.sink.take_capsules(1).await;
    assert_eq!(seen, [Ok(register(b"early"))]);
}

#[tokio::test]
async fn a_capsule_of_forwarded_mode_does_not_turn_payloads_into_capsules() {
    let pair = pair().await;
    let (client, server) = pair.flow().await;
    client.flow.send_capsule(&register(b"id"));
    server.sink.take_capsules(1).await;
    let frames = || pair.server.connection().stats().frame_tx.datagram;
    let before = frames();
    server.send(b"answer");
    assert_eq!(client.sink.take(1).await, [Bytes::from_static(b"answer")]);
    assert_eq!(frames(), before + 1);
}

/// Writes a raw capsule from a client whose server is `strict` about them.
async fn malformed(strict: bool) -> (crate::pair::Pair, hoplite_http::h3::DataReceiver, End) {
    let pair = pair().await;
    let (exchange, mut incoming) = pair.request(&udp_head()).await;
    let answer = ResponseHead::new(200);
    incoming.exchange.respond(&answer).await.expect("answered");
    let server = End::new(incoming.exchange);
    server.sink.strict.store(strict, Relaxed);
    let mut exchange = exchange;
    soon(exchange.response()).await.expect("an answer");
    let (mut sender, receiver) = exchange.split();
    let mut out = BytesMut::new();
    varint::write(&mut out, 0xff_e601);
    varint::write(&mut out, 3);
    out.extend_from_slice(b"\x09ab");
    register(b"next").write(&mut out);
    sender.write(out.freeze()).await.expect("open");
    // Both halves stay open: what ends the stream is the server.
    tokio::spawn(async move {
        sender.stopped().await;
        drop(sender);
    });
    (pair, receiver, server)
}

#[tokio::test]
async fn a_malformed_capsule_is_counted_and_the_sink_decides() {
    let (pair, _receiver, server) = malformed(false).await;
    let seen = server.sink.take_capsules(2).await;
    assert_eq!(seen, [Err(Malformed), Ok(register(b"next"))]);
    assert_eq!(pair.server.counters().malformed.load(Relaxed), 1);
    assert_eq!(server.send(b"still open"), 1);
}

#[tokio::test]
async fn a_sink_that_bears_no_more_resets_the_stream_with_a_datagram_error() {
    let (_pair, mut receiver, server) = malformed(true).await;
    let ended = soon(receiver.data()).await;
    assert!(
        matches!(ended, Err(H3Error::Reset(Code::DATAGRAM_ERROR))),
        "{ended:?}"
    );
    assert!(soon(server.flow.closed()).await.is_err());
    assert_eq!(server.sink.take_capsules(1).await, [Err(Malformed)]);
    assert!(!server.flow.send_capsule(&register(b"late")));
}

#[tokio::test]
async fn capsules_that_nobody_reads_wait_up_to_a_bound() {
    let mut transport = quic::TransportConfig::default();
    transport.send_window(10_000);
    transport.stream_receive_window(quic::VarInt::from_u32(10_000));
    let pair = pair_with(transport).await;
    let (exchange, mut incoming) = pair.request(&udp_head()).await;
    let client = End::new(exchange);
    let capsule = Capsule::RegisterClientCid {
        id: Bytes::from(vec![5; 255]),
    };
    let mut sent = 0;
    while client.flow.send_capsule(&capsule) {
        sent += 1;
        assert!(sent < 1000, "without a bound");
        tokio::task::yield_now().await;
    }
    let answer = ResponseHead::new(200);
    incoming.exchange.respond(&answer).await.expect("answered");
    let server = End::new(incoming.exchange);
    let seen = server.sink.take_capsules(sent).await;
    assert_eq!(seen.len(), sent);
    assert!(seen.iter().all(|seen| seen.as_ref() == Ok(&capsule)));
    soon(async {
        while !client.flow.send_capsule(&capsule) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn small_capsules_that_nobody_reads_wait_in_a_few_kilobytes() {
    const WINDOW: u32 = 10_000;
    let mut transport = quic::TransportConfig::default();
    transport.stream_receive_window(quic::VarInt::from_u32(WINDOW));
    let pair = pair_with(transport).await;
    let (exchange, _incoming) = pair.request(&udp_head()).await;
    let client = End::new(exchange);
    let capsule = register(b"client-1");
    let mut frame = BytesMut::new();
    capsule.write(&mut frame);
    let mut bytes = 0;
    // Nobody reads the stream: the peer gives no more than its first window.
    while client.flow.send_capsule(&capsule) {
        bytes += frame.len();
        assert!(bytes < 40_000, "beyond what QUIC takes");
        tokio::task::yield_now().await;
    }
}
