//! A small seeded generator: tokens, seeds of payloads, draws of schedules. Sebastiano Vigna's SplitMix64.
//! Clients draw from one stream for each transfer, so that one more transfer changes none of the others.

/// The generator.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The stream of `number` in the workload `name` of a repetition.
    pub(crate) fn stream(seed: u64, name: &str, number: u64) -> Self {
        let mut state = Self(seed);
        for octet in name.bytes() {
            state.0 ^= u64::from(octet);
            state.0 = state.next();
        }
        state.0 ^= number;
        state.0 = state.next();
        state
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Evenly in 0..1.
    pub(crate) fn share(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let numerator = (self.next() >> 11) as f64;
        numerator / 9_007_199_254_740_992.0
    }
}

/// Spreads the bits of a counter.
pub(crate) fn mix(value: u64) -> u64 {
    let z = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
