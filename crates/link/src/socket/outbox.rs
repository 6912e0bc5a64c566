//! Packets of one size on their way down, collected into one batch. Pure; used by [`super::VirtualSocket`].

use hoplite_overlay::Batch;

/// What the kernel takes in one UDP_SEGMENT call.
pub(crate) const SEGMENTS: usize = 64;

/// One call may hold 65,507 octets; more is refused and lost.
const OCTETS: usize = 65_000;

/// A batch that grows while what comes has the same size.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    contents: Vec<u8>,
    segment: usize,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.contents.is_empty()
    }

    /// A shorter packet ends a batch.
    fn is_closed(&self) -> bool {
        !self.contents.len().is_multiple_of(self.segment.max(1))
    }

    /// Whether nothing more will fit.
    pub(crate) fn is_full(&self) -> bool {
        let next = self.contents.len() + self.segment;
        self.is_closed() || next > OCTETS || next > SEGMENTS * self.segment
    }

    /// Whether `len` octets cut every `segment` may be appended. An empty outbox takes anything.
    pub(crate) fn fits(&self, len: usize, segment: usize) -> bool {
        if self.is_empty() {
            return true;
        }
        let all = self.contents.len() + len;
        let same = segment == self.segment || (len < self.segment && len <= segment);
        same && !self.is_closed() && all <= OCTETS && all <= SEGMENTS * self.segment
    }

    pub(crate) fn append(&mut self, contents: &[u8], segment: usize) {
        if self.is_empty() {
            self.segment = segment;
        }
        self.contents.extend_from_slice(contents);
    }

    pub(crate) fn batch(&self) -> Option<Batch<'_>> {
        let batch = Batch {
            contents: &self.contents,
            segment: self.segment,
        };
        (!self.is_empty()).then_some(batch)
    }

    pub(crate) fn clear(&mut self) {
        self.contents.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flush(outbox: &mut Outbox, into: &mut Vec<Vec<u8>>) {
        if let Some(batch) = outbox.batch() {
            assert!(batch.contents.len() <= OCTETS && batch.payloads().count() <= SEGMENTS);
            into.extend(batch.payloads().map(<[u8]>::to_vec));
        }
        outbox.clear();
    }

    proptest! {
        #[test]
        fn packets_keep_their_order_and_boundaries(
            transmits in prop::collection::vec((prop::sample::select(vec![60usize, 1200, 1400]), 1usize..10, 0usize..60), 1..60),
        ) {
            let (mut outbox, mut sent, mut got) = (Outbox::default(), Vec::new(), Vec::new());
            for (n, (segment, count, tail)) in transmits.into_iter().enumerate() {
                let contents = vec![n as u8; segment * count + tail.min(segment - 1)];
                sent.extend(contents.chunks(segment).map(<[u8]>::to_vec));
                if !outbox.fits(contents.len(), segment) {
                    flush(&mut outbox, &mut got);
                }
                outbox.append(&contents, segment);
                if outbox.is_full() {
                    flush(&mut outbox, &mut got);
                }
            }
            flush(&mut outbox, &mut got);
            prop_assert_eq!(sent, got);
        }
    }
}
