//! Every median with its interval, its n and what became of the repetitions behind it, and its ratio to the baseline.

use crate::analysis::{bootstrap::Statistic, fingerprint::PREFIX};

use super::{Source, chip, details, glance, scrolling};
use crate::report::{
    compare::Summary,
    data::Place,
    figures::unit,
    html::{escape, row, said, tag},
    number::{digits, factor},
};

/// The section.
pub(super) fn section(source: &Source<'_>) -> String {
    let shown = glance::shown(source);
    let one = |(measure, of): (usize, &crate::report::data::Measure)| {
        details(
            &of.title(),
            &table(source, measure),
            shown.first() == Some(&measure),
        )
    };
    let measures = source.data.measures.iter().enumerate();
    // They are in a file of their own.
    let measures = measures.filter(|(_, of)| !of.metric.starts_with(PREFIX));
    measures.map(one).collect()
}

fn table(source: &Source<'_>, measure: usize) -> String {
    let (data, judgement) = (source.data, source.judgement);
    let unit = unit(judgement, data, measure).name;
    let unit = if unit.is_empty() {
        String::new()
    } else {
        format!(" ({unit})")
    };
    let mean = data
        .measures
        .get(measure)
        .is_some_and(|of| of.meaning.statistic == Statistic::Mean);
    let statistic = if mean { "Mean" } else { "Median" };
    let against = judgement
        .baseline
        .map_or("–", |baseline| data.label(baseline));
    let mut heads = vec![
        ("Subject".to_owned(), "", false),
        (format!("{statistic}{unit}"), "", true),
        ("95 % interval".to_owned(), "", true),
        ("95th percentile".to_owned(), "", true),
        ("n".to_owned(), "values", true),
        ("Runs".to_owned(), "repetitions that gave values", true),
        ("Invalid".to_owned(), "attempts that the gate refused", true),
        ("Failed".to_owned(), "attempts that failed", true),
        ("Failed transfers".to_owned(), "", true),
        (format!("Ratio to {against}"), "", true),
        ("95 % interval".to_owned(), "", true),
        ("p".to_owned(), "after Holm's correction", true),
        ("Verdict".to_owned(), "", false),
    ];
    let cases = data.cases.len() > 1;
    if cases {
        heads.insert(0, ("Case".to_owned(), "", false));
    }
    let cells: Vec<String> = heads
        .iter()
        .map(|(name, hint, number)| {
            let class = if *number { " class=\"n\"" } else { "" };
            said(&format!("th scope=\"col\"{class} title=\"{hint}\""), name)
        })
        .collect();
    let rows = judgement
        .summaries
        .iter()
        .filter(|(place, _)| place.measure == measure);
    let rows: String = rows
        .map(|(place, summary)| line(source, *place, summary, cases))
        .collect();
    scrolling(&tag(
        "table class=\"numbers\"",
        &format!("{}{}", tag("thead", &row(&cells)), tag("tbody", &rows)),
    ))
}

fn line(source: &Source<'_>, place: Place, summary: &Summary, with_case: bool) -> String {
    let (data, judgement) = (source.data, source.judgement);
    let unit = unit(judgement, data, place.measure);
    let counts = data
        .counts
        .get(&(place.case, place.subject))
        .copied()
        .unwrap_or_default();
    let number = |text: &str| said("td class=\"n\"", text);
    let mut cells = Vec::new();
    if with_case {
        cells.push(said("td class=\"words\"", &data.tell(place.case)));
    }
    let name = chip(data.label(place.subject), data.series(place.subject));
    cells.push(tag("th scope=\"row\"", &name));
    cells.push(number(&unit.tell(summary.center)));
    let interval = summary
        .interval
        .map(|interval| glance::range(unit, interval.low, interval.high));
    cells.push(number(&interval.unwrap_or_else(|| "–".to_owned())));
    cells.push(number(&unit.tell(summary.p95)));
    let failed = data.failed_transfers(place);
    for count in [
        summary.n,
        summary.repetitions,
        counts.invalid,
        counts.failed,
        failed,
    ] {
        cells.push(number(&count.to_string()));
    }
    cells.extend(ratio(source, place));
    row(&cells)
}

fn ratio(source: &Source<'_>, place: Place) -> Vec<String> {
    let number = |text: &str| said("td class=\"n\"", text);
    let Some(ratio) = source.judgement.ratios.get(&place) else {
        let word = if source.judgement.baseline == Some(place.subject) {
            "baseline"
        } else {
            ""
        };
        return vec![number("–"), number("–"), number("–"), said("td", word)];
    };
    let comparison = &ratio.comparison;
    let told = comparison.ratio.map_or_else(|| "–".to_owned(), factor);
    let interval = comparison
        .interval
        .map(|interval| format!("{} – {}", digits(interval.low), digits(interval.high)));
    let p = ratio.corrected.map(|p| {
        if p < 0.001 {
            "< 0.001".to_owned()
        } else {
            digits(p)
        }
    });
    let words = format!(
        "{} {}",
        glance::symbol(ratio.standing),
        ratio.standing.words()
    );
    let dash = || "–".to_owned();
    vec![
        number(&told),
        number(&interval.unwrap_or_else(dash)),
        number(&p.unwrap_or_else(dash)),
        tag("td class=\"words\"", &escape(words.trim())),
    ]
}
