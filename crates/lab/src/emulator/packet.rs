//! What links and routers do to IP packets beside carrying them: they mark congestion, count hops down, flip bits, name flows for the drop log,
//! and answer with ICMP. The bytes come from other programs, so everything here is total; `hoplite_wire::ip` reads them.
//! IPv4 is RFC 791, IPv6 RFC 8200, ECN RFC 3168; ICMP errors are RFC 792 and RFC 1191 for IPv4, RFC 4443 for IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hoplite_wire::ip::{self, ICMP, ICMPV6, Packet, TCP, UDP, checksum, icmp};

/// What a router quotes of a packet at most: with its own headers 576 bytes of IPv4, 1280 of IPv6.
const QUOTED: [usize; 2] = [576 - 28, 1280 - 48];

/// Whether a packet for this address never leaves a link: broadcast, multicast or link-local. Hosts send some (MLD, router solicitations)
/// that are no part of an experiment.
#[must_use]
pub fn stays_on_link(destination: IpAddr) -> bool {
    match destination {
        IpAddr::V4(to) => to.is_multicast() || to.is_broadcast() || to.is_link_local(),
        IpAddr::V6(to) => to.is_multicast() || to.is_unicast_link_local(),
    }
}

/// Whose packet it is, for people: `tcp 10.77.0.1:80>10.77.0.2:4000`; empty for what is no packet.
#[must_use]
pub fn flow(packet: &[u8]) -> String {
    let Ok(ip) = ip::parse(packet) else {
        return String::new();
    };
    let protocol = match ip.protocol {
        ICMP => "icmp".to_owned(),
        TCP => "tcp".to_owned(),
        UDP => "udp".to_owned(),
        ICMPV6 => "icmp6".to_owned(),
        other => format!("ip{other}"),
    };
    let (from, to) = (ip.source, ip.destination);
    match (ip.protocol, ip.payload) {
        (TCP | UDP, &[a, b, c, d, ..]) if !is_later_fragment(packet, &ip) => {
            let from = SocketAddr::new(from, u16::from_be_bytes([a, b]));
            let to = SocketAddr::new(to, u16::from_be_bytes([c, d]));
            format!("{protocol} {from}>{to}")
        }
        _ => format!("{protocol} {from}>{to}"),
    }
}

/// Whether it is UDP, any fragment of it too.
#[must_use]
pub fn is_udp(packet: &[u8]) -> bool {
    ip::parse(packet).is_ok_and(|ip| ip.protocol == UDP)
}

/// Whether it is a fragment other than the first, which has no transport header. Of IPv6, whose routers do not fragment, any.
fn is_later_fragment(packet: &[u8], ip: &Packet<'_>) -> bool {
    match (ip.source, packet.get(6..8)) {
        (IpAddr::V4(_), Some(&[high, low])) => u16::from_be_bytes([high, low]) & 0x1fff != 0,
        _ => ip.fragment,
    }
}

/// Marks an ECN-capable packet as having met congestion (CE); `false` if its sender does not speak ECN.
pub fn mark_congestion(packet: &mut [u8]) -> bool {
    let Ok(ip) = ip::parse(packet) else {
        return false;
    };
    if ip.traffic_class & 3 == 0 {
        return false;
    }
    if ip.source.is_ipv4() {
        edit_v4(packet, 0, |[_, class]| *class |= 3);
    } else {
        packet[1] |= 0x30;
    }
    true
}

/// Counts the TTL or hop limit down by one as a router does; `false`, and no change, if it was used up.
pub fn count_down(packet: &mut [u8]) -> bool {
    let Ok(ip) = ip::parse(packet) else {
        return false;
    };
    if ip.hop_limit <= 1 {
        return false;
    }
    if ip.source.is_ipv4() {
        edit_v4(packet, 8, |[ttl, _]| *ttl -= 1);
    } else {
        packet[7] -= 1;
    }
    true
}

/// Changes the two bytes at `at` of an IPv4 header, and its checksum with them.
fn edit_v4(packet: &mut [u8], at: usize, edit: impl FnOnce(&mut [u8; 2])) {
    let before = [packet[at], packet[at + 1]];
    let mut after = before;
    edit(&mut after);
    packet[at..at + 2].copy_from_slice(&after);
    let sum = u16::from_be_bytes([packet[10], packet[11]]);
    let sum = checksum::update(sum, &before, &after);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Flips the bit of the payload that `choice` falls on; `false` if there is no payload.
pub fn flip_bit(packet: &mut [u8], choice: impl FnOnce(u64) -> u64) -> bool {
    let Ok(ip) = ip::parse(packet) else {
        return false;
    };
    let (header, bits) = (ip.header_len, ip.payload.len() * 8);
    if bits == 0 {
        return false;
    }
    let bit = usize::try_from(choice(bits as u64)).unwrap_or(0) % bits;
    packet[header + bit / 8] ^= 0x80 >> (bit % 8);
    true
}

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Its TTL or hop limit is used up.
    TimeExceeded,
    /// The next link takes no more than this many bytes.
    TooBig(u16),
}

/// What a router with these addresses answers whoever sent `packet`; `None` where no answer may be sent: about ICMP errors, and about the later
/// fragments of IPv4.
#[must_use]
pub fn answer(packet: &[u8], problem: Problem, v4: Ipv4Addr, v6: Ipv6Addr) -> Option<Vec<u8>> {
    let ip = ip::parse(packet).ok()?;
    let is_v4 = ip.source.is_ipv4();
    if is_error(&ip) || (is_v4 && is_later_fragment(packet, &ip)) {
        return None;
    }
    let (from, most): (IpAddr, usize) = if is_v4 {
        (v4.into(), QUOTED[0])
    } else {
        (v6.into(), QUOTED[1])
    };
    let (kind, rest) = match (problem, is_v4) {
        (Problem::TimeExceeded, true) => ([11, 0], 0),
        (Problem::TimeExceeded, false) => ([3, 0], 0),
        (Problem::TooBig(mtu), true) => ([3, 4], mtu.into()),
        (Problem::TooBig(mtu), false) => ([2, 0], mtu.into()),
    };
    let quoted = packet.get(..most).unwrap_or(packet);
    Some(icmp::error(from, ip.source, kind, rest, quoted))
}

fn is_error(ip: &Packet<'_>) -> bool {
    let kind = ip.payload.first().copied();
    match ip.protocol {
        ICMP => !matches!(kind, Some(0 | 8 | 13..=18)),
        ICMPV6 => kind.is_none_or(|kind| kind < 128),
        _ => false,
    }
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
    fn a_packet_is_named_by_its_protocol_and_its_two_ends() {
        let packet = whole();
        assert_eq!(flow(&packet), "udp 192.168.0.1:1799>192.168.0.199:1799");
        let mut later = packet.clone();
        later[7] = 1;
        assert_eq!(flow(&later), "udp 192.168.0.1>192.168.0.199");
        assert_eq!(flow(&packet[..packet.len() - 1]), "");
    }

    #[test]
    fn only_packets_whose_sender_speaks_ecn_are_marked() {
        let mut packet = whole();
        assert!(!mark_congestion(&mut packet));
        assert_eq!(packet, whole());
        for ecn in [1, 2, 3] {
            packet[1] = 0xb8 | ecn;
            packet[10..12].fill(0);
            let sum = checksum::of(&[&packet[..20]]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            assert!(mark_congestion(&mut packet));
            assert_eq!((packet[1], checksum::of(&[&packet[..20]])), (0xbb, 0));
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
            let sum = checksum::of(&[&header]);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            let before = header[8];
            prop_assert_eq!(count_down(&mut header), before > 1);
            prop_assert_eq!(header[8], if before > 1 { before - 1 } else { before });
            prop_assert_eq!(checksum::of(&[&header]), 0);
        }

        #[test]
        fn everything_that_can_be_done_to_a_packet_can_be_done_to_anything(mut bytes: Vec<u8>, version in prop_oneof![Just(4_u8), Just(6)]) {
            if let Some(first) = bytes.first_mut() {
                *first = (version << 4) | (*first & 15);
            }
            let told = answer(&bytes, Problem::TimeExceeded, Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
            prop_assert!(told.is_none() || !flow(&bytes).is_empty());
            mark_congestion(&mut bytes);
            count_down(&mut bytes);
            flip_bit(&mut bytes, |bits| bits - 1);
        }
    }
}
