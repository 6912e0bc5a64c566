//! Conducts a campaign: repetition by repetition, attempt by attempt, each judged and stored before the next begins.
//!
//! The order of what it writes is what makes it safe to kill: kept files, samples, the transaction, then the attempt's directory goes. Whatever
//! was written without its transaction is swept at the next start. An error leaves everything as a kill would: nothing is tidied on the way out.

use std::{
    fs::File,
    path::{Path, PathBuf},
    time::Instant,
};

use super::{
    Directory, Execute, Stop,
    directory::{io_failure, keep, remove},
    gate::{Validity, judge},
    plan::{CampaignPlan, Planned, everything},
    progress::{Estimate, Event, Progress},
};
use crate::{
    errors::Failure,
    experiments::{
        scenario::Scenario,
        trial::{Report, Trial},
    },
    results::{
        analysis::{Analysed, analyse},
        metrics, parquet,
        store::{Attempt, Finished, Run, Store, Verdict},
    },
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
        rest: impl Iterator<Item = &'k crate::experiments::trial::Key>,
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
        .map_err(|error| io_failure("writing", path, &error))
}

/// Figures from captures and qlogs. An attempt whose records cannot be read has failed; one whose records are of something else than what is
/// analysed is invalid. Those of an attempt that does not count may be as wrong as the rest of it: they decide nothing.
fn analysed(trial: &Trial, report: Option<&Report>, validity: &mut Validity) -> Vec<(String, f64)> {
    let Some(report) = report.filter(|_| validity.verdict != Verdict::Failed) else {
        return Vec::new();
    };
    let found = analyse(trial, report);
    let counts = validity.verdict == Verdict::Ok;
    match found {
        Ok(Analysed::Figures(figures)) => return figures,
        Ok(Analysed::Unlike(why)) if counts => *validity = Validity::invalid(why),
        Err(failure) if counts => {
            *validity = Validity::failed("analysing the records", &failure.to_string(), "");
        }
        Ok(Analysed::Unlike(_)) | Err(_) => {}
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        experiments::trial::Analysis,
        results::sample::examples::{bulk, report, trial},
        topology::{Direction, Link, Node, Topology},
    };

    /// An attempt whose end-to-end connection was QUIC, and of whose link all packets are `protocol`'s.
    fn recorded(directory: &Path, protocol: u8) -> Trial {
        let link = Link {
            name: "access".into(),
            ..Link::between("client", "server", &Direction::default())
        };
        let head = concat!(
            "\u{1e}{\"trace\":{\"common_fields\":{\"reference_time\":{\"wall_clock_time\":\"2026-11-21T10:00:00.000000Z\"}},",
            "\"vantage_point\":{\"name\":\"end\",\"type\":\"client\"}}}\n"
        );
        let qlog = directory.join("qlog/work:get");
        fs::create_dir_all(&qlog).unwrap();
        fs::write(qlog.join("end.sqlog"), head).unwrap();
        let mut packet = [0; 28];
        (packet[0], packet[9]) = (0x45, protocol);
        packet[12..16].copy_from_slice(&[10, 77, 0, 1]);
        let file = [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 262_144, 101];
        let record = [1_795_255_200, 0, 28, 1500];
        let numbers = file.iter().chain(&record);
        let mut pcap: Vec<u8> = numbers.flat_map(|number| number.to_le_bytes()).collect();
        pcap.extend(packet);
        fs::create_dir_all(directory.join("pcap")).unwrap();
        fs::write(directory.join("pcap/access.pcap"), pcap).unwrap();
        Trial {
            topology: Topology {
                nodes: ["client", "server"].map(Node::host).into(),
                links: vec![link],
            },
            analyses: vec![Analysis::Cascade {
                link: "access".into(),
            }],
            directory: directory.to_owned(),
            ..trial(vec![bulk("get", 1)])
        }
    }

    fn of(protocol: u8, before: &Validity) -> Validity {
        let directory = tempfile::tempdir().unwrap();
        let trial = recorded(directory.path(), protocol);
        let mut validity = before.clone();
        let figures = analysed(&trial, Some(&report(Vec::new())), &mut validity);
        assert!(figures.is_empty(), "{figures:?}");
        validity
    }

    #[test]
    fn an_attempt_in_which_tcp_won_the_race_to_a_relay_is_invalid_and_one_without_records_failed() {
        let fine = Validity {
            verdict: Verdict::Ok,
            why: String::new(),
            log: String::new(),
        };
        let over_tcp = of(6, &fine);
        assert_eq!(over_tcp.verdict, Verdict::Invalid);
        assert!(
            over_tcp
                .why
                .starts_with("TCP won the race to a relay: hop 1"),
            "{}",
            over_tcp.why
        );
        let unknown = of(17, &fine);
        assert_eq!(unknown.verdict, Verdict::Failed);
        assert!(unknown.why.contains("are in no qlog"), "{}", unknown.why);
    }

    #[test]
    fn records_of_an_attempt_that_does_not_count_decide_nothing() {
        let late = Validity::invalid("packets left late".into());
        assert_eq!([of(6, &late), of(17, &late)], [late.clone(), late]);
    }
}
