//! What only HTTP/3 has of CONNECT-UDP, and what a template and a target may do.

use bytes::{Bytes, BytesMut};
use hoplite_http::h3::H3Error;
use hoplite_overlay::Batch;
use hoplite_testing::{PATIENCE, relay::relay, targets};
use hoplite_wire::{RequestHead, capsule, capsule::CapsuleReader, h3::Code};

use crate::support::{Tunnel, connect, udp};

#[tokio::test]
async fn payloads_that_come_before_the_answer_arrive() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let head = udp(targets::udp_echo().await);
    let exchange = client.session.request(&head).await.expect("sent");
    let mut tunnel = Tunnel::new(exchange);
    tunnel.send(b"early");
    assert_eq!(tunnel.recv().await, &b"early"[..]);
}

#[tokio::test]
async fn a_client_that_sends_capsules_gets_capsules() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let (exchange, answer) = client.ask(udp(targets::udp_echo().await)).await;
    assert_eq!(answer.status, 200);
    let (mut sender, mut receiver) = exchange.split();
    let mut capsules = CapsuleReader::default();
    let mut out = BytesMut::new();
    // An unknown capsule is skipped, an unknown context dropped.
    out.extend_from_slice(&[0x3f, 2, 1, 2]);
    out.extend_from_slice(&[0, 3, 4, 9, 9]);
    capsule::write_udp(&mut out, b"in a capsule");
    sender.write(out.freeze()).await.expect("open");
    loop {
        let mut data = receiver.data().await.expect("open").expect("open");
        if let Some(value) = capsules.next_datagram(&mut data) {
            assert_eq!(value, Bytes::from_static(b"\0in a capsule"));
            return;
        }
    }
}

#[tokio::test]
async fn a_template_of_the_operators_choice_works_beside_the_well_known_one() {
    let template = "https://relay.example/masque{?target_host,target_port}";
    let relay = relay(|config| config.masque.template = Some(template.into()));
    let client = connect(&relay).await;
    let port = targets::udp_echo().await.port();
    let path = format!("/masque?target_host=127.0.0.1&target_port={port}");
    let head = RequestHead::connect_udp("relay.example", path);
    let (exchange, answer) = client.ask(head).await;
    assert_eq!(answer.status, 200);
    assert_eq!(Tunnel::new(exchange).echo(b"x").await, &b"x"[..]);
    let path = format!("/.well-known/masque/udp/127.0.0.1/{port}/");
    let head = RequestHead::connect_udp("relay", path);
    assert_eq!(client.status(head).await, 200);
}

#[tokio::test]
async fn a_tunnel_survives_a_payload_that_is_too_large_for_the_path() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let mut tunnel = client.udp(targets::udp_echo().await).await;
    tunnel.send(&[1; 9000]);
    assert_eq!(tunnel.echo(b"small").await, &b"small"[..]);
}

/// draft-ietf-masque-connect-udp-ecn-dscp: in contexts that were agreed on, and in no others.
#[tokio::test]
async fn payloads_come_in_the_contexts_of_marks_if_both_ends_said_so() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let target = targets::udp_echo().await;
    let said = udp(target).with_ecn_contexts();
    let unreadable = udp(target).with("ecn-dscp-context-id", "(0 0 1 3 5)");
    for (head, agreed) in [(said, true), (unreadable, false), (udp(target), false)] {
        let (exchange, answer) = client.ask(head).await;
        assert_eq!(answer.ecn_contexts().is_some(), agreed);
        let mut tunnel = Tunnel::new(exchange);
        assert_eq!(tunnel.echo(b"plain").await, &b"plain"[..]);
        // An id that nobody has told, ECT(0), and none: what is known comes back, in order.
        for (context, payload) in [(8, &b"unknown"[..]), (4, b"marked"), (0, b"last")] {
            tunnel.flow.send_behind(&[context], Batch::one(payload));
        }
        if agreed {
            assert_eq!(tunnel.recv().await, &b"marked"[..]);
        }
        assert_eq!(tunnel.recv().await, &b"last"[..]);
    }
}

#[tokio::test]
async fn a_tunnel_to_nobody_is_broken_off() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let tunnel = client.udp(targets::nobody().await).await;
    let sending = async {
        loop {
            tunnel.send(b"anybody there?");
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    let end = tokio::select! {
        () = sending => unreachable!("it sends for ever"),
        end = tokio::time::timeout(PATIENCE, tunnel.flow.closed()) => end.expect("told in time"),
    };
    let error = end.expect_err("broken off");
    assert!(
        matches!(error, H3Error::Reset(Code::CONNECT_ERROR)),
        "{error}"
    );
    assert!(relay.metrics().text().contains("cause=\"unreachable\""));
}
