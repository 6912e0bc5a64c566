//! `results.sqlite`: a campaign's runs and their figures. The schema is `store/schema.sql`, described in `docs/results.md`.
//!
//! A rollback journal, not a write-ahead log: campaigns live on clusters' network file systems, where shared memory does not work, and one file is
//! all there is to copy. `synchronous = EXTRA` makes a commit outlive a kill and a power cut. A repetition is one transaction.

mod read;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql, Transaction, params_from_iter};
use serde::{Deserialize, Serialize};

use super::Metric;
use crate::{
    errors::Failure,
    experiments::{
        scenario::{Finding, Gate},
        trial::{EmulatorHealth, Key, LinkCount, ProcessUse},
    },
};

/// The database's name inside a campaign's directory.
pub const FILE: &str = "results.sqlite";

/// Kept in `user_version`; older ones are brought up to it, others are refused.
const VERSION: i64 = 5;

/// What makes a store of each version, from 1, one of the next.
const UPGRADES: [&str; 4] = [
    "ALTER TABLE attempt ADD COLUMN cpu_pressure REAL",
    "ALTER TABLE finding ADD COLUMN relative_to_case TEXT NOT NULL DEFAULT '{}';
     ALTER TABLE finding ADD COLUMN statistic TEXT;
     ALTER TABLE finding ADD COLUMN goal INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE link RENAME COLUMN octets TO bytes;
     UPDATE metric SET name = replace(name, 'octet', 'byte');
     UPDATE finding SET metric = replace(metric, 'octet', 'byte')",
    // A 99th percentile of at most so much is one packet in a hundred that may be later.
    "ALTER TABLE attempt ADD COLUMN late_share REAL;
     ALTER TABLE attempt ADD COLUMN stood_s REAL NOT NULL DEFAULT 0;
     ALTER TABLE attempt ADD COLUMN leapt_s REAL NOT NULL DEFAULT 0;
     ALTER TABLE campaign ADD COLUMN families TEXT NOT NULL DEFAULT '{}';
     INSERT INTO gate SELECT 'late_share', 0.01 FROM gate WHERE name = 'late_us_p99';
     UPDATE gate SET name = 'late_us' WHERE name = 'late_us_p99'",
];

/// How long a reader and the campaign wait for each other.
const PATIENCE: Duration = Duration::from_secs(30);

/// An open store. What cannot be read or written is a [`Failure`]; what was to be written is then not there in part either.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

impl Store {
    /// Opens a directory's store for reading: what `report` does, also while a campaign is running.
    ///
    /// # Errors
    /// When there is none, or it is of another version.
    pub fn read(directory: &Path) -> Result<Self, Failure> {
        let path = directory.join(FILE);
        if !path.is_file() {
            return Err(Failure::new(
                format!("reading {}", path.display()),
                "there are no results",
                "name a directory that `hoplite-lab run` has written",
            ));
        }
        // Not read-only: a kill may have left a journal that the first reader must roll back.
        let mut store = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        store.upgrade()?;
        store.expect_version()?;
        Ok(store)
    }

    /// Opens a directory's store for writing and makes it if it is not there.
    ///
    /// # Errors
    /// When it cannot be written, or is of another version.
    pub fn write(directory: &Path) -> Result<Self, Failure> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut store = Self::connect(directory.join(FILE), flags)?;
        if store.version()? == 0 {
            store.make()?;
        }
        store.upgrade()?;
        store.expect_version()?;
        Ok(store)
    }

    fn connect(path: PathBuf, flags: OpenFlags) -> Result<Self, Failure> {
        let connection = Connection::open_with_flags(&path, flags)
            .and_then(|connection| {
                connection.busy_timeout(PATIENCE)?;
                connection.pragma_update(None, "synchronous", "EXTRA")?;
                connection.pragma_update(None, "foreign_keys", true)?;
                Ok(connection)
            })
            .map_err(|error| failure(&path, "opening", &error))?;
        Ok(Self { connection, path })
    }

    fn make(&mut self) -> Result<(), Failure> {
        self.transaction("making", |transaction| {
            transaction.execute_batch(include_str!("store/schema.sql"))?;
            transaction.pragma_update(None, "user_version", VERSION)
        })
    }

    /// Brings a store of an older version up to date: what it did not record is not known.
    fn upgrade(&mut self) -> Result<(), Failure> {
        if !(1..VERSION).contains(&self.version()?) {
            return Ok(());
        }
        self.transaction("bringing up to date", |transaction| {
            // Another process may have been first.
            let found: i64 =
                transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
            let done = usize::try_from(found - 1).unwrap_or(UPGRADES.len());
            for step in UPGRADES.iter().skip(done) {
                transaction.execute_batch(step)?;
            }
            transaction.pragma_update(None, "user_version", VERSION)
        })
    }

    fn version(&self) -> Result<i64, Failure> {
        self.connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(|error| failure(&self.path, "reading", &error))
    }

    fn expect_version(&self) -> Result<(), Failure> {
        let found = self.version()?;
        if found == VERSION {
            return Ok(());
        }
        Err(Failure::new(
            format!("reading {}", self.path.display()),
            format!("its schema has version {found}, this hoplite-lab knows {VERSION}"),
            "use the hoplite-lab that wrote it",
        ))
    }

    /// All of `work`, or nothing of it.
    fn transaction<T>(
        &mut self,
        doing: &str,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Failure> {
        let path = self.path.clone();
        let all = || {
            let transaction = self.connection.transaction()?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        };
        all().map_err(|error| failure(&path, doing, &error))
    }
}

/// What SQLite said, with what to do about it.
fn failure(path: &Path, doing: &str, error: &rusqlite::Error) -> Failure {
    let remedy = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => {
            "free some space and run the same command again: what was stored before is safe"
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "wait until the other program that has it open is done"
        }
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            "make the directory writable"
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            "restore it from a copy, or choose another --out"
        }
        _ => "please report this",
    };
    Failure::new(format!("{doing} {}", path.display()), error, remedy)
}

// The rows of the store as values. Times are in seconds, sizes in bytes.

/// What was asked for: one for each directory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Campaign {
    /// The scenario's name.
    pub scenario: String,
    /// What it is about.
    pub summary: String,
    /// Its file, as it was read.
    pub source: String,
    /// The seed of everything random.
    pub seed: u64,
    /// Repetitions of each case and subject.
    pub repetitions: u32,
    /// The subject that ratios refer to.
    pub baseline: Option<String>,
    /// For each subject a SHA-256 over all its resolved cases: it changes with the subject's own file too.
    pub fingerprints: BTreeMap<String, String>,
    /// Repetitions of all cases and subjects, of all shards together.
    pub planned: u64,
    /// Labels of the subjects, in the scenario's order.
    pub subjects: Vec<String>,
    /// Labels that follow the case, each with what the scenario wrote: `hoplite-2` with `hoplite-{hops}`.
    pub families: BTreeMap<String, String>,
    /// The points of the matrix, in the scenario's order.
    pub cases: Vec<BTreeMap<String, String>>,
    /// When the first run of it began, since 1970.
    pub began: f64,
    /// The programs that took part.
    pub binaries: Vec<Binary>,
    /// When a repetition may be believed.
    pub gate: Gate,
    /// What the paper found.
    pub findings: Vec<Finding>,
}

/// A program that took part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Binary {
    /// `hoplite`, `hoplite-lab`, `tor`, …
    pub name: String,
    /// Of its file, in hexadecimal.
    pub sha256: String,
    /// As it says itself; empty if it was not asked.
    pub version: String,
}

/// A machine that repetitions ran on. It has no name: results are for others to read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Hash of the rest.
    pub id: String,
    /// Release and version.
    pub kernel: String,
    /// `x86_64`, …
    pub architecture: String,
    /// The processor's model.
    pub cpu: String,
    /// How many may be used.
    pub cores: u64,
    /// Bytes of it.
    pub memory: u64,
    /// Of the processor's frequency, if it has one.
    pub governor: Option<String>,
    /// Whether real-time priority was to be had.
    pub real_time: bool,
    /// Settings of the machine that touch results.
    pub sysctls: BTreeMap<String, String>,
}

/// How an attempt or a repetition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Its figures count.
    Ok,
    /// The lab was late, lost packets or stood still: its figures are kept, and count nowhere.
    Invalid,
    /// It has no figures.
    Failed,
}

impl Verdict {
    /// The word for it, in the store and for readers.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Invalid => "invalid",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Verdict {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "ok" => Ok(Self::Ok),
            "invalid" => Ok(Self::Invalid),
            "failed" => Ok(Self::Failed),
            other => Err(format!("{other} is no verdict")),
        }
    }
}

/// A repetition that is over: accepted, or given up.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// `Key::id`: names `samples/ID.parquet` and `runs/ID/`.
    pub id: String,
    /// Which one.
    pub key: Key,
    /// Its place in the campaign's interleaved order, from 1.
    pub place: u64,
    /// Of its random streams.
    pub seed: u64,
    /// How it ended.
    pub verdict: Verdict,
    /// The number of the attempt whose figures are here.
    pub attempt: u32,
}

/// One attempt at a repetition. Those before the one that counts are kept: the reader is told how many there were, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// The repetition's id.
    pub run: String,
    /// From 1.
    pub number: u32,
    /// How it ended.
    pub verdict: Verdict,
    /// Why it is not ok; empty if it is.
    pub why: String,
    /// The end of the guilty process's log, if it failed.
    pub log: String,
    /// It was made before a `run --retry`: it no longer counts towards the limit of attempts.
    pub set_aside: bool,
    /// The id of the machine it ran on.
    pub machine: String,
    /// When it began, since 1970.
    pub began: f64,
    /// From there until the subject was ready.
    pub ready_after: f64,
    /// How long it took.
    pub took: f64,
    /// How well the emulator kept its promises.
    pub health: EmulatorHealth,
}

/// Everything that a repetition leaves in the store; its samples are in Parquet.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The repetition.
    pub run: Run,
    /// Its last attempt.
    pub attempt: Attempt,
    /// Figures; none if it failed.
    pub metrics: Vec<Metric>,
    /// What the processes used.
    pub processes: Vec<ProcessUse>,
    /// What happened on the links.
    pub links: Vec<LinkCount>,
}

// Writing: each function is one transaction.

impl Store {
    /// Writes down what is asked for, instead of what was there: a campaign may gain repetitions. The caller has compared them.
    pub fn put_campaign(&mut self, campaign: &Campaign) -> Result<(), Failure> {
        self.transaction("writing the campaign into", |transaction| {
            put_campaign(transaction, campaign)?;
            put_details(transaction, campaign)
        })
    }

    /// Writes down a machine, once.
    pub fn put_machine(&mut self, machine: &Machine) -> Result<(), Failure> {
        self.transaction("writing the machine into", |transaction| {
            put_machine(transaction, machine)
        })
    }

    /// Writes down an attempt that decides nothing: another one follows.
    pub fn put_attempt(&mut self, attempt: &Attempt) -> Result<(), Failure> {
        self.transaction("writing an attempt into", |transaction| {
            put_attempt(transaction, attempt)
        })
    }

    /// Writes down a repetition with all that it leaves, its last attempt too. Its samples are in place already.
    pub fn finish(&mut self, finished: &Finished) -> Result<(), Failure> {
        self.transaction("writing a repetition into", |transaction| {
            put_attempt(transaction, &finished.attempt)?;
            put_finished(transaction, finished)
        })
    }

    /// Writes down a repetition from another store, with all its attempts. Its samples are in place already.
    pub fn adopt(&mut self, finished: &Finished, before: &[Attempt]) -> Result<(), Failure> {
        self.transaction("writing a repetition into", |transaction| {
            for attempt in before {
                put_attempt(transaction, attempt)?;
            }
            put_attempt(transaction, &finished.attempt)?;
            put_finished(transaction, finished)
        })
    }

    /// Takes back all repetitions that failed or stayed invalid, so that they are run again. Their attempts stay, set aside.
    pub fn take_back(&mut self) -> Result<usize, Failure> {
        self.transaction("taking repetitions back from", |transaction| {
            transaction.execute(
                "UPDATE attempt SET set_aside = 1 WHERE run IN (SELECT id FROM run WHERE verdict <> 'ok')",
                [],
            )?;
            transaction.execute("DELETE FROM run WHERE verdict <> 'ok'", [])
        })
    }

    /// Takes back one repetition, whatever its verdict.
    pub fn forget(&mut self, run: &str) -> Result<(), Failure> {
        self.transaction("taking a repetition back from", |transaction| {
            transaction.execute("UPDATE attempt SET set_aside = 1 WHERE run = ?1", [run])?;
            transaction.execute("DELETE FROM run WHERE id = ?1", [run])?;
            Ok(())
        })
    }
}

fn put_campaign(transaction: &Transaction<'_>, campaign: &Campaign) -> rusqlite::Result<()> {
    insert(
        transaction,
        "INSERT OR REPLACE INTO campaign",
        &[
            ("only", &1),
            ("scenario", &campaign.scenario),
            ("summary", &campaign.summary),
            ("source", &campaign.source),
            ("seed", &campaign.seed.to_string()),
            ("repetitions", &campaign.repetitions),
            ("baseline", &campaign.baseline),
            ("fingerprints", &json(&campaign.fingerprints)),
            ("planned", &whole(campaign.planned)),
            ("subjects", &json(&campaign.subjects)),
            ("families", &json(&campaign.families)),
            ("cases", &json(&campaign.cases)),
            ("began", &campaign.began),
        ],
    )
}

fn put_details(transaction: &Transaction<'_>, campaign: &Campaign) -> rusqlite::Result<()> {
    transaction.execute_batch("DELETE FROM binary; DELETE FROM gate; DELETE FROM finding;")?;
    for binary in &campaign.binaries {
        insert(
            transaction,
            "INSERT INTO binary",
            &[
                ("name", &binary.name),
                ("sha256", &binary.sha256),
                ("version", &binary.version),
            ],
        )?;
    }
    put_gate(transaction, &campaign.gate)?;
    for finding in &campaign.findings {
        put_finding(transaction, finding)?;
    }
    Ok(())
}

/// Each threshold under its name in the scenario, so that one more needs no other schema.
fn put_gate(transaction: &Transaction<'_>, gate: &Gate) -> rusqlite::Result<()> {
    let thresholds = serde_json::to_value(gate).unwrap_or_default();
    for (name, value) in thresholds.as_object().into_iter().flatten() {
        insert(
            transaction,
            "INSERT INTO gate",
            &[("name", &name), ("value", &value.as_f64())],
        )?;
    }
    Ok(())
}

fn put_finding(transaction: &Transaction<'_>, finding: &Finding) -> rusqlite::Result<()> {
    insert(
        transaction,
        "INSERT INTO finding",
        &[
            ("text", &finding.text),
            ("metric", &finding.metric),
            ("workload", &finding.workload),
            ("parameters", &json(&finding.case)),
            ("subject", &finding.subject),
            ("relative_to", &finding.relative_to),
            ("value", &finding.value),
            ("low", &finding.low),
            ("high", &finding.high),
            ("unit", &finding.unit),
            ("relative_to_case", &json(&finding.relative_to_case)),
            ("statistic", &finding.statistic),
            ("goal", &finding.goal),
        ],
    )
}

fn put_machine(transaction: &Transaction<'_>, machine: &Machine) -> rusqlite::Result<()> {
    insert(
        transaction,
        "INSERT OR IGNORE INTO machine",
        &[
            ("id", &machine.id),
            ("kernel", &machine.kernel),
            ("architecture", &machine.architecture),
            ("cpu", &machine.cpu),
            ("cores", &whole(machine.cores)),
            ("memory", &whole(machine.memory)),
            ("governor", &machine.governor),
            ("real_time", &machine.real_time),
            ("sysctls", &json(&machine.sysctls)),
        ],
    )
}

fn put_attempt(transaction: &Transaction<'_>, attempt: &Attempt) -> rusqlite::Result<()> {
    let health = &attempt.health;
    insert(
        transaction,
        "INSERT INTO attempt",
        &[
            ("run", &attempt.run),
            ("number", &attempt.number),
            ("verdict", &attempt.verdict.word()),
            ("why", &attempt.why),
            ("log", &attempt.log),
            ("set_aside", &attempt.set_aside),
            ("machine", &attempt.machine),
            ("began", &real(attempt.began)),
            ("ready_after", &real(attempt.ready_after)),
            ("took", &real(attempt.took)),
            ("late_us_p50", &real(health.late_us_p50)),
            ("late_us_p99", &real(health.late_us_p99)),
            ("late_us_max", &real(health.late_us_max)),
            (
                "late_share",
                &health.late_share.filter(|share| share.is_finite()),
            ),
            ("released", &whole(health.released)),
            ("own_drops", &whole(health.own_drops)),
            ("stalls", &whole(health.stalls)),
            ("emulator_cpu_s", &real(health.cpu_s)),
            ("real_time", &health.real_time),
            ("load_before", &real(health.load[0])),
            ("load_after", &real(health.load[1])),
            ("steal", &real(health.steal)),
            (
                "cpu_pressure",
                &health.cpu_pressure.filter(|share| share.is_finite()),
            ),
            ("stood_s", &real(health.stood_s)),
            ("leapt_s", &real(health.leapt_s)),
        ],
    )
}

fn put_finished(transaction: &Transaction<'_>, finished: &Finished) -> rusqlite::Result<()> {
    let id = &finished.run.id;
    put_run(transaction, &finished.run)?;
    put_metrics(transaction, id, &finished.metrics)?;
    for process in &finished.processes {
        put_process(transaction, id, process)?;
    }
    for link in &finished.links {
        put_link(transaction, id, link)?;
    }
    Ok(())
}

fn put_run(transaction: &Transaction<'_>, run: &Run) -> rusqlite::Result<()> {
    insert(
        transaction,
        "INSERT INTO run",
        &[
            ("id", &run.id),
            ("parameters", &json(&run.key.case)),
            ("subject", &run.key.subject),
            ("repetition", &run.key.repetition),
            ("place", &whole(run.place)),
            ("seed", &run.seed.to_string()),
            ("verdict", &run.verdict.word()),
            ("attempt", &run.attempt),
        ],
    )
}

fn put_metrics(
    transaction: &Transaction<'_>,
    run: &str,
    metrics: &[Metric],
) -> rusqlite::Result<()> {
    for metric in metrics.iter().filter(|metric| metric.value.is_finite()) {
        insert(
            transaction,
            "INSERT INTO metric",
            &[
                ("run", &run),
                ("workload", &metric.workload),
                ("transfer", &metric.transfer),
                ("name", &metric.name),
                ("value", &metric.value),
            ],
        )?;
    }
    Ok(())
}

fn put_process(
    transaction: &Transaction<'_>,
    run: &str,
    process: &ProcessUse,
) -> rusqlite::Result<()> {
    insert(
        transaction,
        "INSERT INTO process",
        &[
            ("run", &run),
            ("name", &process.name),
            ("host", &process.host),
            ("cpu_s", &real(process.cpu_s)),
            ("life_cpu_s", &real(process.life_cpu_s)),
            ("peak_memory", &whole(process.peak_memory)),
        ],
    )
}

fn put_link(transaction: &Transaction<'_>, run: &str, link: &LinkCount) -> rusqlite::Result<()> {
    insert(
        transaction,
        "INSERT INTO link",
        &[
            ("run", &run),
            ("name", &link.name),
            ("packets", &whole(link.packets)),
            ("bytes", &whole(link.bytes)),
            ("drops", &json(&link.drops)),
            ("duplicated", &whole(link.duplicated)),
            ("corrupted", &whole(link.corrupted)),
            ("marked", &whole(link.marked)),
        ],
    )
}

/// A row of a table, whose columns are named beside their values.
fn insert(
    transaction: &Transaction<'_>,
    into: &str,
    columns: &[(&str, &dyn ToSql)],
) -> rusqlite::Result<()> {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let marks = vec!["?"; columns.len()].join(", ");
    let sql = format!("{into} ({}) VALUES ({marks})", names.join(", "));
    let values = columns.iter().map(|(_, value)| *value);
    transaction
        .prepare_cached(&sql)?
        .execute(params_from_iter(values))?;
    Ok(())
}

/// SQLite has 63 bits; no count of ours comes near.
fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// SQLite takes NaN for NULL, which these columns refuse.
fn real(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

/// Maps and lists of texts and numbers have no way to fail.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests;
