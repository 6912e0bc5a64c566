//! A flow of bound UDP once it is open: a socket of each family that it has, payloads to and from whomever its client has a context for.
//! The CONNECT-UDP handler runs it. draft-ietf-masque-connect-udp-listen-13, §3 to §8: nothing that happens to one payload ends the flow.
//!
//! Whom a payload goes to or comes from is judged each time, by the policy and by how many there were of late: what was permitted when its context
//! was opened may be no longer, such as another flow's address after that flow. What no context is for is dropped before it costs its client anything.

use std::{
    cell::RefCell,
    future::{pending, poll_fn},
    net::SocketAddr,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use hoplite_http::{DatagramSink, Exchange, Flow};
use hoplite_overlay::{Batch, Received, direct::BoundUdp};
use hoplite_wire::bound_udp::{Capsule, Malformed, split_peer};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

use super::{Shared, splice::watch};
use crate::{
    bound::{Breach, Contexts, Meaning, Targets},
    egress::Bound,
    limits::{Account, HeldPart, Pace},
};

/// What one receive call may bring: a whole GRO batch.
const BUFFER: usize = 65_536;
/// Batches taken before others get their turn.
const BATCH_BUDGET: usize = 16;
/// How many answers to capsules may wait. "An upper limit on how many compression responses the endpoint is willing to buffer MUST be set".
const ANSWERS: usize = 256;

thread_local! {
    /// Shared by all flows of a shard: what was received is passed on before anybody else may run.
    static RECEIVED: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Carries payloads until the client closes the flow or breaks a rule, or nothing has passed for long.
pub(crate) async fn carry(
    shared: &Arc<Shared>,
    (pace, account, part): (Pace, Option<Arc<Account>>, HeldPart),
    bound: Bound,
    exchange: Exchange,
) {
    let (answer, answers) = mpsc::channel(ANSWERS);
    let config = &shared.bound_udp;
    let open = Arc::new(Open {
        shared: shared.clone(),
        bound,
        agreed: Mutex::new((Contexts::new(config.contexts), Targets::new(config.targets))),
        pace,
        account,
        passed: AtomicU64::new(0),
        breached: Notify::new(),
    });
    let sink = ToNetwork {
        open: open.clone(),
        answer,
        part,
    };
    let client = exchange.datagrams(Arc::new(sink));
    let down = |family: usize| {
        let (open, client) = (&open, &client);
        async move {
            match open.bound.sockets().get(family) {
                Some(socket) => open.down(socket, client).await,
                None => pending().await,
            }
        }
    };
    tokio::select! {
        // Over TCP a breach is told by this alone.
        closed = client.closed() => if closed.is_err() { client.reset() },
        () = down(0) => client.reset(),
        () = down(1) => client.reset(),
        () = tell(answers, &client) => client.reset_for_breach(),
        () = open.breached.notified() => client.reset_for_breach(),
        () = watch(shared.limits().idle_datagrams, &open.passed) => (),
    }
}

/// Answers capsules; ends when the client does not take what it asks for. "The proxy MUST abort the request stream if this limit is reached."
async fn tell(mut answers: mpsc::Receiver<Capsule>, client: &Flow) {
    while let Some(capsule) = answers.recv().await {
        if !client.send_bound_capsule(&capsule) {
            return;
        }
    }
    // The sink has gone: so will the flow.
    pending().await
}

/// What both directions share.
struct Open {
    shared: Arc<Shared>,
    bound: Bound,
    agreed: Mutex<(Contexts, Targets)>,
    pace: Pace,
    /// Where payloads come on streams: whose windows they move.
    account: Option<Arc<Account>>,
    passed: AtomicU64,
    /// The client broke a rule by a datagram.
    breached: Notify,
}

/// From the client to the network.
struct ToNetwork {
    open: Arc<Open>,
    answer: mpsc::Sender<Capsule>,
    part: HeldPart,
}

impl Open {
    fn permits(&self, peer: SocketAddr) -> bool {
        self.shared.egress.permits_peer(peer)
    }

    /// What came in a context; `false` if it means nothing yet.
    fn up(&self, context: u64, content: Bytes) -> bool {
        let dropped = &self.shared.metrics.dropped;
        let meaning = self.agreed.lock().0.meaning(context);
        let named = match meaning {
            Meaning::Peer(peer) => Some((peer, content)),
            Meaning::Anybody => split_peer(content),
            Meaning::Closed => return true,
            Meaning::Unknown => return false,
        };
        let judged = named
            .filter(|(peer, _)| self.permits(*peer))
            .and_then(|(peer, payload)| Some((self.bound.socket(peer)?, peer, payload)));
        let Some((socket, peer, payload)) = judged else {
            dropped.policy.inc();
            return true;
        };
        if payload.len() > socket.max_payload() {
            dropped.too_large_for_target.inc();
        } else if !self.agreed.lock().1.admits(peer, Instant::now()) {
            dropped.targets.inc();
        } else if !self.pace.admits_datagrams(1, payload.len()) {
            dropped.bandwidth.inc();
        } else if socket.send(&payload, peer) {
            self.count_up(payload.len());
        } else {
            dropped.socket_full.inc();
        }
        true
    }

    fn count_up(&self, bytes: usize) {
        self.passed.fetch_add(1, Ordering::Relaxed);
        if let Some(account) = &self.account {
            account.read(bytes);
        }
        let metrics = &self.shared.metrics;
        metrics.datagrams_to_target.inc();
        metrics.bytes_to_target.bound_udp.inc_by(bytes as u64);
    }

    /// From the network to the client; ends when the socket fails.
    async fn down(&self, socket: &BoundUdp, client: &Flow) {
        loop {
            for _ in 0..BATCH_BUDGET {
                let batch = poll_fn(|cx| self.poll_batch(socket, client, cx));
                if batch.await.is_err() {
                    return;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn poll_batch(
        &self,
        socket: &BoundUdp,
        client: &Flow,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ()>> {
        RECEIVED.with_borrow_mut(|buffer| match socket.poll_recv(cx, buffer) {
            Poll::Ready(Ok((received, from))) => {
                self.pass(client, buffer, received, from);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(())),
            Poll::Pending => Poll::Pending,
        })
    }

    /// All payloads of a batch have one sender.
    fn pass(&self, client: &Flow, buffer: &[u8], received: Received, from: SocketAddr) {
        let metrics = &self.shared.metrics;
        let batch = Batch {
            contents: buffer.get(..received.len).unwrap_or_default(),
            segment: received.segment.max(1),
        };
        let lost = || batch.payloads().count() as u64;
        let head = self.agreed.lock().0.head(from);
        let Some(head) = head else {
            metrics.dropped.unasked.inc_by(lost());
            return;
        };
        if !self.permits(from) {
            metrics.dropped.policy.inc_by(lost());
            return;
        }
        let count = batch.payloads().count();
        if !self.pace.admits_datagrams(count, received.len) {
            metrics.dropped.bandwidth.inc_by(lost());
            return;
        }
        self.passed.fetch_add(1, Ordering::Relaxed);
        metrics
            .bytes_to_client
            .bound_udp
            .inc_by(received.len as u64);
        let sent = client.send_behind(&head, batch);
        metrics.datagrams_to_client.inc_by(sent.accepted as u64);
        metrics.dropped.client_full.inc_by(sent.full as u64);
        metrics
            .dropped
            .too_large_for_client
            .inc_by(sent.too_large as u64);
    }

    fn take(&self, capsule: Capsule) -> Result<Option<Capsule>, Breach> {
        match capsule {
            Capsule::Assign { context, peer } => {
                let may_have = |peer| self.shared.egress.may_have_context(peer);
                let fine =
                    peer.is_none_or(|peer| self.bound.socket(peer).is_some() && may_have(peer));
                let assigned = self.agreed.lock().0.assign(context, peer, fine);
                assigned.map(Some)
            }
            // "For a Context ID it did not attempt to register": we register none.
            Capsule::Ack { .. } => Err(Breach),
            Capsule::Close { context } => {
                self.agreed.lock().0.close(context);
                Ok(None)
            }
        }
    }
}

impl DatagramSink for ToNetwork {
    /// Of the context of CONNECT-UDP itself, which has no target here: "the recipient MUST abort the request stream".
    fn push(&self, _: Bytes) {
        self.open.breached.notify_one();
    }

    fn push_in(&self, context: u64, content: Bytes) -> bool {
        self.open.up(context, content)
    }

    fn flush(&self) {}

    fn holds(&self, bytes: usize) -> bool {
        self.part.is(bytes)
    }

    fn bound_capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        let answered = match capsule {
            Ok(capsule) => self.open.take(capsule),
            Err(Malformed) => Err(Breach),
        };
        let fine = match answered {
            Ok(Some(answer)) => self.answer.try_send(answer).is_ok(),
            Ok(None) => true,
            Err(Breach) => false,
        };
        if fine {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }
}
