//! The shared random value of a run: what authorities commit to and reveal, and what comes of all of it. srv-spec, "Computing commitments and
//! reveals", "Shared Randomness Calculation".
//!
//! An authority's reveal value is made of its secret key and the time of the vote that shows it, so that it is the same after a restart, and
//! nobody without the key can tell it before.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

use crate::{SigningKey, onion::service_keys::sha3_256};

/// What is signed to make a reveal value. The signature stays here: who has it can do nothing but tell the value.
const REVEAL: &[u8] = b"hoplite-shared-random 1\nreveal ";
/// srv-spec's "VERSION": version 1 is Tor's, by commitments of another form.
const VERSION: u32 = 2;

/// The value that this authority reveals in its vote for the list that begins at `valid_after` (seconds since 1970), and commits to before.
pub fn reveal(key: &SigningKey, valid_after: u64) -> [u8; 32] {
    let signed = Zeroizing::new(key.sign(&[REVEAL, &valid_after.to_be_bytes()].concat()));
    sha3_256(&[signed.as_slice()])
}

/// The commitment to a reveal value.
pub fn commitment(reveal: &[u8; 32]) -> [u8; 32] {
    sha3_256(&[reveal])
}

/// The value that these reveal values make, by the authorities' keys, with the value of the run before if there is one:
/// `SHA3-256("shared-random" | INT_8(count) | INT_4(version) | SHA3-256(ID_a | R_a | ID_b | R_b | …) | previous)`, in the order of the keys.
pub fn shared_random_value(
    reveals: &BTreeMap<[u8; 32], [u8; 32]>,
    previous: Option<&[u8; 32]>,
) -> [u8; 32] {
    let pairs = reveals
        .iter()
        .flat_map(|(key, reveal)| [key.as_slice(), reveal]);
    let hashed = sha3_256(&pairs.collect::<Vec<_>>());
    let count = u64::try_from(reveals.len()).unwrap_or(u64::MAX);
    sha3_256(&[
        b"shared-random",
        &count.to_be_bytes(),
        &VERSION.to_be_bytes(),
        &hashed,
        previous.unwrap_or(&[0; 32]),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> SigningKey {
        SigningKey::from_seed(Zeroizing::new([n; 32])).expect("a key")
    }

    #[test]
    fn a_reveal_value_is_the_same_again_and_another_at_another_time_or_of_another_authority() {
        assert_eq!(reveal(&key(1), 3600), reveal(&key(1), 3600));
        assert_ne!(reveal(&key(1), 3600), reveal(&key(1), 7200));
        assert_ne!(reveal(&key(1), 3600), reveal(&key(2), 3600));
        assert_ne!(commitment(&reveal(&key(1), 3600)), reveal(&key(1), 3600));
    }

    #[test]
    fn the_value_is_that_of_the_formula_and_depends_on_every_part() {
        let (a, b) = (([1; 32], [11; 32]), ([2; 32], [12; 32]));
        let both = BTreeMap::from([a, b]);
        let hashed = sha3_256(&[&[1; 32], &[11; 32], &[2; 32], &[12; 32]]);
        let count = [0, 0, 0, 0, 0, 0, 0, 2];
        let by_hand = [
            b"shared-random".as_slice(),
            &count,
            &[0, 0, 0, 2],
            &hashed,
            &[9; 32],
        ];
        let value = shared_random_value(&both, Some(&[9; 32]));
        assert_eq!(value, sha3_256(&[&by_hand.concat()]));
        let others = [
            shared_random_value(&both, None),
            shared_random_value(&BTreeMap::from([a]), Some(&[9; 32])),
            shared_random_value(&BTreeMap::from([a, ([2; 32], [13; 32])]), Some(&[9; 32])),
            shared_random_value(&BTreeMap::from([a, ([3; 32], [12; 32])]), Some(&[9; 32])),
        ];
        assert!(others.iter().all(|other| *other != value));
    }
}
