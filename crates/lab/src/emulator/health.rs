//! Whether the emulator kept its promises: how late packets left, and what the machine did meanwhile: its load, the time that its own host took
//! from it, and the time in which programs waited for a processor.
//! Linux `proc(5)`: /proc/loadavg, /proc/stat; Documentation/accounting/psi.rst: /proc/pressure/cpu, and cpu.pressure of a control group.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

use crate::experiments::trial::EmulatorHealth;

/// The machine at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    load: f64,
    /// Ticks in all and ticks stolen.
    ticks: (u64, u64),
    /// Microseconds in which something waited for a processor, since the machine began; `None` if its kernel does not tell.
    waited: Option<u64>,
    at: Instant,
}

/// The machine between two moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meanwhile {
    /// The load at the first and at the second.
    pub(super) load: [f64; 2],
    /// The share of time stolen.
    pub(super) steal: f64,
    /// The share of the time in which something waited for a processor.
    pub(super) cpu_pressure: Option<f64>,
}

impl Machine {
    /// The machine now; what cannot be read is 0, but for the pressure: many kernels have none.
    pub(super) fn now() -> Self {
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        Self {
            load: load(&read(Path::new("/proc/loadavg"))),
            ticks: ticks(&read(Path::new("/proc/stat"))),
            waited: waited(&read(&PRESSURE)),
            at: Instant::now(),
        }
    }

    /// What was between then and now.
    pub(super) fn until_now(self) -> Meanwhile {
        self.until(Self::now())
    }

    fn until(self, now: Self) -> Meanwhile {
        let all = now.ticks.0.saturating_sub(self.ticks.0);
        let stolen = now.ticks.1.saturating_sub(self.ticks.1);
        let time = now.at.saturating_duration_since(self.at).as_micros();
        let waited = self.waited.zip(now.waited);
        let share = |(then, now): (u64, u64)| now.saturating_sub(then) as f64 / time.max(1) as f64;
        Meanwhile {
            load: [self.load, now.load],
            steal: stolen as f64 / all.max(1) as f64,
            // The two are not read in the same instant.
            cpu_pressure: waited.map(|waited| share(waited).min(1.0)),
        }
    }
}

/// Where the kernel says how long programs waited: those of our control group, if we are in one, else those of the machine.
static PRESSURE: LazyLock<PathBuf> = LazyLock::new(|| {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    group(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
        .map(|group| group.join("cpu.pressure"))
        .filter(|file| file.exists())
        .unwrap_or_else(|| PathBuf::from("/proc/pressure/cpu"))
});

/// The directory of our control group (version 2); `None` in the root, and where there is no such hierarchy. cgroups(7).
fn group(of_process: &str, mounts: &str) -> Option<PathBuf> {
    let path = of_process
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))?;
    let root = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let whole = place.split_whitespace().nth(3)? == "/";
        let at = place.split_whitespace().nth(4)?;
        (whole && kind.starts_with("cgroup2 ")).then_some(at)
    })?;
    (!path.is_empty()).then(|| Path::new(root).join(path))
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

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=4711`: the total. A kernel without it has no file, or one that cannot be read.
fn waited(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some
        .split_whitespace()
        .find_map(|field| field.strip_prefix("total="))?;
    total.parse().ok()
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
    let unknown = [&mut health.late_share, &mut health.cpu_pressure];
    for figure in figures.into_iter().chain(unknown.into_iter().flatten()) {
        *figure = (*figure * 1e6).round() / 1e6;
    }
    health
}

/// The latest that a packet is told to have left, in nanoseconds: an hour.
const LATEST: u64 = 3_600_000_000_000;

/// How late packets left: quantiles to two digits, the maximum and what is called late exactly.
#[derive(Clone, Debug)]
pub(super) struct Lateness {
    counts: Histogram<u64>,
    max: u64,
    /// Nanoseconds from which on a packet is called late, and how many were later.
    tolerated: u64,
    late: u64,
}

impl Lateness {
    /// Nothing yet. A packet that leaves later than `tolerated` is called late.
    pub(super) fn new(tolerated: Duration) -> Self {
        let counts = Histogram::new_with_max(LATEST, 2);
        Self {
            counts: counts.expect("two digits of an hour can be counted"),
            max: 0,
            tolerated: u64::try_from(tolerated.as_nanos()).unwrap_or(u64::MAX),
            late: 0,
        }
    }

    /// Forgets all of it.
    pub(super) fn clear(&mut self) {
        self.counts.reset();
        self.max = 0;
        self.late = 0;
    }

    /// A packet left this many nanoseconds late.
    pub(super) fn record(&mut self, ns: u64) {
        self.counts.saturating_record(ns);
        self.max = self.max.max(ns);
        self.late += u64::from(ns > self.tolerated);
    }

    /// The share of the packets that is called late; `None` if there was no packet.
    pub(super) fn late_share(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.late as f64 / count as f64)
    }

    /// How many were recorded.
    pub(super) fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Microseconds within which this share of the packets left.
    pub(super) fn quantile_us(&self, share: f64) -> f64 {
        self.counts.value_at_quantile(share).min(self.max) as f64 / 1e3
    }

    /// The latest, in microseconds.
    pub(super) fn max_us(&self) -> f64 {
        self.max as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLERATED: Duration = Duration::from_micros(500);

    #[test]
    fn load_and_steal_are_read_from_what_the_kernel_says() {
        assert_eq!(load("0.75 0.50 0.20 1/200 4711\n"), 0.75);
        assert_eq!(ticks("cpu  10 1 5 80 2 0 1 1 0 0\ncpu0 1 1"), (100, 1));
        assert_eq!((load(""), ticks("")), (0.0, (0, 0)));
    }

    #[test]
    fn a_lab_in_a_control_group_of_its_own_is_not_judged_by_strangers() {
        let mounts = "30 25 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let inside = "3:cpuset:/\n0::/user.slice/lab.scope\n";
        let there = Some("/sys/fs/cgroup/unified/user.slice/lab.scope".into());
        assert_eq!(group(inside, mounts), there);
        assert_eq!(group("0::/\n", mounts), None, "the root is the machine");
        assert_eq!(group(inside, ""), None);
        assert_eq!(group("", mounts), None);
    }

    #[test]
    fn waiting_for_a_processor_is_a_share_of_the_time_and_unknown_where_the_kernel_does_not_tell() {
        let cpu = "some avg10=9.25 avg60=8.33 avg300=5.51 total=7631937\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(waited(cpu), Some(7_631_937));
        assert_eq!(
            (waited(""), waited("some avg10=0.00 total=x")),
            (None, None)
        );
        let then = Machine {
            load: 0.0,
            ticks: (0, 0),
            waited: Some(1_000_000),
            at: Instant::now(),
        };
        let now = |waited| Machine {
            waited,
            at: then.at + Duration::from_secs(2),
            ..then
        };
        assert_eq!(then.until(now(Some(1_500_000))).cpu_pressure, Some(0.25));
        assert_eq!(then.until(now(Some(4_000_000))).cpu_pressure, Some(1.0));
        assert_eq!(then.until(now(None)).cpu_pressure, None);
    }

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut lateness = Lateness::new(TOLERATED);
        (1..=1000).for_each(|us| lateness.record(us * 1000));
        for (share, expected) in [(0.5, 500.0), (0.99, 990.0)] {
            let quantile = lateness.quantile_us(share);
            assert!(
                (quantile / expected - 1.0).abs() < 0.01,
                "{share}: {quantile}"
            );
        }
        assert_eq!(
            (
                lateness.max_us(),
                lateness.quantile_us(1.0),
                lateness.count()
            ),
            (1000.0, 1000.0, 1000)
        );
        assert_eq!(Lateness::new(TOLERATED).quantile_us(0.5), 0.0);
    }

    #[test]
    fn late_is_what_left_later_than_is_tolerated_to_the_nanosecond() {
        let mut lateness = Lateness::new(TOLERATED);
        assert_eq!(lateness.late_share(), None, "nothing left");
        // Quantiles of two digits would call all of them 0.5 ms late.
        [499_999, 500_000, 500_001, 501_000]
            .into_iter()
            .for_each(|ns| lateness.record(ns));
        assert_eq!(lateness.late_share(), Some(0.5));
        lateness.clear();
        lateness.record(1);
        assert_eq!(lateness.late_share(), Some(0.0));
    }
}
