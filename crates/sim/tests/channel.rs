//! One channel between two relays of the network, or two over one bottleneck.

#[path = "channel/fairness.rs"]
mod fairness;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hoplite_channel::{
    Channel, ChannelDialer, ChannelServer, Circuit, Counts, How, Receiver, Sender, Whom,
    handshake::Us,
};
use hoplite_link::LinkKind;
use hoplite_overlay::Terms;
use hoplite_sim::{
    net::{Access, Network, Node, Place},
    relay::{Host, Listeners},
    run::{Ground, relay_identity},
};
use hoplite_wire::{
    Target,
    cell::{Cell, CircuitId, Command},
    tuning::{Congestion, TuningRequest},
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

const ACCESS: Access = Access {
    up: 12_500_000,
    down: 12_500_000,
    queue: 1 << 18,
};

/// 320 KiB, in cells.
const PAGE: usize = 658;

async fn soon<T>(work: impl Future<Output = T>) -> T {
    let done = timeout(Duration::from_secs(600), work).await;
    done.expect("it hangs")
}

fn us(secret: u8) -> Us {
    Us {
        identity: Some(Arc::new(
            relay_identity(&[secret; 32]).expect("an identity"),
        )),
        addresses: Vec::new(),
    }
}

/// Both ends of a channel, after the time that it took.
async fn channel(
    network: &Network,
    how: How,
    tasks: &mut JoinSet<()>,
) -> (Channel, Channel, Duration) {
    let (near, far) = (
        network.add(Place::apart(10.0), ACCESS),
        network.add(Place::apart(10.0), ACCESS),
    );
    let plan = Plan {
        near,
        address: SocketAddr::new(Network::address(far), 443),
        how,
        congestion: Congestion::Auto,
        seed: 1,
    };
    plan.dialled(network, tasks).await
}

/// A channel to be dialled.
#[derive(Clone, Copy)]
struct Plan {
    near: Node,
    address: SocketAddr,
    how: How,
    /// Of who dials.
    congestion: Congestion,
    seed: u8,
}

impl Plan {
    /// Both ends, after the time that it took.
    async fn dialled(
        self,
        network: &Network,
        tasks: &mut JoinSet<()>,
    ) -> (Channel, Channel, Duration) {
        let ground = Ground::new().expect("made");
        let mut told = self.served(network, &ground, tasks);
        let link = hoplite_link::Config {
            seed: Some([self.seed; 32]),
            tuning_request: TuningRequest {
                congestion: self.congestion,
                ..TuningRequest::default()
            },
            ..ground.link.clone()
        };
        let over = Arc::new(Host::new(network, self.near));
        let counts = Arc::<Counts>::default();
        let dialer = ChannelDialer::new(over, us(1), &link, ground.channel.clone(), counts);
        let whom = Whom {
            name: "far".into(),
            address: Target::from(self.address),
            identity: us(2).identity.map(|identity| identity.peer().ed25519),
            rsa: None,
        };
        let begun = Instant::now();
        let dialled = soon(dialer.dial(&whom, self.how, &Terms::default())).await;
        let took = begun.elapsed();
        let served = soon(told.recv()).await.expect("served");
        (dialled.expect("dialled"), served, took)
    }

    /// Opens its relay's listeners.
    fn served(
        self,
        network: &Network,
        ground: &Ground,
        tasks: &mut JoinSet<()>,
    ) -> mpsc::Receiver<Channel> {
        let server = ChannelServer::new(
            us(2),
            ground.certificate,
            ground.channel.clone(),
            Arc::default(),
        );
        let (tell, told) = mpsc::channel(1);
        let listeners = Listeners {
            ground: ground.clone(),
            server: Arc::new(server),
            told: Arc::new(move |channel| tell.try_send(channel).expect("room")),
        };
        let seed = [self.seed.wrapping_add(1); 32];
        let opened = listeners.quic(network, self.address, seed, tasks);
        opened.expect("opens");
        listeners.tls(network, self.address, tasks);
        told
    }
}

fn cell(command: Command) -> Cell {
    Cell::new(CircuitId::default(), command, |_| {}).expect("a cell")
}

/// Both ends of a circuit, made.
async fn circuit(near: &Channel, far: &Channel) -> (Circuit, Circuit) {
    let mut here = soon(near.open()).await.expect("opens");
    soon(here.sender.ready()).await.expect("room");
    here.sender.send(cell(Command::CREATE2)).expect("taken");
    here.sender.flush().await.expect("taken");
    let mut there = soon(far.accept()).await.expect("comes");
    soon(there.receiver.recv()).await.expect("its first cell");
    (here, there)
}

async fn send(sender: &mut Sender, count: usize) {
    for _ in 0..count {
        sender.ready().await.expect("room");
        sender.send(cell(Command::RELAY)).expect("taken");
    }
    sender.flush().await.expect("taken");
}

async fn receive(receiver: &mut Receiver, count: usize) {
    for _ in 0..count {
        receiver.recv().await.expect("a cell");
    }
}

/// Sends `count` cells each way, one after the other.
async fn exchange(near: &Channel, far: &Channel, count: usize) {
    let (mut here, mut there) = circuit(near, far).await;
    for (from, to) in [
        (&mut here.sender, &mut there.receiver),
        (&mut there.sender, &mut here.receiver),
    ] {
        soon(async { tokio::join!(send(from, count), receive(to, count)) }).await;
    }
}

/// After what time the first and the last cell of each page of 320 KiB is there, each on a circuit of its own, with a pause behind it.
async fn pages(near: &Channel, far: &Channel) -> Vec<[Duration; 2]> {
    let mut times = Vec::new();
    for _ in 0..10 {
        let (mut here, mut there) = circuit(near, far).await;
        let begun = Instant::now();
        let server = async {
            receive(&mut there.receiver, 1).await;
            send(&mut there.sender, PAGE).await;
        };
        let client = async {
            send(&mut here.sender, 1).await;
            receive(&mut here.receiver, 1).await;
            let first = begun.elapsed();
            receive(&mut here.receiver, PAGE - 1).await;
            [first, begun.elapsed()]
        };
        times.push(soon(async { tokio::join!(client, server) }).await.0);
        sleep(Duration::from_secs(1)).await;
    }
    times
}

fn median(times: &[[Duration; 2]], which: usize) -> Duration {
    let mut times: Vec<_> = times.iter().map(|both| both[which]).collect();
    times.sort();
    times[times.len() / 2]
}

/// The medians of pages' times, over a path that loses one packet in a hundred, and how many cells a busy circuit beside them was sent a second.
async fn fetch(busy: bool) -> ([Duration; 2], usize) {
    let network = Network::new(1, 0.01);
    let mut tasks = JoinSet::new();
    let (near, far, _) = channel(&network, How::Quic, &mut tasks).await;
    let cells = Arc::new(AtomicUsize::new(0));
    if busy {
        let (mut here, mut there) = circuit(&near, &far).await;
        let cells = Arc::clone(&cells);
        tasks.spawn(async move { send(&mut there.sender, usize::MAX).await });
        tasks.spawn(async move {
            while here.receiver.recv().await.is_some() {
                cells.fetch_add(1, Relaxed);
            }
        });
        sleep(Duration::from_secs(1)).await;
    }
    let begun = Instant::now();
    let times = pages(&near, &far).await;
    let seconds = usize::try_from(begun.elapsed().as_secs()).expect("few");
    let medians = [0, 1].map(|which| median(&times, which));
    (medians, cells.load(Relaxed) / seconds)
}

#[tokio::test(start_paused = true)]
async fn a_channel_over_quic_stands_after_the_round_trips_of_its_handshakes() {
    let network = Network::new(1, 0.0);
    let mut tasks = JoinSet::new();
    let (near, far, took) = channel(&network, How::Quic, &mut tasks).await;
    // 40 ms each: one of QUIC's, and VERSIONS to NETINFO.
    assert!((80..100).contains(&took.as_millis()), "{took:?}");
    exchange(&near, &far, 1000).await;
    assert!(network.ledger().is_balanced());
    assert_eq!(network.ledger().lost.packets, 0);
}

#[tokio::test(start_paused = true)]
async fn a_channel_over_tls_takes_one_round_trip_more_for_its_connection() {
    let network = Network::new(1, 0.0);
    let mut tasks = JoinSet::new();
    let (near, far, took) = channel(&network, How::Tls, &mut tasks).await;
    assert!((120..145).contains(&took.as_millis()), "{took:?}");
    exchange(&near, &far, 1000).await;
    assert!(network.ledger().is_balanced());
}

#[tokio::test(start_paused = true)]
async fn of_a_race_quic_is_taken_and_cells_arrive_although_packets_are_lost() {
    for (how, kind) in [
        (How::Raced, LinkKind::Quic),
        (How::Quic, LinkKind::Quic),
        (How::Tls, LinkKind::Tls),
    ] {
        let network = Network::new(1, 0.05);
        let mut tasks = JoinSet::new();
        let (near, far, _) = channel(&network, how, &mut tasks).await;
        assert_eq!(near.kind(), kind);
        exchange(&near, &far, 1000).await;
        let ledger = network.ledger();
        assert!(ledger.lost.packets > 0);
        assert!(ledger.is_balanced());
    }
}

#[tokio::test(start_paused = true)]
async fn a_quiet_circuit_beside_a_busy_one_is_as_fast_as_alone_although_packets_are_lost() {
    let (alone, _) = fetch(false).await;
    let (beside, busy) = fetch(true).await;
    for (beside, alone) in beside.iter().zip(alone) {
        assert!(*beside < alone * 5 / 4, "{beside:?} instead of {alone:?}");
    }
    // 12.5 MB/s are there.
    assert!(busy > 4_000, "{busy} cells a second");
}
