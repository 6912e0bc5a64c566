//! Which circuits end where a QUIC channel's window is full of what nobody reads. That window is for all circuits of the channel (RFC 9000 §4.1), and one that
//! stands still keeps its part of it: whoever has enough of them at a relay, and takes nothing, would stop all others between two relays. When the peer says
//! that it may send nothing more, and nothing is read that would let it, circuits end of which something waits that nobody has taken, until little of
//! the window can be theirs: each time one of whoever has most of them, and of his the one that was read least of late, the newest first. No clock.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Weak},
};

use hoplite_quic::StreamId;
use parking_lot::Mutex;

use super::budget::Gauge;

/// This part of the window may still be that of circuits that nobody reads.
const LEFT_DIVISOR: u64 = 8;

/// The circuits of a channel, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Readers(Mutex<Vec<(StreamId, Weak<Gauge>)>>);

/// How much of each had been read.
pub(super) struct Marks(HashMap<StreamId, u64>);

/// Circuits of one who asked for them, what was read least of late last.
type Holding = Vec<(Reverse<u64>, Arc<Gauge>)>;

impl Readers {
    pub(super) fn enter(&self, stream: StreamId, gauge: &Arc<Gauge>) {
        let mut circuits = self.0.lock();
        if circuits.len() == circuits.capacity() {
            circuits.retain(|(_, gauge)| gauge.strong_count() > 0);
        }
        circuits.push((stream, Arc::downgrade(gauge)));
    }

    /// Of now.
    pub(super) fn marks(&self) -> Marks {
        let all = self.all();
        Marks(all.map(|(id, gauge)| (id, gauge.has_read())).collect())
    }

    /// Ends circuits whose streams are `unread`, as far as their windows of `each` are too much of the `whole`; `marks` are of a while ago. Answers how many.
    pub(super) fn end(&self, unread: &[StreamId], marks: &Marks, each: u64, whole: u64) -> u64 {
        let unread: HashSet<_> = unread.iter().collect();
        let mut by_whom = BTreeMap::<Option<u64>, Holding>::new();
        let mut count = 0;
        for (id, gauge) in self.all().filter(|(id, _)| unread.contains(id)) {
            let before = marks.0.get(&id).copied().unwrap_or_default();
            let since = gauge.has_read().saturating_sub(before);
            let holding = by_whom.entry(gauge.asked_by()).or_default();
            holding.push((Reverse(since), gauge));
            count += 1;
        }
        // Stable: of two that were read as much, the newer goes first.
        for holding in by_whom.values_mut() {
            holding.sort_by_key(|(since, _)| *since);
        }
        let may_stay = whole / LEFT_DIVISOR / each.max(1);
        let mut ended = 0;
        while count > may_stay {
            let most = by_whom.values_mut().max_by_key(|holding| holding.len());
            let Some((_, gauge)) = most.and_then(Vec::pop) else {
                break;
            };
            gauge.end_whole();
            count -= 1;
            ended += 1;
        }
        ended
    }

    fn all(&self) -> impl Iterator<Item = (StreamId, Arc<Gauge>)> {
        let circuits = self.0.lock().clone();
        let there = |(id, gauge): (StreamId, Weak<Gauge>)| Some((id, gauge.upgrade()?));
        let circuits = circuits.into_iter().filter_map(there);
        circuits.filter(|(_, gauge)| !gauge.is_over())
    }
}

#[cfg(test)]
mod tests {
    use hoplite_quic::{Dir, Side};

    use super::*;
    use crate::{Handle, Origin};

    fn stream(n: u64) -> StreamId {
        StreamId::new(Side::Client, Dir::Bi, n)
    }

    /// Circuits of a channel, each asked for by one of these: their ends here, and those that face who asked.
    fn circuits(readers: &Readers, whose: &[u64]) -> Vec<(Arc<Gauge>, Arc<Gauge>)> {
        let circuit = |(n, who): (u64, &u64)| {
            let [here, back] = [0, 0].map(|window| Arc::new(Gauge::quic(window)));
            let origin = Origin {
                who: *who,
                circuit: Handle::new(&back),
            };
            here.is_for(&origin);
            readers.enter(stream(n), &here);
            (here, back)
        };
        (0..).zip(whose).map(circuit).collect()
    }

    fn ended(circuits: &[(Arc<Gauge>, Arc<Gauge>)]) -> Vec<usize> {
        let both = |(here, back): &(Arc<Gauge>, Arc<Gauge>)| here.is_over() && back.is_over();
        (0..circuits.len())
            .filter(|n| both(&circuits[*n]))
            .collect()
    }

    #[test]
    fn whoever_holds_most_makes_room_and_of_his_what_was_read_least_of_late() {
        let readers = Readers::default();
        let circuits = circuits(&readers, &[1, 2, 2, 2, 2, 1, 3]);
        circuits[2].0.read(9);
        let marks = readers.marks();
        circuits[2].0.read(10);
        circuits[4].0.read(7);
        let unread: Vec<_> = (0..7).map(stream).collect();
        assert_eq!(readers.end(&unread, &marks, 10, 400), 2);
        assert_eq!(ended(&circuits), [1, 3]);
        assert_eq!(
            readers.end(&unread, &marks, 10, 400),
            0,
            "the rest may stay"
        );
    }

    #[test]
    fn circuits_of_which_nothing_waits_stay() {
        let readers = Readers::default();
        let circuits = circuits(&readers, &[1; 8]);
        let unread: Vec<_> = (2..5).map(stream).collect();
        assert_eq!(readers.end(&unread, &readers.marks(), 10, 10), 3);
        assert_eq!(ended(&circuits), [2, 3, 4]);
    }

    #[test]
    fn of_equals_the_newest_go_first_and_those_that_are_gone_are_not_counted() {
        let readers = Readers::default();
        let mut circuits = circuits(&readers, &[1; 8]);
        drop(circuits.remove(0));
        let unread: Vec<_> = (0..8).map(stream).collect();
        assert_eq!(readers.end(&unread, &readers.marks(), 10, 400), 2);
        assert_eq!(ended(&circuits), [5, 6]);
    }
}
