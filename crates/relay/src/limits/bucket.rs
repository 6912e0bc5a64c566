//! A token bucket for bandwidth, one atomic word: the time at which everything spent so far will be paid.
//! The quotas have one for each client and one for all. The generic cell rate algorithm (ITU-T I.371, annex A).

use std::{
    num::NonZeroU64,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// What may pass at once after silence, in nanoseconds at the configured rate.
const BURST: u64 = 100_000_000;
/// The same for things that come in crowds, as the names of a page do.
const CROWD: u64 = 1_000_000_000;

/// Gives out bandwidth.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// In bit/s; 0 gives without limit.
    rate: AtomicU64,
    burst: u64,
    /// Nanoseconds from `since` until all is paid.
    paid: AtomicU64,
    since: Instant,
}

impl Bucket {
    /// A full bucket for `rate` bit/s; 0 is no limit.
    pub(crate) fn bits_per_second(rate: u64) -> Self {
        Self {
            rate: AtomicU64::new(rate),
            burst: BURST,
            paid: AtomicU64::new(0),
            since: Instant::now(),
        }
    }

    /// A full bucket for this many things a second, each of which counts as a byte; 0 is no limit.
    pub(crate) fn per_second(rate: u32) -> Self {
        Self {
            burst: CROWD,
            ..Self::bits_per_second(u64::from(rate) * 8)
        }
    }

    /// Gives without limit.
    pub(crate) fn unlimited() -> Self {
        Self::bits_per_second(0)
    }

    /// Gives out so many bit/s from now on; 0 is no limit. What was spent stays spent.
    pub(crate) fn set_bits_per_second(&self, rate: u64) {
        self.rate.store(rate, Ordering::Relaxed);
    }

    /// Gives out so many things a second from now on; 0 is no limit.
    pub(crate) fn set_per_second(&self, rate: u32) {
        self.set_bits_per_second(u64::from(rate) * 8);
    }

    /// Whether it gives out no more than a rate.
    pub(crate) fn is_limited(&self) -> bool {
        self.rate().is_some()
    }

    /// Takes `bytes` if there is room for them.
    pub(crate) fn admits(&self, bytes: usize) -> bool {
        let Some(rate) = self.rate() else {
            return true;
        };
        let (now, cost) = (self.now(), cost(bytes, rate));
        let room = |paid: u64| {
            let after = paid.max(now).saturating_add(cost);
            (paid <= now.saturating_add(self.burst)).then_some(after)
        };
        let result = self
            .paid
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        result.is_ok()
    }

    /// Takes `bytes` in any case, and says how long to wait before the next.
    pub(crate) fn spend(&self, bytes: usize) -> Duration {
        let Some(rate) = self.rate() else {
            return Duration::ZERO;
        };
        let (now, cost) = (self.now(), cost(bytes, rate));
        let after = |paid: u64| Some(paid.max(now).saturating_add(cost));
        let before = self
            .paid
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, after)
            .unwrap_or(now);
        let debt = before.max(now).saturating_add(cost) - now;
        Duration::from_nanos(debt.saturating_sub(self.burst))
    }

    /// Whether something is still to be paid.
    pub(crate) fn is_in_debt(&self) -> bool {
        self.is_limited() && self.paid.load(Ordering::Relaxed) > self.now()
    }

    fn rate(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.rate.load(Ordering::Relaxed))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The time that `bytes` take, in nanoseconds.
fn cost(bytes: usize, rate: NonZeroU64) -> u64 {
    let bits = bytes as u128 * 8 * 1_000_000_000;
    u64::try_from(bits / u128::from(rate.get())).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn datagrams_pass_at_the_configured_rate() {
        let bucket = Bucket::bits_per_second(8_000_000);
        let mut passed = 0;
        for _ in 0..2000 {
            tokio::time::advance(Duration::from_millis(1)).await;
            passed += (0..5).filter(|_| bucket.admits(1000)).count();
        }
        assert!((2000..=2110).contains(&passed), "{passed}");
    }

    #[tokio::test(start_paused = true)]
    async fn streams_wait_until_their_debt_is_paid() {
        let bucket = Bucket::bits_per_second(8_000);
        assert_eq!(bucket.spend(100), Duration::ZERO);
        assert_eq!(bucket.spend(1000), Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(bucket.spend(1000), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn things_pass_in_a_crowd_and_then_at_their_rate() {
        let bucket = Bucket::per_second(100);
        let crowd = (0..1000).filter(|_| bucket.admits(1)).count();
        assert!((100..=101).contains(&crowd), "{crowd}");
        tokio::time::advance(Duration::from_millis(500)).await;
        let more = (0..1000).filter(|_| bucket.admits(1)).count();
        assert!((49..=51).contains(&more), "{more}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rate_everything_passes() {
        let bucket = Bucket::unlimited();
        assert!(bucket.admits(usize::MAX) && bucket.spend(usize::MAX).is_zero());
        assert!(!bucket.is_in_debt());
    }
}
