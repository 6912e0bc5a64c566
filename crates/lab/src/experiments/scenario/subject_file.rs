//! A subject's file: what it needs, its parameters, and how it is started, to be resolved into a `subject::Plan`; and the `[[subject]]`s of a
//! scenario that use one. The format is in `docs/scenarios.md`.
//! Everything that does not depend on parameters is checked when it is parsed, so that a competitor's author sees mistakes at once.

mod resolve;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Serialize;

pub(crate) use self::resolve::Site;
use super::{
    document::{self, Complaints, Document, Item, Node, Wrong, meant, quoted},
    expression::{Scope, Value},
    library::Library,
    matrix::parameter_name,
    reader::{Reader, name, text},
    template::{self, Owner},
    units,
};
use crate::{
    errors::{Complaint, Failure},
    experiments::subject::Plan,
    netns::process::find_program,
};

const KEYS: &str = "name summary hides_client needs parameters file step way";

/// A subject's file that was parsed and checked.
#[derive(Clone, Debug)]
pub struct SubjectFile {
    /// Its name.
    pub name: String,
    /// One line for `list`.
    pub summary: String,
    /// Whether servers must never see the client's own address, with the parameters' defaults.
    pub hides_client: bool,
    /// What must be installed, whatever the parameters are: some of it perhaps for others than the defaults alone.
    pub needs: Vec<Needs>,
    document: Document,
    parameters: BTreeMap<String, SubjectParameter>,
}

/// A program that a subject needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Its name on the PATH, a path, or `{hoplite}` or `{lab}`.
    pub command: String,
    /// The command that installs it; empty if there is none, and its author says how it is had in the file.
    pub install: String,
    /// A command that prints its version; empty if there is none.
    pub version: Vec<String>,
}

impl Needs {
    /// Where the program is, if it is there.
    pub(crate) fn find(&self, places: Option<&Places>) -> Option<PathBuf> {
        find_program(&filled(&self.command, places))
    }
}

/// A program's name or argument in which `{hoplite}` and `{lab}` are paths, where these are known.
pub(crate) fn filled(text: &str, places: Option<&Places>) -> String {
    let Some(places) = places else {
        return text.to_owned();
    };
    text.replace("{hoplite}", &places.hoplite)
        .replace("{lab}", &places.lab)
}

/// A program that a subject needs as a scenario uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Which.
    pub needs: Needs,
    /// Whether the scenario leaves out, where it is missing, whatever wants it.
    pub optional: bool,
}

/// A parameter of a subject, as `list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParameterLine {
    /// Its name.
    pub name: String,
    /// Its value if a scenario does not set it.
    pub default: String,
    /// What it may be, if not anything of its kind.
    pub allowed: Option<String>,
    /// What it is for.
    pub about: String,
}

impl SubjectFile {
    /// Parses a subject's file; `file` is its name in complaints.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its place.
    pub fn parse(file: &str, text: &str) -> Result<Self, Failure> {
        let document = document::parse(file, text)?;
        let complaints = Complaints::about(&document);
        let scope = Scope::default();
        let root = Reader {
            table: document.root(),
            scope: &scope,
            owner: Owner::Subject,
            complaints: &complaints,
        };
        root.only(KEYS);
        let parameters = parameters(root);
        let mut parsed = Self {
            name: root
                .need("name", "what scenarios call it", name)
                .unwrap_or_default(),
            summary: root.text("summary").unwrap_or_default(),
            hides_client: false,
            needs: root.tables("needs").into_iter().filter_map(needs).collect(),
            document: Document::default(),
            parameters,
        };
        resolve::check_keys(root);
        template::names_of_subject(root, &parsed.parameters);
        let defaults = parsed.scope(&BTreeMap::new(), &Places::unknown());
        parsed.hides_client = root.within(&defaults).flag("hides_client", false);
        for entry in root.within(&defaults).tables("needs") {
            entry.flag("when", true);
        }
        complaints.finish()?;
        parsed.document = document;
        Ok(parsed)
    }

    /// The file, as it was read.
    #[must_use]
    pub fn source(&self) -> &str {
        self.document.text()
    }

    /// Its parameters, for `list`.
    #[must_use]
    pub fn parameters(&self) -> Vec<ParameterLine> {
        let line = |(name, parameter): (&String, &SubjectParameter)| ParameterLine {
            name: name.clone(),
            default: parameter.default.text(),
            allowed: parameter.allowed(),
            about: parameter.about.clone(),
        };
        self.parameters.iter().map(line).collect()
    }

    /// The value that a parameter takes if a scenario sets it to this one.
    pub(crate) fn fit(&self, name: &str, value: &Value) -> Result<Value, Wrong> {
        let known = || self.parameters.keys().map(String::as_str);
        let Some(parameter) = self.parameters.get(name) else {
            let what = format!(
                "the subject {} has no parameter {}",
                quoted(&self.name),
                quoted(name)
            );
            return Err(Wrong::new(what, meant(name, known())));
        };
        parameter.fit(value)
    }

    /// What is to be done, with these parameters at this place.
    pub(crate) fn plan(
        &self,
        label: &str,
        with: &BTreeMap<String, Value>,
        site: &Site<'_>,
    ) -> Result<Plan, Failure> {
        let complaints = Complaints::about(&self.document);
        let scope = self.scope(with, site.places);
        let root = Reader {
            table: self.document.root(),
            scope: &scope,
            owner: Owner::Subject,
            complaints: &complaints,
        };
        let mut plan = resolve::plan(root, site);
        plan.hides_client = root.flag("hides_client", false);
        complaints.finish()?;
        plan.label = label.to_owned();
        Ok(plan)
    }

    /// What must be installed with these parameters.
    pub(crate) fn needs_with(&self, with: &BTreeMap<String, Value>) -> Vec<&Needs> {
        let complaints = Complaints::about(&self.document);
        let scope = self.scope(with, &Places::unknown());
        let root = Reader {
            table: self.document.root(),
            scope: &scope,
            owner: Owner::Subject,
            complaints: &complaints,
        };
        let entries = root.tables("needs").into_iter().zip(&self.needs);
        let wanted = entries.filter(|(entry, _)| entry.flag("when", true));
        wanted.map(|(_, needs)| needs).collect()
    }

    /// Whether any of it names the binary of Hoplite.
    pub(crate) fn needs_hoplite(&self) -> bool {
        self.document.text().contains("{hoplite}")
    }

    fn scope(&self, with: &BTreeMap<String, Value>, places: &Places) -> Scope {
        let mut scope = Scope::default();
        for (name, parameter) in &self.parameters {
            let value = with.get(name).unwrap_or(&parameter.default);
            scope.set(name.clone(), value.clone());
        }
        scope.set("hoplite", Value::Text(places.hoplite.clone()));
        scope.set("lab", Value::Text(places.lab.clone()));
        scope
    }
}

fn needs(entry: Reader<'_>) -> Option<Needs> {
    entry.only("command install version when");
    let mut scope = Scope::default();
    scope.set("hoplite", Value::Text("{hoplite}".into()));
    scope.set("lab", Value::Text("{lab}".into()));
    let entry = Reader {
        scope: &scope,
        ..entry
    };
    let version = entry
        .list("version")
        .iter()
        .filter_map(|node| entry.read_node(node, text))
        .collect();
    Some(Needs {
        command: entry.need("command", "the program's name", text)?,
        install: entry.need(
            "install",
            "the command that installs it, or \"\" if there is none",
            text,
        )?,
        version,
    })
}

// `[parameters]` of a subject: defaults, their kinds and bounds.
// `hops = 1`, or `hops = { default = 1, min = 0, max = 4, about = "…" }`, or `acks = { default = "default", one_of = ["default", "1ms"] }`.

/// Known in every subject's file.
pub(crate) const KNOWN: [&str; 2] = ["hoplite", "lab"];

/// A parameter.
#[derive(Clone, Debug)]
pub(crate) struct SubjectParameter {
    /// Where it stands.
    pub(crate) at: usize,
    /// What it is if a scenario does not set it; its kind is the parameter's.
    pub(crate) default: Value,
    /// What it is for.
    pub(crate) about: String,
    /// The only values that it may have; empty if any.
    one_of: Vec<Value>,
    min: Option<f64>,
    max: Option<f64>,
}

impl SubjectParameter {
    /// A scenario's value for it.
    pub(crate) fn fit(&self, value: &Value) -> Result<Value, Wrong> {
        let value = self.kind(value)?;
        if let Value::Number(number) = value {
            self.range(number)?;
        }
        if self.one_of.is_empty() || self.one_of.contains(&value) {
            return Ok(value);
        }
        let names: Vec<String> = self.one_of.iter().map(Value::text).collect();
        let allowed = meant(&value.text(), names.iter().map(String::as_str));
        Err(Wrong::new(
            format!("{} is not possible", value.shown()),
            allowed,
        ))
    }

    /// `""` is an empty list; nothing else changes its kind.
    fn kind(&self, value: &Value) -> Result<Value, Wrong> {
        let same = std::mem::discriminant(value) == std::mem::discriminant(&self.default);
        match (&self.default, value) {
            _ if same => Ok(value.clone()),
            (Value::List(_), Value::Text(text)) if text.is_empty() => {
                Ok(Value::List(Arc::default()))
            }
            (default, _) => Err(Wrong::new(
                format!("{} is {}", value.shown(), value.kind()),
                format!(
                    "{}, such as its default {}",
                    default.kind(),
                    default.shown()
                ),
            )),
        }
    }

    fn range(&self, number: f64) -> Result<(), Wrong> {
        let least = self.min.unwrap_or(f64::NEG_INFINITY);
        let most = self.max.unwrap_or(f64::INFINITY);
        if (!self.whole() || number.fract() == 0.0) && (least..=most).contains(&number) {
            return Ok(());
        }
        let what = format!("{} is not possible", Value::Number(number).shown());
        Err(Wrong::new(what, self.numbers()))
    }

    /// A number whose default is whole is whole.
    fn whole(&self) -> bool {
        matches!(self.default, Value::Number(default) if default.fract() == 0.0)
    }

    fn numbers(&self) -> String {
        let kind = if self.whole() {
            "a whole number"
        } else {
            "a number"
        };
        let from = self.min.map(|min| format!(" from {min}"));
        let to = self.max.map(|max| format!(" to {max}"));
        format!(
            "{kind}{}{}",
            from.unwrap_or_default(),
            to.unwrap_or_default()
        )
    }

    /// What it may be, if not anything of its kind.
    fn allowed(&self) -> Option<String> {
        if !self.one_of.is_empty() {
            let names = self.one_of.iter().map(Value::text);
            let names: Vec<String> = names.filter(|name| !name.is_empty()).collect();
            return Some(names.join(", "));
        }
        (self.min.is_some() || self.max.is_some()).then(|| self.numbers())
    }
}

/// Reads `[parameters]`.
fn parameters(root: Reader<'_>) -> BTreeMap<String, SubjectParameter> {
    let mut parameters = BTreeMap::new();
    let entries = root
        .table("parameters")
        .map_or(&[][..], |reader| &reader.table.entries);
    for entry in entries {
        let known = KNOWN.contains(&entry.key.as_str()) || entry.key == "shared";
        let reserved =
            known.then(|| Wrong::new("the word has a meaning in subjects", "another name"));
        if let Some(wrong) = reserved.or_else(|| parameter_name(&entry.key).err()) {
            root.complaints.add(entry.key_at, wrong);
        }
        if let Some(parameter) = parameter(root, &entry.node, entry.key_at) {
            parameters.insert(entry.key.clone(), parameter);
        }
    }
    parameters
}

fn parameter<'a>(root: Reader<'a>, node: &'a Node, at: usize) -> Option<SubjectParameter> {
    let Item::Table(_) = node.item else {
        let default = root.evaluated(node)?.value;
        return Some(SubjectParameter {
            at,
            default,
            about: String::new(),
            one_of: Vec::new(),
            min: None,
            max: None,
        });
    };
    let entry = root.inner(node)?;
    entry.only("default about one_of min max");
    let one_of = entry
        .list("one_of")
        .iter()
        .filter_map(|node| entry.evaluated(node));
    let parameter = SubjectParameter {
        at,
        default: entry.need(
            "default",
            "its value if a scenario does not set it",
            |value| Ok(value.clone()),
        )?,
        about: entry.text("about").unwrap_or_default(),
        one_of: one_of.map(|found| found.value).collect(),
        min: entry.read("min", units::number),
        max: entry.read("max", units::number),
    };
    if let Err(wrong) = parameter.fit(&parameter.default) {
        entry.refuse("default", wrong);
    }
    Some(parameter)
}

// Where the binaries are that subjects name as `{hoplite}` and `{lab}`.

/// Paths of the binaries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// `hoplite`.
    pub hoplite: String,
    /// `hoplite-lab`.
    pub lab: String,
}

impl Places {
    /// Stands in while a file is only checked.
    pub(crate) fn unknown() -> Self {
        Self {
            hoplite: "hoplite".into(),
            lab: "hoplite-lab".into(),
        }
    }

    /// The running executable, and the product beside it or on the PATH. Test binaries stand one directory deeper.
    ///
    /// # Errors
    /// If `hoplite` is wanted and not there.
    pub fn find(wants_hoplite: bool) -> Result<Self, Failure> {
        let lab = std::env::current_exe();
        let lab = lab.map_err(|error| {
            Failure::new(
                "finding the lab's own executable",
                error,
                "see that /proc is mounted",
            )
        })?;
        let hoplite = match find_hoplite(&lab) {
            Some(path) => path,
            None if wants_hoplite => return Err(absent(&lab)),
            None => PathBuf::from("hoplite"),
        };
        Ok(Self {
            hoplite: utf8(&hoplite)?,
            lab: utf8(&lab)?,
        })
    }
}

fn find_hoplite(lab: &Path) -> Option<PathBuf> {
    let beside = lab
        .ancestors()
        .skip(1)
        .take(2)
        .map(|directory| directory.join("hoplite"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates =
        beside.chain(std::env::split_paths(&path).map(|directory| directory.join("hoplite")));
    candidates.find(|path| path.is_absolute() && is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn absent(lab: &Path) -> Failure {
    let directory = lab.parent().unwrap_or(lab).display();
    Failure::new(
        "finding the program hoplite",
        format!("it is neither in {directory} nor on the PATH"),
        "cargo build --release -p hoplite -p hoplite-lab",
    )
}

fn utf8(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        Failure::new(
            "finding the programs",
            format!("the path {} is not UTF-8", path.display()),
            "move them",
        )
    })
}

// `[[subject]]`s: their files are loaded once, their labels and parameters computed in each case.

const SUBJECT_KEYS: &str = "use file label when with optional";

/// A subject in a case.
pub(crate) struct Use {
    /// Its name in the results.
    pub(crate) label: String,
    /// That name as it is written, if it follows the case: `hoplite-{hops}`.
    pub(crate) written: Option<String>,
    /// What `use` or `file` says.
    pub(crate) file: String,
    /// Its parameters.
    pub(crate) with: BTreeMap<String, Value>,
    /// Whether it is left out where a program that it needs is missing.
    pub(crate) optional: bool,
    /// Where it stands.
    pub(crate) at: usize,
}

/// Loads every subject's file that is named, once.
pub(crate) fn subjects(
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
        entry.only(SUBJECT_KEYS);
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
            entry.wrong("file", "there is use too", "use or file");
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
                format!("{} cannot be read: {why}", quoted(key)),
                "a subject's file",
            );
            None
        }
        None => {
            let names = library.subjects();
            let allowed = meant(key, names.iter().map(String::as_str));
            let what = format!("there is no subject {}", quoted(key));
            entry.wrong(
                "use",
                what,
                format!("{allowed} (or a file subjects/{key}.toml beside the scenario)"),
            );
            None
        }
    }
}

/// The subjects of a case.
pub(crate) fn uses(root: Reader<'_>, subjects: &BTreeMap<String, SubjectFile>) -> Vec<Use> {
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
            entry.wrong(key, what, "another label = \"…\"");
        }
        let written = match entry.table.node("label").map(|node| &node.item) {
            Some(Item::Text(text)) if *text != label => Some(text.clone()),
            _ => None,
        };
        uses.push(Use {
            label,
            written,
            file,
            with: with(entry, subject),
            optional: entry.flag("optional", false),
            at: entry.table.at,
        });
    }
    uses
}

fn with(entry: Reader<'_>, subject: &SubjectFile) -> BTreeMap<String, Value> {
    let mut values = BTreeMap::new();
    let Some(with) = entry.table("with") else {
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

#[cfg(test)]
mod tests;
