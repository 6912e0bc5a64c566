//! Whether a store answers: what is told of many failures is their beginning and their end.

use std::time::{Duration, Instant};

/// It answers again when it has not failed for so long: one that fails now and then is told of at most twice in this time.
const SETTLED: Duration = Duration::from_secs(5);

/// What was told last.
#[derive(Debug, Default)]
pub(super) enum Outage {
    #[default]
    Unknown,
    Answers,
    /// It has failed, at this time last.
    Fails(Instant),
}

impl Outage {
    /// The store has answered; whether that is news.
    pub(super) fn answered(&mut self, now: Instant) -> bool {
        let news = match self {
            Self::Unknown => true,
            Self::Answers => false,
            Self::Fails(last) => now.duration_since(*last) >= SETTLED,
        };
        if news {
            *self = Self::Answers;
        }
        news
    }

    /// The store has failed; whether that is news.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        let news = !matches!(self, Self::Fails(_));
        *self = Self::Fails(now);
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_news_once_and_an_answer_when_none_has_failed_for_a_while() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(outage.answered(after(0)), "the first one");
        assert!(!outage.answered(after(1)));
        assert!(outage.failed(after(2)));
        assert!(!outage.failed(after(3)));
        assert!(!outage.answered(after(7)), "four seconds");
        assert!(!outage.failed(after(8)));
        assert!(outage.answered(after(13)));
        assert!(outage.failed(after(14)), "another outage");
    }
}
