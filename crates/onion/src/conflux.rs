//! Conflux: several circuits to one exit, the legs of a set, carry the same streams. A machine of sequence numbers and choices, without I/O and clock.
//! `endpoint` holds one for a set's streams, at the client and at the exit, and tells it what comes and leaves on which leg. Proposal 329.
//!
//! ```text
//! client   LINK ───────▶   exit      on each leg; then what has a stream's id ("multiplexed") goes on any of them,
//!        ◀─────── LINKED             is numbered, and is handled at the other end in the order of its numbers.
//!          LINKED_ACK ─▶             SWITCH says where the next number on this leg continues.
//! ```
//!
//! A set is never resumed (§2.7): a leg that is lost with what it carried ends the set, as in C tor. Legs are linked when a set begins; only an exit
//! lets a client add one later (§2.4.4).
//!
//! The far end may be hostile. What waits out of its order is bounded ([`Bounds`]), and a gap that nothing can fill any more is seen at once.

use std::time::Duration;

use hoplite_wire::cell::{
    conflux::{DesiredUx, Link, Nonce, Switch},
    relay::RelayCommand,
};
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use order::Order;

pub use schedule::{Candidate, Scheduler};

pub mod order;
pub mod schedule;

/// Legs of a set at once: what C tor and Arti build (`cfx_num_legs_set`). Each brings a window of its own, so the exit takes no more.
pub const LEGS: usize = 2;

/// One leg of a set; a number that no other leg of it ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LegId(pub u16);

impl LegId {
    /// The first, and the only one of a circuit that is in no set.
    pub const FIRST: Self = Self(0);
}

/// How much may wait for what comes before it, in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// From here on a leg that is ahead is not acknowledged, so that its sender stops at its window.
    pub hold: usize,
    /// More break the protocol: `hold` and the largest window.
    pub most: usize,
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Links the legs.
    Client,
    /// Is asked to.
    Exit,
}

/// What the far end did; the set is closed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A part of the handshake that is not due on this leg.
    #[error("a Conflux handshake where none is due")]
    Handshake,
    /// LINKED of another set.
    #[error("a Conflux handshake with the nonce of another set")]
    Nonce,
    /// A leg too many.
    #[error("more Conflux legs than there may be")]
    Legs,
    /// SWITCH without anything after the last one, to nowhere, or too far.
    #[error("a Conflux SWITCH without reason")]
    Switch,
    /// A message of the set's streams on a leg that is not linked.
    #[error("a message on a Conflux leg that is not linked")]
    Unlinked,
    /// A number that was there already.
    #[error("a Conflux sequence number that has passed")]
    Passed,
    /// More wait for what comes before them than the windows allow.
    #[error("more Conflux cells out of order than the windows allow")]
    OutOfOrder,
    /// What comes next was on a leg that is gone.
    #[error("a Conflux leg has gone with what it carried")]
    Lost,
}

/// What a leg takes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// A DATA cell: its congestion window has room, and its channel takes cells.
    pub may_send: bool,
    /// For how long it was full again whenever it had had room.
    pub full_for: Duration,
    /// The round trip that congestion control has measured, if it has.
    pub rtt: Option<Duration>,
}

/// What becomes of a set that has lost a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing was lost with it.
    GoesOn,
    /// All of its legs are to be closed.
    Over,
}

/// One end of a set. `T` is what waits out of order.
#[derive(Debug)]
pub struct Set<T> {
    side: Side,
    nonce: Nonce,
    /// How it wishes to be sent to.
    wish: DesiredUx,
    scheduler: Scheduler,
    legs: Vec<Leg>,
    order: Order<T>,
    /// What was sent last went there.
    current: Option<LegId>,
}

#[derive(Debug)]
struct Leg {
    id: LegId,
    linking: Linking,
    /// The round trip of its handshake.
    rtt: Option<Duration>,
    /// The number of the last message sent on it, or skipped by SWITCH.
    sent: u64,
}

/// How far the handshake of a leg is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linking {
    /// LINK was sent then (client).
    Asked(Instant),
    /// LINKED was sent then (exit): it may be sent on.
    Answered(Instant),
    /// Both ends have measured it.
    Linked,
}

/// Whether such a message is numbered and handled in order. §2.8: all that must be in order with a stream's data.
pub fn is_multiplexed(command: RelayCommand) -> bool {
    matches!(
        command,
        RelayCommand::BEGIN
            | RelayCommand::DATA
            | RelayCommand::END
            | RelayCommand::CONNECTED
            | RelayCommand::RESOLVE
            | RelayCommand::RESOLVED
            | RelayCommand::XOFF
            | RelayCommand::XON
            | RelayCommand::CONNECT_UDP
            | RelayCommand::CONNECTED_UDP
            | RelayCommand::DATAGRAM
    )
}

/// Whether it is of the set itself: the handshake, and SWITCH.
pub fn is_of_set(command: RelayCommand) -> bool {
    matches!(
        command,
        RelayCommand::CONFLUX_LINK
            | RelayCommand::CONFLUX_LINKED
            | RelayCommand::CONFLUX_LINKED_ACK
            | RelayCommand::CONFLUX_SWITCH
    )
}

// The handshake. §2.2; what is refused: §4.2.1.

impl<T> Set<T> {
    /// A set without legs.
    pub fn new(side: Side, nonce: Nonce, bounds: Bounds) -> Self {
        Self {
            side,
            nonce,
            // Each end wishes what C tor's does there.
            wish: match side {
                Side::Client => DesiredUx::HIGH_THROUGHPUT,
                Side::Exit => DesiredUx::MIN_LATENCY,
            },
            scheduler: Scheduler::LowRtt,
            legs: Vec::new(),
            order: Order::new(bounds),
            current: None,
        }
    }

    /// Begins to link a circuit (client): the LINK to be sent on it.
    ///
    /// # Errors
    /// [`Violation::Legs`], [`Violation::Handshake`]: there are as many as may be, or it is one already.
    pub fn ask(&mut self, id: LegId, now: Instant) -> Result<Link, Violation> {
        self.add(id, Linking::Asked(now))?;
        Ok(self.link(0, 0))
    }

    /// LINK has come (exit): the LINKED to be sent.
    ///
    /// # Errors
    /// [`Violation`]: it is refused; the leg is to be closed, and with [`Violation::Lost`] the set.
    pub fn answer(&mut self, id: LegId, link: &Link, now: Instant) -> Result<Link, Violation> {
        if self.side != Side::Exit {
            return Err(Violation::Handshake);
        }
        self.check_nonce(link)?;
        // §2.4.4: what it has sent must have arrived.
        if link.last_sent > self.order.delivered() {
            return Err(Violation::Lost);
        }
        self.add(id, Linking::Answered(now))?;
        self.scheduler = Scheduler::of(link.wish);
        Ok(self.link(self.last_sent(), self.order.delivered()))
    }

    /// LINKED has come (client); LINKED_ACK is to be sent.
    ///
    /// # Errors
    /// [`Violation`]: the set is to be closed.
    pub fn linked(&mut self, id: LegId, link: &Link, now: Instant) -> Result<(), Violation> {
        self.check_nonce(link)?;
        // Nothing can have been sent or received: there are no streams before all legs are linked.
        if link.last_sent != 0 || link.last_received != 0 {
            return Err(Violation::Lost);
        }
        let leg = self.leg(id).ok_or(Violation::Handshake)?;
        let Linking::Asked(since) = leg.linking else {
            return Err(Violation::Handshake);
        };
        leg.linking = Linking::Linked;
        leg.rtt = Some(now.saturating_duration_since(since));
        self.scheduler = Scheduler::of(link.wish);
        Ok(())
    }

    /// LINKED_ACK has come (exit).
    ///
    /// # Errors
    /// [`Violation::Handshake`]: the set is to be closed.
    pub fn acknowledged(&mut self, id: LegId, now: Instant) -> Result<(), Violation> {
        let leg = self.leg(id).ok_or(Violation::Handshake)?;
        let Linking::Answered(since) = leg.linking else {
            return Err(Violation::Handshake);
        };
        leg.linking = Linking::Linked;
        leg.rtt = Some(now.saturating_duration_since(since));
        Ok(())
    }

    /// Whether both ends have measured this leg.
    pub fn is_linked(&self, id: LegId) -> bool {
        let linked = |leg: &Leg| leg.id == id && leg.linking == Linking::Linked;
        self.legs.iter().any(linked)
    }

    fn add(&mut self, id: LegId, linking: Linking) -> Result<(), Violation> {
        if self.legs.iter().any(|leg| leg.id == id) {
            return Err(Violation::Handshake);
        }
        if self.legs.len() >= LEGS {
            return Err(Violation::Legs);
        }
        let sent = self.last_sent();
        self.order.add(id);
        self.legs.push(Leg {
            id,
            linking,
            rtt: None,
            sent,
        });
        Ok(())
    }

    fn link(&self, last_sent: u64, last_received: u64) -> Link {
        Link {
            nonce: self.nonce.clone(),
            last_sent,
            last_received,
            wish: self.wish,
        }
    }

    /// In constant time: who guesses learns nothing by how long it took.
    fn check_nonce(&self, link: &Link) -> Result<(), Violation> {
        if bool::from(link.nonce.0.ct_eq(&self.nonce.0)) {
            Ok(())
        } else {
            Err(Violation::Nonce)
        }
    }

    fn leg(&mut self, id: LegId) -> Option<&mut Leg> {
        self.legs.iter_mut().find(|leg| leg.id == id)
    }
}

// What comes. §2.6.

impl<T> Set<T> {
    /// SWITCH has come on a leg.
    ///
    /// # Errors
    /// [`Violation`]: the set is to be closed.
    pub fn switched(&mut self, id: LegId, switch: Switch) -> Result<(), Violation> {
        self.check_linked(id)?;
        self.order.switched(id, switch.relative)
    }

    /// A message that is multiplexed has come on a leg: it is handed back if its turn has come, and then so may those be that waited ([`Self::due`]).
    ///
    /// # Errors
    /// [`Violation`]: the set is to be closed.
    pub fn receive(&mut self, id: LegId, message: T) -> Result<Option<T>, Violation> {
        self.check_linked(id)?;
        self.order.receive(id, message)
    }

    /// Whether the next message on this leg is the next of all.
    pub fn is_next(&self, id: LegId) -> bool {
        self.order.is_next(id)
    }

    /// The next of those that have waited, if its turn has come.
    pub fn due(&mut self) -> Option<T> {
        self.order.due()
    }

    /// Whether what comes on this leg is not to be acknowledged now: it is ahead of others, and too much waits already.
    pub fn holds(&self, id: LegId) -> bool {
        self.order.holds(id)
    }

    /// How many messages wait for what comes before them.
    pub fn waiting(&self) -> usize {
        self.order.waiting()
    }

    /// The far end's handshake goes before all else on a leg.
    fn check_linked(&mut self, id: LegId) -> Result<(), Violation> {
        match self.leg(id) {
            Some(leg) if leg.linking == Linking::Linked => Ok(()),
            _ => Err(Violation::Unlinked),
        }
    }
}

// What leaves. §2.5, §2.6, §3.

impl<T> Set<T> {
    /// On which leg the next message goes, if it is DATA: none if one is to wait. `room` says what a leg takes.
    pub fn choose(&self, room: impl Fn(LegId) -> Option<Room>) -> Option<LegId> {
        let legs = self.legs.iter().filter(|leg| leg.may_carry());
        let candidates = legs.filter_map(|leg| {
            let room = room(leg.id)?;
            Some(Candidate {
                leg: leg.id,
                rtt: room.rtt.or(leg.rtt),
                full_for: room.full_for,
                may_send: room.may_send,
            })
        });
        let candidates: Vec<_> = candidates.collect();
        self.scheduler.choose(&candidates, self.current)
    }

    /// On which leg what is no DATA goes where each is full (§2.5: "MUST be sent on the current circuit"): no window holds it back.
    pub fn fallback(&self) -> Option<LegId> {
        let legs = || self.legs.iter().filter(|leg| leg.may_carry());
        self.current.or_else(|| {
            let first = legs().min_by_key(|leg| leg.rtt.unwrap_or(Duration::MAX));
            first.map(|leg| leg.id)
        })
    }

    /// A message that is multiplexed leaves on a leg; a SWITCH that is handed out is to be sent before it.
    pub fn send(&mut self, id: LegId) -> Option<Switch> {
        let last = self.last_sent();
        self.current = Some(id);
        let leg = self.leg(id)?;
        let gap = last.saturating_sub(leg.sent);
        leg.sent = last.saturating_add(1);
        // A gap that does not fit would take 2 TB on one leg while the other rests; windows are smaller.
        let relative = u32::try_from(gap).ok().filter(|gap| *gap > 0)?;
        Some(Switch { relative })
    }

    /// A leg is gone; `carries` says that as much as one SENDME acknowledges was under way on it. §2.4.3.
    pub fn close(&mut self, id: LegId, carries: bool) -> Fate {
        let Some(place) = self.legs.iter().position(|leg| leg.id == id) else {
            return Fate::GoesOn;
        };
        let gone = self.legs.swap_remove(place);
        let lost = self.order.close(id);
        // "If either circuit does not receive a RELAY_CONFLUX_LINKED response, both circuits MUST be closed."
        let unlinked = self.side == Side::Client && gone.linking != Linking::Linked;
        let over = unlinked
            || carries
            || lost.is_err()
            || self.legs.is_empty()
            || self.current == Some(id)
            || gone.sent > self.last_sent();
        if over { Fate::Over } else { Fate::GoesOn }
    }

    /// The highest number sent on any leg.
    fn last_sent(&self) -> u64 {
        self.legs.iter().map(|leg| leg.sent).max().unwrap_or(0)
    }
}

impl Leg {
    /// Whether something may be sent on it: at an exit already before LINKED_ACK, which may be behind the first message on another leg.
    fn may_carry(&self) -> bool {
        !matches!(self.linking, Linking::Asked(_))
    }
}

#[cfg(test)]
mod tests;
