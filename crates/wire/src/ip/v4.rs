//! The IPv4 header (RFC 791 §3.1).
//! Part of [`super`].

use std::net::Ipv4Addr;

use super::{Malformed, Packet, be16, checksum, len16};

/// The header without options.
const FIXED: usize = 20;
/// Options that are nothing.
const END_OF_LIST: u8 = 0;
const NO_OPERATION: u8 = 1;
/// "Don't fragment".
const DONT_FRAGMENT: u16 = 0x4000;
/// "More fragments", and the offset.
const FRAGMENT: u16 = 0x3fff;

pub(super) fn parse(octets: &[u8]) -> Result<Packet<'_>, Malformed> {
    let fixed: &[u8; FIXED] = octets.first_chunk().ok_or(Malformed::Truncated)?;
    let header_len = usize::from(fixed[0] & 15) * 4;
    let total = usize::from(be16(fixed[2], fixed[3]));
    if header_len < FIXED || total < header_len {
        return Err(Malformed::Length);
    }
    let payload = octets.get(header_len..total).ok_or(Malformed::Truncated)?;
    let flags = be16(fixed[6], fixed[7]);
    let address = |at: usize| Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]);
    Ok(Packet {
        source: address(12).into(),
        destination: address(16).into(),
        protocol: fixed[9],
        hop_limit: fixed[8],
        traffic_class: fixed[1],
        options: header_len > FIXED,
        for_routers: has_more_than_padding(octets.get(FIXED..header_len).unwrap_or_default()),
        fragment: flags & FRAGMENT != 0,
        dont_fragment: flags & DONT_FRAGMENT != 0,
        header_len,
        payload,
    })
}

/// Whether there is any option before the end of the list but "no operation". What follows the end is padding, whatever it says.
fn has_more_than_padding(options: &[u8]) -> bool {
    let first = options.iter().find(|kind| **kind != NO_OPERATION);
    first.is_some_and(|kind| *kind != END_OF_LIST)
}

/// Identification is zero: RFC 6864 §4.1 lets packets that nobody may fragment have any.
pub(super) fn header(
    [source, destination]: [Ipv4Addr; 2],
    protocol: u8,
    hop_limit: u8,
    payload_len: usize,
) -> [u8; FIXED] {
    let mut header = [0; FIXED];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&len16(payload_len.saturating_add(FIXED)));
    header[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
    header[8] = hop_limit;
    header[9] = protocol;
    header[12..16].copy_from_slice(&source.octets());
    header[16..20].copy_from_slice(&destination.octets());
    let sum = checksum::of(&[&header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}
