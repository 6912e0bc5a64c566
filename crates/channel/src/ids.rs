//! Which circuit ids are in use on a channel, and whose they are to choose. Touched when circuits begin and end, never for a cell.
//! tor-spec: "Choosing circuit IDs in create cells".

use std::collections::HashSet;

use hoplite_wire::cell::CircuitId;

/// The bit that the channel's initiator sets.
const INITIATOR_BIT: u32 = 1 << 31;

/// The ids of one channel.
#[derive(Debug)]
pub(super) struct Ids {
    initiator: bool,
    next: u32,
    most: usize,
    ours: HashSet<CircuitId>,
    theirs: HashSet<CircuitId>,
}

/// Why there is no circuit of this id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoId {
    /// It is in use.
    Taken,
    /// It is for the other end to choose, or none at all.
    NotTheirs,
    /// There are as many circuits as may be.
    TooMany,
}

impl Ids {
    /// For one end. Ours count from `start`, which should be random: whoever knows one id knows nothing of how many there were.
    pub(super) fn new(initiator: bool, start: u32, most: u32) -> Self {
        Self {
            initiator,
            next: start,
            most: usize::try_from(most).unwrap_or(usize::MAX),
            ours: HashSet::new(),
            theirs: HashSet::new(),
        }
    }

    /// An id for a circuit of ours; one that ended is long out of use before it comes again.
    pub(super) fn choose(&mut self) -> Option<CircuitId> {
        if self.ours.len() >= self.most {
            return None;
        }
        // More tries than ids in use: one of them is free.
        (0..=self.ours.len()).find_map(|_| {
            let id = self.candidate();
            self.ours.insert(id).then_some(id)
        })
    }

    /// The peer chose `id`.
    pub(super) fn claim(&mut self, id: CircuitId) -> Result<(), NoId> {
        if id.is_channel() || id.is_initiators() == self.initiator {
            return Err(NoId::NotTheirs);
        }
        if self.theirs.contains(&id) {
            return Err(NoId::Taken);
        }
        if self.theirs.len() >= self.most {
            return Err(NoId::TooMany);
        }
        self.theirs.insert(id);
        Ok(())
    }

    /// The circuit has ended.
    pub(super) fn release(&mut self, id: CircuitId) {
        if !self.ours.remove(&id) {
            self.theirs.remove(&id);
        }
    }

    /// How many circuits there are.
    pub(super) fn len(&self) -> usize {
        self.ours.len().saturating_add(self.theirs.len())
    }

    /// 1 to 2^31 - 1, then from 1 again; 0 is no circuit.
    fn candidate(&mut self) -> CircuitId {
        self.next = (self.next & !INITIATOR_BIT).max(1);
        let number = self.next;
        self.next = number.wrapping_add(1);
        CircuitId::new(if self.initiator {
            number | INITIATOR_BIT
        } else {
            number
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> CircuitId {
        CircuitId::new(number)
    }

    #[test]
    fn the_initiator_sets_the_high_bit_and_the_responder_does_not() {
        let (mut a, mut b) = (Ids::new(true, 7, 10), Ids::new(false, 7, 10));
        assert_eq!(a.choose(), Some(id(INITIATOR_BIT | 7)));
        assert_eq!(b.choose(), Some(id(7)));
        assert_eq!(a.claim(id(7)), Ok(()));
        assert_eq!(b.claim(id(INITIATOR_BIT | 7)), Ok(()));
    }

    #[test]
    fn ids_of_the_wrong_half_none_at_all_and_twice_the_same_are_refused() {
        let mut ids = Ids::new(true, 1, 10);
        assert_eq!(ids.claim(id(INITIATOR_BIT | 7)), Err(NoId::NotTheirs));
        assert_eq!(ids.claim(id(0)), Err(NoId::NotTheirs));
        assert_eq!(ids.claim(id(7)), Ok(()));
        assert_eq!(ids.claim(id(7)), Err(NoId::Taken));
        ids.release(id(7));
        assert_eq!(ids.claim(id(7)), Ok(()));
    }

    #[test]
    fn each_side_has_so_many_circuits_and_no_more() {
        let mut ids = Ids::new(false, 1, 2);
        let ours: Vec<_> = std::iter::from_fn(|| ids.choose()).collect();
        assert_eq!(ours.len(), 2);
        assert_eq!(ids.claim(id(INITIATOR_BIT | 1)), Ok(()));
        assert_eq!(ids.claim(id(INITIATOR_BIT | 2)), Ok(()));
        assert_eq!(ids.claim(id(INITIATOR_BIT | 3)), Err(NoId::TooMany));
        ids.release(ours[0]);
        assert!(ids.choose().is_some());
        assert_eq!(ids.len(), 4);
    }

    #[test]
    fn ids_wrap_around_past_zero_and_those_in_use() {
        let mut ids = Ids::new(false, INITIATOR_BIT - 1, 3);
        let chosen: Vec<_> = std::iter::from_fn(|| ids.choose()).collect();
        assert_eq!(chosen, [id(INITIATOR_BIT - 1), id(1), id(2)]);
        ids.release(id(2));
        ids.next = 1;
        assert_eq!(ids.choose(), Some(id(2)));
    }
}
