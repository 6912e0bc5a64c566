//! Statistics of a campaign: confidence intervals of medians, means and their ratios, and Holm's correction. Quantiles and distributions
//! are those of `hoplite_workload`.

use std::collections::BTreeMap;

pub use hoplite_workload::statistics::{ecdf, median, quantile, quantile_of_sorted, sorted};
use hoplite_workload::{splitmix::SplitMix, statistics::place_of};

// Confidence intervals by resampling repetitions.
// The cluster bootstrap of Davison and Hinkley (1997, §3.8): transfers of one repetition share a world, so whole repetitions are drawn.

/// The values of one subject in one case, by repetition.
pub type Clusters = BTreeMap<u32, Vec<f64>>;

/// Resamples behind an interval.
pub const RESAMPLES: usize = 2_000;

/// The fewest repetitions that allow a statement at 95 %: with five, even the whole range of the values
/// covers the median with a probability of 1 − 2 × 0.5⁵ = 94 % only.
pub const FEWEST: usize = 6;

/// What the values come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Statistic {
    /// The middle value.
    #[default]
    Median,
    /// The average: for shares of what happened or did not, whose median hides all that is rare.
    Mean,
    /// The 95th percentile.
    P95,
    /// The 99th percentile.
    P99,
    /// The 99th percentile over the median: how far the slowest are behind the others.
    Tail,
}

impl Statistic {
    /// By its word in scenarios (`scenario::STATISTICS`).
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        match word {
            "median" => Some(Self::Median),
            "mean" => Some(Self::Mean),
            "p95" => Some(Self::P95),
            "p99" => Some(Self::P99),
            "tail" => Some(Self::Tail),
            _ => None,
        }
    }
}

/// How values are resampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resampling {
    /// Of what.
    pub statistic: Statistic,
    /// The same seed gives the same answer.
    pub seed: u64,
    /// How often.
    pub resamples: usize,
}

/// An interval at 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// A subject's values against another's over the repetitions that both have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Repetitions that both have.
    pub pairs: usize,
    /// The statistic over the baseline's; `None` if that is 0.
    pub ratio: Option<f64>,
    /// The interval of the ratio; `None` with fewer than `FEWEST` pairs.
    pub interval: Option<Interval>,
    /// The probability of a difference at least this clear if there were none, two-sided; `None` with fewer than `FEWEST` pairs.
    pub p: Option<f64>,
    /// The statistic less the baseline's.
    pub difference: f64,
}

/// The statistic of all values.
#[must_use]
pub fn center(values: &Clusters, statistic: Statistic) -> Option<f64> {
    let repetitions = filled(values);
    let once = vec![1; repetitions.len()];
    Ranked::new(values, &repetitions).center(statistic, &once)
}

/// The interval of the statistic; `None` with fewer than `FEWEST` repetitions.
#[must_use]
pub fn confidence(values: &Clusters, how: &Resampling) -> Option<Interval> {
    let repetitions: Vec<u32> = filled(values);
    if repetitions.len() < FEWEST {
        return None;
    }
    let ranked = Ranked::new(values, &repetitions);
    let mut random = SplitMix::new(how.seed);
    let resample = |_| ranked.center(how.statistic, &draw(&mut random, repetitions.len()));
    let drawn: Vec<f64> = (0..how.resamples).filter_map(resample).collect();
    interval(drawn)
}

/// Compares by drawing the same repetitions for both; `None` if no repetition has both.
#[must_use]
pub fn compare(values: &Clusters, baseline: &Clusters, how: &Resampling) -> Option<Comparison> {
    let filled_there = |repetition: &u32| {
        let there = baseline.get(repetition);
        there.is_some_and(|values| !values.is_empty())
    };
    let pairs: Vec<u32> = filled(values).into_iter().filter(filled_there).collect();
    let (one, other) = (Ranked::new(values, &pairs), Ranked::new(baseline, &pairs));
    let both = |counts: &[usize]| {
        let center = |ranked: &Ranked| ranked.center(how.statistic, counts);
        Some((center(&one)?, center(&other)?))
    };
    let (value, base) = both(&vec![1; pairs.len()])?;
    let mut comparison = Comparison {
        pairs: pairs.len(),
        ratio: ratio(value, base),
        interval: None,
        p: None,
        difference: value - base,
    };
    if pairs.len() >= FEWEST {
        let mut random = SplitMix::new(how.seed);
        let resample = |_| both(&draw(&mut random, pairs.len()));
        let drawn: Vec<(f64, f64)> = (0..how.resamples).filter_map(resample).collect();
        let ratios: Option<Vec<f64>> = drawn.iter().map(|(one, base)| ratio(*one, *base)).collect();
        comparison.interval = ratios.and_then(interval);
        let least = least_probability((values, baseline), &pairs, how.statistic);
        comparison.p = Some(two_sided(&drawn).max(least));
    }
    Some(comparison)
}

fn filled(values: &Clusters) -> Vec<u32> {
    let filled = values.iter().filter(|(_, values)| !values.is_empty());
    filled.map(|(repetition, _)| *repetition).collect()
}

fn ratio(value: f64, base: f64) -> Option<f64> {
    Some(value / base).filter(|ratio| ratio.is_finite())
}

fn interval(mut drawn: Vec<f64>) -> Option<Interval> {
    drawn.sort_by(f64::total_cmp);
    let at = |share| quantile_of_sorted(&drawn, share);
    Some(Interval {
        low: at(0.025)?,
        high: at(0.975)?,
    })
}

/// Twice the share of draws on the rarer side of "no difference"; draws without a difference count on both.
fn two_sided(drawn: &[(f64, f64)]) -> f64 {
    let below = drawn.iter().filter(|(one, base)| one <= base).count();
    let above = drawn.iter().filter(|(one, base)| one >= base).count();
    let rarer = (below.min(above) + 1) as f64;
    (2.0 * rarer / (drawn.len() + 1) as f64).min(1.0)
}

/// What so few repetitions can show at all, for resampling promises more: 2¹⁻ⁿ, the sign test of n pairs that all point one way; or
/// 2 / (2n over n), the rank test of Mann and Whitney, where every repetition of one lies beyond every one of the other.
fn least_probability(
    (one, other): (&Clusters, &Clusters),
    pairs: &[u32],
    statistic: Statistic,
) -> f64 {
    let centers = |values: &Clusters| -> Vec<f64> {
        let center = |repetition: &u32| Ranked::new(values, &[*repetition]).center(statistic, &[1]);
        pairs.iter().filter_map(center).collect()
    };
    let range = |centers: &[f64]| {
        let fold = |(low, high): (f64, f64), value: &f64| (low.min(*value), high.max(*value));
        centers
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), fold)
    };
    let (one, other) = (range(&centers(one)), range(&centers(other)));
    let n = pairs.len() as f64;
    if one.1 < other.0 || other.1 < one.0 {
        // 2n over n is the product of (n + i) / i, i = 1..n.
        let ways: f64 = (1..=pairs.len())
            .map(|i| (n + i as f64) / i as f64)
            .product();
        return 2.0 / ways;
    }
    2_f64.powf(1.0 - n)
}

/// All values in ascending order, each with the place of its repetition: a resample's median is then one walk.
struct Ranked(Vec<(f64, usize)>);

impl Ranked {
    fn new(values: &Clusters, repetitions: &[u32]) -> Self {
        let mut all = Vec::new();
        for (place, repetition) in repetitions.iter().enumerate() {
            let values = values.get(repetition).into_iter().flatten();
            all.extend(
                values
                    .filter(|value| !value.is_nan())
                    .map(|value| (*value, place)),
            );
        }
        all.sort_by(|one, other| one.0.total_cmp(&other.0));
        Self(all)
    }

    /// The statistic when each repetition is taken this many times.
    fn center(&self, statistic: Statistic, counts: &[usize]) -> Option<f64> {
        match statistic {
            Statistic::Median => self.quantile(0.5, counts),
            Statistic::Mean => self.mean(counts),
            Statistic::P95 => self.quantile(0.95, counts),
            Statistic::P99 => self.quantile(0.99, counts),
            Statistic::Tail => ratio(self.quantile(0.99, counts)?, self.quantile(0.5, counts)?),
        }
    }

    fn mean(&self, counts: &[usize]) -> Option<f64> {
        let weight = |place: usize| counts.get(place).copied().unwrap_or_default() as f64;
        let total: f64 = self.0.iter().map(|(_, place)| weight(*place)).sum();
        let sum = self.0.iter().map(|(value, place)| value * weight(*place));
        (total > 0.0).then(|| sum.sum::<f64>() / total)
    }

    /// The quantile at `share` (0..1), of type 7 as all of ours.
    fn quantile(&self, share: f64, counts: &[usize]) -> Option<f64> {
        let count = |place: usize| counts.get(place).copied().unwrap_or_default();
        let total: usize = self.0.iter().map(|(_, place)| count(*place)).sum();
        let (below, part) = place_of(share, total.checked_sub(1)?);
        let above = below + usize::from(part > 0.0);
        let (mut passed, mut low) = (0, None);
        for (value, place) in &self.0 {
            passed += count(*place);
            if low.is_none() && passed > below {
                low = Some(*value);
            }
            if passed > above {
                let low = low.unwrap_or(*value);
                return Some(if low == *value {
                    low
                } else {
                    low + part * (value - low)
                });
            }
        }
        low
    }
}

/// How often each of `count` is drawn in `count` draws with replacement.
fn draw(random: &mut SplitMix, count: usize) -> Vec<usize> {
    let mut counts = vec![0; count];
    for _ in 0..count {
        let place = random.below(count as u64);
        let place = usize::try_from(place).ok();
        if let Some(count) = place.and_then(|place| counts.get_mut(place)) {
            *count += 1;
        }
    }
    counts
}

// Many questions asked at once: their probabilities, corrected so that chance does not answer some of them.
// Holm, "A simple sequentially rejective multiple test procedure", 1979.

/// Holm's step-down correction: each probability as if it had been the only question asked.
#[must_use]
pub fn holm(probabilities: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    let at = |place: usize| probabilities.get(place).copied().unwrap_or(1.0);
    order.sort_by(|one, other| at(*one).total_cmp(&at(*other)));
    let mut corrected = vec![1.0; probabilities.len()];
    let mut highest = 0.0_f64;
    for (rank, place) in order.into_iter().enumerate() {
        let weight = (probabilities.len() - rank) as f64;
        highest = highest.max((at(place) * weight).min(1.0));
        if let Some(slot) = corrected.get_mut(place) {
            *slot = highest;
        }
    }
    corrected
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use hoplite_workload::splitmix::unit;

    fn resampling(seed: u64) -> Resampling {
        Resampling {
            statistic: Statistic::Median,
            seed,
            resamples: RESAMPLES,
        }
    }

    fn clusters(values: impl IntoIterator<Item = f64>) -> Clusters {
        (1..)
            .zip(values.into_iter().map(|value| vec![value]))
            .collect()
    }

    #[test]
    fn an_interval_holds_its_median_and_narrows_with_repetitions() {
        let few = clusters((0..10).map(|value| f64::from(value * 37 % 10)));
        let many = clusters((0..200).map(|value| f64::from(value * 37 % 10)));
        let few = confidence(&few, &resampling(1)).unwrap();
        let many = confidence(&many, &resampling(1)).unwrap();
        assert!(few.low <= 4.5 && 4.5 <= few.high, "{few:?}");
        assert!(
            many.high - many.low < few.high - few.low,
            "{few:?} {many:?}"
        );
    }

    #[test]
    fn the_interval_of_a_median_is_near_the_exact_one_of_order_statistics() {
        // For 1..=99 the exact 95 % interval is (x₄₀, x₆₀).
        let interval = confidence(&clusters((1..=99).map(f64::from)), &resampling(7)).unwrap();
        assert!((interval.low - 40.0).abs() <= 2.0, "{interval:?}");
        assert!((interval.high - 60.0).abs() <= 2.0, "{interval:?}");
    }

    #[test]
    fn the_interval_covers_the_true_median_about_as_often_as_it_says() {
        let mut random = SplitMix::new(5);
        let mut uniform = || unit(random.bits());
        let hits = (0..200).filter(|seed| {
            let values = clusters((0..25).map(|_| uniform()));
            let interval = confidence(&values, &resampling(*seed)).unwrap();
            interval.low <= 0.5 && 0.5 <= interval.high
        });
        let hits = hits.count();
        assert!((180..=200).contains(&hits), "{hits} of 200");
    }

    #[test]
    fn transfers_of_one_repetition_do_not_narrow_an_interval() {
        let single = clusters((0..10).map(f64::from));
        let tenfold = single
            .iter()
            .map(|(key, values)| (*key, values.repeat(10)))
            .collect();
        assert_eq!(
            confidence(&single, &resampling(3)),
            confidence(&tenfold, &resampling(3))
        );
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let values = clusters((0..20).map(|value| f64::from(value).sin()));
        assert_eq!(
            confidence(&values, &resampling(9)),
            confidence(&values, &resampling(9))
        );
        let draws = |seed| draw(&mut SplitMix::new(seed), 20);
        assert_ne!(draws(9), draws(10));
    }

    #[test]
    fn five_repetitions_allow_no_statement() {
        let values = clusters([1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(confidence(&values, &resampling(1)), None);
        let comparison = compare(&values, &values, &resampling(1)).unwrap();
        assert_eq!((comparison.ratio, comparison.p), (Some(1.0), None));
    }

    #[test]
    fn a_common_mood_of_the_machine_does_not_hide_a_difference() {
        // Values swing by a factor of ten, but one is always a tenth above the other.
        let base = clusters((0..20).map(|place| 1.0 + f64::from(place % 10)));
        let slower = base
            .iter()
            .map(|(key, values)| (*key, vec![values[0] * 1.1]))
            .collect();
        let comparison = compare(&slower, &base, &resampling(1)).unwrap();
        let interval = comparison.interval.unwrap();
        assert!((interval.low - 1.1).abs() < 1e-9 && (interval.high - 1.1).abs() < 1e-9);
        assert!(comparison.p.unwrap() < 0.01);
    }

    #[test]
    fn few_repetitions_show_no_more_than_an_exact_test_of_them() {
        // Six pairs that all point one way, their ranges overlapping: 2 of 64 ways.
        let base = clusters((1..=6).map(f64::from));
        let slower = clusters((1..=6).map(|value| f64::from(value) + 0.5));
        let p = compare(&slower, &base, &resampling(1)).unwrap().p.unwrap();
        assert!((p - 2.0 / 64.0).abs() < 1e-3, "{p}");
        // All of one beyond all of the other: 2 of 924 ways.
        let far = clusters((1..=6).map(|value| f64::from(value) + 50.0));
        let p = compare(&far, &base, &resampling(1)).unwrap().p.unwrap();
        assert!((p - 2.0 / 924.0).abs() < 1e-3, "{p}");
    }

    #[test]
    fn chance_is_called_a_difference_about_as_rarely_as_it_says() {
        let mut random = SplitMix::new(11);
        let mut uniform = || unit(random.bits());
        let mut claimed = 0;
        for seed in 0..200 {
            let one = clusters((0..8).map(|_| uniform()));
            let other = clusters((0..8).map(|_| uniform()));
            let how = Resampling {
                resamples: 400,
                ..resampling(seed)
            };
            let p = compare(&one, &other, &how).and_then(|comparison| comparison.p);
            claimed += usize::from(p.unwrap() <= 0.05);
        }
        assert!(claimed <= 20, "{claimed} of 200");
    }

    #[test]
    fn equal_subjects_show_no_difference() {
        let base = clusters((0..20).map(|place| f64::from(place * 7 % 20)));
        let other = clusters((0..20).map(|place| f64::from(place * 3 % 20)));
        let comparison = compare(&other, &base, &resampling(1)).unwrap();
        let interval = comparison.interval.unwrap();
        assert!(interval.low < 1.0 && 1.0 < interval.high, "{interval:?}");
        assert!(comparison.p.unwrap() > 0.2);
    }

    #[test]
    fn a_baseline_of_zero_has_no_ratio_but_a_difference() {
        let base = clusters([0.0; 10]);
        let comparison = compare(&clusters([0.5; 10]), &base, &resampling(1)).unwrap();
        assert_eq!((comparison.ratio, comparison.interval), (None, None));
        assert_eq!(comparison.difference, 0.5);
        assert!(comparison.p.unwrap() < 0.01);
    }

    #[test]
    fn what_happens_rarely_is_seen_by_the_mean_and_not_by_the_median() {
        let fails = clusters((0..40).map(|place| f64::from(u8::from(place % 4 == 0))));
        let never = clusters([0.0; 40]);
        assert_eq!(center(&fails, Statistic::Median), Some(0.0));
        assert_eq!(center(&fails, Statistic::Mean), Some(0.25));
        let mean = Resampling {
            statistic: Statistic::Mean,
            ..resampling(1)
        };
        assert!(compare(&fails, &never, &mean).unwrap().p.unwrap() < 0.01);
        assert!(compare(&fails, &never, &resampling(1)).unwrap().p.unwrap() > 0.5);
        // The exact binomial interval of 10 of 40 is 0.127 to 0.412.
        let interval = confidence(&fails, &mean).unwrap();
        assert!((interval.low - 0.127).abs() < 0.04 && (interval.high - 0.412).abs() < 0.04);
    }

    #[test]
    fn a_few_slow_ones_are_seen_by_the_tail_and_not_by_the_median() {
        let even = clusters((0..100).map(|place| 1.0 + f64::from(place) / 1000.0));
        let mut slow = even.clone();
        slow.insert(1, vec![9.0]);
        slow.insert(2, vec![9.0]);
        assert!(center(&even, Statistic::Tail).unwrap() < 1.1);
        assert!(center(&slow, Statistic::Tail).unwrap() > 3.0);
        assert!(center(&slow, Statistic::P95).unwrap() < 1.2);
        assert!(center(&slow, Statistic::Median).unwrap() < 1.1);
        assert_eq!(center(&clusters([0.0; 10]), Statistic::Tail), None);
    }

    #[test]
    fn a_statistic_is_known_by_every_word_that_scenarios_may_use() {
        let known = |word: &&str| Statistic::named(word).is_some();
        assert!(crate::experiments::scenario::STATISTICS.iter().all(known));
        assert_eq!(Statistic::named("mode"), None);
    }

    #[test]
    fn without_a_common_repetition_nothing_is_compared() {
        let one = [(1, vec![1.0])].into();
        let other = [(2, vec![1.0])].into();
        assert_eq!(compare(&one, &other, &resampling(1)), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn a_resample_of_everything_once_has_the_values_quantiles(
            values in prop::collection::vec(-1e3..1e3_f64, 1..40),
            share in 0.0..=1.0_f64,
        ) {
            let clusters = clusters(values.clone());
            let all: Vec<u32> = clusters.keys().copied().collect();
            let found = Ranked::new(&clusters, &all).quantile(share, &vec![1; values.len()]).unwrap();
            let expected = quantile(&values, share).unwrap();
            prop_assert!((found - expected).abs() < 1e-9);
        }

        #[test]
        fn an_interval_scales_with_its_values(
            values in prop::collection::vec(1.0..1e3_f64, 6..20),
            factor in 0.1..10.0_f64,
        ) {
            let one = confidence(&clusters(values.clone()), &resampling(4)).unwrap();
            let scaled = clusters(values.iter().map(|value| value * factor));
            let other = confidence(&scaled, &resampling(4)).unwrap();
            prop_assert!((one.low * factor - other.low).abs() < 1e-6);
            prop_assert!((one.high * factor - other.high).abs() < 1e-6);
        }
    }

    #[test]
    fn holm_multiplies_the_smallest_most_and_keeps_the_order() {
        // R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")
        let corrected = holm(&[0.01, 0.04, 0.03, 0.005]);
        let expected = [0.03, 0.06, 0.06, 0.02];
        for (one, other) in corrected.iter().zip(expected) {
            assert!((one - other).abs() < 1e-12, "{corrected:?}");
        }
        assert_eq!(holm(&[]), Vec::<f64>::new());
    }

    proptest! {
        #[test]
        fn corrected_probabilities_only_grow(
            probabilities in prop::collection::vec(0.0..1.0_f64, 0..20),
        ) {
            for (one, other) in probabilities.iter().zip(holm(&probabilities)) {
                prop_assert!(*one <= other && other <= 1.0);
            }
        }
    }
}
