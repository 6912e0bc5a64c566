//! What clients draw: tokens, seeds of payloads, times of schedules.
//! Clients draw from one stream for each transfer, so that one more transfer changes none of the others.

use crate::splitmix::{SplitMix, unit};

/// One stream.
#[derive(Clone, Debug)]
pub(crate) struct Random(SplitMix);

impl Random {
    /// The stream of `number` in the workload `name` of a repetition.
    pub(crate) fn stream(seed: u64, name: &str, number: u64) -> Self {
        let mut random = SplitMix::new(seed);
        random.absorb(name.bytes());
        random.absorb_number(number);
        Self(random)
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0.bits()
    }

    /// Evenly in 0..1.
    pub(crate) fn share(&mut self) -> f64 {
        unit(self.next())
    }
}
