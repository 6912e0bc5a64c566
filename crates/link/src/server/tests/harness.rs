//! A relay that echoes, each shard on a thread of its own, and clients for it.

use std::{
    collections::BTreeSet,
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
    task::{Context, Poll},
    thread::JoinHandle,
};

use hoplite_quic::{
    AsyncUdpSocket, Connection, Endpoint, EndpointConfig, Hooks, TransportConfig,
    UdpSocket as QuicSocket,
    crypto::rustls::QuicClientConfig,
    server::Secrets,
    timer::Timers,
    udp::{RecvMeta, Transmit},
};
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
};

use crate::server::{BoundShard, Shard, bind};

const ALPN: &[u8] = b"echo";
const MOST: usize = 16 * 1024 * 1024;

/// Stops its shards when it is dropped.
pub(super) struct Relay {
    pub(super) address: SocketAddr,
    certificate: CertificateDer<'static>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    pub(super) fn start(listen: SocketAddr, shards: usize) -> Self {
        let made = rcgen::generate_simple_self_signed(["relay.example".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let tls = server_tls(&made);
        let secrets = Secrets::generate().unwrap();
        let bound = bind(listen, shards, super::BUFFERS).unwrap();
        let (stop, stopped) = watch::channel(false);
        let address = bound.local_addr();
        let start = |shard| {
            let (tls, secrets, stopped) = (Arc::clone(&tls), secrets.clone(), stopped.clone());
            std::thread::spawn(move || run(shard, tls, &secrets, stopped))
        };
        Self {
            address,
            certificate,
            stop,
            threads: bound.into_shards().into_iter().map(start).collect(),
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the test is the client, and it stays on loopback"
    )]
    pub(super) async fn exchange_over_tcp(&self) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(b"ping").await.unwrap();
        let mut echo = [0; 4];
        stream.read_exact(&mut echo).await.unwrap();
        assert_eq!(&echo, b"ping");
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            assert!(thread.join().is_ok() || std::thread::panicking());
        }
    }
}

fn server_tls(made: &rcgen::CertifiedKey<rcgen::KeyPair>) -> Arc<rustls::ServerConfig> {
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    Arc::new(tls)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn run(
    shard: BoundShard,
    tls: Arc<rustls::ServerConfig>,
    secrets: &Secrets,
    mut stopped: watch::Receiver<bool>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let transport = Arc::new(TransportConfig::default());
        let shard = shard
            .activate(tls, transport, secrets, &Hooks::default())
            .unwrap();
        tokio::select! {
            () = serve(&shard) => {}
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
    });
}

async fn serve(shard: &Shard) {
    loop {
        tokio::select! {
            Some(incoming) = shard.endpoint.accept() => {
                tokio::spawn(echo(incoming, shard.index));
            }
            Ok((stream, _)) = shard.tcp.accept() => {
                assert!(stream.nodelay().unwrap());
                tokio::spawn(echo_over_tcp(stream));
            }
        }
    }
}

/// Every stream comes back behind the shard's index.
async fn echo(incoming: hoplite_quic::Incoming, shard: usize) {
    let connection = incoming.await.unwrap();
    while let Ok((mut send, mut receive)) = connection.accept_bi().await {
        tokio::spawn(async move {
            let payload = receive.read_to_end(MOST).await.unwrap();
            send.write_all(&[u8::try_from(shard).unwrap()])
                .await
                .unwrap();
            send.write_all(&payload).await.unwrap();
            send.finish().unwrap();
        });
    }
}

async fn echo_over_tcp(mut stream: TcpStream) {
    let (mut receive, mut send) = stream.split();
    tokio::io::copy(&mut receive, &mut send).await.unwrap();
}

/// The shard that answered, and its answer.
pub(super) async fn exchange(connection: &Connection, payload: &[u8]) -> (usize, Vec<u8>) {
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(payload).await.unwrap();
    send.finish().unwrap();
    let mut answer = receive.read_to_end(MOST).await.unwrap();
    let payload = answer.split_off(1);
    (usize::from(answer[0]), payload)
}

pub(super) async fn client(relay: &Relay) -> (Endpoint, Connection) {
    client_through(&Spy::new(), relay).await
}

pub(super) async fn client_at(relay: &Relay, host: IpAddr) -> (Endpoint, Connection) {
    connect(&Spy::at(host), relay, (host, relay.address.port()).into()).await
}

pub(super) async fn client_through(spy: &Arc<Spy>, relay: &Relay) -> (Endpoint, Connection) {
    connect(spy, relay, relay.address).await
}

async fn connect(spy: &Arc<Spy>, relay: &Relay, to: SocketAddr) -> (Endpoint, Connection) {
    let socket: Arc<dyn AsyncUdpSocket> = Arc::clone(spy) as _;
    let config = EndpointConfig::default();
    let endpoint = Endpoint::with_socket(config, None, socket, Timers::Exact).unwrap();
    let connecting = endpoint.connect_with(client_config(relay), to, "relay.example");
    let connection = connecting.unwrap().await.unwrap();
    (endpoint, connection)
}

fn client_config(relay: &Relay) -> hoplite_quic::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(relay.certificate.clone()).unwrap();
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    hoplite_quic::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
}

/// A client's socket that notes which ids it sends to.
#[derive(Debug)]
pub(super) struct Spy {
    inner: Arc<dyn AsyncUdpSocket>,
    seen: Mutex<BTreeSet<u8>>,
}

impl Spy {
    pub(super) fn new() -> Arc<Self> {
        Self::at(super::any_port().ip())
    }

    fn at(host: IpAddr) -> Arc<Self> {
        let socket = UdpSocket::bind((host, 0)).unwrap();
        Arc::new(Self {
            inner: Arc::new(QuicSocket::new(socket).unwrap()),
            seen: Mutex::default(),
        })
    }

    /// The second bytes of the ids in the short headers that were sent.
    pub(super) fn steering_bytes(&self) -> BTreeSet<u8> {
        self.seen.lock().clone()
    }
}

impl AsyncUdpSocket for Spy {
    fn poll_send(&self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<io::Result<()>> {
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len());
        let packets = transmit.contents.chunks(segment);
        let short = packets.filter(|packet| packet[0] & 0x80 == 0);
        self.seen.lock().extend(short.map(|packet| packet[2]));
        self.inner.poll_send(cx, transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}
