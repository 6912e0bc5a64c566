//! `hoplite-lab doctor`: whether this machine has what the lab and its subjects need, and for what is missing the command that installs it.
//! It asks the machine, changes nothing, and succeeds if a scenario (or `smoke`) can be run.

mod machine;
mod programs;
mod table;

use std::{
    io::{self, Write},
    path::Path,
};

use serde::Serialize;

use crate::{
    cli::DoctorArgs,
    errors::Failure,
    scenario::{self, subject_file::SubjectFile},
};

/// What `doctor` answers for if it is not told.
const USUAL: &str = "smoke";

/// One thing that was looked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Check {
    /// `machine`, or the subject that wants it.
    of: String,
    /// What was looked for.
    check: String,
    /// How it stands.
    state: State,
    /// Whether the scenario cannot be run without it.
    needed: bool,
    /// What was found, such as a version, or why it is missing.
    found: String,
    /// What the user can do if it is not there; empty if it is.
    remedy: String,
}

/// How a thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    /// There.
    Ok,
    /// There, but figures will be worse for it.
    Poor,
    /// Not there.
    Missing,
}

/// Does it.
///
/// # Errors
/// If the scenario is wrong, or something is missing that it needs.
pub fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let path = args.scenario.as_deref().unwrap_or_else(|| Path::new(USUAL));
    let scenario = scenario::load(path)?;
    let wanted = scenario.subjects();
    let mut checks = machine::checks();
    for subject in &wanted {
        checks.extend(programs::checks(subject, true));
    }
    if args.scenario.is_none() {
        for subject in &others(&wanted) {
            checks.extend(programs::checks(subject, false));
        }
    }
    let written = match args.json {
        true => lines(&checks),
        false => table::write(&mut io::stdout().lock(), &checks),
    };
    said(written)?;
    verdict(&scenario.name, &checks)
}

/// Built-in subjects that the scenario does not use.
fn others(wanted: &[&SubjectFile]) -> Vec<SubjectFile> {
    let mut others = scenario::built_in_subjects();
    others.retain(|subject| wanted.iter().all(|other| other.name != subject.name));
    others
}

fn lines(checks: &[Check]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for check in checks {
        writeln!(out, "{}", serde_json::to_string(check)?)?;
    }
    Ok(())
}

fn said(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(
            "writing what was found",
            error,
            "see that stdout is open",
        )),
        _ => Ok(()),
    }
}

fn verdict(scenario: &str, checks: &[Check]) -> Result<(), Failure> {
    let blocks = |check: &&Check| check.needed && check.state == State::Missing;
    let missing: Vec<&Check> = checks.iter().filter(blocks).collect();
    let Some(first) = missing.first() else {
        return Ok(());
    };
    let mut names: Vec<&str> = missing.iter().map(|check| check.check.as_str()).collect();
    names.dedup();
    Err(Failure::new(
        format!("looking for what the scenario {scenario:?} needs"),
        format!("missing: {}", names.join(", ")),
        first.remedy.clone(),
    ))
}

#[cfg(test)]
mod tests;
