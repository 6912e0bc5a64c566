//! ICMP: echoes, and the errors that a program is told when a packet of its cannot be carried. RFC 792 and RFC 1191 for IPv4, RFC 4443 for IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{ICMP, ICMPV6, Packet, checksum, icmp_of, parse, write_header};

/// Bytes of an ICMP header.
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

// ICMP errors, built from the packet that caused them, as if its target had answered.
// RFC 1122 §3.2.2 and RFC 4443 §2.4 (e) say about which packets none is sent.

/// RFC 1122 §3.2.2 asks for at least 8 bytes behind the header, RFC 1812 §4.3.2.3 for no more than 576 in all.
const QUOTED_V4: usize = 576 - 28;

/// RFC 4443 §2.4 (c): as much as the minimum MTU holds.
const QUOTED_V6: usize = MINIMUM_MTU_V6 - 48;

const MINIMUM_MTU_V6: usize = 1280;

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unreachable {
    /// There is no way to the target's network.
    Network,
    /// The target, or the name that stands behind its address, cannot be reached.
    Host,
    /// Nobody listens there.
    Port,
    /// Somebody's policy forbids it.
    Prohibited,
}

/// "Destination unreachable" for whoever sent `cause`; `None` where no error may be sent.
pub fn unreachable(cause: &[u8], why: Unreachable) -> Option<Vec<u8>> {
    answer(cause, |packet| match packet.source {
        IpAddr::V4(_) => [3, why.code_v4(), 0, 0, 0, 0, 0, 0],
        IpAddr::V6(_) => [1, why.code_v6(), 0, 0, 0, 0, 0, 0],
    })
}

/// "Packet too big": the path carries no more than `mtu` bytes. For IPv6 it never says less than 1280 (RFC 8201 §4).
pub fn too_big(cause: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let bytes = |mtu: usize| u32::try_from(mtu).unwrap_or(u32::MAX).to_be_bytes();
    answer(cause, |packet| match packet.source {
        IpAddr::V4(_) => {
            let [_, _, high, low] = bytes(mtu.min(usize::from(u16::MAX)));
            [3, 4, 0, 0, 0, 0, high, low]
        }
        IpAddr::V6(_) => {
            let [a, b, c, d] = bytes(mtu.max(MINIMUM_MTU_V6));
            [2, 0, 0, 0, a, b, c, d]
        }
    })
}

/// "Time to live exceeded in transit": the packet has used up its hops here.
pub fn time_exceeded(cause: &[u8]) -> Option<Vec<u8>> {
    answer(cause, |packet| match packet.source {
        IpAddr::V4(_) => [11, 0, 0, 0, 0, 0, 0, 0],
        IpAddr::V6(_) => [3, 0, 0, 0, 0, 0, 0, 0],
    })
}

fn answer(cause: &[u8], header: impl FnOnce(&Packet<'_>) -> [u8; 8]) -> Option<Vec<u8>> {
    let packet = parse(cause).ok()?;
    if !may_be_answered(&packet) {
        return None;
    }
    let whole = packet.header_len + packet.payload.len();
    let most = if packet.source.is_ipv4() {
        QUOTED_V4
    } else {
        QUOTED_V6
    };
    let quoted = cause.get(..whole.min(most)).unwrap_or(cause);
    let header = header(&packet);
    Some(message(packet.destination, packet.source, header, quoted))
}

/// Not about errors, not to or about more than one host, not about the later pieces of a packet.
fn may_be_answered(packet: &Packet<'_>) -> bool {
    let kind = packet.payload.first().copied();
    let is_error = match packet.protocol {
        ICMP => !matches!(kind, Some(0 | 8 | 13..=18)),
        ICMPV6 => kind.is_none_or(|kind| kind < 128),
        _ => false,
    };
    !is_error && !packet.fragment && is_one_host(packet.source) && is_one_host(packet.destination)
}

fn is_one_host(address: IpAddr) -> bool {
    let several = address.is_multicast() || address.is_unspecified();
    !several && address != Ipv4Addr::BROADCAST && address != Ipv6Addr::UNSPECIFIED
}

impl Unreachable {
    /// RFC 792, RFC 1812 §5.2.7.1.
    fn code_v4(self) -> u8 {
        match self {
            Self::Network => 0,
            Self::Host => 1,
            Self::Port => 3,
            Self::Prohibited => 13,
        }
    }

    /// RFC 4443 §3.1.
    fn code_v6(self) -> u8 {
        match self {
            Self::Network => 0,
            Self::Prohibited => 1,
            Self::Host => 3,
            Self::Port => 4,
        }
    }
}
