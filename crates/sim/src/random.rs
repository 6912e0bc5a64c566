//! Numbers that are drawn from a seed, each purpose from a stream of its own: what is drawn more of in one leaves the others alone.
//! SplitMix64 (Steele, Lea and Flood).

use std::{cell::RefCell, time::Duration};

use hoplite_onion::Randomness;

/// One stream of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// The stream for `purpose` of whoever has this number.
    pub fn new(seed: u64, purpose: &str, number: usize) -> Self {
        let mut random = Self(seed);
        for byte in purpose.bytes().chain(number.to_le_bytes()) {
            random.0 = random.draw() ^ u64::from(byte);
        }
        random
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.draw()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// From 0 to below 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Whether something of this probability happens.
    pub fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() < probability
    }

    /// A time that is exponentially distributed.
    pub fn pause(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.unit()).ln())
    }

    /// A time below `most`.
    pub fn within(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.unit())
    }

    /// 32 bytes, for what wants a seed of its own.
    pub fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        self.fill(&mut bytes);
        bytes
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for eight in bytes.chunks_mut(8) {
            for (byte, drawn) in eight.iter_mut().zip(self.draw().to_le_bytes()) {
                *byte = drawn;
            }
        }
    }
}

thread_local! {
    /// A run has a thread of its own.
    static OF_CELLS: RefCell<Random> = RefCell::new(Random::new(0, "cells", 0));
}

/// What cells of circuits draw from: which of them leave room moves what comes after them.
pub const CELLS: Randomness =
    Randomness(|bytes| OF_CELLS.with_borrow_mut(|random| random.fill(bytes)));

/// Has [`CELLS`] draw from `seed` from now on, on this thread.
pub fn seed_cells(seed: u64) {
    OF_CELLS.set(Random::new(seed, "cells", 0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_and_another_purpose_others() {
        let draw = |seed, purpose, number| Random::new(seed, purpose, number).bytes();
        assert_eq!(draw(1, "places", 7), draw(1, "places", 7));
        assert_ne!(draw(1, "places", 7), draw(2, "places", 7));
        assert_ne!(draw(1, "places", 7), draw(1, "pauses", 7));
        assert_ne!(draw(1, "places", 7), draw(1, "places", 8));
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_all_of_it() {
        let mut random = Random::new(1, "test", 0);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            let drawn = usize::try_from(random.below(10)).expect("small");
            seen[drawn] = true;
        }
        assert_eq!(seen, [true; 10]);
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn pauses_have_the_mean_that_was_asked_for() {
        let mut random = Random::new(1, "test", 0);
        let mean = Duration::from_secs(60);
        let sum: Duration = (0..10_000).map(|_| random.pause(mean)).sum();
        let ratio = sum.as_secs_f64() / 10_000.0 / 60.0;
        assert!((0.95..1.05).contains(&ratio), "{ratio}");
    }
}
