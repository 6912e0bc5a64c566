//! Datagrams on their way to a target, one after the other in one buffer, taken out in batches of one size.
//! An association or the TUN's router fills it while a flow is being opened or is slow; its flow empties it.

use std::collections::VecDeque;

use hoplite_overlay::Batch;

/// The most octets that wait, and the most datagrams; further ones are dropped.
pub(crate) const MAX_OCTETS: usize = 256 * 1024;
pub(crate) const MAX_COUNT: usize = 512;
/// The most that one batch takes: what UDP_SEGMENT takes.
const BATCH_OCTETS: usize = 65_000;
const BATCH_COUNT: usize = 64;
/// The room that an empty queue keeps: a flow in use allocates nothing, a silent one holds little.
const KEPT_OCTETS: usize = 16 * 1024;
const KEPT_COUNT: usize = 32;

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    contents: Vec<u8>,
    lengths: VecDeque<usize>,
    /// Where the first datagram starts.
    head: usize,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.lengths.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// What it takes, in octets of memory.
    pub(crate) fn memory(&self) -> usize {
        self.contents.capacity() + self.lengths.capacity() * size_of::<usize>()
    }

    /// Takes a copy, or answers that there is no room, or none that takes no more than `most` octets of memory in all.
    pub(crate) fn push(&mut self, payload: &[u8], most: usize) -> bool {
        let room = MAX_OCTETS.saturating_sub(self.contents.len());
        if payload.len() > room || self.lengths.len() >= MAX_COUNT {
            return false;
        }
        if !self.grow(payload.len(), most) {
            return false;
        }
        self.contents.extend_from_slice(payload);
        self.lengths.push_back(payload.len());
        true
    }

    /// Makes place for one more, by doubling if that is allowed.
    fn grow(&mut self, octets: usize, most: usize) -> bool {
        let (len, count) = (self.contents.len() + octets, self.lengths.len() + 1);
        let (octets, lengths) = (self.contents.capacity(), self.lengths.capacity());
        if len <= octets && count <= lengths {
            return true;
        }
        let lengths = if count <= lengths {
            lengths
        } else {
            count.max(4).next_power_of_two()
        };
        let left = most.saturating_sub(lengths * size_of::<usize>());
        let octets = if len <= octets {
            octets
        } else {
            len.max(octets * 2).min(left)
        };
        if octets < len || octets > left {
            return false;
        }
        self.contents.reserve_exact(octets - self.contents.len());
        self.lengths.reserve_exact(lengths - self.lengths.len());
        true
    }

    /// How many octets wait.
    pub(crate) fn octets(&self) -> usize {
        self.contents.len() - self.head
    }

    /// Takes copies of a train's datagrams as far as there is room, and answers how many found none.
    pub(crate) fn push_train(&mut self, train: Batch<'_>, most: usize) -> usize {
        let payloads = train.payloads();
        payloads.filter(|payload| !self.push(payload, most)).count()
    }

    /// The first datagrams that have one size; the last may be shorter. `None` when there are none.
    pub(crate) fn batch(&self) -> Option<(Batch<'_>, usize)> {
        let segment = *self.lengths.front()?;
        let (mut octets, mut count) = (segment, 1);
        for &len in self.lengths.iter().skip(1).take(BATCH_COUNT - 1) {
            if segment == 0 || len == 0 || len > segment || octets + len > BATCH_OCTETS {
                break;
            }
            (octets, count) = (octets + len, count + 1);
            if len < segment {
                break;
            }
        }
        let contents = self.contents.get(self.head..self.head + octets)?;
        let segment = segment.max(1);
        Some((Batch { contents, segment }, count))
    }

    /// Removes the first `count`.
    pub(crate) fn pop(&mut self, count: usize) {
        let gone: usize = self.lengths.drain(..count.min(self.lengths.len())).sum();
        self.head += gone;
        if self.lengths.is_empty() {
            self.contents.clear();
            self.head = 0;
        }
    }

    /// Gives back what a burst needed; what an ordinary exchange needs stays if it is to be `kept`.
    pub(crate) fn release(&mut self, kept: bool) {
        let (octets, count) = if kept {
            (KEPT_OCTETS, KEPT_COUNT)
        } else {
            (0, 0)
        };
        self.contents.shrink_to(octets);
        self.lengths.shrink_to(count);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drain(queue: &mut Queue) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        while let Some((batch, count)) = queue.batch() {
            let payloads: Vec<_> = batch.payloads().map(<[u8]>::to_vec).collect();
            assert_eq!(payloads.len(), count);
            out.extend(payloads);
            queue.pop(count);
        }
        out
    }

    #[test]
    fn equal_datagrams_leave_as_one_batch_with_a_shorter_one_last() {
        let mut queue = Queue::default();
        for len in [100, 100, 40, 100] {
            assert!(queue.push(&vec![0; len], usize::MAX));
        }
        let (batch, count) = queue.batch().expect("full");
        assert_eq!((batch.contents.len(), batch.segment, count), (240, 100, 3));
    }

    #[test]
    fn a_full_queue_drops_what_comes() {
        let mut queue = Queue::default();
        while queue.push(&[0; 1000], usize::MAX) {}
        assert!(!queue.push(&[0; 1000], usize::MAX));
        queue.pop(MAX_COUNT);
        assert!(queue.push(&[0; 1000], usize::MAX));
    }

    proptest! {
        #[test]
        fn no_more_memory_is_taken_than_is_allowed(
            steps in proptest::collection::vec((0_usize..3000, 0_usize..30_000, 0_usize..4, any::<bool>()), 0..200),
        ) {
            let mut queue = Queue::default();
            for (len, most, gone, kept) in steps {
                let before = (queue.memory(), queue.len());
                let taken = queue.push(&vec![0; len], most);
                prop_assert!(queue.memory() <= most.max(before.0));
                prop_assert_eq!(queue.len(), before.1 + usize::from(taken));
                queue.pop(gone);
                if queue.is_empty() {
                    queue.release(kept);
                    prop_assert!(kept || queue.memory() == 0);
                }
            }
        }

        #[test]
        fn what_went_in_comes_out_in_order(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..4), 0..300)) {
            let mut queue = Queue::default();
            for payload in &payloads {
                prop_assert!(queue.push(payload, usize::MAX));
            }
            prop_assert_eq!(drain(&mut queue), payloads);
        }
    }
}
