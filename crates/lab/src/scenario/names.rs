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
    fn node(&mut self, node: &Node, counters: u8) {
        match &node.item {
            Item::Text(text) => self.text(node.at, text, counters),
            Item::List(list) => list.iter().for_each(|node| self.node(node, counters)),
            Item::Table(table) => self.table(table, counters),
            _ => {}
        }
    }

    /// `i` is known in an entry that is repeated, `j` in one that is repeated twice; `i` in the second number too.
    fn table(&mut self, table: &Table, counters: u8) {
        let counters = match table.node("repeat").map(|node| &node.item) {
            None => counters,
            Some(Item::List(_)) => 2,
            Some(_) => 1,
        };
        for entry in &table.entries {
            let here = if entry.key == "repeat" {
                counters.saturating_sub(1)
            } else {
                counters
            };
            self.node(&entry.node, here);
        }
    }

    fn text(&mut self, at: usize, text: &str, counters: u8) {
        let template = match Template::parse(text, self.owner) {
            Ok(template) => template,
            Err(wrong) => return self.complaints.add(at, wrong),
        };
        let mut names = Vec::new();
        template.names(&mut names);
        for name in names {
            let own = self.known.contains(name)
                || (counters > 0 && name == "i")
                || (counters > 1 && name == "j");
            self.used
                .insert(name.split('.').next().unwrap_or(name).to_owned());
            if !own {
                self.complaints.add(at, self.undefined(name, counters));
            }
        }
    }

    fn undefined(&self, name: &str, counters: u8) -> Wrong {
        let what = format!("{} is not defined", quoted(name));
        let i = (counters > 0).then_some("i");
        match name {
            "i" => Wrong::new(what, "i is known where there is a repeat"),
            "j" => Wrong::new(what, "j is known where there are two: repeat = [2, 3]"),
            _ if self.known.is_empty() && counters == 0 => {
                Wrong::new(what, "a parameter of [matrix]")
            }
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
    sections.for_each(|node| names.node(node, 0));
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
    let sections = ["needs", "file", "step", "way", "hides_client"]
        .into_iter()
        .filter_map(|section| root.table.node(section));
    sections.for_each(|node| names.node(node, 0));
    names.check_used(
        parameters
            .iter()
            .map(|(name, parameter)| (name, parameter.at)),
    );
}
