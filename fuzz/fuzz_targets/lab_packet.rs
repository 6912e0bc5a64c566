//! Packets from a TUN: whatever a program sends, the network takes it, keeps its size, and every edit keeps the IPv4 checksum as right as it was.
#![no_main]

use std::time::Duration;

use hoplite_lab::{
    emulator::{
        network::{Network, Unwatched},
        packet::{Problem, answer, count_down, flip_bit, flow, mark_congestion},
    },
    topology::{Direction, Link, Node, NodeKind, Topology},
};
use hoplite_wire::ip::{self, checksum};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    edits(bytes);
    through_a_router(bytes);
});

fn edits(bytes: &[u8]) {
    let Ok(ip) = ip::parse(bytes) else {
        assert_eq!(flow(bytes), "");
        return;
    };
    let (is_v4, header) = (ip.source.is_ipv4(), ip.header_len);
    let mut packet = bytes[..header + ip.payload.len()].to_vec();
    let named = flow(&packet);
    if let Some(answer) = answer(
        &packet,
        Problem::TimeExceeded,
        [10, 78, 0, 1].into(),
        "fd78::1".parse().expect("valid"),
    ) {
        let told = ip::parse(&answer).expect("it is a packet");
        assert!(told.destination == ip.source && told.checksum_is_right());
    }
    let right = is_v4 && right(&packet);
    mark_congestion(&mut packet);
    count_down(&mut packet);
    assert!(!right || self::right(&packet));
    assert_eq!(flow(&packet), named);
    let before = packet.clone();
    flip_bit(&mut packet, |bits| bits / 2);
    assert_eq!(packet[..header], before[..header]);
}

fn right(packet: &[u8]) -> bool {
    checksum::of(&[&packet[..usize::from(packet[0] & 15) * 4]]) == 0
}

fn through_a_router(bytes: &[u8]) {
    let topology = topology();
    let mut network = Network::new(&topology, &topology.addresses(), 1).expect("it is sound");
    network.arrive(0, 0, bytes, &mut Unwatched);
    while let Some(now) = network.next_release() {
        while let Some(delivery) = network.poll(now, &mut Unwatched) {
            assert!(ip::parse(&delivery.packet).is_ok());
            network.recycle(delivery.packet);
        }
    }
}

/// A host, a router with a narrow link behind it, another host.
fn topology() -> Topology {
    let node = |name: &str, kind| Node {
        name: name.to_owned(),
        kind,
    };
    let impaired = Direction {
        rate: Some(1_000_000),
        delay: Duration::from_millis(1),
        duplicate: 0.5,
        corrupt: 0.5,
        ..Direction::default()
    };
    let link = |a: &str, b: &str, mtu| Link {
        name: format!("{a}-{b}"),
        ends: [a.to_owned(), b.to_owned()],
        mtu,
        forward: impaired.clone(),
        back: impaired.clone(),
    };
    Topology {
        nodes: vec![
            node("a", NodeKind::Host),
            node("b", NodeKind::Host),
            node("core", NodeKind::Router),
        ],
        links: vec![link("a", "core", 1500), link("core", "b", 1280)],
    }
}
