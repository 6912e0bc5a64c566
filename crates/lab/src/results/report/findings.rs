//! What papers found and what is asked of a subject, beside our figures that they speak of.

use super::{
    compare::{Judgement, resampling},
    data::{Data, GroupKey},
    metric::{Unit, factor, meaning},
    page::{PageInput, heads, table},
    render::{escape, row, tag, text_tag},
};
use crate::{
    experiments::scenario::Finding,
    results::analysis::statistics::{Interval, Resampling, Statistic, center, compare, confidence},
};

/// A figure of ours.
pub(super) struct Ours {
    pub(super) place: GroupKey,
    /// Subject, workload and case, as far as they differ.
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) low: Option<f64>,
    pub(super) high: Option<f64>,
    /// Values, or pairs of repetitions behind a ratio.
    pub(super) n: usize,
}

/// How a figure of ours stands to a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoalOutcome {
    /// The whole interval is within the bounds.
    Met,
    /// The figure is; how sure that is cannot be said, or the interval goes beyond.
    Likely,
    /// The figure is not, but a part of the interval.
    Unlikely,
    Missed,
    /// The gate was open: the figures are no measurement.
    Unjudged,
}

impl GoalOutcome {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Likely => "met, not for certain",
            Self::Unlikely => "missed, not for certain",
            Self::Missed => "missed",
            Self::Unjudged => "not judged",
        }
    }
}

/// Whether a goal is met by a figure of this campaign.
pub(super) fn judged(data: &Data, finding: &Finding, ours: &Ours) -> GoalOutcome {
    if data.campaign.gate.is_open() {
        return GoalOutcome::Unjudged;
    }
    outcome(finding, ours)
}

fn outcome(finding: &Finding, ours: &Ours) -> GoalOutcome {
    let low = finding.low.unwrap_or(f64::NEG_INFINITY);
    let high = finding.high.unwrap_or(f64::INFINITY);
    let within = |value: f64| (low..=high).contains(&value);
    let ends = (ours.low, ours.high);
    match (within(ours.value), ends) {
        (true, (Some(least), Some(most))) if within(least) && within(most) => GoalOutcome::Met,
        (true, _) => GoalOutcome::Likely,
        (false, (Some(least), Some(most))) if most >= low && least <= high => GoalOutcome::Unlikely,
        (false, _) => GoalOutcome::Missed,
    }
}

/// Whether its figure is a plain number.
fn is_ratio(finding: &Finding) -> bool {
    finding.relative_to.is_some()
        || !finding.relative_to_case.is_empty()
        || statistic(finding) == Some(Statistic::Tail)
}

fn statistic(finding: &Finding) -> Option<Statistic> {
    finding.statistic.as_deref().and_then(Statistic::named)
}

/// All of ours that it is about, by measure, case and subject.
pub(super) fn ours(data: &Data, judgement: &Judgement, finding: &Finding) -> Vec<Ours> {
    let places = judgement.summaries.keys();
    let fitting = places.filter(|place| fits(data, finding, **place));
    let asking = Asking {
        data,
        finding,
        resamples: judgement.resamples,
    };
    fitting.filter_map(|place| asking.one(*place)).collect()
}

fn fits(data: &Data, finding: &Finding, place: GroupKey) -> bool {
    let measure = data.measures.get(place.measure).is_some_and(|measure| {
        let workload = finding.workload.is_none() || finding.workload == measure.workload;
        finding.metric.as_ref() == Some(&measure.metric) && workload
    });
    let subject = finding.subject.as_deref();
    let subject = subject.is_none_or(|name| is_subject(data, place.subject, name));
    let case = data.cases.get(place.case).is_some_and(|case| {
        let mut asked = finding.case.iter();
        asked.all(|(name, value)| case.get(name) == Some(value))
    });
    measure && subject && case
}

/// By its own label or by its family's.
fn is_subject(data: &Data, subject: usize, name: &str) -> bool {
    let family = data.families.get(data.series(subject));
    data.label(subject) == name || family.is_some_and(|family| family == name)
}

/// What one of ours is computed from.
struct Asking<'a> {
    data: &'a Data,
    finding: &'a Finding,
    resamples: usize,
}

impl Asking<'_> {
    fn one(&self, place: GroupKey) -> Option<Ours> {
        if self.finding.relative_to.is_none() && self.finding.relative_to_case.is_empty() {
            return self.alone(place);
        }
        let other = self.other(place).filter(|other| *other != place)?;
        let values = (self.data.clusters(place), self.data.clusters(other));
        let comparison = compare(&values.0, &values.1, &self.resampling(place, Some(other)))?;
        let beside = match &self.finding.relative_to {
            Some(_) => self.data.label(other.subject).to_owned(),
            None => self.data.case_title(other.case),
        };
        let name = format!("{}, ratio to {beside}", self.name(place)?);
        let n = comparison.pairs;
        Some(told(place, name, comparison.ratio?, comparison.interval, n))
    }

    fn alone(&self, place: GroupKey) -> Option<Ours> {
        let (values, how) = (self.data.clusters(place), self.resampling(place, None));
        let n = values.values().map(Vec::len).sum();
        let value = center(&values, how.statistic)?;
        Some(told(
            place,
            self.name(place)?,
            value,
            confidence(&values, &how),
            n,
        ))
    }

    /// The place that a ratio refers to, if there are values.
    fn other(&self, place: GroupKey) -> Option<GroupKey> {
        let other = match &self.finding.relative_to {
            Some(name) => {
                let present = self.data.present(place.measure, place.case).into_iter();
                let subject = present
                    .filter(|subject| is_subject(self.data, *subject, name))
                    .min()?;
                GroupKey { subject, ..place }
            }
            None => {
                let mut case = self.data.cases.get(place.case)?.clone();
                case.extend(self.finding.relative_to_case.clone());
                let case = self.data.case(&case)?;
                self.data.in_case((place.measure, case), place.subject)?
            }
        };
        self.data.groups.contains_key(&other).then_some(other)
    }

    /// As the page resamples it elsewhere, so that the same figure has the same interval.
    fn resampling(&self, place: GroupKey, other: Option<GroupKey>) -> Resampling {
        let resamples = match other {
            Some(_) => self.resamples,
            None => crate::results::analysis::statistics::RESAMPLES,
        };
        let how = resampling(self.data, (place, other), resamples);
        Resampling {
            statistic: statistic(self.finding).unwrap_or(how.statistic),
            ..how
        }
    }

    fn name(&self, place: GroupKey) -> Option<String> {
        let workload = self.data.measures.get(place.measure)?.workload.clone();
        let parts = [
            self.data.label(place.subject).to_owned(),
            workload.unwrap_or_default(),
            self.data.case_title(place.case),
        ];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        Some(parts.join(" · "))
    }
}

fn told(place: GroupKey, name: String, value: f64, interval: Option<Interval>, n: usize) -> Ours {
    Ours {
        place,
        name,
        value,
        low: interval.map(|interval| interval.low),
        high: interval.map(|interval| interval.high),
        n,
    }
}

// What was asked of a subject, and whether that is so. Not part of the correction for many comparisons: a goal was set before anything was measured.

/// The goals_section; empty if the scenario has no goals.
pub(super) fn goals_section(source: &PageInput<'_>) -> String {
    let all = source.data.campaign.findings.iter();
    let rows: Vec<String> = all
        .filter(|finding| finding.goal)
        .map(|finding| goal_line(source, finding))
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let heads = heads(&["Asked", "Bound", "Met", "Ours"]);
    let note = "\"Not for certain\": the 95 % interval crosses the bound, or there are too few repetitions for one.";
    table("table class=\"paper\"", &heads, rows) + &text_tag("p class=\"note\"", note)
}

fn goal_line(source: &PageInput<'_>, finding: &Finding) -> String {
    let mut ours = ours(source.data, source.judgement, finding);
    let unit = told_in(finding, &ours);
    let is_met = |ours: &Ours| is_met(judged(source.data, finding, ours));
    let met = ours.iter().filter(|ours| is_met(ours)).count();
    let open = source.data.campaign.gate.is_open();
    let of = format!("{met} of {}", ours.len());
    // What is missed is what a reader looks for.
    ours.sort_by_key(is_met);
    let item = |ours: &Ours| item(judged(source.data, finding, ours), ours, unit);
    let list: String = ours.iter().map(item).collect();
    let list = if ours.is_empty() {
        text_tag("span class=\"quiet\"", "not measured so far")
    } else {
        tag("ul class=\"ours\"", &list)
    };
    row(&[
        text_tag("td class=\"text\"", &finding.text),
        text_tag("td class=\"figure\"", &figure(finding, unit)),
        text_tag(
            "td class=\"figure\"",
            if ours.is_empty() || open { "–" } else { &of },
        ),
        tag("td", &list),
    ])
}

fn is_met(outcome: GoalOutcome) -> bool {
    matches!(outcome, GoalOutcome::Met | GoalOutcome::Likely)
}

fn item(outcome: GoalOutcome, ours: &Ours, unit: Unit) -> String {
    let words = outcome.words();
    let words = text_tag("span class=\"agrees\"", words);
    tag("li", &(told_ours(ours, unit) + &words))
}

// What the paper found, and what we found where we did the same.

/// Ours of one finding: more are only counted.
const SHOWN: usize = 8;

/// The paper_section; empty if the scenario names no findings.
pub(super) fn paper_section(source: &PageInput<'_>) -> String {
    let all = source.data.campaign.findings.iter();
    let rows: Vec<String> = all
        .filter(|finding| !finding.goal)
        .map(|finding| finding_line(source, finding))
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let heads = heads(&["The paper says", "Its figure", "Ours"]);
    table("table class=\"paper\"", &heads, rows)
}

fn finding_line(source: &PageInput<'_>, finding: &Finding) -> String {
    let ours = ours(source.data, source.judgement, finding);
    let unit = told_in(finding, &ours);
    let figure = figure(finding, unit);
    // A unit of the paper's own is not ours: both are shown, nothing is concluded.
    let foreign = finding.unit.as_deref().filter(|unit| !unit.is_empty());
    let figure = match foreign {
        Some(unit) => format!("{figure} {unit}"),
        None => figure,
    };
    let comparable = foreign.is_none() && !source.data.campaign.gate.is_open();
    let one = |ours: &Ours| {
        let agrees = agrees(finding, ours).filter(|_| comparable);
        let agrees = agrees.map(|words| text_tag("span class=\"agrees\"", &words));
        tag("li", &(told_ours(ours, unit) + &agrees.unwrap_or_default()))
    };
    let mut list: String = ours.iter().take(SHOWN).map(one).collect();
    if ours.len() > SHOWN {
        list += &text_tag("li", &format!("and {} more", ours.len() - SHOWN));
    }
    let list = if ours.is_empty() {
        text_tag("span class=\"quiet\"", missing(finding))
    } else {
        tag("ul class=\"ours\"", &list)
    };
    row(&[
        text_tag("td class=\"text\"", &finding.text),
        text_tag("td class=\"figure\"", &figure),
        tag("td", &list),
    ])
}

/// The value or the bounds.
pub(super) fn figure(finding: &Finding, unit: Unit) -> String {
    match (finding.value, finding.low, finding.high) {
        (Some(value), Some(low), Some(high)) => format!(
            "{} ({} – {})",
            unit.format_with_unit(value),
            unit.format(low),
            unit.format(high)
        ),
        (Some(value), _, _) => unit.format_with_unit(value),
        (None, Some(low), Some(high)) => {
            format!("{} – {}", unit.format(low), unit.format_with_unit(high))
        }
        (None, Some(low), None) => format!("at least {}", unit.format_with_unit(low)),
        (None, None, Some(high)) => format!("at most {}", unit.format_with_unit(high)),
        (None, None, None) => "–".to_owned(),
    }
}

fn missing(finding: &Finding) -> &'static str {
    match finding.metric {
        Some(_) => "not measured so far",
        None => "a statement: see the figures",
    }
}

fn told_ours(ours: &Ours, unit: Unit) -> String {
    let interval = match (ours.low, ours.high) {
        (Some(low), Some(high)) => format!(" [{} – {}]", unit.format(low), unit.format(high)),
        _ => String::new(),
    };
    let value = text_tag("b", &unit.format_with_unit(ours.value));
    format!(
        "{value}{} {}",
        escape(&interval),
        text_tag("small", &format!("{}, n = {}", ours.name, ours.n))
    )
}

/// Ratios are plain numbers; other figures have their metric's unit at the size of ours.
fn told_in(finding: &Finding, ours: &[Ours]) -> Unit {
    let Some(metric) = finding.metric.as_ref().filter(|_| !is_ratio(finding)) else {
        return Unit::new("", 1.0);
    };
    let size = ours
        .first()
        .map(|ours| ours.value)
        .or(finding.value)
        .or(finding.low);
    meaning(metric).quantity.unit(size.unwrap_or(1.0))
}

/// In words: whether our figure is the paper's.
fn agrees(finding: &Finding, ours: &Ours) -> Option<String> {
    let (low, high) = match (finding.low, finding.value, finding.high) {
        (None, None, None) => return None,
        (low, None, high) => (
            low.unwrap_or(f64::NEG_INFINITY),
            high.unwrap_or(f64::INFINITY),
        ),
        (low, Some(value), high) => (low.unwrap_or(value), high.unwrap_or(value)),
    };
    let (least, most) = (
        ours.low.unwrap_or(ours.value),
        ours.high.unwrap_or(ours.value),
    );
    let words = match ours.value {
        value if value >= low && value <= high => "= within the paper's range".to_owned(),
        _ if most >= low && least <= high => "≈ our interval meets the paper's figure".to_owned(),
        value if value < low => format!("↓ {} below", away(value, low)),
        value => format!("↑ {} above", away(value, high)),
    };
    Some(words)
}

/// By how much of the paper's figure.
fn away(value: f64, of: f64) -> String {
    let share = ((value - of) / of).abs();
    match share {
        _ if !share.is_finite() => "not".to_owned(),
        _ if share > 2.0 => factor(value / of),
        _ => format!("{:.0}\u{202f}%", share * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::report::{
        compare::judge,
        data::GroupKey,
        example::{Example, data},
    };

    fn goal(low: Option<f64>, high: Option<f64>) -> Finding {
        Finding {
            metric: Some("ttlb_s".into()),
            low,
            high,
            goal: true,
            ..Finding::default()
        }
    }

    fn of(example: &Example, finding: &Finding) -> Vec<Ours> {
        let data = data(example);
        ours(&data, &judge(&data, data.subject("native")), finding)
    }

    #[test]
    fn a_goal_is_met_for_certain_where_the_whole_interval_is_within_its_bounds() {
        let place = GroupKey {
            measure: 0,
            case: 0,
            subject: 0,
        };
        let ours =
            |value, low, high| told(place, String::new(), value, Some(Interval { low, high }), 9);
        let asked = goal(None, Some(1.0));
        let outcomes = [
            ours(0.8, 0.7, 0.9),
            ours(0.9, 0.8, 1.1),
            ours(1.1, 0.9, 1.2),
            ours(1.3, 1.2, 1.4),
            told(place, String::new(), 0.5, None, 2),
        ];
        assert_eq!(
            outcomes.map(|ours| outcome(&asked, &ours).words()),
            [
                "met",
                "met, not for certain",
                "missed, not for certain",
                "missed",
                "met, not for certain"
            ]
        );
    }

    #[test]
    fn a_case_is_held_beside_another_case_of_the_same_subject() {
        let example = Example {
            hops: vec![1, 3],
            ..Example::default()
        };
        let beside = Finding {
            subject: Some("hoplite-{hops}".into()),
            relative_to_case: [("hops".to_owned(), "1".to_owned())].into(),
            ..goal(None, Some(1.0))
        };
        // A label that follows the case is the one of its family there.
        let found = of(&example, &beside);
        assert_eq!(found.len(), 1, "a case has no ratio to itself");
        assert!(
            found[0].name.starts_with("hoplite-3 · "),
            "{}",
            found[0].name
        );
        assert!(
            found[0].name.contains("hops 3, ratio to hops 1"),
            "{}",
            found[0].name
        );
        // Made up: 12 % more for each hop.
        let expected = 1.36 / 1.12;
        assert!(
            (found[0].value - expected).abs() < 0.1,
            "{}",
            found[0].value
        );
        let tor = Finding {
            subject: Some("tor".into()),
            ..beside
        };
        let found = of(&example, &tor);
        assert_eq!(found.len(), 1, "a case has no ratio to itself");
        assert!((found[0].value - 1.0).abs() < 0.2, "{}", found[0].value);
        assert!(
            found[0].name.contains("hops 3, ratio to hops 1"),
            "{}",
            found[0].name
        );
    }

    #[test]
    fn percentiles_have_ratios_and_intervals_of_their_own() {
        let of_statistic = |word: &str| {
            let finding = Finding {
                subject: Some("tor".into()),
                relative_to: Some("native".into()),
                statistic: Some(word.into()),
                ..goal(None, Some(1.0))
            };
            of(&Example::default(), &finding).remove(0)
        };
        let p95 = of_statistic("p95");
        assert_eq!(outcome(&goal(None, Some(1.0)), &p95), GoalOutcome::Missed);
        assert!(p95.low.is_some() && p95.value != of_statistic("median").value);
    }

    fn finding(low: f64, high: f64) -> Finding {
        Finding {
            low: Some(low),
            high: Some(high),
            ..Finding::default()
        }
    }

    fn figure_of_ours(value: f64, low: f64, high: f64) -> Ours {
        Ours {
            place: GroupKey {
                measure: 0,
                case: 0,
                subject: 0,
            },
            name: String::new(),
            value,
            low: Some(low),
            high: Some(high),
            n: 9,
        }
    }

    #[test]
    fn our_figure_is_within_near_or_away_from_the_papers() {
        let paper = finding(4.2, 4.8);
        assert_eq!(
            agrees(&paper, &figure_of_ours(4.5, 4.4, 4.6)).unwrap(),
            "= within the paper's range"
        );
        assert_eq!(
            agrees(&paper, &figure_of_ours(4.0, 3.9, 4.3)).unwrap(),
            "≈ our interval meets the paper's figure"
        );
        assert_eq!(
            agrees(&paper, &figure_of_ours(2.1, 2.0, 2.2)).unwrap(),
            "↓ 50\u{202f}% below"
        );
        assert_eq!(
            agrees(&paper, &figure_of_ours(48.0, 47.0, 49.0)).unwrap(),
            "↑ ×10.0 above"
        );
        let bound = Finding {
            low: Some(0.4),
            ..Finding::default()
        };
        assert_eq!(
            agrees(&bound, &figure_of_ours(0.6, 0.5, 0.7)).unwrap(),
            "= within the paper's range"
        );
        assert_eq!(
            agrees(&Finding::default(), &figure_of_ours(1.0, 1.0, 1.0)),
            None
        );
    }
}
