//! Key stream for cells: AES over counted blocks, all of a cell's at once, so that a processor enciphers several side by side. In counter mode with a
//! counter of 128 bits, as layers of tor1 have it, it is that of NIST SP 800-38A §6.5; CGO counts in its own way (proposal 359).

use std::hint::black_box;

use aes::cipher::{BlockCipherEncrypt, consts::U16};

/// Bytes of a block.
pub(super) const BLOCK: usize = 16;

pub(super) type Block = [u8; BLOCK];

/// So many blocks of it, overwritten all at once when dropped: a library that wipes them byte by byte takes longer for it than to make them.
pub(super) struct KeyStream<const N: usize>([Block; N]);

impl<const N: usize> KeyStream<N> {
    /// The blocks of these counters.
    #[inline]
    pub(super) fn new(
        key: &impl BlockCipherEncrypt<BlockSize = U16>,
        counters: impl Iterator<Item = u128>,
    ) -> Self {
        let mut stream = Self([[0; BLOCK]; N]);
        for (block, counter) in stream.0.iter_mut().zip(counters) {
            *block = counter.to_be_bytes();
        }
        key.encrypt_blocks(aes::Block::cast_slice_from_core_mut(&mut stream.0));
        stream
    }

    pub(super) fn blocks(&self) -> &[Block; N] {
        &self.0
    }

    /// Enciphers or deciphers what is no longer than the key stream behind its first `skip` bytes.
    #[inline]
    pub(super) fn apply(&self, skip: usize, bytes: &mut [u8]) {
        let stream = self.0.as_flattened().get(skip..).unwrap_or_default();
        debug_assert!(stream.len() >= bytes.len(), "too short a key stream");
        xor(bytes, stream);
    }
}

impl<const N: usize> Drop for KeyStream<N> {
    fn drop(&mut self) {
        self.0 = [[0; BLOCK]; N];
        black_box(self);
    }
}

pub(super) fn xor(bytes: &mut [u8], with: &[u8]) {
    for (byte, other) in bytes.iter_mut().zip(with) {
        *byte ^= other;
    }
}
