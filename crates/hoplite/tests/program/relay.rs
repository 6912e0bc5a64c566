//! A relay as its operator sees it: it starts, keeps its identity, obeys signals.

use std::{
    ffi::OsStr,
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    path::Path,
    process::{Command, Output},
};

use crate::{
    client::{client, opened, relay_with},
    common::{Running, value},
};
use rustix::process::Signal;
use serde_json::Value;

const FILE: &str = "listen = [\"127.0.0.1:0\"]\n[[auth.token]]\ntoken = \"t\"\n";

#[test]
fn a_relay_makes_its_identity_once_and_keeps_it() {
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("relay.toml");
    fs::write(&file, FILE).expect("written");
    let pins: Vec<String> = (0..2)
        .map(|_| {
            let mut relay = Running::start("relay", &file);
            let pin = value(&relay.line_with("the relay is up"), "pin");
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
fn a_relay_of_circuits_makes_its_onion_key_once_and_keeps_it() {
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("relay.toml");
    let text = "listen = [\"127.0.0.1:0\"]\n[onion]\nenabled = true\n";
    fs::write(&file, text).expect("written");
    let keys: Vec<String> = (0..2)
        .map(|_| {
            let mut relay = Running::start("relay", &file);
            let key = value(&relay.line_with("the relay is up"), "onion");
            relay.signal(Signal::TERM);
            assert_eq!(relay.wait_for_end().code(), Some(0));
            key
        })
        .collect();
    assert_eq!(keys[0].len(), 86, "{keys:?}");
    assert_eq!(keys[0], keys[1]);
    assert!(directory.path().join("identity/onion.key").exists());
}

#[test]
fn circuits_beside_tokens_must_be_meant() {
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("relay.toml");
    fs::write(&file, format!("{FILE}[onion]\nenabled = true\n")).expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_hoplite"))
        .args(["check", "--config"])
        .arg(&file)
        .output()
        .expect("runs");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("relay.toml:4:2: onion.open: "), "{said}");
}

#[test]
fn a_service_manager_is_told_when_a_relay_serves_and_that_it_does_not_hang() {
    let directory = tempfile::tempdir().expect("directory");
    let (file, socket) = (
        directory.path().join("relay.toml"),
        directory.path().join("notify"),
    );
    fs::write(&file, FILE).expect("written");
    let manager = UnixDatagram::bind(&socket).expect("bound");
    let variables = [
        ("NOTIFY_SOCKET", socket.as_os_str()),
        ("WATCHDOG_USEC", OsStr::new("300000")),
    ];
    let mut relay = Running::with("relay", &file, &variables);
    let told = || {
        let mut word = [0; 64];
        let size = manager.recv(&mut word).expect("told");
        String::from_utf8_lossy(&word[..size]).into_owned()
    };
    assert_eq!(told(), "READY=1\n");
    // It was up by then: nothing of the log has still to come.
    let listen = value(&relay.line_with("the relay is up"), "listen");
    TcpStream::connect(listen).expect("it listens");
    assert_eq!(told(), "WATCHDOG=1\n");
    assert_eq!(told(), "WATCHDOG=1\n");
}

#[test]
fn a_wrong_file_on_reload_changes_nothing_and_is_told() {
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("relay.toml");
    fs::write(&file, FILE).expect("written");
    let mut relay = Running::start("relay", &file);
    relay.line_with("the relay is up");
    fs::write(&file, FILE.replace("token = ", "tokn = ")).expect("written");
    relay.signal(Signal::HUP);
    let line =
        relay.line_with("the old tokens, certificates, rules, limits and clients' regions stay");
    assert!(
        line.contains("relay.toml:3:1: auth.token[0].tokn: there is no such key"),
        "{line}"
    );
    let next = FILE.replace("\"t\"", "\"u\"");
    let more = "[egress]\ndeny = [\"192.0.2.0/24\"]\n[limits]\nconnect = 3\nhandshake = 3\n";
    fs::write(&file, format!("{next}{more}")).expect("written");
    relay.signal(Signal::HUP);
    let read_again = "tokens, certificates, rules, limits and clients' regions were read again";
    let taken = value(&relay.line_with(read_again), "taken");
    assert_eq!(taken, "auth.token, egress.deny, limits.connect");
    let line = relay.line_with("this waits until the relay is started again");
    assert!(line.contains("again: limits.handshake\""), "{line}");
    fs::write(&file, format!("{next}{more}drain = 3\n")).expect("written");
    relay.signal(Signal::HUP);
    let taken = value(&relay.line_with(read_again), "taken");
    assert_eq!(taken, "limits.drain", "what is new since the last time");
    let line = relay.line_with("this waits until the relay is started again");
    assert!(line.contains("again: limits.handshake\""), "{line}");
    relay.signal(Signal::INT);
    relay.line_with("the relay has stopped");
    assert_eq!(relay.wait_for_end().code(), Some(0));
}

#[test]
fn a_wrong_geofeed_on_reload_is_told_with_its_line() {
    let directory = tempfile::tempdir().expect("directory");
    let (file, feed) = (
        directory.path().join("relay.toml"),
        directory.path().join("clients.csv"),
    );
    fs::write(
        &file,
        format!("{FILE}[ingress]\ngeofeed = \"clients.csv\"\n"),
    )
    .expect("written");
    fs::write(&feed, "192.0.2.0/24,DE,,,\n").expect("written");
    let mut relay = Running::start("relay", &file);
    relay.line_with("the relay is up");
    fs::write(&feed, "192.0.2.0/24,DE,,,\n192.0.2.0/24,FR,,,\n").expect("written");
    relay.signal(Signal::HUP);
    let line =
        relay.line_with("the old tokens, certificates, rules, limits and clients' regions stay");
    let says = "relay.toml:5:11: ingress.geofeed: cannot read";
    assert!(
        line.contains(says) && line.contains("line 2: 192.0.2.0/24 is there twice"),
        "{line}"
    );
    fs::write(&feed, "192.0.2.0/24,FR,,,\n").expect("written");
    relay.signal(Signal::HUP);
    relay.line_with("tokens, certificates, rules, limits and clients' regions were read again");
}

#[test]
fn a_relay_whose_log_nobody_reads_goes_on() {
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("relay.toml");
    fs::write(&file, FILE).expect("written");
    let mut relay = Running::start("relay", &file);
    relay.line_with("the relay is up");
    relay.close_log();
    relay.signal(Signal::HUP);
    relay.signal(Signal::HUP);
    relay.signal(Signal::TERM);
    assert_eq!(relay.wait_for_end().code(), Some(0));
}

/// What a relay that answers in `run_dir` says of itself.
fn asked(run_dir: &Path) -> Value {
    let output = ask(run_dir, &["--json"]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(0), "{said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn ask(run_dir: &Path, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hoplite"))
        .args(["relay", "status", "--run-dir"])
        .arg(run_dir)
        .args(options)
        .output()
        .expect("runs")
}

/// Asks until it says so.
fn asked_until(run_dir: &Path, what: impl Fn(&Value) -> bool) -> Value {
    let (mut said, mut tries) = (asked(run_dir), 600);
    while !what(&said) {
        assert!(tries > 0, "it never says so: {said}");
        tries -= 1;
        std::thread::sleep(std::time::Duration::from_millis(100));
        said = asked(run_dir);
    }
    said
}

/// How near a limit is: used, and the most.
fn near(said: &Value, limit: &str) -> (u64, u64) {
    let all = said["limits"].as_array().expect("limits");
    let of = all.iter().find(|of| of["limit"] == limit).expect(limit);
    let number = |key: &str| of[key].as_u64().expect("a number");
    (number("used"), number("most"))
}

#[test]
fn an_operator_asks_a_relay_how_it_does_and_is_told_of_no_user() {
    let directory = tempfile::tempdir().expect("directory");
    let run_dir = directory.path().join("run");
    let nobody = ask(&run_dir, &[]);
    let said = String::from_utf8(nobody.stderr).expect("text");
    assert_eq!(nobody.status.code(), Some(1), "{said}");
    assert!(
        said.contains("relay.sock: nobody is there: start the relay with --run-dir"),
        "{said}"
    );

    // Its file, and the client's.
    let more = "[limits]\nrequests_per_client = 1\ndrain = 86400\n";
    drop(relay_with(directory.path(), None, more));
    let file = directory.path().join("relay.toml");
    let mut relay = Running::answering("relay", &file, &run_dir);
    let listen = value(&relay.line_with("the relay is up"), "listen");
    let client_file = directory.path().join("client.toml");
    let text = fs::read_to_string(&client_file).expect("there");
    let text: Vec<_> = text
        .lines()
        .map(|line| {
            if line.starts_with("address") {
                format!("address = \"{listen}\"")
            } else {
                line.to_owned()
            }
        })
        .collect();
    fs::write(&client_file, text.join("\n")).expect("written");
    let socket = fs::metadata(run_dir.join("relay.sock")).expect("there");
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);

    let (_client, socks, _) = client(directory.path(), "secret");
    let target = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    let port = target.local_addr().expect("bound").port();
    let (code, near_end) = opened(socks, port);
    assert_eq!(code, 0);
    let (_far, _) = target.accept().expect("dialled");
    assert_ne!(opened(socks, port).0, 0, "one request is all it may have");
    let said = asked_until(&run_dir, |said| {
        said["refusals"]["limit: requests"].is_u64()
    });
    assert_eq!(said["state"], "relay");
    assert_eq!(said["pid"], relay.pid());
    assert_eq!(said["listen"][0], listen);
    assert_eq!(said["roles"], serde_json::json!(["ingress", "egress"]));
    assert_eq!(said["draining"], false);
    assert_eq!(said["users"], 1);
    assert_eq!(said["open"]["tunnels_tcp"], 1);
    assert_eq!(near(&said, "limits.requests"), (1, 262_144));
    assert!(near(&said, "limits.memory").0 > 0 && near(&said, "LimitNOFILE").0 > 5);
    assert!(said["certificate"]["expires"].as_u64() > Some(4_000_000_000));
    let text = said.to_string();
    for secret in ["127.0.0.1:".to_owned() + &port.to_string(), "secret".into()] {
        assert!(!text.contains(&secret), "{secret} is in {text}");
    }

    fs::write(&file, "lisen = 1\n").expect("written");
    relay.signal(Signal::HUP);
    relay.line_with("stay");
    let said = asked_until(&run_dir, |said| said["reload"].is_object());
    let failure = said["reload"]["failure"].as_str().expect("it failed");
    assert!(failure.contains("relay.toml:1:1: lisen: "), "{failure}");

    relay.signal(Signal::TERM);
    relay.line_with("draining");
    asked_until(&run_dir, |said| said["draining"] == true);
    let people = String::from_utf8(ask(&run_dir, &[]).stdout).expect("text");
    assert!(people.contains("drains: it takes nothing new"), "{people}");
    assert!(people.contains("nothing was taken: hoplite: "), "{people}");
    drop((near_end, _far));
    relay.line_with("the relay has stopped");
    assert_eq!(relay.wait_for_end().code(), Some(0));
    assert_eq!(ask(&run_dir, &[]).status.code(), Some(1));
}

/// A relay whose file says this of limits, with a stream through it that nobody ends: both ends of it, and the client between.
fn busy(directory: &Path, limits: &str) -> (Running, Running, TcpStream, TcpStream) {
    let limits = format!("[limits]\n{limits}\n");
    let relay = relay_with(directory, None, &limits);
    let (client, socks, _) = client(directory, "secret");
    let target = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    let port = target.local_addr().expect("bound").port();
    let (code, near) = opened(socks, port);
    assert_eq!(code, 0);
    let (far, _) = target.accept().expect("dialled");
    (relay, client, near, far)
}

#[test]
fn a_relay_that_drains_gives_open_tunnels_the_time_of_its_file() {
    let directory = tempfile::tempdir().expect("directory");
    let (mut relay, _client, _near, _far) = busy(directory.path(), "drain = 0.25");
    relay.signal(Signal::TERM);
    relay.line_with("open tunnels may go on for 0.25 s");
    relay.line_with("closed tunnels that were still open");
    assert_eq!(relay.wait_for_end().code(), Some(0));
}

#[test]
fn new_limits_hold_at_once_and_what_is_open_stays_open() {
    let directory = tempfile::tempdir().expect("directory");
    let limits = "requests_per_client = 1\ndrain = 86400";
    let (mut relay, _client, mut near, mut far) = busy(directory.path(), limits);
    let target = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
    let port = target.local_addr().expect("bound").port();
    let (_other, socks, _) = client(directory.path(), "secret");
    assert_ne!(opened(socks, port).0, 0, "one is all that the token has");
    let file = directory.path().join("relay.toml");
    let text = fs::read_to_string(&file).expect("there");
    for (most, drain) in [(2, 86_400.0), (1, 0.25)] {
        let limits = format!("requests_per_client = {most}\ndrain = {drain}");
        fs::write(
            &file,
            text.replace("requests_per_client = 1\ndrain = 86400", &limits),
        )
        .expect("written");
        relay.signal(Signal::HUP);
        relay.line_with("were read again");
        let (code, _second) = opened(socks, port);
        assert_eq!(code == 0, most == 2, "{most}: {code}");
        far.write_all(b"still").expect("takes");
        let mut read = [0; 5];
        near.read_exact(&mut read).expect("open");
    }
    relay.signal(Signal::TERM);
    relay.line_with("open tunnels may go on for 0.25 s");
    assert_eq!(relay.wait_for_end().code(), Some(0));
}

#[test]
fn what_ends_while_a_relay_drains_loses_nothing_and_the_relay_stops() {
    let directory = tempfile::tempdir().expect("directory");
    let (mut relay, _client, mut near, mut far) = busy(directory.path(), "drain = 86400");
    relay.signal(Signal::TERM);
    relay.line_with("open tunnels may go on for 86400 s");
    far.write_all(&[7; 1 << 20]).expect("takes");
    drop(far);
    let mut read = Vec::new();
    near.read_to_end(&mut read).expect("readable");
    assert_eq!(read.len(), 1 << 20);
    drop(near);
    let last = relay.line_with("the relay has stopped");
    assert!(!last.contains("still open"), "{last}");
    assert_eq!(relay.wait_for_end().code(), Some(0));
}

#[test]
fn a_second_signal_stops_a_relay_that_drains() {
    let directory = tempfile::tempdir().expect("directory");
    let (mut relay, _client, _near, _far) = busy(directory.path(), "drain = 86400");
    relay.signal(Signal::TERM);
    relay.line_with("draining");
    relay.signal(Signal::TERM);
    relay.line_with("the relay has stopped at once");
    assert_eq!(relay.wait_for_end().code(), Some(0));
}

#[test]
fn a_fleets_key_that_everybody_may_read_is_refused() {
    let directory = tempfile::tempdir().expect("directory");
    let (file, key) = (
        directory.path().join("relay.toml"),
        directory.path().join("fleet.key"),
    );
    let fleet = "[fleet]\nserver_id = \"01\"\nkey = \"fleet.key\"\n";
    fs::write(&file, format!("{FILE}{fleet}")).expect("written");
    fs::write(&key, "0f".repeat(16)).expect("written");
    for (mode, code) in [(0o644, 2), (0o640, 0), (0o400, 0)] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).expect("set");
        let output = Command::new(env!("CARGO_BIN_EXE_hoplite"))
            .args(["check", "--config"])
            .arg(&file)
            .output()
            .expect("runs");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(code), "{said}");
        let told = said.contains("relay.toml:6:7: fleet.key: everybody on this machine");
        assert_eq!(told, code == 2, "{said}");
    }
}
