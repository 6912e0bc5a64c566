//! How long building a circuit may take, learnt from how long it took: a Pareto curve is laid through the tail of the times; where it says that
//! four of five are built, another circuit is tried. What was given up is measured to its end, or the slow ones would be forgotten.
//! The pool asks and tells. path-spec "Learning when to give up on circuit construction"; the names of its parameters stand beside ours.
//!
//! We do not build circuits only to learn, because relays would pay for it: so the first curve is made of 20 times, not of 100, and nothing is
//! kept over a restart. After a change of the network the limit becomes the first one again, never longer: programs do not wait longer either.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

#[cfg(test)]
mod tests;

/// Times that are remembered.
const MAX_TIMES: usize = 1000;
/// Fewer teach nothing (`cbtmincircs`).
const MIN_CIRCUITS: usize = 20;
/// The share that is built in time (`cbtquantile`).
const QUANTILE: f64 = 0.80;
/// The share that is measured (`cbtclosequantile`).
const CLOSE_QUANTILE: f64 = 0.99;
/// The circuits that tell whether the network has changed (`cbtrecentcount`).
const RECENT_COUNT: usize = 20;
/// It has if more of them were late (`cbtmaxtimeouts`).
const MAX_TIMEOUTS: usize = 18;

/// Recent build times, and what follows from them.
#[derive(Clone, Debug)]
pub struct BuildTimes {
    least: Duration,
    most: Duration,
    /// None of a circuit that was not built even in the time to measure it.
    times: VecDeque<Option<Duration>>,
    /// Of circuits whose first hop stood: whether they were late.
    recent: VecDeque<bool>,
    limit: Duration,
    patience: Duration,
}

impl BuildTimes {
    /// Nothing learnt yet; the limit stays within `least` and `most` (`cbtmintimeout`, `cbtinitialtimeout`).
    pub fn new(least: Duration, most: Duration) -> Self {
        let most = most.max(least);
        Self {
            least,
            most,
            times: VecDeque::new(),
            recent: VecDeque::new(),
            limit: most,
            patience: most,
        }
    }

    /// How long the next may take before another is tried.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// How long one takes in the middle of all that were built; zero: none was.
    pub fn usual(&self) -> Duration {
        let mut built: Vec<Duration> = self.times.iter().flatten().copied().collect();
        built.sort_unstable();
        built.get(built.len() / 2).copied().unwrap_or_default()
    }

    /// How long it may take before it is not even measured any more.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// One was built within the limit.
    pub fn built(&mut self, took: Duration) {
        self.recent(false);
        self.learn(Some(took));
    }

    /// One is late, and its first hop stands, so that the client's own network is not to blame.
    pub fn late(&mut self) {
        self.recent(true);
        if self.recent.iter().filter(|late| **late).count() > MAX_TIMEOUTS {
            *self = Self::new(self.least, self.most);
        }
    }

    /// A late one was built after all, or given up when [`patience`](Self::patience) was over.
    pub fn measured(&mut self, took: Option<Duration>) {
        self.learn(took);
    }

    fn recent(&mut self, late: bool) {
        if self.recent.len() >= RECENT_COUNT {
            self.recent.pop_front();
        }
        self.recent.push_back(late);
    }

    fn learn(&mut self, took: Option<Duration>) {
        if self.times.len() >= MAX_TIMES {
            self.times.pop_front();
        }
        self.times.push_back(took);
        if self.times.len() < MIN_CIRCUITS {
            return;
        }
        let built: Vec<Duration> = self.times.iter().flatten().copied().collect();
        let Some(&longest) = built.iter().max() else {
            return;
        };
        let curve = Pareto::through(&built, self.times.len().saturating_sub(built.len()));
        // "If the timeout is larger than the longest time that was seen", it is that.
        let limit = curve.quantile(QUANTILE).min(longest);
        self.limit = limit.clamp(self.least, self.most);
        let patience = curve
            .quantile(CLOSE_QUANTILE)
            .min(longest.saturating_mul(2));
        self.patience = patience.max(self.most);
    }
}

// A Pareto curve through the tail of a sample, of which some members are only known to lie beyond its longest
// ("right-censored"). path-spec "Parameter estimation".

/// Milliseconds of a bin of the histogram.
const BIN: u128 = 10;
/// The fullest bins whose average is where the tail begins (`cbtnummodes`).
const MODES: usize = 10;

/// The curve: a share of 1 - (scale / t)^shape takes no longer than t.
#[derive(Clone, Copy, Debug)]
struct Pareto {
    /// Seconds ("Xm").
    scale: f64,
    /// "alpha"; none if nothing lies beyond `scale`.
    shape: Option<f64>,
}

impl Pareto {
    /// The likeliest one for what was built, and so many that were not.
    fn through(built: &[Duration], abandoned: usize) -> Self {
        let scale = scale(built);
        let beyond = |time: f64| (time.max(scale) / scale).ln();
        let times = built.iter().map(Duration::as_secs_f64);
        let longest = times.clone().fold(scale, f64::max);
        let sum: f64 = times.map(beyond).sum::<f64>() + count(abandoned) * beyond(longest);
        let shape = (sum > 0.0).then(|| count(built.len()) / sum);
        Self { scale, shape }
    }

    /// The time within which a share of them is built.
    fn quantile(&self, share: f64) -> Duration {
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
