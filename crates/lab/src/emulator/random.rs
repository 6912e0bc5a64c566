//! The emulator's own random numbers: the same on every machine, and independent for each link, direction and purpose.
//! Loss, jitter, duplication and corruption of every direction draw from one each.
//! xoshiro256** (Blackman and Vigna, 2018), seeded by SplitMix64. No function of the platform's mathematical library is used.

use crate::splitmix::{self, SplitMix};

/// One stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// The stream of `purpose` on a direction (`LINK>` or `LINK<`). Nothing else in the network has an influence on it.
    #[must_use]
    pub fn new(seed: u64, direction: &str, purpose: &str) -> Self {
        let mut seeds = SplitMix::new(seed);
        seeds.absorb([direction, "\0", purpose].iter().flat_map(|t| t.bytes()));
        Self([(); 4].map(|()| seeds.bits()))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let Self([a, b, c, d]) = self;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// Evenly in `0..1`, with 53 bits.
    pub fn unit(&mut self) -> f64 {
        splitmix::unit(self.bits())
    }

    /// Evenly in `0..bound`, 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        splitmix::below(self.bits(), bound)
    }

    /// True with this probability.
    pub fn happens(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// True with the probability e^-x, by comparisons alone (von Neumann 1951).
    pub fn happens_exp(&mut self, mut x: f64) -> bool {
        while x > 1.0 {
            if !self.happens_exp_small(1.0) {
                return false;
            }
            x -= 1.0;
        }
        self.happens_exp_small(x)
    }

    /// The same for x in 0..=1: the length of the run of u1 ≤ x, u2 ≤ x/2, u3 ≤ x/3, … is even.
    fn happens_exp_small(&mut self, x: f64) -> bool {
        let mut divisor = 1.0;
        let mut even = true;
        while self.happens(x / divisor) {
            divisor += 1.0;
            even = !even;
        }
        even
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(seed: u64, direction: &str, purpose: &str) -> Vec<u64> {
        let mut random = Random::new(seed, direction, purpose);
        (0..4).map(|_| random.bits()).collect()
    }

    #[test]
    fn the_generator_is_xoshiro256_starstar() {
        let mut random = Random([1, 2, 3, 4]);
        let first: Vec<u64> = (0..4).map(|_| random.bits()).collect();
        assert_eq!(first, [11520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn a_stream_depends_on_seed_direction_and_purpose_and_on_nothing_else() {
        assert_eq!(draw(7, "a-b>", "loss"), draw(7, "a-b>", "loss"));
        let others = [
            draw(7, "a-b>", "loss"),
            draw(8, "a-b>", "loss"),
            draw(7, "a-b<", "loss"),
            draw(7, "a-b>", "jitter"),
            draw(7, "a-b", ">loss"),
        ];
        let distinct: std::collections::BTreeSet<_> = others.iter().collect();
        assert_eq!(distinct.len(), others.len());
    }

    #[test]
    fn probabilities_are_kept() {
        let mut random = Random::new(1, "x", "y");
        let mut share = |f: &mut dyn FnMut(&mut Random) -> bool| {
            (0..200_000).filter(|_| f(&mut random)).count() as f64 / 200_000.0
        };
        assert!((share(&mut |r| r.happens(0.3)) - 0.3).abs() < 0.005);
        for x in [0.0, 0.2, 1.0, 2.5] {
            let share = share(&mut |r| r.happens_exp(x));
            assert!((share - (-x).exp()).abs() < 0.005, "e^-{x}: {share}");
        }
    }
}
