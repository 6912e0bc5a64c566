//! Many questions asked at once: their probabilities, corrected so that chance does not answer some of them. Used by `report`.
//! Holm, "A simple sequentially rejective multiple test procedure", 1979.

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
