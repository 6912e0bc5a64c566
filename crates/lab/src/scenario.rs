//! A scenario: one file that draws a network, names subjects and workloads, and says over which parameters all of it is repeated.
//! `cli` and `campaign` load one; it turns each `Key` into a `Trial` with every number resolved. The formats are in `docs/scenarios.md`.
//! Files are read while it is loaded and never again: what a campaign runs is what was checked.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    errors::Failure,
    trial::{Keep, Key, Trial},
};

/// A scenario that was checked: every key of it resolves.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name, in every key.
    pub name: String,
    /// One line for `list` and the report.
    pub summary: String,
    /// What a paper found; shown beside ours.
    pub paper: Vec<Finding>,
    /// How often each case is measured with each subject. May be replaced before `keys` is called.
    pub repetitions: u32,
    /// Where everything random begins. May be replaced before `keys` is called.
    pub seed: u64,
    /// After so long an attempt has failed.
    pub timeout: Duration,
    /// When a repetition may be believed.
    pub gate: Gate,
    /// What is kept of every attempt.
    pub keep: Keep,
    /// The label of the subject that ratios refer to.
    pub baseline: Option<String>,
    /// The file, as it was read.
    pub source: String,
    /// Where it was read; `None` if it is built in.
    pub path: Option<PathBuf>,
}

/// A figure or a statement of a paper.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Finding {
    /// In words.
    pub text: String,
    /// The metric that it is about, if it is a figure.
    pub metric: Option<String>,
    /// The workload that it is about; `None` is any.
    pub workload: Option<String>,
    /// The cases that it is about: those with these parameters.
    pub case: BTreeMap<String, String>,
    /// The subject's label.
    pub subject: Option<String>,
    /// The figure is the ratio to this subject's.
    pub relative_to: Option<String>,
    /// The figure.
    pub value: Option<f64>,
    /// The lower end of its range.
    pub low: Option<f64>,
    /// The upper end of its range.
    pub high: Option<f64>,
    /// What it is counted in, if that is not the metric's own unit.
    pub unit: Option<String>,
}

/// The validity gate: an attempt beyond it is repeated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gate {
    /// The 99th percentile of the emulator's lateness may be so many microseconds.
    pub late_us_p99: f64,
    /// Its maximum may be so many.
    pub late_us_max: f64,
    /// So many attempts at a repetition, then it is given up.
    pub attempts: u32,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            late_us_p99: 500.0,
            late_us_max: 5000.0,
            attempts: 5,
        }
    }
}

/// Loads a scenario from a file, or the built-in one of that name.
///
/// # Errors
/// Everything that is wrong with it and with its subjects, each with its place.
pub fn load(path: &Path) -> Result<Scenario, Failure> {
    Err(Failure::new(
        format!("reading {}", path.display()),
        "not built yet",
        "wait",
    ))
}

impl Scenario {
    /// All repetitions in the order in which they are to be run: for each repetition every case with every subject that applies, shuffled.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        Vec::new()
    }

    /// What a key means: `directory` is the attempt's own, `shared` the campaign's.
    ///
    /// # Errors
    /// If the key is not one of `keys`, or a program of the subject is not there.
    pub fn trial(&self, key: &Key, directory: &Path, shared: &Path) -> Result<Trial, Failure> {
        let doing = format!("resolving {key:?} into {}", directory.display());
        Err(Failure::new(doing, shared.display(), "wait"))
    }
}
