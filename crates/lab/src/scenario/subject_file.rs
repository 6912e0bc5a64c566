//! A subject's file: what it needs, its parameters, and how it is started. `scenario` resolves it into a `subject::Plan`,
//! `doctor` reads what it needs. The format is in `docs/scenarios.md`.
//! Everything that does not depend on parameters is checked when it is parsed, so that a competitor's author sees mistakes at once.

mod parameters;
mod places;
mod resolve;

use std::collections::BTreeMap;

pub(crate) use parameters::{KNOWN, Parameter};
pub use places::Places;
pub(crate) use resolve::Site;
use serde::Serialize;

use super::{
    complain::{Complaints, Wrong, meant, quoted},
    document::Document,
    expression::{Scope, Value},
    names,
    reader::{Reader, name, text},
    template::Owner,
};
use crate::{errors::Failure, subject::Plan};

const KEYS: [&str; 8] = [
    "name",
    "summary",
    "hides_client",
    "needs",
    "parameters",
    "file",
    "step",
    "way",
];

/// A subject's file that was parsed and checked.
#[derive(Clone, Debug)]
pub struct SubjectFile {
    /// Its name.
    pub name: String,
    /// One line for `list`.
    pub summary: String,
    /// Whether servers must never see the client's own address, with the parameters' defaults.
    pub hides_client: bool,
    /// What must be installed.
    pub needs: Vec<Needs>,
    document: Document,
    parameters: BTreeMap<String, Parameter>,
}

/// A program that a subject needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Its name on the PATH, a path, or `{hoplite}` or `{lab}`.
    pub command: String,
    /// The command that installs it.
    pub install: String,
    /// A command that prints its version; empty if there is none.
    pub version: Vec<String>,
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
        let document = Document::parse(file, text)?;
        let complaints = Complaints::about(&document);
        let scope = Scope::default();
        let root = Reader {
            table: document.root(),
            scope: &scope,
            owner: Owner::Subject,
            complaints: &complaints,
        };
        root.only(&KEYS);
        let parameters = parameters::parameters(root);
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
        names::names_of_subject(root, &parsed.parameters);
        let defaults = parsed.scope(&BTreeMap::new(), &Places::unknown());
        parsed.hides_client = root.within(&defaults).flag("hides_client", false);
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
        let line = |(name, parameter): (&String, &Parameter)| ParameterLine {
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
    entry.only(&["command", "install", "version"]);
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
        install: entry.need("install", "the command that installs it", text)?,
        version,
    })
}

#[cfg(test)]
mod tests;
