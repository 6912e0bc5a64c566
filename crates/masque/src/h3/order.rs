//! Keeps a flow's payloads in order while some of them go as capsules. A frame overtakes what waits on the request stream, and a packet that
//! three others have overtaken is lost to the QUIC inside (RFC 9002 §6.1.1), which then leaves slow start with a window of a few packets.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// When a flow's last payload was too large for a frame.
#[derive(Debug)]
pub(super) struct Order {
    born: Instant,
    /// Microseconds after `born`; 0: there was none lately.
    last: AtomicU64,
}

impl Order {
    pub(super) fn new() -> Self {
        Self {
            born: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    /// A payload goes as a capsule because no frame holds it.
    pub(super) fn capsule(&self) {
        self.last.store(self.now().max(1), Ordering::Relaxed);
    }

    /// Whether a frame could overtake such a capsule: for a round trip after it.
    pub(super) fn holds(&self, round_trip: impl FnOnce() -> Duration) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        if last == 0 {
            return false;
        }
        let for_now = u64::try_from(round_trip().as_micros()).unwrap_or(u64::MAX);
        let holds = self.now() < last.saturating_add(for_now);
        if !holds {
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

#[cfg(test)]
mod tests {
    use super::*;

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
