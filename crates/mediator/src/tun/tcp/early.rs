//! Segments that came before their turn, kept so that the program sends only the missing one again.
//! Used by the receive side; RFC 9293 §3.10.7.4 ("segments with higher beginning sequence numbers SHOULD be held for later processing").

use bytes::{Buf, Bytes};

use super::{
    queue::{LARGE, SLICE},
    sequence::Seq,
};

/// How many are kept; further ones are dropped and will be sent again.
const KEPT: usize = 32;

/// Pieces in the order of their places; they may overlap.
#[derive(Debug, Default)]
pub(super) struct Early {
    pieces: Vec<(Seq, Bytes)>,
}

impl Early {
    /// What they take, in octets of memory.
    pub(super) fn memory(&self) -> usize {
        self.pieces.iter().map(|(_, piece)| memory(piece)).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Keeps a piece, unless there are too many, it is here already, or it takes more than `most` octets of memory.
    pub(super) fn insert(&mut self, seq: Seq, payload: Bytes, most: usize) {
        let place = self.pieces.partition_point(|(at, _)| at.is_before(seq));
        let same = |(at, held): &(Seq, Bytes)| *at == seq && held.len() >= payload.len();
        let full = self.pieces.len() >= KEPT || memory(&payload) > most;
        if full || self.pieces.get(place).is_some_and(same) {
            return;
        }
        let payload = match payload.len() {
            LARGE.. => payload,
            _ => Bytes::copy_from_slice(&payload),
        };
        self.pieces.insert(place, (seq, payload));
    }

    /// What continues at `next`, if it is here.
    pub(super) fn take(&mut self, next: Seq) -> Option<Bytes> {
        while let Some((seq, _)) = self.pieces.first() {
            if next.is_before(*seq) {
                return None;
            }
            let (seq, mut payload) = self.pieces.remove(0);
            let old = next.since(seq);
            if old < payload.len() {
                payload.advance(old);
                return Some(payload);
            }
        }
        self.pieces = Vec::new();
        None
    }
}

fn memory(piece: &Bytes) -> usize {
    match piece.len() {
        LARGE.. => SLICE,
        len => len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_pieces_are_joined_and_the_number_is_bounded() {
        let mut early = Early::default();
        early.insert(Seq(2), Bytes::from_static(b"cd"), 100);
        early.insert(Seq(1), Bytes::from_static(b"bc"), 100);
        early.insert(Seq(1), Bytes::from_static(b"b"), 100);
        assert_eq!(early.take(Seq(0)), None);
        assert_eq!(early.take(Seq(1)).as_deref(), Some(&b"bc"[..]));
        assert_eq!(early.take(Seq(3)).as_deref(), Some(&b"d"[..]));
        assert_eq!(early.take(Seq(4)), None);
        for n in 0..1000 {
            early.insert(Seq(n * 2), Bytes::from_static(b"x"), 100);
        }
        assert_eq!((early.pieces.len(), early.memory()), (KEPT, KEPT));
        early = Early::default();
        early.insert(Seq(1), Bytes::from_static(b"ab"), 1);
        assert!(early.is_empty());
    }
}
