//! Traces made by hand, with answers worked out by hand; and what is refused.

use std::{collections::BTreeMap, io::Cursor, net::IpAddr};

use PacketDirection::{In, Out};

use super::*;
use crate::results::analysis::Captured;

/// When qlogs and captures begin: 2026-11-21T10:00:00Z in seconds since 1970.
const SECOND: usize = 1_795_255_200;

const CLIENT: [u8; 4] = [10, 77, 0, 1];
const RELAY: [u8; 4] = [10, 77, 0, 2];

/// A frame: its type, its bytes, and those of its payload.
type Framed = (&'static str, usize, usize);

/// A packet: which way, its bytes, its frames.
type Sent<'a> = (PacketDirection, usize, &'a [Framed]);

const fn ack(size: usize) -> Framed {
    ("ack", size, 0)
}

/// A DATAGRAM frame (type and two bytes of length) around a quarter stream id, a context id and a packet.
const fn around(packet: usize) -> Framed {
    ("datagram", packet + 5, packet + 2)
}

const DATA: Framed = ("stream", 900, 895);
const PADDING: Framed = ("padding", 2, 2);

/// A qlog as the client has it; each record a millisecond after the one before.
fn qlog(label: &str, packets: &[Sent<'_>]) -> String {
    let timed = packets.iter().enumerate();
    let timed: Vec<_> = timed.map(|(i, packet)| (i as f64, *packet)).collect();
    qlog_at(label, &timed)
}

/// A qlog with the milliseconds of each record.
fn qlog_at(label: &str, packets: &[(f64, Sent<'_>)]) -> String {
    let mut text = format!(
        "\u{1e}{{\"trace\":{{\"common_fields\":{{\"reference_time\":{{\"wall_clock_time\":\"2026-11-21T10:00:00.000000Z\"}}}},\
         \"vantage_point\":{{\"name\":\"{label}\",\"type\":\"client\"}}}}}}\n"
    );
    for (i, (at, (way, size, frames))) in packets.iter().enumerate() {
        let name = match way {
            Out => "packet_sent",
            In => "packet_received",
        };
        let frame = |(kind, length, payload): &Framed| {
            format!(
                "{{\"frame_type\":\"{kind}\",\"raw\":{{\"length\":{length},\"payload_length\":{payload}}}}}"
            )
        };
        let frames: Vec<_> = frames.iter().map(frame).collect();
        let kind = if frames.iter().any(|frame| frame.contains("crypto")) {
            "handshake"
        } else {
            "1RTT"
        };
        text += &format!(
            "\u{1e}{{\"time\":{at},\"name\":\"quic:{name}\",\"data\":{{\"header\":{{\"packet_type\":\"{kind}\",\"packet_number\":{i}}},\
             \"raw\":{{\"length\":{size}}},\"frames\":[{}]}}}}\n",
            frames.join(",")
        );
    }
    text
}

/// An IPv4 packet with a UDP payload of this many bytes, of which only the headers were captured.
fn udp(way: PacketDirection, payload: usize) -> (Vec<u8>, usize) {
    let mut packet = vec![0; 28];
    (packet[0], packet[9]) = (0x45, 17);
    let (from, to) = match way {
        Out => (CLIENT, RELAY),
        In => (RELAY, CLIENT),
    };
    packet[12..16].copy_from_slice(&from);
    packet[16..20].copy_from_slice(&to);
    (packet, payload + 28)
}

fn pcap(packets: &[(Vec<u8>, usize)]) -> Vec<u8> {
    let mut file = Vec::new();
    for number in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 262_144, 101] {
        file.extend(number.to_le_bytes());
    }
    for (i, (data, whole)) in packets.iter().enumerate() {
        // A millisecond after each other, as the records of a qlog.
        let (second, part) = (SECOND + i / 1000, i % 1000 * 1_000_000);
        for number in [second, part, data.len(), *whole] {
            file.extend(u32::try_from(number).unwrap().to_le_bytes());
        }
        file.extend(data);
    }
    file
}

fn capture(packets: &[(PacketDirection, usize)]) -> Capture {
    let packets: Vec<_> = packets
        .iter()
        .map(|(way, payload)| udp(*way, *payload))
        .collect();
    let addresses = [CLIENT.into(), IpAddr::from([0; 16])];
    Capture::parse(&mut Cursor::new(pcap(&packets)), &addresses).unwrap()
}

fn analysed(packets: &[(PacketDirection, usize)], logs: &[String]) -> BTreeMap<String, f64> {
    let layers = Layers::of(logs).unwrap();
    figures(&counted(&capture(packets), &layers))
        .unwrap()
        .into_iter()
        .collect()
}

/// Compares the named figures exactly, for they are ratios of whole numbers.
fn assert_figures(figures: &BTreeMap<String, f64>, expected: &[(&str, f64)]) {
    for (name, value) in expected {
        let found = figures[*name];
        assert!(
            (found - value).abs() < 1e-12,
            "{name}: {found} instead of {value}"
        );
    }
}

/// Two packets of data come, one is acknowledged alone, the other together with a request.
const INNER: [Sent<'_>; 4] = [
    (In, 1000, &[DATA]),
    (Out, 40, &[ack(6), PADDING]),
    (In, 1000, &[DATA]),
    (Out, 100, &[ack(6), DATA]),
];

/// The same through a tunnel, which acknowledges both ways: once with other frames and once alone.
const TUNNEL: [Sent<'_>; 6] = [
    (In, 1032, &[around(1000)]),
    (Out, 72, &[around(40)]),
    (In, 1037, &[ack(5), around(1000)]),
    (Out, 139, &[ack(7), around(100)]),
    (In, 33, &[ack(6)]),
    (Out, 35, &[PADDING, ack(6)]),
];

/// All of that through another one.
const OUTER: [Sent<'_>; 8] = [
    (In, 1064, &[around(1032)]),
    (Out, 104, &[around(72)]),
    (In, 1069, &[around(1037)]),
    (Out, 171, &[around(139)]),
    (In, 65, &[around(33)]),
    (Out, 67, &[around(35)]),
    (In, 31, &[ack(5)]),
    (Out, 34, &[ack(6), PADDING]),
];

fn on_the_link(packets: &[Sent<'_>]) -> Vec<(PacketDirection, usize)> {
    packets.iter().map(|(way, size, _)| (*way, *size)).collect()
}

#[test]
fn without_a_tunnel_nothing_is_overhead() {
    let figures = analysed(&on_the_link(&INNER), &[qlog("h3", &INNER)]);
    assert_figures(
        &figures,
        &[
            ("first_hop_bytes", 2252.0),
            ("e2e_bytes", 2252.0),
            // 40 + 28 and 6.
            ("e2e_ack_bytes", 74.0),
            ("overhead_share", 0.0),
            ("ack_share", 0.0),
            ("ack_frames_per_packet", 0.0),
            ("ack_frames_theory", 0.0),
            ("data_packets", 3.0),
            ("unmatched_share", 0.0),
        ],
    );
}

#[test]
fn one_tunnel_costs_its_heads_and_its_acknowledgements() {
    let logs = [qlog("hop1", &TUNNEL), qlog("h3", &INNER)];
    let figures = analysed(&on_the_link(&TUNNEL), &logs);
    // T = 1060 + 100 + 1065 + 167 + 61 + 63; the end-to-end packets are 2252 of it as they would be alone.
    // Acknowledging packets: 100 (the inner one), 61, 63; frames in others: 5, 7 + 6. Less 74 of the inner connection.
    assert_figures(
        &figures,
        &[
            ("first_hop_bytes", 2516.0),
            ("e2e_bytes", 2252.0),
            ("overhead_share", 264.0 / 2516.0),
            ("ack_bytes", 168.0),
            ("ack_share", 168.0 / 2516.0),
            ("ack_only_packets", 3.0),
            ("ack_frames_per_packet", 4.0 / 3.0),
            ("ack_frames_theory", 0.75),
            // All but 2140 bytes of inner packets.
            ("layer_bytes:hop1", 376.0),
            ("ack_frames:hop1", 4.0),
            ("unmatched_share", 0.0),
        ],
    );
}

#[test]
fn two_tunnels_cascade() {
    let logs = [
        qlog("h3", &INNER),
        qlog("hop2", &TUNNEL),
        qlog("hop1", &OUTER),
    ];
    let figures = analysed(&on_the_link(&OUTER), &logs);
    // Acknowledging packets: 132, 93, 95, 59, 62; frames in others: 5, 13. Less 74.
    assert_figures(
        &figures,
        &[
            ("first_hop_bytes", 2829.0),
            ("e2e_bytes", 2252.0),
            ("overhead_share", 577.0 / 2829.0),
            ("ack_share", 385.0 / 2829.0),
            ("ack_only_packets", 5.0),
            ("ack_frames_per_packet", 2.0),
            ("ack_frames_theory", 1.875),
            // 2829 less the 2348 bytes of the second tunnel's packets; those less 2140.
            ("layer_bytes:hop1", 481.0),
            ("layer_bytes:hop2", 208.0),
            ("ack_frames:hop1", 2.0),
            ("ack_frames:hop2", 4.0),
            ("unmatched_share", 0.0),
        ],
    );
}

const PROBE: Framed = ("ping", 1, 0);

#[test]
fn packets_that_a_hop_forwards_are_those_of_the_connection_inside() {
    // The first packet came before the relay knew the connection ids; only it was acknowledged by the tunnel.
    let tunnel: [Sent<'_>; 2] = [(In, 1032, &[around(1000)]), (Out, 30, &[ack(5)])];
    let link = [(In, 1032), (Out, 30), (Out, 40), (In, 1000), (Out, 100)];
    let figures = analysed(&link, &[qlog("hop1", &tunnel), qlog("h3", &INNER)]);
    // T = 1060 + 58 + 68 + 1028 + 128. The tunnel's head of 32 and its acknowledgement are all there is of it.
    assert_figures(
        &figures,
        &[
            ("first_hop_bytes", 2342.0),
            ("e2e_bytes", 2252.0),
            ("overhead_share", 90.0 / 2342.0),
            // 58, 68 and the frame of 6, less 74.
            ("ack_share", 58.0 / 2342.0),
            ("ack_only_packets", 2.0),
            ("ack_packet_bytes", 63.0),
            ("ack_frame_bytes", 5.0),
            // Headers of five packets, and 62: with 2140 bytes of end-to-end packets that is T.
            ("layer_bytes:hop1", 202.0),
            ("forwarded_share:hop1", 0.75),
            ("setup_bytes", 0.0),
            ("unmatched_share", 0.0),
        ],
    );
}

#[test]
fn a_hop_that_forwards_adds_only_what_its_connection_ids_are_longer() {
    // All of the second tunnel, ids longer by 4; the first one's connection is kept alive by a probe.
    let outer: [Sent<'_>; 2] = [(Out, 50, &[PROBE, PADDING]), (In, 31, &[ack(5)])];
    let mut link: Vec<_> = TUNNEL
        .iter()
        .map(|(way, size, _)| (*way, size + 4))
        .collect();
    link.extend(on_the_link(&outer));
    let logs = [
        qlog("hop1", &outer),
        qlog("hop2", &TUNNEL),
        qlog("h3", &INNER),
    ];
    let figures = analysed(&link, &logs);
    // T = 2372 + 81 + 8 × 28. Acknowledging packets: 104, 65, 67, 59; frames in others: 5, 7 + 6. Less 74.
    assert_figures(
        &figures,
        &[
            ("first_hop_bytes", 2677.0),
            ("overhead_share", 425.0 / 2677.0),
            ("ack_bytes", 239.0),
            ("ack_only_packets", 4.0),
            ("ack_packet_bytes", 73.75),
            ("ack_frames_per_packet", 5.0 / 3.0),
            ("ack_frame_bytes", 5.8),
            ("ack_frame_bytes:hop1", 5.0),
            ("ack_frame_bytes:hop2", 6.0),
            // 81, eight headers, six times 4.
            ("layer_bytes:hop1", 329.0),
            ("layer_bytes:hop2", 208.0),
            ("forwarded_share:hop1", 1.0),
            ("forwarded_share:hop2", 0.0),
            ("unmatched_share", 0.0),
        ],
    );
}

#[test]
fn tunnels_that_do_not_acknowledge_leave_the_end_to_end_ones_with_their_wrapping() {
    let tunnel: [Sent<'_>; 4] = [
        (In, 1032, &[around(1000)]),
        (Out, 72, &[around(40)]),
        (In, 1032, &[around(1000)]),
        (Out, 132, &[around(100)]),
    ];
    let outer: [Sent<'_>; 6] = [
        (In, 1064, &[around(1032)]),
        (Out, 104, &[around(72)]),
        (In, 1064, &[around(1032)]),
        (Out, 164, &[around(132)]),
        // A probe and its answer.
        (Out, 27, &[PROBE]),
        (In, 31, &[ack(5)]),
    ];
    let logs = [
        qlog("hop1", &outer),
        qlog("hop2", &tunnel),
        qlog("h3", &INNER),
    ];
    let figures = analysed(&on_the_link(&outer), &logs);
    // T = 1092 + 132 + 1092 + 192 + 55 + 59. The inner acknowledgement 132, the probe's 59, the frame of 6, less 74.
    assert_figures(
        &figures,
        &[
            ("first_hop_bytes", 2622.0),
            ("overhead_share", 370.0 / 2622.0),
            ("ack_share", 123.0 / 2622.0),
            ("ack_only_packets", 2.0),
            ("ack_frames_per_packet", 1.0 / 3.0),
            ("ack_frames:hop2", 0.0),
            ("forwarded_share:hop1", 0.0),
            ("unmatched_share", 0.0),
        ],
    );
    assert!(!figures.contains_key("ack_frame_bytes:hop2"), "no frames");
}

#[test]
fn what_the_second_hop_forwards_is_carried_by_the_first_ones_datagrams() {
    let tunnel: [Sent<'_>; 1] = [(Out, 60, &[DATA])];
    let outer: [Sent<'_>; 5] = [
        (Out, 92, &[around(60)]),
        (In, 1032, &[around(1000)]),
        (Out, 72, &[around(40)]),
        (In, 1032, &[around(1000)]),
        (Out, 132, &[around(100)]),
    ];
    let logs = [
        qlog("hop1", &outer),
        qlog("hop2", &tunnel),
        qlog("h3", &INNER),
    ];
    let figures = analysed(&on_the_link(&outer), &logs);
    // T = 120 + 1060 + 100 + 1060 + 160.
    assert_figures(
        &figures,
        &[
            ("first_hop_bytes", 2500.0),
            ("overhead_share", 248.0 / 2500.0),
            // 100 and 6, less 74.
            ("ack_share", 32.0 / 2500.0),
            ("setup_bytes", 120.0),
            ("layer_bytes:hop1", 300.0),
            ("layer_bytes:hop2", 60.0),
            ("forwarded_share:hop1", 0.0),
            ("forwarded_share:hop2", 1.0),
            ("unmatched_share", 0.0),
        ],
    );
}

#[test]
fn forwarded_and_tunnelled_packets_come_mixed_over_three_hops() {
    const ALONE: &[Framed] = &[ack(6)];
    let size = |i: usize| 40 + i % 7;
    let wrapped: Vec<[Framed; 1]> = (0..600).map(|i| [around(size(i))]).collect();
    let twice: Vec<[Framed; 1]> = (0..600).map(|i| [around(size(i) + 32)]).collect();
    let (mut link, mut inner, mut third, mut first) = (vec![], vec![], vec![], vec![]);
    for i in 0..600 {
        // The link's packet is seen later than the records of what is in it, innermost first.
        let at = link.len() as f64;
        inner.push((at - 0.3, (Out, size(i), ALONE)));
        match i % 4 {
            // Tunnelled by the third hop, whose packets the others forward.
            0 => third.push((at - 0.2, (Out, size(i) + 32, wrapped[i].as_slice()))),
            // Tunnelled by the third and the first.
            1 => {
                third.push((at - 0.2, (Out, size(i) + 32, wrapped[i].as_slice())));
                first.push((at - 0.1, (Out, size(i) + 64, twice[i].as_slice())));
            }
            _ => {}
        }
        link.push((Out, size(i) + [32, 64, 0, 0][i % 4]));
        if i % 10 == 5 {
            // The first tunnel's own, as large as the others.
            first.push((link.len() as f64 - 0.1, (Out, 40, ALONE)));
            link.push((Out, 40));
        }
    }
    let second: [Sent<'_>; 1] = [(In, 30, ALONE)];
    link.push((In, 30));
    let logs = [
        qlog_at("hop1", &first),
        qlog_at("hop2", &[(link.len() as f64, second[0])]),
        qlog_at("hop3", &third),
        qlog_at("h3", &inner),
    ];
    let figures = analysed(&link, &logs);
    assert_figures(
        &figures,
        &[
            ("ack_only_packets", 661.0),
            ("unmatched_share", 0.0),
            // 450 and the second tunnel's, of 601.
            ("forwarded_share:hop1", 451.0 / 601.0),
            ("forwarded_share:hop2", 1.0),
            ("forwarded_share:hop3", 0.5),
            ("packets_in_streams", 0.0),
        ],
    );
}

#[test]
fn a_few_forwarded_packets_of_a_tunnel_are_found_among_many_of_nearly_their_size() {
    const ALONE: &[Framed] = &[ack(6)];
    let (mut link, mut inner, mut second) = (vec![], vec![], vec![]);
    for i in 0..400 {
        inner.push((link.len() as f64 - 0.3, (Out, 33 + i % 4, ALONE)));
        link.push((Out, 33 + i % 4));
        if i % 20 == 10 {
            let size = 31 + i / 20 % 3;
            second.push((link.len() as f64 - 0.1, (Out, size, ALONE)));
            link.push((Out, size));
        }
    }
    let first: [Sent<'_>; 1] = [(In, 30, ALONE)];
    link.push((In, 30));
    let logs = [
        qlog_at("hop1", &[(link.len() as f64, first[0])]),
        qlog_at("hop2", &second),
        qlog_at("h3", &inner),
    ];
    assert_figures(
        &analysed(&link, &logs),
        &[
            ("ack_only_packets", 421.0),
            ("unmatched_share", 0.0),
            ("packets_in_streams", 0.0),
            ("forwarded_share:hop1", 1.0),
            ("forwarded_share:hop2", 1.0),
        ],
    );
}

#[test]
fn an_acknowledgement_beside_data_in_one_packet_counts_with_its_frame() {
    let inner: [Sent<'_>; 2] = [(Out, 40, &[ack(6)]), (Out, 100, &[DATA])];
    let tunnel: [Sent<'_>; 1] = [(Out, 27 + 45 + 105, &[around(40), around(100)])];
    let logs = [qlog("hop1", &tunnel), qlog("h3", &inner)];
    let figures = analysed(&on_the_link(&tunnel), &logs);
    // The frame of 45 instead of the packet of 68.
    let expected = [("ack_bytes", 45.0 - 68.0), ("ack_only_packets", 0.0)];
    assert_figures(&figures, &expected);
}

#[test]
fn a_probe_is_no_acknowledgement() {
    let inner: [Sent<'_>; 2] = [(In, 1000, &[DATA]), (Out, 40, &[ack(6), ("ping", 1, 0)])];
    let figures = analysed(&on_the_link(&inner), &[qlog("h3", &inner)]);
    let expected = [("ack_only_packets", 0.0), ("e2e_ack_bytes", 6.0)];
    assert_figures(&figures, &expected);
}

#[test]
fn packets_of_a_handshake_that_share_a_datagram_are_matched_together() {
    const CRYPTO: Framed = ("crypto", 90, 87);
    let inner: [Sent<'_>; 4] = [
        (In, 130, &[CRYPTO]),
        (In, 150, &[CRYPTO]),
        (In, 1000, &[DATA]),
        (In, 1000, &[DATA]),
    ];
    let tunnel: [Sent<'_>; 3] = [
        (In, 700, &[CRYPTO]),
        // Two of the handshake and the first of the data.
        (In, 1312, &[around(1280)]),
        (In, 1032, &[around(1000)]),
    ];
    let logs = [qlog("hop1", &tunnel), qlog("h3", &inner)];
    let figures = analysed(&on_the_link(&tunnel), &logs);
    let expected = [
        ("e2e_bytes", 1308.0 + 1028.0),
        // The tunnel's own handshake.
        ("setup_bytes", 728.0),
        ("unmatched_share", 0.0),
    ];
    assert_figures(&figures, &expected);
}

#[test]
fn packets_that_overtook_each_other_and_lost_ones_are_still_matched() {
    const ALONE: &[Framed] = &[ack(6)];
    let inner: Vec<Sent<'_>> = (0..300).map(|i| (Out, 40 + i % 7, ALONE)).collect();
    let mut frames: Vec<_> = inner.iter().map(|(_, size, _)| [around(*size)]).collect();
    frames.swap(10, 11);
    frames.swap(100, 103);
    // One was dropped before it was carried.
    frames.remove(200);
    let tunnel: Vec<Sent<'_>> = frames
        .iter()
        .map(|frames| (Out, frames[0].1 + 27, frames.as_slice()))
        .collect();
    let logs = [qlog("hop1", &tunnel), qlog("h3", &inner)];
    let figures = analysed(&on_the_link(&tunnel), &logs);
    assert_figures(
        &figures,
        &[
            ("ack_only_packets", 299.0),
            ("packets_in_streams", 1.0),
            ("unmatched_share", 0.0),
        ],
    );
}

#[test]
fn a_packet_that_came_over_a_stream_of_the_tunnel_is_no_overhead() {
    let inner: [Sent<'_>; 2] = [(In, 1000, &[DATA]), (In, 1200, &[DATA])];
    // The second one as a capsule in a STREAM frame.
    let tunnel: [Sent<'_>; 2] = [(In, 1032, &[around(1000)]), (In, 1240, &[DATA])];
    let logs = [qlog("hop1", &tunnel), qlog("h3", &inner)];
    let figures = analysed(&on_the_link(&tunnel), &logs);
    let (total, alone) = (1060.0 + 1268.0, 1028.0 + 1228.0);
    let expected = [
        ("overhead_share", (total - alone) / total),
        ("packets_in_streams", 1.0),
    ];
    assert_figures(&figures, &expected);
}

#[test]
fn other_traffic_on_the_link_counts_as_bytes_of_the_first_hop() {
    let (mut ping, size) = udp(Out, 0);
    ping[9] = 1;
    let mut packets: Vec<_> = INNER
        .iter()
        .map(|(way, size, _)| udp(*way, *size))
        .collect();
    packets.push((ping, size));
    let addresses = [CLIENT.into(), IpAddr::from([0; 16])];
    let capture = Capture::parse(&mut Cursor::new(pcap(&packets)), &addresses).unwrap();
    let layers = Layers::of(&[qlog("h3", &INNER)]).unwrap();
    let figures = figures(&counted(&capture, &layers)).unwrap();
    let figures: BTreeMap<_, _> = figures.into_iter().collect();
    assert_figures(
        &figures,
        &[
            ("setup_share", 0.0),
            ("overhead_share", 28.0 / 2280.0),
            ("ack_share", 0.0),
        ],
    );
}

#[test]
fn both_families_and_both_byte_orders_are_read() {
    let mut six = vec![0; 48];
    (six[0], six[6]) = (0x60, 17);
    six[8..24].copy_from_slice(&[7; 16]);
    let mut file = Vec::new();
    for number in [
        0xa1b2_3c4d_u32,
        0x0002_0004,
        0,
        0,
        262_144,
        101,
        0,
        0,
        48,
        148,
    ] {
        file.extend(number.to_be_bytes());
    }
    file.extend(&six);
    let addresses = [CLIENT.into(), IpAddr::from([7; 16])];
    let capture = Capture::parse(&mut Cursor::new(file), &addresses).unwrap();
    let (way, bytes, payload) = (Out, 148, Some(100));
    assert_eq!(
        capture.packets,
        [Captured {
            time: 0.0,
            way,
            bytes,
            payload,
            tcp: false
        }]
    );
    assert_eq!(capture.headers(), 48);
}

#[test]
fn a_capture_that_is_cut_short_or_of_another_kind_is_refused() {
    let addresses = [CLIENT.into(), IpAddr::from([7; 16])];
    let parse = |file: &[u8]| Capture::parse(&mut Cursor::new(file), &addresses);
    let whole = pcap(&[udp(Out, 10)]);
    assert_eq!(parse(&whole).unwrap().packets.len(), 1);
    assert!(parse(&whole[..whole.len() - 1]).is_err());
    assert!(parse(&whole[..10]).is_err());
    let mut ethernet = whole.clone();
    ethernet[20] = 1;
    assert!(
        parse(&ethernet)
            .unwrap_err()
            .to_string()
            .contains("IP header")
    );
    assert!(parse(&[0; 24]).unwrap_err().to_string().contains("no pcap"));
}

#[test]
fn a_missing_hop_and_a_missing_end_are_named() {
    let error = |logs: &[String]| Failure::from(Layers::of(logs).unwrap_err()).to_string();
    let two = qlog("hop2", &TUNNEL);
    assert!(error(&[two, qlog("h3", &INNER)]).contains("no qlog of the connection to hop 1"));
    assert!(error(&[qlog("hop1", &TUNNEL)]).contains("no qlog of an end-to-end"));
    assert!(error(&["\u{1e}{\"trace\":3}\n".to_owned()]).contains("a qlog cannot be read"));
}

#[test]
fn logs_of_servers_and_a_record_cut_short_are_left_out() {
    let server = qlog("relay", &OUTER).replace("\"client\"", "\"server\"");
    let mut cut = qlog("h3", &INNER);
    cut += "\u{1e}{\"time\":9.0,\"na";
    let layers = Layers::of(&[server, cut]).unwrap();
    assert_eq!(layers.hops(), 0);
    assert_eq!(layers.0[0].packets(In).len(), 2);
}

#[test]
fn traffic_that_no_qlog_knows_is_refused() {
    let layers = Layers::of(&[qlog("h3", &INNER)]).unwrap();
    let strange = capture(&[(In, 1000), (Out, 40), (In, 555), (In, 556)]);
    let error = of_records(&strange, Ok(layers)).unwrap_err().to_string();
    assert!(
        error.contains("are in no qlog (0.0 % are not UDP, 2 UDP packets on the link)"),
        "{error}"
    );
}

/// Ten packets of TCP, and a first one of UDP that nobody answered.
fn tcp_on_the_link() -> Capture {
    let (mut segment, _) = udp(Out, 0);
    segment[9] = 6;
    let segments = std::iter::repeat_n((segment, 1500), 10);
    let packets: Vec<_> = [udp(Out, 1200)].into_iter().chain(segments).collect();
    let addresses = [CLIENT.into(), IpAddr::from([0; 16])];
    Capture::parse(&mut Cursor::new(pcap(&packets)), &addresses).unwrap()
}

fn unlike(capture: &Capture, logs: &[String]) -> String {
    match of_records(capture, Layers::of(logs)).unwrap() {
        Analysed::Unlike(why) => why,
        Analysed::Figures(figures) => panic!("it was analysed: {figures:?}"),
    }
}

#[test]
fn a_first_hop_to_which_tcp_has_won_the_race_is_no_failure_of_the_subject() {
    const CRYPTO: Framed = ("crypto", 1100, 1097);
    // The connection over QUIC that came too late, if it was written down at all.
    let late: [Sent<'_>; 1] = [(Out, 1200, &[CRYPTO])];
    let end = || qlog("h3", &INNER);
    for logs in [
        vec![end()],
        vec![qlog("hop1", &late), end()],
        vec![qlog("hop2", &TUNNEL), end()],
    ] {
        let why = unlike(&tcp_on_the_link(), &logs);
        assert!(
            why.starts_with("TCP won the race to a relay: hop 1"),
            "{why}"
        );
        assert!(
            why.contains("92.4 % of the bytes on the link are TCP's"),
            "{why}"
        );
    }
}

#[test]
fn a_further_hop_to_which_tcp_has_won_the_race_is_no_tunnel_fewer() {
    // Hop 1 over QUIC; what it carries are the streams of hop 2.
    let outer: Vec<Sent<'_>> = TUNNEL
        .iter()
        .map(|(way, size, _)| (*way, size + 40, [DATA].as_slice()))
        .collect();
    let link = capture(&on_the_link(&outer));
    let why = unlike(&link, &[qlog("hop1", &outer), qlog("h3", &INNER)]);
    assert!(why.contains("a further hop"), "{why}");
    assert!(why.contains("100.0 % of the end-to-end packets"), "{why}");
    // Of three hops the second.
    let logs = [
        qlog("hop1", &outer),
        qlog("hop3", &TUNNEL),
        qlog("h3", &INNER),
    ];
    assert!(unlike(&link, &logs).contains("hop 2 did not run over QUIC"));
}

#[test]
fn a_first_hop_without_a_qlog_on_a_link_without_tcp_is_a_failure() {
    let link = capture(&on_the_link(&OUTER));
    let layers = Layers::of(&[qlog("hop2", &TUNNEL), qlog("h3", &INNER)]);
    let error = of_records(&link, layers).unwrap_err().to_string();
    assert!(
        error.contains("no qlog of the connection to hop 1"),
        "{error}"
    );
}

#[test]
fn a_workload_over_tcp_is_a_mistake_of_the_scenario() {
    let layers = Layers::of(&[qlog("hop1", &TUNNEL)]);
    let error = of_records(&tcp_on_the_link(), layers)
        .unwrap_err()
        .to_string();
    assert!(error.contains("no qlog of an end-to-end"), "{error}");
}

#[test]
fn the_theory_is_that_of_the_paper() {
    // f_1(n) is the sum of the powers of two.
    let ones: Vec<f64> = (0..5).map(|n| theory(1.0, f64::from(n))).collect();
    assert_eq!(ones, [0.0, 2.0, 6.0, 14.0, 30.0]);
    // The recursion of §3, with r = 2: a(0) = 1/r, a(n) = a(n - 1) + (1 + a(n - 1)) / r, less the end-to-end 1/r.
    let mut recursive = 0.5;
    for n in 1..5 {
        recursive += 0.5 * (1.0 + recursive);
        assert!((theory(2.0, f64::from(n)) - (recursive - 0.5)).abs() < 1e-12);
    }
    assert_eq!(theory(2.0, 4.0), 6.093_75);
}

#[test]
fn dates_are_read_as_seconds() {
    assert_eq!(qlog::wall("1970-01-01T00:00:00.000000Z"), Some(0.0));
    assert_eq!(
        qlog::wall("2000-02-29T00:00:00.500000Z"),
        Some(951_782_400.5)
    );
    assert_eq!(
        qlog::wall("2024-12-31T23:59:59.000000Z"),
        Some(1_735_689_599.0)
    );
    assert_eq!(qlog::wall("yesterday"), None);
}
