//! Packets from a TUN: whatever a program sends, the network takes it, keeps its size, and every edit keeps the IPv4 checksum as right as it was.
#![no_main]

use std::time::Duration;

use hoplite_lab::{
    emulator::{
        network::{Network, Unwatched},
        packet::{View, checksum, count_down, flip_bit, mark_congestion},
    },
    topology::{Direction, Link, Node, NodeKind, Topology},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|octets: &[u8]| {
    edits(octets);
    through_a_router(octets);
});

fn edits(octets: &[u8]) {
    let Some(view) = View::parse(octets) else {
        return;
    };
    assert!(view.payload().len() < view.octets().len() && view.octets().len() <= octets.len());
    let (is_v4, flow) = (view.is_v4(), view.flow().to_string());
    let mut packet = view.octets().to_vec();
    let right = is_v4 && right(&packet);
    mark_congestion(&mut packet);
    count_down(&mut packet);
    assert!(!right || self::right(&packet));
    let view = View::parse(&packet).expect("it is still a packet");
    assert_eq!(view.flow().to_string(), flow);
    let header = packet.len() - view.payload().len();
    let before = packet.clone();
    flip_bit(&mut packet, |bits| bits / 2);
    assert_eq!(packet[..header], before[..header]);
}

fn right(packet: &[u8]) -> bool {
    checksum(&[&packet[..usize::from(packet[0] & 15) * 4]]) == 0
}

fn through_a_router(octets: &[u8]) {
    let topology = topology();
    let mut network = Network::new(&topology, &topology.addresses(), 1).expect("it is sound");
    network.arrive(0, 0, octets, &mut Unwatched);
    while let Some(now) = network.next_release() {
        while let Some(delivery) = network.poll(now, &mut Unwatched) {
            assert!(View::parse(&delivery.packet).is_some());
            network.recycle(delivery.packet);
        }
    }
}

/// A host, a router with a narrow link behind it, another host.
fn topology() -> Topology {
    let node = |name: &str, kind| Node { name: name.to_owned(), kind };
    let impaired = Direction { rate: Some(1_000_000), delay: Duration::from_millis(1), duplicate: 0.5, corrupt: 0.5, ..Direction::default() };
    let link = |a: &str, b: &str, mtu| Link {
        name: format!("{a}-{b}"),
        ends: [a.to_owned(), b.to_owned()],
        mtu,
        forward: impaired.clone(),
        back: impaired.clone(),
    };
    Topology {
        nodes: vec![node("a", NodeKind::Host), node("b", NodeKind::Host), node("core", NodeKind::Router)],
        links: vec![link("a", "core", 1500), link("core", "b", 1280)],
    }
}
