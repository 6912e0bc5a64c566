//! The rows of the store as values: what `campaign` puts in and `report` gets back. Times are in seconds, sizes in octets.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    results::Metric,
    scenario::{Finding, Gate},
    trial::{EmulatorHealth, Key, LinkCount, ProcessUse},
};

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
    /// Octets of it.
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
    /// The emulator was late or lost packets: its figures are kept, and count nowhere.
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
