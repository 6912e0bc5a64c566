//! What stands still disturbs nobody else: a stream that nobody reads, a target that reads nothing, a whole circuit.

use std::time::Duration;

use futures_util::future::join_all;
use hoplite_onion::{Config, Onion};
use hoplite_overlay::{Overlay, Stream, Terms};
use hoplite_testing::{soon, targets};
use hoplite_wire::Target;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, split},
    time::{Instant, timeout},
};

use crate::{
    support::{Kind, World},
    token,
};

const LATENCY: Duration = Duration::from_millis(20);

/// A target that sends without end and reads nothing, and one that sends back what it gets.
pub(crate) struct Targets {
    greedy: Target,
    pub(crate) echo: Target,
}

pub(crate) async fn greedy_and_echo(world: &World) -> Targets {
    let talk =
        |mut stream: Stream| async move { while stream.write_all(&[9; 4096]).await.is_ok() {} };
    Targets {
        greedy: targets::at(&world.far(), talk).await,
        echo: targets::at(&world.far(), targets::echo).await,
    }
}

/// How long it takes to open a stream and to have 200 KB sent back.
pub(crate) async fn exchange(onion: &Onion, target: &Target, terms: &Terms) -> Duration {
    let begun = Instant::now();
    let stream = onion.open_stream(target, terms).await.expect("opens");
    let (mut reader, mut writer) = split(stream);
    let data = vec![5; 200_000];
    let mut got = Vec::new();
    let sending = async {
        writer.write_all(&data).await.expect("taken");
        writer.shutdown().await.expect("taken");
    };
    let ((), read) = tokio::join!(sending, reader.read_to_end(&mut got));
    read.expect("an end");
    assert_eq!(got.len(), data.len());
    begun.elapsed()
}

/// A stream that is neither read, though it has a megabyte to give, nor drained at the target, though as much was written to it.
pub(crate) async fn stall(onion: &Onion, targets: &Targets, terms: &Terms) -> Stream {
    let opened = onion.open_stream(&targets.greedy, terms).await;
    let mut stream = opened.expect("opens");
    let chunk = vec![1; 65_536];
    while timeout(Duration::from_secs(30), stream.write_all(&chunk))
        .await
        .is_ok()
    {}
    stream
}

#[tokio::test(start_paused = true)]
async fn a_stalled_stream_changes_nothing_for_another_of_its_circuit() {
    for congestion_control in [true, false] {
        let kind = Kind {
            congestion_control,
            ..Kind::default()
        };
        let world = World::new(LATENCY, kind);
        let (onion, targets) = (
            world.client(Config::default()),
            greedy_and_echo(&world).await,
        );
        let terms = Terms::default();
        soon(exchange(&onion, &targets.echo, &terms)).await;
        let alone = soon(exchange(&onion, &targets.echo, &terms)).await;
        let stalled = soon(stall(&onion, &targets, &terms)).await;
        let beside = soon(exchange(&onion, &targets.echo, &terms)).await;
        assert!(
            beside <= alone + LATENCY,
            "{beside:?} beside it, {alone:?} alone"
        );
        drop(stalled);
    }
}

#[tokio::test(start_paused = true)]
async fn stalled_circuits_change_nothing_for_a_hundred_others_on_the_same_channels() {
    let world = World::new(LATENCY, Kind::default());
    let config = Config {
        isolated: 128,
        ..Config::default()
    };
    let (onion, targets) = (world.client(config), greedy_and_echo(&world).await);
    let all = async || {
        let each = (0..100).map(async |n| {
            let terms = token(n);
            exchange(&onion, &targets.echo, &terms).await
        });
        soon(join_all(each)).await
    };
    all().await;
    let alone = all().await;
    let mut stalled = Vec::new();
    for n in 1000..1003 {
        stalled.push(soon(stall(&onion, &targets, &token(n))).await);
    }
    let beside = all().await;
    let slowest = |times: &[Duration]| times.iter().max().copied().unwrap_or_default();
    let (alone, beside) = (slowest(&alone), slowest(&beside));
    assert!(
        beside <= alone + LATENCY,
        "{beside:?} beside them, {alone:?} alone"
    );
    drop(stalled);
}
