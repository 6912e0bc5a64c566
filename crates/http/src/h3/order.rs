//! Keeps a flow's payloads in order while some of them go as capsules. A frame overtakes what waits on the request stream, and a packet that
//! three others have overtaken is lost to the QUIC inside (RFC 9002 §6.1.1), which then leaves slow start with a window of a few packets.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// When a flow's payloads last went as capsules.
#[derive(Debug)]
pub(super) struct Order {
    born: Instant,
    /// When the last one did that was too large for a frame, in microseconds after `born`; 0: there was none lately.
    last: AtomicU64,
    /// The same of the last one of any size.
    sent: AtomicU64,
}

impl Order {
    pub(super) fn new() -> Self {
        Self {
            born: Instant::now(),
            last: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }
    }

    /// A payload goes as a capsule, for whatever reason.
    pub(super) fn sent(&self) {
        self.sent.store(self.now().max(1), Ordering::Relaxed);
    }

    /// Whether one that QUIC has taken could still wait there, behind its congestion window: for a round trip. While they go on and on, those
    /// from before whoever asks began to wait, `waited` ago, count alone: the others follow each other as they were sent.
    pub(super) fn waits(&self, waited: Duration, round_trip: impl FnOnce() -> Duration) -> bool {
        let waited = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        let began = self.now().saturating_sub(waited).max(1);
        let last = self.sent.load(Ordering::Relaxed).min(began);
        within(last, round_trip, || self.now())
    }

    /// A payload goes as a capsule because no frame holds it.
    pub(super) fn capsule(&self) {
        self.last.store(self.now().max(1), Ordering::Relaxed);
    }

    /// Whether a frame could overtake such a capsule: for a round trip after it.
    pub(super) fn holds(&self, round_trip: impl FnOnce() -> Duration) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        let holds = within(last, round_trip, || self.now());
        if !holds && last != 0 {
            // Unless another capsule has gone meanwhile.
            let relaxed = Ordering::Relaxed;
            self.last.compare_exchange(last, 0, relaxed, relaxed).ok();
        }
        holds
    }

    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// Whether it is less than a round trip since `last`, if that ever was.
fn within(last: u64, round_trip: impl FnOnce() -> Duration, now: impl FnOnce() -> u64) -> bool {
    let long = || u64::try_from(round_trip().as_micros()).unwrap_or(u64::MAX);
    last != 0 && now() < last.saturating_add(long())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_capsule_of_any_size_may_wait_for_a_round_trip() {
        let order = Order::new();
        let [none, long] = [0, 200].map(Duration::from_millis);
        let waits = |waited| order.waits(waited, || Duration::from_millis(100));
        tokio::time::advance(long).await;
        assert!(!waits(none));
        order.sent();
        assert!(!order.holds(|| Duration::from_millis(100)), "for frames");
        tokio::time::advance(Duration::from_millis(99)).await;
        assert!(waits(none) && waits(Duration::from_millis(99)));
        assert!(!waits(long), "of those that go on and on");
        tokio::time::advance(Duration::from_millis(2)).await;
        assert!(!waits(none));
    }

    #[tokio::test(start_paused = true)]
    async fn frames_stay_behind_a_capsule_for_a_round_trip() {
        let order = Order::new();
        let holds = || order.holds(|| Duration::from_millis(100));
        assert!(!holds());
        order.capsule();
        tokio::time::advance(Duration::from_millis(99)).await;
        assert!(holds());
        order.capsule();
        tokio::time::advance(Duration::from_millis(99)).await;
        assert!(holds());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!holds());
    }
}
