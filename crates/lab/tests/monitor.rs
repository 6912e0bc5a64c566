//! `hoplite-lab monitor` as an operator meets it: both programs in namespaces of the test's own, over links of the kernel, killed at any moment,
//! with interfaces that go away. As root; the calendar goes faster, transfers do not.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests are tests"
)]

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::Value;

/// 2026-11-01 00:00 UTC.
const NOVEMBER: u64 = 1_793_491_200;

/// A machine to measure from with two links, `wan0` and `wan1`, to one where the server is.
struct Machines {
    directory: tempfile::TempDir,
    names: [String; 2],
}

fn ip(arguments: &str) -> bool {
    let words = arguments.split(' ');
    Command::new("ip")
        .args(words)
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

impl Machines {
    /// `None` where the machine does not let this process make them.
    fn new(name: &str) -> Option<Self> {
        let names = ["near", "far"].map(|end| format!("hm-{}-{name}-{end}", std::process::id()));
        let machines = Self {
            directory: tempfile::tempdir().unwrap(),
            names,
        };
        let [near, far] = &machines.names;
        let mut lines = vec![format!("netns add {near}"), format!("netns add {far}")];
        for link in 0..2 {
            lines.extend([
                format!("-n {near} link add wan{link} type veth peer name wan{link} netns {far}"),
                format!("-n {near} addr add 10.9.{link}.1/24 dev wan{link}"),
                format!("-n {far} addr add 10.9.{link}.2/24 dev wan{link}"),
                format!("-n {near} link set wan{link} up"),
                format!("-n {far} link set wan{link} up"),
            ]);
        }
        // One server for both: on its loopback, reached over either link.
        lines.push(format!("-n {far} addr add 10.9.9.9/32 dev lo"));
        lines.push(format!("-n {far} link set lo up"));
        lines.push(format!(
            "-n {near} route add 10.9.9.9/32 via 10.9.0.2 dev wan0 metric 1"
        ));
        lines.push(format!(
            "-n {near} route add 10.9.9.9/32 via 10.9.1.2 dev wan1 metric 2"
        ));
        if lines.iter().all(|line| ip(line)) {
            return Some(machines);
        }
        println!("skipped: no namespaces with veth here");
        None
    }

    fn file(&self, text: &str) -> PathBuf {
        let path = self.directory.path().join("monitor.toml");
        let head = "directory = \"kept\"\nserver = { host = \"10.9.9.9\", port = 8000 }\n";
        fs::write(&path, format!("{head}{text}")).unwrap();
        path
    }

    fn start(&self, end: usize, arguments: &[&str]) -> Program {
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            &self.names[end],
            env!("CARGO_BIN_EXE_hoplite-lab"),
            "monitor",
        ]);
        let child = command
            .args(arguments)
            .arg(self.directory.path().join("monitor.toml"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Program(child)
    }

    fn serve(&self) -> Program {
        let server = self.start(1, &["serve"]);
        sleep(Duration::from_millis(500));
        server
    }

    /// From the n-th day of a November.
    fn run(&self, pace: &str, days: u64) -> Program {
        let at = (NOVEMBER + days * 86_400).to_string();
        self.start(0, &["run", "--pace", pace, "--at", &at])
    }

    fn kept(&self, name: &str) -> PathBuf {
        self.directory.path().join("kept").join(name)
    }

    /// All samples of an interface, the days that are over with them.
    fn samples(&self, name: &str) -> Vec<Value> {
        let mut files: Vec<PathBuf> = fs::read_dir(self.kept(name))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        let mut text = String::new();
        for file in files {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            if name.ends_with(".jsonl") {
                text += &fs::read_to_string(&file).unwrap();
            } else if name.ends_with(".jsonl.gz") {
                let packed = fs::File::open(&file).unwrap();
                flate2::read::MultiGzDecoder::new(packed)
                    .read_to_string(&mut text)
                    .unwrap();
            }
        }
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Waits for a sample that is as wanted.
    fn wait_for(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            // A line may be half there while it is written.
            let found =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.samples(name)));
            if let Some(sample) = found.unwrap_or_default().into_iter().find(&wanted) {
                return sample;
            }
            sleep(Duration::from_millis(100));
        }
        unreachable!("no such sample among {:?}", self.samples(name))
    }

    /// Waits until nothing has gone over an interface for two seconds, in which two transfers would have been due.
    fn wait_until_quiet(&self, name: &str) {
        let until = Instant::now() + Duration::from_secs(60);
        let mut before = self.passed(name);
        while Instant::now() < until {
            sleep(Duration::from_secs(2));
            // The neighbours may ask for each other meanwhile.
            let now = self.passed(name);
            if now - before < 1000 {
                return;
            }
            before = now;
        }
        unreachable!("transfers go on");
    }

    /// Bytes that went over an interface of the near machine, as the kernel has them.
    fn passed(&self, name: &str) -> u64 {
        let count = |way: &str| -> u64 {
            let path = format!("/sys/class/net/{name}/statistics/{way}_bytes");
            let out = Command::new("ip")
                .args(["netns", "exec", &self.names[0], "cat", &path])
                .output()
                .unwrap();
            String::from_utf8(out.stdout)
                .unwrap()
                .trim()
                .parse()
                .unwrap()
        };
        count("rx") + count("tx")
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

/// A disk of a megabyte for what the monitor keeps.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where the machine does not let this process mount one.
    fn below(machines: &Machines) -> Option<Self> {
        let path = machines.directory.path().join("kept");
        fs::create_dir(&path).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(&path)
            .stderr(Stdio::null())
            .status();
        if mount.is_ok_and(|status| status.success()) {
            return Some(Self(path));
        }
        println!("skipped: no disk can be mounted here");
        None
    }

    /// Somebody else's file takes all that is left.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("others")).unwrap();
        while file.write_all(&[7; 4096]).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.0.join("others")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(&self.0).status());
    }
}

/// A program of ours; ended with the test.
struct Program(Child);

impl Program {
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Told to end, as a service manager does.
    fn end(mut self) -> bool {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.0.wait().unwrap();
        if !status.success() {
            let mut said = String::new();
            let mut stderr = self.0.stderr.take().unwrap();
            stderr.read_to_string(&mut said).unwrap();
            println!("{status}: {said}");
        }
        status.success()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn kind(sample: &Value) -> &str {
    sample["transfer"]["error"]["kind"]
        .as_str()
        .unwrap_or_default()
}

fn state(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path.join("state.json")).unwrap()).unwrap()
}

const ONE: &str = "schedule = { profile = \"one-megabyte\", every = 60, stall = 2 }\nbudget = { bytes_per_month = 30_000_000 }\n";

#[test]
fn two_interfaces_are_measured_at_once_each_over_its_own_link() {
    let Some(machines) = Machines::new("two") else {
        return;
    };
    machines.file(&format!(
        "{ONE}interface = [{{ name = \"wan0\" }}, {{ name = \"wan1\" }}]\n"
    ));
    let _server = machines.serve();
    let monitor = machines.run("60", 1);
    for (name, seen) in [("wan0", "10.9.0.1"), ("wan1", "10.9.1.1")] {
        let sample = machines.wait_for(name, |sample| kind(sample).is_empty());
        let transfer = &sample["transfer"];
        assert_eq!(
            transfer["seen_as"], seen,
            "bound to its interface, whatever the routes say"
        );
        assert_eq!(transfer["moved"][1], 1_048_576);
        assert_eq!(
            transfer["phases"]["partial"].as_array().unwrap().len(),
            7,
            "10 KiB to 1 MiB"
        );
        let charged = sample["charged"].as_u64().unwrap();
        assert!(
            (1_048_576..1_400_000).contains(&charged),
            "headers and all: {charged}"
        );
    }
    assert!(monitor.end());
    for name in ["wan0", "wan1"] {
        let metrics = machines.directory.path().join(format!("kept/{name}.prom"));
        let metrics = fs::read_to_string(metrics).unwrap();
        assert!(metrics.contains("result=\"success\"} "), "{metrics}");
    }
    let page = fs::read_to_string(machines.directory.path().join("kept/index.html")).unwrap();
    assert!(page.contains("wan0") && page.contains("wan1"));
}

#[test]
fn an_interface_that_goes_and_a_server_that_is_away_are_samples_with_their_reason() {
    let Some(machines) = Machines::new("gone") else {
        return;
    };
    machines.file(&format!("{ONE}interface = [{{ name = \"wan0\" }}]\n"));
    let monitor = machines.run("60", 1);
    let away = machines.wait_for("wan0", |sample| kind(sample) == "CONNECT");
    assert!(
        away["transfer"]["error"]["why"]
            .as_str()
            .unwrap()
            .contains("refused")
    );
    let _server = machines.serve();
    machines.wait_for("wan0", |sample| kind(sample).is_empty());
    let near = &machines.names[0];
    assert!(ip(&format!("-n {near} addr flush dev wan0")));
    machines.wait_for("wan0", |sample| {
        matches!(kind(sample), "CONNECT" | "STALL") && sample["number"].as_u64() > Some(2)
    });
    assert!(ip(&format!("-n {near} link del wan0")));
    let gone = machines.wait_for("wan0", |sample| kind(sample) == "INTERFACE");
    assert!(
        gone["transfer"]["error"]["why"]
            .as_str()
            .unwrap()
            .contains("wan0")
    );
    assert!(monitor.end());
}

#[test]
fn on_a_full_disk_nothing_is_transferred_and_no_sample_is_lost_also_when_it_is_killed_there() {
    let Some(machines) = Machines::new("full") else {
        return;
    };
    let Some(disk) = SmallDisk::below(&machines) else {
        return;
    };
    let plenty = ONE.replace("30_000_000", "900_000_000");
    machines.file(&format!("{plenty}interface = [{{ name = \"wan0\" }}]\n"));
    let _server = machines.serve();
    let monitor = machines.run("60", 1);
    machines.wait_for("wan0", |sample| kind(sample).is_empty());
    disk.fill();
    machines.wait_until_quiet("wan0");
    disk.free();
    let told = machines.wait_for("wan0", |sample| kind(sample) == "DISK");
    let why = told["transfer"]["error"]["why"].as_str().unwrap();
    assert!(why.starts_with("nothing could be written for "), "{why}");
    let number = told["number"].as_u64();
    machines.wait_for("wan0", |sample| {
        kind(sample).is_empty() && sample["number"].as_u64() > number
    });
    disk.fill();
    machines.wait_until_quiet("wan0");
    monitor.kill();
    disk.free();
    let last = machines
        .samples("wan0")
        .iter()
        .filter_map(|sample| sample["number"].as_u64())
        .max();
    let monitor = machines.run("60", 2);
    machines.wait_for("wan0", |sample| {
        kind(sample).is_empty() && sample["number"].as_u64() > last
    });
    assert!(monitor.end());
    let mut numbers: Vec<u64> = machines
        .samples("wan0")
        .iter()
        .filter_map(|sample| sample["number"].as_u64())
        .collect();
    numbers.sort_unstable();
    let all: Vec<u64> = (1..=numbers.len() as u64).collect();
    assert_eq!(numbers, all, "each number is there once");
}

/// 30 days within a minute or so: a budget of 30 MB, transfers of 1 MB, and a program that is killed again and again.
#[test]
fn an_emulated_month_with_kills_loses_no_sample_and_passes_no_budget() {
    let Some(machines) = Machines::new("month") else {
        return;
    };
    // A transfer each two hours, two hours each 0.2 s: far more than the budget has room for.
    let schedule = "schedule = { profile = \"one-megabyte\", every = 7200, stall = 2 }\nbudget = { bytes_per_month = 30_000_000 }\n";
    machines.file(&format!("{schedule}interface = [{{ name = \"wan0\" }}]\n"));
    let server = machines.serve();
    let before = machines.passed("wan0");
    for (days, millis) in (0..)
        .step_by(2)
        .zip([300, 700, 450, 610, 520, 380, 900, 330, 480, 1200])
    {
        let monitor = machines.run("36000", days);
        sleep(Duration::from_millis(millis));
        monitor.kill();
        // What a kill leaves is whole.
        let path = machines.kept("wan0");
        if path.join("state.json").exists() {
            state(&path);
        }
    }
    let monitor = machines.run("36000", 21);
    // The budget may have been spent before: give this one the time to listen to signals.
    sleep(Duration::from_secs(2));
    machines.wait_for("wan0", |sample| kind(sample) == "BUDGET");
    let passed = machines.passed("wan0") - before;
    assert!(passed <= 30_000_000, "{passed} bytes passed");
    // Each kill within a transfer may leave its whole reservation charged.
    assert!(passed > 5_000_000, "and it was used: {passed}");
    assert!(monitor.end());
    drop(server);
    let numbers: Vec<u64> = machines
        .samples("wan0")
        .iter()
        .map(|sample| sample["number"].as_u64().unwrap())
        .collect();
    let each: BTreeSet<u64> = numbers.iter().copied().collect();
    assert_eq!(numbers.len(), each.len(), "no sample is there twice");
    let last = each.last().copied().unwrap();
    assert_eq!(each, (1..=last).collect(), "no sample is lost");
    let next = state(&machines.kept("wan0"))["schedule"]["next"]
        .as_u64()
        .unwrap();
    assert_eq!(next, last + 1);
}
