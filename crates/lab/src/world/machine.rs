//! The machine's mood during an attempt: load, time taken by its host, packets that hosts lost because the emulator did not read.

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{netns::Lab, trial::EmulatorHealth};

/// Taken before the first workload.
#[derive(Debug)]
pub(super) struct Mood {
    load: f64,
    /// Ticks of all processors together: taken by the host, and in all.
    ticks: Option<[u64; 2]>,
    dropped: u64,
}

impl Mood {
    pub(super) fn of(lab: &Lab) -> Self {
        Self {
            load: load(),
            ticks: ticks(),
            dropped: dropped(lab),
        }
    }

    /// Adds what has happened since.
    pub(super) fn add_to(&self, health: &mut EmulatorHealth, after: &Self) {
        health.load = [self.load, after.load];
        health.own_drops += after.dropped.saturating_sub(self.dropped);
        if let (Some(before), Some(after)) = (self.ticks, after.ticks) {
            let [stolen, all] = [0, 1].map(|i| after[i].saturating_sub(before[i]));
            health.steal = share(stolen, all);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "ticks are far below 2^52")]
fn share(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        _ => part as f64 / whole as f64,
    }
}

fn dropped(lab: &Lab) -> u64 {
    let counts = lab.hosts().iter().map(|host| host.dropped());
    counts.filter_map(Result::ok).sum()
}

/// Of the last minute.
fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|word| word.parse().ok()).unwrap_or_default()
}

fn ticks() -> Option<[u64; 2]> {
    parse_ticks(&fs::read_to_string("/proc/stat").ok()?)
}

/// proc(5): user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in user already.
fn parse_ticks(stat: &str) -> Option<[u64; 2]> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields = line.split_whitespace().take(8).map(str::parse);
    let fields: Vec<u64> = fields.collect::<Result<_, _>>().ok()?;
    Some([*fields.get(7)?, fields.iter().sum()])
}

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    seconds(SystemTime::now())
}

pub(super) fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map(|since| since.as_secs_f64()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_the_share_of_all_ticks_that_the_host_took() {
        let before = parse_ticks("cpu  10 0 10 70 5 0 0 5 0 0\ncpu0 1").unwrap();
        assert_eq!(before, [5, 100]);
        let mood = |ticks| Mood {
            load: 0.5,
            ticks: Some(ticks),
            dropped: 3,
        };
        let mut health = EmulatorHealth::default();
        mood([5, 100]).add_to(&mut health, &mood([30, 200]));
        assert_eq!(
            (health.steal, health.own_drops, health.load),
            (0.25, 0, [0.5, 0.5])
        );
    }
}
