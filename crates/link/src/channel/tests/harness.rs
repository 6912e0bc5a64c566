//! A relay on the in-memory network that serves channels over QUIC and TLS, and those who dial it. Runs in virtual time.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::{Buf, BufMut, BytesMut};
use hoplite_crypto::{
    ALPN_CHANNEL, ALPN_H3, Certificates, Identity, Trust, client_tls,
    onion::identity::RelayIdentity, server_tls,
};
use hoplite_overlay::{
    Overlay, Terms,
    memory::{Conditions, Network},
};
use hoplite_quic::Hooks;
use hoplite_wire::{
    HostName, Target,
    cell::{BODY, Cell, CircuitId, Command},
};
use quinn::{Connection, Endpoint, EndpointConfig, TokioRuntime, crypto::rustls::QuicClientConfig};
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    channel::{
        Channel, ChannelDialer, ChannelServer, Circuit, Config, Counts, How, Whom,
        handshake::{Refused, Us},
    },
    dial::tests::harness::FarSocket,
    server::{Secrets, server_config},
};

pub(in crate::channel) const RELAY: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)), 443);
pub(in crate::channel) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
pub(in crate::channel) const LATENCY: Duration = Duration::from_millis(20);
/// Longer than anything takes in virtual time.
const LIMIT: Duration = Duration::from_secs(300);

pub(in crate::channel) type Served = Result<Channel, Refused>;

/// The relay and its network.
pub(in crate::channel) struct World {
    pub(in crate::channel) network: Network,
    pub(in crate::channel) server: Arc<ChannelServer>,
    /// What went wrong at the relay, and at those who dialled.
    pub(in crate::channel) there: Arc<Counts>,
    pub(in crate::channel) here: Arc<Counts>,
    pub(in crate::channel) config: Config,
    served: Mutex<mpsc::Receiver<Served>>,
    tasks: JoinSet<()>,
    tls: Arc<rustls::ServerConfig>,
}

pub(in crate::channel) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs()
}

pub(in crate::channel) fn relay(secret: u8) -> Us {
    let identity = RelayIdentity::from_secret(&[secret; 32], now()).unwrap();
    Us {
        identity: Some(Arc::new(identity)),
        addresses: vec![RELAY.ip()],
    }
}

pub(in crate::channel) fn ed25519(us: &Us) -> [u8; 32] {
    us.identity.as_ref().unwrap().peer().ed25519
}

/// The relay's secret; others have other ones.
pub(in crate::channel) const SECRET: u8 = 9;

impl World {
    pub(in crate::channel) fn new(config: Config) -> Self {
        let made = Identity::generate(&["relay.example".to_owned()]).unwrap();
        let made = Identity::from_pem(made.certificate.as_bytes(), made.key.as_bytes()).unwrap();
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
        let socket = FarSocket::new(self.network.bind_at(RELAY), &mut self.tasks);
        let transport = self.config.greeting(&crate::Config::default());
        let transport = Arc::new(transport.transport(0, 1472));
        let secrets = Secrets::generate().unwrap();
        let tls = Arc::clone(&self.tls);
        let config = server_config(tls, transport, &secrets, &Hooks::default()).unwrap();
        let endpoint = Endpoint::new_with_abstract_socket(
            EndpointConfig::default(),
            Some(config),
            socket,
            Arc::new(TokioRuntime),
        );
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
    pub(in crate::channel) async fn served(&self) -> Served {
        limit(self.served.lock().await.recv()).await.unwrap()
    }

    pub(in crate::channel) fn whom(&self) -> Whom {
        Whom {
            name: "amber".into(),
            address: Target::from(RELAY),
            identity: Some(ed25519(&relay(SECRET))),
            rsa: None,
        }
    }

    pub(in crate::channel) fn dialer(&self, us: Us) -> ChannelDialer {
        self.dialer_over(us, Arc::new(self.network.overlay(CLIENT)))
    }

    pub(in crate::channel) fn dialer_over(&self, us: Us, over: Arc<dyn Overlay>) -> ChannelDialer {
        let link = crate::Config::default();
        let counts = Arc::clone(&self.here);
        ChannelDialer::new(over, us, &link, self.config.clone(), counts)
    }

    /// Both ends of a new channel: a relay's that dials, and the relay's that is dialled.
    pub(in crate::channel) async fn pair(&self, how: How) -> (Channel, Channel) {
        self.pair_as(relay(1), how).await
    }

    pub(in crate::channel) async fn pair_as(&self, us: Us, how: How) -> (Channel, Channel) {
        let dialer = self.dialer(us);
        let (whom, terms) = (self.whom(), Terms::default());
        let dialled = limit(dialer.dial(&whom, how, &terms)).await.unwrap();
        (dialled, self.served().await.unwrap())
    }

    /// A QUIC connection to the relay that speaks no cells yet: what a hostile peer begins with.
    pub(in crate::channel) async fn raw_quic(&mut self) -> (Endpoint, Connection) {
        let socket = FarSocket::new(self.network.bind(CLIENT), &mut self.tasks);
        let config = EndpointConfig::default();
        let runtime = Arc::new(TokioRuntime);
        let endpoint = Endpoint::new_with_abstract_socket(config, None, socket, runtime).unwrap();
        let tls = client_tls(&Trust::Channel, &[ALPN_CHANNEL]).unwrap();
        let crypto = QuicClientConfig::try_from(tls).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(crypto));
        let connecting = endpoint.connect_with(config, RELAY, "relay.example");
        let connection = limit(connecting.unwrap()).await.unwrap();
        (endpoint, connection)
    }
}

impl World {
    /// What `endpoint` sends comes from another address from now on.
    pub(in crate::channel) fn move_to(&mut self, endpoint: &Endpoint, address: IpAddr) {
        let socket = FarSocket::new(self.network.bind(address), &mut self.tasks);
        endpoint.rebind_abstract(socket).unwrap();
    }
}

/// Fails rather than hangs.
pub(in crate::channel) async fn limit<T>(work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(LIMIT, work).await;
    done.expect("it hangs")
}

/// A cell with a number in it.
pub(in crate::channel) fn cell(command: Command, number: u32) -> Cell {
    let circuit = CircuitId::default();
    Cell::new(circuit, command, |body| body.put_u32(number)).unwrap()
}

pub(in crate::channel) fn number(cell: &Cell) -> u32 {
    assert_eq!(cell.body.len(), BODY);
    cell.body.clone().get_u32()
}

pub(in crate::channel) fn octets(cell: &Cell) -> BytesMut {
    let mut out = BytesMut::new();
    hoplite_wire::cell::write(cell, &mut out).unwrap();
    out
}

pub(in crate::channel) async fn send(circuit: &mut Circuit, command: Command, number: u32) {
    limit(circuit.sender.ready()).await.unwrap();
    circuit.sender.send(cell(command, number)).unwrap();
}

pub(in crate::channel) async fn recv(circuit: &mut Circuit) -> (Command, u32) {
    let cell = limit(circuit.receiver.recv()).await.unwrap();
    assert_eq!(cell.circuit, circuit.id);
    (cell.command, number(&cell))
}

/// A circuit from `from` to `to`, made and answered.
pub(in crate::channel) async fn circuit(from: &Channel, to: &Channel) -> (Circuit, Circuit) {
    let mut near = limit(from.open()).await.unwrap();
    send(&mut near, Command::CREATE2, 0).await;
    let mut far = limit(to.accept()).await.unwrap();
    assert_eq!(far.id, near.id);
    assert_eq!(recv(&mut far).await, (Command::CREATE2, 0));
    (near, far)
}

/// Waits in virtual time until `what` is so.
pub(in crate::channel) async fn until(what: impl Fn() -> bool) {
    limit(async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}
