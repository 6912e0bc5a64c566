//! A bandwidth scanner over relays whose lines have given rates: the product's machine and transfers (`directory::scanner`), over the network in memory.
//! Nobody else uses the relays meanwhile.

use std::{collections::BTreeMap, sync::Arc, thread, time::Duration};

use hoplite_channel::{ChannelDialer, Channels, Counts, How, handshake::Us};
use hoplite_directory::scanner::{
    self, Candidate, Measurement, Outcome, Results, Scanner,
    target::{self, Expected},
    weights::{self, About},
};
use hoplite_onion::{
    Config, Onion,
    channel::Linked,
    path::{Fixed, Relay},
};
use hoplite_wire::{directory::Key, tor::bandwidth_file::BandwidthFile};
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    client::target_address,
    net::{Network, Node, Place, tcp::Listener},
    paths,
    random::{CELLS, Random, seed_cells},
    relay::{Host, Plan, RelayNode, sweep},
    run::{Failed, Ground, Unmade, access_link, target_access},
};

/// When it begins, in seconds since 1970: nobody looks.
const BEGINS: u64 = 1_790_000_000;
/// A scan that takes longer finds nothing.
const MOST: Duration = Duration::from_secs(86_400);
/// How often is looked what there is to do.
const TURN: Duration = Duration::from_secs(1);

/// A relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shaped {
    /// What its line carries each way, in bytes a second.
    pub rate: u64,
    /// What it says of itself, in bytes a second.
    pub says: u64,
}

/// A scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The relays, all of them exits.
    pub relays: Vec<Shaped>,
    /// Everything is drawn from it.
    pub seed: u64,
    /// What circuits run over.
    pub channel: How,
    /// Until each relay has so many results.
    pub results: usize,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The file, with the relays as lines.
    pub file: BandwidthFile,
    /// The weight of each relay, in the order of the settings.
    pub weights: Vec<u64>,
    /// How long it took.
    pub took: Duration,
    /// Bytes that each relay's node has sent.
    pub sent: Vec<u64>,
}

/// Measures until all is known.
///
/// # Errors
/// [`Failed`]
pub fn scan(settings: &Settings) -> Result<Scanned, Failed> {
    let settings = settings.clone();
    let thread = thread::Builder::new().name("scan".into());
    let thread = thread.spawn(move || {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()?;
        seed_cells(settings.seed);
        runtime.block_on(Box::pin(async { World::new(&settings)?.scan().await }))
    })?;
    thread.join().map_err(|_| Failed::Panic)?
}

struct World {
    settings: Settings,
    network: Network,
    relays: Vec<RelayNode>,
    known: BTreeMap<Key, Relay>,
    scanner: Scanner,
    config: scanner::Config,
    linked: Arc<Linked>,
    target: Node,
    expected: Expected,
    random: Random,
    began: Instant,
    running: JoinSet<Outcome>,
    tasks: JoinSet<()>,
}

impl World {
    fn new(settings: &Settings) -> Result<Self, Unmade> {
        let (network, ground) = (Network::new(settings.seed, 0.0), Ground::new()?);
        let place = |number| Place::drawn(&mut Random::new(settings.seed, "places", number));
        let relays = (0..).zip(&settings.relays).map(|(number, shaped)| {
            let plan = Plan {
                number,
                node: network.add(place(number), access_link(shaped.rate, shaped.rate)),
                bandwidth: shaped.says,
                exit: true,
                channel: settings.channel,
                congestion_control: true,
                seed: settings.seed,
            };
            RelayNode::start(&network, &ground, &Arc::<Counts>::default(), &plan)
        });
        let relays = relays.collect::<Result<Vec<_>, Unmade>>()?;
        let known = relays.iter();
        let known = known.filter_map(|relay| paths::known(&relay.descriptor.descriptor, true));
        let known = known.collect();
        let target = network.add(place(relays.len()), target_access());
        let own = network.add(place(relays.len().saturating_add(1)), target_access());
        let mut random = Random::new(settings.seed, "scanner", 0);
        let link = ground.link_of(random.bytes());
        let dialer = ChannelDialer::new(
            Arc::new(Host::new(&network, own)),
            Us::default(),
            &link,
            ground.channel.clone(),
            Arc::<Counts>::default(),
        );
        let channels = Channels::new(dialer, drop);
        let mut tasks = JoinSet::new();
        tasks.spawn(sweep(channels.clone()));
        let expected = Expected::default();
        tasks.spawn(serve(network.clone(), target, expected.clone()));
        let config = scanner::Config {
            pause: 1,
            ..scanner::Config::default()
        };
        let mut scanner = Scanner::new(config, Results::default());
        scanner.renew(relays.iter().map(candidate).collect());
        Ok(Self {
            settings: settings.clone(),
            network,
            relays,
            known,
            scanner,
            config,
            linked: Arc::new(Linked::new(channels, settings.channel)),
            target,
            expected,
            random,
            began: Instant::now(),
            running: JoinSet::new(),
            tasks,
        })
    }

    fn now(&self) -> u64 {
        BEGINS.saturating_add(self.began.elapsed().as_secs())
    }

    async fn scan(mut self) -> Result<Scanned, Failed> {
        while !self.is_done() {
            if self.began.elapsed() > MOST {
                return Err(Failed::Wrong("the relays cannot be measured in a day"));
            }
            let (now, random) = (self.now(), &mut self.random);
            let mut random = |below| random.below(below);
            let mut begun = Vec::new();
            while let Some(measurement) = self.scanner.next(now, &mut random) {
                begun.push(measurement);
            }
            begun.into_iter().for_each(|one| self.begin(one));
            tokio::select! {
                biased;
                Some(Ok(outcome)) = self.running.join_next() => self.scanner.measured(&outcome),
                () = sleep(TURN) => {}
            }
        }
        self.tasks.abort_all();
        self.outcome()
    }

    fn is_done(&self) -> bool {
        let mut relays = self.relays.iter();
        relays.all(|relay| {
            let results = self
                .scanner
                .results()
                .of(&relay.descriptor.descriptor.identity);
            results.filter(|outcome| outcome.rates.is_ok()).count() >= self.settings.results
        })
    }

    fn begin(&mut self, measurement: Measurement) {
        let path = measurement
            .path
            .iter()
            .filter_map(|one| self.known.get(one).cloned());
        let config = Config {
            ahead: 0,
            conflux: false,
            attempts: 1,
            random: CELLS,
            ..Config::default()
        };
        let onion = Onion::new(
            Arc::clone(&self.linked) as _,
            Arc::new(Fixed(path.collect())),
            config,
        );
        let (target, expected) = (target_address(self.target).into(), self.expected.clone());
        let began = self.began;
        self.running.spawn(async move {
            let rates = target::measure(&onion, &target, &expected).await;
            Outcome {
                at: BEGINS.saturating_add(began.elapsed().as_secs()),
                of: measurement,
                rates,
            }
        });
    }

    fn outcome(&self) -> Result<Scanned, Failed> {
        let about = About {
            version: env!("CARGO_PKG_VERSION"),
            started: BEGINS,
            now: self.now(),
        };
        let points = [self.scanner.results()];
        let file = weights::bandwidth_file(&points, self.scanner.relays(), &self.config, about);
        let file = file.ok_or(Failed::Wrong("nothing was measured"))?;
        let weight = |relay: &RelayNode| {
            let identity = relay.descriptor.descriptor.identity.0;
            let mut lines = file.relays.iter();
            let line = lines.find(|line| line.relay.ed25519() == Some(&identity));
            line.map_or(0, |line| line.bandwidth)
        };
        let ledger = self.network.ledger();
        let sent = self.relays.iter().map(|relay| {
            let (sent, _) = ledger.nodes.get(relay.node.0).copied().unwrap_or_default();
            sent.bytes
        });
        Ok(Scanned {
            weights: self.relays.iter().map(weight).collect(),
            took: self.began.elapsed(),
            sent: sent.collect(),
            file,
        })
    }
}

fn candidate(relay: &RelayNode) -> Candidate {
    let said = &relay.descriptor.descriptor;
    Candidate {
        identity: said.identity,
        rsa_id: None,
        nickname: said.name.clone(),
        exits: true,
        average: said.bandwidth,
        observed: None,
        believed: said.bandwidth,
    }
}

async fn serve(network: Network, node: Node, expected: Expected) {
    let mut listener = Listener::at(&network, target_address(node));
    let mut guests = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = guests.join_next() => {}
            accepted = listener.accept() => match accepted {
                Some((stream, _)) => {
                    let expected = expected.clone();
                    guests.spawn(async move { target::serve(stream, &expected, || ()).await });
                }
                None => return,
            },
        }
    }
}
