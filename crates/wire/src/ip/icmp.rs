//! ICMP: echoes, and the errors that a program is told when a packet of its cannot be carried. RFC 792 and RFC 1191 for IPv4, RFC 4443 for IPv6.
//! The mediator answers programs with it.

mod errors;

use std::net::IpAddr;

pub use self::errors::{Unreachable, time_exceeded, too_big, unreachable};
use super::{ICMP, ICMPV6, Packet, checksum, icmp_of, write_header};

/// Octets of an ICMP header.
const HEADER_LEN: usize = 8;
/// What fresh packets begin with.
const HOP_LIMIT: u8 = 64;

/// An echo request or reply ("ping").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// Whether it is the answer.
    pub reply: bool,
    /// Whose echo it is: on Linux the socket's.
    pub identifier: u16,
    /// Counts up.
    pub sequence: u16,
    /// Comes back as it went.
    pub payload: &'a [u8],
}

/// The echo that `packet` is, if it is one.
pub fn echo<'a>(packet: &Packet<'a>) -> Option<Echo<'a>> {
    let (&[kind, 0, _, _, a, b, c, d], payload) = packet.payload.split_first_chunk()? else {
        return None;
    };
    let reply = match (packet.protocol, kind) {
        (ICMP, 8) | (ICMPV6, 128) => false,
        (ICMP, 0) | (ICMPV6, 129) => true,
        _ => return None,
    };
    Some(Echo {
        reply,
        identifier: u16::from_be_bytes([a, b]),
        sequence: u16::from_be_bytes([c, d]),
        payload,
    })
}

impl Echo<'_> {
    /// The whole packet that carries it.
    pub fn packet(&self, source: IpAddr, destination: IpAddr) -> Vec<u8> {
        let kind = match (icmp_of(source), self.reply) {
            (ICMP, false) => 8,
            (ICMP, true) => 0,
            (_, false) => 128,
            (_, true) => 129,
        };
        let [a, b] = self.identifier.to_be_bytes();
        let [c, d] = self.sequence.to_be_bytes();
        let header = [kind, 0, 0, 0, a, b, c, d];
        message(source, destination, header, self.payload)
    }
}

/// An error as somebody on the way would send it: type and code of the family, the second word of its header, what it quotes.
pub fn error(
    source: IpAddr,
    destination: IpAddr,
    [kind, code]: [u8; 2],
    rest: u32,
    quoted: &[u8],
) -> Vec<u8> {
    let [a, b, c, d] = rest.to_be_bytes();
    message(source, destination, [kind, code, 0, 0, a, b, c, d], quoted)
}

/// A packet with an ICMP message in it; the checksum is filled in.
fn message(
    source: IpAddr,
    destination: IpAddr,
    mut header: [u8; HEADER_LEN],
    body: &[u8],
) -> Vec<u8> {
    let (protocol, len) = (icmp_of(source), HEADER_LEN + body.len());
    let sum = match protocol {
        ICMP => checksum::of(&[&header, body]),
        _ => checksum::transport(source, destination, protocol, &[&header, body]),
    };
    header[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut out = Vec::with_capacity(40 + len);
    write_header(&mut out, source, destination, protocol, HOP_LIMIT, len);
    out.extend_from_slice(&header);
    out.extend_from_slice(body);
    out
}
