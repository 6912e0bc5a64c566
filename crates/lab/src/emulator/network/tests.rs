use std::time::Duration;

use hoplite_wire::ip::checksum;
use proptest::prelude::*;

use super::{Unwatched, *};
use crate::{
    emulator::link::Count,
    topology::{Direction, Discipline, Jitter, JitterShape, Link, Loss, Node},
};

const MS: u64 = 1_000_000;

/// Perfect links between nodes; those whose name begins with R are routers.
pub(in crate::emulator) fn topology(nodes: &[&str], links: &[[&str; 2]]) -> Topology {
    let node = |name: &&str| {
        if name.starts_with('R') {
            Node::router(name)
        } else {
            Node::host(name)
        }
    };
    let link = |[a, b]: &[&str; 2]| Link::between(a, b, &Direction::default());
    Topology {
        nodes: nodes.iter().map(node).collect(),
        links: links.iter().map(link).collect(),
    }
}

/// A UDP packet of `size` bytes from the `from`th host to the `to`th, numbered.
pub(in crate::emulator) fn packet(v6: bool, from: u8, to: u8, size: usize, number: u32) -> Vec<u8> {
    let mut packet = vec![0; size];
    let length = |size: usize| u16::try_from(size).unwrap().to_be_bytes();
    let payload = if v6 {
        packet[0] = 0x60;
        packet[4..6].copy_from_slice(&length(size - 40));
        (packet[6], packet[7]) = (17, 64);
        for (at, host) in [(8, from), (24, to)] {
            packet[at..at + 2].copy_from_slice(&[0xfd, 0x77]);
            packet[at + 15] = host;
        }
        40
    } else {
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&length(size));
        (packet[8], packet[9]) = (64, 17);
        packet[12..16].copy_from_slice(&[10, 77, 0, from]);
        packet[16..20].copy_from_slice(&[10, 77, 0, to]);
        let sum = checksum::of(&[&packet[..20]]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        20
    };
    packet[payload + 8..payload + 12].copy_from_slice(&number.to_be_bytes());
    packet
}

fn number(packet: &[u8]) -> u32 {
    let payload = ip::parse(packet).unwrap().payload;
    u32::from_be_bytes(payload[8..12].try_into().unwrap())
}

fn network(topology: &Topology) -> Network {
    Network::new(topology, &topology.addresses(), 1).unwrap()
}

/// Sends packets of the first host (time, size) to the second through port 0, and collects (due, number) until all is quiet.
fn carry(network: &mut Network, sent: &[(u64, usize)], v6: bool) -> Vec<(u64, u32)> {
    let mut out = Vec::new();
    for (i, &(now, size)) in (0..).zip(sent) {
        collect(network, now, &mut out);
        network.arrive(now, 0, &packet(v6, 1, 2, size, i), &mut Unwatched);
    }
    while let Some(now) = network.next_release() {
        collect(network, now, &mut out);
    }
    out
}

fn collect(network: &mut Network, now: u64, out: &mut Vec<(u64, u32)>) {
    while let Some(delivery) = network.poll(now, &mut Unwatched) {
        assert!(delivery.due <= now);
        out.push((delivery.due, number(&delivery.packet)));
        network.recycle(delivery.packet);
    }
}

fn direct(forward: Direction) -> Topology {
    let mut topology = topology(&["a", "b"], &[["a", "b"]]);
    topology.links[0].forward = forward;
    topology
}

fn count(network: &Network, direction: usize) -> Count {
    network.pipes[direction].count().0.clone()
}

#[test]
fn a_packet_leaves_after_its_serialisation_and_the_delay() {
    let topology = direct(Direction {
        rate: Some(12_000_000),
        delay: Duration::from_millis(10),
        ..Direction::default()
    });
    for v6 in [false, true] {
        let out = carry(
            &mut network(&topology),
            &[(5, 1500), (5, 1500), (50 * MS, 750)],
            v6,
        );
        assert_eq!(
            out,
            [(5 + 11 * MS, 0), (5 + 12 * MS, 1), (60 * MS + MS / 2, 2)]
        );
    }
}

#[test]
fn asking_late_does_not_delay_later_packets() {
    let topology = direct(Direction {
        rate: Some(12_000_000),
        ..Direction::default()
    });
    let mut network = network(&topology);
    for i in 0..3 {
        network.arrive(0, 0, &packet(false, 1, 2, 1500, i), &mut Unwatched);
    }
    let mut out = Vec::new();
    collect(&mut network, 100 * MS, &mut out);
    assert_eq!(out, [(MS, 0), (2 * MS, 1), (3 * MS, 2)]);
}

#[test]
fn a_full_queue_drops_the_last_to_come() {
    let topology = direct(Direction {
        rate: Some(12_000_000),
        queue: Some(3000),
        ..Direction::default()
    });
    let mut network = network(&topology);
    let out = carry(&mut network, &[(0, 1500); 6], false);
    assert_eq!(
        out.iter().map(|&(_, number)| number).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(count(&network, 0).drops[Cause::Queue as usize], 3);
}

#[test]
fn routers_lead_along_a_chain_and_count_the_ttl_down_with_a_right_checksum() {
    let chain = topology(
        &["a", "b", "R1", "R2"],
        &[["a", "R1"], ["R1", "R2"], ["R2", "b"]],
    );
    for v6 in [false, true] {
        let mut network = network(&chain);
        network.arrive(7, 0, &packet(v6, 1, 2, 100, 9), &mut Unwatched);
        let delivery = network.poll(7, &mut Unwatched).unwrap();
        assert_eq!((delivery.due, delivery.port), (7, 5));
        assert_eq!(ip::parse(&delivery.packet).unwrap().hop_limit, 62);
        if !v6 {
            assert_eq!(checksum::of(&[&delivery.packet[..20]]), 0);
        }
    }
}

#[test]
fn two_hosts_share_a_bottleneck_behind_a_router() {
    let mut shared = topology(
        &["a", "b", "c", "R1"],
        &[["a", "R1"], ["c", "R1"], ["R1", "b"]],
    );
    shared.links[2].forward.rate = Some(12_000_000);
    let mut network = network(&shared);
    for port in [0, 2] {
        network.arrive(0, port, &packet(false, 1, 2, 1500, 1), &mut Unwatched);
    }
    let mut out = Vec::new();
    collect(&mut network, 10 * MS, &mut out);
    assert_eq!(out, [(MS, 1), (2 * MS, 1)]);
}

#[test]
fn a_ttl_that_is_used_up_is_told_to_the_sender() {
    let chain = topology(&["a", "b", "R1"], &[["a", "R1"], ["R1", "b"]]);
    for v6 in [false, true] {
        let mut network = network(&chain);
        let mut packet = packet(v6, 1, 2, 100, 9);
        packet[if v6 { 7 } else { 8 }] = 1;
        network.arrive(0, 0, &packet, &mut Unwatched);
        let answer = network.poll(0, &mut Unwatched).unwrap();
        let answered = ip::parse(&answer.packet).unwrap();
        assert_eq!(
            (answer.port, answered.payload[0]),
            (0, if v6 { 3 } else { 11 })
        );
        assert_eq!(answered.payload[8..], packet[..]);
        assert_eq!(count(&network, 0).drops[Cause::Ttl as usize], 1);
        assert!(network.poll(MS, &mut Unwatched).is_none());
    }
}

#[test]
fn a_packet_too_large_for_the_next_link_is_told_to_the_sender() {
    let mut chain = topology(&["a", "b", "R1"], &[["a", "R1"], ["R1", "b"]]);
    chain.links[1].mtu = 1400;
    let mut network = network(&chain);
    network.arrive(0, 0, &packet(false, 1, 2, 1401, 9), &mut Unwatched);
    let answer = network.poll(0, &mut Unwatched).unwrap().packet;
    assert_eq!(
        (answer[20], answer[21], &answer[26..28]),
        (3, 4, &1400_u16.to_be_bytes()[..])
    );
    assert_eq!(checksum::of(&[&answer[..20]]), 0);
    assert_eq!(checksum::of(&[&answer[20..]]), 0);
    assert_eq!(count(&network, 0).drops[Cause::Mtu as usize], 1);
}

#[test]
fn what_no_host_has_is_dropped_and_what_stays_on_a_link_is_not_even_counted() {
    let chain = topology(&["a", "b", "R1"], &[["a", "R1"], ["R1", "b"]]);
    let mut network = network(&chain);
    let mut multicast = packet(true, 1, 2, 100, 0);
    multicast[24..26].copy_from_slice(&[0xff, 0x02]);
    for packet in [
        packet(false, 1, 9, 100, 0),
        multicast,
        vec![0x45; 3],
        vec![],
    ] {
        network.arrive(0, 0, &packet, &mut Unwatched);
    }
    assert!(network.poll(MS, &mut Unwatched).is_none());
    let count = count(&network, 0);
    assert_eq!((count.packets, count.drops[Cause::Route as usize]), (1, 3));
}

#[test]
fn memory_is_bounded_and_what_does_not_fit_is_a_drop_of_its_own() {
    let topology = direct(Direction {
        delay: Duration::from_secs(1),
        ..Direction::default()
    });
    let mut network = Network::with_memory(&topology, &topology.addresses(), 1, 100_000).unwrap();
    let out = carry(&mut network, &[(0, 1500); 100], false);
    assert_eq!(out.len() as u64 + network.own_drops(), 100);
    assert!(out.len() >= 40 && out.len() <= 66, "{}", out.len());
    assert_eq!(network.pool.used(), 0);
}

#[test]
fn a_direction_without_udp_drops_that_alone() {
    let topology = direct(Direction {
        blocks_udp: true,
        ..Direction::default()
    });
    for v6 in [false, true] {
        let mut network = network(&topology);
        let mut tcp = packet(v6, 1, 2, 100, 2);
        tcp[if v6 { 6 } else { 9 }] = 6;
        network.arrive(0, 0, &packet(v6, 1, 2, 100, 1), &mut Unwatched);
        network.arrive(0, 0, &tcp, &mut Unwatched);
        network.arrive(0, 1, &packet(v6, 2, 1, 100, 3), &mut Unwatched);
        let mut out = Vec::new();
        collect(&mut network, 0, &mut out);
        assert_eq!(out, [(0, 2), (0, 3)]);
        assert_eq!(count(&network, 0).drops[Cause::Udp as usize], 1);
    }
}

#[test]
fn ecn_capable_packets_are_marked_by_codel_and_keep_a_right_checksum() {
    let topology = direct(Direction {
        rate: Some(1_200_000),
        discipline: Discipline::CoDel {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            ecn: true,
        },
        ..Direction::default()
    });
    let mut network = network(&topology);
    let mut capable = packet(false, 1, 2, 1500, 0);
    capable[1] = 1;
    capable[10..12].fill(0);
    let sum = checksum::of(&[&capable[..20]]);
    capable[10..12].copy_from_slice(&sum.to_be_bytes());
    (0..100).for_each(|_| network.arrive(0, 0, &capable, &mut Unwatched));
    let mut marked = 0;
    while let Some(delivery) = network.poll(10_000 * MS, &mut Unwatched) {
        assert_eq!(checksum::of(&[&delivery.packet[..20]]), 0);
        marked += u64::from(delivery.packet[1] & 3 == 3);
    }
    let counts = network.counts();
    assert!(marked > 0);
    assert_eq!((counts[0].marked, counts[0].drops.len()), (marked, 0));
}

#[test]
fn another_link_and_another_impairment_change_no_stream() {
    let lossy = |jitter: bool| Direction {
        loss: Loss::Bernoulli { share: 0.3 },
        jitter: jitter.then(|| Jitter {
            shape: JitterShape::Normal,
            width: Duration::from_micros(10),
            reorder: false,
        }),
        ..Direction::default()
    };
    let sent: Vec<_> = (0..500).map(|i| (i * MS, 100)).collect();
    let numbers = |topology: &Topology| {
        let out = carry(&mut network(topology), &sent, false);
        out.into_iter()
            .map(|(_, number)| number)
            .collect::<Vec<_>>()
    };
    let plain = numbers(&direct(lossy(false)));
    let mut more = direct(lossy(true));
    more.links[0].back = lossy(true);
    more.nodes.extend(topology(&["c"], &[]).nodes);
    more.links
        .extend(topology(&["b", "c"], &[["b", "c"]]).links);
    assert_eq!(numbers(&more), plain);
    assert!(plain.len() > 300 && plain.len() < 400);
}

fn jitter() -> impl Strategy<Value = Option<Jitter>> {
    let shape = prop_oneof![
        Just(JitterShape::Uniform),
        Just(JitterShape::Normal),
        Just(JitterShape::Pareto)
    ];
    let jitter = (shape, 0..20_u64, any::<bool>()).prop_map(|(shape, ms, reorder)| Jitter {
        shape,
        width: Duration::from_millis(ms),
        reorder,
    });
    prop::option::of(jitter)
}

fn discipline() -> impl Strategy<Value = Discipline> {
    let codel = (1..20_u64, 20..200_u64).prop_map(|(target, interval)| Discipline::CoDel {
        target: Duration::from_millis(target),
        interval: Duration::from_millis(interval),
        ecn: false,
    });
    prop_oneof![Just(Discipline::DropTail), codel]
}

fn loss() -> impl Strategy<Value = Loss> {
    prop_oneof![
        Just(Loss::None),
        (0.0..1.0).prop_map(|share| Loss::Bernoulli { share }),
        (0.0..0.5, 0.1..1.0).prop_map(|(p, r)| Loss::GilbertElliott {
            p,
            r,
            good_loss: 0.0,
            bad_loss: 1.0
        }),
        prop::collection::vec(1..300_u64, 0..20).prop_map(|packets| Loss::Packets { packets }),
    ]
}

fn bottleneck() -> impl Strategy<Value = (Option<u64>, Option<Vec<u64>>)> {
    let trace = prop::collection::vec(0..40_u64, 1..10).prop_map(|mut trace| {
        trace.push(40);
        trace.sort_unstable();
        (None, Some(trace))
    });
    prop_oneof![
        Just((None, None)),
        (10_000..100_000_000_u64).prop_map(|rate| (Some(rate), None)),
        trace
    ]
}

fn direction() -> impl Strategy<Value = Direction> {
    let random = (loss(), 0.0..0.3, 0.0..0.3, jitter());
    (
        bottleneck(),
        0..50_u64,
        prop::option::of(0..20_000_u64),
        discipline(),
        random,
    )
        .prop_map(
            |((rate, trace), delay, queue, discipline, (loss, duplicate, corrupt, jitter))| {
                Direction {
                    rate,
                    trace,
                    delay: Duration::from_millis(delay),
                    jitter,
                    queue,
                    discipline,
                    blocks_udp: false,
                    loss,
                    duplicate,
                    corrupt,
                }
            },
        )
}

fn sent() -> impl Strategy<Value = Vec<(u64, usize)>> {
    prop::collection::vec((0..5 * MS, 52..1500_usize), 0..300).prop_map(|gaps| {
        let mut now = 0;
        gaps.into_iter()
            .map(|(gap, size)| {
                now += gap / 4;
                (now, size)
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn packets_are_delivered_or_dropped_with_a_cause_and_none_before_its_time(direction in direction(), sent in sent()) {
        let mut network = network(&direct(direction.clone()));
        let out = carry(&mut network, &sent, false);
        let count = count(&network, 0);
        prop_assert_eq!(count.packets, sent.len() as u64);
        prop_assert_eq!(count.left, out.len() as u64);
        prop_assert_eq!(count.packets + count.duplicated, count.left + count.drops.iter().sum::<u64>());
        prop_assert_eq!(network.pool.used(), 0);
        if direction.corrupt == 0.0 {
            for (due, number) in out {
                let (came, size) = sent[number as usize];
                let least = direction.rate.map_or(0, |rate| size as u64 * 8_000_000_000 / rate);
                prop_assert!(due >= came + least + nanos(direction.delay));
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_and_however_often_one_asks(direction in direction(), sent in sent(), step in 1..10 * MS) {
        let topology = direct(direction);
        let first = carry(&mut network(&topology), &sent, false);
        prop_assert_eq!(&carry(&mut network(&topology), &sent, false), &first);
        let (mut often, mut out, mut now) = (network(&topology), Vec::new(), 0);
        for (i, &(at, size)) in (0..).zip(&sent) {
            while now + step < at {
                now += step;
                collect(&mut often, now, &mut out);
            }
            often.arrive(at, 0, &packet(false, 1, 2, size, i), &mut Unwatched);
        }
        collect(&mut often, u64::MAX / 2, &mut out);
        prop_assert_eq!(out, first);
    }

    #[test]
    fn order_is_kept_unless_reordering_is_asked_for(mut direction in direction(), sent in sent()) {
        if let Some(jitter) = &mut direction.jitter {
            jitter.reorder = false;
        }
        direction.corrupt = 0.0;
        let out = carry(&mut network(&direct(direction)), &sent, true_v6(&sent));
        prop_assert!(out.is_sorted());
        prop_assert!(out.is_sorted_by_key(|&(_, number)| number));
    }

    #[test]
    fn no_window_has_more_than_the_rate(mut direction in direction(), rate in 10_000..1_000_000_000_u64, sent in sent()) {
        (direction.rate, direction.trace, direction.jitter, direction.corrupt) = (Some(rate), None, None, 0.0);
        let out = carry(&mut network(&direct(direction)), &sent, false);
        for (i, &(from, _)) in out.iter().enumerate() {
            let mut bits = 0_u128;
            for &(to, number) in &out[i + 1..] {
                bits += 8 * sent[number as usize].1 as u128;
                // The end of the first packet and that of the last may each be rounded up by less than a nanosecond.
                prop_assert!(bits * 1_000_000_000 <= u128::from(rate) * u128::from(to - from + 1));
            }
        }
    }

    #[test]
    fn nothing_that_comes_from_a_device_stops_the_network(
        packets in prop::collection::vec((0..6_usize, prop::collection::vec(any::<u8>(), 0..100)), 0..50),
    ) {
        let chain = topology(&["a", "b", "R1"], &[["a", "R1"], ["R1", "b"]]);
        let mut network = network(&chain);
        for (port, mut bytes) in packets {
            if let Some(first) = bytes.first_mut() {
                *first = if *first & 1 == 0 { 0x45 } else { 0x60 };
            }
            network.arrive(0, port, &bytes, &mut Unwatched);
            while network.poll(0, &mut Unwatched).is_some() {}
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap()
}

/// IPv6 wherever all packets are large enough for its header.
fn true_v6(sent: &[(u64, usize)]) -> bool {
    sent.iter().all(|&(_, size)| size >= 60)
}

/// The links on the way of a packet.
fn way(nodes: &[&str], links: &[[&str; 2]], from: &str, to: &str) -> Vec<usize> {
    let topology = topology(nodes, links);
    let addresses = topology.addresses();
    let routes = Routes::new(&topology, &addresses).unwrap();
    let ends = ends(&topology).unwrap();
    let place = |name: &str| {
        topology
            .nodes
            .iter()
            .position(|node| node.name == name)
            .unwrap()
    };
    let (mut at, mut way) = (place(from), Vec::new());
    while at != place(to) {
        let Some(direction) = routes.next(at, addresses[to].v4.into()) else {
            break;
        };
        way.push(direction / 2);
        at = ends[direction / 2][1 - direction % 2];
    }
    way
}

#[test]
fn the_way_with_fewest_links_is_taken_and_the_first_of_equal_ones() {
    let links = [
        ["a", "R1"],
        ["R1", "R2"],
        ["R2", "b"],
        ["R1", "b"],
        ["a", "R3"],
        ["R3", "b"],
    ];
    assert_eq!(way(&["a", "b", "R1", "R2", "R3"], &links, "a", "b"), [0, 3]);
    assert_eq!(way(&["a", "b", "R1", "R2", "R3"], &links, "b", "a"), [3, 0]);
}

#[test]
fn no_way_leads_through_a_host() {
    let links = [
        ["a", "h"],
        ["h", "b"],
        ["a", "R1"],
        ["R1", "R2"],
        ["R2", "b"],
    ];
    assert_eq!(
        way(&["a", "b", "h", "R1", "R2"], &links, "a", "b"),
        [2, 3, 4]
    );
    assert!(way(&["a", "b", "h"], &links[..2], "a", "b").is_empty());
}

#[test]
fn there_is_no_way_to_an_island() {
    assert!(way(&["a", "b", "c"], &[["a", "b"]], "a", "c").is_empty());
}

#[test]
fn a_link_to_nowhere_or_to_itself_is_refused() {
    for links in [[["a", "x"]], [["a", "a"]]] {
        assert!(ends(&topology(&["a", "b"], &links)).is_err());
    }
}
