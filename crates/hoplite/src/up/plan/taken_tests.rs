//! Plans carried out on a real machine, in namespaces of its own, where every step may fail and the process may be killed after any: a program
//! talks all the time, by every way that there is, and what comes out at the uplink is judged.
//!
//! A test runs itself again inside, once on each machine that it is about. The uplink is a TUN device of the test's own, so what leaves is there
//! when the system call that sent it returns.

#[path = "../../../tests/program/namespaces.rs"]
mod namespaces;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::File,
    io::{Read, Write},
    mem::take,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use socket2::{Domain, Protocol, Socket, Type};

use super::{Leave, Machine, Taken, clear};
use crate::{
    config::client::Config,
    process,
    say::Complaint,
    up::{
        driver::{self, System},
        plan::{self, Facts, Nft, Plan, Resolving, Step, Wanted},
    },
};

/// Says inside which machine it is.
const INSIDE: &str = "HOPLITE_TEST_MACHINE";

/// What machines differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// systemd-resolved runs, or somebody who is called like what speaks with it.
    Resolved,
    /// resolv.conf can be replaced.
    Replaceable,
    /// Something is mounted on it.
    Mounted,
    /// It cannot be changed.
    ReadOnly,
    /// There is no nft.
    NoFirewall,
}

const ALL: [Kind; 5] = [
    Kind::Resolved,
    Kind::Replaceable,
    Kind::Mounted,
    Kind::ReadOnly,
    Kind::NoFirewall,
];

const FOLDERS: &str = r#"
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /etc
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs "$TEMP"
mkdir /run/hoplite
echo 'nameserver 192.0.2.53' > /etc/resolv.conf
"#;

const MOUNTED: &str = r#"
cp /etc/resolv.conf "$TEMP/resolv.conf"
mount --bind "$TEMP/resolv.conf" /etc/resolv.conf
"#;

/// What it was told is gone with the interface, as with the real one.
const RESOLVED: &str = r#"
mkdir -p /run/systemd/resolve /run/told
cp /etc/resolv.conf /run/systemd/resolve/resolv.conf
echo 'nameserver 127.0.0.53' > /etc/resolv.conf
mount -t tmpfs tmpfs /usr/local/bin
cat > /usr/local/bin/resolvectl <<'END'
#!/bin/sh
case "$#$1" in
  1*) ;;
  *revert) rm -f /run/told/* ;;
  *) echo "$@" > "/run/told/$1" ;;
esac
END
chmod 755 /usr/local/bin/resolvectl
"#;

const WITHOUT_NFT: &str = r#"
for place in /usr/sbin /sbin /usr/bin /bin /usr/local/sbin /usr/local/bin; do
  if [ -e "$place/nft" ]; then mount --bind /dev/null "$place/nft"; fi
done
"#;

/// The uplink's and a guest's addresses, and the way out. One interface checks the way back, so marks must count there.
const NETWORK: &str = r"
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.src_valid_mark=0
for name in all default eth0 guest0; do sysctl -qw net.ipv4.conf.$name.rp_filter=0; done
# No addresses that come by themselves, a moment later.
for name in eth0 guest0; do sysctl -qw net.ipv6.conf.$name.addr_gen_mode=1; done
sysctl -qw net.ipv4.conf.lo.rp_filter=1
ip link set lo up
ip address add 192.0.2.1/24 dev eth0
ip -6 address add 2001:db8::1/64 dev eth0 nodad
ip address add 10.99.0.1/24 dev guest0
ip link set eth0 up
ip link set guest0 up
ip route add default via 192.0.2.254
ip -6 route add default via 2001:db8::fe
";

/// All that a plan may touch. The kernel makes routes of the table `local` of addresses, when it comes to it.
const STATE: &str = r"
ip rule; ip -6 rule
(ip route show table all; ip -6 route show table all) | grep -v 'table local'
nft list ruleset 2> /dev/null || true
cat /etc/resolv.conf /proc/sys/net/ipv4/conf/all/src_valid_mark
ls -A /etc /run/hoplite; ip -o link | cut -d: -f2
if ip link show hoplite0 > /dev/null 2>&1; then cat /run/told/* 2> /dev/null || true; fi
";

/// How names are asked for.
const NAMES: &str = "cat /etc/resolv.conf; ls -A /etc";

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Resolved => "resolved",
            Self::Replaceable => "replaceable",
            Self::Mounted => "mounted",
            Self::ReadOnly => "read-only",
            Self::NoFirewall => "no firewall",
        }
    }

    fn script(self) -> String {
        let more = match self {
            Self::Resolved => RESOLVED,
            Self::Replaceable => "",
            Self::Mounted => MOUNTED,
            Self::ReadOnly => &format!("{MOUNTED}\nmount -o remount,bind,ro /etc/resolv.conf"),
            Self::NoFirewall => WITHOUT_NFT,
        };
        format!("{FOLDERS}\n{more}\n")
    }

    /// What is to be found there.
    fn facts(self) -> (Nft, Resolving) {
        let resolving = match self {
            Self::Resolved => Resolving::Resolved,
            Self::Replaceable | Self::NoFirewall => Resolving::File,
            Self::Mounted => Resolving::Mounted,
            Self::ReadOnly => Resolving::ReadOnly,
        };
        match self {
            Self::NoFirewall => (Nft::Missing, resolving),
            _ => (Nft::Works, resolving),
        }
    }
}

/// Runs a test on machines of these kinds. It finds its own name by its type's.
fn on<T: AsyncFnOnce(&Host)>(kinds: &[Kind], test: T) {
    if let Ok(name) = std::env::var(INSIDE) {
        let kind = ALL.into_iter().find(|kind| kind.name() == name);
        let work = async { test(&Host::new(kind.expect("a kind"))).await };
        return process::current_thread_runtime()
            .expect("a runtime")
            .block_on(work);
    }
    let path = std::any::type_name::<T>().trim_end_matches("::{{closure}}");
    let (_, name) = path.split_once("::").expect("it is in a crate");
    let program = std::env::current_exe().expect("there");
    for kind in kinds {
        let script = format!(
            "{}\nexec \"$PROGRAM\" --exact {name} --nocapture",
            kind.script()
        );
        let variables = [
            ("PROGRAM", program.as_os_str()),
            (INSIDE, OsStr::new(kind.name())),
        ];
        let Some(output) = namespaces::inside(&script, &variables) else {
            return;
        };
        namespaces::ended_well(&output);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("1 passed"), "{name} was not run: {said}");
    }
}

fn shell(script: &str) -> String {
    let output = Command::new("sh").args(["-euc", script]).output();
    let output = output.expect("there is a shell");
    namespaces::ended_well(&output);
    String::from_utf8(output.stdout).expect("text")
}

/// A machine with an uplink, a guest behind it, and a program that never stops to talk.
struct Host {
    kind: Kind,
    uplink: File,
    talker: Arc<Talker>,
    before: String,
}

/// What it has done, and whether it binds to the uplink: nothing but nftables keeps that back (docs/device.md).
struct Talker {
    guest: File,
    rounds: AtomicUsize,
    binds: AtomicBool,
}

/// Whom it talks to: each by a way of its own.
const FREE: [&str; 9] = [
    "203.0.113.1",
    "203.0.113.2",
    "203.0.113.3",
    "203.0.113.4",
    "203.0.113.5",
    "2001:db8:1::1",
    "2001:db8:1::2",
    "2001:db8:1::3",
    "2001:db8:1::4",
];
const BOUND: [&str; 5] = [
    "203.0.113.11",
    "203.0.113.12",
    "2001:db8:1::11",
    "2001:db8:1::12",
    "224.0.0.251",
];

/// The header of virtio before each packet of a TUN device.
const HEADER: usize = 10;

impl Host {
    fn new(kind: Kind) -> Self {
        let open = |name| File::from(driver::open(name).expect("a TUN device"));
        let uplink = open("eth0");
        let talker = Arc::new(Talker {
            guest: open("guest0"),
            rounds: AtomicUsize::new(0),
            binds: AtomicBool::new(true),
        });
        shell(NETWORK);
        let talks = Arc::clone(&talker);
        thread::spawn(move || talks.talk());
        let mut host = Self {
            kind,
            uplink,
            talker,
            before: String::new(),
        };
        // And so that what is judged below can fail.
        let open: Vec<IpAddr> = host.heard(&host.uplink).into_iter().collect();
        for to in FREE.iter().chain(&BOUND) {
            assert!(open.contains(&address(to)), "{to} of {open:?}");
        }
        let binds = kind != Kind::NoFirewall;
        host.talker.binds.store(binds, Ordering::Relaxed);
        host.before = shell(STATE);
        host
    }

    fn system(&self) -> System {
        let wanted = self.wanted(true);
        let system = System::new(Path::new("/run/hoplite"), &wanted.name, &wanted.addresses);
        system.expect("a machine").staying()
    }

    fn wanted(&self, block: bool) -> Wanted {
        let mut wanted = Wanted::from_config(&Config::default(), block);
        wanted.no_firewall = self.kind == Kind::NoFirewall;
        wanted
    }

    /// What the driver finds.
    async fn facts(&self) -> Facts {
        let facts = self.system().facts(&self.wanted(true)).await;
        let found = (facts.nft.clone(), facts.resolving);
        assert_eq!(found, self.kind.facts());
        assert!(facts.reverse_path);
        facts
    }

    async fn plan(&self, block: bool) -> Plan {
        plan::plan(&self.wanted(block), &self.facts().await)
    }

    /// The first step of interest: machines that differ in how names are taken over do so at the end.
    fn first(&self, plan: &Plan) -> usize {
        match self.kind {
            Kind::Replaceable | Kind::NoFirewall => 0,
            Kind::Resolved | Kind::Mounted | Kind::ReadOnly => plan.steps.len() - 1,
        }
    }

    /// Which step fails, and how.
    fn failures(&self, plan: &Plan) -> impl Iterator<Item = (usize, Done)> {
        let steps = self.first(plan)..plan.steps.len();
        steps.flat_map(|step| [(step, Done::Nothing), (step, Done::All)])
    }

    /// It says everything once more.
    fn round(&self) {
        let until = self.talker.rounds.load(Ordering::Acquire) + 2;
        while self.talker.rounds.load(Ordering::Acquire) < until {
            thread::yield_now();
        }
    }

    /// Whom packets are for that come out there while everything is said once more, none of before.
    fn heard(&self, mut device: &File) -> BTreeSet<IpAddr> {
        self.round();
        targets(&mut device);
        self.round();
        targets(&mut device)
    }

    /// As it was before anything was done.
    fn is_as_it_was(&self, when: &str) {
        let now = shell(STATE);
        let mut less: Vec<&str> = self.before.lines().collect();
        let mut more: Vec<&str> = now.lines().collect();
        more.retain(|line| match less.iter().position(|it| it == line) {
            Some(place) => {
                less.remove(place);
                false
            }
            None => true,
        });
        let is_same = more.is_empty() && less.is_empty();
        assert!(is_same, "{when}: more {more:#?}, less {less:#?}");
    }
}

/// Takes in what waits there, and whom it is for. A machine that looks for neighbours and routers is no program.
fn targets(device: &mut &File) -> BTreeSet<IpAddr> {
    let mut room = vec![0; 1 << 16];
    let mut targets = BTreeSet::new();
    while let Ok(length) = device.read(&mut room) {
        let packet = room.get(HEADER..length).expect("a packet");
        let target = match packet.first().expect("a version") >> 4 {
            4 => packet[16..20]
                .first_chunk::<4>()
                .map(|it| IpAddr::from(*it)),
            _ => packet[24..40]
                .first_chunk::<16>()
                .map(|it| IpAddr::from(*it)),
        };
        let target = target.expect("a target");
        if !matches!(target, IpAddr::V6(to) if to.is_multicast()) {
            targets.insert(target);
        }
    }
    targets
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

impl Talker {
    fn talk(&self) {
        loop {
            self.free();
            if self.binds.load(Ordering::Relaxed) {
                bound();
            }
            self.rounds.fetch_add(1, Ordering::Release);
            thread::sleep(std::time::Duration::from_micros(200));
        }
    }

    /// Without saying by which interface.
    fn free(&self) {
        let [v4, from4, tcp4, echo4, guest, v6, from6, tcp6, echo6] = FREE.map(address);
        udp(v4, |_| Ok(()));
        udp(v6, |_| Ok(()));
        udp(from4, |it| from(it, "192.0.2.1"));
        udp(from6, |it| from(it, "2001:db8::1"));
        tcp(tcp4, |_| Ok(()));
        tcp(tcp6, |_| Ok(()));
        echo(echo4, Protocol::ICMPV4, 8);
        echo(echo6, Protocol::ICMPV6, 128);
        let IpAddr::V4(guest) = guest else {
            panic!("an IPv4 address");
        };
        (&self.guest).write_all(&forwarded(guest)).expect("taken");
    }
}

/// By the uplink, come what may.
fn bound() {
    let [v4, tcp4, v6, tcp6, multicast] = BOUND.map(address);
    let bind = |socket: &Socket| socket.bind_device(Some(b"eth0"));
    udp(v4, bind);
    udp(v6, bind);
    tcp(tcp4, bind);
    tcp(tcp6, bind);
    udp(multicast, |socket| {
        socket.set_multicast_if_v4(&Ipv4Addr::new(192, 0, 2, 1))
    });
}

fn from(socket: &Socket, source: &str) -> std::io::Result<()> {
    socket.bind(&SocketAddr::new(address(source), 0).into())
}

fn socket(to: IpAddr, kind: Type, protocol: Option<Protocol>) -> Socket {
    let domain = match to {
        IpAddr::V4(_) => Domain::IPV4,
        IpAddr::V6(_) => Domain::IPV6,
    };
    let socket = Socket::new(domain, kind, protocol).expect("a socket");
    socket.set_nonblocking(true).expect("set");
    socket
}

/// That it cannot be sent is what this is about.
fn udp(to: IpAddr, prepare: impl Fn(&Socket) -> std::io::Result<()>) {
    let socket = socket(to, Type::DGRAM, None);
    let sent = || socket.send_to(b"stranger", &SocketAddr::new(to, 9).into());
    drop(prepare(&socket).and_then(|()| sent()));
}

fn tcp(to: IpAddr, prepare: impl Fn(&Socket) -> std::io::Result<()>) {
    let socket = socket(to, Type::STREAM, None);
    let dial = || socket.connect(&SocketAddr::new(to, 80).into());
    drop(prepare(&socket).and_then(|()| dial()));
}

fn echo(to: IpAddr, protocol: Protocol, request: u8) {
    let mut message = [0; 8];
    message[0] = request;
    // Of IPv4 the sender makes the checksum: all else is zero.
    message[2] = !request;
    message[3] = if protocol == Protocol::ICMPV4 {
        0xff
    } else {
        0
    };
    let socket = socket(to, Type::RAW, Some(protocol));
    drop(socket.send_to(&message, &SocketAddr::new(to, 0).into()));
}

/// What a container or a virtual machine sends: UDP without a checksum.
fn forwarded(to: Ipv4Addr) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 99, 0, 2];
    packet.extend(to.octets());
    let words = packet.chunks_exact(2);
    let sum: u32 = words
        .map(|it| u32::from(it[0]) << 8 | u32::from(it[1]))
        .sum();
    let folded = u16::try_from((sum & 0xffff) + (sum >> 16)).expect("one carry");
    packet[10..12].copy_from_slice(&(!folded).to_be_bytes());
    packet.extend([0x30, 0x39, 0, 9, 0, 8, 0, 0]);
    [vec![0; HEADER], packet].concat()
}

/// Where a program's packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Past,
    Blocked,
    Through,
}

/// How much of a step that fails was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Nothing,
    All,
}

/// The driver on a machine, watched at each step.
struct Watched<'a> {
    host: &'a Host,
    system: System,
    /// What became of packets during and after each change.
    fates: Vec<Fate>,
    last: Fate,
    fails_at: Option<(usize, Done)>,
    applied: usize,
}

impl<'a> Watched<'a> {
    fn new(host: &'a Host, fails_at: Option<(usize, Done)>) -> Self {
        let mut watched = Self {
            host,
            system: host.system(),
            fates: Vec::new(),
            last: Fate::Past,
            fails_at,
            applied: 0,
        };
        watched.last = watched.fate();
        watched
    }

    fn fate(&self) -> Fate {
        let own = self.system.device();
        let own = own.map(|it| File::from(it.try_clone_to_owned().expect("copied")));
        self.host.round();
        own.iter().for_each(|own| drop(targets(&mut &*own)));
        let past = self.host.heard(&self.host.uplink);
        let through = own.map_or_else(BTreeSet::new, |own| targets(&mut &own));
        let of = |v4| through.iter().any(|it| it.is_ipv4() == v4);
        if !past.is_empty() {
            Fate::Past
        } else if of(true) && of(false) {
            Fate::Through
        } else {
            assert!(through.is_empty(), "one half: {through:?}");
            Fate::Blocked
        }
    }

    /// What becomes of packets now, and what has become of them since the last time.
    fn watch(&mut self) {
        self.host.round();
        let leaked = !targets(&mut &self.host.uplink).is_empty();
        let now = self.fate();
        // What leaves while a step opens is what it is for.
        if leaked && self.last != Fate::Past && now != Fate::Past {
            self.fates.push(Fate::Past);
        }
        self.last = now;
        self.fates.push(now);
    }

    /// The process is gone, and with it what lives in it.
    fn killed(self) -> Self {
        let host = self.host;
        drop(self);
        Self::new(host, None)
    }
}

impl Machine for &mut Watched<'_> {
    async fn apply(&mut self, step: &Step) -> Result<(), Complaint> {
        let fails = self.fails_at.filter(|(at, _)| *at == self.applied);
        if fails != Some((self.applied, Done::Nothing)) {
            self.system.apply(step).await?;
        }
        self.applied += 1;
        self.watch();
        match fails {
            Some(_) => Err(Complaint::new("testing", "it fails here", "none")),
            None => Ok(()),
        }
    }

    async fn undo(&mut self, step: &Step) -> Result<(), Complaint> {
        self.system.undo(step).await?;
        self.watch();
        Ok(())
    }
}

/// Takes all of it as a process does that comes to a machine in that state.
async fn taken<'a, 'b>(machine: &'b mut Watched<'a>, plan: &Plan) -> Taken<&'b mut Watched<'a>> {
    Taken::take(machine, plan, false).await.expect("taken")
}

async fn cleared(host: &Host) {
    let mut machine = Watched::new(host, None);
    let complaints = clear(&mut machine, plan::remains()).await;
    assert!(complaints.is_empty(), "{complaints:?}");
    assert_eq!(machine.last, Fate::Past);
    host.is_as_it_was("after it was cleared");
}

#[test]
fn once_the_block_stands_nothing_goes_past_until_it_is_given_back() {
    on(&ALL, async |host| {
        let mut machine = Watched::new(host, None);
        let mut taken = taken(&mut machine, &host.plan(true).await).await;
        assert!(taken.give_back(Leave::Nothing).await.is_empty());
        let blocked = |fate: &Fate| *fate != Fate::Past;
        let fates = take(&mut machine.fates);
        let first = fates.iter().position(blocked).expect("it blocks");
        let last = fates.iter().rposition(blocked).expect("it blocks");
        assert!(!fates[first..=last].contains(&Fate::Past), "{fates:?}");
        assert!(fates.contains(&Fate::Through), "{fates:?}");
        // Routes that block are nobody's until rules lead to them, and none once they lead there no more.
        let open = if host.kind == Kind::NoFirewall { 1 } else { 0 };
        assert_eq!(first, open, "{fates:?}");
        assert_eq!(fates.len() - last, open + 2, "{fates:?}");
        drop(machine);
        host.is_as_it_was("given back");
    });
}

#[test]
fn whichever_step_fails_the_machine_is_as_it_was() {
    on(&ALL, async |host| {
        let plan = host.plan(true).await;
        for (step, done) in host.failures(&plan) {
            let mut machine = Watched::new(host, Some((step, done)));
            let failed = Taken::take(&mut machine, &plan, false).await;
            assert!(failed.is_err());
            assert_eq!(machine.last, Fate::Past);
            drop(machine);
            host.is_as_it_was(plan.steps[step].doing());
        }
    });
}

#[test]
fn what_was_blocked_before_stays_blocked_when_a_step_fails() {
    on(&ALL, async |host| {
        let block = plan::block(&host.wanted(true), &host.facts().await);
        let mut machine = Watched::new(host, None);
        taken(&mut machine, &block).await;
        drop(machine);
        let facts = host.facts().await;
        assert!(facts.blocked);
        let plan = plan::plan(&host.wanted(true), &facts);
        for (step, done) in host.failures(&plan) {
            let mut machine = Watched::new(host, Some((step, done)));
            let failed = Taken::take(&mut machine, &plan, facts.blocked).await;
            assert!(failed.is_err());
            let what = plan.steps[step].doing();
            assert!(!machine.fates.contains(&Fate::Past), "{what}");
            assert_eq!(machine.last, Fate::Blocked, "{what}");
        }
        cleared(host).await;
    });
}

#[test]
fn what_a_killed_process_leaves_blocks_and_down_removes_it() {
    on(&ALL, async |host| {
        let mut machine = Watched::new(host, None);
        taken(&mut machine, &host.plan(true).await).await;
        assert_eq!(machine.last, Fate::Through);
        assert_eq!(machine.killed().last, Fate::Blocked);
        cleared(host).await;
    });
}

#[test]
fn killed_while_it_begins_it_leaves_nothing_half_open() {
    on(&ALL, async |host| {
        let plan = host.plan(true).await;
        let mut fates = Vec::new();
        let first = host.first(&plan);
        for steps in (0..=plan.steps.len()).filter(|it| *it == 0 || *it > first) {
            let begun = Plan {
                steps: plan.steps[..steps].to_vec(),
                ..Plan::default()
            };
            let mut machine = Watched::new(host, None);
            taken(&mut machine, &begun).await;
            fates.push(machine.killed().last);
            cleared(host).await;
        }
        fates.dedup();
        assert_eq!(fates, [Fate::Past, Fate::Blocked]);
    });
}

#[test]
fn after_a_signal_the_block_alone_is_left_if_that_was_asked_for() {
    on(&ALL, async |host| {
        let names = shell(NAMES);
        let mut machine = Watched::new(host, None);
        let mut taken = taken(&mut machine, &host.plan(true).await).await;
        assert!(taken.give_back(Leave::Block).await.is_empty());
        assert!(taken.steps().iter().all(Step::blocks));
        assert_eq!(machine.last, Fate::Blocked);
        drop(machine);
        let left = shell(STATE);
        assert!(!left.contains("hoplite0 "), "no interface: {left}");
        assert_eq!(shell(NAMES), names, "names are asked for as before");
        cleared(host).await;
    });
}

#[test]
fn without_a_block_a_killed_process_leaves_the_old_way_open() {
    on(&[Kind::Replaceable], async |host| {
        let mut machine = Watched::new(host, None);
        // Nothing but nftables keeps back who binds to the uplink.
        host.talker.binds.store(false, Ordering::Relaxed);
        taken(&mut machine, &host.plan(false).await).await;
        assert_eq!(machine.last, Fate::Through);
        assert!(
            !machine.fates.contains(&Fate::Blocked),
            "{:?}",
            machine.fates
        );
        assert_eq!(machine.killed().last, Fate::Past);
        cleared(host).await;
    });
}

#[test]
fn an_interface_that_is_gone_is_made_again_behind_the_block() {
    on(&ALL, async |host| {
        let mut machine = Watched::new(host, None);
        let mut taken = taken(&mut machine, &host.plan(true).await).await;
        shell("ip link delete hoplite0");
        taken.machine.watch();
        assert_eq!(taken.machine.last, Fate::Blocked);
        taken.machine.fates.clear();
        taken.renew(true).await.expect("renewed");
        assert!(!machine.fates.contains(&Fate::Past), "{:?}", machine.fates);
        assert_eq!(machine.last, Fate::Through);
        drop(machine);
        cleared(host).await;
    });
}

#[test]
fn for_boot_whichever_step_fails_the_others_are_taken_and_stay() {
    on(&[Kind::Replaceable, Kind::NoFirewall], async |host| {
        let plan = plan::block(&host.wanted(true), &host.facts().await);
        for (step, done) in host.failures(&plan) {
            let is_firewall = matches!(plan.steps[step], Step::Firewall(..));
            let routes_alone =
                host.kind == Kind::NoFirewall || is_firewall && done == Done::Nothing;
            host.talker.binds.store(!routes_alone, Ordering::Relaxed);
            let mut machine = Watched::new(host, Some((step, done)));
            let (_, complaints) = Taken::take_all_it_can(&mut machine, &plan).await;
            assert_eq!(complaints.len(), 1);
            assert_eq!(machine.applied, plan.steps.len());
            let is_needed = host.kind == Kind::NoFirewall && plan.steps[step].blocks();
            let expected = if is_needed && done == Done::Nothing {
                Fate::Past
            } else {
                Fate::Blocked
            };
            assert_eq!(machine.last, expected, "{}", plan.steps[step].doing());
            drop(machine);
            cleared(host).await;
        }
    });
}
