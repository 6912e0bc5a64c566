//! When a connection whose datagrams are not acknowledged acknowledges nevertheless, so that the sender's loss detection, round trip and
//! signs of life stay true. No clock; [`super::Governor`] feeds it. The end of a burst is probed by the sender's own timer (RFC 9002 §6.2).

use std::time::{Duration, Instant};

use super::USUAL_DELAY;

/// PING and IMMEDIATE_ACK: the stack acknowledges all that it has received, at once.
pub(super) const FRAMES: [u8; 2] = [0x01, 0x1f];

/// No probe sooner than this after the last, but for very many gaps.
const SHORTEST: Duration = Duration::from_millis(5);
/// The usual time between two is a round trip and what the sender expects an acknowledgement to be held back (RFC 9002 §6.2.1): so no packet
/// of a slow flow makes the sender's timer fire. On very long roads it is this.
const LONGEST: Duration = Duration::from_millis(500);

/// More than three bursts of losses told at once look to the sender as if the path took no large packets any more.
const SOME_GAPS: u32 = 3;
/// The stack keeps 64 ranges. Each is told several times before it is forgotten, since acknowledgements are lost, too.
const MANY_GAPS: u32 = 16;

/// When the next one is due.
#[derive(Debug, Default)]
pub(super) struct Probe {
    rtt: Duration,
    last: Option<Instant>,
    /// When the datagram before came.
    datagram: Option<Instant>,
    gaps: u32,
}

impl Probe {
    pub(super) fn round_trip(&mut self, rtt: Duration) {
        self.rtt = rtt;
    }

    /// A packet has arrived, with or without a gap before it.
    pub(super) fn gap(&mut self, gap: bool) {
        self.gaps = self.gaps.saturating_add(gap.into());
    }

    /// All that has arrived was acknowledged, or will be at once.
    pub(super) fn acknowledged(&mut self, now: Instant) {
        (self.last, self.gaps) = (Some(now), 0);
    }

    /// A datagram has come: whether it should be acknowledged at once. One that comes after a pause should, whatever else was acknowledged
    /// in the pause: the next one may be as far away.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let before = self.datagram.replace(now);
        let (Some(last), Some(before)) = (self.last, before) else {
            return true;
        };
        let waited = now.saturating_duration_since(last);
        let paused = now.saturating_duration_since(before);
        let usual = self.rtt.saturating_add(USUAL_DELAY).min(LONGEST);
        waited.max(paused) >= usual
            || self.gaps >= MANY_GAPS
            || (self.gaps >= SOME_GAPS && waited >= SHORTEST)
    }
}
