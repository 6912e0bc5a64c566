//! The header policy as targets and programs see it: one test for each row of the table in docs/device-headers.md, and what bad packets do.

use std::net::SocketAddr;

use hoplite_overlay::memory::Seen;
use hoplite_wire::ip::{self, checksum, tcp, udp};
use proptest::prelude::*;
use tokio::io::AsyncReadExt;

use super::{
    config::Privacy,
    testing::{Bench, PROGRAM, PROGRAM_V6, TARGET, TARGET_V6, parsed, tcp_packet, udp_packet},
};

/// What differs between the packets of two systems that send the same.
#[derive(Clone, Copy, Debug, Default)]
struct System {
    traffic_class: u8,
    identification: u16,
    may_fragment: bool,
    hop_limit: u8,
    flow_label: u16,
    port: u16,
    without_checksum: bool,
}

impl System {
    fn packet(self, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
        let here = if to.is_ipv4() { PROGRAM } else { PROGRAM_V6 };
        let mut packet = udp_packet(SocketAddr::new(here, self.port), to, payload);
        if to.is_ipv4() {
            self.write_v4(&mut packet);
        } else {
            packet[0] |= self.traffic_class >> 4;
            packet[1] |= self.traffic_class << 4;
            packet[2..4].copy_from_slice(&self.flow_label.to_be_bytes());
            packet[7] = self.hop_limit;
        }
        packet
    }

    fn write_v4(self, packet: &mut [u8]) {
        packet[1] = self.traffic_class;
        packet[4..6].copy_from_slice(&self.identification.to_be_bytes());
        packet[6] = if self.may_fragment { 0 } else { 0x40 };
        packet[8] = self.hop_limit;
        packet[10..12].copy_from_slice(&[0, 0]);
        let sum = checksum::of(&[&packet[..20]]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        if self.without_checksum {
            packet[26..28].copy_from_slice(&[0, 0]);
        }
    }
}

const LINUX: System = System {
    traffic_class: 0,
    identification: 0,
    may_fragment: false,
    hop_limit: 64,
    flow_label: 0x1234,
    port: 4000,
    without_checksum: false,
};

/// An IPv4 packet with three bytes of nothing and an end.
fn with_options(to: SocketAddr) -> Vec<u8> {
    let mut packet = LINUX.packet(to, b"hello");
    packet[0] = 0x46;
    packet.splice(20..20, [1, 1, 1, 0]);
    let len = u16::try_from(packet.len()).expect("short");
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet
}

/// What the overlay and the target see when `system` sends two datagrams.
async fn seen(system: System, there: std::net::IpAddr) -> (Vec<Seen>, Vec<Vec<u8>>) {
    let mut bench = Bench::new();
    let far = bench.network.bind(there);
    let mut payloads = Vec::new();
    for payload in [&b"hello"[..], &[7; 1200]] {
        bench.send(system.packet(far.address(), payload));
        payloads.push(far.recv().await.0.to_vec());
    }
    (bench.network.seen(), payloads)
}

async fn cannot_be_told_from_linux(system: System) {
    for there in [TARGET, TARGET_V6] {
        assert_eq!(seen(system, there).await, seen(LINUX, there).await);
    }
}

#[tokio::test(start_paused = true)]
async fn private_the_traffic_class_is_not_carried() {
    cannot_be_told_from_linux(System {
        traffic_class: 0xb9,
        ..LINUX
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn private_identification_and_dont_fragment_are_not_carried() {
    let system = System {
        identification: 777,
        may_fragment: true,
        ..LINUX
    };
    cannot_be_told_from_linux(system).await;
}

#[tokio::test(start_paused = true)]
async fn private_the_hop_limit_is_not_carried() {
    cannot_be_told_from_linux(System {
        hop_limit: 128,
        ..LINUX
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn private_the_flow_label_is_not_carried() {
    cannot_be_told_from_linux(System {
        flow_label: 0xffff,
        ..LINUX
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn private_the_source_port_is_not_carried() {
    cannot_be_told_from_linux(System {
        port: 61_000,
        ..LINUX
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn private_the_udp_checksum_is_not_carried() {
    let system = System {
        without_checksum: true,
        ..LINUX
    };
    assert_eq!(seen(system, TARGET).await, seen(LINUX, TARGET).await);
}

#[tokio::test(start_paused = true)]
async fn private_the_source_address_is_not_carried() {
    let other = "198.18.0.7".parse().expect("an address");
    let mut bench = Bench::with(|config| config.device.addresses.push(other));
    let far = bench.network.bind(TARGET);
    for source in [PROGRAM, other] {
        bench.send(udp_packet(
            SocketAddr::new(source, 4000),
            far.address(),
            b"hello",
        ));
        let (_, from) = far.recv().await;
        assert_eq!(from.ip().to_string(), "192.0.2.1", "the overlay's end");
    }
}

#[tokio::test(start_paused = true)]
async fn static_the_target_is_told_once_for_a_flow() {
    let mut bench = Bench::new();
    let far = bench.network.bind(TARGET);
    for _ in 0..10 {
        bench.send(LINUX.packet(far.address(), b"hello"));
        far.recv().await;
    }
    assert_eq!(bench.context.counters.snapshot().udp_opened, 1);
}

#[tokio::test(start_paused = true)]
async fn dynamic_the_length_of_each_datagram_is_carried() {
    let (_, payloads) = seen(LINUX, TARGET).await;
    assert_eq!(payloads, [b"hello".to_vec(), vec![7; 1200]]);
}

/// What differs between the TCP of two systems.
#[derive(Clone, Copy, Debug)]
struct Stack {
    below: System,
    options: tcp::Options,
    sequence: u32,
    window: u16,
    /// Beside SYN, and beside ACK.
    flags: [tcp::Flags; 2],
    urgent: u16,
}

const LINUX_TCP: Stack = Stack {
    below: LINUX,
    options: tcp::Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some((77, 0)),
    },
    sequence: 1000,
    window: 64_240,
    flags: [tcp::Flags(0), tcp::Flags::PSH],
    urgent: 0,
};

impl Stack {
    fn packet(self, to: SocketAddr, header: tcp::Header, payload: &[u8]) -> Vec<u8> {
        let header = tcp::Header {
            source: self.below.port,
            destination: to.port(),
            window: self.window,
            ..header
        };
        let mut packet = tcp_packet(PROGRAM, to.ip(), &header, payload);
        self.below.write_v4(&mut packet);
        packet
    }

    fn syn(self) -> tcp::Header {
        tcp::Header {
            sequence: self.sequence,
            flags: tcp::Flags::SYN | self.flags[0],
            options: self.options,
            ..tcp::Header::default()
        }
    }

    fn data(self, answer: &tcp::Segment<'_>) -> tcp::Header {
        tcp::Header {
            sequence: self.sequence.wrapping_add(1),
            acknowledgment: answer.sequence.wrapping_add(1),
            flags: tcp::Flags::ACK | self.flags[1],
            urgent: self.urgent,
            ..tcp::Header::default()
        }
    }
}

/// What the overlay and the target see of a connection of `stack` that says something.
async fn seen_of(stack: Stack) -> (Vec<Seen>, Vec<u8>) {
    let mut bench = Bench::new();
    let mut listener = bench.network.listen(TARGET);
    let there = listener.address();
    bench.send(stack.packet(there, stack.syn(), b""));
    let bytes = bench.sink.next().await;
    let answer = tcp::parse(parsed(&bytes).payload).expect("a segment");
    bench.send(stack.packet(there, stack.data(&answer), b"hello"));
    let mut stream = listener.accept().await;
    let mut said = vec![0; 5];
    stream
        .read_exact(&mut said)
        .await
        .expect("it says five bytes");
    (bench.network.seen(), said)
}

#[tokio::test(start_paused = true)]
async fn private_nothing_of_a_tcp_header_but_the_target_is_carried() {
    let linux = seen_of(LINUX_TCP).await;
    assert!(linux.0.len() >= 2, "an opening and bytes");
    assert_eq!(linux.1, b"hello");
    let other_options = tcp::Options {
        mss: Some(536),
        window_scale: None,
        sack_permitted: false,
        timestamps: None,
    };
    let urgent = tcp::Flags::URG | tcp::Flags::PSH;
    let ecn = tcp::Flags::ECE | tcp::Flags::CWR;
    for other in [
        Stack {
            options: other_options,
            ..LINUX_TCP
        },
        Stack {
            sequence: u32::MAX,
            ..LINUX_TCP
        },
        Stack {
            window: 512,
            ..LINUX_TCP
        },
        Stack {
            flags: [ecn, tcp::Flags::PSH],
            ..LINUX_TCP
        },
        Stack {
            flags: [tcp::Flags(0); 2],
            ..LINUX_TCP
        },
        Stack {
            flags: [tcp::Flags(0), urgent],
            urgent: 5,
            ..LINUX_TCP
        },
        Stack {
            below: System {
                port: 61_000,
                ..LINUX
            },
            ..LINUX_TCP
        },
        Stack {
            below: System {
                hop_limit: 128,
                identification: 9,
                traffic_class: 2,
                ..LINUX
            },
            ..LINUX_TCP
        },
    ] {
        assert_eq!(seen_of(other).await, linux, "{other:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn private_fragments_are_dropped_and_counted() {
    let mut bench = Bench::new();
    let mut packet = LINUX.packet(SocketAddr::new(TARGET, 9), b"hello");
    packet[6] = 0x20;
    bench.send(packet);
    let snapshot = bench.context.counters.snapshot();
    assert_eq!((snapshot.fragments, snapshot.udp_opened), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn private_packets_with_options_are_dropped_and_counted() {
    let mut bench = Bench::new();
    bench.send(with_options(SocketAddr::new(TARGET, 9)));
    let mut packet = LINUX.packet(SocketAddr::new(TARGET_V6, 9), b"hello");
    packet.splice(40..40, [ip::UDP, 0, 1, 4, 0, 0, 0, 0]);
    let len = u16::try_from(packet.len() - 40).expect("short");
    packet[4..6].copy_from_slice(&len.to_be_bytes());
    packet[6] = 0;
    bench.send(packet);
    let snapshot = bench.context.counters.snapshot();
    assert_eq!((snapshot.options, snapshot.udp_opened), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn compatibility_carries_what_has_options_without_them() {
    let mut bench = Bench::with(|config| config.device.privacy = Privacy::Compatibility);
    let far = bench.network.bind(TARGET);
    bench.send(with_options(far.address()));
    assert_eq!(far.recv().await.0, &b"hello"[..]);
}

#[tokio::test(start_paused = true)]
async fn broken_spoofed_and_misdirected_packets_are_counted_and_hurt_no_flow() {
    let mut bench = Bench::new();
    let far = bench.network.bind(TARGET);
    let good = LINUX.packet(far.address(), b"hello");
    let mut flipped = good.clone();
    flipped[28] ^= 1;
    bench.send(flipped);
    bench.send(good[..25].to_vec());
    bench.send(Vec::new());
    let stranger = "192.0.2.77:4000".parse().expect("valid");
    bench.send(udp_packet(stranger, far.address(), b"hello"));
    let loopback = SocketAddr::new("127.0.0.1".parse().expect("valid"), 9);
    bench.send(LINUX.packet(loopback, b"hello"));
    bench.send(LINUX.packet(SocketAddr::new(TARGET, 0), b"hello"));
    let snapshot = bench.context.counters.snapshot();
    assert_eq!((snapshot.bad_checksum, snapshot.malformed), (1, 3));
    assert_eq!((snapshot.foreign, snapshot.unroutable), (1, 1));
    assert_eq!(snapshot.udp_opened, 0);
    bench.send(good);
    assert_eq!(far.recv().await.0, &b"hello"[..]);
    let told = bench.sink.try_next().expect("the stranger is told");
    assert_eq!(parsed(&told).payload[..2], [3, 13]);
    assert!(bench.sink.try_next().is_none(), "nobody else is answered");
}

#[tokio::test(start_paused = true)]
async fn a_checksum_that_the_kernel_vouches_for_is_not_looked_at() {
    let mut bench = Bench::new();
    let far = bench.network.bind(TARGET);
    let mut packet = LINUX.packet(far.address(), b"hello");
    packet[26] ^= 1;
    bench.take(&super::device::IncomingPacket {
        bytes: packet.into(),
        checked: true,
        segment: None,
    });
    assert_eq!(far.recv().await.0, &b"hello"[..]);
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_is_what_a_parser_finds_in_the_packet_that_comes_back() {
    let mut bench = Bench::new();
    let far = bench.network.bind(TARGET_V6);
    bench.send(LINUX.packet(far.address(), b"hello"));
    let (payload, from) = far.recv().await;
    far.send(&payload, from);
    let bytes = bench.sink.next().await;
    let packet = parsed(&bytes);
    assert_eq!((packet.traffic_class, packet.hop_limit), (0, 64));
    assert_eq!(udp::parse(packet.payload).expect("whole").payload, b"hello");
}

proptest! {
    #[test]
    fn no_packet_makes_the_router_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), v6: bool, segment: Option<u16>, checked: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let mut bench = Bench::with(|config| config.device.addresses.clear());
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = if v6 { 0x60 } else { 0x45 };
            }
            if let (false, Some(total)) = (v6, bytes.get_mut(2..4)) {
                total.copy_from_slice(&[0, 60]);
            }
            if let (true, Some(len)) = (v6, bytes.get_mut(4..6)) {
                len.copy_from_slice(&[0, 30]);
            }
            bench.take(&super::device::IncomingPacket { bytes: bytes.into(), checked, segment });
            tokio::task::yield_now().await;
        });
    }
}
