//! `hoplite portal -- COMMAND`: one program goes past the relays, to log in where a network wants that first; everything else stays as it is.
//! For users behind a captive portal. docs/device.md says what it does.
//!
//! The program runs in a control group of its own, whose packets nftables marks, and sees the network's name servers in a resolv.conf of its own.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

use clap::Args;
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change},
    thread::UnshareFlags,
};

use crate::{
    errors::Failure,
    up::{Place, child, firewall_of_group, network_servers},
};

/// The control group, below the root of the hierarchy, and the table of nftables that lets it pass.
const GROUP: &str = "hoplite-portal";

/// Where systemd-resolved is asked past resolv.conf.
const RESOLVED: &str = "/run/systemd/resolve";

/// `hoplite portal`
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    place: Place,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Removes what it made when it is dropped.
struct Pass {
    group: PathBuf,
}

/// Runs the program to its end.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let remedy = "run it as root, with nftables and control groups of version 2";
        Failure::new("letting one program pass", error, remedy)
    };
    let servers = servers(options);
    let _pass = Pass::make().map_err(failed)?;
    see_servers(&options.place.run_dir, &servers).map_err(failed)?;
    let status = program(&options.command)
        .map_err(|error| Failure::new("running the program", error, "check its name"))?;
    match status.success() {
        true => Ok(()),
        false => Err(Failure::new(
            "running the program",
            status,
            "see what it said",
        )),
    }
}

/// As lines of a resolv.conf.
fn servers(options: &Options) -> String {
    let servers = network_servers(&options.place.run_dir);
    let line = |server: SocketAddr| format!("nameserver {}\n", server.ip());
    servers.into_iter().map(line).collect()
}

impl Pass {
    /// Moves this process into the group; what it starts is born there.
    fn make() -> io::Result<Self> {
        let group = hierarchy()?.join(GROUP);
        match fs::create_dir(&group) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let pass = Self { group };
        child::run("nft", &["-f", "-"], &firewall_of_group(GROUP)?)?;
        fs::write(pass.group.join("cgroup.procs"), "0")?;
        Ok(pass)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let text = format!("table inet {GROUP} {{}}\ndelete table inet {GROUP}\n");
        child::run("nft", &["-f", "-"], &text)
            .map(drop)
            .unwrap_or_default();
        // It is empty when this process, too, is in another one.
        let root = self.group.parent().unwrap_or_else(|| Path::new("/"));
        fs::write(root.join("cgroup.procs"), "0").unwrap_or_default();
        fs::remove_dir(&self.group).unwrap_or_default();
    }
}

/// Where control groups of version 2 are mounted; nft knows one place only.
fn hierarchy() -> io::Result<PathBuf> {
    let path = PathBuf::from("/sys/fs/cgroup");
    match path.join("cgroup.procs").exists() {
        true => Ok(path),
        false => Err(io::Error::other(
            "/sys/fs/cgroup has no control groups of version 2",
        )),
    }
}

/// From now on this process, and no other, has the network's name servers in its resolv.conf.
fn see_servers(run_dir: &Path, servers: &str) -> io::Result<()> {
    #[expect(
        unsafe_code,
        reason = "rustix marks every unshare unsafe because of one flag that we do not use"
    )]
    // SAFETY: only this thread's view of mounts changes; file descriptors stay shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private)?;
    let file = run_dir.join("portal.conf");
    fs::write(&file, servers)?;
    mount_bind(&file, fs::canonicalize("/etc/resolv.conf")?)?;
    fs::remove_file(&file)?;
    match Path::new(RESOLVED).exists() {
        true => Ok(mount("tmpfs", RESOLVED, "tmpfs", MountFlags::NOSUID, None)?),
        false => Ok(()),
    }
}

/// As the user who called sudo, if one did.
fn program(command: &[String]) -> io::Result<ExitStatus> {
    let (name, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut program = Command::new(name);
    program.args(arguments);
    let id = |name: &str| std::env::var(name).ok()?.parse().ok();
    if let (Some(user), Some(group)) = (id("SUDO_UID"), id("SUDO_GID")) {
        program.uid(user).gid(group);
    }
    program.status()
}
