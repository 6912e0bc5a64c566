//! How soon the first byte of an answer is there, over relays in memory: the clock is tokio's, and paused.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use hoplite_crypto::{ALPN_H3, Certificates, Trust, server_tls};
use hoplite_http::{
    DatagramSink,
    h3::{self, Incoming, Session},
};
use hoplite_link::{Peer, memory::MemorySocket};
use hoplite_masque::{Config, Path, Relay as Known};
use hoplite_overlay::{
    Batch, Datagrams, Overlay, Terms,
    memory::{Conditions, Listener, MemoryOverlay, Network},
};
use hoplite_quic::{
    Endpoint, EndpointConfig, Hooks, TransportConfig,
    server::{Secrets, server_config},
    timer::Timers,
};
use hoplite_testing::{relay::identity, soon};
use hoplite_wire::{ResponseHead, Target, Template};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    task::JoinSet,
    time::Instant,
};

/// One way between any two hosts.
const LATENCY: Duration = Duration::from_millis(20);
pub(crate) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));

/// A network with relays, and a path over them.
pub(crate) struct Lab {
    pub(crate) network: Network,
    listener: Listener,
    pub(crate) path: Path,
    _tasks: JoinSet<()>,
}

impl Lab {
    pub(crate) fn new(hops: u8) -> Self {
        Self::with(hops, Config::default())
    }

    pub(crate) fn with(hops: u8, config: Config) -> Self {
        Self::made(hops, config, serve)
    }

    /// Of one relay that ends each connection a moment after its handshake, and counts them.
    pub(crate) fn hanging_up(count: &Arc<AtomicUsize>) -> Self {
        Self::made(1, Config::default(), |network, number, tasks| {
            let (endpoint, known) = listening(network, number, tasks);
            let count = Arc::clone(count);
            tasks.spawn(async move {
                while let Some(incoming) = endpoint.accept().await {
                    let connection = incoming.await.expect("a handshake");
                    count.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    connection.close(0_u32.into(), b"");
                }
            });
            known
        })
    }

    fn made(
        hops: u8,
        config: Config,
        serve: impl Fn(&Network, u8, &mut JoinSet<()>) -> Known,
    ) -> Self {
        let network = Network::new(1);
        network.set_conditions(Conditions {
            latency: LATENCY,
            ..Conditions::default()
        });
        let mut tasks = JoinSet::new();
        let relays = (1..=hops).map(|number| serve(&network, number, &mut tasks));
        let relays = relays.collect();
        let below = Arc::new(network.overlay(CLIENT)) as Arc<dyn Overlay>;
        Self {
            listener: network.listen(TARGET),
            path: Path::new(relays, &below, &Arc::new(config)).expect("a path"),
            _tasks: tasks,
            network,
        }
    }

    /// How long it takes from asking for a flow to the first byte of the answer.
    pub(crate) async fn first_byte(&mut self, early: bool) -> Duration {
        self.first_byte_for(&Terms::default().early(early)).await
    }

    pub(crate) async fn first_byte_for(&mut self, terms: &Terms) -> Duration {
        let target = self.listener.address().into();
        let start = Instant::now();
        let ask = async {
            let mut near = self.path.open_stream(&target, terms).await.expect("opens");
            near.write_all(b"question").await.expect("taken");
            near.read_u8().await.expect("answered");
        };
        let answer = async {
            let mut far = self.listener.accept().await;
            far.read_exact(&mut [0; 8]).await.expect("asked");
            far.write_all(b"answer").await.expect("open");
            far
        };
        let both = async { tokio::join!(ask, answer) };
        soon(both).await;
        start.elapsed()
    }
}

/// What an early stream saves, to the millisecond: QUIC's own timers have no finer grain.
async fn saved(hops: u8) -> Duration {
    let mut lab = Lab::new(hops);
    lab.path.connect().await.expect("connects");
    // The first flow finds out about the path.
    lab.first_byte(false).await;
    let late = lab.first_byte(false).await;
    let early = lab.first_byte(true).await;
    let saved = late - early;
    Duration::from_millis(u64::try_from((saved.as_micros() + 500) / 1000).expect("short"))
}

#[tokio::test(start_paused = true)]
async fn an_early_stream_saves_the_round_trip_to_a_relay() {
    assert_eq!(saved(1).await, LATENCY * 2);
}

#[tokio::test(start_paused = true)]
async fn an_early_stream_saves_the_round_trip_over_two_relays() {
    assert_eq!(saved(2).await, LATENCY * 4);
}

/// A relay's end, and how it is known.
fn listening(network: &Network, number: u8, tasks: &mut JoinSet<()>) -> (Endpoint, Known) {
    let address = SocketAddr::new(Ipv4Addr::new(192, 0, 2, number).into(), 443);
    let identity = identity();
    let certificates = Certificates::new(&identity).expect("certificates");
    let tls = Arc::new(server_tls(certificates, &[ALPN_H3]).expect("a server's TLS"));
    let secrets = Secrets::generate().expect("secrets");
    let transport = Arc::new(TransportConfig::default());
    let config = server_config(tls, transport, &secrets, &Hooks::default()).expect("QUIC");
    let endpoint = Endpoint::with_socket(
        EndpointConfig::default(),
        Some(config),
        MemorySocket::new(network.bind_at(address), tasks),
        Timers::Exact,
    );
    let known = Known {
        peer: Peer {
            name: format!("r{number}"),
            address: Target::from(address),
            trust: Trust::Pins(vec![identity.pin()]),
        },
        token: None,
        tokens: None,
        template: None,
        mode: None,
    };
    (endpoint.expect("an endpoint"), known)
}

/// Starts a relay; answers with how it is known.
fn serve(network: &Network, number: u8, tasks: &mut JoinSet<()>) -> Known {
    let (endpoint, known) = listening(network, number, tasks);
    let overlay = network.overlay(Ipv4Addr::new(192, 0, 2, number).into());
    tasks.spawn(async move {
        let mut guests = JoinSet::new();
        while let Some(incoming) = endpoint.accept().await {
            let overlay = overlay.clone();
            guests.spawn(async move {
                let connection = incoming.await.expect("a handshake");
                let session = Session::server(connection, &h3::Config::default());
                let mut requests = JoinSet::new();
                while let Some(incoming) = session.accept().await {
                    requests.spawn(carry(incoming, overlay.clone()));
                }
            });
        }
    });
    known
}

/// Serves a request, as far as it is one of these tests.
async fn carry(incoming: Incoming, overlay: MemoryOverlay) {
    let Incoming { head, mut exchange } = incoming;
    let (ok, terms) = (ResponseHead::new(200), Terms::default());
    if head.protocol.is_none() {
        let target = head.authority.parse().expect("a target");
        let opened = overlay.open_stream(&target, &terms).await;
        let mut far = opened.expect("a target that is there");
        exchange.respond(&ok).await.expect("answered");
        drop(copy_bidirectional(&mut exchange.into_stream(), &mut far).await);
        return;
    }
    let path = head.path.expect("a template");
    let target = Template::well_known().match_path(&path).expect("a target");
    let far = overlay
        .open_datagrams(&target, &terms)
        .await
        .expect("opens");
    let far = Arc::<dyn Datagrams>::from(far);
    exchange.respond(&ok).await.expect("answered");
    let flow = exchange.datagrams(Arc::new(ToTarget(Arc::clone(&far))));
    let mut buf = vec![0; 2000];
    while let Ok(received) = far.recv(&mut buf).await {
        flow.send(Batch {
            contents: &buf[..received.len],
            segment: received.segment,
        });
    }
}

struct ToTarget(Arc<dyn Datagrams>);

impl DatagramSink for ToTarget {
    fn push(&self, payload: Bytes) {
        let mut cx = Context::from_waker(Waker::noop());
        drop(self.0.poll_send(&mut cx, Batch::one(&payload)));
    }

    fn flush(&self) {}
}
