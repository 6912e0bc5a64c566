//! `YYYY-MM-DD HH:MM:SS` in seconds since 1970. dir-spec "Document meta-format".

/// Days before each month of a year that is no leap year.
const BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

pub(super) fn seconds(text: &str) -> Option<u64> {
    let (date, time) = text.trim_end().split_once(' ')?;
    let [year, month, day] = numbers(date, '-')?;
    let [hours, minutes, seconds] = numbers(time, ':')?;
    let fits = (1970..=2200).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hours < 24
        && minutes < 60
        && seconds <= 60;
    fits.then_some(())?;
    let before = BEFORE.get(usize::try_from(month.checked_sub(1)?).ok()?)?;
    let leap = u64::from(month > 2 && is_leap(year));
    let days = (1970..year).map(|year| 365 + u64::from(is_leap(year)));
    let days = days.sum::<u64>().checked_add(*before)?.checked_add(leap)?;
    let days = days.checked_add(day)?.checked_sub(1)?;
    let hours = days.checked_mul(24)?.checked_add(hours)?;
    let minutes = hours.checked_mul(60)?.checked_add(minutes)?;
    minutes.checked_mul(60)?.checked_add(seconds)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn numbers(text: &str, between: char) -> Option<[u64; 3]> {
    let mut parts = text.split(between);
    let mut number = || {
        let part = parts.next()?;
        let digits = part.len() <= 4 && part.bytes().all(|octet| octet.is_ascii_digit());
        digits.then(|| part.parse().ok()).flatten()
    };
    let all = [number()?, number()?, number()?];
    parts.next().is_none().then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_counted_as_the_calendar_has_them() {
        assert_eq!(seconds("1970-01-01 00:00:00"), Some(0));
        assert_eq!(seconds("2000-02-29 00:00:00"), Some(951_782_400));
        assert_eq!(seconds("2000-03-01 00:00:00"), Some(951_868_800));
        assert_eq!(seconds("2026-11-22 02:53:40"), Some(1_795_316_020));
        for wrong in ["", "2026-11-22", "2026-13-01 00:00:00", "2026-1-1 0:0:+1"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
