//! What the machine draws while workloads run: the energy counters of its processors (RAPL), and its battery's gauge, read ten times a second as paper 003
//! does. Linux Documentation/power/powercap/powercap.rst; Documentation/ABI/testing/sysfs-class-power. Many machines have neither, most virtual ones; RAPL's
//! counters are root's alone. Then nothing is told, and what remains is processor time.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::experiments::trial::Drawn;

/// How often counters are read: the paper's profiler can do no more.
const INTERVAL: Duration = Duration::from_millis(100);
/// Of the time in which workloads run, this part at the beginning does not count: two minutes of twelve.
const LEAD_IN: f64 = 1.0 / 6.0;
/// More counters than machines have.
const MAX_COUNTERS: usize = 64;

/// The counters of this machine that can be read now.
pub(crate) fn counters() -> Vec<Counter> {
    found(Path::new("/sys/class"))
}

/// A counter, and what it has told.
#[derive(Debug)]
pub(crate) struct Counter {
    name: String,
    gauge: Gauge,
}

#[derive(Debug, PartialEq, Eq)]
enum Gauge {
    /// Microjoules that only grow, and begin anew after `range`.
    Energy { file: PathBuf, range: u64 },
    /// A battery: what it gives now, while it is not being charged.
    Battery { directory: PathBuf },
}

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reading {
    Microjoules(u64),
    Watts(f64),
}

impl Gauge {
    fn range(&self) -> u64 {
        match self {
            Self::Energy { range, .. } => *range,
            Self::Battery { .. } => 0,
        }
    }
}

impl Counter {
    /// What it measures: `package-0`, `package-0/dram`, `psys`, `battery:BAT0`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn read(&self) -> io::Result<Reading> {
        match &self.gauge {
            Gauge::Energy { file, .. } => number(file).map(Reading::Microjoules),
            Gauge::Battery { directory } => watts(directory).map(Reading::Watts),
        }
    }
}

/// Those below a directory like `/sys/class`.
fn found(class: &Path) -> Vec<Counter> {
    let mut counters: Vec<Counter> = entries(&class.join("powercap"))
        .iter()
        .filter_map(|zone| energy(zone))
        .chain(
            entries(&class.join("power_supply"))
                .into_iter()
                .filter_map(battery),
        )
        .filter(|counter| counter.read().is_ok())
        .take(MAX_COUNTERS)
        .collect();
    counters.sort_by(|one, other| one.name.cmp(&other.name));
    counters
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}

/// A zone of a processor, of its memory, or of the whole board; cores and graphics are part of their package. The same zones appear a second time by
/// another way to the processor (`intel-rapl-mmio`).
fn energy(zone: &Path) -> Option<Counter> {
    let file_name = zone.file_name()?.to_str()?;
    let place = file_name.strip_prefix("intel-rapl:")?;
    let own = text(&zone.join("name")).ok()?;
    let name = match place.split_once(':') {
        None if own.starts_with("package") || own == "psys" => own,
        Some((package, _)) if own == "dram" => {
            let package = zone.with_file_name(format!("intel-rapl:{package}"));
            format!("{}/dram", text(&package.join("name")).ok()?)
        }
        _ => return None,
    };
    let range = number(&zone.join("max_energy_range_uj")).ok()?;
    let file = zone.join("energy_uj");
    let gauge = Gauge::Energy { file, range };
    Some(Counter { name, gauge })
}

fn battery(directory: PathBuf) -> Option<Counter> {
    let kind = text(&directory.join("type")).ok()?;
    let own = directory.file_name()?.to_str()?;
    let name = format!("battery:{own}");
    (kind == "Battery").then_some(Counter {
        name,
        gauge: Gauge::Battery { directory },
    })
}

/// What a battery gives; an error while it gives nothing. Some drivers count what leaves it as negative.
fn watts(battery: &Path) -> io::Result<f64> {
    if text(&battery.join("status"))? != "Discharging" {
        return Err(io::Error::other("the battery does not carry the machine"));
    }
    let signed = |name: &str| -> io::Result<f64> {
        let value: i64 = text(&battery.join(name))?
            .parse()
            .map_err(io::Error::other)?;
        Ok(value.unsigned_abs() as f64 / 1e6)
    };
    signed("power_now").or_else(|_| Ok(signed("current_now")? * signed("voltage_now")?))
}

fn number(file: &Path) -> io::Result<u64> {
    text(file)?.parse().map_err(io::Error::other)
}

fn text(file: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(file)?.trim().to_owned())
}

/// The energy that a counter has told: points in time, in seconds, with joules since the first. Bounded by the attempt's timeout: 16 bytes each reading.
#[derive(Debug, Default)]
struct Series {
    points: Vec<(f64, f64)>,
    last: Option<Reading>,
    /// A reading failed: what it told is not whole.
    broken: bool,
}

impl Series {
    fn handle(&mut self, at: f64, reading: Option<Reading>, range: u64) {
        let Some(reading) = reading else {
            self.broken = true;
            return;
        };
        let (before, joules) = self.points.last().copied().unwrap_or((at, 0.0));
        let more = match (self.last, reading) {
            (Some(Reading::Microjoules(then)), Reading::Microjoules(now)) => {
                let grown = now.checked_sub(then);
                grown.unwrap_or_else(|| (range.saturating_sub(then)).saturating_add(now)) as f64
                    / 1e6
            }
            // The mean of both ends of the interval.
            (Some(Reading::Watts(then)), Reading::Watts(now)) => {
                f64::midpoint(then, now) * (at - before)
            }
            _ => 0.0,
        };
        self.last = Some(reading);
        self.points.push((at, joules + more));
    }

    /// Mean watts without the lead-in; `None` where there are too few readings to tell.
    fn mean(&self) -> Option<f64> {
        let (end, last) = *self.points.last().filter(|_| !self.broken)?;
        let begin = self.points.first()?.0;
        let from = begin + (end - begin) * LEAD_IN;
        let (start, first) = *self.points.iter().find(|(at, _)| *at >= from)?;
        (end > start).then(|| (last - first) / (end - start))
    }
}

/// Reads counters on a thread of its own until it is ended.
#[derive(Debug)]
pub(super) struct Sampler {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<Vec<Drawn>>>,
}

impl Sampler {
    /// Begins; without counters there is nothing to do.
    pub(super) fn start(counters: Vec<Counter>) -> Self {
        let (stop, stopped) = sync_channel::<()>(0);
        let any = !counters.is_empty();
        let sample = move || {
            let mut series: Vec<Series> = counters.iter().map(|_| Series::default()).collect();
            let began = Instant::now();
            loop {
                for (counter, series) in counters.iter().zip(&mut series) {
                    let reading = counter.read().ok();
                    let at = began.elapsed().as_secs_f64();
                    series.handle(at, reading, counter.gauge.range());
                }
                if stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    return drawn(&counters, &series);
                }
            }
        };
        let thread = any.then(|| thread::Builder::new().name("power".into()).spawn(sample));
        Self {
            stop: Some(stop),
            thread: thread.and_then(Result::ok),
        }
    }

    /// Ends, and tells what was drawn.
    pub(super) fn end(mut self) -> Vec<Drawn> {
        drop(self.stop.take());
        let thread = self.thread.take();
        thread
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default()
    }
}

fn drawn(counters: &[Counter], series: &[Series]) -> Vec<Drawn> {
    let told = counters.iter().zip(series).filter_map(|(counter, series)| {
        Some(Drawn {
            name: counter.name.clone(),
            watts: series.mean()?,
            readings: series.points.len() as u64,
        })
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine's files, as sysfs has them.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a directory"))
        }

        fn write(&self, path: &str, value: &str) {
            let file = self.0.path().join(path);
            fs::create_dir_all(file.parent().expect("below")).expect("made");
            // At once, as the kernel's own change.
            let new = file.with_extension("new");
            fs::write(&new, format!("{value}\n")).expect("written");
            fs::rename(new, file).expect("in place");
        }

        fn zone(&self, zone: &str, name: &str, microjoules: u64) {
            let at = format!("powercap/{zone}");
            self.write(&format!("{at}/name"), name);
            self.write(&format!("{at}/energy_uj"), &microjoules.to_string());
            self.write(&format!("{at}/max_energy_range_uj"), "1000000");
        }

        fn battery(&self, status: &str, gauges: &[(&str, &str)]) {
            for (name, value) in [("type", "Battery"), ("status", status)]
                .iter()
                .chain(gauges)
            {
                self.write(&format!("power_supply/BAT0/{name}"), value);
            }
        }

        fn names(&self) -> Vec<String> {
            let found = found(self.0.path());
            found
                .iter()
                .map(|counter| counter.name().to_owned())
                .collect()
        }

        fn only(&self) -> Counter {
            let mut found = found(self.0.path());
            assert_eq!(found.len(), 1);
            found.remove(0)
        }
    }

    #[test]
    fn packages_their_memory_and_the_board_are_counted_once() {
        let machine = Machine::new();
        machine.zone("intel-rapl:0", "package-0", 1);
        machine.zone("intel-rapl:0:0", "core", 1);
        machine.zone("intel-rapl:0:1", "dram", 1);
        machine.zone("intel-rapl:1", "package-1", 1);
        machine.zone("intel-rapl:2", "psys", 1);
        machine.zone("intel-rapl-mmio:0", "package-0", 1);
        machine.write("powercap/intel-rapl/enabled", "1");
        let names = ["package-0", "package-0/dram", "package-1", "psys"];
        assert_eq!(machine.names(), names);
    }

    #[test]
    fn a_machine_without_counters_has_none() {
        assert!(Machine::new().names().is_empty());
        assert!(Sampler::start(Vec::new()).end().is_empty());
    }

    #[test]
    fn a_counter_that_cannot_be_read_is_none() {
        let machine = Machine::new();
        machine.zone("intel-rapl:0", "package-0", 1);
        machine.write("powercap/intel-rapl:0/energy_uj", "?");
        assert!(machine.names().is_empty());
    }

    #[test]
    fn a_battery_counts_while_it_carries_the_machine() {
        let machine = Machine::new();
        machine.battery("Charging", &[("power_now", "2000000")]);
        assert!(machine.names().is_empty());
        machine.battery("Discharging", &[("power_now", "-2197000")]);
        assert_eq!(machine.only().read().expect("told"), Reading::Watts(2.197));
    }

    #[test]
    fn a_battery_without_a_gauge_of_power_has_current_and_voltage() {
        let machine = Machine::new();
        machine.battery(
            "Discharging",
            &[("current_now", "500000"), ("voltage_now", "4000000")],
        );
        assert_eq!(machine.only().read().expect("told"), Reading::Watts(2.0));
    }

    fn energy_series(readings: &[(f64, u64)], range: u64) -> Series {
        let mut series = Series::default();
        for (at, microjoules) in readings {
            series.handle(*at, Some(Reading::Microjoules(*microjoules)), range);
        }
        series
    }

    #[test]
    fn the_first_two_of_twelve_minutes_do_not_count() {
        // Ten watts for two minutes, then two.
        let energy = |second: u64| 2_000_000 * second + 8_000_000 * second.min(120);
        let readings: Vec<_> = (0..=720).map(|at| (at as f64, energy(at))).collect();
        let mean = energy_series(&readings, u64::MAX).mean().expect("told");
        assert!((mean - 2.0).abs() < 1e-9, "{mean}");
    }

    #[test]
    fn a_counter_that_begins_anew_goes_on() {
        let readings = [(0.0, 0), (1.0, 750_000), (2.0, 250_000), (3.0, 500_000)];
        let series = energy_series(&readings, 1_000_000);
        assert_eq!(series.points.last(), Some(&(3.0, 1.5)));
        // From the second reading on.
        assert_eq!(series.mean(), Some(0.375));
    }

    #[test]
    fn a_battery_tells_the_mean_of_its_readings() {
        let mut series = Series::default();
        for (at, watts) in [(0.0, 1.0), (1.0, 3.0), (2.0, 3.0), (3.0, 5.0)] {
            series.handle(at, Some(Reading::Watts(watts)), 0);
        }
        assert_eq!(series.mean(), Some((3.0 + 4.0) / 2.0));
    }

    #[test]
    fn a_reading_that_fails_and_a_single_one_tell_nothing() {
        let mut series = energy_series(&[(0.0, 1), (1.0, 2), (2.0, 3)], 10);
        assert!(series.mean().is_some());
        // The supply was plugged in.
        series.handle(3.0, None, 10);
        series.handle(4.0, Some(Reading::Microjoules(5)), 10);
        assert_eq!(series.mean(), None);
        assert_eq!(energy_series(&[(0.0, 1)], 10).mean(), None);
    }

    #[test]
    fn what_was_drawn_is_told_at_the_end() {
        let machine = Machine::new();
        machine.zone("intel-rapl:0", "package-0", 0);
        let sampler = Sampler::start(found(machine.0.path()));
        // As long as it takes for a few readings, whose times say how fast the counter has grown.
        for microjoules in 1..=10_u64 {
            thread::sleep(INTERVAL);
            machine.zone("intel-rapl:0", "package-0", microjoules * 100_000);
        }
        let told = sampler.end();
        assert_eq!(told.len(), 1);
        assert!(told[0].watts > 0.0 && told[0].readings >= 2, "{told:?}");
    }
}
