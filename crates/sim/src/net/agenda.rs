//! What is to happen, and when. What happens at the same time does so in the order in which it was added.
//! The heap has only times and places: a packet is moved once into its place and once out of it, whatever goes before it.

use std::{cmp::Reverse, collections::BinaryHeap};

/// What is to happen.
#[derive(Debug)]
pub(super) struct Agenda<T> {
    /// When, the how-manieth that was added, and where it is.
    times: BinaryHeap<Reverse<(u64, u64, usize)>>,
    added: u64,
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self {
            times: BinaryHeap::new(),
            added: 0,
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Agenda<T> {
    /// `what` happens at this time.
    pub(super) fn add(&mut self, at: u64, what: T) {
        self.added = self.added.wrapping_add(1);
        let place = self.place(what);
        self.times.push(Reverse((at, self.added, place)));
    }

    fn place(&mut self, what: T) -> usize {
        let free = self.free.pop();
        let free = free.and_then(|place| Some((place, self.places.get_mut(place)?)));
        if let Some((place, room)) = free {
            *room = Some(what);
            return place;
        }
        self.places.push(Some(what));
        self.places.len().saturating_sub(1)
    }

    /// When the next one happens.
    pub(super) fn next(&self) -> Option<u64> {
        let next = self.times.peek();
        next.map(|Reverse((at, ..))| *at)
    }

    /// The next one that happens until `now`, with its time.
    pub(super) fn take(&mut self, now: u64) -> Option<(u64, T)> {
        self.next().filter(|at| *at <= now)?;
        let Reverse((at, _, place)) = self.times.pop()?;
        let what = self.places.get_mut(place)?.take()?;
        self.free.push(place);
        Some((at, what))
    }

    /// All of it, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_goes_first_and_of_the_same_time_the_first() {
        let mut agenda = Agenda::default();
        for (at, what) in [(2, "c"), (1, "a"), (2, "d"), (1, "b")] {
            agenda.add(at, what);
        }
        assert_eq!(agenda.next(), Some(1));
        assert_eq!(agenda.take(0), None);
        let taken: Vec<_> = std::iter::from_fn(|| agenda.take(1)).collect();
        assert_eq!(taken, [(1, "a"), (1, "b")]);
        agenda.add(1, "late");
        assert_eq!(agenda.iter().count(), 3);
        let taken: Vec<_> = std::iter::from_fn(|| agenda.take(2)).collect();
        assert_eq!(taken, [(1, "late"), (2, "c"), (2, "d")]);
        assert_eq!(agenda.places.len(), 4);
    }
}
