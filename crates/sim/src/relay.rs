//! One relay: its keys, its doors, its channels to others, and its circuits. Made of the rooms as the product's relay is; `world` makes them.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use hoplite_crypto::{
    SigningKey,
    onion::{OnionKey, OnionKeys, identity::stand_in},
};
use hoplite_directory::sign_descriptor;
use hoplite_link::channel::{
    Channel, ChannelDialer, ChannelServer, Channels, Config, Counts, FAILED, How, handshake::Us,
};
use hoplite_onion::{
    channel::Linked,
    relay::{self, Policy, serve},
};
use hoplite_wire::directory::{Descriptor, Key, Ports, Roles, SignedDescriptor};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use zeroize::Zeroizing;

use crate::{
    ground::{Ground, Unmade, relay_identity},
    host::Host,
    net::{Network, Node},
    random::Random,
    serve::Doors,
};

/// Where relays listen.
const PORT: u16 = 443;
/// How often channels without circuits are looked for.
const SWEEP: Duration = Duration::from_secs(60);
/// When descriptors say they were published; nobody looks.
const PUBLISHED: u64 = 1_700_000_000;

/// A relay.
#[derive(Debug)]
pub(crate) struct RelayNode {
    pub(crate) node: Node,
    /// What its line carries, in octets a second.
    pub(crate) bandwidth: u64,
    pub(crate) onion: Arc<relay::Relay>,
    pub(crate) descriptor: SignedDescriptor,
    /// Ends with its doors closed.
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
        let secret = Zeroizing::new(random.octets());
        let key = OnionKey::from_secret(&random.octets()).map_err(wrong)?;
        let address = SocketAddr::new(Network::address(plan.node), PORT);
        let us = Us {
            identity: Some(Arc::new(relay_identity(&secret)?)),
            addresses: vec![address.ip()],
        };
        let descriptor = descriptor(plan, address, *key.public(), secret)?;
        let host = Arc::new(Host::new(network, plan.node));
        let link = ground.link_of(random.octets());
        let behaves = Config {
            failed: FAILED,
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
        let doors = doors(ground, us, counts, &channels, &own);
        let mut tasks = JoinSet::new();
        doors.quic(network, address, random.octets(), &mut tasks)?;
        doors.tls(network, address, &mut tasks);
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
            congestion_control: self.congestion_control,
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

fn doors(ground: &Ground, us: Us, counts: &Arc<Counts>, channels: &Channels, own: &Own) -> Doors {
    let (certificate, behaves) = (ground.certificate, ground.channel.clone());
    let server = ChannelServer::new(us, certificate, behaves, Arc::clone(counts));
    let (channels, own) = (channels.clone(), Arc::clone(own));
    Doors {
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
        sleep(SWEEP).await;
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
    };
    sign_descriptor(said, &key).map_err(wrong)
}

fn wrong(error: impl std::fmt::Display) -> Unmade {
    Unmade::Keys(error.to_string())
}
