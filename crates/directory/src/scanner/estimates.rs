//! What relays carry, by what circuits over them carried: bandwidth-file-spec says how a file names that, and leaves to each scanner how it is found.
//!
//! A circuit is about as fast as its slowest relay, so a result says two things: each relay of the circuit carries so much at least, and one of them no
//! more. Which one that is, only other results can tell. If all partners have shown on some circuit that they carry clearly more, the relay was the
//! slowest, and the result is its **own**. Else a partner may have **limited** it, and it is a lower bound. That is decided anew whenever partners have
//! shown more, for results of long ago too; what relays say of themselves has no part in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use hoplite_wire::directory::Key;

use super::{Outcome, Place, Results, mean};

/// A partner that has shown a fourth more than a result has not limited it: results of one relay differ by less if nobody else uses it.
const MARGIN: u64 = 4;
/// Lower bounds that are less than an eighth below the highest are as good as that.
const NEAR: u64 = 8;
/// So many own results in places of each sort tell what a relay carries, whatever others' traffic did to one of them.
const SETTLED: usize = 2;

/// What all relays carry.
#[derive(Clone, Default)]
pub struct Estimates {
    /// The fastest circuit that each was part of, as a partner too.
    shown: BTreeMap<Key, u64>,
    /// The fastest circuit of all.
    fastest: u64,
    /// Of which relays no circuit came about with each of these as a partner, since the last that it was part of and that did: so one that refuses circuits
    /// with chosen partners counts once.
    failed: BTreeMap<Key, BTreeSet<Key>>,
    relays: BTreeMap<Key, Estimate>,
}

/// What is known of one relay. All rates are bytes a second.
#[derive(Clone, Default)]
pub(super) struct Estimate {
    /// Where it can tell the scanner.
    pub(super) open: Samples,
    /// Where it cannot: between two partners.
    pub(super) blind: Samples,
}

/// What circuits carried on which it stood in such places.
#[derive(Clone, Default)]
pub(super) struct Samples {
    own: Vec<u64>,
    limited: Vec<u64>,
}

impl Estimates {
    /// From all results of one vantage point.
    pub fn of(results: &Results) -> Self {
        let mut estimates = Self::default();
        let mut outcomes: Vec<_> = results.iter().collect();
        outcomes.sort_by_key(|outcome| outcome.at);
        for outcome in outcomes {
            estimates.show(outcome);
        }
        for relay in results.0.keys() {
            estimates.estimate(results, relay);
        }
        estimates
    }

    /// A new result among them. It changes what is known of the relays of its circuit; those whose partners they were are looked at when their turn comes.
    pub(super) fn note(&mut self, results: &Results, outcome: &Outcome) {
        self.show(outcome);
        for relay in &outcome.of.path {
            self.estimate(results, relay);
        }
    }

    fn show(&mut self, outcome: &Outcome) {
        let Ok(rates) = outcome.rates else {
            for partner in outcome.of.partners() {
                let failed = self.failed.entry(*partner).or_default();
                failed.insert(outcome.of.relay);
            }
            return;
        };
        let rate = rates.slower();
        self.fastest = self.fastest.max(rate);
        for relay in &outcome.of.path {
            self.failed.remove(relay);
            let shown = self.shown.entry(*relay).or_default();
            *shown = rate.max(*shown);
        }
    }

    /// Looks at a relay's results again.
    fn estimate(&mut self, results: &Results, relay: &Key) {
        let mut estimate = Estimate::default();
        for outcome in results.of(relay) {
            let Ok(rates) = outcome.rates else {
                continue;
            };
            let rate = rates.slower();
            let samples = match outcome.of.place {
                Place::Middle => &mut estimate.blind,
                Place::First | Place::Last => &mut estimate.open,
            };
            let is_own = self.is_own(outcome, rate);
            let samples = if is_own {
                &mut samples.own
            } else {
                &mut samples.limited
            };
            samples.push(rate);
        }
        self.relays.insert(*relay, estimate);
    }

    fn is_own(&self, outcome: &Outcome, rate: u64) -> bool {
        let mut partners = outcome.of.partners();
        partners.all(|partner| self.shown(partner) >= Some(clearly_more(rate)))
    }

    /// The fastest circuit that a relay was part of.
    pub(super) fn shown(&self, relay: &Key) -> Option<u64> {
        self.shown.get(relay).copied()
    }

    /// Of how many relays circuits have failed on which this one was a partner.
    pub(super) fn failed(&self, relay: &Key) -> u32 {
        let failed = self.failed.get(relay).map_or(0, BTreeSet::len);
        u32::try_from(failed).unwrap_or(u32::MAX)
    }

    /// Partners may have limited what was found, and somebody has shown enough to tell.
    pub(super) fn can_be_settled(&self, relay: &Key) -> bool {
        let is_open = |known: &Estimate| {
            !known.is_settled() && self.fastest >= clearly_more(known.capacity().unwrap_or(0))
        };
        self.relay(relay).is_none_or(is_open)
    }

    pub(super) fn relay(&self, relay: &Key) -> Option<&Estimate> {
        self.relays.get(relay)
    }

    /// What a relay carries, in bytes a second. Nothing if no circuit came about on which it was measured.
    pub fn capacity(&self, relay: &Key) -> Option<u64> {
        self.relay(relay)?.capacity()
    }
}

impl fmt::Debug for Estimates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Estimates(of {} relays)", self.relays.len())
    }
}

impl Estimate {
    /// Where it can tell the scanner it counts for a tenth more at most than where it cannot, even if that may be its partners' fault: they are fast, and a
    /// relay that is measured well in the open alone would choose slow ones.
    fn capacity(&self) -> Option<u64> {
        match (self.open.estimate(), self.blind.estimate()) {
            (Some(open), Some(blind)) => Some(open.min(blind.saturating_add(blind / 10))),
            (open, blind) => open.or(blind),
        }
    }

    /// Results of it.
    pub(super) fn count(&self) -> usize {
        let (open, blind) = (self.open.known(), self.blind.known());
        open.1.saturating_add(blind.1)
    }

    /// Somebody has shown what it carries in places of both sorts.
    pub(super) fn is_settled(&self) -> bool {
        self.open.own.len() >= SETTLED && self.blind.own.len() >= SETTLED
    }
}

impl Samples {
    /// Of its own results, and of limited ones that are no lower, the mean of those that are not below the mean: others' traffic makes results too low, and
    /// nothing honest makes them too high (bandwidth-file-spec "Torflow aggregation", `bw_filt`). Without results of its own the highest bounds.
    pub(super) fn estimate(&self) -> Option<u64> {
        let Some(least) = mean(self.own.iter().copied()) else {
            let highest = self.limited.iter().copied().max()?;
            return mean_from(&self.limited, highest.saturating_sub(highest / NEAR));
        };
        let bounds = self.limited.iter().filter(|rate| **rate >= least);
        let rates: Vec<_> = self.own.iter().chain(bounds).copied().collect();
        mean_from(&rates, mean(rates.iter().copied())?)
    }

    /// How many are its own, and how many there are: what is known of it is the better the more.
    pub(super) fn known(&self) -> (usize, usize) {
        let own = self.own.len();
        (own, own.saturating_add(self.limited.len()))
    }
}

fn clearly_more(rate: u64) -> u64 {
    rate.saturating_add(rate / MARGIN)
}

fn mean_from(rates: &[u64], least: u64) -> Option<u64> {
    mean(rates.iter().copied().filter(|rate| *rate >= least))
}
