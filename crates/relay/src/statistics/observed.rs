//! What a relay has been seen to carry: the most of any ten seconds of each of the last days. dir-spec "Server descriptor format", `bandwidth`.
//! A machine without I/O or clock: it is told totals of bytes, about once a second.
//!
//! It hides nobody: on a quiet relay one person's download *is* the most of ten seconds, and clients need the figure to choose relays by. So it is coarse
//! (five significant bits), it stands for a day, and nothing finer is kept or told.

use std::collections::VecDeque;

use hoplite_wire::relay_state::Observed;

/// Seconds of a stretch.
const STRETCH: u64 = 10;
/// Days that count.
const DAYS: u64 = 5;
const DAY: u64 = 24 * 3600;
/// Bits of a rate that are kept.
const SIGNIFICANT: u32 = 5;

/// Totals of bytes at a moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Seconds on a clock that only goes forward.
    at: u64,
    read: u64,
    written: u64,
}

/// The relay's observed bandwidth.
#[derive(Clone, Debug, Default)]
pub struct ObservedBandwidth {
    /// The last stretch, and the sample before it.
    samples: VecDeque<Sample>,
    /// The most of each day, the oldest first.
    days: Vec<Observed>,
    /// Since when, on the clock that only goes forward, the calendar is before the last of these days.
    behind_since: Option<u64>,
}

impl ObservedBandwidth {
    /// Goes on with what was kept.
    pub fn new(days: Vec<Observed>) -> Self {
        Self {
            days,
            ..Self::default()
        }
    }

    /// Takes totals: `at` on a clock that only goes forward, `now` by the calendar, both in seconds. True if a day has seen more than before.
    pub fn take(&mut self, at: u64, now: u64, (read, written): (u64, u64)) -> bool {
        if self.samples.back().is_some_and(|last| last.at >= at) {
            return false;
        }
        self.samples.push_back(Sample { at, read, written });
        let is_old = |sample: &&Sample| sample.at.saturating_add(STRETCH) <= at;
        while self.samples.get(1).filter(is_old).is_some() {
            self.samples.pop_front();
        }
        let Some(first) = self.samples.front().filter(is_old) else {
            return false;
        };
        let seconds = at.saturating_sub(first.at).max(1);
        let rate = |total: u64, before: u64| coarse(total.saturating_sub(before) / seconds);
        let (read, written) = (rate(read, first.read), rate(written, first.written));
        let day = self.day(at, now / DAY);
        self.note(day, read, written)
    }

    /// The day that it is. A clock that was set back does not bring old days again; if it stays so for a day it was ahead before, and what was seen on the
    /// days that are not yet is today's.
    fn day(&mut self, at: u64, today: u64) -> u64 {
        let last = self.days.last().map_or(today, |last| last.day);
        if last <= today {
            self.behind_since = None;
            return today;
        }
        let since = *self.behind_since.get_or_insert(at);
        if at.saturating_sub(since) < DAY {
            return last;
        }
        self.behind_since = None;
        let ahead = self.days.iter().filter(|seen| seen.day >= today);
        let most = ahead.fold((0, 0), |(read, written), seen| {
            (seen.read.max(read), seen.written.max(written))
        });
        self.days.retain(|seen| seen.day < today);
        self.days.push(Observed {
            day: today,
            read: most.0,
            written: most.1,
        });
        today
    }

    fn note(&mut self, day: u64, read: u64, written: u64) -> bool {
        self.days.retain(|old| old.day.saturating_add(DAYS) > day);
        match self.days.last_mut().filter(|last| last.day == day) {
            Some(last) => {
                let before = *last;
                last.read = last.read.max(read);
                last.written = last.written.max(written);
                *last != before
            }
            None => {
                self.days.push(Observed { day, read, written });
                true
            }
        }
    }

    /// Bytes a second that were carried: read, and passed on.
    pub fn rate(&self) -> u64 {
        let most = |of: fn(&Observed) -> u64| self.days.iter().map(of).max().unwrap_or(0);
        most(|day| day.read).min(most(|day| day.written))
    }

    /// Whether at least one whole day is over that was seen.
    pub fn has_whole_day(&self) -> bool {
        self.days.len() > 2
    }

    /// What is kept.
    pub fn days(&self) -> &[Observed] {
        &self.days
    }
}

/// Rounded down to few significant bits.
fn coarse(rate: u64) -> u64 {
    let bits = u64::BITS - rate.leading_zeros();
    let dropped = bits.saturating_sub(SIGNIFICANT);
    rate >> dropped << dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_737_600;

    /// Carries so many bytes in each second from `from` on.
    fn carry(observed: &mut ObservedBandwidth, from: u64, rates: &[u64], total: &mut u64) {
        for (second, rate) in (from..).zip(rates) {
            *total += rate;
            observed.take(second, NOW + second, (*total, *total));
        }
    }

    #[test]
    fn ten_seconds_count_and_a_moment_does_not() {
        let (mut observed, mut total) = (ObservedBandwidth::default(), 0);
        carry(&mut observed, 0, &[0; 20], &mut total);
        carry(&mut observed, 20, &[1_000_000], &mut total);
        carry(&mut observed, 21, &[0; 20], &mut total);
        assert_eq!(observed.rate(), coarse(100_000));
        carry(&mut observed, 41, &[64 << 10; 10], &mut total);
        assert_eq!(observed.rate(), coarse(100_000));
        carry(&mut observed, 51, &[1 << 20; 10], &mut total);
        assert_eq!(observed.rate(), 1 << 20);
    }

    #[test]
    fn what_is_only_read_is_not_carried() {
        let mut observed = ObservedBandwidth::default();
        for second in 0..30 {
            observed.take(second, NOW, (second << 20, second << 10));
        }
        assert_eq!(observed.rate(), 1 << 10);
    }

    #[test]
    fn a_pause_makes_a_stretch_longer_and_not_faster() {
        let mut observed = ObservedBandwidth::default();
        observed.take(0, NOW, (0, 0));
        observed.take(100, NOW + 100, (100 << 20, 100 << 20));
        assert_eq!(observed.rate(), 1 << 20);
    }

    #[test]
    fn days_are_forgotten_after_five() {
        let kept = vec![Observed {
            day: NOW / DAY,
            read: 1 << 30,
            written: 1 << 30,
        }];
        let mut observed = ObservedBandwidth::new(kept);
        for (days, rate) in [(1, 1 << 30), (4, 1 << 30), (5, 0)] {
            observed.take(days * 100, NOW + days * DAY, (0, 0));
            observed.take(days * 100 + 10, NOW + days * DAY, (0, 0));
            assert_eq!(observed.rate(), rate, "after {days} days");
        }
        observed.take(9000, NOW - 30 * DAY, (0, 0));
        observed.take(9010, NOW - 30 * DAY, (99 << 20, 99 << 20));
        assert!(observed.days().is_sorted_by_key(|day| day.day));
    }

    #[test]
    fn what_was_seen_by_a_clock_that_was_ahead_is_forgotten_as_all_is() {
        let kept = vec![Observed {
            day: NOW / DAY + 3000,
            read: 1 << 30,
            written: 1 << 30,
        }];
        let mut observed = ObservedBandwidth::new(kept);
        let mut after = |days: u64| {
            for at in [days * DAY, days * DAY + 10] {
                observed.take(at, NOW + at, (0, 0));
            }
            (observed.rate(), observed.days().last().map(|last| last.day))
        };
        assert_eq!(after(0), (1 << 30, Some(NOW / DAY + 3000)));
        assert_eq!(after(1), (1 << 30, Some(NOW / DAY + 1)));
        assert_eq!(after(5), (1 << 30, Some(NOW / DAY + 5)));
        assert_eq!(after(6), (0, Some(NOW / DAY + 6)));
    }

    #[test]
    fn rates_are_told_in_five_bits() {
        assert_eq!((coarse(0), coarse(31), coarse(33)), (0, 31, 32));
        for rate in [1_u64 << 20, 12_345_678, u64::MAX] {
            let told = coarse(rate);
            assert!(told <= rate && rate - told <= rate / 16);
            assert!(told >> told.trailing_zeros() < 32);
        }
    }
}
