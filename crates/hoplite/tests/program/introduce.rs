//! How a relay and a client come to know each other: `hoplite init` on one machine, `hoplite import` of its URL on the other.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::{
    client::{started, target, through_socks},
    common::{Running, value},
};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hoplite"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command that has to succeed, and gives the last line of what it answers.
fn answer(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().last().unwrap_or_default().to_owned()
}

fn path(directory: &Path, name: &str) -> std::path::PathBuf {
    directory.join(name)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain")
}

/// A relay's URL, made in `directory`.
fn made(directory: &Path, address: &str) -> String {
    let more = ["--listen", "127.0.0.1:0", "--out", text(directory)];
    answer(&[&["init", address][..], &more].concat())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o777
}

#[test]
fn a_relay_that_init_made_serves_a_client_that_import_made() {
    let directory = tempfile::tempdir().expect("made");
    let relay_file = path(directory.path(), "relay.toml");
    let url = made(directory.path(), "127.0.0.1:4433");
    assert_eq!(mode(&relay_file), 0o600, "it has a token");
    // The target of the test is on loopback, which no relay serves unasked.
    let file = fs::read_to_string(&relay_file).expect("there");
    let file = file.replace("[egress]\n", "[egress]\nallow = [\"127.0.0.0/8\"]\n");
    fs::write(&relay_file, file).expect("written");
    let mut relay = Running::start("relay", &relay_file);
    let up = relay.line_with("the relay is up");
    let url = url.replace("127.0.0.1:4433", &value(&up, "listen"));

    let client_file = path(directory.path(), "client.toml");
    assert_eq!(
        answer(&["import", &url, "--config", text(&client_file)]),
        "relay"
    );
    assert_eq!(mode(&client_file), 0o600, "it has a token");
    let file = fs::read_to_string(&client_file).expect("there");
    let ports = "socks.listen = \"127.0.0.1:0\"\nhttp.listen = \"127.0.0.1:0\"\n";
    fs::write(&client_file, format!("{ports}{file}")).expect("written");
    let (_client, socks, _) = started(Running::start("client", &client_file));
    assert_eq!(through_socks(socks, target()), (0, "hello".to_owned()));
}

#[test]
fn relays_are_added_to_a_file_once_and_the_rest_of_it_stays() {
    let directory = tempfile::tempdir().expect("made");
    let file = path(directory.path(), "client.toml");
    let urls = ["amber", "birch", "cedar"]
        .map(|name| made(&directory.path().join(name), &format!("{name}.example.org")));
    let [amber, birch, cedar] = urls;
    answer(&["import", &amber, &birch, "--config", text(&file)]);
    let before = fs::read_to_string(&file).expect("there");
    assert!(before.contains("path = [\"amber\", \"birch\"]"), "{before}");
    assert!(!answer(&["check", "--config", text(&file)]).is_empty());
    assert_eq!(answer(&["import", &amber, "--config", text(&file)]), "");
    assert_eq!(fs::read_to_string(&file).expect("there"), before);
    assert_eq!(
        answer(&["import", &cedar, "--config", text(&file)]),
        "cedar"
    );
    let after = fs::read_to_string(&file).expect("there");
    assert!(
        after.starts_with(&before) && after.contains("cedar.example.org:443"),
        "{after}"
    );
}

#[test]
fn what_is_wrong_changes_no_file_and_says_no_token() {
    let directory = tempfile::tempdir().expect("made");
    let file = path(directory.path(), "client.toml");
    let amber = made(&directory.path().join("one"), "amber.example.org");
    let other = made(&directory.path().join("two"), "amber.example.org");
    let token = amber.rsplit_once('#').expect("one").1;
    for wrong in [
        amber.replace("hoplite://", "https://"),
        amber.replace("pin=", "pin=x"),
        amber.replace("/amber?", "/am%22ber?"),
        amber.replace("?pin=", "?insecure=1&pin="),
        amber.replace(":443", ":0"),
    ] {
        let output = run(&["import", &wrong, "--config", text(&file)]);
        assert_eq!(output.status.code(), Some(2), "{wrong}");
        assert!(said(&output).starts_with("hoplite: ") && !said(&output).contains(token));
        assert!(!file.exists(), "{wrong}");
    }
    answer(&["import", &amber, "--config", text(&file)]);
    let before = fs::read_to_string(&file).expect("there");
    let output = run(&["import", &other, "--config", text(&file)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("another relay that is called \"amber\""),
        "{}",
        said(&output)
    );
    assert_eq!(fs::read_to_string(&file).expect("there"), before);
}

#[test]
fn init_replaces_no_relay() {
    let directory = tempfile::tempdir().expect("made");
    made(directory.path(), "amber.example.org");
    let again = run(&["init", "amber.example.org", "--out", text(directory.path())]);
    assert_eq!(again.status.code(), Some(1));
    assert!(
        said(&again).contains("there is one already"),
        "{}",
        said(&again)
    );
}

#[test]
fn without_a_terminal_nothing_is_asked_and_what_is_missing_is_named() {
    for (given, missing) in [
        (&["init"][..], "<HOST[:PORT]> --out <DIR>"),
        (&["init", "amber.example.org"], "provided: --out <DIR>"),
    ] {
        let output = run(given);
        assert_eq!(output.status.code(), Some(2));
        assert!(said(&output).contains(missing), "{}", said(&output));
    }
}

/// What `hoplite init` says on a terminal where this is typed, and how it ends.
fn typed(directory: &Path, answers: &str) -> (String, Option<i32>) {
    let command = format!("{} init", env!("CARGO_BIN_EXE_hoplite"));
    let mut script = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("`script` of util-linux");
    let mut input = script.stdin.take().expect("piped");
    input.write_all(answers.as_bytes()).expect("typed");
    drop(input);
    let output = script.wait_with_output().expect("ends");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (said, output.status.code())
}

#[test]
fn on_a_terminal_a_relay_and_a_client_are_asked_for_and_check_takes_both_files() {
    let directory = tempfile::tempdir().expect("made");
    let at = |name| path(directory.path(), name);
    let (relay, code) = typed(directory.path(), "relay\namber:4433\n\namber\n");
    assert_eq!(code, Some(0), "{relay}");
    let url = relay.lines().last().unwrap_or_default().trim();
    let (client, code) = typed(directory.path(), &format!("client\n{url}\n\nme.toml\n"));
    assert_eq!(code, Some(0), "{client}");
    for file in ["amber/relay.toml", "me.toml"] {
        assert_eq!(mode(&at(file)), 0o600, "it has a token");
        answer(&["check", "--config", text(&at(file))]);
    }
    let (ended, code) = typed(directory.path(), "client\n");
    assert_eq!(code, Some(2), "{ended}");
    assert!(ended.contains("hoplite import URL"), "{ended}");
}
