//! Which targets lately worked: those are answered before the overlay has (`open = "auto"`). The table remembers them.

use std::{collections::HashMap, time::Duration};

use hoplite_wire::Target;
use tokio::time::Instant;

/// How many targets are remembered; the one that worked longest ago makes room.
const KNOWN: usize = 4096;
/// For how long.
const LIFE: Duration = Duration::from_secs(600);

/// The targets, by name (or address) and port, with the time at which they worked.
#[derive(Debug, Default)]
pub(super) struct Lately(HashMap<Target, Instant>);

impl Lately {
    /// Whether the target worked lately and did not fail since.
    pub(super) fn trusts(&self, target: &Target, now: Instant) -> bool {
        self.0.get(target).is_some_and(|at| is_fresh(*at, now))
    }

    pub(super) fn worked(&mut self, target: &Target, now: Instant) {
        if let Some(at) = self.0.get_mut(target) {
            *at = now;
            return;
        }
        if self.0.len() >= KNOWN {
            self.make_room(now);
        }
        self.0.insert(target.clone(), now);
    }

    pub(super) fn failed(&mut self, target: &Target) {
        self.0.remove(target);
    }

    /// Forgets what is too old; if nothing is, the older half.
    fn make_room(&mut self, now: Instant) {
        self.0.retain(|_, at| is_fresh(*at, now));
        if self.0.len() < KNOWN {
            return;
        }
        let mut times: Vec<_> = self.0.values().copied().collect();
        let (_, middle, _) = times.select_nth_unstable(KNOWN / 2);
        let middle = *middle;
        self.0.retain(|_, at| *at > middle);
    }
}

fn is_fresh(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < LIFE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_worked_is_trusted_until_it_fails_or_grows_old() {
        let (mut lately, now) = (Lately::default(), Instant::now());
        let [a, b]: [Target; 2] = ["a:1", "a:2"].map(|text| text.parse().expect("valid"));
        lately.worked(&a, now);
        assert!(lately.trusts(&a, now) && !lately.trusts(&b, now));
        assert!(!lately.trusts(&a, now + LIFE));
        lately.failed(&a);
        assert!(!lately.trusts(&a, now));
    }

    #[test]
    fn no_more_than_so_many_are_remembered_and_the_newest_are() {
        let (mut lately, start) = (Lately::default(), Instant::now());
        let target = |n: u32| -> Target { format!("host{n}:1").parse().expect("valid") };
        for n in 0..10_000 {
            lately.worked(&target(n), start + Duration::from_micros(n.into()));
            assert!(lately.0.len() <= KNOWN);
        }
        let end = start + Duration::from_millis(10);
        assert!(lately.trusts(&target(9_999), end) && !lately.trusts(&target(0), end));
    }
}
