//! Which losses say nothing of congestion: few, while no queue stands on the path. CUBIC takes every loss for congestion, and keeps a dozen packets
//! in flight on a path that loses one in a hundred, whatever it carries; the circuits of a channel would share that dozen.
//! The queue is told by the round trip, as HyStart++ does (RFC 9406 §4.2); few is what BBR calls so (draft-ietf-ccwg-bbr, `BBR.LossThresh`);
//! the two together are TCP Veno's idea (Fu and Liew 2003). No clock.

use std::time::Duration;

/// A queue stands where the round trip is longer than the shortest by this part of it, and by so much at least and at most.
const PART: u32 = 8;
const LONGER: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));
/// One octet of so many may be lost.
const FEW: u64 = 50;
/// Of the last so many octets, or twice that: some 350 packets.
const SAMPLE: u64 = 500_000;

/// What is known of one path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chance {
    queue: bool,
    /// Octets that came, and that did not; what is old is halved again and again.
    acked: u64,
    lost: u64,
}

impl Chance {
    /// So many octets came; the round trip is `rtt` now and was `least` at the shortest.
    pub(super) fn acked(&mut self, octets: u64, rtt: Duration, least: Duration) {
        let (from, to) = LONGER;
        self.queue = rtt > least.saturating_add((least / PART).clamp(from, to));
        self.acked = self.acked.saturating_add(octets);
        if self.acked > 2 * SAMPLE {
            self.acked /= 2;
            self.lost /= 2;
        }
    }

    /// So many octets were lost. Answers whether by chance.
    pub(super) fn lost(&mut self, octets: u64) -> bool {
        self.lost = self.lost.saturating_add(octets);
        !self.queue && self.lost <= self.acked.max(SAMPLE) / FEW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(40);
    const PACKET: u64 = 1400;

    /// How many of 100,000 packets' losses are taken for congestion, if one of so many is lost.
    fn congested(one_of: u64, rtt: Duration) -> usize {
        let mut chance = Chance::default();
        let taken = (1..100_000).filter(|number| {
            chance.acked(PACKET, rtt, RTT);
            number % one_of == 0 && !chance.lost(PACKET)
        });
        taken.count()
    }

    #[test]
    fn one_packet_in_a_hundred_is_lost_by_chance_and_one_in_twenty_is_not() {
        assert_eq!(congested(100, RTT), 0);
        assert!(congested(20, RTT) > 4_900);
    }

    #[test]
    fn behind_a_queue_every_loss_is_congestion() {
        let queued = RTT + Duration::from_millis(6);
        assert_eq!(congested(100, queued), 999);
        assert_eq!(congested(100, RTT + Duration::from_millis(5)), 0);
    }

    #[test]
    fn on_short_and_long_paths_a_queue_is_a_millisecond_and_sixteen() {
        let ms = Duration::from_millis;
        for (least, queue) in [(ms(1), ms(1)), (ms(300), ms(16))] {
            for (rtt, by_chance) in [(least + queue, true), (least + queue + ms(1), false)] {
                let mut chance = Chance::default();
                chance.acked(PACKET, rtt, least);
                assert_eq!(chance.lost(PACKET), by_chance, "{rtt:?}");
            }
        }
    }

    #[test]
    fn a_burst_of_losses_is_congestion_from_the_first_round_trip_on() {
        let mut chance = Chance::default();
        chance.acked(PACKET, RTT, RTT);
        assert!(!chance.lost(10 * PACKET));
    }
}
