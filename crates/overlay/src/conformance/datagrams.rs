//! What every overlay must do with UDP flows, if it carries any. UDP may lose: each check sends again until all has arrived.

use std::{collections::BTreeMap, future::poll_fn, net::IpAddr, sync::Arc, time::Duration};

use futures_util::future::join_all;
use hoplite_wire::{
    Host, Target,
    connect_ip::Scope,
    ip::{
        self,
        icmp::{self, Echo},
    },
};
use tokio::{task::JoinHandle, time::timeout};

use super::{FarSocket, Subject, hangs, pattern, soon};
use crate::{Batch, Datagrams, ErrorKind, Packets, Terms};

/// How long an answer may take before the question is sent again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How often a question is sent.
const MAX_ATTEMPTS: usize = 20;

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
    for _ in 0..MAX_ATTEMPTS {
        poll_fn(|cx| flow.poll_send(cx, batch))
            .await
            .expect("sends");
        while let Ok(payloads) = timeout(RETRY_AFTER, receive(flow)).await {
            for payload in payloads {
                let sent = batch.payloads().any(|sent| sent == payload);
                let stale = payload.first() != batch.contents.first();
                assert!(sent || stale, "{} bytes that nobody sent", payload.len());
                missing.remove(payload.as_slice());
            }
            if missing.is_empty() {
                return;
            }
        }
    }
    hangs("a datagram echo")
}

/// One in, the same one out: empty, small, and as large as the path carries.
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

/// A batch is this many datagrams, the last of them shorter.
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
    for _ in 0..MAX_ATTEMPTS {
        flow.send(&[2; 100]).await.expect("sends");
        let Ok(payloads) = timeout(RETRY_AFTER, receive(&*flow)).await else {
            continue;
        };
        for payload in payloads {
            let whole = payload == large || payload == huge;
            small_back |= payload == [2; 100];
            assert!(
                whole || payload == [2; 100],
                "a piece of {} bytes",
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

// What every overlay must do with flows of IP packets, if it carries any. Packets may be lost: each check sends again until the answer is there.

/// What an echo is known by.
type Told = (u16, u16, Vec<u8>);

impl Subject {
    /// A flow of echoes to the far host; `None` if there are none, which is said.
    async fn echoes(&self) -> Option<(Box<dyn Packets>, IpAddr, IpAddr)> {
        let far = self.far.host();
        let scope = Scope::flow(&Host::ip(far), ip::icmp_of(far));
        let terms = Terms::default();
        let opening = self.overlay.open_packets(&scope, &terms);
        match soon("opening a flow of packets", opening).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                skipped(&error);
                None
            }
            opened => {
                let flow = opened.expect("opens");
                let near = flow.source(far).expect("an address");
                Some((flow, near, far))
            }
        }
    }
}

#[expect(clippy::print_stderr, reason = "a test says why it checked nothing")]
fn skipped(error: &crate::Error) {
    eprintln!("skipped: no IP packets here: {error:?}");
}

/// The next echo reply.
async fn reply(flow: &dyn Packets, from: IpAddr, to: IpAddr) -> Told {
    let mut buf = vec![0; 65_535];
    loop {
        let received = flow.recv(&mut buf).await.expect("receives");
        let packet = ip::parse(&buf[..received.len.min(received.segment)]).expect("a packet");
        assert!(packet.checksum_is_right(), "a wrong checksum");
        assert_eq!((packet.source, packet.destination), (from, to));
        if let Some(echo) = icmp::echo(&packet).filter(|echo| echo.reply) {
            return (echo.identifier, echo.sequence, echo.payload.to_vec());
        }
    }
}

/// Sends an echo request until its reply is there; late replies to earlier ones are passed over.
async fn packet_echoed(flow: &dyn Packets, near: IpAddr, far: IpAddr, told: &Told) {
    let (identifier, sequence, payload) = told;
    let echo = Echo {
        reply: false,
        identifier: *identifier,
        sequence: *sequence,
        payload,
    };
    for _ in 0..MAX_ATTEMPTS {
        flow.send(&echo.packet(near, far)).await.expect("sends");
        while let Ok(back) = timeout(RETRY_AFTER, reply(flow, far, near)).await {
            if back == *told {
                return;
            }
        }
    }
    hangs("an echo")
}

/// What was sent comes back, to whoever sent it: identifier, sequence number and payload.
pub async fn echoes_come_back_as_they_went(subject: &Subject) {
    let _known = subject.far.bind().await.expect("a host");
    let Some((flow, near, far)) = subject.echoes().await else {
        return;
    };
    assert!(flow.mtu() >= 1280, "IPv6 does not fit through");
    for (identifier, sequence, size) in [(7, 1, 56), (8, 1, 56), (7, 2, 0), (0, 0, 1), (7, 3, 1200)]
    {
        packet_echoed(&*flow, near, far, &(identifier, sequence, pattern(size))).await;
    }
}

/// A source that was not assigned and a destination off the routes get no answer, nonsense hurts nobody.
pub async fn packets_that_break_a_rule_are_dropped(subject: &Subject) {
    let _known = subject.far.bind().await.expect("a host");
    let Some((flow, near, far)) = subject.echoes().await else {
        return;
    };
    let forged = |sequence| Echo {
        reply: false,
        identifier: 7,
        sequence,
        payload: b"forged",
    };
    let elsewhere: [IpAddr; 2] = match far {
        IpAddr::V4(_) => [[192, 0, 2, 77].into(), [127, 0, 0, 99].into()],
        IpAddr::V6(_) => ["2001:db8::77", "::1"].map(|ip| ip.parse().expect("an address")),
    };
    for packet in [
        forged(1).packet(elsewhere[0], far),
        forged(2).packet(far, far),
        forged(3).packet(near, elsewhere[1]),
        vec![],
        vec![0x45],
        vec![0xff; 100],
    ] {
        flow.send(&packet).await.expect("dropped, not an error");
    }
    let right = (7, 9, b"right".to_vec());
    packet_echoed(&*flow, near, far, &right).await;
    let more = timeout(Duration::from_millis(50), reply(&*flow, far, near)).await;
    let is_right = |told: Told| told.2 == b"right";
    assert!(more.map_or(true, is_right), "a forged packet was answered");
}
