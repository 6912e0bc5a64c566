//! A scenario: one file that draws a network, names subjects and workloads, and says over which parameters all of it is repeated. Each `Key` of
//! it comes to a `Trial` with every number resolved. The formats are in `docs/scenarios.md`.
//! Files are read while it is loaded and never again: what a campaign runs is what was checked.

mod document;
mod expression;
mod library;
mod matrix;
mod network;
mod reader;
mod settings;
pub mod subject_file;
mod template;
mod units;
mod workloads;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

pub use self::library::list;
use self::{
    document::{Complaints, Document, Item, Wrong, meant, quoted},
    expression::Scope,
    library::{Library, SCENARIOS},
    matrix::{Case, Turn},
    reader::{Reader, name},
    subject_file::{Needs, Places, Site, SubjectFile, Use, Want},
    template::Owner,
};
use crate::{
    errors::{Complaint, Failure},
    experiments::{
        subject,
        trial::{Analysis, Keep, Key, Trial},
        workload,
    },
    topology::Topology,
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
    /// A packet that leaves the emulator later than this many microseconds is late.
    pub late_us: f64,
    /// The share of the packets that may be late, 0..1.
    pub late_share: f64,
    /// No packet may leave later than this many microseconds. Wide: one pause in a long run is what `late_share` judges.
    pub late_us_max: f64,
    /// The share of the machine's time that its host may take, 0..1.
    pub steal: f64,
    /// The share of the time in which programs may wait for a processor, 0..1.
    pub cpu_pressure: f64,
    /// For so many seconds the lab may stand still, and by so many the machine's clock may leap.
    pub frozen: f64,
    /// This many attempts at a repetition may be invalid, then it is given up.
    pub attempts: u32,
    /// This many more attempts at a repetition after the first one that failed.
    pub retries: u32,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            late_us: 500.0,
            late_share: 0.01,
            late_us_max: 100_000.0,
            steal: 0.05,
            cpu_pressure: 0.5,
            frozen: 1.0,
            attempts: 5,
            retries: 2,
        }
    }
}

impl Gate {
    /// What a packet may be late.
    #[must_use]
    pub fn tolerated(&self) -> Duration {
        Duration::try_from_secs_f64(self.late_us / 1e6).unwrap_or(Duration::MAX)
    }

    /// Whether it lets any lateness through: all packets may be late, or none is called so that another gate would still take for a network.
    /// What passes an open gate shows that something works, and is no measurement.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.late_share >= 1.0 || self.late_us >= Self::default().late_us_max
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
        return read(&source.name, &source.text, None, &Library::BuiltIn);
    }
    let source = library::read(path, document::MAX_FILE_BYTES as u64)
        .map_err(|why| unreadable(path, &why))?;
    let directory = path.parent().unwrap_or_else(|| Path::new("")).to_owned();
    read(
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
    read(name, text, None, &Library::BuiltIn)
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
    let complaint = Complaint::new(
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
        let pairs: Vec<(&Case, &String)> = both
            .flat_map(|(case, labels)| labels.iter().map(move |label| (case, label)))
            .collect();
        let mut keys = Vec::new();
        for repetition in 1..=self.repetitions {
            let mut round = pairs.clone();
            matrix::shuffle(
                &mut round,
                matrix::seed(self.seed, &["order", &repetition.to_string()]),
            );
            keys.extend(
                round
                    .into_iter()
                    .map(|(case, label)| self.key(case, label, repetition)),
            );
        }
        keys
    }

    fn key(&self, case: &Case, subject: &str, repetition: u32) -> Key {
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
        let resolved = self.checked.resolve(case, self.turn_of(key.repetition))?;
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
            seed: matrix::seed(
                self.seed,
                &[
                    "trial",
                    &matrix::named(&key.case),
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
            tolerated: self.gate.tolerated(),
            directory: directory.to_owned(),
        })
    }

    /// After how many repetitions its rotation begins anew; 1 if there is none.
    #[must_use]
    pub fn turns(&self) -> u32 {
        u32::try_from(self.checked.turns.len()).unwrap_or(u32::MAX)
    }

    /// Which turn a repetition is, from 0.
    fn turn_of(&self, repetition: u32) -> usize {
        let turn = repetition.saturating_sub(1) % self.turns().max(1);
        turn.try_into().unwrap_or(usize::MAX)
    }

    /// Every case in each of its turns, with everything computed that is the same for all of its subjects.
    pub(crate) fn resolved(
        &self,
    ) -> impl Iterator<Item = Result<(&BTreeMap<String, String>, Vec<Resolved>), Failure>> {
        let turns = 0..self.checked.turns.len();
        self.checked.cases.iter().map(move |case| {
            let resolved = turns.clone().map(|turn| self.checked.resolve(case, turn));
            Ok((&case.values, resolved.collect::<Result<Vec<_>, _>>()?))
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

    /// Labels that follow the case, each with what is written: `hoplite-2` with `hoplite-{hops}`.
    #[must_use]
    pub fn families(&self) -> BTreeMap<String, String> {
        self.checked.families.clone()
    }

    /// How many keys there are.
    #[must_use]
    pub fn runs(&self) -> u64 {
        let round: usize = self.checked.labels.iter().map(Vec::len).sum();
        u64::from(self.repetitions) * round as u64
    }

    /// The files of the subjects that it uses, each with the programs that it needs as it is used here.
    #[must_use]
    pub fn wants(&self) -> Vec<(&SubjectFile, &[Want])> {
        let Checked {
            subjects, wants, ..
        } = self.checked.as_ref();
        let of = |file: &String| wants.get(file).map_or(&[][..], Vec::as_slice);
        let both = subjects.iter().map(|(file, subject)| (subject, of(file)));
        both.collect()
    }

    /// Labels of the subjects that are left out where a program is missing, with the programs that they need.
    #[must_use]
    pub fn optional(&self) -> &BTreeMap<String, Vec<Needs>> {
        &self.checked.optional
    }

    /// What its workloads need, each once.
    #[must_use]
    pub fn needs_of_workloads(&self) -> &[Needs] {
        &self.checked.needs
    }

    /// What its subjects and workloads need, each once.
    #[must_use]
    pub fn needs(&self) -> Vec<&Needs> {
        let mut needs: Vec<&Needs> = Vec::new();
        let of_subjects = self.checked.subjects.values().flat_map(|file| &file.needs);
        for needed in of_subjects.chain(&self.checked.needs) {
            if !needs.contains(&needed) {
                needs.push(needed);
            }
        }
        needs
    }
}

// Reading the file as a whole.

/// Keys of a scenario.
const KEYS: &str = "name summary repetitions seed timeout baseline finding goal matrix rotation host router link \
                    sysctl subject workload analysis keep gate";
const MOST_RUNS: usize = 1_000_000;

/// What `trial` needs of a file.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    document: Document,
    /// Every case.
    pub(crate) cases: Vec<Case>,
    /// What the first repetition, the second and so on have beside the case.
    turns: Vec<Turn>,
    /// Labels of the subjects of each case.
    pub(crate) labels: Vec<Vec<String>>,
    /// Labels that follow the case, with what is written.
    families: BTreeMap<String, String>,
    /// By what `use` or `file` says.
    pub(crate) subjects: BTreeMap<String, SubjectFile>,
    /// By the same: what they need with the parameters that they have here.
    wants: BTreeMap<String, Vec<Want>>,
    /// By label, of subjects that are optional wherever they are used.
    optional: BTreeMap<String, Vec<Needs>>,
    /// Of the workloads of all cases.
    needs: Vec<Needs>,
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
pub(crate) fn read(
    file: &str,
    text: &str,
    path: Option<&Path>,
    library: &Library,
) -> Result<Scenario, Failure> {
    let document = document::parse(file, text)?;
    let complaints = Complaints::about(&document);
    let scope = Scope::default();
    let root = Reader {
        table: document.root(),
        scope: &scope,
        owner: Owner::Scenario,
        complaints: &complaints,
    };
    root.only(KEYS);
    let table = |key: &str| root.table(key).map(|reader| reader.table);
    let parameters = matrix::parameters(table("matrix"), &complaints);
    let rotation = matrix::rotation(table("rotation"), &parameters, &complaints);
    let all: Vec<_> = parameters.iter().chain(&rotation).collect();
    template::names_of_scenario(root, &all);
    let (subjects, others) = subject_file::subjects(root, library);
    let mut check = Checker::of(library, &subjects, others);
    let (cases, turns) = (matrix::cases(&parameters), matrix::turns(&rotation));
    check.all(root, &cases, &turns);
    let mut scenario = head(root, &check);
    scenario.findings = settings::findings(root, &parameters, &check.labels);
    scenario.path = path.map(Path::to_owned);
    check_runs(root, scenario.repetitions, &check.labels);
    text.clone_into(&mut scenario.source);
    let optional = check.optional();
    let (labels, families, needs) = (check.labels, check.families, check.needs);
    let wants = check.wants;
    let (traces, others) = (check.traces.into_inner(), check.others);
    let mut wrong = complaints.into_list();
    wrong.extend(others);
    if !wrong.is_empty() {
        return Err(Failure::Wrong(wrong));
    }
    scenario.checked = Arc::new(Checked {
        document,
        cases,
        turns,
        labels,
        families,
        subjects,
        wants,
        optional,
        needs,
        traces,
    });
    Ok(scenario)
}

fn head(root: Reader<'_>, check: &Checker<'_>) -> Scenario {
    settings::check_captured(root, &check.links);
    Scenario {
        name: root
            .need("name", "the scenario's name in the results", name)
            .unwrap_or_default(),
        summary: root.text("summary").unwrap_or_default(),
        findings: Vec::new(),
        repetitions: root.count("repetitions", 10, 1, 1_000_000),
        seed: root.count("seed", 1, 0, 1 << 53),
        gate: settings::gate(root),
        keep: settings::keep(root),
        baseline: baseline(root, check),
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
            what,
            format!("at most {MOST_RUNS} runs in all"),
        );
    }
    if round == 0 && !root.complaints.any() {
        root.wrong(
            "subject",
            "no subject applies in any case",
            "a condition that holds somewhere",
        );
    }
}

/// A label, or what is written of one that follows the case: then each case has its own.
fn baseline(root: Reader<'_>, check: &Checker<'_>) -> Option<String> {
    if let Some(Item::Text(text)) = root.table.node("baseline").map(|node| &node.item)
        && check.families.values().any(|written| written == text)
    {
        return Some(text.clone());
    }
    let known: BTreeSet<&str> = check.labels.iter().flatten().map(String::as_str).collect();
    root.read("baseline", |value| settings::label(value, &known))
}

/// Everything of a case but its subjects' plans.
pub(crate) fn case_of(
    root: Reader<'_>,
    subjects: &BTreeMap<String, SubjectFile>,
    traces: &network::Traces<'_>,
) -> Resolved {
    let topology = network::network(root, traces);
    let analyses = settings::analyses(root, &topology);
    Resolved {
        workloads: workloads::workloads(root, &topology),
        sysctls: settings::sysctls(root),
        timeout: settings::timeout(root),
        uses: subject_file::uses(root, subjects),
        analyses,
        topology,
    }
}

impl Checked {
    /// A case in a turn with everything computed; it was checked when the file was read.
    pub(crate) fn resolve(&self, case: &Case, turn: usize) -> Result<Resolved, Failure> {
        let complaints = Complaints::about(&self.document);
        let scope = case.in_turn(self.turns.get(turn).unwrap_or(&Turn::new()));
        let root = Reader {
            table: self.document.root(),
            scope: &scope,
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

/// Nodes, links, workloads and steps of all cases together: loading resolves each.
const MOST_THINGS: usize = 200_000;

/// Resolves every case in every turn with every subject once, to find what is wrong before anything is run.
pub(crate) struct Checker<'a> {
    library: &'a Library,
    subjects: &'a BTreeMap<String, SubjectFile>,
    /// Labels of the subjects of each case.
    pub(crate) labels: Vec<Vec<String>>,
    /// Labels that follow the case, with what is written.
    families: BTreeMap<String, String>,
    /// Links of all cases.
    pub(crate) links: BTreeSet<String>,
    pub(crate) traces: RefCell<BTreeMap<String, Vec<u64>>>,
    /// What workloads of all cases need.
    pub(crate) needs: Vec<Needs>,
    /// What subjects need, by what `use` or `file` says.
    wants: BTreeMap<String, Vec<Want>>,
    /// What subjects need that may be left out, and which may not, by label.
    may_lack: BTreeMap<String, Vec<Needs>>,
    required: BTreeSet<String>,
    things: usize,
    /// Complaints about subjects' files.
    pub(crate) others: Vec<Complaint>,
}

impl<'a> Checker<'a> {
    /// Nothing yet.
    pub(crate) fn of(
        library: &'a Library,
        subjects: &'a BTreeMap<String, SubjectFile>,
        others: Vec<Complaint>,
    ) -> Self {
        Self {
            library,
            subjects,
            labels: Vec::new(),
            families: BTreeMap::new(),
            links: BTreeSet::new(),
            traces: RefCell::default(),
            needs: Vec::new(),
            wants: BTreeMap::new(),
            may_lack: BTreeMap::new(),
            required: BTreeSet::new(),
            things: 0,
            others,
        }
    }

    /// Every case in every turn.
    pub(crate) fn all(&mut self, root: Reader<'_>, cases: &[Case], turns: &[Turn]) {
        for case in cases {
            let scopes = turns.iter().map(|turn| case.in_turn(turn));
            let labels: Vec<_> = scopes.map(|scope| self.case(root.within(&scope))).collect();
            if labels.windows(2).any(|pair| pair[0] != pair[1]) {
                let what = "the rotation changes which subjects there are, or what they are called";
                let allowed = "\"label\" and \"when\" that follow the case alone";
                root.wrong("subject", what, allowed);
            }
            self.labels.extend(labels.into_iter().next());
            if self.things > MOST_THINGS {
                let allowed = format!(
                    "at most {MOST_THINGS} hosts, links, workloads, files and steps in all"
                );
                root.wrong("matrix", "all cases together are too large", allowed);
                return;
            }
        }
    }

    /// The labels of its subjects.
    fn case(&mut self, root: Reader<'_>) -> Vec<String> {
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
        for needed in workloads::needs(&resolved.workloads) {
            if !self.needs.contains(&needed) {
                self.needs.push(needed);
            }
        }
        self.things += 1 + nodes + links + resolved.workloads.len() + steps;
        for used in &resolved.uses {
            if let Some(written) = &used.written {
                let family = self.families.entry(used.label.clone());
                family.or_insert_with(|| written.clone());
            }
            self.wants(used);
        }
        self.links
            .extend(resolved.topology.links.into_iter().map(|link| link.name));
        resolved.uses.into_iter().map(|used| used.label).collect()
    }

    /// Notes what a subject needs as it is used.
    fn wants(&mut self, used: &Use) {
        let Some(file) = self.subjects.get(&used.file) else {
            return;
        };
        let needs = file.needs_with(&used.with);
        let wants = self.wants.entry(used.file.clone()).or_default();
        for needed in &needs {
            match wants.iter_mut().find(|want| want.needs == **needed) {
                Some(want) => want.optional &= used.optional,
                None => wants.push(Want {
                    needs: (*needed).clone(),
                    optional: used.optional,
                }),
            }
        }
        if !used.optional {
            self.required.insert(used.label.clone());
            return;
        }
        let lacks = self.may_lack.entry(used.label.clone()).or_default();
        for needed in needs {
            if !lacks.contains(needed) {
                lacks.push(needed.clone());
            }
        }
    }

    /// What subjects need that are optional wherever they are used, by label.
    fn optional(&self) -> BTreeMap<String, Vec<Needs>> {
        let mut optional = self.may_lack.clone();
        optional.retain(|label, _| !self.required.contains(label));
        optional
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
    let trace = network::trace(path, &text)?;
    traces.borrow_mut().insert(path.to_owned(), trace.clone());
    Ok(trace)
}

#[cfg(test)]
mod tests;
