use std::{
    io::IoSliceMut,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use parking_lot::Mutex;
use proptest::prelude::*;
use quinn_udp::RecvMeta;

use super::{AliasId, Aliases, Forward, MAX_RETIRED, Packets, divert};
use crate::server::{ShardPlace, steering::Ids};

/// Remembers what it was given.
#[derive(Debug, Default)]
struct Spy(Mutex<Vec<(Vec<u8>, usize)>>);

impl Forward for Spy {
    fn forward(&self, packets: Packets<'_>) {
        let seen = (packets.contents.to_vec(), packets.segment);
        self.0.lock().push(seen);
    }
}

impl Spy {
    fn seen(&self) -> Vec<(Vec<u8>, usize)> {
        std::mem::take(&mut self.0.lock())
    }
}

fn table() -> Aliases {
    Aliases::new(Ids::new(ShardPlace::new(1, 3), None))
}

/// A packet of `size` bytes with a short header, or with a long one.
fn packet(first: u8, id: AliasId, size: usize) -> Vec<u8> {
    let mut packet = vec![first];
    packet.extend(id);
    packet.resize(size, 0xee);
    packet
}

/// Shows one received buffer to the table; what is left for QUIC.
fn show(aliases: &Aliases, received: &[Vec<u8>]) -> Vec<u8> {
    let mut buf = received.concat();
    let mut meta = RecvMeta {
        addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 7)),
        len: buf.len(),
        stride: received[0].len(),
        ..RecvMeta::default()
    };
    divert(
        aliases,
        &mut [IoSliceMut::new(&mut buf)],
        std::slice::from_mut(&mut meta),
    );
    buf.truncate(meta.len);
    buf
}

#[test]
fn a_batch_of_one_alias_is_taken_at_once_and_nothing_is_left() {
    let (aliases, spy) = (table(), Arc::new(Spy::default()));
    let id = aliases.mint();
    aliases.enter(id, spy.clone());
    let packets = [packet(0x40, id, 30), packet(0x41, id, 30), packet(0, id, 9)];
    assert!(show(&aliases, &packets).is_empty());
    assert_eq!(spy.seen(), [(packets.concat(), 30)]);
}

#[test]
fn what_has_no_alias_is_left_in_its_order() {
    let (aliases, spy) = (table(), Arc::new(Spy::default()));
    let [mine, other] = [aliases.mint(), aliases.mint()];
    aliases.enter(mine, spy.clone());
    let ours = packet(0x40, mine, 20);
    let left = [
        packet(0x41, other, 20),
        packet(0xc0, mine, 20),
        packet(0x42, other, 15),
    ];
    let [first, long, last] = left.clone();
    let received = [ours.clone(), first, ours.clone(), ours.clone(), long, last];
    assert_eq!(show(&aliases, &received), left.concat());
    let taken = [(ours.clone(), 20), ([&ours[..], &ours].concat(), 20)];
    assert_eq!(spy.seen(), taken);
}

#[test]
fn packets_too_short_for_an_alias_are_left() {
    let (aliases, spy) = (table(), Arc::new(Spy::default()));
    let id = aliases.mint();
    aliases.enter(id, spy.clone());
    let short = packet(0x40, id, 8);
    assert_eq!(show(&aliases, std::slice::from_ref(&short)), short);
    assert_eq!(spy.seen(), []);
}

#[test]
fn each_alias_gets_its_own_packets() {
    let aliases = table();
    let flows = [(); 3].map(|()| (aliases.mint(), Arc::new(Spy::default())));
    for (id, spy) in &flows {
        aliases.enter(*id, spy.clone());
    }
    let received: Vec<Vec<u8>> = flows.iter().map(|(id, _)| packet(0, *id, 12)).collect();
    assert!(show(&aliases, &received).is_empty());
    for ((_, spy), packet) in flows.iter().zip(received) {
        assert_eq!(spy.seen(), [(packet, 12)]);
    }
}

#[test]
fn an_alias_that_ended_still_keeps_its_packets_from_quic_but_only_for_a_while() {
    let (aliases, spy) = (table(), Arc::new(Spy::default()));
    let id = aliases.mint();
    aliases.enter(id, spy.clone());
    assert!(aliases.any());
    aliases.retire(id);
    assert!(!aliases.any());
    assert!(show(&aliases, &[packet(0, id, 12)]).is_empty());
    assert_eq!(spy.seen().len(), 1);
    for _ in 0..MAX_RETIRED {
        let id = aliases.mint();
        aliases.enter(id, spy.clone());
        aliases.retire(id);
    }
    assert_eq!(aliases.remembered(), MAX_RETIRED);
    assert_eq!(show(&aliases, &[packet(0, id, 12)]).len(), 12);
}

#[test]
fn aliases_lead_to_their_shard() {
    let aliases = table();
    assert!((0..100).all(|_| aliases.mint()[1] % 3 == 1));
}

proptest! {
    #[test]
    fn every_packet_is_taken_or_left_whole_and_in_order(
        packets in prop::collection::vec((any::<u8>(), 0..3_usize), 1..70), size in 1..40_usize, last in 1..40_usize
    ) {
        let (aliases, spy) = (table(), Arc::new(Spy::default()));
        let ids = [(); 3].map(|()| aliases.mint());
        aliases.enter(ids[0], spy.clone());
        aliases.enter(ids[1], spy.clone());
        let mut received: Vec<Vec<u8>> = packets.iter().map(|(first, id)| packet(*first, ids[*id], size)).collect();
        let end = received.last_mut().unwrap();
        end.truncate(last.min(size));
        let mine = |packet: &&Vec<u8>| {
            let id = ids[..2].iter().any(|id| packet[1..].starts_with(id));
            packet[0] & 0x80 == 0 && id
        };
        let (taken, left): (Vec<_>, Vec<_>) = received.iter().partition(mine);
        prop_assert_eq!(show(&aliases, &received), left.into_iter().flatten().copied().collect::<Vec<u8>>());
        let seen: Vec<u8> = spy.seen().into_iter().flat_map(|(contents, _)| contents).collect();
        prop_assert_eq!(seen, taken.into_iter().flatten().copied().collect::<Vec<u8>>());
    }
}
