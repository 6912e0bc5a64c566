//! Collects consecutive outgoing transmits into batches that one system call sends (UDP_SEGMENT, "GSO"): what passes beside QUIC, which makes
//! batches of its own.
//! No I/O: call [`Coalescer::push`] until it answers [`Pushed::Full`], send [`Coalescer::batch`], [`Coalescer::clear`], push again.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};

use quinn_udp::{EcnCodepoint, Transmit};

/// The largest UDP payload over IPv4, hence the most bytes of a batch: the kernel rejects what is longer.
pub const MOST_BYTES: usize = 65_507;

/// The most datagrams of a batch: the kernel's UDP_MAX_SEGMENTS.
pub const MOST_SEGMENTS: usize = 64;

/// The batch that is being collected: at most [`MOST_BYTES`], in a buffer that is used again.
#[derive(Debug)]
pub struct Coalescer {
    /// What all segments have in common; none while the batch is empty.
    head: Option<Head>,
    contents: Vec<u8>,
    most_segments: usize,
}

/// What the transmits of one batch share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    destination: SocketAddr,
    ecn: Option<EcnCodepoint>,
    /// The address of ours that the packets leave from.
    source: Option<IpAddr>,
    /// The size of every segment but the last, which may be shorter.
    segment: usize,
}

/// What became of a transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Pushed {
    /// It is the end of the batch now.
    Kept,
    /// It does not go with the batch, which stays as it was: send and clear that, then push again.
    Full,
}

impl Default for Coalescer {
    fn default() -> Self {
        Self {
            head: None,
            contents: Vec::new(),
            most_segments: MOST_SEGMENTS,
        }
    }
}

impl Coalescer {
    /// Limits the batches to come: one segment where the network interface cannot segment.
    pub fn limit(&mut self, segments: usize) {
        self.most_segments = segments.clamp(1, MOST_SEGMENTS);
    }

    /// Appends `transmit`, if one system call can send it with what is there.
    /// An empty batch takes everything.
    pub fn push(&mut self, transmit: &Transmit<'_>) -> Pushed {
        let head = Head::of(transmit);
        match self.head {
            None => self.head = Some(head),
            Some(batch) if self.takes(batch, head, transmit.contents.len()) => {}
            Some(_) => return Pushed::Full,
        }
        self.contents.extend_from_slice(transmit.contents);
        Pushed::Kept
    }

    fn takes(&self, batch: Head, next: Head, bytes: usize) -> bool {
        let total = self.contents.len() + bytes;
        let full_so_far = self.contents.len().is_multiple_of(batch.segment);
        let equal = batch == next;
        let single = next.segment == bytes;
        // A lone datagram may be a probe of the path's MTU: a shorter one that followed it would share its fate.
        let shorter_last = single
            && bytes < batch.segment
            && self.contents.len() > batch.segment
            && batch.alike(next);
        bytes > 0
            && full_so_far
            && (equal || shorter_last)
            && total <= MOST_BYTES
            && total.div_ceil(batch.segment) <= self.most_segments
    }

    /// The batch as one transmit.
    pub fn batch(&self) -> Option<Transmit<'_>> {
        let head = self.head?;
        Some(Transmit {
            destination: head.destination,
            ecn: head.ecn,
            contents: &self.contents,
            segment_size: (self.contents.len() > head.segment).then_some(head.segment),
            src_ip: head.source,
        })
    }

    /// Forgets the batch.
    pub fn clear(&mut self) {
        self.head = None;
        self.contents.clear();
    }

    /// How many datagrams are waiting.
    pub fn segments(&self) -> usize {
        self.head
            .map_or(0, |head| self.contents.len().div_ceil(head.segment))
    }

    /// Whether nothing is waiting.
    pub fn is_empty(&self) -> bool {
        self.head.is_none()
    }
}

impl Head {
    /// Whether the two differ in nothing but the size of their segments.
    fn alike(self, other: Self) -> bool {
        let segment = self.segment;
        self == Self { segment, ..other }
    }

    fn of(transmit: &Transmit<'_>) -> Self {
        let whole = transmit.contents.len().max(1);
        Self {
            destination: transmit.destination,
            ecn: transmit.ecn,
            source: transmit.src_ip,
            segment: transmit
                .segment_size
                .map_or(whole, |size| size.clamp(1, whole)),
        }
    }
}
