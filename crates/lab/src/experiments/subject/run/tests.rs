//! Subjects of shell commands on this machine: what a subject's author sees when something goes wrong.

use std::{
    fs, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
};

use super::{
    process::{Look, Program, Site},
    *,
};
use crate::{
    experiments::{
        subject::{self, Ready},
        workload::Way,
    },
    netns::Process,
    topology::Addresses,
};

/// Directories of an attempt and of its campaign.
struct Place {
    root: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("attempt")).unwrap();
        Self { root }
    }

    fn dir(&self) -> PathBuf {
        self.root.path().join("attempt")
    }

    fn shared(&self) -> PathBuf {
        self.root.path().join("shared")
    }

    fn start(&self, plan: &Plan) -> Result<Running, Outcome> {
        start(plan, &Here, &self.dir(), &self.shared())
    }

    /// The next attempt of the same campaign.
    fn again(&self) {
        fs::remove_dir_all(self.dir()).unwrap();
        fs::create_dir(self.dir()).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.dir().join(path)).unwrap()
    }
}

fn step(name: &str, run: Run, script: &str) -> Step {
    Step {
        name: name.into(),
        host: "here".into(),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        env: BTreeMap::new(),
        run,
        ready: Vec::new(),
        ready_within: Duration::from_secs(60),
        together: false,
    }
}

fn daemon(name: &str, script: &str, ready: &[Ready]) -> Step {
    let ready = ready.to_vec();
    Step {
        ready,
        ..step(name, Run::Daemon, script)
    }
}

fn plan(steps: Vec<Step>) -> Plan {
    Plan {
        label: "test".into(),
        steps,
        ..Plan::default()
    }
}

fn log(text: &str) -> Ready {
    Ready::Log(text.into())
}

fn failure(result: Result<Running, Outcome>) -> (String, String, String) {
    match result {
        Err(Outcome::Failed { doing, why, log }) => (doing, why, log),
        other => panic!("it did not fail: {other:?}"),
    }
}

fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn a_subject_of_nothing_is_ready_at_once() {
    let place = Place::new();
    let running = place.start(&plan(Vec::new())).unwrap();
    assert!(running.daemons().count() == 0 && running.ways().is_empty());
    running.check().unwrap();
    assert!(running.stop(PATIENCE).is_empty());
}

#[test]
fn steps_run_in_order_and_use_what_earlier_ones_said() {
    let place = Place::new();
    let mut plan = plan(vec![
        step("keygen", Run::Once, "echo noise >&2; echo ' the pin '"),
        step(
            "use",
            Run::Once,
            "cat client.toml > copy; echo $PIN >> copy",
        ),
        daemon("server", "echo up; exec sleep 1000", &[log("up")]),
    ]);
    plan.steps[1]
        .env
        .insert("PIN".into(), "{out:keygen}!".into());
    plan.files.push(subject::File {
        path: "client.toml".into(),
        text: "{dir} {ip:here} {out:keygen}\n".into(),
        mode: 0o600,
    });
    plan.ways.push(WayIn {
        host: "here".into(),
        way: Way::Direct,
        target: Some("{out:keygen}.{file:copy}".into()),
    });
    let running = place.start(&plan).unwrap();
    let copy = format!("{} 127.0.0.1 the pin\nthe pin!", place.dir().display());
    assert_eq!(place.read("copy").trim(), copy);
    assert_eq!(running.ways()[0].target, Some(format!("the pin.{copy}")));
    let pids: Vec<u32> = running
        .daemons()
        .map(|(_, _, process)| process.pid)
        .collect();
    assert_eq!(pids.len(), 1);
    let stopped = running.stop(PATIENCE);
    assert_eq!(
        (stopped[0].name.as_str(), stopped[0].killed),
        ("server", false)
    );
    assert!(stopped[0].peak_memory > 0 && !lives(pids[0]));
}

#[test]
fn every_kind_of_readiness_is_waited_for() {
    let place = Place::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let ready = [
        log("hello"),
        Ready::File {
            path: "state".into(),
            text: "up".into(),
        },
        Ready::Tcp(address),
        Ready::Interface("lo".into()),
        Ready::Command(
            [
                "sh",
                "-c",
                "echo asked >> asked; test $(wc -l < asked) -ge 3",
            ]
            .map(str::to_owned)
            .to_vec(),
        ),
    ];
    let script = "echo hello >&2; echo starting > state; echo up >> state; exec sleep 1000";
    let running = place
        .start(&plan(vec![daemon("server", script, &ready)]))
        .unwrap();
    assert_eq!(place.read("asked").lines().count(), 3);
    running.stop(PATIENCE);
}

#[test]
fn a_daemon_that_dies_while_it_is_waited_for_is_told_at_once_with_its_log() {
    let place = Place::new();
    let script = "echo cannot bind: in use; exit 3";
    let steps = vec![
        daemon("first", "exec sleep 1000", &[]),
        daemon("relay", script, &[log("never")]),
    ];
    let began = Instant::now();
    let (doing, why, log) = failure(place.start(&plan(steps)));
    assert!(began.elapsed() < Duration::from_secs(60), "it waited");
    assert!(doing.contains("waiting for relay"), "{doing}");
    assert!(why.contains("exit status: 3"), "{why}");
    assert_eq!(log, "cannot bind: in use");
}

#[test]
fn a_daemon_that_dies_while_another_is_waited_for_is_named() {
    let place = Place::new();
    let steps = vec![
        daemon(
            "early",
            "while ! test -e die; do sleep 0.01; done; echo bye; exit 1",
            &[],
        ),
        daemon("late", "touch die; exec sleep 1000", &[log("never")]),
    ];
    let (doing, why, log) = failure(place.start(&plan(steps)));
    assert!(
        doing.contains("late") && why.starts_with("early ended meanwhile"),
        "{doing}: {why}"
    );
    assert_eq!(log, "bye");
}

#[test]
fn a_daemon_that_is_not_ready_in_time_is_told_with_what_is_missing_and_nothing_is_left() {
    let place = Place::new();
    let mut slow = daemon(
        "slow",
        "echo $$ > pid; echo here; exec sleep 1000",
        &[log("here"), log("never said")],
    );
    slow.ready_within = Duration::from_millis(300);
    let (_, why, log) = failure(place.start(&plan(vec![slow])));
    assert_eq!(
        why,
        "not ready after 0.3 s; missing: the text \"never said\" in its log"
    );
    assert_eq!(log, "here");
    let pid: u32 = place.read("pid").trim().parse().unwrap();
    assert!(!lives(pid));
}

#[test]
fn a_step_that_fails_or_takes_too_long_is_told_with_both_its_outputs() {
    let place = Place::new();
    let (doing, why, log) = failure(place.start(&plan(vec![step(
        "make",
        Run::Once,
        "echo a; echo b >&2; exit 2",
    )])));
    assert_eq!(doing, "waiting for make on here");
    assert!(why.contains("exit status: 2"), "{why}");
    assert_eq!(log, "a\nb");
    place.again();
    let mut endless = step("endless", Run::Once, "exec sleep 1000");
    endless.ready_within = Duration::from_millis(100);
    assert_eq!(
        failure(place.start(&plan(vec![endless]))).1,
        "not done after 0.1 s"
    );
}

#[test]
fn steps_that_are_together_do_not_wait_for_each_other() {
    let place = Place::new();
    // Each is ready only when the other has started.
    let meet = |me: &str, other: &str| {
        format!(
            "touch {me}; while ! test -e {other}; do sleep 0.01; done; echo met; exec sleep 1000"
        )
    };
    let mut a = daemon("a", &meet("a", "b"), &[log("met")]);
    a.together = true;
    let b = daemon("b", &meet("b", "a"), &[log("met")]);
    let c = step("c", Run::Once, "grep -l met logs/a.log logs/b.log > both");
    let running = place.start(&plan(vec![a, b, c])).unwrap();
    assert_eq!(place.read("both").lines().count(), 2);
    running.stop(PATIENCE);
}

#[test]
fn the_last_to_start_is_the_first_to_stop() {
    let place = Place::new();
    let script = |name: &str| {
        format!("trap 'echo {name} >> order; exit 0' TERM; echo up; while :; do sleep 0.01; done")
    };
    let steps = ["a", "b", "c"].map(|name| daemon(name, &script(name), &[log("up")]));
    place.start(&plan(steps.to_vec())).unwrap().stop(PATIENCE);
    assert_eq!(
        place.read("order").split_whitespace().collect::<String>(),
        "cba"
    );
}

#[test]
fn a_server_that_drains_at_the_first_request_is_asked_again() {
    let place = Place::new();
    let script = "trap 'asked=$((asked + 1)); test $asked -lt 2 || exit 0' TERM; echo up; while :; do sleep 0.01; done";
    let running = place.start(&plan(vec![daemon("server", script, &[log("up")])]));
    let stopped = running.unwrap().stop(Duration::from_secs(60));
    assert!(!stopped[0].killed);
}

#[test]
fn what_does_not_end_when_asked_is_killed_with_its_children() {
    let place = Place::new();
    let script = "trap '' TERM; sh -c 'echo $$ > child; while :; do sleep 0.01; done' & wait";
    let ready = Ready::File {
        path: "child".into(),
        text: "\n".into(),
    };
    let running = place
        .start(&plan(vec![daemon("stubborn", script, &[ready])]))
        .unwrap();
    let stopped = running.stop(Duration::from_millis(100));
    assert!(stopped[0].killed);
    let child: u32 = place.read("child").trim().parse().unwrap();
    while lives(child) {
        thread::yield_now();
    }
}

#[test]
fn a_daemon_that_dies_later_is_seen() {
    let place = Place::new();
    let running = place
        .start(&plan(vec![daemon(
            "server",
            "echo up; while ! test -e die; do sleep 0.01; done; exit 7",
            &[log("up")],
        )]))
        .unwrap();
    running.check().unwrap();
    fs::write(place.dir().join("die"), "").unwrap();
    let outcome = loop {
        if let Err(outcome) = running.check() {
            break outcome;
        }
        thread::yield_now();
    };
    let (doing, why, _) = failure(Err(outcome));
    assert!(
        doing.contains("server") && why.contains("exit status: 7"),
        "{doing}: {why}"
    );
}

#[test]
fn what_is_made_once_a_campaign_is_made_once_and_remembered() {
    let place = Place::new();
    let make = step(
        "make",
        Run::OncePerCampaign,
        "echo made >> {shared}/made; echo the key",
    );
    let mut plan = plan(vec![
        make,
        step("use", Run::Once, "cat {shared}/made; echo '{out:make}'"),
    ]);
    for _ in 0..2 {
        place.again();
        place.start(&plan).unwrap();
        assert_eq!(place.read("logs/use.out"), "made\nthe key\n");
    }
    // Another command makes another thing: nothing is taken for what it is not.
    place.again();
    plan.steps[0].command[2].push_str("; echo more >> {shared}/made");
    place.start(&plan).unwrap();
    assert_eq!(place.read("logs/use.out"), "made\nmore\nthe key\n");
}

#[test]
fn what_a_kept_step_reads_decides_what_is_kept() {
    let place = Place::new();
    let file = |path: &str, text: &str| subject::File {
        path: path.into(),
        text: text.into(),
        mode: 0o600,
    };
    let run = |command: &str, name: &str, text: &str| {
        place.again();
        let script = format!("echo made >> {{shared}}/made; {command} > /dev/null");
        let look = step("look", Run::Once, "wc -l < {shared}/made; echo {shared}");
        let mut plan = plan(vec![step("make", Run::OncePerCampaign, &script), look]);
        plan.files = vec![file("nodes", "a"), file("other", "b"), file(name, text)];
        place.start(&plan).unwrap();
        place.read("logs/look.out")
    };
    // Named files count, others do not; a whole directory counts with all that is in it.
    let first = run("cat {dir}/nodes", "third", "c");
    assert_eq!(run("cat {dir}/nodes", "third", "changed"), first);
    let all = run("ls {dir}", "third", "c");
    assert_eq!(run("ls {dir}", "third", "c"), all);
    assert_ne!(run("ls {dir}", "third", "changed"), all);
}

#[test]
fn what_is_half_made_when_the_lab_is_killed_is_made_anew() {
    let place = Place::new();
    let mut first = plan(vec![
        step("one", Run::OncePerCampaign, "mkdir {shared}/one"),
        step(
            "two",
            Run::OncePerCampaign,
            "mkdir {shared}/half; test -e {dir}/../go || exit 1; touch {shared}/whole",
        ),
    ]);
    failure(place.start(&first));
    place.again();
    fs::write(place.root.path().join("go"), "").unwrap();
    first.steps.push(step("look", Run::Once, "ls {shared}"));
    place.start(&first).unwrap();
    assert_eq!(place.read("logs/look.out"), "half\none\nwhole\n");
}

#[test]
fn a_record_that_cannot_be_read_does_not_count() {
    let place = Place::new();
    let plan = plan(vec![
        step("make", Run::OncePerCampaign, "touch {shared}/x; echo key"),
        step("use", Run::Once, "echo {out:make}"),
    ]);
    place.start(&plan).unwrap();
    let done = fs::read_dir(place.shared())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let done = done
        .into_iter()
        .find(|path| path.extension().is_some_and(|end| end == "done"))
        .unwrap();
    fs::write(&done, "{\"make\": \"ke").unwrap();
    place.again();
    place.start(&plan).unwrap();
    assert_eq!(place.read("logs/use.out"), "key\n");
}

#[test]
fn what_cannot_be_started_says_why() {
    let place = Place::new();
    let why = |plan: Plan| {
        place.again();
        let (doing, why, _) = failure(place.start(&plan));
        format!("{doing}: {why}")
    };
    let mut absent = step("a", Run::Once, "");
    absent.command = vec!["no-such-program-7".into()];
    let text = why(plan(vec![absent.clone()]));
    assert!(
        text.contains("starting a on here") && text.contains("doctor"),
        "{text}"
    );
    absent.command.clear();
    assert!(why(plan(vec![absent])).contains("empty"));
    assert!(why(plan(vec![step("../x", Run::Once, "")])).contains("name"));
    let twice = vec![step("a", Run::Once, ""), step("a", Run::Once, "")];
    assert!(why(plan(twice)).contains("two steps"));
    let mut elsewhere = step("a", Run::Once, "");
    elsewhere.host = "nowhere".into();
    assert!(why(plan(vec![elsewhere])).contains("no host \"nowhere\""));
    assert!(why(plan(vec![step("a", Run::Once, "{out:b}")])).contains("no step \"b\" has ended"));
    let mut unfilled = plan(Vec::new());
    unfilled.files.push(subject::File {
        path: "a".into(),
        text: "{out:b}".into(),
        mode: 0o600,
    });
    assert!(why(unfilled).contains("writing the subject's file a"));
}

/// This machine.
pub(super) struct Here;

impl Site for Here {
    fn addresses(&self, host: &str) -> Option<Addresses> {
        (host == "here").then_some(Addresses {
            v4: Ipv4Addr::LOCALHOST,
            v6: Ipv6Addr::LOCALHOST,
        })
    }

    fn spawn(&self, _: &str, program: Program<'_>) -> io::Result<Process> {
        let (name, arguments) = program.command.split_first().unwrap();
        let mut command = Command::new(name);
        command.args(arguments).envs(program.env);
        command.current_dir(program.dir).process_group(0);
        command.stdin(Stdio::null());
        command.stdout(program.out).stderr(program.log);
        Process::start(&mut command)
    }

    fn inside(&self, _: &str, look: Look) -> io::Result<bool> {
        look()
    }
}
