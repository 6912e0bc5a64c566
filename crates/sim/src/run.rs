//! Makes a network of relays, clients and targets, lets it run for its virtual time, and says what was seen.
//! The program calls [`run`]; each run has a thread and a runtime of its own, so that nothing is left of the one before.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use hoplite_link::channel::Counts;
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{
    client::ClientNode,
    ground::{Ground, Unmade},
    net::{MOST_NODES, Network, Node, Place},
    outcome::{Book, Outcome, RelayUse},
    paths::Listed,
    random::Random,
    relay::{Plan, RelayNode},
    settings::{Settings, client_access, relay_access, target_access},
    target,
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
const TOLD: Duration = Duration::from_millis(500);

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
        (nodes > MOST_NODES, "too many nodes: there may be 20480"),
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
            self.tasks.spawn(target::serve(network, *node));
        }
        targets
    }

    fn add_clients(&mut self, targets: &Arc<[Node]>) {
        let relays = self.relays.iter().map(|relay| relay.descriptor.clone());
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
            let next = (now + TOLD).min(self.settings.time);
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
        sent: sent.octets,
        received: received.octets,
        created: counters.created.load(Relaxed),
        refused: refused.iter().map(|count| count.load(Relaxed)).sum(),
        open: relay.onion.circuits(),
    }
}
