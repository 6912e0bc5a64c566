//! What seeds decide: the seed of a trial, and in which order trials are run. The same on every machine and in every version:
//! SHA-256 of the scenario's seed and a path of names.

use std::collections::BTreeMap;

use ring::digest;

use crate::splitmix::SplitMix;

/// A seed that depends on all parts. Below 2^53, so that every tool reads it exactly from JSON.
pub(crate) fn seed(seed: u64, path: &[&str]) -> u64 {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&seed.to_be_bytes());
    for name in path {
        context.update(&(name.len() as u64).to_be_bytes());
        context.update(name.as_bytes());
    }
    let hash = context.finish();
    let octets = hash.as_ref().iter().take(8);
    octets.fold(0, |number, octet| (number << 8) | u64::from(*octet)) >> 11
}

/// A case as one text.
pub(crate) fn named(case: &BTreeMap<String, String>) -> String {
    serde_json::to_string(case).unwrap_or_default()
}

/// Fisher and Yates, with numbers of `SplitMix64`.
pub(crate) fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut random = SplitMix::new(seed);
    for last in (1..items.len()).rev() {
        let bound = last as u64 + 1;
        let pick = usize::try_from(random.below(bound)).unwrap_or(last);
        items.swap(last, pick);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_everything_and_depends_on_its_seed() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..50).collect();
            shuffle(&mut items, seed);
            items
        };
        assert_eq!(shuffled(1), shuffled(1));
        assert_ne!(shuffled(1), shuffled(2));
        let mut sorted = shuffled(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<u32>>());
    }

    #[test]
    fn every_place_is_as_likely_as_another() {
        let mut first = [0_u32; 5];
        for seed in 0..5000 {
            let mut items = [0, 1, 2, 3, 4];
            shuffle(&mut items, seed);
            first[items[0]] += 1;
        }
        assert!(
            first.iter().all(|count| (850..1150).contains(count)),
            "{first:?}"
        );
    }

    #[test]
    fn seeds_tell_paths_apart_and_stay_exact_in_json() {
        assert_ne!(seed(1, &["a", "bc"]), seed(1, &["ab", "c"]));
        assert_ne!(seed(1, &["a"]), seed(2, &["a"]));
        assert_eq!(seed(1, &["order", "1"]), seed(1, &["order", "1"]));
        assert!((0..100).all(|i| seed(i, &[]) < 1 << 53));
    }
}
