//! What the paper found, and what we found where we did the same.

use super::{Source, scrolling};
use crate::{
    analysis::bootstrap::compare,
    report::{
        compare::how,
        data::Place,
        html::{escape, row, said, tag},
        metric::meaning,
        number::{Unit, factor},
    },
    scenario::Finding,
};

/// Ours of one finding: more are only counted.
const SHOWN: usize = 8;

/// The section; empty if the scenario names no findings.
pub(super) fn section(source: &Source<'_>) -> String {
    let findings = &source.data.campaign.findings;
    if findings.is_empty() {
        return String::new();
    }
    let heads = ["The paper says", "Its figure", "Ours"].map(|head| tag("th scope=\"col\"", head));
    let rows: String = findings
        .iter()
        .map(|finding| line(source, finding))
        .collect();
    let table = format!("{}{}", tag("thead", &row(&heads)), tag("tbody", &rows));
    scrolling(&tag("table class=\"paper\"", &table))
}

/// A figure of ours that a finding speaks of.
struct Ours {
    name: String,
    value: f64,
    low: Option<f64>,
    high: Option<f64>,
    n: usize,
}

fn line(source: &Source<'_>, finding: &Finding) -> String {
    let ours = ours(source, finding);
    let unit = told_in(finding, &ours);
    let figure = match (finding.value, finding.low, finding.high) {
        (Some(value), Some(low), Some(high)) => format!(
            "{} ({} – {})",
            unit.tell_fully(value),
            unit.tell(low),
            unit.tell(high)
        ),
        (Some(value), _, _) => unit.tell_fully(value),
        (None, Some(low), Some(high)) => format!("{} – {}", unit.tell(low), unit.tell_fully(high)),
        (None, Some(low), None) => format!("at least {}", unit.tell_fully(low)),
        (None, None, Some(high)) => format!("at most {}", unit.tell_fully(high)),
        (None, None, None) => "–".to_owned(),
    };
    // A unit of the paper's own is not ours: both are shown, nothing is concluded.
    let foreign = finding.unit.as_deref().filter(|unit| !unit.is_empty());
    let figure = match foreign {
        Some(unit) => format!("{figure} {unit}"),
        None => figure,
    };
    let comparable = foreign.is_none();
    let one = |ours: &Ours| {
        let agrees = agrees(finding, ours).filter(|_| comparable);
        let agrees = agrees.map(|words| said("span class=\"agrees\"", &words));
        tag("li", &(told(ours, unit) + &agrees.unwrap_or_default()))
    };
    let mut list: String = ours.iter().take(SHOWN).map(one).collect();
    if ours.len() > SHOWN {
        list += &said("li", &format!("and {} more", ours.len() - SHOWN));
    }
    let list = match ours.is_empty() {
        true => said("span class=\"quiet\"", missing(finding)),
        false => tag("ul class=\"ours\"", &list),
    };
    row(&[
        said("td class=\"text\"", &finding.text),
        said("td class=\"figure\"", &figure),
        tag("td", &list),
    ])
}

fn missing(finding: &Finding) -> &'static str {
    match finding.metric {
        Some(_) => "not measured so far",
        None => "a statement: see the figures",
    }
}

fn told(ours: &Ours, unit: Unit) -> String {
    let interval = match (ours.low, ours.high) {
        (Some(low), Some(high)) => format!(" [{} – {}]", unit.tell(low), unit.tell(high)),
        _ => String::new(),
    };
    let value = said("b", &unit.tell_fully(ours.value));
    format!(
        "{value}{} {}",
        escape(&interval),
        said("small", &format!("{}, n = {}", ours.name, ours.n))
    )
}

/// Ratios are plain numbers; other figures have their metric's unit at the size of ours.
fn told_in(finding: &Finding, ours: &[Ours]) -> Unit {
    let (Some(metric), None) = (&finding.metric, &finding.relative_to) else {
        return Unit::new("", 1.0);
    };
    let size = ours
        .first()
        .map(|ours| ours.value)
        .or(finding.value)
        .or(finding.low);
    meaning(metric).quantity.unit(size.unwrap_or(1.0))
}

fn ours(source: &Source<'_>, finding: &Finding) -> Vec<Ours> {
    let Some(metric) = &finding.metric else {
        return Vec::new();
    };
    let (data, judgement) = (source.data, source.judgement);
    let fits = |place: &Place| {
        let measure = data.measures.get(place.measure).is_some_and(|measure| {
            let workload = finding.workload.is_none() || finding.workload == measure.workload;
            measure.metric == *metric && workload
        });
        let subject = finding
            .subject
            .as_deref()
            .is_none_or(|subject| is_subject(source, place.subject, subject));
        let case = data.cases.get(place.case).is_some_and(|case| {
            finding
                .case
                .iter()
                .all(|(name, value)| case.get(name) == Some(value))
        });
        measure && subject && case
    };
    let places = judgement.summaries.keys().filter(|place| fits(place));
    places
        .filter_map(|place| one(source, *place, finding.relative_to.as_deref()))
        .collect()
}

/// By its own label or by its family's.
fn is_subject(source: &Source<'_>, subject: usize, name: &str) -> bool {
    let data = source.data;
    let family = data.families.get(data.series(subject));
    data.label(subject) == name || family.is_some_and(|family| family == name)
}

fn one(source: &Source<'_>, place: Place, relative_to: Option<&str>) -> Option<Ours> {
    let (data, judgement) = (source.data, source.judgement);
    let summary = judgement.summaries.get(&place)?;
    let case = data.tell(place.case);
    let workload = data.measures.get(place.measure)?.workload.clone();
    let parts = [
        Some(data.label(place.subject).to_owned()),
        workload,
        Some(case),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .flatten()
        .filter(|part| !part.is_empty())
        .collect();
    let name = parts.join(" · ");
    let n = summary.n;
    let Some(other) = relative_to else {
        let (low, high) = (
            summary.interval.map(|interval| interval.low),
            summary.interval.map(|interval| interval.high),
        );
        return Some(Ours {
            name,
            value: summary.center,
            low,
            high,
            n,
        });
    };
    let is_other = |subject: &usize| is_subject(source, *subject, other);
    let other = data
        .present(place.measure, place.case)
        .into_iter()
        .find(is_other)?;
    let other_place = Place {
        subject: other,
        ..place
    };
    let how = how(data, (place, Some(other_place)), judgement.resamples);
    let values = (data.clusters(place), data.clusters(other_place));
    let comparison = compare(&values.0, &values.1, &how)?;
    let (low, high) = (
        comparison.interval.map(|interval| interval.low),
        comparison.interval.map(|interval| interval.high),
    );
    let name = format!("{name}, ratio to {}", data.label(other));
    Some(Ours {
        name,
        value: comparison.ratio?,
        low,
        high,
        n: comparison.pairs,
    })
}

/// In words: whether our figure is the paper's.
fn agrees(finding: &Finding, ours: &Ours) -> Option<String> {
    let (low, high) = match (finding.low, finding.value, finding.high) {
        (None, None, None) => return None,
        (low, None, high) => (
            low.unwrap_or(f64::NEG_INFINITY),
            high.unwrap_or(f64::INFINITY),
        ),
        (low, Some(value), high) => (low.unwrap_or(value), high.unwrap_or(value)),
    };
    let (least, most) = (
        ours.low.unwrap_or(ours.value),
        ours.high.unwrap_or(ours.value),
    );
    let words = match ours.value {
        value if value >= low && value <= high => "= within the paper's range".to_owned(),
        _ if most >= low && least <= high => "≈ our interval meets the paper's figure".to_owned(),
        value if value < low => format!("↓ {} below", away(value, low)),
        value => format!("↑ {} above", away(value, high)),
    };
    Some(words)
}

/// By how much of the paper's figure.
fn away(value: f64, of: f64) -> String {
    let share = ((value - of) / of).abs();
    match share {
        _ if !share.is_finite() => "not".to_owned(),
        _ if share > 2.0 => factor(value / of),
        _ => format!("{:.0}\u{202f}%", share * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(low: f64, high: f64) -> Finding {
        Finding {
            low: Some(low),
            high: Some(high),
            ..Finding::default()
        }
    }

    fn ours(value: f64, low: f64, high: f64) -> Ours {
        Ours {
            name: String::new(),
            value,
            low: Some(low),
            high: Some(high),
            n: 9,
        }
    }

    #[test]
    fn our_figure_is_within_near_or_away_from_the_papers() {
        let paper = finding(4.2, 4.8);
        assert_eq!(
            agrees(&paper, &ours(4.5, 4.4, 4.6)).unwrap(),
            "= within the paper's range"
        );
        assert_eq!(
            agrees(&paper, &ours(4.0, 3.9, 4.3)).unwrap(),
            "≈ our interval meets the paper's figure"
        );
        assert_eq!(
            agrees(&paper, &ours(2.1, 2.0, 2.2)).unwrap(),
            "↓ 50\u{202f}% below"
        );
        assert_eq!(
            agrees(&paper, &ours(48.0, 47.0, 49.0)).unwrap(),
            "↑ ×10.0 above"
        );
        let bound = Finding {
            low: Some(0.4),
            ..Finding::default()
        };
        assert_eq!(
            agrees(&bound, &ours(0.6, 0.5, 0.7)).unwrap(),
            "= within the paper's range"
        );
        assert_eq!(agrees(&Finding::default(), &ours(1.0, 1.0, 1.0)), None);
    }
}
