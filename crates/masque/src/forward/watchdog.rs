//! Notices that what is forwarded is swallowed, by what is *not* received.
//! [`super::Machine`] tells it of packets and asks it before each batch.

use std::time::Duration;

use tokio::time::Instant;

/// The first packet after so long without one goes through the tunnel: whatever happens to the others, it arrives.
const SILENCE: Duration = Duration::from_millis(200);
/// Sending for so long without receiving anything, or for three round trips, is suspicious.
const PATIENCE: Duration = Duration::from_secs(1);
/// Two full packets: QUIC acknowledges every second one (RFC 9000 §13.2.2).
const BURST: usize = 2400;
/// So many silences in a row, each after a burst that nobody answered, are suspicious too.
const STRIKES: u8 = 3;

#[derive(Debug, Default)]
pub(super) struct Watchdog {
    /// The last packet sent.
    last: Option<Instant>,
    /// The first one since something was received, in this stretch without silence.
    since: Option<Instant>,
    /// Octets forwarded since something was received.
    octets: usize,
    strikes: u8,
}

impl Watchdog {
    /// A packet is being sent. Whether there was silence before it.
    pub(super) fn sent(&mut self, now: Instant) -> bool {
        let silent = self.last.is_none_or(|last| now - last >= SILENCE);
        if silent {
            self.strikes = if self.octets >= BURST {
                self.strikes.saturating_add(1)
            } else {
                0
            };
            (self.since, self.octets) = (None, 0);
        }
        self.last = Some(now);
        self.since.get_or_insert(now);
        silent
    }

    /// It was forwarded.
    pub(super) fn forwarded(&mut self, octets: usize) {
        self.octets = self.octets.saturating_add(octets);
    }

    /// Something was received.
    pub(super) fn heard(&mut self) {
        (self.since, self.octets) = (None, 0);
    }

    /// Whether forwarding should be given up for a while.
    pub(super) fn is_suspicious(&self, round_trip: Duration) -> bool {
        let patience = PATIENCE.max(3 * round_trip);
        let stretch = self.last.zip(self.since).map(|(last, since)| last - since);
        stretch >= Some(patience) || self.strikes >= STRIKES
    }

    /// Begins anew.
    pub(super) fn reset(&mut self) {
        (self.since, self.octets, self.strikes) = (None, 0, 0);
    }
}
