//! How many packets a flow may send in a second: a bucket that is as large as a second's worth. Pure; `now` is given.

use tokio::time::Instant;

/// Lets packets pass.
#[derive(Debug)]
pub(crate) struct Rate {
    /// A second; 0 is no limit.
    limit: u32,
    left: f64,
    at: Instant,
}

impl Rate {
    /// A full bucket.
    pub(crate) fn new(limit: u32, now: Instant) -> Self {
        Self {
            limit,
            left: limit.into(),
            at: now,
        }
    }

    /// Whether one more may pass.
    pub(crate) fn admits(&mut self, now: Instant) -> bool {
        if self.limit == 0 {
            return true;
        }
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * f64::from(self.limit);
        self.left = (self.left + gained).min(self.limit.into());
        self.at = self.at.max(now);
        let admits = self.left >= 1.0;
        self.left -= if admits { 1.0 } else { 0.0 };
        admits
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_seconds_worth_passes_at_once_and_then_the_rate() {
        let start = Instant::now();
        let mut rate = Rate::new(10, start);
        let passed = |rate: &mut Rate, now| (0..100).filter(|_| rate.admits(now)).count();
        assert_eq!(passed(&mut rate, start), 10);
        assert_eq!(passed(&mut rate, start + Duration::from_millis(250)), 2);
        assert_eq!(passed(&mut rate, start + Duration::from_secs(60)), 10);
        assert_eq!(
            passed(&mut rate, start),
            0,
            "a clock that goes back gives nothing"
        );
        assert_eq!(passed(&mut Rate::new(0, start), start), 100, "no limit");
    }
}
