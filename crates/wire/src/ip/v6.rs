//! The IPv6 header (RFC 8200 §3) and the walk along its extension headers (§4).
//! Part of [`super`].

use std::net::{IpAddr, Ipv6Addr};

use super::{Malformed, Packet, be16, len16};

/// The header without extensions.
const FIXED: usize = 40;
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
    /// Octets of extension headers.
    len: usize,
    fragment: bool,
    for_routers: bool,
    /// Not the first piece: what follows is in the middle of something.
    later: bool,
}

pub(super) fn parse(octets: &[u8]) -> Result<Packet<'_>, Malformed> {
    let fixed: &[u8; FIXED] = octets.first_chunk().ok_or(Malformed::Truncated)?;
    let end = FIXED + usize::from(be16(fixed[4], fixed[5]));
    let body = octets.get(FIXED..end).ok_or(Malformed::Truncated)?;
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
        header_len: FIXED + walk.len,
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

pub(super) fn header(
    [source, destination]: [Ipv6Addr; 2],
    protocol: u8,
    hop_limit: u8,
    payload_len: usize,
) -> [u8; FIXED] {
    let mut header = [0; FIXED];
    header[0] = 0x60;
    header[4..6].copy_from_slice(&len16(payload_len));
    header[6] = protocol;
    header[7] = hop_limit;
    header[8..24].copy_from_slice(&source.octets());
    header[24..40].copy_from_slice(&destination.octets());
    header
}

pub(super) fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}
