//! Limits, as a client meets them.

use std::net::Ipv4Addr;

use bytes::{Bytes, BytesMut};
use hoplite_http::h3::Session;
use hoplite_relay::{Config, Handle, config::ResolverChoice};
use hoplite_testing::{
    dns::Dns,
    namespace::with_echoes,
    relay::{metric, relay, until_metric},
    targets,
};
use hoplite_wire::{ProxyError, connect_tcp::Draft};
use tokio::time::Instant;

use crate::{
    admission::entry,
    support::{connect, ip, quic_from, tcp, tcp_by_template, try_connect, udp},
};

#[tokio::test]
async fn requests_above_the_limit_are_told_so_and_places_come_back() {
    let relay = relay(|config| config.limits.requests_per_client = 1);
    let client = connect(&relay).await;
    let target = targets::tcp_echo().await;
    let (open, answer) = client.ask(tcp(target)).await;
    assert_eq!(answer.status, 200);
    let limited = (429, Some(ProxyError::ConnectionLimitReached));
    assert_eq!(client.refusal(tcp(target)).await, limited);
    drop(open);
    while client.status(tcp(target)).await != 200 {
        tokio::task::yield_now().await;
    }
}

/// A relay with two users, and what each sends with a request.
fn shared(change: impl FnOnce(&mut Config)) -> (Handle, [&'static str; 2]) {
    let relay = relay(|config| {
        config.auth.token = ["one", "other"].map(entry).to_vec();
        change(config);
    });
    (relay, ["Bearer one", "Bearer other"])
}

#[tokio::test]
async fn a_client_that_wants_every_place_leaves_one_for_another() {
    let (relay, [greedy, other]) = shared(|config| config.limits.requests = 8);
    let target = targets::tcp_echo().await;
    let client = connect(&relay).await;
    let mut held = Vec::new();
    for _ in 0..16 {
        let (open, answer) = client.ask(tcp(target).with("authorization", greedy)).await;
        match answer.status {
            200 => held.push(open),
            status => assert_eq!(status, 429),
        }
    }
    assert_eq!(held.len(), 4, "half of them");
    let quiet = connect(&relay).await;
    let asked = tcp(target).with("authorization", other);
    let (_open, answer) = quiet.ask(asked).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_client_that_wants_every_udp_port_leaves_one_for_another_and_they_come_back() {
    let (relay, [greedy, other]) = shared(|config| config.limits.udp_tunnels = 4);
    let target = targets::udp_echo().await;
    let client = connect(&relay).await;
    let asked = |bearer| udp(target).with("authorization", bearer);
    let (first, answer) = client.ask(asked(greedy)).await;
    assert_eq!(answer.status, 200);
    let (_second, answer) = client.ask(asked(greedy)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(client.status(asked(greedy)).await, 429);
    let (_third, answer) = client.ask(asked(other)).await;
    assert_eq!(answer.status, 200);
    drop(first);
    while client.status(asked(greedy)).await != 200 {
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_client_that_wants_every_flow_of_packets_leaves_one_for_another() {
    with_echoes(|| async {
        let (relay, [greedy, other]) = shared(|config| {
            config.ip.flows = 8;
            config.ip.flows_per_client = 3;
        });
        let client = connect(&relay).await;
        let mut held = Vec::new();
        for _ in 0..8 {
            let asked = ip("127.0.0.1/1").with("authorization", greedy);
            let (open, answer) = client.ask(asked).await;
            match answer.status {
                200 => held.push(open),
                status => assert_eq!(status, 429),
            }
        }
        assert_eq!(held.len(), 3);
        let asked = ip("127.0.0.1/1").with("authorization", other);
        assert_eq!(client.status(asked).await, 200);
    });
}

#[tokio::test]
async fn targets_that_are_names_are_limited_as_queries_are() {
    let dns = Dns::start(&[]).await;
    let (relay, [greedy, other]) = shared(|config| {
        config.limits.queries_per_client = 3;
        config.egress.resolver = ResolverChoice::Servers(vec![dns.address]);
    });
    let client = connect(&relay).await;
    let mut limited = 0;
    for n in 0..40 {
        let name = format!("n{n}.test:80");
        let head = if n % 2 == 0 { tcp(&name) } else { udp(&name) };
        let status = client.status(head.with("authorization", greedy)).await;
        limited += usize::from(status == 429);
    }
    assert!(limited > 0, "forty names at once, of three a second");
    // Both families of each that was admitted.
    assert!(dns.asked() <= 2 * (40 - limited), "{}", dns.asked());
    let asked = tcp("n.test:80").with("authorization", other);
    assert_eq!(client.status(asked).await, 502, "no such name");
}

#[tokio::test]
async fn connections_above_the_limit_are_refused() {
    let relay = relay(|config| config.limits.connections_per_client = 1);
    let first = connect(&relay).await;
    let (tunnel, _) = first.ask(tcp(targets::tcp_echo().await)).await;
    assert!(try_connect(&relay).await.is_err());
    drop((tunnel, first));
    while try_connect(&relay).await.is_err() {
        tokio::task::yield_now().await;
    }
    assert!(
        relay
            .metrics()
            .text()
            .contains("limit_refusals_total{limit=\"connections\"}")
    );
}

#[tokio::test]
async fn addresses_whose_connections_are_all_busy_keep_nobody_out() {
    let relay = relay(|config| {
        config.limits.connections = 8;
        config.limits.connections_per_client = 4;
    });
    let target = targets::tcp_echo().await;
    let mut held = Vec::new();
    for number in 0..8 {
        let source = Ipv4Addr::new(127, 9, 11, number % 2 + 1);
        let (endpoint, connection) = quic_from(&relay, source).await.expect("connected");
        let session = Session::client(connection, &Default::default());
        let mut exchange = session.request(&tcp(target)).await.expect("sent");
        let answer = exchange.response().await.expect("answered");
        assert_eq!(answer.status, 200);
        held.push((endpoint, exchange));
    }
    let again = quic_from(&relay, Ipv4Addr::new(127, 9, 11, 1)).await;
    assert!(again.is_err(), "it has as many as it may");
    let client = connect(&relay).await;
    assert_eq!(client.status(tcp(target)).await, 200);
    let displaced = "connections_ended_total{cause=\"displaced\"}";
    until_metric(&relay, displaced, |ended| ended > 0.0).await;
    assert_eq!(metric(&relay, displaced), 1.0);
}

#[tokio::test]
async fn a_client_gets_no_more_bandwidth_than_it_may_have() {
    let relay = relay(|config| config.limits.bandwidth_per_client = 8_000_000);
    let client = connect(&relay).await;
    let (exchange, _) = client.ask(tcp(targets::tcp_flood(500_000).await)).await;
    let (_sender, mut receiver) = exchange.split();
    let start = Instant::now();
    let mut got = 0;
    while let Some(data) = receiver.data().await.expect("open") {
        got += Bytes::len(&data);
    }
    assert_eq!(got, 500_000);
    let least = std::time::Duration::from_millis(200);
    assert!(
        start.elapsed() > least,
        "half a megabyte at 1 MB/s takes time"
    );
}

#[tokio::test]
async fn capsules_that_are_skipped_count_as_bandwidth() {
    let relay = relay(|config| config.limits.bandwidth_per_client = 8_000_000);
    let client = connect(&relay).await;
    let echo = tcp_by_template(targets::tcp_echo().await, Draft::D12);
    let (mut sender, mut receiver) = client.ask(echo).await.0.split();
    let start = Instant::now();
    // A type that nobody knows, and half a megabyte of it.
    let head = Bytes::from_static(&[0x29, 0x80, 0x07, 0xa1, 0x20]);
    sender.write(head).await.expect("open");
    for _ in 0..50 {
        let part = Bytes::from_static(&[0; 10_000]);
        sender.write(part).await.expect("open");
    }
    let mut data = BytesMut::new();
    Draft::D12.write_data_head(&mut data, 1);
    data.extend_from_slice(b"x");
    sender.write(data.freeze()).await.expect("open");
    let back = receiver.data().await.expect("open");
    assert!(back.is_some());
    let least = std::time::Duration::from_millis(200);
    assert!(start.elapsed() > least, "it was skipped for nothing");
}
