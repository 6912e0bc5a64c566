//! The monthly budget of a plan for data: what may still go over an interface, both ways. Paper 002, section IV.A: "Mobile operators usually apply
//! data volume limitations". A state machine without I/O or clock.
//!
//! Nothing is begun that is not reserved before; a reservation is the most that can pass, and stays charged in full if nobody tells what did pass
//! (the program was killed). Months are those of UTC. A clock that was set back gives nothing back: what was charged to months that have not come
//! yet is charged to the present one. A clock that runs ahead opens the next month's budget, as nothing tells it from a machine that was off.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::results::export::Utc;

/// Months that are remembered.
const REMEMBERED: usize = 24;

/// Seconds of a day.
pub(crate) const DAY: u64 = 86_400;

/// A month of UTC: twelve times the year, and which of the year, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Month(i64);

impl Month {
    /// The one of a moment, in seconds since 1970.
    pub(crate) fn of(unix: u64) -> Self {
        let (year, month, _) = utc(unix).date;
        Self(year * 12 + month - 1)
    }
}

/// `2026-11`.
impl std::fmt::Display for Month {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:04}-{:02}",
            self.0.div_euclid(12),
            self.0.rem_euclid(12) + 1
        )
    }
}

/// The last moment that the calendar knows.
const LAST: u64 = 253_402_300_799;

fn utc(unix: u64) -> Utc {
    #[expect(clippy::cast_precision_loss, reason = "seconds below 2^53")]
    Utc::at(unix.min(LAST) as f64)
}

/// `2026-11-26`, the day of a moment.
pub(crate) fn day(unix: u64) -> String {
    let (year, month, day) = utc(unix).date;
    format!("{year:04}-{month:02}-{day:02}")
}

/// What a transfer may take at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reservation {
    /// The transfer's number.
    pub(crate) number: u64,
    /// Payload that it asks for, in bytes.
    pub(crate) size: u64,
    /// The most that goes over the interface, both ways, in bytes.
    pub(crate) bytes: u64,
    /// When it was made, in seconds since 1970.
    pub(crate) at: u64,
}

/// What was charged to which month, in bytes. Its limit is not part of it: an operator may change that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ledger {
    months: BTreeMap<Month, u64>,
    open: Option<Reservation>,
}

impl Ledger {
    /// Bytes charged to the month of `now`, reservations too.
    pub(crate) fn charged(&self, now: u64) -> u64 {
        let month = Month::of(now);
        let until_now = self.months.get(&month).copied().unwrap_or(0);
        let ahead = self
            .months
            .range(month..)
            .skip_while(|(at, _)| **at == month);
        let ahead = ahead.fold(0, |all: u64, (_, bytes)| all.saturating_add(*bytes));
        let open = self.open.map_or(0, |open| open.bytes);
        until_now.saturating_add(ahead).saturating_add(open)
    }

    /// Each remembered month with its bytes, the oldest first.
    pub(crate) fn months(&self) -> impl Iterator<Item = (Month, u64)> {
        self.months.iter().map(|(month, bytes)| (*month, *bytes))
    }

    /// What is reserved and not settled.
    pub(crate) fn open(&self) -> Option<Reservation> {
        self.open
    }

    /// Reserves, if `limit` leaves room for it; answers whether it did. One reservation at a time.
    pub(crate) fn reserve(&mut self, reservation: Reservation, limit: u64) -> bool {
        let after = self.charged(reservation.at).checked_add(reservation.bytes);
        let fits = self.open.is_none() && after.is_some_and(|after| after <= limit);
        if fits {
            self.open = Some(reservation);
        }
        fits
    }

    /// Opens what takes nothing, whatever the limit: a sample that says so.
    pub(crate) fn note(&mut self, reservation: Reservation) {
        self.open = Some(Reservation {
            bytes: 0,
            ..reservation
        });
    }

    /// The transfer is over and `used` bytes went over the interface; `None` is not known, hence all that was reserved. A transfer over the end of a
    /// month is charged to both months: nobody saw when its bytes passed.
    pub(crate) fn settle(&mut self, used: Option<u64>, now: u64) {
        let Some(open) = self.open.take() else {
            return;
        };
        let used = used.unwrap_or(open.bytes);
        if Month::of(open.at) < Month::of(now) {
            self.charge(used, open.at);
        }
        self.charge(used, now);
    }

    /// Something went over the interface, whosever it was.
    pub(crate) fn charge(&mut self, bytes: u64, now: u64) {
        let month = Month::of(now);
        // The clock was set back: what later months have was spent by now.
        let later = self.months.split_off(&Month(month.0.saturating_add(1)));
        let later = later.into_values().fold(bytes, u64::saturating_add);
        let charged = self.months.entry(month).or_default();
        *charged = charged.saturating_add(later);
        while self.months.len() > REMEMBERED {
            self.months.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-11-26 00:00 UTC.
    const NOVEMBER: u64 = 1_795_651_200;
    const DECEMBER: u64 = NOVEMBER + 5 * DAY;

    fn reservation(bytes: u64, at: u64) -> Reservation {
        Reservation {
            number: 1,
            size: bytes / 2,
            bytes,
            at,
        }
    }

    #[test]
    fn months_are_those_of_utc() {
        assert_eq!(day(NOVEMBER), "2026-11-26");
        assert_eq!(Month::of(NOVEMBER).to_string(), "2026-11");
        assert_eq!(Month::of(DECEMBER - 1).to_string(), "2026-11");
        assert_eq!(Month::of(DECEMBER).to_string(), "2026-12");
    }

    #[test]
    fn what_does_not_fit_is_not_begun_and_the_next_month_has_room_again() {
        let mut ledger = Ledger::default();
        assert!(ledger.reserve(reservation(60, NOVEMBER), 100));
        assert!(
            !ledger.reserve(reservation(1, NOVEMBER), 100),
            "one at a time"
        );
        ledger.settle(Some(50), NOVEMBER);
        assert!(!ledger.reserve(reservation(51, NOVEMBER), 100));
        assert!(ledger.reserve(reservation(50, NOVEMBER), 100));
        ledger.settle(None, NOVEMBER);
        assert_eq!(ledger.charged(NOVEMBER), 100, "nobody told: all of it");
        assert!(ledger.reserve(reservation(100, DECEMBER), 100));
    }

    #[test]
    fn a_transfer_over_the_end_of_a_month_is_charged_to_both() {
        let mut ledger = Ledger::default();
        assert!(ledger.reserve(reservation(60, DECEMBER - 1), 100));
        ledger.settle(Some(50), DECEMBER + 1);
        assert_eq!(ledger.charged(DECEMBER), 50);
        let months: Vec<u64> = ledger.months().map(|(_, bytes)| bytes).collect();
        assert_eq!(months, [50, 50]);
    }

    #[test]
    fn a_clock_that_was_set_back_gives_nothing_back() {
        let mut ledger = Ledger::default();
        ledger.charge(40, NOVEMBER);
        ledger.charge(50, DECEMBER);
        assert_eq!(ledger.charged(NOVEMBER), 90, "before anything is charged");
        assert!(!ledger.reserve(reservation(11, NOVEMBER), 100));
        ledger.charge(0, NOVEMBER);
        assert_eq!(ledger.charged(NOVEMBER), 90);
    }

    proptest! {
        /// Whatever the order of reservations, ends, kills and clocks: what did pass since the clock last went on is never above the limit.
        #[test]
        fn no_clock_and_no_kill_passes_the_limit(
            steps in proptest::collection::vec((0_u64..400, any::<bool>(), 1_u64..40, 0_u64..=100, any::<bool>()), 1..80)
        ) {
            let (limit, mut ledger, mut now) = (100, Ledger::default(), NOVEMBER);
            let mut passed: Vec<(u64, u64)> = Vec::new();
            for (hours, back, bytes, share, killed) in steps {
                now = if back { now.saturating_sub(hours * 3600) } else { now + hours * 3600 };
                // What passed under a date that has not come yet, passed by now.
                passed.iter_mut().for_each(|(at, _)| *at = (*at).min(now));
                let before = passed.clone();
                if ledger.reserve(reservation(bytes, now), limit) {
                    let used = bytes * share / 100;
                    passed.push((now, used));
                    let kept = serde_json::to_string(&ledger).unwrap();
                    ledger = serde_json::from_str(&kept).unwrap();
                    ledger.settle((!killed).then_some(used), now);
                    // Months that the clock went back over may hold two budgets: those alone are left out.
                    let month = |(at, _): &&(u64, u64)| Month::of(*at) == Month::of(now);
                    let sum: u64 = passed.iter().filter(month).map(|one| one.1).sum();
                    prop_assert!(sum <= limit, "{sum} of {before:?}");
                }
            }
        }
    }
}
