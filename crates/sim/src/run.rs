//! Makes a network of relays, clients and targets, lets it run for its virtual time, and says what was seen.
//! Each run has a thread and a runtime of its own, so that nothing is left of the one before.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, SystemTime},
};

use hoplite_channel::{self as channel, Counts, How};
use hoplite_crypto::{
    ALPN_CHANNEL, Certificates, Identity, onion::identity::RelayIdentity, server_tls,
};
use hoplite_quic::{
    EndpointConfig, Hooks, ServerConfig, TransportConfig,
    server::{Secrets, server_config},
};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519, SerialNumber};
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{
    client::{self, ClientNode},
    net::{Access, MAX_NODES, Network, Node, Place},
    paths::Listed,
    random::{Random, seed_cells},
    relay::{Plan, RelayNode},
    report::{Book, Outcome, RelayUse},
};

/// How far a run is, for whoever looks on.
#[derive(Debug, Default)]
pub struct Progress {
    /// Virtual time, in milliseconds.
    pub virtual_ms: AtomicU64,
}

/// Every third relay is an exit.
const EXITS: usize = 3;

/// How often the progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// Not so.
    #[error("running a network: {0}")]
    Wrong(&'static str),
    /// A part of it cannot be made.
    #[error(transparent)]
    Unmade(#[from] Unmade),
    /// There is no thread or runtime.
    #[error("starting the runtime: {0}")]
    Runtime(#[from] io::Error),
    /// A bug: the thread died.
    #[error("the run ended in a panic: its message is above")]
    Panic,
}

/// Runs it.
///
/// # Errors
/// [`Failed`]
pub fn run(settings: &Settings, progress: &Arc<Progress>) -> Result<Outcome, Failed> {
    check(settings)?;
    let (settings, progress) = (Arc::new(settings.clone()), Arc::clone(progress));
    let thread = thread::Builder::new().name("network".into());
    let thread = thread.spawn(move || {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()?;
        seed_cells(settings.seed);
        runtime.block_on(Box::pin(whole(settings, &progress)))
    })?;
    thread.join().map_err(|_| Failed::Panic)?
}

fn check(settings: &Settings) -> Result<(), Failed> {
    let Settings {
        relays,
        clients,
        targets,
        hops,
        ..
    } = *settings;
    let nodes = relays.saturating_add(clients).saturating_add(targets);
    let wrong = [
        (
            relays < hops,
            "a path has more relays than there are: take more relays or fewer hops",
        ),
        (!(1..=8).contains(&hops), "a path has one to eight relays"),
        (targets == 0, "there is no target"),
        (nodes > MAX_NODES, "too many nodes: there may be 20480"),
        (
            !(0.0..1.0).contains(&settings.loss),
            "the loss is a share, from 0 to below 1",
        ),
    ];
    let wrong = wrong.into_iter().find(|(wrong, _)| *wrong);
    wrong.map_or(Ok(()), |(_, why)| Err(Failed::Wrong(why)))
}

/// A network that runs.
struct World {
    settings: Arc<Settings>,
    network: Network,
    ground: Ground,
    /// Each node's: it counts, and is bounded, as a process of its own.
    counts: Vec<Arc<Counts>>,
    book: Arc<Book>,
    relays: Vec<RelayNode>,
    tasks: JoinSet<()>,
}

async fn whole(settings: Arc<Settings>, progress: &Progress) -> Result<Outcome, Failed> {
    let began = Instant::now();
    let mut world = World {
        network: Network::new(settings.seed, settings.loss),
        ground: Ground::new()?,
        counts: Vec::new(),
        book: Book::new(),
        relays: Vec::new(),
        tasks: JoinSet::new(),
        settings,
    };
    world.add_relays()?;
    let targets = world.add_targets();
    world.add_clients(&targets);
    world.watch(began, progress).await;
    Ok(world.outcome(began.elapsed()))
}

impl World {
    fn place(&self, number: usize) -> Place {
        let mut random = Random::new(self.settings.seed, "places", number);
        Place::drawn(&mut random)
    }

    fn count(&mut self) -> Arc<Counts> {
        let counts = Arc::<Counts>::default();
        self.counts.push(Arc::clone(&counts));
        counts
    }

    fn faults(&self) -> Vec<(&'static str, u64)> {
        let mut sums = BTreeMap::new();
        for (name, count) in self.counts.iter().flat_map(|counts| counts.all()) {
            *sums.entry(name).or_default() += count;
        }
        sums.into_iter().collect()
    }

    fn add_relays(&mut self) -> Result<(), Unmade> {
        for number in 0..self.settings.relays {
            let mut random = Random::new(self.settings.seed, "lines of relays", number);
            let access = relay_access(&mut random);
            let plan = Plan {
                number,
                node: self.network.add(self.place(number), access),
                bandwidth: access.up,
                exit: number.is_multiple_of(EXITS),
                channel: self.settings.channel,
                congestion_control: self.settings.congestion_control,
                seed: self.settings.seed,
            };
            let counts = self.count();
            let relay = RelayNode::start(&self.network, &self.ground, &counts, &plan)?;
            self.relays.push(relay);
        }
        Ok(())
    }

    fn add_targets(&mut self) -> Arc<[Node]> {
        let first = self.relays.len();
        let targets = (0..self.settings.targets).map(|number| {
            let place = self.place(first.saturating_add(number));
            self.network.add(place, target_access())
        });
        let targets: Arc<[Node]> = targets.collect();
        for node in targets.iter() {
            if self.settings.lossless_targets {
                self.network.spare(*node);
            }
            let network = self.network.clone();
            self.tasks.spawn(client::serve_target(network, *node));
        }
        targets
    }

    fn add_clients(&mut self, targets: &Arc<[Node]>) {
        let relays = self.relays.iter();
        let relays = relays.map(|relay| (relay.node, relay.descriptor.clone()));
        let listed = Listed::of(relays, self.settings.congestion_control);
        let listed = Arc::new(listed);
        let first = self.relays.len().saturating_add(targets.len());
        for number in 0..self.settings.clients {
            let mut random = Random::new(self.settings.seed, "clients", number);
            let place = self.place(first.saturating_add(number));
            let node = self.network.add(place, client_access(&mut random));
            let client = ClientNode {
                number,
                node,
                settings: Arc::clone(&self.settings),
                targets: Arc::clone(targets),
                book: Arc::clone(&self.book),
                random,
            };
            let counts = self.count();
            let run = client.run(
                self.network.clone(),
                self.ground.clone(),
                Arc::clone(&listed),
                counts,
            );
            self.tasks.spawn(run);
        }
    }

    /// Until the time is over; relays go when theirs is.
    async fn watch(&mut self, began: Instant, progress: &Progress) {
        let mut kills = self.settings.kills.clone();
        kills.sort_by_key(|(_, when)| std::cmp::Reverse(*when));
        loop {
            let now = began.elapsed();
            let ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
            progress.virtual_ms.store(ms, Relaxed);
            while let Some((number, _)) = kills.pop_if(|(_, when)| *when <= now) {
                if let Some(relay) = self.relays.get_mut(number) {
                    relay.kill(&self.network);
                }
            }
            if now >= self.settings.time {
                return;
            }
            let next = (now + PROGRESS_INTERVAL).min(self.settings.time);
            let next = kills.last().map_or(next, |(_, when)| next.min(*when));
            sleep_until(began + next).await;
        }
    }

    fn outcome(&self, took: Duration) -> Outcome {
        let (fetches, builds) = self.book.close();
        let ledger = self.network.ledger();
        let relays = self.relays.iter();
        let relays = relays.map(|relay| relay_use(relay, &ledger)).collect();
        Outcome {
            settings: Settings::clone(&self.settings),
            took,
            fetches,
            builds,
            relays,
            faults: self.faults(),
            ledger,
        }
    }
}

fn relay_use(relay: &RelayNode, ledger: &crate::net::Ledger) -> RelayUse {
    let counters = &relay.onion.counters;
    let (sent, received) = ledger.nodes.get(relay.node.0).copied().unwrap_or_default();
    let refused = [&counters.refused, &counters.limited, &counters.broken];
    RelayUse {
        bandwidth: relay.bandwidth,
        sent: sent.bytes,
        received: received.bytes,
        created: counters.created.load(Relaxed),
        refused: refused.iter().map(|count| count.load(Relaxed)).sum(),
        open: relay.onion.circuits(),
    }
}

// What a run is like: how many, for how long, over what, and what they do.

/// Bytes a second of a megabit.
const MEGABIT: u64 = 125_000;

/// A queue holds what its line sends in this time, and 64 KiB at least.
const QUEUE: Duration = Duration::from_millis(50);

const MIN_QUEUE: u64 = 64 << 10;

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Relays; every third is an exit too.
    pub relays: usize,
    /// Clients.
    pub clients: usize,
    /// Servers that clients fetch from.
    pub targets: usize,
    /// Everything is drawn from it.
    pub seed: u64,
    /// How long clients fetch, in virtual time.
    pub time: Duration,
    /// Clients begin one after the other within this time; what is fetched before its end is not counted.
    pub warm_up: Duration,
    /// What channels run over.
    pub channel: How,
    /// The share of packets that is lost between any two nodes, from 0 to 1.
    pub loss: f64,
    /// Except between exits and targets.
    pub lossless_targets: bool,
    /// What clients do.
    pub traffic: Traffic,
    /// Relays that go, by number, and when.
    pub kills: Vec<(usize, Duration)>,
    /// Relays of a path.
    pub hops: usize,
    /// Whether circuits have congestion control; else Tor's fixed windows.
    pub congestion_control: bool,
    /// Whether circuits that stand ready are Conflux sets.
    pub conflux: bool,
    /// Circuits that each client has ready.
    pub ahead: usize,
}

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// The share of clients that fetch much, from 0 to 1.
    pub bulk: f64,
    /// The bytes of a fetch.
    pub web_bytes: u64,
    /// The mean pause after one, exponentially distributed.
    pub web_pause: Duration,
    /// The bytes of a fetch, of those that fetch much.
    pub bulk_bytes: u64,
    /// The mean pause of those that fetch much.
    pub bulk_pause: Duration,
    /// When a fetch is given up.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            relays: 40,
            clients: 100,
            targets: 4,
            seed: 1,
            time: Duration::from_secs(600),
            warm_up: Duration::from_secs(60),
            channel: How::Quic,
            loss: 0.0,
            lossless_targets: false,
            traffic: Traffic::default(),
            kills: Vec::new(),
            hops: 3,
            congestion_control: true,
            conflux: false,
            ahead: 1,
        }
    }
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            bulk: 0.04,
            web_bytes: 320 << 10,
            web_pause: Duration::from_secs(60),
            bulk_bytes: 5 << 20,
            bulk_pause: Duration::from_secs(60),
            patience: Duration::from_secs(300),
        }
    }
}

/// A relay's line: 20 to 640 Mbit/s, as many of each doubling.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "rates between 2.5 and 80 million bytes a second"
)]
pub(crate) fn relay_access(random: &mut Random) -> Access {
    let rate = 20.0 * (MEGABIT as f64) * (5.0 * random.unit()).exp2();
    access_link(rate as u64, rate as u64)
}

/// A client's: 20 to 100 Mbit/s down, a fifth of it up.
pub(crate) fn client_access(random: &mut Random) -> Access {
    let down = MEGABIT.saturating_mul(20 + random.below(81));
    access_link(down / 5, down)
}

/// A target's: 1 Gbit/s.
pub(crate) fn target_access() -> Access {
    access_link(1000 * MEGABIT, 1000 * MEGABIT)
}

/// As much waits as the faster direction sends in 50 ms.
pub(crate) fn access_link(up: u64, down: u64) -> Access {
    let most = u128::from(up.max(down)) * QUEUE.as_nanos() / 1_000_000_000;
    let queue = u64::try_from(most).unwrap_or(u64::MAX);
    Access {
        up,
        down,
        queue: queue.max(MIN_QUEUE),
    }
}

// What all nodes share: the TLS certificate and its configuration, and how links and channels behave.
// One certificate does for all relays: it is worth nothing by itself, the link handshake proves who a relay is.

/// How often a link at rest is looked at: nobody here changes the address.
const REST_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Datagrams that come in one call: thousands of links share the memory.
const SEGMENTS: usize = 1;

/// Shared by all nodes.
#[derive(Clone)]
pub struct Ground {
    /// How links behave.
    pub link: hoplite_link::Config,
    /// How channels behave.
    pub channel: channel::Config,
    /// What the relays' TLS shows, over TCP and over QUIC.
    pub tls: Arc<rustls::ServerConfig>,
    /// The SHA-256 of its certificate.
    pub certificate: [u8; 32],
    /// What they show over QUIC.
    pub quic: ServerConfig,
}

/// Why there is no world.
#[derive(Debug, thiserror::Error)]
pub enum Unmade {
    /// The keys that all share.
    #[error("making the certificate that all relays show: {0}")]
    Certificate(String),
    /// A relay's.
    #[error("making the keys of a relay: {0}")]
    Keys(String),
    /// A socket's endpoint, or a configuration.
    #[error("preparing a relay: {0}")]
    Endpoint(#[from] io::Error),
}

impl Ground {
    /// With the rooms' defaults.
    ///
    /// # Errors
    /// [`Unmade`]
    pub fn new() -> Result<Self, Unmade> {
        let identity = identity()?;
        let certificates = Certificates::new(&identity).map_err(wrong)?;
        let tls = server_tls(certificates, &[ALPN_CHANNEL]).map_err(wrong)?;
        let tls = Arc::new(tls);
        let link = hoplite_link::Config {
            rest: REST_CHECK_INTERVAL,
            receive_segments: SEGMENTS,
            ..hoplite_link::Config::default()
        };
        let channel = channel::Config::default();
        let transport = Arc::new(channel.greeting(&link).transport(0, 1472));
        let secrets = Secrets::generate()?;
        let hooks = Hooks {
            window: Some(channel.greeting_window.into()),
            ..Hooks::default()
        };
        let quic = server_config(Arc::clone(&tls), transport, &secrets, &hooks)?;
        Ok(Self {
            link,
            channel,
            tls,
            certificate: identity.certificate_sha256(),
            quic,
        })
    }

    /// A connection's parameters at a relay, before its peer has said who it is.
    pub fn transport(&self) -> TransportConfig {
        self.channel.greeting(&self.link).transport(0, 1472)
    }

    /// How links of one node behave, which draws its numbers from `seed`.
    pub fn link_of(&self, seed: [u8; 32]) -> hoplite_link::Config {
        hoplite_link::Config {
            seed: Some(seed),
            ..self.link.clone()
        }
    }

    /// How an endpoint draws its numbers.
    pub fn endpoint(seed: [u8; 32]) -> EndpointConfig {
        let mut config = EndpointConfig::default();
        config.rng_seed(Some(seed));
        config
    }
}

/// Ed25519: its signatures and its certificate always have the same size, other kinds' vary by some bytes from run to run.
pub(crate) fn identity() -> Result<Identity, Unmade> {
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(wrong)?;
    let mut params = CertificateParams::new(Vec::new()).map_err(wrong)?;
    params.serial_number = Some(SerialNumber::from(1));
    let certificate = params.self_signed(&key).map_err(wrong)?;
    let key = key.serialize_pem();
    Identity::from_pem(certificate.pem().as_bytes(), key.as_bytes()).map_err(wrong)
}

fn wrong(error: impl std::fmt::Display) -> Unmade {
    Unmade::Certificate(error.to_string())
}

/// The identity of this secret, as of now. Dates stand in certificates and NETINFO, whose sizes do not depend on them.
///
/// # Errors
/// [`Unmade`]
pub fn relay_identity(secret: &[u8; 32]) -> Result<RelayIdentity, Unmade> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = since.map_or(0, |since| since.as_secs());
    RelayIdentity::from_secret(secret, now).map_err(|error| Unmade::Keys(error.to_string()))
}

impl std::fmt::Debug for Ground {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ground")
            .field("link", &self.link)
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}
