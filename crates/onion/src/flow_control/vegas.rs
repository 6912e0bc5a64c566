//! TOR_VEGAS: a congestion window by how many cells seem to queue on the path.
//! In force where both ends agreed on it. Proposal 324 §3.3 (TOR_VEGAS), parameters of §6.5.1 and §6.5.3.
//!
//! Where the text of the proposal and C tor differ in a default, C tor's stands here: it is what the other end runs with. That is so for
//! `cc_cwnd_inc` and `cc_cwnd_inc_rate` (31 steps of one cell in a window; the text has one of 31), `cc_cwnd_min`, `cc_cwnd_inc_pct_ss`,
//! the five thresholds and the two that say when a window is full. A consensus may set others; there is none here.
//!
//! **Where each relay holds the one before it back**, as over QUIC ([`Vegas::set_backpressure`]), it differs from that:
//!
//! - Slow start is not limited (no RFC 3742). What it sends too much waits at relays in its own circuit's windows, and takes nobody's place.
//! - A queue is no less than a sixteenth of what the path holds, and a quarter to end slow start: of 200 ms, 186 cells at 300 Mbit/s are 3 ms, which any
//!   packet may be late. Slow start goes on from where it was if a round trip later there is none: a hop's own congestion window may only have been behind,
//!   or something was sent again.
//! - Out of slow start the window changes once in a round trip, by the least of its samples instead of an average: what is lost on a hop and sent again
//!   there makes many late, and is no queue. It grows the faster, the more the path holds.
//! - After a fall what had left before does not count. It tells of the queue that there was: by C tor's rule each of its SENDMEs makes the window fall once
//!   more, down to a multiple of the threshold, whatever the path holds.

use std::time::Duration;

/// Parameters, in cells unless they say otherwise; the defaults are C tor's for circuits to an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// `cc_cwnd_init`: the window at the beginning.
    pub initial: u32,
    /// `cc_cwnd_min`: never less.
    pub least: u32,
    /// `cc_cwnd_max`: never more.
    pub most: u32,
    /// `cc_cwnd_inc`: one step.
    pub step: u32,
    /// `cc_cwnd_inc_rate`: steps in one window of acknowledgements.
    pub steps_per_window: u32,
    /// `cc_cwnd_inc_pct_ss`: growth in slow start, percent of what was acknowledged.
    pub slow_start_percent: u32,
    /// `cc_sendme_inc`: DATA cells that one SENDME acknowledges.
    pub increment: u32,
    /// `cc_vegas_alpha_exit`: fewer cells in queues than this, and the window grows.
    pub alpha: u32,
    /// `cc_vegas_beta_exit`: more, and it shrinks.
    pub beta: u32,
    /// `cc_vegas_gamma_exit`: this many end slow start.
    pub gamma: u32,
    /// `cc_vegas_delta_exit`: more, and the window falls at once.
    pub delta: u32,
    /// `cc_sscap_exit`: from here on slow start is limited (RFC 3742).
    pub slow_start_cap: u32,
    /// `cc_ss_max`: slow start ends here.
    pub slow_start_most: u32,
    /// `cc_cwnd_full_gap`, in SENDMEs: a window with less than this left is full.
    pub full_gap: u32,
    /// `cc_cwnd_full_minpct`: a window less used than this is not full.
    pub full_percent: u32,
    /// `cc_ewma_cwnd_pct`, `cc_ewma_max`, `cc_ewma_ss`: over how many samples the round trip is smoothed.
    pub smoothing: (u32, u32, u32),
}

/// How many cells in queues decide.
struct Thresholds {
    alpha: u32,
    beta: u32,
    gamma: u32,
    delta: u32,
    /// How many they are more than C tor's.
    more: u32,
}

/// The SENDMEs of what was under way at a time.
#[derive(Debug)]
struct Round {
    /// Those that are to come.
    left: u32,
    /// The least round trip of them.
    least: Duration,
    /// The channel took nothing when one of them came.
    blocked: bool,
    /// Their cells left before the window fell.
    is_stale: bool,
    /// A queue has ended slow start at this window, and is looked for once more.
    slow_start_until: Option<u32>,
}

/// The window of one circuit.
#[derive(Debug)]
pub struct Vegas {
    parameters: Parameters,
    /// What changes the window out of slow start, where there is backpressure.
    round: Option<Round>,
    rtt: Rtt,
    window: u32,
    inflight: u32,
    slow_start: bool,
    full: bool,
    /// The channel took nothing when the last SENDME came.
    blocked: bool,
    /// SENDMEs until the window may change again, and until a whole window was acknowledged.
    next_change: u32,
    next_window: u32,
}

/// With backpressure, which part of what the path holds a queue is at least, and which ends slow start.
const QUEUE_DIVISOR: u32 = 16;
const SLOW_START_DIVISOR: u32 = 4;

/// The largest window, in cells: 8 MB on their way, 650 Mbit/s at 100 ms. C tor has no bound of it (`cc_cwnd_max`). Here what waits for a reader who stands
/// still is bounded ([`crate::endpoint::Limits`]), and so is a circuit's queue at each relay: both are to hold what a peer may send without a mistake.
pub const LARGEST: u32 = 16_384;

/// Cells in one write to a channel, as C tor counts them: two TLS records of 31.
const OUTBUF: u32 = 62;

impl Parameters {
    /// The defaults, with another number of cells for each SENDME, as the far end chose it.
    pub(crate) fn with_increment(increment: u8) -> Self {
        Self {
            increment: u32::from(increment.max(1)),
            ..Self::default()
        }
    }

    /// For a path twice as long, between a client and an onion service (`cc_vegas_alpha_onion` and the like, proposal 324 §6.5.3).
    pub(crate) fn to_service(self) -> Self {
        Self {
            alpha: 3 * OUTBUF,
            beta: 7 * OUTBUF,
            gamma: 5 * OUTBUF,
            delta: 9 * OUTBUF,
            ..self
        }
    }
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            initial: 4 * 31,
            least: 4 * 31,
            most: LARGEST,
            step: 1,
            steps_per_window: 31,
            slow_start_percent: 100,
            increment: 31,
            alpha: 3 * OUTBUF,
            beta: 4 * OUTBUF,
            gamma: 3 * OUTBUF,
            delta: 5 * OUTBUF,
            slow_start_cap: 600,
            slow_start_most: 5000,
            full_gap: 4,
            full_percent: 25,
            smoothing: (50, 10, 2),
        }
    }
}

impl Vegas {
    /// A circuit that begins.
    pub fn new(parameters: Parameters) -> Self {
        Self {
            parameters,
            round: None,
            rtt: Rtt::default(),
            window: parameters.initial,
            inflight: 0,
            slow_start: true,
            full: false,
            blocked: false,
            next_change: 0,
            next_window: 0,
        }
    }

    /// The channel, and those behind it as far as is known, hold each circuit back by itself, so that what is sent too much takes no other's place. Before
    /// anything was sent.
    pub fn set_backpressure(&mut self) {
        self.round = Some(Round::new(0));
    }

    /// Whether one more DATA cell may leave.
    pub(crate) fn may_send(&self) -> bool {
        self.inflight < self.window
    }

    /// A DATA cell has left.
    pub fn sent(&mut self) {
        self.inflight = self.inflight.saturating_add(1);
    }

    /// A SENDME has come for a cell that left `sample` ago; `blocked` says that the channel takes nothing at present.
    pub fn acknowledged(&mut self, sample: Duration, blocked: bool) {
        self.next_change = self.next_change.saturating_sub(1);
        self.next_window = self.next_window.saturating_sub(1);
        let phase = Phase {
            slow_start: self.slow_start,
            at_floor: self.window == self.parameters.least,
            samples: self.samples(),
        };
        let usable = self.rtt.sample(sample, phase);
        // A channel that begins to block is a signal at once, one that ends to is a reason to look again.
        if std::mem::replace(&mut self.blocked, blocked) != blocked {
            self.next_change = 0;
        }
        if usable || blocked {
            self.note_fullness();
            if let Some(round) = &mut self.round {
                round.sample(sample, blocked);
            }
            self.change(blocked);
            self.schedule();
        }
        self.inflight = self.inflight.saturating_sub(self.parameters.increment);
    }

    /// The smoothed round trip, once there was a sample.
    pub fn round_trip(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    /// The congestion window, in cells.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// DATA cells that one SENDME acknowledges.
    pub fn increment(&self) -> u32 {
        self.parameters.increment
    }

    fn change(&mut self, blocked: bool) {
        let bdp = self.rtt.bdp(self.window);
        let queued = self.window.saturating_sub(bdp);
        if self.slow_start {
            self.grow_fast(bdp, queued, blocked);
        } else if self.round.is_some() {
            self.judge();
        } else if self.next_change == 0 {
            self.step(bdp, queued, blocked);
        }
        self.window = self.window.min(self.parameters.most);
    }

    fn grow_fast(&mut self, bdp: u32, queued: u32, blocked: bool) {
        let p = self.parameters;
        let gamma = self.thresholds(bdp).gamma;
        if queued >= gamma || blocked {
            let until = self.window;
            self.window = bdp.saturating_add(gamma);
            self.slow_start = false;
            if self.round.is_some() {
                self.window = self.window.min(until);
                self.begin_round(true, Some(until));
            }
        } else if self.full {
            let growth = self.growth();
            self.window = self.window.saturating_add(growth);
            self.slow_start = growth * self.sendmes_per_window() > p.step * p.steps_per_window;
        }
        let most = match self.round {
            Some(_) => p.most,
            None => p.slow_start_most,
        };
        if self.window >= most {
            self.window = most;
            self.slow_start = false;
            self.begin_round(false, None);
        }
    }

    fn step(&mut self, bdp: u32, queued: u32, blocked: bool) {
        let p = self.parameters;
        self.window = if queued > p.delta {
            bdp.saturating_add(p.delta).saturating_sub(p.step)
        } else if queued > p.beta || blocked {
            self.window.saturating_sub(p.step)
        } else if self.full && queued < p.alpha {
            self.window.saturating_add(p.step)
        } else {
            self.window
        };
        self.window = self.window.max(p.least);
    }

    /// With backpressure: the same for a round trip that is over.
    fn judge(&mut self) {
        let Some(round) = self.round.as_ref().filter(|round| round.left == 0) else {
            return;
        };
        let (least, blocked) = (round.least, round.blocked);
        let until = round.slow_start_until;
        if round.is_stale {
            return self.begin_round(false, until);
        }
        let bdp = self.rtt.bdp_at(self.window, least);
        let queued = self.window.saturating_sub(bdp);
        let by = self.thresholds(bdp);
        let steps = self.parameters.step * self.parameters.steps_per_window;
        let falls = queued > by.delta;
        let mut still_until = None;
        if falls {
            self.window = bdp.saturating_add(by.delta);
        } else if queued > by.beta || blocked {
            self.window = self.window.saturating_sub(steps);
        } else if !self.full {
            // What is not used grows no further.
            still_until = until;
        } else if let Some(until) = until.filter(|_| queued < by.alpha) {
            self.slow_start = true;
            self.window = self.window.max(until).saturating_add(steps + by.more);
            self.rtt.forget(least);
        } else if queued < by.alpha {
            self.window = self.window.saturating_add(steps + by.more);
        }
        self.window = self.window.max(self.parameters.least);
        self.begin_round(falls, still_until);
    }

    /// With backpressure: a round trip begins.
    fn begin_round(&mut self, is_stale: bool, slow_start_until: Option<u32>) {
        // What is acknowledged now is still among what is under way.
        let under_way = self.inflight / self.parameters.increment.max(1);
        if let Some(round) = &mut self.round {
            *round = Round {
                is_stale,
                slow_start_until,
                ..Round::new(under_way.saturating_sub(1))
            };
        }
    }

    fn thresholds(&self, bdp: u32) -> Thresholds {
        let p = self.parameters;
        let part = |divisor: u32| self.round.as_ref().map_or(0, |_| bdp / divisor);
        let more = part(QUEUE_DIVISOR).saturating_sub(p.alpha);
        Thresholds {
            alpha: p.alpha.saturating_add(more),
            beta: p.beta.saturating_add(more),
            gamma: p.gamma.max(part(SLOW_START_DIVISOR)),
            delta: p.delta.saturating_add(more),
            more,
        }
    }

    /// `rfc3742_ss_inc`.
    fn growth(&self) -> u32 {
        let p = self.parameters;
        if self.round.is_some() || self.window <= p.slow_start_cap {
            return (p.slow_start_percent * p.increment + 50) / 100;
        }
        let twice = self.window.saturating_mul(2).max(1);
        // "with a minimum of inc=1"
        ((p.increment * p.slow_start_cap).saturating_add(self.window) / twice).max(1)
    }

    fn note_fullness(&mut self) {
        let p = self.parameters;
        if self.inflight.saturating_add(p.full_gap * p.increment) >= self.window {
            self.full = true;
        } else if u64::from(self.inflight) * 100
            < u64::from(p.full_percent) * u64::from(self.window)
        {
            self.full = false;
        }
    }

    fn schedule(&mut self) {
        if self.next_change == 0 {
            self.next_change = self.update_rate();
        }
        if self.next_window == 0 {
            self.next_window = self.sendmes_per_window();
        }
        // `cc_cwnd_full_per_cwnd` = 1: a window must be filled once for each window of acknowledgements.
        if self.next_window == self.sendmes_per_window() {
            self.full = false;
        }
    }

    /// `SENDME_PER_CWND`.
    fn sendmes_per_window(&self) -> u32 {
        let increment = self.parameters.increment.max(1);
        self.window.saturating_add(increment / 2) / increment
    }

    /// `CWND_UPDATE_RATE`.
    fn update_rate(&self) -> u32 {
        if self.slow_start {
            return 1;
        }
        let per_step = (self.parameters.steps_per_window * self.parameters.increment).max(1);
        self.window.saturating_add(per_step / 2) / per_step
    }

    fn samples(&self) -> u32 {
        let (percent, most, slow_start) = self.parameters.smoothing;
        if self.slow_start {
            slow_start
        } else {
            (self.update_rate() * percent / 100).min(most).max(2)
        }
    }
}

impl Round {
    /// So many SENDMEs.
    const fn new(left: u32) -> Self {
        Self {
            left,
            least: Duration::MAX,
            blocked: false,
            is_stale: false,
            slow_start_until: None,
        }
    }

    fn sample(&mut self, sample: Duration, blocked: bool) {
        self.left = self.left.saturating_sub(1);
        self.least = self.least.min(sample);
        self.blocked |= blocked;
    }
}

#[cfg(test)]
mod tests;

// The round trip of a circuit, by the time between a cell and its SENDME: smoothed, and the least ever seen.
// Proposal 324 §2.1 (RTT measurement), §2.1.1 (CLOCK_HEURISTICS), §2.1.2 (N_EWMA_SMOOTHING).

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

    /// The average begins anew with that.
    fn forget(&mut self, round_trip: Duration) {
        let micros = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
        self.smoothed = micros.max(self.least);
    }

    /// The average, once there was a sample.
    pub fn smoothed(&self) -> Option<Duration> {
        (self.smoothed > 0).then(|| Duration::from_micros(self.smoothed))
    }

    /// `cwnd * RTT_min / RTT_current` (§3.1.2): what the path holds without a queue, in cells. Before the first sample, the whole window.
    pub fn bdp(&self, window: u32) -> u32 {
        self.held(window, self.smoothed)
    }

    /// The same by another round trip than the average.
    fn bdp_at(&self, window: u32, round_trip: Duration) -> u32 {
        let micros = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
        self.held(window, micros.max(self.least))
    }

    fn held(&self, window: u32, current: u64) -> u32 {
        if current == 0 {
            return window;
        }
        let cells = u128::from(window) * u128::from(self.least) / u128::from(current);
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
mod rtt_tests {
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
