//! Channels as their users see them, over QUIC and over TLS, on the in-memory network in virtual time.

pub(super) mod harness;
mod padding;
mod registry;
mod rivals;

use std::{collections::HashSet, time::Duration};

use hoplite_link::LinkKind;
use hoplite_overlay::{Reason, Terms, memory::Fault};
use hoplite_testing::{soon, until};
use hoplite_wire::cell::Command;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use self::harness::{CLIENT, LATENCY, RELAY, World, cell, circuit, ed25519, recv, relay, send};
use super::{Circuit, Closed, Config, How, Rejected, Why, budget::CELL, handshake::Us};

const BOTH: [How; 2] = [How::Quic, How::Tls];
const CIRCUITS: usize = 100;

#[tokio::test(start_paused = true)]
async fn both_ends_know_each_other_over_quic_and_tls() {
    for how in BOTH {
        let world = World::new(Config::default());
        let (near, far) = world.pair(how).await;
        assert_eq!(
            near.peer().unwrap().ed25519,
            ed25519(&relay(harness::SECRET))
        );
        assert_eq!(far.peer().unwrap().ed25519, ed25519(&relay(1)));
        assert_eq!(near.kind(), far.kind());
        assert_eq!(near.established().version, 5);
        // It says that it is where it was dialled; who dialled it says that it is elsewhere.
        assert!(near.is_canonical(RELAY.ip()) && near.is_canonical(CLIENT));
        assert!(far.is_canonical(CLIENT) && !far.is_canonical(RELAY.ip()));
        assert!(far.established().ahead.unwrap().abs() < 60);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_stays_unknown_and_tells_neither_time_nor_address() {
    for how in BOTH {
        let world = World::new(Config::default());
        let (near, far) = world.pair_as(Us::default(), how).await;
        assert!(far.peer().is_none() && near.peer().is_some());
        assert_eq!(far.established().ahead, None);
        assert!(far.established().theirs.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn circuits_carry_cells_both_ways_in_order_whoever_begins_them() {
    for how in BOTH {
        let world = World::new(Config::default());
        let (near, far) = world.pair(how).await;
        let (mut a, mut b) = circuit(&near, &far).await;
        let (mut c, mut d) = circuit(&far, &near).await;
        assert!(a.id.is_initiators() && !c.id.is_initiators());
        for (from, to) in [(&mut a, &mut b), (&mut c, &mut d)] {
            for number in 0..200 {
                send(from, Command::RELAY, number).await;
                send(to, Command::RELAY_EARLY, number).await;
                assert_eq!(recv(to).await, (Command::RELAY, number));
                assert_eq!(recv(from).await, (Command::RELAY_EARLY, number));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn another_identity_than_the_expected_one_is_told_as_that() {
    for how in BOTH {
        let world = World::new(Config::default());
        let mut whom = world.whom();
        whom.identity = Some(ed25519(&relay(77)));
        let dialer = world.dialer(relay(1));
        let refused = soon(dialer.dial(&whom, how, &Terms::default())).await;
        assert_eq!(refused.unwrap_err().reason(), Some(Reason::Identity));
        assert!(world.served().await.is_err());
        assert_eq!(
            (world.here.refused.get(), world.there.refused.get()),
            (1, 1)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_relay_does_not_talk_to_itself() {
    for how in BOTH {
        let world = World::new(Config::default());
        let dialer = world.dialer(relay(harness::SECRET));
        let refused = soon(dialer.dial(&world.whom(), how, &Terms::default())).await;
        assert_eq!(refused.unwrap_err().reason(), Some(Reason::Identity));
    }
}

#[tokio::test(start_paused = true)]
async fn the_race_takes_quic_and_tls_where_udp_is_blocked() {
    for (fault, kind) in [
        (Fault::None, LinkKind::Quic),
        (Fault::UdpBlocked, LinkKind::Tls),
    ] {
        let world = World::new(Config::default());
        world.network.set_fault(fault);
        let (near, far) = world.pair(How::Raced).await;
        assert_eq!((near.kind(), far.kind()), (kind, kind));
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_a_circuit_tells_the_peer_and_frees_its_place() {
    for how in BOTH {
        let world = World::new(Config::default());
        let (near, far) = world.pair(how).await;
        let (mut a, mut b) = circuit(&near, &far).await;
        send(&mut a, Command::RELAY, 7).await;
        send(&mut a, Command::DESTROY, 9 << 24).await;
        drop(a);
        assert_eq!(recv(&mut b).await, (Command::RELAY, 7));
        assert_eq!(recv(&mut b).await, (Command::DESTROY, 9 << 24));
        assert!(soon(b.receiver.recv()).await.is_none());
        drop(b);
        until(|| near.circuits() == 0 && far.circuits() == 0).await;
        assert!(near.is_open() && far.is_open());
    }
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_is_destroyed_at_once_loses_its_queue_and_gives_the_reason() {
    for how in BOTH {
        let world = World::new(Config::default());
        let (near, far) = world.pair(how).await;
        let (a, mut b) = circuit(&near, &far).await;
        a.sender.destroy(5);
        drop(a.receiver);
        assert_eq!(recv(&mut b).await, (Command::DESTROY, 5 << 24));
        assert!(soon(b.receiver.recv()).await.is_none());
        drop(b);
        until(|| near.circuits() == 0 && far.circuits() == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_channel_ends_with_its_last_holder_and_says_what_it_still_has_to_say() {
    for how in BOTH {
        let world = World::new(Config::default());
        let (near, far) = world.pair(how).await;
        let (mut a, mut b) = circuit(&near, &far).await;
        drop(near);
        send(&mut a, Command::DESTROY, 9 << 24).await;
        drop(a);
        assert_eq!(recv(&mut b).await, (Command::DESTROY, 9 << 24));
        drop(b);
        assert_eq!(soon(far.closed()).await, Why::Gone);
        assert_eq!(far.open().await.unwrap_err(), Closed::Channel(Why::Gone));
        assert!(soon(far.accept()).await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn closing_ends_all_circuits_at_both_ends() {
    for how in BOTH {
        let world = World::new(Config::default());
        let (near, far) = world.pair(how).await;
        let (mut a, mut b) = circuit(&near, &far).await;
        near.close();
        assert!(soon(a.receiver.recv()).await.is_none());
        assert!(soon(b.receiver.recv()).await.is_none());
        let waiting = soon(async {
            while a.sender.ready().await.is_ok() && a.sender.send(cell(Command::RELAY, 1)).is_ok() {
            }
        });
        waiting.await;
        assert_eq!(a.sender.send(cell(Command::RELAY, 1)), Err(Rejected::Ended));
        assert_eq!(soon(near.closed()).await, Why::Ours);
        assert_eq!(soon(far.closed()).await, Why::Gone);
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_says_so_and_takes_cells_again_later() {
    for how in BOTH {
        let world = World::new(Config::default());
        let (near, far) = world.pair(how).await;
        let (mut a, mut b) = circuit(&near, &far).await;
        let mut sent = 0;
        while a.sender.send(cell(Command::RELAY, sent)).is_ok() {
            sent += 1;
        }
        let full = a.sender.send(cell(Command::RELAY, sent));
        assert_eq!((full, a.sender.buffered()), (Err(Rejected::Full), 64));
        soon(a.sender.flush()).await.unwrap();
        for number in 0..sent {
            assert_eq!(recv(&mut b).await, (Command::RELAY, number));
        }
        send(&mut a, Command::RELAY, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn circuits_beyond_the_bound_are_refused_and_counted() {
    for how in BOTH {
        let config = Config {
            circuits: 2,
            guest_circuits: 2,
            ..Config::default()
        };
        let world = World::new(config);
        let (near, far) = world.pair(how).await;
        let held = [circuit(&near, &far).await, circuit(&near, &far).await];
        assert_eq!(soon(near.open()).await.unwrap_err(), Closed::Full);
        drop(held);
        until(|| near.circuits() == 0 && far.circuits() == 0).await;
        circuit(&near, &far).await;
    }
}

#[tokio::test(start_paused = true)]
async fn circuits_that_nobody_accepts_are_refused_beyond_the_bound() {
    for how in BOTH {
        let config = Config {
            arrivals: 3,
            ..Config::default()
        };
        let world = World::new(config);
        let (near, _far) = world.pair(how).await;
        let mut circuits = Vec::new();
        for _ in 0..5 {
            let mut circuit = near.open().await.unwrap();
            send(&mut circuit, Command::CREATE2, 0).await;
            circuits.push(circuit);
        }
        until(|| world.there.too_many.get() == 2).await;
        let mut refused = 0;
        for mut circuit in circuits {
            let wait = Duration::from_secs(1);
            let answer = timeout(wait, circuit.receiver.recv()).await;
            refused += usize::from(answer.is_ok_and(|cell| cell.is_some()));
        }
        assert_eq!(refused, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn over_quic_two_stalled_circuits_change_nothing_for_the_other_98() {
    let alone = carry(How::Quic, false).await;
    let beside = carry(How::Quic, true).await;
    assert!(beside <= alone + 2 * LATENCY, "{beside:?}, alone {alone:?}");
}

/// How long 98 circuits take for 60 cells each way at once, beside two that stall with all that may be sent on them, or did before.
async fn carry(how: How, stalled: bool) -> Duration {
    let world = World::new(Config::default());
    let (near, far) = world.pair(how).await;
    let mut pairs = Vec::new();
    for _ in 0..CIRCUITS {
        pairs.push(circuit(&near, &far).await);
    }
    let (mut unread, mut undrained) = (pairs.pop().unwrap(), pairs.pop().unwrap());
    stuff(&mut unread.0, world.config.window).await;
    stuff(&mut undrained.1, world.config.window).await;
    if !stalled {
        release(&mut unread.1, &mut unread.0).await;
        release(&mut undrained.0, &mut undrained.1).await;
    }
    let start = Instant::now();
    let mut work = JoinSet::new();
    for (a, b) in pairs {
        work.spawn(exchange(a, b));
    }
    while let Some(done) = soon(work.join_next()).await {
        done.unwrap();
    }
    let took = start.elapsed();
    if stalled {
        release(&mut unread.1, &mut unread.0).await;
        release(&mut undrained.0, &mut undrained.1).await;
    }
    assert_eq!(world.there.all().map(|(_, count)| count).sum::<u64>(), 0);
    took
}

/// Sends until nothing more is taken: no more than the window and the queues.
async fn stuff(circuit: &mut Circuit, window: u32) {
    let mut sent = 0;
    while let Ok(ready) = timeout(Duration::from_secs(2), circuit.sender.ready()).await {
        ready.unwrap();
        circuit.sender.send(cell(Command::RELAY, sent)).unwrap();
        sent += 1;
    }
    assert!(
        sent >= window / 514 && sent <= window / 514 + 64 + 64,
        "{sent}"
    );
}

/// What was stalled arrives whole once it is read.
async fn release(reader: &mut Circuit, sender: &mut Circuit) {
    let reading = async {
        for next in 0.. {
            match recv(reader).await {
                (Command::RELAY, number) => assert_eq!(number, next),
                _ => return,
            }
        }
    };
    tokio::join!(reading, send(sender, Command::RELAY_EARLY, 0));
}

async fn exchange(mut a: Circuit, mut b: Circuit) {
    const CELLS: u32 = 60;
    for number in 0..CELLS {
        send(&mut a, Command::RELAY, number).await;
        send(&mut b, Command::RELAY, number).await;
    }
    for number in 0..CELLS {
        assert_eq!(recv(&mut a).await.1, number);
        assert_eq!(recv(&mut b).await.1, number);
    }
}

#[tokio::test(start_paused = true)]
async fn over_tls_the_overfull_circuit_is_destroyed_and_the_other_98_live_on() {
    let config = Config {
        inbox: 500,
        ..Config::default()
    };
    let world = World::new(config);
    let (near, far) = world.pair(How::Tls).await;
    let mut pairs = Vec::new();
    for _ in 0..CIRCUITS {
        pairs.push(circuit(&near, &far).await);
    }
    let (mut unread, mut undrained) = (pairs.pop().unwrap(), pairs.pop().unwrap());
    let mut work = JoinSet::new();
    for (a, b) in pairs {
        work.spawn(exchange(a, b));
    }
    overfill(&mut unread.0).await;
    overfill(&mut undrained.1).await;
    while let Some(done) = soon(work.join_next()).await {
        done.unwrap();
    }
    assert_eq!(
        (world.there.overfull.get(), world.here.overfull.get()),
        (1, 1)
    );
    for mut circuit in [unread.0, unread.1, undrained.0, undrained.1] {
        assert_eq!(recv(&mut circuit).await, (Command::DESTROY, 5 << 24));
        assert!(soon(circuit.receiver.recv()).await.is_none());
        assert_eq!(circuit.sender.ready().await, Err(Rejected::Ended));
    }
    assert!(near.is_open() && far.is_open());
}

/// Sends until the circuit is destroyed.
async fn overfill(circuit: &mut Circuit) {
    soon(async {
        while circuit.sender.ready().await.is_ok() {
            if circuit.sender.send(cell(Command::RELAY, 1)).is_err() {
                return;
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_channel_whose_path_goes_silent_ends() {
    for (how, whys) in [(How::Quic, Why::Gone), (How::Tls, Why::Stuck)] {
        let world = World::new(Config::default());
        let (near, far) = world.pair(how).await;
        let (mut a, _b) = circuit(&near, &far).await;
        world.network.set_fault(Fault::Silent);
        let sending = async {
            while a.sender.ready().await.is_ok() {
                let _full = a.sender.send(cell(Command::RELAY, 1));
            }
        };
        // In virtual time, and longer than other tests wait: TLS notices last.
        let ended = timeout(Duration::from_secs(300), sending).await;
        assert!(ended.is_ok(), "{how:?} goes on");
        assert_eq!(soon(near.closed()).await, whys);
    }
}

/// A relay's cells wait for it; a client may only be changing its network.
#[tokio::test(start_paused = true)]
async fn who_was_dialled_gives_a_silent_relay_seconds_and_a_silent_client_more() {
    for (us, most) in [(relay(1), 6), (Us::default(), 60)] {
        let world = World::new(Config::default());
        let (near, far) = world.pair_as(us, How::Quic).await;
        let (_a, mut b) = circuit(&near, &far).await;
        sleep(Duration::from_secs(10)).await;
        world.network.set_fault(Fault::Silent);
        let begun = Instant::now();
        send(&mut b, Command::RELAY, 1).await;
        assert_eq!(soon(far.closed()).await, Why::Gone);
        let took = begun.elapsed().as_secs();
        assert!((most / 2..most).contains(&took), "{took} s of {most}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_rests_or_works_is_not_given_up() {
    let world = World::new(Config::default());
    let (near, far) = world.pair(How::Quic).await;
    let (mut a, mut b) = circuit(&near, &far).await;
    for pause in [0, 1, 3, 100, 0, 7, 40] {
        sleep(Duration::from_secs(pause)).await;
        send(&mut b, Command::RELAY, 1).await;
        assert_eq!(recv(&mut a).await, (Command::RELAY, 1));
    }
    assert!(near.is_open() && far.is_open());
}

#[tokio::test(start_paused = true)]
async fn ids_of_circuits_that_ended_do_not_come_again_soon() {
    for how in BOTH {
        let world = World::new(Config::default());
        let (near, far) = world.pair(how).await;
        let mut ids = HashSet::new();
        for _ in 0..10 {
            let (a, _) = circuit(&near, &far).await;
            assert!(ids.insert(a.id));
        }
    }
}

/// Too much waits in circuits that stand still; those that move are left alone, on another channel of the process too.
async fn relieve(how: How) {
    let config = Config {
        window: 100_000,
        inbox: 300,
        queued: 1_000_000,
        ..Config::default()
    };
    let mut world = World::new(config);
    // It is the relay that is short of memory, not who dials.
    world.config.queued = u64::MAX;
    let ((near, far), (other, there)) = (world.pair(how).await, world.pair(how).await);
    let mut moving = circuit(&other, &there).await;
    let mut still = Vec::new();
    for _ in 0..12 {
        let (mut sender, reader) = circuit(&near, &far).await;
        for n in 0..250 {
            let sent = timeout(Duration::from_millis(200), sender.sender.ready()).await;
            if !matches!(sent, Ok(Ok(()))) {
                break;
            }
            sender.sender.send(cell(Command::RELAY, n)).unwrap();
        }
        still.push((sender, reader));
        send(&mut moving.0, Command::RELAY, 0).await;
        assert_eq!(recv(&mut moving.1).await, (Command::RELAY, 0));
    }
    for n in 0..200 {
        send(&mut moving.0, Command::RELAY, n).await;
        assert_eq!(recv(&mut moving.1).await, (Command::RELAY, n));
        sleep(Duration::from_millis(50)).await;
    }
    let ended = world.there.ended_for_memory.get();
    assert!((1..=11).contains(&ended), "{how:?}: {ended}");
    let mut told = 0;
    for (mut sender, mut reader) in still {
        if reader.sender.ready().await.is_ok() {
            continue;
        }
        // Whoever holds it learns it so, and lets it go.
        drop(reader);
        let last = async {
            while let Some(cell) = sender.receiver.recv().await {
                if cell.command == Command::DESTROY {
                    return;
                }
            }
        };
        soon(last).await;
        told += 1;
    }
    assert_eq!(told, ended, "{how:?}");
    send(&mut moving.1, Command::RELAY, 7).await;
    assert_eq!(recv(&mut moving.0).await, (Command::RELAY, 7));
}

#[tokio::test(start_paused = true)]
async fn when_too_much_waits_in_the_process_the_circuits_that_stand_still_end_over_quic() {
    relieve(How::Quic).await;
}

#[tokio::test(start_paused = true)]
async fn when_too_much_waits_in_the_process_the_circuits_that_stand_still_end_over_tls() {
    relieve(How::Tls).await;
}

/// Whoever takes nothing of his circuits fills the window that is for all circuits of two relays, in either direction.
#[tokio::test(start_paused = true)]
async fn circuits_that_nobody_reads_end_where_they_leave_no_room_for_the_others() {
    let config = Config {
        window: 100_000,
        windows: 1_000_000,
        ..Config::default()
    };
    for dialled in [true, false] {
        let world = World::new(config.clone());
        let (near, far) = world.pair(How::Quic).await;
        let (to, from) = if dialled {
            (&near, &far)
        } else {
            (&far, &near)
        };
        let (mut reads, mut sends) = circuit(to, from).await;
        let (mut holders, mut still) = (JoinSet::new(), Vec::new());
        for _ in 0..12 {
            let (mut reader, mut sender) = circuit(to, from).await;
            while let Ok(Ok(())) = timeout(Duration::from_millis(200), sender.sender.ready()).await
            {
                sender.sender.send(cell(Command::RELAY, 0)).unwrap();
            }
            still.push(sender);
            // Whoever holds it reads nothing of it, and hears that it is to end.
            holders.spawn(async move {
                while reader.sender.flush().await.is_ok() {
                    sleep(Duration::from_millis(50)).await;
                }
                drop(reader);
            });
        }
        for n in 0..500 {
            send(&mut sends, Command::RELAY, n).await;
            assert_eq!(recv(&mut reads).await, (Command::RELAY, n));
        }
        let counts = if dialled { &world.here } else { &world.there };
        let ended = counts.ended_for_room.get();
        assert!((9..=11).contains(&ended), "{ended}");
        for _ in 0..ended {
            soon(holders.join_next()).await.unwrap().unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_circuit_that_is_not_read_what_has_come_counts_and_nothing_else() {
    for how in BOTH {
        let world = World::new(Config::default());
        let (near, far) = world.pair(how).await;
        let (mut sender, mut reader) = circuit(&near, &far).await;
        let (_silent, _rests) = circuit(&near, &far).await;
        let waits = |cells: u64| (world.there.queued(), world.here.queued()) == (cells * CELL, 0);
        assert!(waits(0), "{how:?}: the cell that made it was read");
        for n in 0..100 {
            send(&mut sender, Command::RELAY, n).await;
        }
        sleep(Duration::from_secs(1)).await;
        assert!(waits(100), "{how:?}");
        for left in (0..100).rev() {
            recv(&mut reader).await;
            assert!(waits(left), "{how:?}: {left}");
        }
        if how == How::Quic {
            for n in 0..10 {
                send(&mut sender, Command::RELAY, n).await;
            }
            drop(sender);
            sleep(Duration::from_secs(1)).await;
            recv(&mut reader).await;
            assert!(waits(9), "the stream has ended, and all was taken of it");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_peer_left_counts_until_it_is_read_also_once_the_peer_is_gone() {
    let world = World::new(Config::default());
    let (near, far) = world.pair(How::Quic).await;
    let (mut sender, mut reader) = circuit(&near, &far).await;
    for n in 0..100 {
        send(&mut sender, Command::RELAY, n).await;
    }
    sleep(Duration::from_secs(1)).await;
    near.close();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.there.queued(), 100 * CELL);
    for _ in 0..40 {
        recv(&mut reader).await;
    }
    assert_eq!(world.there.queued(), 60 * CELL);
    drop(reader);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.there.queued(), 0);
}

/// Whoever holds the circuits keeps too much for them: what stands still longest ends first, and what moves goes on.
#[tokio::test(start_paused = true)]
async fn what_is_kept_for_circuits_counts_as_waiting_in_them() {
    for how in BOTH {
        let config = Config {
            window: 10_000,
            inbox: 10,
            queued: 1_000_000,
            ..Config::default()
        };
        let mut world = World::new(config);
        world.config.queued = u64::MAX;
        let (near, far) = world.pair(how).await;
        let mut all = Vec::new();
        for _ in 0..12 {
            all.push(circuit(&near, &far).await);
        }
        for (_, reader) in &all {
            reader.sender.backlog().received.came(100_000);
            reader.sender.backlog().sending.came(10);
        }
        for n in 0..100 {
            let (sender, reader) = &mut all[3];
            send(sender, Command::RELAY, n).await;
            assert_eq!(recv(reader).await, (Command::RELAY, n));
            reader.sender.backlog().received.came(1000);
            reader.sender.backlog().received.left(1000);
            sleep(Duration::from_millis(50)).await;
        }
        let mut ended = Vec::new();
        for (n, (_, reader)) in all.iter_mut().enumerate() {
            if reader.sender.ready().await.is_err() {
                ended.push(n);
            }
        }
        assert!((3..=5).contains(&ended.len()), "{how:?}: {ended:?}");
        assert!(!ended.contains(&3), "{how:?}: it moves");
        let ended: HashSet<_> = ended.into_iter().collect();
        let mut number = 0..;
        all.retain(|_| !ended.contains(&number.next().unwrap()));
        assert!(world.there.queued() <= 1_000_000, "{how:?}");
        assert!(world.there.queued() >= 700_000, "{how:?}");
    }
}

#[test]
fn a_client_may_have_a_bounded_amount_waiting_however_many_its_circuits() {
    let config = Config {
        guest_circuits: 10_000,
        ..Config::default()
    };
    assert_eq!(config.whole_window(false), config.guest_windows);
    assert!(config.whole_window(true) <= config.windows);
}
