//! Octets to carry: pseudo-random, so that nobody compresses them, and cheap, so that they are not what is measured.
//! A block of 1 MiB that each process makes once is sent in rotation from a place that the seed chooses; the first octets of each
//! piece are mixed with a counter and the seed, so that no piece is like another. What arrived is checked by SHA-256.

use std::sync::OnceLock;

use crate::splitmix::mix;

/// The largest piece that is filled at once, in octets.
pub(crate) const PIECE: usize = 64 * 1024;

const BLOCK: usize = 1024 * 1024;

/// A stream of payload. The same seed and the same cuts make the same octets.
#[derive(Clone, Debug)]
pub(crate) struct Payload {
    seed: u64,
    pieces: u64,
    place: usize,
}

impl Payload {
    /// The stream of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        let place = usize::try_from(mix(seed) % BLOCK as u64).unwrap_or_default();
        Self {
            seed,
            pieces: 0,
            place,
        }
    }

    /// Fills `out`, at most [`PIECE`] octets of it.
    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        let len = out.len().min(PIECE);
        let (Some(out), Some(from)) = (
            out.get_mut(..len),
            block().get(self.place..self.place.saturating_add(len)),
        ) else {
            return;
        };
        out.copy_from_slice(from);
        let stamp = mix(self.seed ^ self.pieces.rotate_left(32)).to_le_bytes();
        for (octet, with) in out.iter_mut().zip(stamp) {
            *octet ^= with;
        }
        self.pieces = self.pieces.wrapping_add(1);
        self.place = self.place.wrapping_add(len) % BLOCK;
    }
}

/// Makes the block, so that no transfer waits for it.
pub(crate) fn prepare() {
    block();
}

/// The block, with a piece of it repeated behind its end.
fn block() -> &'static [u8] {
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    MADE.get_or_init(|| {
        let words = (0..(BLOCK as u64 / 8)).flat_map(|i| mix(i.wrapping_add(1)).to_le_bytes());
        let mut block: Vec<u8> = words.collect();
        block.extend_from_within(..PIECE);
        block
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_octets_and_another_seed_others() {
        let draw = |seed| {
            let (mut payload, mut out) = (Payload::new(seed), vec![0; 3 * PIECE]);
            out.chunks_mut(PIECE).for_each(|piece| payload.fill(piece));
            out
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn no_piece_is_like_another_after_the_block_has_turned() {
        let (mut payload, mut seen) = (Payload::new(7), std::collections::BTreeSet::new());
        for _ in 0..64 {
            let mut piece = vec![0; PIECE];
            payload.fill(&mut piece);
            assert!(seen.insert(piece));
        }
    }
}
