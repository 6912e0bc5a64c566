//! When a circuit whose streams stand still is asked for a sign of life: who only receives would not notice that a relay of it is gone.
//! [`super::driver`] asks by a cell that nobody answers: every relay on the way has something to pass on then, and `link` notices within seconds if the
//! next one does not take it. A machine without a clock. tor-spec "Long-range padding": RELAY_DROP.

use std::time::Duration;

use tokio::time::Instant;

/// The pauses before each question, in seconds: 1, 3, 7, 15 and 31 s after something came. Then a circuit that rests is left to rest.
const PAUSES: [u64; 5] = [1, 2, 4, 8, 16];

/// What has come, and what was asked since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signs {
    since: Instant,
    asked: usize,
}

impl Signs {
    /// A circuit that begins to carry streams.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            asked: 0,
        }
    }

    /// Something came.
    pub(super) fn heard(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// When the next question is due; nothing: no more are asked until something comes.
    pub(super) fn due(&self) -> Option<Instant> {
        let pause = PAUSES.get(self.asked)?;
        Some(self.since + Duration::from_secs(*pause))
    }

    /// It was asked.
    pub(super) fn ask(&mut self, now: Instant) {
        self.since = now;
        self.asked += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circuit_that_stands_still_is_asked_five_times_and_anew_once_it_speaks() {
        let start = Instant::now();
        let mut signs = Signs::new(start);
        for _ in 0..2 {
            let mut asked = Vec::new();
            while let Some(due) = signs.due() {
                asked.push((due - start).as_secs());
                signs.ask(due);
            }
            assert_eq!(asked, [1, 3, 7, 15, 31]);
            signs.heard(start);
        }
    }
}
