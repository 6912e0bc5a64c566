use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use quinn::AsyncUdpSocket;
use quinn_udp::Transmit;
use tokio::task::yield_now;

use super::{Aliases, CoalescingSocket};
use crate::server::{ShardPlace, steering::Ids};

/// How long a test waits before it fails; nothing depends on it otherwise.
const PATIENCE: Duration = Duration::from_secs(20);

fn loopback() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

/// A socket without aliases.
fn plain(socket: UdpSocket) -> std::io::Result<Arc<CoalescingSocket>> {
    let aliases = Aliases::new(Ids::new(ShardPlace::new(0, 1), None));
    CoalescingSocket::new(socket, Arc::new(aliases))
}

/// A destination that blocks on receiving.
fn sink() -> (UdpSocket, SocketAddr) {
    let socket = loopback();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn receive(socket: &UdpSocket) -> Vec<u8> {
    let mut payload = vec![0; 70_000];
    let length = socket.recv(&mut payload).unwrap();
    payload.truncate(length);
    payload
}

fn transmit(destination: SocketAddr, contents: &[u8], segment_size: Option<usize>) -> Transmit<'_> {
    Transmit {
        destination,
        ecn: None,
        contents,
        segment_size,
        src_ip: None,
    }
}

/// Sends, waiting for the socket where quinn would wait.
async fn send(socket: &Arc<CoalescingSocket>, transmit: Transmit<'_>) {
    let mut poller = Arc::clone(socket).create_io_poller();
    while socket.try_send(&transmit).is_err() {
        std::future::poll_fn(|cx| poller.as_mut().poll_writable(cx))
            .await
            .unwrap();
    }
}

async fn flushed(socket: &CoalescingSocket) {
    while !socket.shared.outgoing().is_empty() {
        yield_now().await;
    }
}

#[tokio::test]
async fn what_is_left_of_a_batch_is_sent_without_further_calls() {
    let (sink, address) = sink();
    let socket = plain(loopback()).unwrap();
    send(&socket, transmit(address, b"one", None)).await;
    flushed(&socket).await;
    assert_eq!(receive(&sink), b"one");
}

#[tokio::test]
async fn datagrams_keep_their_order_across_batches() {
    let ((left, to_left), (right, to_right)) = (sink(), sink());
    let socket = plain(loopback()).unwrap();
    for round in 0..100_u8 {
        send(&socket, transmit(to_left, &[round; 30], Some(10))).await;
        send(&socket, transmit(to_right, &[round; 7], None)).await;
        flushed(&socket).await;
        let received: Vec<Vec<u8>> = (0..3).map(|_| receive(&left)).collect();
        assert_eq!(received, vec![vec![round; 10]; 3]);
        assert_eq!(receive(&right), [round; 7]);
    }
}

#[tokio::test]
async fn a_full_queue_holds_the_batch_and_refuses_more_until_it_is_writable() {
    let ((left, to_left), (right, to_right)) = (sink(), sink());
    let socket = plain(loopback()).unwrap();
    // The runtime has not learned yet that the socket takes anything, which looks like a full queue.
    socket.try_send(&transmit(to_left, b"held", None)).unwrap();
    let refused = socket.try_send(&transmit(to_right, b"refused", None));
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);

    send(&socket, transmit(to_right, b"again", None)).await;
    flushed(&socket).await;
    assert_eq!(receive(&left), b"held");
    assert_eq!(receive(&right), b"again");
}

#[tokio::test]
async fn a_datagram_that_is_too_long_loses_only_itself() {
    let (sink, address) = sink();
    let socket = plain(loopback()).unwrap();
    let too_long = vec![0; 65_530];
    send(&socket, transmit(address, &[1; 9], None)).await;
    send(&socket, transmit(address, &too_long, None)).await;
    send(&socket, transmit(address, &[2; 9], None)).await;
    flushed(&socket).await;
    assert_eq!(receive(&sink), [1; 9]);
    assert_eq!(receive(&sink), [2; 9]);
}

#[tokio::test]
async fn an_address_that_cannot_be_answered_does_not_end_segmentation() {
    let socket = plain(loopback()).unwrap();
    let before = socket.max_transmit_segments();
    for _ in 0..20 {
        let nowhere = (Ipv4Addr::LOCALHOST, 0).into();
        send(&socket, transmit(nowhere, &[0; 100], Some(10))).await;
        // From a loopback address there is no route to others.
        let unroutable = (Ipv4Addr::BROADCAST, 9).into();
        send(&socket, transmit(unroutable, &[0; 100], Some(10))).await;
        flushed(&socket).await;
    }
    assert_eq!(socket.max_transmit_segments(), before);
}

#[tokio::test]
async fn the_last_batch_is_sent_after_the_socket_was_given_up() {
    let (sink, address) = sink();
    let socket = plain(loopback()).unwrap();
    let shared = Arc::clone(&socket.shared);
    socket.try_send(&transmit(address, b"bye", None)).unwrap();
    drop(socket);
    while Arc::strong_count(&shared) > 1 {
        yield_now().await;
    }
    assert_eq!(receive(&sink), b"bye");
}

#[tokio::test]
async fn a_batch_that_is_passed_through_keeps_its_place_behind_what_was_sent_before() {
    let (sink, address) = sink();
    let socket = plain(loopback()).unwrap();
    let many = [5; 10 * 64];
    for (first, second) in [(&b"before"[..], &many[..]), (&many[..], &b"after"[..])] {
        send(&socket, transmit(address, &[0; 3], None)).await;
        flushed(&socket).await;
        receive(&sink);
        send(&socket, transmit(address, first, segments(first))).await;
        socket
            .shared
            .pass(&transmit(address, second, segments(second)))
            .unwrap();
        flushed(&socket).await;
        let expected = [first, second].concat();
        let mut received = Vec::new();
        while received.len() < expected.len() {
            received.extend(receive(&sink));
        }
        assert_eq!(received, expected);
    }
}

fn segments(contents: &[u8]) -> Option<usize> {
    (contents.len() > 10).then_some(10)
}

#[tokio::test]
async fn a_batch_that_is_passed_through_is_refused_while_the_queue_is_full() {
    let (_sink, address) = sink();
    let socket = plain(loopback()).unwrap();
    // The runtime has not learned yet that the socket takes anything, which looks like a full queue.
    let refused = socket.shared.pass(&transmit(address, &[1; 640], Some(10)));
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert!(socket.shared.outgoing().is_empty());
}
