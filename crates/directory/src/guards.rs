//! Guards: the few relays to which a client shows its address. They are kept for months, so that a hostile relay seldom becomes one, and in an
//! order: when one fails the next is used, and the first is tried again later. The store keeps them, the caller hands in the time. A small form
//! of Tor's guard-spec.
//!
//! We do not make circuits over a later guard wait until the first ones have been tried, because a later guard that is used too early is given
//! up after ten minutes; nor do we jitter retries (proposal 336), because only the client's own use starts them.

#[cfg(test)]
mod tests;

use std::collections::HashSet;

use hoplite_wire::{CircuitFate, directory::Key};

use crate::{
    path_bias::{PathBias, Suspicion},
    path_selection::{Network, PathConstraints, Position, Random},
};

// The parameters of guard-spec, under its names.

/// This many are sampled at most: an attacker who makes guards fail, or takes them off the list, gets no further.
const MAX_SAMPLE_SIZE: usize = 20;
/// This many of them that can be used are wanted (20 in guard-spec, of a network of thousands).
const MIN_FILTERED_SAMPLE: usize = 8;
/// The first so many that can be used are primary: they are tried again sooner.
const N_PRIMARY_GUARDS: usize = 3;
/// After so long a guard is replaced: 120 days.
const GUARD_LIFETIME: u64 = 120 * 86_400;
/// But not before it has been used for this long: 60 days.
const GUARD_CONFIRMED_MIN_LIFETIME: u64 = 60 * 86_400;
/// After so long off the list: 20 days.
const REMOVE_UNLISTED_GUARDS_AFTER: u64 = 20 * 86_400;
/// If no guard has answered for this long, the network was probably away, not they.
const INTERNET_LIKELY_DOWN_INTERVAL: u64 = 600;

/// So many of the sample at most are given up because their circuits fail: whoever can make circuits fail that are none of his gets a client from
/// its guard once, and no further.
const MAX_BARRED: usize = 1;
/// After so many circuits their counts are to be stored again.
const COUNTS_KEPT: u32 = 10;

const MINUTE: u64 = 60;
const HOUR: u64 = 3600;

/// When one that cannot be reached is tried again (`PRIMARY_GUARDS_RETRY_SCHED`, `GUARDS_RETRY_SCHED`): while it has failed for less than the first, it rests for the second (a primary guard) or the third; seconds.
const SCHEDULE: [(u64, u64, u64); 4] = [
    (6 * HOUR, 10 * MINUTE, HOUR),
    (96 * HOUR, 90 * MINUTE, 4 * HOUR),
    (168 * HOUR, 4 * HOUR, 18 * HOUR),
    (u64::MAX, 9 * HOUR, 36 * HOUR),
];
/// For so long a guard is put off.
const PUT_OFF: u64 = 9 * HOUR;

/// One guard. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Who it is.
    pub identity: Key,
    /// SHA-1 of its RSA identity, of a relay of Tor's network: by it the consensus names also those that are not described.
    pub rsa_id: Option<[u8; 20]>,
    /// When it was chosen, or a while before: it tells nobody when the client was new.
    pub chosen: u64,
    /// When it first carried a circuit, or a while before.
    pub confirmed: Option<u64>,
    /// Since when it is on no list.
    pub unlisted: Option<u64>,
    /// How its circuits have fared.
    pub bias: PathBias,
}

/// A guard's circuits fail more often than they did before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Its number in the order of the guards, from 1.
    pub number: usize,
    /// What it is suspected of.
    pub suspicion: Suspicion,
    /// By which counts.
    pub bias: PathBias,
    /// Whether another is used instead from now on.
    pub given_up: bool,
}

/// A client's guards in the order of their use: first those that have carried circuits, as they came to it, then the others, as they were
/// chosen. Whether they can be reached is not kept: a restart begins with the first.
#[derive(Clone, Debug, Default)]
pub struct Guards {
    sample: Vec<Known>,
    /// When one was last reached.
    heard: Option<u64>,
    /// One that is suspected is used all the same.
    only_tell: bool,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// With counts that are a few circuits old.
    guard: Guard,
    /// The counts of now.
    bias: PathBias,
    /// Circuits since they were the same.
    counted: u32,
    /// What was told of it.
    told: Suspicion,
    reach: Reach,
    /// Until then it is used only if there is no other, whatever was reached or not.
    put_off_until: Option<u64>,
}

impl Known {
    fn new(guard: Guard) -> Self {
        Self {
            guard,
            bias: guard.bias,
            counted: 0,
            told: guard.bias.suspicion(),
            reach: Reach::Maybe,
            put_off_until: None,
        }
    }

    /// Whether it is put off. Nothing is for longer than that, whatever the clock said.
    fn is_put_off(&self, now: u64) -> bool {
        let left = self.put_off_until.map(|until| until.saturating_sub(now));
        left.is_some_and(|left| (1..=PUT_OFF).contains(&left))
    }
}

impl Guards {
    /// What the store has kept, in its order.
    pub fn new(kept: Vec<Guard>) -> Self {
        let kept = kept.into_iter().take(MAX_SAMPLE_SIZE);
        Self {
            sample: kept.map(Known::new).collect(),
            heard: None,
            only_tell: false,
        }
    }

    /// Whether a guard whose circuits fail is used all the same, and only told of.
    pub fn only_tell(&mut self, only_tell: bool) {
        self.only_tell = only_tell;
    }

    /// What the store should keep.
    pub fn kept(&self) -> Vec<Guard> {
        self.sample.iter().map(|known| known.guard).collect()
    }

    /// The guard to use now: the first that can be used and is not known to fail; if all fail, the first again. `constraints` says what an entry
    /// must be, `constraints.entry` is not looked at.
    pub fn pick(
        &mut self,
        network: &Network,
        constraints: &PathConstraints,
        now: u64,
        random: Random<'_>,
    ) -> Option<Key> {
        self.refresh(network, now);
        let constraints = PathConstraints {
            entry: None,
            hops: constraints.hops.max(2),
            ..constraints.clone()
        };
        self.fill(network, &constraints, now, random);
        let usable = self.usable(network, &constraints, now);
        for (rank, &place) in usable.iter().enumerate() {
            let known = self.sample.get_mut(place)?;
            known.reach.rest(rank < N_PRIMARY_GUARDS, now);
            if !known.reach.is_failing() {
                return Some(known.guard.identity);
            }
        }
        // "We proceed by marking all guards as <maybe> reachable so that we can keep on trying circuits."
        for &place in &usable {
            self.sample.get_mut(place)?.reach = Reach::Maybe;
        }
        let first = self.sample.get(*usable.first()?)?;
        Some(first.guard.identity)
    }

    /// Chooses the first ones if there are none yet. So many of them at most that would be used first: their order may still be changed.
    pub(crate) fn draw(
        &mut self,
        network: &Network,
        constraints: &PathConstraints,
        most: usize,
        (now, random): (u64, Random<'_>),
    ) -> Vec<Key> {
        if !self.sample.is_empty() || self.pick(network, constraints, now, random).is_none() {
            return Vec::new();
        }
        let first = self.sample.iter().take(most);
        first.map(|known| known.guard.identity).collect()
    }

    /// Puts these before all others, in this order, unless one has carried a circuit: then nothing changes.
    pub(crate) fn put_first(&mut self, order: &[Key]) {
        if self.is_used() {
            return;
        }
        let rank = |known: &Known| {
            let place = order
                .iter()
                .position(|guard| *guard == known.guard.identity);
            place.unwrap_or(order.len())
        };
        self.sample.sort_by_key(rank);
    }

    fn is_used(&self) -> bool {
        let mut sample = self.sample.iter();
        sample.any(|known| known.guard.confirmed.is_some())
    }

    /// It could not be reached.
    pub fn failed(&mut self, identity: &Key, now: u64) {
        if let Some(known) = self.known(identity) {
            known.reach.fail(now);
        }
    }

    /// It can be reached, and is not to be used for long: for nine hours.
    pub fn put_off(&mut self, identity: &Key, now: u64) {
        if let Some(known) = self.known(identity) {
            known.put_off_until = Some(now.saturating_add(PUT_OFF));
        }
    }

    /// It has carried a circuit. True if the store should keep that: it did so for the first time.
    pub fn worked(&mut self, identity: &Key, now: u64, random: Random<'_>) -> bool {
        let Some(place) = self.place(identity) else {
            return false;
        };
        let away = self
            .heard
            .is_none_or(|heard| now.abs_diff(heard) >= INTERNET_LIKELY_DOWN_INTERVAL);
        self.heard = Some(now);
        if away {
            // The others failed while the network was away: the first are to be tried before this one is used again.
            let before = self.sample.iter_mut().take(place);
            before.for_each(|known| known.reach = Reach::Maybe);
        }
        let Some(known) = self.sample.get_mut(place) else {
            return false;
        };
        known.reach = Reach::Yes;
        let new = known.guard.confirmed.is_none();
        if new {
            // "We pick a random time between now and GUARD_CONFIRMED_MIN_LIFETIME/10 in the past": the file tells nobody when circuits were built.
            known.guard.confirmed =
                Some(now.saturating_sub(random(GUARD_CONFIRMED_MIN_LIFETIME / 10)));
            let is_confirmed = |known: &&Known| known.guard.confirmed.is_some();
            let before = self.sample.iter().take(place).filter(is_confirmed).count();
            self.sample[before..=place].rotate_right(1);
        }
        new
    }

    /// A circuit through it fares so. What is to be told, if that is something new.
    pub fn circuit_fares(&mut self, identity: &Key, fate: CircuitFate) -> Option<Suspect> {
        let place = self.place(identity)?;
        let barred = self.sample.iter().filter(|known| known.bias.barred);
        let may_bar = !self.only_tell && barred.count() < MAX_BARRED;
        let known = self.sample.get_mut(place)?;
        let given_up = known.note(fate, may_bar);
        let suspicion = known.bias.suspicion();
        let is_new = suspicion > known.told;
        // A rate about a bound is told once, until it has been good again.
        known.told = match suspicion {
            Suspicion::None => suspicion,
            _ => known.told.max(suspicion),
        };
        (is_new || given_up).then_some(Suspect {
            number: place.saturating_add(1),
            suspicion,
            bias: known.bias,
            given_up,
        })
    }

    fn known(&mut self, identity: &Key) -> Option<&mut Known> {
        let mut sample = self.sample.iter_mut();
        sample.find(|known| known.guard.identity == *identity)
    }

    fn place(&self, identity: &Key) -> Option<usize> {
        let mut sample = self.sample.iter();
        sample.position(|known| known.guard.identity == *identity)
    }

    /// Notes who is on the list, and forgets who is too old or was too long off it.
    fn refresh(&mut self, network: &Network, now: u64) {
        for Known { guard, .. } in &mut self.sample {
            let identity = &guard.identity;
            guard.rsa_id = network.rsa_id(identity).or(guard.rsa_id);
            let is_listed = network.relay(identity).is_some() || guard.is_undescribed(network);
            guard.unlisted = (!is_listed).then(|| guard.unlisted.unwrap_or(now));
        }
        self.sample.retain(|known| known.guard.is_kept(now));
    }

    /// Chooses further ones, while too few can be used.
    fn fill(
        &mut self,
        network: &Network,
        constraints: &PathConstraints,
        now: u64,
        random: Random<'_>,
    ) {
        // No others are drawn for those that are put off, or of which only the description is missing.
        let sample = self.sample.iter();
        let undescribed = sample.filter(|known| {
            let Guard { identity, bias, .. } = &known.guard;
            known.guard.is_undescribed(network)
                && !bias.barred
                && !constraints.avoid.contains(identity)
        });
        let described = self.fitting(network, constraints, |_| true).len();
        let mut usable = described.saturating_add(undescribed.count());
        while usable < MIN_FILTERED_SAMPLE && self.sample.len() < MAX_SAMPLE_SIZE {
            let Some(identity) = self.choose(network, constraints, random) else {
                break;
            };
            let guard = Guard {
                identity,
                rsa_id: network.rsa_id(&identity),
                chosen: now.saturating_sub(random(GUARD_LIFETIME / 10)),
                confirmed: None,
                unlisted: None,
                bias: PathBias::default(),
            };
            self.sample.push(Known::new(guard));
            usable = usable.saturating_add(1);
        }
    }

    /// The places of those that are listed and fit; of those that are put off only if there is no other, and then of one that was given up.
    fn usable(&self, network: &Network, constraints: &PathConstraints, now: u64) -> Vec<usize> {
        let all = self.fitting(network, constraints, |known| !known.is_put_off(now));
        if all.is_empty() {
            self.fitting(network, constraints, |_| true)
        } else {
            all
        }
    }

    /// The places of those that are listed and fit; of one that was given up only if there is no other.
    fn fitting(
        &self,
        network: &Network,
        constraints: &PathConstraints,
        is_meant: impl Fn(&Known) -> bool,
    ) -> Vec<usize> {
        let fits =
            |known: &Known| network.is_fit(&known.guard.identity, Position::Entry, constraints);
        let sample = self.sample.iter().enumerate();
        let fitting = sample.filter(|(_, known)| is_meant(known) && fits(known));
        let (barred, usable): (Vec<_>, Vec<_>) =
            fitting.partition(|(_, known)| known.bias.barred && !self.only_tell);
        let those = if usable.is_empty() { barred } else { usable };
        those.into_iter().map(|(place, _)| place).collect()
    }

    fn choose(
        &self,
        network: &Network,
        constraints: &PathConstraints,
        random: Random<'_>,
    ) -> Option<Key> {
        let known = self.sample.iter().map(|known| known.guard.identity);
        let avoid: HashSet<Key> = constraints.avoid.iter().copied().chain(known).collect();
        let constraints = PathConstraints {
            avoid,
            ..constraints.clone()
        };
        let new = network.one(Position::Entry, &constraints, random)?;
        Some(new.identity)
    }
}

impl Guard {
    /// See [`Network::is_undescribed`].
    fn is_undescribed(&self, network: &Network) -> bool {
        network.is_undescribed(&self.identity, self.rsa_id.as_ref())
    }
}

impl Known {
    /// Whether it is given up for that.
    fn note(&mut self, fate: CircuitFate, may_bar: bool) -> bool {
        self.bias.note(fate);
        let bars = may_bar && !self.bias.barred && self.bias.suspicion() == Suspicion::Extreme;
        self.bias.barred |= bars;
        self.counted = self.counted.saturating_add(1);
        if bars || self.counted >= COUNTS_KEPT {
            (self.guard.bias, self.counted) = (self.bias, 0);
        }
        bars
    }
}

impl Guard {
    fn is_kept(&self, now: u64) -> bool {
        let older = |since: u64, than: u64| now.saturating_sub(since) > than;
        let worn = self
            .confirmed
            .is_none_or(|since| older(since, GUARD_CONFIRMED_MIN_LIFETIME));
        let gone = self
            .unlisted
            .is_some_and(|since| older(since, REMOVE_UNLISTED_GUARDS_AFTER));
        !(gone || older(self.chosen, GUARD_LIFETIME) && worn)
    }
}

/// Whether a guard can be reached, as far as is known (`is_reachable`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// It was not tried, or is to be tried again.
    Maybe,
    /// It was reached the last time.
    Yes,
    /// It was not.
    No {
        /// Since when it fails.
        since: u64,
        /// When it was tried last.
        tried: u64,
        /// It is to be tried again.
        rested: bool,
    },
}

impl Reach {
    /// It was tried in vain.
    fn fail(&mut self, now: u64) {
        let since = match *self {
            Self::No { since, .. } => since,
            Self::Maybe | Self::Yes => now,
        };
        *self = Self::No {
            since,
            tried: now,
            rested: false,
        };
    }

    /// Notes if it has rested long enough.
    fn rest(&mut self, primary: bool, now: u64) {
        if let Self::No {
            since,
            tried,
            rested,
        } = self
        {
            let failing = tried.saturating_sub(*since);
            let pause = SCHEDULE.iter().find(|(below, ..)| failing < *below);
            let pause = pause.map_or(0, |&(_, first, other)| if primary { first } else { other });
            *rested |= now.abs_diff(*tried) >= pause;
        }
    }

    /// Whether it is better left alone.
    fn is_failing(self) -> bool {
        matches!(self, Self::No { rested: false, .. })
    }
}
