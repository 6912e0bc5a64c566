//! One relay: its keys, its listeners, its channels to others, and its circuits. Made of the rooms as the product's relay is.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use hoplite_channel::{
    Channel, ChannelDialer, ChannelServer, Channels, Config, Counts, FAILED_DIAL_TTL, How,
    handshake::Us,
};
use hoplite_crypto::{
    SigningKey,
    onion::{OnionKey, OnionKeys, identity::stand_in},
};
use hoplite_directory::sign_descriptor;
use hoplite_onion::{
    channel::Linked,
    relay::{self, Policy, serve},
};
use hoplite_overlay::{Datagrams, Error, ErrorKind, Opening, Overlay, Reason, Stream, Terms};
use hoplite_quic::{ConnectionController, Endpoint, Incoming, server::Acceptor, timer::Timers};
use hoplite_wire::{
    Host as Name, Protocols, Target,
    directory::{Descriptor, Key, Ports, Roles, SignedDescriptor},
    tuning::TuningGrant,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use zeroize::Zeroizing;

use crate::{
    net::{
        Network, Node,
        tcp::{Listener, TcpStream},
        udp::{Flow, Socket},
    },
    random::{CELLS, Random},
    run::{Ground, Unmade, relay_identity},
};

/// Where relays listen.
const PORT: u16 = 443;

/// How often channels without circuits are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// When descriptors say they were published; nobody looks.
const PUBLISHED: u64 = 1_700_000_000;

/// A relay.
#[derive(Debug)]
pub(crate) struct RelayNode {
    pub(crate) node: Node,
    /// What its line carries, in bytes a second.
    pub(crate) bandwidth: u64,
    pub(crate) onion: Arc<relay::Relay>,
    pub(crate) descriptor: SignedDescriptor,
    /// Ends with its listeners closed.
    tasks: JoinSet<()>,
}

/// What a relay is to be.
pub(crate) struct Plan {
    pub(crate) number: usize,
    pub(crate) node: Node,
    pub(crate) bandwidth: u64,
    pub(crate) exit: bool,
    pub(crate) channel: How,
    pub(crate) congestion_control: bool,
    pub(crate) seed: u64,
}

impl RelayNode {
    /// Starts it.
    pub(crate) fn start(
        network: &Network,
        ground: &Ground,
        counts: &Arc<Counts>,
        plan: &Plan,
    ) -> Result<Self, Unmade> {
        let mut random = Random::new(plan.seed, "keys of relays", plan.number);
        let secret = Zeroizing::new(random.bytes());
        let key = OnionKey::from_secret(&random.bytes()).map_err(wrong)?;
        let address = SocketAddr::new(Network::address(plan.node), PORT);
        let us = Us {
            identity: Some(Arc::new(relay_identity(&secret)?)),
            addresses: vec![address.ip()],
        };
        let descriptor = descriptor(plan, address, *key.public(), secret)?;
        let host = Arc::new(Host::new(network, plan.node));
        let link = ground.link_of(random.bytes());
        let behaves = Config {
            failed: FAILED_DIAL_TTL,
            ..ground.channel.clone()
        };
        let dialer = ChannelDialer::new(host.clone(), us.clone(), &link, behaves, counts.clone());
        let own = Own::default();
        let channels = Channels::new(dialer, {
            let own = own.clone();
            move |channel| carry(&own, channel)
        });
        let linked = Linked::new(channels.clone(), plan.channel);
        let onion = plan.relay(&descriptor, key, linked, host);
        own.set(Arc::downgrade(&onion)).ok();
        let listeners = listeners(ground, us, counts, &channels, &own);
        let mut tasks = JoinSet::new();
        listeners.quic(network, address, random.bytes(), &mut tasks)?;
        listeners.tls(network, address, &mut tasks);
        tasks.spawn(sweep(channels));
        Ok(Self {
            node: plan.node,
            bandwidth: plan.bandwidth,
            onion,
            descriptor,
            tasks,
        })
    }

    /// As if it had lost its power.
    pub(crate) fn kill(&mut self, network: &Network) {
        network.remove(self.node);
        self.tasks.abort_all();
    }
}

/// The relay, for its channels, which are there before it.
type Own = Arc<OnceLock<Weak<relay::Relay>>>;

impl Plan {
    fn relay(
        &self,
        descriptor: &SignedDescriptor,
        key: OnionKey,
        linked: Linked,
        host: Arc<Host>,
    ) -> Arc<relay::Relay> {
        let ed25519 = descriptor.descriptor.identity.0;
        let keys = OnionKeys::new(stand_in(&ed25519), ed25519, key, None);
        let config = relay::Config {
            offers: relay::Offers {
                congestion_control: self.congestion_control,
                cgo: false,
            },
            random: CELLS,
            ..relay::Config::default()
        };
        let mut relay = relay::Relay::new(keys, Arc::new(linked), config);
        if self.exit {
            relay.out = Some(host);
            relay.policy = Arc::new(Policy {
                ports: vec![1..=u16::MAX],
                special: false,
            });
        }
        Arc::new(relay)
    }
}

fn listeners(
    ground: &Ground,
    us: Us,
    counts: &Arc<Counts>,
    channels: &Channels,
    own: &Own,
) -> Listeners {
    let (certificate, behaves) = (ground.certificate, ground.channel.clone());
    let server = ChannelServer::new(us, certificate, behaves, Arc::clone(counts));
    let (channels, own) = (channels.clone(), Arc::clone(own));
    Listeners {
        ground: ground.clone(),
        server: Arc::new(server),
        told: Arc::new(move |channel| {
            channels.add(&channel);
            carry(&own, channel);
        }),
    }
}

/// Serves the circuits of a channel.
fn carry(own: &Own, channel: Channel) {
    if let Some(relay) = own.get().and_then(Weak::upgrade) {
        tokio::spawn(serve(Arc::new(channel), relay));
    }
}

/// Closes what nobody has used for long.
pub(crate) async fn sweep(channels: Channels) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        channels.sweep(Instant::now());
    }
}

fn descriptor(
    plan: &Plan,
    address: SocketAddr,
    onion: [u8; 32],
    secret: Zeroizing<[u8; 32]>,
) -> Result<SignedDescriptor, Unmade> {
    let key = SigningKey::from_seed(secret).map_err(wrong)?;
    let said = Descriptor {
        name: format!("relay{}", plan.number),
        identity: Key(key.public()),
        published: PUBLISHED,
        addresses: vec![address],
        pin: None,
        onion: Some(onion),
        roles: Roles {
            ingress: true,
            egress: plan.exit,
        },
        region: None,
        operator: None,
        family: Vec::new(),
        bandwidth: plan.bandwidth,
        exit: plan.exit.then(Ports::all),
        tokens: None,
        hsdir: false,
        cache: None,
        protocols: Protocols::CONFLUX,
    };
    sign_descriptor(said, &key).map_err(wrong)
}

fn wrong(error: impl std::fmt::Display) -> Unmade {
    Unmade::Keys(error.to_string())
}

// The listening side of a relay: channels over QUIC and over TLS, made of what comes to its address.

/// Bytes of datagrams that may wait at a relay; channels have none.
const INBOX: usize = 1 << 16;

/// Told of each channel.
pub type Told = Arc<dyn Fn(Channel) + Send + Sync>;

/// A relay's listeners.
#[derive(Clone)]
pub struct Listeners {
    /// What all relays share.
    pub ground: Ground,
    /// Makes channels of connections.
    pub server: Arc<ChannelServer>,
    /// Hears of them.
    pub told: Told,
}

impl Listeners {
    /// Opens the one for QUIC at `address`; its tasks are added to `tasks` and end with them.
    ///
    /// # Errors
    /// [`Unmade`]
    pub fn quic(
        &self,
        network: &Network,
        address: SocketAddr,
        seed: [u8; 32],
        tasks: &mut JoinSet<()>,
    ) -> Result<(), Unmade> {
        let socket = Arc::new(Socket::at(network, address));
        let endpoint = Endpoint::with_socket(
            Ground::endpoint(seed),
            Some(self.ground.quic.clone()),
            socket,
            Timers::Exact,
        )?;
        let listeners = self.clone();
        tasks.spawn(async move {
            let mut handshakes = JoinSet::new();
            loop {
                tokio::select! {
                    biased;
                    Some(_) = handshakes.join_next() => {}
                    incoming = endpoint.accept() => match incoming {
                        Some(incoming) => drop(handshakes.spawn(listeners.clone().welcome(incoming))),
                        None => return,
                    },
                }
            }
        });
        Ok(())
    }

    /// Opens the one for TLS at `address`; likewise.
    pub fn tls(&self, network: &Network, address: SocketAddr, tasks: &mut JoinSet<()>) {
        let mut listener = Listener::at(network, address);
        let listeners = self.clone();
        tasks.spawn(async move {
            let mut handshakes = JoinSet::new();
            loop {
                tokio::select! {
                    biased;
                    Some(_) = handshakes.join_next() => {}
                    accepted = listener.accept() => match accepted {
                        Some((stream, from)) => {
                            handshakes.spawn(listeners.clone().welcome_tls(stream, from));
                        }
                        None => return,
                    },
                }
            }
        });
    }

    async fn welcome_tls(self, stream: TcpStream, from: SocketAddr) {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.ground.tls));
        let accepted = timeout(self.ground.channel.handshake, acceptor.accept(stream)).await;
        let Ok(Ok(stream)) = accepted else {
            return;
        };
        if let Ok(channel) = self.server.tls(stream, Some(from.ip())).await {
            (self.told)(channel);
        }
    }

    async fn welcome(self, incoming: Incoming) {
        let controller = ConnectionController::relay(TuningGrant::default(), INBOX);
        let hooks = self.ground.link.hooks.clone();
        let acceptor = Acceptor::new(self.ground.quic.clone(), hooks);
        let handshake = async {
            let connecting = acceptor.accept(incoming, self.ground.transport(), &controller);
            connecting.ok()?.await.ok()
        };
        let connection = timeout(self.ground.channel.handshake, handshake).await;
        let Some(connection) = connection.ok().flatten() else {
            return;
        };
        if let Ok(channel) = self.server.quic(connection).await {
            (self.told)(channel);
        }
    }
}

impl std::fmt::Debug for Listeners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listeners")
    }
}

// How a node reaches others: the overlay that its channels are dialled through. A relay's and a client's alike, and an exit's to targets.

/// What a node reaches others by.
#[derive(Clone, Debug)]
pub struct Host {
    network: Network,
    node: Node,
}

impl Host {
    /// Of `node`.
    pub fn new(network: &Network, node: Node) -> Self {
        let network = network.clone();
        Self { network, node }
    }
}

/// Nobody has a name here.
fn address(target: &Target) -> Result<SocketAddr, Error> {
    match &target.host {
        Name::Ip(ip) => Ok(SocketAddr::new(*ip, target.port)),
        Name::Name(_) => Err(nameless()),
    }
}

fn nameless() -> Error {
    let error = Error::new(
        ErrorKind::TargetFailed,
        "resolving a name in a network without names",
    );
    error.because(Reason::NameNotFound)
}

impl Overlay for Host {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        Box::pin(terms.run("connecting", async move {
            let there = address(target)?;
            let stream = TcpStream::connect(&self.network, self.node, there).await?;
            Ok(Stream::new(stream))
        }))
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        _: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async move {
            let flow = Flow::new(&self.network, self.node, address(target)?);
            Ok(Box::new(flow) as Box<dyn Datagrams>)
        })
    }

    fn resolve<'a>(&'a self, _: &'a str, _: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async { Err(nameless()) })
    }
}
