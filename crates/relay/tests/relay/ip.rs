//! CONNECT-IP: echoes by ping sockets, in a network namespace of the test's own in which anybody may ping.

mod device;
mod errors;

use std::{
    net::{IpAddr, Ipv4Addr},
    ops::ControlFlow,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use hoplite_http::{
    DatagramSink,
    h3::{Exchange, Flow},
};
use hoplite_overlay::{Batch, direct::echo_is_permitted};
use hoplite_relay::{Config, Handle, config::Pool};
use hoplite_testing::{
    namespace::{skipped, with_echoes},
    relay::{number, relay},
    soon, until,
};
use hoplite_wire::{
    ProxyError,
    connect_ip::{Capsule, Malformed, Nat64Prefix, Numbered, Prefix, Route},
    ip::{self, icmp::Echo},
    region::FIELD,
};
use parking_lot::Mutex;
use tokio::{sync::mpsc, time::timeout};

use crate::support::{Client, connect, ip as ask};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The client's end of a flow of packets.
struct Packets {
    flow: Flow,
    received: mpsc::Receiver<Bytes>,
    capsules: mpsc::Receiver<Capsule>,
    near: IpAddr,
}

struct Inbox {
    packets: Mutex<mpsc::Sender<Bytes>>,
    capsules: Mutex<mpsc::Sender<Capsule>>,
}

impl DatagramSink for Inbox {
    fn push(&self, payload: Bytes) {
        drop(self.packets.lock().try_send(payload));
    }

    fn flush(&self) {}

    fn ip_capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        let capsule = capsule.expect("well formed");
        drop(self.capsules.lock().try_send(capsule));
        ControlFlow::Continue(())
    }
}

impl Packets {
    async fn open(client: &Client, path: &str) -> (Self, Vec<Route>) {
        let (exchange, answer) = client.ask(ask(path)).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("capsule-protocol"), Some(&b"?1"[..]));
        Self::new(exchange).await
    }

    /// The relay tells addresses and routes unasked.
    async fn new(exchange: Exchange) -> (Self, Vec<Route>) {
        let (packets, received) = mpsc::channel(1024);
        let (capsules, mut told) = mpsc::channel(1024);
        let inbox = Inbox {
            packets: Mutex::new(packets),
            capsules: Mutex::new(capsules),
        };
        let flow = exchange.datagrams(Arc::new(inbox));
        flow.carry_packets();
        let assigned = soon(told.recv()).await;
        let Some(Capsule::AddressAssign(own)) = assigned else {
            unreachable!("{assigned:?}");
        };
        let routes = soon(told.recv()).await;
        let Some(Capsule::RouteAdvertisement(routes)) = routes else {
            unreachable!("{routes:?}");
        };
        let near = own[0].prefix.single().expect("one address");
        let packets = Self {
            flow,
            received,
            capsules: told,
            near,
        };
        (packets, routes)
    }

    fn send(&self, packet: &[u8]) {
        self.flow.send(Batch::one(packet));
    }

    fn echo(&self, sequence: u16, to: IpAddr) -> Vec<u8> {
        let echo = Echo {
            reply: false,
            identifier: 7,
            sequence,
            payload: b"are you there?",
        };
        echo.packet(self.near, to)
    }

    /// Sends echo requests until one is answered; answers the reply's source and sequence number.
    async fn ping(&mut self, sequence: u16, to: IpAddr) -> (IpAddr, u16) {
        loop {
            self.send(&self.echo(sequence, to));
            let reply = timeout(Duration::from_secs(1), self.received.recv()).await;
            if let Ok(Some(reply)) = reply {
                let packet = ip::parse(&reply).expect("a packet");
                assert!(packet.checksum_is_right());
                assert_eq!(packet.destination, self.near);
                let echo = ip::icmp::echo(&packet).expect("an echo");
                assert_eq!((echo.reply, echo.identifier), (true, 7));
                assert_eq!(echo.payload, b"are you there?");
                return (packet.source, echo.sequence);
            }
        }
    }
}

#[test]
fn whoever_may_go_anywhere_is_told_of_nameservers_and_nat64_behind_the_routes_and_nobody_else() {
    with_echoes(|| async {
        let relay = relay(|config| {
            config.ip.nameservers = vec!["192.0.2.53".parse().expect("an address")];
            config.ip.nat64 = vec!["64:ff9b::/96".parse().expect("a prefix")];
        });
        let client = connect(&relay).await;
        let (mut packets, _) = Packets::open(&client, "*/*").await;
        let told = soon(packets.capsules.recv()).await;
        let Some(Capsule::DnsAssign(told)) = told else {
            unreachable!("{told:?}");
        };
        assert_eq!((told.len(), &told[0].internal[..]), (1, &[None][..]));
        let nameserver = &told[0].nameservers[0];
        assert_eq!(nameserver.ipv4, [Ipv4Addr::new(192, 0, 2, 53)]);
        assert_eq!((nameserver.name.as_ref(), nameserver.ipv6.len()), (None, 0));
        let nat64 = "64:ff9b::".parse().expect("an address");
        let nat64 = Nat64Prefix::new(nat64, 96).expect("a length");
        let told = soon(packets.capsules.recv()).await;
        assert_eq!(told, Some(Capsule::Pref64(vec![nat64])));
        // What such a client tells is passed over, and the flow goes on.
        assert!(packets.flow.send_ip_capsule(&Capsule::Pref64(vec![nat64])));
        assert!(packets.flow.send_ip_capsule(&Capsule::DnsAssign(vec![])));
        assert_eq!(soon(packets.ping(1, HERE)).await, (HERE, 1));
        let (mut one, _) = Packets::open(&client, "127.0.0.1/1").await;
        assert_eq!(soon(one.ping(1, HERE)).await, (HERE, 1));
        assert!(
            one.capsules.try_recv().is_err(),
            "told to a flow of one host"
        );
    });
}

/// Waits until a counter of the relay has come to `wanted`, and not beyond.
async fn until_number(relay: &Handle, name: &str, wanted: u64) {
    until(|| number(relay, name) >= wanted).await;
    assert_eq!(number(relay, name), wanted, "{name}");
}

fn dropped(cause: &str) -> String {
    format!("hoplite_relay_ip_packets_dropped_total{{cause=\"{cause}\"}}")
}

#[test]
fn an_echo_leaves_by_the_relay_and_its_reply_comes_back() {
    with_echoes(|| async {
        let relay = relay(|_| ());
        let client = connect(&relay).await;
        for (path, far) in [
            ("127.0.0.1/1", HERE),
            ("%3A%3A1/58", "::1".parse().expect("an address")),
        ] {
            let (mut packets, routes) = Packets::open(&client, path).await;
            assert_eq!(routes, [Prefix::one(far).route(ip::icmp_of(far))]);
            for sequence in 0..3 {
                let back = soon(packets.ping(sequence, far)).await;
                assert_eq!(back, (far, sequence));
            }
        }
        assert_eq!(
            number(
                &relay,
                "hoplite_relay_requests_total{method=\"connect_ip\",outcome=\"ok\"}"
            ),
            2
        );
        assert!(number(&relay, "hoplite_relay_ip_to_client_packets_total") >= 6);
    });
}

#[test]
fn echoes_leave_from_the_pool_of_the_region_that_a_client_shows() {
    with_echoes(|| async {
        let pool = |region: Option<&str>, addresses: &str| Pool {
            region: region.map(|region| region.parse().expect("a region")),
            zone: None,
            addresses: vec![addresses.parse().expect("a prefix")],
        };
        let relay = relay(|config| {
            config.egress.pool = vec![
                pool(Some("DE-BE"), "127.9.1.0/24"),
                pool(Some("DE-BE"), "::1/128"),
                pool(None, "127.9.3.0/24"),
            ];
        });
        let client = connect(&relay).await;
        for (shown, third) in [("DE-BE", 1), ("FR", 3)] {
            let request = ask("127.0.0.1/1").with(FIELD, shown);
            let (mut packets, _) = Packets::new(client.ask(request).await.0).await;
            assert_eq!(soon(packets.ping(1, HERE)).await, (HERE, 1), "{shown}");
            let sockets = std::fs::read_to_string("/proc/thread-self/net/icmp").expect("told");
            // As the kernel writes 127.9.third.
            assert!(sockets.contains(&format!("{third:02X}097F:")), "{sockets}");
        }
        let far: IpAddr = "::1".parse().expect("an address");
        let request = ask("%3A%3A1/58").with(FIELD, "DE-BE");
        let (mut packets, _) = Packets::new(client.ask(request).await.0).await;
        assert_eq!(soon(packets.ping(1, far)).await, (far, 1));
    });
}

#[test]
fn a_name_is_resolved_by_the_relay_and_the_routes_say_what_it_found() {
    with_echoes(|| async {
        let relay = relay(|_| ());
        let client = connect(&relay).await;
        let (mut packets, routes) = Packets::open(&client, "localhost/1").await;
        assert_eq!(routes, [Prefix::one(HERE).route(1)]);
        assert_eq!(soon(packets.ping(1, HERE)).await.0, HERE);
        let (_, routes) = Packets::open(&client, "localhost/*").await;
        assert_eq!(routes.len(), 2, "both families without a protocol");
    });
}

#[test]
fn whoever_asks_for_anything_may_ping_what_the_policy_allows() {
    with_echoes(|| async {
        let relay = relay(|_| ());
        let client = connect(&relay).await;
        let (mut packets, routes) = Packets::open(&client, "*/*").await;
        let all: Vec<_> = routes.iter().map(Route::protocol).collect();
        assert_eq!(all, [1, 58], "echoes, of both families");
        packets.send(&packets.echo(1, "10.0.0.1".parse().expect("an address")));
        packets.send(&packets.echo(2, "169.254.169.254".parse().expect("an address")));
        until_number(&relay, &dropped("policy"), 2).await;
        assert_eq!(soon(packets.ping(3, HERE)).await, (HERE, 3));
    });
}

#[test]
fn packets_that_break_a_rule_are_dropped_and_counted_and_the_flow_goes_on() {
    with_echoes(|| async {
        let relay = relay(|_| ());
        let client = connect(&relay).await;
        let (mut packets, _) = Packets::open(&client, "127.0.0.1/1").await;
        let right = packets.echo(1, HERE);
        let spoilt = |at: usize, to: u8| {
            let mut packet = right.clone();
            packet[at] = to;
            packet
        };
        let with_options = |options: [u8; 8]| {
            let mut packet = right.clone();
            packet.splice(20..20, options);
            packet[0] = 0x47;
            packet[3] += 8;
            packet
        };
        for (packet, cause) in [
            (spoilt(15, 77), "source"),
            (spoilt(19, 77), "route"),
            (spoilt(6, 0x20), "fragment"),
            (spoilt(8, 0), "malformed"),
            (spoilt(20, 5), "message"),
            (spoilt(9, 6), "route"),
            // A loose source route to 10.0.0.1.
            (with_options([131, 7, 4, 10, 0, 0, 1, 0]), "options"),
            (vec![0x45; 3], "malformed"),
            (vec![], "malformed"),
        ] {
            let before = number(&relay, &dropped(cause));
            packets.send(&packet);
            until_number(&relay, &dropped(cause), before + 1).await;
        }
        assert_eq!(soon(packets.ping(9, HERE)).await, (HERE, 9));
    });
}

#[test]
fn a_flood_is_held_to_the_rate() {
    with_echoes(|| async {
        let relay = relay(|config| config.ip.echoes_per_second = 5);
        let client = connect(&relay).await;
        let (packets, _) = Packets::open(&client, "127.0.0.1/1").await;
        for sequence in 0..50 {
            packets.send(&packets.echo(sequence, HERE));
        }
        let sent = || {
            let passed = number(&relay, "hoplite_relay_ip_to_target_packets_total");
            (passed, passed + number(&relay, &dropped("rate")))
        };
        soon(async {
            while sent().1 < 50 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        assert!(sent().0 < 50, "all of a flood passed");
    });
}

#[test]
fn a_flood_over_several_flows_is_held_to_the_rate_of_the_client_and_of_all() {
    for (per_client, all) in [(5, 0), (0, 5)] {
        with_echoes(move || async move {
            let relay = relay(|config| {
                config.ip.echoes_per_second = 0;
                (config.ip.echoes_per_client, config.ip.echoes) = (per_client, all);
            });
            let client = connect(&relay).await;
            let mut flows = Vec::new();
            for _ in 0..4 {
                flows.push(Packets::open(&client, "127.0.0.1/1").await.0);
            }
            for sequence in 0..50 {
                for packets in &flows {
                    packets.send(&packets.echo(sequence, HERE));
                }
            }
            let passed = || number(&relay, "hoplite_relay_ip_to_target_packets_total");
            soon(async {
                while passed() + number(&relay, &dropped("rate")) < 200 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
            assert!(passed() < 200, "all of a flood passed");
        });
    }
}

#[test]
fn addresses_are_told_again_when_asked_and_others_are_refused() {
    with_echoes(|| async {
        let relay = relay(|_| ());
        let client = connect(&relay).await;
        let (mut packets, _) = Packets::open(&client, "127.0.0.1/1").await;
        let entry = |request, address: &str| Numbered {
            request,
            prefix: Prefix::one(address.parse().expect("an address")),
        };
        let wanted = vec![entry(1, "0.0.0.0"), entry(2, "::"), entry(3, "192.0.2.1")];
        packets
            .flow
            .send_ip_capsule(&Capsule::AddressRequest(wanted));
        let answer = soon(packets.capsules.recv()).await;
        let own = Numbered {
            request: 1,
            prefix: Prefix::one(packets.near),
        };
        let none = [entry(2, "::"), entry(3, "0.0.0.0")];
        assert_eq!(
            answer,
            Some(Capsule::AddressAssign([&[own], &none[..]].concat()))
        );
    });
}

#[test]
fn who_asks_for_addresses_without_end_or_nonsense_is_broken_off() {
    with_echoes(|| async {
        let relay = relay(|_| ());
        let client = connect(&relay).await;
        let (packets, _) = Packets::open(&client, "127.0.0.1/1").await;
        for request in 1..100 {
            let prefix = Prefix::none(HERE);
            let wanted = Capsule::AddressRequest(vec![Numbered { request, prefix }]);
            packets.flow.send_ip_capsule(&wanted);
        }
        assert!(soon(packets.flow.closed()).await.is_err());
        let (packets, _) = Packets::open(&client, "127.0.0.1/1").await;
        packets
            .flow
            .send_ip_capsule(&Capsule::AddressRequest(vec![]));
        assert!(
            soon(packets.flow.closed()).await.is_err(),
            "a request for nothing"
        );
        assert!(number(&relay, "hoplite_relay_ip_flows_broken_off_total") >= 1);
        let (mut packets, _) = Packets::open(&client, "127.0.0.1/1").await;
        assert_eq!(
            soon(packets.ping(1, HERE)).await.0,
            HERE,
            "the connection goes on"
        );
    });
}

#[test]
fn what_is_not_served_is_refused_with_its_reason() {
    with_echoes(|| async {
        let relay = relay(|_| ());
        let client = connect(&relay).await;
        for (path, status, error) in [
            ("127.0.0.1/6", 501, ProxyError::HttpRequestDenied),
            ("*/47", 501, ProxyError::HttpRequestDenied),
            ("10.0.0.1/1", 403, ProxyError::DestinationIpProhibited),
            ("no.such.name.invalid/1", 502, ProxyError::DnsError),
            ("printer.local/1", 403, ProxyError::DestinationIpProhibited),
            ("127.0.0.1/256", 400, ProxyError::HttpRequestError),
            ("127.0.0.1%2F33/1", 400, ProxyError::HttpRequestError),
            ("127.0.0.1", 404, ProxyError::HttpRequestDenied),
            ("%3A%3A1/1", 502, ProxyError::DestinationIpUnroutable),
        ] {
            assert_eq!(
                client.refusal(ask(path)).await,
                (status, Some(error)),
                "{path}"
            );
        }
    });
}

fn without(change: fn(&mut Config)) {
    with_echoes(move || async move {
        let relay = relay(change);
        let client = connect(&relay).await;
        assert_eq!(client.status(ask("127.0.0.1/1")).await, 501);
    });
}

#[test]
fn a_relay_whose_operator_does_not_want_it_serves_no_packets() {
    without(|config| config.ip.enabled = false);
}

#[test]
fn an_ingress_serves_no_packets() {
    without(|config| {
        config.roles = vec![hoplite_relay::config::Role::Ingress];
        config.ingress.relays = vec!["127.0.0.1:1".parse().expect("a target")];
    });
}

#[test]
fn the_place_of_a_flow_that_ended_is_given_to_the_next() {
    with_echoes(|| async {
        let relay = relay(|config| config.ip.flows = 1);
        let client = connect(&relay).await;
        let (packets, _) = Packets::open(&client, "127.0.0.1/1").await;
        assert_eq!(client.status(ask("127.0.0.1/1")).await, 429);
        drop(packets);
        soon(async {
            while client.status(ask("127.0.0.1/1")).await != 200 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    });
}

#[test]
fn where_the_system_allows_no_echoes_the_answer_is_that_they_are_not_served() {
    if echo_is_permitted(false).is_ok() {
        return skipped(&"echoes are allowed");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let relay = relay(|_| ());
        let client = connect(&relay).await;
        assert_eq!(client.status(ask("127.0.0.1/1")).await, 501);
    });
}
