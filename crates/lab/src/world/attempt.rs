//! The attempt itself: hosts, emulator, subject, servers, workloads; then all of it ended, the other way round, and looked at what it left.

use std::{io, path::Path};

use super::{
    failed,
    groups::{self, Carried},
    leaks, machine,
    servers::Servers,
    usage::Snapshot,
    watchdog::Watchdog,
    work::{self, Site},
};
use crate::{
    emulator::{self, Port},
    errors::Failure,
    netns::{Lab, Process, Tun, mounts},
    subject::{
        self,
        run::{PATIENCE, Running},
    },
    trial::{EmulatorHealth, Outcome, ProcessUse, Report, Trial},
};

/// A report of nothing yet.
pub(super) fn blank(began: f64) -> Report {
    Report {
        outcome: Outcome::Done,
        transfers: Vec::new(),
        processes: Vec::new(),
        links: Vec::new(),
        emulator: EmulatorHealth::default(),
        began,
        ready_after: 0.0,
        took: 0.0,
    }
}

/// Makes an attempt.
///
/// # Errors
/// Only what makes every attempt impossible on this machine; all else is the report's outcome.
pub(super) fn make(trial: &Trial, watchdog: &Watchdog) -> Result<Report, Failure> {
    let mut report = blank(machine::now());
    watchdog.doing("building the network");
    let (lab, tuns) = Lab::build(&trial.topology, &trial.sysctls)?;
    mounts::name_hosts(&trial.directory, &trial.topology.addresses())
        .map_err(|error| unwritable(&trial.directory, &error))?;
    let emulator = start_emulator(trial, tuns)?;
    let outcome = carry(trial, &lab, &emulator, watchdog, &mut report);
    let left = leaks::end();
    let (links, health) = emulator.stop();
    report.links = links;
    let unread = std::mem::replace(&mut report.emulator, health).own_drops;
    report.emulator.own_drops += unread;
    if let Err(failure) = outcome.and(left) {
        report.outcome = failure;
    }
    report.took = watchdog.elapsed().as_secs_f64();
    Ok(report)
}

fn start_emulator(trial: &Trial, tuns: Vec<Tun>) -> Result<emulator::Running, Failure> {
    let port = |tun: Tun| Port {
        node: tun.host,
        link: tun.link,
        fd: tun.fd,
    };
    let options = emulator::Options {
        seed: trial.seed,
        directory: trial.directory.clone(),
        record: trial.record.clone(),
    };
    let ports = tuns.into_iter().map(port).collect();
    let addresses = trial.topology.addresses();
    emulator::start(&trial.topology, ports, &addresses, &options).map_err(|error| {
        Failure::new(
            "starting the emulator",
            error,
            "look after room for threads and files",
        )
    })
}

fn unwritable(directory: &Path, error: &io::Error) -> Failure {
    let doing = format!("writing to {}", directory.display());
    Failure::new(doing, error, "make room there, or choose another directory")
}

/// Starts the subject, lets the workloads run, ends both.
fn carry(
    trial: &Trial,
    lab: &Lab,
    emulator: &emulator::Running,
    watchdog: &Watchdog,
    report: &mut Report,
) -> Result<(), Outcome> {
    watchdog.doing(format!("starting {}", trial.subject.label));
    let plan = with_qlogs(trial)
        .map_err(|error| failed("making the directories of qlogs", error.to_string(), ""))?;
    let subject = subject::run::start(&plan, lab, &trial.directory, &trial.shared)?;
    report.ready_after = watchdog.elapsed().as_secs_f64();
    watchdog.doing("starting the servers");
    let servers = Servers::start(trial, lab)?;
    let site = Site {
        trial,
        lab,
        ways: subject.ways(),
    };
    let mut carried = Carried::default();
    let before = (machine::dropped(lab), used(&subject, &servers));
    emulator.begin();
    let outcome = groups::run(site, &mut carried, |doing| {
        watchdog.doing_again(doing);
        watchdog.check()?;
        subject.check()?;
        servers.check()
    });
    emulator.end();
    let after = (used(&subject, &servers), machine::dropped(lab));
    report.emulator.own_drops = after.1.saturating_sub(before.0);
    report.transfers = std::mem::take(&mut carried.transfers);
    let works = carried.works.iter().map(|work| work.used()).collect();
    watchdog.doing("stopping the subject");
    report.processes = end(subject, servers, [&before.1, &after.0], works);
    outcome
}

/// Every daemon of the subject is told where its qlogs go, if they are wanted.
fn with_qlogs(trial: &Trial) -> io::Result<subject::Plan> {
    let mut plan = trial.subject.clone();
    for step in &mut plan.steps {
        if let Some(directory) = work::qlog_of(trial, &step.name)? {
            let text = directory.to_string_lossy().into_owned();
            step.env.entry("QLOGDIR".into()).or_insert(text);
        }
    }
    Ok(plan)
}

fn used(subject: &Running, servers: &Servers) -> Snapshot {
    Snapshot::of(daemons(subject).chain(servers.processes()))
}

fn daemons(subject: &Running) -> impl Iterator<Item = &Process> {
    subject.daemons().map(|(_, _, process)| process)
}

/// Ends servers and subject, and says what everybody used: the subject's first, then the servers, then the workloads.
fn end(
    subject: Running,
    servers: Servers,
    [before, after]: [&Snapshot; 2],
    works: Vec<ProcessUse>,
) -> Vec<ProcessUse> {
    let own = |(place, (name, host, _)): (usize, (&str, &str, &Process))| ProcessUse {
        name: name.to_owned(),
        host: host.to_owned(),
        cpu_s: after.since(before, place),
        life_cpu_s: after.at(place).as_secs_f64(),
        peak_memory: 0,
    };
    let mut processes: Vec<ProcessUse> = subject.daemons().enumerate().map(own).collect();
    let count = processes.len();
    let served = servers.processes().enumerate();
    let served: Vec<f64> = served
        .map(|(i, _)| after.since(before, count + i))
        .collect();
    let servers = servers.stop(&served);
    for stopped in subject.stop(PATIENCE) {
        if stopped.killed {
            tracing::warn!(name = stopped.name, "had to be killed");
        }
        let same = |one: &&mut ProcessUse| one.name == stopped.name;
        if let Some(one) = processes.iter_mut().find(same) {
            // The kernel counts for it only those helpers that it waited for.
            one.life_cpu_s = one.life_cpu_s.max(stopped.life_cpu.as_secs_f64());
            one.peak_memory = stopped.peak_memory;
        }
    }
    processes.into_iter().chain(servers).chain(works).collect()
}
