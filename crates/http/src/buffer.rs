//! A read buffer that all tunnels of a thread share: an idle tunnel owns none.

use std::cell::RefCell;

use bytes::{Bytes, BytesMut};

/// Bytes that one read may bring, at least.
const READ: usize = 64 * 1024;
/// What a thread's buffer holds: two reads.
const ARENA: usize = 128 * 1024;
/// Reads of up to so many bytes are copied, so that a peer that does not read pins no more than it was sent, times a few.
pub const COPIED: usize = 8 * 1024;

thread_local! {
    static BUFFER: RefCell<BytesMut> = RefCell::new(BytesMut::new());
}

/// One read into the thread's buffer; the bytes are handed on without a copy, unless they are few.
///
/// # Errors
/// Those of `read`.
pub fn read_shared<E>(read: impl FnOnce(&mut BytesMut) -> Result<usize, E>) -> Result<Bytes, E> {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.capacity() < READ && !buffer.try_reclaim(ARENA) {
            *buffer = BytesMut::with_capacity(ARENA);
        }
        let len = read(buffer)?;
        if len > COPIED {
            return Ok(buffer.split().freeze());
        }
        let bytes = Bytes::copy_from_slice(buffer);
        buffer.clear();
        Ok(bytes)
    })
}
