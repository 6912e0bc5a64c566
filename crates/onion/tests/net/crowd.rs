//! Clients that begin more circuits than a relay can answer at once: whom that stops, and whom not. The thread that computes answers is kept busy.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use hoplite_onion::{
    channel::{Channel, CircuitEnds, Closed, Dialer, Waiting, memory},
    path,
    relay::{Creates, Handshakes, Policy, Requester, serve},
};
use hoplite_overlay::{Error, ErrorKind};
use hoplite_testing::soon;
use hoplite_wire::cell::{
    Cell, Command,
    circuit::{Create2, DestroyReason, HandshakeType},
    relay,
};
use tokio::{runtime, task::spawn_blocking};

use crate::{
    raw::{self, Heard, Raw, answer, send},
    support::{Kind, World, known},
};

const WAITING: usize = 16;
const OF_ONE: usize = 4;

/// The relay's end of a channel from somebody.
#[derive(Debug)]
struct From(Arc<memory::Memory>, Requester);

impl Channel for From {
    fn open(&self) -> Waiting<'_, Result<CircuitEnds, Closed>> {
        self.0.open()
    }

    fn accept(&self) -> Waiting<'_, Option<CircuitEnds>> {
        self.0.accept()
    }

    fn peer(&self) -> Option<[u8; 32]> {
        self.0.peer()
    }

    fn requester(&self) -> Requester {
        self.1
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// No relay of the network is at this address.
const NOWHERE: &str = "203.0.113.9:9";

/// Dials relays where they are.
#[derive(Debug)]
struct Somewhere(Arc<dyn Dialer>);

impl Dialer for Somewhere {
    fn channel<'a>(
        &'a self,
        relay: &'a path::Relay,
    ) -> Waiting<'a, Result<Arc<dyn Channel>, Error>> {
        if relay
            .addresses
            .contains(&NOWHERE.parse().expect("an address"))
        {
            let failed = Error::new(ErrorKind::PathFailed, "dialling");
            return Box::pin(async { Err(failed) });
        }
        self.0.channel(relay)
    }
}

/// One relay with one thread for handshakes.
struct Scene {
    relay: Arc<hoplite_onion::relay::Relay>,
    known: path::Relay,
    /// Another relay.
    next: path::Relay,
}

impl Scene {
    fn new() -> Self {
        Self::with(Creates::default())
    }

    fn with(creates: Creates) -> Self {
        let world = World::new(Duration::ZERO, Kind::default());
        let relay = world.net.relay(9, &world.network, |relay| {
            let mut config = relay.config.clone();
            config.creates = creates;
            config.handshakes = Handshakes {
                threads: 1,
                waiting: WAITING,
                waiting_per_client: OF_ONE,
            };
            let keys = hoplite_crypto::onion::OnionKeys::clone(&relay.keys());
            let dialer = Somewhere(world.net.dialer(Some([9; 32])));
            *relay = hoplite_onion::relay::Relay::new(keys, Arc::new(dialer), config);
            relay.next = Arc::new(Policy::everywhere(true));
        });
        let known = known(&relay, Kind::default());
        let next = world.path.into_iter().next().expect("a relay");
        Self { relay, known, next }
    }

    /// One more channel of this address, or of a relay at it.
    fn channel(&self, address: u64, is_relay: bool) -> Arc<memory::Memory> {
        let (near, far) = memory::pair(Duration::ZERO, None, Some([9; 32]));
        let requester = Requester {
            key: address,
            known: is_relay,
        };
        tokio::spawn(serve(
            Arc::new(From(far, requester)),
            Arc::clone(&self.relay),
        ));
        near
    }

    /// Begins a circuit on a channel of its own.
    async fn begin(&self, address: u64, is_relay: bool) -> CircuitEnds {
        let mut circuit = self.channel(address, is_relay).open().await.expect("opens");
        let (_, skin) = raw::skin(&self.known, false);
        let create = Create2 {
            handshake: HandshakeType::NTOR_V3,
            data: &skin,
        };
        let cell = Cell::new(circuit.id, Command::CREATE2, |body| create.write(body));
        send(&mut circuit, cell.expect("fits")).await;
        circuit
    }

    /// The same this many times; the relay has seen all.
    async fn begin_many(&self, address: u64, circuits: usize) -> Vec<CircuitEnds> {
        let mut begun = Vec::new();
        for _ in 0..circuits {
            begun.push(self.begin(address, false).await);
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        begun
    }
}

/// What was answered: CREATED2, or why not.
fn said(cell: &Cell) -> Result<(), DestroyReason> {
    match cell.command {
        Command::CREATED2 => Ok(()),
        Command::DESTROY => Err(DestroyReason::parse(&cell.body).expect("a reason")),
        other => panic!("{other:?}"),
    }
}

async fn all(circuits: Vec<CircuitEnds>) -> (usize, usize) {
    let mut counts = (0, 0);
    for mut circuit in circuits {
        match said(&answer(&mut circuit).await.expect("an answer")) {
            Ok(()) => counts.0 += 1,
            Err(reason) => {
                assert_eq!(reason, DestroyReason::RESOURCELIMIT);
                counts.1 += 1;
            }
        }
    }
    counts
}

/// Runs with one thread for what blocks, and that one taken until the sender is dropped.
fn with_a_busy_thread<F: Future<Output = ()>>(test: impl FnOnce(mpsc::Sender<()>) -> F) {
    let mut builder = runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().max_blocking_threads(1).build();
    let runtime = runtime.expect("a runtime");
    let (release, busy) = mpsc::channel::<()>();
    runtime.block_on(async {
        // It ends when nobody can release it any more.
        drop(spawn_blocking(move || busy.recv()));
        soon(test(release)).await;
    });
}

#[test]
fn one_address_on_many_channels_has_few_handshakes_waiting_and_the_others_are_refused() {
    with_a_busy_thread(|release| async move {
        let scene = Scene::new();
        let crowd = scene.begin_many(1, 100).await;
        let others = [scene.begin(2, false).await, scene.begin(3, true).await];
        drop(release);
        assert_eq!(all(crowd).await, (OF_ONE, 100 - OF_ONE));
        assert_eq!(all(others.into()).await, (2, 0));
    });
}

#[test]
fn when_too_many_wait_quiet_addresses_and_relays_are_answered_and_busy_ones_refused() {
    with_a_busy_thread(|release| async move {
        let scene = Scene::new();
        let mut crowds = Vec::new();
        for address in 10..20 {
            crowds.extend(scene.begin_many(address, OF_ONE).await);
        }
        let mut quiet = Vec::new();
        for address in 100..103 {
            quiet.push(scene.begin(address, false).await);
            quiet.push(scene.begin(address + 100, true).await);
        }
        drop(scene.begin_many(99, 0).await);
        drop(release);
        assert_eq!(all(quiet).await, (6, 0));
        assert_eq!(all(crowds).await, (WAITING - 6, 40 - (WAITING - 6)));
    });
}

/// Has a circuit of this address extended to the next relay; whether it was.
async fn extended(circuit: &mut Raw, to: &path::Relay) -> bool {
    let (_, skin) = raw::skin(to, false);
    circuit.ask_to_extend(Command::RELAY_EARLY, to, &skin).await;
    match circuit.hear().await {
        Heard::Message(0, relay::RelayCommand::EXTENDED2, ..) => true,
        Heard::Message(0, relay::RelayCommand::TRUNCATED, _, data, _) => {
            assert_eq!(data, [5], "RESOURCELIMIT");
            false
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn who_has_circuits_extended_and_truncated_all_the_time_leaves_the_way_to_the_next_relay_open()
 {
    let scene = Scene::with(Creates {
        client: (10_000, 1),
        relay: (100, 1),
    });
    let channel = scene.channel(1, false);
    let (mut asked, mut had) = (0, 0);
    for _ in 0..40 {
        let mut circuit = Raw::new(&*channel, &scene.known, false).await;
        for _ in 0..7 {
            asked += 1;
            if extended(&mut circuit, &scene.next).await {
                had += 1;
                circuit.say(relay::RelayCommand::TRUNCATE, 0, &[]).await;
                let heard = circuit.hear().await;
                assert!(matches!(
                    heard,
                    Heard::Message(0, relay::RelayCommand::TRUNCATED, ..)
                ));
            }
        }
    }
    assert!(had < asked, "no more than the next relay permits");
    for address in 2..6 {
        let channel = scene.channel(address, false);
        let mut honest = Raw::new(&*channel, &scene.known, false).await;
        assert!(extended(&mut honest, &scene.next).await, "{address}");
    }
}

#[tokio::test]
async fn who_names_a_relay_where_it_is_not_uses_up_nothing_that_it_permits() {
    let scene = Scene::with(Creates {
        client: (10_000, 1),
        relay: (20, 1),
    });
    let mut elsewhere = scene.next.clone();
    elsewhere.addresses = vec![NOWHERE.parse().expect("an address")];
    for address in 100..160 {
        let channel = scene.channel(address, false);
        let mut circuit = Raw::new(&*channel, &scene.known, false).await;
        let (_, skin) = raw::skin(&elsewhere, false);
        let asked = circuit.ask_to_extend(Command::RELAY_EARLY, &elsewhere, &skin);
        asked.await;
        let heard = circuit.hear().await;
        assert!(
            matches!(&heard, Heard::Message(0, relay::RelayCommand::TRUNCATED, _, data, _)
                if data[..] == [DestroyReason::CONNECTFAILED.0]),
            "{heard:?}"
        );
    }
    for address in 1..20 {
        let channel = scene.channel(address, false);
        let mut honest = Raw::new(&*channel, &scene.known, false).await;
        assert!(extended(&mut honest, &scene.next).await, "{address}");
    }
}

#[test]
fn circuits_that_stand_go_on_while_handshakes_wait() {
    with_a_busy_thread(|release| async move {
        let scene = Scene::new();
        let first = scene.channel(1, false);
        let standing = tokio::spawn({
            let known = scene.known.clone();
            async move { Raw::new(&*first, &known, false).await }
        });
        tokio::task::yield_now().await;
        drop(release);
        let mut standing = standing.await.expect("no panic");
        let (release, busy) = mpsc::channel::<()>();
        drop(spawn_blocking(move || busy.recv()));
        let waiting = scene.begin_many(2, OF_ONE).await;
        standing
            .say(relay::RelayCommand::RESOLVE, 7, b"198.51.100.9\0")
            .await;
        let heard = standing.hear().await;
        assert!(
            matches!(heard, Heard::Message(_, relay::RelayCommand::RESOLVED, ..)),
            "{heard:?}"
        );
        assert_eq!(
            scene
                .relay
                .counters
                .created
                .load(std::sync::atomic::Ordering::Relaxed),
            1
        );
        drop(release);
        assert_eq!(all(waiting).await, (OF_ONE, 0));
    });
}
