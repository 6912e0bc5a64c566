//! Our figures that a finding or a goal speaks of. Used by `page` and `json`.

use super::{
    compare::{Judgement, how},
    data::{Data, Place},
};
use crate::{
    analysis::bootstrap::{How, Interval, Statistic, center, compare, confidence},
    scenario::Finding,
};

/// A figure of ours.
pub(super) struct Ours {
    pub(super) place: Place,
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
pub(super) enum Outcome {
    /// The whole interval is within the bounds.
    Met,
    /// The figure is; how sure that is cannot be said, or the interval goes beyond.
    Likely,
    /// The figure is not, but a part of the interval.
    Unlikely,
    Missed,
}

impl Outcome {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Likely => "met, not for certain",
            Self::Unlikely => "missed, not for certain",
            Self::Missed => "missed",
        }
    }
}

/// Whether a goal is met.
pub(super) fn outcome(finding: &Finding, ours: &Ours) -> Outcome {
    let low = finding.low.unwrap_or(f64::NEG_INFINITY);
    let high = finding.high.unwrap_or(f64::INFINITY);
    let within = |value: f64| (low..=high).contains(&value);
    let ends = (ours.low, ours.high);
    match (within(ours.value), ends) {
        (true, (Some(least), Some(most))) if within(least) && within(most) => Outcome::Met,
        (true, _) => Outcome::Likely,
        (false, (Some(least), Some(most))) if most >= low && least <= high => Outcome::Unlikely,
        (false, _) => Outcome::Missed,
    }
}

/// Whether its figure is a plain number.
pub(super) fn is_ratio(finding: &Finding) -> bool {
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

fn fits(data: &Data, finding: &Finding, place: Place) -> bool {
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
    fn one(&self, place: Place) -> Option<Ours> {
        if self.finding.relative_to.is_none() && self.finding.relative_to_case.is_empty() {
            return self.alone(place);
        }
        let other = self.other(place).filter(|other| *other != place)?;
        let values = (self.data.clusters(place), self.data.clusters(other));
        let comparison = compare(&values.0, &values.1, &self.how(place, Some(other)))?;
        let beside = match &self.finding.relative_to {
            Some(_) => self.data.label(other.subject).to_owned(),
            None => self.data.tell(other.case),
        };
        let name = format!("{}, ratio to {beside}", self.name(place)?);
        let n = comparison.pairs;
        Some(told(place, name, comparison.ratio?, comparison.interval, n))
    }

    fn alone(&self, place: Place) -> Option<Ours> {
        let (values, how) = (self.data.clusters(place), self.how(place, None));
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
    fn other(&self, place: Place) -> Option<Place> {
        let other = match &self.finding.relative_to {
            Some(name) => {
                let present = self.data.present(place.measure, place.case).into_iter();
                let subject = present
                    .filter(|subject| is_subject(self.data, *subject, name))
                    .min()?;
                Place { subject, ..place }
            }
            None => {
                let mut case = self.data.cases.get(place.case)?.clone();
                case.extend(self.finding.relative_to_case.clone());
                Place {
                    case: self.data.case(&case)?,
                    ..place
                }
            }
        };
        self.data.groups.contains_key(&other).then_some(other)
    }

    /// As the page resamples it elsewhere, so that the same figure has the same interval.
    fn how(&self, place: Place, other: Option<Place>) -> How {
        let resamples = match other {
            Some(_) => self.resamples,
            None => crate::analysis::bootstrap::RESAMPLES,
        };
        let how = how(self.data, (place, other), resamples);
        How {
            statistic: statistic(self.finding).unwrap_or(how.statistic),
            ..how
        }
    }

    fn name(&self, place: Place) -> Option<String> {
        let workload = self.data.measures.get(place.measure)?.workload.clone();
        let parts = [
            self.data.label(place.subject).to_owned(),
            workload.unwrap_or_default(),
            self.data.tell(place.case),
        ];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        Some(parts.join(" · "))
    }
}

fn told(place: Place, name: String, value: f64, interval: Option<Interval>, n: usize) -> Ours {
    Ours {
        place,
        name,
        value,
        low: interval.map(|interval| interval.low),
        high: interval.map(|interval| interval.high),
        n,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{
        compare::judge,
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
        let place = Place {
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
        // Labels that follow the case have no other case; those that do not are found.
        assert_eq!(of(&example, &beside).len(), 0);
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
        assert_eq!(outcome(&goal(None, Some(1.0)), &p95), Outcome::Missed);
        assert!(p95.low.is_some() && p95.value != of_statistic("median").value);
    }
}
