//! The report as JSON lines: one for each case, subject and measure, one for each ratio to the baseline, then one for each figure that a goal is about.

use serde_json::{Value, json};

use crate::analysis::bootstrap::Statistic;

use super::{
    beside::{self, Ours},
    compare::{Judgement, Ratio, Summary},
    data::{Data, Place},
};
use crate::scenario::Finding;

/// All lines.
pub(super) fn lines(data: &Data, judgement: &Judgement) -> Vec<Value> {
    let summaries = judgement.summaries.iter();
    let mut lines: Vec<Value> = summaries
        .map(|(place, summary)| median(data, *place, summary))
        .collect();
    let ratios = judgement.ratios.iter();
    lines.extend(ratios.map(|(place, found)| ratio(data, judgement, *place, found)));
    let goals = data.campaign.findings.iter().filter(|finding| finding.goal);
    lines.extend(goals.flat_map(|finding| {
        let ours = beside::ours(data, judgement, finding).into_iter();
        ours.map(move |ours| goal(data, finding, &ours))
    }));
    lines
}

fn goal(data: &Data, finding: &Finding, ours: &Ours) -> Value {
    let more = json!({
        "goal": finding.text,
        "relative_to": finding.relative_to,
        "relative_to_case": finding.relative_to_case,
        "statistic": finding.statistic,
        "asked": [finding.low, finding.high],
        "value": ours.value,
        "lo": ours.low,
        "hi": ours.high,
        "n": ours.n,
        "verdict": beside::outcome(finding, ours).words(),
    });
    with(place(data, ours.place), more)
}

/// What every line says of its place.
fn place(data: &Data, place: Place) -> Value {
    let measure = data.measures.get(place.measure);
    json!({
        "scenario": data.campaign.scenario,
        "case": data.cases.get(place.case),
        "subject": data.label(place.subject),
        "workload": measure.and_then(|measure| measure.workload.as_deref()),
        "metric": measure.map(|measure| measure.metric.as_str()),
    })
}

fn with(mut line: Value, more: Value) -> Value {
    if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
        line.extend(more);
    }
    line
}

fn median(data: &Data, at: Place, summary: &Summary) -> Value {
    let counts = data
        .counts
        .get(&(at.case, at.subject))
        .copied()
        .unwrap_or_default();
    let measure = data.measures.get(at.measure);
    let quantity = measure.map(|measure| measure.meaning.quantity);
    let statistic = measure.map(|measure| match measure.meaning.statistic {
        Statistic::Mean => "mean",
        _ => "median",
    });
    let more = json!({
        "unit": quantity.map(super::metric::Quantity::stored),
        "n": summary.n,
        "repetitions": summary.repetitions,
        "invalid": counts.invalid,
        "failed": counts.failed,
        "failed_transfers": data.failed_transfers(at),
        "median": summary.median,
        // Of what `lo`, `hi` and ratios are.
        "statistic": statistic,
        "mean": (statistic == Some("mean")).then_some(summary.center),
        "lo": summary.interval.map(|interval| interval.low),
        "hi": summary.interval.map(|interval| interval.high),
        "p95": summary.p95,
        "p99": summary.p99,
    });
    with(place(data, at), more)
}

fn ratio(data: &Data, judgement: &Judgement, at: Place, found: &Ratio) -> Value {
    let comparison = &found.comparison;
    let more = json!({
        "baseline": judgement.baseline.map(|baseline| data.label(baseline)),
        "ratio": comparison.ratio,
        "lo": comparison.interval.map(|interval| interval.low),
        "hi": comparison.interval.map(|interval| interval.high),
        "pairs": comparison.pairs,
        "p": comparison.p,
        "p_holm": found.corrected,
        "verdict": found.standing.words(),
    });
    with(place(data, at), more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{
        compare::judge,
        example::{Example, data},
    };

    #[test]
    fn a_line_has_the_keys_that_scripts_rely_on() {
        let data = data(&Example::default());
        let lines = lines(&data, &judge(&data, data.subject("native")));
        let line = lines
            .iter()
            .find(|line| line["metric"] == "ttfb_s" && line["subject"] == "tor")
            .unwrap();
        assert_eq!(
            (&line["scenario"], &line["case"]["hops"]),
            (&json!("example"), &json!("2"))
        );
        for key in ["n", "invalid", "failed", "median", "lo", "hi", "p95", "p99"] {
            assert!(line[key].is_number(), "{key} of {line}");
        }
        let ratio = lines
            .iter()
            .find(|line| line["baseline"] == "native" && line["metric"] == "ttfb_s")
            .unwrap();
        assert!(
            ratio["ratio"].is_number() && ratio["verdict"].is_string(),
            "{ratio}"
        );
        let goal = lines.iter().find(|line| line["goal"].is_string()).unwrap();
        assert!(
            goal["value"].is_number() && goal["verdict"].is_string(),
            "{goal}"
        );
    }
}
