//! The UDP header (RFC 768).

use super::{Malformed, be16, len16};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Where the checksum stands in the header.
pub const CHECKSUM_AT: usize = 6;

/// What a UDP header says, and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub destination: u16,
    /// The payload; of a packet that the kernel left to us to cut, of all datagrams one after another.
    pub payload: &'a [u8],
}

/// The datagram at the beginning of an IP payload.
///
/// # Errors
/// [`Malformed::Truncated`] or [`Malformed::Length`].
pub fn parse(bytes: &[u8]) -> Result<Datagram<'_>, Malformed> {
    let header: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(Malformed::Truncated)?;
    let len = usize::from(be16(header[4], header[5]));
    if len < HEADER_LEN {
        return Err(Malformed::Length);
    }
    Ok(Datagram {
        source: be16(header[0], header[1]),
        destination: be16(header[2], header[3]),
        payload: bytes.get(HEADER_LEN..len).ok_or(Malformed::Truncated)?,
    })
}

/// Appends a header for a payload of `payload_len` bytes.
pub fn write(out: &mut Vec<u8>, source: u16, destination: u16, payload_len: usize, checksum: u16) {
    out.extend_from_slice(&source.to_be_bytes());
    out.extend_from_slice(&destination.to_be_bytes());
    out.extend_from_slice(&len16(payload_len.saturating_add(HEADER_LEN)));
    out.extend_from_slice(&checksum.to_be_bytes());
}

pub(super) fn has_no_checksum(bytes: &[u8]) -> bool {
    bytes.get(CHECKSUM_AT..HEADER_LEN) == Some(&[0, 0])
}
