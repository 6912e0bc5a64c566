//! Words to the user: answers on stdout, remarks on stderr. The only place of the crate that writes to either.
//! A closed or full stderr is nobody's failure; a closed stdout ends the command.

use std::{
    io::{self, IsTerminal, Write},
    sync::mpsc,
    thread,
    time::Duration,
};

use serde::Serialize;

use crate::errors::Failure;

/// How long a line to stderr may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Writes a line to stdout.
pub(crate) fn answer(line: impl AsRef<str>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", line.as_ref())
        .and_then(|()| out.flush())
        .map_err(|error| {
            Failure::new(
                "writing to the standard output",
                error,
                "check where it goes",
            )
        })
}

/// Writes a value to stdout as one line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(value)
        .map_err(|error| Failure::new("writing JSON", error, "please report this"))?;
    answer(line)
}

/// Writes a line to stderr. If that fails, nothing happens; if nobody reads there, it is given up.
pub(crate) fn remark(line: impl AsRef<str>) {
    let line = format!("{}\n", line.as_ref());
    let (done, written) = mpsc::sync_channel(1);
    let write = move || {
        drop(io::stderr().write_all(line.as_bytes()));
        done.send(()).unwrap_or_default();
    };
    if thread::Builder::new()
        .name("remark".into())
        .spawn(write)
        .is_ok()
    {
        written.recv_timeout(PATIENCE).unwrap_or_default();
    }
}

/// What is going on, on a terminal only: the next line of any kind takes its place.
pub(crate) fn passing(line: impl AsRef<str>) {
    let mut err = io::stderr().lock();
    if err.is_terminal() {
        drop(write!(err, "\r\x1b[K{}\r", line.as_ref()).and_then(|()| err.flush()));
    }
}
