//! The ports that streams went to lately: exits of circuits that are built ahead should serve them.
//! [`super::pool`] notes and asks. path-spec "Which circuits are built": "predicted" ports.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// So many are remembered.
const MOST: usize = 8;
/// For so long (`PredictedPortsRelevanceTime`).
const KEPT: Duration = Duration::from_secs(3600);
/// What nearly everybody wants, before it is asked for.
const FIRST: [u16; 2] = [443, 80];

/// The last one first.
#[derive(Debug)]
pub(super) struct Lately(VecDeque<(u16, Instant)>);

impl Lately {
    pub(super) fn new(now: Instant) -> Self {
        Self(FIRST.into_iter().map(|port| (port, now)).collect())
    }

    /// A stream goes there.
    pub(super) fn note(&mut self, port: u16, now: Instant) {
        self.0.retain(|(other, _)| *other != port);
        self.0.push_front((port, now));
        self.0.truncate(MOST);
    }

    /// Those of the last hour.
    pub(super) fn ports(&self, now: Instant) -> Vec<u16> {
        let since = |noted: Instant| now.saturating_duration_since(noted);
        let young = self.0.iter().filter(|(_, noted)| since(*noted) < KEPT);
        young.map(|(port, _)| *port).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_remembered_for_an_hour_and_the_last_is_the_first() {
        let start = Instant::now();
        let mut lately = Lately::new(start);
        assert_eq!(lately.ports(start), [443, 80]);
        lately.note(22, start + KEPT / 2);
        lately.note(80, start + KEPT / 2);
        assert_eq!(lately.ports(start + KEPT / 2), [80, 22, 443]);
        assert_eq!(lately.ports(start + KEPT), [80, 22]);
        assert!(lately.ports(start + KEPT * 2).is_empty());
        (1..100).for_each(|port| lately.note(port, start + KEPT * 2));
        assert_eq!(lately.ports(start + KEPT * 2).len(), MOST);
    }
}
