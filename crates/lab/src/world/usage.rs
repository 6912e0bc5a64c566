//! What each process used: processor time while the workloads ran and over its life, peak memory.

use std::time::Duration;

use crate::{
    netns::{Process, cpu},
    trial::ProcessUse,
};

/// Processor time of some processes at one moment, their helpers included, in the order in which they were given.
#[derive(Debug, Default)]
pub(super) struct Snapshot(Vec<Duration>);

impl Snapshot {
    pub(super) fn of<'a>(processes: impl Iterator<Item = &'a Process>) -> Self {
        let groups = cpu::by_group();
        let time = |process: &Process| {
            let group = groups.get(&process.pid).copied();
            process.cpu().max(group.unwrap_or_default())
        };
        Self(processes.map(time).collect())
    }

    /// Seconds that the process in that place has used since `before`.
    pub(super) fn since(&self, before: &Self, place: usize) -> f64 {
        self.at(place)
            .saturating_sub(before.at(place))
            .as_secs_f64()
    }

    /// What the process in that place has used over its life.
    pub(super) fn at(&self, place: usize) -> Duration {
        self.0.get(place).copied().unwrap_or_default()
    }
}

/// Of a process of the workload itself, which ended.
pub(super) fn of_own(
    name: String,
    host: &str,
    process: &Process,
    peak: u64,
    cpu_s: Option<f64>,
) -> ProcessUse {
    let life_cpu_s = process.cpu().as_secs_f64();
    ProcessUse {
        name,
        host: host.to_owned(),
        cpu_s: cpu_s.unwrap_or(life_cpu_s),
        life_cpu_s,
        // The kernel's own figure of an ended process includes what this one had when it was spawned.
        peak_memory: match peak {
            0 => process.peak_memory().unwrap_or_default(),
            peak => peak,
        },
    }
}
