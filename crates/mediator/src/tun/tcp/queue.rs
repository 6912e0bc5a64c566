//! What the program has sent and the overlay has not taken yet. The receive side fills it, the flow's task empties it.
//! Large payloads stay in the packets that brought them; small ones are gathered, so that a lone octet holds no packet of 64 KiB.

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Buf, Bytes};

use crate::copy::{BUFFER, pool};

/// A payload of at least so many octets is not copied.
pub(super) const LARGE: usize = 16 * 1024;

/// Octets in order. How many there may be is the window's business.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pieces: VecDeque<Piece>,
    len: usize,
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

    /// Copies the payload behind what was gathered, if that is what this is and there is room.
    fn gather(&mut self, payload: &[u8]) -> bool {
        match self {
            Self::Gathered { buffer, .. } if buffer.len() + payload.len() <= BUFFER => {
                buffer.extend_from_slice(payload);
                true
            }
            _ => false,
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

    pub(super) fn push(&mut self, payload: Bytes) {
        self.len += payload.len();
        if payload.is_empty() || self.gather(&payload) {
            return;
        }
        self.pieces.push_back(match payload.len() {
            LARGE.. => Piece::Sliced(payload),
            _ => gathered(&payload),
        });
    }

    fn gather(&mut self, payload: &[u8]) -> bool {
        let last = self.pieces.back_mut();
        last.is_some_and(|last| last.gather(payload))
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
            self.pieces.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn gathered(payload: &[u8]) -> Piece {
    let (mut buffer, read) = (Vec::new(), 0);
    pool::provide(&mut buffer);
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
        queue.push(packet.slice(..LARGE - 1));
        assert!(packet.is_unique());
        queue.push(packet.slice(LARGE - 1..));
        assert!(packet.is_unique(), "there was room behind the first");
        queue.push(packet.slice(..LARGE));
        assert!(!packet.is_unique());
    }

    proptest! {
        #[test]
        fn octets_leave_in_the_order_in_which_they_came(
            steps in prop::collection::vec((0_usize..70_000, 0_usize..70_000), 1..20),
        ) {
            let (mut queue, mut expected, mut next) = (Queue::default(), Vec::new(), 0_u8);
            for (push, consume) in steps {
                next = next.wrapping_add(1);
                queue.push(Bytes::from(vec![next; push]));
                expected.extend(vec![next; push]);
                queue.consume(consume);
                expected.drain(..consume.min(expected.len()));
                prop_assert_eq!(queue.len(), expected.len());
                prop_assert_eq!(content(&queue), expected.clone());
                prop_assert!(queue.pieces.iter().all(|piece| !piece.rest().is_empty()));
            }
        }
    }
}
