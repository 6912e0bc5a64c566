use std::future::poll_fn;

use super::{udp::Flow, *};

const FAST: Access = Access {
    up: 125_000_000,
    down: 125_000_000,
    queue: 1 << 20,
};

fn pair(network: &Network, access: Access) -> (Node, Node) {
    let place = Place::apart(10.0);
    (network.add(place, access), network.add(place, access))
}

/// Two sockets that have each other as peer.
fn flows(network: &Network, one: Node, other: Node) -> (Flow, Flow) {
    let at = |node| SocketAddr::new(Network::address(node), 10_001);
    (
        Flow::new(network, one, at(other)),
        Flow::new(network, other, at(one)),
    )
}

async fn send(flow: &Flow, bytes: usize) {
    use hoplite_overlay::{Batch, Datagrams};
    let contents = vec![7; bytes];
    let batch = Batch {
        contents: &contents,
        segment: 1000,
    };
    let sent = poll_fn(|cx| flow.poll_send(cx, batch)).await;
    sent.expect("taken");
}

async fn recv(flow: &Flow) -> usize {
    use hoplite_overlay::Datagrams;
    let mut buf = [0; 1500];
    let got = poll_fn(|cx| flow.poll_recv(cx, &mut buf)).await;
    got.expect("open").len
}

#[tokio::test(start_paused = true)]
async fn a_packet_takes_the_time_of_its_way_and_of_both_lines() {
    let network = Network::new(1, 0.0);
    let slow = Access { up: 10_280, ..FAST };
    let (one, other) = pair(&network, slow);
    let (near, far) = flows(&network, one, other);
    let begun = Instant::now();
    send(&near, 1000).await;
    assert_eq!(recv(&far).await, 1000);
    let took = begun.elapsed();
    // 1,028 bytes with headers: 100 ms; then 20 ms of way, 8 us of the other line, and the timer's millisecond.
    assert_eq!(took, Duration::from_millis(121));
    assert_eq!(network.latency(one, other), Some(Duration::from_millis(20)));
}

#[tokio::test(start_paused = true)]
async fn what_a_queue_has_no_room_for_is_dropped_and_counted() {
    let network = Network::new(1, 0.0);
    let short = Access {
        up: 1_000_000,
        queue: 5140,
        ..FAST
    };
    let (one, other) = pair(&network, short);
    let (near, far) = flows(&network, one, other);
    send(&near, 10_000).await;
    for _ in 0..5 {
        assert_eq!(recv(&far).await, 1000);
    }
    let ledger = network.ledger();
    assert_eq!((ledger.sent.packets, ledger.received.packets), (10, 5));
    assert_eq!(
        (ledger.queue_full.packets, ledger.queue_full.bytes),
        (5, 5140)
    );
    assert!(ledger.is_balanced(), "{ledger:?}");
}

#[tokio::test(start_paused = true)]
async fn of_many_packets_as_many_are_lost_as_was_asked_for_and_none_vanishes() {
    let network = Network::new(1, 0.1);
    let (one, other) = pair(&network, FAST);
    let (near, _far) = flows(&network, one, other);
    for _ in 0..100 {
        send(&near, 100_000).await;
        assert!(network.ledger().is_balanced());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let ledger = network.ledger();
    assert!((900..1100).contains(&ledger.lost.packets), "{ledger:?}");
    assert_eq!(ledger.under_way, Count::default());
    assert!(ledger.is_balanced());
    assert_eq!(ledger.nodes[one.0].0, ledger.sent);
    assert_eq!(ledger.nodes[other.0].1, ledger.received);
}

#[tokio::test(start_paused = true)]
async fn nothing_from_or_to_a_node_that_is_spared_is_lost() {
    let network = Network::new(1, 0.5);
    let (one, other) = pair(&network, FAST);
    let (near, far) = flows(&network, one, other);
    network.spare(other);
    for flow in [&near, &far] {
        send(flow, 10_000).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(network.ledger().received.packets, 20);
    let third = network.add(Place::apart(10.0), FAST);
    let (lossy, _theirs) = flows(&network, one, third);
    send(&lossy, 10_000).await;
    assert!(network.ledger().lost.packets > 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_reaches_a_node_that_is_gone_or_a_port_that_nobody_has() {
    let network = Network::new(1, 0.0);
    let (one, other) = pair(&network, FAST);
    let (near, far) = flows(&network, one, other);
    drop(far);
    send(&near, 1000).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(network.ledger().no_port.packets, 1);
    // One is on its way when the node goes, one is sent later.
    send(&near, 1000).await;
    network.remove(other);
    tokio::time::sleep(Duration::from_secs(1)).await;
    send(&near, 1000).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let ledger = network.ledger();
    assert_eq!(ledger.no_host.packets, 2);
    assert!(ledger.is_balanced());
}

#[test]
fn latencies_are_the_same_both_ways_and_within_the_map() {
    let mut random = Random::new(1, "places", 0);
    let places: Vec<_> = (0..50).map(|_| Place::drawn(&mut random)).collect();
    for one in &places {
        for other in &places {
            let way = one.latency(other);
            assert_eq!(way, other.latency(one));
            assert!((2_000_000..97_000_000).contains(&way), "{way}");
        }
    }
    assert_eq!(Place::apart(5.0).latency(&Place::apart(15.0)), 20_000_000);
}

#[test]
fn packets_leave_one_after_the_other_at_the_line_s_rate() {
    // A microsecond for a byte.
    let mut line = Bottleneck::new(1_000_000, 10_000);
    assert_eq!(line.take(1000, 0), Some(1_000_000));
    assert_eq!(line.take(1000, 500_000), Some(2_000_000));
    assert_eq!(line.take(1000, 9_000_000), Some(10_000_000));
}

#[test]
fn a_full_queue_drops_the_newest_and_has_room_again_as_it_drains() {
    let mut line = Bottleneck::new(1_000_000, 2000);
    assert!(line.take(1000, 0).is_some());
    assert!(line.take(1000, 0).is_some());
    assert_eq!(line.take(1, 0), None);
    assert_eq!(line.take(1000, 999_000), None);
    assert_eq!(line.take(1000, 1_000_000), Some(3_000_000));
}

#[test]
fn an_empty_line_takes_a_packet_that_is_larger_than_its_queue() {
    let mut line = Bottleneck::new(1_000_000, 10);
    assert_eq!(line.take(1000, 0), Some(1_000_000));
    assert_eq!(line.take(1000, 1), None);
}

#[test]
fn the_earliest_goes_first_and_of_the_same_time_the_first() {
    let mut agenda = Agenda::default();
    for (at, what) in [(2, "c"), (1, "a"), (2, "d"), (1, "b")] {
        agenda.add(at, what);
    }
    assert_eq!(agenda.next(), Some(1));
    assert_eq!(agenda.take(0), None);
    let taken: Vec<_> = std::iter::from_fn(|| agenda.take(1)).collect();
    assert_eq!(taken, [(1, "a"), (1, "b")]);
    agenda.add(1, "late");
    assert_eq!(agenda.iter().count(), 3);
    let taken: Vec<_> = std::iter::from_fn(|| agenda.take(2)).collect();
    assert_eq!(taken, [(1, "late"), (2, "c"), (2, "d")]);
    assert_eq!(agenda.places.len(), 4);
}
