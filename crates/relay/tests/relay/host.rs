//! What a client reaches of the relay's own host: nothing, at any of its addresses. In a network namespace of the test's own, whose
//! addresses look like the Internet's.

use std::{io, net::SocketAddr};

use hoplite_relay::{Config, Handle, config::ResolverChoice};
use hoplite_testing::{
    dns::Dns,
    namespace::{self, open_range},
    relay::relay,
    soon,
};
use hoplite_wire::ProxyError::{DestinationIpProhibited, ProxyLoopDetected};
use tokio::net::{TcpListener, UdpSocket};

use crate::support::{connect, ip, tcp, udp};

const PROHIBITED: (u16, Option<hoplite_wire::ProxyError>) = (403, Some(DestinationIpProhibited));

/// A host with public addresses.
fn with_host<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let prepare = || -> io::Result<()> {
        namespace::enter()?;
        for address in ["5.6.7.8/24", "2a00:1::8/64"] {
            namespace::run(&["addr", "add", address, "dev", "lo"])?;
        }
        open_range()
    };
    namespace::with(prepare, test);
}

/// A relay at the host's address, as an operator has it: nothing is allowed.
fn strict(change: impl FnOnce(&mut Config)) -> Handle {
    relay(|config| {
        config.auth.open = true;
        config.listen = vec!["5.6.7.8:0".parse().expect("an address")];
        config.egress.allow.clear();
        change(config);
    })
}

/// A local server, as a firewall would hide it; whoever reaches it is told.
async fn hidden(address: &str) -> (TcpListener, UdpSocket, SocketAddr) {
    let page = TcpListener::bind(address).await.expect("bound");
    let at = page.local_addr().expect("bound");
    (page, UdpSocket::bind(at).await.expect("bound"), at)
}

#[test]
fn a_client_reaches_no_port_of_the_relays_host_by_tcp_udp_or_packets() {
    with_host(|| async {
        let dns = Dns::start(&[("itself.test", "5.6.7.8".parse().expect("IPv4"))]).await;
        let relay = strict(|config| {
            config.egress.resolver = ResolverChoice::Servers(vec![dns.address]);
        });
        let client = connect(&relay).await;
        let (_page, _socket, v4) = hidden("5.6.7.8:0").await;
        let (_page6, _socket6, v6) = hidden("[2a00:1::8]:0").await;
        let port = v4.port();
        for target in [
            v4.to_string(),
            v6.to_string(),
            format!("itself.test:{port}"),
            format!("[::ffff:5.6.7.8]:{port}"),
            format!("[64:ff9b::506:708]:{port}"),
        ] {
            assert_eq!(client.refusal(tcp(&target)).await, PROHIBITED, "{target}");
            assert_eq!(client.refusal(udp(&target)).await, PROHIBITED, "{target}");
        }
        for path in [
            "5.6.7.8/*",
            "5.6.7.8/1",
            "2a00%3A1%3A%3A8/58",
            "itself.test/1",
        ] {
            assert_eq!(client.refusal(ip(path)).await, PROHIBITED, "{path}");
        }
        let itself = relay.addresses()[0];
        let found = client.refusal(tcp(itself)).await;
        assert_eq!(found, (502, Some(ProxyLoopDetected)));
    });
}

#[test]
fn a_service_of_the_host_is_reached_where_the_operator_names_it() {
    with_host(|| async {
        let (page, _socket, at) = hidden("5.6.7.8:0").await;
        let relay = strict(|config| {
            config.egress.allow = vec![at.to_string().parse().expect("a rule")];
        });
        let client = connect(&relay).await;
        assert_eq!(client.status(tcp(at)).await, 200);
        page.accept().await.expect("reached");
        let beside = SocketAddr::new(at.ip(), at.port() ^ 1);
        assert_eq!(client.refusal(tcp(beside)).await, PROHIBITED);
    });
}

#[test]
fn an_address_that_comes_later_is_the_hosts_too_and_one_that_went_is_not() {
    with_host(|| async {
        let relay = strict(|_| ());
        let client = connect(&relay).await;
        let asked = async |address: &str| client.refusal(udp(format!("{address}:9"))).await;
        let until = async |address, wanted: &dyn Fn((u16, _)) -> bool| {
            let becomes = async { while !wanted(asked(address).await) {} };
            soon(becomes).await;
        };
        for address in ["7.7.7.7", "[2a00:7::7]"] {
            assert_ne!(asked(address).await, PROHIBITED);
            let plain = address.trim_matches(['[', ']']);
            namespace::run(&["addr", "add", plain, "dev", "lo"]).expect("added");
            until(address, &|answer| answer == PROHIBITED).await;
            namespace::run(&["addr", "del", plain, "dev", "lo"]).expect("deleted");
            until(address, &|answer| answer != PROHIBITED).await;
        }
        // A prefix that is delivered here without being an address of any interface.
        namespace::run(&["route", "add", "local", "7.8.0.0/16", "dev", "lo"]).expect("added");
        until("7.8.9.10", &|answer| answer == PROHIBITED).await;
    });
}

#[test]
fn behind_a_router_that_translates_one_to_one_the_operator_says_what_leads_here() {
    with_host(|| async {
        let relay = strict(|config| {
            config.egress.own = vec!["9.8.7.6/32".parse().expect("a prefix")];
        });
        let client = connect(&relay).await;
        assert_eq!(client.refusal(tcp("9.8.7.6:9090")).await, PROHIBITED);
        let itself = SocketAddr::new([9, 8, 7, 6].into(), relay.addresses()[0].port());
        let found = client.refusal(tcp(itself)).await;
        assert_eq!(found, (502, Some(ProxyLoopDetected)));
    });
}
