//! One channel between two relays of the network.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use hoplite_link::channel::{
    Channel, ChannelDialer, ChannelServer, Counts, How, Kind, Whom, handshake::Us,
};
use hoplite_overlay::Terms;
use hoplite_sim::{
    ground::{Ground, relay_identity},
    host::Host,
    net::{Access, Network, Place},
    serve::Doors,
};
use hoplite_wire::{
    Target,
    cell::{Cell, CircuitId, Command},
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, timeout},
};

const ACCESS: Access = Access {
    up: 12_500_000,
    down: 12_500_000,
    queue: 1 << 18,
};

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
    let ground = Ground::new().expect("made");
    let (near, far) = (
        network.add(Place::apart(10.0), ACCESS),
        network.add(Place::apart(10.0), ACCESS),
    );
    let address = SocketAddr::new(Network::address(far), 443);
    let server = ChannelServer::new(
        us(2),
        ground.certificate,
        ground.channel.clone(),
        Arc::default(),
    );
    let (tell, mut told) = mpsc::channel(1);
    let doors = Doors {
        ground: ground.clone(),
        server: Arc::new(server),
        told: Arc::new(move |channel| tell.try_send(channel).expect("room")),
    };
    doors.quic(network, address, [2; 32], tasks).expect("opens");
    doors.tls(network, address, tasks);
    let link = hoplite_link::Config {
        seed: Some([1; 32]),
        ..ground.link.clone()
    };
    let over = Arc::new(Host::new(network, near));
    let counts = Arc::<Counts>::default();
    let dialer = ChannelDialer::new(over, us(1), &link, ground.channel.clone(), counts);
    let whom = Whom {
        name: "far".into(),
        address: Target::from(address),
        identity: us(2).identity.map(|identity| identity.peer().ed25519),
    };
    let begun = Instant::now();
    let dialled = soon(dialer.dial(&whom, how, &Terms::default())).await;
    let took = begun.elapsed();
    let served = soon(told.recv()).await.expect("served");
    (dialled.expect("dialled"), served, took)
}

/// Sends `count` cells each way at once.
async fn exchange(near: &Channel, far: &Channel, count: usize) {
    let cell = |command| Cell::new(CircuitId::default(), command, |_| {}).expect("a cell");
    let mut here = soon(near.open()).await.expect("opens");
    soon(here.sender.ready()).await.expect("room");
    here.sender.send(cell(Command::CREATE2)).expect("taken");
    let mut there = soon(far.accept()).await.expect("comes");
    soon(there.receiver.recv()).await.expect("its first cell");
    for (from, to) in [
        (&mut here.sender, &mut there.receiver),
        (&mut there.sender, &mut here.receiver),
    ] {
        let sending = async {
            for _ in 0..count {
                from.ready().await.expect("room");
                from.send(cell(Command::RELAY)).expect("taken");
            }
        };
        let receiving = async {
            for _ in 0..count {
                to.recv().await.expect("a cell");
            }
        };
        soon(async { tokio::join!(sending, receiving) }).await;
    }
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
        (How::Raced, Kind::Quic),
        (How::Quic, Kind::Quic),
        (How::Tls, Kind::Tls),
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
