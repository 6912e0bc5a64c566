//! A relay on the in-memory network that serves channels over QUIC and TLS, and those who dial it. Runs in virtual time.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::{Buf, BufMut, BytesMut};
use hoplite_crypto::{
    ALPN_CHANNEL, ALPN_H3, Certificates, Trust, client_tls, onion::identity::RelayIdentity,
    server_tls,
};
use hoplite_link::memory::MemorySocket;
use hoplite_overlay::{
    Overlay, Terms,
    memory::{Conditions, Network},
};
use hoplite_quic::{
    Connection, Endpoint, EndpointConfig, Hooks,
    crypto::rustls::QuicClientConfig,
    server::{Secrets, server_config},
    timer::Timers,
};
use hoplite_testing::{identity, soon};
use hoplite_wire::{
    HostName, Target,
    cell::{BODY, Cell, CircuitId, Command},
};
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    Channel, ChannelDialer, ChannelServer, Circuit, Config, Counts, How, Whom,
    handshake::{Refused, Us},
};

pub(crate) const RELAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)), 443);
pub(crate) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
pub(crate) const LATENCY: Duration = Duration::from_millis(20);

pub(crate) type Served = Result<Channel, Refused>;

/// The relay and its network.
pub(crate) struct World {
    pub(crate) network: Network,
    pub(crate) server: Arc<ChannelServer>,
    /// What went wrong at the relay, and at those who dialled.
    pub(crate) there: Arc<Counts>,
    pub(crate) here: Arc<Counts>,
    pub(crate) config: Config,
    served: Mutex<mpsc::Receiver<Served>>,
    tasks: JoinSet<()>,
    tls: Arc<rustls::ServerConfig>,
}

pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs()
}

pub(crate) fn relay(secret: u8) -> Us {
    let identity = RelayIdentity::from_secret(&[secret; 32], now()).unwrap();
    Us {
        identity: Some(Arc::new(identity)),
        addresses: vec![RELAY.ip()],
    }
}

pub(crate) fn ed25519(us: &Us) -> [u8; 32] {
    us.identity.as_ref().unwrap().peer().ed25519
}

/// The relay's secret; others have other ones.
pub(crate) const SECRET: u8 = 9;

/// What the QUIC stack draws is the same in each run: which packets are lost is then, too.
fn link() -> hoplite_link::Config {
    hoplite_link::Config {
        seed: Some([7; 32]),
        ..hoplite_link::Config::default()
    }
}

impl World {
    pub(crate) fn new(config: Config) -> Self {
        let made = identity("relay.example");
        let certificates = Certificates::new(&made).unwrap();
        let tls = Arc::new(server_tls(certificates, &[ALPN_CHANNEL, ALPN_H3]).unwrap());
        let network = Network::new(1);
        network.set_conditions(Conditions {
            latency: LATENCY,
            ..Conditions::default()
        });
        network.host(HostName::new("relay.example").unwrap(), RELAY.ip());
        let there = Arc::<Counts>::default();
        let hash = made.certificate_sha256();
        let server = ChannelServer::new(relay(SECRET), hash, config.clone(), there.clone());
        let (sender, served) = mpsc::channel(16);
        let mut world = Self {
            network,
            server: Arc::new(server),
            there,
            here: Arc::default(),
            config,
            served: Mutex::new(served),
            tasks: JoinSet::new(),
            tls,
        };
        world.serve_quic(sender.clone());
        world.serve_tls(sender);
        world
    }

    fn serve_quic(&mut self, served: mpsc::Sender<Served>) {
        let socket = MemorySocket::new(self.network.bind_at(RELAY), &mut self.tasks);
        let transport = self.config.greeting(&link());
        let transport = Arc::new(transport.transport(0, 1472));
        let secrets = Secrets::generate().unwrap();
        let tls = Arc::clone(&self.tls);
        let hooks = Hooks {
            window: Some(self.config.greeting_window.into()),
            ..Hooks::default()
        };
        let config = server_config(tls, transport, &secrets, &hooks).unwrap();
        let mut endpoint = EndpointConfig::default();
        endpoint.rng_seed(link().seed);
        let endpoint = Endpoint::with_socket(endpoint, Some(config), socket, Timers::Exact);
        let (endpoint, server) = (endpoint.unwrap(), Arc::clone(&self.server));
        self.tasks.spawn(async move {
            let mut guests = JoinSet::new();
            while let Some(incoming) = endpoint.accept().await {
                let (server, served) = (Arc::clone(&server), served.clone());
                guests.spawn(async move {
                    if let Ok(connection) = incoming.await {
                        drop(served.send(server.quic(connection).await).await);
                    }
                });
            }
        });
    }

    fn serve_tls(&mut self, served: mpsc::Sender<Served>) {
        let mut listener = self.network.listen_at(RELAY);
        let acceptor = TlsAcceptor::from(Arc::clone(&self.tls));
        let server = Arc::clone(&self.server);
        self.tasks.spawn(async move {
            let mut guests = JoinSet::new();
            loop {
                let stream = listener.accept().await;
                let (acceptor, server, served) =
                    (acceptor.clone(), Arc::clone(&server), served.clone());
                guests.spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let channel = server.tls(stream, Some(CLIENT)).await;
                        drop(served.send(channel).await);
                    }
                });
            }
        });
    }

    /// The relay's end of the next channel.
    pub(crate) async fn served(&self) -> Served {
        soon(self.served.lock().await.recv()).await.unwrap()
    }

    pub(crate) fn whom(&self) -> Whom {
        Whom {
            name: "amber".into(),
            address: Target::from(RELAY),
            identity: Some(ed25519(&relay(SECRET))),
            rsa: None,
        }
    }

    pub(crate) fn dialer(&self, us: Us) -> ChannelDialer {
        self.dialer_over(us, Arc::new(self.network.overlay(CLIENT)))
    }

    pub(crate) fn dialer_over(&self, us: Us, over: Arc<dyn Overlay>) -> ChannelDialer {
        let link = link();
        let counts = Arc::clone(&self.here);
        ChannelDialer::new(over, us, &link, self.config.clone(), counts)
    }

    /// Both ends of a new channel: a relay's that dials, and the relay's that is dialled.
    pub(crate) async fn pair(&self, how: How) -> (Channel, Channel) {
        self.pair_as(relay(1), how).await
    }

    pub(crate) async fn pair_as(&self, us: Us, how: How) -> (Channel, Channel) {
        let dialer = self.dialer(us);
        let (whom, terms) = (self.whom(), Terms::default());
        let dialled = soon(dialer.dial(&whom, how, &terms)).await.unwrap();
        (dialled, self.served().await.unwrap())
    }

    /// A QUIC connection to the relay that speaks no cells yet: what a hostile peer begins with.
    pub(crate) async fn raw_quic(&mut self) -> (Endpoint, Connection) {
        let socket = MemorySocket::new(self.network.bind(CLIENT), &mut self.tasks);
        let config = EndpointConfig::default();
        let endpoint = Endpoint::with_socket(config, None, socket, Timers::Exact).unwrap();
        let tls = client_tls(&Trust::Channel, &[ALPN_CHANNEL]).unwrap();
        let crypto = QuicClientConfig::try_from(tls).unwrap();
        let config = hoplite_quic::ClientConfig::new(Arc::new(crypto));
        let connecting = endpoint.connect_with(config, RELAY, "relay.example");
        let connection = soon(connecting.unwrap()).await.unwrap();
        (endpoint, connection)
    }
}

impl World {
    /// What `endpoint` sends comes from another address from now on.
    pub(crate) fn move_to(&mut self, endpoint: &Endpoint, address: IpAddr) {
        let socket = MemorySocket::new(self.network.bind(address), &mut self.tasks);
        endpoint.move_to(socket).unwrap();
    }
}

/// A cell with a number in it.
pub(crate) fn cell(command: Command, number: u32) -> Cell {
    let circuit = CircuitId::default();
    Cell::new(circuit, command, |body| body.put_u32(number)).unwrap()
}

pub(crate) fn number(cell: &Cell) -> u32 {
    assert_eq!(cell.body.len(), BODY);
    cell.body.clone().get_u32()
}

pub(crate) fn bytes(cell: &Cell) -> BytesMut {
    let mut out = BytesMut::new();
    hoplite_wire::cell::write(cell, &mut out).unwrap();
    out
}

pub(crate) async fn send(circuit: &mut Circuit, command: Command, number: u32) {
    soon(circuit.sender.ready()).await.unwrap();
    circuit.sender.send(cell(command, number)).unwrap();
    soon(circuit.sender.flush()).await.unwrap();
}

pub(crate) async fn recv(circuit: &mut Circuit) -> (Command, u32) {
    let cell = soon(circuit.receiver.recv()).await.unwrap();
    assert_eq!(cell.circuit, circuit.id);
    (cell.command, number(&cell))
}

/// A circuit from `from` to `to`, made and answered.
pub(crate) async fn circuit(from: &Channel, to: &Channel) -> (Circuit, Circuit) {
    let mut near = soon(from.open()).await.unwrap();
    send(&mut near, Command::CREATE2, 0).await;
    let mut far = soon(to.accept()).await.unwrap();
    assert_eq!(far.id, near.id);
    assert_eq!(recv(&mut far).await, (Command::CREATE2, 0));
    (near, far)
}
