//! One direction of a node's access link: so many octets a second, and a queue with a bound. It drops the newest.
//! A machine without clock: the network says when a packet comes, and hears when it has left.

const SECOND: u128 = 1_000_000_000;

/// A node's access link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Octets a second, away from the node.
    pub up: u64,
    /// Octets a second, to it.
    pub down: u64,
    /// Octets that may wait in each direction.
    pub queue: u64,
}

/// One direction.
#[derive(Clone, Debug)]
pub(super) struct Line {
    rate: u64,
    queue: u64,
    /// When all that was taken will have left, in nanoseconds.
    free: u64,
}

impl Line {
    pub(super) fn new(rate: u64, queue: u64) -> Self {
        let rate = rate.max(1);
        Self {
            rate,
            queue,
            free: 0,
        }
    }

    /// When `octets` that come at `now` have left; nothing: the queue is full.
    pub(super) fn take(&mut self, octets: u64, now: u64) -> Option<u64> {
        let begins = self.free.max(now);
        let waiting = u128::from(begins.saturating_sub(now)) * u128::from(self.rate) / SECOND;
        if waiting.saturating_add(octets.into()) > u128::from(self.queue.max(octets)) {
            return None;
        }
        let takes = u128::from(octets) * SECOND / u128::from(self.rate);
        self.free = begins.saturating_add(u64::try_from(takes).unwrap_or(u64::MAX));
        Some(self.free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_one_after_the_other_at_the_line_s_rate() {
        // A microsecond for an octet.
        let mut line = Line::new(1_000_000, 10_000);
        assert_eq!(line.take(1000, 0), Some(1_000_000));
        assert_eq!(line.take(1000, 500_000), Some(2_000_000));
        assert_eq!(line.take(1000, 9_000_000), Some(10_000_000));
    }

    #[test]
    fn a_full_queue_drops_the_newest_and_has_room_again_as_it_drains() {
        let mut line = Line::new(1_000_000, 2000);
        assert!(line.take(1000, 0).is_some());
        assert!(line.take(1000, 0).is_some());
        assert_eq!(line.take(1, 0), None);
        assert_eq!(line.take(1000, 999_000), None);
        assert_eq!(line.take(1000, 1_000_000), Some(3_000_000));
    }

    #[test]
    fn an_empty_line_takes_a_packet_that_is_larger_than_its_queue() {
        let mut line = Line::new(1_000_000, 10);
        assert_eq!(line.take(1000, 0), Some(1_000_000));
        assert_eq!(line.take(1000, 1), None);
    }
}
