//! Time as transfers tell it: microseconds since they began, and the machine's monotonic clock, which all hosts of a world share.
//! Clients and servers stamp phases and datagrams with it; one-way delays are differences of two processes' stamps.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// When something began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    began: u64,
    unix: f64,
}

impl Clock {
    /// Begins now.
    pub(crate) fn start() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            began: monotonic_us(),
            unix: since.unwrap_or_default().as_secs_f64(),
        }
    }

    /// Seconds since 1970 at the beginning.
    pub(crate) fn unix(&self) -> f64 {
        self.unix
    }

    /// Microseconds from the beginning of `other` to this one's.
    pub(crate) fn since(&self, other: &Self) -> u64 {
        other.at(self.began)
    }

    /// Microseconds since the beginning.
    pub(crate) fn us(&self) -> u64 {
        self.at(monotonic_us())
    }

    /// The same for a stamp of [`monotonic_us`].
    pub(crate) fn at(&self, stamp: u64) -> u64 {
        stamp.saturating_sub(self.began)
    }
}

/// Microseconds of the clock that all processes of a machine share.
pub(crate) fn monotonic_us() -> u64 {
    monotonic_ns() / 1000
}

/// The same in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
