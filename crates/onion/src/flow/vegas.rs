//! TOR_VEGAS: a congestion window by how many cells seem to queue on the path.
//! Used by [`super::Outgoing`] where both ends agreed on it. Proposal 324 §3.3 (TOR_VEGAS), parameters of §6.5.1 and §6.5.3.
//!
//! Where the text of the proposal and C tor differ in a default, C tor's stands here: it is what the other end runs with. That is so for
//! `cc_cwnd_inc` and `cc_cwnd_inc_rate` (31 steps of one cell in a window; the text has one of 31), `cc_cwnd_min`, `cc_cwnd_inc_pct_ss`,
//! the five thresholds and the two that say when a window is full. A consensus may set others; there is none here.

use std::time::Duration;

use super::rtt::{Phase, Rtt};

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
    /// `cc_vegas_gamma_exit`: so many end slow start.
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

/// The window of one circuit.
#[derive(Debug)]
pub struct Vegas {
    parameters: Parameters,
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

/// The largest window, in cells: 8 MB on their way, 650 Mbit/s at 100 ms. C tor has no bound of it (`cc_cwnd_max`). Here what waits for a reader who stands
/// still is bounded ([`crate::edge::Limits`]), and so is a circuit's queue at each relay: both are to hold what a peer may send without a mistake.
pub const LARGEST: u32 = 16_384;

/// Cells in one write to a channel, as C tor counts them: two TLS records of 31.
const OUTBUF: u32 = 62;

impl Parameters {
    /// The defaults, with another number of cells for each SENDME, as the far end chose it.
    pub fn with_increment(increment: u8) -> Self {
        Self {
            increment: u32::from(increment.max(1)),
            ..Self::default()
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

    /// Whether one more DATA cell may leave.
    pub fn may_send(&self) -> bool {
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
            self.change(blocked);
            self.schedule();
        }
        self.inflight = self.inflight.saturating_sub(self.parameters.increment);
    }

    /// The congestion window, in cells.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// DATA cells that one SENDME acknowledges.
    pub fn increment(&self) -> u32 {
        self.parameters.increment
    }

    /// Whether the window still grows as fast as acknowledgements come.
    pub fn in_slow_start(&self) -> bool {
        self.slow_start
    }

    fn change(&mut self, blocked: bool) {
        let bdp = self.rtt.bdp(self.window);
        let queued = self.window.saturating_sub(bdp);
        if self.slow_start {
            self.grow_fast(bdp, queued, blocked);
        } else if self.next_change == 0 {
            self.step(bdp, queued, blocked);
        }
        self.window = self.window.min(self.parameters.most);
    }

    fn grow_fast(&mut self, bdp: u32, queued: u32, blocked: bool) {
        let p = self.parameters;
        if queued >= p.gamma || blocked {
            self.window = bdp.saturating_add(p.gamma);
            self.slow_start = false;
        } else if self.full {
            let growth = self.limited_growth();
            self.window = self.window.saturating_add(growth);
            self.slow_start = growth * self.sendmes_per_window() > p.step * p.steps_per_window;
        }
        if self.window >= p.slow_start_most {
            self.window = p.slow_start_most;
            self.slow_start = false;
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

    /// `rfc3742_ss_inc`.
    fn limited_growth(&self) -> u32 {
        let p = self.parameters;
        if self.window <= p.slow_start_cap {
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
        match self.slow_start {
            true => slow_start,
            false => (self.update_rate() * percent / 100).min(most).max(2),
        }
    }
}

#[cfg(test)]
mod tests;
