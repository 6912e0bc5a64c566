//! The round trip of a circuit, by the time between a cell and its SENDME: smoothed, and the least ever seen.
//! Used by [`super::vegas`]. Proposal 324 §2.1 (RTT measurement), §2.1.1 (CLOCK_HEURISTICS), §2.1.2 (N_EWMA_SMOOTHING).

use std::time::Duration;

/// A round trip this many times longer or shorter than the smoothed one says that the clock jumped, or stood still.
const JUMP: u64 = 5000;

/// What is known of the round trip. In whole microseconds: "the second rearranged form MUST be used in order to ensure that rounding errors
/// are handled in the same manner as other implementations", and they count so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rtt {
    smoothed: u64,
    least: u64,
    /// The clock has stood still before, and nothing has shown since that it goes again.
    stalled: bool,
}

/// Where the congestion window is when a sample comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// In slow start no sample is too strange: "the RTT is used".
    pub slow_start: bool,
    /// The window is the smallest there may be.
    pub at_floor: bool,
    /// Over about how many samples the round trip is smoothed.
    pub samples: u32,
}

impl Rtt {
    /// Takes a sample; answers whether it was usable.
    ///
    /// At the smallest window out of slow start, the least is raised to the smoothed (`cc_rtt_reset_pct` is 100): a path that became longer
    /// must not be taken for a queue for ever.
    pub fn sample(&mut self, sample: Duration, phase: Phase) -> bool {
        let sample = u64::try_from(sample.as_micros()).unwrap_or(u64::MAX);
        if self.is_strange(sample, phase.slow_start) {
            return false;
        }
        self.smoothed = match self.smoothed {
            0 => sample,
            before => moving_average(sample, before, phase.samples),
        };
        self.least = match self.least {
            0 => self.smoothed,
            least if phase.at_floor && !phase.slow_start => least.max(self.smoothed),
            least => least.min(self.smoothed),
        };
        true
    }

    /// `cwnd * RTT_min / RTT_current` (§3.1.2): what the path holds without a queue, in cells. Before the first sample, the whole window.
    pub fn bdp(&self, window: u32) -> u32 {
        if self.smoothed == 0 {
            return window;
        }
        let cells = u128::from(window) * u128::from(self.least) / u128::from(self.smoothed);
        u32::try_from(cells).unwrap_or(u32::MAX)
    }

    fn is_strange(&mut self, sample: u64, slow_start: bool) -> bool {
        if sample == 0 {
            self.stalled = true;
            return true;
        }
        if slow_start || self.smoothed == 0 {
            return false;
        }
        if sample > self.smoothed.saturating_mul(JUMP) {
            return true;
        }
        // It may as well be true: a clock is believed to stand only if it did before.
        if self.smoothed > sample.saturating_mul(JUMP) {
            return self.stalled;
        }
        self.stalled = false;
        false
    }
}

/// N_EWMA: `(new * 2 + old * (N - 1)) / (N + 1)`.
fn moving_average(new: u64, old: u64, n: u32) -> u64 {
    let n = u64::from(n.max(1));
    let sum = new
        .saturating_mul(2)
        .saturating_add(old.saturating_mul(n - 1));
    sum / (n + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    const SLOW_START: Phase = Phase {
        slow_start: true,
        at_floor: false,
        samples: 2,
    };

    const STEADY: Phase = Phase {
        slow_start: false,
        ..SLOW_START
    };

    const FLOOR: Phase = Phase {
        at_floor: true,
        ..STEADY
    };

    #[test]
    fn the_average_is_that_of_the_proposal() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.bdp(700), 700, "nothing is known yet");
        assert!(rtt.sample(ms(100), SLOW_START));
        assert!(rtt.sample(ms(160), SLOW_START));
        // (2 * 160 + 1 * 100) / 3
        assert_eq!((rtt.smoothed, rtt.least), (140_000, 100_000));
        // 700 * 100 / 140
        assert_eq!(rtt.bdp(700), 500);
    }

    /// Sample, whether in slow start at the floor, smoothed and least after it: those that C tor tests itself with.
    #[test]
    fn samples_are_smoothed_as_c_tor_does() {
        let mut rtt = Rtt::default();
        for (sample, phase, smoothed, least) in [
            (100_000, SLOW_START, 100_000, 100_000),
            (100_000, SLOW_START, 100_000, 100_000),
            (150_000, SLOW_START, 133_333, 100_000),
            (50_000, SLOW_START, 77_777, 77_777),
            (100_000, SLOW_START, 92_592, 77_777),
            (50_000, SLOW_START, 64_197, 64_197),
            (125_000, FLOOR, 104_732, 104_732),
            (25_000, FLOOR, 51_577, 104_732),
            (50_000, STEADY, 50_525, 50_525),
        ] {
            assert!(rtt.sample(Duration::from_micros(sample), phase));
            assert_eq!((rtt.smoothed, rtt.least), (smoothed, least), "{sample}");
        }
    }

    #[test]
    fn a_clock_that_stands_or_jumps_teaches_nothing() {
        let mut rtt = Rtt::default();
        assert!(rtt.sample(ms(1), STEADY));
        let before = rtt;
        assert!(!rtt.sample(ms(5001), STEADY));
        assert_eq!(rtt, before);
        assert!(!rtt.sample(Duration::ZERO, STEADY));
        assert_eq!((rtt.smoothed, rtt.least), (before.smoothed, before.least));
        assert!(
            rtt.sample(ms(5001), SLOW_START),
            "in slow start all is used"
        );
    }

    #[test]
    fn a_much_shorter_round_trip_is_doubted_only_after_the_clock_stood_still() {
        let mut rtt = Rtt::default();
        let short = Duration::from_micros(100);
        assert!(rtt.sample(ms(1000), STEADY));
        assert!(rtt.sample(short, STEADY));
        assert!(rtt.sample(ms(1000), SLOW_START));
        assert!(!rtt.sample(Duration::ZERO, STEADY));
        assert!(!rtt.sample(short, STEADY));
        assert!(rtt.sample(ms(1000), STEADY), "the clock goes again");
        assert!(rtt.sample(short, STEADY));
    }

    #[test]
    fn at_the_smallest_window_a_longer_path_is_believed() {
        let mut rtt = Rtt::default();
        rtt.sample(ms(10), SLOW_START);
        for _ in 0..20 {
            rtt.sample(ms(100), FLOOR);
        }
        assert!(rtt.least > 99_000);
    }
}
