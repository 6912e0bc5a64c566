//! A UDP socket at the far end of a path: one address for all peers, the flows with them, strangers, and relays that have none.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use hoplite_masque::{Config, Path};
use hoplite_overlay::{Bound, Datagrams, ErrorKind, Isolation, Overlay, Terms};
use hoplite_relay::Handle;
use hoplite_testing::{
    path::{Switch, direct, through},
    relay::{number, relay, until_metric},
    soon, targets,
};
use tokio::{net::UdpSocket, time::timeout};

/// An ingress, and an egress that has such sockets.
fn relays() -> Vec<Handle> {
    let last = relay(|config| {
        config.bound_udp.enabled = true;
        config.bound_udp.addresses = vec![[127, 0, 0, 1].into()];
    });
    vec![relay(|_| ()), last]
}

fn wanting() -> Config {
    Config {
        bound_udp: true,
        ..Config::default()
    }
}

fn path(relays: &[Handle]) -> Path {
    through(relays, &direct(), wanting())
}

async fn open(path: &Path) -> Arc<dyn Bound> {
    let terms = Terms::default();
    soon(path.open_bound(&terms)).await.expect("opens")
}

fn address(bound: &Arc<dyn Bound>) -> SocketAddr {
    let [address] = bound.addresses()[..] else {
        unreachable!("one address");
    };
    address
}

/// Sends until something comes back: UDP may lose.
async fn echo(flow: &dyn Datagrams, payload: &[u8]) -> Vec<u8> {
    let mut buf = vec![0; 2000];
    loop {
        flow.send(payload).await.expect("open");
        let answer = timeout(Duration::from_millis(500), flow.recv(&mut buf)).await;
        if let Ok(received) = answer {
            let received = received.expect("open");
            return buf[..received.len.min(received.segment)].to_vec();
        }
    }
}

async fn stranger() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
    let address = socket.local_addr().expect("bound");
    (socket, address)
}

#[tokio::test]
async fn flows_with_many_peers_have_one_address_and_carry_much_and_large_payloads() {
    let relays = relays();
    let path = path(&relays);
    let bound = open(&path).await;
    let peers = [targets::udp_echo().await, targets::udp_echo().await];
    let flows = peers.map(|peer| Arc::clone(&bound).with(peer));
    for round in 0..20_u8 {
        for (flow, mark) in flows.iter().zip([1, 2]) {
            let payload = [mark, round];
            // An answer of a round before may be late.
            while echo(&**flow, &payload).await != payload {}
        }
    }
    let largest = vec![7; flows[0].max_payload()];
    while echo(&*flows[0], &largest).await != largest {}
    assert!(largest.len() > 1100, "{}", largest.len());
    let (other, from) = stranger().await;
    let flow = Arc::clone(&bound).with(from);
    flow.send(b"hello").await.expect("open");
    let seen = soon(other.recv_from(&mut [0; 9])).await.expect("came").1;
    assert_eq!(seen, address(&bound));
    assert_eq!(
        number(
            &relays[1],
            "hoplite_relay_tunnels_open{method=\"bound_udp\"}"
        ),
        1
    );
    drop((flow, flows, bound));
    until_metric(&relays[1], "tunnels_open{method=\"bound_udp\"}", |open| {
        open == 0.0
    })
    .await;
}

#[tokio::test]
async fn strangers_are_heard_apart_from_the_flows() {
    let relays = relays();
    let bound = open(&path(&relays)).await;
    let [(friend, friends), (other, others)] = [stranger().await, stranger().await];
    let flow = Arc::clone(&bound).with(friends);
    friend
        .send_to(b"friend", address(&bound))
        .await
        .expect("sent");
    other
        .send_to(b"stranger", address(&bound))
        .await
        .expect("sent");
    let mut buf = [0; 100];
    let (len, from) = soon(bound.recv_from(&mut buf)).await.expect("open");
    assert_eq!((&buf[..len], from), (&b"stranger"[..], others));
    let received = soon(flow.recv(&mut buf)).await.expect("open");
    assert_eq!(&buf[..received.len], b"friend");
    drop(flow);
    friend
        .send_to(b"stranger now", address(&bound))
        .await
        .expect("sent");
    let (len, from) = soon(bound.recv_from(&mut buf)).await.expect("open");
    assert_eq!((&buf[..len], from), (&b"stranger now"[..], friends));
}

#[tokio::test]
async fn clients_behind_two_paths_speak_with_each_other() {
    let [first, second] = [relays(), relays()];
    let [one, two] = [open(&path(&first)).await, open(&path(&second)).await];
    let towards = Arc::clone(&one).with(address(&two));
    let back = Arc::clone(&two).with(address(&one));
    let mut buf = [0; 100];
    for _ in 0..10 {
        towards.send(b"offer").await.expect("open");
        let received = soon(back.recv(&mut buf)).await.expect("open");
        assert_eq!(&buf[..received.len], b"offer");
        back.send(b"answer").await.expect("open");
        let received = soon(towards.recv(&mut buf)).await.expect("open");
        assert_eq!(&buf[..received.len], b"answer");
    }
}

#[tokio::test]
async fn where_udp_is_blocked_all_of_it_goes_as_capsules() {
    let below = Switch::new();
    below.block(true);
    let relays = relays();
    let path = through(&relays, &below.overlay, wanting());
    let bound = open(&path).await;
    let flow = Arc::clone(&bound).with(targets::udp_echo().await);
    for round in 0..10_u8 {
        while echo(&*flow, &[round]).await != [round] {}
    }
}

#[tokio::test]
async fn a_relay_without_such_sockets_is_asked_once_by_each_token_as_if_there_were_no_other() {
    let relays = [relay(|_| ()), relay(|_| ())];
    let path = path(&relays);
    let refused =
        "hoplite_relay_requests_total{method=\"bound_udp\",outcome=\"http_request_error\"}";
    for (asked, token) in [(1, "one"), (2, "other")] {
        let terms = Terms {
            isolation: Isolation::new(token.into()),
            ..Terms::default()
        };
        for _ in 0..3 {
            let error = soon(path.open_bound(&terms)).await;
            assert_eq!(error.expect_err("none").kind(), ErrorKind::Unsupported);
        }
        assert_eq!(number(&relays[1], refused), asked);
    }
}

#[tokio::test]
async fn a_client_that_does_not_want_one_does_not_ask() {
    let relays = relays();
    let path = through(&relays, &direct(), Config::default());
    let error = soon(path.open_bound(&Terms::default())).await;
    assert_eq!(error.expect_err("none").kind(), ErrorKind::Unsupported);
    assert!(!relays[1].metrics().text().contains("requests_total{"));
}

#[tokio::test]
async fn everybody_is_told_when_the_relay_is_gone() {
    let mut relays = relays();
    let bound = open(&path(&relays)).await;
    let flow = Arc::clone(&bound).with(targets::udp_echo().await);
    assert_eq!(echo(&*flow, b"x").await, b"x");
    drop(relays.pop());
    let mut buf = [0; 100];
    soon(flow.recv(&mut buf)).await.expect_err("gone");
    soon(bound.recv_from(&mut buf)).await.expect_err("gone");
    assert!(!bound.is_open());
    let late = Arc::clone(&bound).with(targets::udp_echo().await);
    late.send(b"x").await.expect_err("gone");
    soon(late.recv(&mut buf)).await.expect_err("gone");
}
