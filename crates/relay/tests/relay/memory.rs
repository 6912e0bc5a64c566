//! What clients' connections and streams hold of a relay's memory: a budget for all, however many there are and whatever they stuff in that nobody reads.

use std::{net::Ipv4Addr, time::Duration};

use bytes::Bytes;
use hoplite_crypto::ALPN_H2;
use hoplite_http::h3::{DataReceiver, DataSender, Session};
use hoplite_quic::{self as quic};
use hoplite_relay::Handle;
use hoplite_testing::{
    relay::{metric, relay, until_metric},
    soon, targets,
};

use crate::support::{Client, connect, quic_from, tcp, tls_from};

/// The smallest budget that a relay takes.
const BUDGET: u64 = 16 << 20;
const PIECE: usize = 64 * 1024;

/// A connection with two tunnels to a target that never reads, into which all is written that goes.
struct Stuffer {
    connection: quic::Connection,
    _endpoint: quic::Endpoint,
    _receivers: Vec<DataReceiver>,
}

impl Stuffer {
    async fn start(relay: &Handle, source: Ipv4Addr, target: std::net::SocketAddr) -> Option<Self> {
        let (endpoint, connection) = quic_from(relay, source).await.ok()?;
        let session = Session::client(connection.clone(), &Default::default());
        let mut receivers = Vec::new();
        for _ in 0..2 {
            let mut exchange = session.request(&tcp(target)).await.ok()?;
            let answer = exchange.response().await.ok()?;
            let (sender, receiver) = exchange.split();
            if answer.status == 200 {
                tokio::spawn(stuff(sender));
                receivers.push(receiver);
            }
        }
        Some(Self {
            connection,
            _endpoint: endpoint,
            _receivers: receivers,
        })
    }

    /// Bytes that it has sent, heads of packets and what was sent again included.
    fn sent(&self) -> u64 {
        self.connection.stats().udp_tx.bytes
    }
}

async fn stuff(mut sender: DataSender) {
    let piece = Bytes::from(vec![7; PIECE]);
    for _ in 0..96 {
        if sender.write(piece.clone()).await.is_err() {
            return;
        }
    }
    std::future::pending().await
}

/// Sends so much there and back.
async fn echo(client: &Client, bytes: usize) {
    let done = soon(there_and_back(client, bytes)).await;
    assert_eq!(done, bytes);
}

async fn there_and_back(client: &Client, bytes: usize) -> usize {
    let (exchange, answer) = client.ask(tcp(targets::tcp_echo().await)).await;
    assert_eq!(answer.status, 200);
    let (mut sender, mut receiver) = exchange.split();
    let sending = async {
        let mut left = bytes;
        while left > 0 {
            let part = left.min(PIECE);
            let piece = Bytes::from(vec![1; part]);
            sender.write(piece).await.expect("taken");
            left -= part;
        }
        sender.finish().await.expect("finished");
    };
    let receiving = async {
        let mut got = 0;
        while let Some(data) = receiver.data().await.expect("open") {
            got += data.len();
        }
        got
    };
    tokio::join!(sending, receiving).1
}

#[tokio::test]
async fn connections_that_stuff_what_nobody_reads_hold_no_more_than_the_budget_and_others_are_served()
 {
    let relay = relay(|config| config.limits.memory = BUDGET);
    let target = targets::tcp_that_never_reads().await;
    let mut stuffers = Vec::new();
    for number in 0..24 {
        let source = Ipv4Addr::new(127, 9, 10, number % 8 + 1);
        stuffers.extend(Stuffer::start(&relay, source, target).await);
        assert!(metric(&relay, "memory_promised_bytes") <= 16_777_216.0);
    }
    until_metric(&relay, "memory_promised_bytes", |bytes| bytes > 8e6).await;
    let client = connect(&relay).await;
    echo(&client, 1 << 20).await;
    assert!(metric(&relay, "memory_promised_bytes") <= 16_777_216.0);
    // What they have sent and targets' sockets have not taken, the relay holds.
    let sent: u64 = stuffers.iter().map(Stuffer::sent).sum();
    let taken = metric(&relay, "to_target_bytes_total{method=\"connect\"}");
    assert!(
        sent as f64 - taken <= 1.5 * BUDGET as f64,
        "{sent} bytes sent, {taken} taken by targets"
    );
    // All is given back.
    for stuffer in &stuffers {
        stuffer.connection.close(0u32.into(), b"");
    }
    drop(client);
    until_metric(&relay, "memory_promised_bytes", |bytes| bytes == 0.0).await;
}

/// Four tunnels into which all is written that goes.
async fn stuffed(client: &Client, target: std::net::SocketAddr) -> Vec<DataReceiver> {
    let mut held = Vec::new();
    for _ in 0..4 {
        let (exchange, answer) = client.ask(tcp(target)).await;
        assert_eq!(answer.status, 200);
        let (sender, receiver) = exchange.split();
        tokio::spawn(stuff(sender));
        held.push(receiver);
    }
    held
}

#[tokio::test]
async fn a_tunnel_whose_target_reads_nothing_keeps_no_other_of_its_connection_waiting() {
    let relay = relay(|_| {});
    let target = targets::tcp_that_never_reads().await;
    let client = connect(&relay).await;
    let _held = stuffed(&client, target).await;
    echo(&client, 2 << 20).await;
    until_metric(&relay, "memory_promised_bytes", |bytes| bytes > 4e6).await;
    echo(&client, 2 << 20).await;
}

#[tokio::test]
async fn nor_does_one_whose_target_takes_little() {
    let relay = relay(|_| {});
    let target = targets::tcp_that_reads_slowly().await;
    let client = connect(&relay).await;
    let _held = stuffed(&client, target).await;
    for _ in 0..12 {
        echo(&client, 2 << 20).await;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Of both transports, from many addresses, and more than the budget has room for.
#[tokio::test]
async fn connections_that_ask_for_nothing_have_a_part_of_the_budget_however_many_may_wait() {
    let relay = relay(|config| config.limits.memory = BUDGET);
    let (mut held, mut streams) = (Vec::new(), Vec::new());
    for round in 0..8 {
        for number in 1..=16 {
            let source = Ipv4Addr::new(127, 9, 11, number);
            match (round + number) % 2 {
                0 => held.extend(quic_from(&relay, source).await.ok()),
                _ => streams.extend(tls_from(&relay, source, &[ALPN_H2]).await.ok()),
            }
            // A third; and one of each address may be leaving beside those for whom there is room.
            let promised = metric(&relay, "memory_promised_bytes");
            assert!(promised <= BUDGET as f64 * 0.4, "{promised}");
        }
    }
    assert!(metric(&relay, "connections_ended_total{cause=\"displaced\"}") > 20.0);
    echo(&connect(&relay).await, 1 << 20).await;
    // All is given back, that of connections that were sent away too.
    drop((held, streams));
    until_metric(&relay, "memory_promised_bytes", |bytes| bytes == 0.0).await;
}

/// QUIC keeps something for each stream that it has allowed, also when all have ended.
#[tokio::test]
async fn what_a_connection_may_open_counts_until_it_ends() {
    let relay = relay(|_| {});
    let target = targets::tcp_echo().await;
    let client = connect(&relay).await;
    let mut tunnels = Vec::new();
    for _ in 0..80 {
        tunnels.push(client.ask(tcp(target)).await);
    }
    drop(tunnels);
    // At rest: itself, what it may send, as much in hand, what may wait for it, half as much that is read for it; and 416 streams instead of 104.
    let rests = (64 << 10) + 2 * (128 << 10) + (24 << 10) + (416 - 104) * 90;
    until_metric(&relay, "memory_promised_bytes", |bytes| {
        bytes == f64::from(rests)
    })
    .await;
    drop(client);
    until_metric(&relay, "memory_promised_bytes", |bytes| bytes == 0.0).await;
}
