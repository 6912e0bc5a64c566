//! How much a server may send on one stream ahead of who reads it: little at first, and twice as much whenever a stream has moved a quarter of it in each of
//! two round trips. One setting is for all streams (SETTINGS_INITIAL_WINDOW_SIZE, RFC 9113 §6.5.2), so that it follows the swiftest; a change moves the windows
//! of streams that are open, too (§6.9.2). It does not get narrower: what all streams may have sent is bounded by the connection's window.
//!
//! A server's own does not grow: nothing says there that streams wait for one that nobody reads, and its clients would choose how much that one keeps.
//!
//! The shortest round trip of a PING counts: behind a queue that the connection fills itself a wider window would only fill it more.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use hoplite_quic::Lately;
use tokio::{sync::Notify, time::Instant};

use super::LARGEST_WINDOW;

/// A window that moves as fast as with a round trip of this is not too wide on any path.
const LEAST_ROUND_TRIP: Duration = Duration::from_millis(1);

/// The window of each stream of one connection.
#[derive(Debug)]
pub(super) struct StreamWindow {
    now: AtomicU32,
    most: u32,
    /// The shortest, in microseconds; the largest number while none is known.
    round_trip: AtomicU64,
    too_narrow: Notify,
}

impl StreamWindow {
    /// At first and at most, in bytes.
    pub(super) fn new(first: u32, most: u32) -> Arc<Self> {
        let most = most.min(LARGEST_WINDOW);
        Arc::new(Self {
            now: AtomicU32::new(first),
            most,
            round_trip: AtomicU64::new(u64::MAX),
            too_narrow: Notify::new(),
        })
    }

    /// As it is now, in bytes.
    fn bytes(&self) -> u32 {
        self.now.load(Relaxed)
    }

    /// The shortest round trip, once one is known.
    fn round_trip(&self) -> Option<Duration> {
        let shortest = self.round_trip.load(Relaxed);
        (shortest != u64::MAX).then(|| Duration::from_micros(shortest))
    }

    /// A PING was answered after so long.
    pub(super) fn answered(&self, after: Duration) {
        let micros = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        self.round_trip.fetch_min(micros, Relaxed);
    }

    /// Resolves when a stream would move more.
    pub(super) async fn too_narrow(&self) {
        self.too_narrow.notified().await;
    }

    /// Doubles it by `set`. While the peer has not acknowledged the last change that fails, and streams say again that it is too narrow.
    pub(super) fn widen<E>(&self, set: impl FnOnce(u32) -> Result<(), E>) {
        let (now, wider) = (self.bytes(), self.bytes().saturating_mul(2).min(self.most));
        if wider > now && set(wider).is_ok() {
            self.now.store(wider, Relaxed);
        }
    }
}

/// What one stream has moved of late.
#[derive(Debug)]
pub(super) struct Moved {
    window: Arc<StreamWindow>,
    lately: Lately,
}

impl Moved {
    pub(super) fn new(window: Arc<StreamWindow>) -> Self {
        let lately = Lately::new(Instant::now().into_std());
        Self { window, lately }
    }

    /// So many bytes more were read.
    pub(super) fn read(&mut self, bytes: usize) {
        let window = self.window.bytes();
        let Some(round_trip) = self.window.round_trip() else {
            return;
        };
        if bytes == 0 || window >= self.window.most {
            return;
        }
        let now = Instant::now().into_std();
        let round_trip = round_trip.max(LEAST_ROUND_TRIP);
        self.lately.read(bytes as u64, round_trip, now);
        if self.lately.lesser() >= u64::from(window / 4) {
            self.lately = Lately::new(now);
            self.window.too_narrow.notify_one();
        }
    }
}
