//! Namespaces of a test's own, so that it never touches the machine's routes, rules, firewall or resolv.conf.
//! Skipped, with the reason on stderr, where namespaces, TUN devices or the programs are not to be had.

use std::{
    ffi::OsStr,
    io::{self, Write},
    path::PathBuf,
    process::{Command, Output},
};

/// What the machines of the tests are made of, beside a kernel that gives namespaces to users.
const PROGRAMS: [&str; 6] = ["unshare", "ip", "nft", "tcpdump", "python3", "setpriv"];

/// `None` where something is missing, which CI does not bear.
fn skipped(why: &str) -> Option<Output> {
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "not to be tried here: {why}"
    );
    drop(writeln!(io::stderr(), "skipped: {why}"));
    None
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.any(|folder| folder.join(program).is_file())
}

/// Runs the script inside, with these variables; `None` where that is not possible.
pub(crate) fn inside(script: &str, variables: &[(&str, &OsStr)]) -> Option<Output> {
    if let Some(missing) = PROGRAMS.into_iter().find(|program| !is_installed(program)) {
        return skipped(&format!("{missing} is not installed"));
    }
    let temporary = tempfile::tempdir().expect("a directory");
    let shell = |script: &str| {
        Command::new("unshare")
            .args(namespaces())
            .args(["sh", "-euc", script])
            .env("TEMP", temporary.path())
            .env_remove("HOPLITE_LOG")
            .envs(variables.iter().copied())
            .output()
    };
    let possible = shell("mount -t tmpfs tmpfs /run && ip tuntap add name t0 mode tun");
    match possible {
        Ok(output) if output.status.success() => shell(script).ok(),
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            skipped(&format!("namespaces are not to be had: {}", why.trim()))
        }
        Err(error) => skipped(&format!("`unshare` cannot be run: {error}")),
    }
}

fn namespaces() -> Vec<&'static str> {
    let mut arguments = vec![
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
    ];
    if !rustix::process::geteuid().is_root() {
        arguments.push("--map-root-user");
    }
    arguments
}

/// Fails with what it said, unless it ended well.
pub(crate) fn ended_well(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}\n--- stdout\n{}\n--- stderr\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
}
