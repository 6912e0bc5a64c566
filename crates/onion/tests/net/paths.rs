//! Paths that are chosen from many relays, by a fixed seed, while relays die: what that costs, what is said, and what comes after.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use hoplite_onion::{
    Config, Onion,
    channel::Waiting,
    path::{self, CircuitFate, CircuitUsage, Failed, Paths},
    relay,
};
use hoplite_overlay::{
    Error, ErrorKind, Overlay, Stream, Terms, conformance::Memory, memory::Network,
};
use hoplite_testing::{Double, seeded, soon, targets};
use hoplite_wire::Target;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, sleep},
};

use crate::{
    support::{FAR, Kind, Net, known},
    token,
};

const LATENCY: Duration = Duration::from_millis(10);

/// A random number below another.
type Random = Box<dyn FnMut(usize) -> usize + Send>;

fn random(seed: u64) -> Random {
    let mut bits = seeded(seed);
    Box::new(move |below| usize::try_from(bits() % below as u64).expect("below"))
}

/// Chooses three relays at random, none that failed, and an exit for as many of the ports as it can.
struct Chooser {
    relays: Vec<path::Relay>,
    state: Mutex<Choices>,
}

struct Choices {
    random: Random,
    failed: HashSet<u8>,
    /// All paths so far.
    made: Vec<[u8; 3]>,
}

fn number(relay: &path::Relay) -> u8 {
    relay.keys.ed25519[0]
}

impl Chooser {
    fn new(relays: Vec<path::Relay>, seed: u64) -> Arc<Self> {
        let state = Choices {
            random: random(seed),
            failed: HashSet::new(),
            made: Vec::new(),
        };
        Arc::new(Self {
            relays,
            state: Mutex::new(state),
        })
    }

    fn made(&self) -> Vec<[u8; 3]> {
        self.state.lock().made.clone()
    }

    fn failed(&self) -> HashSet<u8> {
        self.state.lock().failed.clone()
    }

    fn choose(&self, ports: &[u16]) -> Vec<path::Relay> {
        let state = &mut *self.state.lock();
        let fit = |relay: &&path::Relay| !state.failed.contains(&number(relay));
        let mut left: Vec<_> = self.relays.iter().filter(fit).collect();
        let exits = (0..=ports.len()).rev().find_map(|most| {
            let serves = |relay: &&path::Relay| ports[..most].iter().all(|p| relay.permits(*p));
            let places: Vec<_> = (0..left.len()).filter(|&n| serves(&left[n])).collect();
            (!places.is_empty()).then_some(places)
        });
        let exits = exits.expect("an exit");
        let exit = left.swap_remove(exits[(state.random)(exits.len())]);
        let mut path = Vec::new();
        for _ in 0..2 {
            path.push(left.swap_remove((state.random)(left.len())).clone());
        }
        path.push(exit.clone());
        state.made.push([&path[0], &path[1], &path[2]].map(number));
        path
    }
}

impl std::fmt::Debug for Chooser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Chooser")
    }
}

impl Paths for Chooser {
    fn path<'a>(&'a self, usage: &'a CircuitUsage) -> Waiting<'a, Result<Vec<path::Relay>, Error>> {
        Box::pin(async { Ok(self.choose(&usage.ports)) })
    }

    fn tried(&self, path: &[path::Relay], outcome: Result<(), Failed>) {
        if let Err(failed) = outcome {
            let mut state = self.state.lock();
            state.failed.extend(path.get(failed.hop).map(number));
        }
    }
}

/// Many relays, and targets that send back what they get.
struct World {
    net: Arc<Net>,
    relays: Vec<Arc<relay::Relay>>,
    far: Memory,
}

impl World {
    fn new(relays: u8) -> Self {
        let (network, net) = (Network::new(1), Net::new(LATENCY));
        let relays = (1..=relays).map(|n| net.relay(n, &network, |_| {}));
        Self {
            relays: relays.collect(),
            net: Arc::clone(&net),
            far: Memory::new(network, FAR),
        }
    }

    async fn echo(&self) -> Target {
        targets::at(&self.far, targets::echo).await
    }

    fn known(&self) -> Vec<path::Relay> {
        let relays = self.relays.iter();
        relays.map(|relay| known(relay, Kind::default())).collect()
    }

    fn client(&self, paths: &Arc<Chooser>, config: Config) -> Onion {
        Onion::new(self.net.dialer(None), Arc::clone(paths) as _, config)
    }

    /// Circuits at all relays, each counted at three.
    fn circuits(&self) -> usize {
        let each = self.relays.iter().map(|relay| relay.circuits());
        each.sum::<usize>() / 3
    }
}

async fn open(onion: &Onion, target: &Target, terms: &Terms) -> Stream {
    soon(onion.open_stream(target, terms)).await.expect("opens")
}

/// Sends a kilobyte to and fro until told to stop.
async fn busy(
    mut stream: Stream,
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
) -> std::io::Result<()> {
    let mut got = [0; 1000];
    while !stop.load(Relaxed) {
        stream.write_all(&[7; 1000]).await?;
        stream.read_exact(&mut got).await?;
        rounds.fetch_add(1, Relaxed);
    }
    Ok(())
}

fn demand() -> Config {
    Config {
        ahead: 0,
        ..Config::default()
    }
}

/// A hundred streams of 25 tokens on as many circuits; five of twenty relays are killed, one a second.
async fn killed_at_random(seed: u64) {
    const TOKENS: u32 = 25;
    let world = World::new(20);
    let paths = Chooser::new(world.known(), seed);
    let (onion, target) = (world.client(&paths, demand()), world.echo().await);
    let (stop, rounds) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let mut streams = Vec::new();
    for n in 0..TOKENS {
        for _ in 0..4 {
            let stream = open(&onion, &target, &token(n)).await;
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            streams.push((n, tokio::spawn(busy(stream, stop, rounds))));
        }
    }
    let made = paths.made();
    assert_eq!(made.len(), 25, "one circuit for each token");
    assert_eq!(world.circuits(), 25, "and no two tokens on one");

    let mut random = random(seed ^ 0xdead);
    let mut killed = HashSet::new();
    while killed.len() < 5 {
        sleep(Duration::from_secs(1)).await;
        let n = u8::try_from(random(20) + 1).expect("small");
        world.net.kill(n);
        killed.insert(n);
    }
    sleep(Duration::from_secs(2)).await;
    let before = rounds.load(Relaxed);
    sleep(Duration::from_secs(1)).await;
    assert!(rounds.load(Relaxed) > before, "the others go on");
    stop.store(true, Relaxed);
    let mut lost = 0;
    for (n, stream) in streams {
        let path = made[usize::try_from(n).expect("small")];
        let ended = soon(stream).await.expect("no panic");
        let hit: Vec<_> = (1..)
            .zip(path)
            .filter(|(_, n)| killed.contains(n))
            .collect();
        assert_eq!(
            ended.is_err(),
            !hit.is_empty(),
            "seed {seed}, {path:?}: {ended:?}"
        );
        let Err(error) = ended else { continue };
        lost += 1;
        let error = Error::from_io(&error).expect("the overlay's").clone();
        let said = error.to_string();
        let names =
            |&(hop, n): &(usize, u8)| said.contains(&format!("hop {hop} of 3, relay relay{n} ("));
        assert!(hit.iter().any(names), "seed {seed}, {hit:?}: {said}");
        assert_eq!(error.kind(), ErrorKind::PathFailed);
    }
    assert!((4..100).contains(&lost), "seed {seed}: {lost}");

    // Every token has streams again, on circuits without the dead.
    let again = (0..TOKENS).map(|n| {
        let (onion, target) = (&onion, &target);
        async move {
            let mut stream = open(onion, target, &token(n)).await;
            stream.write_all(b"!").await.expect("taken");
            assert_eq!(soon(stream.read_u8()).await.expect("comes back"), b'!');
            stream
        }
    });
    let streams = join_all(again).await;
    assert_eq!(streams.len(), 25);
    let blamed = paths.failed();
    assert!(blamed.is_subset(&killed), "{blamed:?} for {killed:?}");
    assert_eq!(world.circuits(), 25, "what was lost is gone at every relay");
}

#[tokio::test(start_paused = true)]
async fn relays_killed_under_load_take_the_streams_that_crossed_them_and_no_other() {
    for seed in [1, 2, 3] {
        killed_at_random(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_path_whose_middle_dies_is_replaced_and_the_error_names_it() {
    let world = World::new(5);
    let paths = Chooser::new(world.known(), 7);
    let (onion, target) = (world.client(&paths, demand()), world.echo().await);
    let mut stream = open(&onion, &target, &token(1)).await;
    let middle = paths.made()[0][1];
    world.net.kill(middle);
    let error = soon(stream.read_u8()).await.expect_err("lost");
    let said = Error::from_io(&error).expect("the overlay's").to_string();
    let name = format!("hop 2 of 3, relay relay{middle} (try again");
    assert!(said.contains(&name), "{said}");
    let begun = Instant::now();
    let mut stream = open(&onion, &target, &token(1)).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "at the first try");
    stream.write_all(b"!").await.expect("taken");
    assert_eq!(soon(stream.read_u8()).await.expect("comes back"), b'!');
    let made = paths.made();
    assert_eq!(made.len(), 2);
    assert!(!made[1].contains(&middle));
    // The next dies before it was ever tried: building goes round it.
    let dead: Vec<u8> = (1..=5)
        .filter(|n| !made[1].contains(n) && *n != middle)
        .collect();
    world.net.kill(dead[0]);
    for n in 2..12 {
        open(&onion, &target, &token(n)).await;
    }
    let kept = paths
        .made()
        .into_iter()
        .skip(2)
        .filter(|path| !path.contains(&dead[0]));
    assert!(kept.count() >= 10);
}

#[tokio::test(start_paused = true)]
async fn no_two_tokens_share_a_circuit_though_some_are_built_ahead_and_all_ask_at_once() {
    let world = World::new(9);
    let paths = Chooser::new(world.known(), 3);
    let config = Config {
        ahead: 3,
        ..Config::default()
    };
    let (onion, target) = (world.client(&paths, config), world.echo().await);
    onion.warm();
    let streams = join_all((0..120).map(|n| {
        let (onion, target) = (&onion, &target);
        async move { open(onion, target, &token(n % 30)).await }
    }))
    .await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(streams.len(), 120);
    assert_eq!(
        world.circuits(),
        30 + 3,
        "one for each token, and those ahead"
    );
}

#[tokio::test(start_paused = true)]
async fn exits_are_taken_by_the_targets_port_and_built_ahead_for_ports_lately_used() {
    let world = World::new(6);
    let (web, mail) = (world.echo().await, world.echo().await);
    assert_ne!(web.port, mail.port);
    let mut relays = world.known();
    for relay in &mut relays {
        let port = if number(relay) == 6 {
            mail.port
        } else {
            web.port
        };
        relay.exit = port.to_string().parse().ok().map(Arc::new);
    }
    let paths = Chooser::new(relays, 5);
    let config = Config {
        ahead: 2,
        ..Config::default()
    };
    let onion = world.client(&paths, config);
    let first = open(&onion, &web, &token(1)).await;
    assert_ne!(paths.made()[0][2], 6);
    let second = open(&onion, &mail, &token(1)).await;
    sleep(Duration::from_secs(5)).await;
    // Two tokens more take what was built ahead, and what is built then is for the port that nothing ahead serves.
    for n in 2..4 {
        open(&onion, &web, &token(n)).await;
        sleep(Duration::from_secs(5)).await;
    }
    let built = paths.made().len();
    let begun = Instant::now();
    let third = open(&onion, &mail, &token(4)).await;
    assert!(begun.elapsed() < LATENCY * 7, "it was there");
    // Another stream of the first token finds the circuit for its port.
    let begun = Instant::now();
    let fourth = open(&onion, &mail, &token(1)).await;
    assert!(begun.elapsed() < LATENCY * 7);
    let served = paths.made()[..built]
        .iter()
        .filter(|path| path[2] == 6)
        .count();
    assert!(served >= 2, "the token's, and one ahead");
    drop((first, second, third, fourth));
}

/// Paths as they were written down; the last again and again.
#[derive(Debug)]
struct Written(Mutex<Vec<Vec<path::Relay>>>);

impl Paths for Written {
    fn path<'a>(&'a self, _: &'a CircuitUsage) -> Waiting<'a, Result<Vec<path::Relay>, Error>> {
        let mut paths = self.0.lock();
        let path = match paths.len() {
            1 => paths[0].clone(),
            _ => paths.remove(0),
        };
        Box::pin(async { Ok(path) })
    }

    fn tried(&self, _: &[path::Relay], _: Result<(), Failed>) {}
}

/// Paths as they were written down, and how their circuits fared.
#[derive(Debug)]
struct Told {
    paths: Written,
    fates: Mutex<Vec<CircuitFate>>,
}

impl Told {
    fn new(world: &World, paths: &[[usize; 3]]) -> Arc<Self> {
        let known = world.known();
        let path = |relays: &[usize; 3]| relays.map(|n| known[n - 1].clone()).to_vec();
        Arc::new(Self {
            paths: Written(Mutex::new(paths.iter().map(path).collect())),
            fates: Mutex::default(),
        })
    }

    fn fates(&self) -> Vec<CircuitFate> {
        self.fates.lock().clone()
    }
}

impl Paths for Told {
    fn path<'a>(&'a self, usage: &'a CircuitUsage) -> Waiting<'a, Result<Vec<path::Relay>, Error>> {
        self.paths.path(usage)
    }

    fn fares(&self, _: &[path::Relay], fate: CircuitFate) {
        self.fates.lock().push(fate);
    }
}

#[tokio::test(start_paused = true)]
async fn who_chooses_paths_hears_how_circuits_fare_but_not_that_a_guard_is_gone_or_a_stream_has_ended()
 {
    use CircuitFate::{Built, NotBuilt, Used};
    let world = World::new(5);
    let target = world.echo().await;
    world.net.kill(4);
    // The guard is dead, then the middle, then the exit.
    let paths = Told::new(&world, &[[4, 2, 3], [1, 4, 3], [1, 2, 4], [1, 2, 3]]);
    let config = Config {
        attempts: 4,
        ..demand()
    };
    let onion = Onion::new(world.net.dialer(None), Arc::clone(&paths) as _, config);
    let stream = open(&onion, &target, &token(1)).await;
    let expected = [NotBuilt, NotBuilt, Built, Used];
    assert_eq!(paths.fates(), expected);
    // A relay is lost when the circuit has been of use.
    world.net.kill(2);
    sleep(Duration::from_secs(60)).await;
    drop(stream);
    assert_eq!(paths.fates(), expected);
}

/// Whether that is the guard or the exit: neither passes on what a program waits for.
#[tokio::test(start_paused = true)]
async fn a_circuit_on_which_no_answer_comes_was_of_no_use_if_it_was_waited_for_long() {
    use CircuitFate::{Built, NotUsed};
    for (waits, expected) in [(90, &[Built, NotUsed][..]), (20, &[Built])] {
        let mut world = World::new(2);
        let silent = Double::nothing().streams(|_, _, _| Box::pin(std::future::pending()));
        let (network, out) = (Network::new(2), Arc::new(silent));
        let exit = world.net.relay(3, &network, |relay| {
            relay.out = Some(out);
            relay.config.patience = Duration::from_secs(3600);
        });
        world.relays.push(exit);
        let paths = Told::new(&world, &[[1, 2, 3]]);
        let onion = Onion::new(world.net.dialer(None), Arc::clone(&paths) as _, demand());
        let target = Target::from(std::net::SocketAddr::new(FAR, 80));
        let terms = token(1).within(Duration::from_secs(waits));
        let error = onion
            .open_stream(&target, &terms)
            .await
            .expect_err("silent");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(onion);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(paths.fates(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_a_relay_ends_before_it_is_used_has_collapsed_and_one_that_we_close_has_not()
{
    use CircuitFate::{Built, Collapsed};
    for kills in [true, false] {
        let world = World::new(3);
        let paths = Told::new(&world, &[[1, 2, 3]]);
        let config = Config {
            ahead: 1,
            ..Config::default()
        };
        let onion = Onion::new(world.net.dialer(None), Arc::clone(&paths) as _, config);
        onion.warm();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(paths.fates(), [Built]);
        if kills {
            world.net.kill(3);
        } else {
            drop(onion);
        }
        sleep(Duration::from_secs(60)).await;
        let expected: &[_] = if kills { &[Built, Collapsed] } else { &[Built] };
        assert_eq!(paths.fates(), expected);
    }
}

/// The channel from relay 1 to relay 4 is lost, the one from 3 is not: had 4 lost its power, 3 would only not know yet.
#[tokio::test(start_paused = true)]
async fn what_stands_ready_through_a_relay_that_was_lost_is_given_up() {
    let world = World::new(5);
    let target = world.echo().await;
    let known = world.known();
    let path = |relays: [usize; 3]| relays.map(|n| known[n - 1].clone()).to_vec();
    let paths = [[1, 4, 2], [3, 4, 2], [3, 5, 2]].map(path).to_vec();
    let config = Config {
        ahead: 1,
        ..Config::default()
    };
    let paths = Arc::new(Written(Mutex::new(paths)));
    let onion = Onion::new(world.net.dialer(None), paths, config);
    let mut stream = open(&onion, &target, &token(1)).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(world.relays[3].circuits(), 2, "one stands ready");
    world.net.sever(4);
    soon(stream.read_u8()).await.expect_err("lost");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.relays[3].circuits(), 0);
    let mut stream = open(&onion, &target, &token(2)).await;
    stream.write_all(b"!").await.expect("taken");
    assert_eq!(soon(stream.read_u8()).await.expect("comes back"), b'!');
}

/// How long streams of thirty tokens took to open, where it was more than a second: relay 4 of eight took circuits and said nothing, after 25
/// tokens' circuits had taught how long building takes. Those circuits stand for `lasts`, and nobody uses them.
async fn slow_beside_a_silent_relay(lasts: Duration) -> HashMap<u32, Duration> {
    let world = World::new(8);
    let paths = Chooser::new(world.known(), 11);
    let config = Config { lasts, ..demand() };
    let (onion, target) = (world.client(&paths, config), world.echo().await);
    for n in 0..25 {
        open(&onion, &target, &token(n)).await;
    }
    sleep(Duration::from_secs(61)).await;
    world.net.silence(4);
    sleep(Duration::from_secs(1)).await;
    let mut slow = HashMap::new();
    for n in 100..130 {
        let begun = Instant::now();
        open(&onion, &target, &token(n)).await;
        if begun.elapsed() > Duration::from_secs(1) {
            slow.insert(n, begun.elapsed());
        }
    }
    slow
}

#[tokio::test(start_paused = true)]
async fn once_times_are_learnt_a_silent_relay_costs_seconds_and_not_a_minute() {
    let slow = slow_beside_a_silent_relay(Duration::from_secs(60)).await;
    assert_eq!(slow.len(), 1, "it was met once, and left alone: {slow:?}");
    let worst = slow.values().max().expect("one");
    assert!(*worst < Duration::from_secs(4), "{worst:?}");
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_circuits_without_streams_have_lost_is_not_met_again() {
    let slow = slow_beside_a_silent_relay(Duration::from_secs(600)).await;
    assert!(slow.is_empty(), "{slow:?}");
}

#[tokio::test(start_paused = true)]
async fn a_circuit_takes_no_new_streams_after_its_time_and_ends_with_its_last() {
    let world = World::new(4);
    let paths = Chooser::new(world.known(), 1);
    let config = Config {
        lasts: Duration::from_secs(60),
        ..demand()
    };
    let (onion, target) = (world.client(&paths, config), world.echo().await);
    let mut old = open(&onion, &target, &token(1)).await;
    sleep(Duration::from_secs(61)).await;
    let new = open(&onion, &target, &token(1)).await;
    assert_eq!((paths.made().len(), world.circuits()), (2, 2));
    old.write_all(b"!").await.expect("it works on");
    assert_eq!(soon(old.read_u8()).await.expect("comes back"), b'!');
    drop(old);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.circuits(), 1);
    drop(new);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.circuits(), 0, "without streams it is not kept longer");
}
