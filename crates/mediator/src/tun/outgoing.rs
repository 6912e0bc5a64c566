//! The way back to programs: packets for them go to a [`PacketSink`] as headers and payload that nobody puts together first; ICMP errors; and
//! segmentation in software.
//! Checksums: the headers hold the pseudo header's sum, the sink finishes it or lets the kernel do so (RFC 9293 §3.1).

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use hoplite_overlay::{Error, ErrorKind, Reason};
use hoplite_wire::ip::{
    self, checksum,
    icmp::Unreachable,
    tcp::{self, FLAGS_AT, Flags},
    udp,
};

use super::{DeviceContext, FlowKey};

/// What fresh packets to programs begin with.
const HOP_LIMIT: u8 = 64;

/// Takes packets for programs.
pub(crate) trait PacketSink: fmt::Debug + Send + Sync {
    /// Hands one over; `false` says that it was dropped, and counted, because there is no room or the device is gone.
    fn send(&self, packet: OutgoingPacket<'_>) -> bool;

    /// The largest packet that programs expect, in bytes.
    fn mtu(&self) -> u16;
}

/// A packet for a program, in pieces.
#[derive(Clone, Copy)]
pub(crate) struct OutgoingPacket<'a> {
    /// IP header and transport header.
    pub(crate) headers: &'a [u8],
    /// What follows them: two pieces, for a ring buffer has two.
    pub(crate) payload: [&'a [u8]; 2],
    /// Where the payload is longer: this many bytes make a packet of their own, by the kernel or by the sink.
    pub(crate) segment: Option<u16>,
    /// What is left to the sink.
    pub(crate) offload: Offload,
}

/// What is left to the sink, which does it or has the kernel do it: checksum and segmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offload {
    /// TCP with the pseudo header's sum in its checksum field.
    Tcp,
    /// UDP with that in its checksum field.
    Udp,
    /// Finished.
    None,
}

impl<'a> OutgoingPacket<'a> {
    /// TCP with headers of [`tcp_headers`]. FIN and PSH go with the last segment.
    pub(crate) fn tcp(headers: &'a [u8], payload: [&'a [u8]; 2], segment: Option<u16>) -> Self {
        Self::of(Offload::Tcp, headers, payload, segment)
    }

    /// Datagrams with headers of [`udp_headers`]; the last may be shorter than `segment`.
    pub(crate) fn udp(headers: &'a [u8], payload: [&'a [u8]; 2], segment: Option<u16>) -> Self {
        Self::of(Offload::Udp, headers, payload, segment)
    }

    /// A packet that lacks nothing.
    pub(crate) fn whole(packet: &'a [u8]) -> Self {
        Self::of(Offload::None, packet, [&[], &[]], None)
    }

    fn of(
        offload: Offload,
        headers: &'a [u8],
        payload: [&'a [u8]; 2],
        segment: Option<u16>,
    ) -> Self {
        let len = payload[0].len() + payload[1].len();
        let segment = segment.filter(|segment| (1..len).contains(&usize::from(*segment)));
        Self {
            headers,
            payload,
            segment,
            offload,
        }
    }

    /// Bytes of payload.
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

impl Offload {
    /// Where the checksum stands in the transport header, if there is one to be finished.
    pub(crate) fn checksum_at(self) -> Option<usize> {
        match self {
            Self::Tcp => Some(tcp::CHECKSUM_AT),
            Self::Udp => Some(udp::CHECKSUM_AT),
            Self::None => None,
        }
    }
}

impl fmt::Debug for OutgoingPacket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (offload, len) = (self.offload, self.payload_len());
        write!(f, "{offload:?}({len} bytes by {:?})", self.segment)
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

/// Fills `out`, which is cleared first, with the headers of a UDP packet.
pub(crate) fn udp_headers(out: &mut Vec<u8>, from: SocketAddr, to: SocketAddr, payload_len: usize) {
    let len = udp::HEADER_LEN + payload_len;
    let (from_ip, to_ip) = (from.ip(), to.ip());
    out.clear();
    ip::write_header(out, from_ip, to_ip, ip::UDP, HOP_LIMIT, len);
    let sum = checksum::pseudo(from_ip, to_ip, ip::UDP, len);
    udp::write(out, from.port(), to.port(), payload_len, sum);
}

/// What a failure of the overlay is called. The table of the crate's documentation, for programs that know no proxy.
pub(crate) fn unreachable_for(error: &Error) -> Unreachable {
    use Unreachable::{Host, Network, Port, Prohibited};
    match error.kind() {
        ErrorKind::EntryUnreachable | ErrorKind::PathFailed | ErrorKind::Bug => Network,
        ErrorKind::Forbidden | ErrorKind::Unsupported => Prohibited,
        ErrorKind::TimedOut => Host,
        ErrorKind::TargetFailed => match error.reason() {
            Some(Reason::Refused) => Port,
            Some(Reason::NetworkUnreachable) => Network,
            _ => Host,
        },
    }
}

/// Tells the sender of the packet `cause` that its target is out of reach.
pub(crate) fn tell_unreachable(context: &DeviceContext, cause: &[u8], why: Unreachable) {
    tell(context, ip::icmp::unreachable(cause, why));
}

/// Tells the sender of `cause` how large a packet may be.
pub(crate) fn tell_too_big(context: &DeviceContext, cause: &[u8], mtu: usize) {
    tell(context, ip::icmp::too_big(cause, mtu));
}

/// Tells the sender of `cause` that it has used up its hops.
pub(crate) fn tell_time_exceeded(context: &DeviceContext, cause: &[u8]) {
    tell(context, ip::icmp::time_exceeded(cause));
}

fn tell(context: &DeviceContext, answer: Option<Vec<u8>>) {
    if let Some(packet) = answer {
        context.counters.errors_told.add(1);
        context.sink.send(OutgoingPacket::whole(&packet));
    }
}

/// The packet that a program sent, as far as an error has to quote it: flows keep no packets.
pub(crate) fn datagram_of(key: FlowKey, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(48 + payload.len());
    udp_headers(&mut packet, key.program, key.target, payload.len());
    packet.extend_from_slice(payload);
    packet
}

/// Segmentation offload in software, where nobody below takes large packets: cuts one into those that the kernel would make of it, with finished
/// checksums, and hands each, as headers and payload, to `each`; stops when that answers `false`.
pub(crate) fn segment_packet(
    packet: OutgoingPacket<'_>,
    mut each: impl FnMut(&[u8], [&[u8]; 2]) -> bool,
) -> bool {
    let len = packet.payload_len();
    let size = packet.segment.map_or(len, usize::from).max(1);
    let mut headers = Vec::with_capacity(packet.headers.len());
    for (number, at) in (0..len.max(1)).step_by(size).enumerate() {
        let end = len.min(at + size);
        let payload = range(packet.payload, at, end);
        headers.clear();
        headers.extend_from_slice(packet.headers);
        if packet.segment.is_some() {
            let part = SoftwareSegment {
                number,
                at,
                last: end == len,
            };
            part.adapt(&mut headers, packet, end - at);
        }
        finish_checksum(&mut headers, packet, payload);
        if !each(&headers, payload) {
            return false;
        }
    }
    true
}

/// One of the packets that a large one becomes.
struct SoftwareSegment {
    number: usize,
    /// Where its payload begins in the whole.
    at: usize,
    last: bool,
}

impl SoftwareSegment {
    /// Gives it what differs from the whole's headers: lengths, identification, sequence number, flags.
    fn adapt(&self, headers: &mut [u8], packet: OutgoingPacket<'_>, payload_len: usize) {
        let transport_at = packet.transport_at();
        let transport_len = headers.len() - transport_at + payload_len;
        if transport_at == 20 {
            write16(headers, 2, transport_len + transport_at);
            write16(headers, 4, self.number);
            write16(headers, 10, 0);
            let sum = checksum::of(&[headers.get(..20).unwrap_or_default()]);
            write16(headers, 10, sum.into());
        } else {
            write16(headers, 4, transport_len);
        }
        let Some(transport) = headers.get_mut(transport_at..) else {
            return;
        };
        match packet.offload {
            Offload::Tcp => self.adapt_tcp(transport),
            Offload::Udp => write16(transport, 4, transport_len),
            Offload::None => {}
        }
    }

    fn adapt_tcp(&self, header: &mut [u8]) {
        if let Some(field) = header.get_mut(4..).and_then(<[u8]>::first_chunk_mut) {
            let offset = u32::try_from(self.at).unwrap_or_default();
            *field = u32::from_be_bytes(*field)
                .wrapping_add(offset)
                .to_be_bytes();
        }
        if let (Some(flags), false) = (header.get_mut(FLAGS_AT), self.last) {
            *flags = Flags(*flags).without(Flags::FIN | Flags::PSH).0;
        }
    }
}

/// Puts the finished checksum where the pseudo header's sum stood.
fn finish_checksum(headers: &mut [u8], packet: OutgoingPacket<'_>, payload: [&[u8]; 2]) {
    let Some(checksum_at) = packet.offload.checksum_at() else {
        return;
    };
    let at = packet.transport_at();
    let len = headers.len() - at + payload[0].len() + payload[1].len();
    let pseudo = pseudo(headers, packet.offload, len);
    write16(headers, at + checksum_at, pseudo.into());
    let transport = headers.get(at..).unwrap_or_default();
    let sum = checksum::of(&[transport, payload[0], payload[1]]);
    // RFC 768: "If the computed checksum is zero, it is transmitted as all ones."
    let sum = if sum == 0 && packet.offload == Offload::Udp {
        u16::MAX
    } else {
        sum
    };
    write16(headers, at + checksum_at, sum.into());
}

fn pseudo(headers: &[u8], offload: Offload, len: usize) -> u16 {
    let (from, protocol) = match (headers.first().map(|first| first >> 4), offload) {
        (Some(4), Offload::Tcp) => (12..20, 6),
        (Some(4), _) => (12..20, 17),
        (_, Offload::Tcp) => (8..40, 6),
        (_, _) => (8..40, 17),
    };
    let [.., high, low] = len.to_be_bytes();
    let addresses = headers.get(from).unwrap_or_default();
    checksum::sum_of(&[addresses, &[0, protocol, high, low]])
}

fn write16(bytes: &mut [u8], at: usize, value: usize) {
    let [.., high, low] = value.to_be_bytes();
    if let Some(field) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *field = [high, low];
    }
}

/// The bytes from `from` to `to` of two pieces laid one after the other.
fn range([a, b]: [&[u8]; 2], from: usize, to: usize) -> [&[u8]; 2] {
    let cut = |part| move |from: usize, to: usize| <[u8]>::get(part, from..to).unwrap_or_default();
    let (first, second) = (cut(a), cut(b));
    let within = |at: usize| at.min(a.len());
    let beyond = |at: usize| at.saturating_sub(a.len());
    [
        first(within(from), within(to)),
        second(beyond(from), beyond(to)),
    ]
}

#[cfg(test)]
mod segmentation_tests {
    use hoplite_wire::ip::{self, tcp, udp};
    use proptest::prelude::*;

    use super::super::outgoing::{tcp_headers, udp_headers};
    use super::*;

    fn pieces(packet: OutgoingPacket<'_>) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        segment_packet(packet, |headers, payload| {
            out.push([headers, payload[0], payload[1]].concat());
            true
        });
        out
    }

    #[test]
    fn an_empty_payload_is_one_packet() {
        let (from, to) = ("[fd00::1]:1", "[fd00::2]:2");
        let (from, to) = (from.parse().expect("valid"), to.parse().expect("valid"));
        let mut headers = Vec::new();
        udp_headers(&mut headers, from, to, 0);
        let cut = pieces(OutgoingPacket::udp(&headers, [&[], &[]], Some(9)));
        assert_eq!(cut.len(), 1);
        assert!(ip::parse(&cut[0]).expect("whole").checksum_is_right());
    }

    #[test]
    fn a_port_that_takes_no_more_is_not_asked_again() {
        let mut headers = Vec::new();
        let any = "127.0.0.1:1".parse().expect("valid");
        udp_headers(&mut headers, any, any, 100);
        let mut asked = 0;
        let packet = OutgoingPacket::udp(&headers, [&[0; 100], &[]], Some(10));
        assert!(!segment_packet(packet, |_, _| {
            asked += 1;
            asked < 3
        }));
        assert_eq!(asked, 3);
    }

    proptest! {
        #[test]
        fn the_pieces_of_a_segment_are_segments_that_make_up_the_whole(
            a: Vec<u8>, b: Vec<u8>, size in 1..200_u16, v6: bool, sequence: u32
        ) {
            let [from, to] = if v6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
            let (from, to) = (from.parse().expect("valid"), to.parse().expect("valid"));
            let header = tcp::Header { sequence, flags: Flags::ACK | Flags::FIN | Flags::PSH, ..tcp::Header::default() };
            let mut headers = Vec::new();
            tcp_headers(&mut headers, from, to, &header, a.len() + b.len());
            let cut = pieces(OutgoingPacket::tcp(&headers, [&a, &b], Some(size)));
            let (mut whole, count) = (Vec::new(), cut.len());
            for (number, bytes) in cut.iter().enumerate() {
                let packet = ip::parse(bytes).expect("whole");
                prop_assert!(packet.checksum_is_right());
                prop_assert!(packet.dont_fragment && !packet.fragment);
                prop_assert_eq!(packet.header_len + packet.payload.len(), bytes.len());
                let segment = tcp::parse(packet.payload).expect("whole");
                let passed = u32::try_from(whole.len()).expect("small");
                prop_assert_eq!(segment.sequence, sequence.wrapping_add(passed));
                prop_assert_eq!(segment.flags.contains(Flags::FIN), number + 1 == count);
                prop_assert!(segment.payload.len() <= usize::from(size) || count == 1);
                whole.extend_from_slice(segment.payload);
            }
            prop_assert_eq!(whole, [a, b].concat());
        }

        #[test]
        fn the_pieces_of_a_train_are_its_datagrams(payload in proptest::collection::vec(any::<u8>(), 0..600), cut_at: usize, size in 1..200_u16) {
            let (from, to) = ("10.0.0.1:1".parse().expect("valid"), "10.0.0.2:2".parse().expect("valid"));
            let mut headers = Vec::new();
            udp_headers(&mut headers, from, to, payload.len());
            let (a, b) = payload.split_at(cut_at % (payload.len() + 1));
            let cut = pieces(OutgoingPacket::udp(&headers, [a, b], Some(size)));
            let expected: Vec<_> = if payload.is_empty() { vec![&[][..]] } else { payload.chunks(size.into()).collect() };
            prop_assert_eq!(cut.len(), expected.len());
            for (bytes, expected) in cut.iter().zip(expected) {
                let packet = ip::parse(bytes).expect("whole");
                prop_assert!(packet.checksum_is_right());
                prop_assert_eq!(udp::parse(packet.payload).expect("whole").payload, expected);
            }
        }
    }
}
