//! `[[subject]]`s: their files are loaded once, their labels and parameters computed in each case. Used by `file`.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    complain::{Wrong, meant, quoted},
    expression::Value,
    library::Library,
    reader::{Reader, name, text},
    subject_file::SubjectFile,
};
use crate::errors::{Complaint, Failure};

const SUBJECT_KEYS: [&str; 5] = ["use", "file", "label", "when", "with"];

/// A subject in a case.
pub(crate) struct Use {
    /// Its name in the results.
    pub(crate) label: String,
    /// What `use` or `file` says.
    pub(crate) file: String,
    /// Its parameters.
    pub(crate) with: BTreeMap<String, Value>,
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
