//! A connection id as forwarding uses it.
//! RFC 9000 §17.2: "In QUIC version 1, this value MUST NOT exceed 20 bytes".

use std::{fmt, ops::Deref};

use bytes::Bytes;
use ring::rand::{SecureRandom, SystemRandom};

/// The longest id that is forwarded, in bytes.
pub(crate) const LONGEST: usize = 20;

/// An id of up to [`LONGEST`] bytes. It is never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id {
    len: u8,
    octets: [u8; LONGEST],
}

impl Id {
    /// `None` when it is too long.
    pub(crate) fn new(id: &[u8]) -> Option<Self> {
        let mut octets = [0; LONGEST];
        octets.get_mut(..id.len())?.copy_from_slice(id);
        let len = u8::try_from(id.len()).ok()?;
        Some(Self { len, octets })
    }

    /// An id of `len` bytes that nobody can guess; `None` when it would be too long, or the system has no randomness.
    pub(crate) fn random(len: usize) -> Option<Self> {
        let mut octets = [0; LONGEST];
        SystemRandom::new().fill(octets.get_mut(..len)?).ok()?;
        let len = u8::try_from(len).ok()?;
        Some(Self { len, octets })
    }

    /// "Two Connection IDs conflict if and only if one Connection ID is equal to or a prefix of another."
    pub(crate) fn conflicts_with(&self, other: &Self) -> bool {
        self.starts_with(other) || other.starts_with(self)
    }

    /// For a capsule.
    pub(crate) fn to_bytes(self) -> Bytes {
        Bytes::copy_from_slice(&self)
    }
}

impl Deref for Id {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.octets.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({} octets)", self.len)
    }
}
