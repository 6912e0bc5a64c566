//! `hoplite-lab list`: the scenarios and subjects that there are, built in and in the directory where one stands.

use std::{
    io::{self, Write},
    path::Path,
};

use serde_json::json;

use super::{
    Scenario, file,
    library::{self, Library, SCENARIOS, SUBJECTS},
    subject_file::SubjectFile,
};
use crate::{cli::ListArgs, errors::Failure};

/// A line of the list.
enum Entry {
    Scenario(Box<Scenario>),
    Subject(SubjectFile),
}

/// Does it.
///
/// # Errors
/// If stdout cannot be written.
pub fn run(args: &ListArgs) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = match args.json {
        true => entries()
            .iter()
            .try_for_each(|entry| writeln!(out, "{}", entry.json())),
        false => table(&mut out),
    };
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(
            "writing the list",
            error,
            "see that stdout is open",
        )),
        _ => Ok(()),
    }
}

/// Built in, then `scenarios/` and `subjects/` here unless they are the same files.
fn entries() -> Vec<Entry> {
    let scenario = |name: &str, text: &str, path: Option<&Path>, library: &Library| {
        file::scenario(name, text, path, library)
            .ok()
            .map(|scenario| Entry::Scenario(Box::new(scenario)))
    };
    let mut entries: Vec<Entry> = SCENARIOS
        .iter()
        .filter_map(|(name, text)| scenario(name, text, None, &Library::BuiltIn))
        .collect();
    for path in library::tomls(Path::new("scenarios")) {
        let Ok(source) = library::read(&path, super::document::LONGEST as u64) else {
            continue;
        };
        if SCENARIOS.iter().all(|(_, text)| *text != source.text) {
            let beside = Library::Beside("scenarios".into());
            entries.extend(scenario(&source.name, &source.text, Some(&path), &beside));
        }
    }
    let subject = |name: &str, text: &str| SubjectFile::parse(name, text).ok().map(Entry::Subject);
    entries.extend(
        SUBJECTS
            .iter()
            .filter_map(|(name, text)| subject(name, text)),
    );
    for path in ["subjects", "scenarios/subjects"]
        .iter()
        .flat_map(|directory| library::tomls(Path::new(directory)))
    {
        let Ok(source) = library::read(&path, super::document::LONGEST as u64) else {
            continue;
        };
        if SUBJECTS.iter().all(|(_, text)| *text != source.text) {
            entries.extend(subject(&source.name, &source.text));
        }
    }
    entries
}

fn table(out: &mut impl Write) -> io::Result<()> {
    let entries = entries();
    let names = entries.iter().map(|entry| entry.name().len());
    let width = names.max().unwrap_or(0);
    for (title, wanted) in [
        ("scenarios (hoplite-lab run NAME)", true),
        ("subjects ([[subject]] use = \"NAME\")", false),
    ] {
        writeln!(out, "{title}")?;
        for entry in entries
            .iter()
            .filter(|entry| matches!(entry, Entry::Scenario(_)) == wanted)
        {
            writeln!(out, "  {:width$}  {}", entry.name(), entry.summary())?;
        }
    }
    Ok(())
}

impl Entry {
    fn name(&self) -> &str {
        match self {
            Self::Scenario(scenario) => &scenario.name,
            Self::Subject(subject) => &subject.name,
        }
    }

    fn summary(&self) -> String {
        match self {
            Self::Scenario(scenario) => format!("{} ({} runs)", scenario.summary, scenario.runs()),
            Self::Subject(subject) => subject.summary.clone(),
        }
    }

    fn json(&self) -> serde_json::Value {
        match self {
            Self::Scenario(scenario) => json!({
                "scenario": scenario.name,
                "summary": scenario.summary,
                "built_in": scenario.path.is_none(),
                "cases": scenario.cases(),
                "subjects": scenario.labels(),
                "repetitions": scenario.repetitions,
                "runs": scenario.runs(),
            }),
            Self::Subject(subject) => json!({
                "subject": subject.name,
                "summary": subject.summary,
                "hides_client": subject.hides_client,
                "needs": subject.needs.iter().map(|needs| &needs.command).collect::<Vec<_>>(),
                "parameters": subject.parameters().into_iter().map(|(name, default, about)| json!({"name": name, "default": default, "about": about})).collect::<Vec<_>>(),
            }),
        }
    }
}
