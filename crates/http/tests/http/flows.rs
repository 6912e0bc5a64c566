//! UDP flows: CONNECT-UDP over frames and over capsules.

use std::{future::poll_fn, sync::atomic::Ordering::Relaxed, task::Poll, time::Duration};

use bytes::{Bytes, BytesMut};
use hoplite_http::h3::{DataReceiver, DataSender};
use hoplite_overlay::Batch;
use hoplite_quic::{self as quic};
use hoplite_testing::soon;
use hoplite_wire::{
    ResponseHead,
    capsule::{self, CapsuleReader},
    http_datagram, varint,
};

use crate::pair::{End, Pair, pair, pair_with, small_path, udp_head};

#[tokio::test]
async fn datagrams_go_both_ways_in_batches() {
    let pair = pair().await;
    let (client, server) = pair.flow().await;
    let contents: Vec<u8> = (0..250).collect();
    let batch = Batch {
        contents: &contents,
        segment: 100,
    };
    for (from, to) in [(&client, &server), (&server, &client)] {
        assert_eq!(from.flow.send(batch), 3);
        let received = to.sink.take(3).await;
        assert!(
            batch
                .payloads()
                .eq(received.iter().map(|payload| &payload[..]))
        );
    }
    client.send(b"");
    assert_eq!(server.sink.take(1).await, [Bytes::new()]);
}

#[tokio::test]
async fn a_client_sends_before_it_is_answered() {
    let pair = pair().await;
    let (exchange, mut incoming) = pair.request(&udp_head()).await;
    let client = End::new(exchange);
    for number in 0..8 {
        assert_eq!(client.send(&[number; 100]), 1);
    }
    incoming
        .exchange
        .respond(&ResponseHead::new(200).with("capsule-protocol", "?1"))
        .await
        .expect("answered");
    let response = soon(client.flow.response()).await.expect("an answer");
    assert_eq!(response.header("capsule-protocol"), Some(&b"?1"[..]));
    let server = End::new(incoming.exchange);
    assert_eq!(server.sink.take(8).await.len(), 8);
}

#[tokio::test]
async fn early_datagrams_are_kept_up_to_a_bound() {
    let pair = pair().await;
    let (exchange, mut incoming) = pair.request(&udp_head()).await;
    let client = End::new(exchange);
    for _ in 0..100 {
        client.send(&[1; 1000]);
    }
    let dropped = &pair.server.counters().early_dropped;
    soon(async {
        while dropped.load(Relaxed) < 68 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    incoming
        .exchange
        .respond(&ResponseHead::new(200))
        .await
        .expect("answered");
    let server = End::new(incoming.exchange);
    assert_eq!(server.sink.take(1).await.len(), 32);
}

#[tokio::test]
async fn a_refused_flow_ends_with_its_response() {
    let pair = pair().await;
    let (exchange, incoming) = pair.request(&udp_head()).await;
    let client = End::new(exchange);
    incoming
        .exchange
        .refuse(&ResponseHead::new(502))
        .await
        .expect("answered");
    assert_eq!(
        soon(client.flow.response())
            .await
            .expect("an answer")
            .status,
        502
    );
    soon(client.flow.closed()).await.expect("ended in order");
    let sent = poll_fn(|cx| client.flow.poll_send(cx, Batch::one(b"x"))).await;
    assert!(sent.is_err());
}

#[tokio::test]
async fn what_no_frame_holds_goes_as_a_capsule_up_to_1200_bytes() {
    let pair = pair_with(small_path()).await;
    let (client, server) = pair.flow().await;
    assert_eq!(client.flow.max_payload(), 1200);
    let contents = [5; 2500];
    assert_eq!(
        client.flow.send(Batch {
            contents: &contents,
            segment: 1200
        }),
        3
    );
    assert_eq!(server.sink.take(3).await.len(), 3);
    // The server has seen capsules alone, and answers so.
    assert!(server.flow.max_payload() > 1200);
    assert_eq!(server.send(&[6; 1400]), 1);
    assert_eq!(client.sink.take(1).await, [vec![6; 1400]]);
    // After a frame it answers in frames.
    while server.flow.max_payload() > 1200 {
        client.send(b"small");
        server.sink.take(1).await;
    }
}

#[tokio::test]
async fn what_follows_a_capsule_does_not_overtake_it() {
    let pair = pair_with(small_path()).await;
    let (client, server) = pair.flow().await;
    // Frames, from the first one on.
    client.send(b"small");
    server.sink.take(1).await;
    for (from, to) in [(&client, &server), (&server, &client)] {
        from.flow.carry_forwarded();
        // More than leaves at once.
        let large = vec![7; 8 * 1400];
        let batch = Batch {
            contents: &large,
            segment: 1400,
        };
        assert_eq!(from.flow.send(batch), 8);
        assert_eq!(from.send(b"behind"), 1);
        let received = to.sink.take(9).await;
        let lengths: Vec<_> = received.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [1400, 1400, 1400, 1400, 1400, 1400, 1400, 1400, 6]);
    }
}

#[tokio::test]
async fn what_the_path_does_not_carry_is_dropped_and_counted() {
    let pair = pair_with(small_path()).await;
    let (client, server) = pair.flow().await;
    let contents = [5; 4003];
    assert_eq!(
        client.flow.send(Batch {
            contents: &contents,
            segment: 2000
        }),
        1,
        "the small last one"
    );
    assert_eq!(server.sink.take(1).await, [vec![5; 3]]);
    assert_eq!(pair.client.counters().too_large.load(Relaxed), 2);
}

#[tokio::test]
async fn a_client_that_speaks_capsules_alone_is_answered_in_capsules() {
    let pair = pair().await;
    let (mut client, mut incoming) = pair.request(&udp_head()).await;
    incoming
        .exchange
        .respond(&ResponseHead::new(200))
        .await
        .expect("answered");
    soon(client.response()).await.expect("an answer");
    let server = End::new(incoming.exchange);
    let (mut sender, mut receiver) = client.split();
    let mut out = BytesMut::new();
    varint::write(&mut out, 0x29 * 0x17);
    varint::write(&mut out, 3);
    out.extend_from_slice(b"???");
    capsule::write_udp(&mut out, b"question");
    let (first, rest) = out.split_at(9);
    sender
        .write(Bytes::copy_from_slice(first))
        .await
        .expect("sent");
    sender
        .write(Bytes::copy_from_slice(rest))
        .await
        .expect("sent");
    assert_eq!(server.sink.take(1).await, [&b"question"[..]]);
    assert_eq!(
        server.flow.send(Batch {
            contents: b"answeranswer",
            segment: 6
        }),
        2
    );
    let (mut reader, mut answers) = (CapsuleReader::default(), Vec::new());
    while answers.len() < 2 {
        let mut data = soon(receiver.data()).await.expect("open").expect("more");
        while let Some(answer) = reader.next_datagram(&mut data) {
            answers.push(http_datagram::udp(answer));
        }
    }
    assert_eq!(
        answers,
        vec![http_datagram::Udp::Payload(Bytes::from_static(b"answer")); 2]
    );
    drop((sender, receiver));
    assert!(
        soon(server.flow.closed()).await.is_err(),
        "a reset is no end in order"
    );
}

#[tokio::test]
async fn unknown_contexts_and_stray_datagrams_are_dropped_and_counted() {
    let pair = pair().await;
    let (client, server) = pair.flow().await;
    let quarter = u8::try_from(client.flow.id() / 4).expect("small");
    let raw = pair.client.connection();
    raw.send_datagram(Bytes::from(vec![quarter, 2, 9]))
        .expect("sent");
    raw.send_datagram(Bytes::from(vec![quarter])).expect("sent");
    raw.send_datagram(Bytes::from_static(&[0x7f, 0xff, 0, 9]))
        .expect("sent");
    client.send(b"good");
    assert_eq!(server.sink.take(1).await, [&b"good"[..]]);
    let counters = pair.server.counters();
    let counted = [
        &counters.unknown_context,
        &counters.malformed,
        &counters.unrouted,
    ]
    .map(|counter| counter.load(Relaxed));
    assert_eq!(counted, [1, 1, 1]);
}

#[tokio::test]
async fn a_full_connection_drops_the_newest_or_makes_the_sender_wait() {
    let mut transport = quic::TransportConfig::default();
    transport.datagram_send_buffer_size(10_000);
    let pair = pair_with(transport).await;
    let (client, server) = pair.flow().await;
    // Nothing leaves before this task yields: QUIC's buffer holds 9 of 1000 bytes.
    let contents: Vec<u8> = (0..20).flat_map(|number| [number; 1000]).collect();
    let batch = Batch {
        contents: &contents,
        segment: 1000,
    };
    assert_eq!(client.flow.send(batch), 9);
    assert_eq!(client.flow.send(batch), 0);
    assert_eq!(pair.client.counters().full.load(Relaxed), 31);
    let received = server.sink.take(9).await;
    assert!(
        received.iter().map(|payload| payload[0]).eq(0..9),
        "the oldest, in order"
    );

    soon(poll_fn(|cx| client.flow.poll_send(cx, batch)))
        .await
        .expect("taken whole");
    let next = poll_fn(|cx| Poll::Ready(client.flow.poll_send(cx, batch))).await;
    assert!(next.is_pending(), "the rest of the first batch waits");
    assert_eq!(client.flow.send(batch), 0, "nobody overtakes it");
    assert_eq!(server.sink.take(20).await.len(), 20);
    soon(poll_fn(|cx| client.flow.poll_ready(cx)))
        .await
        .expect("room again");
    soon(poll_fn(|cx| client.flow.poll_send(cx, batch)))
        .await
        .expect("taken whole");
    assert_eq!(server.sink.take(20).await.len(), 20);
}

/// A flow whose client speaks capsules alone, reads nothing of its own accord, and takes 20,000 bytes before it has.
async fn over_capsules() -> (Pair, DataSender, DataReceiver, End) {
    let mut transport = quic::TransportConfig::default();
    transport.stream_receive_window(20_000_u32.into());
    let pair = pair_with(transport).await;
    let (mut client, mut incoming) = pair.request(&udp_head()).await;
    incoming
        .exchange
        .respond(&ResponseHead::new(200))
        .await
        .expect("answered");
    soon(client.response()).await.expect("an answer");
    let server = End::new(incoming.exchange);
    let (mut sender, receiver) = client.split();
    let mut out = BytesMut::new();
    capsule::write_udp(&mut out, b"capsules, please");
    sender.write(out.freeze()).await.expect("sent");
    server.sink.take(1).await;
    (pair, sender, receiver, server)
}

#[tokio::test]
async fn of_a_batch_of_capsules_that_the_client_does_not_read_a_few_wait() {
    let (pair, _sender, mut receiver, server) = over_capsules().await;
    let contents = [1; 60_000];
    let batch = Batch {
        contents: &contents,
        segment: 1000,
    };
    let taken = server.flow.send(batch);
    assert!((20..30).contains(&taken), "{taken}");
    let dropped = pair.server.counters().full.load(Relaxed);
    assert_eq!(dropped, 60 - u64::try_from(taken).expect("few"));
    let (mut reader, mut read) = (CapsuleReader::default(), 0);
    while read < taken {
        let mut data = soon(receiver.data()).await.expect("open").expect("more");
        while reader.next_datagram(&mut data).is_some() {
            read += 1;
        }
    }
}

#[tokio::test]
async fn capsules_wait_bounded_when_the_client_does_not_read() {
    let (pair, _sender, mut receiver, server) = over_capsules().await;
    let mut taken = 0;
    while pair.server.counters().full.load(Relaxed) == 0 {
        taken += server.send(&[1; 1000]);
        tokio::task::yield_now().await;
        assert!(taken < 100, "without a bound");
    }
    let mut wait = ready_now(&server);
    assert!(wait.is_pending());
    let (mut reader, mut read) = (CapsuleReader::default(), 0);
    while read < taken {
        let mut data = soon(receiver.data()).await.expect("open").expect("more");
        while reader.next_datagram(&mut data).is_some() {
            read += 1;
        }
    }
    soon(poll_fn(|cx| server.flow.poll_ready(cx)))
        .await
        .expect("room again");
    wait = ready_now(&server);
    assert!(wait.is_ready());
}

fn ready_now(end: &End) -> Poll<()> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    end.flow
        .poll_ready(&mut cx)
        .map(|ready| ready.expect("open"))
}

#[tokio::test]
async fn many_flows_share_a_connection() {
    let mut transport = quic::TransportConfig::default();
    transport.max_concurrent_bidi_streams(300_u32.into());
    let pair = pair_with(transport).await;
    let mut ends = Vec::new();
    for _ in 0..300 {
        ends.push(pair.flow().await);
    }
    for round in 0..3_u8 {
        for (index, (client, _)) in ends.iter().enumerate() {
            let payload = [&index.to_be_bytes()[..], &[round]].concat();
            soon(poll_fn(|cx| {
                client.flow.poll_send(cx, Batch::one(&payload))
            }))
            .await
            .expect("sent");
        }
        for (index, (_, server)) in ends.iter().enumerate() {
            let payload = [&index.to_be_bytes()[..], &[round]].concat();
            assert_eq!(server.sink.take(1).await, [payload]);
        }
    }
}

/// A packet that no frame holds waits on the request stream; one that went beside the connection now would come before it.
#[tokio::test]
async fn a_flow_is_not_drained_while_a_payload_waits_as_a_capsule() {
    let mut transport = small_path();
    transport.stream_receive_window(4096_u32.into());
    let pair = pair_with(transport).await;
    let (client, mut incoming) = pair.request(&udp_head()).await;
    incoming
        .exchange
        .respond(&ResponseHead::new(200))
        .await
        .expect("answered");
    let client = End::new(client);
    soon(client.flow.response()).await.expect("an answer");
    soon(async {
        while !client.flow.is_drained(Duration::ZERO) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(client.flow.max_payload() <= 1200);
    // The server does not read yet: QUIC takes some of them.
    let mut sent = 0;
    while client.send(&[sent; 1200]) == 1 {
        sent += 1;
    }
    assert!(sent > 1 && !client.flow.is_drained(Duration::ZERO));
    let server = End::new(incoming.exchange);
    let arrived = server.sink.take(sent.into()).await;
    let order: Vec<u8> = arrived.iter().map(|payload| payload[0]).collect();
    assert!(order.iter().copied().eq(0..sent), "{order:?}");
    soon(async {
        while !client.flow.is_drained(Duration::ZERO) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
