//! Pings and other packets of programs, through the router to a network in memory.

use std::net::{IpAddr, Ipv4Addr};

use hoplite_wire::{
    HostName,
    ip::{self, Packet, icmp::Echo},
};
use tokio::time::Instant;

use crate::tun::{
    config::{Config, Privacy},
    testing::{Bench, PROGRAM, PROGRAM_V6, TARGET, TARGET_V6, parsed},
};
use crate::users::User;

fn ping(from: IpAddr, to: IpAddr, sequence: u16, payload: &[u8]) -> Vec<u8> {
    let echo = Echo {
        reply: false,
        identifier: 4711,
        sequence,
        payload,
    };
    echo.packet(from, to)
}

/// The next packet that a program gets; the clock is paused, so that nobody waits long for one that does not come.
async fn next(bench: &Bench) -> Vec<u8> {
    let limit = std::time::Duration::from_secs(300);
    let came = tokio::time::timeout(limit, bench.port.next()).await;
    came.expect("a packet for the program")
}

/// A packet of another protocol.
fn packet(from: IpAddr, to: IpAddr, protocol: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ip::write_header(&mut out, from, to, protocol, hop_limit, payload.len());
    out.extend_from_slice(payload);
    out
}

/// Type and code of the ICMP error that a program gets, and what it quotes.
fn error<'a>(packet: &Packet<'a>) -> ([u8; 2], &'a [u8]) {
    let payload = packet.payload;
    ([payload[0], payload[1]], &payload[8..])
}

#[tokio::test(start_paused = true)]
async fn a_ping_is_answered_by_its_target() {
    for (program, target) in [(PROGRAM, TARGET), (PROGRAM_V6, TARGET_V6)] {
        let mut bench = Bench::new();
        let _host = bench.network.bind(target);
        for sequence in 0..3 {
            bench.send(ping(program, target, sequence, b"are you there?"));
            let reply = next(&bench).await;
            let packet = parsed(&reply);
            assert_eq!((packet.source, packet.destination), (target, program));
            let echo = ip::icmp::echo(&packet).expect("an echo");
            let wanted = Echo {
                reply: true,
                identifier: 4711,
                sequence,
                payload: b"are you there?",
            };
            assert_eq!(echo, wanted);
        }
        let seen = bench.network.seen();
        assert_eq!(seen.len(), 3, "each ping was carried, nobody else answered");
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_behind_a_temporary_address_is_pinged_where_the_far_end_finds_it() {
    let mut bench = Bench::new();
    let _host = bench.network.bind(TARGET);
    let name = HostName::new("site.example").expect("a name");
    bench.network.host(name.clone(), TARGET);
    let pair = bench
        .room
        .names
        .pair(&name, User::at(PROGRAM), Instant::now());
    let pair = pair.expect("free addresses");
    let temporary = IpAddr::V4(pair.v4);
    bench.send(ping(PROGRAM, temporary, 1, b"are you there?"));
    let reply = next(&bench).await;
    let packet = parsed(&reply);
    assert_eq!((packet.source, packet.destination), (temporary, PROGRAM));
    let seen = bench.network.seen();
    assert_eq!(
        seen[0].to.ip(),
        TARGET,
        "the name's address, not the temporary one"
    );
    // It has no IPv6 address, but stands behind one: which a system prefers.
    bench.send(ping(PROGRAM_V6, pair.v6.into(), 2, b"and so?"));
    let reply = next(&bench).await;
    let packet = parsed(&reply);
    assert_eq!(packet.source, IpAddr::V6(pair.v6));
    let echo = ip::icmp::echo(&packet).expect("an echo");
    assert_eq!(
        (echo.reply, echo.identifier, echo.sequence),
        (true, 4711, 2)
    );
    assert_eq!(bench.network.seen()[1].to.ip(), TARGET);
}

#[tokio::test(start_paused = true)]
async fn a_ping_to_nobody_is_told_so() {
    let mut bench = Bench::new();
    let request = ping(PROGRAM, TARGET, 1, b"hello?");
    bench.send(request.clone());
    let told = next(&bench).await;
    assert_eq!(error(&parsed(&told)), ([3, 1], &request[..]));
    assert_eq!(bench.room.counters.snapshot().failed_target, 1);
    bench.send(request);
    next(&bench).await;
    let failed = bench.room.counters.snapshot().failed_target;
    assert_eq!(failed, 1, "who insists is answered without another flow");
}

#[tokio::test(start_paused = true)]
async fn other_protocols_pass_with_their_payload_alone() {
    let mut bench = Bench::new();
    let _host = bench.network.bind(TARGET);
    bench.send(packet(PROGRAM, TARGET, 132, 3, b"sctp or so"));
    let back = next(&bench).await;
    let back = parsed(&back);
    assert_eq!((back.source, back.destination), (TARGET, PROGRAM));
    assert_eq!((back.protocol, back.payload), (132, &b"sctp or so"[..]));
}

#[tokio::test(start_paused = true)]
async fn what_a_system_says_of_our_packets_is_carried_nowhere() {
    let mut bench = Bench::new();
    let _host = bench.network.bind(TARGET);
    let mut reply = ping(PROGRAM, TARGET, 1, b"");
    (reply[20], reply[22]) = (0, reply[22].wrapping_add(8));
    bench.send(reply);
    let cause = ping(TARGET, PROGRAM, 1, b"");
    let unreachable = ip::icmp::unreachable(&cause, ip::icmp::Unreachable::Port);
    bench.send(unreachable.expect("an error"));
    bench.send(packet(PROGRAM, TARGET, 2, 1, b"igmp"));
    tokio::task::yield_now().await;
    assert_eq!(bench.room.counters.snapshot().other_dropped, 3);
    assert!(bench.network.seen().is_empty() && bench.port.try_next().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_packet_above_the_roads_size_is_answered_with_the_size() {
    let mut bench = Bench::new();
    let _host = bench.network.bind(TARGET);
    let request = ping(PROGRAM, TARGET, 1, &[7; 1472]);
    bench.send(request);
    let told = next(&bench).await;
    let told = parsed(&told);
    assert_eq!(error(&told).0, [3, 4]);
    assert_eq!(told.payload[6..8], 1472_u16.to_be_bytes());
}

fn compatible(config: &mut Config) {
    config.device.privacy = Privacy::Compatibility;
}

#[tokio::test(start_paused = true)]
async fn compatibility_counts_hops_and_says_when_they_are_used_up() {
    let mut bench = Bench::with(compatible);
    let _host = bench.network.bind(TARGET);
    let last = packet(PROGRAM, TARGET, 132, 1, b"traced");
    bench.send(last.clone());
    let told = next(&bench).await;
    assert_eq!(error(&parsed(&told)), ([11, 0], &last[..]));
    bench.send(packet(PROGRAM, TARGET, 132, 2, b"traced"));
    assert_eq!(parsed(&next(&bench).await).payload, b"traced");
}

#[tokio::test(start_paused = true)]
async fn anonymity_does_not_carry_the_hop_limit() {
    let mut bench = Bench::new();
    let _host = bench.network.bind(TARGET);
    bench.send(packet(PROGRAM, TARGET, 132, 1, b"traced"));
    assert_eq!(parsed(&next(&bench).await).payload, b"traced");
}

#[tokio::test(start_paused = true)]
async fn the_table_keeps_its_bound_and_the_last_is_served() {
    let mut bench = Bench::with(|config| config.flows.packets = 2);
    for last in 0..20 {
        let target = IpAddr::V4(Ipv4Addr::new(203, 0, 113, last));
        let _host = bench.network.bind(target);
        bench.send(ping(PROGRAM, target, 1, b""));
        let back = next(&bench).await;
        assert_eq!(parsed(&back).source, target);
    }
}
