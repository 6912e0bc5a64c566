//! Other programs that set parts of the system: `nft`, `resolvectl`. `driver`, `facts` and `control` run them; nothing else is run.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use rustix::thread::{
    CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities,
};

/// Where they are, whatever PATH a service manager or sudo gave us; what stands there is root's.
const PLACES: [&str; 6] = [
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/usr/local/sbin",
    "/usr/local/bin",
];

/// The program of that name, if it is installed.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let places = PLACES.iter().map(|place| Path::new(place).join(program));
    places.into_iter().find(|path| path.is_file())
}

/// It, to be given arguments and started.
pub(crate) fn command(program: &str) -> io::Result<Command> {
    let path = find(program).ok_or_else(|| {
        let missing = format!("{program} is not installed");
        io::Error::new(io::ErrorKind::NotFound, missing)
    })?;
    let mut command = Command::new(path);
    command.env_clear().env("LC_ALL", "C").current_dir("/");
    Ok(command)
}

/// Runs it to its end with `input`; its output, or the first line of what it complained of.
pub(crate) fn run(program: &str, arguments: &[&str], input: &str) -> io::Result<String> {
    let output = spawn_and_feed(command(program)?.args(arguments), input)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            let line = complaint
                .lines()
                .next()
                .unwrap_or("it failed without a word");
            Err(io::Error::other(format!("{program}: {line}")))
        }
    }
}

/// What is fed fits the pipe or is read: none of them writes before it has read all.
fn spawn_and_feed(command: &mut Command, input: &str) -> io::Result<Output> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(input.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
    }
    child.wait_with_output()
}

/// Lets those programs have our right to set up the network, if we have it without being root (capabilities(7)).
pub(super) fn share_capability() -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= CapabilitySet::NET_ADMIN;
    set_capabilities(None, sets)?;
    configure_capability_in_ambient_set(CapabilitySet::NET_ADMIN, true)
}

/// Whether we may set up the network.
pub(crate) fn may_set_up() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_fed_and_heard_and_its_complaint_is_one_line() {
        assert_eq!(run("cat", &[], "text").expect("there"), "text");
        let failed = run("ls", &["/nowhere/at/all"], "").expect_err("fails");
        assert!(failed.to_string().starts_with("ls: "), "{failed}");
        let missing = run("no-such-program", &[], "").expect_err("missing");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
