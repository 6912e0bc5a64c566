//! The scenario file as a whole: read, every case resolved once to find what is wrong, then kept for `trial`.
//! Used by `scenario::load`. What is read here is all that a campaign will ever use.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use super::{
    Scenario, checks,
    complain::{Complaints, Wrong, meant, quoted},
    document::Document,
    expression::{Scope, Value},
    findings,
    library::Library,
    link,
    matrix::{self, Case},
    network,
    reader::{Reader, name, text},
    settings,
    subject_file::{Places, Site, SubjectFile},
    template::Owner,
    workloads,
};
use crate::{
    errors::{Complaint, Failure},
    subject,
    topology::Topology,
    trial::Analysis,
    workload,
};

const KEYS: [&str; 17] = [
    "name",
    "summary",
    "repetitions",
    "seed",
    "timeout",
    "baseline",
    "finding",
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
const SUBJECT_KEYS: [&str; 5] = ["use", "file", "label", "when", "with"];
/// Nodes, links, workloads and steps of all cases together: loading resolves each.
const MOST_THINGS: usize = 200_000;

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

/// A subject in a case.
pub(crate) struct Use {
    pub(crate) label: String,
    /// What `use` or `file` says.
    pub(crate) file: String,
    pub(crate) with: BTreeMap<String, Value>,
    at: usize,
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
    checks::names_of_scenario(root, &parameters);
    let (subjects, others) = subjects(root, library);
    let mut check = Check {
        others,
        ..Check::of(library, &subjects)
    };
    let cases = matrix::cases(&parameters);
    check.all(root, &cases);
    let mut scenario = head(root, &check);
    scenario.paper = findings::findings(root, &parameters, &check.labels);
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
        paper: Vec::new(),
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

/// Resolves every case with every subject, to find what is wrong.
struct Check<'a> {
    library: &'a Library,
    subjects: &'a BTreeMap<String, SubjectFile>,
    /// Labels of the subjects of each case.
    labels: Vec<Vec<String>>,
    /// Links of all cases.
    links: BTreeSet<String>,
    traces: RefCell<BTreeMap<String, Vec<u64>>>,
    /// The longest of all cases.
    timeout: Duration,
    things: usize,
    /// Complaints about subjects' files.
    others: Vec<Complaint>,
}

impl<'a> Check<'a> {
    fn of(library: &'a Library, subjects: &'a BTreeMap<String, SubjectFile>) -> Self {
        Self {
            library,
            subjects,
            labels: Vec::new(),
            links: BTreeSet::new(),
            traces: RefCell::default(),
            timeout: Duration::ZERO,
            things: 0,
            others: Vec::new(),
        }
    }

    fn all(&mut self, root: Reader<'_>, cases: &[Case]) {
        for case in cases {
            self.case(root.within(&case.scope));
            if self.things > MOST_THINGS {
                let allowed = format!(
                    "at most {MOST_THINGS} hosts, links, workloads, files and steps in all"
                );
                root.wrong(
                    "matrix",
                    Wrong::new("all cases together are too large", allowed),
                );
                return;
            }
        }
    }

    fn case(&mut self, root: Reader<'_>) {
        let read = |path: &str| trace(path, &self.traces, self.library);
        let resolved = case_of(root, self.subjects, &read);
        let plans = if root.complaints.any() {
            Vec::new()
        } else {
            self.plans(root, &resolved)
        };
        let steps: usize = plans
            .iter()
            .map(|plan| plan.steps.len() + plan.files.len())
            .sum();
        let (nodes, links) = (resolved.topology.nodes.len(), resolved.topology.links.len());
        self.things += 1 + nodes + links + resolved.workloads.len() + steps;
        self.timeout = self.timeout.max(resolved.timeout);
        self.labels
            .push(resolved.uses.into_iter().map(|used| used.label).collect());
        self.links
            .extend(resolved.topology.links.into_iter().map(|link| link.name));
    }

    fn plans(&mut self, root: Reader<'_>, resolved: &Resolved) -> Vec<subject::Plan> {
        let (addresses, places) = (resolved.topology.addresses(), Places::unknown());
        let site = Site {
            topology: &resolved.topology,
            addresses: &addresses,
            places: &places,
        };
        let mut plans = Vec::new();
        for used in &resolved.uses {
            let Some(file) = self.subjects.get(&used.file) else {
                continue;
            };
            match file.plan(&used.label, &used.with, &site) {
                Ok(plan) => plans.push(plan),
                Err(failure) => {
                    let what = format!(
                        "the subject does not fit here (label {})",
                        quoted(&used.label)
                    );
                    root.complaints.add(
                        used.at,
                        Wrong::new(what, "see the complaint about its own file"),
                    );
                    self.tell(failure);
                }
            }
        }
        plans
    }

    fn tell(&mut self, failure: Failure) {
        let complaints = match failure {
            Failure::Wrong(list) => list,
            Failure::Failed(one) => vec![one],
        };
        for complaint in complaints {
            if !self.others.contains(&complaint) && self.others.len() < 20 {
                self.others.push(complaint);
            }
        }
    }
}

/// A trace is read once.
fn trace(
    path: &str,
    traces: &RefCell<BTreeMap<String, Vec<u64>>>,
    library: &Library,
) -> Result<Vec<u64>, Wrong> {
    if let Some(known) = traces.borrow().get(path) {
        return Ok(known.clone());
    }
    let text = library.trace(path).map_err(|why| {
        Wrong::new(
            format!("the trace {} cannot be read: {why}", quoted(path)),
            "a file, its path seen from the scenario's directory",
        )
    })?;
    let trace = link::trace(path, &text)?;
    traces.borrow_mut().insert(path.to_owned(), trace.clone());
    Ok(trace)
}

/// Everything of a case but its subjects' plans.
fn case_of(
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
        uses: uses(root, subjects),
        analyses,
        topology,
    }
}

/// Loads every subject's file that is named, once.
fn subjects(
    root: Reader<'_>,
    library: &Library,
) -> (BTreeMap<String, SubjectFile>, Vec<Complaint>) {
    let (mut files, mut others) = (BTreeMap::new(), Vec::new());
    if root.tables("subject").is_empty() {
        root.missing(
            "subject",
            "at least one, such as [[subject]] with use = \"native\"",
        );
    }
    for entry in root.tables("subject") {
        entry.only(&SUBJECT_KEYS);
        let Some(key) = file_of(entry) else { continue };
        if files.contains_key(&key) {
            continue;
        }
        match load(entry, &key, library) {
            Some(Ok(file)) => drop(files.insert(key, file)),
            Some(Err(Failure::Wrong(list))) => others.extend(list),
            Some(Err(Failure::Failed(one))) => others.push(one),
            None => {}
        }
    }
    (files, others)
}

/// What names the subject's file, the same in every case: `use` or `file`.
fn file_of(entry: Reader<'_>) -> Option<String> {
    match (entry.table.node("use"), entry.table.node("file")) {
        (Some(_), None) => entry.read("use", name),
        (None, Some(_)) => entry.read("file", text),
        (None, None) => {
            entry.missing(
                "use",
                "the name of a subject, such as use = \"hoplite\", or file = \"mine.toml\"",
            );
            None
        }
        (Some(_), Some(_)) => {
            entry.wrong("file", Wrong::new("there is use too", "use or file"));
            None
        }
    }
}

fn load(entry: Reader<'_>, key: &str, library: &Library) -> Option<Result<SubjectFile, Failure>> {
    let by_path = entry.table.node("file").is_some();
    let source = if by_path {
        Some(library.file(key))
    } else {
        library.subject(key)
    };
    match source {
        Some(Ok(source)) => Some(SubjectFile::parse(&source.name, &source.text)),
        Some(Err(why)) => {
            let at = if by_path { "file" } else { "use" };
            entry.wrong(
                at,
                Wrong::new(
                    format!("{} cannot be read: {why}", quoted(key)),
                    "a subject's file",
                ),
            );
            None
        }
        None => {
            let names = library.subjects();
            let allowed = meant(key, names.iter().map(String::as_str));
            let what = format!("there is no subject {}", quoted(key));
            entry.wrong(
                "use",
                Wrong::new(
                    what,
                    format!("{allowed} (or a file subjects/{key}.toml beside the scenario)"),
                ),
            );
            None
        }
    }
}

/// The subjects of a case.
fn uses(root: Reader<'_>, subjects: &BTreeMap<String, SubjectFile>) -> Vec<Use> {
    let (mut uses, mut labels) = (Vec::new(), BTreeSet::new());
    for entry in root.tables("subject") {
        if entry.instances().is_empty() {
            continue;
        }
        let Some(file) = file_of(entry) else { continue };
        let Some(subject) = subjects.get(&file) else {
            continue;
        };
        let label = match entry.table.node("label") {
            Some(_) => entry.read("label", name),
            None => Some(subject.name.clone()),
        };
        let Some(label) = label else { continue };
        if !labels.insert(label.clone()) {
            let key = if entry.table.node("label").is_some() {
                "label"
            } else {
                "use"
            };
            let what = format!(
                "there are two subjects with the label {} in a case",
                quoted(&label)
            );
            entry.wrong(key, Wrong::new(what, "another label = \"…\""));
        }
        uses.push(Use {
            label,
            file,
            with: with(entry, subject),
            at: entry.table.at,
        });
    }
    uses
}

fn with(entry: Reader<'_>, subject: &SubjectFile) -> BTreeMap<String, Value> {
    let mut values = BTreeMap::new();
    let Some(with) = entry.table.node("with").and_then(|node| entry.inner(node)) else {
        return values;
    };
    for pair in &with.table.entries {
        let Some(found) = with.evaluated(&pair.node) else {
            continue;
        };
        match subject.fit(&pair.key, &found.value) {
            Ok(value) => drop(values.insert(pair.key.clone(), value)),
            Err(wrong) => with.complaints.add(pair.node.at, wrong),
        }
    }
    values
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
