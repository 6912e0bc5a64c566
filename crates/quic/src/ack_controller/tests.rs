use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering},
};

use proptest::prelude::*;
use quinn_proto::AckFrequencyConfig;

use super::{
    super::{
        Hooks,
        tests::{
            governed,
            pair::{Harm, Pair},
        },
    },
    *,
};

const RTT: Duration = Duration::from_millis(50);

const FAST: Duration = Duration::from_micros(100);

/// A client without hooks, and a server that is governed.
fn towards(policy: &str) -> (Pair, Arc<AckController>) {
    let hooks = governed(policy, 0);
    let pair = Pair::connect(&Hooks::default(), &hooks);
    (pair, hooks.ack_controller.unwrap())
}

fn read(ack_controller: &AckController) -> Vec<Bytes> {
    let mut taken = Vec::new();
    ack_controller.take_datagrams(&mut taken, usize::MAX);
    taken
}

/// How often the server acknowledges 1000 datagrams, one each 100 µs.
fn acknowledgements(policy: &str) -> u64 {
    let (mut pair, _) = towards(policy);
    pair.send(0, 1, RTT * 4);
    let before = pair.stats(1).frame_tx.acks;
    pair.send(0, 1000, FAST);
    pair.run(RTT * 6);
    assert_eq!((pair.lost(0), pair.lost(1)), (None, None));
    pair.stats(1).frame_tx.acks - before
}

#[test]
fn each_policy_has_its_price_in_acknowledgements() {
    for (policy, price) in [
        ("default", 495..=505),
        ("1ms", 85..=105),
        ("25ms", 4..=10),
        ("100ms", 1..=6),
        ("0.25rtt", 7..=14),
        ("1rtt", 2..=8),
        // It begins as the stack does, and does not know yet what the path carries.
        ("auto", 200..=350),
        ("none", 1..=6),
    ] {
        let acks = acknowledgements(policy);
        assert!(price.contains(&acks), "{policy}: {acks}");
    }
}

#[test]
fn the_round_trip_stays_exact_and_no_timer_fires_in_vain() {
    for policy in ["25ms", "100ms", "250ms", "0.25rtt", "4rtt", "auto", "none"] {
        let (mut pair, _) = towards(policy);
        pair.send(0, 4000, FAST * 5);
        let rtt = pair.connection(0).rtt();
        assert!((RTT..RTT + RTT / 10).contains(&rtt), "{policy}: {rtt:?}");
        let stats = pair.stats(0);
        assert!(
            stats.frame_tx.ping <= 1,
            "{policy}: {}",
            stats.frame_tx.ping
        );
        assert_eq!(stats.path.lost_packets, 0, "{policy}");
    }
}

#[test]
fn a_delay_begins_when_enough_packets_have_come() {
    let hooks = governed("25ms", 500);
    let mut pair = Pair::connect(&Hooks::default(), &hooks);
    let mut acks = |count| {
        let before = pair.stats(1).frame_tx.acks;
        pair.send(0, count, FAST);
        pair.run(RTT * 2);
        pair.stats(1).frame_tx.acks - before
    };
    let (early, late) = (acks(400), acks(1000));
    assert!(early >= 195, "{early}");
    assert!((40..=70).contains(&late), "{late}");
}

#[test]
fn a_policy_is_switched_while_the_connection_runs_there_and_back() {
    let (mut pair, ack_controller) = towards("default");
    let mut acks = |policy: &str, count| {
        ack_controller.set(policy.parse().unwrap(), 0);
        pair.send(0, 1, RTT * 4);
        let before = pair.stats(1).frame_tx.acks;
        pair.send(0, count, FAST);
        pair.run(RTT * 6);
        pair.stats(1).frame_tx.acks - before
    };
    assert!((495..=505).contains(&acks("default", 1000)));
    assert!((4..=10).contains(&acks("25ms", 1000)));
    assert!((1..=6).contains(&acks("none", 1000)));
    assert!((85..=105).contains(&acks("1ms", 1000)));
    assert!((495..=505).contains(&acks("default", 1000)));
    assert_eq!((pair.lost(0), pair.lost(1)), (None, None));
}

#[test]
fn a_share_follows_the_round_trip_that_the_owner_tells() {
    let (mut pair, ack_controller) = towards("0.5rtt");
    let mut acks = |rtt: Duration| {
        ack_controller.round_trip(rtt);
        pair.send(0, 1, RTT * 4);
        let before = pair.stats(1).frame_tx.acks;
        pair.send(0, 2000, FAST);
        pair.run(RTT * 6);
        pair.stats(1).frame_tx.acks - before
    };
    let (long, short) = (acks(RTT), acks(RTT / 25));
    assert!((8..=16).contains(&long), "one per 25 ms: {long}");
    assert!((170..=205).contains(&short), "one per millisecond: {short}");
}

#[test]
fn datagrams_that_are_not_acknowledged_arrive_and_only_probes_are_answered() {
    let (mut pair, ack_controller) = towards("none");
    let before = pair.stats(1).frame_tx.acks;
    pair.send(0, 10_000, FAST);
    pair.run(RTT * 6);
    let acks = pair.stats(1).frame_tx.acks - before;
    assert!((12..=30).contains(&acks), "one per 75 ms: {acks}");
    assert_eq!(
        ack_controller.dropped(),
        10_000 - read(&ack_controller).len() as u64
    );
    assert_eq!(ack_controller.datagrams(), 10_000);
    assert!(pair.handed_out[1].is_empty());
    let stats = pair.stats(0);
    assert_eq!(
        (stats.path.lost_packets, stats.path.congestion_events),
        (0, 0)
    );
}

#[test]
fn a_probe_adds_nothing_to_a_stream_that_fills_its_packet() {
    let ack_controller = governed("none", 0).ack_controller.unwrap();
    // A datagram, and bytes from the fifth on of stream 4, without a length.
    let mut payload = BytesMut::from(&b"\x31\x02dg\x0c\x04\x05bytes"[..]);
    ack_controller.received(0, &mut payload, Instant::now);
    assert_eq!(read(&ack_controller), [&b"dg"[..]]);
    let frames: Vec<_> = Frames::new(&payload).map(Result::unwrap).collect();
    let probes = frames.iter().filter(|frame| frame.kind == 0x1f).count();
    assert_eq!(probes, 1, "the first datagram is a reason for a probe");
    assert!(payload.ends_with(b"\x0c\x04\x05bytes"), "{payload:?}");
}

#[test]
fn a_flow_in_each_direction_needs_hardly_a_packet_for_acknowledgements() {
    let (client, server) = (governed("none", 0), governed("none", 0));
    let mut pair = Pair::connect(&client, &server);
    let sent = |pair: &Pair| pair.sent[0].len() + pair.sent[1].len();
    let before = sent(&pair);
    for _ in 0..1000 {
        pair.send(0, 2, FAST);
        pair.send(1, 1, FAST);
    }
    pair.run(RTT * 6);
    let more = sent(&pair) - before - 3000;
    assert!(more <= 12, "{more}");
    assert_eq!(pair.stats(0).path.lost_packets, 0);
    assert_eq!(pair.stats(1).path.lost_packets, 0);
}

#[test]
fn what_arrives_twice_is_delivered_once() {
    let (mut pair, ack_controller) = towards("none");
    pair.harm[0].doubled = 500;
    pair.send(0, 500, FAST);
    pair.run(RTT * 6);
    let read = read(&ack_controller);
    let different: HashSet<_> = read.iter().collect();
    assert_eq!((read.len(), different.len()), (500, 500));
}

#[test]
fn losses_are_told_in_time_and_none_that_was_not() {
    for (lost, policy) in [(20, "none"), (100, "none"), (20, "25ms"), (100, "25ms")] {
        let (mut pair, ack_controller) = towards(policy);
        pair.harm[0] = Harm {
            lost,
            ..Harm::default()
        };
        let mut arrived = 0;
        for _ in 0..100 {
            pair.send(0, 100, FAST);
            arrived += read(&ack_controller).len() + std::mem::take(&mut pair.handed_out[1]).len();
        }
        pair.run(RTT * 10);
        arrived += read(&ack_controller).len() + pair.handed_out[1].len();
        let (declared, truly) = (pair.stats(0).path.lost_packets, pair.lost_packets[0]);
        assert!(
            declared.abs_diff(truly) <= 2,
            "{policy}: {declared} of {truly}"
        );
        assert!(
            arrived as u64 + truly >= 10_000,
            "{policy}: {arrived} and {truly}"
        );
        let acks = pair.stats(1).frame_tx.acks;
        assert!(acks <= truly + 120, "{policy}: {acks} for {truly}");
    }
}

#[test]
fn a_loss_is_told_at_once_however_long_the_delay_is() {
    let (mut pair, _) = towards("250ms");
    pair.send(0, 20, FAST);
    pair.run(RTT * 8);
    pair.harm[0].lost = 100;
    let before = pair.lost_packets[0];
    pair.send(0, 100, FAST * 10);
    pair.harm[0].lost = 0;
    pair.send(0, 5, FAST * 10);
    pair.run(RTT);
    let truly = pair.lost_packets[0] - before;
    assert!(truly > 3, "{truly}");
    assert_eq!(pair.stats(0).path.lost_packets, truly);
}

#[test]
fn acknowledgements_that_are_lost_make_no_false_losses() {
    let (mut pair, _) = towards("none");
    pair.harm = [20, 200].map(|lost| Harm {
        lost,
        ..Harm::default()
    });
    pair.send(0, 20_000, FAST);
    pair.run(RTT * 10);
    let (declared, truly) = (pair.stats(0).path.lost_packets, pair.lost_packets[0]);
    assert!(declared.abs_diff(truly) <= 2, "{declared} of {truly}");
}

#[test]
fn a_slow_flow_costs_one_acknowledgement_each_and_no_timer_fires() {
    for gap in [1, 10, 40, 74, 80, 120, 300, 1000] {
        let (mut pair, _) = towards("none");
        pair.send(0, 100, FAST * 10);
        pair.run(RTT * 10);
        let of = |pair: &mut Pair| {
            (
                pair.stats(1).frame_tx.acks,
                pair.stats(0).frame_tx.immediate_ack,
            )
        };
        let before = of(&mut pair);
        pair.send(0, 50, Duration::from_millis(gap));
        let after = of(&mut pair);
        assert!(after.0 - before.0 <= 51, "{gap} ms: {}", after.0 - before.0);
        assert!(after.1 - before.1 <= 2, "{gap} ms: {}", after.1 - before.1);
    }
}

#[test]
fn a_burst_is_acknowledged_to_its_end() {
    let (mut pair, _) = towards("none");
    for count in [1, 2, 30] {
        pair.send(0, count, FAST);
        pair.run(RTT * 10);
        let acks = pair.stats(0).frame_rx.acks;
        pair.run(RTT * 4);
        assert_eq!(
            pair.stats(0).frame_rx.acks,
            acks,
            "nothing is left to ask for"
        );
        assert_eq!(pair.stats(0).path.lost_packets, 0);
    }
}

#[test]
fn a_reader_is_woken_and_a_slow_one_loses_the_oldest() {
    let ack_controller = AckController::new(Bounds {
        inbox: 3 * (1000 + size_of::<Bytes>()),
        ..Bounds::default()
    });
    ack_controller.set(AckPolicy::NoAcks, 0);
    let hooks = Hooks {
        ack_controller: Some(ack_controller.clone()),
        ..governed("none", 0)
    };
    let mut pair = Pair::connect(&Hooks::default(), &hooks);
    let (woken, waker) = woken();
    let mut cx = Context::from_waker(&waker);
    assert!(ack_controller.poll_datagram(&mut cx).is_pending());
    pair.send(0, 5, FAST);
    pair.run(RTT);
    assert!(woken.0.load(Ordering::Relaxed));
    let numbers: Vec<_> = read(&ack_controller)
        .iter()
        .map(|datagram| datagram[7])
        .collect();
    assert_eq!((numbers, ack_controller.dropped()), (vec![2, 3, 4], 2));
}

struct Woken(AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn woken() -> (Arc<Woken>, Waker) {
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    (woken.clone(), woken.into())
}

#[test]
fn a_peer_that_asks_for_other_acknowledgements_does_not_overrule_a_policy() {
    let mut asks = AckFrequencyConfig::default();
    asks.ack_eliciting_threshold(1000u32.into());
    for (policy, price) in [
        ("1ms", 85..=105),
        ("extension", 4..=10),
        ("default", 4..=10),
    ] {
        let hooks = governed(policy, 0);
        let mut pair = Pair::connect_asking(&Hooks::default(), &hooks, asks.clone());
        pair.send(0, 1, RTT * 4);
        let before = pair.stats(1).frame_tx.acks;
        pair.send(0, 1000, FAST);
        pair.run(RTT * 6);
        let acks = pair.stats(1).frame_tx.acks - before;
        assert!(price.contains(&acks), "{policy}: {acks}");
        assert_eq!((pair.lost(0), pair.lost(1)), (None, None));
    }
}

#[test]
fn auto_learns_when_a_sender_has_found_its_rate() {
    let (mut pair, _) = towards("auto");
    let mut acks = |count, every| {
        let before = pair.stats(1).frame_tx.acks;
        pair.send(0, count, every);
        pair.stats(1).frame_tx.acks - before
    };
    // A packet a millisecond: a quarter of the round trip is cheap.
    let (first, then) = (acks(100, FAST * 10), acks(400, FAST * 10));
    assert!((30..=60).contains(&first), "every second packet: {first}");
    let later = acks(1000, FAST * 10);
    assert!(
        (70..=90).contains(&later),
        "one in 12.5 ms: {later} after {then}"
    );
    // Ten times as many: after a millisecond, until it is sure that there are no more.
    let (faster, cheap) = (acks(1000, FAST), acks(10_000, FAST));
    assert!(faster >= 20, "{faster}");
    assert!(
        (350..=700).contains(&cheap),
        "one in 1.5 to 2.9 ms: {cheap}"
    );
}

#[test]
fn who_asks_for_an_acknowledgement_with_every_packet_gets_one_a_millisecond() {
    for (policy, heard) in [
        ("auto", 90..=101),
        ("25ms", 90..=101),
        ("default", 1000..=1000),
    ] {
        let ack_controller = governed(policy, 0).ack_controller.unwrap();
        let begun = Instant::now();
        let asked = (0..1000).filter(|number| {
            let mut payload = BytesMut::from(&[0x1f, 0x31, 1, 7][..]);
            let now = begun + FAST * u32::try_from(*number).unwrap();
            ack_controller.received(*number, &mut payload, || now);
            let kinds = Frames::new(&payload).map(|frame| frame.unwrap().kind);
            kinds.filter(|kind| *kind == kind::IMMEDIATE_ACK).count() == 1
        });
        let asked = asked.count();
        assert!(heard.contains(&asked), "{policy}: {asked}");
    }
}

/// As many as a packet holds: who looks at each as often as there are frames before it is kept busy by a few packets a second.
#[test]
fn a_packet_full_of_requests_is_looked_through_once() {
    let mut asks_at_once = vec![0x1f; 1_440];
    let mut asks_for_more = [0x40, 0xaf, 1, 2, 3, 0].repeat(240);
    for (payload, frames) in [(&mut asks_at_once, 1_440), (&mut asks_for_more, 240)] {
        let looked = std::cell::Cell::new(0);
        replace(payload, |frame| {
            looked.set(looked.get() + 1);
            matches!(frame.kind, kind::IMMEDIATE_ACK | kind::ACK_FREQUENCY)
        });
        assert_eq!(looked.get(), frames);
        let mut kinds = Frames::new(payload).map(|frame| frame.unwrap().kind);
        assert!(kinds.all(|kind| kind <= 1), "PINGs and what fills up");
    }
}

#[test]
fn who_leaves_gaps_before_every_packet_is_told_of_them_when_the_delay_is_over() {
    let ack_controller = governed("25ms", 0).ack_controller.unwrap();
    ack_controller.round_trip(RTT);
    let told = |numbers: Range<u64>, step| {
        let frames = numbers.filter_map(|number| {
            let mut payload = BytesMut::from(&[0x01][..]);
            ack_controller.received(number * step, &mut payload, Instant::now);
            Frames::new(&payload).find_map(|frame| match frame.unwrap().content {
                Content::Numbers([_, _, _, reordering]) if payload.len() > 1 => Some(reordering),
                _ => None,
            })
        });
        frames.collect::<Vec<_>>()
    };
    assert_eq!(told(0..20, 1), [3]);
    assert_eq!(told(20..100, 5), [0]);
    assert_eq!(told(496..700, 1), [3]);
}

/// A packet with a request for `delay` and a datagram after it.
fn asking(sequence: u64, delay: u64) -> BytesMut {
    let mut payload = BytesMut::new();
    let frame = AckFrequency {
        sequence,
        threshold: (1 << 62) - 1,
        delay,
        reordering: (1 << 62) - 1,
    };
    frame.write(&mut payload);
    payload.extend_from_slice(&[0x30, 7]);
    payload
}

#[test]
fn an_absurd_request_of_a_peer_becomes_a_ping() {
    let ack_controller = AckController::new(Bounds::default());
    let kinds = |payload: &[u8]| -> Vec<u64> {
        let frames = Frames::new(payload).map(|frame| frame.unwrap().kind);
        frames.collect()
    };
    for (number, (sequence, delay, obeyed)) in [
        (0, 25_000, true),
        (1, 250_000, true),
        (2, 250_001, false),
        (3, (1 << 62) - 1, false),
        (1 << 40, 25_000, false),
        ((1 << 62) - 1, 25_000, false),
    ]
    .into_iter()
    .enumerate()
    {
        let mut payload = asking(sequence, delay);
        ack_controller.received(number as u64, &mut payload, Instant::now);
        let left = kinds(&payload);
        let ping = [0x01, kind::PADDING, kind::DATAGRAM];
        let frame = [kind::ACK_FREQUENCY, kind::DATAGRAM];
        assert_eq!(
            left,
            if obeyed { &frame[..] } else { &ping[..] },
            "{sequence} {delay}"
        );
    }
}

#[test]
fn a_malformed_packet_is_left_to_the_stack() {
    let ack_controller = AckController::new(Bounds::default());
    ack_controller.set(AckPolicy::NoAcks, 1000);
    for (number, bytes) in [&[0x31, 5, 1][..], &[0x30][..], &[0x7f, 0xff], &[0x40], &[]]
        .into_iter()
        .enumerate()
    {
        let mut payload = BytesMut::from(bytes);
        ack_controller.received(number as u64, &mut payload, Instant::now);
        let empty = bytes == [0x30];
        assert_eq!(payload == bytes, !empty, "{bytes:?}");
    }
    assert_eq!(read(&ack_controller), [Bytes::new()]);
}

/// A receiver that looks at what came only every 10 ms, as one does whose system hands packets over in batches. Returns the sender's statistics.
fn in_batches(client: &Hooks, harm: Harm) -> quinn_proto::ConnectionStats {
    let mut pair = Pair::connect(client, &Hooks::default());
    pair.harm[0] = harm;
    for batch in 0..100 {
        pair.held = Some(1);
        // As a tunnel's packets: most are as large as they may be, but for a few bytes, and they grow with the numbers in them.
        let size = |dice| 1300 + batch / 10 + dice % 7 * u64::from(dice % 5 == 0);
        pair.send_sized(0, 50, FAST * 2, size);
        pair.held = None;
        pair.run(Duration::ZERO);
    }
    pair.run(RTT * 4);
    let stats = pair.stats(0);
    let rtt = pair.connection(0).rtt();
    assert!((RTT..RTT + RTT / 4).contains(&rtt), "{rtt:?}");
    assert!((1..=pair.lost_packets[0] + 2).contains(&stats.path.lost_packets));
    stats
}

#[test]
fn many_losses_told_at_once_are_not_taken_for_a_path_that_takes_no_large_packets() {
    let harm = Harm {
        lost: 100,
        ..Harm::default()
    };
    assert!(
        in_batches(&Hooks::default(), harm)
            .path
            .black_holes_detected
            > 0
    );
    for policy in ["default", "none"] {
        assert_eq!(
            in_batches(&governed(policy, 0), harm)
                .path
                .black_holes_detected,
            0
        );
    }
}

#[test]
fn a_path_that_takes_no_large_packets_any_more_is_still_noticed() {
    let hooks = governed("default", 0);
    let mut pair = Pair::connect(&hooks, &Hooks::default());
    pair.harm[0].largest = 1300;
    for _ in 0..20 {
        pair.send_sized(0, 10, FAST * 10, |dice| 1200 + dice % 200);
        if pair.stats(0).path.black_holes_detected > 0 {
            return assert_eq!(pair.stats(0).path.current_mtu, 1200);
        }
        pair.run(RTT);
    }
    panic!("not noticed: {:?}", pair.stats(0).path);
}

proptest! {
    #[test]
    fn any_packet_is_taken_without_a_panic_and_none_becomes_empty(
        packets in proptest::collection::vec((0_u64..1 << 62, proptest::collection::vec(frame(), 1..5)), 1..20),
    ) {
        let ack_controller = AckController::new(Bounds::default());
        ack_controller.set(AckPolicy::NoAcks, 0);
        let now = Instant::now();
        for (number, frames) in packets {
            let bytes = frames.concat();
            let mut payload = BytesMut::from(&bytes[..]);
            ack_controller.received(number, &mut payload, || now);
            ack_controller.sent(number, bytes.len(), Frames::new(&bytes), now);
            prop_assert_eq!(payload.is_empty(), bytes.is_empty());
        }
    }
}

/// Frames that matter, cut off and garbled ones among them.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..12);
    let of = |kinds: &'static [u8]| {
        (proptest::sample::select(kinds), bytes())
            .prop_map(|(kind, bytes)| [&[kind][..], &bytes].concat())
    };
    let counted =
        bytes().prop_map(|data| [&[0x31, u8::try_from(data.len()).unwrap()][..], &data].concat());
    prop_oneof![
        bytes(),
        of(&[0x02, 0x03, 0x30, 0x31, 0x06, 0x40]),
        counted,
        Just(vec![0x01])
    ]
}

#[test]
fn what_is_too_old_to_be_told_apart_counts_as_a_duplicate() {
    let mut seen = Seen::default();
    assert_eq!(seen.insert(0), Some(false));
    assert_eq!(seen.insert(5000), Some(true));
    assert_eq!(seen.insert(5000 - DUPLICATE_WINDOW), None);
    assert_eq!(seen.insert(5001 - DUPLICATE_WINDOW), Some(false));
    assert_eq!(seen.insert(5001 - DUPLICATE_WINDOW), None);
    assert_eq!(seen.insert((1 << 62) - 1), Some(true));
}

proptest! {
    #[test]
    fn no_packet_counts_twice_and_none_in_the_window_is_lost(numbers in proptest::collection::vec(0_u64..3000, 0..600)) {
        let (mut seen, mut all, mut highest) = (Seen::default(), HashSet::new(), 0);
        for number in numbers {
            highest = highest.max(number);
            let first = all.insert(number);
            let inside = highest - number < DUPLICATE_WINDOW;
            prop_assert_eq!(seen.insert(number).is_some(), first && inside);
        }
    }
}
