//! Notices that much of what the peer sends is lost for seconds: a network that lets UDP pass at a small rate and drops the rest does that. Only the peer
//! is told by QUIC what is lost of what it sends; here the gaps in the numbers of its packets show it.

use std::time::Duration;

use hoplite_quic::Arrivals;
use tokio::time::Instant;

/// A part of so many is much.
const PART: u64 = 5;

/// So many packets are judged together at least.
const FEWEST: u64 = 8;

/// So many packets have to have been sent in all that time.
const ENOUGH: u64 = 48;

/// What has been seen. Fed with what has come, tells whether much has been lost for long.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    before: Arrivals,
    /// Since when much is lost, and of how many packets.
    much: Option<(Instant, u64)>,
}

impl Losses {
    /// Takes what has come so far; whether much of it has been lost for `long`.
    pub(crate) fn look(&mut self, arrivals: Arrivals, long: Duration, now: Instant) -> bool {
        let sent = arrivals.numbered.saturating_sub(self.before.numbered);
        let come = arrivals.received.saturating_sub(self.before.received);
        if sent >= FEWEST {
            self.before = arrivals;
            let is_much = sent.saturating_sub(come) * PART >= sent;
            self.much = is_much.then(|| {
                let (since, packets) = self.much.unwrap_or((now, 0));
                (since, packets.saturating_add(sent))
            });
        }
        let is_long = |(since, packets): (Instant, u64)| now - since >= long && packets >= ENOUGH;
        self.much.is_some_and(is_long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(2);
    const LOOK: Duration = Duration::from_millis(500);

    /// Looks at a connection whose peer sends `sent` packets between two looks, of which `come` come; what the last of them says.
    fn looks(losses: &mut Losses, now: &mut Instant, times: u32, (sent, come): (u64, u64)) -> bool {
        let mut arrivals = losses.before;
        let mut told = false;
        for _ in 0..times {
            arrivals.numbered += sent;
            arrivals.received += come;
            *now += LOOK;
            told = losses.look(arrivals, LONG, *now);
        }
        told
    }

    #[test]
    fn what_loses_a_third_for_two_seconds_loses_much_and_no_longer_when_it_stops() {
        let (mut losses, mut now) = (Losses::default(), Instant::now());
        assert!(!looks(&mut losses, &mut now, 20, (100, 95)));
        assert!(
            !looks(&mut losses, &mut now, 4, (30, 20)),
            "not long enough"
        );
        assert!(looks(&mut losses, &mut now, 1, (30, 20)));
        assert!(!looks(&mut losses, &mut now, 1, (30, 29)));
    }

    #[test]
    fn a_burst_and_a_few_packets_are_no_reason() {
        let (mut losses, mut now) = (Losses::default(), Instant::now());
        assert!(!looks(&mut losses, &mut now, 1, (1000, 300)));
        assert!(!looks(&mut losses, &mut now, 10, (100, 99)));
        assert!(!looks(&mut losses, &mut now, 9, (5, 0)), "too few packets");
        assert!(
            looks(&mut losses, &mut now, 9, (5, 0)),
            "in time they are enough"
        );
    }
}
