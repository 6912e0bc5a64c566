//! What processes use: processor time to the nanosecond, peak memory. `world` takes it before and after the workloads.

use std::{collections::HashMap, fs, time::Duration};

/// `USER_HZ`: what the kernel counts in `/proc` in, on all architectures but two that are gone.
const TICKS: u64 = 100;

/// Processor time of a living process, all its threads.
#[must_use]
pub fn of(pid: u32) -> Option<Duration> {
    // The kernel's encoding of a process' clock, as clock_getcpuclockid(3) makes it: CPUCLOCK_SCHED is 2.
    let clock = (!i32::try_from(pid).ok()? << 3) | 2;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is valid for writing; an unknown clock is an error, not undefined.
    #[expect(unsafe_code, reason = "no safe wrapper reads another process' clock")]
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanos = u32::try_from(time.tv_nsec).ok()?;
    (result == 0).then(|| Duration::new(seconds, nanos))
}

/// Processor time by process group: of all that live, and of their children that ended, for what a daemon's helpers use counts as its own.
/// Empty where `/proc` does not show this pid namespace.
#[must_use]
pub fn by_group() -> HashMap<u32, Duration> {
    let mut groups = HashMap::new();
    if !proc_is_ours() {
        return groups;
    }
    for pid in pids() {
        if let (Some((group, ended)), Some(time)) = (group_of(pid), of(pid)) {
            *groups.entry(group).or_default() += time + ended;
        }
    }
    groups
}

/// Peak resident memory of a living process in octets.
#[must_use]
pub fn peak_memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok();
    let status = status.filter(|_| proc_is_ours())?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilo: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilo * 1024)
}

/// Whether the pids in `/proc` are those of this process' namespace.
pub(crate) fn proc_is_ours() -> bool {
    fs::read_link("/proc/self")
        .is_ok_and(|link| link.to_str() == Some(&std::process::id().to_string()))
}

pub(crate) fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The process group, and the time of children that ended and were waited for.
fn group_of(pid: u32) -> Option<(u32, Duration)> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// proc_pid_stat(5): the fifth field, and the sum of the sixteenth and seventeenth; the second may contain anything, in brackets.
fn parse(stat: &str) -> Option<(u32, Duration)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = field(16)? + field(17)?;
    let group = u32::try_from(field(5)?).ok()?;
    Some((group, Duration::from_millis(ticks * 1000 / TICKS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_time_and_memory() {
        let pid = std::process::id();
        assert!(of(pid).unwrap() > Duration::ZERO);
        assert!(peak_memory(pid).unwrap() > 100_000);
        assert!(group_of(pid).unwrap().0 > 0);
    }

    #[test]
    fn a_program_may_be_named_as_it_likes() {
        let stat = "7 (a) b) S 1 6 5 0 -1 4194560 1 2 3 4 11 12 13 14 20 0 1 0 9";
        assert_eq!(parse(stat), Some((6, Duration::from_millis(270))));
    }

    #[test]
    fn a_process_that_is_not_there_has_no_clock() {
        assert_eq!(of(0x3fff_fff0), None);
    }
}
