//! Which relays were reached over TLS when QUIC was tried beside it: there QUIC is not waited for again, for a while.
//! [`super::table`] asks. Of a relay that answers QUIC nothing needs to be remembered: QUIC is tried first.

use std::{collections::VecDeque, time::Duration};

use hoplite_wire::Target;
use tokio::time::Instant;

/// After so long QUIC is tried again: it may have been the network where the client was.
const KEPT: Duration = Duration::from_secs(600);
/// So many relays; then the oldest is forgotten.
const MOST: usize = 256;

/// The last one at the end.
#[derive(Debug, Default)]
pub(super) struct Remembered(VecDeque<([u8; 32], Target, Instant)>);

impl Remembered {
    /// Whether it is to be dialled over TLS alone at `target`.
    pub(super) fn is_tls(&self, identity: &[u8; 32], target: &Target, now: Instant) -> bool {
        let young = |since: Instant| now.saturating_duration_since(since) < KEPT;
        let mut known = self.0.iter();
        known.any(|(other, at, since)| other == identity && at == target && young(*since))
    }

    /// TLS was there first.
    pub(super) fn note(&mut self, identity: [u8; 32], target: &Target, now: Instant) {
        if self.is_tls(&identity, target, now) {
            return;
        }
        self.forget(&identity, target);
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back((identity, target.clone(), now));
    }

    /// TLS is no way either, or QUIC was there first.
    pub(super) fn forget(&mut self, identity: &[u8; 32], target: &Target) {
        self.0
            .retain(|(other, at, _)| other != identity || at != target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_is_remembered_for_ten_minutes_from_the_first_time_where_it_was_and_for_some_relays() {
        let start = Instant::now();
        let [here, elsewhere] =
            ["192.0.2.1:443", "192.0.2.2:443"].map(|text| text.parse::<Target>().unwrap());
        let mut known = Remembered::default();
        assert!(!known.is_tls(&[1; 32], &here, start));
        known.note([1; 32], &here, start);
        known.note([1; 32], &here, start + KEPT / 2);
        assert!(known.is_tls(&[1; 32], &here, start + KEPT / 2));
        assert!(!known.is_tls(&[1; 32], &elsewhere, start), "another road");
        assert!(!known.is_tls(&[2; 32], &here, start));
        assert!(
            !known.is_tls(&[1; 32], &here, start + KEPT),
            "QUIC has its chance again"
        );
        known.note([2; 32], &here, start);
        known.forget(&[2; 32], &here);
        assert!(!known.is_tls(&[2; 32], &here, start));
        for n in 0..=255 {
            known.note([n; 32], &here, start + KEPT);
        }
        let mut other = [1; 32];
        other[0] = 0;
        known.note(other, &here, start + KEPT);
        assert_eq!(known.0.len(), MOST);
        assert!(
            !known.is_tls(&[0; 32], &here, start + KEPT),
            "the oldest went"
        );
    }
}
