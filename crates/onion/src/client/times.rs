//! How long building a circuit may take, learnt from how long it took: a Pareto curve is laid through the tail of the times; where it says that
//! four of five are built, another circuit is tried. What was given up is measured to its end, or the slow ones would be forgotten.
//! The pool asks and tells. path-spec "Learning when to give up on circuit construction"; the names of its parameters stand beside ours.
//!
//! We do not build circuits only to learn, because relays would pay for it: so the first curve is made of 20 times, not of 100, and nothing is
//! kept over a restart. After a change of the network the limit becomes the first one again, never longer: programs do not wait longer either.

mod pareto;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, time::Duration};

use pareto::Pareto;

/// Times that are remembered.
const KEPT: usize = 1000;
/// Fewer teach nothing (`cbtmincircs`).
const NEEDED: usize = 20;
/// The share that is built in time (`cbtquantile`).
const IN_TIME: f64 = 0.80;
/// The share that is measured (`cbtclosequantile`).
const MEASURED: f64 = 0.99;
/// The circuits that tell whether the network has changed (`cbtrecentcount`).
const RECENT: usize = 20;
/// It has if more of them were late (`cbtmaxtimeouts`).
const LATE: usize = 18;

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
        if self.recent.iter().filter(|late| **late).count() > LATE {
            *self = Self::new(self.least, self.most);
        }
    }

    /// A late one was built after all, or given up when [`patience`](Self::patience) was over.
    pub fn measured(&mut self, took: Option<Duration>) {
        self.learn(took);
    }

    fn recent(&mut self, late: bool) {
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(late);
    }

    fn learn(&mut self, took: Option<Duration>) {
        if self.times.len() >= KEPT {
            self.times.pop_front();
        }
        self.times.push_back(took);
        if self.times.len() < NEEDED {
            return;
        }
        let built: Vec<Duration> = self.times.iter().flatten().copied().collect();
        let Some(&longest) = built.iter().max() else {
            return;
        };
        let curve = Pareto::through(&built, self.times.len().saturating_sub(built.len()));
        // "If the timeout is larger than the longest time that was seen", it is that.
        let limit = curve.quantile(IN_TIME).min(longest);
        self.limit = limit.clamp(self.least, self.most);
        let patience = curve.quantile(MEASURED).min(longest.saturating_mul(2));
        self.patience = patience.max(self.most);
    }
}
