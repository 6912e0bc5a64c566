//! What a client tells of its circuits and streams: to whoever follows, in the order in which it happens, and to nobody else.

use std::{net::SocketAddr, time::Duration};

use hoplite_onion::{Config, Events, path};
use hoplite_overlay::{Overlay, Terms, conformance::Far};
use hoplite_testing::soon;
use tokio::{
    io::AsyncWriteExt,
    sync::broadcast::{Receiver, error::TryRecvError},
};

use crate::support::{Kind, World};

fn config(events: &Events) -> Config {
    Config {
        ahead: 0,
        attempts: 1,
        events: events.clone(),
        ..Config::default()
    }
}

fn told(followed: &mut Receiver<hoplite_onion::client::Event>) -> Vec<String> {
    let mut told = Vec::new();
    loop {
        match followed.try_recv() {
            Ok(event) => told.push(event.text.to_string()),
            Err(TryRecvError::Empty | TryRecvError::Closed) => return told,
            Err(TryRecvError::Lagged(_)) => unreachable!("few events"),
        }
    }
}

/// The path of a world with so many of its hops, as events name it.
fn path(world: &World, hops: usize) -> String {
    let long_name = |relay: &path::Relay| {
        let id = relay.keys.rsa_id.map(|byte| format!("{byte:02X}"));
        format!("${}", id.concat())
    };
    let relays = world.path.iter().take(hops);
    relays.map(long_name).collect::<Vec<_>>().join(",")
}

#[tokio::test(start_paused = true)]
async fn a_circuit_is_told_hop_by_hop_and_a_stream_with_its_program_and_circuit() {
    let world = World::new(Duration::from_millis(50), Kind::default());
    let events = Events::open();
    let mut followed = events.follow().expect("open");
    let onion = world.client(config(&events));
    let listener = world.far().listen().await.expect("listens");
    let (target, program) = (listener.target(), "127.0.0.1:40000".parse().ok());
    let terms = Terms::default().for_program(program);
    let mut stream = soon(onion.open_stream(&target, &terms))
        .await
        .expect("opens");
    let [one, two, three] = [1, 2, 3].map(|hops| path(&world, hops));
    assert_eq!(
        told(&mut followed),
        [
            format!("STREAM 1 NEW 0 {target} SOURCE_ADDR=127.0.0.1:40000 PURPOSE=USER"),
            "CIRC 1 LAUNCHED PURPOSE=GENERAL".into(),
            format!("CIRC 1 EXTENDED {one} PURPOSE=GENERAL"),
            format!("CIRC 1 EXTENDED {two} PURPOSE=GENERAL"),
            format!("CIRC 1 EXTENDED {three} PURPOSE=GENERAL"),
            format!("CIRC 1 BUILT {three} PURPOSE=GENERAL"),
            format!("STREAM 1 SENTCONNECT 1 {target}"),
            format!("STREAM 1 SUCCEEDED 1 {target}"),
        ]
    );
    stream.shutdown().await.expect("finishes");
    drop(stream);
    assert_eq!(
        told(&mut followed),
        [format!("STREAM 1 CLOSED 1 {target} REASON=DONE")]
    );
    let early = Terms::default().early(true);
    drop(
        soon(onion.open_stream(&target, &early))
            .await
            .expect("opens"),
    );
    assert_eq!(
        told(&mut followed),
        [
            format!("STREAM 2 NEW 0 {target} PURPOSE=USER"),
            format!("STREAM 2 SENTCONNECT 1 {target}"),
            format!("STREAM 2 FAILED 1 {target} REASON=MISC"),
        ],
        "an early one that its program has given up"
    );
    drop(onion);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let closed = format!("CIRC 1 CLOSED {three} PURPOSE=GENERAL REASON=FINISHED");
    assert_eq!(told(&mut followed), [closed]);
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_fails_says_how_far_it_came_and_the_stream_that_there_is_none() {
    let world = World::new(Duration::ZERO, Kind::default());
    world.net.stop(2);
    let events = Events::open();
    let mut followed = events.follow().expect("open");
    let onion = world.client(config(&events));
    let listener = world.far().listen().await.expect("listens");
    let target = listener.target();
    let opened = soon(onion.open_stream(&target, &Terms::default())).await;
    opened.expect_err("no second relay");
    let one = path(&world, 1);
    assert_eq!(
        told(&mut followed),
        [
            format!("STREAM 1 NEW 0 {target} PURPOSE=USER"),
            "CIRC 1 LAUNCHED PURPOSE=GENERAL".into(),
            format!("CIRC 1 EXTENDED {one} PURPOSE=GENERAL"),
            format!("CIRC 1 FAILED {one} PURPOSE=GENERAL REASON=DESTROYED"),
            format!("STREAM 1 FAILED 0 {target} REASON=MISC"),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_its_target_refuses_has_failed_and_its_circuit_has_not() {
    let world = World::new(Duration::ZERO, Kind::default());
    let events = Events::open();
    let onion = world.client(config(&events));
    let _listener = world.far().listen().await.expect("listens elsewhere");
    let target = SocketAddr::new(world.far().host(), 9).into();
    let mut followed = events.follow().expect("open");
    let opened = soon(onion.open_stream(&target, &Terms::default())).await;
    opened.expect_err("refused");
    let told = told(&mut followed);
    let last = told.last().expect("something");
    assert_eq!(
        *last,
        format!("STREAM 1 FAILED 1 {target} REASON=CONNECTREFUSED")
    );
    assert!(
        told.iter().all(|event| !event.starts_with("CIRC 1 CLOSED")),
        "{told:?}"
    );
}

#[tokio::test]
async fn where_events_go_nowhere_nobody_can_follow() {
    assert!(Events::default().follow().is_none());
    assert_eq!(Config::default().events, Events::default());
}
