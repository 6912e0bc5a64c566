//! What the program has sent and the overlay has not taken yet. The receive side fills it, the flow's task empties it.
//! Large payloads stay in the packets that brought them; small ones are gathered, so that a lone octet holds no packet of 64 KiB.

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Buf, Bytes};

use crate::copy::{BUFFER, pool};

/// A payload of at least so many octets is not copied.
pub(super) const LARGE: usize = 16 * 1024;
/// What such a payload counts for: the device's buffer that it lies in.
pub(super) const SLICE: usize = 66 * 1024;
/// What is gathered where no whole buffer is allowed begins with so many octets.
const SMALL: usize = 2048;

/// Octets in order. How many there may be is the window's business, and the budget's.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pieces: VecDeque<Piece>,
    len: usize,
    memory: usize,
}

#[derive(Debug)]
enum Piece {
    Sliced(Bytes),
    Gathered { buffer: Vec<u8>, read: usize },
}

impl Piece {
    fn rest(&self) -> &[u8] {
        match self {
            Self::Sliced(octets) => octets,
            Self::Gathered { buffer, read } => buffer.get(*read..).unwrap_or_default(),
        }
    }

    fn advance(&mut self, octets: usize) {
        match self {
            Self::Sliced(slice) => slice.advance(octets),
            Self::Gathered { read, .. } => *read += octets,
        }
    }

    /// How many octets may still be copied behind what was gathered.
    fn spare(&self) -> usize {
        match self {
            Self::Sliced(_) => 0,
            Self::Gathered { buffer, .. } => buffer.capacity() - buffer.len(),
        }
    }

    fn memory(&self) -> usize {
        match self {
            Self::Sliced(_) => SLICE,
            Self::Gathered { buffer, .. } => buffer.capacity(),
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Self::Gathered { buffer, .. } = self {
            pool::take_back(buffer);
        }
    }
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// What it takes, in octets of memory.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// How many octets more cost no memory.
    pub(super) fn spare(&self) -> usize {
        self.pieces.back().map_or(0, Piece::spare)
    }

    /// Takes a payload, or what of it fits in when no more than `most` octets of memory may be taken besides; answers how much that was.
    pub(super) fn push(&mut self, payload: Bytes, most: usize) -> usize {
        let whole = payload.len();
        let spare = self.spare();
        if whole > spare && whole >= LARGE && most >= SLICE {
            self.add(Piece::Sliced(payload));
            self.len += whole;
            return whole;
        }
        let (now, later) = payload.split_at(spare.min(whole));
        if let Some(Piece::Gathered { buffer, .. }) = self.pieces.back_mut() {
            buffer.extend_from_slice(now);
        }
        let fitting = match most {
            BUFFER.. => later.len().min(BUFFER),
            _ => later.len().min(most),
        };
        if let Some(fitting) = later.get(..fitting).filter(|rest| !rest.is_empty()) {
            self.add(gathered(fitting, most));
        }
        self.len += now.len() + fitting;
        now.len() + fitting
    }

    fn add(&mut self, piece: Piece) {
        self.memory += piece.memory();
        self.pieces.push_back(piece);
    }

    /// Puts the first pieces into `slices`; answers with how many there are.
    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pairs = slices.iter_mut().zip(&self.pieces);
        let fill = |(slice, piece): (&mut IoSlice<'a>, &'a Piece)| {
            *slice = IoSlice::new(piece.rest());
        };
        pairs.map(fill).count()
    }

    /// Forgets the first `octets`.
    pub(super) fn consume(&mut self, octets: usize) {
        let mut octets = octets.min(self.len);
        self.len -= octets;
        while let Some(first) = self.pieces.front_mut() {
            let here = first.rest().len().min(octets);
            first.advance(here);
            octets -= here;
            if !first.rest().is_empty() {
                return;
            }
            self.memory -= first.memory();
            self.pieces.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn gathered(payload: &[u8], most: usize) -> Piece {
    let (mut buffer, read) = (Vec::new(), 0);
    match most {
        BUFFER.. => pool::provide(&mut buffer),
        _ => buffer.reserve_exact(payload.len().max(SMALL.min(most))),
    }
    buffer.extend_from_slice(payload);
    Piece::Gathered { buffer, read }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn content(queue: &Queue) -> Vec<u8> {
        queue.pieces.iter().flat_map(Piece::rest).copied().collect()
    }

    #[test]
    fn a_small_payload_holds_no_large_packet() {
        let packet = Bytes::from(vec![1; 60_000]);
        let mut queue = Queue::default();
        queue.push(packet.slice(..LARGE - 1), usize::MAX);
        assert!(packet.is_unique());
        queue.push(packet.slice(LARGE - 1..), usize::MAX);
        assert!(packet.is_unique(), "there was room behind the first");
        queue.push(packet.slice(..LARGE), usize::MAX);
        assert!(!packet.is_unique());
    }

    proptest! {
        #[test]
        fn octets_leave_in_the_order_in_which_they_came(
            steps in prop::collection::vec(
                (0_usize..65_000, 0_usize..70_000, prop_oneof![Just(usize::MAX), 0_usize..5000, 0_usize..100_000]), 1..20),
        ) {
            let (mut queue, mut expected, mut next) = (Queue::default(), Vec::new(), 0_u8);
            for (push, consume, most) in steps {
                next = next.wrapping_add(1);
                let before = queue.memory();
                let taken = queue.push(Bytes::from(vec![next; push]), most);
                prop_assert!(taken <= push && (taken == push || most < SLICE));
                prop_assert!(queue.memory() - before <= most);
                expected.extend(vec![next; taken]);
                queue.consume(consume);
                expected.drain(..consume.min(expected.len()));
                prop_assert_eq!(queue.len(), expected.len());
                prop_assert_eq!(content(&queue), expected.clone());
                prop_assert!(queue.pieces.iter().all(|piece| !piece.rest().is_empty()));
                prop_assert_eq!(queue.memory(), queue.pieces.iter().map(Piece::memory).sum::<usize>());
            }
        }
    }
}
