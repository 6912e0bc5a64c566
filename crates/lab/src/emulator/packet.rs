//! IP packets as a link sees them: a view that never fails beyond "this is no packet", and the few edits that links and routers make.
//! The link, the router and the drop log use it; the octets come from other programs, so everything here is total.
//! IPv4 is RFC 791, IPv6 RFC 8200, ECN RFC 3168, the checksum's update RFC 1624.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// An IP packet whose header is whole.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    octets: &'a [u8],
    header: usize,
}

impl<'a> View<'a> {
    /// The packet at the beginning of `octets`; `None` if its header or what the header promises is not there.
    #[must_use]
    pub fn parse(octets: &'a [u8]) -> Option<Self> {
        let (header, total) = match octets.first()? >> 4 {
            4 if octets.len() >= 20 => (usize::from(octets[0] & 15) * 4, be16(octets, 2)),
            6 if octets.len() >= 40 => (40, be16(octets, 4) + 40),
            _ => return None,
        };
        let whole = header >= 20 && header <= total && total <= octets.len();
        whole.then(|| Self {
            octets: &octets[..total],
            header,
        })
    }

    /// Whether it is IPv4.
    #[must_use]
    pub fn is_v4(&self) -> bool {
        self.octets[0] >> 4 == 4
    }

    /// Who sent it.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        self.address(if self.is_v4() { 12 } else { 8 })
    }

    /// Whom it is for.
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        self.address(if self.is_v4() { 16 } else { 24 })
    }

    fn address(&self, at: usize) -> IpAddr {
        if self.is_v4() {
            let mut octets = [0; 4];
            octets.copy_from_slice(&self.octets[at..at + 4]);
            return Ipv4Addr::from(octets).into();
        }
        let mut octets = [0; 16];
        octets.copy_from_slice(&self.octets[at..at + 16]);
        Ipv6Addr::from(octets).into()
    }

    /// The TTL or hop limit.
    #[must_use]
    pub fn ttl(&self) -> u8 {
        self.octets[if self.is_v4() { 8 } else { 7 }]
    }

    /// The two ECN bits.
    #[must_use]
    pub fn ecn(&self) -> u8 {
        if self.is_v4() {
            self.octets[1] & 3
        } else {
            (self.octets[1] >> 4) & 3
        }
    }

    /// The number of the protocol behind the header (IPv6: of the first extension header, if there are any).
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.octets[if self.is_v4() { 9 } else { 6 }]
    }

    /// Whether it is a fragment other than the first, which has no transport header.
    #[must_use]
    pub fn is_later_fragment(&self) -> bool {
        self.is_v4() && be16(self.octets, 6) & 0x1fff != 0
    }

    /// The whole packet, without what may follow it.
    #[must_use]
    pub fn octets(&self) -> &'a [u8] {
        self.octets
    }

    /// What follows the IP header.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.octets[self.header..]
    }

    /// Whether it never leaves a link: broadcast, multicast or link-local. Hosts send some (MLD, router solicitations) that are
    /// no part of an experiment.
    #[must_use]
    pub fn stays_on_link(&self) -> bool {
        match self.destination() {
            IpAddr::V4(to) => to.is_multicast() || to.is_broadcast() || to.is_link_local(),
            IpAddr::V6(to) => to.is_multicast() || to.is_unicast_link_local(),
        }
    }

    /// Whose packet it is, for people.
    #[must_use]
    pub fn flow(&self) -> Flow {
        let ports = match self.payload() {
            [a, b, c, d, ..] if self.has_ports() => Some([[*a, *b], [*c, *d]]),
            _ => None,
        };
        Flow {
            protocol: self.protocol(),
            ends: [self.source(), self.destination()],
            ports: ports.map(|ports| ports.map(u16::from_be_bytes)),
        }
    }

    fn has_ports(&self) -> bool {
        matches!(self.protocol(), 6 | 17) && !self.is_later_fragment()
    }
}

/// A protocol and two ends; displayed as `tcp 10.77.0.1:80>10.77.0.2:4000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    protocol: u8,
    ends: [IpAddr; 2],
    ports: Option<[u16; 2]>,
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            1 => f.write_str("icmp ")?,
            6 => f.write_str("tcp ")?,
            17 => f.write_str("udp ")?,
            58 => f.write_str("icmp6 ")?,
            other => write!(f, "ip{other} ")?,
        }
        let [from, to] = self.ends;
        match self.ports {
            Some([a, b]) => write!(f, "{}>{}", SocketAddr::new(from, a), SocketAddr::new(to, b)),
            None => write!(f, "{from}>{to}"),
        }
    }
}

/// Marks an ECN-capable packet as having met congestion (CE); `false` if its sender does not speak ECN.
pub fn mark_congestion(octets: &mut [u8]) -> bool {
    let Some(view) = View::parse(octets) else {
        return false;
    };
    if view.ecn() == 0 {
        return false;
    }
    if view.is_v4() {
        let before = be16(octets, 0);
        octets[1] |= 3;
        update_checksum(octets, before, be16(octets, 0));
    } else {
        octets[1] |= 0x30;
    }
    true
}

/// Counts the TTL or hop limit down by one as a router does; `false`, and no change, if it was used up.
pub fn count_down(octets: &mut [u8]) -> bool {
    let Some(view) = View::parse(octets) else {
        return false;
    };
    if view.ttl() <= 1 {
        return false;
    }
    if view.is_v4() {
        let before = be16(octets, 8);
        octets[8] -= 1;
        update_checksum(octets, before, be16(octets, 8));
    } else {
        octets[7] -= 1;
    }
    true
}

/// Flips the bit of the payload that `choice` falls on; `false` if there is no payload.
pub fn flip_bit(octets: &mut [u8], choice: impl FnOnce(u64) -> u64) -> bool {
    let Some(view) = View::parse(octets) else {
        return false;
    };
    let (header, bits) = (view.header, view.payload().len() * 8);
    if bits == 0 {
        return false;
    }
    let bit = usize::try_from(choice(bits as u64)).unwrap_or(0) % bits;
    octets[header + bit / 8] ^= 0x80 >> (bit % 8);
    true
}

/// The Internet checksum of `parts` laid one after another; each but the last has an even length.
#[must_use]
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum = words.fold(0_u32, |sum, word| {
        let low = word.get(1).copied().unwrap_or(0);
        fold(sum + u32::from(u16::from_be_bytes([word[0], low])))
    });
    !low16(sum)
}

/// RFC 1624: HC' = ~(~HC + ~m + m').
fn update_checksum(octets: &mut [u8], before: usize, after: usize) {
    let word = |value: usize| u32::try_from(value & 0xffff).unwrap_or(0);
    let old = word(be16(octets, 10));
    let sum = (!old & 0xffff) + (!word(before) & 0xffff) + word(after);
    octets[10..12].copy_from_slice(&(!low16(fold(fold(sum)))).to_be_bytes());
}

fn fold(sum: u32) -> u32 {
    (sum & 0xffff) + (sum >> 16)
}

fn low16(sum: u32) -> u16 {
    let [.., high, low] = sum.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// The 16 bits at `at`, which is inside.
fn be16(octets: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([octets[at], octets[at + 1]]))
}

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Its TTL or hop limit is used up.
    TimeExceeded,
    /// The next link takes no more than so many octets.
    TooBig(u16),
}

/// The answer to whoever sent `packet`, from a router with these addresses; `None` where none may be sent.
#[must_use]
pub fn answer(packet: &[u8], problem: Problem, v4: Ipv4Addr, v6: Ipv6Addr) -> Option<Vec<u8>> {
    let view = View::parse(packet)?;
    match view.source() {
        IpAddr::V4(to) => (!is_error_v4(&view) && !view.is_later_fragment())
            .then(|| answer_v4(&view, problem, v4, to)),
        IpAddr::V6(to) => (!is_error_v6(&view)).then(|| answer_v6(&view, problem, v6, to)),
    }
}

fn is_error_v4(view: &View<'_>) -> bool {
    let asks = matches!(view.payload().first(), Some(0 | 8 | 13..=18));
    view.protocol() == 1 && !asks
}

fn is_error_v6(view: &View<'_>) -> bool {
    view.protocol() == 58 && view.payload().first().is_none_or(|&kind| kind < 128)
}

fn answer_v4(view: &View<'_>, problem: Problem, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let (kind, code, more) = match problem {
        Problem::TimeExceeded => (11, 0, 0),
        Problem::TooBig(mtu) => (3, 4, mtu),
    };
    let [high, low] = more.to_be_bytes();
    let mut message = vec![kind, code, 0, 0, 0, 0, high, low];
    message.extend(view.octets().iter().take(548));
    let sum = checksum(&[&message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let [high, low] = u16::try_from(message.len() + 20).unwrap_or(0).to_be_bytes();
    let mut packet = vec![0x45, 0xc0, high, low, 0, 0, 0, 0, 64, 1, 0, 0];
    packet.extend(from.octets());
    packet.extend(to.octets());
    let sum = checksum(&[&packet]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(message);
    packet
}

fn answer_v6(view: &View<'_>, problem: Problem, from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let (kind, more) = match problem {
        Problem::TimeExceeded => (3, 0),
        Problem::TooBig(mtu) => (2, u32::from(mtu)),
    };
    let mut message = vec![kind, 0, 0, 0];
    message.extend(more.to_be_bytes());
    message.extend(view.octets().iter().take(1280 - 48));
    let [high, low] = u16::try_from(message.len()).unwrap_or(0).to_be_bytes();
    let pseudo = [
        &from.octets()[..],
        &to.octets()[..],
        &[0, 0, high, low, 0, 0, 0, 58],
    ]
    .concat();
    let sum = checksum(&[&pseudo, &message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0x60, 0, 0, 0, high, low, 58, 64];
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(message);
    packet
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The header of RFC 1071's usual example, whose checksum is 0xb861.
    const HEADER: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
        0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];

    fn whole() -> Vec<u8> {
        let mut packet = HEADER.to_vec();
        packet.resize(0x73, 7);
        packet
    }

    #[test]
    fn a_header_is_read_and_its_checksum_is_the_internet_checksum() {
        let packet = whole();
        let view = View::parse(&packet).unwrap();
        assert_eq!(
            view.flow().to_string(),
            "udp 192.168.0.1:1799>192.168.0.199:1799"
        );
        assert_eq!(
            (view.ttl(), view.ecn(), view.payload().len()),
            (64, 0, 0x73 - 20)
        );
        assert_eq!(checksum(&[&HEADER]), 0);
    }

    #[test]
    fn what_is_cut_or_promises_more_than_there_is_is_no_packet() {
        let packet = whole();
        assert!(View::parse(&packet[..packet.len() - 1]).is_none());
        for (at, value) in [(0, 0x44), (0, 0x35), (2, 1), (3, 19)] {
            let mut packet = whole();
            packet[at] = value;
            let read = View::parse(&packet).map(|view| view.octets().len());
            assert_eq!(read, None, "octet {at} = {value:#x}");
        }
    }

    #[test]
    fn only_packets_whose_sender_speaks_ecn_are_marked() {
        let mut packet = whole();
        assert!(!mark_congestion(&mut packet));
        assert_eq!(packet, whole());
        for ecn in [1, 2, 3] {
            packet[1] = 0xb8 | ecn;
            packet[10..12].fill(0);
            let sum = checksum(&[&packet[..20]]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            assert!(mark_congestion(&mut packet));
            assert_eq!((packet[1], checksum(&[&packet[..20]])), (0xbb, 0));
        }
    }

    #[test]
    fn a_flipped_bit_is_in_the_payload_alone() {
        for bit in [0, 1, 8, (0x73 - 20) * 8 - 1_usize] {
            let mut packet = whole();
            assert!(flip_bit(&mut packet, |bits| {
                assert_eq!(bits, (0x73 - 20) * 8);
                bit as u64
            }));
            let differ: Vec<_> = packet
                .iter()
                .zip(whole())
                .enumerate()
                .filter(|(_, (a, b))| **a != *b)
                .collect();
            let (at, (now, before)) = differ[0];
            assert_eq!((differ.len(), at), (1, 20 + bit / 8));
            assert_eq!((now ^ before).count_ones(), 1);
        }
        let mut empty = HEADER.to_vec();
        empty[3] = 20;
        assert!(!flip_bit(&mut empty, |_| 0));
    }

    proptest! {
        #[test]
        fn counting_down_keeps_the_checksum_right(mut header: [u8; 20]) {
            header[0] = 0x45;
            (header[2], header[3]) = (0, 20);
            header[10..12].fill(0);
            let sum = checksum(&[&header]);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            let before = header[8];
            prop_assert_eq!(count_down(&mut header), before > 1);
            prop_assert_eq!(header[8], if before > 1 { before - 1 } else { before });
            prop_assert_eq!(checksum(&[&header]), 0);
        }

        #[test]
        fn everything_that_can_be_done_to_a_packet_can_be_done_to_anything(mut octets: Vec<u8>, version in prop_oneof![Just(4_u8), Just(6)]) {
            if let Some(first) = octets.first_mut() {
                *first = (version << 4) | (*first & 15);
            }
            if let Some(view) = View::parse(&octets) {
                prop_assert!(view.payload().len() <= octets.len());
                view.flow().to_string();
                prop_assert!(view.source().is_ipv4() == view.destination().is_ipv4());
            }
            mark_congestion(&mut octets);
            count_down(&mut octets);
            flip_bit(&mut octets, |bits| bits - 1);
        }
    }
}
