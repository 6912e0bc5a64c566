//! How often a connection answers segments that do not belong to it (RFC 5961 §7): two ends that both believe the other to be wrong
//! must not go on for ever. A part of the machine.

use std::time::Duration;

use tokio::time::Instant;

/// Answers in each second.
const LIMIT: u8 = 100;

#[derive(Debug, Default)]
pub(super) struct Guard {
    since: Option<Instant>,
    given: u8,
}

impl Guard {
    /// Whether another one may be answered now.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        let second = Duration::from_secs(1);
        let old = |since: Instant| now.saturating_duration_since(since) >= second;
        if self.since.is_none_or(old) {
            (self.since, self.given) = (Some(now), 0);
        }
        self.given = self.given.saturating_add(1).min(LIMIT + 1);
        self.given <= LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_answered_so_often_a_second() {
        let (now, mut guard) = (Instant::now(), Guard::default());
        let answered = (0..1000).filter(|_| guard.allows(now)).count();
        assert_eq!(answered, usize::from(LIMIT));
        assert!(guard.allows(now + Duration::from_secs(1)));
    }
}
