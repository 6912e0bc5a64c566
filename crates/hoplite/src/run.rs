//! `hoplite run`: one program, and what it starts, over relays; the rest of the machine stays as it is. No right is needed where a user may make
//! namespaces (user_namespaces(7), network_namespaces(7)).
//!
//! Two processes. One stays where the network is and carries the traffic, with the mediator of `hoplite up`. The other one moves into a network
//! namespace that has nothing but a TUN device, hands the device to the first, and becomes the program. What the program sends has no other
//! way: when the first process is gone, nothing passes.

use std::{
    ffi::OsString,
    fs,
    io::{self, Write},
    net::IpAddr,
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::{
            fs::OpenOptionsExt,
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::{Path, PathBuf},
    pin::pin,
    process::{Child, Command, ExitCode, ExitStatus},
    time::Duration,
};

use clap::Args;
use hoplite_mediator::tun::{Device, Transparent};
use hoplite_overlay::direct::tun::{self, PacketHeader};
use rustix::{
    io::{FdFlags, fcntl_setfd},
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change},
    process::{Pid, Signal, getegid, geteuid, kill_process, set_parent_process_death_signal},
    thread::UnshareFlags,
};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tracing::warn;

use crate::{
    client::{self, ClientOverlay, Underlay},
    config::client::{self as config, Client, takeover::Takeover},
    listed, process,
    say::{self, Failure},
    up::{Channel, Netlink, channel_pair, probe_failure, until_it_flows},
    wallet::{self, Wallets},
};

/// `hoplite run`
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The client's TOML file.
    #[arg(long, value_name = "FILE", required_unless_present = "offline")]
    config: Option<PathBuf>,
    /// Give the program no network at all.
    #[arg(long, conflicts_with = "config")]
    offline: bool,
    /// Seconds to wait until traffic flows, before giving up; a day at most.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=86_400))]
    wait: u64,
    /// The program and its arguments.
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    program: Vec<OsString>,
}

/// What this program is called with before it becomes another one.
#[derive(Debug, Args)]
pub(crate) struct Inside {
    /// The descriptor of its socket.
    socket: RawFd,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// What the process in the namespace is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ToProgram {
    /// To make this interface, and send it.
    Device {
        name: String,
        mtu: u16,
        addresses: Vec<IpAddr>,
        /// Where names are answered.
        resolvers: Vec<IpAddr>,
    },
    /// To become the program.
    Begin,
}

/// What it says: the interface stands, with these addresses, and comes with it.
#[derive(Debug, Serialize, Deserialize)]
struct Made {
    addresses: Vec<IpAddr>,
}

/// What a program that was not found ends with, and one that could not be started, as in a shell (POSIX, "Exit Status for Commands").
const NOT_FOUND: u8 = 127;
const NOT_STARTED: u8 = 126;

/// Runs the program; its exit code, or 128 and the number of the signal that ended it.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Failure> {
    let client = options.config.as_deref().map(config::load).transpose()?;
    let warnings = client.iter().flat_map(|client| &client.warnings);
    warnings.for_each(|warning| warn!("{warning}"));
    process::raise_file_limit();
    let (ours, theirs) = channel_pair().map_err(|error| failed(&error))?;
    let program = Program::start(&theirs, &options.program).map_err(|error| failed(&error))?;
    drop(theirs);
    let recording = process::Recording::from_environment()?;
    process::current_thread_runtime()?.block_on(async {
        let channel = Channel::new(ours).map_err(|error| failed(&error))?;
        match client {
            Some(client) => {
                let wait = Duration::from_secs(options.wait);
                carry(client, wait, (&channel, program), &recording).await
            }
            None => {
                tell(&channel, &ToProgram::Begin)?;
                program.ended().await
            }
        }
    })
}

/// Carries the program's traffic until it ends.
async fn carry(
    mut client: Client,
    wait: Duration,
    (channel, program): (&Channel, Program),
    recording: &process::Recording,
) -> Result<ExitCode, Failure> {
    // Nothing goes past from here.
    client.config.takeover = Takeover::default();
    let mut config = client.config.transparent();
    client.config.ways_of_names(&mut config.dns);
    tell(
        channel,
        &ToProgram::Device {
            name: config.device.name.clone(),
            mtu: config.device.mtu,
            addresses: config.device.addresses.clone(),
            resolvers: config.dns.resolvers.clone(),
        },
    )?;
    let made = channel.next::<Made>().await;
    let Some((made, mut with)) = made.map_err(|error| failed(&error))? else {
        // It has said why.
        return program.ended().await;
    };
    let carried = overlay(&mut client, recording).await?;
    let device = with.pop().ok_or_else(|| failed(&"no interface came"))?;
    let device = Device::new(device, config.device.mtu, true).map_err(|error| failed(&error))?;
    config.device.addresses = made.addresses;
    config.dns.onion_services = carried.reaches_services();
    let transparent = Transparent::new(config, carried.overlay.clone(), device);
    let mut serving = pin!(transparent.serve(std::future::pending()));
    let mut running = pin!(async {
        let probed = until_it_flows(&*carried.overlay, wait).await;
        probed.map_err(|error| probe_failure(&error, carried.missing()))?;
        tell(channel, &ToProgram::Begin)?;
        program.ended().await
    });
    let ended = tokio::select! {
        ended = &mut running => ended,
        // The namespace is gone with its last process; the program's end comes at once.
        _ = &mut serving => running.await,
    };
    carried.leave().await;
    ended
}

/// What carries: the file's relays, by ordinary sockets of this process.
async fn overlay(
    client: &mut Client,
    recording: &process::Recording,
) -> Result<ClientOverlay, Failure> {
    let mut underlay = Underlay {
        tokens: false,
        ..Underlay::default()
    };
    let wallets = Wallets::open(&client.config, &underlay.tunnels, wallet::file);
    underlay.wallets = wallets.await?;
    let listed = listed::prepare(client, &underlay.tunnels, None).await?;
    client::overlay_of(client, listed.as_ref(), recording.watch(), &underlay)
}

fn tell(channel: &Channel, what: &ToProgram) -> Result<(), Failure> {
    channel.send(what, &[]).map_err(|error| failed(&error))
}

fn failed(why: &dyn std::fmt::Display) -> Failure {
    Failure::new("running the program", why, "please report this")
}

/// The process that becomes the program. It ends with this value.
struct Program(Child);

impl Program {
    /// Starts this program again, with one end of the channel.
    fn start(socket: &OwnedFd, program: &[OsString]) -> io::Result<Self> {
        // Only this child gets it: nothing else is started at this time.
        fcntl_setfd(socket, FdFlags::empty())?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg(INSIDE)
            .arg(socket.as_raw_fd().to_string())
            .args(program);
        command.spawn().map(Self)
    }

    /// Waits for its end. It gets the signals that are to end this process; what a terminal sends to both is its affair.
    async fn ended(mut self) -> Result<ExitCode, Failure> {
        let on = |kind| signal(kind).map_err(|error| failed(&error));
        let mut children = on(SignalKind::child())?;
        let mut interrupt = on(SignalKind::interrupt())?;
        let mut terminate = on(SignalKind::terminate())?;
        let mut hangup = on(SignalKind::hangup())?;
        loop {
            if let Some(status) = self.0.try_wait().map_err(|error| failed(&error))? {
                return Ok(code(status));
            }
            tokio::select! {
                _ = children.recv() => {}
                _ = interrupt.recv() => {}
                _ = terminate.recv() => self.signal(Signal::TERM),
                _ = hangup.recv() => self.signal(Signal::HUP),
            }
        }
    }

    fn signal(&self, signal: Signal) {
        // It has not been waited for, so the number is still its own; it may be at its end already.
        kill_process(Pid::from_child(&self.0), signal).unwrap_or_default();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().unwrap_or_default();
        self.0.wait().map(drop).unwrap_or_default();
    }
}

fn code(status: ExitStatus) -> ExitCode {
    let by_signal = || status.signal().map(|signal| signal.saturating_add(128));
    let code = status.code().or_else(by_signal);
    code.and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from)
}

// The other process.

/// How it is called.
pub(crate) const INSIDE: &str = "__inside";

/// Moves into namespaces of its own, makes what is there, and becomes the program. Must come before there is a second thread.
pub(crate) fn inside(options: &Inside) -> Result<ExitCode, Failure> {
    let socket = inherited(options.socket).map_err(|error| failed(&error))?;
    // The program is asked to end when what carries its traffic does: it would wait for a network that does not come back. Who has died before
    // that has left the other end of the socket.
    let asked = set_parent_process_death_signal(Some(Signal::TERM));
    asked.map_err(|error| failed(&error))?;
    enter().map_err(|error| no_namespaces(&error))?;
    process::current_thread_runtime()?.block_on(furnish(socket))?;
    let (program, arguments) = options
        .program
        .split_first()
        .ok_or_else(|| failed(&"there is none"))?;
    let error = Command::new(program).args(arguments).exec();
    let doing = format!("starting {}", Path::new(program).display());
    say::remark(Failure::new(doing, &error, "check its name, and PATH").to_string());
    Ok(ExitCode::from(match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_STARTED,
    }))
}

/// The descriptor that was left to this process; no program gets it.
fn inherited(socket: RawFd) -> io::Result<OwnedFd> {
    #[expect(
        unsafe_code,
        reason = "an inherited descriptor is known by its number only"
    )]
    // SAFETY: any number may be asked about.
    let is_open = unsafe { libc::fcntl(socket, libc::F_GETFD) } >= 0;
    if !is_open || socket <= libc::STDERR_FILENO {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    #[expect(
        unsafe_code,
        reason = "an inherited descriptor is known by its number only"
    )]
    // SAFETY: it is open, and nobody else in this process owns it: the other process left it to us.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok(socket)
}

/// New namespaces, as root within the user namespace that there is, else in one in which this user is who he is, with all rights until the program begins.
fn enter() -> io::Result<()> {
    let namespaces = UnshareFlags::NEWNS | UnshareFlags::NEWNET;
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    if geteuid().is_root() && unshare(namespaces).is_ok() {
        return Ok(());
    }
    unshare(namespaces | UnshareFlags::NEWUSER)?;
    // user_namespaces(7): "deny" must stand before an unprivileged process may map its group.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
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

fn no_namespaces(error: &io::Error) -> Failure {
    let remedy = match error.raw_os_error() {
        Some(libc::ENOSPC) => {
            "raise the limits: `sysctl user.max_user_namespaces=10000 user.max_net_namespaces=10000`"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "allow unprivileged user namespaces: `sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0` \
             (whichever exists), or run it as root"
        }
        _ => "see whether `unshare -rnm true` works here",
    };
    Failure::new("giving the program a network of its own", error, remedy)
}

/// Makes the network that it is told to, and waits until it may begin.
async fn furnish(socket: OwnedFd) -> Result<(), Failure> {
    let channel = Channel::new(socket).map_err(|error| failed(&error))?;
    let netlink = Netlink::open().map_err(|error| failed(&error))?;
    netlink.loopback().await.map_err(|error| failed(&error))?;
    let gone = || failed(&"whoever carries its traffic is gone");
    let told = channel.next().await.map_err(|error| failed(&error))?;
    match told.ok_or_else(gone)?.0 {
        ToProgram::Begin => hide_resolvers(&[]),
        ToProgram::Device {
            name,
            mtu,
            addresses,
            resolvers,
        } => {
            hide_resolvers(&resolvers)?;
            let (device, addresses) = device(&netlink, (&name, mtu), &addresses).await?;
            let sent = channel.send(&Made { addresses }, &[device.as_fd()]);
            sent.map_err(|error| failed(&error))?;
            let told = channel.next().await.map_err(|error| failed(&error))?;
            match told.ok_or_else(gone)?.0 {
                ToProgram::Begin => Ok(()),
                ToProgram::Device { .. } => Err(failed(&"it has an interface already")),
            }
        }
    }
}

/// The interface, with those of the addresses that the kernel takes (it may have no IPv6), and all routes into it.
async fn device(
    netlink: &Netlink,
    (name, mtu): (&str, u16),
    addresses: &[IpAddr],
) -> Result<(OwnedFd, Vec<IpAddr>), Failure> {
    let remedy = "see that /dev/net/tun is there, and that everybody may use it";
    let refused = |error: io::Error| Failure::new("making a TUN device", error, remedy);
    let device = tun::device().map_err(refused)?;
    tun::attach(&device, name, PacketHeader::Virtio).map_err(refused)?;
    let furnished = netlink.furnish(name, mtu).await;
    furnished.map_err(refused)?;
    let mut has = Vec::new();
    for address in addresses {
        match netlink.address(name, &[*address]).await {
            Ok(()) => has.push(*address),
            Err(error) => tracing::debug!(%error, "the interface does without an address"),
        }
    }
    let leads = netlink.lead_all_into(name, &has).await;
    leads.map_err(refused)?;
    Ok((device.into(), has))
}

/// Where other processes of the machine look names up for programs: they would ask past the relays.
const OTHERS: [&str; 4] = [
    "/run/systemd/resolve",
    "/run/nscd",
    "/var/run/nscd",
    "/run/avahi-daemon",
];
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Nobody of the machine is asked for names any more, in this mount namespace; these servers are, if there are any.
fn hide_resolvers(servers: &[IpAddr]) -> Result<(), Failure> {
    let hidden = (|| {
        let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", flags)?;
        let conf = fs::canonicalize(RESOLV_CONF).ok();
        for place in OTHERS {
            if fs::symlink_metadata(place).is_ok_and(|it| it.is_dir()) {
                let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
                mount("hoplite", place, "tmpfs", flags, None)?;
            }
        }
        match conf {
            Some(conf) => name_servers(&conf, servers),
            None => Ok(()),
        }
    })();
    hidden.map_err(|error: io::Error| {
        let remedy = "see whether `unshare -rm mount -t tmpfs none /run` works here";
        Failure::new("giving the program name servers of its own", error, remedy)
    })
}

/// Writes the file anew where it was hidden, else mounts another one over it.
fn name_servers(conf: &Path, servers: &[IpAddr]) -> io::Result<()> {
    let lines = servers
        .iter()
        .map(|server| format!("nameserver {server}\n"));
    let text: String = lines.collect();
    if !conf.exists() {
        return fs::write(conf, text);
    }
    let name = format!("hoplite-resolv.conf-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&path)?;
    let mounted = file
        .write_all(text.as_bytes())
        .and_then(|()| Ok(mount_bind(&path, conf)?));
    // What is mounted stays without its name.
    fs::remove_file(&path)?;
    mounted
}
