//! A relay as its operator sees it: it starts, keeps its identity, obeys signals.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

const FILE: &str = "listen = [\"127.0.0.1:0\"]\n[[auth.token]]\ntoken = \"t\"\n";

/// A running relay whose log is read line by line.
struct Relay {
    child: Child,
    log: Option<BufReader<std::process::ChildStderr>>,
}

impl Relay {
    fn start(file: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hoplite"))
            .args(["relay", "--json", "--config"])
            .arg(file)
            .env_remove("HOPLITE_LOG")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let log = child.stderr.take().map(BufReader::new);
        Self { child, log }
    }

    /// The next line that has `part` in it.
    fn line_with(&mut self, part: &str) -> serde_json::Value {
        let mut seen = String::new();
        loop {
            let before = seen.len();
            let log = self.log.as_mut().expect("open");
            let read = log.read_line(&mut seen).expect("readable");
            assert!(read > 0, "the log ended without {part:?}: {seen}");
            let line = seen.get(before..).expect("whole characters");
            if line.contains(part) {
                return serde_json::from_str(line).expect("JSON");
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("alive");
    }

    fn wait_for_end(&mut self) -> ExitStatus {
        self.child.wait().expect("ends")
    }

    /// The reader of the log goes away.
    fn close_log(&mut self) {
        self.log = None;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_relay_makes_its_identity_once_and_keeps_it() {
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("relay.toml");
    fs::write(&file, FILE).expect("written");
    let pins: Vec<String> = (0..2)
        .map(|_| {
            let mut relay = Relay::start(&file);
            let pin = relay.line_with("the relay is up")["pin"].to_string();
            relay.signal(Signal::TERM);
            assert_eq!(relay.wait_for_end().code(), Some(0));
            pin
        })
        .collect();
    assert!(pins[0].contains("sha256:"), "{pins:?}");
    assert_eq!(pins[0], pins[1]);
    assert!(directory.path().join("identity/key.pem").exists());
}

#[test]
fn a_wrong_file_on_reload_changes_nothing_and_is_told() {
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("relay.toml");
    fs::write(&file, FILE).expect("written");
    let mut relay = Relay::start(&file);
    relay.line_with("the relay is up");
    fs::write(&file, FILE.replace("token = ", "tokn = ")).expect("written");
    relay.signal(Signal::HUP);
    let line = relay
        .line_with("the old tokens and certificates stay")
        .to_string();
    assert!(
        line.contains("relay.toml:3:1: auth.token[0].tokn: there is no such key"),
        "{line}"
    );
    fs::write(&file, FILE.replace("\"t\"", "\"u\"")).expect("written");
    relay.signal(Signal::HUP);
    relay.line_with("tokens and certificates were read again");
    relay.signal(Signal::INT);
    relay.line_with("the relay has stopped");
    assert_eq!(relay.wait_for_end().code(), Some(0));
}

#[test]
fn a_relay_whose_log_nobody_reads_goes_on() {
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("relay.toml");
    fs::write(&file, FILE).expect("written");
    let mut relay = Relay::start(&file);
    relay.line_with("the relay is up");
    relay.close_log();
    relay.signal(Signal::HUP);
    relay.signal(Signal::HUP);
    relay.signal(Signal::TERM);
    assert_eq!(relay.wait_for_end().code(), Some(0));
}
