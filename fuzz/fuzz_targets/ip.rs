//! Packets from a TUN: parts never exceed what was given, what follows the packet changes nothing, errors about it are packets themselves,
//! and a TCP header that was read is written and read back.
#![no_main]

use hoplite_wire::ip::{self, icmp, tcp, udp};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _options = tcp::Options::parse(bytes);
    let Ok(packet) = ip::parse(bytes) else {
        assert_eq!(icmp::unreachable(bytes, icmp::Unreachable::Port), None);
        return;
    };
    let end = packet.header_len + packet.payload.len();
    assert!(end <= bytes.len());
    assert_eq!(ip::parse(&bytes[..end]), Ok(packet));
    packet.checksum_is_right();
    transport(&packet);
    for answer in [
        icmp::unreachable(bytes, icmp::Unreachable::Host),
        icmp::too_big(bytes, 1280),
    ]
    .into_iter()
    .flatten()
    {
        let answer = ip::parse(&answer).expect("an error is a packet");
        assert!(answer.checksum_is_right());
        assert_eq!(
            (answer.source, answer.destination),
            (packet.destination, packet.source)
        );
        assert!(bytes.starts_with(&answer.payload[8..]));
    }
});

fn transport(packet: &ip::Packet<'_>) {
    if let Ok(datagram) = udp::parse(packet.payload) {
        assert!(datagram.payload.len() + 8 <= packet.payload.len());
    }
    if let Some(echo) = icmp::echo(packet) {
        let again = echo.packet(packet.source, packet.destination);
        assert_eq!(
            icmp::echo(&ip::parse(&again).expect("a packet")),
            Some(echo)
        );
    }
    if let Ok(segment) = tcp::parse(packet.payload) {
        assert_eq!(
            segment.header_len + segment.payload.len(),
            packet.payload.len()
        );
        let mut out = Vec::new();
        segment.header().write(0, &mut out);
        assert_eq!(
            tcp::parse(&out).expect("a header").header(),
            segment.header()
        );
    }
}
