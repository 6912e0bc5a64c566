//! What was measured: named numbers per case, and their median over repetitions.
//! The cases fill it, `report` shows it.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::Serialize;

use crate::testbed::Over;

/// What is measured. The names stand in the JSON lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub(crate) enum Case {
    /// AES-128-GCM and UDP offload, nothing else.
    Raw,
    /// Plain TCP over loopback.
    Tcp,
    /// Time to the first octet on a warm path.
    Ttfb,
    /// From the target.
    Download,
    /// To the target.
    Upload,
    /// A flood of 1200-octet datagrams.
    Datagram1200,
    /// The same as packets of a QUIC connection, which the relay may forward.
    Forwarded1200,
    /// A flood of 64-octet datagrams.
    Datagram64,
    /// A relay at rest and with idle clients.
    Memory,
}

/// One line of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) case: Case,
    pub(super) over: Over,
    pub(super) hops: u8,
    pub(super) streams: u8,
}

/// Named numbers: `goodput_bps`, `pps`, `cpu:relay1` (seconds per GB), …
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sample(BTreeMap<String, f64>);

/// All samples, in the order of the report.
#[derive(Debug, Default)]
pub(super) struct Samples(BTreeMap<Key, Vec<Sample>>);

/// The middle, the lowest and the highest of a number over the repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Sample {
    /// Goodput and the CPU time of each process per GB of payload.
    pub(super) fn transfer(octets: u64, seconds: f64, cpu: &[(String, f64)]) -> Self {
        let mut sample = Self::default().with("goodput_bps", octets as f64 * 8.0 / seconds);
        for (name, spent) in cpu {
            sample = sample.with(&format!("cpu:{name}"), spent / (octets as f64 / 1e9));
        }
        sample
    }

    /// Adds a number; one that is none (nothing arrived) is left out.
    pub(super) fn with(mut self, name: &str, value: f64) -> Self {
        if value.is_finite() {
            self.0.insert(name.to_owned(), value);
        }
        self
    }
}

impl Samples {
    /// Keeps a sample.
    pub(super) fn add(&mut self, key: Key, sample: Sample) {
        self.0.entry(key).or_default().push(sample);
    }

    /// The lines of the report.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.0.keys().copied()
    }

    /// How often a case was measured.
    pub(super) fn count(&self, key: Key) -> usize {
        self.0.get(&key).map_or(0, Vec::len)
    }

    /// The names of a case's numbers.
    pub(super) fn names(&self, key: Key) -> Vec<String> {
        let names = self
            .0
            .get(&key)
            .into_iter()
            .flatten()
            .flat_map(|sample| sample.0.keys().cloned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names.dedup();
        names
    }

    /// A number over the repetitions.
    pub(super) fn spread(&self, key: Key, name: &str) -> Option<Spread> {
        let values = self
            .0
            .get(&key)?
            .iter()
            .filter_map(|sample| sample.0.get(name).copied());
        spread(values.collect())
    }
}

/// The middle of `values`; of an even number the mean of the middle two.
pub(super) fn spread(mut values: Vec<f64>) -> Option<Spread> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (*values.first()?, *values.last()?);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    Some(Spread {
        median: f64::midpoint(lower, upper),
        low,
        high,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_repetitions_is_shown_with_its_ends() {
        let spread = spread(vec![3.0, 1.0, 10.0, 2.0]).expect("not empty");
        assert_eq!(
            spread,
            Spread {
                median: 2.5,
                low: 1.0,
                high: 10.0
            }
        );
    }

    #[test]
    fn cpu_time_is_counted_per_gigabyte_of_payload() {
        let key = Key {
            case: Case::Download,
            over: Over::Masque,
            hops: 1,
            streams: 1,
        };
        let mut samples = Samples::default();
        samples.add(
            key,
            Sample::transfer(500_000_000, 2.0, &[("client".into(), 1.0)]),
        );
        assert_eq!(
            samples.spread(key, "cpu:client").map(|s| s.median),
            Some(2.0)
        );
        assert_eq!(
            samples.spread(key, "goodput_bps").map(|s| s.median),
            Some(2e9)
        );
    }
}
