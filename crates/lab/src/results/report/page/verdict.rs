//! The verdict: a row for each measure that matters, a column for each subject. One case: its medians and ratios. Several: in how many
//! of them a subject is better or worse, and by how much.

use super::{PageInput, cases, chip, table, validity::OPEN};
use crate::results::{
    analysis::statistics::sorted,
    report::{
        compare::{Best, Judgement, LEVEL, Ratio, Standing},
        data::{Data, GroupKey},
        figures::unit,
        metric::{Unit, count as numbered, factor},
        render::{escape, row, tag, text_tag},
    },
};

/// The section.
pub(super) fn section(source: &PageInput<'_>) -> String {
    let data = source.data;
    let measures = shown(source);
    if measures.is_empty() {
        return text_tag(
            "p class=\"note\"",
            "There are no figures so far: no repetition was accepted.",
        );
    }
    let head = head(data, source.judgement, &data.run_families());
    let rows = measures.iter().map(|measure| line(source, *measure));
    let said = if data.campaign.gate.is_open() {
        text_tag("p class=\"lead bad\"", OPEN)
    } else {
        sentence(source, &measures)
    };
    said + &table("table class=\"glance\"", &head, rows) + &legend(source)
}

/// Key measures that have values which differ at all.
pub(super) fn shown(source: &PageInput<'_>) -> Vec<usize> {
    let data = source.data;
    let worth = |measure: &usize| {
        let Some(of) = data.measures.get(*measure) else {
            return false;
        };
        let groups = data
            .groups
            .iter()
            .filter(|(place, _)| place.measure == *measure);
        // That nothing failed is no news; that something did is.
        let news = of.metric != "failed_share"
            || groups
                .flat_map(|(_, points)| points)
                .any(|point| point.value > 0.0);
        of.meaning.key && news
    };
    (0..data.measures.len()).filter(worth).collect()
}

/// The head of a table with a column for each of these families; the baseline says so.
pub(super) fn head(data: &Data, judgement: &Judgement, families: &[usize]) -> String {
    let mut cells = vec![tag("th", "")];
    let baseline = judgement.baseline.map(|baseline| data.series(baseline));
    for family in families {
        let name = data.family_name(*family);
        let note = if Some(*family) == baseline {
            text_tag("small", "baseline")
        } else {
            String::new()
        };
        cells.push(tag(
            "th scope=\"col\"",
            &format!("{}{note}", chip(name, *family)),
        ));
    }
    row(&cells)
}

fn line(source: &PageInput<'_>, measure: usize) -> String {
    let data = source.data;
    let Some(of) = data.measures.get(measure) else {
        return String::new();
    };
    let workload = of
        .workload
        .as_deref()
        .map(|workload| text_tag("small", workload));
    let title = format!(
        "{}{}",
        escape(&of.meaning.title),
        workload.unwrap_or_default()
    );
    let mut cells = vec![tag("th scope=\"row\"", &title)];
    let all = data.cases_of(measure);
    for family in data.run_families() {
        cells.push(match all.as_slice() {
            [case] => one(source, measure, *case, family),
            _ => several(source, measure, &all, family),
        });
    }
    row(&cells)
}

/// A cell of one case: median, interval, and how it stands to the baseline.
pub(super) fn one(source: &PageInput<'_>, measure: usize, case: usize, family: usize) -> String {
    let (data, judgement) = (source.data, source.judgement);
    let found = data.member((measure, case), family);
    let Some((place, summary)) =
        found.and_then(|place| Some((place, judgement.summaries.get(&place)?)))
    else {
        return absent(data, case, family);
    };
    let unit = unit(judgement, data, measure);
    let star = star(judgement, place);
    let value = text_tag("b", &unit.format_with_unit(summary.center)) + &star;
    let mut cell = tag("span class=\"value\"", &value);
    if let Some(interval) = summary.interval {
        cell += &text_tag("small", &range(unit, interval.low, interval.high));
    }
    let ratio = judgement.ratios.get(&place);
    if let Some(ratio) = ratio {
        cell += &told(ratio);
    }
    if data
        .families
        .get(family)
        .is_some_and(|name| name != data.label(place.subject))
    {
        cell += &text_tag("small class=\"who\"", data.label(place.subject));
    }
    tag(
        &format!("td class=\"{}\"", class(ratio.map(|ratio| ratio.standing))),
        &cell,
    )
}

/// Why there is nothing: it was not part of this case, or nothing of it was accepted.
fn absent(data: &Data, case: usize, family: usize) -> String {
    let tried = data
        .counts
        .iter()
        .filter(|((of, subject), _)| *of == case && data.series(*subject) == family);
    let (mut ok, mut given_up) = (0, 0);
    for (_, counts) in tried {
        (ok, given_up) = (ok + counts.ok, given_up + counts.given_up);
    }
    match (ok, given_up) {
        (0, 1..) => tag(
            "td class=\"gone\"",
            &(text_tag("b", "✕ failed") + &text_tag("small", "no repetition was accepted")),
        ),
        _ => tag("td class=\"none\"", "–"),
    }
}

pub(super) fn range(unit: Unit, low: f64, high: f64) -> String {
    format!("{} – {}", unit.format(low), unit.format(high))
}

/// The best of its row; filled if it is significantly ahead.
fn star(judgement: &Judgement, place: GroupKey) -> String {
    let best = judgement
        .best
        .get(&(place.measure, place.case))
        .filter(|best| best.subject == place.subject);
    match best.and_then(|best| best.next) {
        Some((_, ratio)) if ratio.standing == Standing::Better => " <span class=\"star\" title=\"best, significantly ahead of the next\">★</span>".to_owned(),
        Some(_) => " <span class=\"star\" title=\"best median, not significantly ahead of the next\">☆</span>".to_owned(),
        None => String::new(),
    }
}

/// `▼ ×1.24 worse`.
fn told(ratio: &Ratio) -> String {
    let factor = ratio
        .comparison
        .ratio
        .map_or_else(|| "baseline is 0".to_owned(), factor);
    let words = match ratio.standing {
        Standing::Same => "no difference seen",
        Standing::TooFew => "too few to say",
        Standing::Unjudged => "",
        other => other.words(),
    };
    let text = format!("{} {factor} {words}", symbol(ratio.standing));
    text_tag("span class=\"ratio\"", text.trim())
}

pub(super) fn symbol(standing: Standing) -> &'static str {
    match standing {
        Standing::Better => "▲",
        Standing::Worse => "▼",
        Standing::Same => "≈",
        Standing::TooFew => "?",
        Standing::Unjudged => "",
    }
}

fn class(standing: Option<Standing>) -> &'static str {
    match standing {
        Some(Standing::Better) => "better",
        Some(Standing::Worse) => "worse",
        Some(Standing::Same) => "same",
        _ => "plain",
    }
}

/// A cell over several cases.
fn several(source: &PageInput<'_>, measure: usize, all: &[usize], family: usize) -> String {
    let (data, judgement) = (source.data, source.judgement);
    let members = all.iter();
    let places: Vec<GroupKey> = members
        .filter_map(|case| data.member((measure, *case), family))
        .collect();
    if places.is_empty() {
        return tag("td class=\"none\"", "–");
    }
    let ratios = places
        .iter()
        .filter_map(|place| judgement.ratios.get(place));
    let ratios: Vec<&Ratio> = ratios.collect();
    let standings: Vec<Standing> = ratios.iter().map(|ratio| ratio.standing).collect();
    let mut cell = tally(&standings);
    cell += &factors(&ratios);
    cell += &medians(source, measure, &places);
    cell += &leads(judgement, &places, all.len());
    let class = match standings.first() {
        Some(first) if standings.iter().all(|standing| standing == first) => class(Some(*first)),
        _ => "plain",
    };
    tag(&format!("td class=\"{class}\""), &cell)
}

/// From the smallest to the largest median.
fn medians(source: &PageInput<'_>, measure: usize, places: &[GroupKey]) -> String {
    let summaries = places
        .iter()
        .filter_map(|place| source.judgement.summaries.get(place));
    let medians = sorted(&summaries.map(|summary| summary.center).collect::<Vec<_>>());
    let unit = unit(source.judgement, source.data, measure);
    match medians.as_slice() {
        [] => String::new(),
        [one] => text_tag("small", &unit.format_with_unit(*one)),
        [low, .., high] if low == high => text_tag("small", &unit.format_with_unit(*low)),
        [low, .., high] => text_tag(
            "small",
            &format!("{} – {}", unit.format(*low), unit.format_with_unit(*high)),
        ),
    }
}

/// In how many cases it is the best, and how clearly.
fn leads(judgement: &Judgement, places: &[GroupKey], all: usize) -> String {
    let best = places.iter().filter_map(|place| {
        let best = judgement.best.get(&(place.measure, place.case));
        best.filter(|best| best.subject == place.subject)
    });
    let best: Vec<bool> = best.map(Best::is_clear).collect();
    let clear = best.iter().filter(|clear| **clear).count();
    let star = if clear > 0 { "★" } else { "☆" };
    match best.len() {
        0 => String::new(),
        count => text_tag(
            "small",
            &format!("{star} best in {count} of {}, {clear} clearly", cases(all)),
        ),
    }
}

/// `▼ worse in all 6`, or the number of each; nothing for the baseline.
fn tally(standings: &[Standing]) -> String {
    let Some(first) = standings.first() else {
        return String::new();
    };
    let count = |kind: &Standing| {
        standings
            .iter()
            .filter(|standing| *standing == kind)
            .count()
    };
    if count(first) == standings.len() {
        let text = format!(
            "{} {} in all {}",
            symbol(*first),
            first.words(),
            standings.len()
        );
        return text_tag("b", &text);
    }
    let kinds = [
        Standing::Better,
        Standing::Same,
        Standing::Worse,
        Standing::TooFew,
    ];
    let told = |kind: Standing| {
        let text = format!("{} {} in {}", symbol(kind), kind.words(), count(&kind));
        text_tag("b class=\"pill\"", &text)
    };
    kinds
        .into_iter()
        .filter(|kind| count(kind) > 0)
        .map(told)
        .collect()
}

fn factors(ratios: &[&Ratio]) -> String {
    let known = ratios.iter().filter_map(|ratio| ratio.comparison.ratio);
    let (low, high) = known.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), ratio| {
        (low.min(ratio), high.max(ratio))
    });
    if low > high {
        return String::new();
    }
    let (low, high) = (factor(low), factor(high));
    let text = if low == high {
        low
    } else {
        format!("{low} – {high}")
    };
    text_tag("span class=\"ratio\"", &text)
}

/// In words: who leads how often, and how each stands to the baseline.
fn sentence(source: &PageInput<'_>, measures: &[usize]) -> String {
    let (data, judgement) = (source.data, source.judgement);
    let led: Vec<&Best> = judgement
        .best
        .iter()
        .filter(|((measure, _), _)| measures.contains(measure))
        .map(|(_, best)| best)
        .collect();
    let rivals = data.families.len() > 1 && !judgement.ratios.is_empty();
    if led.is_empty() && !rivals {
        let text = "There is nothing to compare: no case has figures of two subjects.";
        return text_tag("p class=\"lead\"", text);
    }
    let line = |family: usize| {
        let parts = [
            leading(data, &led, family),
            against(source, measures, family),
        ];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let name = data.family_name(family);
        let text = format!("{}: {}", tag("b", &chip(name, family)), parts.join("; "));
        if parts.is_empty() {
            String::new()
        } else {
            tag("li", &text)
        }
    };
    tag(
        "ul class=\"lead\"",
        &(0..data.families.len()).map(line).collect::<String>(),
    )
}

/// `best in 3 of 4 comparisons, 2 of them clearly`.
fn leading(data: &Data, led: &[&Best], family: usize) -> String {
    let mine = led
        .iter()
        .filter(|best| data.series(best.subject) == family);
    let mine: Vec<bool> = mine.map(|best| best.is_clear()).collect();
    let clear = mine.iter().filter(|clear| **clear).count();
    let clear = match (clear, mine.len()) {
        (1, 1) => "clearly ahead of the next".to_owned(),
        (0, 1) => "not clearly ahead of the next".to_owned(),
        (0, _) => "never clearly ahead of the next".to_owned(),
        (clear, all) if clear == all => "always clearly ahead of the next".to_owned(),
        (some, _) => format!("{some} of them clearly ahead of the next"),
    };
    match mine.len() {
        0 => String::new(),
        count => format!(
            "best in {count} of {}, {clear}",
            numbered(led.len(), "comparison")
        ),
    }
}

/// `worse than native in 9 of 12, no difference seen in 3`.
fn against(source: &PageInput<'_>, measures: &[usize], family: usize) -> String {
    let (data, judgement) = (source.data, source.judgement);
    let mine = judgement.ratios.iter().filter(|(place, ratio)| {
        measures.contains(&place.measure)
            && data.series(place.subject) == family
            && ratio.standing != Standing::Unjudged
    });
    let standings: Vec<Standing> = mine.map(|(_, ratio)| ratio.standing).collect();
    let baseline = judgement
        .baseline
        .map_or("?", |baseline| data.baseline_name(baseline));
    let kinds = [
        (
            Standing::Better,
            format!("better than {}", escape(baseline)),
        ),
        (Standing::Worse, format!("worse than {}", escape(baseline))),
        (Standing::Same, "no difference seen".to_owned()),
        (Standing::TooFew, "too few repetitions to say".to_owned()),
    ];
    let told = kinds.into_iter().filter_map(|(kind, words)| {
        let count = standings
            .iter()
            .filter(|standing| **standing == kind)
            .count();
        (count > 0).then(|| format!("{words} in {count} of {}", standings.len()))
    });
    told.collect::<Vec<_>>().join(", ")
}

const RATIO: &str =
    "× is the ratio of medians (of means where a row says so) over the same repetitions.";

fn legend(source: &PageInput<'_>) -> String {
    let judgement = source.judgement;
    if source.data.campaign.gate.is_open() {
        let text = format!("{RATIO} The range under it is the 95 % interval.");
        return text_tag("p class=\"note\"", &text);
    }
    let against = judgement.baseline.map_or_else(String::new, |baseline| {
        format!(
            "▲ better and ▼ worse than {}, ≈ no difference seen. ",
            escape(source.data.baseline_name(baseline))
        )
    });
    let correction = match judgement.compared {
        0 => String::new(),
        1 => "One comparison was made.".to_owned(),
        many => format!(
            "Better and worse mean p ≤ {LEVEL} after Holm's correction for {many} comparisons, which takes at least {} repetitions.",
            judgement.needed
        ),
    };
    tag(
        "p class=\"note\"",
        &format!(
            "{against}{RATIO} ★ best of its row and significantly ahead of the next, ☆ best median only. \
         The range under it is the 95 % interval. {correction}"
        ),
    )
}
