//! Whether a guard can be reached, as far as is known, and when one that cannot is tried again.
//! guard-spec: `is_reachable`, `PRIMARY_GUARDS_RETRY_SCHED`, `GUARDS_RETRY_SCHED`.

const MINUTE: u64 = 60;
const HOUR: u64 = 3600;

/// While it has failed for less than the first, it rests for the second (a primary guard) or the third; seconds.
const SCHEDULE: [(u64, u64, u64); 4] = [
    (6 * HOUR, 10 * MINUTE, HOUR),
    (96 * HOUR, 90 * MINUTE, 4 * HOUR),
    (168 * HOUR, 4 * HOUR, 18 * HOUR),
    (u64::MAX, 9 * HOUR, 36 * HOUR),
];

/// What is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// It was not tried, or is to be tried again.
    Maybe,
    /// It was reached the last time.
    Yes,
    /// It was not.
    No {
        /// Since when it fails.
        since: u64,
        /// When it was tried last.
        tried: u64,
        /// It is to be tried again.
        rested: bool,
    },
}

impl Reach {
    /// It was tried in vain.
    pub(super) fn fail(&mut self, now: u64) {
        let since = match *self {
            Self::No { since, .. } => since,
            Self::Maybe | Self::Yes => now,
        };
        *self = Self::No {
            since,
            tried: now,
            rested: false,
        };
    }

    /// Notes if it has rested long enough.
    pub(super) fn rest(&mut self, primary: bool, now: u64) {
        if let Self::No {
            since,
            tried,
            rested,
        } = self
        {
            let failing = tried.saturating_sub(*since);
            let pause = SCHEDULE.iter().find(|(below, ..)| failing < *below);
            let pause = pause.map_or(0, |&(_, first, other)| if primary { first } else { other });
            *rested |= now.abs_diff(*tried) >= pause;
        }
    }

    /// Whether it is better left alone.
    pub(super) fn is_failing(self) -> bool {
        matches!(self, Self::No { rested: false, .. })
    }
}
