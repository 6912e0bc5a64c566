use std::{
    future::poll_fn,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use quinn_udp::Transmit;

use super::{Aliases, ShardSocket};
use crate::{
    AsyncUdpSocket,
    server::{ShardPlace, steering::Ids},
};

/// How long a test waits before it fails; nothing depends on it otherwise.
const PATIENCE: Duration = Duration::from_secs(20);

fn loopback() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

/// A socket without aliases.
fn plain() -> ShardSocket {
    let aliases = Aliases::new(Ids::new(ShardPlace::new(0, 1), None));
    ShardSocket::new(loopback(), Arc::new(aliases)).unwrap()
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

/// Sends as the endpoint's task does.
async fn send(socket: &ShardSocket, transmit: Transmit<'_>) {
    flushed(socket).await;
    poll_fn(|cx| socket.poll_send(cx, &transmit)).await.unwrap();
}

async fn flushed(socket: &ShardSocket) {
    poll_fn(|cx| socket.poll_flush(cx)).await;
}

#[tokio::test]
async fn a_datagram_that_is_too_long_loses_only_itself() {
    let (sink, address) = sink();
    let socket = plain();
    let too_long = vec![0; 65_530];
    send(&socket, transmit(address, &[1; 9], None)).await;
    send(&socket, transmit(address, &too_long, None)).await;
    send(&socket, transmit(address, &[2; 9], None)).await;
    assert_eq!(receive(&sink), [1; 9]);
    assert_eq!(receive(&sink), [2; 9]);
}

#[tokio::test]
async fn an_address_that_cannot_be_answered_does_not_end_segmentation() {
    let socket = plain();
    let before = socket.max_transmit_segments();
    for _ in 0..20 {
        let nowhere = (Ipv4Addr::LOCALHOST, 0).into();
        send(&socket, transmit(nowhere, &[0; 100], Some(10))).await;
        // From a loopback address there is no route to others.
        let unroutable = (Ipv4Addr::BROADCAST, 9).into();
        send(&socket, transmit(unroutable, &[0; 100], Some(10))).await;
    }
    assert_eq!(socket.max_transmit_segments(), before);
}

#[tokio::test]
async fn what_is_forwarded_is_collected_and_sent_in_its_order_when_the_task_has_its_turn() {
    let ((left, to_left), (right, to_right)) = (sink(), sink());
    let socket = plain();
    send(&socket, transmit(to_left, b"first", None)).await;
    assert_eq!(receive(&left), b"first");
    for round in 0..100_u8 {
        socket
            .pass(&transmit(to_left, &[round; 30], Some(10)))
            .unwrap();
        socket.pass(&transmit(to_left, &[round; 10], None)).unwrap();
        socket.pass(&transmit(to_right, &[round; 7], None)).unwrap();
        flushed(&socket).await;
        let received: Vec<Vec<u8>> = (0..4).map(|_| receive(&left)).collect();
        assert_eq!(received, vec![vec![round; 10]; 4]);
        assert_eq!(receive(&right), [round; 7]);
    }
}

#[tokio::test]
async fn the_task_is_woken_for_what_is_forwarded() {
    let (sink, address) = sink();
    let socket = plain();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    assert!(socket.poll_flush(&mut cx).is_ready());
    // The runtime has not learned yet that the socket takes anything; it has when the batch is sent.
    drop(socket.pass(&transmit(address, b"one", None)));
    assert!(woken.0.load(Ordering::Relaxed));
    flushed(&socket).await;
    assert_eq!(receive(&sink), b"one");
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_batch_that_is_passed_through_keeps_its_place_behind_what_was_forwarded_before() {
    let (sink, address) = sink();
    let socket = plain();
    let many = [5; 10 * 64];
    for (first, second) in [(&b"before"[..], &many[..]), (&many[..], &b"after"[..])] {
        send(&socket, transmit(address, &[0; 3], None)).await;
        receive(&sink);
        for part in [first, second] {
            let segments = (part.len() > 10).then_some(10);
            socket.pass(&transmit(address, part, segments)).unwrap();
        }
        flushed(&socket).await;
        let expected = [first, second].concat();
        let mut received = Vec::new();
        while received.len() < expected.len() {
            received.extend(receive(&sink));
        }
        assert_eq!(received, expected);
    }
}

#[tokio::test]
async fn a_batch_that_is_passed_through_is_refused_while_the_queue_is_full() {
    let (_sink, address) = sink();
    let socket = plain();
    // The runtime has not learned yet that the socket takes anything, which looks like a full queue.
    let refused = socket.pass(&transmit(address, &[1; 640], Some(10)));
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert!(socket.forwarded.lock().is_empty());
}
