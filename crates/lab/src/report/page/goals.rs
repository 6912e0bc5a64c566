//! What was asked of a subject, and whether that is so. Not part of the correction for many comparisons: a goal was set before anything was measured.

use super::{Source, paper, scrolling};
use crate::{
    report::{
        beside::{self, Ours, Outcome},
        html::{row, said, tag},
        number::Unit,
    },
    scenario::Finding,
};

/// The section; empty if the scenario has no goals.
pub(super) fn section(source: &Source<'_>) -> String {
    let all = source.data.campaign.findings.iter();
    let rows: String = all
        .filter(|finding| finding.goal)
        .map(|finding| line(source, finding))
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let heads = ["Asked", "Bound", "Met", "Ours"].map(|head| tag("th scope=\"col\"", head));
    let table = format!("{}{}", tag("thead", &row(&heads)), tag("tbody", &rows));
    let note = "\"Not for certain\": the 95 % interval crosses the bound, or there are too few repetitions for one.";
    scrolling(&tag("table class=\"paper\"", &table)) + &said("p class=\"note\"", note)
}

fn line(source: &Source<'_>, finding: &Finding) -> String {
    let mut ours = beside::ours(source.data, source.judgement, finding);
    let unit = paper::told_in(finding, &ours);
    let met = ours.iter().filter(|ours| is_met(finding, ours)).count();
    let of = format!("{met} of {}", ours.len());
    // What is missed is what a reader looks for.
    ours.sort_by_key(|ours| is_met(finding, ours));
    let list: String = ours.iter().map(|ours| item(finding, ours, unit)).collect();
    let list = match ours.is_empty() {
        true => said("span class=\"quiet\"", "not measured so far"),
        false => tag("ul class=\"ours\"", &list),
    };
    row(&[
        said("td class=\"text\"", &finding.text),
        said("td class=\"figure\"", &paper::figure(finding, unit)),
        said(
            "td class=\"figure\"",
            if ours.is_empty() { "–" } else { &of },
        ),
        tag("td", &list),
    ])
}

fn is_met(finding: &Finding, ours: &Ours) -> bool {
    matches!(
        beside::outcome(finding, ours),
        Outcome::Met | Outcome::Likely
    )
}

fn item(finding: &Finding, ours: &Ours, unit: Unit) -> String {
    let words = beside::outcome(finding, ours).words();
    let words = said("span class=\"agrees\"", words);
    tag("li", &(paper::told(ours, unit) + &words))
}
