//! Processes of the program under test, whose logs are read line by line.
//! Every integration test that starts a relay or a client uses it.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, kill_process},
};

/// What a process may take for what it was asked for, on a machine that does much else; after that its log is told.
const PATIENCE: Duration = Duration::from_secs(180);

/// A running relay or client. Dropping it kills it.
pub(crate) struct Running {
    child: Child,
    log: Option<BufReader<ChildStderr>>,
    /// Lines that were read while another was looked for: remarks overtake the log, which a thread of its own writes.
    passed: Vec<String>,
}

impl Running {
    /// Starts `hoplite COMMAND --json --config FILE`.
    pub(crate) fn start(command: &str, file: &Path) -> Self {
        Self::recorded(command, file, None)
    }

    /// The same, with qlogs into a directory.
    pub(crate) fn recorded(command: &str, file: &Path, qlog: Option<&Path>) -> Self {
        let qlog = qlog.map(|directory| ("QLOGDIR", directory.as_os_str()));
        Self::with(command, file, qlog.as_slice())
    }

    /// The same, with these in its environment.
    pub(crate) fn with(command: &str, file: &Path, variables: &[(&str, &OsStr)]) -> Self {
        Self::spawn(command, file, variables, &[])
    }

    /// The same, with a directory in which it answers whoever asks how it does.
    pub(crate) fn answering(command: &str, file: &Path, run_dir: &Path) -> Self {
        let arguments = [OsStr::new("--run-dir"), run_dir.as_os_str()];
        Self::spawn(command, file, &[], &arguments)
    }

    fn spawn(
        command: &str,
        file: &Path,
        variables: &[(&str, &OsStr)],
        arguments: &[&OsStr],
    ) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hoplite"))
            .args([command, "--json", "--config"])
            .arg(file)
            .args(arguments)
            .env_remove("HOPLITE_LOG")
            .env_remove("QLOGDIR")
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let log = child.stderr.take().map(BufReader::new);
        let passed = Vec::new();
        Self { child, log, passed }
    }

    /// The next line that has `part` in it, also if a later one was asked for before.
    pub(crate) fn line_with(&mut self, part: &str) -> String {
        if let Some(place) = self.passed.iter().position(|line| line.contains(part)) {
            return self.passed.remove(place);
        }
        let begun = Instant::now();
        loop {
            let mut line = String::new();
            let log = self.log.as_mut().expect("open");
            let said =
                !log.buffer().is_empty() || says(log, PATIENCE.saturating_sub(begun.elapsed()));
            let read = if said {
                log.read_line(&mut line).expect("readable")
            } else {
                0
            };
            assert!(
                read > 0,
                "the log {} without {part:?}: {:?}",
                if said { "ended" } else { "goes on" },
                self.passed
            );
            if line.contains(part) {
                return line;
            }
            self.passed.push(line);
        }
    }

    /// All that it has said and nobody has looked for, and what it still says until its end.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = std::mem::take(&mut self.passed).concat();
        if let Some(log) = &mut self.log {
            std::io::Read::read_to_string(log, &mut rest).expect("readable");
        }
        rest
    }

    /// The reader of the log goes away.
    pub(crate) fn close_log(&mut self) {
        self.log = None;
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("alive");
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end.
    pub(crate) fn wait_for_end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("ours") {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Whether there is something to read, or the end, within this time.
fn says(log: &BufReader<ChildStderr>, within: Duration) -> bool {
    let within = Timespec::try_from(within).expect("short");
    let mut log = [PollFd::new(log.get_ref(), PollFlags::IN)];
    loop {
        match poll(&mut log, Some(&within)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return ready.expect("a pipe") > 0,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A value of a log line.
pub(crate) fn value(line: &str, key: &str) -> String {
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    line[key].as_str().expect("a text").to_owned()
}
