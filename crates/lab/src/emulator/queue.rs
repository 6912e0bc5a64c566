//! The packets that wait for a bottleneck, bounded in octets, with drop-tail or CoDel. `link` fills and empties it.

use std::collections::VecDeque;

use super::{
    codel::{CoDel, Verdict},
    link::nanoseconds,
    packet,
};
use crate::topology::Discipline;

/// The queue of one direction. The packet that is being served is no longer in it.
#[derive(Debug)]
pub struct Queue {
    waiting: VecDeque<(u64, Vec<u8>)>,
    octets: u64,
    limit: u64,
    codel: Option<CoDel>,
    ecn: bool,
    /// Packets marked CE until now.
    pub marked: u64,
}

impl Queue {
    /// An empty queue for `limit` octets (`None`: the emulator's memory is the limit) on a link of this MTU.
    #[must_use]
    pub fn new(limit: Option<u64>, discipline: Discipline, mtu: u16) -> Self {
        let (codel, ecn) = match discipline {
            Discipline::DropTail => (None, false),
            Discipline::CoDel {
                target,
                interval,
                ecn,
            } => {
                let (target, interval) = (nanoseconds(target), nanoseconds(interval));
                (Some(CoDel::new(target, interval, mtu.into())), ecn)
            }
        };
        Self {
            waiting: VecDeque::new(),
            octets: 0,
            limit: limit.unwrap_or(u64::MAX),
            codel,
            ecn,
            marked: 0,
        }
    }

    /// Whether so many octets fit.
    #[must_use]
    pub fn has_room(&self, size: usize) -> bool {
        self.octets.saturating_add(size as u64) <= self.limit
    }

    /// Since when the packet at the head has waited.
    #[must_use]
    pub fn head(&self) -> Option<u64> {
        self.waiting.front().map(|&(since, _)| since)
    }

    /// Appends a packet that comes at `now`, whether or not it fits.
    pub fn push(&mut self, now: u64, packet: Vec<u8>) {
        self.octets = self.octets.saturating_add(packet.len() as u64);
        self.waiting.push_back((now, packet));
    }

    /// The packet to serve at `now`; those that CoDel drops before it go to `dropped`.
    pub fn pop(&mut self, now: u64, mut dropped: impl FnMut(Vec<u8>)) -> Option<Vec<u8>> {
        let mut again = false;
        loop {
            let (since, mut packet) = self.waiting.pop_front()?;
            self.octets = self.octets.saturating_sub(packet.len() as u64);
            let Some(codel) = &mut self.codel else {
                return Some(packet);
            };
            let sojourn = now.saturating_sub(since);
            if codel.judge(now, sojourn, self.octets, again) == Verdict::Pass {
                return Some(packet);
            }
            codel.acted(now);
            if self.ecn && packet::mark_congestion(&mut packet) {
                self.marked += 1;
                return Some(packet);
            }
            dropped(packet);
            again = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: u64 = 1_000_000;

    fn codel(ecn: bool) -> Queue {
        let discipline = Discipline::CoDel {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            ecn,
        };
        Queue::new(None, discipline, 1500)
    }

    /// One packet comes and one leaves each millisecond, behind a standing queue of `standing` packets: when were some dropped?
    fn drops(queue: &mut Queue, standing: u64, ms: u64, packet: &[u8]) -> Vec<u64> {
        (0..standing).for_each(|_| queue.push(0, packet.to_vec()));
        let mut drops = Vec::new();
        for t in 0..ms {
            queue.push(t * MS, packet.to_vec());
            queue.pop(t * MS, |_| drops.push(t));
        }
        drops
    }

    #[test]
    fn a_standing_queue_is_cut_after_an_interval_and_then_ever_faster() {
        let drops = drops(&mut codel(false), 40, 500, &[0; 1500]);
        // Above the target from 5 ms on: 105 ms, then 100 ms / sqrt(count) apart.
        assert_eq!(drops[..5], [105, 205, 276, 334, 384]);
    }

    #[test]
    fn a_burst_that_drains_within_the_interval_is_let_through() {
        let mut queue = codel(false);
        (0..80).for_each(|_| queue.push(0, vec![0; 1500]));
        for t in 0..80 {
            assert!(queue.pop(t * MS, |_| panic!("dropped at {t} ms")).is_some());
        }
        assert!(queue.pop(80 * MS, drop).is_none());
    }

    #[test]
    fn a_single_packet_behind_a_slow_bottleneck_is_never_dropped() {
        let mut queue = codel(false);
        for t in (0..100_000).step_by(500) {
            queue.push(t * MS, vec![0; 1500]);
            queue.push(t * MS, vec![0; 1500]);
            for later in [100, 400] {
                assert!(queue.pop((t + later) * MS, |_| panic!("dropped")).is_some());
            }
        }
    }

    #[test]
    fn packets_whose_sender_speaks_ecn_are_marked_instead() {
        let mut packet = vec![0; 1500];
        (packet[0], packet[1], packet[2], packet[3]) = (0x45, 2, 0x05, 0xdc);
        let mut queue = codel(true);
        assert!(drops(&mut queue, 40, 300, &packet).is_empty());
        assert_eq!(queue.marked, 3);
        packet[1] = 0;
        assert_eq!(drops(&mut codel(true), 40, 300, &packet).len(), 3);
    }
}
