//! Forwarded mode as an honest client, a target and the wire see it.

mod hostile;
mod support;

use bytes::Bytes;
use hoplite_http::h3::H3Error;
use hoplite_quic::server::Ecn;
use hoplite_testing::{relay::relay, soon, targets};
use hoplite_wire::{
    forwarding::{Capsule, Offer, Transform as Kind},
    h3::Code,
};

use self::support::{Agreed, packet, packets};
use crate::support::{connect, udp};

const BOTH: [Kind; 2] = [Kind::Scramble, Kind::Identity];

fn offer(transforms: &[Kind]) -> Offer {
    Offer {
        transforms: transforms.to_vec(),
        key: Some(hoplite_crypto::Scramble::fresh_key().expect("randomness")),
    }
}

/// What a relay selects of an offer.
async fn selected(identity: bool, offer: &Offer) -> (Option<Kind>, Option<bool>) {
    let relay = relay(|config| config.forwarding.identity = identity);
    let client = connect(&relay).await;
    let head = udp(targets::udp_echo().await).with_offer(offer);
    let (_, answer) = client.ask(head).await;
    let chosen = answer.answer(&offer.transforms).expect("offered");
    let kind = chosen.transform.map(|(kind, key)| {
        assert_eq!(key.is_some(), kind == Kind::Scramble);
        kind
    });
    (kind, answer.port_sharing())
}

#[tokio::test]
async fn the_answer_selects_what_is_offered_and_allowed_and_shares_no_port() {
    let not_shared = Some(false);
    let scramble = (Some(Kind::Scramble), not_shared);
    assert_eq!(selected(false, &offer(&BOTH)).await, scramble);
    assert_eq!(selected(true, &offer(&BOTH)).await, scramble);
    let identity = offer(&[Kind::Identity]);
    assert_eq!(selected(false, &identity).await, (None, not_shared));
    let selected = selected(true, &identity).await;
    assert_eq!(selected, (Some(Kind::Identity), not_shared));
}

#[tokio::test]
async fn a_relay_that_does_not_forward_says_nothing_of_it_and_ignores_the_capsules() {
    let relay = relay(|config| config.forwarding.enabled = false);
    let client = connect(&relay).await;
    let target = targets::udp_echo().await;
    let (exchange, answer) = client.ask(udp(target).with_offer(&offer(&BOTH))).await;
    assert_eq!(answer.header(hoplite_wire::forwarding::FORWARDING), None);
    assert_eq!(answer.port_sharing(), None);
    let mut tunnel = crate::support::Tunnel::new(exchange);
    let id = Bytes::from_static(b"AAAA0000");
    assert!(tunnel.flow.send_capsule(&Capsule::RegisterClientCid { id }));
    assert_eq!(tunnel.echo(b"tunnelled").await, &b"tunnelled"[..]);
}

#[tokio::test]
async fn a_client_that_does_not_speak_capsules_is_not_forwarded() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let mut head = udp(targets::udp_echo().await).with_offer(&offer(&BOTH));
    head.headers.retain(|(name, _)| name != "capsule-protocol");
    let (_, answer) = client.ask(head).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header(hoplite_wire::forwarding::FORWARDING), None);
}

#[tokio::test]
async fn short_headers_reach_the_target_past_the_connection_under_its_own_id() {
    for kind in BOTH {
        for length in [0, 4, 8, 20] {
            let mut agreed = Agreed::new(kind).await;
            let id = vec![0xc1; length];
            let alias = agreed.register_target(&id).await;
            let sent = packet(&alias, 200);
            let on_the_wire = agreed.sealed(&sent, alias.len());
            let readable = on_the_wire.windows(16).any(|part| sent.ends_with(part));
            assert_eq!(readable, kind == Kind::Identity);
            agreed.tap.send(&on_the_wire, on_the_wire.len()).await;
            assert_eq!(agreed.at_target().await, packet(&id, 192 + length));
        }
    }
}

#[tokio::test]
async fn short_headers_reach_the_client_past_the_connection_under_an_alias() {
    for kind in BOTH {
        for length in [0, 4, 8, 20] {
            let mut agreed = Agreed::new(kind).await;
            let id = vec![0xc2; length];
            let alias = agreed.register_client(&id).await;
            assert_eq!(alias.len(), length.max(8));
            let sent = packet(&id, 200);
            agreed.target_sends(&sent, 200).await;
            let (caught, ..) = agreed.tap.caught().await;
            let grown = 200 + alias.len() - length;
            assert_eq!(agreed.opened(&caught, alias.len()), packet(&alias, grown));
        }
    }
}

#[tokio::test]
async fn batches_are_forwarded_in_one_call_with_their_boundaries_and_their_order() {
    for length in [8, 5] {
        let mut agreed = Agreed::new(Kind::Scramble).await;
        let id = vec![0xc3; length];
        let (up, down) = (
            agreed.register_target(&id).await,
            agreed.register_client(&id).await,
        );
        let sizes = [[1200; 40].as_slice(), &[100]].concat();
        let shift = |sizes: &[usize], from: usize, to: usize| -> Vec<usize> {
            sizes.iter().map(|size| size + to - from).collect()
        };
        let mut batch = packets(&up, &sizes);
        for packet in batch.chunks_mut(1200) {
            let sealed = agreed.sealed(packet, 8);
            packet.copy_from_slice(&sealed);
        }
        agreed.tap.send(&batch, 1200).await;
        let mut received = Vec::new();
        while received.len() < sizes.len() {
            received.push(agreed.at_target().await);
        }
        assert!(received.concat() == packets(&id, &shift(&sizes, 8, length)));
        assert_eq!(agreed.largest_batch(), sizes.len());

        agreed.target_sends(&packets(&id, &sizes), 1200).await;
        let (mut opened, mut count, mut largest) = (Vec::new(), 0, 0);
        while count < sizes.len() {
            let (caught, segment, _) = agreed.tap.caught().await;
            largest = largest.max(caught.len().div_ceil(segment));
            for packet in caught.chunks(segment) {
                opened.extend(agreed.opened(packet, down.len()));
                count += 1;
            }
        }
        assert!(opened == packets(&down, &shift(&sizes, length, 8)));
        assert_eq!(largest, sizes.len());
    }
}

#[tokio::test]
async fn what_is_not_registered_or_has_a_long_header_stays_in_the_tunnel() {
    let mut agreed = Agreed::new(Kind::Scramble).await;
    agreed.register_client(b"AAAA0000").await;
    let mut long = packet(b"AAAA0000", 100);
    long[0] |= 0x80;
    let [other, short] = [packet(b"AAAA0001", 100), packet(b"AAAA0000", 20)];
    for sent in [&long, &other, &short] {
        agreed.target_sends(sent, sent.len()).await;
        assert_eq!(agreed.tunnelled().await, *sent);
    }
    assert_eq!(agreed.tap.caught_already(), None);
}

#[tokio::test]
async fn a_batch_from_the_target_is_forwarded_and_tunnelled_packet_by_packet() {
    let mut agreed = Agreed::new(Kind::Identity).await;
    let alias = agreed.register_client(b"AAAA0000").await;
    let [mine, other] = [b"AAAA0000", b"BBBB0000"].map(|id| packet(id, 60));
    agreed
        .target_sends(&[&*mine, &*other, &*mine].concat(), 60)
        .await;
    assert_eq!(agreed.tunnelled().await, other);
    let mut caught = Vec::new();
    while caught.len() < 120 {
        caught.extend(agreed.tap.caught().await.0);
    }
    assert_eq!(caught, packet(&alias, 60).repeat(2));
}

#[tokio::test]
async fn nothing_is_forwarded_to_a_client_that_has_not_acknowledged_its_alias() {
    let mut agreed = Agreed::new(Kind::Scramble).await;
    let alias = agreed.offer_client(b"AAAA0000").await;
    agreed.target_sends(&packet(b"AAAA0000", 100), 100).await;
    assert_eq!(agreed.tunnelled().await, packet(b"AAAA0000", 100));
    agreed.acknowledge(b"AAAA0000", &alias).await;
    agreed.target_sends(&packet(b"AAAA0000", 100), 100).await;
    agreed.tap.caught().await;
}

#[tokio::test]
async fn ids_that_are_registered_again_get_other_aliases() {
    let mut agreed = Agreed::new(Kind::Identity).await;
    let first = agreed.register_target(b"target-1").await;
    let second = agreed.register_target(b"target-1").await;
    assert_ne!(first, second);
    for alias in [&first, &second] {
        agreed.tap.send(&packet(alias, 100), 100).await;
        assert_eq!(agreed.at_target().await, packet(b"target-1", 100));
    }
    let first = agreed.register_client(b"client-1").await;
    let second = agreed.register_client(b"client-1").await;
    assert_ne!(first, second);
    agreed.target_sends(&packet(b"client-1", 100), 100).await;
    assert_eq!(agreed.tap.caught().await.0, packet(&second, 100));
}

#[tokio::test]
async fn what_is_closed_is_forwarded_no_more_and_may_be_registered_again() {
    let mut agreed = Agreed::new(Kind::Identity).await;
    let old = agreed.register_target(b"target-1").await;
    let kept = agreed.register_target(b"target-2").await;
    agreed.register_client(b"client-1").await;
    let closing = [
        Capsule::CloseTargetCid {
            id: Bytes::from_static(b"target-1"),
        },
        Capsule::CloseClientCid {
            id: Bytes::from_static(b"client-1"),
        },
    ];
    for (capsule, sequence) in closing.into_iter().zip([9, 10]) {
        agreed.tell(&capsule);
        assert_eq!(agreed.told().await, Capsule::MaxConnectionIds { sequence });
    }
    agreed.tap.send(&packet(&old, 100), 100).await;
    agreed.tap.send(&packet(&kept, 90), 90).await;
    assert_eq!(agreed.at_target().await, packet(b"target-2", 90));
    agreed
        .counts("forwarded_dropped_total{cause=\"unknown_id\"}", 1)
        .await;
    agreed.target_sends(&packet(b"client-1", 100), 100).await;
    assert_eq!(agreed.tunnelled().await, packet(b"client-1", 100));
    assert_ne!(agreed.register_target(b"target-1").await, old);
}

#[tokio::test]
async fn packets_from_another_address_or_too_short_ones_are_dropped_and_counted() {
    let mut agreed = Agreed::new(Kind::Scramble).await;
    let alias = agreed.register_target(b"target-1").await;
    let sealed = agreed.sealed(&packet(&alias, 100), 8);
    agreed.tap.send_from_elsewhere(&sealed).await;
    agreed
        .counts("forwarded_dropped_total{cause=\"wrong_address\"}", 1)
        .await;
    agreed.tap.send(&packet(&alias, 24), 24).await;
    agreed
        .counts("forwarded_dropped_total{cause=\"too_short\"}", 1)
        .await;
    // Of a batch only the last can be shorter than the others.
    let batch = [&*sealed, &packet(&alias, 20)].concat();
    agreed.tap.send(&batch, 100).await;
    assert_eq!(agreed.at_target().await, packet(b"target-1", 100));
    agreed
        .counts("forwarded_dropped_total{cause=\"too_short\"}", 2)
        .await;
}

#[tokio::test]
async fn a_client_that_moves_is_told_that_its_rules_are_closed_and_gets_new_ones() {
    let mut agreed = Agreed::new(Kind::Scramble).await;
    let (old, gone) = (
        agreed.register_target(b"target-1").await,
        agreed.register_client(b"client-1").await,
    );
    agreed.tap.move_away();
    // What the tunnel carries shows the relay where the client is.
    agreed.echo().await;
    let closed = [
        Capsule::CloseClientCid {
            id: Bytes::from_static(b"client-1"),
        },
        Capsule::CloseTargetCid {
            id: Bytes::from_static(b"target-1"),
        },
        Capsule::MaxConnectionIds { sequence: 10 },
    ];
    for capsule in closed {
        assert_eq!(agreed.told().await, capsule);
    }
    agreed.target_sends(&packet(b"client-1", 100), 100).await;
    assert_eq!(agreed.tunnelled().await, packet(b"client-1", 100));
    let (new, again) = (
        agreed.register_target(b"target-1").await,
        agreed.register_client(b"client-1").await,
    );
    assert!(new != old && again != gone);
    let sealed = [&old, &new].map(|alias| agreed.sealed(&packet(alias, 100), 8));
    agreed.tap.send(&sealed[0], 100).await;
    agreed
        .counts("forwarded_dropped_total{cause=\"unknown_id\"}", 1)
        .await;
    agreed.tap.send(&sealed[1], 100).await;
    assert_eq!(agreed.at_target().await, packet(b"target-1", 100));
    agreed.target_sends(&packet(b"client-1", 100), 100).await;
    let (caught, ..) = agreed.tap.caught().await;
    assert_eq!(agreed.opened(&caught, 8), packet(&again, 100));
}

#[tokio::test]
async fn forwarded_packets_are_counted_with_all_others_and_by_themselves() {
    let mut agreed = Agreed::new(Kind::Identity).await;
    let alias = agreed.register_target(b"target-1").await;
    agreed.register_client(b"client-1").await;
    let before = agreed.counter("to_target_bytes_total{method=\"connect_udp\"}");
    agreed.tap.send(&packet(&alias, 100), 100).await;
    agreed.at_target().await;
    agreed.target_sends(&packet(b"client-1", 100), 100).await;
    agreed.tap.caught().await;
    agreed.counts("forwarding_rules_open", 2).await;
    for direction in ["to_target", "to_client"] {
        let labels = format!("_total{{direction=\"{direction}\"}}");
        agreed
            .counts(&format!("forwarded_datagrams{labels}"), 1)
            .await;
        agreed
            .counts(&format!("forwarded_bytes{labels}"), 100)
            .await;
    }
    let all = "to_target_bytes_total{method=\"connect_udp\"}";
    agreed.counts(all, before + 100).await;
    agreed.close();
    agreed.counts("forwarding_rules_open", 0).await;
}

#[tokio::test]
async fn a_client_that_registers_more_than_it_may_is_reset() {
    let agreed = Agreed::with(Kind::Scramble, |config| config.forwarding.ids_per_flow = 2).await;
    for id in [&b"one"[..], b"two", b"three"] {
        let id = Bytes::from_static(id);
        agreed.tell(&Capsule::RegisterClientCid { id });
    }
    let error = soon(agreed.closed()).await.expect_err("broken off");
    assert!(
        matches!(error, H3Error::Reset(Code::DATAGRAM_ERROR)),
        "{error}"
    );
    agreed
        .counts("forwarding_refusals_total{cause=\"limit\"}", 1)
        .await;
    agreed.counts("forwarding_rules_open", 0).await;
}

#[tokio::test]
async fn marks_of_the_network_are_passed_on() {
    let mut agreed = Agreed::new(Kind::Scramble).await;
    let up = agreed.register_target(b"target-1").await;
    agreed.register_client(b"client-1").await;
    let sealed = agreed.sealed(&packet(&up, 100), 8);
    agreed.tap.send_marked(&sealed, Ecn::Ce).await;
    agreed.at_target().await;
    assert_eq!(agreed.mark_at_target(), Some(Ecn::Ce));
    agreed.tap.send(&sealed, 100).await;
    agreed.at_target().await;
    assert_eq!(agreed.mark_at_target(), None);
    agreed.target_marks(Some(Ecn::Ect0));
    agreed.target_sends(&packet(b"client-1", 100), 100).await;
    assert_eq!(agreed.tap.caught().await.2, Some(Ecn::Ect0));
}

#[tokio::test]
async fn ids_may_be_registered_before_the_answer() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let offer = offer(&BOTH);
    let head = udp(targets::udp_echo().await).with_offer(&offer);
    let exchange = client.session.request(&head).await.expect("sent");
    let (inbox, mut capsules) = support::capsules();
    let flow = exchange.datagrams(inbox);
    let id = Bytes::from_static(b"AAAA0000");
    assert!(flow.send_capsule(&Capsule::RegisterClientCid { id: id.clone() }));
    let answer = async {
        loop {
            if let Capsule::AckClientCid { id, .. } = capsules.recv().await.expect("open") {
                return id;
            }
        }
    };
    let answered = soon(answer).await;
    assert_eq!(answered, id);
}
