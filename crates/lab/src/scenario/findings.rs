//! `[[finding]]`: what a paper found. The report shows it beside what was measured. Used by `file`.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Finding,
    complain::{Wrong, meant, quoted},
    document::{Item, Node},
    expression::{Scope, Value},
    matrix::{Case, Parameter},
    reader::{Reader, evaluate, text},
};

const KEYS: [&str; 10] = [
    "text",
    "metric",
    "workload",
    "case",
    "subject",
    "relative_to",
    "value",
    "low",
    "high",
    "unit",
];
const MOST: usize = 1000;

/// Reads all findings.
pub(crate) fn findings(
    root: Reader<'_>,
    parameters: &[Parameter],
    labels: &[Vec<String>],
) -> Vec<Finding> {
    let labels: BTreeSet<&str> = labels.iter().flatten().map(String::as_str).collect();
    let entries = root.tables("finding").into_iter().take(MOST);
    entries
        .filter_map(|entry| finding(entry, parameters, &labels))
        .collect()
}

fn finding(
    entry: Reader<'_>,
    parameters: &[Parameter],
    labels: &BTreeSet<&str>,
) -> Option<Finding> {
    entry.only(&KEYS);
    let case = case(entry, parameters);
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
    if figure && finding.metric.is_none() {
        entry.missing(
            "metric",
            "what the figure is of, such as metric = \"ttlb_s\"",
        );
    }
    Some(finding)
}

/// The parameters that a finding names, which must be of the matrix.
fn case(entry: Reader<'_>, parameters: &[Parameter]) -> Case {
    let mut case = Case {
        values: BTreeMap::new(),
        scope: Scope::default(),
    };
    let Some(table) = entry.table.node("case").and_then(|node| entry.inner(node)) else {
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
