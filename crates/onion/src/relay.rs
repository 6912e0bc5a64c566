//! The relay's end: circuits that pass through, and at an exit those that end here.
//! The binary calls [`serve`] for each channel, with one [`Relay`] for all. tor-spec "Creating circuits", "Routing relay cells".

mod circuit;
mod conflux;
mod driver;
mod exit;
mod exit_counters;
mod extend;
mod handshakes;
mod onion_service;

use std::{
    fmt,
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hoplite_crypto::onion::OnionKeys;
use hoplite_overlay::{Error, Overlay, Stream};
use hoplite_wire::special;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::{
    Randomness,
    channel::{Dialer, Waiting},
    endpoint::Limits,
};
use circuit::Made;
pub use circuit::{Forward, Offers, RelayCircuit};
pub use driver::serve;
pub use exit_counters::{
    BYTES_PER_CIRCUIT, COUNTED_PORTS, ExitCounters, PortTotals, STREAMS_PER_CIRCUIT,
};
pub use extend::{Extensions, Refusal};
pub use handshakes::{Bucket, Creates, Limits as Handshakes, Queue, ReplayCache, Requester};
pub use onion_service::Config as OnionServicesConfig;

// What a relay is and permits: its keys, its way to other relays and to targets, and its limits.

/// Limits of a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What is agreed to where a client asks for it.
    pub offers: Offers,
    /// Be the exit of Conflux sets (proposal 329): circuits that carry the same streams.
    pub conflux: bool,
    /// Carry datagrams to targets (proposal 339).
    pub datagrams: bool,
    /// Circuits of one channel; the next is refused with RESOURCELIMIT.
    pub circuits_per_channel: usize,
    /// Circuits of all channels.
    pub circuits: usize,
    /// CREATE2 and EXTEND2 of one client ([`Channel::requester`](crate::channel::Channel::requester)), on all of its channels, and of one relay.
    pub creates: Creates,
    /// Those that wait to be answered, and by how many threads they are.
    pub handshakes: handshakes::Limits,
    /// Onion skins that are remembered, twice, and for how long at least.
    pub skins: (usize, Duration),
    /// How long a peer may take for CREATE2, the next relay for CREATED2, and a target to answer.
    pub patience: Duration,
    /// A UDP stream on which nothing has passed for so long is ended.
    pub idle_datagrams: Duration,
    /// Bounds of each circuit that ends here.
    pub limits: Limits,
    /// What it does for onion services.
    pub onion_services: OnionServicesConfig,
    /// What its cells draw from.
    pub random: Randomness,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            offers: Offers {
                congestion_control: true,
                cgo: true,
            },
            conflux: true,
            datagrams: true,
            circuits_per_channel: 16_384,
            circuits: 65_536,
            creates: Creates::default(),
            handshakes: handshakes::Limits::default(),
            skins: (100_000, Duration::from_secs(600)),
            patience: Duration::from_secs(30),
            idle_datagrams: Duration::from_secs(120),
            limits: Limits::default(),
            onion_services: OnionServicesConfig::default(),
            random: Randomness::default(),
        }
    }
}

/// Which addresses an exit connects to, or a circuit is extended to.
pub trait Admit: fmt::Debug + Send + Sync {
    /// Whether it does to this one; names have been resolved.
    fn admits(&self, address: SocketAddr) -> bool;

    /// Whether a name is looked up to connect to this port of it.
    fn admits_name(&self, _name: &str, _port: u16) -> bool {
        true
    }
}

/// A policy by ports, which admits no special addresses unless told so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Ports that are served; none makes the relay no exit.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Loopback, private and other special addresses too.
    pub special: bool,
}

/// RELAY and RELAY_EARLY cells of all circuits, by where they came from and went to.
#[derive(Debug, Default)]
pub struct Cells {
    /// From the client's side, passed on to the next relay.
    pub passed_forth: AtomicU64,
    /// From the next relay, passed on to the client's side.
    pub passed_back: AtomicU64,
    /// From the client's side, for this relay.
    pub taken: AtomicU64,
    /// This relay's own, to the client's side.
    pub made: AtomicU64,
}

/// What counts, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Cells; a circuit adds its own once a turn.
    pub cells: Cells,
    /// Circuits made.
    pub created: AtomicU64,
    /// CREATE2 refused: bad handshakes and replays.
    pub refused: AtomicU64,
    /// CREATE2 and EXTEND2 refused: too many.
    pub limited: AtomicU64,
    /// CREATE2 refused because the relay has no room for one more circuit.
    pub full: AtomicU64,
    /// EXTEND2 that came about.
    pub extended: AtomicU64,
    /// EXTEND2 that did not.
    pub not_extended: AtomicU64,
    /// Streams opened to targets.
    pub streams: AtomicU64,
    /// INTRODUCE1 that were passed on to services.
    pub introduced: AtomicU64,
    /// INTRODUCE1 that were not: nobody is introduced by that key, or he does not take more.
    pub not_introduced: AtomicU64,
    /// Circuits of a client and a service that were joined.
    pub joined: AtomicU64,
    /// Circuits that were linked to Conflux sets.
    pub linked: AtomicU64,
    /// Cells that went from one of two joined circuits to the other.
    pub rendezvous_cells: AtomicU64,
    /// What went to targets by TCP, and came from them.
    pub exits: ExitCounters,
    /// Circuits destroyed because the client's side or the next relay broke the protocol.
    pub broken: AtomicU64,
    /// Circuits now.
    open: AtomicUsize,
}

/// Through whose channel a stream to a relay's directory comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asking {
    /// Whose the circuit is, as far as this relay knows.
    pub requester: Requester,
    /// Whether the channel's peer is a relay: else it is the client, who shows his address.
    pub is_relay: bool,
}

/// Answers streams to a relay's directory (BEGIN_DIR).
pub trait Directory: fmt::Debug + Send + Sync {
    /// The near end of a stream to it. An error of the kind [`Unsupported`](hoplite_overlay::ErrorKind::Unsupported) says that it is no directory for who asks.
    fn open(&self, asking: Asking) -> Waiting<'_, Result<Stream, Error>>;
}

/// A relay, as all of its circuits share it.
pub struct Relay {
    keys: RwLock<Arc<OnionKeys>>,
    /// Channels to other relays.
    pub dialer: Arc<dyn Dialer>,
    /// The way to targets; `None`: it is no exit.
    pub out: Option<Arc<dyn Overlay>>,
    /// Which targets.
    pub policy: Arc<dyn Admit>,
    /// Where circuits may be extended to: no special addresses unless told so.
    pub next: Arc<dyn Admit>,
    /// Its directory; `None`: it has none.
    pub directory: Option<Arc<dyn Directory>>,
    /// Its limits.
    pub config: Config,
    /// What counts.
    pub counters: Counters,
    /// Answers to CREATE2 that are still to be computed.
    handshakes: Arc<handshakes::Handshakes<Made>>,
    extensions: Mutex<Extensions>,
    skins: Mutex<ReplayCache>,
    onion_services: Arc<onion_service::OnionServices>,
    conflux: Arc<conflux::Sets>,
}

impl Relay {
    /// A relay that only passes circuits on; the public fields make it more.
    pub fn new(keys: OnionKeys, dialer: Arc<dyn Dialer>, config: Config) -> Self {
        let (most, lasts) = config.skins;
        Self {
            handshakes: handshakes::Handshakes::new(config.handshakes, config.creates),
            extensions: Mutex::new(Extensions::new(config.creates.relay)),
            keys: RwLock::new(Arc::new(keys)),
            dialer,
            out: None,
            policy: Arc::new(Policy {
                ports: Vec::new(),
                special: false,
            }),
            next: Arc::new(Policy::everywhere(false)),
            directory: None,
            config,
            counters: Counters::default(),
            onion_services: Arc::default(),
            conflux: Arc::default(),
            skins: Mutex::new(ReplayCache::new(most, lasts, Instant::now())),
        }
    }

    /// The keys that circuits are made with.
    pub fn keys(&self) -> Arc<OnionKeys> {
        Arc::clone(&self.keys.read())
    }

    /// Takes other keys, after a rotation; circuits that exist are not touched.
    pub fn set_keys(&self, keys: OnionKeys) {
        *self.keys.write() = Arc::new(keys);
    }

    /// Circuits now.
    pub fn circuits(&self) -> usize {
        self.counters.open.load(Relaxed)
    }

    /// Whether this relay, to which there is a channel, is asked for a circuit of this client now: by what the client says alone anybody's part
    /// could be used up.
    fn admits_extension(&self, requester: Requester, next: &[u8; 32]) -> bool {
        let mut extensions = self.extensions.lock();
        extensions.admits(next, requester.key, Instant::now())
    }

    /// Whether this onion skin has not been answered yet.
    fn is_new(&self, skin: &[u8]) -> bool {
        let mut skins = self.skins.lock();
        skins.is_new(skin, Instant::now())
    }
}

impl Policy {
    /// All ports.
    pub fn everywhere(special: bool) -> Self {
        Self {
            ports: vec![0..=u16::MAX],
            special,
        }
    }
}

impl Admit for Policy {
    fn admits(&self, address: SocketAddr) -> bool {
        let served = |ports: &RangeInclusive<u16>| ports.contains(&address.port());
        self.ports.iter().any(served)
            && (self.special || !special::is_or_carries_special(address.ip()))
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("onion::Relay")
            .field("config", &self.config)
            .field("circuits", &self.circuits())
            .finish_non_exhaustive()
    }
}
