//! The servers of the workloads: one `__serve` in each host that something is fetched from. It ends when its stdin does.

use std::{
    collections::BTreeSet,
    io::{self, Read},
    os::fd::AsFd,
    path::PathBuf,
    process::{ChildStdin, ChildStdout, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::Signal,
};

use super::{failed, usage};
use crate::{
    log::tail,
    netns::{Lab, Process, user::THIS_PROGRAM},
    trial::{Outcome, ProcessUse, Trial},
};

/// How long a server may take to open its ports on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// How long it may take to end.
const PATIENCE: Duration = Duration::from_secs(3);

/// All servers of an attempt. What is not stopped ends with the world.
#[derive(Debug, Default)]
pub(super) struct Servers(Vec<Server>);

#[derive(Debug)]
struct Server {
    host: String,
    process: Process,
    stdin: Option<ChildStdin>,
    log: PathBuf,
}

impl Servers {
    /// Starts them all, then waits until all are ready.
    pub(super) fn start(trial: &Trial, lab: &Lab) -> Result<Self, Outcome> {
        let hosts: BTreeSet<&str> = trial
            .workloads
            .iter()
            .map(|plan| plan.to.as_str())
            .collect();
        let started = hosts.into_iter().map(|host| {
            let server = Server::start(trial, lab, host);
            server.map_err(|error| {
                failed(
                    format!("starting the server on {host}"),
                    error.to_string(),
                    "",
                )
            })
        });
        let mut servers = started.collect::<Result<Vec<_>, _>>()?;
        let until = Instant::now() + READY_WITHIN;
        servers
            .iter_mut()
            .try_for_each(|server| server.wait(until))?;
        Ok(Self(servers))
    }

    pub(super) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.0.iter().map(|server| &server.process)
    }

    /// Whether all still serve.
    pub(super) fn check(&self) -> Result<(), Outcome> {
        let ended = |server: &&Server| !server.process.is_alive();
        match self.0.iter().find(ended) {
            Some(server) => Err(server.ended(format!("serving on {}", server.host))),
            None => Ok(()),
        }
    }

    /// Ends them; `cpu_s` is what each used while the workloads ran.
    pub(super) fn stop(self, cpu_s: &[f64]) -> Vec<ProcessUse> {
        let peaks: Vec<u64> = self.processes().map(peak).collect();
        let mut servers = self.0;
        for server in &mut servers {
            server.stdin = None;
        }
        let uses = servers.iter().zip(peaks).zip(cpu_s);
        uses.map(|((server, peak), cpu_s)| server.end(peak, *cpu_s))
            .collect()
    }
}

fn peak(process: &Process) -> u64 {
    process.peak_memory().unwrap_or_default()
}

impl Server {
    fn start(trial: &Trial, lab: &Lab, host: &str) -> io::Result<Self> {
        let none = || io::Error::other(format!("there is no host {host:?}"));
        let log = super::work::log_of(trial, &format!("serve:{host}"))?;
        let launch = lab
            .host(host)
            .ok_or_else(none)?
            .command([THIS_PROGRAM, "__serve"]);
        let mut launch = launch
            .log(&log)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(qlog) = super::work::qlog_of(trial, &format!("serve:{host}"))? {
            launch = launch.env("QLOGDIR", qlog);
        }
        let mut process = launch.spawn()?;
        Ok(Self {
            host: host.to_owned(),
            stdin: process.stdin.take(),
            process,
            log,
        })
    }

    /// Waits for the line `ready`.
    fn wait(&mut self, until: Instant) -> Result<(), Outcome> {
        let doing = format!("waiting for the server on {}", self.host);
        let Some(mut stdout) = self.process.stdout.take() else {
            return Err(self.ended(doing));
        };
        let said = first_line(&mut stdout, until);
        // It says nothing more, but must not fail for want of somebody who listens.
        self.process.stdout = Some(stdout);
        match said {
            Ok(line) if line == b"ready\n" => Ok(()),
            Ok(_) if !self.process.is_alive() => Err(self.ended(doing)),
            Ok(_) => Err(failed(doing, "it is not ready in time", tail(&self.log))),
            Err(error) => Err(failed(doing, error.to_string(), tail(&self.log))),
        }
    }

    fn ended(&self, doing: String) -> Outcome {
        let exit = self.process.wait_for(Duration::from_secs(1));
        let why = exit.map_or_else(
            || "it ended".into(),
            |exit| format!("it ended: {}", exit.status),
        );
        failed(doing, why, tail(&self.log))
    }

    fn end(&self, peak: u64, cpu_s: f64) -> ProcessUse {
        if self.process.wait_for(PATIENCE).is_none() {
            tracing::warn!(host = self.host, "the server does not end by itself");
            self.process.signal_group(Signal::KILL).ok();
            let _exit = self.process.wait_for(PATIENCE);
        }
        let name = format!("serve:{}", self.host);
        usage::of_own(name, &self.host, &self.process, peak, Some(cpu_s))
    }
}

/// Reads until the end of a line, the end, or the deadline.
fn first_line(stdout: &mut ChildStdout, until: Instant) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') && line.len() < 100 {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut ready = [PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::IN)];
        let mut octet = [0];
        if poll(&mut ready, Some(&left))? == 0 || stdout.read(&mut octet)? == 0 {
            break;
        }
        line.extend(octet);
    }
    Ok(line)
}
