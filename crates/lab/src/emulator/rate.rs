//! How fast a direction takes packets from its queue: at once, at a rate, or by a trace. `link` owns one.

use super::trace::Opportunities;

const NANOSECONDS: u64 = 1_000_000_000;

/// The bottleneck of one direction.
#[derive(Clone, Debug)]
pub enum Bottleneck {
    /// Every packet passes at once.
    Unlimited,
    /// A constant rate.
    Rate(Rate),
    /// Delivery opportunities.
    Trace(Opportunities),
}

/// A constant rate, exact: fractions of a nanosecond are carried on, and the bottleneck is free at `free + rest / rate` ns.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Bits per second, not 0.
    rate: u64,
    free: u64,
    rest: u64,
}

impl Rate {
    /// A free bottleneck of so many bits per second; of one at least.
    #[must_use]
    pub fn new(rate: u64) -> Self {
        Self {
            rate: rate.max(1),
            free: 0,
            rest: 0,
        }
    }

    /// The first whole nanosecond at which it is free.
    fn free(&self) -> u64 {
        self.free.saturating_add(u64::from(self.rest > 0))
    }

    fn serve(&mut self, start: u64, size: u64) -> u64 {
        if start > self.free() {
            (self.free, self.rest) = (start, 0);
        }
        let work = u128::from(size) * 8 * u128::from(NANOSECONDS) + u128::from(self.rest);
        let whole = u64::try_from(work / u128::from(self.rate)).unwrap_or(u64::MAX);
        self.free = self.free.saturating_add(whole);
        self.rest = u64::try_from(work % u128::from(self.rate)).unwrap_or(0);
        self.free()
    }
}

impl Bottleneck {
    /// When a packet that waits since `since` can begin to be served.
    #[must_use]
    pub fn ready(&self, since: u64) -> u64 {
        match self {
            Self::Unlimited => since,
            Self::Rate(rate) => rate.free().max(since),
            Self::Trace(trace) => trace.ready(since),
        }
    }

    /// Serves `size` octets from `start` on, which [`Self::ready`] gave; says when the last one has passed.
    pub fn serve(&mut self, start: u64, size: u64) -> u64 {
        match self {
            Self::Unlimited => start,
            Self::Rate(rate) => rate.serve(start, size),
            Self::Trace(trace) => trace.serve(start, size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_of_a_nanosecond_do_not_get_lost() {
        let mut rate = Bottleneck::Rate(Rate::new(3_000_000_007));
        let last = (0..1_000_000).fold(0, |since, _| {
            let start = rate.ready(0);
            assert!(start >= since);
            rate.serve(start, 1500)
        });
        let exact = (1_000_000 * 1500 * 8_000_000_000_u128).div_ceil(3_000_000_007);
        assert_eq!(u128::from(last), exact);
    }

    #[test]
    fn an_idle_bottleneck_saves_nothing_up() {
        let mut rate = Bottleneck::Rate(Rate::new(8_000));
        assert_eq!(rate.serve(0, 1), 1_000_000);
        assert_eq!(rate.ready(5_000_000), 5_000_000);
        assert_eq!(rate.serve(5_000_000, 1), 6_000_000);
        assert_eq!(rate.ready(5_500_000), 6_000_000);
    }
}
