//! `hoplite portal -- COMMAND`: one program goes past the relays, to log in where a network wants that first; everything else stays as it is.
//! For users behind a captive portal. docs/device.md says what it does.
//!
//! `hoplite portal --detect` is the same with a program of our own, which finds out whether there is a login at all ([`probe`]).
//!
//! The program runs in a control group of its own, whose packets nftables marks, and sees the network's name servers in a resolv.conf of its own.
//!
//! What lets it pass lives no longer than this process, however that ends: the table belongs to the netlink socket of an `nft` (flag `owner`,
//! nft(8)), which ends when its standard input does, and the kernel closes that. What the program has started ends with it
//! (`cgroup.kill`, Linux `Documentation/admin-guide/cgroup-v2.rst`); a group that a killed process left is emptied by `up` and `down`.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use clap::Args;
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change},
    thread::UnshareFlags,
};
use tokio::{task::spawn_blocking, time::sleep};

use crate::{
    process::{Asked, Signals, current_thread_runtime},
    say::{self, Complaint, Failure},
    up::{Lock, Place, Refusal, driver, firewall_of_group, network_servers},
};

pub(crate) mod probe;

/// The control group, below the root of the hierarchy, and the table of nftables that lets it pass.
const GROUP: &str = "hoplite-portal";

/// Held while a portal is open.
const LOCK: &str = "portal.lock";

/// Where control groups of version 2 are mounted; nft knows one place only.
const HIERARCHY: &str = "/sys/fs/cgroup";

/// Where systemd-resolved is asked past resolv.conf.
const RESOLVED: &str = "/run/systemd/resolve";

/// How often it is looked whether what was killed has ended, and how many times.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_POLLS: u32 = 250;

/// `hoplite portal`
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    place: Place,
    /// Find out whether the network wants a login, by one request past the relays.
    #[arg(long, conflicts_with = "command")]
    detect: bool,
    /// What is asked for then: an http:// address where "success" stands, or nothing (204).
    #[arg(long, value_name = "URL", requires = "detect", default_value = probe::URL)]
    url: String,
    /// The program and its arguments.
    #[arg(
        last = true,
        required_unless_present = "detect",
        value_name = "COMMAND"
    )]
    command: Vec<String>,
}

/// Runs the program to its end.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let _lock = take_lock(&options.place)?;
    let runtime = current_thread_runtime()?;
    let done = runtime.block_on(async {
        // From now on no signal ends this process half-way.
        let signals = Signals::listen()?;
        empty().await?;
        let program = if options.detect {
            asking(&options.url)?
        } else {
            program(&options.command)
        };
        let done = pass(options, program, signals).await;
        // Before the one who waits hears that it is over.
        match (done, empty().await) {
            (Ok(_), Err(complaint)) => Err(complaint.into()),
            (done, _) => done,
        }
    });
    // Somebody may still be waited for there who was not to be killed.
    runtime.shutdown_background();
    let said = done?;
    if options.detect { told(&said) } else { Ok(()) }
}

/// What asks for `url`.
fn asking(url: &str) -> Result<Command, Failure> {
    if probe::place(url).is_none() {
        let remedy = "give an http:// address with a host";
        return Err(Failure::new(
            "looking for a login",
            format!("{url:?} cannot be asked for"),
            remedy,
        ));
    }
    let own = std::env::current_exe()
        .map_err(|error| Failure::new("looking for a login", error, "start it by its path"))?;
    let mut program = Command::new(own);
    program.args([probe::PROBE, url]).env_clear();
    program.stdout(Stdio::piped());
    Ok(program)
}

/// What the probe said, for a user.
fn told(said: &[u8]) -> Result<(), Failure> {
    let doing = "looking for a login";
    match serde_json::from_slice(said) {
        Ok(probe::Found::Open) => {
            say::answer("the network wants no login: it lets requests through as they are")
        }
        Ok(probe::Found::Login(host)) => {
            let host = host.map(|host| format!(", at {host}")).unwrap_or_default();
            let why = format!("the network wants one first{host}");
            let remedy =
                "log in: sudo hoplite portal -- firefox --new-instance http://neverssl.com/";
            Err(Failure::new(doing, why, remedy))
        }
        Ok(probe::Found::Silence(why)) => {
            Err(Failure::new(doing, why, "see whether the network is there"))
        }
        Err(error) => Err(Failure::new(doing, error, "please report this")),
    }
}

fn take_lock(place: &Place) -> Result<Lock, Failure> {
    Lock::take(&place.run_dir, LOCK).map_err(|refusal| match refusal {
        Refusal::Full(complaint) | Refusal::Failed(complaint) => complaint.into(),
        Refusal::Held(pid) => Failure::new(
            "letting one program pass",
            format!("another one passes already (process {pid})"),
            "end that one first",
        ),
    })
}

/// Lets `program` pass until it ends; what it wrote, where that comes to us.
async fn pass(
    options: &Options,
    program: Command,
    mut signals: Signals,
) -> Result<Vec<u8>, Failure> {
    let failed = |error: io::Error| {
        let remedy = "run it as root on Linux 5.14 or newer, with nftables 1.0 and control groups of version 2";
        Failure::new("letting one program pass", error, remedy)
    };
    let servers = servers(options);
    fs::create_dir(group()).map_err(failed)?;
    let (hole, closed) = FirewallException::open().map_err(failed)?;
    see_servers(&options.place.run_dir, &servers).map_err(failed)?;
    let program = born_in_group(program)?;
    let ended = spawn_blocking(move || program.wait_with_output());
    let closed = spawn_blocking(move || closed.lines().for_each(drop));
    let end = async {
        loop {
            if signals.next().await == Asked::Stop {
                return;
            }
        }
    };
    let result = tokio::select! {
        output = ended => ended_well(output.unwrap_or_else(|error| Err(io::Error::other(error)))),
        () = end => Err(Failure::new("running the program", "interrupted", "run it again")),
        _ = closed => Err(Failure::new("letting one program pass", "nft has ended", "run it again")),
    };
    drop(hole);
    result
}

fn ended_well(output: io::Result<Output>) -> Result<Vec<u8>, Failure> {
    let failed =
        |why: &dyn std::fmt::Display| Failure::new("running the program", why, "see what it said");
    match output {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) => Err(failed(&output.status)),
        Err(error) => Err(failed(&error)),
    }
}

/// As lines of a resolv.conf.
fn servers(options: &Options) -> String {
    let servers = network_servers(&options.place.run_dir);
    let line = |server: SocketAddr| format!("nameserver {}\n", server.ip());
    servers.into_iter().map(line).collect()
}

fn group() -> PathBuf {
    Path::new(HIERARCHY).join(GROUP)
}

/// The table that lets the group pass. It is gone when this is dropped, and when this process is.
struct FirewallException(Child);

impl FirewallException {
    /// Opens it. What comes with it ends when it has been closed, by whomever.
    fn open() -> io::Result<(Self, impl BufRead + Send + 'static)> {
        let (said, says) = io::pipe()?;
        let mut nft = driver::program("nft")?
            .arg("--interactive")
            // It would keep what it is told in a file there.
            .env("HOME", "/dev/null")
            .stdin(Stdio::piped())
            .stdout(says.try_clone()?)
            .stderr(says)
            .spawn()?;
        let stdin = nft.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let text = firewall_of_group(GROUP)?;
        write!(stdin, "{text}\nlist table inet {GROUP}\n")?;
        let hole = Self(nft);
        let mut said = BufReader::new(said);
        let listed = format!("table inet {GROUP} {{");
        let mut line = String::new();
        while !line.starts_with(&listed) {
            line.clear();
            let is_over = said.read_line(&mut line)? == 0;
            if is_over || line.contains("Error") {
                return Err(io::Error::other(format!("nft: {}", line.trim())));
            }
        }
        Ok((hole, said))
    }
}

impl Drop for FirewallException {
    fn drop(&mut self) {
        // The end of its input is its end; the kernel takes the table with its socket.
        drop(self.0.stdin.take());
        self.0.wait().map(drop).unwrap_or_default();
    }
}

/// Starts the program in the group: what a process starts is born where that is. We leave again.
fn born_in_group(mut program: Command) -> Result<Child, Failure> {
    let failed = |error: io::Error| {
        Failure::new(
            "starting a program in a control group",
            error,
            "run it as root",
        )
    };
    let before = own_group().map_err(failed)?;
    move_to(&group()).map_err(failed)?;
    let program = program.spawn();
    move_to(&before)
        .or_else(|_| move_to(Path::new(HIERARCHY)))
        .map_err(failed)?;
    program.map_err(|error| Failure::new("running the program", error, "check its name"))
}

/// Where this process is (cgroups(7)).
fn own_group() -> io::Result<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    Ok(Path::new(HIERARCHY).join(path.unwrap_or_default()))
}

fn move_to(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), "0")
}

/// As the user who called sudo, if one did.
fn program(command: &[String]) -> Command {
    // There is one: the command line demands it.
    let (name, arguments) = command
        .split_first()
        .map_or(("", &[][..]), |(name, rest)| (name, rest));
    let mut program = Command::new(name);
    program.args(arguments);
    let id = |name: &str| std::env::var(name).ok()?.parse().ok();
    if let (Some(user), Some(group)) = (id("SUDO_UID"), id("SUDO_GID")) {
        program.uid(user).gid(group);
    }
    program
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
    if Path::new(RESOLVED).exists() {
        Ok(mount("tmpfs", RESOLVED, "tmpfs", MountFlags::NOSUID, None)?)
    } else {
        Ok(())
    }
}

/// Ends what a portal has started that is no more. One that is open is its user's, who may need it until `up` succeeds.
pub(crate) async fn forget(run_dir: &Path) -> Result<(), Complaint> {
    match Lock::take(run_dir, LOCK) {
        Ok(_lock) => empty().await,
        Err(_) => Ok(()),
    }
}

/// Ends what a portal has started, be it open or not: an open one ends when its program does.
pub(crate) async fn end() -> Result<(), Complaint> {
    empty().await
}

/// Kills what is in the group, and removes it with its table, which one of an earlier version may have left.
async fn empty() -> Result<(), Complaint> {
    let group = group();
    if !group.exists() {
        return Ok(());
    }
    let failed = |error: io::Error| {
        let doing = format!("ending what is in the control group {GROUP}");
        Complaint::new(doing, error, "run 'hoplite down' as root")
    };
    let mut looks = 0;
    loop {
        let killed = fs::write(group.join("cgroup.kill"), "1");
        match killed.and_then(|()| remove(&group)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) if looks >= MAX_POLLS => return Err(failed(error)),
            Err(_) => looks += 1,
            Ok(()) => break,
        }
        sleep(POLL_INTERVAL).await;
    }
    // One that belongs to a living process goes with that.
    let text = format!("table inet {GROUP} {{}}\ndelete table inet {GROUP}\n");
    driver::run_program("nft", &["-f", "-"], &text)
        .map(drop)
        .unwrap_or_default();
    Ok(())
}

/// The group with those that the program has made below.
fn remove(group: &Path) -> io::Result<()> {
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}
