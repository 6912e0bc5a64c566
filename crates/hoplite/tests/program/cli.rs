//! What a user sees of the program: exit codes, messages, answers.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

fn hoplite(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hoplite"));
    command
        .args(arguments)
        .env_remove("HOPLITE_LOG")
        .stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    hoplite(arguments).output().expect("runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .join(name)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain text")
}

#[test]
fn help_and_version_are_answers() {
    for option in ["--help", "--version"] {
        let output = run(&[option]);
        assert_eq!(output.status.code(), Some(0), "{option}");
        assert!(stdout(&output).contains("hoplite") || stdout(&output).contains("demo"));
    }
    for command in ["demo", "keygen", "relay", "client", "check", "bench"] {
        assert!(stdout(&run(&["--help"])).contains(command), "{command}");
        assert_eq!(
            run(&[command, "--help"]).status.code(),
            Some(0),
            "{command}"
        );
    }
}

/// What packages are made with.
#[test]
fn man_pages_and_completions_tell_what_help_tells() {
    let share = tempfile::tempdir().expect("directory");
    let output = run(&["__share", text(share.path())]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let read = |name: &str| fs::read_to_string(share.path().join(name)).expect("written");
    let page = read("man/man1/hoplite.1");
    let completions = [
        read("bash-completion/completions/hoplite"),
        read("zsh/site-functions/_hoplite"),
        read("fish/vendor_completions.d/hoplite.fish"),
    ];
    for command in ["relay", "up", "keygen", "tor-relays", "directory"] {
        read(&format!("man/man1/hoplite-{command}.1"));
        assert!(page.contains(&command.replace('-', "\\-")), "{command}");
        assert!(
            completions.iter().all(|it| it.contains(command)),
            "{command}"
        );
    }
    read("man/man1/hoplite-directory-scan.1");
    for hidden in ["__node", "__share", "--detached"] {
        assert!(
            completions.iter().all(|it| !it.contains(hidden)),
            "{hidden}"
        );
    }
    assert!(!page.contains("__"), "{page}");
}

#[test]
fn a_wrong_command_line_is_exit_2_and_one_line() {
    for arguments in [
        &["up", "--config", "x", "--wait", "18446744073709551615"][..],
        &[][..],
        &["serve"],
        &["check"],
        &["check", "--confg", "x"],
        &["bench", "--hops", "9"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let message = stderr(&output);
        assert!(
            message.starts_with("hoplite: reading the command line: "),
            "{message}"
        );
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(!message.contains("For more information"), "{message}");
    }
}

/// Only who builds it for that can leave the cipher out.
#[cfg(not(feature = "without-cipher"))]
#[test]
fn the_cipher_cannot_be_left_out() {
    for arguments in [
        &["--without-cipher", "relay", "--config", "x"][..],
        &["client", "--config", "x", "--without-cipher"],
        &["--without-cipher", "up", "--config", "x"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let message = stderr(&output);
        assert!(message.contains("'--without-cipher'"), "{message}");
    }
    let help = stdout(&run(&["--help"]));
    assert!(!help.contains("cipher"), "{help}");
}

#[test]
fn a_missing_file_is_exit_2_with_its_path() {
    for command in ["relay", "client", "check"] {
        let output = run(&[command, "--config", "/no/such.toml"]);
        assert_eq!(output.status.code(), Some(2));
        let message = stderr(&output);
        assert!(
            message.starts_with("hoplite: reading the configuration /no/such.toml: No such file"),
            "{message}"
        );
    }
}

#[test]
fn the_examples_are_right() {
    for (name, kind) in [("client.toml", "client"), ("relay.toml", "relay")] {
        let output = run(&["check", "--config", text(&example(name))]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(stdout(&output).contains(&format!("a {kind} configuration, and it is right")));
    }
}

#[test]
fn check_answers_in_json() {
    let output = run(&["check", "--json", "--config", text(&example("client.toml"))]);
    let line: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("one object");
    assert_eq!(
        (&line["ok"], &line["kind"]),
        (&true.into(), &"client".into())
    );
}

#[test]
fn a_wrong_file_is_exit_2_with_line_and_column() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("relay.toml");
    fs::write(&path, "name = \"a\"\nlistn = [\"127.0.0.1:1\"]\n").expect("written");
    for command in ["relay", "check"] {
        let output = run(&[command, "--config", text(&path)]);
        assert_eq!(output.status.code(), Some(2));
        let expected = format!(
            "hoplite: reading the configuration: {}:2:1: listn: there is no such key: did you mean \"listen\"?\n",
            path.display()
        );
        assert_eq!(stderr(&output), expected);
    }
}

#[test]
fn a_wrong_log_filter_is_exit_2() {
    let file = example("client.toml");
    let output = hoplite(&["check", "--config", text(&file)])
        .env("HOPLITE_LOG", "a=loud")
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).starts_with("hoplite: reading HOPLITE_LOG: "));
}

#[test]
fn keygen_prints_the_pin_and_never_overwrites() {
    let directory = tempfile::tempdir().expect("directory");
    let out = directory.path().join("identity");
    let output = run(&["keygen", "--out", text(&out), "--name", "amber.example.org"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let pin = stdout(&output).trim().to_owned();
    assert!(pin.starts_with("sha256:") && pin.len() == 51, "{pin}");
    assert!(
        stderr(&output).contains("address = \"amber.example.org:443\"")
            && stderr(&output).contains(&pin)
    );
    let told = stderr(&output);
    let url = told.lines().find(|line| line.starts_with("hoplite://"));
    let url = url.expect("a URL for `hoplite import`");
    let file = directory.path().join("client.toml");
    let imported = run(&["import", "--config", text(&file), &format!("{url}#token")]);
    assert_eq!(imported.status.code(), Some(0), "{}", stderr(&imported));
    assert_eq!(
        written(&fs::read_to_string(&file).expect("there"), "pin"),
        pin
    );
    let key = fs::read(out.join("key.pem")).expect("there");
    let again = run(&["keygen", "--out", text(&out)]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("--force"));
    assert_eq!(fs::read(out.join("key.pem")).expect("there"), key);
    assert_eq!(
        run(&["keygen", "--out", text(&out), "--force"])
            .status
            .code(),
        Some(0)
    );
    assert_ne!(fs::read(out.join("key.pem")).expect("there"), key);
}

/// The value of a line `key = "value"`.
fn written(text: &str, key: &str) -> String {
    let start = format!("{key} = \"");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    let value = line.and_then(|line| line.strip_suffix('"'));
    value
        .unwrap_or_else(|| unreachable!("{key} is not in {text}"))
        .to_owned()
}

#[test]
fn keygen_makes_an_onion_key_and_shows_it_again() {
    let directory = tempfile::tempdir().expect("directory");
    let out = directory.path().join("identity");
    let output = run(&["keygen", "--out", text(&out)]);
    let onion = written(&stderr(&output), "onion");
    assert_eq!(onion.len(), 86, "{onion}");
    let shown = run(&["keygen", "--show", text(&out)]);
    assert_eq!(
        (stdout(&shown), shown.status.code()),
        (stdout(&output), Some(0))
    );
    assert_eq!(written(&stderr(&shown), "onion"), onion);
    let shown = run(&["--json", "keygen", "--show", text(&out)]);
    let shown: serde_json::Value = serde_json::from_str(&stdout(&shown)).expect("JSON");
    assert_eq!(shown["onion"], onion.as_str());
    assert_eq!(shown["pin"], stdout(&output).trim());
    // An identity of an earlier version has none, which is no mistake.
    fs::remove_file(out.join("onion.key")).expect("there");
    let shown = run(&["keygen", "--show", text(&out)]);
    assert_eq!(shown.status.code(), Some(0));
    assert!(!stderr(&shown).contains("onion"), "{}", stderr(&shown));
}

#[test]
fn a_broken_onion_key_is_told_with_file_and_line() {
    let directory = tempfile::tempdir().expect("directory");
    let out = directory.path().join("identity");
    assert_eq!(run(&["keygen", "--out", text(&out)]).status.code(), Some(0));
    fs::write(out.join("onion.key"), "hoplite-onion-secret 1\nnonsense\n").expect("written");
    let shown = run(&["keygen", "--show", text(&out)]);
    assert_eq!(shown.status.code(), Some(1));
    let said = stderr(&shown);
    assert!(
        said.contains("onion.key") && said.contains("line 2"),
        "{said}"
    );
}

#[test]
fn a_taken_port_is_exit_1_and_says_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("binds");
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("client.toml");
    let example = fs::read_to_string(example("client.toml")).expect("there");
    let address = taken.local_addr().expect("bound");
    let file = example.replace(
        "# listen = \"127.0.0.1:1080\"",
        &format!("listen = \"{address}\""),
    );
    fs::write(&path, file).expect("written");
    let output = run(&["client", "--config", text(&path)]);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(
        message.starts_with("hoplite: starting the client: ")
            && message.contains("another program has this port"),
        "{message}"
    );
}

#[test]
fn a_closed_stderr_harms_nobody() {
    let mut child = hoplite(&["check", "--config", "/no/such.toml"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    drop(child.stderr.take());
    assert_eq!(child.wait().expect("ends").code(), Some(2));
}

#[test]
fn a_geofeed_is_checked_line_by_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("feed.csv");
    let check = |feed: &str| {
        fs::write(&file, feed).expect("written");
        run(&["geofeed", "check", text(&file)])
    };
    let right =
        check("# ours\n9.9.9.0/24,US,US-CA,,\n9.9.9.9,CH,CH-ZH,Z\u{fc}rich,\n192.0.2.0/24,DE,,,\n");
    assert_eq!(right.status.code(), Some(0), "{}", stderr(&right));
    assert_eq!(
        stdout(&right),
        "right: 3 prefix(es), 1 of them in one that is elsewhere\n"
    );
    let notes = stderr(&right);
    assert!(notes.contains("9.9.9.9/32 lies in 9.9.9.0/24"), "{notes}");
    assert!(
        notes.contains("192.0.2.0/24 is no public prefix"),
        "{notes}"
    );

    let wrong =
        check("9.9.9.0/24,US,DE-BE,,\n9.9.8.0/24,US,,,\n9.9.8.0/24,CH,,,\n9.9.7.1/24,CH,,,\n");
    assert_eq!(wrong.status.code(), Some(2));
    let lines = stderr(&wrong);
    let told: Vec<&str> = lines.lines().collect();
    for (line, says) in told.iter().zip([
        "line 1: region DE-BE is not in country US: see RFC 8805",
        "line 3: 9.9.8.0/24 is there twice",
        "line 4: the address has bits set behind its prefix: expected 9.9.7.0/24",
    ]) {
        assert!(
            line.starts_with("hoplite: reading the geofeed") && line.contains(says),
            "{line}"
        );
    }
    assert_eq!(told.len(), 3, "{lines}");
    assert_eq!(
        run(&["geofeed", "check", "/no/such"]).status.code(),
        Some(1)
    );
    assert_eq!(run(&["geofeed"]).status.code(), Some(2));
}

#[test]
fn a_check_names_pools_whose_addresses_do_not_lead_to_this_host() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("relay.toml");
    let relay = "listen = [\"127.0.0.1:0\"]\n\
                 [[egress.pool]]\nregion = \"DE\"\naddresses = [\"127.9.0.0/16\", \"::1\"]\n\
                 [[egress.pool]]\nregion = \"FR\"\naddresses = [\"127.10.0.0/16\", \"203.0.113.0/28\", \"2001:db8:be::/64\"]\n";
    fs::write(&config, relay).expect("written");
    let checked = run(&["check", "--config", text(&config)]);
    assert_eq!(checked.status.code(), Some(0), "{}", stderr(&checked));
    let warnings = stderr(&checked);
    let told: Vec<&str> = warnings
        .lines()
        .filter(|l| l.contains("egress.pool"))
        .collect();
    for (line, says) in told.iter().zip([
        "203.0.113.0/28 does not lead to this host",
        "2001:db8:be::/64 does not lead to this host",
    ]) {
        let place = "relay.toml:7:1: egress.pool[1].addresses: ";
        assert!(line.contains(place) && line.contains(says), "{line}");
    }
    assert_eq!(told.len(), 2, "{warnings}");
}

#[test]
fn a_published_geofeed_that_has_pools_elsewhere_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, file) = (
        folder.path().join("relay.toml"),
        folder.path().join("feed.csv"),
    );
    let relay = "listen = [\"127.0.0.1:0\"]\n\
                 [[egress.pool]]\nregion = \"DE-BE\"\naddresses = [\"9.9.9.0/28\"]\n\
                 [[egress.pool]]\naddresses = [\"9.9.9.16/28\"]\n";
    fs::write(&config, relay).expect("written");
    let check = |feed: &str| {
        fs::write(&file, feed).expect("written");
        let checked = run(&["geofeed", "check", text(&file), "--config", text(&config)]);
        (checked.status.code(), stderr(&checked))
    };
    for right in [
        "9.9.9.0/24,DE,DE-BE,,\n",
        "9.9.9.0/24,FR,,,\n9.9.9.0/28,DE,,,\n",
        "9.9.9.0/28,DE,DE-BE,Berlin,\n9.9.9.16/28,FR,,,\n",
    ] {
        assert_eq!(check(right).0, Some(0), "{right}");
    }
    for (wrong, says) in [
        (
            "9.9.9.0/24,FR,,,\n",
            "the feed has 9.9.9.0/24 in FR, and the pool in DE-BE",
        ),
        (
            "9.9.9.0/28,DE,DE-BY,,\n",
            "the feed has 9.9.9.0/28 in DE-BY",
        ),
        (
            "9.9.9.0/28,DE,DE-BE,,\n9.9.9.4,FR,,,\n",
            "the feed has 9.9.9.4/32 in FR",
        ),
        ("9.9.9.0/28,,,,\n", "the feed has 9.9.9.0/28 nowhere"),
        (
            "9.9.9.0/29,DE,DE-BE,,\n",
            "the feed does not have all of 9.9.9.0/28",
        ),
    ] {
        let (code, told) = check(wrong);
        assert_eq!(code, Some(2), "{wrong}");
        let place = "relay.toml:4:1: egress.pool[0].addresses: ";
        assert!(told.contains(place) && told.contains(says), "{told}");
    }
}

#[test]
fn a_relays_geofeed_is_printed_and_passes_the_check() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("relay.toml");
    let relay = "listen = [\"127.0.0.1:0\"]\n";
    let pools = "[[egress.pool]]\nregion = \"DE-BE\"\naddresses = [\"9.9.9.0/28\", \"2620:fe::/48\"]\n\
                 [[egress.pool]]\nregion = \"FR\"\naddresses = [\"9.9.9.16\"]\n";
    fs::write(&config, format!("{relay}{pools}")).expect("written");
    let printed = run(&["geofeed", "print", "--config", text(&config)]);
    let feed = "9.9.9.0/28,DE,DE-BE,,\n9.9.9.16/32,FR,,,\n2620:fe::/48,DE,DE-BE,,\n";
    assert_eq!(stdout(&printed), feed, "{}", stderr(&printed));
    let file = folder.path().join("feed.csv");
    fs::write(&file, feed).expect("written");
    assert_eq!(
        run(&["geofeed", "check", text(&file)]).status.code(),
        Some(0)
    );

    let json = run(&["--json", "geofeed", "print", "--config", text(&config)]);
    assert!(stdout(&json).contains(r#"{"prefix":"9.9.9.0/28","region":"DE-BE"}"#));

    fs::write(&config, relay).expect("written");
    let none = run(&["geofeed", "print", "--config", text(&config)]);
    assert_eq!(none.status.code(), Some(2));
    assert!(
        stderr(&none).contains("add [[egress.pool]]"),
        "{}",
        stderr(&none)
    );
}
