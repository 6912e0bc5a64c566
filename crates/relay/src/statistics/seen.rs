//! What the relay counts for its statistics beside what circuits and channels count for themselves: circuits that are begun, and how many onion services
//! have published. Of the services only keyed hashes are in memory, and the key goes with the period: afterwards nobody can ask whether one was there.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use hoplite_crypto::onion::rsa::sha256;
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

/// Circuits of one client that count in a period: the channel is his alone, as he says no identity. Of a relay's channel nobody knows whose its circuits are.
pub(crate) const CIRCUITS_PER_CLIENT: u64 = 651;
/// Services of one period that are told apart; further ones count as none.
const ONIONS: usize = 1 << 16;
/// Bits of a client's share that are its count.
const COUNT_BITS: u32 = 32;

/// The counters of one relay.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    circuits: AtomicU64,
    /// Grows with each period.
    period: AtomicU64,
    onions: Mutex<Onions>,
}

/// The circuits of one client's channel in one period: which, and how many.
#[derive(Debug, Default)]
pub(crate) struct ClientShare(AtomicU64);

#[derive(Default)]
struct Onions {
    /// Made with the first service of a period.
    key: Option<Zeroizing<[u8; 32]>>,
    hashes: HashSet<u64>,
}

impl Seen {
    /// A circuit is begun here: by the client of this share, or by a relay.
    pub(crate) fn circuit(&self, share: Option<&ClientShare>) {
        let period = self.period.load(Relaxed);
        if share.is_none_or(|share| share.admits(period)) {
            self.circuits.fetch_add(1, Relaxed);
        }
    }

    /// Circuits since the relay began.
    pub(crate) fn circuits(&self) -> u64 {
        self.circuits.load(Relaxed)
    }

    /// A service has published by this blinded key. Without randomness it is not counted.
    pub(crate) fn onion(&self, blinded: &[u8; 32]) {
        let mut onions = self.onions.lock();
        if onions.hashes.len() < ONIONS
            && let Some(hash) = onions.hash(blinded)
        {
            onions.hashes.insert(hash);
        }
    }

    /// Ends the period: how many services were seen in it. Their hashes and the key are gone then.
    pub(crate) fn end_period(&self) -> u64 {
        self.period.fetch_add(1, Relaxed);
        let onions = std::mem::take(&mut *self.onions.lock());
        onions.hashes.len() as u64
    }
}

impl ClientShare {
    /// Whether one more circuit of the client counts in this period.
    fn admits(&self, period: u64) -> bool {
        let now = period << COUNT_BITS;
        let most = now | CIRCUITS_PER_CLIENT;
        let more = |before: u64| {
            let before = if before >> COUNT_BITS == now >> COUNT_BITS {
                before
            } else {
                now
            };
            (before < most).then(|| before.saturating_add(1))
        };
        self.0.fetch_update(Relaxed, Relaxed, more).is_ok()
    }
}

impl Onions {
    fn hash(&mut self, blinded: &[u8; 32]) -> Option<u64> {
        if self.key.is_none() {
            let mut key = Zeroizing::new([0; 32]);
            SystemRandom::new().fill(&mut *key).ok()?;
            self.key = Some(key);
        }
        let text = Zeroizing::new([&self.key.as_ref()?[..], blinded].concat());
        let hash = sha256(&text);
        hash.first_chunk().copied().map(u64::from_le_bytes)
    }
}

impl std::fmt::Debug for Onions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Onions(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_counts_for_so_many_circuits_in_each_period() {
        let (seen, share) = (Seen::default(), ClientShare::default());
        for _ in 0..2000 {
            seen.circuit(Some(&share));
        }
        assert_eq!(seen.circuits(), CIRCUITS_PER_CLIENT);
        seen.circuit(Some(&ClientShare::default()));
        seen.circuit(None);
        assert_eq!(seen.circuits(), CIRCUITS_PER_CLIENT + 2);
        seen.end_period();
        for _ in 0..2000 {
            seen.circuit(Some(&share));
        }
        assert_eq!(seen.circuits(), 2 * CIRCUITS_PER_CLIENT + 2);
    }

    #[test]
    fn a_service_counts_once_in_a_period_and_is_unknown_after_it() {
        let seen = Seen::default();
        for service in [1, 2, 1, 1, 3] {
            seen.onion(&[service; 32]);
        }
        let before = seen.onions.lock().hashes.clone();
        assert_eq!(seen.end_period(), 3);
        seen.onion(&[1; 32]);
        let after = seen.onions.lock().hashes.clone();
        assert!(before.is_disjoint(&after), "another key, other hashes");
        assert_eq!((seen.end_period(), seen.end_period()), (1, 0));
    }

    #[test]
    fn a_flood_of_services_takes_no_more_room() {
        let seen = Seen::default();
        for number in 0..=ONIONS as u64 {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            seen.onion(&key);
        }
        assert_eq!(seen.end_period(), ONIONS as u64);
    }
}
