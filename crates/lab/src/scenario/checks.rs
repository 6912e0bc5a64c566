//! What can be said about a file before any case is resolved: names in expressions that nothing defines, and definitions that nothing uses.
//! Both are nearly always a typing mistake, also where `when` never holds.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    complain::{Complaints, Wrong, meant, quoted},
    document::{Item, Node, Table},
    matrix::Parameter,
    reader::Reader,
    subject_file::{KNOWN, Parameter as SubjectParameter},
    template::{Owner, Template},
};

/// Collects the names that texts use.
struct Names<'a> {
    known: BTreeSet<&'a str>,
    used: BTreeSet<String>,
    owner: Owner,
    complaints: &'a Complaints<'a>,
}

impl Names<'_> {
    fn node(&mut self, node: &Node, repeated: bool) {
        match &node.item {
            Item::Text(text) => self.text(node.at, text, repeated),
            Item::List(list) => list.iter().for_each(|node| self.node(node, repeated)),
            Item::Table(table) => self.table(table, repeated),
            _ => {}
        }
    }

    /// `i` is known in an entry that is repeated.
    fn table(&mut self, table: &Table, repeated: bool) {
        let repeated = repeated || table.node("repeat").is_some();
        for entry in &table.entries {
            self.node(&entry.node, repeated && entry.key != "repeat");
        }
    }

    fn text(&mut self, at: usize, text: &str, repeated: bool) {
        let template = match Template::parse(text, self.owner) {
            Ok(template) => template,
            Err(wrong) => return self.complaints.add(at, wrong),
        };
        let mut names = Vec::new();
        template.names(&mut names);
        for name in names {
            let own = self.known.contains(name) || (repeated && name == "i");
            self.used
                .insert(name.split('.').next().unwrap_or(name).to_owned());
            if !own {
                self.complaints.add(at, self.undefined(name, repeated));
            }
        }
    }

    fn undefined(&self, name: &str, repeated: bool) -> Wrong {
        let what = format!("{} is not defined", quoted(name));
        let i = repeated.then_some("i");
        match name {
            "i" => Wrong::new(what, "i is known where there is a repeat"),
            _ if self.known.is_empty() && !repeated => Wrong::new(what, "a parameter of [matrix]"),
            _ => Wrong::new(what, meant(name, self.known.iter().copied().chain(i))),
        }
    }

    fn check_used<'n>(&self, parameters: impl Iterator<Item = (&'n String, usize)>) {
        for (name, at) in parameters.filter(|(name, _)| !self.used.contains(*name)) {
            let what = format!("nothing uses the parameter {}", quoted(name));
            self.complaints.add(
                at,
                Wrong::new(what, format!("use it as {{{name}}} or remove it")),
            );
        }
    }
}

/// Sections of a scenario with expressions in them.
const SECTIONS: [&str; 8] = [
    "host", "router", "link", "sysctl", "subject", "workload", "analysis", "timeout",
];

/// Checks a scenario's expressions against its matrix.
pub(crate) fn names_of_scenario(root: Reader<'_>, parameters: &[Parameter]) {
    let brought = parameters
        .iter()
        .flat_map(|parameter| parameter.rows.iter().flat_map(|row| &row.brings));
    let mut names = Names {
        known: brought.map(|(name, _)| name.as_str()).collect(),
        used: BTreeSet::new(),
        owner: root.owner,
        complaints: root.complaints,
    };
    let sections = SECTIONS
        .iter()
        .filter_map(|section| root.table.node(section));
    sections.for_each(|node| names.node(node, false));
    names.check_used(
        parameters
            .iter()
            .map(|parameter| (&parameter.name, parameter.at)),
    );
}

/// Checks a subject's expressions against its parameters.
pub(crate) fn names_of_subject(root: Reader<'_>, parameters: &BTreeMap<String, SubjectParameter>) {
    let mut names = Names {
        known: parameters.keys().map(String::as_str).chain(KNOWN).collect(),
        used: BTreeSet::new(),
        owner: root.owner,
        complaints: root.complaints,
    };
    let sections = ["needs", "file", "step", "way"]
        .into_iter()
        .filter_map(|section| root.table.node(section));
    sections.for_each(|node| names.node(node, false));
    names.check_used(
        parameters
            .iter()
            .map(|(name, parameter)| (name, parameter.at)),
    );
}
