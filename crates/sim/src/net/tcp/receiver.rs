//! What has come, in order for the reader; what came before something that is missing waits for it.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::RECEIVE_BUFFER;

#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// The number of the octet that is missing first.
    expected: u64,
    early: BTreeMap<u64, (Bytes, bool)>,
    ready: VecDeque<Bytes>,
    /// Octets in `early` and `ready`.
    held: u64,
    ended: bool,
}

impl Receiver {
    /// A segment has come, maybe not for the first time.
    pub(super) fn received(&mut self, seq: u64, data: Bytes, last: bool) {
        if seq < self.expected || self.early.contains_key(&seq) {
            return;
        }
        self.held = self.held.saturating_add(length(&data));
        self.early.insert(seq, (data, last));
        while let Some((data, last)) = self.early.remove(&self.expected) {
            let numbers = length(&data).saturating_add(last.into());
            self.expected = self.expected.saturating_add(numbers);
            self.ended |= last;
            if !data.is_empty() {
                self.ready.push_back(data);
            }
        }
    }

    pub(super) fn take(&mut self) -> Option<Bytes> {
        let data = self.ready.pop_front()?;
        self.held = self.held.saturating_sub(length(&data));
        Some(data)
    }

    /// All before this number has come.
    pub(super) const fn expected(&self) -> u64 {
        self.expected
    }

    pub(super) const fn window(&self) -> u64 {
        RECEIVE_BUFFER.saturating_sub(self.held)
    }

    pub(super) fn has_some(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether all has come, though maybe not been read.
    pub(super) const fn has_ended(&self) -> bool {
        self.ended
    }
}

pub(super) fn length(data: &Bytes) -> u64 {
    u64::try_from(data.len()).unwrap_or(u64::MAX)
}
