//! Whether the channel to the next relay holds a circuit back: Vegas takes that for a sign of congestion, as C tor does (proposal 324 §3.3).
//! Each driver of a circuit has one. C tor asks whether 256 cells of the circuit wait. Here fewer may wait, and whoever fills the queue while
//! the task that empties it has had no turn yet would see it full: so it is asked how long the queue stayed full.

use std::time::Duration;

use tokio::time::Instant;

/// So long has a queue to stay full. At 64 cells it drains more slowly than 26 Mbit/s then; what is faster is told by its round trip.
const LONG: Duration = Duration::from_millis(10);

/// How long the channel took nothing, now or the last time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pressure {
    full_since: Option<Instant>,
    was_long: bool,
}

impl Pressure {
    /// The channel takes a cell, or takes none now.
    pub fn note(&mut self, ready: bool, now: Instant) {
        if !ready {
            self.full_since.get_or_insert(now);
        } else if let Some(since) = self.full_since.take() {
            self.was_long = now.saturating_duration_since(since) >= LONG;
        }
    }

    /// Whether it holds the circuit back: its queue is full, and was for long now or the last time that it was.
    pub fn holds(&self, now: Instant) -> bool {
        self.full_since
            .is_some_and(|since| self.was_long || now.saturating_duration_since(since) >= LONG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_is_emptied_at_once_is_no_sign_of_congestion() {
        let mut now = Instant::now();
        let mut pressure = Pressure::default();
        for _ in 0..100 {
            pressure.note(false, now);
            assert!(!pressure.holds(now));
            now += Duration::from_millis(1);
            pressure.note(true, now);
            assert!(!pressure.holds(now));
        }
    }

    #[test]
    fn a_queue_that_stays_full_is_one_and_so_is_the_next_time_at_once() {
        let mut now = Instant::now();
        let mut pressure = Pressure::default();
        pressure.note(false, now);
        now += LONG;
        pressure.note(false, now);
        assert!(pressure.holds(now));
        pressure.note(true, now);
        assert!(!pressure.holds(now), "there is room");
        pressure.note(false, now);
        assert!(pressure.holds(now), "full again, and slow the last time");
        now += Duration::from_millis(1);
        pressure.note(true, now);
        pressure.note(false, now);
        assert!(!pressure.holds(now), "it was quick the last time");
    }
}
