//! The programs that subjects name in `[[needs]]`: found where the lab's processes look for them, and asked for their version.

use std::{
    env,
    fs::File,
    io::{self, Read, Seek},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{Check, State};
use crate::{
    netns::spawn::search_path,
    scenario::subject_file::{Needs, Places, SubjectFile},
};

/// A program that takes longer to tell its version has none.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is read of an answer, and what is shown of its first line.
const ANSWER: u64 = 16 * 1024;
const SHOWN: usize = 60;

/// What a subject needs; `needed` if the scenario uses it.
pub(super) fn checks(subject: &SubjectFile, needed: bool) -> Vec<Check> {
    let places = Places::find(false).ok();
    let look = |needs: &Needs| look(&subject.name, needs, needed, places.as_ref());
    subject.needs.iter().map(look).collect()
}

pub(super) fn look(of: &str, needs: &Needs, needed: bool, places: Option<&Places>) -> Check {
    let command = filled(&needs.command, places);
    let path = find(&command);
    let (state, remedy) = match path {
        Some(_) => (State::Ok, ""),
        None => (State::Missing, needs.install.as_str()),
    };
    let found = match &path {
        Some(path) => {
            let words = needs.version.iter().map(|word| filled(word, places));
            version(&words.collect::<Vec<_>>()).unwrap_or_else(|| path.display().to_string())
        }
        None => "not found".into(),
    };
    Check {
        of: of.into(),
        check: shown(&needs.command).into(),
        state,
        needed,
        found,
        remedy: remedy.into(),
    }
}

fn shown(command: &str) -> &str {
    match command {
        "{hoplite}" => "hoplite",
        "{lab}" => "hoplite-lab",
        other => other,
    }
}

fn filled(text: &str, places: Option<&Places>) -> String {
    let Some(places) = places else {
        return text.to_owned();
    };
    text.replace("{hoplite}", &places.hoplite)
        .replace("{lab}", &places.lab)
}

fn find(command: &str) -> Option<PathBuf> {
    if command.contains('/') {
        return Some(PathBuf::from(command)).filter(|path| runs(path));
    }
    let path = search_path();
    let mut places = env::split_paths(&path).map(|place| place.join(command));
    places.find(|path| runs(path))
}

fn runs(path: &Path) -> bool {
    let executable = |mode: u32| mode & 0o111 != 0;
    path.metadata()
        .is_ok_and(|found| found.is_file() && executable(found.permissions().mode()))
}

/// The first line that the command says, on stdout or else on stderr.
fn version(words: &[String]) -> Option<String> {
    let (program, arguments) = words.split_first()?;
    let (out, err) = (tempfile::tempfile().ok()?, tempfile::tempfile().ok()?);
    let mut command = Command::new(find(program)?);
    command.args(arguments).stdin(Stdio::null());
    command
        .stdout(out.try_clone().ok()?)
        .stderr(err.try_clone().ok()?);
    let mut child = command.spawn().ok()?;
    let until = Instant::now() + PATIENCE;
    while child.try_wait().ok()?.is_none() {
        if Instant::now() > until {
            child.kill().and_then(|()| child.wait()).ok();
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
    first_line(out).or_else(|| first_line(err))
}

fn first_line(file: File) -> Option<String> {
    let text = beginning(file).ok()?;
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let plain = line.chars().filter(|c| !c.is_control());
    Some(plain.take(SHOWN).collect())
}

fn beginning(mut file: File) -> io::Result<String> {
    file.rewind()?;
    let mut octets = Vec::new();
    file.take(ANSWER).read_to_end(&mut octets)?;
    Ok(String::from_utf8_lossy(&octets).into_owned())
}
