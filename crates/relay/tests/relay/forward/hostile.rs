//! Clients that break the rules of forwarded mode, and strangers that meddle with it: refused and counted, and everything else goes on.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hoplite_http::h3::{DataReceiver, DataSender, H3Error};
use hoplite_testing::{soon, targets};
use hoplite_wire::{
    forwarding::{Capsule, Transform as Kind},
    h3::Code,
    varint,
};
use tokio::{net::UdpSocket, time::timeout};

use super::{
    offer,
    support::{Agreed, packet},
};
use crate::support::udp;

const REGISTER_TARGET_CID: u64 = 0xff_e601;
const MAX_CONNECTION_IDS: u64 = 0xff_e607;

fn bytes(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn register_client(id: &[u8]) -> Capsule {
    Capsule::RegisterClientCid { id: bytes(id) }
}

fn register_target(id: &[u8]) -> Capsule {
    Capsule::RegisterTargetCid {
        id: bytes(id),
        reset_token: Bytes::new(),
    }
}

fn acknowledge(id: &[u8], virtual_id: &[u8]) -> Capsule {
    Capsule::AckClientVcid {
        id: bytes(id),
        virtual_id: bytes(virtual_id),
        reset_token: Bytes::new(),
    }
}

fn close_client(id: &[u8]) -> Capsule {
    Capsule::CloseClientCid { id: bytes(id) }
}

fn close_target(id: &[u8]) -> Capsule {
    Capsule::CloseTargetCid { id: bytes(id) }
}

/// A counter of what was refused, or dropped.
fn refused(cause: &str) -> String {
    format!("forwarding_refusals_total{{cause=\"{cause}\"}}")
}

fn dropped(cause: &str) -> String {
    format!("forwarded_dropped_total{{cause=\"{cause}\"}}")
}

fn forwarded(direction: &str) -> String {
    format!("forwarded_datagrams_total{{direction=\"{direction}\"}}")
}

impl Agreed {
    /// Another flow of the same connection still works.
    async fn others_go_on(&self) {
        let mut tunnel = self.client.udp(targets::udp_echo().await).await;
        assert_eq!(tunnel.echo(b"another flow").await, &b"another flow"[..]);
    }

    /// The relay has reset the flow.
    async fn was_reset(&self) {
        let error = soon(self.closed()).await.expect_err("broken off");
        assert!(is_datagram_error(&error), "{error}");
    }

    /// Another flow in forwarded mode, whose stream is written by hand.
    async fn by_hand(&self) -> (DataSender, DataReceiver) {
        let head = udp(targets::udp_echo().await).with_offer(&offer(&[Kind::Scramble]));
        let (exchange, answer) = self.client.ask(head).await;
        let chosen = answer.answer(&[Kind::Scramble]).expect("offered");
        assert!(chosen.transform.is_some());
        exchange.split()
    }

    /// A rule of another flow of the connection: as long as there is any, the relay counts the packets of those that have ended.
    async fn rule_elsewhere(&self) -> (DataSender, DataReceiver) {
        let (mut sender, receiver) = self.by_hand().await;
        let before = self.counter("forwarding_rules_open");
        let mut out = BytesMut::new();
        register_target(b"elsewhere").write(&mut out);
        sender.write(out.freeze()).await.expect("open");
        self.counts("forwarding_rules_open", before + 1).await;
        (sender, receiver)
    }

    /// A packet of the client's own still reaches the target under `alias`.
    async fn still_forwards(&mut self, alias: &[u8], id: &[u8]) {
        let sealed = self.sealed(&packet(alias, 100), alias.len());
        self.tap.send(&sealed, sealed.len()).await;
        assert_eq!(self.at_target().await, packet(id, 100));
    }
}

fn is_datagram_error(error: &H3Error) -> bool {
    matches!(error, H3Error::Reset(Code::DATAGRAM_ERROR))
}

#[tokio::test]
async fn who_registers_every_id_that_the_relay_has_is_told_that_half_of_them_is_all() {
    let mut agreed = Agreed::with(Kind::Scramble, |config| config.forwarding.ids = 4).await;
    agreed.register_target(b"target-1").await;
    agreed.register_client(b"client-1").await;
    for (asked, answer) in [
        (register_target(b"target-2"), close_target(b"target-2")),
        (register_client(b"client-2"), close_client(b"client-2")),
    ] {
        agreed.tell(&asked);
        assert_eq!(agreed.answered().await, answer);
    }
    agreed.counts(&refused("full"), 2).await;
    agreed.echo().await;
    agreed.tell(&close_client(b"client-1"));
    agreed.register_target(b"target-2").await;
}

#[tokio::test]
async fn an_alias_of_another_client_is_worth_nothing() {
    let mut victim = Agreed::new(Kind::Scramble).await;
    let alias = victim.register_target(b"target-1").await;
    let thief = victim.beside(Kind::Scramble).await;
    // Both what the thief made up and what it recorded.
    let forged = thief.sealed(&packet(&alias, 100), 8);
    let replayed = victim.sealed(&packet(&alias, 100), 8);
    for stolen in [forged, replayed] {
        thief.tap.send(&stolen, stolen.len()).await;
    }
    victim.counts(&dropped("wrong_address"), 2).await;
    victim.still_forwards(&alias, b"target-1").await;
    victim.counts(&forwarded("to_target"), 1).await;
    thief.others_go_on().await;
}

#[tokio::test]
async fn an_alias_of_another_client_is_not_acknowledged_or_closed_by_a_thief() {
    let mut victim = Agreed::new(Kind::Scramble).await;
    let alias = victim.register_client(b"client-1").await;
    let mut thief = victim.beside(Kind::Scramble).await;
    thief.tell(&close_client(b"client-1"));
    thief.tell(&acknowledge(b"client-1", &alias));
    thief.counts(&refused("stale"), 1).await;
    // The same id in two flows is no conflict: each has a socket of its own.
    let own = thief.register_client(b"client-1").await;
    assert_ne!(own, alias);
    victim.target_sends(&packet(b"client-1", 100), 100).await;
    let (caught, ..) = victim.tap.caught().await;
    assert_eq!(victim.opened(&caught, 8), packet(&alias, 100));
    assert_eq!(thief.tap.caught_already(), None);
}

#[tokio::test]
async fn capsules_that_only_relays_send_reset_the_flow_and_no_other() {
    let id = bytes(b"client-1");
    let capsules = [
        Capsule::AckClientCid {
            id: id.clone(),
            virtual_id: id.clone(),
        },
        Capsule::AckTargetCid {
            id: id.clone(),
            virtual_id: id.clone(),
            reset_token: id,
        },
        Capsule::MaxConnectionIds {
            sequence: varint::MAX,
        },
    ];
    for capsule in capsules {
        let mut agreed = Agreed::new(Kind::Scramble).await;
        let alias = agreed.register_target(b"target-1").await;
        let _elsewhere = agreed.rule_elsewhere().await;
        agreed.tell(&capsule);
        agreed.was_reset().await;
        agreed.counts(&refused("malformed"), 1).await;
        agreed.counts("forwarding_rules_open", 1).await;
        let late = agreed.sealed(&packet(&alias, 100), 8);
        agreed.tap.send(&late, late.len()).await;
        agreed.counts(&dropped("unknown_id"), 1).await;
        agreed.others_go_on().await;
    }
}

/// A capsule as it stands on the wire, whose length need not be true.
fn raw(kind: u64, length: u64, value: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    varint::write(&mut out, kind);
    varint::write(&mut out, length);
    out.extend_from_slice(value);
    out.freeze()
}

#[tokio::test]
async fn capsules_that_cannot_be_read_reset_the_flow_and_no_other() {
    let long = [&[0x41, 0x00][..], &[7; 256], &[0]].concat();
    let capsules = [
        raw(REGISTER_TARGET_CID, 0, b""),
        raw(REGISTER_TARGET_CID, 3, b"\x09ab"),
        raw(REGISTER_TARGET_CID, 4, b"\x01a\x00z"),
        raw(REGISTER_TARGET_CID, long.len() as u64, &long),
        raw(REGISTER_TARGET_CID - 1, 256, &[7; 256]),
        raw(REGISTER_TARGET_CID, varint::MAX, b"it never ends"),
        raw(MAX_CONNECTION_IDS, 1, &[0]),
    ];
    let agreed = Agreed::new(Kind::Scramble).await;
    for (done, capsule) in (1..).zip(capsules) {
        let (mut sender, mut receiver) = agreed.by_hand().await;
        sender.write(capsule).await.expect("open");
        agreed.counts(&refused("malformed"), done).await;
        let error = soon(ended(&mut receiver)).await;
        assert!(is_datagram_error(&error), "{error}");
    }
    agreed.others_go_on().await;
}

/// How the relay ended the stream.
async fn ended(receiver: &mut DataReceiver) -> H3Error {
    loop {
        match receiver.data().await {
            Ok(Some(_)) => (),
            Ok(None) => unreachable!("ended in order"),
            Err(error) => return error,
        }
    }
}

#[tokio::test]
async fn capsules_out_of_order_change_nothing() {
    let mut agreed = Agreed::new(Kind::Scramble).await;
    agreed.tell(&acknowledge(b"client-1", b"whatever"));
    agreed.tell(&close_client(b"client-1"));
    agreed.tell(&close_target(b"target-1"));
    let alias = agreed.offer_client(b"client-1").await;
    // An id of nobody's, no id, the id itself, and the right one for another id.
    for wrong in [&b"whatever"[..], b"", b"client-1", &alias[1..]] {
        agreed.tell(&acknowledge(b"client-1", wrong));
    }
    agreed.tell(&acknowledge(b"client-2", &alias));
    agreed.counts(&refused("stale"), 6).await;
    agreed.target_sends(&packet(b"client-1", 100), 100).await;
    assert_eq!(agreed.tunnelled().await, packet(b"client-1", 100));
    // What is right works, once.
    agreed.acknowledge(b"client-1", &alias).await;
    agreed.tell(&acknowledge(b"client-1", &alias));
    agreed.counts(&refused("stale"), 7).await;
    agreed.target_sends(&packet(b"client-1", 100), 100).await;
    let (caught, ..) = agreed.tap.caught().await;
    assert_eq!(agreed.opened(&caught, 8), packet(&alias, 100));
    // After its end, nothing of it is left.
    agreed.tell(&close_client(b"client-1"));
    agreed.tell(&acknowledge(b"client-1", &alias));
    agreed.counts(&refused("stale"), 8).await;
    agreed.target_sends(&packet(b"client-1", 100), 100).await;
    assert_eq!(agreed.tunnelled().await, packet(b"client-1", 100));
}

#[tokio::test]
async fn conflicting_client_ids_are_closed_and_the_first_one_stays() {
    let mut agreed = Agreed::new(Kind::Scramble).await;
    let alias = agreed.register_client(b"client-1").await;
    for id in [&b"client-"[..], b"client-12", b"c", b""] {
        agreed.tell(&register_client(id));
        assert_eq!(agreed.answered().await, close_client(id));
    }
    agreed.counts(&refused("conflict"), 4).await;
    agreed.target_sends(&packet(b"client-1", 100), 100).await;
    let (caught, ..) = agreed.tap.caught().await;
    assert_eq!(agreed.opened(&caught, 8), packet(&alias, 100));
}

#[tokio::test]
async fn ids_are_taken_up_to_the_length_of_version_1() {
    let mut agreed = Agreed::new(Kind::Scramble).await;
    for (done, length) in (0..).zip([21, 22, 255]) {
        let id = vec![9; length];
        agreed.tell(&register_client(&id));
        assert_eq!(agreed.answered().await, close_client(&id));
        agreed.tell(&register_target(&id));
        assert_eq!(agreed.answered().await, close_target(&id));
        agreed.counts(&refused("too_long"), 2 * (done + 1)).await;
    }
    for length in [0, 20] {
        let id = vec![9; length];
        let alias = agreed.register_target(&id).await;
        let sealed = agreed.sealed(&packet(&alias, 100), 8);
        agreed.tap.send(&sealed, 100).await;
        assert_eq!(agreed.at_target().await, packet(&id, 92 + length));
    }
    assert_eq!(agreed.register_client(&[9; 20]).await.len(), 20);
}

#[tokio::test]
async fn one_id_registered_again_and_again_has_few_aliases() {
    let mut agreed = Agreed::new(Kind::Scramble).await;
    let mut aliases = Vec::new();
    for _ in 0..100 {
        aliases.push(agreed.register_target(b"target-1").await);
    }
    assert!(agreed.counter("forwarding_rules_open") <= 2);
    let (last, others) = aliases.split_last().expect("some");
    assert!(!others.contains(last));
    for stale in others.iter().take(90) {
        let sealed = agreed.sealed(&packet(stale, 100), 8);
        agreed.tap.send(&sealed, 100).await;
    }
    agreed.counts(&dropped("unknown_id"), 90).await;
    agreed.still_forwards(last, b"target-1").await;
}

#[tokio::test]
async fn a_client_beyond_its_ids_loses_the_flow_and_all_its_rules_but_no_other() {
    let mut agreed =
        Agreed::with(Kind::Scramble, |config| config.forwarding.ids_per_flow = 4).await;
    let alias = agreed.register_target(b"target-1").await;
    agreed.register_client(b"client-1").await;
    let _elsewhere = agreed.rule_elsewhere().await;
    for id in [b"target-2", b"target-3", b"target-4"] {
        agreed.tell(&register_target(id));
    }
    agreed.was_reset().await;
    agreed.counts(&refused("limit"), 1).await;
    agreed.counts("forwarding_rules_open", 1).await;
    let late = agreed.sealed(&packet(&alias, 100), 8);
    agreed.tap.send(&late, 100).await;
    agreed.counts(&dropped("unknown_id"), 1).await;
    agreed.others_go_on().await;
}

#[tokio::test]
async fn a_burst_of_registrations_without_end_resets_the_flow() {
    let agreed = Agreed::new(Kind::Scramble).await;
    let (mut sender, mut receiver) = agreed.by_hand().await;
    let mut burst = BytesMut::new();
    for _ in 0..4000 {
        register_client(b"").write(&mut burst);
    }
    drop(sender.write(burst.freeze()).await);
    let error = soon(ended(&mut receiver)).await;
    assert!(is_datagram_error(&error), "{error}");
    agreed.counts(&refused("limit"), 1).await;
    agreed.counts("forwarding_rules_open", 0).await;
    agreed.others_go_on().await;
}

#[tokio::test]
async fn rubbish_under_a_good_alias_is_dropped_or_left_to_the_target() {
    let mut agreed = Agreed::new(Kind::Scramble).await;
    let alias = agreed.register_target(b"target-1").await;
    // From the shortest that has an alias to one that is long enough to be scrambled.
    for size in 9..25 {
        agreed.tap.send(&packet(&alias, size), size).await;
    }
    agreed.counts(&dropped("too_short"), 16).await;
    for size in 25..60 {
        agreed.tap.send(&packet(&alias, size), size).await;
        let received = agreed.at_target().await;
        assert_eq!((received.len(), received[0] & 0x80), (size, 0));
        assert_eq!(received[1..9], *b"target-1");
    }
    agreed.still_forwards(&alias, b"target-1").await;
}

#[tokio::test]
async fn a_flood_of_aliases_that_nobody_has_is_answered_with_less_and_stops_nothing() {
    let mut agreed = Agreed::new(Kind::Scramble).await;
    let alias = agreed.register_target(b"target-1").await;
    let stranger = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
    let (mut sent, mut back) = (0, 0);
    let mut buffer = [0; 2000];
    for number in 0..2000_u64 {
        let id = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let forged = packet(&id, 100);
        let relay = agreed.relay_address();
        sent += stranger.send_to(&forged, relay).await.expect("sent");
        while let Ok(len) = stranger.try_recv(&mut buffer) {
            back += len;
        }
        // The client's own address is no better.
        if number % 8 == 0 {
            agreed.tap.send(&forged, 100).await;
        }
    }
    agreed.still_forwards(&alias, b"target-1").await;
    back += rest(&stranger).await;
    assert!(back <= sent, "{back} bytes for {sent}");
    agreed.counts(&forwarded("to_target"), 1).await;
    agreed.others_go_on().await;
}

/// The bytes that still come.
async fn rest(socket: &UdpSocket) -> usize {
    let (mut buffer, mut bytes) = ([0; 2000], 0);
    let pause = Duration::from_millis(100);
    while let Ok(Ok(len)) = timeout(pause, socket.recv(&mut buffer)).await {
        bytes += len;
    }
    bytes
}

#[tokio::test]
async fn a_flood_from_strange_addresses_leaves_the_rules_as_they_are() {
    let mut agreed = Agreed::new(Kind::Scramble).await;
    let alias = agreed.register_target(b"target-1").await;
    agreed.register_client(b"client-1").await;
    let replayed = agreed.sealed(&packet(&alias, 100), 8);
    for _ in 0..100 {
        agreed.tap.send_from_elsewhere(&replayed).await;
    }
    agreed.counts(&dropped("wrong_address"), 100).await;
    agreed.counts("forwarding_rules_open", 2).await;
    agreed.still_forwards(&alias, b"target-1").await;
    agreed.target_sends(&packet(b"client-1", 100), 100).await;
    agreed.tap.caught().await;
}

/// What the relay has taken from targets, in bytes.
const TAKEN: &str = "to_client_bytes_total{method=\"connect_udp\"}";

/// Packets that the kernel's buffer for the relay's socket holds.
const FLOOD: usize = 64;

impl Agreed {
    /// The target answers with much under the client's id, and the relay has taken all of it.
    async fn target_floods(&mut self, id: &[u8]) {
        let before = self.counter(TAKEN);
        for _ in 0..FLOOD {
            self.target_sends(&packet(id, 1200), 1200).await;
        }
        self.counts(TAKEN, before + FLOOD as u64 * 1200).await;
    }
}

/// The client sends with the address of somebody who never asked for anything, so that the target's answers should go there.
#[tokio::test]
async fn nothing_is_forwarded_to_an_address_that_its_owner_has_not_proved() {
    let mut agreed = Agreed::new(Kind::Scramble).await;
    let alias = agreed.register_client(b"client-1").await;
    agreed.target_floods(b"client-1").await;
    let honest = FLOOD as u64;
    agreed.counts(&forwarded("to_client"), honest).await;

    let victim = agreed.tap.impersonate();
    // A packet of the connection's own moves it, as far as the relay can tell; what follows claims the old alias, and a new one.
    agreed.hello();
    agreed.tell(&register_client(b"client-1"));
    agreed.tell(&acknowledge(b"client-1", &alias));
    agreed.counts(&refused("stale"), 1).await;
    agreed.target_floods(b"client-1").await;
    agreed.counts("forwarding_rules_open", 0).await;
    assert_eq!(agreed.counter(&forwarded("to_client")), honest);
    // What QUIC sends there to ask whether somebody is there is little beside what the target has sent.
    let got = victim.suffers().await;
    assert!(got.iter().all(|packet| packet[1..9] != alias[..]));
    assert!(got.concat().len() < FLOOD * 1200 / 2);
}
