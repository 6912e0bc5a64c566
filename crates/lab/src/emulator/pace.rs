//! How much of a core the emulator may take. `driver` tells it what it does with its time.
//!
//! The kernel stops real-time threads that use more than 95 % of a second (`sched_rt_runtime_us`), for 50 ms at once, which ruins a
//! measurement. So a saturated emulator rests by itself, 100 µs at a time, and stays within 92 % of every 100 ms, 90 % in the long run.
//! A sleep costs two switches of processes, and is often over at once because a packet has come: only what is longer than that is rest.
//! Spinning before a release gets an eighth of the time at most: on a machine of two cores, subjects want the other one and a half.

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Nanoseconds of rest that can be saved up: a burst of 18 ms may follow.
const REST: u64 = 2 * MS;
/// Work that a nanosecond of rest allows.
const WORK_PER_REST: u64 = 9;
/// One rest.
const NAP: u64 = 100 * US;
/// Nanoseconds of spinning that can be saved up.
const SPIN: u64 = 5 * MS;
/// Spinning costs so much of the time that passes: one in eight.
const TIME_PER_SPIN: u64 = 8;
/// What going to sleep and waking up costs.
const SWITCH: u64 = 5 * US;

/// Two budgets, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    rest: u64,
    spin: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            rest: REST * WORK_PER_REST,
            spin: SPIN * TIME_PER_SPIN,
        }
    }
}

impl Pace {
    /// So much time went into work.
    pub(super) fn worked(&mut self, ns: u64) {
        self.rest = self.rest.saturating_sub(ns);
        self.passed(ns);
    }

    /// A sleep took so much time.
    pub(super) fn rested(&mut self, ns: u64) {
        let work = ns.min(SWITCH);
        let saved = (ns - work).saturating_mul(WORK_PER_REST);
        self.rest = self.rest.saturating_sub(work).saturating_add(saved);
        self.rest = self.rest.min(REST * WORK_PER_REST);
        self.passed(ns);
    }

    /// So much time was spun away.
    pub(super) fn spun(&mut self, ns: u64) {
        self.rest = self.rest.saturating_sub(ns);
        self.spin = self.spin.saturating_sub(ns.saturating_mul(TIME_PER_SPIN));
        self.passed(ns);
    }

    fn passed(&mut self, ns: u64) {
        self.spin = self.spin.saturating_add(ns).min(SPIN * TIME_PER_SPIN);
    }

    /// How long to sleep before anything else, if it is time.
    #[must_use]
    pub(super) fn nap(&self) -> Option<u64> {
        (self.rest == 0).then_some(NAP)
    }

    /// Whether there is time for spinning.
    #[must_use]
    pub(super) fn may_spin(&self) -> bool {
        self.spin > SPIN && self.rest > REST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nanoseconds worked in each 100 ms, when there is always work.
    fn busy(pace: &mut Pace) -> u64 {
        let (mut now, mut worked) = (0, 0);
        while now < 100 * MS {
            if let Some(nap) = pace.nap() {
                pace.rested(nap);
                now += nap;
            } else {
                pace.worked(10 * US);
                worked += 10 * US;
                now += 10 * US;
            }
        }
        worked
    }

    #[test]
    fn a_saturated_emulator_leaves_a_tenth_of_the_core() {
        let mut pace = Pace::default();
        for _ in 0..20 {
            let share = busy(&mut pace) as f64 / (100 * MS) as f64;
            assert!((0.89..0.92).contains(&share), "{share}");
        }
    }

    #[test]
    fn sleeps_that_are_over_at_once_are_no_rest() {
        let (mut pace, mut naps) = (Pace::default(), 0);
        for _ in 0..10_000 {
            if let Some(nap) = pace.nap() {
                naps += 1;
                pace.rested(nap);
            }
            pace.worked(15 * US);
            pace.rested(2 * US);
        }
        assert!(naps > 100, "{naps}");
    }

    #[test]
    fn an_idle_emulator_spins_for_an_eighth_of_the_time_at_most() {
        let (mut pace, mut spun) = (Pace::default(), 0);
        for _ in 0..10_000 {
            if pace.may_spin() {
                pace.spun(50 * US);
                spun += 50 * US;
            } else {
                pace.rested(50 * US);
            }
        }
        let share = spun as f64 / (10_000 * 50 * US) as f64;
        assert!((0.10..0.14).contains(&share), "{share}");
    }
}
