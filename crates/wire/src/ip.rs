//! IP packets as programs hand them to a TUN device, and the headers of what goes back to them.
//! IPv4 is RFC 791, IPv6 RFC 8200. Parsing never panics and looks at no checksum; lengths are those of the headers, what follows is cut off.

pub mod checksum;
pub mod icmp;
pub mod tcp;
pub mod udp;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

/// Why bytes are no packet.
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

/// The packet at the beginning of `bytes`.
///
/// # Errors
/// [`Malformed`].
pub fn parse(bytes: &[u8]) -> Result<Packet<'_>, Malformed> {
    match bytes.first().map(|first| first >> 4) {
        Some(4) => parse_v4(bytes),
        Some(6) => parse_v6(bytes),
        Some(_) => Err(Malformed::Version),
        None => Err(Malformed::Truncated),
    }
}

/// Appends the header of a packet with a payload of `payload_len` bytes and says how long it is: 20 bytes if both ends are IPv4, else 40.
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
            let header = write_v4([source, destination], protocol, hop_limit, payload_len);
            out.extend_from_slice(&header);
            header.len()
        }
        (source, destination) => {
            let ends = [source, destination].map(mapped);
            let header = write_v6(ends, protocol, hop_limit, payload_len);
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
            "Packet(IPv{version}, protocol {}, {len} bytes)",
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

// The IPv4 header (RFC 791 §3.1).

/// The header without options.
const V4_HEADER: usize = 20;

/// Options that are nothing.
const END_OF_LIST: u8 = 0;

const NO_OPERATION: u8 = 1;

/// "Don't fragment".
const DONT_FRAGMENT: u16 = 0x4000;

/// "More fragments", and the offset.
const FRAGMENT_BITS: u16 = 0x3fff;

fn parse_v4(bytes: &[u8]) -> Result<Packet<'_>, Malformed> {
    let fixed: &[u8; V4_HEADER] = bytes.first_chunk().ok_or(Malformed::Truncated)?;
    let header_len = usize::from(fixed[0] & 15) * 4;
    let total = usize::from(be16(fixed[2], fixed[3]));
    if header_len < V4_HEADER || total < header_len {
        return Err(Malformed::Length);
    }
    let payload = bytes.get(header_len..total).ok_or(Malformed::Truncated)?;
    let flags = be16(fixed[6], fixed[7]);
    let address = |at: usize| Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]);
    Ok(Packet {
        source: address(12).into(),
        destination: address(16).into(),
        protocol: fixed[9],
        hop_limit: fixed[8],
        traffic_class: fixed[1],
        options: header_len > V4_HEADER,
        for_routers: has_more_than_padding(bytes.get(V4_HEADER..header_len).unwrap_or_default()),
        fragment: flags & FRAGMENT_BITS != 0,
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
fn write_v4(
    [source, destination]: [Ipv4Addr; 2],
    protocol: u8,
    hop_limit: u8,
    payload_len: usize,
) -> [u8; V4_HEADER] {
    let mut header = [0; V4_HEADER];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&len16(payload_len.saturating_add(V4_HEADER)));
    header[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
    header[8] = hop_limit;
    header[9] = protocol;
    header[12..16].copy_from_slice(&source.octets());
    header[16..20].copy_from_slice(&destination.octets());
    let sum = checksum::of(&[&header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

// The IPv6 header (RFC 8200 §3) and the walk along its extension headers (§4).

/// The header without extensions.
const V6_HEADER: usize = 40;

/// How many extension headers are followed. "Each extension header should occur at most once, except for the Destination Options header
/// which should occur at most twice": six in all.
const EXTENSIONS: usize = 8;

const HOP_BY_HOP: u8 = 0;

const ROUTING: u8 = 43;

const FRAGMENT: u8 = 44;

const AUTHENTICATION: u8 = 51;

const DESTINATION: u8 = 60;

const MOBILITY: u8 = 135;

const HOST_IDENTITY: u8 = 139;

const SHIM6: u8 = 140;

/// What stands behind the extension headers.
#[derive(Default)]
struct Walk {
    protocol: u8,
    /// Bytes of extension headers.
    len: usize,
    fragment: bool,
    for_routers: bool,
    /// Not the first piece: what follows is in the middle of something.
    later: bool,
}

fn parse_v6(bytes: &[u8]) -> Result<Packet<'_>, Malformed> {
    let fixed: &[u8; V6_HEADER] = bytes.first_chunk().ok_or(Malformed::Truncated)?;
    let end = V6_HEADER + usize::from(be16(fixed[4], fixed[5]));
    let body = bytes.get(V6_HEADER..end).ok_or(Malformed::Truncated)?;
    let walk = walk(fixed[6], body)?;
    let address = |at: usize| {
        let mut address = [0; 16];
        address.copy_from_slice(&fixed[at..at + 16]);
        IpAddr::from(address)
    };
    Ok(Packet {
        source: address(8),
        destination: address(24),
        protocol: walk.protocol,
        hop_limit: fixed[7],
        traffic_class: (fixed[0] << 4) | (fixed[1] >> 4),
        options: walk.len > 0,
        for_routers: walk.for_routers,
        fragment: walk.fragment,
        dont_fragment: true,
        header_len: V6_HEADER + walk.len,
        payload: body.get(walk.len..).unwrap_or_default(),
    })
}

fn walk(first: u8, body: &[u8]) -> Result<Walk, Malformed> {
    let mut walk = Walk {
        protocol: first,
        ..Walk::default()
    };
    for _ in 0..=EXTENSIONS {
        let rest = body.get(walk.len..).unwrap_or_default();
        match extension_len(walk.protocol, rest)? {
            Some(len) if !walk.later => walk.step(rest, len)?,
            _ => return Ok(walk),
        }
    }
    Err(Malformed::Extensions)
}

/// How long the extension header `kind` is; `None` for what is none.
fn extension_len(kind: u8, rest: &[u8]) -> Result<Option<usize>, Malformed> {
    let units = || rest.get(1).copied().map(usize::from);
    let len = match kind {
        HOP_BY_HOP | ROUTING | DESTINATION | MOBILITY | HOST_IDENTITY | SHIM6 => {
            units().map(|units| (units + 1) * 8)
        }
        AUTHENTICATION => units().map(|units| (units + 2) * 4),
        FRAGMENT => Some(8),
        _ => return Ok(None),
    };
    len.ok_or(Malformed::Truncated).map(Some)
}

impl Walk {
    fn step(&mut self, rest: &[u8], len: usize) -> Result<(), Malformed> {
        let header = rest.get(..len).ok_or(Malformed::Truncated)?;
        if let (FRAGMENT, &[_, _, high, low, ..]) = (self.protocol, header) {
            let field = be16(high, low);
            // RFC 6946: a packet with a fragment header that is whole is no fragment.
            self.fragment |= field & 0xfff9 != 0;
            self.later |= field & 0xfff8 != 0;
        }
        self.for_routers |= match (self.protocol, header) {
            (HOP_BY_HOP, _) => true,
            (ROUTING, [_, _, _, segments_left, ..]) => *segments_left != 0,
            _ => false,
        };
        self.protocol = header.first().copied().unwrap_or_default();
        self.len += len;
        Ok(())
    }
}

fn write_v6(
    [source, destination]: [Ipv6Addr; 2],
    protocol: u8,
    hop_limit: u8,
    payload_len: usize,
) -> [u8; V6_HEADER] {
    let mut header = [0; V6_HEADER];
    header[0] = 0x60;
    header[4..6].copy_from_slice(&len16(payload_len));
    header[6] = protocol;
    header[7] = hop_limit;
    header[8..24].copy_from_slice(&source.octets());
    header[24..40].copy_from_slice(&destination.octets());
    header
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests;
