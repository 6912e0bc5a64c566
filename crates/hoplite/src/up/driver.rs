//! The real machine: what it has, and how each step is done and undone; the TUN device and the few programs that are run for it. Dull on purpose; what is
//! done in which order is the plan's.

use std::{
    fs::{self, File},
    io::{self, Write},
    mem::MaybeUninit,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use hoplite_overlay::direct::tun::{self, PacketHeader};
use rustix::thread::{
    CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities,
};

use hoplite_wire::HostName;
use ipnet::IpNet;

use super::{
    cgroups::{self, Groups},
    netlink::{self, Netlink},
    nftables::{self, Nftables, OwnedTable, Standing},
    plan::Machine,
    plan::{FIREWALL, HELD, MARKS, Wanted},
    plan::{Facts, Family, Ipv6, Nft, Resolving, Step, Way},
    resolv::{self, ResolvConf},
};
use crate::{config::client::takeover::Interface, say::Complaint};

/// Makes marks count where the kernel checks the way back.
const VALID_MARK: &str = "/proc/sys/net/ipv4/conf/all/src_valid_mark";

/// This machine, or rather this network namespace of it.
#[derive(Debug)]
pub(crate) struct System {
    netlink: Netlink,
    nftables: Nftables,
    /// In a process that stays.
    held: Option<OwnedTable>,
    conf: ResolvConf,
    groups: Groups,
    name: String,
    addresses: Vec<IpAddr>,
    /// Stands while we have changed [`VALID_MARK`].
    changed: PathBuf,
    device: Option<OwnedFd>,
    /// The number of the interface that was made last.
    index: Option<u32>,
    /// Rules of other programs that come before ours.
    before: usize,
    /// What resolved would ask by other interfaces, had we not claimed it.
    claimed: Vec<String>,
    /// The only domains that it asks us for, if not all.
    only: Vec<HostName>,
}

/// What is left of what was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// All of it.
    All,
    /// Something is missing.
    Undone,
    /// The interface itself is.
    Gone,
}

impl System {
    /// With an interface called `name` that has these addresses. Needs a tokio runtime.
    pub(crate) fn new(run_dir: &Path, name: &str, addresses: &[IpAddr]) -> Result<Self, Complaint> {
        let netlink = Netlink::open().map_err(|error| {
            let remedy = "the kernel must have netlink, and the sandbox AF_NETLINK";
            Complaint::new("opening a netlink socket", error, remedy)
        })?;
        Ok(Self {
            netlink,
            nftables: Nftables::new(run_dir),
            held: None,
            conf: ResolvConf::system(run_dir),
            groups: Groups::new(run_dir),
            name: name.to_owned(),
            addresses: addresses.to_vec(),
            changed: run_dir.join("src_valid_mark"),
            device: None,
            index: None,
            before: 0,
            claimed: Vec::new(),
            only: Vec::new(),
        })
    }

    /// For a process that stays.
    pub(crate) fn staying(mut self) -> Self {
        self.held = Some(OwnedTable::new(HELD));
        self
    }

    /// What the machine has, as far as it matters to what is wanted.
    pub(crate) async fn facts(&self, wanted: &Wanted) -> Facts {
        let resolving = resolving(&self.conf);
        let (nft, is_firewalled) = nft();
        Facts {
            ipv6: ipv6(Path::new(SETTINGS)),
            nft,
            reverse_path: checks_reverse_path(Path::new(SETTINGS)),
            servers: servers(&self.conf, resolving, &wanted.resolvers),
            resolving,
            forwards: forwards(Path::new(SETTINGS)),
            asks_us: self.conf.is_ours(),
            // Whoever cannot be asked may block.
            blocked: self.netlink.is_blocked().await.unwrap_or(true) || is_firewalled,
            groups: cgroups::numbers(wanted.cgroups()),
            networks: self.networks(&wanted.past_interfaces).await,
        }
    }

    /// The networks that routes lead to by these interfaces, as far as the kernel tells.
    pub(crate) async fn networks(&self, interfaces: &[Interface]) -> Vec<IpNet> {
        if interfaces.is_empty() {
            return Vec::new();
        }
        let networks = self.netlink.networks(interfaces).await;
        networks.unwrap_or_default()
    }

    /// The descriptor of the interface.
    pub(crate) fn device(&self) -> Option<BorrowedFd<'_>> {
        self.device.as_ref().map(AsFd::as_fd)
    }

    /// The number of the interface.
    pub(crate) fn index(&self) -> Option<u32> {
        self.index
    }

    /// How many rules of other programs come before ours.
    pub(crate) fn before(&self) -> usize {
        self.before
    }

    /// What the machine has of `steps`, as far as rtnetlink(7) tells.
    pub(crate) async fn find(&self, steps: &[Step]) -> io::Result<Found> {
        if netlink::index(&self.name).ok() != self.index {
            return Ok(Found::Gone);
        }
        for step in steps {
            let is_there = match (step, self.index) {
                (Step::Unreachable(families), _) => self.netlink.has_routes(families, None).await?,
                (Step::Routes(families), index) => self.netlink.has_routes(families, index).await?,
                (Step::Rules(rules), _) => self.netlink.has_rules(rules).await?,
                (Step::Addresses(addresses), Some(index)) => {
                    self.netlink.has_addresses(index, addresses).await?
                }
                _ => true,
            };
            if !is_there {
                return Ok(Found::Undone);
            }
        }
        Ok(Found::All)
    }

    /// Whether routes of ours block, and rules lead to them, for all that the kernel speaks.
    pub(crate) async fn is_blocked(&self) -> bool {
        let families = families();
        let routes = self.netlink.has_routes(&families, None);
        let rules = self.netlink.leads(&families);
        routes.await.unwrap_or(false) && rules.await.unwrap_or(false)
    }

    /// What of the firewall stands.
    pub(crate) fn firewall(&self) -> Standing {
        self.nftables.look()
    }

    /// Resolves when the copy of the firewall's table is gone, and not by us.
    pub(crate) async fn firewall_copy_lost(&self) {
        match &self.held {
            Some(held) => held.lost().await,
            None => std::future::pending().await,
        }
    }

    /// Whether resolv.conf is still ours.
    pub(crate) fn has_names(&self) -> bool {
        self.conf.is_ours()
    }

    /// Where that is written.
    pub(crate) fn sources(&self, facts: &Facts) -> Vec<PathBuf> {
        sources(&self.conf, facts.resolving)
    }

    /// Whom the networks say to ask for names now.
    pub(crate) fn servers(&self, facts: &Facts, ours: &[IpAddr]) -> Vec<SocketAddr> {
        servers(&self.conf, facts.resolving, ours)
    }

    async fn do_step(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::Firewall(table, copy) => {
                self.nftables.load(table, copy)?;
                self.held.iter_mut().for_each(|held| held.hold(copy));
                Ok(())
            }
            Step::Groups(groups) => self.groups.make(groups),
            Step::Marks(text) => run_program("nft", &["-f", "-"], text).map(drop),
            Step::Unreachable(families) => self.netlink.block(families).await,
            Step::Rules(rules) => {
                self.before = self.netlink.rules(rules).await?;
                match self.before {
                    0 => Ok(()),
                    before => Err(io::Error::other(format!(
                        "{before} rules of other programs come before all that could be ours"
                    ))),
                }
            }
            Step::ReversePath => self.validate_marks(),
            Step::Device(name, mtu) => {
                stay_silent(name);
                self.netlink.furnish(name, *mtu).await
            }
            Step::Addresses(addresses) => self.netlink.address(&self.name, addresses).await,
            Step::Routes(families) => {
                let (name, addresses) = (&self.name, &self.addresses);
                self.netlink.lead_into(name, families, addresses).await
            }
            Step::Names(Way::Resolved, servers, only) => self.tell_resolved(servers, only),
            Step::Names(Way::Replace, servers, only) => {
                self.conf.replace(servers, !only.is_empty())
            }
            Step::Names(Way::Overwrite, servers, only) => {
                self.conf.overwrite(servers, !only.is_empty())
            }
        }
    }

    async fn undo_step(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::Firewall(..) => {
                self.held.iter_mut().for_each(|held| held.hold(""));
                self.nftables.remove()
            }
            Step::Groups(_) => self.groups.remove(),
            Step::Marks(_) => nftables::remove(MARKS),
            Step::Unreachable(_) => self.netlink.unroute(true).await,
            Step::Rules(_) => self.netlink.rules(&[]).await.map(drop),
            Step::ReversePath => self.forget_marks().await,
            Step::Device(..) => {
                self.device = None;
                Ok(())
            }
            // They go with the interface.
            Step::Addresses(_) => Ok(()),
            Step::Routes(_) => self.netlink.unroute(false).await,
            Step::Names(Way::Resolved, ..) => self.revert_resolved(),
            Step::Names(..) => self.conf.give_back(),
        }
    }

    fn validate_marks(&self) -> io::Result<()> {
        if fs::read_to_string(VALID_MARK)?.trim() == "0" {
            fs::write(&self.changed, "0")?;
            fs::write(VALID_MARK, "1")?;
        }
        Ok(())
    }

    /// Who has rules by marks of its own may rely on it: nobody can tell whether it would have set what it found set.
    async fn forget_marks(&self) -> io::Result<()> {
        if !self.changed.exists() {
            return Ok(());
        }
        if !self.netlink.others_have_marks().await? {
            fs::write(VALID_MARK, "0")?;
        }
        fs::remove_file(&self.changed)
    }

    /// All names are asked for by our interface, whatever servers other interfaces have, or those of `only`.
    fn tell_resolved(&mut self, servers: &[IpAddr], only: &[HostName]) -> io::Result<()> {
        self.only = only.to_vec();
        self.claimed = self.claimable();
        let name = self.name.as_str();
        let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
        let mut dns = vec!["dns", name];
        dns.extend(servers.iter().map(String::as_str));
        run_program("resolvectl", &dns, "")?;
        let only: Vec<String> = only.iter().map(|it| format!("~{}", it.as_str())).collect();
        let (all, route) = if only.is_empty() {
            (Some("~."), "yes")
        } else {
            (None, "no")
        };
        let mut domains = vec!["domain", name];
        domains.extend(all.into_iter().chain(only.iter().map(String::as_str)));
        domains.extend(self.claimed.iter().map(String::as_str));
        run_program("resolvectl", &domains, "")?;
        run_program("resolvectl", &["default-route", name, route], "")?;
        // We are on this machine, and our temporary addresses are nobody's to sign or to find in the neighbourhood.
        for setting in ["dnsovertls", "dnssec", "llmnr", "mdns"] {
            run_program("resolvectl", &[setting, name, "no"], "")?;
        }
        // What it remembers was asked past us.
        run_program("resolvectl", &["flush-caches"], "").map(drop)
    }

    /// Domains that lead to other interfaces: resolved asks where the longest one is, and where several have it, all of them
    /// (systemd-resolved.service(8), "Protocols and routing"). So we have each as well.
    fn claimable(&self) -> Vec<String> {
        let told = run_program("resolvectl", &["domain"], "").unwrap_or_default();
        let mut domains = resolv::routed(&told, &self.name);
        let below = |domain: &String, one: &HostName| {
            let rest = domain.strip_suffix(one.as_str());
            rest.is_some_and(|rest| rest.ends_with('.'))
        };
        domains.retain(|domain| {
            self.only.is_empty() || self.only.iter().any(|one| below(domain, one))
        });
        domains
    }

    /// Whether it leads other domains past us than we have claimed.
    pub(crate) fn has_unclaimed(&self) -> bool {
        self.claimable() != self.claimed
    }

    /// Its settings go with the interface; what it remembers are addresses of ours.
    fn revert_resolved(&self) -> io::Result<()> {
        run_program("resolvectl", &["revert", &self.name], "").unwrap_or_default();
        run_program("resolvectl", &["flush-caches"], "").unwrap_or_default();
        Ok(())
    }
}

impl Machine for System {
    async fn apply(&mut self, step: &Step) -> Result<(), Complaint> {
        if let Step::Device(name, _) = step {
            // The older one must be gone before its name is free.
            self.device = None;
            self.device = Some(open(name)?);
            self.index = netlink::index(name).ok();
        }
        let done = self.do_step(step).await;
        done.map_err(|error| complaint(step, &error))
    }

    async fn undo(&mut self, step: &Step) -> Result<(), Complaint> {
        let done = self.undo_step(step).await;
        done.map_err(|error| {
            let doing = format!("undoing what {} did", step.doing());
            let remedy = match error.kind() {
                io::ErrorKind::StorageFull => {
                    "make room on the disk, and run 'hoplite down' again as root"
                }
                _ => "run 'hoplite down' again as root",
            };
            Complaint::new(doing, error, remedy)
        })
    }
}

/// The kernel looks for routers and neighbours behind each interface: there are none. It may stay as it is where that cannot be said.
fn stay_silent(name: &str) {
    // linux/if_link.h: no link-local address, and so no message from one.
    let setting = format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode");
    fs::write(setting, "1").unwrap_or_default();
}

fn complaint(step: &Step, error: &io::Error) -> Complaint {
    let remedy = match (step, error.kind()) {
        (_, io::ErrorKind::PermissionDenied) => "run as root, or with CAP_NET_ADMIN",
        (_, io::ErrorKind::StorageFull) => "make room on the disk",
        (Step::Names(..), _) => {
            "make it writable, or set `dns = \"off\"` in [takeover] and see to names yourself"
        }
        (Step::Rules(_), io::ErrorKind::Other) => {
            "see `ip rule` and `ip -6 rule`: give the others' rules higher numbers"
        }
        (Step::Firewall(..), _) => "see whether `nft list ruleset` works",
        (Step::Groups(_), _) => {
            "see that control groups of version 2 are mounted on /sys/fs/cgroup, or take those in `include.cgroups` out"
        }
        (Step::Marks(_), _) => {
            "see whether `nft list ruleset` works, and that the groups in [takeover] are there"
        }
        _ => "see whether `ip` can do it by hand",
    };
    Complaint::new(step.doing(), error, remedy)
}

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
pub(super) fn find_program(program: &str) -> Option<PathBuf> {
    let places = PLACES.iter().map(|place| Path::new(place).join(program));
    places.into_iter().find(|path| path.is_file())
}

/// A program of the system, to be given arguments and started.
pub(crate) fn program(program: &str) -> io::Result<Command> {
    Ok(bare(&installed(program)?))
}

/// Starts it so that SIGTERM never reaches it: every process gets that one at once when the machine is shut down, and what holds the firewall, or makes
/// it again, ends when we want it to, with its input or by SIGKILL. From its first instruction on, for it begins with our mask of signals (sigprocmask(2)).
pub(super) fn spawn_without_sigterm(command: &mut Command) -> io::Result<Child> {
    let mut signals = MaybeUninit::uninit();
    #[expect(unsafe_code, reason = "rustix has no sets of signals yet")]
    // SAFETY: the first call makes the set that the second one adds to.
    let signals = unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        libc::sigaddset(signals.as_mut_ptr(), libc::SIGTERM);
        signals.assume_init()
    };
    let former = mask(libc::SIG_BLOCK, &signals)?;
    let child = command.spawn();
    mask(libc::SIG_SETMASK, &former)?;
    child
}

/// Changes which signals this thread puts off; those that it did before.
fn mask(how: libc::c_int, signals: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut former = MaybeUninit::uninit();
    #[expect(unsafe_code, reason = "rustix has no sets of signals yet")]
    // SAFETY: it reads a whole set, and the other one is read only after it was written.
    unsafe {
        match libc::pthread_sigmask(how, signals, former.as_mut_ptr()) {
            0 => Ok(former.assume_init()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

fn installed(program: &str) -> io::Result<PathBuf> {
    find_program(program).ok_or_else(|| {
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
pub(crate) fn run_program(program: &str, arguments: &[&str], input: &str) -> io::Result<String> {
    let output = feed(self::program(program)?.args(arguments), input)?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let complaint = String::from_utf8_lossy(&output.stderr);
        let line = complaint
            .lines()
            .next()
            .unwrap_or("it failed without a word");
        Err(io::Error::other(format!("{program}: {line}")))
    }
}

/// What is fed fits the pipe or is read: none of them writes before it has read all.
fn feed(command: &mut Command, input: &str) -> io::Result<Output> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = spawn_without_sigterm(command)?;
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

/// Where the kernel's settings are.
const SETTINGS: &str = "/proc/sys/net";

/// Where systemd-resolved names the servers that the networks gave it.
const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

fn forwards(settings: &Path) -> Vec<Family> {
    let is_on = |file: &str| {
        let text = fs::read_to_string(settings.join(file));
        text.is_ok_and(|text| text.trim() == "1")
    };
    let families = [
        (Family::V4, "ipv4/ip_forward"),
        (Family::V6, "ipv6/conf/all/forwarding"),
    ];
    let on = families.into_iter().filter(|(_, file)| is_on(file));
    on.map(|(family, _)| family).collect()
}

/// Whether it works, and whether our table stands.
fn nft() -> (Nft, bool) {
    match run_program("nft", &["list", "tables"], "") {
        Ok(tables) => {
            let ours = format!("table inet {FIREWALL}");
            (Nft::Works, tables.lines().any(|line| line == ours))
        }
        Err(_) if find_program("nft").is_none() => (Nft::Missing, false),
        Err(error) => (Nft::Fails(error.to_string()), false),
    }
}

/// Where it is written whom the networks say to ask.
pub(super) fn sources(conf: &ResolvConf, how: Resolving) -> Vec<PathBuf> {
    match how {
        Resolving::Resolved => vec![RESOLVED.into()],
        _ => conf.sources(),
    }
}

/// Whom the networks say to ask.
pub(super) fn servers(conf: &ResolvConf, how: Resolving, ours: &[IpAddr]) -> Vec<SocketAddr> {
    let mut servers = match how {
        Resolving::Resolved => {
            resolv::servers_of(&fs::read_to_string(RESOLVED).unwrap_or_default())
        }
        _ => conf.servers(),
    };
    servers.retain(|server| !ours.contains(&server.ip()));
    servers
}

/// Whom the networks say to ask, after finding out how names are resolved here.
pub(super) fn network_servers(conf: &ResolvConf, ours: &[IpAddr]) -> Vec<SocketAddr> {
    servers(conf, resolving(conf), ours)
}

fn resolving(conf: &ResolvConf) -> Resolving {
    let stub = |server: &SocketAddr| {
        [[127, 0, 0, 53], [127, 0, 0, 54]]
            .map(IpAddr::from)
            .contains(&server.ip())
    };
    let is_resolved = Path::new(RESOLVED).exists() && conf.servers().iter().any(stub);
    match () {
        () if is_resolved && find_program("resolvectl").is_some() => Resolving::Resolved,
        () if conf.is_mounted() && conf.is_writable() => Resolving::Mounted,
        () if conf.is_mounted() => Resolving::ReadOnly,
        () if conf.is_replaceable() => Resolving::File,
        () => Resolving::ReadOnly,
    }
}

fn ipv6(settings: &Path) -> Ipv6 {
    let is_off = |scope: &str| {
        let path = settings.join("ipv6/conf").join(scope).join("disable_ipv6");
        fs::read_to_string(path).is_ok_and(|text| text.trim() != "0")
    };
    if !settings.join("ipv6").is_dir() {
        Ipv6::Missing
    } else if is_off("all") || is_off("default") {
        Ipv6::Off
    } else {
        Ipv6::On
    }
}

/// The families in which somebody may send.
pub(super) fn families() -> Vec<Family> {
    ipv6(Path::new(SETTINGS)).seen()
}

/// net.ipv4.conf.*.rp_filter: the kernel takes the larger of an interface's own and that of `all`.
fn checks_reverse_path(settings: &Path) -> bool {
    let interfaces = fs::read_dir(settings.join("ipv4/conf"));
    let mut values = interfaces.into_iter().flatten().flatten().map(|interface| {
        fs::read_to_string(interface.path().join("rp_filter")).unwrap_or_default()
    });
    values.any(|value| !matches!(value.trim(), "" | "0"))
}

/// linux/if_tun.h: what is newer than the C library's headers.
const TUN_F_USO4: libc::c_uint = 0x20;
const TUN_F_USO6: libc::c_uint = 0x40;
const TUN_F_CSUM: libc::c_uint = 0x01;
const TUN_F_TSO4: libc::c_uint = 0x02;
const TUN_F_TSO6: libc::c_uint = 0x04;

/// Longest first: what an older kernel does not know is left out.
const OFFLOADS: [libc::c_uint; 3] = [
    TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_USO4 | TUN_F_USO6,
    TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6,
    0,
];

/// How often, and after what pause, it is tried again to take a name that another process has.
const NAME_RETRIES: u32 = 50;
const NAME_RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Makes the interface `name`: a TUN device with segmentation and checksum offload.
/// It goes when the descriptor is closed.
pub(super) fn open(name: &str) -> Result<OwnedFd, Complaint> {
    let file = tun::device().map_err(|error| missing(&error))?;
    let mut tries = NAME_RETRIES;
    while let Err(error) = tun::attach(&file, name, PacketHeader::Virtio) {
        // A killed process has it until the kernel has closed all that was its own.
        if tries == 0 || error.raw_os_error() != Some(libc::EBUSY) {
            return Err(refused(name, &error));
        }
        tries -= 1;
        std::thread::sleep(NAME_RETRY_PAUSE);
    }
    offload(&file).map_err(|error| refused(name, &error))?;
    Ok(file.into())
}

fn offload(file: &File) -> io::Result<()> {
    let mut refusal = Ok(());
    for features in OFFLOADS {
        #[expect(unsafe_code, reason = "no safe wrapper sets a TUN device's offloads")]
        // SAFETY: the descriptor is open, and the argument is a number.
        let set = unsafe {
            libc::ioctl(
                file.as_raw_fd(),
                libc::TUNSETOFFLOAD,
                libc::c_ulong::from(features),
            )
        };
        if set == 0 {
            return Ok(());
        }
        refusal = Err(io::Error::last_os_error());
    }
    refusal
}

/// Why there is no TUN device, and what to do.
fn missing(error: &io::Error) -> Complaint {
    let remedy = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            "load it with `modprobe tun`; give a container `--device /dev/net/tun`"
        }
        Some(libc::EACCES) => "let users open it with `chmod 666 /dev/net/tun`, or run as root",
        Some(libc::EPERM) => "start the container with `--device /dev/net/tun`",
        _ => "see whether `ip tuntap add mode tun` works here",
    };
    Complaint::new(format!("opening {}", tun::DEVICE), error, remedy)
}

fn refused(name: &str, error: &io::Error) -> Complaint {
    let remedy = match error.raw_os_error() {
        Some(libc::EBUSY) => {
            "another program has an interface of this name: end it, or give another name in [device]"
        }
        Some(libc::EPERM) => "run as root, or with CAP_NET_ADMIN",
        _ => "give another name of 1 to 15 characters in [device]",
    };
    Complaint::new(format!("making the interface {name}"), error, remedy)
}

#[cfg(test)]
mod child_tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_program_goes_on_when_it_is_told_to_end_and_ends_with_its_input() {
        let mut cat = program("cat").expect("there");
        cat.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn_without_sigterm(&mut cat).expect("starts");
        let pid = rustix::process::Pid::from_child(&child);
        let tell_to_end = || {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        };
        // It may not have come to its own program yet.
        tell_to_end();
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
        tell_to_end();
        echo(b"after");
        drop(input);
        assert!(child.wait().expect("ours").success());
    }

    #[test]
    fn a_program_is_fed_and_heard_and_its_complaint_is_one_line() {
        assert_eq!(run_program("cat", &[], "text").expect("there"), "text");
        let failed = run_program("ls", &["/nowhere/at/all"], "").expect_err("fails");
        assert!(failed.to_string().starts_with("ls: "), "{failed}");
        let missing = run_program("no-such-program", &[], "").expect_err("missing");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}

#[cfg(test)]
mod facts_tests {
    use super::*;

    fn settings(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().expect("one")).expect("made");
            fs::write(path, text).expect("written");
        }
        directory
    }

    #[test]
    fn ipv6_that_is_switched_off_is_told_from_a_kernel_without_it() {
        let none = settings(&[]);
        assert_eq!(ipv6(none.path()), Ipv6::Missing);
        let off = settings(&[("ipv6/conf/default/disable_ipv6", "1\n")]);
        assert_eq!(ipv6(off.path()), Ipv6::Off);
        let on = settings(&[("ipv6/conf/all/disable_ipv6", "0\n")]);
        assert_eq!(ipv6(on.path()), Ipv6::On);
    }

    #[test]
    fn one_interface_that_checks_the_way_back_is_enough() {
        let loose = [
            ("ipv4/conf/all/rp_filter", "0\n"),
            ("ipv4/conf/eth0/rp_filter", "2\n"),
        ];
        assert!(checks_reverse_path(settings(&loose).path()));
        assert!(!checks_reverse_path(settings(&loose[..1]).path()));
    }
}

#[cfg(test)]
mod tun_tests {
    use super::*;

    #[test]
    fn a_missing_device_is_told_with_what_brings_it() {
        let said = |code| missing(&io::Error::from_raw_os_error(code)).to_string();
        assert!(said(libc::ENOENT).contains("modprobe tun"));
        assert!(said(libc::EACCES).contains("chmod 666 /dev/net/tun"));
    }
}
