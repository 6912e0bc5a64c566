//! AES-128-CTR over one direction's cells. `layer` uses it; NIST SP 800-38A §6.5, the counter starts at zero.

use aws_lc_rs::{
    cipher::{AES_128, EncryptingKey, EncryptionContext, UnboundCipherKey},
    iv::FixedLength,
};
use zeroize::Zeroize;

use super::{BODY, Refused};

const BLOCK: usize = 16;
const BLOCK_U64: u64 = 16;
const BODY_U64: u64 = 509;

/// A key, and how many octets of its key stream are used up. The library wipes the key.
pub(super) struct Stream {
    key: EncryptingKey,
    used: u64,
}

impl Stream {
    pub(super) fn new(key: &[u8; 16]) -> Result<Self, Refused> {
        let key = UnboundCipherKey::new(&AES_128, key).map_err(|_| Refused::System)?;
        let key = EncryptingKey::ctr(key).map_err(|_| Refused::System)?;
        Ok(Self { key, used: 0 })
    }

    /// Enciphers or deciphers the next cell. Where the cipher failed, which it has no reason to, the body is wiped: it never leaves in the clear.
    ///
    /// A cell is no whole number of blocks, and the library starts at a block: the body is moved behind as many octets as the block before has
    /// used up. One call for a cell is faster than keeping the rest of a block and two calls.
    pub(super) fn apply(&mut self, body: &mut [u8; BODY]) {
        let mut room = [0; BLOCK + BODY];
        if self.apply_in(&mut room, body).is_none() {
            body.zeroize();
        }
        // What stands before the body is key stream; behind it, where the body is, the caller has the same.
        if let Some(head) = room.first_chunk_mut::<BLOCK>() {
            head.zeroize();
        }
        self.used = self.used.wrapping_add(BODY_U64);
    }

    fn apply_in(&self, room: &mut [u8; BLOCK + BODY], body: &mut [u8; BODY]) -> Option<()> {
        let skip = usize::try_from(self.used % BLOCK_U64).ok()?;
        let room = room.get_mut(..skip + BODY)?;
        room.get_mut(skip..)?.copy_from_slice(body);
        let counter = u128::from(self.used / BLOCK_U64).to_be_bytes();
        let counter = EncryptionContext::Iv128(FixedLength::from(counter));
        self.key.less_safe_encrypt(room, counter).ok()?;
        body.copy_from_slice(room.get(skip..)?);
        Some(())
    }
}
