//! Forwarded mode in the kernel: an XDP program readdresses what comes to the interfaces under a rule, and the relay sees nothing of it but counters.
//! What user space has forwarded once, and may leave to others, is entered; whatever the program does not know exactly comes to user space as before.
//!
//! A rule lasts for [`LEASE`], and [`Kernel::tend`] makes it last longer every [`TEND`], when it also takes over what was counted. So a relay that hangs
//! forwards nothing; and from one that is gone the kernel takes the program off.
//!
//! Only packets that nobody transforms: the kernel's AES for such programs (`bpf_crypto_encrypt`) is one without the processor's instructions.

#[cfg(feature = "kernel-forwarding")]
mod program;
mod rule;

use std::{
    fs,
    path::Path,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, netdevice::name_to_index, socket_with},
    time::{ClockId, clock_gettime},
};
use tokio::time::sleep;

#[cfg(feature = "kernel-forwarding")]
use self::program::Program;
pub(super) use self::rule::Ends;
use self::rule::KernelRule;
use super::{Forwarding, Ledger};
use crate::{
    config::{Forwarding as Config, KernelMode},
    metrics::{Forwarded, Metrics, Up},
};

/// How long a rule holds unless it is renewed.
const LEASE: Duration = Duration::from_secs(5);
/// How often rules are renewed and their packets counted. So long a rule may outlive its client's address.
const TEND: Duration = Duration::from_secs(1);
/// How many rules there may be: as many as `forward.c` has room for. Others stay in user space.
const MAX_RULES: u32 = 65_536;
/// Why the program left packets of a rule to user space, in the order of its `enum left`.
pub(crate) const LEFT: [&str; 5] = ["expired", "other_id", "unfinished", "no_route", "interface"];

/// Why nothing is forwarded by the kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(String);

/// Where the program is to be attached, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interface {
    name: String,
    index: u32,
    mode: KernelMode,
}

/// How an interface took the program.
#[derive(Debug)]
struct Attached {
    interface: String,
    how: Result<KernelMode, Refused>,
}

/// What has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    packets: u64,
    bytes: u64,
}

/// The program of a build without aya: there is none.
#[cfg(not(feature = "kernel-forwarding"))]
enum Program {}

#[cfg(not(feature = "kernel-forwarding"))]
impl Program {
    fn attach(_: &[Interface]) -> Result<(Self, Vec<Attached>), Refused> {
        Err(Refused("this program was built without it".into()))
    }

    fn enter(&self, _: &rule::Key, _: &rule::Value) -> bool {
        match *self {}
    }

    fn renew(&self, _: &rule::Key, _: &rule::Value) -> bool {
        match *self {}
    }

    fn remove(&self, _: &rule::Key) {
        match *self {}
    }

    fn counts(&self, _: u32) -> Counts {
        match *self {}
    }

    fn left(&self) -> [u64; LEFT.len()] {
        match *self {}
    }
}

/// The rules of all flows that are in the kernel.
pub(crate) struct Kernel {
    program: Program,
    slots: Mutex<Slots>,
    /// Flows that have had a rule there; those that have ended are dropped by [`Self::tend`].
    flows: Mutex<Vec<Weak<Forwarding>>>,
    metrics: Arc<Metrics>,
}

/// Which of the program's counters are free.
#[derive(Debug, Default)]
struct Slots {
    given_back: Vec<u32>,
    /// From here on nobody has had one.
    fresh: u32,
}

impl Slots {
    fn take(&mut self) -> Option<u32> {
        self.given_back.pop().or_else(|| {
            let slot = self.fresh;
            self.fresh = (slot + 1).min(MAX_RULES);
            (slot < MAX_RULES).then_some(slot)
        })
    }
}

impl Kernel {
    /// Attaches the program, as far as the configuration wants it and the system lets it: what does not work is logged. Says how it went.
    pub(crate) fn start(
        config: &Config,
        metrics: &Arc<Metrics>,
    ) -> (Option<Arc<Self>>, Option<String>) {
        if config.kernel == KernelMode::Off || !config.enabled {
            return (None, None);
        }
        match Self::attach(config, metrics) {
            Ok((kernel, how)) => {
                tracing::info!(interfaces = %how, "the kernel forwards what is not scrambled");
                (Some(kernel), Some(how))
            }
            Err(why) => {
                tracing::warn!(%why, "forwarding in user space: the kernel does not do it");
                (None, Some(format!("off: {why}")))
            }
        }
    }

    fn attach(config: &Config, metrics: &Arc<Metrics>) -> Result<(Arc<Self>, String), Refused> {
        if !config.identity {
            let why = "it scrambles nothing, and forwarding.identity is off";
            return Err(Refused(why.into()));
        }
        let interfaces = interfaces(&config.interfaces, config.kernel)?;
        let (program, attached) = Program::attach(&interfaces)?;
        let mut how = Vec::new();
        for Attached { interface, how: by } in attached {
            match by {
                Ok(mode) => {
                    metrics.forwarding.kernel.interfaces(mode).inc();
                    how.push(format!("{interface} ({})", mode.name()));
                }
                Err(why) => tracing::warn!(interface, %why, "forwarding there in user space"),
            }
        }
        if how.is_empty() {
            return Err(Refused("no interface takes its program".into()));
        }
        let kernel = Self {
            program,
            slots: Mutex::default(),
            flows: Mutex::default(),
            metrics: Arc::clone(metrics),
        };
        Ok((Arc::new(kernel), how.join(", ")))
    }

    /// Counts what has passed and renews the rules; never ends.
    pub(crate) async fn tend(self: Arc<Self>) {
        let mut left = [0; LEFT.len()];
        loop {
            sleep(TEND).await;
            let flows: Vec<Arc<Forwarding>> = {
                let mut flows = self.flows.lock();
                flows.retain(|flow| flow.strong_count() > 0);
                flows.iter().filter_map(Weak::upgrade).collect()
            };
            for flow in flows {
                flow.tend_kernel();
            }
            let now = self.program.left();
            self.metrics.forwarding.kernel.count_left(&left, &now);
            left = now;
        }
    }

    /// From now on [`Self::tend`] looks after a flow.
    pub(super) fn watch(&self, flow: Weak<Forwarding>) {
        self.flows.lock().push(flow);
    }

    /// Enters a rule; `None` where the kernel cannot obey it, or has no room.
    pub(super) fn enter(
        self: &Arc<Self>,
        (arriving, leaving): (Ends, Ends),
        (id, new): (&[u8], &[u8]),
        tally: Tally,
    ) -> Option<Entry> {
        let rule = KernelRule::new(arriving, leaving, id, new)?;
        let slot = self.slots.lock().take()?;
        let seen = self.program.counts(slot);
        let entered = self.program.enter(rule.key(), &rule.value(expires(), slot));
        if !entered {
            self.slots.lock().given_back.push(slot);
            return None;
        }
        Some(Entry {
            seen,
            rule,
            slot,
            tally,
            _counted: Up::new(&self.metrics.forwarding.kernel.rules_open),
            kernel: Arc::clone(self),
        })
    }
}

/// When a rule ends that is made or renewed now.
fn expires() -> u64 {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    u64::try_from((now + LEASE).as_nanos()).unwrap_or(u64::MAX)
}

/// A rule in the kernel; dropping it takes it out, and what has passed is counted.
pub(super) struct Entry {
    kernel: Arc<Kernel>,
    rule: KernelRule,
    slot: u32,
    /// What of the slot's counters is taken over.
    seen: Counts,
    tally: Tally,
    _counted: Up,
}

/// Where packets are counted that have passed in the kernel.
pub(super) struct Tally {
    pub(super) ledger: Ledger,
    /// From the client, which has sent batches past its connection so often; `None`: to it.
    pub(super) from_client: Option<Arc<AtomicU64>>,
}

impl Entry {
    /// Counts what has passed, and makes the rule last.
    pub(super) fn tend(&mut self) {
        self.count();
        let value = self.rule.value(expires(), self.slot);
        if !self.kernel.program.renew(self.rule.key(), &value) {
            tracing::debug!("a rule in the kernel could not be renewed");
        }
    }

    fn count(&mut self) {
        let now = self.kernel.program.counts(self.slot);
        let passed = Counts {
            packets: now.packets.wrapping_sub(self.seen.packets),
            bytes: now.bytes.wrapping_sub(self.seen.bytes),
        };
        self.seen = now;
        if passed.packets > 0 {
            self.tally.count(passed);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.kernel.program.remove(self.rule.key());
        self.count();
        self.kernel.slots.lock().given_back.push(self.slot);
    }
}

impl Tally {
    /// As if user space had forwarded it.
    fn count(&self, Counts { packets, bytes }: Counts) {
        let metrics = &self.ledger.metrics;
        self.ledger.passed.fetch_add(1, Ordering::Relaxed);
        let (both, kernel): (&Forwarded, &Forwarded) = if let Some(batches) = &self.from_client {
            batches.fetch_add(1, Ordering::Relaxed);
            metrics.datagrams_to_target.inc_by(packets);
            metrics.bytes_to_target.udp.inc_by(bytes);
            (
                &metrics.forwarding.to_target,
                &metrics.forwarding.kernel.to_target,
            )
        } else {
            metrics.datagrams_to_client.inc_by(packets);
            metrics.bytes_to_client.udp.inc_by(bytes);
            (
                &metrics.forwarding.to_client,
                &metrics.forwarding.kernel.to_client,
            )
        };
        both.count(packets, bytes);
        kernel.count(packets, bytes);
    }
}

/// The interfaces that the program is to be attached to, by name and number: those of the file, or those with a default route.
fn interfaces(wanted: &[String], mode: KernelMode) -> Result<Vec<Interface>, Refused> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut names = wanted.to_vec();
    if names.is_empty() {
        names = default_routes(&read("/proc/net/route"), &read("/proc/net/ipv6_route"));
    }
    if names.is_empty() {
        let why = "there is no default route: forwarding.interfaces says by which interfaces packets come";
        return Err(Refused(why.into()));
    }
    let any = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    );
    let any = any.map_err(|error| Refused(format!("looking for interfaces: {error}")))?;
    let mut found = Vec::new();
    for name in names {
        let index = name_to_index(&any, &name);
        let index =
            index.map_err(|error| Refused(format!("there is no interface {name}: {error}")))?;
        let closed = ["ipv4", "ipv6"].map(|version| {
            let forwarding = read(&format!("/proc/sys/net/{version}/conf/{name}/forwarding"));
            forwarding.trim() == "0"
        });
        // The kernel tells the program of no route otherwise.
        if closed == [true; 2] {
            let why = format!(
                "net.ipv4.conf.{name}.forwarding and net.ipv6.conf.{name}.forwarding are 0"
            );
            return Err(Refused(why));
        }
        let mode = settled(
            mode,
            Path::new(&format!("/sys/class/net/{name}/device")).exists(),
        );
        found.push(Interface { name, index, mode });
    }
    Ok(found)
}

/// Without a device behind an interface there is but software, as at a container's end of a veth: its driver takes the program, and what that sends
/// waits in the other end until something else comes (Linux 6.18), so that only who asks for it gets it.
fn settled(mode: KernelMode, has_device: bool) -> KernelMode {
    match mode {
        KernelMode::Auto if !has_device => KernelMode::Generic,
        _ => mode,
    }
}

/// Of the tables of IPv4 and IPv6 as proc(5) has them: whose destination is everything, but for that of unreachable destinations.
fn default_routes(ipv4: &str, ipv6: &str) -> Vec<String> {
    let mut names = Vec::new();
    let ipv4 = ipv4.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (name, to, mask) = (words.next()?, words.next()?, words.nth(5)?);
        (to == "00000000" && mask == "00000000").then_some(name)
    });
    let ipv6 = ipv6.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (*words.get(1)? == "00").then_some(*words.last()?)
    });
    for name in ipv4.chain(ipv6) {
        if name != "lo" && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_those_with_a_default_route() {
        let ipv4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth1\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
            tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0\n";
        let zero = "00000000000000000000000000000000";
        let ipv6 = format!(
            "{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 wlan0\n\
            {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n\
            20010db8000000000000000000000000 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001 eth2\n\
            {zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth0\n"
        );
        assert_eq!(default_routes(ipv4, &ipv6), ["eth0", "wlan0"]);
        assert!(default_routes("", "").is_empty());
    }

    #[test]
    fn who_has_no_device_is_left_without_its_driver_unless_it_is_asked_for() {
        use KernelMode::{Auto, Driver, Generic};
        let modes = [
            (Auto, true),
            (Auto, false),
            (Driver, false),
            (Generic, true),
        ];
        let settled = modes.map(|(mode, has_device)| settled(mode, has_device));
        assert_eq!(settled, [Auto, Generic, Driver, Generic]);
    }

    #[test]
    fn a_slot_is_one_rules_alone_until_it_is_given_back() {
        let mut slots = Slots::default();
        let all: Vec<u32> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(all, (0..MAX_RULES).collect::<Vec<_>>());
        slots.given_back.push(7);
        assert_eq!((slots.take(), slots.take()), (Some(7), None));
    }
}
