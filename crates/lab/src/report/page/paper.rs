//! What the paper found, and what we found where we did the same.

use super::{Source, scrolling};
use crate::{
    report::{
        beside::{self, Ours},
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
    let all = source.data.campaign.findings.iter();
    let findings: Vec<&Finding> = all.filter(|finding| !finding.goal).collect();
    if findings.is_empty() {
        return String::new();
    }
    let heads = ["The paper says", "Its figure", "Ours"].map(|head| tag("th scope=\"col\"", head));
    let rows: String = findings
        .into_iter()
        .map(|finding| line(source, finding))
        .collect();
    let table = format!("{}{}", tag("thead", &row(&heads)), tag("tbody", &rows));
    scrolling(&tag("table class=\"paper\"", &table))
}

fn line(source: &Source<'_>, finding: &Finding) -> String {
    let ours = beside::ours(source.data, source.judgement, finding);
    let unit = told_in(finding, &ours);
    let figure = figure(finding, unit);
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

/// The value or the bounds.
pub(super) fn figure(finding: &Finding, unit: Unit) -> String {
    match (finding.value, finding.low, finding.high) {
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
    }
}

fn missing(finding: &Finding) -> &'static str {
    match finding.metric {
        Some(_) => "not measured so far",
        None => "a statement: see the figures",
    }
}

pub(super) fn told(ours: &Ours, unit: Unit) -> String {
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
pub(super) fn told_in(finding: &Finding, ours: &[Ours]) -> Unit {
    let Some(metric) = finding
        .metric
        .as_ref()
        .filter(|_| !beside::is_ratio(finding))
    else {
        return Unit::new("", 1.0);
    };
    let size = ours
        .first()
        .map(|ours| ours.value)
        .or(finding.value)
        .or(finding.low);
    meaning(metric).quantity.unit(size.unwrap_or(1.0))
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
    use crate::report::data::Place;

    fn finding(low: f64, high: f64) -> Finding {
        Finding {
            low: Some(low),
            high: Some(high),
            ..Finding::default()
        }
    }

    fn ours(value: f64, low: f64, high: f64) -> Ours {
        Ours {
            place: Place {
                measure: 0,
                case: 0,
                subject: 0,
            },
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
