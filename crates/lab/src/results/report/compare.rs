//! Who is better than whom, and whether that may be chance: medians with intervals, ratios to the baseline, the best of each case.
//! All judged comparisons of a page share one Holm correction.

use std::collections::BTreeMap;

use super::{
    data::{Data, GroupKey},
    metric::Better,
};
use crate::results::analysis::statistics::{
    Comparison, FEWEST, Interval, RESAMPLES, Resampling, Statistic, center, compare, confidence,
    holm, quantile_of_sorted, sorted,
};

/// The probability below which a difference is called one.
pub(super) const LEVEL: f64 = 0.05;

/// What the values of a place come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Summary {
    pub(super) n: usize,
    pub(super) repetitions: usize,
    pub(super) median: f64,
    /// The measure's statistic: mostly the median again.
    pub(super) center: f64,
    pub(super) interval: Option<Interval>,
    pub(super) p95: f64,
    pub(super) p99: f64,
}

/// How a subject stands to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    pub(super) comparison: Comparison,
    /// The probability after Holm's correction.
    pub(super) corrected: Option<f64>,
    pub(super) standing: Standing,
}

/// A judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Better,
    Worse,
    /// No difference seen: there may be one.
    Same,
    /// Too few repetitions to say.
    TooFew,
    /// Nobody wins by this measure.
    Unjudged,
}

impl Standing {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "no difference seen",
            Self::TooFew => "too few repetitions to say",
            Self::Unjudged => "not judged",
        }
    }
}

/// The best subject of a case by a measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Best {
    pub(super) subject: usize,
    /// The next one and how the best stands to it; `None` if there is no other.
    pub(super) next: Option<(usize, Ratio)>,
}

impl Best {
    /// Whether it is significantly ahead of the next.
    pub(super) fn is_clear(&self) -> bool {
        self.next
            .is_some_and(|(_, ratio)| ratio.standing == Standing::Better)
    }
}

/// All judgements.
#[derive(Clone, Debug, Default)]
pub(super) struct Judgement {
    pub(super) baseline: Option<usize>,
    pub(super) summaries: BTreeMap<GroupKey, Summary>,
    /// Every other subject to the baseline.
    pub(super) ratios: BTreeMap<GroupKey, Ratio>,
    /// By measure and case.
    pub(super) best: BTreeMap<(usize, usize), Best>,
    /// How many comparisons were corrected together.
    pub(super) compared: usize,
    /// With fewer repetitions not even the clearest difference would be called one.
    pub(super) needed: usize,
    /// Resamples of each.
    pub(super) resamples: usize,
}

/// Judges a whole campaign. The same data gives the same judgement.
pub(super) fn judge(data: &Data, baseline: Option<usize>) -> Judgement {
    let mut judgement = Judgement {
        baseline,
        ..Judgement::default()
    };
    for place in data.groups.keys() {
        if let Some(summary) = summary(data, *place) {
            judgement.summaries.insert(*place, summary);
        }
    }
    let pairs = pairs(data, &judgement);
    let judged = pairs
        .iter()
        .filter(|pair| pair.better != Better::Neither)
        .count();
    judgement.compared = judged;
    judgement.needed = needed(judged);
    // The smallest probability that resampling can show must stay below the level after the correction.
    judgement.resamples = (judged * 80).clamp(RESAMPLES, 10 * RESAMPLES);
    for (pair, ratio) in decide(data, &pairs, judgement.resamples) {
        if pair.to_baseline {
            judgement.ratios.insert(pair.one, ratio);
        }
        if pair.to_next {
            let next = Some((pair.other.subject, ratio));
            let best = Best {
                subject: pair.one.subject,
                next,
            };
            judgement
                .best
                .insert((pair.one.measure, pair.one.case), best);
        }
    }
    judgement
}

fn summary(data: &Data, place: GroupKey) -> Option<Summary> {
    let values = sorted(&data.values(place));
    let clusters = data.clusters(place);
    let how = resampling(data, (place, None), RESAMPLES);
    Some(Summary {
        n: values.len(),
        repetitions: clusters.len(),
        median: quantile_of_sorted(&values, 0.5)?,
        center: center(&clusters, how.statistic)?,
        interval: confidence(&clusters, &how),
        p95: quantile_of_sorted(&values, 0.95)?,
        p99: quantile_of_sorted(&values, 0.99)?,
    })
}

/// Two places to be compared.
struct Pair {
    one: GroupKey,
    other: GroupKey,
    better: Better,
    to_baseline: bool,
    /// Whether this is the best one of its case against the next one.
    to_next: bool,
}

fn pairs(data: &Data, judgement: &Judgement) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for (measure, of) in data.measures.iter().enumerate() {
        for case in data.cases_of(measure) {
            // What is not a key measure is told and not judged: each question more makes all answers less certain. Nothing is that passed an
            // open gate.
            let better = of.meaning.better;
            let better = if of.meaning.key && !data.campaign.gate.is_open() {
                better
            } else {
                Better::Neither
            };
            let here = |subject| GroupKey {
                measure,
                case,
                subject,
            };
            let baseline = judgement.baseline;
            let baseline = baseline.and_then(|subject| data.in_case((measure, case), subject));
            let baseline = baseline.filter(|place| judgement.summaries.contains_key(place));
            let others = data.present(measure, case).into_iter().map(here);
            let to_baseline = baseline.into_iter().flat_map(|other| {
                let others = others.clone().filter(move |one| *one != other);
                others.map(move |one| Pair {
                    one,
                    other,
                    better,
                    to_baseline: true,
                    to_next: false,
                })
            });
            let begin = pairs.len();
            pairs.extend(to_baseline);
            let Some((one, other)) = leaders(others, judgement, better) else {
                continue;
            };
            let known = pairs
                .iter_mut()
                .skip(begin)
                .find(|pair| pair.one == one && pair.other == other);
            match known {
                Some(pair) => pair.to_next = true,
                None => pairs.push(Pair {
                    one,
                    other,
                    better,
                    to_baseline: false,
                    to_next: true,
                }),
            }
        }
    }
    pairs
}

/// Repetitions that can show a difference if this many comparisons are made: all of one subject's beyond all of the other's.
fn needed(compared: usize) -> usize {
    let mut ways = 1.0;
    for n in 1_u32..64 {
        ways *= 2.0 * (2.0 * f64::from(n) - 1.0) / f64::from(n);
        if 2.0 / ways * compared as f64 <= LEVEL {
            return (n as usize).max(FEWEST);
        }
    }
    64
}

/// The best and the next one by median.
fn leaders(
    places: impl Iterator<Item = GroupKey>,
    judgement: &Judgement,
    better: Better,
) -> Option<(GroupKey, GroupKey)> {
    let median = |place: &GroupKey| judgement.summaries.get(place).map(|summary| summary.center);
    let mut ranked: Vec<(f64, GroupKey)> = places
        .filter_map(|place| Some((median(&place)?, place)))
        .collect();
    ranked.sort_by(|one, other| match better {
        Better::Higher => other.0.total_cmp(&one.0),
        Better::Lower | Better::Neither => one.0.total_cmp(&other.0),
    });
    match ranked.as_slice() {
        // Nobody leads where the first two are equal.
        [one, other, ..] if better != Better::Neither && one.0 != other.0 => Some((one.1, other.1)),
        _ => None,
    }
}

fn decide<'a>(data: &Data, pairs: &'a [Pair], resamples: usize) -> Vec<(&'a Pair, Ratio)> {
    let compared: Vec<(&Pair, Comparison)> = pairs
        .iter()
        .filter_map(|pair| {
            let (one, other) = (data.clusters(pair.one), data.clusters(pair.other));
            let resamples = if pair.better == Better::Neither {
                RESAMPLES
            } else {
                resamples
            };
            let how = resampling(data, (pair.one, Some(pair.other)), resamples);
            Some((pair, compare(&one, &other, &how)?))
        })
        .collect();
    let asked = |(pair, comparison): &(&Pair, Comparison)| {
        comparison.p.filter(|_| pair.better != Better::Neither)
    };
    let probabilities: Vec<f64> = compared.iter().filter_map(asked).collect();
    let mut corrected = holm(&probabilities).into_iter();
    let mut answer = |one: (&'a Pair, Comparison)| {
        let corrected = asked(&one).and_then(|_| corrected.next());
        let (pair, comparison) = one;
        let standing = standing(&comparison, corrected, (pair.better, probabilities.len()));
        (
            pair,
            Ratio {
                comparison,
                corrected,
                standing,
            },
        )
    };
    compared.into_iter().map(&mut answer).collect()
}

fn standing(
    comparison: &Comparison,
    corrected: Option<f64>,
    (better, asked): (Better, usize),
) -> Standing {
    let lower = comparison.difference < 0.0;
    match (better, corrected) {
        (Better::Neither, _) => Standing::Unjudged,
        (_, None) => Standing::TooFew,
        (_, Some(p)) if p > LEVEL && comparison.pairs < needed(asked) => Standing::TooFew,
        (_, Some(p)) if p > LEVEL || comparison.difference == 0.0 => Standing::Same,
        (Better::Lower, _) if lower => Standing::Better,
        (Better::Higher, _) if !lower => Standing::Better,
        _ => Standing::Worse,
    }
}

/// How a place is resampled, alone or against another.
pub(super) fn resampling(
    data: &Data,
    (one, other): (GroupKey, Option<GroupKey>),
    resamples: usize,
) -> Resampling {
    let measure = data.measures.get(one.measure);
    Resampling {
        statistic: measure.map_or(Statistic::Median, |measure| measure.meaning.statistic),
        seed: seed(data, one, other),
        resamples,
    }
}

/// From the campaign's seed and the names: adding a subject or a metric changes no other one's interval.
fn seed(data: &Data, one: GroupKey, other: Option<GroupKey>) -> u64 {
    let mut text = data.case_title(one.case);
    if let Some(measure) = data.measures.get(one.measure) {
        text += &measure.title();
    }
    text += data.label(one.subject);
    text += other.map_or("", |other| data.label(other.subject));
    // FNV-1a.
    text.bytes()
        .fold(data.campaign.seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::report::example::{Example, data};

    #[test]
    fn the_fastest_subject_is_best_and_the_slowest_significantly_worse() {
        let data = data(&Example::default());
        let judgement = judge(&data, data.subject("native"));
        let measure = data
            .measures
            .iter()
            .position(|measure| measure.metric == "ttlb_s")
            .unwrap();
        let best = judgement.best[&(measure, 0)];
        assert_eq!(data.label(best.subject), "native");
        assert_eq!(data.label(best.next.unwrap().0), "openvpn");
        let tor = GroupKey {
            measure,
            case: 0,
            subject: data.subject("tor").unwrap(),
        };
        let ratio = judgement.ratios[&tor];
        assert_eq!(ratio.standing, Standing::Worse);
        assert!(ratio.comparison.ratio.unwrap() > 2.0);
    }

    #[test]
    fn a_baseline_whose_label_follows_the_case_is_each_cases_own() {
        let data = data(&Example {
            hops: vec![1, 3],
            ..Example::default()
        });
        let judgement = judge(&data, data.subject_or_family("hoplite-{hops}"));
        let measure = data
            .measures
            .iter()
            .position(|measure| measure.metric == "ttlb_s")
            .unwrap();
        let tor = data.subject("tor").unwrap();
        // Made up: tor takes 3.1 times as long as nobody, each hop 12 % more.
        for (case, hops) in [1.0, 3.0].into_iter().enumerate() {
            let ratio = judgement.ratios[&GroupKey {
                measure,
                case,
                subject: tor,
            }];
            let (found, expected) = (ratio.comparison.ratio.unwrap(), 3.1 / (1.0 + 0.12 * hops));
            assert!((found / expected - 1.0).abs() < 0.1, "{hops}: {found}");
        }
    }

    #[test]
    fn more_goodput_is_better() {
        let data = data(&Example::default());
        let judgement = judge(&data, data.subject("tor"));
        let measure = data
            .measures
            .iter()
            .position(|measure| measure.metric == "goodput_bps")
            .unwrap();
        let native = GroupKey {
            measure,
            case: 0,
            subject: data.subject("native").unwrap(),
        };
        assert_eq!(judgement.ratios[&native].standing, Standing::Better);
    }

    #[test]
    fn nobody_is_better_or_best_behind_an_open_gate() {
        let mut data = data(&Example::default());
        data.campaign.gate.late_share = 1.0;
        let judgement = judge(&data, data.subject("native"));
        assert!(!judgement.summaries.is_empty() && !judgement.ratios.is_empty());
        let standings = judgement.ratios.values().map(|ratio| ratio.standing);
        assert!(standings.into_iter().all(|one| one == Standing::Unjudged));
        assert_eq!((judgement.best.len(), judgement.compared), (0, 0));
    }

    #[test]
    fn many_comparisons_need_more_repetitions() {
        // 2 / (12 over 6) is 0.0022, and 23 times that is just above 0.05.
        assert_eq!([1, 23, 24, 200].map(needed), [6, 6, 7, 8]);
    }

    #[test]
    fn three_repetitions_are_too_few_to_say() {
        let data = data(&Example {
            repetitions: 3,
            ..Example::default()
        });
        let judgement = judge(&data, data.subject("native"));
        assert!(
            judgement
                .ratios
                .values()
                .all(|ratio| matches!(ratio.standing, Standing::TooFew | Standing::Unjudged))
        );
        assert!(
            judgement
                .summaries
                .values()
                .all(|summary| summary.interval.is_none())
        );
    }

    #[test]
    fn the_same_campaign_is_judged_the_same_way() {
        let data = data(&Example::default());
        let (one, other) = (judge(&data, Some(0)), judge(&data, Some(0)));
        assert_eq!(one.ratios, other.ratios);
        assert_eq!(one.summaries, other.summaries);
    }
}
