//! The one timer of a connection: whatever the machine waits for, it waits for one thing at a time.
//! The machine says for what after every step. RFC 9293 §3.8.1, §3.8.3 and §3.8.6.1; RFC 6298 §5.
//!
//! We measure no round trip: the program is on this machine, and 200 ms is longer than its kernel holds an acknowledgement back.

use std::time::Duration;

use tokio::time::Instant;

/// The first wait for an acknowledgement; each further one is twice as long.
pub(super) const FIRST: Duration = Duration::from_millis(200);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(10);
/// How long the end of a connection is remembered. RFC 9293 says four minutes, because packets wander about in the
/// Internet; here they cross no network.
const TIME_WAIT: Duration = Duration::from_secs(1);
/// After so many waits without a word from the program the connection is given up: 103 seconds. RFC 9293 §3.8.3 wants at least 100.
const PATIENCE: u32 = 15;
/// The same for an answer to a SYN: 13 seconds.
const SYN_PATIENCE: u32 = 6;

/// What the machine waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wait {
    #[default]
    Nothing,
    /// The program's answer to our SYN.
    Handshake,
    /// An acknowledgement of what was sent.
    Acknowledgement,
    /// The program's window, which is closed while we have something for it.
    Window,
    /// Packets that may still be under way, after the end.
    End,
}

/// What a wait that is over means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// It did not happen: try again.
    Again(Wait),
    /// It did not happen too often.
    GiveUp,
    /// The end is over.
    Forget,
}

#[derive(Debug, Default)]
pub(super) struct Timer {
    wait: Wait,
    deadline: Option<Instant>,
    /// How often this wait was in vain: what the next one takes.
    tries: u32,
    /// How often any was since the program was last heard.
    silent: u32,
}

impl Timer {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Says what is waited for now; going on with the same wait changes nothing.
    pub(super) fn wait(&mut self, wait: Wait, now: Instant) {
        if wait != self.wait {
            self.restart(wait, now);
        }
    }

    /// Waits from the beginning.
    pub(super) fn restart(&mut self, wait: Wait, now: Instant) {
        (self.wait, self.tries) = (wait, 0);
        self.deadline = match wait {
            Wait::Nothing => None,
            Wait::End => Some(now + TIME_WAIT),
            _ => Some(now + FIRST),
        };
    }

    /// The program is alive.
    pub(super) fn heard(&mut self) {
        self.silent = 0;
    }

    /// Whether a wait is over. The next, longer one begins.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Over> {
        self.deadline.filter(|deadline| *deadline <= now)?;
        if self.wait == Wait::End {
            return Some(Over::Forget);
        }
        self.tries += 1;
        self.silent += 1;
        self.deadline = Some(now + FIRST.saturating_mul(1 << self.tries.min(10)).min(LONGEST));
        let patience = match self.wait {
            Wait::Handshake => SYN_PATIENCE,
            _ => PATIENCE,
        };
        Some(match self.silent >= patience {
            true => Over::GiveUp,
            false => Over::Again(self.wait),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long a wait lasts until it is given up.
    fn patience(wait: Wait) -> Duration {
        let (start, mut timer) = (Instant::now(), Timer::default());
        timer.wait(wait, start);
        loop {
            let now = timer.deadline().expect("armed");
            if timer.expire(now) == Some(Over::GiveUp) {
                return now - start;
            }
        }
    }

    #[test]
    fn waits_grow_and_end() {
        assert!(patience(Wait::Acknowledgement) > Duration::from_secs(100));
        assert!(patience(Wait::Handshake) < Duration::from_secs(15));
    }

    #[test]
    fn a_program_that_answers_is_never_given_up() {
        let (mut now, mut timer) = (Instant::now(), Timer::default());
        timer.wait(Wait::Window, now);
        for _ in 0..1000 {
            now = timer.deadline().expect("armed");
            assert_eq!(timer.expire(now), Some(Over::Again(Wait::Window)));
            timer.wait(Wait::Window, now);
            timer.heard();
            assert!(timer.deadline().expect("armed") - now <= LONGEST);
        }
    }
}
