//! Round trips of 20 ms beside nothing and beside 10, 100 and 500 Mbit/s: median within 0.5 ms, 99th percentile within 1.5 ms.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use super::{
    Effort, Figure,
    bench::{self, Bench},
    failed, load,
    ping::Pinger,
};
use crate::{emulator::ask_for_priority, errors::Failure, topology::Direction};

const NOMINAL: Duration = Duration::from_millis(20);
const LOADS_MBIT: [f64; 4] = [0.0, 10.0, 100.0, 500.0];
const MEDIAN_MS: f64 = 0.5;
const P99_MS: f64 = 1.5;
/// The share of the load that must really have been there.
const LOAD_WITHIN: f64 = 0.95;
/// So many probes are not counted.
const WARM_UP: u32 = 5;
/// From one probe to the next, beyond the round trip.
const PAUSE: Duration = Duration::from_millis(2);
/// After so long a probe is lost.
const LOST: Duration = Duration::from_millis(500);

pub(super) fn check(effort: &Effort, figure: &mut dyn FnMut(Figure)) -> Result<(), Failure> {
    for mbit in LOADS_MBIT {
        figure(measure(mbit, effort.time(3, 15))?);
    }
    Ok(())
}

fn measure(mbit: f64, time: Duration) -> Result<Figure, Failure> {
    let bench = Bench::new(&bench::pair(&Direction {
        delay: NOMINAL / 2,
        ..Direction::default()
    }))?;
    let to = bench.address(1, 0)?;
    let pinger = bench.inside(0, || Pinger::new(to, LOST))?;
    bench.begin();
    let probes = || probe_all(pinger, time).map_err(failed("measuring round trips"));
    let began = Instant::now();
    let ((mut trips, lost), sent) = load::beside(&bench, 1500, mbit * 1e6 / 8.0 / 1500.0, probes)?;
    let seen_mbit = sent as f64 * 1500.0 * 8.0 / 1e6 / began.elapsed().as_secs_f64();
    let seen = bench.end()?;
    trips.sort_unstable_by(|a, b| a.total_cmp(b));
    let (median, p99, nominal) = (
        quantile(&trips, 0.5),
        quantile(&trips, 0.99),
        NOMINAL.as_secs_f64() * 1e3,
    );
    let close = (median - nominal).abs() <= MEDIAN_MS && (p99 - nominal).abs() <= P99_MS;
    // Beside less than was meant to be there, a good round trip says nothing.
    let ok = close && lost == 0 && !trips.is_empty() && seen_mbit >= mbit * LOAD_WITHIN;
    let told = Figure::new("rtt", "ms", nominal, median, p99, ok)
        .with("load_mbit", mbit)
        .with("load_seen_mbit", (seen_mbit * 10.0).round() / 10.0);
    Ok(seen.tell(told.with("n", trips.len()).with("lost", lost)))
}

/// One probe after the other for so long: round trips in milliseconds, and how many were lost. The first ones warm up.
fn probe_all(mut pinger: Pinger, time: Duration) -> io::Result<(Vec<f64>, usize)> {
    let prober = thread::spawn(move || {
        ask_for_priority();
        probe_until(&mut pinger, Instant::now() + time)
    });
    prober
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the prober broke")))
}

fn probe_until(pinger: &mut Pinger, end: Instant) -> io::Result<(Vec<f64>, usize)> {
    let (mut trips, mut lost) = (Vec::new(), 0);
    for number in 0.. {
        if Instant::now() >= end {
            break;
        }
        match pinger.trip()? {
            Some(trip) if number >= WARM_UP => trips.push(trip.as_secs_f64() * 1e3),
            Some(_) => {}
            None => lost += 1,
        }
        thread::sleep(PAUSE);
    }
    Ok((trips, lost))
}

/// Of sorted values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let wanted = share * sorted.len() as f64;
    let at = (1..=sorted.len()).find(|&count| count as f64 >= wanted);
    at.and_then(|count| sorted.get(count.max(1) - 1))
        .copied()
        .unwrap_or(0.0)
}
