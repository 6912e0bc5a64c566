//! Where scenarios, subjects and traces come from: files, and what is built in; and `hoplite-lab list`, which shows what there is.
//! A trace or subject is looked for from the scenario's own directory, so that a directory can be handed on as it is.

use std::{
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{Scenario, document::MAX_FILE_BYTES, subject_file::SubjectFile};
use crate::errors::{Failure, printed};

/// Files of a directory of the repository, by name.
macro_rules! built_in {
    ($directory:literal: $($name:literal),+) => {
        [$((
            $name,
            include_str!(concat!("../../../../../", $directory, "/", $name, ".toml")),
        )),+]
    };
}

/// Built-in scenarios, in the order of `list`.
pub(crate) const SCENARIOS: [(&str, &str); 28] = built_in!(
    "scenarios": "smoke", "ack-cascade", "ack-policies", "ack-loss", "ack-cross-traffic", "ack-upload", "ack-bbr",
    "ack-cost", "ack-fingerprint", "private-relay", "browse", "udp-blocked", "mobile", "onion-1", "onion-2", "onion-3", "onion-4", "onion-5",
    "onion-cold", "onion-positions", "onion-rivals", "throughput", "decomposition", "device", "power", "sharing", "first-byte", "calls"
);

/// Built-in subjects, in the order of `list`.
pub(crate) const SUBJECTS: [(&str, &str); 10] = built_in!(
    "subjects": "native", "hoplite", "hoplite-up", "hoplite-onion", "hoplite-directory", "tor", "openvpn", "wireguard-go",
    "masque-go", "sing-box"
);

/// Traces are a line a packet.
const LONGEST_TRACE: u64 = 16 << 20;

/// Where a scenario's other files are looked for.
#[derive(Clone, Debug)]
pub(crate) enum Library {
    /// Only what is built in.
    BuiltIn,
    /// From this directory, then what is built in.
    Beside(PathBuf),
}

/// A text and what it is called in complaints.
#[derive(Clone, Debug)]
pub(crate) struct TextFile {
    /// Its path, or `NAME.toml (built in)`.
    pub(crate) name: String,
    /// What is in it.
    pub(crate) text: String,
}

impl Library {
    /// A subject by its name: beside the scenario, else built in. `None` if there is none.
    pub(crate) fn subject(&self, name: &str) -> Option<Result<TextFile, String>> {
        if let Self::Beside(directory) = self {
            let path = directory.join("subjects").join(format!("{name}.toml"));
            if path.exists() {
                return Some(read(&path, MAX_FILE_BYTES as u64));
            }
        }
        built_in(&SUBJECTS, name).map(Ok)
    }

    /// Names of the subjects that there are.
    pub(crate) fn subjects(&self) -> Vec<String> {
        let mut names: Vec<String> = SUBJECTS
            .iter()
            .map(|(name, _)| (*name).to_owned())
            .collect();
        if let Self::Beside(directory) = self {
            let own = tomls(&directory.join("subjects"));
            names.extend(
                own.iter()
                    .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())),
            );
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// A file by its path from the scenario's directory.
    pub(crate) fn file(&self, path: &str) -> Result<TextFile, String> {
        match self {
            Self::Beside(directory) => read(&directory.join(path), MAX_FILE_BYTES as u64),
            Self::BuiltIn => Err("a built-in scenario has no files".into()),
        }
    }

    /// A trace by its path from the scenario's directory.
    pub(crate) fn trace(&self, path: &str) -> Result<String, String> {
        match self {
            Self::Beside(directory) => {
                read(&directory.join(path), LONGEST_TRACE).map(|source| source.text)
            }
            Self::BuiltIn => Err("a built-in scenario has no files".into()),
        }
    }
}

/// A built-in text by its name.
pub(crate) fn built_in(list: &[(&str, &str)], name: &str) -> Option<TextFile> {
    let (name, text) = list.iter().find(|(known, _)| *known == name)?;
    Some(TextFile {
        name: format!("{name}.toml (built in)"),
        text: (*text).to_owned(),
    })
}

/// Reads a file of at most this many bytes.
pub(crate) fn read(path: &Path, longest: u64) -> Result<TextFile, String> {
    let mut text = String::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(longest + 1).read_to_string(&mut text));
    match read {
        Ok(_) if text.len() as u64 > longest => Err(format!("it is longer than {longest} bytes")),
        Ok(_) => Ok(TextFile {
            name: path.display().to_string(),
            text,
        }),
        Err(error) => Err(error.to_string()),
    }
}

/// The TOML files of a directory, sorted; none if it is not there.
pub(crate) fn tomls(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    paths.sort_unstable();
    paths
}

// `hoplite-lab list`: what is built in, and what is in `scenarios/` and `subjects/` of the directory where one stands.

/// A line of the list.
enum Listed {
    Scenario(Box<Scenario>),
    Subject(SubjectFile),
    /// A file that is wrong, and what is said about it.
    Wrong(String, String),
}

/// Does it; `json`: one object per line.
///
/// # Errors
/// If stdout cannot be written.
pub fn list(json: bool) -> Result<(), Failure> {
    let (mut out, entries) = (io::stdout().lock(), entries(Path::new("")));
    printed(if json {
        lines(&mut out, &entries)
    } else {
        table(&mut out, &entries)
    })
}

/// Built in, then files in a directory unless they are the same.
fn entries(directory: &Path) -> Vec<Listed> {
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
fn others(directory: &Path, built_in: &[(&str, &str)]) -> Vec<(PathBuf, TextFile)> {
    let read = |path: PathBuf| {
        let source = read(&path, MAX_FILE_BYTES as u64).ok()?;
        Some((path, source))
    };
    let other = |(_, source): &(_, TextFile)| built_in.iter().all(|(_, text)| *text != source.text);
    tomls(directory)
        .into_iter()
        .filter_map(read)
        .filter(other)
        .collect()
}

fn scenario(source: &TextFile, path: Option<&Path>, library: &Library) -> Listed {
    match super::read(&source.name, &source.text, path, library) {
        Ok(scenario) => Listed::Scenario(Box::new(scenario)),
        Err(failure) => wrong(source, &failure),
    }
}

fn subject(source: &TextFile) -> Listed {
    match SubjectFile::parse(&source.name, &source.text) {
        Ok(subject) => Listed::Subject(subject),
        Err(failure) => wrong(source, &failure),
    }
}

fn wrong(source: &TextFile, failure: &Failure) -> Listed {
    let first = failure.to_string();
    let line = first.lines().next().unwrap_or_default();
    Listed::Wrong(
        source.name.clone(),
        line.trim_start_matches("hoplite-lab: ").to_owned(),
    )
}

fn lines(out: &mut impl Write, entries: &[Listed]) -> io::Result<()> {
    entries
        .iter()
        .try_for_each(|entry| writeln!(out, "{}", entry.json()))
}

fn table(out: &mut impl Write, entries: &[Listed]) -> io::Result<()> {
    writeln!(out, "scenarios: hoplite-lab run NAME")?;
    for entry in entries {
        if let Listed::Scenario(scenario) = entry {
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
        if let Listed::Subject(subject) = entry {
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
        if let Listed::Wrong(_, what) = entry {
            writeln!(out, "\nwrong: {what}")?;
        }
    }
    Ok(())
}

impl Listed {
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
        write: impl Fn(&mut Vec<u8>, &[Listed]) -> io::Result<()>,
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
