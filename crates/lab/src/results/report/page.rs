//! The page: one file, no script, nothing from elsewhere. Verdict first, then what stands behind it.
//!
//! Its markup is made by a few functions (`tag`, `text_tag`, `row`), not by templates: nearly every line of it decides something, so that templates
//! would need a value for each cell beside the same decisions. `escape` is in one place, and a test sends hostile text through all of it.

mod validity;
mod verdict;

use std::collections::BTreeMap;

use super::{
    compare::{Judgement, Summary},
    data::{Data, GroupKey, Measure},
    figures::{Figure, FigureKind, unit},
    metric::{count, digits, factor, span},
    recognise::Answer,
    render::{Target, escape, row, svg, tag, text_tag},
    scene::{DARK, LIGHT},
};
use crate::results::{
    analysis::{
        fingerprint::PREFIX,
        statistics::{FEWEST, RESAMPLES, Statistic},
    },
    export::Utc,
    store::{Machine, Verdict},
};

/// What the page is made from.
pub(super) struct PageInput<'a> {
    pub(super) data: &'a Data,
    pub(super) judgement: &'a Judgement,
    pub(super) figures: &'a [Figure],
    /// What an observer recognises.
    pub(super) answers: &'a [Answer],
    /// Sample files that could not be read.
    pub(super) unread: &'a [String],
}

/// The whole page.
pub(super) fn page(source: &PageInput<'_>) -> String {
    let campaign = &source.data.campaign;
    let sections = [
        ("verdict", "Who won", verdict::section(source)),
        (
            "goals",
            "Beside what was asked",
            super::findings::goals_section(source),
        ),
        (
            "paper",
            "Beside the paper",
            super::findings::paper_section(source),
        ),
        ("cases", "Case by case", cases_section(source)),
        (
            "recognition",
            "What an observer recognises",
            super::recognise::section(source),
        ),
        ("figures", "Figures", figures_section(source)),
        ("tables", "All figures in numbers", tables_section(source)),
        ("validity", "May it be trusted?", validity::section(source)),
        (
            "machine",
            "What was run, and on what",
            machine_section(source),
        ),
        ("method", "How to read this", method_section(source)),
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
        text_tag(
            "footer",
            &format!("hoplite-lab {}", env!("CARGO_PKG_VERSION"))
        ),
    )
}

/// The style sheet, with the subjects' colours of both pages.
pub(super) fn style() -> String {
    let colours = |all: [&str; 6]| {
        let one = |(number, colour): (usize, &str)| format!("--s{number}:{colour};");
        all.into_iter().enumerate().map(one).collect::<String>()
    };
    include_str!("page/style.css")
        .replace("/*light*/", &colours(LIGHT))
        .replace("/*dark*/", &colours(DARK))
}

fn header(source: &PageInput<'_>) -> String {
    let campaign = &source.data.campaign;
    let mut head = text_tag("p class=\"eyebrow\"", "hoplite-lab report");
    head += &text_tag("h1", &campaign.scenario);
    if !campaign.summary.is_empty() {
        head += &text_tag("p class=\"summary\"", &campaign.summary);
    }
    let facts = facts(source).into_iter();
    let facts: String = facts
        .map(|(value, name)| {
            tag(
                "li",
                &format!("{} {}", text_tag("b", &value), escape(&name)),
            )
        })
        .collect();
    tag("header", &(head + &tag("ul class=\"facts\"", &facts)))
}

/// The line under the title: how much there is, and when it was.
fn facts(source: &PageInput<'_>) -> Vec<(String, String)> {
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

/// A table with a head, `element` being its tag with attributes, in a box of its own.
pub(super) fn table(element: &str, head: &str, rows: impl IntoIterator<Item = String>) -> String {
    let rows: String = rows.into_iter().collect();
    let content = tag("thead", head) + &tag("tbody", &rows);
    scrolling(&tag(element, &content))
}

/// A head of columns with these names.
pub(super) fn heads(names: &[&str]) -> String {
    let cells = names.iter().map(|name| text_tag("th scope=\"col\"", name));
    row(&cells.collect::<Vec<_>>())
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
pub(super) fn details(title: &str, content: &str, open: bool) -> String {
    let head = if open { "details open" } else { "details" };
    tag(head, &format!("{}{content}", text_tag("summary", title)))
}

/// `3 cases`, with its verb.
fn cases(number: usize) -> String {
    count(number, "case")
}

/// Every case of every measure that matters; empty if the verdict says it all.
fn cases_section(source: &PageInput<'_>) -> String {
    let data = source.data;
    if data.cases.len() < 2 {
        return String::new();
    }
    let measures = verdict::shown(source);
    measures
        .iter()
        .map(|measure| card(source, *measure))
        .collect()
}

fn card(source: &PageInput<'_>, measure: usize) -> String {
    let data = source.data;
    let Some(of) = data.measures.get(measure) else {
        return String::new();
    };
    let families = data.run_families();
    let head = verdict::head(data, source.judgement, &families);
    let line = |case: &usize| {
        let mut cells = vec![text_tag("th scope=\"row\"", &data.case_title(*case))];
        let one = |family: &usize| verdict::one(source, measure, *case, *family);
        cells.extend(families.iter().map(one));
        row(&cells)
    };
    // A case in which every repetition failed is shown too.
    let mut cases = data.cases_of(measure);
    cases.extend(
        data.counts
            .iter()
            .filter(|(_, counts)| counts.ok == 0)
            .map(|((case, _), _)| *case),
    );
    cases.sort_unstable();
    cases.dedup();
    let table = table("table class=\"glance\"", &head, cases.iter().map(line));
    text_tag("h3", &of.title()) + &table
}

/// Up to this many distributions are unfolded.
const UNFOLDED: usize = 4;

/// The figures, by measure, with links to their files.
fn figures_section(source: &PageInput<'_>) -> String {
    let measures = source.data.measures.iter().enumerate();
    let (key, other): (Vec<_>, Vec<_>) = measures.partition(|(_, of)| of.meaning.key);
    let of = |all: &[(usize, _)]| {
        all.iter()
            .map(|(measure, _)| one(source, *measure))
            .collect::<String>()
    };
    let (first, rest) = (of(&key), of(&other));
    let rest = if rest.is_empty() {
        rest
    } else {
        details("Box plots of the other measures", &rest, false)
    };
    first + &rest
}

fn one(source: &PageInput<'_>, measure: usize) -> String {
    let figures = |kind| {
        source
            .figures
            .iter()
            .filter(move |figure| figure.measure == Some(measure) && figure.kind == kind)
    };
    let any = |figure: &Figure| figure.measure == Some(measure);
    if !source.figures.iter().any(any) {
        return String::new();
    }
    let title = source.data.measures.get(measure).map(Measure::title);
    let mut content = text_tag("h3", &title.unwrap_or_default());
    content += &figures(FigureKind::Lines { first: true })
        .map(figure)
        .collect::<String>();
    let others: String = figures(FigureKind::Lines { first: false })
        .map(figure)
        .collect();
    if !others.is_empty() {
        content += &details("Medians by the other parameters", &others, false);
    }
    content += &figures(FigureKind::Box).map(figure).collect::<String>();
    let ecdfs: Vec<String> = figures(FigureKind::Ecdf).map(figure).collect();
    if !ecdfs.is_empty() {
        let open = ecdfs.len() <= UNFOLDED;
        let grid = tag("div class=\"grid\"", &ecdfs.concat());
        content += &details("Distributions", &grid, open);
    }
    let series: String = figures(FigureKind::Series).map(figure).collect();
    if !series.is_empty() {
        content += &details("Over the campaign's time", &series, ecdfs.len() <= UNFOLDED);
    }
    content
}

/// A figure with its files.
fn figure(figure: &Figure) -> String {
    let name = &figure.name;
    let links =
        format!("<a href=\"figures/{name}.svg\">SVG</a> <a href=\"figures/{name}.png\">PNG</a>");
    let kind = if figure.kind == FigureKind::Ecdf {
        "figure class=\"small\""
    } else {
        "figure"
    };
    tag(
        kind,
        &format!(
            "{}{}",
            svg(&figure.scene, Target::Page),
            tag("figcaption", &(escape(&figure.caption) + " " + &links))
        ),
    )
}

/// Every median with its interval, its n and what became of the repetitions behind it, and its ratio to the baseline.
fn tables_section(source: &PageInput<'_>) -> String {
    let shown = verdict::shown(source);
    let one = |(measure, of): (usize, &Measure)| {
        details(
            &of.title(),
            &measure_table(source, measure),
            shown.first() == Some(&measure),
        )
    };
    let measures = source.data.measures.iter().enumerate();
    // They are in a file of their own.
    let measures = measures.filter(|(_, of)| !of.metric.starts_with(PREFIX));
    measures.map(one).collect()
}

fn measure_table(source: &PageInput<'_>, measure: usize) -> String {
    let (data, judgement) = (source.data, source.judgement);
    let unit = unit(judgement, data, measure).name;
    let unit = if unit.is_empty() {
        String::new()
    } else {
        format!(" ({unit})")
    };
    let mean = data
        .measures
        .get(measure)
        .is_some_and(|of| of.meaning.statistic == Statistic::Mean);
    let statistic = if mean { "Mean" } else { "Median" };
    let against = judgement
        .baseline
        .map_or("–", |baseline| data.baseline_name(baseline));
    let mut heads = vec![
        ("Subject".to_owned(), "", false),
        (format!("{statistic}{unit}"), "", true),
        ("95 % interval".to_owned(), "", true),
        ("95th percentile".to_owned(), "", true),
        ("n".to_owned(), "values", true),
        ("Runs".to_owned(), "repetitions that gave values", true),
        ("Invalid".to_owned(), "attempts that the gate refused", true),
        ("Failed".to_owned(), "attempts that failed", true),
        ("Failed transfers".to_owned(), "", true),
        (format!("Ratio to {against}"), "", true),
        ("95 % interval".to_owned(), "", true),
        ("p".to_owned(), "after Holm's correction", true),
        ("Verdict".to_owned(), "", false),
    ];
    let cases = data.cases.len() > 1;
    if cases {
        heads.insert(0, ("Case".to_owned(), "", false));
    }
    let cells: Vec<String> = heads
        .iter()
        .map(|(name, hint, number)| {
            let class = if *number { " class=\"n\"" } else { "" };
            text_tag(&format!("th scope=\"col\"{class} title=\"{hint}\""), name)
        })
        .collect();
    let rows = judgement
        .summaries
        .iter()
        .filter(|(place, _)| place.measure == measure);
    let rows = rows.map(|(place, summary)| line(source, *place, summary, cases));
    table("table class=\"numbers\"", &row(&cells), rows)
}

fn line(source: &PageInput<'_>, place: GroupKey, summary: &Summary, with_case: bool) -> String {
    let (data, judgement) = (source.data, source.judgement);
    let unit = unit(judgement, data, place.measure);
    let counts = data
        .counts
        .get(&(place.case, place.subject))
        .copied()
        .unwrap_or_default();
    let number = |text: &str| text_tag("td class=\"n\"", text);
    let mut cells = Vec::new();
    if with_case {
        cells.push(text_tag("td class=\"words\"", &data.case_title(place.case)));
    }
    let name = chip(data.label(place.subject), data.series(place.subject));
    cells.push(tag("th scope=\"row\"", &name));
    cells.push(number(&unit.format(summary.center)));
    let interval = summary
        .interval
        .map(|interval| verdict::range(unit, interval.low, interval.high));
    cells.push(number(&interval.unwrap_or_else(|| "–".to_owned())));
    cells.push(number(&unit.format(summary.p95)));
    let failed = data.failed_transfers(place);
    for count in [
        summary.n,
        summary.repetitions,
        counts.invalid,
        counts.failed,
        failed,
    ] {
        cells.push(number(&count.to_string()));
    }
    cells.extend(ratio(source, place));
    row(&cells)
}

fn ratio(source: &PageInput<'_>, place: GroupKey) -> Vec<String> {
    let number = |text: &str| text_tag("td class=\"n\"", text);
    let Some(ratio) = source.judgement.ratios.get(&place) else {
        let at = (place.measure, place.case);
        let baseline = source.judgement.baseline;
        let baseline = baseline.and_then(|subject| source.data.in_case(at, subject));
        let word = if baseline == Some(place) {
            "baseline"
        } else {
            ""
        };
        return vec![number("–"), number("–"), number("–"), text_tag("td", word)];
    };
    let comparison = &ratio.comparison;
    let told = comparison.ratio.map_or_else(|| "–".to_owned(), factor);
    let interval = comparison
        .interval
        .map(|interval| format!("{} – {}", digits(interval.low), digits(interval.high)));
    let p = ratio.corrected.map(|p| {
        if p < 0.001 {
            "< 0.001".to_owned()
        } else {
            digits(p)
        }
    });
    let words = format!(
        "{} {}",
        verdict::symbol(ratio.standing),
        ratio.standing.words()
    );
    let dash = || "–".to_owned();
    vec![
        number(&told),
        number(&interval.unwrap_or_else(dash)),
        number(&p.unwrap_or_else(dash)),
        tag("td class=\"words\"", &escape(words.trim())),
    ]
}

/// What was run and on what: all that a reader needs to do it again.
fn machine_section(source: &PageInput<'_>) -> String {
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
    let mut content = facts_table(facts);
    content += &binaries(source);
    let prints = campaign.fingerprints.clone();
    content += &facts_to_unfold("What each subject's cases resolve to, as a hash", prints);
    for machine in &data.machines {
        let title = format!("Settings of the machine {}", machine.id);
        content += &facts_to_unfold(&title, machine.sysctls.clone());
    }
    let file = text_tag("pre", &campaign.source);
    content + &details("The scenario's file, as it was read", &file, false)
}

/// Names and values.
fn facts_table(facts: impl IntoIterator<Item = (String, String)>) -> String {
    let line = |(name, value): (String, String)| {
        row(&[text_tag("th scope=\"row\"", &name), text_tag("td", &value)])
    };
    let rows: String = facts.into_iter().map(line).collect();
    scrolling(&tag("table class=\"facts\"", &tag("tbody", &rows)))
}

/// Names and values to unfold; nothing if there are none.
fn facts_to_unfold(title: &str, facts: BTreeMap<String, String>) -> String {
    if facts.is_empty() {
        return String::new();
    }
    details(title, &facts_table(facts), false)
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

fn binaries(source: &PageInput<'_>) -> String {
    let binaries = &source.data.campaign.binaries;
    if binaries.is_empty() {
        return String::new();
    }
    let heads = heads(&["Program", "Version", "SHA-256"]);
    let line = |binary: &crate::results::store::Binary| {
        let hash = tag("td", &text_tag("code", &binary.sha256));
        row(&[
            text_tag("th scope=\"row\"", &binary.name),
            text_tag("td", &binary.version),
            hash,
        ])
    };
    text_tag("h3", "Programs") + &table("table", &heads, binaries.iter().map(line))
}

/// How the figures were made, in words.
fn method_section(source: &PageInput<'_>) -> String {
    let resamples = source.judgement.resamples.max(RESAMPLES);
    let items = [
        "Every subject was measured in the same campaign, one after the other in a shuffled order, each repetition in fresh network namespaces: what the machine does to one, it does to all.".to_owned(),
        "Only repetitions count in which the emulator kept its promises. The others were repeated, and are counted above.".to_owned(),
        "A transfer that failed has no times; it counts in the share of transfers that failed. Its absence may flatter a subject that fails often: read both.".to_owned(),
        format!("Medians and percentiles are of type 7 (Hyndman and Fan). Intervals are 95 % percentile intervals of {RESAMPLES} bootstrap resamples; whole repetitions are drawn, for transfers of one repetition share a world. With fewer than {FEWEST} repetitions no such statement is possible, and none is made."),
        format!("A ratio is that of two medians over the repetitions that both subjects have. Its interval draws the same repetitions for both ({resamples} resamples), so that a mood of the machine that hit both does not widen it."),
        "Better and worse are claimed only if that could hardly be chance: p ≤ 0.05, two-sided, after Holm's correction for all judged comparisons of this page. A probability is never taken for smaller than an exact test of so few repetitions could show (sign test; rank test where no values overlap). “No difference seen” does not mean that there is none.".to_owned(),
        "Time to first and last byte begin with the connection to the way in (SOCKS, HTTP proxy, or the target itself) and include it. Goodput is payload over that time; for transfers that the clock ended, over the payload's own time.".to_owned(),
        "Processor time is that of the named process while the workloads ran, for each 10⁹ bytes of payload moved.".to_owned(),
        "Resampling begins at the campaign's seed: the same results give the same page.".to_owned(),
    ];
    let list: String = items.iter().map(|item| text_tag("li", item)).collect();
    tag("ul class=\"method\"", &list)
}

#[cfg(test)]
mod tests;
