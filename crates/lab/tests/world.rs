//! Whole worlds: the real program in real namespaces, as root and as an ordinary user.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests are tests"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use hoplite_lab::{
    errors::Failure,
    experiments::{
        subject::{self, Ready, Run, Step},
        trial::{Key, Outcome, Report, Trial},
        workload::{self, Bulk, Kind},
        world::World,
    },
    netns::tun,
    topology::{Direction, Link, Node, Topology},
};
use tempfile::TempDir;

/// For what is sure to happen, on a machine that is as slow as it likes.
const LONG: Duration = Duration::from_secs(120);

/// Says why, where the machine allows no namespaces at all.
fn possible() -> bool {
    let namespaces = Command::new("unshare").args(["-rnmpf", "true"]).status();
    let why = match (tun::check(), namespaces) {
        (Err(why), _) => why.to_string(),
        (_, Ok(status)) if status.success() => return true,
        (_, other) => format!("no namespaces: {other:?}"),
    };
    println!("skipped: {why}");
    false
}

/// Where a copy of the program is, for a user who may not read ours.
const PROGRAM: &str = "HOPLITE_TEST_PROGRAM";

fn world() -> World {
    let ours = || env!("CARGO_BIN_EXE_hoplite-lab").into();
    let program = std::env::var_os(PROGRAM).unwrap_or_else(ours);
    World::of(Path::new(&program))
}

/// Two hosts, `client` and `server`, joined by a link.
fn trial(directory: &Path) -> Trial {
    let link = Link {
        name: "access".into(),
        ..Link::between("client", "server", &Direction::default())
    };
    Trial {
        key: Key {
            scenario: "test".into(),
            case: BTreeMap::new(),
            subject: "test".into(),
            repetition: 1,
        },
        seed: 7,
        topology: Topology {
            nodes: ["client", "server"].map(Node::host).into(),
            links: vec![link],
        },
        subject: subject::Plan {
            label: "test".into(),
            ..subject::Plan::default()
        },
        workloads: Vec::new(),
        sysctls: BTreeMap::new(),
        record: Default::default(),
        analyses: Vec::new(),
        shared: directory.join("shared"),
        timeout: LONG,
        tolerated: Duration::from_micros(500),
        directory: directory.join("attempt"),
    }
}

/// The trial with the directory that it is made in; nothing where the machine allows no namespaces.
fn prepared() -> Option<(TempDir, Trial)> {
    if !possible() {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let trial = trial(directory.path());
    Some((directory, trial))
}

fn step(name: &str, run: Run, script: &str) -> Step {
    Step {
        name: name.into(),
        host: "client".into(),
        command: ["sh", "-c", script].map(String::from).into(),
        env: BTreeMap::new(),
        run,
        ready: Vec::new(),
        ready_within: LONG,
        together: false,
    }
}

/// A daemon that says `up` when it is ready.
fn daemon(name: &str, script: &str) -> Step {
    Step {
        ready: vec![Ready::Log("up".into())],
        ..step(name, Run::Daemon, script)
    }
}

fn workload(name: &str, kind: Kind) -> workload::Plan {
    workload::Plan {
        name: name.into(),
        group: "1".into(),
        at: Duration::ZERO,
        from: "client".into(),
        to: "server".into(),
        resolver: None,
        among: Vec::new(),
        direct: false,
        may_fail: false,
        counted_as: None,
        kind,
        stall: workload::Plan::STALL,
        timeout: workload::Plan::TIMEOUT,
    }
}

fn download(name: &str) -> workload::Plan {
    let bulk = Bulk {
        bytes: 100_000,
        time: Duration::ZERO,
        connections: 1,
        count: 2,
        pause: Duration::ZERO,
    };
    workload(name, Kind::Download(bulk))
}

/// One that takes longer than any test.
fn endless() -> workload::Plan {
    let kind = Kind::Request {
        request: 10,
        response: 10,
        count: 1000,
        pause: Duration::from_secs(100),
    };
    workload("endless", kind)
}

fn attempt(trial: &Trial) -> Report {
    let report = world().attempt(trial, &|| false).unwrap();
    let log = fs::read_to_string(trial.directory.join("world.log"));
    println!("{:?}\n{}", report.outcome, log.unwrap_or_default());
    report
}

fn failure(report: &Report) -> (&str, &str, &str) {
    match &report.outcome {
        Outcome::Failed { doing, why, log } => (doing, why, log),
        Outcome::Done => panic!("it went well"),
    }
}

#[test]
fn a_download_among_several_servers_is_with_the_nearest_though_another_is_asked_first() {
    let Some((_directory, mut trial)) = prepared() else {
        return;
    };
    let far = Direction {
        delay: Duration::from_millis(20),
        ..Direction::default()
    };
    trial.topology.links[0].forward = far.clone();
    trial.topology.links[0].back = far;
    trial.topology.nodes.push(Node::host("near"));
    let near = Link::between("client", "near", &Direction::default());
    trial.topology.links.push(near);
    let among = ["server", "near"].map(String::from);
    trial.workloads = vec![workload::Plan {
        among: among.into(),
        ..download("fetch")
    }];
    let report = attempt(&trial);
    assert_eq!(report.outcome, Outcome::Done);
    let near = IpAddr::from(trial.topology.addresses()["near"].v4);
    let servers: Vec<_> = report.transfers.iter().map(|t| t.server).collect();
    assert_eq!(servers, [Some(near), Some(near)]);
    let names: BTreeSet<_> = report.processes.iter().map(|p| p.name.as_str()).collect();
    assert!(names.contains("serve:server") && names.contains("serve:near"));
}

#[test]
fn a_download_crosses_the_link_and_everybody_is_accounted_for() {
    let Some((_directory, mut trial)) = prepared() else {
        return;
    };
    trial.workloads = vec![download("fetch"), download("later")];
    trial.workloads[1].group = "2".into();
    // What the helper uses is the daemon's.
    let busy = "echo up; sh -c 'while :; do :; done'; true";
    trial.subject.steps = vec![daemon("busy", busy)];
    trial.record.qlog = true;
    let report = attempt(&trial);
    assert_eq!(report.outcome, Outcome::Done);
    let done: Vec<_> = report
        .transfers
        .iter()
        .map(|t| (t.workload.as_str(), t.number, t.moved[1]))
        .collect();
    assert_eq!(
        done,
        [
            ("fetch", 1, 100_000),
            ("fetch", 2, 100_000),
            ("later", 1, 100_000),
            ("later", 2, 100_000)
        ]
    );
    assert!(report.transfers.iter().all(|t| t.error.is_none()));
    let names: Vec<_> = report.processes.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["busy", "serve:server", "work:fetch", "work:later"]);
    for process in &report.processes {
        assert!(
            process.cpu_s > 0.0 && process.cpu_s <= process.life_cpu_s,
            "{process:?}"
        );
        assert!(process.peak_memory > 500_000, "{process:?}");
    }
    assert!(report.began > 1.7e9 && 0.0 < report.ready_after && report.ready_after < report.took);
    assert!(trial.directory.join("qlog/work:fetch").is_dir());
    assert!(trial.directory.join("qlog/busy").is_dir());
}

#[test]
fn what_a_subject_sends_while_it_is_stopped_is_not_judged() {
    if !possible() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut trial = trial(directory.path());
    trial.workloads = vec![download("fetch")];
    let farewell = "for i in {1..100}; do echo bye > /dev/udp/10.77.0.2/9; done";
    let chatty = format!(
        "trap 'bash -c \"{farewell}\"; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    );
    trial.subject.steps = vec![daemon("chatty", &chatty)];
    let report = attempt(&trial);
    assert_eq!(report.outcome, Outcome::Done);
    let carried: u64 = report.links.iter().map(|link| link.packets).sum();
    let judged = report.emulator.released;
    // The network ends with the subject, and may take some of the last packets with it.
    assert!(
        judged > 100 && carried >= judged + 20,
        "{judged} of {carried}"
    );
}

#[test]
fn an_ordinary_user_can_do_what_root_can() {
    if possible() && rustix::process::geteuid().is_root() {
        as_user("true", &[]);
    }
}

/// As in containers: where a part of `/proc` is hidden, a user may not mount another.
#[test]
fn a_world_does_without_a_proc_of_its_own() {
    if possible() && rustix::process::geteuid().is_root() {
        as_user(
            "mount --bind /dev/null /proc/version",
            &["left_behind", "beside", "too_long", "is_killed"],
        );
    }
}

/// Runs tests of this file, those whose names contain one of `which`, as an ordinary user, after `prepare` as root in a mount namespace of its own.
fn as_user(prepare: &str, which: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    let test = std::env::current_exe().unwrap();
    let test = test.display();
    let lab = env!("CARGO_BIN_EXE_hoplite-lab");
    // A TUN device for everybody, as distributions have it; the programs where everybody may read them.
    let script = format!(
        "{prepare} && chmod 777 {place} && cp {test} {place}/test && cp {lab} {place}/lab \
         && mknod -m 666 {place}/tun c 10 200 && mount --bind {place}/tun /dev/net/tun \
         && cd {place} && TMPDIR={place} {PROGRAM}={place}/lab exec setpriv --reuid 65534 --regid 65534 --clear-groups \
            {place}/test --nocapture --skip ordinary_user --skip proc_of_its_own {}",
        which.join(" ")
    );
    let shell = ["-m", "sh", "-c", &script];
    let output = Command::new("unshare").args(shell).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());
    assert!(!said.contains("skipped") && said.contains("passed"));
    assert_eq!(said.contains("no /proc of its own"), prepare != "true");
}

#[test]
fn what_is_left_behind_by_a_subject_is_named_and_killed() {
    let Some((_directory, mut trial)) = prepared() else {
        return;
    };
    let script = "setsid sleep 100000 > /dev/null 2>&1 & exit 0";
    trial.subject.steps = vec![step("leaky", Run::Once, script)];
    let report = attempt(&trial);
    let (doing, why, _) = failure(&report);
    assert_eq!(
        (doing, why),
        ("stopping the subject", "processes were left behind: sleep")
    );
}

#[test]
fn orphans_that_end_by_themselves_are_reaped() {
    let Some((_directory, mut trial)) = prepared() else {
        return;
    };
    let until = "i=0; while grep -qs 'State:.Z' /proc/[0-9]*/status; do sleep 0.1; i=$((i+1)); [ $i -lt 600 ] || exit 1; done";
    trial.subject.steps = vec![
        step(
            "mother",
            Run::Once,
            "(sleep 0.1 &) ; (setsid true &) ; exit 0",
        ),
        step("look", Run::Once, until),
    ];
    assert_eq!(attempt(&trial).outcome, Outcome::Done);
}

#[test]
fn a_daemon_that_dies_under_the_workload_is_told_with_its_log() {
    let Some((_directory, mut trial)) = prepared() else {
        return;
    };
    trial.subject.steps = vec![daemon(
        "relay1",
        "echo up; sleep 2; echo oh dear >&2; exit 3",
    )];
    trial.workloads = vec![endless()];
    let report = attempt(&trial);
    let (doing, why, log) = failure(&report);
    assert!(
        doing.contains("relay1") && why.contains("exit status: 3"),
        "{doing}: {why}"
    );
    assert!(log.contains("oh dear"), "{log}");
    assert!(report.transfers.is_empty());
}

#[test]
fn traffic_beside_a_subject_that_hides_the_client_fails_the_attempt() {
    let Some((_directory, mut trial)) = prepared() else {
        return;
    };
    trial.subject.hides_client = true;
    trial.workloads = vec![download("fetch")];
    let report = attempt(&trial);
    assert!(
        failure(&report)
            .1
            .contains("the traffic went beside the subject")
    );
    trial.workloads[0].direct = true;
    trial.directory.set_file_name("second");
    assert_eq!(attempt(&trial).outcome, Outcome::Done);
}

#[test]
fn an_attempt_that_takes_too_long_is_ended_in_order() {
    let Some((_directory, mut trial)) = prepared() else {
        return;
    };
    trial.subject.steps = vec![daemon(
        "relay1",
        "trap 'touch ended; exit' TERM; echo up; while :; do sleep 0.1; done",
    )];
    trial.workloads = vec![endless()];
    trial.timeout = Duration::from_secs(5);
    let report = attempt(&trial);
    let (doing, why, _) = failure(&report);
    assert_eq!(doing, "running the workloads endless");
    assert!(why.contains("longer than its timeout of 5 s"), "{why}");
    assert!(trial.directory.join("ended").exists());
}

/// The first process inside a world: it writes to the world's log, as does its parent outside.
fn first_inside(directory: &Path) -> Option<u32> {
    let log = fs::canonicalize(directory.join("world.log")).ok()?;
    let writes = |pid: &u32| fs::read_link(format!("/proc/{pid}/fd/2")).is_ok_and(|to| to == log);
    let both: BTreeSet<u32> = pids().filter(writes).collect();
    let inner = both
        .iter()
        .find(|pid| parent(**pid).is_some_and(|pid| both.contains(&pid)));
    inner.copied()
}

fn signal(name: &str, pid: u32) {
    let mut kill = Command::new("kill");
    let status = kill.args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

#[test]
fn a_world_that_somebody_stopped_tells_for_how_long() {
    let Some((_directory, mut trial)) = prepared() else {
        return;
    };
    let kind = Kind::Request {
        request: 10,
        response: 10,
        count: 30,
        pause: Duration::from_millis(100),
    };
    trial.workloads = vec![workload("requests", kind)];
    let report = thread::scope(|scope| {
        let attempt = scope.spawn(|| attempt(&trial));
        wait_for(|| trial.directory.join("logs/work:requests.log").exists());
        let world = first_inside(&trial.directory).unwrap();
        signal("STOP", world);
        // Not to be right sooner: it is what is told.
        thread::sleep(Duration::from_secs(2));
        signal("CONT", world);
        attempt.join().unwrap()
    });
    let health = &report.emulator;
    assert!((1.9..60.0).contains(&health.stood_s), "{health:?}");
    assert!(health.leapt_s < 1.0, "{health:?}");
}

#[test]
fn hosts_know_each_other_by_name_and_no_resolver() {
    let Some((_directory, mut trial)) = prepared() else {
        return;
    };
    let script = "grep -q '^10.77.0.2 server$' /etc/hosts && grep -q '^fd77::2 server$' /etc/hosts && ! grep -q nameserver /etc/resolv.conf \
                  && [ $(ls -d /proc/[0-9]* | wc -l) -lt 20 ] && ip -o addr show eth0 | grep -q fd77::1";
    trial.subject.steps = vec![step("look", Run::Once, script)];
    assert_eq!(attempt(&trial).outcome, Outcome::Done);
}

#[test]
fn settings_are_made_in_every_host_and_an_unknown_one_is_named() {
    let Some((_directory, mut trial)) = prepared() else {
        return;
    };
    let setting = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    trial.sysctls = setting("net.ipv4.tcp_congestion_control", "reno");
    let script = "grep -q reno /proc/sys/net/ipv4/tcp_congestion_control";
    trial.subject.steps = vec![step("look", Run::Once, script)];
    assert_eq!(attempt(&trial).outcome, Outcome::Done);
    trial.sysctls = setting("net.ipv4.tcp_wonder", "1");
    trial.directory.set_file_name("second");
    let failure = world().attempt(&trial, &|| false).unwrap_err();
    assert!(matches!(failure, Failure::Failed(_)));
    assert!(
        failure.to_string().contains("net.ipv4.tcp_wonder"),
        "{failure}"
    );
}

/// A world with a daemon, a daemon of that daemon, and a workload.
fn crowded(directory: &Path) -> Trial {
    let mut trial = trial(directory);
    let script = "setsid sleep 100000 & touch here; echo up; wait";
    trial.subject.steps = vec![daemon("relay1", script)];
    trial.workloads = vec![endless()];
    trial
}

/// Where the outermost process of the next two tests runs its attempt.
const PLACE: &str = "HOPLITE_TEST_PLACE";

#[test]
#[ignore = "run by another test as a process of its own"]
fn outermost() {
    let directory = PathBuf::from(std::env::var_os(PLACE).unwrap());
    attempt(&crowded(&directory));
}

#[test]
fn nothing_is_left_when_the_outermost_process_is_killed() {
    if !possible() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut outermost = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "outermost", "--ignored"])
        .env(PLACE, directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for(|| serving(directory.path()));
    let inside = Inside::of(outermost.id());
    // Itself, two of the world, the daemon with its child, server and workload.
    assert!(inside.processes.len() >= 6, "{inside:?}");
    kill(&mut outermost);
    wait_for(|| inside.is_gone());
}

#[test]
fn an_attempt_that_nobody_wants_any_more_is_over_at_once() {
    if !possible() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let trial = crowded(directory.path());
    let working = || pids().any(|pid| works_in(pid, &trial.directory));
    let unwanted = || serving(directory.path()) && working();
    let report = world().attempt(&trial, &unwanted).unwrap();
    assert_eq!(failure(&report).1, "interrupted");
    assert!(!working());
}

/// Whether a process works in a directory.
fn works_in(pid: u32, directory: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == directory)
}

/// Whether the workload of `crowded` runs.
fn serving(directory: &Path) -> bool {
    directory.join("attempt/here").exists()
        && directory.join("attempt/logs/work:endless.log").exists()
}

fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn wait_for(mut what: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !what() {
        assert!(Instant::now() < until, "waited in vain");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A process with all that descends from it, and the namespaces that they have beside ours.
#[derive(Debug)]
struct Inside {
    processes: BTreeSet<u32>,
    namespaces: BTreeSet<PathBuf>,
}

impl Inside {
    fn of(root: u32) -> Self {
        let mut processes = BTreeSet::from([root]);
        loop {
            let more: Vec<u32> = pids()
                .filter(|pid| parent(*pid).is_some_and(|p| processes.contains(&p)))
                .collect();
            let before = processes.len();
            processes.extend(more);
            if processes.len() == before {
                break;
            }
        }
        let ours: BTreeSet<_> = namespaces(std::process::id()).collect();
        let theirs = processes.iter().flat_map(|pid| namespaces(*pid));
        let namespaces = theirs.filter(|name| !ours.contains(name)).collect();
        Self {
            processes,
            namespaces,
        }
    }

    fn is_gone(&self) -> bool {
        let processes = self.processes.iter().all(|pid| parent(*pid).is_none());
        processes
            && pids()
                .flat_map(namespaces)
                .all(|name| !self.namespaces.contains(&name))
    }
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

fn namespaces(pid: u32) -> impl Iterator<Item = PathBuf> {
    let names = ["net", "pid", "mnt"];
    names
        .into_iter()
        .filter_map(move |name| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok())
}
