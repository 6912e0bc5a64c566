//! Governs when one connection acknowledges. Its keys hand it every packet, its owner (`link`, `masque`, `relay`) the policy and the round trip.
//! The local stack is told by an ACK_FREQUENCY frame that is put before what it receives: it obeys from the next packet on. Where datagrams
//! are not acknowledged it never sees them: they are cut out of the packets and come here by [`Governor::poll_datagram`].
//! draft-ietf-quic-ack-frequency §4, §5, §6; RFC 9221 §5.2 (DATAGRAM frames and acknowledgements).

mod acks;
mod cut;
mod fold;
mod inbox;
mod probe;
mod schedule;
mod seen;
#[cfg(test)]
mod tests;
mod unfold;

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use hoplite_wire::{
    quic::{Content, Frames, kind},
    tuning::Acks,
};

use self::{
    cut::Cutter, fold::Folder, inbox::Inbox, probe::Probe, schedule::Schedule, seen::Seen,
    unfold::Unfolder,
};

/// "max_ack_delay … a default of 25 milliseconds is assumed" (RFC 9000 §18.2).
pub const USUAL_DELAY: Duration = Duration::from_millis(25);

/// What is fixed when a connection begins.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The longest delay that a policy of this end may come to without the peer's asking: it is told when the connection begins (max_ack_delay).
    pub own_delay: Duration,
    /// The longest delay that the peer may come to have because we ask for it: our stack waits so much longer for what it sends.
    pub peer_delay: Duration,
    /// Octets of datagrams that may wait for their reader; beyond, the oldest are dropped.
    pub inbox: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            own_delay: USUAL_DELAY,
            peer_delay: Duration::ZERO,
            inbox: 1 << 20,
        }
    }
}

/// Shared by the keys of one connection and its owner.
pub struct Governor {
    bounds: Bounds,
    state: Mutex<State>,
    inbox: Inbox,
}

/// No clock in here: `now` is handed in.
#[derive(Debug, Default)]
struct State {
    acks: Acks,
    schedule: Schedule,
    seen: Seen,
    probe: Probe,
    cutter: Cutter,
    folder: Folder,
    unfolder: Unfolder,
    /// The congestion controller wants to hear of every lost packet.
    tells_all: bool,
}

/// Which frames that matter here a packet has.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    ack: bool,
    ack_frequency: bool,
    datagram: bool,
}

impl Found {
    fn within(payload: &[u8]) -> Self {
        let mut found = Self::default();
        for frame in Frames::new(payload).flatten() {
            match frame.content {
                Content::Ack(_) => found.ack = true,
                Content::Datagram(_) => found.datagram = true,
                _ => found.ack_frequency |= frame.kind == kind::ACK_FREQUENCY,
            }
        }
        found
    }
}

impl Governor {
    /// For a connection that begins; it acknowledges as its stack does.
    #[must_use]
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            state: Mutex::new(State {
                acks: Acks::Default,
                ..State::default()
            }),
            inbox: Inbox::new(bounds.inbox),
        })
    }

    /// From now on this end acknowledges so; a delay begins when `after` packets have been received since the connection began.
    pub fn set(&self, acks: Acks, after: u16) {
        let mut state = self.state();
        state.acks = acks;
        state.schedule.set(acks, after);
    }

    /// Whether the stack hears of every lost datagram, as a congestion controller must that measures how much arrives. Otherwise it hears of one
    /// a round trip.
    pub fn tell_all_losses(&self, all: bool) {
        self.state().tells_all = all;
    }

    /// How this end acknowledges.
    #[must_use]
    pub fn acks(&self) -> Acks {
        self.state().acks
    }

    /// What the round trip is now.
    pub fn round_trip(&self, rtt: Duration) {
        let mut state = self.state();
        state.schedule.round_trip(rtt);
        state.probe.round_trip(rtt);
    }

    /// A datagram that was cut out of a packet.
    pub fn poll_datagram(&self, cx: &mut Context<'_>) -> Poll<Bytes> {
        self.inbox.poll(cx)
    }

    /// The same, if one is there.
    #[must_use]
    pub fn next_datagram(&self) -> Option<Bytes> {
        self.inbox.pop()
    }

    /// How many datagrams were cut out: signs of life that the stack does not count.
    #[must_use]
    pub fn datagrams(&self) -> u64 {
        self.inbox.taken()
    }

    /// How many of them were dropped because nobody read them in time.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.inbox.dropped()
    }

    pub(super) const fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A 1-RTT packet was received and is authentic; what the stack gets of it is what this leaves.
    pub(super) fn received(&self, number: u64, payload: &mut BytesMut, now: impl Fn() -> Instant) {
        let mut state = self.state();
        let Some(gap) = state.seen.insert(number) else {
            return;
        };
        state.schedule.received();
        let found = Found::within(payload);
        if found.ack_frequency {
            state.tame(payload);
        }
        if state.acks == Acks::Never {
            state.probe.gap(gap);
            if found.datagram {
                state.cut(payload, now(), &self.inbox);
            }
        }
        if found.ack {
            if !state.tells_all {
                state.folder.fold(payload);
            }
            state.unfolder.unfold(payload);
        }
        state.schedule.tell(payload);
        drop(state);
        self.inbox.wake();
    }

    /// A 1-RTT packet is about to be sent.
    pub(super) fn sent(&self, number: u64, size: usize, frames: Frames<'_>, now: Instant) {
        let mut state = self.state();
        state.folder.sent(number, size, frames);
        state.unfolder.sent(number, now);
        let is_ack = |content: &Content<'_>| matches!(content, Content::Ack(_));
        if state.acks == Acks::Never && frames.flatten().any(|frame| is_ack(&frame.content)) {
            state.probe.acknowledged(now);
        }
    }
}

impl State {
    /// A peer's own ACK_FREQUENCY frame, where it is not to be obeyed, becomes a PING: it is still acknowledged.
    fn tame(&self, payload: &mut [u8]) {
        while let Some([first, rest @ ..]) = self
            .unwanted(payload)
            .and_then(|range| payload.get_mut(range))
        {
            *first = 0x01;
            rest.fill(0x00);
        }
    }

    /// Where the first of them stands.
    fn unwanted(&self, payload: &[u8]) -> Option<Range<usize>> {
        let obeyed = matches!(self.acks, Acks::Default | Acks::Extension);
        let mut at = 0;
        Frames::new(payload).flatten().find_map(|frame| {
            let start = at;
            at += frame.size;
            let Content::Numbers([sequence, _, delay, _]) = frame.content else {
                return None;
            };
            let is_fine = obeyed && schedule::is_reasonable(sequence, delay);
            (frame.kind == kind::ACK_FREQUENCY && !is_fine).then_some(start..at)
        })
    }

    fn cut(&mut self, payload: &mut BytesMut, now: Instant, inbox: &Inbox) {
        let cut = self.cutter.cut(payload, |datagram| inbox.push(datagram));
        if cut && self.probe.is_due(now) {
            self.probe.acknowledged(now);
            // In front: a STREAM frame without a length takes all that stands behind it for its own (RFC 9000 §19.8).
            let rest = std::mem::replace(payload, BytesMut::from(&probe::FRAMES[..]));
            payload.extend_from_slice(&rest);
        }
    }
}

impl fmt::Debug for Governor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Governor")
            .field("acks", &self.acks())
            .finish_non_exhaustive()
    }
}
