//! What every overlay must do with UDP flows, if it carries any. UDP may lose: each check sends again until all has arrived.
//! Part of [`super`].

use std::{collections::BTreeMap, future::poll_fn, sync::Arc, time::Duration};

use futures_util::future::join_all;
use hoplite_wire::Target;
use tokio::{task::JoinHandle, time::timeout};

use super::{FarSocket, Subject, hangs, pattern, soon};
use crate::{Batch, Datagrams, ErrorKind, Terms};

/// How long an answer may take before the question is sent again.
const AGAIN: Duration = Duration::from_secs(1);

/// How often a question is sent.
const ATTEMPTS: usize = 20;

impl Subject {
    /// `None` if the overlay carries no UDP, which it says.
    async fn flow(&self, target: &Target) -> Option<Box<dyn Datagrams>> {
        let terms = Terms::default();
        let opening = self.overlay.open_datagrams(target, &terms);
        match soon("opening a UDP flow", opening).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => None,
            opened => Some(opened.expect("opens")),
        }
    }

    /// A server that sends every datagram back.
    async fn echo_socket(&self) -> (Target, JoinHandle<()>) {
        let socket = self.far.bind().await.expect("a server");
        let target = socket.target();
        (target, tokio::spawn(echo(socket)))
    }
}

async fn echo(socket: Box<dyn FarSocket>) {
    while let Ok((payload, from)) = socket.recv().await {
        socket.send(&payload, from).await.expect("answers");
    }
}

/// The payloads of one receive call.
async fn receive(flow: &dyn Datagrams) -> Vec<Vec<u8>> {
    let mut buf = vec![0; 65_535];
    let received = flow.recv(&mut buf).await.expect("receives");
    let batch = Batch {
        contents: &buf[..received.len],
        segment: received.segment,
    };
    batch.payloads().map(<[u8]>::to_vec).collect()
}

/// Sends `batch` until each of its payloads has come back, in whatever order.
async fn echoed(flow: &dyn Datagrams, batch: Batch<'_>) {
    let mut missing: BTreeMap<&[u8], ()> = batch.payloads().map(|payload| (payload, ())).collect();
    for _ in 0..ATTEMPTS {
        poll_fn(|cx| flow.poll_send(cx, batch))
            .await
            .expect("sends");
        while let Ok(payloads) = timeout(AGAIN, receive(flow)).await {
            for payload in payloads {
                let sent = batch.payloads().any(|sent| sent == payload);
                let stale = payload.first() != batch.contents.first();
                assert!(sent || stale, "{} octets that nobody sent", payload.len());
                missing.remove(payload.as_slice());
            }
            if missing.is_empty() {
                return;
            }
        }
    }
    hangs("a datagram echo")
}

/// One in, the same one out: empty, small, and as large as the road carries.
pub async fn datagrams_keep_their_boundaries(subject: &Subject) {
    let (target, server) = subject.echo_socket().await;
    let Some(flow) = subject.flow(&target).await else {
        return server.abort();
    };
    assert!(flow.max_payload() >= 1200, "QUIC does not fit through");
    for size in [1, 0, 2, 500, 1200, flow.max_payload()] {
        let payload = pattern(size);
        echoed(&*flow, Batch::one(&payload)).await;
    }
    server.abort();
}

/// A batch is so many datagrams, the last of them shorter.
pub async fn a_batch_arrives_payload_by_payload(subject: &Subject) {
    let (target, server) = subject.echo_socket().await;
    let Some(flow) = subject.flow(&target).await else {
        return server.abort();
    };
    let numbered = |n: u8| [&[7, n][..], &pattern(998)].concat();
    let mut contents: Vec<u8> = (0..20).flat_map(numbered).collect();
    contents.extend_from_slice(&numbered(20)[..300]);
    let batch = Batch {
        contents: &contents,
        segment: 1000,
    };
    echoed(&*flow, batch).await;
    server.abort();
}

/// What is too large arrives whole or not at all, and its neighbours are not hurt.
pub async fn an_oversized_datagram_is_never_split(subject: &Subject) {
    let (target, server) = subject.echo_socket().await;
    let Some(flow) = subject.flow(&target).await else {
        return server.abort();
    };
    let large = vec![1; flow.max_payload() + 1];
    let huge = vec![1; 60_000];
    for _ in 0..3 {
        flow.send(&large).await.expect("dropped, not an error");
        flow.send(&huge).await.expect("dropped, not an error");
    }
    let mut small_back = false;
    for _ in 0..ATTEMPTS {
        flow.send(&[2; 100]).await.expect("sends");
        let Ok(payloads) = timeout(AGAIN, receive(&*flow)).await else {
            continue;
        };
        for payload in payloads {
            let whole = payload == large || payload == huge;
            small_back |= payload == [2; 100];
            assert!(
                whole || payload == [2; 100],
                "a piece of {} octets",
                payload.len()
            );
        }
        if small_back {
            break;
        }
    }
    assert!(small_back, "the flow is dead after an oversized datagram");
    server.abort();
}

/// Each flow gets its own answers.
pub async fn many_datagram_flows_are_carried_at_once(subject: &Subject) {
    let (target, server) = subject.echo_socket().await;
    let target = Arc::new(target);
    let talk = async |n: u8| {
        let Some(flow) = subject.flow(&target).await else {
            return;
        };
        for round in 0..3 {
            echoed(&*flow, Batch::one(&[n, round, 0, 1, 2])).await;
        }
    };
    soon("fifty UDP flows", join_all((0..50).map(talk))).await;
    server.abort();
}
