//! A campaign: every repetition of a scenario, one after another, each in fresh namespaces, judged, repeated if it may not be believed, and
//! stored once. `hoplite-lab run` is this. What it writes is described in `docs/results.md`.
//!
//! It may be killed at any point. A repetition counts from the moment its transaction in `results.sqlite` is done; its samples are in place
//! before that, and what has no transaction is swept away at the next start.

mod conduct;
mod directory;
mod expected;
mod gate;
mod identity;
mod plan;
mod progress;
mod refused;
mod shard;

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
};

pub use self::shard::merge;
use self::{
    conduct::{Checkpoint, Conduct, Ended, Tally},
    plan::CampaignPlan,
    progress::{Closing, Estimate, Progress},
    refused::Refused,
};
pub(crate) use self::{
    directory::{Directory, Lock, entries, io_failure, remove, sync},
    identity::{describe, difference, extend, hexadecimal},
};
use crate::{
    cli::RunArgs,
    errors::Failure,
    experiments::{
        scenario::{self, Scenario},
        trial::{Report, Trial},
        world,
    },
    results::{
        hand_in::{self, HandedIn, Place},
        report,
        store::{self, Store},
    },
};

/// Runs a scenario, or goes on with it.
///
/// # Errors
/// What failed, why, and what to do; also when it is over and some repetition is not ok.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let mut scenario = scenario::load(&args.scenario)?;
    scenario.repetitions = args.repetitions.unwrap_or(scenario.repetitions);
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    let default = || Path::new("results").join(&scenario.name);
    let out = args.out.clone().unwrap_or_else(default);
    if args.resume {
        something_there(&out)?;
    }
    let plan = CampaignPlan::make(&scenario, args)?;
    if args.dry_run {
        return plan::show(&plan, &out, args.json);
    }
    // What is wrong with it is told now, not hours later.
    let place = args.to.as_deref().map(Place::parse).transpose()?;
    let args = args.clone();
    watched(move |stop| {
        let mut progress = Progress::to_stdout(args.json);
        progress.left_out(&plan.left_out);
        let begun = OpenCampaign::new(plan, &out, args.retry)?;
        let patience = Duration::from_secs(args.patience);
        let around = Hooks {
            stop,
            step: &|_| Ok(()),
            report: &report::write,
            hand_in: &|root| {
                let place = place.as_ref();
                place
                    .map(|place| hand_in::hand_in(root, place, patience))
                    .transpose()
            },
        };
        begun.conduct(&scenario, &mut Worlds, progress, &around)
    })
}

/// Whether there is a campaign to go on with.
fn something_there(out: &Path) -> Result<(), Failure> {
    if out.join(store::FILE).is_file() {
        return Ok(());
    }
    Err(Failure::new(
        format!("going on in {}", out.display()),
        "there are no results",
        "see that --out is right and its file system mounted, or leave --resume out to begin",
    ))
}

/// A campaign whose directory is ours.
struct OpenCampaign {
    plan: CampaignPlan,
    directory: Directory,
    store: Store,
    machine: String,
    _lock: Lock,
}

impl OpenCampaign {
    fn new(plan: CampaignPlan, out: &Path, retry: bool) -> Result<Self, Failure> {
        let directory = Directory::open(out)?;
        let lock = Lock::take(directory.root(), "run")?;
        let mut store = Store::write(directory.root())?;
        identity::claim(&mut store, &directory, &plan)?;
        let machine = identity::this_machine();
        store.put_machine(&machine)?;
        if retry {
            store.take_back()?;
        }
        directory.sweep(&mut store)?;
        Ok(Self {
            plan,
            directory,
            store,
            machine: machine.id,
            _lock: lock,
        })
    }

    fn conduct(
        self,
        scenario: &Scenario,
        execute: &mut dyn Execute,
        progress: Progress,
        around: &Hooks<'_>,
    ) -> Result<(), Failure> {
        let mut conduct = Conduct {
            scenario,
            plan: &self.plan,
            directory: self.directory,
            tally: tally(&self.store, &self.plan)?,
            estimate: estimate(&self.store)?,
            store: self.store,
            machine: self.machine,
            progress,
            stop: around.stop,
            step: around.step,
            refused: None,
        };
        let ended = conduct.all(execute)?;
        let (root, tally) = (conduct.directory.root(), conduct.tally);
        let refused = refused::of(&conduct.store, &self.plan)?;
        if ended == Ended::Interrupted {
            return Err(interrupted(root, &tally));
        }
        let page = (around.report)(root);
        let path = page.as_deref().ok();
        let closing = Closing {
            tally: &tally,
            refused: &refused,
            open: self.plan.campaign.gate.is_open(),
        };
        conduct.progress.done(root, &closing, path);
        let handed_in = (around.hand_in)(root);
        if let Ok(Some(handed_in)) = &handed_in {
            conduct.progress.handed_in(handed_in);
        }
        page?;
        handed_in?;
        verdict(root, &tally, &refused)
    }
}

/// What tests do otherwise.
struct Hooks<'a> {
    stop: &'a Stop,
    step: Checkpoint<'a>,
    /// Writes the report of a directory.
    report: &'a dyn Fn(&Path) -> Result<PathBuf, Failure>,
    /// Hands its results in, if that is wanted.
    hand_in: &'a dyn Fn(&Path) -> Result<Option<HandedIn>, Failure>,
}

fn interrupted(root: &Path, tally: &Tally) -> Failure {
    Failure::new(
        format!("running {}", root.display()),
        format!(
            "interrupted; {} of {} repetitions are there",
            tally.there(),
            tally.of
        ),
        "run the same command again to go on",
    )
}

/// One clear line when not everything is ok: who was refused, and why.
fn verdict(root: &Path, tally: &Tally, refused: &[Refused]) -> Result<(), Failure> {
    if tally.failed + tally.invalid == 0 {
        return Ok(());
    }
    Err(Failure::new(
        format!("running {}", root.display()),
        format!(
            "of {} repetitions {} failed and {} stayed invalid{}",
            tally.of,
            tally.failed,
            tally.invalid,
            refused::told(refused)
        ),
        "see the table `attempt` in results.sqlite and the logs in runs/; the same command with --retry repeats them",
    ))
}

/// The repetitions that are over.
fn over(store: &Store) -> Result<HashSet<String>, Failure> {
    Ok(store.runs()?.into_iter().map(|run| run.id).collect())
}

/// Counts the repetitions of a plan by verdict.
fn tally(store: &Store, plan: &CampaignPlan) -> Result<Tally, Failure> {
    let ids: HashSet<_> = plan.places.iter().map(|place| place.key.id()).collect();
    let mut tally = Tally {
        of: ids.len(),
        ..Tally::default()
    };
    for run in store.runs()?.iter().filter(|run| ids.contains(&run.id)) {
        tally.count(run.verdict);
    }
    for attempt in store.attempts()?.iter().filter(|a| ids.contains(&a.run)) {
        tally.count_attempt(attempt.verdict);
    }
    Ok(tally)
}

/// What earlier repetitions tell about those to come.
fn estimate(store: &Store) -> Result<Estimate, Failure> {
    let mut seconds = HashMap::<String, f64>::new();
    for attempt in store.attempts()? {
        *seconds.entry(attempt.run).or_default() += attempt.took;
    }
    let mut estimate = Estimate::default();
    for run in store.runs()? {
        if let Some(seconds) = seconds.get(&run.id) {
            estimate.add(&run.key, *seconds);
        }
    }
    Ok(estimate)
}

/// Seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

// SIGINT and SIGTERM end a campaign in order: the attempt under way is given up, what is stored is stored. A second one ends it at once.

/// A request to end a campaign, from its signals to its attempts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks for the end.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the end was asked for.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Runs a campaign on a thread of its own, and tells it when to stop.
pub(crate) fn watched(
    work: impl FnOnce(&Stop) -> Result<(), Failure> + Send + 'static,
) -> Result<(), Failure> {
    let failed = |error| Failure::new("starting", error, "raise the limits of files and threads");
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let done = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let stop = Stop::default();
        let working = stop.clone();
        let mut work = tokio::task::spawn_blocking(move || work(&working));
        loop {
            tokio::select! {
                done = &mut work => return done.unwrap_or_else(|error| Err(Failure::new("running the campaign", error, "please report this"))),
                () = either(&mut interrupt, &mut terminate) => {
                    if stop.is_set() {
                        return Err(Failure::new("running the campaign", "interrupted twice", "run the same command again to go on"));
                    }
                    stop.set();
                }
            }
        }
    });
    runtime.shutdown_background();
    done
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

// What carries an attempt out: a world in fresh namespaces, or a double in tests.

/// Carries attempts out.
pub(crate) trait Execute {
    /// Carries one out. Returns early when `stop` is set; what it returns then is not looked at.
    ///
    /// # Errors
    /// When this machine can run no attempt at all: no user namespaces, no TUN.
    fn run(&mut self, trial: &Trial, stop: &Stop) -> Result<Report, Failure>;
}

/// Worlds: processes in namespaces of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Worlds;

impl Execute for Worlds {
    fn run(&mut self, trial: &Trial, stop: &Stop) -> Result<Report, Failure> {
        world::spawn_until(trial, &|| stop.is_set())
    }
}

#[cfg(test)]
mod tests;
