//! Quantities with their units: `5ms`, `10Mbit`, `64kB`, `1%`.
//! Decimal prefixes are powers of 1000, `KiB` and `MiB` powers of 1024. A number without a unit is refused, except where it has none:
//! bytes, shares, and 0.

use std::time::Duration;

use super::{document::Wrong, expression::Value};

const DURATIONS: &str = "a number with ns, us, ms, s, min or h, such as \"25ms\"";
const RATES: &str =
    "a number with bit, kbit, Mbit or Gbit (per second), such as \"10Mbit\", or \"unlimited\"";
const SIZES: &str = "bytes, or a number with B, kB, MB, GB, KiB, MiB or GiB, such as \"2MB\"";
const SHARES: &str = "a share from 0 to 1, or a percentage such as \"1%\"";

/// A time of up to a week.
pub(crate) fn duration(value: &Value) -> Result<Duration, Wrong> {
    const WEEK: f64 = 7.0 * 86400.0 * 1e9;
    let units = [
        ("ns", 1.0),
        ("us", 1e3),
        ("µs", 1e3),
        ("ms", 1e6),
        ("s", 1e9),
        ("min", 60e9),
        ("h", 3600e9),
    ];
    let nanoseconds = quantity(value, &units, None).filter(|number| *number <= WEEK);
    let found = nanoseconds.map(|number| Duration::from_nanos(whole(number)));
    found.ok_or_else(|| wrong(value, "a duration", DURATIONS))
}

/// Bits per second; `None` is unlimited. Up to 1 Tbit/s.
pub(crate) fn rate(value: &Value) -> Result<Option<u64>, Wrong> {
    if matches!(value, Value::Text(text) if text == "unlimited") {
        return Ok(None);
    }
    bits(value).map(Some)
}

/// Bits per second, at least 1.
pub(crate) fn bits(value: &Value) -> Result<u64, Wrong> {
    let units = [("bit", 1.0), ("kbit", 1e3), ("Mbit", 1e6), ("Gbit", 1e9)];
    let trimmed = match value {
        Value::Text(text) => Value::Text(text.trim_end_matches("/s").to_owned()),
        other => other.clone(),
    };
    let bits = quantity(&trimmed, &units, None).filter(|number| (1.0..=1e12).contains(number));
    bits.map(whole).ok_or_else(|| wrong(value, "a rate", RATES))
}

/// Bytes, up to 2^50.
pub(crate) fn size(value: &Value) -> Result<u64, Wrong> {
    let units = [
        ("B", 1.0),
        ("kB", 1e3),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
    ];
    let bytes =
        quantity(value, &units, Some(1.0)).filter(|number| *number <= 1_125_899_906_842_624.0);
    bytes
        .map(whole)
        .ok_or_else(|| wrong(value, "a size", SIZES))
}

/// A multiple of the bandwidth-delay product, such as `1.5bdp`.
pub(crate) fn bdp(value: &Value) -> Option<f64> {
    quantity(value, &[("bdp", 1.0)], None).filter(|number| *number > 0.0 && *number <= 1000.0)
}

/// A share, 0 to 1.
pub(crate) fn share(value: &Value) -> Result<f64, Wrong> {
    let share = quantity(value, &[("%", 0.01)], Some(1.0)).filter(|number| *number <= 1.0);
    share.ok_or_else(|| wrong(value, "a share", SHARES))
}

/// A whole number between two.
pub(crate) fn count(value: &Value, least: u64, most: u64) -> Result<u64, Wrong> {
    let number = match value {
        Value::Number(number) => Some(*number),
        Value::Text(text) => text.parse().ok(),
        _ => None,
    };
    let fits = |number: &f64| {
        number.fract() == 0.0 && *number >= 0.0 && (least..=most).contains(&whole(*number))
    };
    let allowed = || {
        Wrong::new(
            format!("{} is not possible", value.shown()),
            format!("a whole number from {least} to {most}"),
        )
    };
    number.filter(fits).map(whole).ok_or_else(allowed)
}

/// A number that is not negative.
pub(crate) fn number(value: &Value) -> Result<f64, Wrong> {
    match value {
        Value::Number(number) if *number >= 0.0 && number.is_finite() => Ok(*number),
        other => Err(Wrong::new(
            format!("{} is not possible", other.shown()),
            "a number from 0",
        )),
    }
}

/// A number and its unit, in the smallest unit. Zero needs none, others do unless `bare` says what they are.
fn quantity(value: &Value, units: &[(&str, f64)], bare: Option<f64>) -> Option<f64> {
    let text = match value {
        Value::Number(number) => {
            let factor = bare.or_else(|| (*number == 0.0).then_some(1.0))?;
            return Some(number * factor).filter(|number| number.is_finite() && *number >= 0.0);
        }
        Value::Text(text) => text.trim(),
        _ => return None,
    };
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits);
    let number: f64 = digits.parse().ok()?;
    let unit = unit.trim();
    if unit.is_empty() {
        return quantity(&Value::Number(number), units, bare);
    }
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    Some(number * factor)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "callers have checked the range"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

fn wrong(value: &Value, what: &str, allowed: &str) -> Wrong {
    Wrong::new(format!("{} is not {what}", value.shown()), allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration(&text("25ms")), Ok(Duration::from_millis(25)));
        assert_eq!(duration(&text("0.25 ms")), Ok(Duration::from_micros(250)));
        assert_eq!(duration(&text("2min")), Ok(Duration::from_secs(120)));
        assert_eq!(duration(&Value::Number(0.0)), Ok(Duration::ZERO));
        for bad in [
            text("5"),
            text("-5ms"),
            text("5 parsecs"),
            text("ms"),
            text("1e3s"),
            text("8000h"),
            text("1.2.3s"),
            text(""),
            Value::Number(5.0),
            Value::Number(f64::NAN),
        ] {
            assert!(duration(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn rates_are_bits_with_decimal_prefixes() {
        assert_eq!(rate(&text("10Mbit")), Ok(Some(10_000_000)));
        assert_eq!(rate(&text("10Mbit/s")), Ok(Some(10_000_000)));
        assert_eq!(rate(&text("1.5 Gbit")), Ok(Some(1_500_000_000)));
        assert_eq!(rate(&text("unlimited")), Ok(None));
        for bad in [
            text("10"),
            text("10MB"),
            text("0bit"),
            text("10mbit"),
            Value::Flag(true),
        ] {
            assert!(rate(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn sizes_are_bytes_decimal_or_binary() {
        assert_eq!(size(&text("64kB")), Ok(64_000));
        assert_eq!(size(&text("320KiB")), Ok(327_680));
        assert_eq!(size(&text("5MiB")), Ok(5_242_880));
        assert_eq!(size(&Value::Number(1234.0)), Ok(1234));
        assert!(size(&text("1.5bdp")).is_err());
    }

    #[test]
    fn shares_are_percentages_or_numbers_up_to_one() {
        assert_eq!(share(&text("1%")), Ok(0.01));
        assert_eq!(share(&Value::Number(0.01)), Ok(0.01));
        assert_eq!(share(&text("0.5")), Ok(0.5));
        assert!(share(&text("101%")).is_err());
        assert!(share(&Value::Number(2.0)).is_err());
    }

    #[test]
    fn counts_are_whole_and_bounded() {
        assert_eq!(count(&Value::Number(3.0), 1, 5), Ok(3));
        assert_eq!(count(&text("3"), 1, 5), Ok(3));
        for bad in [
            Value::Number(0.0),
            Value::Number(6.0),
            Value::Number(2.5),
            Value::Number(-1.0),
            text("x"),
            Value::Number(f64::NAN),
        ] {
            assert!(count(&bad, 1, 5).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_queue_may_be_a_multiple_of_the_product() {
        assert_eq!(bdp(&text("1.5bdp")), Some(1.5));
        assert_eq!(bdp(&text("64kB")), None);
    }
}
