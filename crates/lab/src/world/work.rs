//! One workload: a `__work` process in the host that asks, with its order on stdin and its transfers on stdout.

use std::{
    fs, io,
    io::{BufRead, BufReader, Read, Write},
    path::PathBuf,
    process::{ChildStdout, Stdio},
    sync::mpsc::SyncSender,
    thread,
    time::Duration,
};

use ring::digest;

use super::{failed, usage};
use crate::{
    log::tail,
    netns::{Host, Lab, Process, user::THIS_PROGRAM},
    subject::WayIn,
    trial::{Outcome, ProcessUse, Trial},
    workload::{Order, Plan, Ports, Transfer, Way},
};

/// What one line of a workload may weigh, in octets: a transfer with its round trips.
const LINE: u64 = 256 << 20;

/// How long a workload may take to end after its last word.
const PATIENCE: Duration = Duration::from_secs(5);

/// A workload that was started.
#[derive(Debug)]
pub(super) struct Work<'a> {
    pub(super) plan: &'a Plan,
    process: Process,
    /// As far as it was seen.
    peak: u64,
    log: PathBuf,
}

/// What happens to a workload, by its number.
#[derive(Debug)]
pub(super) enum Event {
    /// It has told of a transfer.
    Transfer(usize, Box<Transfer>),
    /// It has said what is no transfer.
    Nonsense(usize, String),
    /// It says no more.
    Silence(usize),
}

/// What every workload of an attempt needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) trial: &'a Trial,
    pub(super) lab: &'a Lab,
    pub(super) ways: &'a [WayIn],
}

impl<'a> Work<'a> {
    /// Starts it; what it says comes to `events` under its number.
    pub(super) fn start(
        site: Site<'_>,
        plan: &'a Plan,
        number: usize,
        events: SyncSender<Event>,
    ) -> Result<Self, Outcome> {
        let started = Self::launch(site, plan).and_then(|(work, stdout)| {
            listen(stdout, number, events)?;
            Ok(work)
        });
        let doing = || format!("starting the workload {}", plan.name);
        started.map_err(|error| failed(doing(), error.to_string(), ""))
    }

    fn launch(site: Site<'_>, plan: &'a Plan) -> io::Result<(Self, ChildStdout)> {
        let order = order(site, plan)?;
        let log = log_of(site.trial, &name_of(plan))?;
        let host = host(site.lab, &plan.from)?;
        let launch = host.command([THIS_PROGRAM, "__work"]).log(&log)?;
        let mut process = launch
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = process.stdin.take() {
            let mut line = serde_json::to_vec(&order)?;
            line.push(b'\n');
            stdin.write_all(&line)?;
        }
        let stdout = process.stdout.take();
        let work = Self {
            plan,
            process,
            peak: 0,
            log,
        };
        Ok((
            work,
            stdout.ok_or_else(|| io::Error::other("it has no output"))?,
        ))
    }

    /// It says something: the moment to look how large it is.
    pub(super) fn seen(&mut self) {
        let peak = self.process.is_alive().then(|| self.process.peak_memory());
        self.peak = self.peak.max(peak.flatten().unwrap_or_default());
    }

    /// It says no more: it must have ended well.
    pub(super) fn ended(&self) -> Result<(), Outcome> {
        match self.process.wait_for(PATIENCE) {
            Some(exit) if exit.status.success() => Ok(()),
            Some(exit) => Err(self.failed(format!("it ended: {}", exit.status))),
            None => Err(self.failed("it neither says anything nor ends".into())),
        }
    }

    pub(super) fn failed(&self, why: String) -> Outcome {
        failed(
            format!("running the workload {}", self.plan.name),
            why,
            tail(&self.log),
        )
    }

    /// What it used, all of it while workloads ran.
    pub(super) fn used(&self) -> ProcessUse {
        usage::of_own(
            name_of(self.plan),
            &self.plan.from,
            &self.process,
            self.peak,
            None,
        )
    }
}

fn host<'a>(lab: &'a Lab, name: &str) -> io::Result<&'a Host> {
    let none = || io::Error::other(format!("there is no host {name:?}"));
    Ok(lab.host(name).ok_or_else(none)?)
}

fn name_of(plan: &Plan) -> String {
    format!("work:{}", plan.name)
}

/// What the process is told.
fn order(site: Site<'_>, plan: &Plan) -> io::Result<Order> {
    let server = host(site.lab, &plan.to)?.addresses.v4.to_string();
    let way_in = site
        .ways
        .iter()
        .find(|way| way.host == plan.from && !plan.direct);
    let target = way_in.and_then(|way| way.target.clone());
    Ok(Order {
        plan: plan.clone(),
        way: way_in.map_or(Way::Direct, |way| way.way.clone()),
        target: target.unwrap_or(server),
        ports: Ports::default(),
        seed: seed(site.trial.seed, &plan.name),
        qlog: qlog_of(site.trial, &name_of(plan))?,
    })
}

/// Depends on the trial's seed and the workload's name only: another workload beside it changes nothing.
fn seed(trial: u64, name: &str) -> u64 {
    let text = [trial.to_be_bytes().as_slice(), name.as_bytes()].concat();
    let hash = digest::digest(&digest::SHA256, &text);
    let head = hash.as_ref().first_chunk::<8>();
    head.map_or(trial, |octets| u64::from_be_bytes(*octets))
}

/// Reads transfers until the end.
fn listen(stdout: ChildStdout, number: usize, events: SyncSender<Event>) -> io::Result<()> {
    let reading = move || {
        let mut lines = BufReader::new(stdout);
        while let Some(event) = next(&mut lines, number) {
            if events.send(event).is_err() {
                return;
            }
        }
        // Nobody listens any more when the attempt is over.
        events.send(Event::Silence(number)).ok();
    };
    thread::Builder::new().name("work".into()).spawn(reading)?;
    Ok(())
}

fn next(lines: &mut BufReader<ChildStdout>, number: usize) -> Option<Event> {
    let mut line = String::new();
    match lines.take(LINE).read_line(&mut line) {
        Ok(0) => None,
        Ok(_) => Some(match serde_json::from_str(&line) {
            Ok(transfer) => Event::Transfer(number, Box::new(transfer)),
            Err(error) => Event::Nonsense(number, error.to_string()),
        }),
        Err(error) => Some(Event::Nonsense(number, error.to_string())),
    }
}

/// The log of a process of the lab's own, in `logs/`.
pub(super) fn log_of(trial: &Trial, process: &str) -> io::Result<PathBuf> {
    let logs = trial.directory.join("logs");
    fs::create_dir_all(&logs)?;
    Ok(logs.join(format!("{}.log", plain(process))))
}

/// Where a process writes its qlogs, in `qlog/PROCESS/`, if they are wanted.
pub(super) fn qlog_of(trial: &Trial, process: &str) -> io::Result<Option<PathBuf>> {
    if !trial.record.qlog {
        return Ok(None);
    }
    let directory = trial.directory.join("qlog").join(plain(process));
    fs::create_dir_all(&directory)?;
    Ok(Some(directory))
}

/// Names of processes become names of files.
fn plain(process: &str) -> String {
    process.replace(['/', '\0'], "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workloads_seed_depends_on_the_trial_and_its_name() {
        assert_eq!(seed(1, "a"), seed(1, "a"));
        assert_ne!(seed(1, "a"), seed(1, "b"));
        assert_ne!(seed(1, "a"), seed(2, "a"));
    }
}
