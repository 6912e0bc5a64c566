//! What the program has not acknowledged yet, in buffers of 64 KiB from the thread's store.
//! The send side keeps it to send it again; this is the one copy on the way down. A flow that waits for nothing owns no buffer, and one that
//! is not allowed a whole buffer has one just as large as its octets.

use std::collections::VecDeque;

use crate::copy::{BUFFER, pool};

/// Octets in order; they come in at the end and go at the start.
#[derive(Debug, Default)]
pub(super) struct Retained {
    buffers: VecDeque<Vec<u8>>,
    /// How much of the first buffer is acknowledged.
    start: usize,
    len: usize,
    memory: usize,
}

impl Retained {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// What it takes, in octets of memory.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// How many octets more fit in when it may take `most` octets of memory.
    pub(super) fn room(&self, most: usize) -> usize {
        let whole = |memory: usize| memory / BUFFER * BUFFER;
        match self.buffers.back() {
            Some(last) if last.capacity() >= BUFFER => {
                let more = whole(most.saturating_sub(self.memory));
                more.saturating_add(BUFFER.saturating_sub(last.len()))
            }
            _ if most >= BUFFER => whole(most).saturating_sub(self.len),
            _ => most.saturating_sub(self.len),
        }
    }

    /// Keeps octets, no more than there is [`Self::room`] for with so much memory.
    pub(super) fn push(&mut self, mut octets: &[u8], most: usize) {
        self.len += octets.len();
        while !octets.is_empty() {
            let buffer = self.back(octets.len(), most);
            let room = BUFFER - buffer.len();
            let (now, later) = octets.split_at(room.min(octets.len()));
            buffer.extend_from_slice(now);
            octets = later;
        }
    }

    /// A buffer with room for some of so many octets.
    fn back(&mut self, wanted: usize, most: usize) -> &mut Vec<u8> {
        match self.buffers.back() {
            Some(last) if last.capacity() >= BUFFER && last.len() < BUFFER => {}
            Some(last) if last.capacity() < BUFFER => self.widen(wanted, most),
            None if most < BUFFER => self.add(Vec::with_capacity(wanted)),
            _ => {
                let mut fresh = Vec::new();
                pool::provide(&mut fresh);
                self.add(fresh);
            }
        }
        let last = self.buffers.len() - 1;
        &mut self.buffers[last]
    }

    fn add(&mut self, buffer: Vec<u8>) {
        self.memory += buffer.capacity();
        self.buffers.push_back(buffer);
    }

    /// Makes room in a buffer that is smaller than others, and then the only one.
    fn widen(&mut self, wanted: usize, most: usize) {
        let Some(mut small) = self.buffers.pop_back() else {
            return;
        };
        self.memory -= small.capacity();
        small.drain(..std::mem::take(&mut self.start));
        match most {
            BUFFER.. => {
                let kept = std::mem::take(&mut small);
                pool::provide(&mut small);
                small.extend_from_slice(&kept);
            }
            _ => small.reserve_exact(wanted.min(BUFFER - small.len())),
        }
        self.add(small);
    }

    /// Forgets the first `octets`.
    pub(super) fn release(&mut self, octets: usize) {
        let octets = octets.min(self.len);
        self.len -= octets;
        self.start += octets;
        while self.start >= BUFFER || (self.len == 0 && !self.buffers.is_empty()) {
            self.start = self.start.saturating_sub(BUFFER);
            if let Some(mut buffer) = self.buffers.pop_front() {
                self.memory -= buffer.capacity();
                pool::take_back(&mut buffer);
            }
        }
        if self.len == 0 {
            self.start = 0;
        }
    }

    /// At most [`BUFFER`] octets from `offset` on: they lie in two buffers at most.
    pub(super) fn slices(&self, offset: usize, len: usize) -> [&[u8]; 2] {
        let from = self.start + offset;
        let (index, at) = (from / BUFFER, from % BUFFER);
        let first = self.piece(index, at, len);
        [first, self.piece(index + 1, 0, len - first.len())]
    }

    fn piece(&self, index: usize, at: usize, len: usize) -> &[u8] {
        let rest = self.buffers.get(index).and_then(|buffer| buffer.get(at..));
        let rest = rest.unwrap_or_default();
        rest.get(..len).unwrap_or(rest)
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        self.release(self.len);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_pushed_is_found_at_its_place(
            steps in prop::collection::vec(
                (0_usize..150_000, 0_usize..150_000, prop_oneof![Just(usize::MAX), 0_usize..5000, 0_usize..300_000]), 1..20),
        ) {
            let (mut retained, mut pushed, mut released) = (Retained::default(), Vec::new(), 0);
            for (push, release, most) in steps {
                let push = push.min(retained.room(most));
                let before = retained.memory();
                let octets: Vec<u8> = (0..push).map(|n| u8::try_from((pushed.len() + n) % 251).expect("small")).collect();
                retained.push(&octets, most);
                prop_assert!(retained.memory() <= most.max(before), "{} of {most}", retained.memory());
                pushed.extend(octets);
                retained.release(release);
                released = (released + release).min(pushed.len());
                let expected = &pushed[released..];
                prop_assert_eq!(retained.len(), expected.len());
                let len = expected.len().min(BUFFER);
                prop_assert_eq!(retained.slices(0, len).concat(), &expected[..len]);
                let end = retained.slices(expected.len() - len, len).concat();
                prop_assert_eq!(end, &expected[expected.len() - len..]);
                prop_assert!(!expected.is_empty() || retained.buffers.is_empty());
                prop_assert_eq!(retained.memory(), retained.buffers.iter().map(Vec::capacity).sum::<usize>());
            }
        }
    }
}
