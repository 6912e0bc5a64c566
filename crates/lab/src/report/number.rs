//! Numbers as a reader wants them: three digits that count, units that fit.

/// A unit to tell stored values in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Unit {
    /// `ms`, `Mbit/s`, …; empty for plain numbers.
    pub(super) name: &'static str,
    /// Stored value × factor = told value.
    pub(super) factor: f64,
}

impl Unit {
    pub(super) fn new(name: &'static str, factor: f64) -> Self {
        Self { name, factor }
    }

    /// A stored value in this unit, without its name.
    pub(super) fn tell(self, value: f64) -> String {
        digits(value * self.factor)
    }

    /// The same with its name.
    pub(super) fn tell_fully(self, value: f64) -> String {
        let gap = if self.name.is_empty() { "" } else { "\u{202f}" };
        format!("{}{gap}{}", self.tell(value), self.name)
    }
}

/// A ratio: `×0.81`, `×1.24`, `×31.0`.
pub(super) fn factor(ratio: f64) -> String {
    let plain = (0.0995..9.995).contains(&ratio);
    let text = if plain {
        format!("{ratio:.2}")
    } else {
        digits(ratio)
    };
    format!("×{text}")
}

/// Three digits that count; thousands apart; no minus before nought.
pub(super) fn digits(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "∞" } else { "−∞" }.to_owned();
    }
    if value.is_nan() {
        return "–".to_owned();
    }
    let size = value.abs();
    let text = match size {
        _ if size == 0.0 => "0".to_owned(),
        _ if size >= 99.95 => thousands(size),
        _ if size >= 9.995 => format!("{size:.1}"),
        _ if size >= 0.9995 => format!("{size:.2}"),
        _ if size >= 0.001 => format!("{size:.3}"),
        _ => format!("{size:.1e}"),
    };
    if value < 0.0 {
        format!("−{text}")
    } else {
        text
    }
}

fn thousands(size: f64) -> String {
    let text = format!("{size:.0}");
    let mut parts = Vec::new();
    let mut digits = text.chars().rev().peekable();
    while digits.peek().is_some() {
        let part: String = digits.by_ref().take(3).collect();
        parts.push(part.chars().rev().collect::<String>());
    }
    parts.reverse();
    parts.join("\u{202f}")
}

/// Seconds as `2 h 05 min`, `3 min 20 s` or `12 s`.
pub(super) fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0).round();
    let (hours, minutes) = ((whole / 3600.0).floor(), (whole % 3600.0 / 60.0).floor());
    match whole {
        _ if hours > 0.0 => format!("{hours:.0} h {minutes:02.0} min"),
        _ if minutes > 0.0 => format!("{minutes:.0} min {:02.0} s", whole % 60.0),
        _ => format!("{whole:.0} s"),
    }
}

/// `1 repetition`, `2 repetitions`.
pub(super) fn count(number: usize, word: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{number} {word}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_count() {
        let told = [
            0.0, 0.01234, 0.12345, 1.2345, 9.999, 12.345, 123.45, 12_345.6, -2.5,
        ];
        let expected = [
            "0",
            "0.012",
            "0.123",
            "1.23",
            "10.0",
            "12.3",
            "123",
            "12\u{202f}346",
            "−2.50",
        ];
        assert_eq!(told.map(digits), expected);
        assert_eq!(digits(f64::INFINITY), "∞");
        assert_eq!(digits(0.000_012_3), "1.2e-5");
    }

    #[test]
    fn spans_are_told_in_two_units() {
        assert_eq!(
            [12.4, 200.0, 7500.0].map(span),
            ["12 s", "3 min 20 s", "2 h 05 min"]
        );
    }
}
