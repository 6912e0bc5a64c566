//! A QUIC connection id that is copied, not allocated: every packet is compared with some.
//! The machine and its driver use it.
//! RFC 9000 §17.2: at most 20 octets in version 1; longer ones (RFC 8999) are not forwarded.

use std::fmt;

use bytes::Bytes;

/// The most octets of one.
const MOST: usize = 20;

/// A connection id.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    len: u8,
    octets: [u8; MOST],
}

impl ConnectionId {
    /// `None` if QUIC version 1 knows none of that length.
    pub fn new(id: &[u8]) -> Option<Self> {
        let mut octets = [0; MOST];
        octets.get_mut(..id.len())?.copy_from_slice(id);
        Some(Self {
            len: u8::try_from(id.len()).ok()?,
            octets,
        })
    }

    /// Its octets.
    pub fn octets(&self) -> &[u8] {
        self.octets.get(..usize::from(self.len)).unwrap_or(&[])
    }

    /// How many octets it has.
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a packet with a short header may carry it: there its length does not stand.
    pub fn leads(&self, packet: &[u8]) -> bool {
        packet
            .get(1..)
            .is_some_and(|rest| rest.starts_with(self.octets()))
    }

    pub(super) fn to_bytes(self) -> Bytes {
        Bytes::copy_from_slice(self.octets())
    }
}

/// Ids stay out of every log.
impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionId({} octets)", self.len)
    }
}
