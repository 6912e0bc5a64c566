//! What the machine is that a campaign runs on, without its name. `campaign` stores it beside the attempts.

use std::{collections::BTreeMap, fs, thread};

use ring::digest;
use rustix::{
    process::{Resource, geteuid, getrlimit},
    thread::{CapabilitySet, capabilities},
};

use crate::{emulator::priority::PRIORITY, results::store::Machine};

/// Settings that touch results and that a namespace does not have for itself, or begins with.
const SETTINGS: [&str; 12] = [
    "kernel/sched_rt_period_us",
    "kernel/sched_rt_runtime_us",
    "kernel/timer_migration",
    "net/core/default_qdisc",
    "net/core/netdev_max_backlog",
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/ipv4/tcp_available_congestion_control",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_mem",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
];

/// This machine.
pub(crate) fn this() -> Machine {
    let mut machine = Machine {
        id: String::new(),
        kernel: format!(
            "{} {}",
            read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            read("/proc/sys/kernel/version").unwrap_or_default()
        ),
        architecture: std::env::consts::ARCH.to_owned(),
        cpu: cpu(),
        cores: thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
        memory: memory(),
        governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        real_time: real_time(),
        sysctls: settings(),
    };
    machine.id = name(&machine);
    machine
}

fn name(machine: &Machine) -> String {
    let text = serde_json::to_string(machine).unwrap_or_default();
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    let head = hash.as_ref().iter().take(8);
    head.map(|octet| format!("{octet:02x}")).collect()
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The model of the first processor; other architectures than x86 have other words for it.
fn cpu() -> String {
    let text = read("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    ["model name", "Model", "Hardware", "CPU implementer"]
        .into_iter()
        .find_map(field)
        .unwrap_or_default()
}

fn memory() -> u64 {
    let text = read("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or_default() * 1024
}

/// Whether an emulator could have real-time priority: by root's capability (another user's does not reach into the user namespace of a
/// world), or by the limit that an administrator has set.
fn real_time() -> bool {
    let capable =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE));
    let limit = getrlimit(Resource::Rtprio).current;
    (capable && geteuid().is_root())
        || limit.is_none_or(|most| most >= u64::from(PRIORITY.unsigned_abs()))
}

fn settings() -> BTreeMap<String, String> {
    let one = |path: &&str| {
        let words = read(&format!("/proc/sys/{path}"))?;
        let value = words.split_whitespace().collect::<Vec<_>>().join(" ");
        Some((path.replace('/', "."), value))
    };
    SETTINGS.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described_without_its_name() {
        let machine = this();
        assert_eq!(machine, this());
        assert!(machine.cores > 0 && machine.memory > 0 && !machine.kernel.is_empty());
        let host = read("/proc/sys/kernel/hostname").unwrap();
        let text = serde_json::to_string(&machine).unwrap();
        assert!(host.len() < 5 || !text.contains(&host), "{text}");
    }
}
