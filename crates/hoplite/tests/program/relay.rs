//! A relay as its operator sees it: it starts, keeps its identity, obeys signals.

use std::{
    ffi::OsStr,
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
};

use crate::{
    client::{client, opened, relay_with},
    common::{Running, value},
};
use rustix::process::Signal;

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
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_hoplite"))
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
    let line = relay.line_with("the old tokens, certificates, rules and clients' regions stay");
    assert!(
        line.contains("relay.toml:3:1: auth.token[0].tokn: there is no such key"),
        "{line}"
    );
    let next = FILE.replace("\"t\"", "\"u\"");
    let more = "[egress]\ndeny = [\"192.0.2.0/24\"]\n[limits]\nconnect = 3\n";
    fs::write(&file, format!("{next}{more}")).expect("written");
    relay.signal(Signal::HUP);
    relay.line_with("tokens, certificates, rules and clients' regions were read again");
    let line = relay.line_with("this waits until the relay is started again");
    assert!(line.contains("again: limits.connect\""), "{line}");
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
    let line = relay.line_with("the old tokens, certificates, rules and clients' regions stay");
    let says = "relay.toml:5:11: ingress.geofeed: cannot read";
    assert!(
        line.contains(says) && line.contains("line 2: 192.0.2.0/24 is there twice"),
        "{line}"
    );
    fs::write(&feed, "192.0.2.0/24,FR,,,\n").expect("written");
    relay.signal(Signal::HUP);
    relay.line_with("tokens, certificates, rules and clients' regions were read again");
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

/// A relay whose file says this of limits, with a stream through it that nobody ends: both ends of it, and the client between.
fn busy(directory: &std::path::Path, limits: &str) -> (Running, Running, TcpStream, TcpStream) {
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
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_hoplite"))
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
