//! Limits, as a client meets them.

use bytes::Bytes;
use hoplite_wire::ProxyError;
use tokio::time::Instant;

use crate::{
    support::{connect, relay, tcp, try_connect},
    targets,
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

#[tokio::test]
async fn connections_above_the_limit_are_refused() {
    let relay = relay(|config| config.limits.connections_per_client = 1);
    let first = connect(&relay).await;
    assert!(try_connect(&relay).await.is_err());
    drop(first);
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
