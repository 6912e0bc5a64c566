//! From results to a bandwidth file: what each relay can carry beside the others, and what its operator should know. bandwidth-file-spec "Relay Line format",
//! "Header List format", "Scaling bandwidths".
//!
//! A relay's weight is what it was measured to carry, whatever it says of itself; of several vantage points the low median counts. What relays say they have
//! carried makes one factor for all of them, the median, so that the file's numbers are as large as those of other scanners in a network that is in use. A
//! relay's own word is a cap on its weight, and nothing else.

use hoplite_wire::tor::bandwidth_file::{BandwidthFile, KeyValues, RelayLine, date_time};

use super::{Candidate, Config, Estimates, Failure, Outcome, Results, mean, median};

/// The format's version.
const VERSION: &str = "1.7.0";
/// A vantage point that has found nothing for so long has stopped: it does not count, and the file is not taken for older than it is.
const STOPPED: u64 = 86_400;
/// Digits of a weight that are told.
const DIGITS: u32 = 3;
/// Parts of the factor.
const PARTS: u64 = 1000;

/// What is said of the scanner itself.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The program's version.
    pub version: &'a str,
    /// When it was started, in seconds since 1970.
    pub started: u64,
    /// The present time, in seconds since 1970.
    pub now: u64,
}

/// What is known of one relay.
struct Known<'a> {
    relay: &'a Candidate,
    /// What it carries, if it was measured often enough.
    capacity: Option<u64>,
    outcomes: Vec<&'a Outcome>,
}

/// The file of one scanner, or of several: the results of each vantage point. Nothing if none of them has found anything within a day: "If there are no
/// recent results, the generator MUST NOT generate a new file".
pub fn bandwidth_file<'a>(
    points: &'a [&'a Results],
    relays: impl Iterator<Item = &'a Candidate>,
    config: &Config,
    about: About<'_>,
) -> Option<BandwidthFile> {
    let works =
        |point: &&&Results| latest(point).is_some_and(|at| at.saturating_add(STOPPED) >= about.now);
    let points: Vec<&Results> = points.iter().filter(works).copied().collect();
    // "it SHOULD take the most recent timestamp from each thread and use the oldest value"
    let timestamp = points.iter().filter_map(|point| latest(point)).min()?;
    let estimates: Vec<_> = points.iter().map(|point| Estimates::of(point)).collect();
    let points: Vec<_> = points.iter().copied().zip(&estimates).collect();
    let known: Vec<_> = relays
        .map(|relay| Known::of(relay, &points, config))
        .collect();
    let eligible = known.iter().filter(|one| one.capacity.is_some()).count();
    let needed = config.least_percent.saturating_mul(known.len());
    let is_enough = eligible > 0 && eligible.saturating_mul(100) >= needed;
    let scale = Scale::of(&known);
    let lines = known
        .iter()
        .filter(|one| one.capacity.is_some() || !one.outcomes.is_empty());
    let relays = lines.map(|one| one.line(&scale, is_enough)).collect();
    let mut header = header(&known, &scale, config, about);
    let earliest = points.iter().flat_map(|(point, _)| point.iter());
    let earliest = earliest.map(|outcome| outcome.at).min();
    header.set(
        "earliest_bandwidth",
        date_time(earliest.unwrap_or(timestamp)),
    );
    header.set("latest_bandwidth", date_time(timestamp));
    header.set("vantage_points", points.len());
    Some(BandwidthFile {
        timestamp,
        header,
        relays,
    })
}

fn latest(point: &Results) -> Option<u64> {
    let found = point.iter().filter(|outcome| outcome.rates.is_ok());
    found.map(|outcome| outcome.at).max()
}

fn header(known: &[Known<'_>], scale: &Scale, config: &Config, about: About<'_>) -> KeyValues {
    let mut header = KeyValues::default();
    let all = known.len();
    let eligible = known.iter().filter(|one| one.capacity.is_some()).count();
    let percent = eligible.saturating_mul(100).checked_div(all).unwrap_or(0);
    let fewest = config.least_percent.saturating_mul(all).div_ceil(100);
    let outcomes = || known.iter().flat_map(|one| &one.outcomes);
    let failures = outcomes().filter(|outcome| outcome.rates.is_err()).count();
    let few = |one: &&Known<'_>| one.capacity.is_none() && one.successes() > 0;
    let error = |one: &&Known<'_>| one.successes() == 0 && !one.outcomes.is_empty();
    header.set("version", VERSION);
    header.set("software", "hoplite");
    header.set("software_version", about.version);
    header.set("file_created", date_time(about.now));
    header.set("generator_started", date_time(about.started));
    header.set("number_consensus_relays", all);
    header.set("number_eligible_relays", eligible);
    header.set("percent_eligible_relays", percent);
    header.set("minimum_number_eligible_relays", fewest);
    header.set("minimum_percent_eligible_relays", config.least_percent);
    header.set("recent_measurement_failure_count", failures);
    let count = known.iter().filter(few).count();
    header.set("recent_measurements_excluded_few_count", count);
    let count = known.iter().filter(error).count();
    header.set("recent_measurements_excluded_error_count", count);
    header.set("mu", scale.mean);
    header
}

/// What is the same for all relays.
struct Scale {
    /// What relays were measured to carry, in bytes a second, on average.
    mean: u64,
    /// By how much more they carry, in thousandths.
    factor: u64,
}

impl Scale {
    /// Half of the relays say that they have carried more times what was measured: a relay that lies moves that by one place among all.
    fn of(known: &[Known<'_>]) -> Self {
        let measured = known.iter().filter_map(|one| Some((one, one.capacity?)));
        let mean = mean(measured.clone().map(|(_, capacity)| capacity));
        let factors = measured.filter_map(|(one, capacity)| {
            let said = one.relay.observed?.min(one.relay.average);
            said.saturating_mul(PARTS).checked_div(capacity)
        });
        Self {
            mean: mean.unwrap_or(0),
            factor: median(factors.collect()).unwrap_or(PARTS).max(PARTS),
        }
    }

    /// In thousands of bytes a second.
    fn weight(&self, relay: &Candidate, capacity: u64) -> u64 {
        let scaled = u128::from(capacity).saturating_mul(u128::from(self.factor));
        let scaled = u64::try_from(scaled / u128::from(PARTS)).unwrap_or(u64::MAX);
        rounded(scaled.min(relay.average) / 1000)
    }
}

/// Three digits: nobody is to take it for more exact than it is. One at least: "implementations SHOULD NOT produce zero bandwidths".
fn rounded(number: u64) -> u64 {
    let digits = number.checked_ilog10().unwrap_or(0).saturating_add(1);
    let unit = 10u64.saturating_pow(digits.saturating_sub(DIGITS));
    let rounded = number.saturating_add(unit / 2) / unit.max(1);
    rounded.saturating_mul(unit).max(1)
}

impl<'a> Known<'a> {
    fn of(relay: &'a Candidate, points: &[(&'a Results, &Estimates)], config: &Config) -> Self {
        let identity = &relay.identity;
        let often = points.iter().filter(|(point, _)| {
            let found = point.of(identity).filter(|outcome| outcome.rates.is_ok());
            found.count() >= config.least.max(1)
        });
        let capacities = often.filter_map(|(_, estimates)| estimates.capacity(identity));
        Self {
            relay,
            capacity: median(capacities.collect()),
            outcomes: points
                .iter()
                .flat_map(|(point, _)| point.of(identity))
                .collect(),
        }
    }

    fn successes(&self) -> usize {
        self.rates().count()
    }

    fn rates(&self) -> impl Iterator<Item = u64> {
        let outcomes = self.outcomes.iter();
        outcomes.filter_map(|outcome| Some(outcome.rates.ok()?.slower()))
    }

    fn line(&self, scale: &Scale, is_enough: bool) -> RelayLine {
        let mut more = KeyValues::default();
        self.put_results(&mut more);
        more.set("desc_bw_avg", self.relay.average);
        if let Some(observed) = self.relay.observed {
            more.set("desc_bw_obs_last", observed);
        }
        more.set("consensus_bandwidth", self.relay.believed);
        if let Some(capacity) = self.capacity {
            let thousandths = capacity.saturating_mul(PARTS).checked_div(scale.mean);
            let thousandths = thousandths.unwrap_or(PARTS);
            let (whole, part) = (thousandths / PARTS, thousandths % PARTS);
            more.set("r_strm", format_args!("{whole}.{part:03}"));
        } else {
            more.set("unmeasured", 1);
        }
        if !is_enough {
            more.set("under_min_report", 1);
        }
        let weight = |capacity| scale.weight(self.relay, capacity);
        RelayLine {
            relay: self.relay.name(),
            // "generator implementations MUST set bw=1 for unmeasured relays"
            bandwidth: self.capacity.map_or(1, weight),
            votes: is_enough && self.capacity.is_some(),
            more,
        }
    }

    fn put_results(&self, more: &mut KeyValues) {
        let failed = |failure: Failure| {
            let outcomes = self.outcomes.iter();
            outcomes
                .filter(|outcome| outcome.rates == Err(failure))
                .count()
        };
        more.set("nick", &self.relay.nickname);
        more.set("success", self.successes());
        more.set("error_circ", failed(Failure::Circuit));
        more.set("error_stream", failed(Failure::Stream));
        more.set("error_misc", failed(Failure::Forged));
        let found = self.outcomes.iter().filter(|outcome| outcome.rates.is_ok());
        if let Some(last) = found.map(|outcome| outcome.at).max() {
            more.set("time", date_time(last));
        }
        let rates: Vec<_> = self.rates().collect();
        if let Some(mean) = mean(rates.iter().copied()) {
            more.set("bw_mean", mean);
        }
        if let Some(median) = median(rates) {
            more.set("bw_median", median);
        }
    }
}
