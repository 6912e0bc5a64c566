//! How soon the first byte of an answer is there, over relays in memory: the clock is tokio's, and paused.

use std::{
    fmt,
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use hoplite_crypto::{ALPN_H3, Certificates, Trust, server_tls};
use hoplite_http::{
    DatagramSink,
    h3::{self, Incoming, Session},
};
use hoplite_link::{
    Peer,
    quic::{AsyncUdpSocket, Endpoint, EndpointConfig, TokioRuntime, TransportConfig, UdpPoller},
    server::{Secrets, server_config},
};
use hoplite_masque::{Config, Path, Relay as Known};
use hoplite_overlay::{
    Batch, Datagrams, Overlay, Terms,
    memory::{Conditions, Listener, MemoryOverlay, Network, Socket},
};
use hoplite_quic::Hooks;
use hoplite_wire::{ResponseHead, Target, Template};
use quinn_udp::{RecvMeta, Transmit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    sync::mpsc,
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::support::identity;

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
    pub(crate) async fn first_octet(&mut self, early: bool) -> Duration {
        let (target, terms) = (
            self.listener.address().into(),
            Terms::default().early(early),
        );
        let start = Instant::now();
        let ask = async {
            let mut near = self.path.open_stream(&target, &terms).await.expect("opens");
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
        let ends = timeout(Duration::from_secs(60), both).await;
        ends.expect("in time, in the test's own");
        start.elapsed()
    }
}

/// What an early stream saves, to the millisecond: QUIC's own timers have no finer grain.
async fn saved(hops: u8) -> Duration {
    let mut lab = Lab::new(hops);
    lab.path.connect().await.expect("connects");
    // The first flow finds out about the path.
    lab.first_octet(false).await;
    let late = lab.first_octet(false).await;
    let early = lab.first_octet(true).await;
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

/// Starts a relay; answers with how it is known.
fn serve(network: &Network, number: u8, tasks: &mut JoinSet<()>) -> Known {
    let address = SocketAddr::new(Ipv4Addr::new(192, 0, 2, number).into(), 443);
    let identity = identity();
    let certificates = Certificates::new(&identity).expect("certificates");
    let tls = Arc::new(server_tls(certificates, &[ALPN_H3]).expect("a server's TLS"));
    let secrets = Secrets::generate().expect("secrets");
    let transport = Arc::new(TransportConfig::default());
    let config = server_config(tls, transport, &secrets, &Hooks::default()).expect("QUIC");
    let endpoint = Endpoint::new_with_abstract_socket(
        EndpointConfig::default(),
        Some(config),
        FarSocket::new(network.bind_at(address), tasks),
        Arc::new(TokioRuntime),
    );
    let endpoint = endpoint.expect("an endpoint");
    let overlay = network.overlay(address.ip());
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
    Known {
        peer: Peer {
            name: format!("r{number}"),
            address: Target::from(address),
            trust: Trust::Pins(vec![identity.pin()]),
        },
        token: None,
        template: None,
        mode: None,
    }
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

/// A relay's UDP socket on the in-memory network.
struct FarSocket {
    socket: Arc<Socket>,
    received: Mutex<mpsc::Receiver<(Bytes, SocketAddr)>>,
}

impl FarSocket {
    fn new(socket: Socket, tasks: &mut JoinSet<()>) -> Arc<Self> {
        let (sender, received) = mpsc::channel(4096);
        let socket = Arc::new(socket);
        let inner = Arc::clone(&socket);
        tasks.spawn(async move { while sender.send(inner.recv().await).await.is_ok() {} });
        Arc::new(Self {
            socket,
            received: Mutex::new(received),
        })
    }
}

impl fmt::Debug for FarSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FarSocket")
    }
}

#[derive(Debug)]
struct Always;

impl UdpPoller for Always {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for FarSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Always)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let whole = transmit.contents.len().max(1);
        let segment = transmit.segment_size.unwrap_or(whole);
        for payload in transmit.contents.chunks(segment) {
            self.socket.send(payload, transmit.destination);
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let got = ready!(self.received.lock().expect("sound").poll_recv(cx));
        let Some((payload, addr)) = got else {
            return Poll::Pending;
        };
        bufs[0][..payload.len()].copy_from_slice(&payload);
        meta[0] = RecvMeta {
            addr,
            len: payload.len(),
            stride: payload.len().max(1),
            ..RecvMeta::default()
        };
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.socket.address())
    }
}
