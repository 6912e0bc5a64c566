use hoplite_wire::ip::icmp::{self, Echo, Unreachable};
use proptest::prelude::*;

use super::*;

/// Makes an error about a packet.
type Error = fn(&[u8]) -> Option<Vec<u8>>;

fn ip(text: &str) -> IpAddr {
    text.parse().expect(text)
}

/// As the program sees it, and as the far end does.
fn worlds(v6: bool) -> (Pair, Pair) {
    let pair = |near, far| Pair {
        near: ip(near),
        far: ip(far),
    };
    match v6 {
        false => (
            pair("198.18.0.1", "198.18.9.9"),
            pair("100.96.0.2", "203.0.113.9"),
        ),
        true => (pair("fd68::1", "fd68::99"), pair("fd00::2", "2001:db8::9")),
    }
}

fn echo(reply: bool, identifier: u16, payload: &[u8], from: IpAddr, to: IpAddr) -> Vec<u8> {
    let sequence = 3;
    let echo = Echo {
        reply,
        identifier,
        sequence,
        payload,
    };
    echo.packet(from, to)
}

fn parsed(octets: &[u8]) -> Packet<'_> {
    ip::parse(octets).expect("a packet")
}

#[test]
fn an_echo_goes_with_the_far_ends_addresses_and_comes_back_with_the_programs() {
    for v6 in [false, true] {
        let ((ours, theirs), mut idents) = (worlds(v6), Idents::default());
        let request = echo(false, 4711, b"ping", ours.near, ours.far);
        let sent = up(&parsed(&request), theirs, 64, &mut idents).expect("goes");
        let sent = parsed(&sent);
        assert_eq!((sent.source, sent.destination), (theirs.near, theirs.far));
        assert!(sent.checksum_is_right() && sent.hop_limit == 64);
        let seen = icmp::echo(&sent).expect("an echo");
        assert_ne!(seen.identifier, 4711, "the program's identifier stays here");
        let reply = echo(true, seen.identifier, seen.payload, theirs.far, theirs.near);
        let back = down(&parsed(&reply), theirs, ours, &idents).expect("for the program");
        let back = parsed(&back);
        assert_eq!((back.source, back.destination), (ours.far, ours.near));
        assert!(back.checksum_is_right());
        let told = icmp::echo(&back).expect("an echo");
        assert_eq!(
            (told.reply, told.identifier, told.sequence),
            (true, 4711, 3)
        );
        assert_eq!(told.payload, b"ping");
    }
}

#[test]
fn what_is_not_for_the_program_is_dropped() {
    let ((ours, theirs), mut idents) = (worlds(false), Idents::default());
    let request = echo(false, 1, b"", ours.near, ours.far);
    up(&parsed(&request), theirs, 64, &mut idents).expect("goes");
    let for_program = |packet: &[u8]| down(&parsed(packet), theirs, ours, &idents).is_some();
    assert!(for_program(&echo(true, 0, b"x", theirs.far, theirs.near)));
    let mut spoilt = echo(true, 0, b"x", theirs.far, theirs.near);
    spoilt[22] ^= 1;
    for packet in [
        spoilt,
        echo(true, 1, b"another's", theirs.far, theirs.near),
        echo(false, 0, b"a request", theirs.far, theirs.near),
        echo(true, 0, b"from elsewhere", ip("192.0.2.66"), theirs.near),
        echo(true, 0, b"to elsewhere", theirs.far, ip("100.96.0.3")),
    ] {
        assert!(!for_program(&packet));
    }
}

#[test]
fn an_error_quotes_the_packet_that_the_program_sent() {
    for v6 in [false, true] {
        let ((ours, theirs), mut idents) = (worlds(v6), Idents::default());
        let request = echo(false, 4711, b"ping", ours.near, ours.far);
        let sent = up(&parsed(&request), theirs, 64, &mut idents).expect("goes");
        let error = icmp::unreachable(&sent, Unreachable::Host).expect("an error");
        let told = down(&parsed(&error), theirs, ours, &idents).expect("for the program");
        let told = parsed(&told);
        assert_eq!((told.source, told.destination), (ours.far, ours.near));
        assert!(told.checksum_is_right());
        let quoted = &told.payload[8..];
        let headers = parsed(quoted).header_len;
        assert_eq!(
            quoted[..headers],
            request[..headers],
            "the header as it was sent"
        );
        assert_eq!(
            quoted[headers + 4..],
            request[headers + 4..],
            "identifier, sequence and payload"
        );
    }
}

#[test]
fn an_error_that_quotes_somebody_elses_packet_is_dropped() {
    let ((ours, theirs), mut idents) = (worlds(false), Idents::default());
    let request = echo(false, 1, b"ping", ours.near, ours.far);
    up(&parsed(&request), theirs, 64, &mut idents).expect("goes");
    let foreign = echo(false, 0, b"ping", theirs.near, ip("192.0.2.66"));
    let error = icmp::unreachable(&foreign, Unreachable::Host).expect("an error");
    assert_eq!(down(&parsed(&error), theirs, ours, &idents), None);
}

#[test]
fn an_echo_crosses_to_the_other_family_and_back_and_so_do_errors_about_it() {
    for v6 in [false, true] {
        let ((ours, _), (_, theirs)) = (worlds(v6), worlds(!v6));
        let mut idents = Idents::default();
        let request = echo(false, 4711, b"ping", ours.near, ours.far);
        let sent = up(&parsed(&request), theirs, 64, &mut idents).expect("goes");
        assert_eq!(sent, echo(false, 0, b"ping", theirs.near, theirs.far));
        let reply = echo(true, 0, b"ping", theirs.far, theirs.near);
        let back = down(&parsed(&reply), theirs, ours, &idents).expect("for the program");
        assert_eq!(back, echo(true, 4711, b"ping", ours.far, ours.near));
        let [unreachable, exceeded, large]: [Error; 3] = [
            |cause| icmp::unreachable(cause, Unreachable::Host),
            icmp::time_exceeded,
            |cause| icmp::too_big(cause, 1400),
        ];
        for error in [unreachable, exceeded] {
            let told = down(
                &parsed(&error(&sent).expect("an error")),
                theirs,
                ours,
                &idents,
            );
            assert_eq!(
                told,
                error(&request),
                "as if the target had answered the program"
            );
        }
        let told = down(
            &parsed(&large(&sent).expect("an error")),
            theirs,
            ours,
            &idents,
        );
        let mtu = if v6 { 1420 } else { 1380 };
        assert_eq!(told, icmp::too_big(&request, mtu));
        let foreign = echo(false, 0, b"ping", theirs.near, ours.far);
        assert!(
            unreachable(&foreign)
                .is_none_or(|error| down(&parsed(&error), theirs, ours, &idents).is_none())
        );
    }
}

#[test]
fn other_protocols_do_not_cross() {
    let ((ours, _), (_, theirs)) = (worlds(false), worlds(true));
    let mut packet = Vec::new();
    ip::write_header(&mut packet, ours.near, ours.far, 132, 64, 4);
    packet.extend_from_slice(b"sctp");
    assert_eq!(
        up(&parsed(&packet), theirs, 64, &mut Idents::default()),
        None
    );
}

#[test]
fn the_seventeenth_program_takes_the_number_of_the_first() {
    let mut idents = Idents::default();
    for ident in 1000..1016 {
        assert_eq!(idents.number(ident), ident - 1000);
    }
    assert_eq!(idents.number(2000), 0);
    assert_eq!(
        (idents.ident(0), idents.ident(15), idents.ident(16)),
        (Some(2000), Some(1015), None)
    );
    assert_eq!(idents.number(1001), 1);
}

proptest! {
    /// A transport checksum that was right is right for the other addresses, there and back.
    #[test]
    fn checksums_over_addresses_stay_right(v6: bool, tcp: bool, body in prop::collection::vec(any::<u8>(), 20..200)) {
        let (ours, theirs) = worlds(v6);
        let (protocol, at) = if tcp { (TCP, 16) } else { (UDP, 6) };
        let mut payload = body;
        put(&mut payload, at, 0);
        let sum = checksum::transport(ours.near, ours.far, protocol, &[&payload]);
        put(&mut payload, at, if sum == 0 { 0xffff } else { sum });
        let mut packet = Vec::new();
        ip::write_header(&mut packet, ours.near, ours.far, protocol, 64, payload.len());
        packet.extend_from_slice(&payload);
        let sent = up(&parsed(&packet), theirs, 64, &mut Idents::default()).expect("goes");
        let seen = parsed(&sent);
        prop_assert!([0, 0xffff].contains(&checksum::transport(seen.source, seen.destination, protocol, &[seen.payload])));
        let mut back = Vec::new();
        let again = written(seen.payload.to_vec(), protocol, 64, [theirs.near, theirs.far], [theirs.far, theirs.near]);
        back.extend_from_slice(&again);
        let told = down(&parsed(&back), theirs, ours, &Idents::default()).expect("for the program");
        let told = parsed(&told);
        prop_assert!([0, 0xffff].contains(&checksum::transport(told.source, told.destination, protocol, &[told.payload])));
    }

    #[test]
    fn any_packet_is_rewritten_without_a_panic(octets: Vec<u8>, v6: bool, protocol: u8) {
        let (ours, theirs) = worlds(v6);
        let mut idents = Idents::default();
        let mut packet = Vec::new();
        ip::write_header(&mut packet, theirs.far, theirs.near, protocol, 64, octets.len());
        packet.extend_from_slice(&octets);
        // Some protocol numbers are extension headers, which random octets are not.
        if let Ok(packet) = ip::parse(&packet) {
            let (other, _) = worlds(!v6);
            for ours in [ours, other] {
                drop(up(&packet, ours, 64, &mut idents));
                drop(down(&packet, theirs, ours, &idents));
            }
        }
    }
}
