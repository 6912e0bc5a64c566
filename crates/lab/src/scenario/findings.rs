//! `[[finding]]`: what a paper found, and `[[goal]]`: what is asked of a subject. The report shows both beside what was measured. Used by `file`.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Finding, STATISTICS,
    complain::{Wrong, meant, quoted},
    document::{Item, Node},
    expression::{Scope, Value},
    matrix::{Case, Parameter},
    reader::{Reader, evaluate, one_of, text},
};

/// Keys of both.
const KEYS: [&str; 10] = [
    "text",
    "metric",
    "workload",
    "case",
    "subject",
    "relative_to",
    "relative_to_case",
    "statistic",
    "low",
    "high",
];
/// Keys of a finding alone: a goal is a bound, in the metric's own unit.
const PAPER: [&str; 2] = ["value", "unit"];
const MOST: usize = 1000;

/// Reads all findings, then all goals.
pub(crate) fn findings(
    root: Reader<'_>,
    parameters: &[Parameter],
    labels: &[Vec<String>],
) -> Vec<Finding> {
    let labels: BTreeSet<&str> = labels.iter().flatten().map(String::as_str).collect();
    let read = |key: &str, goal: bool| -> Vec<Finding> {
        let entries = root.tables(key).into_iter().take(MOST);
        entries
            .filter_map(|entry| finding(entry, goal, parameters, &labels))
            .collect()
    };
    [read("finding", false), read("goal", true)].concat()
}

fn finding(
    entry: Reader<'_>,
    goal: bool,
    parameters: &[Parameter],
    labels: &BTreeSet<&str>,
) -> Option<Finding> {
    let own: &[&str] = if goal { &[] } else { &PAPER };
    let keys: Vec<&str> = KEYS.iter().chain(own).copied().collect();
    entry.only(&keys);
    let case = case(entry, "case", parameters);
    let other = case_of_ratio(entry, parameters);
    let here = entry.within(&case.scope);
    let plain = |key: &str| match entry.table.node(key).map(|node| &node.item) {
        Some(Item::Text(text)) => Some(text.clone()),
        None => None,
        Some(_) => here.text(key),
    };
    let number = |key: &str| entry.read(key, number);
    let label = |key: &str| here.read(key, |value| label(value, labels));
    let finding = Finding {
        metric: plain("metric"),
        workload: plain("workload"),
        subject: label("subject"),
        relative_to: label("relative_to"),
        relative_to_case: other.values,
        statistic: statistic(entry),
        goal,
        value: number("value"),
        low: number("low"),
        high: number("high"),
        unit: plain("unit"),
        text: plain("text").unwrap_or_default(),
        case: case.values.clone(),
    };
    if finding.text.is_empty() {
        entry.missing("text", "what was found, in words");
    }
    let figure = finding.value.is_some() || finding.low.is_some() || finding.high.is_some();
    if (figure || goal) && finding.metric.is_none() {
        entry.missing(
            "metric",
            "what the figure is of, such as metric = \"ttlb_s\"",
        );
    }
    if goal && !figure {
        entry.missing("high", "a bound: high, or low, or both");
    }
    Some(finding)
}

fn statistic(entry: Reader<'_>) -> Option<String> {
    let words = STATISTICS.map(|word| (word, word));
    let word = entry.read("statistic", |value| one_of(value, &words))?;
    Some(word.to_owned())
}

/// A ratio has one other side.
fn case_of_ratio(entry: Reader<'_>, parameters: &[Parameter]) -> Case {
    if entry.table.node("relative_to_case").is_some() && entry.table.node("relative_to").is_some() {
        entry.wrong(
            "relative_to_case",
            Wrong::new("there is relative_to too", "one of the two"),
        );
    }
    case(entry, "relative_to_case", parameters)
}

/// The parameters that a finding names, which must be of the matrix.
fn case(entry: Reader<'_>, key: &str, parameters: &[Parameter]) -> Case {
    let mut case = Case {
        values: BTreeMap::new(),
        scope: Scope::default(),
    };
    let Some(table) = entry.table.node(key).and_then(|node| entry.inner(node)) else {
        return case;
    };
    for pair in &table.table.entries {
        let Some(parameter) = parameters
            .iter()
            .find(|parameter| parameter.name == pair.key)
        else {
            let known = parameters.iter().map(|parameter| parameter.name.as_str());
            let what = format!("there is no parameter {}", quoted(&pair.key));
            entry
                .complaints
                .add(pair.key_at, Wrong::new(what, meant(&pair.key, known)));
            continue;
        };
        let written = written(&pair.node);
        match parameter
            .rows
            .iter()
            .find(|row| Some(&row.text) == written.as_ref())
        {
            Some(row) => case = case.with(&parameter.name, row),
            None => {
                let known = parameter.rows.iter().map(|row| row.text.as_str());
                let shown = written.unwrap_or_default();
                let what = format!("{} has no value {}", parameter.name, quoted(&shown));
                entry
                    .complaints
                    .add(pair.node.at, Wrong::new(what, meant(&shown, known)));
            }
        }
    }
    case
}

fn written(node: &Node) -> Option<String> {
    match &node.item {
        Item::Text(text) => Some(text.clone()),
        _ => evaluate(node, &Scope::default(), super::template::Owner::Scenario)
            .ok()
            .map(|value| value.text()),
    }
}

/// A label that a subject has.
pub(crate) fn label(value: &Value, labels: &BTreeSet<&str>) -> Result<String, Wrong> {
    let label = text(value)?;
    if labels.contains(label.as_str()) || labels.is_empty() {
        return Ok(label);
    }
    let what = format!("there is no subject with the label {}", quoted(&label));
    Err(Wrong::new(what, meant(&label, labels.iter().copied())))
}

fn number(value: &Value) -> Result<f64, Wrong> {
    match value {
        Value::Number(number) => Ok(*number),
        other => Err(Wrong::new(
            format!("{} is {}", other.shown(), other.kind()),
            "a number",
        )),
    }
}
