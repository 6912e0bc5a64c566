//! Relays in memory, joined by channels in memory, and a client over them.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hoplite_crypto::onion::{OnionKey, OnionKeys, RelayKeys};
use hoplite_onion::{
    Config, Onion,
    channel::{Channel, Dialer, Waiting, memory},
    path::{self, Fixed},
    relay::{self, Policy, serve},
};
use hoplite_overlay::{
    Error, ErrorKind,
    conformance::{Memory, Subject},
    memory::Network,
};
use hoplite_wire::Protocols;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

/// Where targets are.
pub(crate) const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
/// Where exits connect from.
pub(crate) const EXIT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));

/// Relays by their identity.
#[derive(Debug, Default)]
pub(crate) struct Net {
    relays: Mutex<HashMap<[u8; 32], Arc<relay::Relay>>>,
    /// What serves the channels to each relay.
    serving: Mutex<HashMap<[u8; 32], Vec<AbortHandle>>>,
    silent: Mutex<HashSet<[u8; 32]>>,
    /// One way, of each channel.
    pub(crate) latency: Duration,
    /// Of channels to these relays.
    pub(crate) slow: Mutex<HashMap<[u8; 32], Duration>>,
}

/// One party's way to the others: a channel to each, made when it is first needed.
#[derive(Debug)]
pub(crate) struct Dial {
    net: Arc<Net>,
    me: Option<[u8; 32]>,
    channels: Mutex<HashMap<[u8; 32], Arc<memory::Memory>>>,
}

impl Dialer for Dial {
    fn channel<'a>(
        &'a self,
        relay: &'a path::Relay,
    ) -> Waiting<'a, Result<Arc<dyn Channel>, Error>> {
        Box::pin(async move {
            let id = relay.keys.ed25519;
            let mut channels = self.channels.lock();
            if let Some(channel) = channels.get(&id).filter(|channel| !channel.is_closed()) {
                return Ok(Arc::clone(channel) as Arc<dyn Channel>);
            }
            let there = self.net.relays.lock().get(&id).cloned();
            let there =
                there.ok_or_else(|| Error::new(ErrorKind::PathFailed, "dialling a relay"))?;
            let slow = self.net.slow.lock().get(&id).copied();
            let latency = slow.unwrap_or(self.net.latency);
            let (near, far) = memory::pair(latency, self.me, Some(id));
            let silent = self.net.silent.lock().contains(&id);
            let serving = if !silent {
                tokio::spawn(serve(far, there))
            } else {
                tokio::spawn(hold(far))
            };
            let serving = serving.abort_handle();
            let mut all = self.net.serving.lock();
            all.entry(id).or_default().push(serving);
            drop(all);
            channels.insert(id, Arc::clone(&near));
            Ok(near as Arc<dyn Channel>)
        })
    }
}

/// Takes circuits and says nothing.
async fn hold(channel: Arc<dyn Channel>) {
    let mut held = Vec::new();
    while let Some(circuit) = channel.accept().await {
        held.push(circuit);
    }
}

/// What a relay of a test is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) ntor3: bool,
    pub(crate) congestion_control: bool,
    pub(crate) cgo: bool,
}

impl Default for Kind {
    fn default() -> Self {
        Self {
            ntor3: true,
            congestion_control: true,
            cgo: true,
        }
    }
}

impl Net {
    pub(crate) fn new(latency: Duration) -> Arc<Self> {
        Arc::new(Self {
            latency,
            ..Self::default()
        })
    }

    pub(crate) fn dialer(self: &Arc<Self>, me: Option<[u8; 32]>) -> Arc<dyn Dialer> {
        Arc::new(Dial {
            net: Arc::clone(self),
            me,
            channels: Mutex::default(),
        })
    }

    /// Starts relay number `n`; `change` makes it other than an exit to everywhere.
    pub(crate) fn relay(
        self: &Arc<Self>,
        n: u8,
        network: &Network,
        change: impl FnOnce(&mut relay::Relay),
    ) -> Arc<relay::Relay> {
        let secret = OnionKey::fresh_secret().expect("randomness");
        let onion = OnionKey::from_secret(&secret).expect("a key");
        let keys = OnionKeys::new([n; 20], [n; 32], onion, None);
        let config = relay::Config::default();
        let mut made = relay::Relay::new(keys, self.dialer(Some([n; 32])), config);
        made.next = Arc::new(Policy::everywhere(true));
        made.out = Some(Arc::new(network.overlay(EXIT)));
        made.policy = Arc::new(Policy {
            ports: vec![1..=65535],
            special: true,
        });
        change(&mut made);
        let made = Arc::new(made);
        let mut relays = self.relays.lock();
        relays.insert([n; 32], Arc::clone(&made));
        made
    }

    /// A relay that dies with all circuits through it.
    pub(crate) fn kill(&self, n: u8) {
        self.stop(n);
        let mut all = self.serving.lock();
        let serving = all.remove(&[n; 32]).unwrap_or_default();
        serving.iter().for_each(AbortHandle::abort);
    }

    /// A relay that loses the first of its channels, whoever dialled it, and keeps the others.
    pub(crate) fn sever(&self, n: u8) {
        let mut all = self.serving.lock();
        let serving = all.get_mut(&[n; 32]).expect("channels");
        serving.remove(0).abort();
    }

    /// A relay that takes channels and circuits from now on, and says nothing on them.
    pub(crate) fn silence(&self, n: u8) {
        self.silent.lock().insert([n; 32]);
        let mut all = self.serving.lock();
        let serving = all.remove(&[n; 32]).unwrap_or_default();
        serving.iter().for_each(AbortHandle::abort);
    }

    /// A relay that is gone: nobody answers at its address any more.
    pub(crate) fn stop(&self, n: u8) {
        self.relays.lock().remove(&[n; 32]);
    }
}

/// What a client knows of it.
pub(crate) fn known(relay: &relay::Relay, kind: Kind) -> path::Relay {
    let keys: RelayKeys = relay.keys().published();
    let port = u16::from(keys.ed25519[0]) + 9000;
    path::Relay {
        name: format!("relay{}", keys.ed25519[0]).into(),
        keys,
        rsa: true,
        addresses: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))],
        ntor3: kind.ntor3,
        congestion_control: kind.congestion_control,
        protocols: if kind.cgo {
            Protocols::CGO | Protocols::DATAGRAM
        } else {
            Protocols::DATAGRAM
        },
        half_close: true,
        exit: None,
    }
}

/// Three relays, a client over them, and targets.
pub(crate) struct World {
    pub(crate) net: Arc<Net>,
    pub(crate) network: Network,
    pub(crate) relays: Vec<Arc<relay::Relay>>,
    pub(crate) path: Vec<path::Relay>,
}

impl World {
    pub(crate) fn new(latency: Duration, kind: Kind) -> Self {
        let network = Network::new(1);
        let net = Net::new(latency);
        let relays: Vec<_> = (1..=3).map(|n| net.relay(n, &network, |_| {})).collect();
        let path = relays.iter().map(|relay| known(relay, kind)).collect();
        Self {
            net,
            network,
            relays,
            path,
        }
    }

    pub(crate) fn client(&self, config: Config) -> Onion {
        let paths = Arc::new(Fixed(self.path.clone()));
        Onion::new(self.net.dialer(None), paths, config)
    }

    pub(crate) fn far(&self) -> Memory {
        Memory::new(self.network.clone(), FAR)
    }

    pub(crate) fn subject(&self, config: Config) -> Subject {
        Subject::new(Arc::new(self.client(config)), Arc::new(self.far()))
    }
}
