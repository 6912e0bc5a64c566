//! SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): a small generator for what must come out
//! the same on every machine, and under the same seed as long as stored campaigns are read.
//!
//! It is not `rand_xoshiro`'s: the payloads and the order of a campaign need the mixing function alone, as a hash, which is all of it but a line.

/// The golden ratio in 64 bits: how far the counter goes at each step.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A counter whose steps are mixed.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// From a seed; any will do.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The counter: what another generator is seeded with.
    pub const fn state(&self) -> u64 {
        self.0
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Seeds it anew by the bytes of names: other names lead to another stream.
    pub fn absorb(&mut self, bytes: impl IntoIterator<Item = u8>) {
        for byte in bytes {
            self.absorb_number(byte.into());
        }
    }

    /// Seeds it anew by a number.
    pub fn absorb_number(&mut self, number: u64) {
        self.0 ^= number;
        self.0 = self.bits();
    }

    /// Evenly in `0..bound`, 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        below(self.bits(), bound)
    }
}

/// Spreads the bits of a counter.
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Bits brought into `0..bound`: the high half of their product, even but for a bias of `bound` / 2⁶⁴.
pub fn below(bits: u64, bound: u64) -> u64 {
    let wide = u128::from(bits) * u128::from(bound);
    u64::try_from(wide >> 64).unwrap_or(0)
}

/// Bits brought into `0..1`: the highest 53, which a float holds exactly.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
pub fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        // The first numbers of Sebastiano Vigna's splitmix64.c for the seed 1234567.
        let mut random = SplitMix::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.bits()).collect();
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(first, expected);
    }

    #[test]
    fn bits_stay_in_their_bounds() {
        assert_eq!((below(0, 7), below(u64::MAX, 7), below(5, 0)), (0, 6, 0));
        assert_eq!(unit(0), 0.0);
        assert!(unit(u64::MAX) < 1.0);
    }
}
