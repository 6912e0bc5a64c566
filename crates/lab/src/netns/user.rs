//! The way into fresh namespaces: mount, pid and network, inside a user namespace where this process is not root; and what processes there see of
//! the file system that others do not: their own `/proc`, `/etc/hosts`, `/etc/resolv.conf`.
//!
//! A process cannot move into a new pid namespace, only its children are born there: so it unshares, starts the same command line
//! again as PID 1, and waits. Both die with whoever started them, and the kernel takes with PID 1 all that runs inside.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    io::{self, PipeReader, PipeWriter},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    path::Path,
    process::{Command, ExitStatus, exit},
    thread,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{FdFlags, fcntl_setfd},
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change},
    process::{Pid, Signal, getegid, geteuid, getpid, getppid, set_parent_process_death_signal},
    thread::UnshareFlags,
};

use super::process;
use crate::{errors::Failure, topology::Addresses};

/// Set for PID 1: the descriptor of a pipe that ends when its parent does.
const MARK: &str = "HOPLITE_LAB_INSIDE";

/// May be set for the outer process: the pid of whoever it must not outlive.
pub(crate) const PARENT: &str = "HOPLITE_LAB_PARENT";

/// The running program, also when its file was replaced meanwhile.
pub(crate) const THIS_PROGRAM: &str = "/proc/self/exe";

/// Which side one came out on.
#[derive(Clone, Copy, Debug)]
pub enum Entered {
    /// This is PID 1 of the new namespaces.
    Inside,
    /// That process has been, and ended so.
    Over(ExitStatus),
}

/// Enters fresh namespaces by starting this command line again inside; must come before any thread is made.
///
/// # Errors
/// Why this machine does not allow it, and what to do.
pub fn enter() -> Result<Entered, Failure> {
    match inherited_pipe() {
        Some(pipe) if getpid() == Pid::INIT => settle(pipe).map(|()| Entered::Inside),
        _ => start_inside().map(Entered::Over),
    }
}

/// The outer process.
fn start_inside() -> Result<ExitStatus, Failure> {
    unshare_all().map_err(|error| refused(&error))?;
    let starting = |error: io::Error| {
        Failure::new(
            "starting the world's first process",
            error,
            "raise the limits of processes and files",
        )
    };
    die_with_parent().map_err(starting)?;
    let (read, _write) = liveness_pipe().map_err(starting)?;
    let mut child = Command::new(THIS_PROGRAM)
        .args(std::env::args_os().skip(1))
        .env(MARK, read.as_raw_fd().to_string())
        .spawn()
        .map_err(starting)?;
    drop(read);
    child.wait().map_err(starting)
}

/// Only the reading end survives an exec; nobody else execs at this time, for there is only this thread.
fn liveness_pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (read, write) = io::pipe()?;
    fcntl_setfd(&read, FdFlags::empty())?;
    Ok((read, write))
}

/// New namespaces; as root only within those that it has, else within a user namespace in which this user is root.
fn unshare_all() -> io::Result<()> {
    let namespaces = UnshareFlags::NEWNS | UnshareFlags::NEWPID | UnshareFlags::NEWNET;
    match geteuid().is_root().then(|| unshare(namespaces)) {
        Some(Ok(())) => return Ok(()),
        Some(Err(error)) if error.raw_os_error() != Some(libc::EPERM) => return Err(error),
        _ => {}
    }
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(namespaces | UnshareFlags::NEWUSER)?;
    // user_namespaces(7): "deny" must stand before an unprivileged process may map its group.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    #[expect(
        unsafe_code,
        reason = "rustix marks every unshare unsafe because of one flag that we do not use"
    )]
    // SAFETY: namespaces change, file descriptors stay shared.
    unsafe { rustix::thread::unshare_unsafe(flags) }?;
    Ok(())
}

/// The kernel kills this process when the thread that started it ends; one that has ended already is noticed here.
fn die_with_parent() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let wanted = std::env::var(PARENT)
        .ok()
        .and_then(|text| text.parse().ok());
    let parent = getppid().map(Pid::as_raw_pid);
    if wanted.is_some_and(|wanted: i32| Some(wanted) != parent) {
        Err(io::Error::other("whoever asked for it is gone"))
    } else {
        Ok(())
    }
}

/// PID 1 makes itself at home.
fn settle(pipe: OwnedFd) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::new(
            "settling in new namespaces",
            error,
            "raise the limits of processes and files",
        )
    };
    fcntl_setfd(&pipe, FdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| failed(error.into()))?;
    end_with(pipe).map_err(failed)?;
    make_private()?;
    fresh_proc();
    process::reap_everything().map_err(failed)
}

/// Ends this process, and all others of its namespace, when the pipe ends: its parent died, perhaps before the death signal was set.
fn end_with(pipe: OwnedFd) -> io::Result<()> {
    let wait = move || {
        let mut hung_up = [PollFd::new(&pipe, PollFlags::IN)];
        while poll(&mut hung_up, None).is_err() {}
        #[expect(clippy::exit, reason = "nobody is left to answer to")]
        exit(1)
    };
    thread::Builder::new().name("parent".into()).spawn(wait)?;
    Ok(())
}

/// The pipe that our outer process left us, if there is one.
fn inherited_pipe() -> Option<OwnedFd> {
    let fd = std::env::var(MARK).ok()?.parse().ok()?;
    #[expect(
        unsafe_code,
        reason = "an inherited descriptor is known by its number only"
    )]
    // SAFETY: any number may be asked about.
    let open = unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
    if !open || fd <= libc::STDERR_FILENO {
        return None;
    }
    #[expect(
        unsafe_code,
        reason = "an inherited descriptor is known by its number only"
    )]
    // SAFETY: it is open, and nobody else in this process owns it: the outer process left it to us.
    let pipe = unsafe { OwnedFd::from_raw_fd(fd) };
    Some(pipe)
}

/// Why there are no namespaces for us, and what to do.
fn refused(error: &io::Error) -> Failure {
    let remedy = match error.raw_os_error() {
        Some(libc::ENOSPC) => {
            "raise the limits: `sysctl user.max_user_namespaces=10000 user.max_net_namespaces=10000`"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "run as root, or allow unprivileged user namespaces: `sysctl kernel.unprivileged_userns_clone=1 \
             kernel.apparmor_restrict_unprivileged_userns=0` (whichever exists); start a container with `--privileged`, or with \
             `--cap-add SYS_ADMIN --cap-add NET_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined`"
        }
        Some(libc::EINVAL | libc::ENOSYS) => {
            "the kernel lacks namespaces: it needs CONFIG_USER_NS, CONFIG_PID_NS and CONFIG_NET_NS"
        }
        _ => "see whether `unshare -rnmpf true` works here",
    };
    Failure::new("making namespaces", error, remedy)
}

/// What is mounted here from now on is seen here only.
fn make_private() -> Result<(), Failure> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", flags).map_err(|error| {
        Failure::new(
            "making mounts private",
            error,
            "run as root, or where a user namespace may mount",
        )
    })
}

/// A `/proc` of the new pid namespace. Some containers refuse it; then the old one stays, and processes are told apart by their namespace.
fn fresh_proc() {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if let Err(error) = mount("proc", "/proc", "proc", flags, None) {
        tracing::warn!(%error, "no /proc of its own: it stays the machine's");
    }
}

/// Lets programs resolve the hosts' names, and others with the resolver alone, if there is one: no other query leaves a host but a subject's own.
///
/// # Errors
/// The files cannot be written. A mount that is refused is only logged: plain addresses work without.
pub(crate) fn name_hosts(
    directory: &Path,
    hosts: &BTreeMap<String, Addresses>,
    resolver: Option<Addresses>,
) -> io::Result<()> {
    let etc = directory.join("etc");
    fs::create_dir_all(&etc)?;
    let resolver = resolver_file(resolver);
    for (name, text) in [("hosts", hosts_file(hosts)), ("resolv.conf", resolver)] {
        let (ours, theirs) = (etc.join(name), Path::new("/etc").join(name));
        fs::write(&ours, text)?;
        if let Err(error) = mount_bind(&ours, &theirs) {
            tracing::warn!(%error, path = %theirs.display(), "could not be replaced");
        }
    }
    Ok(())
}

fn resolver_file(resolver: Option<Addresses>) -> String {
    match resolver {
        Some(addresses) => format!("nameserver {}\n", addresses.v4),
        None => "# no resolver: names of hosts stand in /etc/hosts\n".to_owned(),
    }
}

fn hosts_file(hosts: &BTreeMap<String, Addresses>) -> String {
    let mut text = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
    for (name, addresses) in hosts {
        // Writing to a String cannot fail.
        writeln!(text, "{} {name}\n{} {name}", addresses.v4, addresses.v6).ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: i32) -> String {
        refused(&io::Error::from_raw_os_error(code)).to_string()
    }

    #[test]
    fn forbidden_namespaces_are_told_with_the_settings_that_allow_them() {
        let text = said(libc::EPERM);
        assert!(text.starts_with("hoplite-lab: making namespaces: Operation not permitted"));
        assert!(text.contains("unprivileged_userns") && text.contains("run as root"));
        assert!(said(libc::ENOSPC).contains("user.max_user_namespaces"));
    }

    #[test]
    fn names_are_asked_of_the_resolver_alone_if_there_is_one() {
        assert!(resolver_file(None).starts_with("# no resolver"));
        let addresses = Addresses {
            v4: [10, 77, 0, 5].into(),
            v6: "fd77::5".parse().unwrap(),
        };
        assert_eq!(resolver_file(Some(addresses)), "nameserver 10.77.0.5\n");
    }

    #[test]
    fn every_host_is_named_with_both_addresses() {
        let addresses = Addresses {
            v4: [10, 77, 0, 1].into(),
            v6: "fd77::1".parse().unwrap(),
        };
        let text = hosts_file(&BTreeMap::from([("client".to_owned(), addresses)]));
        assert!(
            text.ends_with("10.77.0.1 client\nfd77::1 client\n"),
            "{text}"
        );
    }
}
