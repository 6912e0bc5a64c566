//! Totals as a picture: a small diagram for each figure, a point for each day, and a bar through it in which the truth is with 95 %.

use std::fmt::Write;

use hoplite_directory::statistics::Total;

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 150.0;
const COLUMNS: usize = 3;
/// Around each diagram: for its title above, its days below.
const MARGIN: (f64, f64) = (24.0, 28.0);
/// Days that one diagram shows, the last ones.
const DAYS: usize = 60;

/// The picture. Figures' names are letters, digits, `-` and `.`; of a file that somebody else has written others are left out.
pub(super) fn svg(totals: &[Total]) -> String {
    let figures: Vec<&[Total]> = totals
        .chunk_by(|a, b| a.figure == b.figure)
        .filter(|days| days.first().is_some_and(|day| is_plain(&day.figure)))
        .collect();
    let rows = figures.len().div_ceil(COLUMNS).max(1);
    let (width, height) = (WIDTH * number(COLUMNS), HEIGHT * number(rows));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"10\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (place, days) in figures.iter().enumerate() {
        let at = (
            WIDTH * number(place % COLUMNS),
            HEIGHT * number(place / COLUMNS),
        );
        diagram(days, at, &mut out);
    }
    out.push_str("</svg>\n");
    out
}

fn is_plain(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
}

fn diagram(days: &[Total], (left, top): (f64, f64), out: &mut String) {
    let days = days.get(days.len().saturating_sub(DAYS)..).unwrap_or(days);
    let (Some(first), Some(last)) = (days.first(), days.last()) else {
        return;
    };
    let ends = days.iter().map(|day| (day.low, day.high));
    let (least, most) = ends.fold((0.0_f64, 1.0_f64), |all, day| {
        (all.0.min(day.0), all.1.max(day.1))
    });
    let (inside, above) = (WIDTH - 2.0 * MARGIN.0, HEIGHT - 2.0 * MARGIN.1);
    let span = last.day.saturating_sub(first.day).max(1);
    let x = |day: &Total| {
        let passed = day.day.saturating_sub(first.day);
        left + MARGIN.0 + inside * float(passed) / float(span)
    };
    let y = |value: f64| top + MARGIN.1 + above * (most - value) / (most - least);
    let (name, zero) = (&first.figure, y(0.0));
    // Writing to a string does not fail.
    let mut put = |line: std::fmt::Arguments<'_>| {
        out.write_fmt(line).ok();
    };
    put(format_args!(
        "<text x=\"{:.1}\" y=\"{:.1}\">{name} (up to {most:.3e})</text>\n",
        left + MARGIN.0,
        top + 16.0
    ));
    put(format_args!(
        "<line x1=\"{:.1}\" y1=\"{zero:.1}\" x2=\"{:.1}\" y2=\"{zero:.1}\" stroke=\"#888\"/>\n",
        left + MARGIN.0,
        left + MARGIN.0 + inside
    ));
    for (day, anchor) in [(first, "start"), (last, "end")] {
        put(format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"#555\">{}</text>\n",
            x(day),
            top + HEIGHT - 8.0,
            date(day.day)
        ));
    }
    for day in days {
        let (x, low, high) = (x(day), y(day.low), y(day.high));
        put(format_args!(
            "<line x1=\"{x:.1}\" y1=\"{low:.1}\" x2=\"{x:.1}\" y2=\"{high:.1}\" stroke=\"#9bc\" stroke-width=\"3\"/>\n\
             <circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"2\" fill=\"#036\"/>\n",
            y(value(day))
        ));
    }
}

#[expect(clippy::cast_precision_loss, reason = "a point in a drawing")]
const fn value(day: &Total) -> f64 {
    day.value as f64
}

#[expect(clippy::cast_precision_loss, reason = "a point in a drawing")]
const fn float(count: u64) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "a point in a drawing")]
const fn number(count: usize) -> f64 {
    count as f64
}

/// A day since 1970, as the calendar has it.
pub(super) fn date(day: u64) -> String {
    // Years of 365.2425 days from a March, so that the day that may be missing is the last one.
    let from_march = day.saturating_add(719_468);
    let (era, of_era) = (from_march / 146_097, from_march % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!("{:04}-{month:02}-{day:02}", year + era * 400 + later)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(figure: &str, day: u64, value: i64, (low, high): (f64, f64)) -> Total {
        Total {
            figure: figure.into(),
            day,
            relays: 3,
            value,
            low,
            high,
        }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (day, text) in [
            (0, "1970-01-01"),
            (11_016, "2000-02-29"),
            (20_783, "2026-11-26"),
            (20_818, "2026-12-31"),
        ] {
            assert_eq!(date(day), text);
        }
    }

    #[test]
    fn each_day_is_a_point_with_its_bar_inside_the_picture() {
        let totals = [
            total("a", 20_780, 100, (50.0, 150.0)),
            total("a", 20_781, -10, (-60.0, 40.0)),
            total("b.443", 20_781, 0, (0.0, 0.0)),
        ];
        let drawn = svg(&totals);
        assert_eq!(drawn.matches("<circle").count(), 3);
        assert!(drawn.contains(">a (up to 1.500e2)<") && drawn.contains("2026-11-24"));
        let coordinates = drawn.split("cy=\"").skip(1);
        let inside = |text: &str| {
            let y: f64 = text
                .split('"')
                .next()
                .and_then(|y| y.parse().ok())
                .expect("a number");
            (0.0..=HEIGHT).contains(&y)
        };
        assert!(coordinates.into_iter().all(inside));
    }

    #[test]
    fn a_name_that_would_be_markup_is_left_out() {
        let drawn = svg(&[total("<script>", 1, 1, (1.0, 1.0))]);
        assert!(!drawn.contains("script"));
    }
}
