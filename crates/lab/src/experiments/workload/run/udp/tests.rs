//! Datagrams over loopback.

use std::time::Duration;

use proptest::prelude::*;

use super::SMALLEST;
use crate::experiments::workload::{
    Kind, Ports, Way,
    message::{Head, Hello, Kind as Message, Stream},
    run::testing::*,
};

fn echo() -> Kind {
    Kind::UdpEcho {
        size: 200,
        count: 20,
        interval: Duration::from_millis(1),
    }
}

fn rate(down: bool) -> Kind {
    Kind::UdpRate {
        size: 1000,
        rate: 4_000_000,
        time: Duration::from_millis(50),
        down,
    }
}

#[test]
fn every_echo_comes_back_over_loopback() {
    block_on(async {
        let transfer = work_one(&order(echo(), serve())).await;
        assert_eq!(transfer.error, None);
        assert_eq!(transfer.round_trips.len(), 20);
        assert_eq!(transfer.datagrams, [20, 20]);
        assert_eq!(transfer.moved, [4000, 4000]);
        assert_eq!(transfer.seen_as, Some("127.0.0.1".parse().unwrap()));
        assert!(transfer.more.contains_key("up_delay_us_p50"));
    });
}

#[test]
fn a_constant_rate_is_counted_at_its_receiver_in_both_directions() {
    block_on(async {
        let ports = serve();
        for (down, moved) in [(false, [25_000, 0]), (true, [0, 25_000])] {
            let transfer = work_one(&order(rate(down), ports)).await;
            assert_eq!(transfer.error, None);
            assert_eq!((transfer.datagrams, transfer.moved), ([25, 25], moved));
            assert!(transfer.more.contains_key("jitter_us"));
            assert!(transfer.phases.first_byte <= transfer.phases.last_byte);
        }
    });
}

#[test]
fn datagrams_go_through_an_association() {
    block_on(async {
        let ports = serve();
        for kind in [echo(), rate(false), rate(true)] {
            let (way, mut told) = socks(None).await;
            let mut order = order(kind, ports);
            order.way = way;
            let transfer = work_one(&order).await;
            assert_eq!(transfer.error, None);
            assert!(transfer.phases.proxy_response.is_some());
            assert_eq!(transfer.datagrams[0], transfer.datagrams[1]);
            assert!(told.try_recv().is_ok());
        }
    });
}

/// Large datagrams of one way that are left alone: what opens a session is small, its report is one.
const BEFORE: usize = 5;

/// A way to the server on which a bit of the next large datagram is changed, up or down.
async fn bent_datagrams(to: Ports, up: bool, place: usize) -> Ports {
    let near = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let far = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    far.connect(("127.0.0.1", to.udp)).await.unwrap();
    let udp = near.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut there, mut back) = (vec![0; 65_536], vec![0; 65_536]);
        let (mut client, mut large) = (None, 0);
        let mut bend = |datagram: &mut [u8], here: bool| {
            large += usize::from(here && datagram.len() >= 200);
            if here && datagram.len() >= 200 && large == BEFORE {
                datagram[place] ^= 0x04;
            }
        };
        loop {
            tokio::select! {
                came = near.recv_from(&mut there) => {
                    let (len, from) = came.unwrap();
                    client = Some(from);
                    bend(&mut there[..len], up);
                    far.send(&there[..len]).await.unwrap();
                }
                came = far.recv(&mut back) => {
                    let len = came.unwrap();
                    bend(&mut back[..len], !up);
                    near.send_to(&back[..len], client.unwrap()).await.unwrap();
                }
            }
        }
    });
    Ports { udp, ..to }
}

#[test]
fn one_changed_bit_anywhere_in_a_datagram_is_a_checksum_error_and_no_delay_or_loss() {
    block_on(async {
        let ports = serve();
        // Magic, version, kind, nothing, token, number, check, both times, body.
        let places = [1, 4, 5, 6, 12, 17, 22, 27, 33, 199];
        let ways = [
            (echo(), true),
            (echo(), false),
            (rate(false), true),
            (rate(true), false),
        ];
        let cases = ways.iter().flat_map(|way| places.map(|place| (way, place)));
        let cases = cases.map(|((kind, up), place)| async move {
            let ports = bent_datagrams(ports, *up, place).await;
            let mut order = order(kind.clone(), ports);
            order.plan.stall = Duration::from_secs(2);
            (place, *up, work_one(&order).await)
        });
        for (place, up, transfer) in futures_util::future::join_all(cases).await {
            let more = &transfer.more;
            assert_eq!(fault(&transfer), "CHECKSUM", "{place} {up}: {transfer:?}");
            assert_eq!(more["corrupt"], 1.0, "{place} {up}: {transfer:?}");
            let delays = more.iter().filter(|(name, _)| name.contains("delay"));
            // The bit of a time is worth 17 s or more.
            let long = delays.filter(|(_, delay)| **delay > 10e6).count();
            assert_eq!(long, 0, "{place} {up}: {transfer:?}");
        }
    });
}

#[test]
fn a_closed_port_is_a_connect_error() {
    block_on(async {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let udp = socket.local_addr().unwrap().port();
        drop(socket);
        let ports = Ports {
            udp,
            ..Ports::default()
        };
        let transfer = work_one(&order(echo(), ports)).await;
        assert_eq!(fault(&transfer), "CONNECT");
    });
}

#[test]
fn a_server_that_is_silent_is_a_stall() {
    block_on(async {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let udp = socket.local_addr().unwrap().port();
        let ports = Ports {
            udp,
            ..Ports::default()
        };
        let mut order = order(rate(true), ports);
        order.plan.stall = Duration::from_millis(20);
        assert_eq!(fault(&work_one(&order).await), "STALL");
    });
}

#[test]
fn a_proxy_without_udp_says_so() {
    block_on(async {
        let (_listener, address) = listen().await;
        for way in [
            Way::Http { address },
            Way::Socks {
                address,
                udp: false,
            },
        ] {
            let mut order = order(echo(), Ports::default());
            order.way = way;
            assert_eq!(fault(&work_one(&order).await), "MISC");
        }
    });
}

proptest! {
    #[test]
    fn a_head_is_read_as_written(token: u64, number: u32, sent: u64, turned: u64, body: Vec<u8>) {
        let head = Head { kind: Message::Echoed, token, number, sent, turned };
        let bytes = head.emit(&body);
        prop_assert_eq!(Head::parse(&bytes), Some((head, body.as_slice())));
    }

    #[test]
    fn what_is_filled_is_intact_until_a_byte_changes(number: u32, size in SMALLEST + 1..300, place in 0_usize..300) {
        let head = Head { kind: Message::Data, token: 3, number, sent: 0, turned: 0 };
        let mut bytes = Vec::new();
        head.fill(size, &mut bytes);
        prop_assert_eq!(bytes.len(), usize::from(size));
        prop_assert!(head.is_intact(size, &bytes));
        let body = usize::from(SMALLEST);
        let place = body + place % (bytes.len() - body);
        bytes[place] ^= 0x10;
        prop_assert!(!head.is_intact(size, &bytes));
    }

    #[test]
    fn one_changed_bit_of_a_head_or_of_what_is_asked_makes_a_datagram_unreadable(place in 0_usize..64, bit in 0_u8..8, filled: bool) {
        let kind = if filled { Message::Data } else { Message::Hello };
        let head = Head { kind, token: 3, number: 9, sent: 5, turned: 0 };
        let mut bytes = head.emit(&Hello::Receive(Stream { size: 100, count: 9, interval: 7 }).emit());
        let body = place >= usize::from(SMALLEST);
        bytes[place] ^= 1 << bit;
        prop_assert_eq!(Head::parse(&bytes).is_some(), filled && body);
    }

    #[test]
    fn a_hello_is_read_as_written(size in SMALLEST.., count in 1..=Stream::MOST, interval: u64) {
        let stream = Stream { size, count, interval };
        for hello in [Hello::Echo, Hello::Receive(stream), Hello::Send(stream)] {
            prop_assert_eq!(Hello::parse(&hello.emit()), Some(hello));
        }
    }

    #[test]
    fn no_bytes_make_a_parser_fail(bytes: Vec<u8>) {
        let _ = (Head::parse(&bytes).is_some(), Hello::parse(&bytes).is_some());
    }
}
