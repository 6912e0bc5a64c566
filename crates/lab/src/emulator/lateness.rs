//! How late packets leave: a bounded histogram in the way of HdrHistogram, 32 steps for each power of two, hence within 3 %.
//! `driver` fills it, the validity gate judges by its quantiles.

/// Steps of a power of two.
const STEPS: u64 = 32;
const STEP_BITS: u32 = 5;
/// Buckets for all 64 bits.
const BUCKETS: usize = 32 * 60;

/// Counts of delays in nanoseconds.
#[derive(Clone, Debug)]
pub struct Lateness {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Default for Lateness {
    fn default() -> Self {
        Self {
            buckets: vec![0; BUCKETS],
            count: 0,
            max: 0,
        }
    }
}

impl Lateness {
    /// A packet left so late.
    pub fn record(&mut self, ns: u64) {
        if let Some(bucket) = self.buckets.get_mut(bucket(ns)) {
            *bucket += 1;
        }
        self.count += 1;
        self.max = self.max.max(ns);
    }

    /// How many were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Microseconds below which this share of the packets left.
    #[must_use]
    pub fn quantile_us(&self, share: f64) -> f64 {
        let wanted = share * self.count as f64;
        let mut seen = 0;
        for (number, count) in self.buckets.iter().enumerate() {
            seen += count;
            if *count > 0 && seen as f64 >= wanted {
                return upper(number).min(self.max) as f64 / 1e3;
            }
        }
        0.0
    }

    /// The latest, in microseconds.
    #[must_use]
    pub fn max_us(&self) -> f64 {
        self.max as f64 / 1e3
    }
}

/// Small numbers have a bucket each; of the others the power of two and the next five bits decide.
fn bucket(ns: u64) -> usize {
    let power = (63 - (ns | (STEPS - 1)).leading_zeros()) - (STEP_BITS - 1);
    let (shift, base) = (power.saturating_sub(1), u64::from(power) * STEPS);
    let step = if power == 0 {
        ns
    } else {
        (ns >> shift) - STEPS
    };
    usize::try_from(base + step).unwrap_or(0)
}

/// The largest number of a bucket.
fn upper(number: usize) -> u64 {
    let number = number as u64;
    let (power, step) = (number / STEPS, number % STEPS);
    match power.checked_sub(1) {
        None => step,
        Some(shift) => ((step + STEPS + 1) << shift).wrapping_sub(1),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut lateness = Lateness::default();
        (1..=1000).for_each(|us| lateness.record(us * 1000));
        for (share, expected) in [(0.5, 500.0), (0.99, 990.0)] {
            let quantile = lateness.quantile_us(share);
            assert!(
                (quantile / expected - 1.0).abs() < 0.04,
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
        assert_eq!(Lateness::default().quantile_us(0.5), 0.0);
    }

    proptest! {
        #[test]
        fn every_number_has_a_bucket_within_three_per_cent(ns: u64, shift in 0..64_u32) {
            let ns = ns >> shift;
            let (number, top) = (bucket(ns), upper(bucket(ns)));
            prop_assert!(number < BUCKETS);
            prop_assert!(top >= ns && top - ns <= ns / 32);
            prop_assert!(number == 0 || upper(number - 1) < ns);
        }
    }
}
