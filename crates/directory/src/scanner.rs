//! A bandwidth scanner: which relay is measured next and over which circuit, what results say of it ([`Estimates`]), and which weights follow from that.
//! bandwidth-file-spec; the sizes of transfers are after sbws ([`Transfers`]). A machine without I/O or clock: the binary, and the simulator in virtual
//! time, ask [`Scanner::next`], measure, and tell [`Scanner::measured`]; [`weights::bandwidth_file`] makes of the results what authorities read.
//!
//! What a relay says of itself is only a cap. It is measured in turn where it can tell the scanner (as the first relay it sees the scanner's address, as the
//! last one the target's) and where it cannot (between two partners), and what it carries where it can tell counts for a tenth more at most.
//!
//! # Not in this room
//! Circuits (`hoplite_onion`); the transfers' bytes are [`target`]'s.

mod estimates;
pub mod target;
mod transfers;
pub mod weights;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
};

use hoplite_wire::{directory::Key, tor::bandwidth_file::RelayName};

use crate::path_selection::Random;
use estimates::Estimate;

pub use estimates::Estimates;
pub use transfers::{Direction, Rates, Step, Transfers};

/// Results of one relay that are kept, the newest.
const RESULTS: usize = 32;
/// Relays whose results are kept.
const RELAYS: usize = 16_384;
/// A relay that could not be measured, or was measured with partners that may have limited it, is tried again after this part of the usual pause.
const HASTE: u64 = 4;
/// With so many results it is not tried sooner any more, as those that are faster than all others stay as they are, nor after so many failures in a row.
const HURRIED: usize = 6;
/// The share of relays from which a partner is taken, if too few are known to be twice as fast: the fastest eighth.
const FAST: usize = 8;
/// And so many of them, so that no single partner says what a relay is worth.
const FEWEST_PARTNERS: usize = 4;
/// A relay that was on no circuit yet is taken to be so many times as fast as half of all say that they are, at most.
const BELIEVED: u64 = 16;
/// Relays for which a circuit is looked for at once. Partners may be busy for now.
const TRIED: usize = 16;

/// How a scanner works. All times are seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long a relay is let alone after it was measured.
    pub pause: u64,
    /// How long a result counts.
    pub keep: u64,
    /// Measurements at once.
    pub at_once: usize,
    /// Results that a relay must have before authorities are to vote for what they say.
    pub least: usize,
    /// Of a hundred relays, so many must have them; else authorities are to vote for none.
    pub least_percent: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            pause: 8 * 3600,
            keep: 5 * 86_400,
            at_once: 4,
            least: 2,
            least_percent: 60,
        }
    }
}

/// A relay, as the directory has it.
#[derive(Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Who it is.
    pub identity: Key,
    /// SHA-1 of its RSA identity, if it has one.
    pub rsa_id: Option<[u8; 20]>,
    /// What it calls itself.
    pub nickname: String,
    /// Whether it connects to the scanner's target.
    pub exits: bool,
    /// What it says it is willing to carry for long, in bytes a second.
    pub average: u64,
    /// What it says it has carried, in bytes a second.
    pub observed: Option<u64>,
    /// What the directory says it can carry, in bytes a second.
    pub believed: u64,
}

/// Where the relay stands that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The first of two: it sees the scanner's address.
    First,
    /// Between two partners: it sees neither the scanner nor its target.
    Middle,
    /// The last of two: it sees the target.
    Last,
}

/// What is to be measured.
#[derive(Clone, PartialEq, Eq)]
pub struct Measurement {
    /// Which relay.
    pub relay: Key,
    /// Where it stands.
    pub place: Place,
    /// The relays of the circuit, the first one first; two of them, or three.
    pub path: Vec<Key>,
}

/// Why there is no rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The circuit did not come about.
    Circuit,
    /// The target was not reached over it, or the transfer broke off or took too long.
    Stream,
    /// What came was not what the target had sent.
    Forged,
}

impl Measurement {
    /// The other relays of the circuit.
    fn partners(&self) -> impl Iterator<Item = &Key> {
        self.path.iter().filter(|relay| **relay != self.relay)
    }
}

/// What came of a measurement.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    /// When it was over, in seconds since 1970.
    pub at: u64,
    /// What was measured.
    pub of: Measurement,
    /// What the circuit carried, or why that is not known.
    pub rates: Result<Rates, Failure>,
}

/// What one scanner has found out: a vantage point. The newest results of each relay, the oldest first.
#[derive(Clone, Default)]
pub struct Results(BTreeMap<Key, VecDeque<Outcome>>);

impl Results {
    /// Takes a result up. The oldest of the relay's gives way when they are too many, and relays beyond the bound are not kept.
    pub fn put(&mut self, outcome: Outcome) {
        let relay = outcome.of.relay;
        if self.0.len() >= RELAYS && !self.0.contains_key(&relay) {
            return;
        }
        let all = self.0.entry(relay).or_default();
        let place = all.partition_point(|other| other.at <= outcome.at);
        all.insert(place, outcome);
        if all.len() > RESULTS {
            all.pop_front();
        }
    }

    /// All of a relay's.
    pub fn of(&self, relay: &Key) -> impl DoubleEndedIterator<Item = &Outcome> {
        self.0.get(relay).into_iter().flatten()
    }

    /// All of them, by relay.
    pub fn iter(&self) -> impl Iterator<Item = &Outcome> {
        self.0.values().flatten()
    }

    /// Forgets what is older of a relay.
    pub fn forget_before(&mut self, relay: &Key, at: u64) {
        if let Some(all) = self.0.get_mut(relay) {
            all.retain(|outcome| outcome.at >= at);
        }
        self.0.retain(|_, all| !all.is_empty());
    }
}

fn mean(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    let sum = numbers.fold((0u128, 0u128), |(sum, count), number| {
        (sum.saturating_add(number.into()), count.saturating_add(1))
    });
    let mean = sum.0.checked_div(sum.1)?;
    u64::try_from(mean).ok()
}

/// The lower one of two in the middle.
pub(crate) fn median(mut numbers: Vec<u64>) -> Option<u64> {
    numbers.sort_unstable();
    let middle = numbers.len().saturating_sub(1) / 2;
    numbers.get(middle).copied()
}

/// The machine.
pub struct Scanner {
    config: Config,
    relays: BTreeMap<Key, Candidate>,
    results: Results,
    /// When a measurement of each was last begun.
    begun: BTreeMap<Key, u64>,
    /// The relays of each circuit that is measured, by the one that it is measured for.
    under_way: BTreeMap<Key, Vec<Key>>,
    estimates: Estimates,
}

impl Scanner {
    /// One that goes on with these results.
    pub fn new(config: Config, results: Results) -> Self {
        let last = results.0.iter();
        let last = last.filter_map(|(relay, all)| Some((*relay, all.back()?.at)));
        Self {
            config,
            relays: BTreeMap::new(),
            begun: last.collect(),
            estimates: Estimates::of(&results),
            results,
            under_way: BTreeMap::new(),
        }
    }

    /// The directory has these relays now.
    pub fn renew(&mut self, relays: Vec<Candidate>) {
        let relays = relays.into_iter().take(RELAYS);
        self.relays = relays.map(|relay| (relay.identity, relay)).collect();
        let (relays, under_way) = (&self.relays, &self.under_way);
        self.begun
            .retain(|relay, _| relays.contains_key(relay) || under_way.contains_key(relay));
        self.estimates = Estimates::of(&self.results);
    }

    /// The relays that the directory has.
    pub fn relays(&self) -> impl Iterator<Item = &Candidate> {
        self.relays.values()
    }

    /// All results.
    pub fn results(&self) -> &Results {
        &self.results
    }

    /// What to measure now; nothing as long as enough is measured, or no relay's pause is over. No relay is on two circuits at once: they would take from
    /// each other. Each is to be answered with [`Self::measured`], or [`Self::given_up`].
    pub fn next(&mut self, now: u64, random: Random<'_>) -> Option<Measurement> {
        if self.under_way.len() >= self.config.at_once {
            return None;
        }
        let mut due: Vec<_> = self.due(now);
        // Who has tried a relay least learns most; between equals it is the one that has waited longest. Results are not what counts: who lets no circuit
        // come about would be first for ever.
        due.sort_unstable();
        let mut due = due.into_iter().map(|(_, _, relay)| relay).take(TRIED);
        let partners = self.partners();
        let measurement = due.find_map(|relay| self.plan(relay, &partners, random))?;
        let (relay, path) = (measurement.relay, measurement.path.clone());
        self.begun.insert(relay, now);
        self.under_way.insert(relay, path);
        Some(measurement)
    }

    /// With how often they were tried, up to as many results as they must have, and since when they wait.
    fn due(&self, now: u64) -> Vec<(usize, u64, Key)> {
        let busy = self.busy();
        let idle = self.relays.keys().filter(|relay| !busy.contains(relay));
        let waiting = idle.filter_map(|relay| {
            let pause = self.config.pause / if self.is_urgent(relay) { HASTE } else { 1 };
            let begun = self.begun.get(relay).copied();
            let is_due = |begun: u64| begun.saturating_add(pause.max(1)) <= now;
            begun.is_none_or(is_due).then(|| {
                let tried = self.results.of(relay).take(self.config.least).count();
                (tried, begun.unwrap_or(0), *relay)
            })
        });
        waiting.collect()
    }

    /// Results of a relay that tell a rate.
    fn count(&self, relay: &Key) -> usize {
        let known = self.estimates.relay(relay);
        known.map_or(0, Estimate::count)
    }

    /// The last measurement has failed, not for the sixth time in a row, or what was found may be its partners' fault.
    fn is_urgent(&self, relay: &Key) -> bool {
        let newest = self.results.of(relay).rev();
        match newest.take_while(|one| one.rates.is_err()).count() {
            0 => self.count(relay) < HURRIED && self.estimates.can_be_settled(relay),
            failed => failed < HURRIED,
        }
    }

    /// The relays that are on some circuit.
    fn busy(&self) -> BTreeSet<&Key> {
        self.under_way.values().flatten().collect()
    }

    /// All relays as partners, the fastest first, between equals those on whose circuits less has failed.
    fn partners(&self) -> Vec<Partner<'_>> {
        let (busy, most) = (self.busy(), self.most_believed());
        let partners = self.relays.values().map(|relay| {
            let (speed, failed) = (
                self.speed(relay, most),
                self.estimates.failed(&relay.identity),
            );
            Partner {
                relay,
                speed,
                lasting: speed.checked_shr(failed).unwrap_or(0).max(1),
                failed,
                is_free: !busy.contains(&relay.identity),
            }
        });
        let mut partners: Vec<_> = partners.collect();
        partners.sort_by_key(|one| {
            (
                Reverse(one.lasting),
                one.failed,
                Reverse(one.relay.identity),
            )
        });
        partners
    }

    /// A circuit for it: in turn one on which it cannot tell the scanner, and one on which it might.
    fn plan(
        &self,
        relay: Key,
        partners: &[Partner<'_>],
        random: Random<'_>,
    ) -> Option<Measurement> {
        let known = self.estimates.relay(&relay);
        let known = known.map(|known| (known.blind.known(), known.open.known()));
        let places = if known.is_none_or(|(blind, open)| blind <= open) {
            [Place::Middle, Place::First, Place::Last]
        } else if random(2) == 0 {
            [Place::First, Place::Last, Place::Middle]
        } else {
            [Place::Last, Place::First, Place::Middle]
        };
        let mut planned = places.into_iter().filter_map(|place| {
            let path = self.path(relay, place, partners, random)?;
            Some(Measurement { relay, place, path })
        });
        planned.next()
    }

    fn path(
        &self,
        relay: Key,
        place: Place,
        partners: &[Partner<'_>],
        random: Random<'_>,
    ) -> Option<Vec<Key>> {
        let mut own = partners.iter().filter(|one| one.relay.identity == relay);
        let speed = own.next().map_or(0, |one| one.speed);
        let enough = speed.saturating_mul(2);
        let mut partner = |others: &[Key], must_exit: bool| {
            let fits = |other: &&Partner<'_>| {
                let is_other = !others.contains(&other.relay.identity);
                is_other && (other.relay.exits || !must_exit)
            };
            let fitting: Vec<_> = partners.iter().filter(fits).collect();
            partner(&fitting, enough, random)
        };
        match place {
            Place::First => Some(vec![relay, partner(&[relay], true)?]),
            Place::Last => {
                self.relays.get(&relay).filter(|relay| relay.exits)?;
                Some(vec![partner(&[relay], false)?, relay])
            }
            Place::Middle => {
                let last = partner(&[relay], true)?;
                let first = partner(&[relay, last], false)?;
                Some(vec![first, relay, last])
            }
        }
    }

    /// How fast a relay is thought to be: as it has shown, or as somebody says of one that was on no circuit yet, but then no faster than `most`. 1 TB/s at
    /// most, so that sums do not overflow.
    fn speed(&self, relay: &Candidate, most: u64) -> u64 {
        let shown = self.estimates.shown(&relay.identity);
        let speed = shown.unwrap_or_else(|| relay.said().min(most));
        speed.min(relay.average).clamp(1, 1 << 40)
    }

    /// What is believed at most of a relay that was on no circuit yet: more than most say by far is nothing to wait for.
    fn most_believed(&self) -> u64 {
        let said = self.relays.values().map(Candidate::said).collect();
        median(said).unwrap_or(0).saturating_mul(BELIEVED)
    }

    /// A measurement is over.
    pub fn measured(&mut self, outcome: &Outcome) {
        let relay = outcome.of.relay;
        let oldest = outcome.at.saturating_sub(self.config.keep);
        self.under_way.remove(&relay);
        self.results.put(outcome.clone());
        self.results.forget_before(&relay, oldest);
        self.estimates.note(&self.results, outcome);
    }

    /// A measurement came to nothing by no fault of the relay's.
    pub fn given_up(&mut self, relay: &Key) {
        self.under_way.remove(relay);
    }
}

/// A relay that stands on a circuit with the one that is measured.
struct Partner<'a> {
    relay: &'a Candidate,
    /// How fast it is thought to be.
    speed: u64,
    /// The same, halved for each relay of which no circuit came about with it as a partner: who lets none come about is soon no partner, whatever it says.
    lasting: u64,
    /// How many those are.
    failed: u32,
    /// It is on no other circuit.
    is_free: bool,
}

/// Of the relays that fit, the fastest first, some free one that does not hold the other up: one that is fast enough if there are some of them, else one of
/// the fastest. The faster ones are taken more often, so that scanning costs each its share.
fn partner(fitting: &[&Partner<'_>], enough: u64, random: Random<'_>) -> Option<Key> {
    let fast = fitting.partition_point(|other| other.lasting >= enough);
    let fastest = fitting.len().div_ceil(FAST).max(FEWEST_PARTNERS);
    let fast = fitting.iter().take(fast.max(fastest));
    let free: Vec<_> = fast.filter(|other| other.is_free).collect();
    let speeds = free.iter().map(|other| other.lasting);
    let sum = speeds.fold(0u64, u64::saturating_add);
    let mut drawn = random(sum.max(1));
    let chosen = free.iter().find(|other| {
        let is_here = drawn < other.lasting;
        drawn = drawn.saturating_sub(other.lasting);
        is_here
    });
    let chosen = chosen.or_else(|| free.first());
    chosen.map(|other| other.relay.identity)
}

impl Candidate {
    /// What somebody says that it carries.
    fn said(&self) -> u64 {
        let said = self.observed.unwrap_or(0).max(self.believed);
        said.min(self.average)
    }

    /// As a bandwidth file names it.
    fn name(&self) -> RelayName {
        match self.rsa_id {
            Some(rsa_id) => RelayName::Both(rsa_id, self.identity.0),
            None => RelayName::Ed25519(self.identity.0),
        }
    }
}

/// Who stays out of every log.
mod hidden {
    use std::fmt::{Debug, Formatter, Result};

    use super::{Candidate, Measurement, Outcome, Results, Scanner};

    impl Debug for Candidate {
        fn fmt(&self, f: &mut Formatter<'_>) -> Result {
            f.write_str("Candidate(hidden)")
        }
    }

    impl Debug for Measurement {
        fn fmt(&self, f: &mut Formatter<'_>) -> Result {
            write!(f, "Measurement({:?})", self.place)
        }
    }

    impl Debug for Outcome {
        fn fmt(&self, f: &mut Formatter<'_>) -> Result {
            write!(f, "Outcome({:?}: {:?})", self.of.place, self.rates)
        }
    }

    impl Debug for Results {
        fn fmt(&self, f: &mut Formatter<'_>) -> Result {
            write!(f, "Results(of {} relays)", self.0.len())
        }
    }

    impl Debug for Scanner {
        fn fmt(&self, f: &mut Formatter<'_>) -> Result {
            write!(f, "Scanner({} relays)", self.relays.len())
        }
    }
}

#[cfg(test)]
mod tests;
