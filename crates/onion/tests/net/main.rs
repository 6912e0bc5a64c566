//! Circuits through relays in memory, from the overlay's end to the target's.
#![expect(clippy::panic, reason = "a test: whatever fails ends it")]

mod cgo;
mod conflux;
mod crowd;
mod events;
mod faults;
mod hostile;
mod liar;
mod onion_services;
mod paths;
mod published;
mod queued;
mod raw;
mod rivals;
mod services;
mod stalls;
mod support;
mod together;
mod udp;

use std::{collections::HashSet, sync::Arc, time::Duration};

use hoplite_onion::{
    Config,
    channel::Waiting,
    relay::{Asking, Directory},
};
use hoplite_overlay::{
    Error, ErrorKind, Isolation, Overlay, Reason, Stream, Terms, conformance::Far,
};
use hoplite_testing::soon;
use hoplite_wire::HostName;
use support::{FAR, Kind, World};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::Instant,
};

/// The whole suite of overlays, by ntor-v3 with congestion control and CGO.
mod cgo_and_vegas {
    use super::*;
    hoplite_overlay::conformance_tests!(
        World::new(Duration::ZERO, Kind::default()).subject(Config::default())
    );
}

/// With the layers of tor1.
mod tor1 {
    use super::*;
    hoplite_overlay::conformance_tests!({
        let config = Config {
            cgo: false,
            ..Config::default()
        };
        World::new(Duration::ZERO, Kind::default()).subject(config)
    });
}

/// And by ntor with fixed windows.
mod fixed {
    use super::*;
    hoplite_overlay::conformance_tests!({
        let kind = Kind {
            ntor3: false,
            congestion_control: false,
            cgo: false,
        };
        World::new(Duration::ZERO, kind).subject(Config::default())
    });
}

/// Terms with a token of their own.
pub(crate) fn token(n: u32) -> Terms {
    Terms {
        isolation: Isolation::new(n.to_be_bytes().to_vec()),
        ..Terms::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_opens_in_one_round_trip_of_the_path_and_an_early_one_at_once() {
    let latency = Duration::from_millis(50);
    let world = World::new(latency, Kind::default());
    let onion = world.client(Config::default());
    let mut listener = world.far().listen().await.expect("listens");
    let (target, terms) = (listener.target(), Terms::default());
    soon(onion.open_stream(&target, &terms))
        .await
        .expect("opens");
    let begun = Instant::now();
    soon(onion.open_stream(&target, &terms))
        .await
        .expect("opens");
    assert_eq!(
        begun.elapsed().as_millis() / 10,
        30,
        "three channels there and back"
    );
    let begun = Instant::now();
    let early = Terms::default().early(true);
    let mut stream = soon(onion.open_stream(&target, &early))
        .await
        .expect("opens");
    assert!(begun.elapsed() < Duration::from_millis(5));
    stream.write_all(b"hello").await.expect("taken");
    for _ in 0..3 {
        let mut far = soon(listener.accept()).await.expect("accepts");
        let mut got = [0; 5];
        if soon(far.read_exact(&mut got)).await.is_ok() {
            assert_eq!(&got, b"hello");
            assert_eq!(begun.elapsed().as_millis() / 10, 15, "one way");
            return;
        }
    }
    panic!("nothing arrived");
}

#[tokio::test(start_paused = true)]
async fn each_token_has_a_circuit_of_its_own_and_the_spare_was_built_ahead() {
    let latency = Duration::from_millis(50);
    let world = World::new(latency, Kind::default());
    let onion = world.client(Config::default());
    let listener = world.far().listen().await.expect("listens");
    let target = listener.target();
    onion.warm();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.relays[2].circuits(), 1, "the spare");
    let begun = Instant::now();
    let one = soon(onion.open_stream(&target, &token(1)))
        .await
        .expect("opens");
    assert_eq!(begun.elapsed().as_millis() / 10, 30, "nothing but BEGIN");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(
        world.relays[2].circuits(),
        2,
        "the token's, and the next spare"
    );
    let again = soon(onion.open_stream(&target, &token(1)))
        .await
        .expect("opens");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.relays[2].circuits(), 2, "one circuit for a token");
    let other = soon(onion.open_stream(&target, &token(2)))
        .await
        .expect("opens");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.relays[2].circuits(), 3);
    drop((one, again, other, onion));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.relays[2].circuits(), 0, "all were closed");
    assert_eq!(world.relays[0].circuits(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_circuit_without_streams_ends_and_one_that_is_old_gets_no_new_ones() {
    let world = World::new(Duration::from_millis(10), Kind::default());
    let config = Config {
        ahead: 0,
        ..Config::default()
    };
    let onion = world.client(config.clone());
    let listener = world.far().listen().await.expect("listens");
    let (target, terms) = (listener.target(), Terms::default());
    let first = soon(onion.open_stream(&target, &terms))
        .await
        .expect("opens");
    tokio::time::sleep(config.lasts).await;
    let second = soon(onion.open_stream(&target, &terms))
        .await
        .expect("opens");
    assert_eq!(
        world.relays[2].circuits(),
        2,
        "the old one keeps its stream"
    );
    drop(first);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.relays[2].circuits(), 1);
    drop(second);
    tokio::time::sleep(config.idle + Duration::from_secs(1)).await;
    assert_eq!(world.relays[2].circuits(), 0);
}

#[tokio::test]
async fn names_are_resolved_by_the_exit() {
    let world = World::new(Duration::ZERO, Kind::default());
    let onion = world.client(Config::default());
    let name = HostName::new("site.example").expect("valid");
    world.network.host(name, FAR);
    let terms = Terms::default();
    let found = soon(onion.resolve("site.example", &terms)).await;
    assert_eq!(found.expect("found"), [FAR]);
    let error = soon(onion.resolve("nobody.invalid", &terms)).await;
    let error = error.expect_err("nobody");
    let said = (error.kind(), error.reason());
    assert_eq!(said, (ErrorKind::TargetFailed, Some(Reason::NameNotFound)));
    // The look-ups are forgotten: the circuit has no streams.
    let mut listener = world.far().listen().await.expect("listens");
    let port = listener.target().port;
    let target = format!("site.example:{port}").parse().expect("valid");
    let mut near = soon(onion.open_stream(&target, &terms))
        .await
        .expect("opens");
    let mut far = soon(listener.accept()).await.expect("accepts");
    far.write_all(b"!").await.expect("open");
    assert_eq!(soon(near.read_u8()).await.expect("open"), b'!');
}

/// A directory that says who it is.
#[derive(Debug)]
struct Speaks;

impl Directory for Speaks {
    fn open(&self, asking: Asking) -> Waiting<'_, Result<Stream, Error>> {
        assert!(asking.is_relay, "three relays away");
        Box::pin(async {
            let (near, mut far) = tokio::io::duplex(1000);
            tokio::spawn(async move {
                far.write_all(b"directory").await.expect("open");
            });
            Ok(Stream::new(tokio::io::BufStream::new(near)))
        })
    }
}

#[tokio::test]
async fn a_directory_stream_ends_at_the_last_relay_if_it_has_one() {
    let mut world = World::new(Duration::ZERO, Kind::default());
    let onion = world.client(Config::default());
    let error = soon(onion.open_directory(&Terms::default())).await;
    assert_eq!(error.expect_err("none").kind(), ErrorKind::Unsupported);
    let last = world.net.relay(4, &world.network, |relay| {
        relay.directory = Some(Arc::new(Speaks));
    });
    world.path[2] = support::known(&last, Kind::default());
    let onion = world.client(Config::default());
    let mut stream = soon(onion.open_directory(&Terms::default()))
        .await
        .expect("opens");
    let mut got = String::new();
    soon(stream.read_to_string(&mut got)).await.expect("an end");
    assert_eq!(got, "directory");
}

#[tokio::test]
async fn one_to_eight_relays_carry_a_stream() {
    for hops in [1, 2, 8] {
        let mut world = World::new(Duration::ZERO, Kind::default());
        let relays = (10..10 + hops).map(|n| world.net.relay(n, &world.network, |_| {}));
        world.relays = relays.collect();
        let known = world
            .relays
            .iter()
            .map(|relay| support::known(relay, Kind::default()));
        world.path = known.collect();
        let ids: HashSet<_> = world.path.iter().map(|relay| relay.keys.ed25519).collect();
        assert_eq!(ids.len(), usize::from(hops));
        let subject = world.subject(Config::default());
        hoplite_overlay::conformance::a_mebibyte_is_echoed_unchanged(&subject).await;
    }
}
