//! Which delay the local stack should keep, and whether it was told. No clock; [`super::Governor`] feeds it.

use std::time::Duration;

use bytes::BytesMut;
use hoplite_wire::{
    quic::AckFrequency,
    tuning::{Acks, DELAYS},
};

/// Above every number that a reasonable peer's own frames reach, so that a peer cannot overrule us.
const SEQUENCE: u64 = 1 << 40;

/// So many packets never wait: only the delay counts.
const NO_THRESHOLD: u64 = 1 << 30;

/// An ACK goes out at once when it tells the sender of a loss: the sender takes a packet for lost when the third after it has arrived
/// (RFC 9002 §6.1.1). With less, each reordered packet costs one; with 0, a loss is told only when the delay is over.
const REORDERING: u64 = 3;

/// RFC 9000 §13.2.2: "A receiver SHOULD send an ACK frame after receiving at least two ack-eliciting packets."
const USUAL: AckFrequency = AckFrequency {
    sequence: SEQUENCE,
    threshold: 1,
    delay: 25_000,
    reordering: 1,
};

/// What one connection's stack was told, and what it should be told.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    acks: Acks,
    after: u64,
    received: u64,
    rtt: Option<Duration>,
    /// Something has changed since it was last looked at.
    changed: bool,
    /// The delay that the stack keeps; `None` is its own.
    told: Option<Duration>,
    frames: u64,
}

/// Whether a peer's own frame asks for something that a sender may want.
pub(super) fn is_reasonable(sequence: u64, delay: u64) -> bool {
    sequence < SEQUENCE && Duration::from_micros(delay) <= *DELAYS.end()
}

impl Schedule {
    pub(super) fn set(&mut self, acks: Acks, after: u16) {
        (self.acks, self.after, self.changed) = (acks, after.into(), true);
    }

    pub(super) fn round_trip(&mut self, rtt: Duration) {
        (self.rtt, self.changed) = (Some(rtt), true);
    }

    pub(super) fn received(&mut self) {
        self.received = self.received.saturating_add(1);
        self.changed |= self.received == self.after;
    }

    /// What the stack should keep. Where datagrams are not acknowledged, the rest is, as suits.
    fn wanted(&self) -> Option<Duration> {
        match self.received < self.after {
            true => None,
            false => self.acks.delay(self.rtt),
        }
    }

    /// Puts what is to be told before the frames of a packet. Before, because a DATAGRAM frame may run to the packet's end.
    pub(super) fn tell(&mut self, payload: &mut BytesMut) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let wanted = self.wanted();
        if is_near(wanted, self.told) {
            return;
        }
        self.told = wanted;
        self.frames += 1;
        let mut frame = wanted.map_or(USUAL, |delay| AckFrequency {
            threshold: NO_THRESHOLD,
            delay: u64::try_from(delay.as_micros()).unwrap_or(u64::MAX),
            reordering: REORDERING,
            ..USUAL
        });
        frame.sequence += self.frames;
        let received = std::mem::take(payload);
        payload.reserve(received.len() + 34);
        frame.write(payload);
        payload.extend_from_slice(&received);
    }
}

/// A round trip is never the same twice: an eighth more or less changes nothing.
fn is_near(a: Option<Duration>, b: Option<Duration>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.abs_diff(b) <= b / 8,
        (a, b) => a == b,
    }
}
