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
    Ok(bare(&installed(program)?))
}

/// The same, but it ignores SIGTERM, which every process gets at once when the machine is shut down: what holds the firewall, or makes it
/// again, ends when we want it to, with its input or by SIGKILL.
pub(super) fn command_ignoring_sigterm(program: &str) -> io::Result<Command> {
    let path = installed(program)?;
    let mut command = bare(&installed("sh")?);
    // What a process ignores, the program that it becomes ignores as well (execve(2)).
    command
        .args(["-c", "trap '' TERM; exec \"$0\" \"$@\""])
        .arg(path);
    Ok(command)
}

fn installed(program: &str) -> io::Result<PathBuf> {
    find(program).ok_or_else(|| {
        let missing = format!("{program} is not installed");
        io::Error::new(io::ErrorKind::NotFound, missing)
    })
}

fn bare(path: &Path) -> Command {
    let mut command = Command::new(path);
    command.env_clear().env("LC_ALL", "C").current_dir("/");
    command
}

/// Runs it to its end with `input`; its output, or the first line of what it complained of.
pub(crate) fn run(program: &str, arguments: &[&str], input: &str) -> io::Result<String> {
    let output = spawn_and_feed(command_ignoring_sigterm(program)?.args(arguments), input)?;
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
    use std::io::Read;

    use super::*;

    #[test]
    fn a_program_goes_on_when_it_is_told_to_end_and_ends_with_its_input() {
        let mut child = command_ignoring_sigterm("cat")
            .expect("there")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let (mut input, mut output) = child
            .stdin
            .take()
            .zip(child.stdout.take())
            .expect("both are pipes");
        let mut echo = |line: &[u8]| {
            input.write_all(line).expect("it reads");
            let mut heard = vec![0; line.len()];
            output.read_exact(&mut heard).expect("it writes");
            assert_eq!(heard, line);
        };
        echo(b"before");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        echo(b"after");
        drop(input);
        assert!(child.wait().expect("ours").success());
    }

    #[test]
    fn a_program_is_fed_and_heard_and_its_complaint_is_one_line() {
        assert_eq!(run("cat", &[], "text").expect("there"), "text");
        let failed = run("ls", &["/nowhere/at/all"], "").expect_err("fails");
        assert!(failed.to_string().starts_with("ls: "), "{failed}");
        let missing = run("no-such-program", &[], "").expect_err("missing");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
