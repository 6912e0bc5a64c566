//! What goes wrong, and what peers do that they must not: said truthfully, and to nobody else's harm.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use hoplite_crypto::onion::{ntor3, rsa::sha1};
use hoplite_onion::{
    Config, Onion,
    channel::{self, Channel, Dialer},
    path,
    relay::Policy,
};
use hoplite_overlay::{ErrorKind, Overlay, Reason, Terms, conformance::Far};
use hoplite_testing::soon;
use hoplite_wire::cell::{
    Cell, Command,
    circuit::{ClientExtensions, Create2, CreateFast, CreatedFast, DestroyReason, HandshakeType},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::Instant,
};

use crate::support::{Kind, World, known};

fn config() -> Config {
    Config {
        ahead: 0,
        attempts: 1,
        ..Config::default()
    }
}

/// The kind of the error that opening a stream gives.
async fn refused(world: &World) -> (ErrorKind, Option<Reason>) {
    let onion = world.client(config());
    let listener = world.far().listen().await.expect("listens");
    let terms = Terms::default();
    let opened = soon(onion.open_stream(&listener.target(), &terms)).await;
    let error = opened.expect_err("refused");
    (error.kind(), error.reason())
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

#[tokio::test]
async fn a_relay_that_is_gone_is_told_from_the_first() {
    let world = World::new(Duration::ZERO, Kind::default());
    world.net.stop(2);
    assert_eq!(refused(&world).await, (ErrorKind::PathFailed, None));
    assert_eq!(count(&world.relays[0].counters.not_extended), 1);
    assert_eq!(
        world.relays[0].circuits(),
        0,
        "the guard keeps nothing of it"
    );
}

#[tokio::test]
async fn nobody_extends_to_oneself_or_back() {
    for (middle, last) in [(0, 2), (1, 0), (1, 1)] {
        let mut world = World::new(Duration::ZERO, Kind::default());
        let known = world.path.clone();
        world.path = vec![known[0].clone(), known[middle].clone(), known[last].clone()];
        assert_eq!(refused(&world).await, (ErrorKind::PathFailed, None));
        assert_eq!(
            world
                .relays
                .iter()
                .map(|relay| count(&relay.counters.not_extended))
                .sum::<u64>(),
            1
        );
    }
}

#[tokio::test]
async fn nobody_extends_to_a_special_address_unless_allowed() {
    let mut world = World::new(Duration::ZERO, Kind::default());
    let strict = world.net.relay(1, &world.network, |relay| {
        relay.next = Arc::new(Policy::everywhere(false));
    });
    world.path[0] = known(&strict, Kind::default());
    assert_eq!(refused(&world).await, (ErrorKind::PathFailed, None));
    assert_eq!(count(&strict.counters.not_extended), 1);
    assert_eq!(
        count(&world.relays[1].counters.created),
        0,
        "it was not even asked"
    );
}

#[tokio::test]
async fn a_relay_with_another_onion_key_is_not_believed() {
    let mut world = World::new(Duration::ZERO, Kind::default());
    world.path[1].keys.onion = world.path[2].keys.onion;
    assert_eq!(refused(&world).await, (ErrorKind::PathFailed, None));
    assert_eq!(count(&world.relays[1].counters.refused), 1);
    world.path[0].keys.onion = world.path[2].keys.onion;
    assert_eq!(refused(&world).await, (ErrorKind::EntryUnreachable, None));
}

#[tokio::test]
async fn an_exit_that_serves_no_such_port_says_so() {
    let mut world = World::new(Duration::ZERO, Kind::default());
    let strict = world.net.relay(5, &world.network, |relay| {
        relay.policy = Arc::new(Policy {
            ports: vec![80..=80],
            special: true,
        });
    });
    world.path[2] = known(&strict, Kind::default());
    assert_eq!(
        refused(&world).await,
        (ErrorKind::Forbidden, Some(Reason::Policy))
    );
    let special = world.net.relay(4, &world.network, |relay| {
        relay.policy = Arc::new(Policy {
            ports: vec![1..=65535],
            special: false,
        });
    });
    world.path[2] = known(&special, Kind::default());
    assert_eq!(
        refused(&world).await,
        (ErrorKind::Forbidden, Some(Reason::Policy))
    );
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_never_answers_is_given_up_in_time() {
    let world = World::new(Duration::from_secs(3600), Kind::default());
    let limit = Duration::from_secs(20);
    let onion = world.client(Config {
        build: limit,
        least_build: limit,
        ..config()
    });
    let target = "192.0.2.1:80".parse().expect("valid");
    let begun = Instant::now();
    let error = onion.open_stream(&target, &Terms::default()).await;
    assert_eq!(error.expect_err("late").kind(), ErrorKind::TimedOut);
    assert_eq!(begun.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_its_target_resets_leaves_the_circuit_to_the_next() {
    let world = World::new(Duration::from_millis(10), Kind::default());
    let onion = world.client(config());
    let mut listener = world.far().listen().await.expect("listens");
    let (target, terms) = (listener.target(), Terms::default());
    let mut stream = soon(onion.open_stream(&target, &terms))
        .await
        .expect("opens");
    let far = soon(listener.accept()).await.expect("accepts");
    drop(far);
    stream.read_u8().await.expect_err("reset by the target");
    let mut stream = soon(onion.open_stream(&target, &terms))
        .await
        .expect("opens");
    stream.write_all(b"!").await.expect("open");
    assert_eq!(world.relays[2].circuits(), 1);
}

#[tokio::test(start_paused = true)]
async fn streams_end_when_any_relay_of_their_circuit_dies_and_the_others_keep_nothing() {
    for n in 1..=3 {
        let world = World::new(Duration::from_millis(10), Kind::default());
        let onion = world.client(config());
        let mut listener = world.far().listen().await.expect("listens");
        let (target, terms) = (listener.target(), Terms::default());
        let mut stream = soon(onion.open_stream(&target, &terms))
            .await
            .expect("opens");
        let mut far = soon(listener.accept()).await.expect("accepts");
        stream.write_all(b"!").await.expect("open");
        assert_eq!(soon(far.read_u8()).await.expect("open"), b'!');
        let begun = Instant::now();
        world.net.kill(n);
        let error = soon(stream.read_u8()).await.expect_err("the relay is dead");
        let error = hoplite_overlay::Error::from_io(&error).expect("the overlay's");
        assert_eq!(error.kind(), ErrorKind::PathFailed, "relay {n}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(1), "told at once");
        soon(far.read_u8()).await.expect_err("the target is told");
        tokio::time::sleep(Duration::from_secs(1)).await;
        for relay in &world.relays {
            assert_eq!(relay.circuits(), 0, "after relay {n}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_stream_takes_another_circuit_when_a_relay_has_died() {
    let world = World::new(Duration::from_millis(10), Kind::default());
    let fresh = world.net.relay(8, &world.network, |_| {});
    let mut other = world.path.clone();
    other[1] = known(&fresh, Kind::default());
    let paths = Arc::new(Turns {
        paths: vec![world.path.clone(), other],
        next: AtomicU64::new(0),
    });
    let onion = Onion::new(world.net.dialer(None), paths, config());
    let listener = world.far().listen().await.expect("listens");
    let (target, terms) = (listener.target(), Terms::default());
    let mut stream = soon(onion.open_stream(&target, &terms))
        .await
        .expect("opens");
    world.net.kill(2);
    soon(stream.read_u8()).await.expect_err("the relay is dead");
    soon(onion.open_stream(&target, &terms))
        .await
        .expect("over the other relay");
    assert_eq!(fresh.circuits(), 1);
}

/// One path after the other.
#[derive(Debug)]
struct Turns {
    paths: Vec<Vec<path::Relay>>,
    next: AtomicU64,
}

impl path::Paths for Turns {
    fn path<'a>(
        &'a self,
        _: &'a path::CircuitUsage,
    ) -> channel::Waiting<'a, Result<Vec<path::Relay>, hoplite_overlay::Error>> {
        let turn = self.next.fetch_add(1, Relaxed);
        let turn = usize::try_from(turn).expect("few") % self.paths.len();
        Box::pin(async move { Ok(self.paths[turn].clone()) })
    }
}

/// The answer to one CREATE2 on a fresh circuit.
async fn create(channel: &dyn Channel, handshake: HandshakeType, data: &[u8]) -> Cell {
    let mut circuit = channel.open().await.expect("opens");
    let create = Create2 { handshake, data };
    let cell = Cell::new(circuit.id, Command::CREATE2, |body| create.write(body));
    send(&mut circuit, cell.expect("fits")).await;
    answer(&mut circuit).await.expect("an answer")
}

async fn send(circuit: &mut channel::CircuitEnds, cell: Cell) {
    poll_fn(|cx| circuit.sender.poll_ready(cx))
        .await
        .expect("open");
    circuit.sender.send(cell);
}

async fn answer(circuit: &mut channel::CircuitEnds) -> Option<Cell> {
    soon(poll_fn(|cx| circuit.receiver.poll_recv(cx))).await
}

/// A client of its own to the first relay.
async fn channel(world: &World) -> Arc<dyn Channel> {
    let dialer: Arc<dyn Dialer> = world.net.dialer(None);
    dialer.channel(&world.path[0]).await.expect("a channel")
}

fn skin(world: &World) -> Vec<u8> {
    let mut message = Vec::new();
    ClientExtensions::default().write(&mut message);
    ntor3::client(&world.path[0].keys, &message)
        .expect("made")
        .1
}

fn reason(cell: &Cell) -> DestroyReason {
    assert_eq!(cell.command, Command::DESTROY);
    DestroyReason::parse(&cell.body).expect("a reason")
}

/// As authorities and clients of C tor do, for circuits to a relay's directory.
#[tokio::test]
async fn create_fast_makes_a_circuit_of_one_hop_within_the_same_limits() {
    let world = World::new(Duration::ZERO, Kind::default());
    let channel = channel(&world).await;
    let half: [u8; 20] = std::array::from_fn(|at| u8::try_from(at).expect("few"));
    let (first, mut circuit) = create_fast(&*channel, half).await;
    let created = CreatedFast::parse(&first.body).expect("an answer");
    let expected = sha1(&[&half[..], &created.half, &[0]].concat());
    assert_eq!(created.proof, expected);
    let nonsense = Cell::new(circuit.id, Command::RELAY, |body| body.extend([7; 509]));
    send(&mut circuit, nonsense.expect("fits")).await;
    let ended = answer(&mut circuit).await.expect("an answer");
    assert_eq!(reason(&ended), DestroyReason::PROTOCOL);

    let (again, _) = create_fast(&*channel, half).await;
    assert_eq!(reason(&again), DestroyReason::PROTOCOL, "a replay");
    let counters = &world.relays[0].counters;
    assert_eq!((count(&counters.created), count(&counters.refused)), (1, 1));
    let mut limited = 0;
    for number in 1..1000_u32 {
        let half = std::array::from_fn(|at| number.to_be_bytes()[at % 4]);
        let (answer, _) = create_fast(&*channel, half).await;
        limited += u32::from(answer.command == Command::DESTROY);
    }
    assert!(limited > 0, "as many as one likes");
}

/// The answer to one CREATE_FAST on a fresh circuit.
async fn create_fast(channel: &dyn Channel, half: [u8; 20]) -> (Cell, channel::CircuitEnds) {
    let mut circuit = channel.open().await.expect("opens");
    let cell = Cell::new(circuit.id, Command::CREATE_FAST, |body| {
        CreateFast(half).write(body);
    });
    send(&mut circuit, cell.expect("fits")).await;
    let answer = answer(&mut circuit).await.expect("an answer");
    (answer, circuit)
}

#[tokio::test]
async fn a_replayed_onion_skin_is_not_answered() {
    let world = World::new(Duration::ZERO, Kind::default());
    let channel = channel(&world).await;
    let skin = skin(&world);
    let first = create(&*channel, HandshakeType::NTOR_V3, &skin).await;
    assert_eq!(first.command, Command::CREATED2);
    let again = create(&*channel, HandshakeType::NTOR_V3, &skin).await;
    assert_eq!(reason(&again), DestroyReason::PROTOCOL);
    assert_eq!(count(&world.relays[0].counters.refused), 1);
}

#[tokio::test]
async fn bad_handshakes_are_answered_with_destroy() {
    let world = World::new(Duration::ZERO, Kind::default());
    let channel = channel(&world).await;
    let mut bent = skin(&world);
    bent[100] ^= 1;
    for (kind, data) in [
        (HandshakeType::NTOR_V3, &bent[..]),
        (HandshakeType::NTOR_V3, b"short"),
        (HandshakeType::NTOR, b""),
        (HandshakeType::TAP, &[0; 186]),
        (HandshakeType(99), b"?"),
    ] {
        let answer = create(&*channel, kind, data).await;
        assert_eq!(reason(&answer), DestroyReason::PROTOCOL);
    }
    assert_eq!(count(&world.relays[0].counters.created), 0);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_create2_is_limited_and_another_channel_is_served() {
    let world = World::new(Duration::ZERO, Kind::default());
    let flooded = channel(&world).await;
    let mut limited = 0;
    for n in 0..1000u32 {
        let answer = create(&*flooded, HandshakeType::NTOR, &n.to_be_bytes()).await;
        limited += u32::from(reason(&answer) == DestroyReason::RESOURCELIMIT);
    }
    assert_eq!(limited, 600);
    let other = channel(&world).await;
    let answer = create(&*other, HandshakeType::NTOR_V3, &skin(&world)).await;
    assert_eq!(answer.command, Command::CREATED2);
}

/// After a good CREATE2, each of these ends the circuit with PROTOCOL, and no other one.
#[tokio::test]
async fn cells_that_do_not_belong_there_end_their_circuit_alone() {
    let world = World::new(Duration::ZERO, Kind::default());
    let channel = channel(&world).await;
    let mut kept = channel.open().await.expect("opens");
    let skin_of = || skin(&world);
    let id = kept.id;
    let made = |data: &[u8]| {
        let create = Create2 {
            handshake: HandshakeType::NTOR_V3,
            data,
        };
        Cell::new(id, Command::CREATE2, |body| create.write(body)).expect("fits")
    };
    let first = made(&skin_of());
    send(&mut kept, first).await;
    assert_eq!(
        answer(&mut kept).await.expect("an answer").command,
        Command::CREATED2
    );
    for command in [
        Command::CREATE2,
        Command::CREATED2,
        Command::CREATE_FAST,
        Command::PADDING,
        Command::RELAY,
        Command::RELAY_EARLY,
        Command(77),
    ] {
        let mut circuit = channel.open().await.expect("opens");
        send(&mut circuit, made(&skin_of())).await;
        assert_eq!(
            answer(&mut circuit).await.expect("an answer").command,
            Command::CREATED2
        );
        let rubbish = Cell::new(circuit.id, command, |body| {
            body.extend_from_slice(&[7; 509])
        });
        send(&mut circuit, rubbish.expect("fits")).await;
        let told = answer(&mut circuit).await.expect("an answer");
        assert_eq!(reason(&told), DestroyReason::PROTOCOL, "{command:?}");
    }
    assert_eq!(world.relays[0].circuits(), 1, "the other circuit stands");
}

#[tokio::test]
async fn a_first_cell_other_than_create2_is_refused() {
    let world = World::new(Duration::ZERO, Kind::default());
    let channel = channel(&world).await;
    let mut circuit = channel.open().await.expect("opens");
    let cell = Cell::new(circuit.id, Command::RELAY, |_| {}).expect("fits");
    send(&mut circuit, cell).await;
    let told = answer(&mut circuit).await.expect("an answer");
    assert_eq!(reason(&told), DestroyReason::PROTOCOL);
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_is_opened_and_left_is_given_up() {
    let world = World::new(Duration::ZERO, Kind::default());
    let channel = channel(&world).await;
    let mut circuit = channel.open().await.expect("opens");
    let told = answer(&mut circuit).await.expect("an answer");
    assert_eq!(reason(&told), DestroyReason::TIMEOUT);
    assert_eq!(world.relays[0].circuits(), 0);
}

/// What a user reads of a circuit that cannot be built.
async fn told(world: &World) -> String {
    let onion = world.client(config());
    let target = "192.0.2.1:80".parse().expect("valid");
    let opened = soon(onion.open_stream(&target, &Terms::default())).await;
    opened.expect_err("refused").to_string()
}

#[tokio::test]
async fn the_hop_that_fails_is_named_with_what_to_do() {
    let world = World::new(Duration::ZERO, Kind::default());
    world.net.stop(3);
    let text = told(&world).await;
    let gone =
        "hop 3 of 3, relay relay3, cannot be reached from the relay before it (check its address";
    assert!(text.contains(gone), "{text}");
    let mut world = World::new(Duration::ZERO, Kind::default());
    world.path[1].keys.onion = world.path[2].keys.onion;
    let text = told(&world).await;
    assert!(text.contains("hop 2 of 3, relay relay2, refuses"), "{text}");
    assert!(text.contains("its onion key may be an old one"), "{text}");
    let world = World::new(Duration::ZERO, Kind::default());
    world.net.stop(1);
    let text = told(&world).await;
    let gone = "hop 1 of 3, relay relay1, cannot be reached (check the network";
    assert!(text.contains(gone), "{text}");
}
