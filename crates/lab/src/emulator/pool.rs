//! The memory of all packets in a network: bounded, and reused. `network` owns one.

/// Spare buffers kept at most.
const SPARE: usize = 4096;
/// A buffer that has grown beyond is not kept.
const LARGEST_SPARE: usize = 4096;

/// Buffers for packets. When `limit` octets are in use, no packet is taken any more: the driver counts it as a drop of its own.
#[derive(Debug)]
pub struct Pool {
    spare: Vec<Vec<u8>>,
    used: usize,
    limit: usize,
}

impl Pool {
    /// For so many octets of packets.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            spare: Vec::new(),
            used: 0,
            limit,
        }
    }

    /// A copy of `octets` in a buffer; `None` if that is beyond the limit.
    pub fn take(&mut self, octets: &[u8]) -> Option<Vec<u8>> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(octets);
        if self.used.saturating_add(buffer.capacity()) > self.limit {
            self.keep(buffer);
            return None;
        }
        self.used += buffer.capacity();
        Some(buffer)
    }

    /// Takes a buffer back.
    pub fn give(&mut self, buffer: Vec<u8>) {
        self.used = self.used.saturating_sub(buffer.capacity());
        self.keep(buffer);
    }

    fn keep(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE && buffer.capacity() <= LARGEST_SPARE {
            self.spare.push(buffer);
        }
    }

    /// Octets in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used
    }
}
