//! A scenario: one file that draws a network, names subjects and workloads, and says over which parameters all of it is repeated.
//! `cli` and `campaign` load one; it turns each `Key` into a `Trial` with every number resolved. The formats are in `docs/scenarios.md`.
//! Files are read while it is loaded and never again: what a campaign runs is what was checked.

mod check;
mod complain;
mod document;
mod expression;
mod file;
mod findings;
mod library;
mod link;
pub mod list;
mod matrix;
mod names;
mod network;
mod order;
mod reader;
mod settings;
pub mod subject_file;
mod template;
mod units;
mod uses;
mod workloads;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use self::{
    complain::meant,
    file::Checked,
    library::{Library, SCENARIOS},
    subject_file::{Needs, Places, Site, SubjectFile},
};
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
    /// What a paper found, and what is asked of a subject; shown beside ours.
    pub findings: Vec<Finding>,
    /// How often each case is measured with each subject. May be replaced before `keys` is called.
    pub repetitions: u32,
    /// Where everything random begins. May be replaced before `keys` is called.
    pub seed: u64,
    /// After so long an attempt has failed: the longest of all cases.
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
    checked: Arc<Checked>,
}

/// What a finding's figure may be of the metric's values.
pub const STATISTICS: [&str; 5] = ["median", "mean", "p95", "p99", "tail"];

/// A figure or a statement of a paper, or a goal.
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
    /// The figure is the ratio to that of the case with these parameters and otherwise the same ones.
    pub relative_to_case: BTreeMap<String, String>,
    /// One of [`STATISTICS`]; `None` is the metric's own.
    pub statistic: Option<String>,
    /// The figure.
    pub value: Option<f64>,
    /// The lower end of its range.
    pub low: Option<f64>,
    /// The upper end of its range.
    pub high: Option<f64>,
    /// What it is counted in, if that is not the metric's own unit.
    pub unit: Option<String>,
    /// Whether it is asked for, not found by a paper.
    pub goal: bool,
}

/// The validity gate: an attempt beyond it is repeated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gate {
    /// The 99th percentile of the emulator's lateness may be so many microseconds.
    pub late_us_p99: f64,
    /// Its maximum may be so many.
    pub late_us_max: f64,
    /// The share of the machine's time that its host may take, 0..1.
    pub steal: f64,
    /// The share of the time in which programs may wait for a processor, 0..1.
    pub cpu_pressure: f64,
    /// So many attempts at a repetition may be invalid, then it is given up.
    pub attempts: u32,
    /// So many more attempts at a repetition after the first one that failed.
    pub retries: u32,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            late_us_p99: 500.0,
            late_us_max: 5000.0,
            steal: 0.05,
            cpu_pressure: 0.5,
            attempts: 5,
            retries: 2,
        }
    }
}

/// Loads a scenario from a file, or the built-in one of that name.
///
/// # Errors
/// Everything that is wrong with it and with its subjects, each with its place.
pub fn load(path: &Path) -> Result<Scenario, Failure> {
    let name = path.to_str().unwrap_or_default();
    if !path.is_file()
        && let Some(source) = library::built_in(&SCENARIOS, name)
    {
        return file::scenario(&source.name, &source.text, None, &Library::BuiltIn);
    }
    let source =
        library::read(path, document::LONGEST as u64).map_err(|why| unreadable(path, &why))?;
    let directory = path.parent().unwrap_or_else(|| Path::new("")).to_owned();
    file::scenario(
        &source.name,
        &source.text,
        Some(path),
        &Library::Beside(directory),
    )
}

/// Parses a scenario that has no files beside it; `name` stands in complaints.
///
/// # Errors
/// Everything that is wrong with it, each with its place.
pub fn parse(name: &str, text: &str) -> Result<Scenario, Failure> {
    file::scenario(name, text, None, &Library::BuiltIn)
}

/// The subjects that are built in.
#[must_use]
pub fn built_in_subjects() -> Vec<SubjectFile> {
    let parse = |(name, text): &(&str, &str)| {
        SubjectFile::parse(&format!("{name}.toml (built in)"), text).ok()
    };
    library::SUBJECTS.iter().filter_map(parse).collect()
}

fn unreadable(path: &Path, why: &str) -> Failure {
    let names = SCENARIOS.iter().map(|(name, _)| *name);
    let guess = meant(path.to_str().unwrap_or_default(), names);
    let remedy = format!("the path of a scenario's file, or the name of a built-in one: {guess}");
    let complaint = crate::errors::Complaint::new(
        format!("reading the scenario {}", path.display()),
        why,
        remedy,
    );
    Failure::Wrong(vec![complaint])
}

impl Scenario {
    /// All repetitions in the order in which they are to be run: for each repetition every case with every subject that applies, shuffled.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        let checked = &self.checked;
        let both = checked.cases.iter().zip(&checked.labels);
        let pairs: Vec<(&matrix::Case, &String)> = both
            .flat_map(|(case, labels)| labels.iter().map(move |label| (case, label)))
            .collect();
        let mut keys = Vec::new();
        for repetition in 1..=self.repetitions {
            let mut round = pairs.clone();
            order::shuffle(
                &mut round,
                order::seed(self.seed, &["order", &repetition.to_string()]),
            );
            keys.extend(
                round
                    .into_iter()
                    .map(|(case, label)| self.key(case, label, repetition)),
            );
        }
        keys
    }

    fn key(&self, case: &matrix::Case, subject: &str, repetition: u32) -> Key {
        Key {
            scenario: self.name.clone(),
            case: case.values.clone(),
            subject: subject.to_owned(),
            repetition,
        }
    }

    /// What a key means: `directory` is the attempt's own, `shared` the campaign's. Subjects of the same case and repetition have the same
    /// seed, so that they meet the same losses.
    ///
    /// # Errors
    /// If the key is not one of `keys`, or a program of the subject is not there.
    pub fn trial(&self, key: &Key, directory: &Path, shared: &Path) -> Result<Trial, Failure> {
        let unknown = || {
            Failure::new(
                format!("resolving {key:?}"),
                format!("the scenario {} has no such run", self.name),
                "use the scenario that the results were made with",
            )
        };
        let case = self
            .checked
            .cases
            .iter()
            .find(|case| case.values == key.case)
            .ok_or_else(unknown)?;
        let resolved = self.checked.resolve(case)?;
        let used = resolved
            .uses
            .iter()
            .find(|used| used.label == key.subject)
            .ok_or_else(unknown)?;
        let file = self.checked.subjects.get(&used.file).ok_or_else(unknown)?;
        let places = Places::find(file.needs_hoplite())?;
        let addresses = resolved.topology.addresses();
        let site = Site {
            topology: &resolved.topology,
            addresses: &addresses,
            places: &places,
        };
        Ok(Trial {
            key: key.clone(),
            seed: order::seed(
                self.seed,
                &[
                    "trial",
                    &order::named(&key.case),
                    &key.repetition.to_string(),
                ],
            ),
            subject: file.plan(&used.label, &used.with, &site)?,
            topology: resolved.topology,
            workloads: resolved.workloads,
            sysctls: resolved.sysctls,
            record: settings::recorded(&self.keep, &resolved.analyses),
            analyses: resolved.analyses,
            shared: shared.to_owned(),
            timeout: resolved.timeout,
            directory: directory.to_owned(),
        })
    }

    /// Every case: parameter to value.
    #[must_use]
    pub fn cases(&self) -> Vec<BTreeMap<String, String>> {
        self.checked
            .cases
            .iter()
            .map(|case| case.values.clone())
            .collect()
    }

    /// Every label of a subject, in the order of the file.
    #[must_use]
    pub fn labels(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let all = self.checked.labels.iter().flatten();
        all.filter(|label| seen.insert(label.as_str()))
            .cloned()
            .collect()
    }

    /// How many keys there are.
    #[must_use]
    pub fn runs(&self) -> u64 {
        let round: usize = self.checked.labels.iter().map(Vec::len).sum();
        u64::from(self.repetitions) * round as u64
    }

    /// The files of the subjects that it uses, for `doctor` and for the record.
    #[must_use]
    pub fn subjects(&self) -> Vec<&SubjectFile> {
        self.checked.subjects.values().collect()
    }

    /// What its subjects need, each once.
    #[must_use]
    pub fn needs(&self) -> Vec<&Needs> {
        let mut needs: Vec<&Needs> = Vec::new();
        for needed in self.checked.subjects.values().flat_map(|file| &file.needs) {
            if !needs.contains(&needed) {
                needs.push(needed);
            }
        }
        needs
    }
}

#[cfg(test)]
mod tests;
