//! The process `hoplite-lab __world`: a trial as JSON on stdin, an answer as JSON on stdout, logs on stderr.
//!
//! An attempt builds hosts, emulator, subject, servers and workloads; then all of it is ended, the other way round, and looked at what it left:
//! processes that nobody of ours started, or that left their group, are named and killed. A watchdog knows the time: whoever works looks at it
//! now and then; if nobody has looked for long, it ends the world itself.

use std::{
    io::{self, Write},
    path::Path,
    process::exit,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tracing_subscriber::EnvFilter;

use super::{
    Answer, failed,
    power::{self, Sampler},
    workloads::{self, Carried, Servers, Site},
};
use crate::{
    emulator::{self, Port},
    errors::{Complaint, Failure},
    experiments::{
        subject::{
            self,
            run::{PATIENCE, Running},
        },
        trial::{EmulatorHealth, Outcome, ProcessUse, Report, Trial},
        world,
    },
    netns::{
        Lab, Process, Tun,
        process::{self, Other, others},
        user::{self, Entered, PARENT, enter},
    },
    pulse::Beating,
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
        Ok(watchdog) => attempt(&trial, &watchdog),
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
fn give(answer: &Answer) -> Result<(), Failure> {
    let mut answered = ANSWERED.lock();
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

/// How long an orderly end may take after the time is up: daemons that do not listen are given 5 s, one after another.
const ORDERLY_END: Duration = Duration::from_secs(25);

/// How often one looks whether this process still goes on.
const PULSE: Duration = Duration::from_millis(50);

/// Knows the time, what is being done, and whether the world stood still meanwhile.
#[derive(Clone, Debug)]
struct Watchdog {
    began: Instant,
    timeout: Duration,
    doing: Arc<Mutex<String>>,
    pulse: Beating,
}

impl Watchdog {
    fn start(timeout: Duration) -> io::Result<Self> {
        let dog = Self {
            began: Instant::now(),
            timeout,
            doing: Arc::default(),
            pulse: Beating::start(PULSE, || {})?,
        };
        let watching = dog.clone();
        thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || watching.watch())?;
        Ok(dog)
    }

    /// Since the attempt began.
    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Remembers what is being done, in the words of an outcome.
    fn doing(&self, what: impl Into<String>) {
        let what = what.into();
        tracing::info!("{what}");
        *self.doing.lock() = what;
    }

    /// Like `doing`, for those who say the same again and again.
    fn doing_again(&self, what: &str) {
        let known = *self.doing.lock() == what;
        if !known {
            self.doing(what);
        }
    }

    /// Whether there is time left.
    ///
    /// # Errors
    /// The outcome, if there is none.
    fn check(&self) -> Result<(), Outcome> {
        match self.left() {
            Duration::ZERO => Err(self.too_late()),
            _ => Ok(()),
        }
    }

    fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.elapsed())
    }

    fn too_late(&self) -> Outcome {
        let doing = self.doing.lock().clone();
        let seconds = self.timeout.as_secs_f64();
        failed(
            doing,
            format!("the attempt took longer than its timeout of {seconds} s"),
            "",
        )
    }

    fn watch(&self) {
        thread::sleep(self.left().saturating_add(ORDERLY_END));
        let mut report = blank(world::unix_now() - self.elapsed().as_secs_f64());
        report.outcome = self.too_late();
        report.took = self.elapsed().as_secs_f64();
        self.pulse.so_far().tell(&mut report.emulator);
        let given = give(&Answer::Report(Box::new(report)));
        // Whoever works hangs; everything ends with PID 1.
        exit(i32::from(given.is_err()))
    }
}

/// A report of nothing yet.
pub(super) fn blank(began: f64) -> Report {
    Report {
        outcome: Outcome::Done,
        transfers: Vec::new(),
        processes: Vec::new(),
        links: Vec::new(),
        power: Vec::new(),
        worked: 0.0,
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
fn attempt(trial: &Trial, watchdog: &Watchdog) -> Result<Report, Failure> {
    let mut report = blank(world::unix_now());
    watchdog.doing("building the network");
    let (lab, tuns) = Lab::build(&trial.topology, &trial.sysctls)?;
    let addresses = trial.topology.addresses();
    let resolver = workloads::resolver(trial).and_then(|host| addresses.get(host));
    user::name_hosts(&trial.directory, &addresses, resolver.copied())
        .map_err(|error| unwritable(&trial.directory, &error))?;
    let emulator = start_emulator(trial, tuns)?;
    let outcome = carry(trial, &lab, &emulator, watchdog, &mut report);
    let left = end_leftovers();
    let (links, health) = emulator.stop();
    report.links = links;
    let unread = std::mem::replace(&mut report.emulator, health).own_drops;
    report.emulator.own_drops += unread;
    if let Err(failure) = outcome.and(left) {
        report.outcome = failure;
    }
    report.took = watchdog.elapsed().as_secs_f64();
    watchdog.pulse.so_far().tell(&mut report.emulator);
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
        tolerated: trial.tolerated,
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
    let before = (world::dropped(lab), used(&subject, &servers));
    emulator.begin();
    let (power, began) = (Sampler::start(power::counters()), Instant::now());
    let outcome = workloads::run(site, &mut carried, |doing| {
        watchdog.doing_again(doing);
        watchdog.check()?;
        subject.check()?;
        servers.check()
    });
    emulator.end();
    report.worked = began.elapsed().as_secs_f64();
    report.power = power.end();
    let after = (used(&subject, &servers), world::dropped(lab));
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
        if let Some(directory) = workloads::qlog_of(trial, &step.name)? {
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

/// How long a process that was told to end, or whose parent has ended, may take.
const MOMENT: Duration = Duration::from_secs(2);

/// Ends everything but this process.
///
/// # Errors
/// Names what was still there, by the names of programs only.
fn end_leftovers() -> Result<(), Outcome> {
    let left = wait_until_alone(|| {});
    if left.is_empty() {
        return Ok(());
    }
    let still = wait_until_alone(|| others().iter().for_each(kill));
    let mut names: Vec<String> = left.into_iter().map(|other| other.name).collect();
    names.sort_unstable();
    let mut why = format!("processes were left behind: {}", names.join(", "));
    if !still.is_empty() {
        why.push_str(", and cannot be killed");
    }
    Err(failed("stopping the subject", why, ""))
}

/// Waits a moment until nobody is left; `nudge` happens before each look.
fn wait_until_alone(nudge: impl Fn()) -> Vec<Other> {
    let until = Instant::now() + MOMENT;
    loop {
        nudge();
        let left = others();
        if left.is_empty() || Instant::now() > until {
            return left;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn kill(other: &Other) {
    let pid = i32::try_from(other.pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        kill_process(pid, Signal::KILL).ok();
    }
}

/// Processor time of some processes at one moment, their helpers included, in the order in which they were given.
#[derive(Debug, Default)]
struct Snapshot(Vec<Duration>);

impl Snapshot {
    fn of<'a>(processes: impl Iterator<Item = &'a Process>) -> Self {
        let groups = process::cpu_by_group();
        let time = |process: &Process| {
            let group = groups.get(&process.pid).copied();
            process.cpu().max(group.unwrap_or_default())
        };
        Self(processes.map(time).collect())
    }

    /// Seconds that the process in that place has used since `before`.
    fn since(&self, before: &Self, place: usize) -> f64 {
        self.at(place)
            .saturating_sub(before.at(place))
            .as_secs_f64()
    }

    /// What the process in that place has used over its life.
    fn at(&self, place: usize) -> Duration {
        self.0.get(place).copied().unwrap_or_default()
    }
}

/// Of a process of the workload itself, which ended.
pub(super) fn process_use(
    name: String,
    host: &str,
    process: &Process,
    peak: u64,
    cpu_s: Option<f64>,
) -> ProcessUse {
    let life_cpu_s = process.cpu().as_secs_f64();
    ProcessUse {
        name,
        host: host.to_owned(),
        cpu_s: cpu_s.unwrap_or(life_cpu_s),
        life_cpu_s,
        // The kernel's own figure of an ended process includes what this one had when it was spawned.
        peak_memory: match peak {
            0 => process.peak_memory().unwrap_or_default(),
            peak => peak,
        },
    }
}
