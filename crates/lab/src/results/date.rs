//! Dates of the calendar, in UTC, without a library. Used by exports and by the report.

/// A moment in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc {
    /// Year, month and day.
    pub date: (i64, i64, i64),
    /// Hour, minute and second.
    pub time: (i64, i64, i64),
    /// Microseconds.
    pub micros: i64,
}

impl Utc {
    /// From seconds since 1970; what is before or no number is 1970, what is after 9999 is its last day.
    #[must_use]
    pub fn at(seconds: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a float is cut to the range of the integer"
        )]
        let micros = (seconds.clamp(0.0, 253_402_300_799.0) * 1e6).round() as i64;
        let (seconds, micros) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
        let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        Self {
            date: civil(days),
            time: (rest / 3600, rest / 60 % 60, rest % 60),
            micros,
        }
    }

    /// `2026-11-21 10:03:00.250000`, as pandas and OnionPerf write it.
    #[must_use]
    pub fn precisely(self) -> String {
        let ((year, month, day), (hour, minute, second)) = (self.date, self.time);
        let micros = self.micros;
        format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}")
    }

    /// `2026-11-21 10:03 UTC`.
    #[must_use]
    pub fn shortly(self) -> String {
        let ((year, month, day), (hour, minute, _)) = (self.date, self.time);
        format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
    }
}

/// The date so many days after 1970-01-01 (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", 2013).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(Utc::at(0.0).shortly(), "1970-01-01 00:00 UTC");
        assert_eq!(Utc::at(951_782_400.0).shortly(), "2000-02-29 00:00 UTC");
        let now = Utc::at(1_795_255_380.25);
        assert_eq!(now.precisely(), "2026-11-21 10:03:00.250000");
    }

    #[test]
    fn what_is_no_date_is_the_first_or_the_last_one() {
        assert_eq!(Utc::at(f64::NAN).shortly(), "1970-01-01 00:00 UTC");
        assert_eq!(Utc::at(f64::INFINITY).shortly(), "9999-12-31 23:59 UTC");
    }
}
