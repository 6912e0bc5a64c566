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
