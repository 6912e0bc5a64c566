//! `hoplite-lab list`: the scenarios and subjects that there are: built in, and in `scenarios/` and `subjects/` of the directory where one stands.

use std::{
    io::{self, Write},
    path::Path,
};

use serde_json::{Value, json};

use super::{
    Scenario,
    document::LONGEST,
    file,
    library::{self, Library, SCENARIOS, SUBJECTS, Source},
    subject_file::SubjectFile,
};
use crate::errors::Failure;

/// A line of the list.
enum Entry {
    Scenario(Box<Scenario>),
    Subject(SubjectFile),
    /// A file that is wrong, and what is said about it.
    Wrong(String, String),
}

/// Does it; `json`: one object per line.
///
/// # Errors
/// If stdout cannot be written.
pub fn run(json: bool) -> Result<(), Failure> {
    let (mut out, entries) = (io::stdout().lock(), entries(Path::new("")));
    let written = match json {
        true => lines(&mut out, &entries),
        false => table(&mut out, &entries),
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

/// Built in, then files in a directory unless they are the same.
fn entries(directory: &Path) -> Vec<Entry> {
    let built_in = |list: &[(&str, &str)], name: &str| library::built_in(list, name);
    let mut entries = Vec::new();
    for (name, _) in SCENARIOS {
        entries.extend(
            built_in(&SCENARIOS, name).map(|source| scenario(&source, None, &Library::BuiltIn)),
        );
    }
    let scenarios = directory.join("scenarios");
    for (path, source) in others(&scenarios, &SCENARIOS) {
        entries.push(scenario(
            &source,
            Some(&path),
            &Library::Beside(scenarios.clone()),
        ));
    }
    for (name, _) in SUBJECTS {
        entries.extend(built_in(&SUBJECTS, name).map(|source| subject(&source)));
    }
    for place in [directory.join("subjects"), scenarios.join("subjects")] {
        entries.extend(
            others(&place, &SUBJECTS)
                .iter()
                .map(|(_, source)| subject(source)),
        );
    }
    entries
}

/// The files of a directory that are not built in.
fn others(directory: &Path, built_in: &[(&str, &str)]) -> Vec<(std::path::PathBuf, Source)> {
    let read = |path: std::path::PathBuf| {
        let source = library::read(&path, LONGEST as u64).ok()?;
        Some((path, source))
    };
    let other = |(_, source): &(_, Source)| built_in.iter().all(|(_, text)| *text != source.text);
    library::tomls(directory)
        .into_iter()
        .filter_map(read)
        .filter(other)
        .collect()
}

fn scenario(source: &Source, path: Option<&Path>, library: &Library) -> Entry {
    match file::scenario(&source.name, &source.text, path, library) {
        Ok(scenario) => Entry::Scenario(Box::new(scenario)),
        Err(failure) => wrong(source, &failure),
    }
}

fn subject(source: &Source) -> Entry {
    match SubjectFile::parse(&source.name, &source.text) {
        Ok(subject) => Entry::Subject(subject),
        Err(failure) => wrong(source, &failure),
    }
}

fn wrong(source: &Source, failure: &Failure) -> Entry {
    let first = failure.to_string();
    let line = first.lines().next().unwrap_or_default();
    Entry::Wrong(
        source.name.clone(),
        line.trim_start_matches("hoplite-lab: ").to_owned(),
    )
}

fn lines(out: &mut impl Write, entries: &[Entry]) -> io::Result<()> {
    entries
        .iter()
        .try_for_each(|entry| writeln!(out, "{}", entry.json()))
}

fn table(out: &mut impl Write, entries: &[Entry]) -> io::Result<()> {
    writeln!(out, "scenarios: hoplite-lab run NAME")?;
    for entry in entries {
        if let Entry::Scenario(scenario) = entry {
            let runs = scenario.runs();
            writeln!(
                out,
                "  {:<16} {} ({runs} runs)",
                scenario.name, scenario.summary
            )?;
        }
    }
    writeln!(
        out,
        "\nsubjects: [[subject]] use = \"NAME\", with = {{ PARAMETER = … }}"
    )?;
    for entry in entries {
        if let Entry::Subject(subject) = entry {
            writeln!(out, "  {:<16} {}", subject.name, subject.summary)?;
            for parameter in subject.parameters() {
                let allowed = parameter.allowed.map(|allowed| format!(" ({allowed})"));
                let (shown, allowed) = (
                    format!("{} = {}", parameter.name, parameter.default),
                    allowed.unwrap_or_default(),
                );
                writeln!(out, "      {shown:<24} {}{allowed}", parameter.about)?;
            }
        }
    }
    for entry in entries {
        if let Entry::Wrong(_, what) = entry {
            writeln!(out, "\nwrong: {what}")?;
        }
    }
    Ok(())
}

impl Entry {
    fn json(&self) -> Value {
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
                "parameters": subject.parameters(),
            }),
            Self::Wrong(file, what) => json!({ "file": file, "wrong": what }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn written(
        write: impl Fn(&mut Vec<u8>, &[Entry]) -> io::Result<()>,
        directory: &Path,
    ) -> String {
        let mut out = Vec::new();
        write(&mut out, &entries(directory)).expect("memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn what_is_built_in_and_what_stands_in_the_directory_is_listed_with_its_summary() {
        let directory = tempfile::tempdir().expect("a directory");
        let write =
            |name: &str, text: &str| fs::write(directory.path().join(name), text).expect("written");
        fs::create_dir_all(directory.path().join("scenarios/subjects")).expect("made");
        write("scenarios/broken.toml", "name = 7 7");
        write(
            "scenarios/subjects/mine.toml",
            "name = 'mine'\nsummary = 'my own'\n[parameters]\nn = { default = 3, min = 1, max = 9, about = 'how many' }\n[[step]]\nname = 's'\nhost = 'client'\ncommand = ['x', '{n}']\n",
        );
        let text = written(table, directory.path());
        for part in [
            "  smoke            Whether the lab works",
            "  native           Nothing",
            "  mine             my own",
            "n = 3                    how many (a whole number from 1 to 9)",
            "wrong: ",
            "broken.toml:1:",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let text = written(lines, directory.path());
        let objects: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("an object"))
            .collect();
        assert!(
            objects
                .iter()
                .any(|object| object["scenario"] == "smoke" && object["runs"].is_u64())
        );
        assert!(
            objects
                .iter()
                .any(|object| object["subject"] == "mine"
                    && object["parameters"][0]["default"] == "3")
        );
        assert!(objects.iter().any(|object| object["wrong"].is_string()));
    }
}
