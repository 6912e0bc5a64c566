//! What a relay of a circuit can tell of it by the streams of QUIC that its channel has: over real channels, with an observer at each relay who sees its
//! packets in the clear, as whoever runs it does. Sabée, "Adding QUIC support to the Tor network", section 4.4: streams "can [be] distinguish[ed] inside a circuit".

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime},
};

use hoplite_channel::{
    self as link, ChannelDialer, ChannelServer, Channels, How, Rival, handshake::Us,
};
use hoplite_crypto::{
    ALPN_CHANNEL, Certificates,
    onion::{OnionKey, OnionKeys, identity::RelayIdentity},
    server_tls,
};
use hoplite_link::memory::MemorySocket;
use hoplite_onion::{
    Config, Onion,
    channel::{Dialer, Linked},
    path::{self, Fixed},
    relay::{self, Policy, serve},
};
use hoplite_overlay::{
    Overlay, Stream, Terms,
    conformance::Memory,
    memory::{Conditions, Network},
};
use hoplite_quic::{
    Begun, Endpoint, EndpointConfig, Hooks, Observer, Packet, Side, Watch,
    server::{Secrets, server_config},
    timer::Timers,
};
use hoplite_testing::{identity, soon, targets};
use hoplite_wire::{Target, quic_frames::Content};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
};

use crate::{
    support::{EXIT, FAR, Kind, known},
    token,
};

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 5));
const LATENCY: Duration = Duration::from_millis(10);

/// The streams of QUIC that one relay has seen on the channels that came to it.
#[derive(Default)]
struct StreamsSeen(Mutex<BTreeSet<u64>>);

impl StreamsSeen {
    fn note(&self, packet: &Packet<'_>) {
        let mut seen = self.0.lock();
        for frame in packet.frames().flatten() {
            if let Content::Stream { id, data, .. } = frame.content
                && !data.is_empty()
            {
                seen.insert(id);
            }
        }
    }
}

/// At one relay.
#[derive(Clone, Default)]
struct Spy(Arc<StreamsSeen>);

impl Watch for Spy {
    fn observe(&self, begun: &Begun<'_>) -> Option<Arc<dyn Observer>> {
        (begun.side == Side::Server).then(|| Arc::new(self.clone()) as Arc<dyn Observer>)
    }
}

impl Observer for Spy {
    fn sent(&self, packet: &Packet<'_>) {
        self.0.note(packet);
    }

    fn received(&self, packet: &Packet<'_>) {
        self.0.note(packet);
    }
}

/// Three relays with channels over QUIC, each with a spy, and a client.
struct World {
    network: Network,
    spies: Vec<Spy>,
    onion: Onion,
    _tasks: Vec<JoinSet<()>>,
}

fn us(n: u8) -> Us {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.expect("after 1970").as_secs();
    let identity = RelayIdentity::from_secret(&[n; 32], now).expect("made");
    Us {
        identity: Some(Arc::new(identity)),
        addresses: vec![address(n).ip()],
    }
}

fn address(n: u8) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(192, 0, 2, n), 443))
}

fn dialer(network: &Network, from: IpAddr, us: Us, bounds: &link::Config) -> Arc<dyn Dialer> {
    let link = hoplite_link::Config::default();
    let over = Arc::new(network.overlay(from));
    let dialer = ChannelDialer::new(over, us, &link, bounds.clone(), Arc::default());
    Arc::new(Linked::new(Channels::new(dialer, |_| ()), How::Quic))
}

impl World {
    fn new(rival: Option<Rival>) -> Self {
        let network = Network::new(1);
        network.set_conditions(Conditions {
            latency: LATENCY,
            ..Conditions::default()
        });
        let bounds = link::Config {
            rival,
            ..link::Config::default()
        };
        let (mut spies, mut path, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
        for n in 1..=3 {
            let (spy, mut at_relay) = (Spy::default(), JoinSet::new());
            path.push(relay(n, &network, &bounds, &spy, &mut at_relay));
            spies.push(spy);
            tasks.push(at_relay);
        }
        let config = Config {
            ahead: 0,
            ..Config::default()
        };
        let dialer = dialer(&network, CLIENT, Us::default(), &bounds);
        Self {
            onion: Onion::new(dialer, Arc::new(Fixed(path)), config),
            network,
            spies,
            _tasks: tasks,
        }
    }

    /// How many streams each relay has seen on its way in, the guard first.
    fn seen(&self) -> Vec<usize> {
        let seen = self.spies.iter().map(|spy| spy.0.0.lock().len());
        seen.collect()
    }

    /// Opens so many streams on one circuit, over each of which bytes go there and back.
    async fn streams(&self, count: usize, echo: &Target, terms: &Terms) -> Vec<Stream> {
        let mut open = Vec::new();
        for _ in 0..count {
            let mut stream = soon(self.onion.open_stream(echo, terms))
                .await
                .expect("opens");
            stream.write_all(&[7; 3000]).await.expect("taken");
            let mut back = [0; 3000];
            soon(stream.read_exact(&mut back)).await.expect("comes");
            assert!(back.iter().all(|byte| *byte == 7));
            open.push(stream);
        }
        open
    }
}

/// Starts relay number `n`, and says what a client knows of it.
fn relay(
    n: u8,
    network: &Network,
    bounds: &link::Config,
    spy: &Spy,
    tasks: &mut JoinSet<()>,
) -> path::Relay {
    let us = us(n);
    let peer = us.identity.as_ref().expect("one").peer();
    let onion = OnionKey::from_secret(&[n; 32]).expect("a key");
    let keys = OnionKeys::new(peer.rsa_id(), peer.ed25519, onion, None);
    let next = dialer(network, address(n).ip(), us.clone(), bounds);
    let mut made = relay::Relay::new(keys, next, relay::Config::default());
    made.next = Arc::new(Policy::everywhere(true));
    made.out = Some(Arc::new(network.overlay(EXIT)));
    made.policy = Arc::new(Policy {
        ports: vec![1..=65535],
        special: true,
    });
    let known = path::Relay {
        addresses: vec![address(n)],
        rsa: false,
        ..known(&made, Kind::default())
    };
    let shown = identity("relay.example");
    let certificates = Certificates::new(&shown).expect("one");
    let tls = server_tls(certificates, &[ALPN_CHANNEL]).expect("made");
    let hash = shown.certificate_sha256();
    let server = Arc::new(ChannelServer::new(us, hash, bounds.clone(), Arc::default()));
    let socket = MemorySocket::new(network.bind_at(address(n)), tasks);
    let transport = bounds.greeting(&hoplite_link::Config::default());
    let hooks = Hooks {
        watch: Some(Arc::new(spy.clone())),
        window: Some(bounds.greeting_window.into()),
        ..Hooks::default()
    };
    let secrets = Secrets::generate().expect("random");
    let transport = Arc::new(transport.transport(0, 1472));
    let config = server_config(Arc::new(tls), transport, &secrets, &hooks).expect("made");
    let endpoint = Endpoint::with_socket(
        EndpointConfig::default(),
        Some(config),
        socket,
        Timers::Exact,
    );
    let (endpoint, made) = (endpoint.expect("made"), Arc::new(made));
    tasks.spawn(async move {
        let mut peers = JoinSet::new();
        while let Some(incoming) = endpoint.accept().await {
            let (server, made) = (Arc::clone(&server), Arc::clone(&made));
            peers.spawn(async move {
                let connection = incoming.await.expect("connects");
                let channel = server.quic(connection).await.expect("a channel");
                serve(Arc::new(channel), made).await;
            });
        }
    });
    known
}

/// What each relay sees more of when a circuit that has carried one stream carries four others as well.
async fn told_by_four_streams(rival: Option<Rival>) -> Vec<usize> {
    let world = World::new(rival);
    let far = Memory::new(world.network.clone(), FAR);
    let echo = targets::at(&far, targets::echo).await;
    let terms = token(1);
    let first = world.streams(1, &echo, &terms).await;
    let one = world.seen();
    let four = world.streams(4, &echo, &terms).await;
    let five = world.seen();
    drop((first, four));
    let more = five.iter().zip(one).map(|(five, one)| five - one);
    more.collect()
}

#[tokio::test(start_paused = true)]
async fn each_relay_counts_the_streams_of_a_circuit_in_quictor_and_none_does_here() {
    let ours = told_by_four_streams(None).await;
    assert_eq!(
        ours,
        [0, 0, 0],
        "a circuit is one stream, whatever it carries"
    );
    let quictor = told_by_four_streams(Some(Rival::StreamPerStream)).await;
    assert_eq!(quictor, [8, 8, 8], "four there and four back, on each hop");
    let one = told_by_four_streams(Some(Rival::OneStream)).await;
    assert_eq!(one, [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_relay_counts_circuits_where_each_has_a_stream_and_not_where_all_share_one() {
    let mut told = Vec::new();
    for rival in [None, Some(Rival::OneStream)] {
        let world = World::new(rival);
        let far = Memory::new(world.network.clone(), FAR);
        let echo = targets::at(&far, targets::echo).await;
        let mut open = world.streams(1, &echo, &token(1)).await;
        let before = world.seen();
        open.extend(world.streams(1, &echo, &token(2)).await);
        let more: HashSet<_> = world
            .seen()
            .iter()
            .zip(before)
            .map(|(a, b)| a - b)
            .collect();
        told.push(more);
    }
    assert_eq!(told, [HashSet::from([1]), HashSet::from([0])]);
}
