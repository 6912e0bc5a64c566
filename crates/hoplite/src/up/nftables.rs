//! Our firewall rules, tables of nftables that drop what would go past us: their text for nft(8), and how the kernel has them: loaded, held, looked
//! at, and watched, for others may change or flush them any time.
//!
//! One transaction each: an older table is replaced without a moment between. They refer to the interface by name, so they stand before and
//! after it. The table that drops names nothing that might not exist; control groups, which nft looks up when it loads them, have one of their
//! own, so that a group that is not there yet opens nothing.
//!
//! What leaves is judged in the postrouting hook, where the interface is the one by which a packet really goes. In the output hook it is still
//! the one of the first look at the routes, and rules of others may mark the packet and have it routed again.
//!
//! It stands twice while a process of ours lives. The table that stays after us belongs to nobody, so `nft flush ruleset` removes it: the watch
//! then has it made again. Its copy belongs to the netlink socket of an nft that we started, and the kernel lets nobody else touch it
//! (NFT_TABLE_F_OWNER, Linux 5.12): between the flush and the new table it alone drops. It goes when we do, and when that nft ends, whoever ended it:
//! then another one makes it again.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    net::{IpAddr, SocketAddr},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, ChildStdin, Stdio},
    time::Duration,
};

use ipnet::IpNet;
use rustix::{
    net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, netlink, recv, socket_with},
    process::{Pid, PidfdFlags, pidfd_open},
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, sleep_until},
};

use crate::config::client::takeover::Cgroup;

use super::{
    control::Dropped,
    driver,
    plan::{ARRIVED, FIREWALL, MARK, MARKS, RETURNED, TAKEN},
    plan::{Facts, Wanted},
};

/// How long to wait after the table could not be made again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A table that nobody has.
const DONE: &str = "hoplite-is-done";

/// Bytes of a datagram of events; what is longer is cut, and its beginning is enough.
const EVENTS: usize = 1 << 16;

/// What of the firewall stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Standing {
    /// It is there as it was loaded.
    Stands,
    /// It is there, but somebody has changed it.
    Changed,
    /// There is none.
    Gone,
    /// There is no nft, we may not look, or nobody could write how it was loaded.
    #[default]
    Unknown,
}

/// The table, and where it is written what the kernel made of it when it was loaded, and what is in its copy.
#[derive(Debug)]
pub(crate) struct Nftables {
    loaded: PathBuf,
    copy: PathBuf,
    /// What the kernel made of the one that this process loaded: no file can be missed, whatever the disk has room for.
    known: Option<String>,
}

impl Nftables {
    /// What it needs to remember is kept in the directory of what lasts while the machine runs.
    pub(crate) fn new(run_dir: &Path) -> Self {
        Self {
            loaded: run_dir.join("firewall"),
            copy: run_dir.join("firewall-copy"),
            known: None,
        }
    }

    /// Loads the table that stays; remembers what it looks like, and what is in its copy.
    pub(crate) fn load(&mut self, text: &str, copy: &str) -> io::Result<()> {
        // Before somebody is told that there is another table.
        remember(&self.copy, copy);
        driver::run_program("nft", &["-f", "-"], text)?;
        let listed = list(FIREWALL)?;
        remember(&self.loaded, &listed);
        self.known = Some(listed);
        Ok(())
    }

    /// What is in the copy of the table that was loaded last, be it by another process; `None` if that could not be written.
    pub(crate) fn copy(&self) -> Option<String> {
        fs::read_to_string(&self.copy).ok()
    }

    /// Removes it. What is not there is gone already, and so where there is no nftables at all.
    pub(crate) fn remove(&mut self) -> io::Result<()> {
        self.forget();
        remove(FIREWALL)
    }

    /// From now on there is none that could be changed.
    pub(crate) fn forget(&mut self) {
        self.known = None;
        for path in [&self.loaded, &self.copy] {
            fs::remove_file(path).unwrap_or_default();
        }
    }

    /// What stands of it now.
    pub(crate) fn look(&self) -> Standing {
        if driver::run_program("nft", &["list", "tables"], "").is_err() {
            return Standing::Unknown;
        }
        let loaded = || fs::read_to_string(&self.loaded).ok();
        match (list(FIREWALL), self.known.clone().or_else(loaded)) {
            (Err(_), _) => Standing::Gone,
            (Ok(_), None) => Standing::Unknown,
            (Ok(now), Some(loaded)) if now == loaded => Standing::Stands,
            (Ok(_), Some(_)) => Standing::Changed,
        }
    }
}

/// Written whole, or not at all: nothing is better than a part of it, or than what is not so any more.
fn remember(path: &Path, text: &str) {
    let new = path.with_extension("new");
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    if let Err(error) = written {
        tracing::warn!(%error, "cannot write {}: whether others change the firewall is not seen by all", path.display());
        for path in [&new, path] {
            fs::remove_file(path).unwrap_or_default();
        }
    }
}

/// A table as nft prints it, without counts and without what comes and goes.
fn list(table: &str) -> io::Result<String> {
    let arguments = ["--stateless", "--terse", "list", "table", "inet", table];
    driver::run_program("nft", &arguments, "")
}

/// Removes a table, if there is one.
pub(crate) fn remove(table: &str) -> io::Result<()> {
    if driver::find_program("nft").is_none()
        || driver::run_program("nft", &["list", "tables"], "").is_err()
    {
        return Ok(());
    }
    driver::run_program("nft", &["-f", "-"], &removing(table)).map(drop)
}

/// A table that nobody else can remove, or none. An older kernel or nft has none of that: then there is only the watch.
#[derive(Debug)]
pub(crate) struct OwnedTable {
    table: &'static str,
    owner: Option<Owner>,
}

impl OwnedTable {
    /// None yet, of this name.
    pub(crate) fn new(table: &'static str) -> Self {
        Self { table, owner: None }
    }

    /// Resolves when it is gone though nobody here let go of it, and may be held again; at most once a [`RETRY_PAUSE`]. May be given up and called again.
    pub(crate) async fn lost(&self) {
        match &self.owner {
            Some(owner) => owner.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Holds this; none if it is empty. Needs a tokio runtime.
    pub(crate) fn hold(&mut self, text: &str) {
        if self.owner.as_mut().is_some_and(|owner| owner.holds(text)) {
            return;
        }
        // The old one's name must be free first.
        self.owner = None;
        if text.is_empty() {
            return;
        }
        match Owner::new(self.table, text) {
            Ok(owner) => self.owner = Some(owner),
            Err(error) => tracing::debug!(%error, "no table of nftables is held"),
        }
    }
}

/// A running nft whose socket owns a table. The table goes with it, and it goes with us: its input ends.
#[derive(Debug)]
struct Owner {
    nft: Child,
    /// What it reads and what it writes to: when the one ends, so does it, and without a reader of the other it would be ended by SIGPIPE.
    _pipes: Option<(ChildStdin, ChildStderr)>,
    /// Readable when it has ended (pidfd_open(2)). Without a descriptor to wait for nobody notices until the table is to be held again.
    end: Option<AsyncFd<OwnedFd>>,
    since: Instant,
    text: String,
}

impl Owner {
    fn new(table: &str, text: &str) -> io::Result<Self> {
        let mut nft = driver::program("nft")?;
        nft.arg("--interactive")
            // It keeps a history of its lines there, if it can.
            .env("HOME", "/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // A signal from the terminal is for us.
            .process_group(0);
        let mut nft = driver::spawn_without_sigterm(&mut nft)?;
        let pipes = nft.stdin.take().zip(nft.stderr.take());
        let mut owner = Self {
            end: watch_end(&nft),
            nft,
            _pipes: None,
            since: Instant::now(),
            text: text.to_owned(),
        };
        let (mut lines, mut complaints) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        // One command a line. That there is no such table as the second line wants is said when the first one is done.
        let both = format!("table inet {table} {{ {text} }}\nlist table inet {DONE}\n");
        lines.write_all(both.as_bytes())?;
        let mut said = BufReader::new(&mut complaints).lines();
        said.find(|line| line.as_ref().map_or(true, |line| line.contains(DONE)));
        owner._pipes = Some((lines, complaints));
        list(table)?;
        Ok(owner)
    }

    fn holds(&mut self, text: &str) -> bool {
        self.text == text && matches!(self.nft.try_wait(), Ok(None))
    }

    async fn ended(&self) {
        match &self.end {
            Some(end) => drop(end.readable().await),
            None => std::future::pending().await,
        }
        sleep_until(self.since + RETRY_PAUSE).await;
    }
}

fn watch_end(program: &Child) -> Option<AsyncFd<OwnedFd>> {
    let number = i32::try_from(program.id()).ok().and_then(Pid::from_raw)?;
    let end = pidfd_open(number, PidfdFlags::empty()).ok()?;
    #[expect(unsafe_code, reason = "tokio cannot know who closes a descriptor")]
    // SAFETY: it is open, and is closed by nobody but the AsyncFd that owns it.
    let end = unsafe { AsyncFd::register_with_interest(end, Interest::READABLE) };
    end.ok()
}

impl Drop for Owner {
    fn drop(&mut self) {
        // It is gone already, or it goes now; neither leaves the table.
        self.nft.kill().unwrap_or_default();
        self.nft.wait().map(drop).unwrap_or_default();
    }
}

/// Tells when somebody may have changed our table. Needs CAP_NET_ADMIN to begin, and nothing after that.
#[derive(Debug)]
pub(crate) struct Watch {
    events: AsyncFd<OwnedFd>,
    again: Option<Instant>,
}

impl Watch {
    /// Starts. Needs a tokio runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let kind = SocketType::RAW;
        let protocol = Some(netlink::NETFILTER);
        let events = socket_with(AddressFamily::NETLINK, kind, flags, protocol)?;
        // NFNLGRP_NFTABLES (linux/netfilter/nfnetlink.h) is the seventh group.
        bind(&events, &netlink::SocketAddrNetlink::new(0, 1 << 6))?;
        #[expect(unsafe_code, reason = "tokio cannot know who closes a descriptor")]
        // SAFETY: it is open, and is closed by nobody but the AsyncFd that owns it.
        let events = unsafe { AsyncFd::register(events) }?;
        Ok(Self {
            events,
            again: None,
        })
    }

    /// Waits until it may be so. Whoever finds nothing changed has lost nothing. May be given up and called again.
    pub(crate) async fn touched(&mut self) {
        loop {
            let again = async {
                match self.again {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = again => {
                    self.again = None;
                    return;
                }
                ready = self.events.readable() => {
                    let Ok(mut ready) = ready else {
                        // No descriptor that can be waited for: from now on it is looked at from time to time.
                        self.again = Some(Instant::now() + RETRY_PAUSE);
                        continue;
                    };
                    if read(self.events.get_ref()) {
                        return;
                    }
                    ready.clear_ready();
                }
            }
        }
    }

    /// What was to be done could not be done: it is touched again in a moment.
    pub(crate) fn try_again(&mut self) {
        self.again = Some(Instant::now() + RETRY_PAUSE);
    }
}

/// Resolves when somebody may have changed our table: never, where there is nothing to watch.
pub(crate) async fn touched(watch: &mut Option<Watch>) {
    match watch {
        Some(watch) => watch.touched().await,
        None => std::future::pending().await,
    }
}

/// Whether one of the events that wait, or one that was lost, may be about our table. Takes all of them.
fn read(events: &OwnedFd) -> bool {
    let mut buffer = vec![0; EVENTS];
    let mut touched = false;
    loop {
        match recv(events, &mut *buffer, RecvFlags::TRUNC) {
            Ok((read, whole)) => {
                touched |= whole > read || is_about_us(buffer.get(..read).unwrap_or_default());
            }
            // More happened than there was room for.
            Err(rustix::io::Errno::NOBUFS) => touched = true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return touched,
        }
    }
}

/// Whether a datagram (netlink(7)) has an event of nftables that names our table: in all kinds of them that is the first attribute.
/// What cannot be read may be about us.
fn is_about_us(mut bytes: &[u8]) -> bool {
    const HEADERS: usize = 16 + 4;
    /// linux/netfilter/nf_tables.h: the event that ends a transaction has no table.
    const NEW_GENERATION: u16 = 10 << 8 | 15;
    while let Some(header) = bytes.first_chunk::<HEADERS>() {
        let [l0, l1, l2, l3, k0, k1, ..] = *header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(message) = bytes.get(..length).filter(|it| it.len() >= HEADERS) else {
            return true;
        };
        let attributes = message.get(HEADERS..).unwrap_or_default();
        let kind = u16::from_ne_bytes([k0, k1]);
        if kind != NEW_GENERATION && !names_another(attributes) {
            return true;
        }
        let next = length.next_multiple_of(4);
        bytes = bytes.get(next..).unwrap_or_default();
    }
    false
}

/// Whether the first attribute is the name of a table of somebody else's.
fn names_another(attributes: &[u8]) -> bool {
    let Some(&[l0, l1, k0, k1]) = attributes.first_chunk::<4>() else {
        return false;
    };
    let length = usize::from(u16::from_ne_bytes([l0, l1]));
    let name = attributes.get(4..length).unwrap_or_default();
    let name = name.strip_suffix(b"\0").unwrap_or(name);
    let is_name = u16::from_ne_bytes([k0, k1]) == 1 && !name.is_empty();
    is_name && name != FIREWALL.as_bytes()
}

/// Who is in reach when the local network is, and has routes: private and link-local addresses (RFC 1918, RFC 3927, RFC 4193, RFC 4291).
const LAN4: [&str; 4] = [
    "10.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
];
const LAN6: [&str; 2] = ["fc00::/7", "fe80::/10"];

/// Who is in reach then and needs no routes: groups that no router of the Internet's forwards (RFC 5771, RFC 2365, RFC 4291).
const GROUPS4: &str = "224.0.0.0/24, 239.0.0.0/8, 255.255.255.255";
const GROUPS6: &str = "ff02::/16, ff05::/16";

/// The networks that are the local one wherever it is.
pub(super) fn local_network() -> impl Iterator<Item = IpNet> {
    let all = LAN4.into_iter().chain(LAN6);
    all.filter_map(|network| network.parse().ok())
}

/// The text of the table that stays.
pub(super) fn table(wanted: &Wanted, facts: &Facts) -> String {
    let mut lines = vec!["counter blocked {}".to_owned()];
    lines.extend(asking(wanted, facts));
    if facts.reverse_path {
        lines.extend(incoming(wanted));
    }
    lines.extend(arriving(wanted, "filter"));
    lines.extend(marked(wanted, "raw"));
    lines.extend(forward(wanted, "filter"));
    lines.extend(postrouting(wanted, "filter"));
    replacing(FIREWALL, &lines)
}

/// What is in its copy, for the one who shall own it: what drops, after the other has, and the marks of what alone is taken, without which nothing
/// would be dropped. As one line: that is how it is read.
pub(super) fn held(wanted: &Wanted, facts: &Facts) -> String {
    let head = ["flags owner", "counter blocked {}"].map(str::to_owned);
    let chains = [
        arriving(wanted, "filter + 1"),
        marked(wanted, "raw + 1"),
        forward(wanted, "filter + 1"),
        postrouting(wanted, "filter + 1"),
        included(wanted, facts, "security + 2"),
    ];
    in_one_line(head.into_iter().chain(chains.into_iter().flatten()))
}

/// The text of the table that stays and marks packets; it removes the table where there is nothing to be marked.
pub(super) fn marks(wanted: &Wanted, facts: &Facts) -> String {
    let mut lines = excluded(wanted, facts);
    lines.extend(included(wanted, facts, "security + 1"));
    if lines.is_empty() {
        removing(MARKS)
    } else {
        replacing(MARKS, &lines)
    }
}

/// One line that makes a table of this name, which does nothing but let the excluded groups pass, and goes with the process that made it (nft(8), `owner`).
pub(super) fn of_groups(name: &str, wanted: &Wanted, facts: &Facts) -> String {
    let lines = excluded(wanted, facts).into_iter();
    let lines = in_one_line(std::iter::once("flags owner".to_owned()).chain(lines));
    format!("table inet {name} {{ {lines} }}")
}

fn in_one_line(lines: impl Iterator<Item = String>) -> String {
    let ended = |line: String| {
        if line.ends_with(['{', ';']) {
            line
        } else {
            format!("{line};")
        }
    };
    lines.map(ended).collect::<Vec<_>>().join(" ")
}

/// Whatever stood there is gone in the same moment.
fn replacing(name: &str, lines: &[String]) -> String {
    let (removing, lines) = (removing(name), lines.join("\n"));
    format!("{removing}table inet {name} {{\n{lines}\n}}\n")
}

/// No such table is left, whether there was one or not.
fn removing(name: &str) -> String {
    format!("table inet {name} {{}}\ndelete table inet {name}\n")
}

/// What the table has dropped so far; `None` without one, or without the right to look.
pub(crate) fn count() -> Option<Dropped> {
    let arguments = ["-j", "list", "counter", "inet", FIREWALL, "blocked"];
    let answer = driver::run_program("nft", &arguments, "").ok()?;
    counted(&serde_json::from_str(&answer).ok()?)
}

fn counted(answer: &serde_json::Value) -> Option<Dropped> {
    let entries = answer.get("nftables")?.as_array()?;
    let counter = entries.iter().find_map(|entry| entry.get("counter"))?;
    serde_json::from_value(counter.clone()).ok()
}

/// Packets of excluded groups get our mark before they are routed again, and the address of the interface by which they leave.
fn excluded(wanted: &Wanted, facts: &Facts) -> Vec<String> {
    if wanted.past_cgroups.is_empty() {
        return Vec::new();
    }
    let mut lines = vec!["chain excluded {".to_owned()];
    lines.push("type route hook output priority mangle - 1; policy accept;".into());
    let there = |group: &&Cgroup| facts.groups.contains_key(*group);
    let groups = wanted.past_cgroups.iter().filter(there);
    lines.extend(
        groups
            .clone()
            .map(|group| marking_group("", group, facts, MARK)),
    );
    lines.extend([
        "}".into(),
        // What is for them is let in: datagrams, and whatever answers what left by another address than its socket has, or went to another name server
        // than was asked: that finds its socket only later.
        "chain reaching {".into(),
        "type filter hook prerouting priority filter - 1; policy accept;".into(),
        format!(
            "iifname != {{ \"lo\", \"{}\" }} ct direction reply ct status snat,dnat fib daddr type local meta mark set {MARK:#x}",
            wanted.name
        ),
    ]);
    let datagrams = "meta l4proto udp ";
    lines.extend(groups.map(|group| marking_group(datagrams, group, facts, MARK)));
    lines.extend([
        "}".into(),
        "chain leaving {".into(),
        "type nat hook postrouting priority srcnat; policy accept;".into(),
    ]);
    let name = &wanted.name;
    lines.extend(wanted.addresses.iter().map(|address| {
        let family = family(address);
        format!("oifname != {{ \"lo\", \"{name}\" }} meta mark {MARK:#x} {family} saddr {address} masquerade")
    }));
    lines.push("}".into());
    lines
}

/// What alone is taken gets its mark, last, so that it is routed again by that and nobody's else, and our address where it goes into our interface. What a link
/// needs to work and what is for a group of neighbours stays where it is, and is judged when it leaves.
///
/// Networks behind this machine are taken by whatever interface their packets would leave: that is not known yet when they come in.
fn included(wanted: &Wanted, facts: &Facts, priority: &str) -> Vec<String> {
    if !wanted.only_marked() {
        return Vec::new();
    }
    let name = &wanted.name;
    let mut lines = vec![
        "chain included {".to_owned(),
        format!("type route hook output priority {priority}; policy accept;"),
        format!("oifname {{ \"lo\", \"{name}\" }} accept"),
        format!("meta mark {MARK:#x} accept"),
        "udp sport 68 udp dport 67 accept".into(),
        "udp sport 546 udp dport 547 accept".into(),
        "icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept".into(),
        "ip daddr { 224.0.0.0/4, 255.255.255.255 } accept".into(),
        "ip6 daddr { fe80::/10, ff00::/8 } accept".into(),
    ];
    let by = only_interfaces(wanted);
    if wanted.only_cgroups.is_empty() {
        lines.push(marking(&by, TAKEN));
    } else {
        let groups = wanted.only_cgroups.iter();
        lines.extend(groups.map(|group| marking_group(&by, group, facts, TAKEN)));
    }
    lines.extend([
        "}".into(),
        "chain entering {".into(),
        "type nat hook postrouting priority srcnat; policy accept;".into(),
        format!("oifname \"{name}\" meta mark {TAKEN:#x} fib saddr type local masquerade"),
        "}".into(),
    ]);
    if wanted.only_cgroups.is_empty() && wanted.only_users.is_empty() {
        lines.push("chain guests {".into());
        lines.push("type filter hook prerouting priority mangle; policy accept;".into());
        lines.extend(wanted.behind.iter().map(|network| {
            let family = family(&network.addr());
            let of = format!("iifname != \"{name}\" {family} saddr {network} ");
            marking(&of, TAKEN)
        }));
        lines.push("}".into());
    }
    lines
}

/// What nft(8) calls the addresses of this family.
fn family(address: &IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "ip",
        IpAddr::V6(_) => "ip6",
    }
}

fn marking(what: &str, mark: u32) -> String {
    format!("{what}meta mark set {mark:#x}")
}

/// The kernel's number of the group makes two texts differ where it was made anew: nft(8) looks it up when the table is loaded. One that is made only now
/// has none yet.
fn marking_group(what: &str, group: &Cgroup, facts: &Facts, mark: u32) -> String {
    let (level, path) = (group.level(), group.path());
    let number = facts.groups.get(group).copied().unwrap_or_default();
    let of = format!("{what}socket cgroupv2 level {level} \"{path}\" ");
    format!("{} comment \"{number}\"", marking(&of, mark))
}

/// What would leave by one of the interfaces that alone are taken; all, if there are none.
fn only_interfaces(wanted: &Wanted) -> String {
    let names = wanted.only_interfaces.iter();
    let names: Vec<_> = names.map(|it| format!("\"{}\"", it.name())).collect();
    match names.as_slice() {
        [] => String::new(),
        some => format!("oifname {{ {} }} ", some.join(", ")),
    }
}

/// What excluded programs ask us, the network's own name server is asked.
fn asking(wanted: &Wanted, facts: &Facts) -> Vec<String> {
    let users = wanted.past_users.iter();
    let users = users.map(|users| format!("meta skuid {users}"));
    let groups = (!wanted.past_cgroups.is_empty()).then(|| format!("meta mark {MARK:#x}"));
    let who: Vec<String> = users.chain(groups).collect();
    let questions = wanted.resolvers.iter().filter_map(|ours| {
        let same_family = |server: &&SocketAddr| server.is_ipv4() == ours.is_ipv4() && !server.ip().is_loopback();
        let server = facts.servers.iter().find(same_family)?.ip();
        let family = family(&server);
        Some(format!(
            "{family} daddr {ours} meta l4proto {{ tcp, udp }} th dport 53 dnat {family} to {server}"
        ))
    });
    let questions: Vec<String> = questions.collect();
    if !wanted.dns || who.is_empty() || questions.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![
        "chain asking {".to_owned(),
        "type nat hook output priority -100; policy accept;".into(),
    ];
    let all = who
        .iter()
        .flat_map(|who| questions.iter().map(move |it| format!("{who} {it}")));
    lines.extend(all);
    lines.push("}".into());
    lines
}

/// What comes in for us is checked by the way that our own packets take: by the main table. The mark is not theirs: answers may inherit it
/// (net.ipv4.tcp_fwmark_accept, net.ipv4.fwmark_reflect, other people's CONNMARK), and are programs' traffic.
///
/// After those who give marks themselves, at `mangle` as a rule: wg-quick and Tailscale put the mark of the connection in the place of any other.
///
/// What comes out of our interface has the mark by which alone the way back leads into it, where not everybody's packets go that way.
fn incoming(wanted: &Wanted) -> Vec<String> {
    let name = &wanted.name;
    let mut lines = vec![
        "chain incoming {".to_owned(),
        "type filter hook prerouting priority dstnat - 1; policy accept;".into(),
        format!(
            "iifname != {{ \"lo\", \"{name}\" }} fib daddr type local meta mark set {ARRIVED:#x}"
        ),
    ];
    if wanted.only_of_some() {
        lines.push(marking(&format!("iifname \"{name}\" "), RETURNED));
    }
    lines.push("}".into());
    lines
}

/// What must not come in by other interfaces: what claims to be from an address that only we have, or from a guest by another way than a guest's.
///
/// And datagrams from whoever is reached through the relays, but to our own sockets and to what is excluded. A program that listens on all
/// addresses answers with the address of the way back, which is our interface's: the answer would leave at the exit, and who wrote to this
/// machine would know that exit for its own. TCP answers with the address that was written to, which our interface does not take.
///
/// The question is which way an answer takes that has no mark, which the kernel knows (`fib`). Where that depends on whose it is, nobody is told
/// apart by what comes in: these are let in.
fn arriving(wanted: &Wanted, priority: &str) -> Vec<String> {
    let name = &wanted.name;
    let mut lines = vec![
        "chain arriving {".to_owned(),
        format!("type filter hook prerouting priority {priority}; policy accept;"),
        format!("iifname {{ \"lo\", \"{name}\" }} accept"),
    ];
    let own = wanted.addresses.iter().copied().map(IpNet::from);
    lines.extend(
        sources(own.chain(wanted.pools.iter().copied())).map(|from| format!("{from} drop")),
    );
    let guests = sources(wanted.behind.iter().copied());
    lines.extend(guests.map(|from| format!("{from} fib saddr . iif oif missing drop")));
    if wanted.past_users.is_empty() && !wanted.only_of_some() {
        lines.extend(written_by_strangers(wanted));
    }
    lines.push("}".into());
    lines
}

fn written_by_strangers(wanted: &Wanted) -> Vec<String> {
    let name = &wanted.name;
    let answered_by_us = format!("fib saddr oifname \"{name}\"");
    let own = wanted
        .addresses
        .iter()
        .copied()
        .map(IpNet::from)
        .collect::<Vec<_>>();
    // Excluded groups write from our addresses; what answers them is for these again here, and has our mark.
    let mut lines = vec![format!("meta mark {MARK:#x} accept")];
    lines.extend(targets(&own).map(|to| format!("{to} {answered_by_us} drop")));
    lines.extend([
        "meta l4proto != { udp, udplite } accept".to_owned(),
        // Nothing is made of them without the first one, which alone has ports.
        "ip frag-off & 0x1fff != 0 accept".into(),
        "frag frag-off != 0 accept".into(),
        format!("socket mark {MARK:#x} accept"),
        "udp sport 67 udp dport 68 accept".into(),
        "udp sport 547 udp dport 546 accept".into(),
    ]);
    let excluded = wanted.past_interfaces.iter();
    lines.extend(excluded.map(|it| format!("iifname \"{}\" accept", it.name())));
    lines.push(format!(
        "fib daddr type {{ local, broadcast, anycast, multicast }} {answered_by_us} drop"
    ));
    lines
}

/// What has our mark from its own socket, before groups get it, and is neither TCP nor UDP: no socket of ours sends such but echoes to excluded names,
/// and a ping with more rights than who calls it sets what mark they like.
fn marked(wanted: &Wanted, priority: &str) -> Vec<String> {
    let mut lines = vec![
        "chain marked {".to_owned(),
        format!("type filter hook output priority {priority}; policy accept;"),
    ];
    let echoes = |user| format!("meta l4proto {{ icmp, icmpv6 }} meta skuid {user} accept");
    lines.extend(wanted.pinger.map(echoes));
    lines.extend([
        format!("meta mark {MARK:#x} meta l4proto != {{ tcp, udp }} counter name blocked drop"),
        "}".into(),
    ]);
    lines
}

fn postrouting(wanted: &Wanted, priority: &str) -> Vec<String> {
    let name = &wanted.name;
    let mut lines = vec![
        "set nexthops { type ipv4_addr; flags dynamic,timeout; timeout 1s; size 256; };".to_owned(),
        "chain postrouting {".to_owned(),
        format!("type filter hook postrouting priority {priority}; policy accept;"),
        // A path is never built through itself.
        format!("oifname \"{name}\" meta mark {MARK:#x} counter name blocked drop"),
        format!("oifname {{ \"lo\", \"{name}\" }} accept"),
        format!("iifname \"{name}\" accept"),
        format!("meta mark {MARK:#x} accept"),
        "udp sport 546 udp dport 547 ip6 daddr { fe80::/10, ff02::1:2 } accept".into(),
        "icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept".into(),
        // Switches that listen to reports forward neighbour discovery's groups only to who is in them (RFC 4541 section 3).
        "icmpv6 type { mld-listener-report, mld-listener-done, mld2-listener-report } ip6 daddr ff02::/16 ip6 hoplimit 1 accept".into(),
    ];
    lines.extend(dhcp());
    if wanted.lan {
        lines.extend(reaching_local_network());
    }
    let reached = wanted.behind.iter().chain(&wanted.past_addresses);
    lines.extend(targets(reached).map(|to| format!("{to} accept")));
    lines.extend(by_interfaces(wanted));
    lines.extend(
        wanted
            .past_users
            .iter()
            .map(|users| format!("meta skuid {users} accept")),
    );
    lines.extend(dropped(wanted));
    lines.push("}".into());
    lines
}

/// To everybody on the link (RFC 2131 section 4.1), and to the server that a lease is renewed with, if it is on the link: then it is its own
/// next hop. A server behind a router is found when the lease is rebound (section 4.4.5).
fn dhcp() -> [String; 2] {
    let asks = "udp sport 68 udp dport 67";
    [
        format!("{asks} update @nexthops {{ rt ip nexthop }}"),
        format!("{asks} ip daddr @nexthops accept"),
    ]
}

/// The rest; or, where only some traffic is taken, that.
fn dropped(wanted: &Wanted) -> Vec<String> {
    let users: Vec<String> = match wanted.only_users.as_slice() {
        [] => vec![String::new()],
        some => some.iter().map(|u| format!("meta skuid {u} ")).collect(),
    };
    let addresses: Vec<String> = match wanted.only_addresses.as_slice() {
        [] => vec![String::new()],
        some => targets(some).map(|to| format!("{to} ")).collect(),
    };
    let by = only_interfaces(wanted);
    let marked = if wanted.only_cgroups.is_empty() {
        String::new()
    } else {
        format!("meta mark {TAKEN:#x} ")
    };
    let pairs = users
        .iter()
        .flat_map(|users| addresses.iter().map(move |to| (users, to)));
    pairs
        .map(|(users, to)| format!("{by}{marked}{users}{to}counter name blocked drop"))
        .collect()
}

/// What leaves by excluded interfaces.
fn by_interfaces(wanted: &Wanted) -> impl Iterator<Item = String> {
    let names = wanted.past_interfaces.iter();
    names.map(|it| format!("oifname \"{}\" accept", it.name()))
}

/// Containers and virtual machines of a gateway's networks go through the interface, all others not at all: another program may write our address over
/// theirs on the way out (masquerading), and what they send would leave by the exit as a program's of this machine.
fn forward(wanted: &Wanted, priority: &str) -> Vec<String> {
    let name = &wanted.name;
    let mut lines = vec![
        "chain forward {".to_owned(),
        format!("type filter hook forward priority {priority}; policy accept;"),
    ];
    let guests = sources(wanted.behind.iter().copied());
    lines.extend(guests.map(|from| format!("oifname \"{name}\" {from} accept")));
    lines.push(format!("oifname \"{name}\" counter name blocked drop"));
    lines.push(format!("iifname \"{name}\" accept"));
    if wanted.lan {
        lines.extend(reaching_local_network());
    }
    let reached = wanted.behind.iter().chain(&wanted.past_addresses);
    lines.extend(targets(reached).map(|to| format!("{to} accept")));
    lines.extend(by_interfaces(wanted));
    if wanted.only_users.is_empty() && wanted.only_cgroups.is_empty() {
        lines.extend(dropped(wanted));
    }
    lines.push("}".into());
    lines
}

/// Names are asked for through us even so: not of name servers, nor of all neighbours, as systemd-resolved (LLMNR, RFC 4795) and Samba (NetBIOS, RFC
/// 1002: bits of its header say that it is a question) ask for single labels. What is below `.local` is asked for there (RFC 6762).
fn reaching_local_network() -> [String; 4] {
    let (lan4, lan6) = (LAN4.join(", "), LAN6.join(", "));
    [
        "meta l4proto { tcp, udp } th dport { 53, 853, 5355 } counter name blocked drop".into(),
        "udp dport 137 @th,80,5 0 counter name blocked drop".into(),
        format!("ip daddr {{ {lan4}, {GROUPS4} }} accept"),
        format!("ip6 daddr {{ {lan6}, {GROUPS6} }} accept"),
    ]
}

fn sources(networks: impl Iterator<Item = IpNet>) -> impl Iterator<Item = String> {
    networks.map(|network| format!("{} saddr {network}", family(&network.addr())))
}

fn targets<'a>(networks: impl IntoIterator<Item = &'a IpNet>) -> impl Iterator<Item = String> {
    networks.into_iter().map(|network| match network {
        IpNet::V4(network) => format!("ip daddr {network}"),
        IpNet::V6(network) => format!("ip6 daddr {network}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NFT_MSG_DELTABLE and its like: nlmsghdr, nfgenmsg, the name.
    fn event(kind: u16, table: &str) -> Vec<u8> {
        let name = [table.as_bytes(), b"\0"].concat();
        let length = u16::try_from(4 + name.len()).expect("short");
        let mut body = vec![1, 0, 0, 0];
        body.extend(length.to_ne_bytes());
        body.extend(1_u16.to_ne_bytes());
        body.extend(name);
        body.resize(body.len().next_multiple_of(4), 0);
        let whole = u32::try_from(16 + body.len()).expect("short");
        let mut message = whole.to_ne_bytes().to_vec();
        message.extend((10 << 8 | kind).to_ne_bytes());
        message.extend([0; 10]);
        message.extend(body);
        message
    }

    #[test]
    fn what_happens_to_tables_of_others_does_not_wake_us_and_what_cannot_be_read_does() {
        let others = [
            event(2, "filter"),
            event(7, "hoplite-portal"),
            event(15, ""),
        ]
        .concat();
        assert!(!is_about_us(&others));
        assert!(is_about_us(&[others.clone(), event(2, FIREWALL)].concat()));
        assert!(is_about_us(&event(8, FIREWALL)));
        let mut cut = [others, event(2, "filter")].concat();
        cut.truncate(cut.len() - 8);
        assert!(is_about_us(&cut));
    }
}

#[cfg(test)]
mod firewall_tests {
    use super::*;
    use crate::config::client::Config;

    fn text(change: impl FnOnce(&mut Wanted)) -> String {
        let mut wanted = Wanted::from_config(&Config::default(), true);
        change(&mut wanted);
        table(&wanted, &Facts::default())
    }

    fn chain<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let lines = text
            .lines()
            .skip_while(|line| *line != format!("chain {name} {{"));
        lines.skip(2).take_while(|line| *line != "}").collect()
    }

    #[test]
    fn what_has_neither_our_mark_nor_our_interface_is_dropped_last() {
        let text = text(|_| ());
        let leaving = chain(&text, "postrouting");
        let looping = "oifname \"hoplite0\" meta mark 0x686f6c counter name blocked drop";
        assert_eq!(leaving.first(), Some(&looping));
        assert_eq!(leaving.last(), Some(&"counter name blocked drop"));
        assert!(!text.contains("skuid") && !text.contains("cgroup"));
        assert_eq!(
            chain(&text, "forward").last(),
            Some(&"counter name blocked drop")
        );
    }

    #[test]
    fn the_local_network_is_in_reach_if_asked_for_but_its_name_servers_are_not() {
        let text = text(|wanted| wanted.lan = true);
        let leaving = chain(&text, "postrouting");
        let drops = leaving
            .iter()
            .position(|line| line.contains("{ 53, 853, 5355 }"));
        let accepts = leaving
            .iter()
            .position(|line| line.contains("192.168.0.0/16"));
        assert!(drops.expect("drops") < accepts.expect("accepts"));
        let netbios = leaving
            .iter()
            .position(|line| line.starts_with("udp dport 137 ") && line.ends_with("drop"));
        assert!(netbios.expect("drops") < accepts.expect("accepts"));
        assert!(!leaving.iter().any(|line| line.contains("5353")));
    }

    #[test]
    fn what_strangers_write_is_let_in_where_nobody_can_tell_whether_it_is_answered_through_us() {
        let dropped = "fib daddr type { local, broadcast, anycast, multicast } fib saddr oifname \"hoplite0\" drop";
        let arriving = |change: fn(&mut Wanted)| {
            let text = text(change);
            let lines = chain(&text, "arriving");
            assert!(lines.contains(&"ip saddr 198.18.0.0/15 drop"));
            lines.contains(&dropped)
        };
        assert!(arriving(|_| ()));
        assert!(arriving(
            |wanted| wanted.past_cgroups = vec!["a.slice".parse().expect("a group")]
        ));
        assert!(!arriving(
            |wanted| wanted.past_users = vec!["7".parse().expect("a user")]
        ));
        assert!(!arriving(
            |wanted| wanted.only_users = vec!["7".parse().expect("a user")]
        ));
    }

    #[test]
    fn what_is_written_to_excluded_groups_and_by_excluded_interfaces_is_let_in() {
        let mut wanted = Wanted::from_config(&Config::default(), true);
        wanted.past_interfaces = vec!["wg0".parse().expect("a name")];
        let group: Cgroup = "a.slice".parse().expect("a group");
        wanted.past_cgroups = vec![group.clone()];
        let facts = Facts {
            groups: [(group, 7)].into(),
            ..Facts::default()
        };
        let (text, marked) = (table(&wanted, &facts), marks(&wanted, &facts));
        let lines = chain(&text, "arriving");
        assert!(
            lines.contains(&"iifname \"wg0\" accept")
                && !lines.iter().any(|line| line.contains("established"))
        );
        let group = "meta l4proto udp socket cgroupv2 level 1 \"a.slice\" meta mark set 0x686f6c comment \"7\"";
        let answers = "iifname != { \"lo\", \"hoplite0\" } ct direction reply ct status snat,dnat fib daddr type local meta mark set 0x686f6c";
        assert_eq!(chain(&marked, "reaching"), [answers, group]);
        assert!(held(&wanted, &facts).contains("chain arriving {"));
    }

    #[test]
    fn what_has_our_mark_is_let_in_before_what_is_for_our_addresses_is_dropped() {
        let text = text(|_| ());
        let lines = chain(&text, "arriving");
        let at = |what: &str| lines.iter().position(|line| *line == what).expect("there");
        let dropped = "ip daddr 198.18.0.1/32 fib saddr oifname \"hoplite0\" drop";
        assert!(at("meta mark 0x686f6c accept") < at(dropped));
        assert!(at(dropped) < at("meta l4proto != { udp, udplite } accept"));
    }

    #[test]
    fn echoes_alone_pass_by_our_mark_beside_tcp_and_udp_and_only_where_names_go_past() {
        let dropped = "meta mark 0x686f6c meta l4proto != { tcp, udp } counter name blocked drop";
        assert_eq!(chain(&text(|_| ()), "marked"), [dropped]);
        let config: Config =
            toml::from_str("takeover = { exclude.domains = [\"a.example\"], user = 7 }")
                .expect("right");
        let wanted = Wanted::from_config(&config, true);
        let text = table(&wanted, &Facts::default());
        let echoes = "meta l4proto { icmp, icmpv6 } meta skuid 7 accept";
        assert_eq!(chain(&text, "marked"), [echoes, dropped]);
    }

    #[test]
    fn where_only_some_is_taken_only_that_is_dropped() {
        let text = text(|wanted| {
            wanted.only_users = vec!["7-9".parse().expect("users")];
            wanted.only_addresses = vec!["192.0.2.0/24".parse().expect("a network")];
        });
        let last = "meta skuid 7-9 ip daddr 192.0.2.0/24 counter name blocked drop";
        assert_eq!(chain(&text, "postrouting").last(), Some(&last));
        let forward = chain(&text, "forward");
        let mut dropped = forward.iter().filter(|line| line.ends_with("drop"));
        let guests = "oifname \"hoplite0\" counter name blocked drop";
        assert_eq!(dropped.next(), Some(&guests));
        assert_eq!(dropped.next(), None);
    }

    /// Another program masquerades for them all.
    #[test]
    fn of_what_is_forwarded_a_gateways_guests_alone_go_into_the_interface() {
        let text = text(|wanted| {
            wanted.behind = vec!["10.7.0.0/24".parse().expect("a network")];
        });
        let forward = chain(&text, "forward");
        let into = forward.iter().filter(|line| line.starts_with("oifname"));
        let into: Vec<_> = into.copied().collect();
        assert_eq!(
            into,
            [
                "oifname \"hoplite0\" ip saddr 10.7.0.0/24 accept",
                "oifname \"hoplite0\" counter name blocked drop",
            ]
        );
    }

    #[test]
    fn only_what_would_leave_by_an_interface_is_marked_and_dropped() {
        let mut wanted = Wanted::from_config(&Config::default(), true);
        wanted.only_interfaces = vec!["wlan0".parse().expect("a name")];
        wanted.past_interfaces = vec!["wg0".parse().expect("a name")];
        wanted.behind = vec!["10.7.0.0/24".parse().expect("a network")];
        let facts = Facts::default();
        let (text, marked) = (table(&wanted, &facts), marks(&wanted, &facts));
        for hook in ["postrouting", "forward"] {
            let lines = chain(&text, hook);
            let last = "oifname { \"wlan0\" } counter name blocked drop";
            assert_eq!(lines.last(), Some(&last));
            assert!(lines.contains(&"oifname \"wg0\" accept"));
        }
        let line = "oifname { \"wlan0\" } meta mark set 0x686f6e";
        assert_eq!(chain(&marked, "included").last(), Some(&line));
        let guests = "iifname != \"hoplite0\" ip saddr 10.7.0.0/24 meta mark set 0x686f6e";
        assert_eq!(chain(&marked, "guests"), [guests]);
    }

    #[test]
    fn an_excluded_user_asks_the_networks_name_server_if_one_is_known() {
        let mut wanted = Wanted::from_config(&Config::default(), true);
        wanted.past_users = vec!["7".parse().expect("a user")];
        let servers = ["127.0.0.1:53", "192.0.2.53:53"].map(|it| it.parse().expect("one"));
        let facts = Facts {
            servers: servers.to_vec(),
            ..Facts::default()
        };
        let text = table(&wanted, &facts);
        let expected = "meta skuid 7 ip daddr 198.18.0.2 meta l4proto { tcp, udp } th dport 53 dnat ip to 192.0.2.53";
        assert_eq!(chain(&text, "asking"), [expected]);
        assert!(!table(&wanted, &Facts::default()).contains("dnat"));
    }

    #[test]
    fn what_it_dropped_is_read_from_nft() {
        let answer = r#"{"nftables": [{"metainfo": {"version": "1"}},
            {"counter": {"family": "inet", "name": "blocked", "packets": 3, "bytes": 180}}]}"#;
        let counted = counted(&serde_json::from_str(answer).expect("json"));
        let expected = Dropped {
            packets: 3,
            bytes: 180,
        };
        assert_eq!(counted, Some(expected));
    }
}
