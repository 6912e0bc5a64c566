//! Bytes that nobody can foretell, and that whoever has a copy makes again: what a scanner transfers to measure relays. AES-256 in counter mode, as AES-GCM
//! (NIST SP 800-38D) makes it of zeros.

use std::fmt;

use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    rand::{SecureRandom, SystemRandom},
};
use zeroize::Zeroizing;

/// Bytes that are made at once.
const BLOCK: usize = 16 << 10;

/// Goes on from where it was cloned.
#[derive(Clone)]
pub struct Keystream {
    key: LessSafeKey,
    /// Blocks that were made, the last of which is `block`.
    made: u64,
    block: Zeroizing<Vec<u8>>,
    /// Of `block`.
    used: usize,
}

impl Keystream {
    /// With a key of its own; nothing without randomness.
    pub fn fresh() -> Option<Self> {
        let mut secret = Zeroizing::new([0; 32]);
        SystemRandom::new().fill(secret.as_mut_slice()).ok()?;
        Self::of(&secret)
    }

    fn of(secret: &[u8; 32]) -> Option<Self> {
        let key = UnboundKey::new(&AES_256_GCM, secret).ok()?;
        Some(Self {
            key: LessSafeKey::new(key),
            made: 0,
            block: Zeroizing::default(),
            used: 0,
        })
    }

    /// The next bytes. However they are asked for, they are the same.
    pub fn fill(&mut self, mut out: &mut [u8]) {
        while !out.is_empty() {
            if self.used >= self.block.len() {
                self.make();
            }
            let ready = self.block.get(self.used..).unwrap_or_default();
            let now = ready.len().min(out.len());
            let Some((here, rest)) = out.split_at_mut_checked(now) else {
                return;
            };
            here.copy_from_slice(ready.get(..now).unwrap_or_default());
            self.used = self.used.saturating_add(now);
            out = rest;
        }
    }

    /// A nonce is used once: blocks are counted, and each key has one stream.
    fn make(&mut self) {
        let mut nonce = [0; 12];
        let (_, count) = nonce.split_at_mut(4);
        count.copy_from_slice(&self.made.to_be_bytes());
        self.block.clear();
        self.block.resize(BLOCK, 0);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::empty(), &mut self.block);
        // It fails for messages of 64 GiB alone.
        debug_assert!(sealed.is_ok(), "a block is short");
        (self.made, self.used) = (self.made.saturating_add(1), 0);
    }
}

impl fmt::Debug for Keystream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keystream(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_bytes_come_in_pieces_of_any_size() {
        let mut stream = Keystream::of(&[7; 32]).expect("a key");
        let mut again = stream.clone();
        let mut whole = vec![0; 3 * BLOCK + 5];
        stream.fill(&mut whole);
        let mut pieces = Vec::new();
        for size in (1..).map(|number| number * 37) {
            let mut piece = vec![0; size.min(whole.len() - pieces.len())];
            again.fill(&mut piece);
            pieces.extend(piece);
            if pieces.len() == whole.len() {
                break;
            }
        }
        assert_eq!(pieces, whole);
        let (first, second) = (whole.get(..BLOCK), whole.get(BLOCK..2 * BLOCK));
        assert_ne!(first, second, "blocks differ");
    }

    /// NIST's test case 14 for GCM: the ciphertext of 16 zeros under a key of zeros.
    #[test]
    fn it_is_aes_in_counter_mode() {
        let mut bytes = [0; 16];
        Keystream::of(&[0; 32]).expect("a key").fill(&mut bytes);
        let known = 0xcea7_403d_4d60_6b6e_074e_c5d3_baf3_9d18u128;
        assert_eq!(u128::from_be_bytes(bytes), known);
    }

    #[test]
    fn two_streams_differ() {
        let bytes = || {
            let mut bytes = [0; 32];
            Keystream::fresh().expect("randomness").fill(&mut bytes);
            bytes
        };
        assert_ne!(bytes(), bytes());
    }
}
