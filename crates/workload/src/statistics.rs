//! Quantiles and the empirical distribution. Quantiles are of type 7 (Hyndman and Fan, 1996), the default of R and NumPy.

/// The values that are numbers, in ascending order.
#[must_use]
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let numbers = values.iter().copied().filter(|value| !value.is_nan());
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The quantile at `share` (0..1) of values in any order; `None` of nothing.
#[must_use]
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    quantile_of_sorted(&sorted(values), share)
}

/// The quantile at `share` (0..1) of ascending values; `None` of nothing.
#[must_use]
pub fn quantile_of_sorted(sorted: &[f64], share: f64) -> Option<f64> {
    let (below, part) = place_of(share, sorted.len().checked_sub(1)?);
    let low = *sorted.get(below)?;
    let high = *sorted.get(below + 1).unwrap_or(&low);
    // Two infinities of one sign have no difference, and 0 × ∞ is no number.
    let between = part > 0.0 && low != high;
    Some(if between {
        low + part * (high - low)
    } else {
        low
    })
}

/// Where the quantile at `share` lies among ascending values of which the last has the place `last`: the place below it, and how far it is
/// from there to the next.
#[must_use]
pub fn place_of(share: f64, last: usize) -> (usize, f64) {
    let place = share.clamp(0.0, 1.0) * last as f64;
    let below = floor(place).min(last);
    (below, place - below as f64)
}

/// The middle value.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The empirical distribution: each distinct value with the share of values that are not above it.
#[must_use]
pub fn ecdf(values: &[f64]) -> Vec<(f64, f64)> {
    let sorted = sorted(values);
    let count = sorted.len() as f64;
    let mut steps: Vec<(f64, f64)> = Vec::new();
    for (place, value) in sorted.iter().enumerate() {
        let share = (place + 1) as f64 / count;
        match steps.last_mut() {
            Some(step) if step.0 == *value => step.1 = share,
            _ => steps.push((*value, share)),
        }
    }
    steps
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place in a slice: not negative, and smaller than its length"
)]
fn floor(place: f64) -> usize {
    place as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantiles_agree_with_r_type_7() {
        // R: quantile(c(2, 4, 4, 5, 7, 9), c(0, .1, .25, .5, .75, .95, 1))
        let values = [9.0, 4.0, 2.0, 5.0, 7.0, 4.0];
        let expected = [2.0, 3.0, 4.0, 4.5, 6.5, 8.5, 9.0];
        for (share, value) in [0.0, 0.1, 0.25, 0.5, 0.75, 0.95, 1.0].iter().zip(expected) {
            assert_eq!(quantile(&values, *share), Some(value), "at {share}");
        }
    }

    #[test]
    fn nothing_has_no_quantile_and_one_value_is_all_of_its_quantiles() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[f64::NAN]), None);
        assert_eq!(quantile(&[3.0], 0.95), Some(3.0));
    }

    #[test]
    fn infinities_stay_infinite_and_never_become_no_number() {
        let values = [1.0, f64::INFINITY, f64::INFINITY];
        assert_eq!(quantile(&values, 0.9), Some(f64::INFINITY));
        assert_eq!(quantile(&values, 0.0), Some(1.0));
    }

    #[test]
    fn a_distribution_climbs_to_one_in_steps_of_distinct_values() {
        let steps = ecdf(&[2.0, 1.0, 2.0, 4.0]);
        assert_eq!(steps, [(1.0, 0.25), (2.0, 0.75), (4.0, 1.0)]);
    }

    proptest! {
        #[test]
        fn a_quantile_lies_within_the_values_and_grows_with_its_share(
            values in prop::collection::vec(-1e6..1e6_f64, 1..50),
            one in 0.0..1.0_f64,
            other in 0.0..1.0_f64,
        ) {
            let (low, high) = (one.min(other), one.max(other));
            let (low, high) = (quantile(&values, low).unwrap(), quantile(&values, high).unwrap());
            prop_assert!(low <= high + 1e-9);
            let sorted = sorted(&values);
            prop_assert!(sorted[0] <= low && high <= sorted[sorted.len() - 1]);
        }
    }
}
