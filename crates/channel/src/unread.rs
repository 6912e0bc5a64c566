//! Which circuits end where a QUIC channel's window is full of what nobody reads. That window is for all circuits of the channel (RFC 9000 §4.1), and one that
//! stands still keeps its part of it: whoever has enough of them at a relay, and takes nothing, would stop all others between two relays. When the peer says
//! that it may send nothing more, and nothing is read that would let it, circuits end of which something waits that nobody has taken, until what waits is
//! little of the window: of whoever has much those that stand still, and others only after them; each time one of whoever has most waiting, and of his the
//! one that was read least of late, the newest first.
//!
//! Whoever it was may have no more circuits on the channel for ten minutes than may stay, so that he cannot fill it again at once and again. A relay that asks
//! on behalf of others may: it would be they who pay. No clock.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Weak},
    time::Duration,
};

use hoplite_quic::StreamId;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::budget::Gauge;

/// This part of the window may still be that of circuits that nobody reads.
const LEFT_DIVISOR: u64 = 8;

/// Whose circuits have more than this part of the window waiting has much.
const MUCH_DIVISOR: u64 = 16;

/// A circuit stands still of which less than this part of what waits was read of late.
const STILL_DIVISOR: u64 = 16;

/// For so long it is remembered whose circuits were ended.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Of so many at most; then the one is forgotten who did it longest ago.
const MOST_REMEMBERED: usize = 1024;

/// The circuits of a channel.
#[derive(Debug)]
pub(super) struct Readers {
    /// What one circuit may have waiting.
    each: u64,
    /// The oldest first.
    circuits: Mutex<Vec<(StreamId, Weak<Gauge>)>>,
    /// Whose were ended, and when last.
    ended: Mutex<HashMap<u64, Instant>>,
}

/// How much of each had been read.
pub(super) struct Marks(HashMap<StreamId, u64>);

/// Circuits of one who asked for them.
#[derive(Default)]
struct Holding {
    /// What waits in all of them.
    waits: u64,
    /// Whether that was much at first.
    is_much: bool,
    /// What stands still last, and of that what was read least of late.
    circuits: Vec<Unread>,
}

/// Something waits in it that nobody has taken.
struct Unread {
    /// Bytes that were read of late.
    since: u64,
    waits: u64,
    gauge: Arc<Gauge>,
}

impl Unread {
    fn stands_still(&self) -> bool {
        self.since < self.waits.div_ceil(STILL_DIVISOR)
    }
}

impl Holding {
    /// Who comes first where one is to go.
    fn rank(&self) -> (bool, bool, u64) {
        let next = self.circuits.last();
        let is_still = self.is_much && next.is_some_and(Unread::stands_still);
        (is_still, next.is_some(), self.waits)
    }

    fn pop(&mut self) -> Option<Unread> {
        let gone = self.circuits.pop()?;
        self.waits = self.waits.saturating_sub(gone.waits);
        Some(gone)
    }
}

impl Readers {
    /// Of a channel on which one circuit may have `each` bytes waiting.
    pub(super) fn new(each: u64) -> Self {
        Self {
            each,
            circuits: Mutex::default(),
            ended: Mutex::default(),
        }
    }

    pub(super) fn enter(&self, stream: StreamId, gauge: &Arc<Gauge>) {
        let mut circuits = self.circuits.lock();
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

    /// How many circuits he may have on the channel, of which all may have the `whole` waiting.
    pub(super) fn may_have(&self, who: u64, whole: u64, now: Instant) -> usize {
        let since = self.ended.lock().get(&who).copied();
        let is_remembered =
            since.is_some_and(|since| now.saturating_duration_since(since) < REMEMBERED);
        if is_remembered {
            usize::try_from(self.may_stay(whole).max(1)).unwrap_or(usize::MAX)
        } else {
            usize::MAX
        }
    }

    /// Ends circuits whose streams are `unread`, as far as what waits in them is too much of the whole; `marks` are of a while ago. Answers how many.
    pub(super) fn end(&self, unread: &[StreamId], marks: &Marks, whole: u64, now: Instant) -> u64 {
        // Where it is more than the window of one, the rest is of the packets that it came in.
        let waits = |gauge: &Gauge| {
            gauge
                .waiting()
                .map_or(self.each, |most| most.min(self.each))
        };
        self.end_of(unread, marks, (whole, waits), now)
    }

    /// `waits` says how much of the whole a circuit takes.
    fn end_of(
        &self,
        unread: &[StreamId],
        marks: &Marks,
        (whole, waits): (u64, impl Fn(&Gauge) -> u64),
        now: Instant,
    ) -> u64 {
        let unread: HashSet<_> = unread.iter().collect();
        let mut by_whom = BTreeMap::<Option<u64>, Holding>::new();
        let mut all = 0u64;
        for (id, gauge) in self.all().filter(|(id, _)| unread.contains(id)) {
            let before = marks.0.get(&id).copied().unwrap_or_default();
            let since = gauge.has_read().saturating_sub(before);
            let waits = waits(&gauge);
            let holding = by_whom.entry(gauge.asked_by()).or_default();
            holding.waits = holding.waits.saturating_add(waits);
            all = all.saturating_add(waits);
            holding.circuits.push(Unread {
                since,
                waits,
                gauge,
            });
        }
        // Stable: of two that were read as much, the newer goes first.
        for holding in by_whom.values_mut() {
            holding.is_much = holding.waits > whole / MUCH_DIVISOR;
            let circuits = &mut holding.circuits;
            circuits.sort_by_key(|one| (one.stands_still(), Reverse(one.since)));
        }
        let may_wait = whole / LEFT_DIVISOR;
        let mut ended = 0;
        while all > may_wait {
            let most = by_whom.values_mut().max_by_key(|holding| holding.rank());
            let Some(gone) = most.and_then(Holding::pop) else {
                break;
            };
            if let Some(who) = gone.gauge.owner() {
                self.remember(who, now);
            }
            gone.gauge.end_whole();
            all = all.saturating_sub(gone.waits);
            ended += 1;
        }
        ended
    }

    fn may_stay(&self, whole: u64) -> u64 {
        whole / LEFT_DIVISOR / self.each.max(1)
    }

    fn remember(&self, who: u64, now: Instant) {
        let mut ended = self.ended.lock();
        if ended.len() >= MOST_REMEMBERED && !ended.contains_key(&who) {
            let oldest = ended.iter().min_by_key(|(_, since)| **since);
            let oldest = oldest.map(|(who, _)| *who);
            oldest.and_then(|who| ended.remove(&who));
        }
        ended.insert(who, now);
    }

    fn all(&self) -> impl Iterator<Item = (StreamId, Arc<Gauge>)> {
        let circuits = self.circuits.lock().clone();
        let there = |(id, gauge): (StreamId, Weak<Gauge>)| Some((id, gauge.upgrade()?));
        let circuits = circuits.into_iter().filter_map(there);
        circuits.filter(|(_, gauge)| !gauge.is_over())
    }
}

#[cfg(test)]
mod tests {
    use hoplite_quic::{Dir, SendWindow, Side};

    use super::*;
    use crate::{Handle, Origin};

    fn stream(n: u64) -> StreamId {
        StreamId::new(Side::Client, Dir::Bi, n)
    }

    /// Circuits of a channel, each asked for by one of these, who is a relay from 100 on: their ends here, and those that face who asked.
    fn circuits(readers: &Readers, whose: &[u64]) -> Vec<(Arc<Gauge>, Arc<Gauge>)> {
        let circuit = |(n, who): (u64, &u64)| {
            let [here, back] =
                [0, 0].map(|window| Arc::new(Gauge::quic(window, SendWindow::unbounded())));
            let origin = Origin {
                who: *who,
                is_relay: *who >= 100,
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
        let readers = Readers::new(10);
        let circuits = circuits(&readers, &[1, 2, 2, 2, 2, 1, 3]);
        circuits[2].0.read(9, 0);
        let marks = readers.marks();
        circuits[2].0.read(10, 0);
        circuits[4].0.read(7, 0);
        let unread: Vec<_> = (0..7).map(stream).collect();
        assert_eq!(readers.end(&unread, &marks, 400, Instant::now()), 2);
        assert_eq!(ended(&circuits), [1, 3]);
        let again = readers.end(&unread, &marks, 400, Instant::now());
        assert_eq!(again, 0, "the rest may stay");
    }

    #[test]
    fn circuits_that_are_read_stay_where_those_that_stand_still_make_room() {
        const EACH: u64 = 2 << 20;
        const CELL: u64 = 514;
        let readers = Readers::new(EACH);
        let whose: Vec<_> = [1; 128].into_iter().chain(2..42).collect();
        let circuits = circuits(&readers, &whose);
        let marks = readers.marks();
        let (his, others) = circuits.split_at(128);
        // He takes a cell now and then; of the others nothing was read of late of some.
        his.iter().for_each(|(gauge, _)| gauge.read(CELL, 0));
        for (n, (gauge, _)) in (0..).zip(others) {
            gauge.read(n % 4 * CELL, 0);
        }
        let unread: Vec<_> = (0..168).map(stream).collect();
        let waits = |gauge: &Gauge| match gauge.asked_by() {
            Some(1) => EACH,
            _ => CELL,
        };
        let whole = 128 * EACH;
        let count = readers.end_of(&unread, &marks, (whole, waits), Instant::now());
        assert_eq!((count, ended(others)), (113, vec![]));
        assert_eq!(ended(his).len(), 113);
    }

    #[test]
    fn who_has_the_window_and_reads_some_of_it_goes_before_little_that_stands_still() {
        const EACH: u64 = 2 << 20;
        let readers = Readers::new(EACH);
        let whose: Vec<_> = [1; 128].into_iter().chain(2..42).collect();
        let circuits = circuits(&readers, &whose);
        let marks = readers.marks();
        let (his, others) = circuits.split_at(128);
        his.iter().for_each(|(gauge, _)| gauge.read(EACH / 8, 0));
        let unread: Vec<_> = (0..168).map(stream).collect();
        let waits = |gauge: &Gauge| match gauge.asked_by() {
            Some(1) => EACH,
            _ => 40 * 514,
        };
        let count = readers.end_of(&unread, &marks, (128 * EACH, waits), Instant::now());
        assert!(count > 100, "{count}");
        assert!(ended(others).is_empty());
    }

    #[test]
    fn of_two_who_have_the_window_the_one_goes_who_reads_nothing_and_then_the_other() {
        let readers = Readers::new(100);
        let whose: Vec<_> = [[1; 30], [2; 30]].into_iter().flatten().collect();
        let circuits = circuits(&readers, &whose);
        let marks = readers.marks();
        let (read, stuck) = circuits.split_at(30);
        read.iter().for_each(|(gauge, _)| gauge.read(50, 0));
        let unread: Vec<_> = (0..60).map(stream).collect();
        let now = Instant::now();
        assert_eq!(readers.end(&unread, &marks, 8 * 3000, now), 30);
        assert_eq!((ended(read).len(), ended(stuck).len()), (0, 30));
        let again = readers.end(&unread, &marks, 8 * 1000, now);
        assert_eq!(again, 20, "they are too much as well");
    }

    #[test]
    fn an_eighth_may_wait_also_where_the_window_is_not_that_of_eight_circuits() {
        let readers = Readers::new(100);
        let circuits = circuits(&readers, &[1, 2, 3]);
        let unread: Vec<_> = (0..3).map(stream).collect();
        let marks = readers.marks();
        let waits = |gauge: &Gauge| if gauge.asked_by() == Some(1) { 100 } else { 10 };
        let count = readers.end_of(&unread, &marks, (200, waits), Instant::now());
        assert_eq!((count, ended(&circuits)), (1, vec![0]));
    }

    #[test]
    fn circuits_of_which_nothing_waits_stay() {
        let readers = Readers::new(10);
        let circuits = circuits(&readers, &[1; 8]);
        let unread: Vec<_> = (2..5).map(stream).collect();
        let marks = readers.marks();
        assert_eq!(readers.end(&unread, &marks, 10, Instant::now()), 3);
        assert_eq!(ended(&circuits), [2, 3, 4]);
    }

    #[test]
    fn of_equals_the_newest_go_first_and_those_that_are_gone_are_not_counted() {
        let readers = Readers::new(10);
        let mut circuits = circuits(&readers, &[1; 8]);
        drop(circuits.remove(0));
        let unread: Vec<_> = (0..8).map(stream).collect();
        let marks = readers.marks();
        assert_eq!(readers.end(&unread, &marks, 400, Instant::now()), 2);
        assert_eq!(ended(&circuits), [5, 6]);
    }

    #[test]
    fn whose_circuits_were_ended_may_have_a_few_for_a_while_and_a_relay_as_before() {
        let readers = Readers::new(10);
        let whose: Vec<_> = [7; 20].into_iter().chain([100; 20]).chain([8]).collect();
        let _circuits = circuits(&readers, &whose);
        let unread: Vec<_> = (0..41).map(stream).collect();
        let now = Instant::now();
        assert_eq!(readers.end(&unread, &readers.marks(), 400, now), 36);
        assert_eq!(readers.may_have(7, 400, now), 5);
        assert_eq!(
            readers.may_have(8, 400, now),
            usize::MAX,
            "he has lost none"
        );
        assert_eq!(
            readers.may_have(100, 400, now),
            usize::MAX,
            "others ask by it"
        );
        assert_eq!(readers.may_have(7, 400, now + REMEMBERED), usize::MAX);
    }

    #[test]
    fn so_many_are_remembered_and_of_those_the_latest() {
        let (readers, now) = (Readers::new(10), Instant::now());
        let who = |n: usize| u64::try_from(n).unwrap();
        for n in 0..=MOST_REMEMBERED {
            readers.remember(who(n), now + Duration::from_millis(who(n)));
        }
        let now = now + Duration::from_secs(5);
        assert_eq!(readers.may_have(0, 400, now), usize::MAX);
        assert_eq!(readers.may_have(1, 400, now), 5);
        assert_eq!(readers.may_have(who(MOST_REMEMBERED), 400, now), 5);
    }
}
