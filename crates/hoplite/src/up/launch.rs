//! The two sides of starting detached: who was called waits at a pipe; the process that stays says one line into it. `crate::up` is both.

use std::{
    fs::OpenOptions,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::{fs::OpenOptionsExt, process::ExitStatusExt},
    path::Path,
    process::{Command, Stdio},
};

use serde::{Deserialize, Serialize};

use super::status::Status;
use crate::errors::{Complaint, Failure};

/// The running program, also when its file was replaced meanwhile.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// What the process that stays says, once.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Word {
    /// Traffic flows.
    Ready(Box<Status>),
    /// It does not, for these reasons.
    Failed(Vec<Complaint>),
}

/// Starts this command line again, with `flag`, and waits for its word.
pub(super) fn start(run_dir: &Path, name: &str, flag: &str) -> Result<Status, Failure> {
    let log = run_dir.join(format!("{name}.log"));
    let mut child = command(&log, flag)
        .and_then(|mut command| command.spawn())
        .map_err(|error| Failure::file("starting a process that logs to", &log, &error))?;
    let word = child.stdout.take().map(heard).unwrap_or_default();
    match word {
        Some(Word::Ready(status)) => Ok(*status),
        Some(Word::Failed(complaints)) => {
            // Its end is the end of undoing.
            drop(child.wait());
            Err(failure(complaints))
        }
        None => {
            let ended = child.wait().ok();
            let why = match ended.and_then(|status| status.signal()) {
                Some(signal) => format!("its process was killed by signal {signal}"),
                None => "its process ended without a word".to_owned(),
            };
            let remedy = format!("look into {}", log.display());
            Err(Failure::new("bringing the device up", why, remedy))
        }
    }
}

fn command(log: &Path, flag: &str) -> io::Result<Command> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true);
    let log = options.mode(0o600).open(log)?;
    let mut command = Command::new(THIS_PROGRAM);
    command
        .args(std::env::args_os().skip(1))
        .arg(flag)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    Ok(command)
}

/// The first line, however long it takes; what ends without one has said nothing.
fn heard(pipe: impl Read) -> Option<Word> {
    let mut line = String::new();
    BufReader::new(pipe.take(1 << 20))
        .read_line(&mut line)
        .ok()?;
    serde_json::from_str(&line).ok()
}

fn failure(mut complaints: Vec<Complaint>) -> Failure {
    match complaints.len() {
        1 => Failure::Failed(complaints.remove(0)),
        _ => Failure::Wrong(complaints),
    }
}

/// Says it; fails if nobody waits any more: then nobody wants it either.
pub(super) fn say(word: &Word) -> Result<(), Failure> {
    let written = serde_json::to_string(word).map_err(io::Error::from);
    let written = written.and_then(|line| {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    });
    written
        .map_err(|error| Failure::new("saying that traffic flows", error, "run 'hoplite up' again"))
}

/// What the process that stays does first: it belongs to no terminal, and its files are its own.
pub(super) fn detach() {
    // It is no process group's first, having just been started.
    rustix::process::setsid().map(drop).unwrap_or_default();
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
}

/// Tells a service manager that it is ready (sd_notify(3)), if one wants to know.
pub(super) fn notify() {
    use std::os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    };
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match path.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(b"READY=1\n", &to));
    if let Err(error) = sent {
        tracing::warn!(%error, "the service manager could not be told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_arrives_and_silence_is_no_word() {
        let word = Word::Failed(vec![Complaint::new("a", "b", "c")]);
        let line = serde_json::to_string(&word).expect("json");
        match heard(format!("{line}\n").as_bytes()) {
            Some(Word::Failed(complaints)) => {
                assert_eq!(failure(complaints).to_string(), "hoplite: a: b: c");
            }
            other => panic!("{other:?}"),
        }
        assert!(heard(&b""[..]).is_none());
    }
}
