//! Which relays are near: three candidates for a place, drawn by capacity as any relay is, of which the nearer ones are taken more often. Pure: times,
//! randomness and what was measured are handed in.
//!
//! Only candidates are measured and compared, and who becomes one has nothing to do with how fast it answers: whoever answers fast gets no more than
//! [`CANDIDATES`] times the share of his capacity. Nor does a candidate ever have everything, as long as there are others.

use hoplite_wire::directory::Key;

use crate::path_selection::{Network, PathConstraints, Position, Random, draw};

/// This many relays are measured for a place.
pub const CANDIDATES: usize = 3;
/// Other exits become candidates after a day.
const CANDIDATES_AGE: u64 = 86_400;

/// Differences of round trips that are small beside it hardly count, in milliseconds.
const FLOOR: u64 = 20;
/// The nearest has this weight for each byte a second.
const NEAREST: u64 = 256;
/// However far it is, a relay has this weight.
const FARTHEST: u64 = 8;
/// More than so many times the capacity of the candidate in the middle does not count.
const MOST_CAPACITY: u64 = 16;

/// One exit, as far as it is known. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Who it is.
    pub identity: Key,
    /// The round trip to it through the first relay, in milliseconds; nothing: it was not measured, or in vain.
    pub millis: Option<u32>,
    /// When it became a candidate, or a while before.
    pub since: u64,
}

/// The exits of which one client takes its.
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidates {
    exits: Vec<Candidate>,
}

/// In which order these guards are used, the round trips to which are `measured`, and to the others not.
pub(crate) fn order(
    network: &Network,
    measured: &[(Key, Option<u32>)],
    random: Random<'_>,
) -> Vec<Key> {
    let is_reached = |guard: &Key| {
        let mut measured = measured.iter();
        measured.any(|(other, millis)| other == guard && millis.is_some())
    };
    let mut left = weighed(network, measured, Position::Entry);
    left.retain(|(guard, _)| is_reached(guard));
    let mut order = Vec::with_capacity(measured.len());
    while let Some(next) = draw(&mut left, random) {
        order.push(next);
    }
    // Those that could not be reached come last.
    let all = measured.iter().map(|(guard, _)| *guard);
    order.extend(all.filter(|guard| !is_reached(guard)));
    order
}

impl Candidates {
    /// What the store has kept.
    pub(crate) fn new(kept: &[Candidate]) -> Self {
        Self {
            exits: kept.iter().take(CANDIDATES).copied().collect(),
        }
    }

    /// What the store should keep.
    pub(crate) fn kept(&self) -> Vec<Candidate> {
        self.exits.clone()
    }

    /// The exits to be measured now: candidates that fit, and of which it is not known. Alone none needs to be.
    pub(crate) fn exits_to_measure(
        &mut self,
        network: &Network,
        constraints: &PathConstraints,
        now: u64,
        random: Random<'_>,
    ) -> Vec<Key> {
        let is_kept = |exit: &Candidate| {
            now.abs_diff(exit.since) < CANDIDATES_AGE
                && network.is_fit(&exit.identity, Position::Exit, constraints)
        };
        self.exits.retain(is_kept);
        let mut asked = constraints.clone();
        let known = self.exits.iter().map(|exit| exit.identity);
        asked.avoid.extend(known);
        while self.exits.len() < CANDIDATES
            && let Some(exit) = network.one(Position::Exit, &asked, random)
        {
            asked.avoid.insert(exit.identity);
            self.exits.push(Candidate {
                identity: exit.identity,
                millis: None,
                // The file tells nobody when the client was used, and clients do not change all at once.
                since: now.saturating_sub(random(CANDIDATES_AGE / 4)),
            });
        }
        if self.exits.len() < 2 {
            return Vec::new();
        }
        let unknown = self.exits.iter().filter(|exit| exit.millis.is_none());
        unknown.map(|exit| exit.identity).collect()
    }

    /// The round trip to a candidate.
    pub(crate) fn exit_measured(&mut self, exit: &Key, millis: u32) {
        let mut exits = self.exits.iter_mut();
        if let Some(known) = exits.find(|known| known.identity == *exit) {
            known.millis = Some(millis);
        }
    }

    /// The exits to choose from with their weights, if anything is known of any of those that fit.
    pub(crate) fn exits(
        &self,
        network: &Network,
        constraints: &PathConstraints,
        now: u64,
    ) -> Option<Vec<(Key, u64)>> {
        let fresh = self.exits.iter().filter(|exit| {
            now.abs_diff(exit.since) < CANDIDATES_AGE
                && network.is_fit(&exit.identity, Position::Exit, constraints)
        });
        let fresh: Vec<_> = fresh.map(|exit| (exit.identity, exit.millis)).collect();
        let is_known = fresh.iter().any(|(_, millis)| millis.is_some());
        is_known.then(|| weighed(network, &fresh, Position::Exit))
    }
}

/// The weight of each of these candidates: capacity, within bounds, by nearness.
fn weighed(network: &Network, those: &[(Key, Option<u32>)], position: Position) -> Vec<(Key, u64)> {
    let capacity = |(identity, _): &(Key, Option<u32>)| network.weight(identity, position);
    let mut capacities: Vec<u64> = those.iter().map(capacity).collect();
    capacities.sort_unstable();
    let middle = capacities.len().saturating_sub(1) / 2;
    let middle = capacities.get(middle).copied().unwrap_or(0);
    let most = middle.max(1).saturating_mul(MOST_CAPACITY);
    let nearest = those.iter().filter_map(|(_, millis)| *millis).min();
    let weigh = |one: &(Key, Option<u32>)| {
        let near = nearness(one.1, nearest.unwrap_or(0));
        (one.0, capacity(one).min(most).saturating_mul(near))
    };
    those.iter().map(weigh).collect()
}

/// From [`NEAREST`] down to [`FARTHEST`], by the square of how much farther it is than the nearest.
fn nearness(millis: Option<u32>, nearest: u32) -> u64 {
    let Some(millis) = millis else {
        return FARTHEST;
    };
    let (far, near) = (u64::from(millis), u64::from(nearest));
    let scaled = near.saturating_add(FLOOR).saturating_mul(NEAREST);
    let ratio = scaled
        .checked_div(far.saturating_add(FLOOR))
        .unwrap_or(NEAREST);
    (ratio.saturating_mul(ratio) / NEAREST).clamp(FARTHEST, NEAREST)
}

#[cfg(test)]
mod tests;
