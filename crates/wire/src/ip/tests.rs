use proptest::prelude::*;

use super::*;

const V4: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9)),
];

const V6: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0xfd68, 0, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9)),
];

fn packet([source, destination]: [IpAddr; 2], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_header(&mut out, source, destination, protocol, 64, payload.len());
    out.extend_from_slice(payload);
    out
}

/// An IPv6 packet with `extensions`, each of which names the next one itself.
fn extended(first: u8, extensions: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = packet(V6, first, &[extensions, payload].concat());
    out[6] = first;
    out
}

#[test]
fn what_follows_a_packet_is_no_part_of_it() {
    for ends in [V4, V6] {
        let mut bytes = packet(ends, UDP, b"payload");
        bytes.extend_from_slice(b"rubbish");
        assert_eq!(parse(&bytes).expect("whole").payload, b"payload");
    }
}

#[test]
fn a_packet_that_is_cut_anywhere_is_refused() {
    for ends in [V4, V6] {
        let bytes = packet(ends, UDP, b"payload");
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len]), Err(Malformed::Truncated), "{len}");
        }
    }
}

#[test]
fn another_version_and_a_header_shorter_than_itself_are_refused() {
    let mut bytes = packet(V4, UDP, b"payload");
    bytes[0] = 0x44;
    assert_eq!(parse(&bytes), Err(Malformed::Length));
    bytes[0] = 0x55;
    assert_eq!(parse(&bytes), Err(Malformed::Version));
    let mut bytes = packet(V4, UDP, b"payload");
    bytes[2..4].copy_from_slice(&[0, 19]);
    assert_eq!(parse(&bytes), Err(Malformed::Length));
}

#[test]
fn fragments_and_options_are_told() {
    let plain = packet(V4, TCP, &[0; 20]);
    let told = |change: fn(&mut [u8])| {
        let mut bytes = plain.clone();
        change(&mut bytes);
        let packet = parse(&bytes).expect("whole");
        (packet.fragment, packet.options, packet.dont_fragment)
    };
    assert_eq!(told(|_| {}), (false, false, true));
    assert_eq!(told(|bytes| bytes[6] = 0x20), (true, false, false));
    assert_eq!(told(|bytes| bytes[7] = 1), (true, false, true));
    assert_eq!(told(|bytes| bytes[0] = 0x46), (false, true, true));
}

#[test]
fn extension_headers_are_walked_to_the_transport_header() {
    let hop_by_hop = [60, 0, 5, 2, 0, 0, 1, 0];
    let destination = [UDP, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let bytes = extended(0, &[&hop_by_hop[..], &destination].concat(), b"payload");
    let packet = parse(&bytes).expect("whole");
    assert_eq!((packet.protocol, packet.header_len), (UDP, 64));
    assert!(packet.options && !packet.fragment);
    assert_eq!(packet.payload, b"payload");
}

#[test]
fn a_fragment_header_of_a_whole_packet_makes_no_fragment() {
    let told = |high, low| {
        let bytes = extended(44, &[TCP, 0, high, low, 0, 0, 0, 1], &[6, 255]);
        let packet = parse(&bytes).expect("whole");
        (packet.fragment, packet.protocol, packet.payload.len())
    };
    assert_eq!(told(0, 0), (false, TCP, 2));
    assert_eq!(told(0, 1), (true, TCP, 2));
    assert_eq!(told(5, 0), (true, TCP, 2));
}

#[test]
fn the_payload_of_a_later_piece_is_not_taken_for_headers() {
    let bytes = extended(44, &[60, 0, 5, 0, 0, 0, 0, 1], &[UDP, 0, 0, 0, 0, 0, 0, 0]);
    let packet = parse(&bytes).expect("whole");
    assert_eq!((packet.protocol, packet.header_len), (60, 48));
}

#[test]
fn endless_and_broken_extension_headers_are_refused() {
    let again = [0, 0, 1, 4, 0, 0, 0, 0].repeat(20);
    assert_eq!(parse(&extended(0, &again, &[])), Err(Malformed::Extensions));
    assert_eq!(
        parse(&extended(0, &[UDP, 9, 0, 0], &[])),
        Err(Malformed::Truncated)
    );
    assert_eq!(parse(&extended(60, &[UDP], &[])), Err(Malformed::Truncated));
}

#[test]
fn a_jumbogram_is_refused() {
    let mut bytes = extended(0, &[UDP, 0, 0xc2, 4, 0, 1, 0, 0], &[0; 100]);
    bytes[4..6].copy_from_slice(&[0, 0]);
    assert_eq!(parse(&bytes), Err(Malformed::Truncated));
}

#[test]
fn the_ipv4_header_carries_a_right_checksum_and_nothing_that_tells_systems_apart() {
    let bytes = packet(V4, TCP, &[0; 20]);
    assert_eq!(checksum::of(&[&bytes[..20]]), 0);
    assert_eq!(bytes[1..2], [0]);
    assert_eq!(bytes[4..8], [0, 0, 0x40, 0]);
}

#[test]
fn what_speaks_to_routers_is_told_from_what_is_padding_or_for_the_other_end() {
    let with = |options: [u8; 8]| {
        let mut bytes = packet(V4, UDP, &[&options[..], b"payload"].concat());
        bytes[0] = 0x47;
        let packet = parse(&bytes).expect("whole");
        assert!(packet.options && packet.payload == b"payload");
        packet.for_routers
    };
    for options in [
        [131, 7, 4, 192, 0, 2, 1, 0], // loose source route
        [137, 7, 4, 192, 0, 2, 1, 0], // strict source route
        [1, 7, 7, 4, 0, 0, 0, 0],     // record route, behind padding
        [148, 4, 0, 0, 0, 0, 0, 0],   // router alert
        [222, 0, 0, 0, 0, 0, 0, 0],   // none that is known
    ] {
        assert!(with(options), "{options:?}");
    }
    assert!(!with([1, 1, 1, 1, 1, 1, 1, 1]) && !with([1, 0, 131, 7, 4, 192, 0, 2]));
    let route = |kind, left| [UDP, 0, kind, left, 0, 0, 0, 0];
    for (first, header, wanted) in [
        (43, route(0, 1), true),
        (43, route(2, 1), true),
        (43, route(4, 255), true),
        (43, route(0, 0), false),
        (0, [UDP, 0, 5, 2, 0, 0, 1, 0], true),
        (60, [UDP, 0, 1, 4, 0, 0, 0, 0], false),
    ] {
        let bytes = extended(first, &header, b"payload");
        let packet = parse(&bytes).expect("whole");
        assert_eq!(packet.for_routers, wanted, "{first} {header:?}");
    }
    // Behind another one.
    let chain = [&[43, 0, 1, 4, 0, 0, 0, 0][..], &route(4, 1)].concat();
    let bytes = extended(60, &chain, b"payload");
    assert!(parse(&bytes).expect("whole").for_routers);
}

#[test]
fn a_broken_list_of_tcp_options_counts_as_far_as_it_goes() {
    let options = tcp::Options::parse(&[2, 4, 5, 180, 1, 3, 3, 200, 8, 1, 4, 2]);
    let expected = tcp::Options {
        mss: Some(1460),
        window_scale: Some(14),
        ..tcp::Options::default()
    };
    assert_eq!(options, expected);
    for bytes in [&[2][..], &[2, 0], &[2, 9, 1], &[5, 255]] {
        assert_eq!(tcp::Options::parse(bytes), tcp::Options::default());
    }
}

#[test]
fn tcp_and_udp_headers_that_lie_about_their_length_are_refused() {
    let mut bytes = Vec::new();
    tcp::Header::default().write(0, &mut bytes);
    assert_eq!(tcp::parse(&bytes[..19]), Err(Malformed::Truncated));
    bytes[12] = 0x40;
    assert_eq!(tcp::parse(&bytes), Err(Malformed::Length));
    bytes[12] = 0x60;
    assert_eq!(tcp::parse(&bytes), Err(Malformed::Truncated));
    assert_eq!(
        udp::parse(&[0, 1, 0, 2, 0, 7, 0, 0]),
        Err(Malformed::Length)
    );
    assert_eq!(
        udp::parse(&[0, 1, 0, 2, 0, 9, 0, 0]),
        Err(Malformed::Truncated)
    );
}

#[test]
fn an_echo_is_answered_with_its_own_payload() {
    for ends in [V4, V6] {
        let request = icmp::Echo {
            reply: false,
            identifier: 7,
            sequence: 9,
            payload: b"abc",
        };
        let bytes = request.packet(ends[0], ends[1]);
        let packet = parse(&bytes).expect("whole");
        assert!(packet.checksum_is_right());
        assert_eq!(icmp::echo(&packet), Some(request));
        let reply = icmp::Echo {
            reply: true,
            ..request
        };
        let bytes = reply.packet(ends[1], ends[0]);
        assert_eq!(icmp::echo(&parse(&bytes).expect("whole")), Some(reply));
    }
}

#[test]
fn an_unreachable_target_is_told_with_the_packet_that_caused_it() {
    for (ends, message) in [(V4, [3, 13]), (V6, [1, 1])] {
        let cause = packet(ends, UDP, &[0; 2000]);
        let bytes = icmp::unreachable(&cause, icmp::Unreachable::Prohibited).expect("told");
        let answer = parse(&bytes).expect("whole");
        assert_eq!([answer.source, answer.destination], [ends[1], ends[0]]);
        assert!(answer.checksum_is_right());
        assert_eq!(answer.payload[..2], message);
        assert!(cause.starts_with(&answer.payload[8..]));
        assert!(bytes.len() == if ends[0].is_ipv4() { 576 } else { 1280 });
    }
}

#[test]
fn what_is_too_big_is_told_the_size_that_fits() {
    let bytes = icmp::too_big(&packet(V4, UDP, &[0; 1472]), 1400).expect("told");
    assert_eq!(
        parse(&bytes).expect("whole").payload[..8][4..],
        [0, 0, 5, 120]
    );
    let bytes = icmp::too_big(&packet(V6, UDP, &[0; 1452]), 1400).expect("told");
    assert_eq!(parse(&bytes).expect("whole").payload[4..8], [0, 0, 5, 120]);
    let bytes = icmp::too_big(&packet(V6, UDP, &[0; 1452]), 1000).expect("told");
    assert_eq!(parse(&bytes).expect("whole").payload[4..8], [0, 0, 5, 0]);
}

#[test]
fn no_error_answers_an_error_a_piece_or_a_crowd() {
    let error = icmp::too_big(&packet(V4, UDP, &[0; 9]), 9).expect("told");
    assert_eq!(icmp::too_big(&error, 9), None);
    let error = icmp::too_big(&packet(V6, UDP, &[0; 9]), 9).expect("told");
    assert_eq!(icmp::unreachable(&error, icmp::Unreachable::Port), None);
    let crowd = [V4[0], IpAddr::V4(Ipv4Addr::new(224, 0, 0, 251))];
    assert_eq!(icmp::too_big(&packet(crowd, UDP, &[0; 9]), 9), None);
    let mut piece = packet(V4, UDP, &[0; 9]);
    piece[6] = 0x20;
    assert_eq!(icmp::too_big(&piece, 9), None);
    assert_eq!(icmp::too_big(b"E", 9), None);
}

#[test]
fn udp_without_a_checksum_is_right_over_ipv4_only() {
    let mut datagram = Vec::new();
    udp::write(&mut datagram, 1, 2, 0, 0);
    assert!(
        parse(&packet(V4, UDP, &datagram))
            .expect("whole")
            .checksum_is_right()
    );
    assert!(
        !parse(&packet(V6, UDP, &datagram))
            .expect("whole")
            .checksum_is_right()
    );
}

fn options() -> impl Strategy<Value = tcp::Options> {
    let scale = proptest::option::of(0..=14_u8);
    (
        any::<Option<u16>>(),
        scale,
        any::<bool>(),
        any::<Option<(u32, u32)>>(),
    )
        .prop_map(
            |(mss, window_scale, sack_permitted, timestamps)| tcp::Options {
                mss,
                window_scale,
                sack_permitted,
                timestamps,
            },
        )
}

proptest! {
    #[test]
    fn a_tcp_segment_is_read_as_it_was_written(
        numbers in any::<(u16, u16, u32, u32, u8, u16, u16)>(), options in options(), payload: Vec<u8>, v6: bool
    ) {
        let (source, destination, sequence, acknowledgment, flags, window, urgent) = numbers;
        let flags = tcp::Flags(flags);
        let header = tcp::Header { source, destination, sequence, acknowledgment, flags, window, urgent, options };
        let [from, to] = if v6 { V6 } else { V4 };
        let mut written = Vec::new();
        header.write(0, &mut written);
        let checksum = checksum::transport(from, to, TCP, &[&written, &payload]);
        written.clear();
        header.write(checksum, &mut written);
        prop_assert_eq!(written.len(), header.written_len());
        written.extend_from_slice(&payload);
        let bytes = packet([from, to], TCP, &written);
        let packet = parse(&bytes).expect("whole");
        prop_assert!(packet.checksum_is_right());
        prop_assert_eq!((packet.source, packet.destination, packet.protocol), (from, to, TCP));
        prop_assert_eq!(packet.header_len + packet.payload.len(), bytes.len());
        let segment = tcp::parse(packet.payload).expect("whole");
        prop_assert_eq!(segment.header(), header);
        prop_assert_eq!(segment.payload, &payload[..]);
    }

    #[test]
    fn a_datagram_is_read_as_it_was_written(source: u16, destination: u16, payload: Vec<u8>) {
        let mut written = Vec::new();
        udp::write(&mut written, source, destination, payload.len(), 1);
        written.extend_from_slice(&payload);
        let expected = udp::Datagram { source, destination, payload: &payload };
        prop_assert_eq!(udp::parse(&written), Ok(expected));
    }

    #[test]
    fn one_flipped_bit_makes_a_checksum_wrong(payload in proptest::collection::vec(any::<u8>(), 1..100), bit: usize) {
        let mut datagram = Vec::new();
        let [from, to] = V6;
        udp::write(&mut datagram, 1, 2, payload.len(), 0);
        let checksum = checksum::transport(from, to, UDP, &[&datagram, &payload]);
        datagram.clear();
        udp::write(&mut datagram, 1, 2, payload.len(), checksum);
        datagram.extend_from_slice(&payload);
        let bit = bit % (payload.len() * 8) + 64;
        datagram[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(!parse(&packet(V6, UDP, &datagram)).expect("whole").checksum_is_right());
    }

    #[test]
    fn any_bytes_are_parsed_without_a_panic(bytes: Vec<u8>, first in prop::sample::select(vec![0x45_u8, 0x60, 0x4f])) {
        let mut bytes = bytes;
        if let Some(byte) = bytes.first_mut() {
            *byte = first;
        }
        let _parsed = parse(&bytes);
        let _answer = icmp::unreachable(&bytes, icmp::Unreachable::Host);
    }
}
