//! Who has how many circuits of a number that all share: the circuits of a channel to another relay, or those of a whole relay. While there is room
//! everybody takes what he asks for; where all is taken, a circuit of whoever has most goes for one of somebody who has less, the one that has carried
//! nothing for longest of those that are looked at: a few, others each time. So nobody is kept out by whoever came before him, and whoever has most gains nothing by asking for more.
//!
//! A circuit is known by the end that faces whoever asked for it ([`Origin`]): with that end, all of it ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::budget::Gauge;

/// One in this many is not given out: it is for circuits that are being ended for others.
const SPARE_DIVISOR: usize = 16;
/// Of so many is looked which moves least, however many one has: nobody waits for more.
const LOOKED_AT: usize = 32;

/// On whose behalf a circuit is begun: who that is, as far as his share goes, and the end of his circuit that faces him.
#[derive(Clone)]
pub struct Origin {
    /// One number for all that count as one.
    pub who: u64,
    /// He is a relay that is known, and asks on behalf of others.
    pub is_relay: bool,
    /// The end that faces him.
    pub circuit: Handle,
}

/// Ends a circuit and sees whether it moves; holds nothing of it.
#[derive(Clone, Debug)]
pub struct Handle(Weak<Gauge>);

/// This many places, and who has them. Clones are the same ones.
#[derive(Clone, Debug)]
pub struct Shares(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by: BTreeMap<u64, Held>,
    /// Who has how many, the most last.
    weights: BTreeSet<(usize, u64)>,
    serial: u64,
}

/// What one has.
#[derive(Debug, Default)]
struct Held {
    /// By their serials.
    entries: BTreeMap<u64, Entry>,
    /// The next to be looked at.
    next: u64,
}

#[derive(Debug)]
struct Entry {
    circuit: Handle,
    /// How much had moved when that was last looked at, and since when it has not moved.
    moved: u64,
    since: Instant,
}

/// A place that is taken; dropping it gives it back.
#[derive(Debug)]
pub struct Share {
    shares: Shares,
    who: u64,
    serial: u64,
}

impl Handle {
    pub(super) fn new(gauge: &Arc<Gauge>) -> Self {
        Self(Arc::downgrade(gauge))
    }

    fn moved(&self) -> u64 {
        self.0.upgrade().map_or(0, |gauge| gauge.moved())
    }

    pub(super) fn end(&self) {
        if let Some(gauge) = self.0.upgrade() {
            gauge.end();
        }
    }

    /// The peer who began it is one of those that count as `who`, and no relay that is known.
    pub fn is_of_guest(&self, who: u64) {
        if let Some(gauge) = self.0.upgrade() {
            gauge.is_of_guest(who);
        }
    }
}

impl Shares {
    /// Of `most` places a few are spared for what is being ended.
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Inner {
            most: most - most / SPARE_DIVISOR,
            taken: Mutex::default(),
        }))
    }

    /// Takes a place; at the bound that of somebody who has more, whose circuit is ended. `None` if whoever asked has `each`, or nobody has more than he
    /// would have.
    pub fn take(&self, origin: &Origin, each: usize, now: Instant) -> Option<Share> {
        let mut taken = self.0.taken.lock();
        let own = taken
            .by
            .get(&origin.who)
            .map_or(0, |held| held.entries.len());
        if own >= each {
            return None;
        }
        let mut goes = None;
        if taken.all >= self.0.most {
            let (most, who) = taken.weights.last().copied()?;
            if most <= own.saturating_add(1) {
                return None;
            }
            goes = taken.evict(who, now);
        }
        let serial = taken.add(origin, now);
        drop(taken);
        // Outside the lock: whoever holds the circuit is woken, and gives other places back.
        if let Some(circuit) = goes {
            circuit.end();
        }
        Some(Share {
            shares: self.clone(),
            who: origin.who,
            serial,
        })
    }

    /// How many are taken.
    pub fn len(&self) -> usize {
        self.0.taken.lock().all
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Taken {
    fn add(&mut self, origin: &Origin, now: Instant) -> u64 {
        self.serial = self.serial.wrapping_add(1);
        let entry = Entry {
            circuit: origin.circuit.clone(),
            moved: origin.circuit.moved(),
            since: now,
        };
        let serial = self.serial;
        self.change(origin.who, |entries| drop(entries.insert(serial, entry)));
        self.all += 1;
        serial
    }

    /// The circuit of `who` that has not moved for longest, of the next few.
    fn evict(&mut self, who: u64, now: Instant) -> Option<Handle> {
        let serial = self.by.get_mut(&who)?.oldest(now)?;
        self.remove(who, serial)
    }

    fn remove(&mut self, who: u64, serial: u64) -> Option<Handle> {
        let mut gone = None;
        self.change(who, |entries| gone = entries.remove(&serial));
        self.all -= usize::from(gone.is_some());
        gone.map(|entry| entry.circuit)
    }

    fn change(&mut self, who: u64, change: impl FnOnce(&mut BTreeMap<u64, Entry>)) {
        let entries = &mut self.by.entry(who).or_default().entries;
        let before = entries.len();
        change(entries);
        let after = entries.len();
        self.weights.remove(&(before, who));
        match after {
            0 => drop(self.by.remove(&who)),
            _ => drop(self.weights.insert((after, who))),
        }
    }
}

impl Held {
    fn oldest(&mut self, now: Instant) -> Option<u64> {
        let (before, behind) = (..self.next, self.next..);
        let next = [self.entries.range(behind), self.entries.range(before)];
        let looked_at: Vec<u64> = next
            .into_iter()
            .flatten()
            .map(|(serial, _)| *serial)
            .take(LOOKED_AT)
            .collect();
        self.next = looked_at.last()?.wrapping_add(1);
        let mut oldest = None::<(Instant, u64)>;
        for serial in looked_at {
            let Some(entry) = self.entries.get_mut(&serial) else {
                continue;
            };
            let moved = entry.circuit.moved();
            if std::mem::replace(&mut entry.moved, moved) != moved {
                entry.since = now;
            }
            let older = oldest.is_none_or(|(since, _)| entry.since < since);
            if older {
                oldest = Some((entry.since, serial));
            }
        }
        oldest.map(|(_, serial)| serial)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.shares.0.taken.lock();
        let gone = taken.remove(self.who, self.serial);
        drop(taken);
        // It may be the last that holds what it sees.
        drop(gone);
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Origin(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hoplite_quic::SendWindow;

    use super::*;

    fn circuit(who: u64) -> (Origin, Arc<Gauge>) {
        let gauge = Arc::new(Gauge::quic(0, SendWindow::unbounded()));
        let circuit = Handle::new(&gauge);
        let is_relay = false;
        let origin = Origin {
            who,
            is_relay,
            circuit,
        };
        (origin, gauge)
    }

    #[test]
    fn who_has_taken_all_makes_room_for_who_comes_and_the_idle_go_first() {
        let (shares, mut now) = (Shares::new(32), Instant::now());
        let mut hogs: Vec<_> = (0..30).map(|_| circuit(1)).collect();
        let held: Vec<_> = hogs
            .iter()
            .map(|(origin, ..)| shares.take(origin, usize::MAX, now).unwrap())
            .collect();
        assert_eq!(shares.len(), 30, "a few are spared");
        assert!(shares.take(&circuit(1).0, usize::MAX, now).is_none());
        now += Duration::from_secs(1);
        for (_, gauge) in &hogs[..29] {
            gauge.read(7, 0);
        }
        let (origin, _gauge) = circuit(2);
        let share = shares.take(&origin, usize::MAX, now).unwrap();
        let ended = |(_, gauge): &(Origin, Arc<Gauge>)| gauge.is_over();
        assert!(
            ended(&hogs[29]) && !hogs[..29].iter().any(ended),
            "the idle one"
        );
        drop((held, share));
        assert!(shares.is_empty());
        hogs.clear();
    }

    #[test]
    fn of_many_each_is_looked_at_in_its_turn_and_no_more_than_a_few_at_once() {
        let (shares, mut now) = (Shares::new(1024), Instant::now());
        let hogs: Vec<_> = (0..960).map(|_| circuit(1)).collect();
        let take = |(origin, _): &(Origin, Arc<Gauge>), now| shares.take(origin, usize::MAX, now);
        let _held: Vec<_> = hogs.iter().map(|one| take(one, now)).collect();
        // One in each few stands still.
        for (n, (_, gauge)) in hogs.iter().enumerate() {
            gauge.read(u64::from(n % LOOKED_AT != 7), 0);
        }
        let others: Vec<_> = (2..32).map(circuit).collect();
        let mut places = Vec::new();
        for other in &others {
            now += Duration::from_secs(1);
            places.push(take(other, now).expect("a place"));
        }
        let ended = hogs
            .iter()
            .enumerate()
            .filter(|(_, (_, gauge))| gauge.is_over());
        assert!(ended.clone().all(|(n, _)| n % LOOKED_AT == 7));
        assert_eq!(ended.count(), others.len());
    }

    #[test]
    fn in_the_end_all_have_the_same_and_nobody_can_have_more() {
        let (shares, now) = (Shares::new(128), Instant::now());
        let circuits: Vec<_> = (0..120).map(|_| circuit(0)).collect();
        let _held: Vec<_> = circuits
            .iter()
            .map(|(origin, ..)| shares.take(origin, usize::MAX, now))
            .collect();
        let mut later = Vec::new();
        for n in 0..500 {
            let circuit = circuit(n % 6);
            later.push((shares.take(&circuit.0, usize::MAX, now), circuit));
        }
        let taken = shares.0.taken.lock();
        let most: Vec<_> = taken.by.values().map(|held| held.entries.len()).collect();
        assert_eq!((most, taken.all), (vec![20; 6], 120));
    }

    #[test]
    fn nobody_has_more_than_is_for_each() {
        let (shares, now) = (Shares::new(100), Instant::now());
        let (origin, ..) = circuit(1);
        let held: Vec<_> = (0..10).map(|_| shares.take(&origin, 4, now)).collect();
        assert_eq!(held.iter().flatten().count(), 4);
        assert!(shares.take(&circuit(2).0, 4, now).is_some());
    }
}
