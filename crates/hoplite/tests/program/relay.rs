//! A relay as its operator sees it: it starts, keeps its identity, obeys signals.

use std::fs;

use crate::common::{Running, value};
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
fn a_wrong_file_on_reload_changes_nothing_and_is_told() {
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("relay.toml");
    fs::write(&file, FILE).expect("written");
    let mut relay = Running::start("relay", &file);
    relay.line_with("the relay is up");
    fs::write(&file, FILE.replace("token = ", "tokn = ")).expect("written");
    relay.signal(Signal::HUP);
    let line = relay.line_with("the old tokens and certificates stay");
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
    let mut relay = Running::start("relay", &file);
    relay.line_with("the relay is up");
    relay.close_log();
    relay.signal(Signal::HUP);
    relay.signal(Signal::HUP);
    relay.signal(Signal::TERM);
    assert_eq!(relay.wait_for_end().code(), Some(0));
}
