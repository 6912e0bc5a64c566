//! Conflux: streams over two circuits at once, from the client's end to the target's, and ends that keep to none of its rules. Proposal 329.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use hoplite_onion::{
    Config, Onion,
    channel::{Channel, Waiting},
    path::{self, CircuitUsage, Paths},
    relay::{Config as RelayConfig, Relay},
};
use hoplite_overlay::{
    Error, ErrorKind, Overlay, Stream, Terms, conformance::Memory, memory::Network,
};
use hoplite_testing::{soon, targets};
use hoplite_wire::{
    Target,
    cell::{
        circuit::DestroyReason,
        conflux::{DesiredUx, Link, Nonce, Switch},
        relay::{Begin, End, EndReason, Flags, Message, RelayCommand},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, split},
    time::{Instant, sleep},
};

use crate::{
    raw::{Heard, Raw, data_of},
    support::{FAR, Kind, Net, World, known},
};

/// A client with two ways to one exit: over relays 1 and 2, and over 3 and 4.
struct Legs {
    net: Arc<Net>,
    network: Network,
    relays: Vec<Arc<Relay>>,
    paths: Arc<Pair>,
}

/// Always the same two paths for a set, and the first for one circuit.
#[derive(Debug)]
struct Pair([Vec<path::Relay>; 2]);

impl Paths for Pair {
    fn path<'a>(&'a self, _: &'a CircuitUsage) -> Waiting<'a, Result<Vec<path::Relay>, Error>> {
        Box::pin(async { Ok(self.0[0].clone()) })
    }

    fn pair<'a>(
        &'a self,
        _: &'a CircuitUsage,
    ) -> Waiting<'a, Result<Option<[Vec<path::Relay>; 2]>, Error>> {
        Box::pin(async { Ok(Some(self.0.clone())) })
    }
}

impl Legs {
    /// Each channel takes so long; those to relays 3 and 4 take `slow`.
    fn new(fast: Duration, slow: Duration) -> Self {
        let (network, net) = (Network::new(1), Net::new(fast));
        for n in [3, 4] {
            net.slow.lock().insert([n; 32], slow);
        }
        let relays: Vec<_> = (1..=5).map(|n| net.relay(n, &network, |_| {})).collect();
        let to = |places: [usize; 3]| {
            let relays = places.map(|place| known(&relays[place], Kind::default()));
            relays.to_vec()
        };
        let paths = Arc::new(Pair([to([0, 1, 4]), to([2, 3, 4])]));
        Self {
            net,
            network,
            relays,
            paths,
        }
    }

    fn exit(&self) -> &Relay {
        &self.relays[4]
    }

    /// A client whose set stands ready.
    async fn client(&self) -> Onion {
        let paths = Arc::clone(&self.paths) as Arc<dyn Paths>;
        let onion = Onion::new(self.net.dialer(None), paths, Config::default());
        onion.warm();
        while count(&self.exit().counters.linked) < 2 {
            sleep(Duration::from_millis(10)).await;
        }
        // The last answer of the handshake is on its way.
        sleep(Duration::from_secs(2)).await;
        onion
    }

    /// Cells of the exit that the middles of both legs have passed to the client, and those of the client to the exit.
    fn carried(&self) -> [(u64, u64); 2] {
        [1, 3].map(|middle| {
            let cells = &self.relays[middle].counters.cells;
            (count(&cells.passed_back), count(&cells.passed_forth))
        })
    }

    async fn target<F, T>(&self, serve: F) -> Target
    where
        F: Fn(Stream) -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        targets::at(&Memory::new(self.network.clone(), FAR), serve).await
    }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

/// Bytes of which none is like its neighbours at any distance that cells have.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(length).collect()
}

#[tokio::test(start_paused = true)]
async fn bytes_come_whole_and_in_order_over_legs_of_unequal_delay_and_both_carry_them() {
    for slow in [5, 20, 40].map(Duration::from_millis) {
        let legs = Legs::new(Duration::from_millis(5), slow);
        let onion = legs.client().await;
        let give = |mut stream: Stream| async move {
            stream.write_all(&pattern(3_000_000)).await.expect("taken");
            stream.shutdown().await.expect("taken");
            // Until the client has ended, too.
            drop(stream.read_u8().await);
        };
        let give = legs.target(give).await;
        let stream = onion.open_stream(&give, &Terms::default()).await;
        let (mut stream, mut got) = (stream.expect("opens"), Vec::new());
        let read = stream.read_to_end(&mut got).await;
        read.expect("an orderly end");
        drop(stream);
        assert!(got == pattern(3_000_000), "{} bytes", got.len());
        let [fast, other] = legs.carried();
        assert!(fast.0 > 100 && other.0 > 100, "{fast:?} {other:?}");
        // And back.
        let echo = legs.target(targets::echo).await;
        let stream = onion.open_stream(&echo, &Terms::default()).await;
        let (mut reader, mut writer) = split(stream.expect("opens"));
        let data = pattern(1_000_000);
        let sending = async {
            writer.write_all(&data).await.expect("taken");
            writer.shutdown().await.expect("taken");
        };
        let mut got = Vec::new();
        let ((), read) = tokio::join!(sending, reader.read_to_end(&mut got));
        read.expect("an orderly end");
        assert!(got == data, "{} of {} bytes", got.len(), data.len());
    }
}

#[tokio::test(start_paused = true)]
async fn many_streams_share_a_set() {
    let legs = Legs::new(Duration::from_millis(5), Duration::from_millis(60));
    let onion = legs.client().await;
    let echo = legs.target(targets::echo).await;
    let each = (0..20_usize).map(async |n| {
        let stream = onion.open_stream(&echo, &Terms::default()).await;
        let (mut reader, mut writer) = split(stream.expect("opens"));
        let data = pattern(50_000 + n);
        let sending = async {
            writer.write_all(&data).await.expect("taken");
            writer.shutdown().await.expect("taken");
        };
        let mut got = Vec::new();
        let ((), read) = tokio::join!(sending, reader.read_to_end(&mut got));
        read.expect("an orderly end");
        assert!(got == data);
    });
    soon(futures_util::future::join_all(each)).await;
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_is_lost_under_way_ends_streams_with_an_error_and_the_next_gets_another_circuit()
{
    for killed in [2, 4] {
        let legs = Legs::new(Duration::from_millis(5), Duration::from_millis(60));
        let onion = legs.client().await;
        let greedy =
            |mut stream: Stream| async move { while stream.write_all(&[9; 4096]).await.is_ok() {} };
        let greedy = legs.target(greedy).await;
        let stream = onion.open_stream(&greedy, &Terms::default()).await;
        let mut stream = stream.expect("opens");
        let mut bytes = vec![0; 4096];
        while legs.carried().iter().any(|(down, _)| *down < 300) {
            stream.read_exact(&mut bytes).await.expect("bytes");
        }
        legs.net.kill(killed);
        let error = loop {
            match soon(stream.read(&mut bytes)).await {
                Ok(0) => panic!("an orderly end, though bytes were lost"),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        let why = error.get_ref().and_then(|why| why.downcast_ref::<Error>());
        let kind = why.map(Error::kind);
        assert_eq!(kind, Some(ErrorKind::PathFailed), "{error}");
        if killed == 4 {
            let echo = legs.target(targets::echo).await;
            let stream = onion.open_stream(&echo, &Terms::default()).await;
            let mut stream = stream.expect("by one circuit");
            stream.write_all(b"again").await.expect("taken");
            soon(stream.read_exact(&mut bytes[..5]))
                .await
                .expect("bytes");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn where_a_leg_cannot_be_built_a_stream_goes_over_one_circuit() {
    let legs = Legs::new(Duration::from_millis(5), Duration::from_millis(5));
    legs.net.stop(4);
    let paths = Arc::clone(&legs.paths) as Arc<dyn Paths>;
    let onion = Onion::new(legs.net.dialer(None), paths, Config::default());
    onion.warm();
    let echo = legs.target(targets::echo).await;
    let stream = soon(onion.open_stream(&echo, &Terms::default())).await;
    let mut stream = stream.expect("by one circuit");
    stream.write_all(b"whole").await.expect("taken");
    let mut bytes = [0; 5];
    soon(stream.read_exact(&mut bytes)).await.expect("bytes");
    assert_eq!(&bytes, b"whole");
}

#[tokio::test(start_paused = true)]
async fn a_set_that_nobody_wants_any_more_is_closed_on_both_legs() {
    let legs = Legs::new(Duration::from_millis(5), Duration::from_millis(20));
    let onion = legs.client().await;
    assert_eq!(legs.exit().circuits(), 2);
    drop(onion);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(legs.exit().circuits(), 0);
}

/// Virtual seconds until so many bytes have come, each time on a new stream, over a set or over its first path alone.
async fn fetches(fast: Duration, slow: Duration, conflux: bool, bytes: usize) -> Vec<f64> {
    let legs = Legs::new(fast, slow);
    let paths = Arc::clone(&legs.paths) as Arc<dyn Paths>;
    let config = Config {
        conflux,
        ..Config::default()
    };
    let onion = Onion::new(legs.net.dialer(None), paths, config);
    onion.warm();
    sleep(Duration::from_secs(5)).await;
    let give = move |mut stream: Stream| async move {
        drop(stream.write_all(&pattern(bytes)).await);
        drop(stream.shutdown().await);
        drop(stream.read_u8().await);
    };
    let give = legs.target(give).await;
    let mut took = Vec::new();
    for _ in 0..3 {
        let begun = Instant::now();
        let stream = onion.open_stream(&give, &Terms::default()).await;
        let (mut stream, mut got) = (stream.expect("opens"), Vec::new());
        stream.read_to_end(&mut got).await.expect("bytes");
        assert_eq!(got.len(), bytes);
        took.push(begun.elapsed().as_secs_f64());
    }
    took
}

/// A channel in memory takes 64 cells in the time that one travels: so a leg has a rate, and the slower the lower.
#[tokio::test(start_paused = true)]
async fn a_set_is_faster_than_its_faster_leg_alone_or_hardly_slower() {
    let (fast, all) = (Duration::from_millis(20), [20, 60, 150]);
    for slow in all.map(Duration::from_millis) {
        // A leg whose round trip is a fifth of all the time that the fetch takes brings little.
        let much = if slow < Duration::from_millis(150) {
            0.9
        } else {
            1.05
        };
        for (bytes, most) in [(30_000, 1.05), (300_000, 1.05), (5_000_000, much)] {
            let alone = fetches(fast, slow, false, bytes).await;
            let set = fetches(fast, slow, true, bytes).await;
            let sum = |times: &[f64]| times.iter().sum::<f64>();
            assert!(
                sum(&set) <= most * sum(&alone),
                "{slow:?}, {bytes} bytes: {set:?} and {alone:?}"
            );
        }
    }
}

// A client that says what it likes, at an exit.

const NONCE: Nonce = Nonce([7; 32]);

fn link(nonce: &Nonce) -> Vec<u8> {
    let link = Link {
        nonce: nonce.clone(),
        last_sent: 0,
        last_received: 0,
        wish: DesiredUx::HIGH_THROUGHPUT,
    };
    let mut data = Vec::new();
    link.write(&mut data);
    data
}

fn switch(relative: u32) -> Vec<u8> {
    let mut data = Vec::new();
    Switch { relative }.write(&mut data);
    data
}

/// An exit, and circuits of one hop to it.
struct Bare {
    world: World,
    channel: Arc<dyn Channel>,
}

impl Bare {
    async fn new(change: impl FnOnce(&mut RelayConfig)) -> Self {
        let mut world = World::new(Duration::ZERO, Kind::default());
        let made = world
            .net
            .relay(7, &world.network, |relay| change(&mut relay.config));
        world.path = vec![known(&made, Kind::default())];
        world.relays = vec![made];
        let channel = world.net.dialer(None).channel(&world.path[0]).await;
        let channel = channel.expect("a channel");
        Self { world, channel }
    }

    async fn circuit(&self, congestion_control: bool) -> Raw {
        Raw::new(&*self.channel, &self.world.path[0], congestion_control).await
    }

    /// A circuit that is a leg, but for LINKED_ACK.
    async fn leg(&self) -> Raw {
        let mut raw = self.circuit(true).await;
        raw.say(RelayCommand::CONFLUX_LINK, 0, &link(&NONCE)).await;
        let heard = raw.hear().await;
        let linked = matches!(&heard, Heard::Message(0, RelayCommand::CONFLUX_LINKED, ..));
        assert!(linked, "{heard:?}");
        raw
    }

    async fn legs(&self) -> [Raw; 2] {
        let mut legs = [self.leg().await, self.leg().await];
        for leg in &mut legs {
            leg.say(RelayCommand::CONFLUX_LINKED_ACK, 0, &[]).await;
        }
        legs
    }
}

/// An answer comes on either leg, behind a SWITCH perhaps.
async fn answers([one, other]: &mut [Raw; 2]) {
    loop {
        let heard = tokio::select! {
            heard = one.hear() => heard,
            heard = other.hear() => heard,
        };
        match heard {
            Heard::Message(0, RelayCommand::RESOLVED, ..) => return,
            Heard::Message(0, RelayCommand::CONFLUX_SWITCH, ..) => {}
            heard => panic!("{heard:?}"),
        }
    }
}

async fn is_closed(raw: &mut Raw, reason: DestroyReason) {
    assert_eq!(raw.hear_of_the_circuit().await, Heard::Destroyed(reason));
}

/// Both legs end, and nothing of the set is left.
async fn set_is_closed(bare: &Bare, [guilty, other]: &mut [Raw; 2]) {
    is_closed(guilty, DestroyReason::PROTOCOL).await;
    is_closed(other, DestroyReason::FINISHED).await;
    assert_eq!(bare.world.relays[0].circuits(), 0);
}

fn begin() -> Vec<u8> {
    let target = "198.51.100.7:80".parse().expect("valid");
    let flags = Flags::default();
    data_of(&Message::Begin(Begin { target, flags }))
}

#[tokio::test]
async fn linked_repeats_the_nonce_and_asks_for_low_latency_as_c_tors_exits_do() {
    let bare = Bare::new(|_| {}).await;
    let mut raw = bare.circuit(true).await;
    raw.say(RelayCommand::CONFLUX_LINK, 0, &link(&NONCE)).await;
    let Heard::Message(0, RelayCommand::CONFLUX_LINKED, _, data, _) = raw.hear().await else {
        panic!("no LINKED");
    };
    let linked = Link::parse(&data).expect("LINKED");
    assert_eq!(linked.nonce, NONCE);
    assert_eq!((linked.last_sent, linked.last_received), (0, 0));
    assert_eq!(linked.wish, DesiredUx::MIN_LATENCY);
}

#[tokio::test]
async fn circuits_that_may_be_no_legs_are_refused() {
    // Without congestion control.
    let bare = Bare::new(|_| {}).await;
    let mut raw = bare.circuit(false).await;
    raw.say(RelayCommand::CONFLUX_LINK, 0, &link(&NONCE)).await;
    is_closed(&mut raw, DestroyReason::PROTOCOL).await;
    // With streams.
    let mut raw = bare.circuit(true).await;
    raw.say(RelayCommand::BEGIN, 1, &begin()).await;
    raw.say(RelayCommand::CONFLUX_LINK, 0, &link(&NONCE)).await;
    is_closed(&mut raw, DestroyReason::PROTOCOL).await;
    // With more than it should say.
    let mut raw = bare.circuit(true).await;
    let long = [link(&NONCE), vec![0]].concat();
    raw.say(RelayCommand::CONFLUX_LINK, 0, &long).await;
    is_closed(&mut raw, DestroyReason::PROTOCOL).await;
    // Parts of the handshake that are not the client's, or not due.
    for (command, data) in [
        (RelayCommand::CONFLUX_LINKED, link(&NONCE)),
        (RelayCommand::CONFLUX_LINKED_ACK, Vec::new()),
        (RelayCommand::CONFLUX_SWITCH, switch(1)),
    ] {
        let mut raw = bare.circuit(true).await;
        raw.say(command, 0, &data).await;
        is_closed(&mut raw, DestroyReason::PROTOCOL).await;
    }
    // Where it is not done.
    let bare = Bare::new(|config| config.conflux = false).await;
    let mut raw = bare.circuit(true).await;
    raw.say(RelayCommand::CONFLUX_LINK, 0, &link(&NONCE)).await;
    is_closed(&mut raw, DestroyReason::PROTOCOL).await;
}

#[tokio::test]
async fn a_leg_too_many_is_refused_and_the_set_stands() {
    let bare = Bare::new(|_| {}).await;
    let mut legs = bare.legs().await;
    let mut third = bare.circuit(true).await;
    third
        .say(RelayCommand::CONFLUX_LINK, 0, &link(&NONCE))
        .await;
    is_closed(&mut third, DestroyReason::PROTOCOL).await;
    legs[0]
        .say(RelayCommand::RESOLVE, 1, b"198.51.100.7\0")
        .await;
    answers(&mut legs).await;
}

#[tokio::test]
async fn another_nonce_is_another_set() {
    let bare = Bare::new(|_| {}).await;
    let mut legs = bare.legs().await;
    let mut other = bare.circuit(true).await;
    let nonce = Nonce([8; 32]);
    other
        .say(RelayCommand::CONFLUX_LINK, 0, &link(&nonce))
        .await;
    other.say(RelayCommand::CONFLUX_LINKED_ACK, 0, &[]).await;
    other.say(RelayCommand::RESOLVE, 1, b"198.51.100.7\0").await;
    loop {
        match other.hear().await {
            Heard::Message(0, RelayCommand::CONFLUX_LINKED, ..) => {}
            Heard::Message(0, RelayCommand::RESOLVED, ..) => break,
            heard => panic!("{heard:?}"),
        }
    }
    legs[1]
        .say(RelayCommand::RESOLVE, 1, b"198.51.100.7\0")
        .await;
    answers(&mut legs).await;
}

/// Each ends the set, by its second message at the latest.
#[tokio::test]
async fn who_breaks_the_order_of_a_set_loses_both_legs() {
    let mut cases = Vec::new();
    let mut case = |said: &[(RelayCommand, u16, Vec<u8>)]| cases.push(said.to_vec());
    let (to, end) = (
        RelayCommand::CONFLUX_SWITCH,
        data_of(&Message::End(End::new(EndReason::MISC))),
    );
    // A second LINK, a second LINKED_ACK.
    case(&[(RelayCommand::CONFLUX_LINK, 0, link(&NONCE))]);
    case(&[(RelayCommand::CONFLUX_LINKED_ACK, 0, Vec::new())]);
    // LINKED, which an exit says.
    case(&[(RelayCommand::CONFLUX_LINKED, 0, link(&NONCE))]);
    // SWITCH twice, to nowhere after something came, and too far.
    case(&[(to, 0, switch(1)), (to, 0, switch(1))]);
    case(&[(RelayCommand::END, 9, end.clone()), (to, 0, switch(0))]);
    case(&[(to, 0, switch(u32::MAX))]);
    // One that says more than a number.
    case(&[(to, 0, vec![0; 5])]);
    for said in cases {
        let bare = Bare::new(|_| {}).await;
        let mut legs = bare.legs().await;
        for (command, stream, data) in said {
            legs[0].say(command, stream, &data).await;
        }
        set_is_closed(&bare, &mut legs).await;
    }
}

#[tokio::test]
async fn a_message_before_linked_ack_ends_the_set() {
    let bare = Bare::new(|_| {}).await;
    let mut legs = [bare.leg().await, bare.leg().await];
    legs[0].say(RelayCommand::BEGIN, 1, &begin()).await;
    set_is_closed(&bare, &mut legs).await;
}

#[tokio::test]
async fn a_set_without_one_of_its_legs_goes_on_if_nothing_was_lost() {
    let bare = Bare::new(|_| {}).await;
    let [mut first, second] = bare.legs().await;
    second.circuit.sender.destroy(DestroyReason::NONE);
    first.say(RelayCommand::RESOLVE, 2, b"198.51.100.7\0").await;
    let heard = first.hear().await;
    let answered = matches!(&heard, Heard::Message(0, RelayCommand::RESOLVED, ..));
    assert!(answered, "{heard:?}");
}

/// The flood is not acknowledged beyond what may wait, and more than a window after that ends the set: so far is what is kept.
#[tokio::test]
async fn a_flood_out_of_order_is_not_acknowledged_and_bounded() {
    let bare = Bare::new(|config| config.limits.early = 310).await;
    let mut legs = bare.legs().await;
    // The first is never said.
    legs[0]
        .say(RelayCommand::CONFLUX_SWITCH, 0, &switch(1))
        .await;
    let (mut said, mut acknowledged) = (0_u32, 0_u32);
    let ended = loop {
        for _ in 0..31 {
            legs[0].say(RelayCommand::DATA, 1, &[1; 100]).await;
            said += 1;
        }
        if said <= 310 {
            let heard = legs[0].hear().await;
            let sendme = matches!(&heard, Heard::Message(0, RelayCommand::SENDME, ..));
            assert!(sendme, "{heard:?}");
            acknowledged += 31;
        }
        if said > 310 + 16_384 {
            break legs[0].hear().await;
        }
    };
    assert_eq!(ended, Heard::Destroyed(DestroyReason::PROTOCOL));
    assert_eq!(acknowledged, 310);
    is_closed(&mut legs[1], DestroyReason::FINISHED).await;
    assert_eq!(bare.world.relays[0].circuits(), 0);
}
