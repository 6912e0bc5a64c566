//! What was run and on what: all that a reader needs to do it again.

use std::collections::BTreeMap;

use super::{Source, details, scrolling};
use crate::{
    report::{
        html::{row, said, tag},
        number::digits,
    },
    results::{date::Utc, store::Machine},
};

/// The section.
pub(super) fn section(source: &Source<'_>) -> String {
    let data = source.data;
    let campaign = &data.campaign;
    let mut facts = vec![
        ("Scenario".to_owned(), campaign.scenario.clone()),
        ("Begun".to_owned(), Utc::at(campaign.began).shortly()),
        ("Seed".to_owned(), campaign.seed.to_string()),
        (
            "Repetitions".to_owned(),
            format!(
                "{} of each case and subject, interleaved",
                campaign.repetitions
            ),
        ),
    ];
    for machine in &data.machines {
        facts.extend(machine_facts(machine, data.machines.len() > 1));
    }
    let mut content = scrolling(&table(facts));
    content += &binaries(source);
    let prints = campaign.fingerprints.clone();
    content += &facts_to_unfold("What each subject's cases resolve to, as a hash", prints);
    for machine in &data.machines {
        let title = format!("Settings of the machine {}", machine.id);
        content += &facts_to_unfold(&title, machine.sysctls.clone());
    }
    let file = said("pre", &campaign.source);
    content + &details("The scenario's file, as it was read", &file, false)
}

/// Names and values.
fn table(facts: impl IntoIterator<Item = (String, String)>) -> String {
    let line = |(name, value): (String, String)| {
        row(&[said("th scope=\"row\"", &name), said("td", &value)])
    };
    let rows: String = facts.into_iter().map(line).collect();
    tag("table class=\"facts\"", &tag("tbody", &rows))
}

/// The same to unfold; nothing if there are none.
fn facts_to_unfold(title: &str, facts: BTreeMap<String, String>) -> String {
    if facts.is_empty() {
        return String::new();
    }
    details(title, &scrolling(&table(facts)), false)
}

fn machine_facts(machine: &Machine, several: bool) -> Vec<(String, String)> {
    let name = |name: &str| {
        if several {
            format!("{name} ({})", machine.id)
        } else {
            name.to_owned()
        }
    };
    let real_time = if machine.real_time { "yes" } else { "no" };
    vec![
        (
            name("Kernel"),
            format!("{} · {}", machine.kernel, machine.architecture),
        ),
        (
            name("Processor"),
            format!("{} · {} cores", machine.cpu, machine.cores),
        ),
        (
            name("Memory"),
            format!("{} GB", digits(machine.memory as f64 / 1e9)),
        ),
        (
            name("Frequency governor"),
            machine
                .governor
                .clone()
                .unwrap_or_else(|| "none to be seen".to_owned()),
        ),
        (name("Real-time priority"), real_time.to_owned()),
    ]
}

fn binaries(source: &Source<'_>) -> String {
    let binaries = &source.data.campaign.binaries;
    if binaries.is_empty() {
        return String::new();
    }
    let heads = ["Program", "Version", "SHA-256"].map(|head| tag("th scope=\"col\"", head));
    let line = |binary: &crate::results::store::Binary| {
        let hash = tag("td", &said("code", &binary.sha256));
        row(&[
            said("th scope=\"row\"", &binary.name),
            said("td", &binary.version),
            hash,
        ])
    };
    let rows: String = binaries.iter().map(line).collect();
    said("h3", "Programs")
        + &scrolling(&tag(
            "table",
            &format!("{}{}", tag("thead", &row(&heads)), tag("tbody", &rows)),
        ))
}
