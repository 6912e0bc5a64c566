use proptest::prelude::*;

use super::*;

/// The header of RFC 1071's usual example, whose checksum is 0xb861.
const HEADER: [u8; 20] = [
    0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01,
    0xc0, 0xa8, 0x00, 0xc7,
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
