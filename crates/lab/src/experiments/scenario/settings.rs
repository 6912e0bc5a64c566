//! The small sections of a scenario: `[sysctl]`, `[keep]`, `[gate]`, `[[analysis]]`, `timeout`, `[[finding]]` and `[[goal]]`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    Finding, Gate, STATISTICS,
    document::{Item, Node, Wrong, meant, quoted},
    expression::{Scope, Value},
    matrix::{Case, Parameter},
    network::nearest,
    reader::{Reader, evaluate, one_of, text},
    units,
};
use crate::{
    experiments::trial::{Analysis, Keep},
    topology::Topology,
};

/// How long an attempt may take unless the scenario says so.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);
/// Enough for the headers of IPv6, UDP, TCP and QUIC.
const SNAPLEN: u32 = 128;

/// Pinned unless the scenario says otherwise, so that a machine's own defaults do not matter. The buffers are Linux's defaults on a machine
/// with enough memory; the kernel computes them from its memory otherwise.
pub(crate) const PINNED: [(&str, &str); 4] = [
    ("net.ipv4.tcp_congestion_control", "cubic"),
    ("net.ipv4.tcp_no_metrics_save", "1"),
    ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
    ("net.ipv4.tcp_wmem", "4096 16384 4194304"),
];

/// `timeout`
pub(crate) fn timeout(root: Reader<'_>) -> Duration {
    let some = |value: &Value| match units::duration(value)? {
        Duration::ZERO => Err(Wrong::new("nothing ends in no time", "a time above 0")),
        time => Ok(time),
    };
    root.read("timeout", some).unwrap_or(TIMEOUT)
}

/// `[sysctl]` over what is pinned.
pub(crate) fn sysctls(root: Reader<'_>) -> BTreeMap<String, String> {
    let pinned = PINNED
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let mut sysctls: BTreeMap<String, String> = pinned.collect();
    let Some(table) = root.table("sysctl") else {
        return sysctls;
    };
    for entry in &table.table.entries {
        if !is_of_namespace(&entry.key) {
            let wrong = Wrong::new(
                "it is not a setting of a network namespace",
                "a quoted key such as \"net.ipv4.tcp_ecn\"",
            );
            root.complaints.add(entry.key_at, wrong);
        }
        match table.evaluated(&entry.node).map(|found| found.value) {
            Some(Value::Flag(false)) => drop(sysctls.remove(&entry.key)),
            Some(value) => match text(&value) {
                Ok(text) => drop(sysctls.insert(entry.key.clone(), text)),
                Err(wrong) => root.complaints.add(
                    entry.node.at,
                    Wrong::new(
                        wrong.what,
                        "a text or a number; false leaves the kernel's own",
                    ),
                ),
            },
            None => {}
        }
    }
    sysctls
}

fn is_of_namespace(key: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    key.starts_with("net.") && key.len() < 128 && !key.contains("..") && key.chars().all(fits)
}

/// `[keep]`
pub(crate) fn keep(root: Reader<'_>) -> Keep {
    let Some(keep) = root.table("keep") else {
        return Keep {
            snaplen: SNAPLEN,
            ..Keep::default()
        };
    };
    keep.only("pcap snaplen qlog har drops logs");
    Keep {
        pcap: keep
            .list("pcap")
            .iter()
            .filter_map(|node| keep.read_node(node, text))
            .collect(),
        snaplen: keep.count("snaplen", SNAPLEN, 64, 65535),
        qlog: keep.flag("qlog", false),
        har: keep.flag("har", false),
        drops: keep.flag("drops", false),
        logs: keep.flag("logs", false),
    }
}

/// Complains about links to capture that no case has.
pub(crate) fn check_captured(root: Reader<'_>, links: &BTreeSet<String>) {
    let Some(keep) = root.table("keep") else {
        return;
    };
    for node in keep.list("pcap") {
        let known = |value: &Value| {
            let name = text(value)?;
            if name == "*" || links.contains(&name) {
                return Ok(());
            }
            let what = format!("there is no link {}", quoted(&name));
            Err(Wrong::new(
                what,
                format!(
                    "\"*\" for all, or {}",
                    nearest(&name, links.iter().map(String::as_str))
                ),
            ))
        };
        let _known: Option<()> = keep.read_node(node, known);
    }
}

/// `[gate]`
pub(crate) fn gate(root: Reader<'_>) -> Gate {
    let standard = Gate::default();
    let Some(gate) = root.table("gate") else {
        return standard;
    };
    gate.only(
        "late_us late_share late_us_max late_us_p99 steal cpu_pressure frozen attempts retries",
    );
    if gate.table.node("late_us_p99").is_some() {
        let allowed = "late_us, from which on a packet is late, and late_share, of the packets that may be: 1 % stands for the percentile";
        gate.wrong(
            "late_us_p99",
            "the gate takes a share of late packets now",
            allowed,
        );
    }
    let read = |key, fits: fn(&Value) -> Result<f64, Wrong>, standard| {
        gate.read(key, fits).unwrap_or(standard)
    };
    Gate {
        late_us: read("late_us", units::number, standard.late_us),
        late_share: read("late_share", units::share, standard.late_share),
        late_us_max: read("late_us_max", units::number, standard.late_us_max),
        steal: read("steal", units::share, standard.steal),
        cpu_pressure: read("cpu_pressure", units::share, standard.cpu_pressure),
        frozen: read("frozen", seconds, standard.frozen),
        attempts: gate.count("attempts", standard.attempts, 1, 100),
        retries: gate.count("retries", standard.retries, 0, 100),
    }
}

fn seconds(value: &Value) -> Result<f64, Wrong> {
    units::duration(value).map(|time| time.as_secs_f64())
}

/// What is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Cascade,
    Fingerprint,
    Stalled,
}

const KINDS: [(&str, Kind); 3] = [
    ("cascade", Kind::Cascade),
    ("fingerprint", Kind::Fingerprint),
    ("stalled", Kind::Stalled),
];
/// As the goals have it that ask for no stalled circuit.
const STALLED_ABOVE: u32 = 3;

/// `[[analysis]]`
pub(crate) fn analyses(root: Reader<'_>, topology: &Topology) -> Vec<Analysis> {
    let mut analyses = Vec::new();
    for entry in root.tables("analysis") {
        entry.only("analysis link above when");
        if entry.instances().is_empty() {
            continue;
        }
        let kind = entry.need(
            "analysis",
            "what is computed, such as analysis = \"cascade\"",
            |value| one_of(value, &KINDS),
        );
        if kind == Some(Kind::Stalled) {
            let above = entry.count("above", STALLED_ABOVE, 2, 1000);
            analyses.push(Analysis::Stalled { above });
            continue;
        }
        let links = || topology.links.iter().map(|link| link.name.as_str());
        let link = entry.need("link", "the client's link", |value| {
            let name = text(value)?;
            if links().any(|link| link == name) {
                Ok(name)
            } else {
                Err(Wrong::new(
                    format!("there is no link {}", quoted(&name)),
                    nearest(&name, links()),
                ))
            }
        });
        analyses.extend(kind.zip(link).map(|(kind, link)| match kind {
            Kind::Cascade => Analysis::Cascade { link },
            Kind::Fingerprint | Kind::Stalled => Analysis::Fingerprint { link },
        }));
    }
    analyses
}

/// What must be recorded so that the analyses can be made: more than what is kept.
pub(crate) fn recorded(keep: &Keep, analyses: &[Analysis]) -> Keep {
    let mut record = keep.clone();
    for analysis in analyses {
        record.qlog |= matches!(analysis, Analysis::Cascade { .. });
        let (Analysis::Cascade { link } | Analysis::Fingerprint { link }) = analysis else {
            continue;
        };
        let there = record.pcap.iter().any(|name| name == "*" || name == link);
        record.pcap.extend((!there).then(|| link.clone()));
    }
    record
}

// `[[finding]]`: what a paper found, and `[[goal]]`: what is asked of a subject. The report shows both beside what was measured.

/// Keys of both.
const KEYS: &str =
    "text metric workload case subject relative_to relative_to_case statistic low high";
/// Keys of a finding alone: a goal is a bound, in the metric's own unit.
const PAPER: &str = "value unit";
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
    let own = if goal { "" } else { PAPER };
    entry.only(&format!("{KEYS} {own}"));
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
            "there is relative_to too",
            "one of the two",
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
    let Some(table) = entry.table(key) else {
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
