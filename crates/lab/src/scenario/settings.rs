//! The small sections of a scenario: `[sysctl]`, `[keep]`, `[gate]`, `[[analysis]]`, `timeout`. Used by `file`.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Gate,
    complain::{Wrong, quoted},
    expression::Value,
    network::nearest,
    reader::{Reader, one_of, text},
    units,
};
use crate::{
    topology::Topology,
    trial::{Analysis, Keep},
};

/// How long an attempt may take unless the scenario says so.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);
/// Enough for the headers of IPv6, UDP, TCP and QUIC.
const SNAPLEN: u64 = 128;

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
    let Some(table) = root.table.node("sysctl").and_then(|node| root.inner(node)) else {
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
    let Some(keep) = root.table.node("keep").and_then(|node| root.inner(node)) else {
        return Keep {
            snaplen: 128,
            ..Keep::default()
        };
    };
    keep.only(&["pcap", "snaplen", "qlog", "drops", "logs"]);
    Keep {
        pcap: keep
            .list("pcap")
            .iter()
            .filter_map(|node| keep.read_node(node, text))
            .collect(),
        snaplen: u32::try_from(keep.count("snaplen", SNAPLEN, 64, 65535)).unwrap_or(u32::MAX),
        qlog: keep.flag("qlog", false),
        drops: keep.flag("drops", false),
        logs: keep.flag("logs", false),
    }
}

/// Complains about links to capture that no case has.
pub(crate) fn check_captured(root: Reader<'_>, links: &std::collections::BTreeSet<String>) {
    let Some(keep) = root.table.node("keep").and_then(|node| root.inner(node)) else {
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
    let Some(gate) = root.table.node("gate").and_then(|node| root.inner(node)) else {
        return standard;
    };
    gate.only(&[
        "late_us_p99",
        "late_us_max",
        "steal",
        "cpu_pressure",
        "attempts",
        "retries",
    ]);
    Gate {
        late_us_p99: gate
            .read("late_us_p99", units::number)
            .unwrap_or(standard.late_us_p99),
        late_us_max: gate
            .read("late_us_max", units::number)
            .unwrap_or(standard.late_us_max),
        steal: gate.read("steal", units::share).unwrap_or(standard.steal),
        cpu_pressure: gate
            .read("cpu_pressure", units::share)
            .unwrap_or(standard.cpu_pressure),
        attempts: u32::try_from(gate.count("attempts", u64::from(standard.attempts), 1, 100))
            .unwrap_or(standard.attempts),
        retries: u32::try_from(gate.count("retries", u64::from(standard.retries), 0, 100))
            .unwrap_or(standard.retries),
    }
}

/// `[[analysis]]`
pub(crate) fn analyses(root: Reader<'_>, topology: &Topology) -> Vec<Analysis> {
    let mut analyses = Vec::new();
    for entry in root.tables("analysis") {
        entry.only(&["analysis", "link", "when"]);
        if entry.instances().is_empty() {
            continue;
        }
        let kind = entry.need(
            "analysis",
            "what is computed, such as analysis = \"cascade\"",
            |value| one_of(value, &[("cascade", true), ("fingerprint", false)]),
        );
        let links = || topology.links.iter().map(|link| link.name.as_str());
        let link = entry.need("link", "the client's link", |value| {
            let name = text(value)?;
            match links().any(|link| link == name) {
                true => Ok(name),
                false => Err(Wrong::new(
                    format!("there is no link {}", quoted(&name)),
                    nearest(&name, links()),
                )),
            }
        });
        analyses.extend(kind.zip(link).map(|(cascade, link)| match cascade {
            true => Analysis::Cascade { link },
            false => Analysis::Fingerprint { link },
        }));
    }
    analyses
}

/// What must be recorded so that the analyses can be made: more than what is kept.
pub(crate) fn recorded(keep: &Keep, analyses: &[Analysis]) -> Keep {
    let mut record = keep.clone();
    for analysis in analyses {
        record.qlog |= matches!(analysis, Analysis::Cascade { .. });
        let (Analysis::Cascade { link } | Analysis::Fingerprint { link }) = analysis;
        let there = record.pcap.iter().any(|name| name == "*" || name == link);
        record.pcap.extend((!there).then(|| link.clone()));
    }
    record
}
