//! A campaign: every repetition of a scenario, one after another, each in fresh namespaces, judged, repeated if it may not be believed, and
//! stored once. `hoplite-lab run` is this. What it writes is described in `docs/results.md`.
//!
//! It may be killed at any point. A repetition counts from the moment its transaction in `results.sqlite` is done; its samples are in place
//! before that, and what has no transaction is swept away at the next start.

mod choice;
mod conduct;
mod directory;
mod eta;
mod execute;
mod gate;
mod identity;
mod interrupt;
mod keep;
mod lock;
mod machine;
mod plan;
mod programs;
mod progress;
mod shard;

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use self::{
    conduct::{Conduct, Ended, Step, Tally},
    eta::Estimate,
    execute::{Execute, Worlds},
    interrupt::Stop,
    plan::{Plan, Source},
    progress::Progress,
};
pub(crate) use self::{
    directory::{Directory, entries, remove, sync, trouble},
    identity::{describe, difference, extend},
    lock::Lock,
};
use crate::{cli::RunArgs, errors::Failure, report, results::store::Store, scenario};

/// Runs a scenario, or goes on with it.
///
/// # Errors
/// What failed, why, and what to do; also when it is over and some repetition is not ok.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let mut scenario = scenario::load(&args.scenario)?;
    scenario.repetitions = args.repetitions.unwrap_or(scenario.repetitions);
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    let plan = Plan::make(&scenario, args)?;
    let default = || Path::new("results").join(&scenario.name);
    let out = args.out.clone().unwrap_or_else(default);
    if args.dry_run {
        return plan::show(&plan, &out, args.json);
    }
    let args = args.clone();
    interrupt::watched(move |stop| {
        let progress = Progress::to_stdout(args.json);
        let begun = Begun::new(plan, &out, args.retry)?;
        let around = Around {
            stop,
            step: &|_| Ok(()),
            report: &report::write,
        };
        begun.conduct(&scenario, &mut Worlds, progress, &around)
    })
}

/// A campaign whose directory is ours.
struct Begun {
    plan: Plan,
    directory: Directory,
    store: Store,
    machine: String,
    _lock: Lock,
}

impl Begun {
    fn new(plan: Plan, out: &Path, retry: bool) -> Result<Self, Failure> {
        let directory = Directory::open(out)?;
        let lock = Lock::take(directory.root(), "run")?;
        let mut store = Store::write(directory.root())?;
        identity::claim(&mut store, &directory, &plan)?;
        let machine = machine::this();
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
        source: &dyn Source,
        execute: &mut dyn Execute,
        progress: Progress,
        around: &Around<'_>,
    ) -> Result<(), Failure> {
        let mut conduct = Conduct {
            source,
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
        if ended == Ended::Interrupted {
            return Err(interrupted(root, &tally));
        }
        let page = (around.report)(root);
        let path = page.as_deref().ok();
        conduct.progress.done(root, &tally, path);
        page?;
        verdict(root, &tally)
    }
}

/// What tests do otherwise.
struct Around<'a> {
    stop: &'a Stop,
    step: Step<'a>,
    /// Writes the report of a directory.
    report: &'a dyn Fn(&Path) -> Result<PathBuf, Failure>,
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

/// One clear line when not everything is ok.
fn verdict(root: &Path, tally: &Tally) -> Result<(), Failure> {
    if tally.failed + tally.invalid == 0 {
        return Ok(());
    }
    Err(Failure::new(
        format!("running {}", root.display()),
        format!(
            "of {} repetitions {} failed and {} stayed invalid",
            tally.of, tally.failed, tally.invalid
        ),
        "see the table `attempt` in results.sqlite and the logs in runs/; the same command with --retry repeats them",
    ))
}

/// The repetitions that are over.
fn over(store: &Store) -> Result<HashSet<String>, Failure> {
    Ok(store.runs()?.into_iter().map(|run| run.id).collect())
}

/// Counts the repetitions of a plan by verdict.
fn tally(store: &Store, plan: &Plan) -> Result<Tally, Failure> {
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

#[cfg(test)]
mod tests;
