//! What comes on the legs of a set, in the order in which it was sent: a number for each leg, and what waits for others before it.
//! [`super::Set`] asks it of each message. Proposal 329 §2.6 (sequencing), §4.1 (memory).
//!
//! A number only grows, on each leg. So a leg that has passed what is to be delivered next cannot bring it any more; if all have, it is lost.

use std::collections::BTreeMap;

use super::{Bounds, LegId, Violation};

/// How far a leg may be ahead of what is delivered: more than two of the largest windows, and what no window counts.
const FARTHEST: u64 = 1 << 16;

/// The receiving side of a set.
#[derive(Debug)]
pub struct Order<T> {
    bounds: Bounds,
    /// The number of the last message that was handed on.
    delivered: u64,
    legs: Vec<Leg>,
    /// Those that came early, by their numbers.
    early: BTreeMap<u64, T>,
}

#[derive(Debug)]
struct Leg {
    id: LegId,
    /// The number of the last message that came on it, or was skipped by SWITCH.
    received: u64,
    /// A SWITCH has come, and nothing after it.
    switched: bool,
}

impl<T> Order<T> {
    /// Nothing has come, and there are no legs.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            delivered: 0,
            legs: Vec::new(),
            early: BTreeMap::new(),
        }
    }

    /// One leg more, on which numbers continue behind what was delivered.
    pub fn add(&mut self, id: LegId) {
        self.legs.push(Leg {
            id,
            received: self.delivered,
            switched: false,
        });
    }

    /// The number of the last message that was handed on.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// The numbers on this leg continue so much higher.
    ///
    /// # Errors
    /// [`Violation::Switch`]: nothing came after the last SWITCH on this leg; it says nothing, which only who has sent nothing at all may do, as C tor's
    /// exits can; or it goes farther than windows reach. [`Violation::Lost`].
    pub fn switched(&mut self, id: LegId, relative: u32) -> Result<(), Violation> {
        let (delivered, begun) = (self.delivered, !self.is_fresh());
        let leg = self.leg(id)?;
        if leg.switched || (relative == 0 && begun) {
            return Err(Violation::Switch);
        }
        leg.switched = true;
        leg.received = leg.received.saturating_add(relative.into());
        if leg.received.saturating_sub(delivered) > FARTHEST {
            return Err(Violation::Switch);
        }
        self.check_gap()
    }

    /// A message has come: it is handed back if it is the next.
    ///
    /// # Errors
    /// [`Violation::Passed`], [`Violation::OutOfOrder`], [`Violation::Lost`].
    pub fn receive(&mut self, id: LegId, message: T) -> Result<Option<T>, Violation> {
        let delivered = self.delivered;
        let leg = self.leg(id)?;
        leg.switched = false;
        leg.received = leg.received.saturating_add(1);
        let number = leg.received;
        if number <= delivered {
            return Err(Violation::Passed);
        }
        if number == delivered + 1 {
            self.delivered = number;
            return Ok(Some(message));
        }
        if self.early.len() >= self.bounds.most {
            return Err(Violation::OutOfOrder);
        }
        if self.early.insert(number, message).is_some() {
            return Err(Violation::Passed);
        }
        self.check_gap().map(|()| None)
    }

    /// Whether the next message on this leg is the next of all.
    pub fn is_next(&self, id: LegId) -> bool {
        let mut legs = self.legs.iter();
        legs.any(|leg| leg.id == id && leg.received == self.delivered)
    }

    /// The next, if it came early.
    pub fn due(&mut self) -> Option<T> {
        let next = self.delivered.saturating_add(1);
        let message = self.early.remove(&next)?;
        self.delivered = next;
        Some(message)
    }

    /// How many came early.
    pub fn waiting(&self) -> usize {
        self.early.len()
    }

    /// Whether this leg is ahead, and too many came early already. The leg that is to bring what is missing is never ahead.
    pub fn holds(&self, id: LegId) -> bool {
        let ahead = |leg: &Leg| leg.id == id && leg.received > self.delivered;
        self.early.len() >= self.bounds.hold && self.legs.iter().any(ahead)
    }

    /// A leg is gone.
    ///
    /// # Errors
    /// [`Violation::Lost`]: with something that was to come on it.
    pub fn close(&mut self, id: LegId) -> Result<(), Violation> {
        let highest = |legs: &[Leg]| legs.iter().map(|leg| leg.received).max();
        let before = highest(&self.legs);
        self.legs.retain(|leg| leg.id != id);
        // It was what the far end sends on: more was under way on it.
        if highest(&self.legs) < before {
            return Err(Violation::Lost);
        }
        self.check_gap()
    }

    /// What is missing can still come: on a leg that has not passed it.
    fn check_gap(&self) -> Result<(), Violation> {
        let passed = |leg: &Leg| leg.received > self.delivered;
        if self.legs.iter().all(passed) {
            Err(Violation::Lost)
        } else {
            Ok(())
        }
    }

    /// Whether nothing was sent yet, as far as is known.
    fn is_fresh(&self) -> bool {
        let fresh = |leg: &Leg| leg.received == 0 && !leg.switched;
        self.delivered == 0 && self.legs.iter().all(fresh)
    }

    fn leg(&mut self, id: LegId) -> Result<&mut Leg, Violation> {
        let mut legs = self.legs.iter_mut();
        legs.find(|leg| leg.id == id).ok_or(Violation::Unlinked)
    }
}
