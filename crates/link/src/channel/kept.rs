//! What whoever holds a circuit keeps for it beside the channel's own queues: it counts as waiting in the circuit
//! ([`Config::queued`](super::Config::queued)). `onion` counts there what streams have waiting at the circuit's end.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::hoard::CELL;

/// What is kept for one circuit.
#[derive(Debug, Default)]
pub struct Kept {
    /// Octets that came on the circuit and wait for somebody else.
    pub received: Tally,
    /// Cells that are still to be given to the circuit.
    pub sending: Tally,
}

/// Counts what comes into a queue and what leaves it.
#[derive(Debug, Default)]
pub struct Tally {
    came: AtomicU64,
    left: AtomicU64,
}

impl Kept {
    /// Octets that wait, and how many have moved.
    pub(super) fn measure(&self) -> (u64, u64) {
        let [waiting, sent] = [self.sending.waiting(), self.sending.left.load(Relaxed)]
            .map(|cells| cells.saturating_mul(CELL));
        let passed = self.received.left.load(Relaxed);
        (self.received.waiting() + waiting, passed + sent)
    }
}

impl Tally {
    /// So much has come.
    pub fn came(&self, more: u64) {
        self.came.fetch_add(more, Relaxed);
    }

    /// So much of it has left.
    pub fn left(&self, less: u64) {
        self.left.fetch_add(less, Relaxed);
    }

    /// What is there now.
    pub fn waiting(&self) -> u64 {
        let left = self.left.load(Relaxed);
        self.came.load(Relaxed).saturating_sub(left)
    }
}
