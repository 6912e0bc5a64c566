//! The scenario file as a whole: read, checked by `check`, then kept for `trial`.
//! Used by `scenario::load`. What is read here is all that a campaign will ever use.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use super::{
    Scenario,
    check::Check,
    complain::{Complaints, Wrong},
    document::Document,
    expression::Scope,
    findings,
    library::Library,
    link,
    matrix::{self, Case},
    names, network,
    reader::{Reader, name},
    settings,
    subject_file::SubjectFile,
    template::Owner,
    uses::{self, Use},
    workloads,
};
use crate::{errors::Failure, topology::Topology, trial::Analysis, workload};

const KEYS: [&str; 18] = [
    "name",
    "summary",
    "repetitions",
    "seed",
    "timeout",
    "baseline",
    "finding",
    "goal",
    "matrix",
    "host",
    "router",
    "link",
    "sysctl",
    "subject",
    "workload",
    "analysis",
    "keep",
    "gate",
];
/// Keys of a scenario.
const MOST_RUNS: usize = 1_000_000;

/// What `trial` needs of a file.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    document: Document,
    /// Every case.
    pub(crate) cases: Vec<Case>,
    /// Labels of the subjects of each case.
    pub(crate) labels: Vec<Vec<String>>,
    /// By what `use` or `file` says.
    pub(crate) subjects: BTreeMap<String, SubjectFile>,
    traces: BTreeMap<String, Vec<u64>>,
}

/// One case with everything computed.
pub(crate) struct Resolved {
    pub(crate) topology: Topology,
    pub(crate) workloads: Vec<workload::Plan>,
    pub(crate) sysctls: BTreeMap<String, String>,
    pub(crate) analyses: Vec<Analysis>,
    pub(crate) timeout: Duration,
    pub(crate) uses: Vec<Use>,
}

/// Reads and checks a scenario.
pub(crate) fn scenario(
    file: &str,
    text: &str,
    path: Option<&Path>,
    library: &Library,
) -> Result<Scenario, Failure> {
    let document = Document::parse(file, text)?;
    let complaints = Complaints::about(&document);
    let scope = Scope::default();
    let root = Reader {
        table: document.root(),
        scope: &scope,
        owner: Owner::Scenario,
        complaints: &complaints,
    };
    root.only(&KEYS);
    let parameters =
        matrix::parameters(root.table("matrix").map(|reader| reader.table), &complaints);
    names::names_of_scenario(root, &parameters);
    let (subjects, others) = uses::subjects(root, library);
    let mut check = Check::of(library, &subjects, others);
    let cases = matrix::cases(&parameters);
    check.all(root, &cases);
    let mut scenario = head(root, &check);
    scenario.findings = findings::findings(root, &parameters, &check.labels);
    scenario.path = path.map(Path::to_owned);
    check_runs(root, scenario.repetitions, &check.labels);
    text.clone_into(&mut scenario.source);
    let (labels, traces, others) = (check.labels, check.traces.into_inner(), check.others);
    let mut wrong = complaints.into_list();
    wrong.extend(others);
    if !wrong.is_empty() {
        return Err(Failure::Wrong(wrong));
    }
    scenario.checked = Arc::new(Checked {
        document,
        cases,
        labels,
        subjects,
        traces,
    });
    Ok(scenario)
}

fn head(root: Reader<'_>, check: &Check<'_>) -> Scenario {
    settings::check_captured(root, &check.links);
    Scenario {
        name: root
            .need("name", "the scenario's name in the results", name)
            .unwrap_or_default(),
        summary: root.text("summary").unwrap_or_default(),
        findings: Vec::new(),
        repetitions: u32::try_from(root.count("repetitions", 10, 1, 1_000_000)).unwrap_or(u32::MAX),
        seed: root.count("seed", 1, 0, 1 << 53),
        timeout: check.timeout,
        gate: settings::gate(root),
        keep: settings::keep(root),
        baseline: baseline(root, &check.labels),
        source: String::new(),
        path: None,
        checked: Arc::default(),
    }
}

/// Keys are held in memory.
fn check_runs(root: Reader<'_>, repetitions: u32, labels: &[Vec<String>]) {
    let round: usize = labels.iter().map(Vec::len).sum();
    if round.saturating_mul(repetitions as usize) > MOST_RUNS {
        let what = format!("{repetitions} repetitions of {round} cases and subjects are too many");
        root.wrong(
            "repetitions",
            Wrong::new(what, format!("at most {MOST_RUNS} runs in all")),
        );
    }
    if round == 0 && !root.complaints.any() {
        root.wrong(
            "subject",
            Wrong::new(
                "no subject applies in any case",
                "a condition that holds somewhere",
            ),
        );
    }
}

fn baseline(root: Reader<'_>, labels: &[Vec<String>]) -> Option<String> {
    let known: BTreeSet<&str> = labels.iter().flatten().map(String::as_str).collect();
    root.read("baseline", |value| findings::label(value, &known))
}

/// Everything of a case but its subjects' plans.
pub(crate) fn case_of(
    root: Reader<'_>,
    subjects: &BTreeMap<String, SubjectFile>,
    traces: &link::Traces<'_>,
) -> Resolved {
    let topology = network::network(root, traces);
    let analyses = settings::analyses(root, &topology);
    Resolved {
        workloads: workloads::workloads(root, &topology),
        sysctls: settings::sysctls(root),
        timeout: settings::timeout(root),
        uses: uses::uses(root, subjects),
        analyses,
        topology,
    }
}

impl Checked {
    /// A case with everything computed; it was checked when the file was read.
    pub(crate) fn resolve(&self, case: &Case) -> Result<Resolved, Failure> {
        let complaints = Complaints::about(&self.document);
        let root = Reader {
            table: self.document.root(),
            scope: &case.scope,
            owner: Owner::Scenario,
            complaints: &complaints,
        };
        let read = |path: &str| {
            self.traces
                .get(path)
                .cloned()
                .ok_or_else(|| Wrong::new("the trace was not read", "load the scenario anew"))
        };
        let resolved = case_of(root, &self.subjects, &read);
        complaints.finish()?;
        Ok(resolved)
    }
}
