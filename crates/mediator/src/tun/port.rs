//! The way back to programs: whoever has a packet for them hands it to a [`Port`] as headers and payload that nobody puts together first.
//! The flows use it; the [`super::Device`] is one, tests have one in memory.
//! Checksums: the headers hold the pseudo header's sum, the port finishes it or lets the kernel do so (RFC 9293 §3.1).

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use hoplite_wire::ip::{self, checksum, tcp, udp};

/// What fresh packets to programs begin with.
const HOP_LIMIT: u8 = 64;

/// Takes packets for programs.
pub(crate) trait Port: fmt::Debug + Send + Sync {
    /// Hands one over; `false` says that it was dropped, and counted, because there is no room or the device is gone.
    fn send(&self, packet: Outgoing<'_>) -> bool;

    /// The largest packet that programs expect, in octets.
    fn mtu(&self) -> u16;
}

/// A packet for a program, in pieces.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing<'a> {
    /// IP header and transport header.
    pub(crate) headers: &'a [u8],
    /// What follows them: two pieces, for a ring buffer has two.
    pub(crate) payload: [&'a [u8]; 2],
    /// Where the payload is longer: so many octets make a packet of their own, by the kernel or by the port.
    pub(crate) segment: Option<u16>,
    /// What is left to be done.
    pub(crate) kind: Kind,
}

/// What a packet is to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// TCP with the pseudo header's sum in its checksum field.
    Tcp,
    /// UDP with the same.
    Udp,
    /// Finished.
    Whole,
}

impl<'a> Outgoing<'a> {
    /// TCP with headers of [`tcp_headers`]. FIN and PSH go with the last segment.
    pub(crate) fn tcp(headers: &'a [u8], payload: [&'a [u8]; 2], segment: Option<u16>) -> Self {
        Self::of(Kind::Tcp, headers, payload, segment)
    }

    /// Datagrams with headers of [`udp_headers`]; the last may be shorter than `segment`.
    pub(crate) fn udp(headers: &'a [u8], payload: [&'a [u8]; 2], segment: Option<u16>) -> Self {
        Self::of(Kind::Udp, headers, payload, segment)
    }

    /// A packet that lacks nothing.
    pub(crate) fn whole(packet: &'a [u8]) -> Self {
        Self::of(Kind::Whole, packet, [&[], &[]], None)
    }

    fn of(kind: Kind, headers: &'a [u8], payload: [&'a [u8]; 2], segment: Option<u16>) -> Self {
        let len = payload[0].len() + payload[1].len();
        let segment = segment.filter(|segment| (1..len).contains(&usize::from(*segment)));
        Self {
            headers,
            payload,
            segment,
            kind,
        }
    }

    /// Octets of payload.
    pub(crate) fn payload_len(&self) -> usize {
        self.payload[0].len() + self.payload[1].len()
    }

    /// Where the transport header begins: we write no options.
    pub(crate) fn transport_at(&self) -> usize {
        match self.headers.first().map(|first| first >> 4) {
            Some(4) => 20,
            _ => 40,
        }
    }
}

impl Kind {
    /// Where the checksum stands in the transport header, if there is one to be finished.
    pub(crate) fn checksum_at(self) -> Option<usize> {
        match self {
            Self::Tcp => Some(tcp::CHECKSUM_AT),
            Self::Udp => Some(udp::CHECKSUM_AT),
            Self::Whole => None,
        }
    }
}

impl fmt::Debug for Outgoing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, len) = (self.kind, self.payload_len());
        write!(f, "{kind:?}({len} octets by {:?})", self.segment)
    }
}

/// Fills `out`, which is cleared first, with the headers of a TCP packet.
pub(crate) fn tcp_headers(
    out: &mut Vec<u8>,
    from: IpAddr,
    to: IpAddr,
    header: &tcp::Header,
    payload_len: usize,
) {
    let len = header.written_len() + payload_len;
    out.clear();
    ip::write_header(out, from, to, ip::TCP, HOP_LIMIT, len);
    header.write(checksum::pseudo(from, to, ip::TCP, len), out);
}

/// The same for UDP.
pub(crate) fn udp_headers(out: &mut Vec<u8>, from: SocketAddr, to: SocketAddr, payload_len: usize) {
    let len = udp::HEADER_LEN + payload_len;
    let (from_ip, to_ip) = (from.ip(), to.ip());
    out.clear();
    ip::write_header(out, from_ip, to_ip, ip::UDP, HOP_LIMIT, len);
    let sum = checksum::pseudo(from_ip, to_ip, ip::UDP, len);
    udp::write(out, from.port(), to.port(), payload_len, sum);
}
