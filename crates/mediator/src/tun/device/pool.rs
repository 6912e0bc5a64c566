//! Buffers that packets are read into. A large packet travels on in the buffer that it was read into; when its last part is gone the
//! buffer is used again. Small ones are copied out, so that none holds 66 KiB.
//! The device's reader has one.

use std::{collections::VecDeque, mem};

use bytes::Bytes;

/// The largest packet (IPv6: 40 octets and 65535) and the header before it.
const LARGEST: usize = 66 * 1024;
/// Up to so many octets are copied out.
const SMALL: usize = 8 * 1024;
/// How many buffers that are still in use somewhere are remembered.
const REMEMBERED: usize = 16;

/// The buffers.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: Vec<u8>,
    /// The oldest first.
    lent: VecDeque<Bytes>,
}

impl Pool {
    /// An empty buffer with room for any packet.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let mut buf = mem::take(&mut self.free);
        if buf.capacity() < LARGEST {
            buf = self
                .returned()
                .unwrap_or_else(|| Vec::with_capacity(LARGEST));
        }
        buf.clear();
        buf
    }

    /// A buffer was not needed.
    pub(super) fn give_back(&mut self, buf: Vec<u8>) {
        self.free = buf;
    }

    /// What stands in `buf` from `at` on.
    pub(super) fn freeze(&mut self, buf: Vec<u8>, at: usize) -> Bytes {
        if buf.len() <= SMALL {
            let octets = Bytes::copy_from_slice(buf.get(at..).unwrap_or_default());
            self.free = buf;
            return octets;
        }
        let whole = Bytes::from(buf);
        if self.lent.len() >= REMEMBERED {
            self.lent.pop_front();
        }
        self.lent.push_back(whole.clone());
        whole.slice(at.min(whole.len())..)
    }

    /// The oldest lent buffer, if nobody uses it any more.
    fn returned(&mut self) -> Option<Vec<u8>> {
        match self.lent.pop_front()?.try_into_mut() {
            Ok(buf) => {
                let buf = Vec::from(buf);
                (buf.capacity() >= LARGEST).then_some(buf)
            }
            Err(used) => {
                self.lent.push_front(used);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(pool: &mut Pool, len: usize) -> (Bytes, *const u8) {
        let mut buf = pool.take();
        buf.resize(len, 7);
        let at = buf.as_ptr();
        (pool.freeze(buf, 10), at)
    }

    #[test]
    fn a_large_packet_is_not_copied_and_its_buffer_comes_back() {
        let mut pool = Pool::default();
        let (packet, first) = fill(&mut pool, 60_000);
        assert_eq!(packet.len(), 59_990);
        assert_eq!(packet.as_ptr(), first.wrapping_add(10));
        let (other, second) = fill(&mut pool, 60_000);
        assert_ne!(first, second, "the first is still in use");
        drop(packet);
        let (_, third) = fill(&mut pool, 60_000);
        assert_eq!(third, first);
        drop(other);
    }

    #[test]
    fn a_small_packet_holds_no_large_buffer() {
        let mut pool = Pool::default();
        let (packet, first) = fill(&mut pool, 60);
        assert_eq!((packet.len(), packet[0]), (50, 7));
        let (_, second) = fill(&mut pool, 60);
        assert_eq!(first, second);
    }

    #[test]
    fn buffers_that_never_come_back_are_forgotten() {
        let mut pool = Pool::default();
        let kept: Vec<_> = (0..100).map(|_| fill(&mut pool, 60_000).0).collect();
        assert_eq!(pool.lent.len(), REMEMBERED);
        assert_eq!(kept.len(), 100);
    }
}
