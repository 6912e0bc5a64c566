//! An exit on real channels, over TLS, that has a bound for what waits in all of its circuits.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime},
};

use hoplite_channel::{
    self as link, ChannelDialer, ChannelServer, Channels, Counts, How, handshake::Us,
};
use hoplite_crypto::{
    Certificates,
    onion::{OnionKey, OnionKeys, identity::RelayIdentity},
    server_tls,
};
use hoplite_onion::{
    Config, Onion,
    channel::Linked,
    path::{self, Fixed},
    relay::{self, serve},
};
use hoplite_overlay::{Stream, Terms, memory::Network};
use hoplite_testing::{identity, soon};
use tokio::{io::AsyncWriteExt, time::timeout};
use tokio_rustls::TlsAcceptor;

use crate::{
    stalls::{Targets, exchange, greedy_and_echo, stall},
    support::{Kind, World, known},
    token,
};

const RELAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)), 443);
const CLIENTS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 77)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 78)),
];
/// Each stalled circuit keeps a quarter of a megabyte and more: so this is reached by a dozen of them.
const MOST: u64 = 4_000_000;
const STALLED: u32 = 30;

/// The exit, and what its channels count.
struct Exit {
    network: Network,
    counts: Arc<Counts>,
    known: path::Relay,
}

fn us() -> Us {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.expect("after 1970").as_secs();
    let identity = RelayIdentity::from_secret(&[9; 32], now).expect("made");
    Us {
        identity: Some(Arc::new(identity)),
        addresses: vec![RELAY.ip()],
    }
}

impl Exit {
    fn start(world: &World) -> Self {
        let us = us();
        let peer = us.identity.as_ref().expect("one").peer();
        let onion = OnionKey::from_secret(&[9; 32]).expect("a key");
        let keys = OnionKeys::new(peer.rsa_id(), peer.ed25519, onion, None);
        let network = world.network.clone();
        let mut made = relay::Relay::new(keys, world.net.dialer(None), relay::Config::default());
        made.out = Some(Arc::new(network.overlay(crate::support::EXIT)));
        made.policy = Arc::clone(&world.relays[0].policy);
        let known = path::Relay {
            addresses: vec![RELAY],
            rsa: false,
            ..known(&made, Kind::default())
        };
        let counts = Arc::<Counts>::default();
        tokio::spawn(accept(network.clone(), us, counts.clone(), Arc::new(made)));
        Self {
            network,
            counts,
            known,
        }
    }

    /// A client with a channel of its own.
    fn client(&self, from: IpAddr) -> Onion {
        let (link, bounds) = (hoplite_link::Config::default(), link::Config::default());
        let over = Arc::new(self.network.overlay(from));
        let dialer = ChannelDialer::new(over, Us::default(), &link, bounds, Arc::default());
        let linked = Linked::new(Channels::new(dialer, |_| ()), How::Tls);
        let paths = Arc::new(Fixed(vec![self.known.clone()]));
        let config = Config {
            ahead: 0,
            ..Config::default()
        };
        Onion::new(Arc::new(linked), paths, config)
    }
}

async fn accept(network: Network, us: Us, counts: Arc<Counts>, relay: Arc<relay::Relay>) {
    let made = identity("relay.example");
    let tls = server_tls(Certificates::new(&made).expect("one"), &[]).expect("made");
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let bounds = link::Config {
        queued: MOST,
        ..link::Config::default()
    };
    let server = ChannelServer::new(us, made.certificate_sha256(), bounds, counts);
    let mut listener = network.listen_at(RELAY);
    loop {
        let stream = acceptor.accept(listener.accept().await).await;
        let channel = server.tls(stream.expect("TLS"), None).await;
        let channel = Arc::new(channel.expect("a channel"));
        tokio::spawn(serve(channel, Arc::clone(&relay)));
    }
}

/// Whether its circuit has been ended; else its target still takes nothing.
async fn ended(mut stream: Stream) -> bool {
    let written = timeout(Duration::from_secs(5), stream.write_all(&[0; 1_000_000]));
    written.await.is_ok_and(|written| written.is_err())
}

async fn fill(onion: &Onion, other: &Onion, targets: &Targets, exit: &Exit) -> Vec<Stream> {
    let mut streams = Vec::new();
    for n in 0..STALLED {
        streams.push(soon(stall(onion, targets, &token(n))).await);
        let queued = exit.counts.queued();
        assert!(
            queued <= MOST,
            "{queued} bytes wait with {} circuits",
            n + 1
        );
        soon(exchange(other, &targets.echo, &Terms::default())).await;
    }
    streams
}

#[tokio::test(start_paused = true)]
async fn an_exit_whose_targets_read_nothing_keeps_to_its_bound_and_serves_other_circuits() {
    let world = World::new(Duration::from_millis(5), Kind::default());
    let (exit, targets) = (Exit::start(&world), greedy_and_echo(&world).await);
    let [onion, other] = CLIENTS.map(|from| exit.client(from));
    let streams = fill(&onion, &other, &targets, &exit).await;
    let told = exit.counts.ended_for_memory.get();
    assert!(told >= 5, "{told} circuits ended");
    let mut gone = 0;
    for stream in streams {
        gone += u64::from(soon(ended(stream)).await);
    }
    assert_eq!(gone, told, "those, and no other");
}
