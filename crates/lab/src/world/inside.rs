//! The process `hoplite-lab __world`: a trial as JSON on stdin, an answer as JSON on stdout, logs on stderr.

use std::{
    io::{self, Write},
    process::exit,
    sync::{Mutex, PoisonError},
    thread,
};

use tracing_subscriber::EnvFilter;

use super::{Answer, attempt, watchdog::Watchdog};
use crate::{
    errors::{Complaint, Failure},
    netns::user::{Entered, PARENT, enter},
    trial::Trial,
};

/// Whether the answer was given: there is one only.
static ANSWERED: Mutex<bool> = Mutex::new(false);

/// Makes the attempt that stdin orders.
///
/// # Errors
/// The order cannot be read, or nobody hears the answer.
pub fn main() -> Result<(), Failure> {
    log_to_stderr();
    match enter() {
        Ok(Entered::Inside) => {}
        Ok(Entered::Over(status)) if status.success() => return Ok(()),
        Ok(Entered::Over(status)) => {
            return Err(Failure::new(
                "running the world",
                status,
                "see the lines above",
            ));
        }
        Err(failure) => return give(&Answer::impossible(failure)),
    }
    let trial = trial()?;
    let answer = match Watchdog::start(trial.timeout) {
        Ok(watchdog) => attempt::make(&trial, &watchdog),
        Err(error) => {
            let remedy = "raise the limit of threads";
            Err(Failure::new("starting the world's clock", error, remedy))
        }
    };
    give(&match answer {
        Ok(report) => Answer::Report(Box::new(report)),
        Err(failure) => Answer::impossible(failure),
    })
}

/// Everything of the lab's own: it is one file an attempt, kept when the attempt failed. `HOPLITE_LOG` overrides.
fn log_to_stderr() {
    let filter = std::env::var("HOPLITE_LOG").unwrap_or_else(|_| "info,hoplite_lab=debug".into());
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(io::stderr)
        .with_ansi(false)
        .init();
}

/// The first line of stdin. Whoever started this process holds stdin open for as long as it is wanted.
fn trial() -> Result<Trial, Failure> {
    let wrong = |why: String| {
        let remedy = "give one trial as a line of JSON, as `trial::Trial` describes it";
        Failure::Wrong(vec![Complaint::new("reading the trial", why, remedy)])
    };
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line);
    read.map_err(|error| wrong(error.to_string()))?;
    let trial = serde_json::from_str(&line).map_err(|error| wrong(error.to_string()))?;
    if std::env::var_os(PARENT).is_some() {
        end_with_stdin().map_err(|error| wrong(error.to_string()))?;
    }
    Ok(trial)
}

/// Ends this process, and with it all others inside, when stdin ends.
fn end_with_stdin() -> io::Result<()> {
    let wait = || {
        io::copy(&mut io::stdin().lock(), &mut io::sink()).ok();
        #[expect(clippy::exit, reason = "nobody is left to answer to")]
        exit(1)
    };
    thread::Builder::new().name("wanted".into()).spawn(wait)?;
    Ok(())
}

/// Gives the answer, unless there was one.
pub(super) fn give(answer: &Answer) -> Result<(), Failure> {
    let mut answered = ANSWERED.lock().unwrap_or_else(PoisonError::into_inner);
    if *answered {
        return Ok(());
    }
    *answered = true;
    print(answer).map_err(|error| {
        Failure::new(
            "giving the answer",
            error,
            "nobody listens: start it from `run`",
        )
    })
}

fn print(answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}
