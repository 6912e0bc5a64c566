//! Whole campaigns: the real program, real worlds.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests are tests"
)]

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use hoplite_lab::results::store::{Store, Verdict};

/// A small network, and a gate that is open: these tests run beside others.
const SCENARIO: &str = r#"
name = "small"
repetitions = 3
[sysctl]
"net.ipv4.tcp_congestion_control" = false
[gate]
late_share = 1
late_us_max = 1e9
steal = 1
cpu_pressure = 1
frozen = "1h"
[[host]]
name = "client"
[[host]]
name = "server"
[[link]]
ends = ["client", "server"]
rate = "20Mbit"
delay = "1ms"
[[workload]]
name = "download"
kind = "download"
bytes = "50kB"
[[subject]]
use = "native"
"#;

const DYING: &str = r#"
[[subject]]
use = "dying"
"#;

const SUBJECT: &str = r#"
name = "dying"
[[step]]
name = "daemon"
host = "client"
command = ["sh", "-c", "echo this is why; exit 3"]
ready = [{ log = "never" }]
"#;

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    /// `None`, and it says why, if this machine allows no worlds.
    fn with(scenario: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        if let Err(failure) = possible() {
            println!("skipped: {failure}");
            return None;
        }
        let path = |name: &str| directory.path().join(name);
        fs::write(path("small.toml"), scenario).unwrap();
        fs::create_dir(path("subjects")).unwrap();
        fs::write(path("subjects/dying.toml"), SUBJECT).unwrap();
        Some(Self { directory })
    }

    fn out(&self) -> PathBuf {
        self.directory.path().join("out")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hoplite-lab"));
        command
            .arg("run")
            .arg(self.directory.path().join("small.toml"));
        command.arg("--out").arg(self.out());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self) -> Output {
        self.command().output().unwrap()
    }

    fn start(&self) -> Child {
        self.command().spawn().unwrap()
    }
}

fn possible() -> Result<(), String> {
    let tun = fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    tun.map_err(|error| format!("/dev/net/tun: {error}"))?;
    let mut unshare = Command::new("unshare");
    let status = unshare
        .args(["-Urmpnf", "true"])
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("no namespaces: {other:?}")),
    }
}

fn signal(name: &str, child: &Child) {
    let mut kill = Command::new("kill");
    let status = kill
        .arg(format!("-{name}"))
        .arg(child.id().to_string())
        .status();
    assert!(status.unwrap().success());
}

/// Reads lines until this many repetitions are over.
fn until_over(child: &mut Child, repetitions: usize) {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let over = lines
        .map_while(Result::ok)
        .filter(|line| line.contains("\"event\":\"run\""));
    over.take(repetitions).for_each(drop);
}

fn all_there_once(out: &Path, repetitions: usize) {
    let store = Store::read(out).unwrap();
    let runs = store.runs().unwrap();
    assert_eq!(runs.len(), repetitions);
    assert!(
        runs.iter().all(|run| run.verdict == Verdict::Ok),
        "{runs:?}"
    );
    let samples = fs::read_dir(out.join("samples")).unwrap();
    let samples: BTreeSet<_> = samples
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let expected: BTreeSet<_> = runs
        .iter()
        .map(|run| format!("{}.parquet", run.id))
        .collect();
    assert_eq!(samples, expected);
    let metrics = store.metrics().unwrap();
    assert_eq!(
        metrics
            .iter()
            .filter(|(_, metric)| metric.name == "ttlb_s")
            .count(),
        repetitions
    );
}

#[test]
fn a_campaign_measures_writes_its_report_and_has_nothing_left_to_do() {
    let Some(place) = Place::with(SCENARIO) else {
        return;
    };
    let ended = place.run();
    assert!(ended.status.success(), "{ended:?}");
    all_there_once(&place.out(), 3);
    let page = fs::read_to_string(place.out().join("report.html")).unwrap();
    assert!(page.contains("The validity gate was open"));
    let said = String::from_utf8(ended.stdout).unwrap();
    assert!(said.contains("\"gate_open\":true"), "{said}");
    let again = String::from_utf8(place.run().stdout).unwrap();
    assert!(
        again.contains("\"there\":3") && !again.contains("\"event\":\"run\""),
        "{again}"
    );
}

#[test]
fn a_campaign_that_is_killed_goes_on_where_it_was() {
    let Some(place) = Place::with(SCENARIO) else {
        return;
    };
    for _ in 0..2 {
        let mut child = place.start();
        until_over(&mut child, 1);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let ended = place.run();
    assert!(ended.status.success(), "{ended:?}");
    assert!(!String::from_utf8_lossy(&ended.stdout).contains("\"there\":0"));
    all_there_once(&place.out(), 3);
}

#[test]
fn a_second_run_in_the_same_directory_is_told_to_wait() {
    let Some(place) = Place::with(SCENARIO) else {
        return;
    };
    let mut first = place.start();
    let mut lines = BufReader::new(first.stdout.take().unwrap()).lines();
    assert!(
        lines
            .next()
            .unwrap()
            .unwrap()
            .contains("\"event\":\"start\"")
    );
    // It stands still meanwhile, so that it cannot come to its end.
    signal("STOP", &first);
    let second = place.run();
    signal("CONT", &first);
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(
        said.contains(&format!(
            "another run is writing there (pid {})",
            first.id()
        )),
        "{said}"
    );
    lines.for_each(drop);
    assert!(first.wait().unwrap().success());
    all_there_once(&place.out(), 3);
}

#[test]
fn a_subject_that_dies_fails_its_repetitions_alone_and_its_log_is_shown_and_kept() {
    let Some(place) = Place::with(&format!("{SCENARIO}{DYING}")) else {
        return;
    };
    let ended = place.run();
    assert_eq!(ended.status.code(), Some(1));
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(
        said.contains("this is why") && said.contains("of 6 repetitions 3 failed"),
        "{said}"
    );
    let last = said.lines().last().unwrap();
    assert!(
        last.contains("refused 3 times or more: dying (9 attempts at 3 repetitions failed: "),
        "{last}"
    );
    let store = Store::read(&place.out()).unwrap();
    for run in store.runs().unwrap() {
        let failed = run.key.subject == "dying";
        assert_eq!(run.verdict == Verdict::Failed, failed);
        let log = place
            .out()
            .join(format!("runs/{}/1/logs/daemon.log", run.id));
        assert_eq!(log.is_file(), failed);
    }
}
