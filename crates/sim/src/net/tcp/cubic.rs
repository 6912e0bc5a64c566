//! The congestion window: slow start, then CUBIC (RFC 9438) with its lower bound, Reno's pace. A machine without clock; in segments.

use std::time::Duration;

/// RFC 6928.
const FIRST: f64 = 10.0;
const LEAST: f64 = 2.0;
const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// How fast Reno would grow with this BETA (RFC 9438 §4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

#[derive(Clone, Debug)]
pub(super) struct Cubic {
    window: f64,
    threshold: f64,
    before: f64,
    reno: f64,
    /// Since when the window grows without loss.
    since: Option<Duration>,
}

impl Cubic {
    pub(super) const fn new() -> Self {
        Self {
            window: FIRST,
            threshold: f64::INFINITY,
            before: 0.0,
            reno: 0.0,
            since: None,
        }
    }

    pub(super) const fn window(&self) -> f64 {
        self.window
    }

    /// So many segments have been acknowledged.
    pub(super) fn acknowledged(&mut self, segments: f64, rtt: Duration, now: Duration) {
        if self.window < self.threshold {
            self.window += segments;
            return;
        }
        let since = *self.since.get_or_insert(now);
        if since == now {
            self.before = self.before.max(self.window);
            self.reno = self.window;
        }
        let climbs = ((self.before * (1.0 - BETA)) / C).cbrt();
        let time = (now.saturating_sub(since) + rtt).as_secs_f64();
        let target = C.mul_add((time - climbs).powi(3), self.before);
        let target = target.clamp(self.window, 1.5 * self.window);
        self.window += (target - self.window) / self.window * segments;
        self.reno += ALPHA * segments / self.window;
        self.window = self.window.max(self.reno);
    }

    /// Something was lost; told once for each window.
    pub(super) fn lost(&mut self) {
        self.before = self.window;
        self.window = (self.window * BETA).max(LEAST);
        self.threshold = self.window;
        self.since = None;
    }

    /// Nothing was heard for too long.
    pub(super) fn silent(&mut self) {
        self.lost();
        self.window = 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    fn grow(cubic: &mut Cubic, rounds: u32, from: u32) {
        for round in from..from + rounds {
            let now = RTT * round;
            cubic.acknowledged(cubic.window(), RTT, now);
        }
    }

    #[test]
    fn a_window_doubles_each_round_trip_until_the_first_loss() {
        let mut cubic = Cubic::new();
        grow(&mut cubic, 3, 0);
        assert!((cubic.window() - 80.0).abs() < 0.1);
        cubic.lost();
        assert!((cubic.window() - 56.0).abs() < 0.1);
    }

    #[test]
    fn after_a_loss_it_comes_back_to_where_it_was_and_goes_on_slowly() {
        let mut cubic = Cubic::new();
        grow(&mut cubic, 4, 0);
        cubic.lost();
        // The cube root of 160 * 0.3 / 0.4 is 4.9 s.
        grow(&mut cubic, 49, 10);
        assert!(
            (150.0..190.0).contains(&cubic.window()),
            "{}",
            cubic.window()
        );
    }

    #[test]
    fn silence_begins_anew() {
        let mut cubic = Cubic::new();
        grow(&mut cubic, 4, 0);
        cubic.silent();
        assert!(cubic.window() < 1.1);
        grow(&mut cubic, 6, 10);
        assert!(cubic.window() > 60.0);
    }
}
