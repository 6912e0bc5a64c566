//! A relay on the in-memory network that echoes over QUIC and TLS, and roads towards it that misbehave.

use std::{
    collections::BTreeSet,
    fmt,
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use hoplite_crypto::{ALPN_H2, ALPN_H3, Certificates, Identity, Pin as KeyPin, Trust, server_tls};
use hoplite_overlay::{
    Batch, Datagrams, Error, Opening, Overlay, Received, Stream, Terms,
    memory::{Conditions, MemoryOverlay, Network, Socket, What},
};
use hoplite_quic::Hooks;
use hoplite_wire::{HostName, Target};
use quinn::{
    AsyncUdpSocket, Connection, Endpoint, EndpointConfig, TokioRuntime, UdpPoller,
    udp::{RecvMeta, Transmit},
};
use tokio::{io::AsyncWriteExt, sync::mpsc, task::JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::{
    Config, Dialer, Peer,
    server::{Secrets, server_config},
};

const RELAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)), 443);
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
pub(super) const LATENCY: Duration = Duration::from_millis(20);

/// A network with a relay on it.
pub(super) struct Lab {
    pub(super) network: Network,
    pub(super) pin: KeyPin,
    tls: Arc<rustls::ServerConfig>,
    tasks: JoinSet<()>,
}

pub(super) fn identity() -> Identity {
    let made = Identity::generate(&["relay.example".to_owned()]).unwrap();
    Identity::from_pem(made.certificate.as_bytes(), made.key.as_bytes()).unwrap()
}

impl Lab {
    /// Both services.
    pub(super) fn new() -> Self {
        let mut lab = Self::deserted();
        lab.serve_quic();
        lab.serve_tls();
        lab
    }

    /// The host, without any service yet.
    pub(super) fn deserted() -> Self {
        let identity = identity();
        let certificates = Certificates::new(&identity).unwrap();
        let tls = server_tls(certificates, &[ALPN_H3, ALPN_H2]).unwrap();
        Self::with(tls, identity.pin())
    }

    pub(super) fn with(tls: rustls::ServerConfig, pin: KeyPin) -> Self {
        let network = Network::new(1);
        network.set_conditions(Conditions {
            latency: LATENCY,
            ..Conditions::default()
        });
        let name = HostName::new("relay.example").unwrap();
        network.host(name, RELAY.ip());
        Self {
            network,
            pin,
            tls: Arc::new(tls),
            tasks: JoinSet::new(),
        }
    }

    pub(super) fn serve_quic(&mut self) {
        self.serve_quic_with(&Hooks::default());
    }

    pub(super) fn serve_quic_with(&mut self, hooks: &Hooks) {
        let socket = FarSocket::new(self.network.bind_at(RELAY), &mut self.tasks);
        let transport = Config {
            streams: 100,
            // Relays do not speak by themselves.
            keep_alive: Duration::from_secs(1000),
            ..Config::default()
        };
        let transport = Arc::new(transport.transport(0, 1472));
        let secrets = Secrets::generate().unwrap();
        let config = server_config(Arc::clone(&self.tls), transport, &secrets, hooks).unwrap();
        let endpoint = Endpoint::new_with_abstract_socket(
            EndpointConfig::default(),
            Some(config),
            socket,
            Arc::new(TokioRuntime),
        );
        let endpoint = endpoint.unwrap();
        self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Some(incoming) = endpoint.accept().await {
                connections.spawn(async move {
                    if let Ok(connection) = incoming.await {
                        echo(connection).await;
                    }
                });
            }
        });
    }

    pub(super) fn serve_tls(&mut self) {
        let mut listener = self.network.listen_at(RELAY);
        let acceptor = TlsAcceptor::from(Arc::clone(&self.tls));
        self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let stream = listener.accept().await;
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    if let Ok(tls) = acceptor.accept(stream).await {
                        let (mut read, mut write) = tokio::io::split(tls);
                        drop(tokio::io::copy(&mut read, &mut write).await);
                        drop(write.shutdown().await);
                    }
                });
            }
        });
    }

    /// The relay's UDP port is closed without a word: its host refuses what is sent there.
    pub(super) fn close_port(&self) {
        drop(self.network.bind_at(RELAY));
    }

    pub(super) fn peer(&self) -> Peer {
        Peer {
            name: "amber".into(),
            address: Target::from(RELAY),
            trust: Trust::Pins(vec![self.pin]),
        }
    }

    pub(super) fn overlay(&self) -> MemoryOverlay {
        self.network.overlay(CLIENT)
    }

    pub(super) fn dialer(&self, hop: usize) -> Dialer {
        Dialer::new(
            Arc::new(self.overlay()),
            self.peer(),
            hop,
            Config::default(),
        )
    }

    /// The client's ports that datagrams to the relay came from.
    pub(super) fn client_ports(&self) -> BTreeSet<u16> {
        let seen = self.network.seen().into_iter();
        let sent = seen.filter(|seen| matches!(seen.what, What::Datagram(_)) && seen.to == RELAY);
        sent.map(|seen| seen.from.port()).collect()
    }
}

async fn echo(connection: Connection) {
    let mut streams = JoinSet::new();
    while let Ok((mut send, mut receive)) = connection.accept_bi().await {
        streams.spawn(async move { drop(tokio::io::copy(&mut receive, &mut send).await) });
    }
}

/// Sends `payload` on a new stream and compares what comes back.
pub(super) async fn exchange(connection: &Connection, payload: &[u8]) {
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    let writing = async {
        send.write_all(payload).await.unwrap();
        send.finish().unwrap();
    };
    let ((), answer) = tokio::join!(writing, receive.read_to_end(payload.len() + 1));
    assert!(answer.unwrap() == payload, "the echo differs");
}

/// The relay's UDP socket on the in-memory network.
pub(crate) struct FarSocket {
    socket: Arc<Socket>,
    received: Mutex<mpsc::Receiver<(Vec<u8>, SocketAddr)>>,
}

impl FarSocket {
    pub(crate) fn new(socket: Socket, tasks: &mut JoinSet<()>) -> Arc<Self> {
        let (sender, received) = mpsc::channel(4096);
        let socket = Arc::new(socket);
        let inner = Arc::downgrade(&socket);
        let far = Arc::new(Self {
            socket,
            received: Mutex::new(received),
        });
        tasks.spawn(async move {
            while let Some(socket) = inner.upgrade() {
                let (payload, from) = socket.recv().await;
                if sender.send((payload.to_vec(), from)).await.is_err() {
                    return;
                }
            }
        });
        far
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
        for payload in transmit
            .contents
            .chunks(transmit.segment_size.unwrap_or(whole))
        {
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
        let got = ready!(self.received.lock().unwrap().poll_recv(cx));
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

/// A road whose flows can be told that the device has moved, and that do not take every batch at once.
#[derive(Debug, Clone)]
pub(super) struct Bumpy {
    pub(super) inner: MemoryOverlay,
    /// Flows that are open now have moved.
    pub(super) moved: Arc<Mutex<Arc<AtomicBool>>>,
    /// Of so many batches one is not taken at once; 0 is none.
    pub(super) stutter: usize,
    /// The most datagrams that came down in one batch.
    pub(super) longest: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct BumpyFlow {
    longest: Arc<AtomicUsize>,
    inner: Box<dyn Datagrams>,
    moved: Arc<AtomicBool>,
    stutter: usize,
    asked: AtomicUsize,
}

impl Bumpy {
    pub(super) fn new(lab: &Lab, stutter: usize) -> Self {
        Self {
            inner: lab.overlay(),
            moved: Arc::default(),
            stutter,
            longest: Arc::default(),
        }
    }

    /// The device gets another address.
    pub(super) fn move_away(&self) {
        let mut moved = self.moved.lock().unwrap();
        moved.store(true, Ordering::Relaxed);
        *moved = Arc::default();
    }
}

impl Overlay for Bumpy {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        self.inner.open_stream(target, terms)
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async move {
            let inner = self.inner.open_datagrams(target, terms).await?;
            let moved = Arc::clone(&self.moved.lock().unwrap());
            let (stutter, asked) = (self.stutter, AtomicUsize::new(0));
            let flow = BumpyFlow {
                longest: Arc::clone(&self.longest),
                inner,
                moved,
                stutter,
                asked,
            };
            Ok(Box::new(flow) as Box<dyn Datagrams>)
        })
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        self.inner.resolve(name, terms)
    }
}

impl Datagrams for BumpyFlow {
    fn max_payload(&self) -> usize {
        self.inner.max_payload()
    }

    fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        if self.stutter > 0 && asked.is_multiple_of(self.stutter) {
            let waker = cx.waker().clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                waker.wake();
            });
            return Poll::Pending;
        }
        let datagrams = batch.payloads().count();
        self.longest.fetch_max(datagrams, Ordering::Relaxed);
        self.inner.poll_send(cx, batch)
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        self.inner.poll_recv(cx, buf)
    }

    fn moved(&self) -> bool {
        self.moved.load(Ordering::Relaxed)
    }
}

/// An overlay that has to be dialled itself first, once: both kinds of flow wait for the same moment.
#[derive(Debug)]
pub(super) struct Cold {
    pub(super) inner: MemoryOverlay,
    pub(super) stands: tokio::time::Instant,
}

impl Overlay for Cold {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        Box::pin(async move {
            tokio::time::sleep_until(self.stands).await;
            self.inner.open_stream(target, terms).await
        })
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async move {
            tokio::time::sleep_until(self.stands + 4 * LATENCY).await;
            self.inner.open_datagrams(target, terms).await
        })
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        self.inner.resolve(name, terms)
    }
}
