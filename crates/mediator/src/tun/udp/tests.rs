//! What a program and a target see of a UDP flow.

use std::{
    mem,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use hoplite_overlay::{
    Error, ErrorKind, Received,
    memory::{Conditions, Network, What},
};
use hoplite_testing::{Double, DoubleFlow};
use hoplite_wire::ip::{self, icmp, udp};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::{
    tun::{
        device::IncomingPacket,
        testing::{Bench, PROGRAM, PROGRAM_V6, TARGET, TARGET_V6, parsed, udp_packet},
    },
    users::User,
};

fn program(port: u16) -> SocketAddr {
    SocketAddr::new(PROGRAM, port)
}

/// The payload of the datagram that the program gets, after a look at its ends.
async fn answer(bench: &Bench, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let bytes = bench.sink.next().await;
    let packet = parsed(&bytes);
    assert_eq!((packet.protocol, packet.source), (ip::UDP, from.ip()));
    assert_eq!(packet.destination, to.ip());
    let datagram = udp::parse(packet.payload).expect("a datagram");
    assert_eq!(
        (datagram.source, datagram.destination),
        (from.port(), to.port())
    );
    datagram.payload.to_vec()
}

/// The ICMP message that the program gets: its type and code, its third and fourth word, and what it quotes.
async fn told(bench: &Bench) -> ([u8; 2], u32, Vec<u8>) {
    let bytes = bench.sink.next().await;
    let packet = parsed(&bytes);
    assert!([ip::ICMP, ip::ICMPV6].contains(&packet.protocol));
    let (header, quoted) = packet.payload.split_first_chunk::<8>().expect("a header");
    let word = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    ([header[0], header[1]], word, quoted.to_vec())
}

#[tokio::test(start_paused = true)]
async fn datagrams_arrive_with_their_sizes_and_answers_come_from_the_target() {
    for (here, there) in [(PROGRAM, TARGET), (PROGRAM_V6, TARGET_V6)] {
        let mut bench = Bench::new();
        let far = bench.network.bind(there);
        let here = SocketAddr::new(here, 4000);
        for len in [1, 0, 1200, 1452] {
            bench.send(udp_packet(here, far.address(), &vec![7; len]));
            let (payload, from) = far.recv().await;
            assert_eq!(payload.len(), len);
            far.send(&payload, from);
            assert_eq!(answer(&bench, far.address(), here).await.len(), len);
        }
        let snapshot = bench.context.counters.snapshot();
        assert_eq!((snapshot.udp_opened, snapshot.udp_up), (1, 2653));
    }
}

#[tokio::test(start_paused = true)]
async fn the_targets_side_of_a_flow_has_a_port_of_its_own() {
    let mut bench = Bench::new();
    let far = bench.network.bind(TARGET);
    let mut seen = Vec::new();
    for port in [4000, 4001] {
        bench.send(udp_packet(program(port), far.address(), b"hello"));
        seen.push(far.recv().await.1);
    }
    assert_ne!(seen[0], seen[1], "two flows");
    assert!(seen.iter().all(|from| ![4000, 4001].contains(&from.port())));
    for (number, from) in seen.into_iter().enumerate() {
        far.send(&[number.to_le_bytes()[0]], from);
    }
    assert_eq!(answer(&bench, far.address(), program(4000)).await, [0]);
    assert_eq!(answer(&bench, far.address(), program(4001)).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_train_that_the_kernel_did_not_cut_is_so_many_datagrams() {
    let mut bench = Bench::new();
    let far = bench.network.bind(TARGET);
    let payload: Vec<u8> = (0..100).collect();
    bench.take(&IncomingPacket {
        bytes: udp_packet(program(4000), far.address(), &payload).into(),
        checked: true,
        segment: Some(30),
    });
    for expected in payload.chunks(30) {
        assert_eq!(far.recv().await.0, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusing_target_is_told_as_an_unreachable_port_quoting_the_programs_packet() {
    for (here, there, message) in [(PROGRAM, TARGET, [3, 3]), (PROGRAM_V6, TARGET_V6, [1, 4])] {
        let mut bench = Bench::new();
        let far = bench.network.bind(there);
        let (here, there) = (SocketAddr::new(here, 4000), far.address());
        drop(far);
        bench.send(udp_packet(here, there, b"anybody there?"));
        let (kind, _, quoted) = told(&bench).await;
        assert_eq!(kind, message);
        let quoted = parsed(&quoted);
        assert_eq!((quoted.source, quoted.destination), (here.ip(), there.ip()));
        let datagram = udp::parse(quoted.payload).expect("a datagram");
        assert_eq!(
            (datagram.source, datagram.destination),
            (4000, there.port())
        );
        bench.send(udp_packet(here, there, b"still nobody?"));
        assert_eq!(told(&bench).await.0, message);
        assert_eq!(
            bench.context.counters.snapshot().udp_opened,
            1,
            "it is not opened again"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_cannot_be_reached_is_told_and_tried_again_later() {
    let mut bench = Bench::new();
    let there = SocketAddr::new(TARGET, 9);
    for opened in 1..3 {
        bench.send(udp_packet(program(4000), there, b"hello"));
        assert_eq!(told(&bench).await.0, [3, 1]);
        assert_eq!(bench.context.counters.snapshot().udp_opened, opened);
        sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(bench.context.counters.snapshot().failed_target, 2);
}

#[tokio::test(start_paused = true)]
async fn a_datagram_that_the_path_does_not_carry_is_answered_with_the_size_that_it_does() {
    for (here, there, message) in [(PROGRAM, TARGET, [3, 4]), (PROGRAM_V6, TARGET_V6, [2, 0])] {
        let mut bench = Bench::new();
        bench.network.set_conditions(Conditions {
            max_payload: 1350,
            ..Conditions::default()
        });
        let far = bench.network.bind(there);
        let here = SocketAddr::new(here, 4000);
        bench.send(udp_packet(here, far.address(), &[1; 1351]));
        let (kind, mtu, quoted) = told(&bench).await;
        let headers = if here.is_ipv4() { 28 } else { 48 };
        assert_eq!((kind, mtu), (message, 1350 + headers));
        assert_eq!(
            quoted[..4],
            udp_packet(here, far.address(), &[1; 1351])[..4]
        );
        bench.send(udp_packet(here, far.address(), &[2; 1350]));
        assert_eq!(far.recv().await.0, [2; 1350][..]);
        assert_eq!(bench.context.counters.snapshot().udp_too_big, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_flow_rests_as_long_as_its_kind_may_and_a_mere_exchange_less() {
    for (port, rounds, seconds) in [
        (53, 5, 10),
        (443, 5, 180),
        (9, 5, 180),
        (53, 1, 10),
        (443, 1, 30),
        (9, 1, 30),
        (9, 0, 30),
    ] {
        let mut bench = Bench::new();
        let there = SocketAddr::new(TARGET, port);
        let far = bench.network.bind_at(there);
        bench.send(udp_packet(program(4000), there, b"nobody answers this"));
        far.recv().await;
        for _ in 0..rounds {
            bench.send(udp_packet(program(4000), there, b"hello"));
            let (payload, from) = far.recv().await;
            far.send(&payload, from);
            answer(&bench, there, program(4000)).await;
        }
        sleep(Duration::from_secs(seconds - 1)).await;
        assert_eq!(bench.context.counters.snapshot().udp_closed, 0, "{port}");
        sleep(Duration::from_secs(seconds + 2)).await;
        let closed = bench.context.counters.snapshot().udp_closed;
        assert_eq!(closed, 1, "{port}, {rounds} answers");
    }
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_came_to_rest_is_opened_again() {
    let mut bench = Bench::new();
    let far = bench.network.bind(TARGET);
    for opened in 1..3 {
        bench.send(udp_packet(program(4000), far.address(), b"hello"));
        far.recv().await;
        assert_eq!(bench.context.counters.snapshot().udp_opened, opened);
        sleep(Duration::from_secs(400)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_table_keeps_its_bound_and_the_flows_in_use() {
    let mut bench = Bench::with(|config| config.flows.udp = 8);
    let far = bench.network.bind(TARGET);
    for port in 1..100 {
        bench.send(udp_packet(program(4000), far.address(), b"in use"));
        assert_eq!(far.recv().await.0, &b"in use"[..]);
        sleep(Duration::from_millis(1)).await;
        bench.send(udp_packet(program(port), far.address(), b"once"));
        assert_eq!(far.recv().await.0, &b"once"[..]);
        sleep(Duration::from_millis(1)).await;
        let snapshot = bench.context.counters.snapshot();
        assert!(snapshot.udp_opened - snapshot.udp_closed <= 8);
    }
    let snapshot = bench.context.counters.snapshot();
    assert_eq!(snapshot.udp_opened, 100, "the one in use never made room");
    assert_eq!(snapshot.udp_evicted, 92);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_questions_a_second_take_the_places_of_those_that_were_answered_and_no_streams()
{
    let mut bench = Bench::with(|config| config.flows.udp = 4096);
    let far = bench.network.bind(TARGET);
    let there = far.address();
    let mut ask = async |port, rounds| {
        for _ in 0..rounds {
            bench.send(udp_packet(program(port), there, b"question"));
            let (question, from) = far.recv().await;
            far.send(&question, from);
            assert_eq!(answer(&bench, there, program(port)).await, b"question");
        }
    };
    for port in 1..=100 {
        ask(port, 5).await;
    }
    for port in 1000..31_000 {
        ask(port, 1).await;
        sleep(Duration::from_millis(1)).await;
    }
    let snapshot = |bench: &Bench| bench.context.counters.snapshot();
    let before = snapshot(&bench);
    assert_eq!((before.udp_opened, before.udp_dropped), (30_100, 0));
    assert!(before.udp_opened - before.udp_closed <= 4096);
    for port in 1..=100 {
        bench.send(udp_packet(program(port), there, b"still there?"));
    }
    let after = snapshot(&bench);
    assert_eq!(after.udp_opened, before.udp_opened, "each stream was kept");
}

/// Of the programs those that send from ports below 10000 are one user's.
fn quiet_below_10000(port: u16) -> User {
    User::local(if port < 10_000 { 1000 } else { 1001 }, 1)
}

#[tokio::test(start_paused = true)]
async fn a_program_whose_streams_are_all_busy_makes_room_for_another_users_and_nobody_else_does() {
    let mut bench = Bench::shared_by(quiet_below_10000, |config| config.flows.udp = 64);
    let far = bench.network.bind(TARGET);
    let there = far.address();
    let mut talk = async |port| {
        for _ in 0..5 {
            bench.send(udp_packet(program(port), there, b"question"));
            let (question, from) = far.recv().await;
            far.send(&question, from);
            answer(&bench, there, program(port)).await;
        }
    };
    talk(1000).await;
    sleep(Duration::from_secs(100)).await;
    for round in 0..3 {
        for port in 10_000..10_100 {
            talk(port).await;
        }
        talk(1001 + round).await;
    }
    let opened = bench.context.counters.udp_opened.value();
    for port in 1000..=1003 {
        bench.send(udp_packet(program(port), there, b"still there?"));
    }
    let counters = bench.context.counters.snapshot();
    assert_eq!(counters.udp_opened, opened, "the quiet user's were kept");
    assert!(counters.udp_opened - counters.udp_closed <= 64);
}

#[tokio::test(start_paused = true)]
async fn a_port_that_another_program_has_by_now_counts_as_that_ones() {
    let mut bench = Bench::shared_by(quiet_below_10000, |config| config.flows.udp = 2);
    let far = bench.network.bind(TARGET);
    for port in [4000, 20_000, 20_001, 20_002] {
        bench.send(udp_packet(program(port), far.address(), b"hello"));
        far.recv().await;
    }
    // All are over.
    sleep(Duration::from_secs(600)).await;
    for port in [20_000, 20_001, 4000] {
        bench.send(udp_packet(program(port), far.address(), b"again"));
        far.recv().await;
    }
    let counters = bench.context.counters.snapshot();
    assert_eq!((counters.udp_evicted, counters.udp_dropped), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_path_is_bounded_and_the_rest_is_counted() {
    let mut bench = Bench::new();
    let far = bench.network.bind(TARGET);
    for _ in 0..1000 {
        bench.send(udp_packet(program(4000), far.address(), &[0; 1000]));
    }
    let dropped = bench.context.counters.snapshot().udp_dropped;
    assert!((700..1000).contains(&dropped), "{dropped}");
    for _ in dropped..1000 {
        far.recv().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_fails_hurts_no_other() {
    let mut bench = Bench::new();
    let (one, other) = (bench.network.bind(TARGET), bench.network.bind(TARGET));
    let (gone, there) = (one.address(), other.address());
    for to in [gone, there] {
        bench.send(udp_packet(program(4000), to, b"hello"));
    }
    one.recv().await;
    let (_, from) = other.recv().await;
    drop(one);
    bench.send(udp_packet(program(4000), gone, b"hello"));
    assert_eq!(told(&bench).await.0, [3, 3]);
    other.send(b"answer", from);
    assert_eq!(answer(&bench, there, program(4000)).await, b"answer");
}

/// What becomes of the flows of an overlay that opens every one until it breaks, and then loses them all.
#[derive(Debug, Default)]
struct Fate {
    broken: AtomicBool,
    received: AtomicUsize,
    waiting: Mutex<Vec<Waker>>,
}

fn lost() -> Error {
    Error::new(ErrorKind::PathFailed, "a test")
}

impl Fate {
    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    fn break_all(&self) {
        self.broken.store(true, Ordering::SeqCst);
        let waiting = mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Received, Error>> {
        if self.is_broken() {
            return Poll::Ready(Err(lost()));
        }
        self.waiting.lock().push(cx.waker().clone());
        Poll::Pending
    }
}

fn fading(fate: &Arc<Fate>) -> Double {
    let fate = Arc::clone(fate);
    Double::failing(lost()).datagrams(move |lost, target, terms| {
        if fate.is_broken() {
            return lost.open_datagrams(target, terms);
        }
        let (up, down) = (Arc::clone(&fate), Arc::clone(&fate));
        let flow = DoubleFlow::silent()
            .sends(move |_, _, batch| {
                up.received
                    .fetch_add(batch.payloads().count(), Ordering::SeqCst);
                Poll::Ready(Ok(()))
            })
            .receives(move |_, cx, _| down.poll_recv(cx));
        Box::pin(async { Ok(flow.boxed()) })
    })
}

#[tokio::test(start_paused = true)]
async fn an_overlay_that_goes_away_under_a_thousand_flows_is_told_to_each_and_comes_back() {
    let fate = Arc::<Fate>::default();
    let mut bench = Bench::over(Arc::new(fading(&fate)), Network::new(1), |_| {});
    let there = SocketAddr::new(TARGET, 9);
    let all = 1..=1000_u16;
    for port in all.clone() {
        bench.send(udp_packet(program(port), there, b"hello"));
    }
    sleep(Duration::from_millis(1)).await;
    assert_eq!(fate.received.load(Ordering::SeqCst), 1000);
    fate.break_all();
    let mut ports: Vec<u16> = Vec::new();
    for _ in all.clone() {
        let (kind, _, quoted) = told(&bench).await;
        assert_eq!(kind, [3, 0], "the network, not the target");
        let quoted = udp::parse(parsed(&quoted).payload).expect("a datagram");
        ports.push(quoted.source);
    }
    ports.sort_unstable();
    assert_eq!(ports, all.clone().collect::<Vec<_>>());
    fate.broken.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(2)).await;
    for port in all {
        bench.send(udp_packet(program(port), there, b"again"));
    }
    sleep(Duration::from_millis(1)).await;
    assert_eq!(fate.received.load(Ordering::SeqCst), 2000);
    let snapshot = bench.context.counters.snapshot();
    assert_eq!(
        (
            snapshot.failed_path,
            snapshot.udp_opened - snapshot.udp_closed
        ),
        (1000, 1000)
    );
}

const STUCK: u16 = 9;

#[tokio::test(start_paused = true)]
async fn stalled_flows_in_all_places_hold_no_more_than_the_budget_and_a_newcomer_loses_nothing() {
    const TRAIN: usize = 50;
    let network = Network::new(1);
    let others = network.overlay(IpAddr::from([192, 0, 2, 1]));
    // It never opens a flow to one port.
    let overlay = Double::over(others).datagrams(|others, target, terms| match target.port {
        STUCK => Box::pin(std::future::pending()),
        _ => others.open_datagrams(target, terms),
    });
    let mut bench = Bench::over(Arc::new(overlay), network, |_| {});
    let train = |bench: &mut Bench, port, to| {
        let bytes = udp_packet(program(port), to, &[7; TRAIN * 1200]).into();
        bench.take(&IncomingPacket {
            bytes,
            checked: true,
            segment: Some(1200),
        });
    };
    let (flows, budget) = (
        bench.context.config.flows.udp,
        bench.context.config.flows.udp_memory,
    );
    let stuck = SocketAddr::new(IpAddr::from([203, 0, 113, 77]), STUCK);
    for port in (10_000..).take(flows) {
        for _ in 0..5 {
            train(&mut bench, port, stuck);
        }
        let held = bench.context.udp_memory.in_use();
        assert!(held <= budget, "{held} bytes after {port}");
    }
    assert!(bench.context.udp_memory.in_use() > budget / 2);
    let far = bench.network.bind(TARGET);
    train(&mut bench, 5000, far.address());
    for count in 0..TRAIN {
        let received = tokio::time::timeout(Duration::from_secs(1), far.recv());
        received.await.unwrap_or_else(|_| panic!("{count} arrive"));
    }
    assert_eq!(bench.context.counters.udp_evicted.value(), 1);
    // What is over holds nothing.
    sleep(bench.context.config.flows.opening * 2).await;
    assert!(
        bench.context.udp_memory.in_use() < 1 << 20,
        "{:?}",
        bench.context.udp_memory
    );
}

#[tokio::test(start_paused = true)]
async fn small_datagrams_wait_for_each_other_when_they_may_and_large_ones_do_not() {
    let wait = Duration::from_millis(5);
    let mut bench = Bench::with(|config| config.flows.pack_wait = wait);
    let far = bench.network.bind(TARGET);
    let start = Instant::now();
    bench.send(udp_packet(program(4000), far.address(), b"one"));
    sleep(wait / 2).await;
    assert!(bench.network.seen().is_empty());
    bench.send(udp_packet(program(4000), far.address(), b"two"));
    far.recv().await;
    far.recv().await;
    let seen = bench.network.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|seen| seen.at - start >= wait));
    let start = Instant::now();
    bench.send(udp_packet(program(4000), far.address(), &[0; 1200]));
    far.recv().await;
    assert_eq!(Instant::now(), start);
}

#[tokio::test(start_paused = true)]
async fn the_path_sees_payloads_and_nothing_else_of_a_packet() {
    let mut bench = Bench::new();
    let far = bench.network.bind(TARGET);
    bench.send(udp_packet(program(4000), far.address(), &[0; 77]));
    far.recv().await;
    let seen: Vec<_> = bench.network.seen().iter().map(|seen| seen.what).collect();
    assert_eq!(seen, [What::Datagram(77)]);
}

#[test]
fn every_failure_has_the_message_that_says_whose_it_is() {
    use hoplite_overlay::{Error, ErrorKind, Reason};
    use icmp::Unreachable::{Host, Network, Port, Prohibited};
    let because = |kind, reason| Error::new(kind, "a test").because(reason);
    for (error, expected) in [
        (because(ErrorKind::TargetFailed, Reason::Refused), Port),
        (because(ErrorKind::TargetFailed, Reason::NameNotFound), Host),
        (
            because(ErrorKind::TargetFailed, Reason::NetworkUnreachable),
            Network,
        ),
        (because(ErrorKind::Forbidden, Reason::Policy), Prohibited),
        (Error::new(ErrorKind::EntryUnreachable, "a test"), Network),
        (Error::new(ErrorKind::PathFailed, "a test"), Network),
        (Error::new(ErrorKind::TimedOut, "a test"), Host),
        (Error::new(ErrorKind::Unsupported, "a test"), Prohibited),
    ] {
        assert_eq!(crate::tun::outgoing::unreachable_for(&error), expected);
    }
}
