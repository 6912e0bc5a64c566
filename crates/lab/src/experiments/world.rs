//! A world: one attempt at one repetition, in a process of its own, in namespaces of its own, that leaves nothing behind. This is the side that its
//! parent sees: started with a trial, answered with a report, killed when it takes too long or is not wanted any more.
//!
//! ```text
//! campaign ──Trial──▶ __world (unshares) ──▶ __world (PID 1): hosts, emulator, subject, __serve, __work
//!          ◀─Answer── stdout                 └─ dies with its parent, and everything with it
//! ```
//!
//! # Not in this room
//! Whether an attempt counts, and whether there will be another one: `campaign`.

pub mod inside;
pub(crate) mod power;
mod workloads;

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf, absolute},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::{
    errors::{Complaint, Failure},
    experiments::trial::{EmulatorHealth, Key, Outcome, Report, Trial},
    log::tail,
    netns::{
        Lab,
        process::has_stopped_child,
        user::{PARENT, THIS_PROGRAM},
    },
    pulse::{Moment, Pulse},
    topology::{Direction, Link, Node, Topology},
};

/// What `__world` writes on stdout, as one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    /// The attempt was made.
    Report(Box<Report>),
    /// This machine, or this scenario on it, allows no attempt at all.
    Impossible {
        doing: String,
        why: String,
        remedy: String,
    },
}

impl Answer {
    fn impossible(failure: Failure) -> Self {
        let complaint = match failure {
            Failure::Failed(complaint) => Some(complaint),
            Failure::Wrong(complaints) => complaints.into_iter().next(),
        };
        let Complaint { doing, why, remedy } = complaint
            .unwrap_or_else(|| Complaint::new("running the world", "it failed", "see its log"));
        Self::Impossible { doing, why, remedy }
    }
}

fn failed(doing: impl Into<String>, why: impl Into<String>, log: impl Into<String>) -> Outcome {
    Outcome::Failed {
        doing: doing.into(),
        why: why.into(),
        log: log.into(),
    }
}

/// How long a world may take beyond its trial's timeout to end in order, before it is killed.
const GRACE: Duration = Duration::from_secs(40);

/// Longer than anybody waits; a clock can still be added to it.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How often one looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(50);

/// Of so many looks one is whether somebody has stopped it.
const LOOKS: u32 = 4;

/// How long a world may take to end after its answer, or when nobody wants it any more.
const CLEARING: Duration = Duration::from_secs(60);

/// What an answer may weigh, in bytes.
const ANSWER: u64 = 1 << 30;

/// Whose `__world` is run.
#[derive(Clone, Debug)]
pub struct World {
    program: PathBuf,
}

/// How the wait for an answer ended.
enum Waited {
    Answered(Vec<u8>),
    TooLong,
    Unwanted,
}

/// Makes the attempt in a world of this program, which ends at once when `unwanted` says so; it is asked often, and the outcome then is a
/// failed one.
///
/// # Errors
/// When this machine allows no attempt at all: no namespaces, no TUN, an unknown setting. Everything else is the report's outcome.
pub fn spawn_until(trial: &Trial, unwanted: &dyn Fn() -> bool) -> Result<Report, Failure> {
    World::default().attempt(trial, unwanted)
}

/// Whether this machine allows worlds: makes an empty one. Says whether its emulator had real-time priority.
///
/// # Errors
/// What is missing and what provides it.
pub fn check() -> Result<bool, Failure> {
    let failed = |error: io::Error| {
        Failure::new(
            "making a directory for a trial run",
            error,
            "make room in the directory for temporary files",
        )
    };
    let directory = tempfile::tempdir().map_err(failed)?;
    let report = spawn_until(&empty(directory.path()), &|| false)?;
    match report.outcome {
        Outcome::Done => Ok(report.emulator.real_time),
        Outcome::Failed { doing, why, .. } => Err(Failure::new(doing, why, "please report this")),
    }
}

fn empty(directory: &Path) -> Trial {
    Trial {
        key: Key {
            scenario: "empty".into(),
            case: Default::default(),
            subject: "native".into(),
            repetition: 1,
        },
        seed: 1,
        topology: two_hosts(),
        subject: Default::default(),
        workloads: Vec::new(),
        sysctls: Default::default(),
        record: Default::default(),
        analyses: Vec::new(),
        shared: directory.join("shared"),
        timeout: Duration::from_secs(20),
        tolerated: Duration::from_micros(500),
        directory: directory.into(),
    }
}

fn two_hosts() -> Topology {
    Topology {
        nodes: ["a", "b"].map(Node::host).into(),
        links: vec![Link::between("a", "b", &Direction::default())],
    }
}

impl Default for World {
    fn default() -> Self {
        Self::of(Path::new(THIS_PROGRAM))
    }
}

impl World {
    /// Of another program than the running one: for tests, which are programs of their own.
    #[must_use]
    pub fn of(program: &Path) -> Self {
        Self {
            program: program.into(),
        }
    }

    /// Makes an attempt; see [`spawn_until`].
    ///
    /// # Errors
    /// Those of [`spawn_until`].
    pub fn attempt(&self, trial: &Trial, unwanted: &dyn Fn() -> bool) -> Result<Report, Failure> {
        let began = Instant::now();
        let log = trial.directory.join("world.log");
        let starting = |error: io::Error| {
            Failure::new(
                "starting a world",
                error,
                "look after room for files and processes",
            )
        };
        let mut child = self.start(&log).map_err(starting)?;
        let (stdin, answers) = order(&mut child, trial).map_err(starting)?;
        let limit = trial.timeout.min(FOREVER) + GRACE;
        let mut still = Still::begin(child.id());
        let waited = wait(&answers, began + limit, &mut still, unwanted);
        let ended = end(child, stdin, &waited).map_err(starting)?;
        let outcome = match waited {
            Waited::Answered(bytes) => match serde_json::from_slice(&bytes) {
                Ok(Answer::Report(report)) => return Ok(*report),
                Ok(Answer::Impossible { doing, why, remedy }) => {
                    return Err(Failure::new(doing, why, remedy));
                }
                Err(_) => broken(ended, &log),
            },
            Waited::TooLong => failed(
                "running the world",
                format!("it did not end within {} s", limit.as_secs()),
                tail(&log),
            ),
            Waited::Unwanted => failed("running the world", "interrupted", ""),
        };
        let mut report = blank(outcome, began);
        still.tell(&mut report.emulator);
        Ok(report)
    }

    fn start(&self, log: &Path) -> io::Result<Child> {
        if let Some(directory) = log.parent() {
            fs::create_dir_all(directory)?;
        }
        Command::new(&self.program)
            .arg("__world")
            .env(PARENT, std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(log)?)
            // Of its own, so that an interrupt at the terminal reaches the campaign alone, which then ends the world.
            .process_group(0)
            .spawn()
    }
}

fn broken(status: ExitStatus, log: &Path) -> Outcome {
    failed(
        "running the world",
        format!("it ended without an answer: {status}"),
        tail(log),
    )
}

/// Hands over the trial, with absolute paths. The world lives while its stdin is open; its answer comes to the receiver.
fn order(child: &mut Child, trial: &Trial) -> io::Result<(Option<ChildStdin>, Receiver<Vec<u8>>)> {
    let mut trial = trial.clone();
    trial.directory = absolute(&trial.directory)?;
    trial.shared = absolute(&trial.shared)?;
    let (tell, told) = sync_channel(1);
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            stdout.take(ANSWER).read_to_end(&mut bytes).ok();
            tell.send(bytes).ok();
        });
    }
    let mut line = serde_json::to_vec(&trial)?;
    line.push(b'\n');
    let mut stdin = child.stdin.take();
    if let Some(stdin) = &mut stdin {
        // Whoever does not listen any more has answered, or his end is seen soon.
        stdin.write_all(&line).ok();
    }
    Ok((stdin, told))
}

/// Whether somebody stood still while an answer was waited for: this process, or the world. A world that answers tells itself.
struct Still {
    world: u32,
    pulse: Pulse,
    looks: u32,
    /// When the world was looked at last, and how long it was seen stopped.
    looked: Instant,
    stopped: Duration,
}

impl Still {
    fn begin(world: u32) -> Self {
        Self {
            world,
            pulse: Pulse::begin(LOOK, Moment::now()),
            looks: 0,
            looked: Instant::now(),
            stopped: Duration::ZERO,
        }
    }

    fn look(&mut self) {
        self.pulse.beat(Moment::now());
        self.looks += 1;
        if self.looks.is_multiple_of(LOOKS) {
            let since = self.looked.elapsed();
            self.looked = Instant::now();
            if has_stopped_child(self.world) {
                self.stopped += since;
            }
        }
    }

    fn tell(&self, health: &mut EmulatorHealth) {
        self.pulse.tell(health);
        health.stood_s = health.stood_s.max(self.stopped.as_secs_f64());
    }
}

fn wait(
    answers: &Receiver<Vec<u8>>,
    deadline: Instant,
    still: &mut Still,
    unwanted: &dyn Fn() -> bool,
) -> Waited {
    loop {
        still.look();
        match answers.recv_timeout(LOOK) {
            Ok(bytes) => return Waited::Answered(bytes),
            Err(RecvTimeoutError::Disconnected) => return Waited::Answered(Vec::new()),
            Err(RecvTimeoutError::Timeout) if unwanted() => return Waited::Unwanted,
            Err(RecvTimeoutError::Timeout) if Instant::now() > deadline => return Waited::TooLong,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Sees to it that the world is over, and its namespaces with it: the outer process ends when the kernel has cleared away all that was inside.
fn end(mut child: Child, stdin: Option<ChildStdin>, waited: &Waited) -> io::Result<ExitStatus> {
    let until = Instant::now() + CLEARING;
    if !matches!(waited, Waited::Answered(_)) {
        drop(stdin);
    }
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        thread::sleep(LOOK / 10);
    }
    child.kill()?;
    child.wait()
}

/// A report of a world that gave none.
fn blank(outcome: Outcome, began: Instant) -> Report {
    let took = began.elapsed().as_secs_f64();
    Report {
        outcome,
        took,
        ..inside::blank(unix_now() - took)
    }
}

/// Packets that the hosts' interfaces have dropped until now; a host that cannot tell counts none.
pub(super) fn dropped(lab: &Lab) -> u64 {
    let counts = lab.hosts().iter().map(|host| host.dropped());
    counts.filter_map(Result::ok).sum()
}

/// Seconds since 1970.
pub(super) fn unix_now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map(|since| since.as_secs_f64()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn a_world_that_somebody_stopped_is_seen_by_who_waits_for_it() {
        let mut world = Command::new("sh")
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = io::BufReader::new(world.stdout.take().unwrap());
        io::BufRead::read_line(&mut said, &mut line).unwrap();
        let first = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        let mut still = Still::begin(world.id());
        let mut look = || {
            thread::sleep(LOOK / 10);
            still.look();
            let mut health = EmulatorHealth::default();
            still.tell(&mut health);
            (still.stopped, health.stood_s)
        };
        assert_eq!((0..10).map(|_| look().0).max(), Some(Duration::ZERO));
        let children = format!("/proc/{0}/task/{0}/children", world.id());
        if fs::exists(children).unwrap_or(false) {
            kill_process(first, Signal::STOP).unwrap();
            while look().0 < LOOK {}
            assert!(look().1 >= LOOK.as_secs_f64());
        } else {
            tracing::warn!("skipped: this kernel does not tell of children");
        }
        kill_process(first, Signal::KILL).unwrap();
        world.wait().unwrap();
    }
}
