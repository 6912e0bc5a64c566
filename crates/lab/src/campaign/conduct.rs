//! Conducts a campaign: repetition by repetition, attempt by attempt, each judged and stored before the next begins.
//!
//! The order of what it writes is what makes it safe to kill: kept files, samples, the transaction, then the attempt's directory goes. Whatever
//! was written without its transaction is swept at the next start. An error leaves everything as a kill would: nothing is tidied on the way out.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    time::Instant,
};

use super::{
    Directory, Execute, Stop,
    directory::{keep, remove, trouble},
    plan::{CampaignPlan, Planned, everything},
    progress::{Estimate, Event, Progress},
};
use crate::{
    analysis::analyse,
    errors::Failure,
    results::{
        metrics, parquet,
        sample::{WholeTransfer, whole_transfers},
        store::{Attempt, Finished, Run, Store, Verdict},
    },
    scenario::{Gate, Scenario},
    trial::{EmulatorHealth, Outcome, Report, Trial},
    workload::{self, TransferError},
};

/// How a campaign ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    All,
    Interrupted,
}

/// Repetitions of a plan by verdict, and what it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) of: usize,
    pub(crate) ok: usize,
    pub(crate) invalid: usize,
    pub(crate) failed: usize,
    pub(crate) invalid_attempts: usize,
    pub(crate) failed_attempts: usize,
}

impl Tally {
    /// How many are over.
    pub(crate) fn there(&self) -> usize {
        self.ok + self.invalid + self.failed
    }

    /// One more repetition is over.
    pub(crate) fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Ok => self.ok += 1,
            Verdict::Invalid => self.invalid += 1,
            Verdict::Failed => self.failed += 1,
        }
    }

    /// One more attempt is over.
    pub(crate) fn count_attempt(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Ok => {}
            Verdict::Invalid => self.invalid_attempts += 1,
            Verdict::Failed => self.failed_attempts += 1,
        }
    }
}

/// Called between any two operations that leave a trace; an error ends the campaign there, as a kill would.
pub(crate) type Checkpoint<'a> = &'a dyn Fn(&'static str) -> Result<(), Failure>;

/// A campaign under way.
pub(crate) struct Conduct<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) plan: &'a CampaignPlan,
    pub(crate) directory: Directory,
    pub(crate) store: Store,
    pub(crate) machine: String,
    pub(crate) progress: Progress,
    pub(crate) stop: &'a Stop,
    pub(crate) step: Checkpoint<'a>,
    pub(crate) tally: Tally,
    pub(crate) estimate: Estimate,
    /// Attempts in a row that this machine could not even begin; `None` until one of this process was begun.
    pub(crate) refused: Option<u32>,
}

/// Attempts at a repetition so far.
#[derive(Clone, Copy, Debug, Default)]
struct AttemptsBefore {
    /// The number of the last one.
    last: u32,
    /// Those that count towards the limits.
    invalid: u32,
    failed: u32,
}

/// An attempt that is over.
struct EndedAttempt {
    number: u32,
    directory: PathBuf,
    trial: Trial,
    report: Option<Report>,
    validity: Validity,
    extra: Vec<(String, f64)>,
    began: f64,
    took: f64,
}

impl Conduct<'_> {
    /// Runs all repetitions that are not there.
    pub(crate) fn all(&mut self, execute: &mut dyn Execute) -> Result<Ended, Failure> {
        let over = super::over(&self.store)?;
        let missing = |place: &&Planned| !over.contains(&place.key.id());
        let pending: Vec<&Planned> = self.plan.places.iter().filter(missing).collect();
        let scenario = &self.plan.campaign.scenario;
        self.progress
            .start(scenario, self.directory.root(), &self.tally);
        for (i, place) in pending.iter().enumerate() {
            let rest = pending.iter().skip(i + 1).map(|place| &place.key);
            if self.repetition(place, execute, rest)? == Ended::Interrupted {
                self.progress.interrupted(&self.tally);
                return Ok(Ended::Interrupted);
            }
        }
        Ok(Ended::All)
    }

    fn repetition<'k>(
        &mut self,
        place: &Planned,
        execute: &mut dyn Execute,
        rest: impl Iterator<Item = &'k crate::trial::Key>,
    ) -> Result<Ended, Failure> {
        let begun = Instant::now();
        let mut before = self.before(&place.key.id())?;
        loop {
            let Some(tried) = self.attempt(place, before.last + 1, execute)? else {
                return Ok(Ended::Interrupted);
            };
            before.last = tried.number;
            let verdict = tried.validity.verdict;
            self.tally.count_attempt(verdict);
            if !self.is_last(&mut before, verdict) {
                self.put_aside(place, &tried)?;
                self.progress.again(&event(place, &tried, tried.took, None));
                continue;
            }
            self.finish(place, &tried)?;
            let took = begun.elapsed().as_secs_f64();
            self.tally.count(verdict);
            self.estimate.add(&place.key, took);
            let left = self.estimate.left(rest);
            self.progress
                .over(&self.tally, &event(place, &tried, took, left));
            return Ok(Ended::All);
        }
    }

    fn before(&self, run: &str) -> Result<AttemptsBefore, Failure> {
        let mut before = AttemptsBefore::default();
        for attempt in self.store.attempts_of(run)? {
            before.last = before.last.max(attempt.number);
            match attempt.verdict {
                Verdict::Invalid if !attempt.set_aside => before.invalid += 1,
                Verdict::Failed if !attempt.set_aside => before.failed += 1,
                _ => {}
            }
        }
        Ok(before)
    }

    /// Whether an attempt that ended so decides about its repetition.
    fn is_last(&self, before: &mut AttemptsBefore, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Ok => true,
            Verdict::Invalid => {
                before.invalid += 1;
                before.invalid >= self.plan.campaign.gate.attempts
            }
            Verdict::Failed => {
                before.failed += 1;
                before.failed > self.plan.campaign.gate.retries
            }
        }
    }

    /// One attempt; `None` if it was interrupted.
    fn attempt(
        &mut self,
        place: &Planned,
        number: u32,
        execute: &mut dyn Execute,
    ) -> Result<Option<EndedAttempt>, Failure> {
        if self.stop.is_set() {
            return Ok(None);
        }
        self.directory.room()?;
        self.progress.attempt(place, number);
        let directory = self.directory.attempt(&place.key.id(), number)?;
        let shared = self.directory.shared();
        let mut trial = self.scenario.trial(&place.key, &directory, &shared)?;
        if self.plan.keep_all {
            trial.record = everything(trial.record.snaplen);
        }
        let (began, begun) = (super::now(), Instant::now());
        let report = execute.run(&trial, self.stop);
        if self.stop.is_set() {
            remove(&directory)?;
            return Ok(None);
        }
        let took = begun.elapsed().as_secs_f64();
        let (report, mut validity) = self.judged(report, &trial)?;
        let extra = analysed(&trial, report.as_ref(), &mut validity);
        Ok(Some(EndedAttempt {
            number,
            directory,
            trial,
            report,
            validity,
            extra,
            began,
            took,
        }))
    }

    /// An attempt that could not even begin is the machine's fault as long as none has: then the campaign ends. Later it is one that failed,
    /// unless it happens twice in a row.
    fn judged(
        &mut self,
        report: Result<Report, Failure>,
        trial: &Trial,
    ) -> Result<(Option<Report>, Validity), Failure> {
        match (report, self.refused) {
            (Ok(report), _) => {
                self.refused = Some(0);
                let validity = judge(&report, &trial.workloads, &self.plan.campaign.gate);
                // A full disk spoils an attempt in many ways; then it says nothing, and the next would end the same.
                if validity.verdict != Verdict::Ok {
                    self.directory.room()?;
                }
                Ok((Some(report), validity))
            }
            (Err(failure), Some(0)) => {
                self.directory.room()?;
                self.refused = Some(1);
                let why = failure.to_string();
                Ok((None, Validity::failed("beginning the attempt", &why, "")))
            }
            (Err(failure), _) => {
                remove(&trial.directory)?;
                Err(failure)
            }
        }
    }

    /// Stores an attempt that decides nothing.
    fn put_aside(&mut self, place: &Planned, tried: &EndedAttempt) -> Result<(), Failure> {
        self.keep(place, tried, false)?;
        self.store.put_attempt(&self.row(place, tried))?;
        (self.step)("attempt stored")?;
        remove(&tried.directory)
    }

    /// Stores a repetition with its last attempt.
    fn finish(&mut self, place: &Planned, tried: &EndedAttempt) -> Result<(), Failure> {
        let run = place.key.id();
        self.keep(place, tried, true)?;
        let report = tried.report.as_ref();
        let believed = report.filter(|_| tried.validity.verdict != Verdict::Failed);
        if let Some(report) = believed {
            let aside = self.directory.samples_aside(&run);
            write_samples(&aside, &tried.trial, report)?;
            (self.step)("samples written")?;
            self.directory.place_samples(&run)?;
            (self.step)("samples in place")?;
        }
        let measured = |report| metrics(&tried.trial, report, &tried.extra);
        self.store.finish(&Finished {
            run: Run {
                id: run,
                key: place.key.clone(),
                place: place.number,
                seed: tried.trial.seed,
                verdict: tried.validity.verdict,
                attempt: tried.number,
            },
            attempt: self.row(place, tried),
            metrics: believed.map(measured).unwrap_or_default(),
            processes: believed.map(|r| r.processes.clone()).unwrap_or_default(),
            links: believed.map(|r| r.links.clone()).unwrap_or_default(),
        })?;
        (self.step)("repetition stored")?;
        remove(&tried.directory)
    }

    fn keep(&self, place: &Planned, tried: &EndedAttempt, last: bool) -> Result<(), Failure> {
        (self.step)("attempt made")?;
        let to = self.directory.kept(&place.key.id(), tried.number);
        let what = self.plan.keeps(last);
        keep(&tried.directory, &to, &what, tried.validity.verdict)?;
        (self.step)("files kept")
    }

    fn row(&self, place: &Planned, tried: &EndedAttempt) -> Attempt {
        let report = tried.report.as_ref();
        Attempt {
            run: place.key.id(),
            number: tried.number,
            verdict: tried.validity.verdict,
            why: tried.validity.why.clone(),
            log: tried.validity.log.clone(),
            set_aside: false,
            machine: self.machine.clone(),
            began: report.map_or(tried.began, |report| report.began),
            ready_after: report.map_or(0.0, |report| report.ready_after),
            took: report.map_or(tried.took, |report| report.took),
            health: report
                .map(|report| report.emulator.clone())
                .unwrap_or_default(),
        }
    }
}

fn event<'a>(
    place: &'a Planned,
    tried: &'a EndedAttempt,
    took: f64,
    left: Option<f64>,
) -> Event<'a> {
    Event {
        place,
        attempt: tried.number,
        validity: &tried.validity,
        took,
        left,
    }
}

fn write_samples(path: &Path, trial: &Trial, report: &Report) -> Result<(), Failure> {
    parquet::write(path, trial, report)
        .and_then(|()| File::open(path)?.sync_all())
        .map_err(|error| trouble("writing", path, &error))
}

/// Figures from captures and qlogs. An attempt whose records cannot be read has failed.
fn analysed(trial: &Trial, report: Option<&Report>, validity: &mut Validity) -> Vec<(String, f64)> {
    let Some(report) = report.filter(|_| validity.verdict != Verdict::Failed) else {
        return Vec::new();
    };
    match analyse(trial, report) {
        Ok(figures) => figures,
        Err(failure) => {
            *validity = Validity::failed("analysing the records", &failure.to_string(), "");
            Vec::new()
        }
    }
}

// The validity gate: whether an attempt may be believed. Those that may not are repeated with the same seed.

/// What a user can do about a late emulator beside using another machine.
const NO_PRIORITY: &str =
    "the emulator had no real-time priority: `hoplite-lab doctor` tells how to allow it";

/// What is thought of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) verdict: Verdict,
    /// Empty if it is ok.
    pub(crate) why: String,
    /// The end of the guilty process's log, if it failed.
    pub(crate) log: String,
}

impl Validity {
    /// It has no figures.
    pub(crate) fn failed(doing: &str, why: &str, log: &str) -> Self {
        Self {
            verdict: Verdict::Failed,
            why: format!("{doing}: {why}"),
            log: log.to_owned(),
        }
    }
}

/// Judges a report of these workloads.
pub(crate) fn judge(report: &Report, workloads: &[workload::Plan], gate: &Gate) -> Validity {
    if let Outcome::Failed { doing, why, log } = &report.outcome {
        return Validity::failed(doing, why, log);
    }
    let wholes = whole_transfers(&report.transfers);
    let mut needed = workloads.iter().filter(|plan| !plan.may_fail);
    if let Some((doing, why)) = needed.find_map(|plan| fruitless(plan, report, &wholes)) {
        return Validity::failed(&doing, &why, "");
    }
    let why = reasons(&report.emulator, gate).join("; ");
    let verdict = if why.is_empty() {
        Verdict::Ok
    } else {
        Verdict::Invalid
    };
    Validity {
        verdict,
        why,
        log: String::new(),
    }
}

/// What was being done and why it came to nothing, if no transfer of a workload succeeded. One whose transfers failed in part has figures, and
/// the share of those that failed is one of them.
fn fruitless(
    plan: &workload::Plan,
    report: &Report,
    wholes: &[WholeTransfer],
) -> Option<(String, String)> {
    let own = || wholes.iter().filter(|whole| whole.workload == plan.name);
    let (count, fruitless) = (own().count(), own().all(|whole| whole.failed));
    let error = most_frequent(plan, report).filter(|_| fruitless)?;
    let how_many = match count {
        1 => "its only transfer".to_owned(),
        count => format!("all of its {count} transfers"),
    };
    let why = format!(
        "{how_many} failed, most often {}: {}",
        error.kind, error.why
    );
    Some((format!("running the workload {}", plan.name), why))
}

/// The first error of the kind that was there most often.
fn most_frequent<'a>(plan: &workload::Plan, report: &'a Report) -> Option<&'a TransferError> {
    let mut kinds: BTreeMap<&str, (usize, &TransferError)> = BTreeMap::new();
    let own = report
        .transfers
        .iter()
        .filter(|transfer| transfer.workload == plan.name);
    for error in own.filter_map(|transfer| transfer.error.as_ref()) {
        kinds.entry(&error.kind).or_insert((0, error)).0 += 1;
    }
    let most = kinds.into_values().max_by_key(|(count, _)| *count);
    most.map(|(_, error)| error)
}

fn reasons(health: &EmulatorHealth, gate: &Gate) -> Vec<String> {
    let over = |what: &str, is: f64, limit: f64| {
        (is > limit || is.is_nan()).then(|| {
            format!(
                "packets left late: {what} {:.2} ms, at most {:.2} ms allowed",
                is / 1000.0,
                limit / 1000.0
            )
        })
    };
    let lost = (health.own_drops > 0).then(|| {
        format!(
            "the emulator itself lost {} packets, or could not record them",
            health.own_drops
        )
    });
    let stolen = (health.steal > gate.steal).then(|| {
        format!(
            "the machine's host took {:.1} % of its time, at most {:.1} % allowed",
            health.steal * 100.0,
            gate.steal * 100.0
        )
    });
    let late = [
        over("99th percentile", health.late_us_p99, gate.late_us_p99),
        over("maximum", health.late_us_max, gate.late_us_max),
    ];
    let is_late = late.iter().any(Option::is_some);
    let priority = (is_late && !health.real_time).then(|| NO_PRIORITY.to_owned());
    let reasons = late
        .into_iter()
        .chain([priority, lost, stolen, starved(health, gate)]);
    reasons.flatten().collect()
}

/// Whether others than the emulator had to wait; a kernel that does not tell is not judged by it.
fn starved(health: &EmulatorHealth, gate: &Gate) -> Option<String> {
    let share = health.cpu_pressure.filter(|is| *is > gate.cpu_pressure)?;
    Some(format!(
        "programs waited for a processor in {:.1} % of the time, at most {:.1} % allowed",
        share * 100.0,
        gate.cpu_pressure * 100.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample::examples::{bulk, transfer};

    fn report(emulator: EmulatorHealth) -> Report {
        Report {
            outcome: Outcome::Done,
            transfers: Vec::new(),
            processes: Vec::new(),
            links: Vec::new(),
            emulator,
            began: 0.0,
            ready_after: 0.0,
            took: 0.0,
        }
    }

    #[test]
    fn an_attempt_on_the_threshold_is_believed() {
        let health = EmulatorHealth {
            late_us_p99: 500.0,
            late_us_max: 5000.0,
            steal: 0.05,
            cpu_pressure: Some(Gate::default().cpu_pressure),
            ..EmulatorHealth::default()
        };
        let validity = judge(&report(health), &[], &Gate::default());
        assert_eq!(validity.verdict, Verdict::Ok);
        assert_eq!(validity.why, "");
    }

    #[test]
    fn every_reason_not_to_believe_an_attempt_is_named() {
        let health = EmulatorHealth {
            late_us_p99: 810.0,
            late_us_max: 5001.0,
            own_drops: 3,
            steal: 0.2,
            cpu_pressure: Some(0.98),
            ..EmulatorHealth::default()
        };
        let validity = judge(&report(health), &[], &Gate::default());
        assert_eq!(validity.verdict, Verdict::Invalid);
        for part in [
            "99th percentile 0.81 ms",
            "maximum 5.00 ms",
            "lost 3 packets",
            "took 20.0 %",
            "waited for a processor in 98.0 %",
        ] {
            assert!(validity.why.contains(part), "{}", validity.why);
        }
    }

    #[test]
    fn a_late_emulator_without_real_time_priority_is_told_with_what_helps() {
        let why = |real_time| {
            let health = EmulatorHealth {
                late_us_max: 9000.0,
                real_time,
                ..EmulatorHealth::default()
            };
            judge(&report(health), &[], &Gate::default()).why
        };
        assert!(why(false).contains("no real-time priority: `hoplite-lab doctor`"));
        assert!(!why(true).contains("priority"));
    }

    #[test]
    fn a_lateness_that_is_no_number_is_not_believed() {
        let health = EmulatorHealth {
            late_us_p99: f64::NAN,
            ..EmulatorHealth::default()
        };
        let validity = judge(&report(health), &[], &Gate::default());
        assert_eq!(validity.verdict, Verdict::Invalid);
    }

    /// A report in which the transfers of `download` ended so; `None` went well.
    fn ended(errors: &[Option<&str>]) -> Report {
        let mut report = report(EmulatorHealth::default());
        let numbered = errors.iter().zip(1..);
        report.transfers = numbered
            .map(|(error, number)| {
                let mut transfer = transfer("download", number, 0);
                transfer.error = error.map(|kind| TransferError {
                    kind: kind.into(),
                    why: format!("{kind} in words"),
                });
                transfer
            })
            .collect();
        report
    }

    #[test]
    fn a_workload_without_a_transfer_that_succeeded_fails_the_attempt_and_says_how() {
        let report = ended(&[Some("CLOSED"), Some("STALL"), Some("STALL")]);
        let plans = [bulk("other", 1), bulk("download", 1)];
        let validity = judge(&report, &plans, &Gate::default());
        assert_eq!(validity.verdict, Verdict::Failed);
        assert_eq!(
            validity.why,
            "running the workload download: all of its 3 transfers failed, most often STALL: STALL in words"
        );
        let only = judge(&ended(&[Some("TLS")]), &plans, &Gate::default());
        assert!(
            only.why.contains("its only transfer failed"),
            "{}",
            only.why
        );
    }

    #[test]
    fn a_workload_of_which_some_transfers_failed_is_data() {
        let report = ended(&[Some("STALL"), None, Some("STALL")]);
        let validity = judge(&report, &[bulk("download", 1)], &Gate::default());
        assert_eq!(validity.verdict, Verdict::Ok);
    }

    #[test]
    fn a_workload_that_may_fail_may_fail_altogether() {
        let mut plan = bulk("download", 1);
        plan.may_fail = true;
        let validity = judge(&ended(&[Some("STALL")]), &[plan], &Gate::default());
        assert_eq!(validity.verdict, Verdict::Ok);
    }
}
