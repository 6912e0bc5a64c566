//! When a connection whose datagrams are not acknowledged acknowledges nevertheless, so that the sender's loss detection, round trip and
//! signs of life stay true. No clock; [`super::Governor`] feeds it. The end of a burst is probed by the sender's own timer (RFC 9002 §6.2).

use std::time::{Duration, Instant};

/// PING and IMMEDIATE_ACK: the stack acknowledges all that it has received, at once.
pub(super) const FRAMES: [u8; 2] = [0x01, 0x1f];

/// No probe sooner than this after the last, but for very many gaps.
const SHORTEST: Duration = Duration::from_millis(5);
/// The usual time between two is two round trips within these bounds.
const USUAL: (Duration, Duration) = (Duration::from_millis(40), Duration::from_millis(100));

/// More than three bursts of losses told at once look to the sender as if the path took no large packets any more.
const SOME_GAPS: u32 = 3;
/// The stack keeps 64 ranges. Each is told several times before it is forgotten, since acknowledgements are lost, too.
const MANY_GAPS: u32 = 16;

/// When the next one is due.
#[derive(Debug, Default)]
pub(super) struct Probe {
    rtt: Duration,
    last: Option<Instant>,
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

    pub(super) fn is_due(&self, now: Instant) -> bool {
        let Some(last) = self.last else { return true };
        let waited = now.saturating_duration_since(last);
        let usual = self.rtt.saturating_mul(2).clamp(USUAL.0, USUAL.1);
        waited >= usual || self.gaps >= MANY_GAPS || (self.gaps >= SOME_GAPS && waited >= SHORTEST)
    }
}
