//! The page: one file, no script, nothing from elsewhere. Verdict first, then what stands behind it.

mod cases;
mod drawings;
mod glance;
mod goals;
mod machine;
mod method;
mod paper;
mod recognition;
mod tables;
mod validity;

use super::{
    compare::Judgement,
    data::Data,
    figures::Figure,
    html::{escape, said, tag},
    number::{count, span},
    recognise::Answer,
    scene::{DARK, LIGHT},
};
use crate::results::{date::Utc, store::Verdict};

/// What the page is made from.
pub(super) struct Source<'a> {
    pub(super) data: &'a Data,
    pub(super) judgement: &'a Judgement,
    pub(super) figures: &'a [Figure],
    /// What an observer recognises.
    pub(super) answers: &'a [Answer],
    /// Sample files that could not be read.
    pub(super) unread: &'a [String],
}

/// The whole page.
pub(super) fn page(source: &Source<'_>) -> String {
    let campaign = &source.data.campaign;
    let sections = [
        ("verdict", "Who won", glance::section(source)),
        ("goals", "Beside what was asked", goals::section(source)),
        ("paper", "Beside the paper", paper::section(source)),
        ("cases", "Case by case", cases::section(source)),
        (
            "recognition",
            "What an observer recognises",
            recognition::section(source),
        ),
        ("figures", "Figures", drawings::section(source)),
        ("tables", "All figures in numbers", tables::section(source)),
        ("validity", "May it be trusted?", validity::section(source)),
        (
            "machine",
            "What was run, and on what",
            machine::section(source),
        ),
        ("method", "How to read this", method::section(source)),
    ];
    let there = || {
        sections
            .iter()
            .filter(|(_, _, content)| !content.is_empty())
    };
    let links: String = there()
        .map(|(id, title, _)| tag(&format!("a href=\"#{id}\""), title))
        .collect();
    let body: String = there()
        .map(|(id, title, content)| {
            tag(
                &format!("section id=\"{id}\""),
                &format!("{}{content}", tag("h2", title)),
            )
        })
        .collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{} · hoplite-lab</title><style>{}</style></head><body>{}<nav>{links}</nav><main>{body}</main>{}</body></html>\n",
        escape(&campaign.scenario),
        style(),
        header(source),
        said(
            "footer",
            &format!("hoplite-lab {}", env!("CARGO_PKG_VERSION"))
        ),
    )
}

/// The style sheet, with the subjects' colours of both pages.
fn style() -> String {
    let colours = |all: [&str; 6]| {
        let one = |(number, colour): (usize, &str)| format!("--s{number}:{colour};");
        all.into_iter().enumerate().map(one).collect::<String>()
    };
    include_str!("page/style.css")
        .replace("/*light*/", &colours(LIGHT))
        .replace("/*dark*/", &colours(DARK))
}

fn header(source: &Source<'_>) -> String {
    let campaign = &source.data.campaign;
    let mut head = said("p class=\"eyebrow\"", "hoplite-lab report");
    head += &said("h1", &campaign.scenario);
    if !campaign.summary.is_empty() {
        head += &said("p class=\"summary\"", &campaign.summary);
    }
    let facts = facts(source).into_iter();
    let facts: String = facts
        .map(|(value, name)| tag("li", &format!("{} {}", said("b", &value), escape(&name))))
        .collect();
    tag("header", &(head + &tag("ul class=\"facts\"", &facts)))
}

/// The line under the title: how much there is, and when it was.
fn facts(source: &Source<'_>) -> Vec<(String, String)> {
    let data = source.data;
    let done = data.runs.len();
    let attempts = |verdict| {
        data.attempts
            .iter()
            .filter(|attempt| attempt.verdict == verdict)
            .count()
    };
    let number = |number: usize, word: &str| {
        let end = if number == 1 { "" } else { "s" };
        (number.to_string(), format!("{word}{end}"))
    };
    let refused = |count: usize, what: &str| {
        let (count, word) = number(count, "attempt");
        (count, format!("{word} {what}"))
    };
    let took = data
        .attempts
        .iter()
        .map(|attempt| attempt.began + attempt.took)
        .fold(data.campaign.began, f64::max);
    vec![
        (
            format!("{done} of {}", data.campaign.planned),
            "repetitions done".to_owned(),
        ),
        number(data.subjects.len(), "subject"),
        number(data.cases.len().max(1), "case"),
        refused(attempts(Verdict::Invalid), "refused by the gate"),
        refused(attempts(Verdict::Failed), "failed"),
        (
            Utc::at(data.campaign.began).shortly(),
            format!("over {}", span(took - data.campaign.began)),
        ),
        (format!("seed {}", data.campaign.seed), String::new()),
    ]
}

/// A box that scrolls sideways where a table is wider than the screen.
fn scrolling(table: &str) -> String {
    tag("div class=\"scroll\" tabindex=\"0\"", table)
}

/// A subject's name with the mark of its colour.
fn chip(name: &str, series: usize) -> String {
    let mark = format!(
        "<i class=\"chip\" style=\"background:var(--s{})\"></i>",
        series % LIGHT.len()
    );
    format!("{mark}{}", escape(name))
}

/// Something to unfold.
fn details(title: &str, content: &str, open: bool) -> String {
    let head = if open { "details open" } else { "details" };
    tag(head, &format!("{}{content}", said("summary", title)))
}

/// `3 cases`, with its verb.
fn cases(number: usize) -> String {
    count(number, "case")
}

#[cfg(test)]
mod tests;
