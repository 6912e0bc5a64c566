//! Floods of QUIC Initials with forged source addresses (RFC 9000 §8.1, §21.1.1.1), as honest clients and the operator see them.

use std::{net::Ipv4Addr, time::Duration};

use hoplite_crypto::ALPN_H3;
use hoplite_testing::{
    relay::{metric, relay, until_metric},
    targets,
};

use crate::{
    forged::{Forger, address, initials_for},
    support::{connect, tcp, try_connect},
};

const UNFINISHED: &str = "handshakes_open{transport=\"quic\"}";

#[tokio::test]
async fn forged_initials_take_no_place_from_whoever_is_at_the_address() {
    let relay = relay(|config| {
        config.limits.connections_per_client = 4;
        config.limits.connections = 8;
    });
    let address = relay.addresses()[0];
    let forger = Forger::new(address);
    for client in initials_for(ALPN_H3, address, relay.pin(), 60) {
        forger.send(Ipv4Addr::LOCALHOST, &client).expect("sent");
    }
    until_metric(&relay, UNFINISHED, |count| count > 8.0).await;
    let client = connect(&relay).await;
    let target = targets::tcp_echo().await;
    assert_eq!(client.status(tcp(target)).await, 200);
    assert_eq!(
        metric(&relay, "limit_refusals_total{limit=\"connections\"}"),
        0.0
    );
}

#[tokio::test]
async fn a_flood_of_forged_initials_is_answered_by_retries_and_honest_clients_are_served() {
    let relay = relay(|config| {
        config.limits.unvalidated_handshakes = 10;
        config.limits.unvalidated_handshakes_per_client = 5;
        config.limits.shards = 1;
    });
    let at = relay.addresses()[0];
    let forger = Forger::new(at);
    for (number, client) in initials_for(ALPN_H3, at, relay.pin(), 300)
        .iter()
        .enumerate()
    {
        forger.send(address(number), client).expect("sent");
    }
    until_metric(&relay, "retries_total", |count| count >= 250.0).await;
    assert!(metric(&relay, UNFINISHED) <= 10.0);
    let before = metric(&relay, "retries_total");
    let client = connect(&relay).await;
    assert!(
        metric(&relay, "retries_total") > before,
        "it was asked for proof"
    );
    assert_eq!(client.status(tcp(targets::tcp_echo().await)).await, 200);
}

#[tokio::test]
async fn one_forged_address_has_its_share_of_the_unproven_and_others_go_on_without_proof() {
    let relay = relay(|config| {
        config.limits.unvalidated_handshakes_per_client = 5;
        config.limits.shards = 1;
    });
    let at = relay.addresses()[0];
    let forger = Forger::new(at);
    for client in initials_for(ALPN_H3, at, relay.pin(), 100) {
        forger.send(address(0), &client[..1]).expect("sent");
    }
    until_metric(&relay, "retries_total", |count| count >= 95.0).await;
    connect(&relay).await;
    assert_eq!(metric(&relay, "retries_total"), 95.0);
}

#[tokio::test]
async fn forged_handshakes_that_fail_at_once_find_no_more_room_than_others() {
    let relay = relay(|config| {
        config.limits.unvalidated_handshakes = 10;
        config.limits.shards = 1;
    });
    let at = relay.addresses()[0];
    let forger = Forger::new(at);
    let clients = initials_for(b"nothing", at, relay.pin(), 200);
    for (number, client) in clients.iter().enumerate() {
        forger.send(address(number), client).expect("sent");
    }
    // A connection that has failed is remembered, and holds its room, for as long as one that goes on.
    until_metric(&relay, "retries_total", |count| count >= 190.0).await;
    assert!(metric(&relay, "handshakes_failed_total") <= 10.0);
    connect(&relay).await;
}

#[tokio::test]
async fn nothing_of_a_flood_is_left_when_it_is_over() {
    let relay = relay(|config| {
        config.limits.unvalidated_handshakes = 4;
        config.limits.handshake = Duration::from_secs(1);
        config.limits.shards = 1;
    });
    let at = relay.addresses()[0];
    let forger = Forger::new(at);
    for (number, client) in initials_for(ALPN_H3, at, relay.pin(), 40)
        .iter()
        .enumerate()
    {
        forger.send(address(number), client).expect("sent");
    }
    until_metric(&relay, "retries_total", |count| count >= 36.0).await;
    until_metric(&relay, UNFINISHED, |count| count == 0.0).await;
    until_metric(&relay, "handshakes_failed_total", |count| count >= 4.0).await;
    // As long as the closed connections hold memory, they hold their room.
    loop {
        let before = metric(&relay, "retries_total");
        let connected = try_connect(&relay).await.is_ok();
        if connected && metric(&relay, "retries_total") <= before {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_relay_that_asks_everybody_for_proof_serves_everybody() {
    let relay = relay(|config| config.limits.unvalidated_handshakes = 0);
    let client = connect(&relay).await;
    assert_eq!(client.status(tcp(targets::tcp_echo().await)).await, 200);
    assert!(metric(&relay, "retries_total") >= 1.0);
}
