//! On which leg the next cell goes. [`super::Set`] asks for each that is to be sent. Proposal 329 §3.1 (MinRTT) and §3.2 (LowRTT).
//!
//! The two that are to need little memory at the receiver (§3.3, §3.4) are sketches in the proposal; C tor, and so this, takes MinRTT for both.

use std::time::Duration;

use hoplite_wire::cell::conflux::DesiredUx;

use super::LegId;

/// Another leg than the present one has to be shorter by one part in so many: each change costs a SWITCH, and what is under way on the slower leg has
/// to wait for at the far end.
const STAY: u32 = 8;

/// A leg is full for a moment after each burst; only then it counts as full.
const FULL: Duration = Duration::from_millis(10);

/// How legs are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    /// The leg with the shortest round trip alone: nothing is sent while it is full.
    MinRtt,
    /// The one with the shortest round trip of those that are not full. A longer one only after the shortest was full for as long as the longer takes more:
    /// what is to be sent is much then, and will go on after what came by the longer has arrived; less is there sooner by the shortest alone.
    LowRtt,
}

/// A leg to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub leg: LegId,
    /// Its round trip; as long as it is unknown, the longest.
    pub rtt: Option<Duration>,
    /// For how long it was full again whenever it had had room.
    pub full_for: Duration,
    /// Its congestion window has room, and its channel takes cells.
    pub may_send: bool,
}

impl Scheduler {
    /// What the receiver wishes, as C tor understands it.
    pub fn of(wish: DesiredUx) -> Self {
        match wish {
            DesiredUx::MIN_LATENCY | DesiredUx::LOW_MEM_LATENCY | DesiredUx::LOW_MEM_THROUGHPUT => {
                Self::MinRtt
            }
            _ => Self::LowRtt,
        }
    }

    /// The leg for the next cell, `current` having carried the last; none while there is none that takes it.
    pub fn choose(self, candidates: &[Candidate], current: Option<LegId>) -> Option<LegId> {
        let cost = |leg: &&Candidate| {
            let rtt = leg.rtt.unwrap_or(Duration::MAX);
            let shorter = match current {
                Some(current) if current == leg.leg => rtt / STAY,
                _ => Duration::ZERO,
            };
            (rtt.saturating_sub(shorter), leg.leg)
        };
        let best = candidates.iter().min_by_key(cost)?;
        if best.may_send {
            return Some(best.leg);
        }
        let pays = |leg: &&Candidate| {
            let [rtt, least] = [leg, best].map(|leg| leg.rtt.unwrap_or(Duration::MAX));
            leg.may_send && best.full_for >= rtt.saturating_sub(least).max(FULL)
        };
        let others = candidates.iter().filter(|_| self == Self::LowRtt);
        let other = others.filter(pays).min_by_key(cost)?;
        Some(other.leg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LegId = LegId(0);
    const B: LegId = LegId(1);

    fn leg(leg: LegId, ms: Option<u64>, may_send: bool) -> Candidate {
        Candidate {
            leg,
            rtt: ms.map(Duration::from_millis),
            full_for: if may_send {
                Duration::ZERO
            } else {
                Duration::from_millis(40)
            },
            may_send,
        }
    }

    #[test]
    fn the_shorter_leg_goes_first_and_an_unmeasured_one_last() {
        for scheduler in [Scheduler::MinRtt, Scheduler::LowRtt] {
            let choose = |legs: [Candidate; 2]| scheduler.choose(&legs, None);
            let (fast, slow) = (leg(A, Some(20), true), leg(B, Some(60), true));
            assert_eq!(choose([fast, slow]), Some(A));
            assert_eq!(choose([slow, fast]), Some(A));
            assert_eq!(choose([leg(A, None, true), slow]), Some(B));
            assert_eq!(choose([leg(A, None, true), leg(B, None, true)]), Some(A));
        }
    }

    #[test]
    fn where_the_shorter_leg_is_full_one_waits_for_it_and_the_other_does_not() {
        let legs = [leg(A, Some(20), false), leg(B, Some(60), true)];
        assert_eq!(Scheduler::MinRtt.choose(&legs, Some(A)), None);
        assert_eq!(Scheduler::LowRtt.choose(&legs, Some(A)), Some(B));
        let full = [leg(A, Some(20), false), leg(B, Some(60), false)];
        assert_eq!(Scheduler::LowRtt.choose(&full, Some(A)), None);
        // The shorter one has been full for 40 ms: a leg that takes 41 ms longer does not pay yet.
        let legs = [leg(A, Some(20), false), leg(B, Some(61), true)];
        assert_eq!(Scheduler::LowRtt.choose(&legs, Some(A)), None);
    }

    #[test]
    fn legs_that_are_alike_are_not_changed_for_every_sample() {
        let legs = [leg(A, Some(100), true), leg(B, Some(92), true)];
        assert_eq!(Scheduler::LowRtt.choose(&legs, Some(A)), Some(A));
        assert_eq!(Scheduler::LowRtt.choose(&legs, Some(B)), Some(B));
        let legs = [leg(A, Some(100), true), leg(B, Some(80), true)];
        assert_eq!(Scheduler::LowRtt.choose(&legs, Some(A)), Some(B));
    }

    #[test]
    fn wishes_are_understood_as_c_tor_does() {
        let of = |wish| Scheduler::of(DesiredUx(wish));
        let (min, low) = (Scheduler::MinRtt, Scheduler::LowRtt);
        assert_eq!([0, 1, 2, 3, 4].map(of), [low, min, min, low, min]);
    }
}
