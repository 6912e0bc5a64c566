//! What channels carry, in bytes of cells: counted by each channel for itself, so that nothing is shared on the way of a cell, and added up when somebody
//! asks. Of a single channel nothing is told but in which of four classes it was during ten seconds. dir-spec "Extra-info document format",
//! `conn-bi-direct`.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use hoplite_wire::tor::extra_info::Directions;
use parking_lot::Mutex;

/// "We read and wrote less than a threshold of 20 KiB".
const THRESHOLD: u64 = 20 << 10;
/// "At least 10 times more".
const FACTOR: u64 = 10;

/// The channels of a process.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    channels: Mutex<Vec<Entered>>,
    gone: Arc<Bytes>,
}

/// Both directions.
#[derive(Debug, Default)]
struct Bytes {
    read: AtomicU64,
    written: AtomicU64,
}

#[derive(Debug)]
struct Entered {
    flow: Weak<Flow>,
    /// What it had carried when it was last looked at.
    seen: (u64, u64),
}

/// What one channel carries.
#[derive(Debug)]
pub(super) struct Flow {
    bytes: Bytes,
    gone: Arc<Bytes>,
}

impl Traffic {
    /// A channel that begins.
    pub(super) fn enter(&self) -> Arc<Flow> {
        let flow = Arc::new(Flow {
            bytes: Bytes::default(),
            gone: Arc::clone(&self.gone),
        });
        let mut channels = self.channels.lock();
        // Those that have ended go before there is room for more of them.
        if channels.len() == channels.capacity() {
            channels.retain(|one| one.flow.strong_count() > 0);
            let open = channels.len();
            channels.reserve(open.saturating_add(1));
        }
        channels.push(Entered {
            flow: Arc::downgrade(&flow),
            seen: (0, 0),
        });
        flow
    }

    /// Bytes that were read and written, on all channels since the process began.
    pub(super) fn total(&self) -> (u64, u64) {
        let channels = self.channels.lock();
        let open = channels.iter().filter_map(|one| one.flow.upgrade());
        open.map(|flow| flow.bytes.get())
            .fold(self.gone.get(), |all, one| {
                (all.0.saturating_add(one.0), all.1.saturating_add(one.1))
            })
    }

    /// How the channels that are open were used since this was last asked for.
    pub(super) fn directions(&self) -> Directions {
        let mut used = Directions::default();
        self.channels.lock().retain_mut(|one| {
            let Some(flow) = one.flow.upgrade() else {
                return false;
            };
            let now = flow.bytes.get();
            let before = std::mem::replace(&mut one.seen, now);
            let class = class(&mut used, now.0 - before.0, now.1 - before.1);
            *class = class.saturating_add(1);
            true
        });
        used
    }
}

/// The class of a channel that has read and written so much.
fn class(used: &mut Directions, read: u64, written: u64) -> &mut u64 {
    if read.saturating_add(written) < THRESHOLD {
        &mut used.below
    } else if read >= written.saturating_mul(FACTOR) {
        &mut used.read
    } else if written >= read.saturating_mul(FACTOR) {
        &mut used.written
    } else {
        &mut used.both
    }
}

impl Bytes {
    fn get(&self) -> (u64, u64) {
        (self.read.load(Relaxed), self.written.load(Relaxed))
    }
}

impl Flow {
    /// So much was read.
    pub(super) fn read(&self, bytes: usize) {
        self.bytes.read.fetch_add(bytes as u64, Relaxed);
    }

    /// So much was written.
    pub(super) fn wrote(&self, bytes: usize) {
        self.bytes.written.fetch_add(bytes as u64, Relaxed);
    }

    /// So much was read and written.
    pub(super) fn carried(&self) -> u64 {
        let (read, written) = self.bytes.get();
        read.saturating_add(written)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let (read, written) = self.bytes.get();
        self.gone.read.fetch_add(read, Relaxed);
        self.gone.written.fetch_add(written, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_in_one_class_for_each_stretch() {
        let traffic = Traffic::default();
        let flows: Vec<_> = (0..4).map(|_| traffic.enter()).collect();
        let carry = |flow: &Flow, read, written| {
            flow.read(read);
            flow.wrote(written);
        };
        carry(&flows[0], 10 << 10, 9 << 10);
        carry(&flows[1], 100 << 10, 10 << 10);
        carry(&flows[2], 1 << 10, 30 << 10);
        carry(&flows[3], 100 << 10, 11 << 10);
        let once = Directions {
            below: 1,
            read: 1,
            written: 1,
            both: 1,
        };
        assert_eq!(traffic.directions(), once);
        let at_rest = Directions {
            below: 4,
            ..Directions::default()
        };
        assert_eq!(traffic.directions(), at_rest);
        drop(flows);
        assert_eq!(traffic.directions(), Directions::default());
    }

    #[test]
    fn what_a_channel_has_carried_counts_when_it_has_gone() {
        let traffic = Traffic::default();
        let (first, second) = (traffic.enter(), traffic.enter());
        first.read(5);
        second.wrote(7);
        assert_eq!(traffic.total(), (5, 7));
        drop(first);
        assert_eq!(traffic.total(), (5, 7));
        drop(second);
        assert_eq!(traffic.total(), (5, 7));
    }

    #[test]
    fn channels_that_come_and_go_take_no_more_room() {
        let traffic = Traffic::default();
        for _ in 0..10_000 {
            traffic.enter().read(1);
        }
        assert!(traffic.channels.lock().len() < 64);
        assert_eq!(traffic.total(), (10_000, 0));
    }
}
