//! On which machine it was measured: a figure without its machine means nothing.
//! The report begins with it.

use std::{fs, thread::available_parallelism};

/// Processor, cores and kernel in one line.
pub(super) fn description() -> String {
    let cores = available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{}, {cores} core(s), Linux {}", processor(), kernel.trim())
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()));
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}
