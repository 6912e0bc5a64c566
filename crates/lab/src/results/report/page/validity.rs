//! Whether the figures may be trusted: what became of the repetitions, how late the emulator was, how loaded the machine.

use std::collections::BTreeMap;

use super::{PageInput, chip, details, escape, row, table, tag, text_tag};
use crate::results::{
    analysis::statistics::quantile,
    report::{
        data::{Data, RunCounts},
        figures::FigureKind,
        metric::{count, digits},
        page,
    },
    store::{Attempt, Verdict},
};

/// Reasons that are shown; the store has all.
const REASONS: usize = 12;

/// The section.
pub(super) fn section(source: &PageInput<'_>) -> String {
    let data = source.data;
    let mut content = statement(source);
    content += &counts(data);
    content += &health(data);
    let late = source
        .figures
        .iter()
        .filter(|figure| figure.kind == FigureKind::Lateness);
    let late: String = late.map(page::figure).collect();
    if !late.is_empty() {
        let title = "How late packets left the emulator: 99th percentile of each attempt";
        content += &(text_tag("h3", title) + &late);
    }
    content += &reasons(data);
    if !source.unread.is_empty() {
        let list: String = source
            .unread
            .iter()
            .take(REASONS)
            .map(|file| text_tag("li", file))
            .collect();
        let title = format!(
            "{} cannot be read: their transfers are missing in the exports",
            count(source.unread.len(), "sample file")
        );
        content += &details(&title, &tag("ul", &list), true);
    }
    content
}

/// What stands above all figures that passed an open gate.
pub(super) const OPEN: &str = "The validity gate was open: however late packets left, no attempt was refused. The figures show that something works. \
     They are no measurement: nothing is compared, no goal is judged, and none of them is to be recorded.";

fn statement(source: &PageInput<'_>) -> String {
    let data = source.data;
    let campaign = &data.campaign;
    let done = data.runs.len() as u64;
    let given_up: usize = data.counts.values().map(|counts| counts.given_up).sum();
    let mut words = Vec::new();
    if campaign.gate.is_open() {
        words.push(OPEN.to_owned());
    }
    match campaign.planned.saturating_sub(done) {
        0 => words.push("All planned repetitions were run.".to_owned()),
        left => words.push(format!(
            "The campaign is not finished: {left} of {} repetitions are still to be run.",
            campaign.planned
        )),
    }
    if given_up > 0 {
        words.push(format!(
            "{} given up as failed or invalid: none of their figures count.",
            were(given_up)
        ));
    }
    let real_time = data
        .attempts
        .iter()
        .filter(|attempt| !attempt.health.real_time && attempt.health.released > 0)
        .count();
    if real_time > 0 {
        words.push(format!(
            "{} ran without real-time priority: lateness is larger then.",
            count(real_time, "attempt")
        ));
    }
    let own: u64 = data
        .attempts
        .iter()
        .filter(|attempt| attempt.verdict == Verdict::Ok)
        .map(|attempt| attempt.health.own_drops)
        .sum();
    if own > 0 {
        words.push(format!(
            "The emulator itself lost {own} packets in accepted attempts."
        ));
    }
    let unknown = data
        .attempts
        .iter()
        .filter(|attempt| attempt.health.cpu_pressure.is_none() && attempt.health.released > 0)
        .count();
    if unknown > 0 {
        words.push(format!(
            "Of {} it is not known how long programs waited for a processor (the machine has no /proc/pressure/cpu): nothing was judged by it.",
            count(unknown, "attempt")
        ));
    }
    let gate = &campaign.gate;
    words.push(format!(
        "An attempt is refused and repeated, at most {} times, when more than {} % of the packets left the emulator more than {} µs later than planned, or one of them more than {} µs, when it lost packets of its own, when the machine's host took more than {} % of the time, when programs waited for a processor in more than {} % of it, or when the lab stood still or its clock leapt for more than {} s.",
        gate.attempts,
        digits(gate.late_share * 100.0),
        digits(gate.late_us),
        digits(gate.late_us_max),
        digits(gate.steal * 100.0),
        digits(gate.cpu_pressure * 100.0),
        digits(gate.frozen)
    ));
    text_tag("p", &words.join(" "))
}

fn were(number: usize) -> String {
    let verb = if number == 1 { "was" } else { "were" };
    format!("{} {verb}", count(number, "repetition"))
}

/// What became of the attempts at each subject in each case.
fn counts(data: &Data) -> String {
    let rows = data.counts.iter();
    let rows = rows.map(|(place, counts)| row(&cells(data, *place, counts)));
    table("table", &row(&heads(data)), rows)
}

/// Names are aligned at their beginning, numbers at their end.
fn heads(data: &Data) -> Vec<String> {
    let names: &[&str] = if several(data) {
        &["Case", "Subject"]
    } else {
        &["Subject"]
    };
    let numbers = [
        "Accepted",
        "Attempts refused",
        "Attempts failed",
        "Given up",
        "Failed transfers",
    ];
    let names = names.iter();
    names
        .map(|name| text_tag("th scope=\"col\"", name))
        .chain(numbers.map(|name| text_tag("th scope=\"col\" class=\"n\"", name)))
        .collect()
}

/// Whether the cases have a column.
fn several(data: &Data) -> bool {
    data.cases.len() > 1
}

fn cells(data: &Data, (case, subject): (usize, usize), counts: &RunCounts) -> Vec<String> {
    let mut cells = Vec::new();
    if several(data) {
        cells.push(text_tag("td", &data.case_title(case)));
    }
    let name = chip(data.label(subject), data.series(subject));
    cells.push(tag("th scope=\"row\"", &name));
    let accepted = format!("{} of {}", counts.ok, data.campaign.repetitions);
    cells.push(text_tag("td class=\"n\"", &accepted));
    cells.push(number(counts.invalid, false));
    let failed_transfers = failed_transfers(data, case, subject);
    for bad in [counts.failed, counts.given_up, failed_transfers] {
        cells.push(number(bad, bad > 0));
    }
    cells
}

fn number(number: usize, bad: bool) -> String {
    let class = if bad { "n bad" } else { "n" };
    text_tag(&format!("td class=\"{class}\""), &number.to_string())
}

fn failed_transfers(data: &Data, case: usize, subject: usize) -> usize {
    let here = |((of, who, _), failed): (&(usize, usize, _), &usize)| {
        ((*of, *who) == (case, subject)).then_some(*failed)
    };
    data.failed.iter().filter_map(here).sum()
}

/// The attempts that count.
struct Accepted<'a>(Vec<&'a Attempt>);

/// A figure, and what it is.
type Fact = (String, &'static str);

impl Accepted<'_> {
    /// What is known of each.
    fn of(&self, value: fn(&Attempt) -> Option<f64>) -> Vec<f64> {
        self.0.iter().filter_map(|attempt| value(attempt)).collect()
    }

    /// A quantile over all; 1 is the largest.
    fn told(&self, value: fn(&Attempt) -> Option<f64>, share: f64) -> String {
        quantile(&self.of(value), share).map_or_else(|| "–".to_owned(), digits)
    }

    fn lateness(&self) -> [Fact; 4] {
        let late = self.told(|attempt| Some(attempt.health.late_us_p99), 0.5);
        let share = |attempt: &Attempt| Some(attempt.health.late_share? * 100.0);
        let share = self.told(share, 1.0);
        let most = self.told(|attempt| Some(attempt.health.late_us_max), 1.0);
        let stalls = self.of(|attempt| Some(attempt.health.stalls as f64));
        let stalls: f64 = stalls.iter().sum();
        [
            (
                format!("{late} µs"),
                "median of the 99th percentiles of lateness",
            ),
            (format!("{share} %"), "of the packets were late (largest)"),
            (format!("{most} µs"), "the latest packet of all"),
            (
                format!("{stalls:.0}"),
                "times the emulator was not scheduled for over 1 ms",
            ),
        ]
    }

    fn load(&self) -> [Fact; 3] {
        let load = |attempt: &Attempt| Some(attempt.health.load[0]);
        let steal = self.told(|attempt| Some(attempt.health.steal * 100.0), 1.0);
        [
            (self.told(load, 0.5), "median load before an attempt"),
            (self.told(load, 1.0), "highest load before an attempt"),
            (
                format!("{steal} %"),
                "largest share of time taken by the host",
            ),
        ]
    }

    fn waiting(&self) -> [Fact; 2] {
        let waited = |attempt: &Attempt| Some(attempt.health.cpu_pressure? * 100.0);
        let (usual, most) = (self.told(waited, 0.5), self.told(waited, 1.0));
        [
            (
                format!("{usual} %"),
                "of the time programs waited for a processor (median)",
            ),
            (
                format!("{most} %"),
                "of the time programs waited for a processor (largest)",
            ),
        ]
    }
}

/// Of the attempts that count.
fn health(data: &Data) -> String {
    let counts = |attempt: &&Attempt| attempt.verdict == Verdict::Ok;
    let accepted = Accepted(data.attempts.iter().filter(counts).collect());
    if accepted.0.is_empty() {
        return String::new();
    }
    let facts = accepted.lateness().into_iter().chain(accepted.load());
    let facts: String = facts
        .chain(accepted.waiting())
        .map(|(value, name)| tag("li", &format!("{} {}", text_tag("b", &value), escape(name))))
        .collect();
    text_tag("h3", "Accepted attempts") + &tag("ul class=\"facts\"", &facts)
}

/// Why attempts were refused or failed: each reason once, with a log if there is one.
fn reasons(data: &Data) -> String {
    let mut reasons: BTreeMap<(&str, &str), (usize, &str)> = BTreeMap::new();
    for attempt in data
        .attempts
        .iter()
        .filter(|attempt| attempt.verdict != Verdict::Ok)
    {
        let reason = reasons
            .entry((attempt.verdict.word(), &attempt.why))
            .or_insert((0, &attempt.log));
        reason.0 += 1;
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, (number, _))| std::cmp::Reverse(*number));
    let left = reasons.len().saturating_sub(REASONS);
    let one = |((word, why), (number, log)): &((&str, &str), (usize, &str))| {
        let text = format!("{number} × {word}: {why}");
        let log = if log.is_empty() {
            String::new()
        } else {
            details("the end of its log", &text_tag("pre", log), false)
        };
        tag("li", &(escape(&text) + &log))
    };
    let mut list: String = reasons.iter().take(REASONS).map(one).collect();
    if left > 0 {
        list += &text_tag(
            "li",
            &format!(
                "and {} more, in the table attempt of results.sqlite",
                count(left, "reason")
            ),
        );
    }
    if list.is_empty() {
        return String::new();
    }
    text_tag("h3", "Why attempts did not count") + &tag("ul", &list)
}
