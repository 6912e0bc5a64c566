//! Forged, fragmented, misdirected and malformed packets; and too many.

use std::time::Duration;

use hoplite_wire::{connect_ip::Prefix, ip::icmp::Echo};
use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().expect(text)
}

/// A flow of `protocol` to two hosts, one of each family.
fn filter(protocol: u8) -> PacketFilter {
    let to = ["192.0.2.1", "2001:db8::1"].map(ip);
    let route = |to| Prefix::one(to).route(protocol);
    PacketFilter::new(
        ["100.96.0.2", "fd00::2"].map(ip).to_vec(),
        to.map(route).to_vec(),
    )
}

fn echo(from: &str, to: &str) -> Vec<u8> {
    let echo = Echo {
        reply: false,
        identifier: 1,
        sequence: 2,
        payload: b"echo",
    };
    echo.packet(ip(from), ip(to))
}

fn packet(from: &str, to: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ip::write_header(&mut out, ip(from), ip(to), protocol, 64, payload.len());
    out.extend_from_slice(payload);
    out
}

/// Where a packet of a flow goes.
fn passed(filter: &PacketFilter, bytes: &[u8]) -> Result<SocketAddr, Refused> {
    filter.outgoing(bytes).map(|passed| passed.to)
}

#[test]
fn echoes_pass_whatever_the_protocol_of_the_flow() {
    for protocol in [0, ICMP, TCP, 132] {
        let filter = filter(protocol);
        let went = passed(&filter, &echo("100.96.0.2", "192.0.2.1"));
        assert_eq!(went, Ok(SocketAddr::new(ip("192.0.2.1"), 0)));
        let went = passed(&filter, &echo("fd00::2", "2001:db8::1"));
        assert_eq!(went, Ok(SocketAddr::new(ip("2001:db8::1"), 0)));
        assert!(filter.takes(&echo("192.0.2.1", "100.96.0.2")));
    }
}

#[test]
fn forged_sources_and_other_destinations_do_not() {
    let filter = filter(0);
    for (from, to, why) in [
        ("100.96.0.3", "192.0.2.1", Refused::Source),
        ("192.0.2.1", "192.0.2.1", Refused::Source),
        ("fd00::3", "2001:db8::1", Refused::Source),
        ("100.96.0.2", "192.0.2.2", Refused::Route),
        ("100.96.0.2", "127.0.0.1", Refused::Route),
        ("fd00::2", "2001:db8::2", Refused::Route),
    ] {
        assert_eq!(filter.outgoing(&echo(from, to)), Err(why), "{from} {to}");
    }
}

#[test]
fn another_protocol_is_off_the_route_and_ports_are_told_to_the_policy() {
    let sctp = filter(132);
    let of = |protocol| packet("100.96.0.2", "192.0.2.1", protocol, &[0, 1, 0, 25, 9]);
    let target = |port| SocketAddr::new(ip("192.0.2.1"), port);
    assert_eq!(passed(&sctp, &of(132)), Ok(target(25)));
    assert_eq!(sctp.outgoing(&of(TCP)), Err(Refused::Route));
    assert_eq!(sctp.outgoing(&of(50)), Err(Refused::Route));
    let any = filter(0);
    assert_eq!(passed(&any, &of(TCP)), Ok(target(25)));
    assert_eq!(passed(&any, &of(50)), Ok(target(0)));
}

#[test]
fn groups_and_messages_of_routers_are_refused() {
    let everywhere =
        [ip("0.0.0.0"), ip("::")].map(|all| Prefix::new(all, 0).expect("a prefix").route(0));
    let filter = PacketFilter::new(
        ["100.96.0.2", "fd00::2"].map(ip).to_vec(),
        everywhere.to_vec(),
    );
    for to in ["224.0.0.1", "255.255.255.255", "0.0.0.0"] {
        assert_eq!(
            filter.outgoing(&echo("100.96.0.2", to)),
            Err(Refused::Route),
            "{to}"
        );
    }
    for to in ["ff02::1", "::"] {
        assert_eq!(
            filter.outgoing(&echo("fd00::2", to)),
            Err(Refused::Route),
            "{to}"
        );
    }
    for (protocol, kind) in [(ICMP, 5), (ICMP, 9), (ICMP, 13), (ICMPV6, 1), (2, 0x11)] {
        let message = packet("100.96.0.2", "192.0.2.1", protocol, &[kind, 0, 0, 0]);
        assert_eq!(
            filter.outgoing(&message),
            Err(Refused::Message),
            "{protocol} {kind}"
        );
    }
    for kind in [133, 134, 135, 136, 137] {
        let message = packet("fd00::2", "2001:db8::1", ICMPV6, &[kind, 0, 0, 0]);
        assert_eq!(filter.outgoing(&message), Err(Refused::Message), "{kind}");
    }
}

#[test]
fn fragments_and_used_up_packets_are_refused() {
    let mut fragment = echo("100.96.0.2", "192.0.2.1");
    fragment[6] = 0x20;
    assert_eq!(filter(0).outgoing(&fragment), Err(Refused::Fragment));
    let mut used_up = echo("fd00::2", "2001:db8::1");
    used_up[7] = 0;
    assert_eq!(filter(0).outgoing(&used_up), Err(Refused::Malformed));
    assert_eq!(filter(0).outgoing(&[]), Err(Refused::Malformed));
}

#[test]
fn packets_that_would_go_on_from_their_destination_or_speak_to_routers_are_refused_both_ways() {
    let filter = filter(0);
    // A source route to the host beside, and the same in IPv6: the policy sees 192.0.2.1 and 2001:db8::1 only.
    let v4 = |from, to, options: [u8; 8]| {
        let mut bytes = packet(from, to, UDP, &[&options[..], &[0, 1, 0, 25]].concat());
        bytes[0] = 0x47;
        bytes
    };
    let v6 = |from, to, kind: u8, header: [u8; 24]| {
        let mut bytes = packet(from, to, UDP, &[&header[..], &[0, 1, 0, 25]].concat());
        bytes[6] = kind;
        bytes
    };
    let mut route = [0; 24];
    route[..4].copy_from_slice(&[UDP, 2, 0, 1]);
    let mut alert = [0; 24];
    alert[..6].copy_from_slice(&[UDP, 2, 5, 2, 0, 0]);
    let source_route = [131, 7, 4, 10, 0, 0, 1, 0];
    for bytes in [
        v4("100.96.0.2", "192.0.2.1", source_route),
        v4("100.96.0.2", "192.0.2.1", [68, 8, 5, 0, 0, 0, 0, 0]),
        v6("fd00::2", "2001:db8::1", 43, route),
        v6("fd00::2", "2001:db8::1", 0, alert),
    ] {
        assert_eq!(filter.outgoing(&bytes), Err(Refused::Options));
    }
    let padding = v4("100.96.0.2", "192.0.2.1", [1, 1, 1, 1, 1, 1, 1, 0]);
    assert_eq!(passed(&filter, &padding).map(|to| to.port()), Ok(25));
    assert!(!filter.takes(&v4("192.0.2.1", "100.96.0.2", source_route)));
    assert!(!filter.takes(&v6("2001:db8::1", "fd00::2", 43, route)));
    assert!(filter.takes(&v4("192.0.2.1", "100.96.0.2", [0; 8])));
}

#[test]
fn errors_come_in_from_anywhere_and_nothing_else_does() {
    let filter = filter(TCP);
    let from_router = |kind| packet("203.0.113.9", "100.96.0.2", ICMP, &[kind, 0, 0, 0]);
    assert!(filter.takes(&from_router(11)) && filter.takes(&from_router(3)));
    assert!(!filter.takes(&from_router(0)) && !filter.takes(&from_router(5)));
    assert!(!filter.takes(&packet("192.0.2.1", "100.96.0.3", TCP, &[0; 20])));
    assert!(filter.takes(&packet("192.0.2.1", "100.96.0.2", TCP, &[0; 20])));
    assert!(!filter.takes(&packet("192.0.2.1", "100.96.0.2", UDP, &[0; 20])));
}

#[test]
fn a_seconds_worth_passes_at_once_and_then_the_rate() {
    let start = Instant::now();
    let mut rate = Rate::new(10, start);
    let passed = |rate: &mut Rate, now| (0..100).filter(|_| rate.admits(now)).count();
    assert_eq!(passed(&mut rate, start), 10);
    assert_eq!(passed(&mut rate, start + Duration::from_millis(250)), 2);
    assert_eq!(passed(&mut rate, start + Duration::from_secs(60)), 10);
    assert_eq!(
        passed(&mut rate, start),
        0,
        "a clock that goes back gives nothing"
    );
    assert_eq!(passed(&mut Rate::new(0, start), start), 100, "no limit");
}

proptest! {
    #[test]
    fn nothing_passes_that_is_not_from_the_flow_to_its_target(bytes: Vec<u8>, protocol: u8) {
        let filter = filter(protocol);
        filter.takes(&bytes);
        prop_assert!(filter.outgoing(&bytes).is_err(), "random bytes have no right source");
    }

    /// A right packet with one byte changed passes only if it still is from the flow to its target.
    #[test]
    fn a_spoilt_packet_is_judged_by_what_it_says(at in 0_usize..32, to: u8) {
        let mut bytes = echo("100.96.0.2", "192.0.2.1");
        bytes[at] = to;
        if let Ok(passed) = filter(0).outgoing(&bytes) {
            prop_assert_eq!(passed.to.ip(), ip("192.0.2.1"));
            prop_assert_eq!(&bytes[12..20], &[100, 96, 0, 2, 192, 0, 2, 1]);
        }
    }
}
