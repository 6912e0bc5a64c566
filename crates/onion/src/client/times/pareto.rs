//! A Pareto curve through the tail of a sample, of which some members are only known to lie beyond its longest ("right-censored").
//! path-spec "Parameter estimation". The parent module feeds it and reads its quantiles.

use std::{collections::BTreeMap, time::Duration};

/// Milliseconds of a bin of the histogram.
const BIN: u128 = 10;
/// The fullest bins whose average is where the tail begins (`cbtnummodes`).
const MODES: usize = 10;

/// The curve: a share of 1 - (scale / t)^shape takes no longer than t.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pareto {
    /// Seconds ("Xm").
    scale: f64,
    /// "alpha"; none if nothing lies beyond `scale`.
    shape: Option<f64>,
}

impl Pareto {
    /// The likeliest one for what was built, and so many that were not.
    pub(super) fn through(built: &[Duration], abandoned: usize) -> Self {
        let scale = scale(built);
        let beyond = |time: f64| (time.max(scale) / scale).ln();
        let times = built.iter().map(Duration::as_secs_f64);
        let longest = times.clone().fold(scale, f64::max);
        let sum: f64 = times.map(beyond).sum::<f64>() + count(abandoned) * beyond(longest);
        let shape = (sum > 0.0).then(|| count(built.len()) / sum);
        Self { scale, shape }
    }

    /// The time within which a share of them is built.
    pub(super) fn quantile(&self, share: f64) -> Duration {
        let spread = (self.shape).map_or(1.0, |shape| (1.0 - share).powf(-1.0 / shape));
        Duration::try_from_secs_f64(self.scale * spread).unwrap_or(Duration::MAX)
    }
}

/// The average of the fullest bins' middles, each by how full it is.
fn scale(times: &[Duration]) -> f64 {
    let mut bins = BTreeMap::<u128, usize>::new();
    for time in times {
        *bins.entry(time.as_millis() / BIN).or_default() += 1;
    }
    let mut bins: Vec<(u128, usize)> = bins.into_iter().collect();
    bins.sort_by_key(|&(bin, full)| (std::cmp::Reverse(full), bin));
    bins.truncate(MODES);
    let middle = |bin: u128| {
        let milliseconds = u32::try_from(bin * BIN + BIN / 2).unwrap_or(u32::MAX);
        f64::from(milliseconds) / 1000.0
    };
    let all = bins.iter().map(|&(_, full)| full).sum::<usize>().max(1);
    let sum: f64 = bins
        .iter()
        .map(|&(bin, full)| middle(bin) * count(full))
        .sum();
    // At least half a bin, so that there is something to divide by.
    (sum / count(all)).max(middle(0))
}

/// At most a thousand are kept.
fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}
