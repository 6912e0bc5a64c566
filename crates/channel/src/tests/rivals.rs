//! Other ways to share a connection than ours, which the lab measures: each carries circuits, and has the fault that it is there to show.

use std::time::Duration;

use hoplite_overlay::memory::Conditions;
use hoplite_wire::cell::relay::StreamId;

use super::*;
use crate::{Channels, Rival};

const ALL: [(Rival, How); 3] = [
    (Rival::OneStream, How::Quic),
    (Rival::StreamPerStream, How::Quic),
    (Rival::ConnectionPerCircuit, How::Tls),
];
const STREAMS: u32 = 5;
const CELLS: u32 = 400;

fn world(rival: Option<Rival>) -> World {
    World::new(Config {
        rival,
        ..Config::default()
    })
}

fn lossy(world: &World, loss: f64) {
    world.network.set_conditions(Conditions {
        latency: LATENCY,
        loss,
        ..Conditions::default()
    });
}

/// Sends cells of several streams in turn, and reads what comes.
async fn exchange_streams(mut a: Circuit, mut b: Circuit) {
    let sent = async {
        for n in 0..CELLS {
            soon(a.sender.ready()).await.unwrap();
            let mut cell = cell(Command::RELAY, n);
            // Every now and then the circuit's own.
            cell.stream = StreamId(u16::try_from(n % (STREAMS + 1)).unwrap());
            a.sender.send(cell).unwrap();
        }
        soon(a.sender.flush()).await.unwrap();
    };
    let received = async {
        for n in 0..CELLS {
            assert_eq!(recv(&mut b).await, (Command::RELAY, n));
        }
    };
    tokio::join!(sent, received);
    a.sender.destroy(9);
    assert_eq!(recv(&mut b).await.0, Command::DESTROY);
}

#[tokio::test(start_paused = true)]
async fn every_rival_carries_circuits_in_order_over_a_path_that_loses_packets() {
    for (rival, how) in ALL {
        let world = world(Some(rival));
        let (near, far) = world.pair(how).await;
        lossy(&world, 0.05);
        assert_eq!((near.kind(), far.kind()), {
            let kind = match how {
                How::Tls => LinkKind::Tls,
                _ => LinkKind::Quic,
            };
            (kind, kind)
        });
        let (a, b) = circuit(&near, &far).await;
        let (d, c) = circuit(&near, &far).await;
        tokio::join!(exchange_streams(a, b), exchange_streams(c, d));
        until(|| near.circuits() == 0 && far.circuits() == 0).await;
        let faults = |counts: &crate::Counts| counts.all().map(|(_, count)| count).sum::<u64>();
        assert_eq!(
            (faults(&world.here), faults(&world.there)),
            (0, 0),
            "{rival:?}"
        );
        near.close();
        soon(far.closed()).await;
    }
}

/// How long after a busy circuit's cells those of a quiet one follow: at the same instant chance would say which go first.
const BETWEEN: Duration = Duration::from_millis(7);

/// How many of a quiet circuit's 200 cells, one for each fifty of a busy one's, come late on a path that loses one packet in a hundred.
async fn late_beside_a_busy_one(rival: Option<Rival>) -> usize {
    let world = world(rival);
    let (near, far) = world.pair(How::Quic).await;
    let (mut quiet, mut reader) = circuit(&near, &far).await;
    let (mut busy, mut sink) = circuit(&near, &far).await;
    lossy(&world, 0.01);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { while sink.receiver.recv().await.is_some() {} });
    let begun = Instant::now();
    let due = move |n: u32| begun + n * LATENCY;
    tasks.spawn(async move {
        for n in 0.. {
            tokio::time::sleep_until(due(n)).await;
            for _ in 0..50 {
                send(&mut busy, Command::RELAY, n).await;
            }
        }
    });
    tasks.spawn(async move {
        for n in 0.. {
            tokio::time::sleep_until(due(n) + BETWEEN).await;
            send(&mut quiet, Command::RELAY, n).await;
        }
    });
    let mut late = 0;
    for n in 0..200 {
        assert_eq!(recv(&mut reader).await, (Command::RELAY, n));
        late += usize::from(Instant::now() > due(n) + BETWEEN + LATENCY * 3 / 2);
    }
    late
}

#[tokio::test(start_paused = true)]
async fn a_busy_circuits_losses_delay_a_quiet_one_on_one_stream_and_not_on_streams_of_their_own() {
    let ours = late_beside_a_busy_one(None).await;
    let one = late_beside_a_busy_one(Some(Rival::OneStream)).await;
    assert!(
        one > 40 && one > 4 * ours,
        "of 200 late: {ours} on their own, {one} on one"
    );
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_its_own_ends_with_its_circuit_and_is_nobody_elses() {
    let world = world(Some(Rival::ConnectionPerCircuit));
    let channels = Channels::new(world.dialer(relay(1)), |_| panic!("nobody accepts on it"));
    let (whom, terms) = (world.whom(), Terms::default());
    let mut circuits = Vec::new();
    for _ in 0..3 {
        let channel = soon(channels.get(&whom, How::Raced, &terms)).await.unwrap();
        let far = world.served().await.unwrap();
        assert_eq!((channel.kind(), channel.circuits()), (LinkKind::Tls, 0));
        channels.add(&channel);
        let ends = circuit(&channel, &far).await;
        circuits.push((ends, far));
    }
    assert!(channels.is_empty(), "none is kept for others");
    let ((near, mut other), far) = circuits.pop().unwrap();
    near.sender.destroy(9);
    drop(near.receiver);
    assert_eq!(recv(&mut other).await.0, Command::DESTROY);
    drop(other);
    soon(far.closed()).await;
    assert!(circuits.iter().all(|(_, far)| far.is_open()));
}
