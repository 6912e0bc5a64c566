//! What is read from the machine around an attempt: the time, and packets that hosts lost because the emulator did not read them.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::netns::Lab;

/// Packets that the hosts' interfaces have dropped until now; a host that cannot tell counts none.
pub(super) fn dropped(lab: &Lab) -> u64 {
    let counts = lab.hosts().iter().map(|host| host.dropped());
    counts.filter_map(Result::ok).sum()
}

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map(|since| since.as_secs_f64()).unwrap_or_default()
}
