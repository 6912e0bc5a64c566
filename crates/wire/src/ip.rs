//! IP packets as programs hand them to a TUN device, and the headers of what goes back to them.
//! The mediator's transparent side parses and builds with it; so does whatever carries whole packets (RFC 9484).
//! IPv4 is RFC 791, IPv6 RFC 8200. Parsing never panics and looks at no checksum; lengths are those of the headers, what follows is cut off.

pub mod checksum;
pub mod icmp;
pub mod tcp;
#[cfg(test)]
mod tests;
pub mod udp;
mod v4;
mod v6;

use std::net::IpAddr;

/// The protocol number of ICMP for IPv4.
pub const ICMP: u8 = 1;
/// The protocol number of TCP.
pub const TCP: u8 = 6;
/// The protocol number of UDP.
pub const UDP: u8 = 17;
/// The protocol number of ICMP for IPv6.
pub const ICMPV6: u8 = 58;

/// What a packet's headers say. `Debug` is not derived: addresses end in no log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Who sent it.
    pub source: IpAddr,
    /// Whom it is for.
    pub destination: IpAddr,
    /// What the payload is: the last Next Header of IPv6.
    pub protocol: u8,
    /// TTL or Hop Limit.
    pub hop_limit: u8,
    /// Type of Service or Traffic Class: DSCP and ECN.
    pub traffic_class: u8,
    /// Whether there are IPv4 options or IPv6 extension headers.
    pub options: bool,
    /// Whether any of them speak to routers on the way: IPv4 options beside padding, of which source routes are some, an IPv6
    /// hop-by-hop options header, or a routing header that has hops left.
    pub for_routers: bool,
    /// Whether it is a piece of a packet. Of any piece but the first the payload begins in the middle.
    pub fragment: bool,
    /// Whether nobody may fragment it; always so for IPv6.
    pub dont_fragment: bool,
    /// Where the payload begins: behind options and extension headers.
    pub header_len: usize,
    /// What the protocol makes of it.
    pub payload: &'a [u8],
}

/// Why octets are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Its version is neither 4 nor 6.
    #[error("neither IPv4 nor IPv6")]
    Version,
    /// There is less than its headers say.
    #[error("less than the headers say")]
    Truncated,
    /// A header says that it is shorter than it must be.
    #[error("a header of an impossible length")]
    Length,
    /// More extension headers than anybody has a use for.
    #[error("too many extension headers")]
    Extensions,
}

/// The packet at the beginning of `octets`.
///
/// # Errors
/// [`Malformed`].
pub fn parse(octets: &[u8]) -> Result<Packet<'_>, Malformed> {
    match octets.first().map(|first| first >> 4) {
        Some(4) => v4::parse(octets),
        Some(6) => v6::parse(octets),
        Some(_) => Err(Malformed::Version),
        None => Err(Malformed::Truncated),
    }
}

/// Appends the header of a packet with a payload of `payload_len` octets and says how long it is: 20 octets if both ends are IPv4, else 40.
/// Never to be fragmented, no options, traffic class 0. A length that no header can say is written as the largest.
pub fn write_header(
    out: &mut Vec<u8>,
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    hop_limit: u8,
    payload_len: usize,
) -> usize {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = v4::header([source, destination], protocol, hop_limit, payload_len);
            out.extend_from_slice(&header);
            header.len()
        }
        (source, destination) => {
            let ends = [source, destination].map(v6::mapped);
            let header = v6::header(ends, protocol, hop_limit, payload_len);
            out.extend_from_slice(&header);
            header.len()
        }
    }
}

/// The number of ICMP for packets from or to `address`.
pub fn icmp_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { ICMP } else { ICMPV6 }
}

impl Packet<'_> {
    /// Whether the transport checksum in the payload is right. UDP over IPv4 may do without one (RFC 768).
    /// Protocols without a checksum that covers addresses are always right here.
    pub fn checksum_is_right(&self) -> bool {
        let sum = || {
            checksum::transport(
                self.source,
                self.destination,
                self.protocol,
                &[self.payload],
            )
        };
        match self.protocol {
            UDP if udp::has_no_checksum(self.payload) => self.source.is_ipv4(),
            TCP | UDP | ICMPV6 => sum() == 0,
            ICMP => checksum::of(&[self.payload]) == 0,
            _ => true,
        }
    }
}

impl std::fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let version = if self.source.is_ipv4() { 4 } else { 6 };
        let len = self.payload.len();
        write!(
            f,
            "Packet(IPv{version}, protocol {}, {len} octets)",
            self.protocol
        )
    }
}

fn be16(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}

/// A length as a header writes it; what does not fit is the largest.
fn len16(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}
