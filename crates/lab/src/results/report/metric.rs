//! What a metric's name means to a reader: its title, its unit, which way is better, and where it stands on the page; and numbers as a reader
//! wants them: three digits that count, units that fit.

use crate::results::analysis::statistics::Statistic;

/// What is known of a metric.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Meaning {
    /// For headings and axes.
    pub(super) title: String,
    /// What it is counted in.
    pub(super) quantity: Quantity,
    /// Which way is better.
    pub(super) better: Better,
    /// Whether it stands in the verdict at the top.
    pub(super) key: bool,
    /// What its values come to.
    pub(super) statistic: Statistic,
    /// Its place among the others.
    pub(super) rank: u8,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    Lower,
    Higher,
    /// Nobody wins by it.
    Neither,
}

/// What a metric is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantity {
    Seconds,
    Milliseconds,
    BitsPerSecond,
    Share,
    Bytes,
    SecondsPerGigabyte,
    Watts,
    Count,
}

/// A metric whose name is known: name, title, quantity, direction, whether it is a key one.
type Known = (&'static str, &'static str, Quantity, Better, bool);

macro_rules! known {
    ($($name:literal $title:literal $quantity:ident $better:ident $key:literal;)+) => {
        [$(($name, $title, Quantity::$quantity, Better::$better, $key)),+]
    };
}

/// In the order of the page.
const KNOWN: [Known; 27] = known! {
    "page_load_s" "Page load" Seconds Lower true;
    "goodput_bps" "Goodput" BitsPerSecond Higher true;
    "ttfb_s" "Time to first byte" Seconds Lower true;
    "ttlb_s" "Time to last byte" Seconds Lower true;
    "rtt_ms" "Round trip, median" Milliseconds Lower true;
    "rtt_p95_ms" "Round trip, 95th percentile" Milliseconds Lower false;
    "loss_share" "Datagrams lost" Share Lower true;
    "jitter_ms" "Jitter" Milliseconds Lower false;
    "tls_s" "TLS handshake" Seconds Lower true;
    "tls_all_s" "TLS handshake, mean of a visit's" Seconds Lower false;
    "dom_content_loaded_s" "DOM content loaded" Seconds Lower false;
    "first_contentful_paint_s" "First contentful paint" Seconds Lower false;
    "overhead_share" "Overhead, share of bytes" Share Lower true;
    "ack_share" "Acknowledgements, share of bytes" Share Lower true;
    "ack_frames_per_packet" "Tunnel ACK frames per data packet" Count Lower true;
    "rounds_stalled_share" "Rounds in which so many clients stalled" Share Neither false;
    "failed_share" "Transfers that failed, mean share" Share Lower true;
    "served_share" "Transfers by server, share" Share Neither false;
    "cpu_s_per_gb" "Processor time per GB" SecondsPerGigabyte Lower true;
    "power_w" "Power" Watts Lower true;
    "busy_cores" "Processors kept busy" Count Lower false;
    "peak_memory" "Peak memory" Bytes Lower false;
    "ready_s" "Time until ready" Seconds Lower false;
    "reordered" "Datagrams reordered" Count Lower false;
    "duplicates" "Datagrams that came twice" Count Lower false;
    "proxy_s" "Time until the proxy answered" Seconds Lower false;
    "fingerprint" "Packet pattern" Count Neither false;
};

/// What a name means; a name that nobody knows is shown as it is, and its unit is guessed from its end.
pub(super) fn meaning(name: &str) -> Meaning {
    let (base, part) = name
        .split_once(':')
        .map_or((name, None), |(base, part)| (base, Some(part)));
    let place = KNOWN.iter().position(|known| known.0 == base);
    let Some((place, known)) = place.and_then(|place| Some((place, KNOWN.get(place)?))) else {
        return unknown(name);
    };
    let rank = u8::try_from(place * 2).unwrap_or(u8::MAX - 1);
    Meaning {
        title: part.map_or_else(|| known.1.to_owned(), |part| format!("{}: {part}", known.1)),
        quantity: known.2,
        // One process of a subject is no rival of another subject's.
        better: if part.is_some() {
            Better::Neither
        } else {
            known.3
        },
        key: known.4 && part.is_none(),
        statistic: match base {
            "failed_share" | "rounds_stalled_share" | "served_share" => Statistic::Mean,
            _ => Statistic::Median,
        },
        rank: rank + u8::from(part.is_some()),
    }
}

fn unknown(name: &str) -> Meaning {
    let ends = [
        ("_share", Quantity::Share),
        ("_bps", Quantity::BitsPerSecond),
        ("_ms", Quantity::Milliseconds),
        ("_s", Quantity::Seconds),
    ];
    let end = ends.into_iter().find(|(end, _)| name.ends_with(end));
    Meaning {
        title: name.to_owned(),
        quantity: end.map_or(Quantity::Count, |(_, quantity)| quantity),
        better: Better::Neither,
        key: false,
        statistic: Statistic::Median,
        rank: u8::MAX,
    }
}

impl Quantity {
    /// The unit in which values around this size are told.
    pub(super) fn unit(self, size: f64) -> Unit {
        let size = size.abs();
        match self {
            Self::Seconds if size < 1.0 => Unit::new("ms", 1e3),
            Self::Seconds => Unit::new("s", 1.0),
            Self::Milliseconds if size >= 10_000.0 => Unit::new("s", 1e-3),
            Self::Milliseconds => Unit::new("ms", 1.0),
            Self::BitsPerSecond if size < 1e6 => Unit::new("kbit/s", 1e-3),
            Self::BitsPerSecond if size < 1e9 => Unit::new("Mbit/s", 1e-6),
            Self::BitsPerSecond => Unit::new("Gbit/s", 1e-9),
            Self::Share => Unit::new("%", 1e2),
            Self::Bytes if size < 1e9 => Unit::new("MB", 1e-6),
            Self::Bytes => Unit::new("GB", 1e-9),
            Self::SecondsPerGigabyte => Unit::new("s/GB", 1.0),
            Self::Watts if size < 1.0 => Unit::new("mW", 1e3),
            Self::Watts => Unit::new("W", 1.0),
            Self::Count => Unit::new("", 1.0),
        }
    }

    /// The unit of stored values, for JSON.
    pub(super) fn stored(self) -> &'static str {
        match self {
            Self::Seconds => "s",
            Self::Milliseconds => "ms",
            Self::BitsPerSecond => "bit/s",
            Self::Share => "1",
            Self::Bytes => "bytes",
            Self::SecondsPerGigabyte => "s/GB",
            Self::Watts => "W",
            Self::Count => "",
        }
    }
}

// Numbers and units.

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
    pub(super) fn format(self, value: f64) -> String {
        digits(value * self.factor)
    }

    /// A stored value in this unit, with its name.
    pub(super) fn format_with_unit(self, value: f64) -> String {
        let gap = if self.name.is_empty() { "" } else { "\u{202f}" };
        format!("{}{gap}{}", self.format(value), self.name)
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
    fn a_process_has_a_line_of_its_own_after_the_whole_subject() {
        let whole = meaning("cpu_s_per_gb");
        let one = meaning("cpu_s_per_gb:relay1");
        assert_eq!(one.title, "Processor time per GB: relay1");
        assert!(whole.rank < one.rank && whole.key && !one.key);
    }

    #[test]
    fn a_new_metric_is_shown_with_the_unit_of_its_name_and_nobody_wins_by_it() {
        let new = meaning("queue_share");
        assert_eq!(new.quantity, Quantity::Share);
        assert_eq!(new.better, Better::Neither);
    }

    #[test]
    fn times_are_told_in_the_unit_of_their_size() {
        assert_eq!(Quantity::Seconds.unit(0.02).format(0.0213), "21.3");
        assert_eq!(Quantity::Seconds.unit(3.0).name, "s");
        assert_eq!(Quantity::BitsPerSecond.unit(9.65e6).name, "Mbit/s");
    }

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
