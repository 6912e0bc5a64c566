//! Processes inside a host: started in its namespace, in a process group of their own, with a controlled environment.
//! `world` and `subject` start everything here, so that everything is found again at the end.

use std::{
    ffi::{OsStr, OsString},
    fmt, fs, io,
    os::unix::process::CommandExt,
    path::Path,
    process::{ChildStderr, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::{Exit, Host, cpu, reap};

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
    awaited: Arc<reap::Awaited>,
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
        let (mut child, awaited) = reap::spawn(command)?;
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
        reap::signal(self.pid, signal, false)
    }

    /// Sends a signal to it and to all processes of its group; nothing happens if it has ended.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn signal_group(&self, signal: Signal) -> io::Result<()> {
        reap::signal(self.pid, signal, true)
    }

    /// Processor time so far.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        match self.exit() {
            Some(exit) => exit.cpu,
            None => cpu::of(self.pid).unwrap_or_default(),
        }
    }

    /// Peak resident memory so far in octets, if it can be known.
    #[must_use]
    pub fn peak_memory(&self) -> Option<u64> {
        match self.exit() {
            Some(exit) => Some(exit.peak_memory),
            None => cpu::peak_memory(self.pid),
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
