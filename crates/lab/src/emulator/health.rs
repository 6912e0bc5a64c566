//! What the machine did meanwhile: its load, and the time that its own host took from it. `driver` puts it into the health record.
//! Linux `proc(5)`: /proc/loadavg, /proc/stat.

use std::fs;

use crate::trial::EmulatorHealth;

/// The machine at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Machine {
    load: f64,
    /// Ticks in all and ticks stolen.
    ticks: (u64, u64),
}

impl Machine {
    /// The machine now; what cannot be read is 0.
    pub(super) fn now() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self {
            load: load(&read("/proc/loadavg")),
            ticks: ticks(&read("/proc/stat")),
        }
    }

    /// The load then and now, and the share of time stolen between.
    pub(super) fn until_now(self) -> ([f64; 2], f64) {
        let now = Self::now();
        let all = now.ticks.0.saturating_sub(self.ticks.0);
        let stolen = now.ticks.1.saturating_sub(self.ticks.1);
        ([self.load, now.load], stolen as f64 / all.max(1) as f64)
    }
}

fn load(text: &str) -> f64 {
    let first = text.split_whitespace().next();
    first.and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// The first line counts user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user time already.
fn ticks(text: &str) -> (u64, u64) {
    let fields = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .take(8);
    let ticks: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
    (ticks.iter().sum(), ticks.get(7).copied().unwrap_or(0))
}

/// Figures to a thousandth of a microsecond, a second and a share: no digits that mean nothing.
pub(super) fn rounded(mut health: EmulatorHealth) -> EmulatorHealth {
    let figures = [
        &mut health.late_us_p50,
        &mut health.late_us_p99,
        &mut health.late_us_max,
        &mut health.cpu_s,
        &mut health.steal,
    ];
    for figure in figures {
        *figure = (*figure * 1e6).round() / 1e6;
    }
    health
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_and_steal_are_read_from_what_the_kernel_says() {
        assert_eq!(load("0.75 0.50 0.20 1/200 4711\n"), 0.75);
        assert_eq!(ticks("cpu  10 1 5 80 2 0 1 1 0 0\ncpu0 1 1"), (100, 1));
        assert_eq!((load(""), ticks("")), (0.0, (0, 0)));
    }
}
