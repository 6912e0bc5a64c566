//! Processes inside a host: started in its namespace, in a process group of their own, with a controlled environment; waited for in one
//! place, which tells each owner how its process ended and what it used; and who else is in this pid namespace.
//!
//! As PID 1 of a pid namespace this process reaps everything, orphans too; elsewhere it waits for its own children only, so that
//! it takes nothing from other parts of the process.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fmt, fs, io,
    os::unix::{
        fs::PermissionsExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::{Arc, LazyLock},
    thread,
    time::{Duration, Instant},
};

use hoplite_workload::cpu::{self, cpu_time};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::{
    io::Errno,
    process::{
        Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, kill_process_group, waitid,
    },
};

use super::Host;

/// Where programs are looked for beside the user's own path: daemons live there.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command that is not started yet. Its stdin, stdout and stderr are /dev/null unless said otherwise.
#[derive(Debug)]
pub struct Launch<'a> {
    host: &'a Host,
    command: Command,
}

/// A process of ours. Dropping it lets it run on.
pub struct Process {
    /// Its pid, which is also its process group.
    pub pid: u32,
    /// Its stdin, if it was piped.
    pub stdin: Option<ChildStdin>,
    /// Its stdout, if it was piped.
    pub stdout: Option<ChildStdout>,
    /// Its stderr, if it was piped.
    pub stderr: Option<ChildStderr>,
    awaited: Arc<Awaited>,
}

impl<'a> Launch<'a> {
    pub(super) fn new<S: AsRef<OsStr>>(host: &'a Host, argv: impl IntoIterator<Item = S>) -> Self {
        let mut argv = argv.into_iter();
        let mut command = match argv.next() {
            Some(program) => Command::new(program),
            None => Command::new(""),
        };
        command.args(argv);
        command.env_clear().envs(environment());
        command.process_group(0);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self { host, command }
    }

    /// Adds to the environment, which holds `PATH`, `HOME`, `LANG`, `TZ` and nothing else.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Where it runs.
    #[must_use]
    pub fn directory(mut self, path: impl AsRef<Path>) -> Self {
        self.command.current_dir(path);
        self
    }

    /// Where its input comes from.
    #[must_use]
    pub fn stdin(mut self, from: impl Into<Stdio>) -> Self {
        self.command.stdin(from);
        self
    }

    /// Where its output goes.
    #[must_use]
    pub fn stdout(mut self, to: impl Into<Stdio>) -> Self {
        self.command.stdout(to);
        self
    }

    /// Where its complaints go.
    #[must_use]
    pub fn stderr(mut self, to: impl Into<Stdio>) -> Self {
        self.command.stderr(to);
        self
    }

    /// Appends output and complaints to a file.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn log(self, path: &Path) -> io::Result<Self> {
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)?;
        Ok(self.stdout(file.try_clone()?).stderr(file))
    }

    /// Starts it.
    ///
    /// # Errors
    /// No such program, or the machine has no room for another process.
    pub fn spawn(mut self) -> io::Result<Process> {
        let command = &mut self.command;
        self.host.enter(|| Process::start(command))?
    }
}

/// Where processes of the lab look for programs.
pub(crate) fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push(SYSTEM_PATH);
    path
}

/// Where a program is, by its name on that path or by its own path.
pub(crate) fn find_program(command: &str) -> Option<PathBuf> {
    if command.contains('/') {
        return Some(PathBuf::from(command)).filter(|path| runs(path));
    }
    let path = search_path();
    let mut places = std::env::split_paths(&path).map(|place| place.join(command));
    places.find(|path| runs(path))
}

fn runs(path: &Path) -> bool {
    let executable = |mode: u32| mode & 0o111 != 0;
    path.metadata()
        .is_ok_and(|found| found.is_file() && executable(found.permissions().mode()))
}

/// What every process of the lab has in its environment.
fn environment() -> [(&'static str, OsString); 4] {
    [
        ("PATH", search_path()),
        ("HOME", "/".into()),
        ("LANG", "C.UTF-8".into()),
        ("TZ", "UTC".into()),
    ]
}

impl Process {
    /// Starts a command in the network of the calling thread.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let (mut child, awaited) = spawn_child(command)?;
        Ok(Self {
            pid: child.id(),
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            awaited,
        })
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        self.awaited.exit()
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.exit().is_none()
    }

    /// Waits for its end until `deadline`; `None` if it still runs then.
    #[must_use]
    pub fn wait_until(&self, deadline: Instant) -> Option<Exit> {
        self.awaited.wait(Some(deadline))
    }

    /// Waits for its end at most so long; `None` if it still runs then.
    #[must_use]
    pub fn wait_for(&self, time: Duration) -> Option<Exit> {
        self.wait_until(Instant::now() + time)
    }

    /// Sends a signal to it; nothing happens if it has ended.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        send_signal(self.pid, signal, false)
    }

    /// Sends a signal to it and to all processes of its group; nothing happens if it has ended.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn signal_group(&self, signal: Signal) -> io::Result<()> {
        send_signal(self.pid, signal, true)
    }

    /// Processor time so far.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        match self.exit() {
            Some(exit) => exit.cpu,
            None => cpu_time(self.pid).unwrap_or_default(),
        }
    }

    /// Peak resident memory so far in bytes, if it can be known.
    #[must_use]
    pub fn peak_memory(&self) -> Option<u64> {
        match self.exit() {
            Some(exit) => Some(exit.peak_memory),
            None => peak_memory(self.pid),
        }
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Process");
        debug.field("pid", &self.pid).field("exit", &self.exit());
        debug.finish_non_exhaustive()
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code or signal.
    pub status: ExitStatus,
    /// Processor time over its life, children that it waited for included.
    pub cpu: Duration,
    /// Peak resident memory in bytes. The kernel starts it with that of the process that spawned it: an upper bound.
    pub peak_memory: u64,
}

/// A process that somebody waits for.
#[derive(Debug, Default)]
struct Awaited {
    exit: Mutex<Option<Exit>>,
    ended: Condvar,
}

/// Living children by pid. Its lock is held while a process is spawned, reaped or signalled: a pid under the lock is the process one means.
struct Reaper {
    living: Mutex<HashMap<u32, Arc<Awaited>>>,
    spawned: Condvar,
    everything: bool,
}

static REAPER: LazyLock<Reaper> = LazyLock::new(|| Reaper {
    living: Mutex::default(),
    spawned: Condvar::new(),
    everything: getpid() == Pid::INIT,
});

/// Spawns a child that is ours from its first moment.
fn spawn_child(command: &mut Command) -> io::Result<(Child, Arc<Awaited>)> {
    let awaited = Arc::new(Awaited::default());
    let mut living = REAPER.living();
    let child = command.spawn()?;
    living.insert(child.id(), Arc::clone(&awaited));
    drop(living);
    REAPER.spawned.notify_all();
    if !REAPER.everything {
        wait_for(child.id());
    }
    Ok((child, awaited))
}

/// Starts reaping everything; to be called once, by PID 1, before it spawns.
pub(super) fn reap_everything() -> io::Result<()> {
    thread::Builder::new().name("reaper".into()).spawn(|| {
        loop {
            REAPER.round();
        }
    })?;
    Ok(())
}

/// Waits for one child on a thread of its own.
fn wait_for(pid: u32) {
    let waiting = move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Some(id) = as_pid(pid) {
            match waitid(WaitId::Pid(id), options) {
                Err(Errno::INTR) => {}
                _ => break,
            }
        }
        REAPER.reap(i32::try_from(pid).unwrap_or(0));
    };
    // Without a thread the child is only told apart as alive or not when the process ends; nothing is lost but its exit.
    if let Err(error) = thread::Builder::new().name("wait".into()).spawn(waiting) {
        tracing::warn!(%error, pid, "no thread to wait for a process");
    }
}

impl Reaper {
    fn living(&self) -> MutexGuard<'_, HashMap<u32, Arc<Awaited>>> {
        self.living.lock()
    }

    /// Waits until any child has ended, then takes all that have.
    fn round(&self) {
        match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) => while self.reap(-1) {},
            Err(Errno::CHILD) => self.until_spawned(),
            Err(_) => {}
        }
    }

    /// Without children none can end before one is spawned.
    fn until_spawned(&self) {
        let mut living = self.living();
        if living.is_empty() {
            self.spawned.wait(&mut living);
        }
    }

    /// Takes one ended child (-1: whichever) and tells its owner. Says whether there was one.
    fn reap(&self, pid: i32) -> bool {
        let mut living = self.living();
        let Some((pid, exit)) = wait4(pid) else {
            return false;
        };
        match living.remove(&pid) {
            Some(awaited) => awaited.tell(exit),
            None => tracing::debug!(pid, status = %exit.status, "reaped an orphan"),
        }
        true
    }
}

impl Awaited {
    fn tell(&self, exit: Exit) {
        *self.exit.lock() = Some(exit);
        self.ended.notify_all();
    }

    /// How it ended, if it has.
    pub(super) fn exit(&self) -> Option<Exit> {
        *self.exit.lock()
    }

    /// Waits for its end, until `deadline` if there is one.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Option<Exit> {
        let mut exit = self.exit.lock();
        while exit.is_none() {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            let left = left.unwrap_or(Duration::from_secs(3600));
            self.ended.wait_for(&mut exit, left);
        }
        *exit
    }
}

/// Sends a signal to a child that has not been reaped, or to its whole group.
fn send_signal(pid: u32, signal: Signal, group: bool) -> io::Result<()> {
    let living = REAPER.living();
    let Some(id) = as_pid(pid).filter(|_| living.contains_key(&pid)) else {
        return Ok(());
    };
    let sent = if group {
        kill_process_group(id, signal)
    } else {
        kill_process(id, signal)
    };
    match sent {
        Err(Errno::SRCH) => Ok(()),
        other => Ok(other?),
    }
}

fn as_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// `wait4` without waiting: the pid, how it ended, what it used.
fn wait4(pid: i32) -> Option<(u32, Exit)> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of that plain struct.
    #[expect(unsafe_code, reason = "a C struct has no default")]
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for writing for the whole call.
    #[expect(unsafe_code, reason = "no safe wrapper tells what a child used")]
    let pid = unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) };
    let pid = u32::try_from(pid).ok().filter(|pid| *pid > 0)?;
    let exit = Exit {
        status: ExitStatus::from_raw(status),
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        peak_memory: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
    };
    Some((pid, exit))
}

fn time(value: libc::timeval) -> Duration {
    let seconds = u64::try_from(value.tv_sec).unwrap_or(0);
    let micros = u64::try_from(value.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

/// `USER_HZ`: what the kernel counts in `/proc` in, on all architectures but two that are gone.
const TICKS: u64 = 100;

/// Processor time by process group: of all that live, and of their children that ended, for what a daemon's helpers use counts as its own.
/// Empty where `/proc` does not show this pid namespace.
#[must_use]
pub fn cpu_by_group() -> HashMap<u32, Duration> {
    let mut groups = HashMap::new();
    if !proc_is_ours() {
        return groups;
    }
    for pid in pids() {
        if let (Some((group, ended)), Ok(time)) = (group_of(pid), cpu_time(pid)) {
            *groups.entry(group).or_default() += time + ended;
        }
    }
    groups
}

/// Peak resident memory of a living process in bytes.
#[must_use]
pub fn peak_memory(pid: u32) -> Option<u64> {
    cpu::peak_memory(pid).ok().filter(|_| proc_is_ours())
}

/// Whether the pids in `/proc` are those of this process' namespace.
fn proc_is_ours() -> bool {
    fs::read_link("/proc/self")
        .is_ok_and(|link| link.to_str() == Some(&std::process::id().to_string()))
}

pub(crate) fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The process group, and the time of children that ended and were waited for.
fn group_of(pid: u32) -> Option<(u32, Duration)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// proc_pid_stat(5): the fifth field, and the sum of the sixteenth and seventeenth; the second may contain anything, in brackets.
fn parse_stat(stat: &str) -> Option<(u32, Duration)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = field(16)? + field(17)?;
    let group = u32::try_from(field(5)?).ok()?;
    Some((group, Duration::from_millis(ticks * 1000 / TICKS)))
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// In this namespace.
    pub pid: u32,
    /// The kernel's short name of it: up to 15 bytes of its program's name, no arguments.
    pub name: String,
}

/// All that run, in no order; those that have ended and only wait to be reaped do not count.
#[must_use]
pub fn others() -> Vec<Other> {
    let fresh = proc_is_ours();
    let ours = namespace("self");
    let here = |pid: &u32| fresh || (ours.is_some() && namespace(&pid.to_string()) == ours);
    let pids = pids().into_iter().filter(here);
    let statuses = pids.filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok());
    let others = statuses.filter_map(|status| parse_status(&status));
    others
        .filter(|other| other.pid != std::process::id())
        .collect()
}

fn namespace(pid: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// Whether a child of that process was stopped by somebody; where the kernel does not tell of children, none was.
pub(crate) fn has_stopped_child(pid: u32) -> bool {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children
        .unwrap_or_default()
        .split_whitespace()
        .any(|child| {
            let status = fs::read_to_string(format!("/proc/{child}/status"));
            status.is_ok_and(|status| matches!(state(&status), Some('T' | 't')))
        })
}

/// Of `/proc/PID/status`.
fn state(status: &str) -> Option<char> {
    let state = status
        .lines()
        .find_map(|line| line.strip_prefix("State:"))?;
    state.trim().chars().next()
}

/// Of `/proc/PID/status`; `None` if it has ended. Its pid here is the innermost of `NSpid`.
fn parse_status(status: &str) -> Option<Other> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let state = state(status)?;
    let pid = field("NSpid:")?.split_whitespace().last()?.parse().ok()?;
    let name = field("Name:")?.trim().to_owned();
    (!matches!(state, 'Z' | 'X')).then_some(Other { pid, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_time_and_memory() {
        let pid = std::process::id();
        assert!(cpu_time(pid).unwrap() > Duration::ZERO);
        assert!(peak_memory(pid).unwrap() > 100_000);
        assert!(group_of(pid).unwrap().0 > 0);
    }

    #[test]
    fn a_program_may_be_named_as_it_likes() {
        let stat = "7 (a) b) S 1 6 5 0 -1 4194560 1 2 3 4 11 12 13 14 20 0 1 0 9";
        assert_eq!(parse_stat(stat), Some((6, Duration::from_millis(270))));
    }

    #[test]
    fn a_child_that_somebody_stopped_is_seen() {
        let mut mother = Command::new("sh")
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = mother.stdout.take().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut line).unwrap();
        let child = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        let told = fs::exists(format!("/proc/{0}/task/{0}/children", mother.id()));
        let until = |wanted| while has_stopped_child(mother.id()) != wanted {};
        if told.unwrap_or(false) {
            until(false);
            kill_process(child, Signal::STOP).unwrap();
            until(true);
            kill_process(child, Signal::CONT).unwrap();
            until(false);
        } else {
            println!("skipped: this kernel does not tell of children");
        }
        kill_process(child, Signal::KILL).unwrap();
        mother.wait().unwrap();
    }

    #[test]
    fn a_process_is_known_by_its_innermost_pid_and_the_dead_are_none() {
        let status = "Name:\ttor\nUmask:\t0022\nState:\tS (sleeping)\nNSpid:\t812\t7\n";
        let tor = Other {
            pid: 7,
            name: "tor".into(),
        };
        assert_eq!(parse_status(status), Some(tor));
        assert_eq!(
            parse_status(&status.replace("S (sleeping)", "Z (zombie)")),
            None
        );
    }
}
