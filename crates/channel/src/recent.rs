//! What somebody has asked for of late: so nobody who asks all the time takes what there is for all.

use std::time::Duration;

use tokio::time::Instant;

/// After so long what somebody has asked for counts half.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// Somebody may have asked so often, of late, for each time that is left to ask. Who asks all the time leaves a reserve by it,
/// and of several each his part (a queue's "dynamic threshold"); one alone has nearly everything.
const EAGERNESS: u32 = 16;

/// What somebody has asked for of late: halved each ten seconds.
#[derive(Debug)]
pub struct Recent {
    count: u32,
    since: Instant,
}

impl Recent {
    /// Nothing yet.
    pub fn new(now: Instant) -> Self {
        Self {
            count: 0,
            since: now,
        }
    }

    /// How much it is now.
    pub fn count(&mut self, now: Instant) -> u32 {
        let passed = now.saturating_duration_since(self.since);
        let times = u32::try_from(passed.as_secs() / HALF_LIFE.as_secs()).unwrap_or(u32::MAX);
        self.count = self.count.checked_shr(times).unwrap_or(0);
        self.since += HALF_LIFE * times.min(64);
        if times > 64 {
            self.since = now;
        }
        self.count
    }

    /// Whether he leaves enough to others if he asks once more, where so much is left for all.
    pub fn is_fair(&mut self, left: u32, now: Instant) -> bool {
        self.count(now) < left.saturating_mul(EAGERNESS)
    }

    /// He has asked for so much more.
    pub fn add(&mut self, more: u32) {
        self.count = self.count.saturating_add(more);
    }
}
