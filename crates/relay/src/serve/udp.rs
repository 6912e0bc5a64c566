//! A UDP tunnel once it is open: payloads both ways in batches, without a buffer of its own while it is idle.
//! The CONNECT-UDP handler runs it. Towards the target see [`gather`](super::gather).
//! RFC 9298 §3.1 and §5: nothing that happens to one payload ends the tunnel.

use std::{
    cell::RefCell,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hoplite_http::{Exchange, Flow};
use hoplite_link::server::Ecn;
use hoplite_overlay::{Batch, Received, direct::UdpFlow};

use super::{Shared, gather::ToTarget, splice::watch};
use crate::{
    forward::{Forwarding, Ledger, Terms, Tunnel},
    limits::{Account, Pace},
};

/// What one receive call may bring: a whole GRO batch.
const BUFFER: usize = 65_536;
/// Batches taken before others get their turn.
const TURN: usize = 16;
/// Refusals in a row, with nothing received between them, after which the tunnel is broken off.
const REFUSALS: u32 = 8;

thread_local! {
    /// Shared by all tunnels of a shard: what was received is passed on before anybody else may run.
    static RECEIVED: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Carries payloads until the client closes the tunnel, nobody is there, or nothing has passed for long.
pub(crate) async fn carry(
    shared: &Shared,
    (pace, account): (Pace, Option<Arc<Account>>),
    target: UdpFlow,
    exchange: Exchange,
    terms: Option<Terms>,
) {
    let target = Arc::new(target);
    let ledger = Ledger {
        metrics: shared.metrics.clone(),
        pace,
        passed: Arc::new(AtomicU64::new(0)),
        account,
    };
    let forwarding = terms.map(|terms| Forwarding::new(terms, target.clone(), ledger.clone()));
    let _ending = forwarding.as_deref().map(Ending);
    let sink = ToTarget::new(target.clone(), ledger.clone(), forwarding.clone());
    let client = exchange.datagrams(Arc::new(sink));
    if forwarding.is_some() {
        client.carry_forwarded();
    }
    let down = Down {
        target: &target,
        client: &client,
        ledger: &ledger,
        forwarding: forwarding.as_deref(),
    };
    let forwarded = drive(
        forwarding.as_deref(),
        &client,
        shared.limits.idle_connection,
    );
    tokio::select! {
        _ = client.closed() => (),
        () = down.run() => client.reset(),
        () = watch(shared.limits.idle_datagrams, &ledger.passed) => (),
        () = forwarded => client.reset_for_breach(),
    }
    shared.metrics.dropped.socket_full.inc_by(target.dropped());
}

/// The forwarded mode of a flow, if it has any; resolves when the client broke a rule of it.
async fn drive(forwarding: Option<&Forwarding>, client: &Flow, idle: Duration) {
    match forwarding {
        Some(forwarding) => forwarding.drive(client, idle).await,
        None => std::future::pending().await,
    }
}

/// Ends the rules of a flow, however the flow ends.
struct Ending<'a>(&'a Forwarding);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// From the target to the client.
struct Down<'a> {
    target: &'a UdpFlow,
    client: &'a Flow,
    ledger: &'a Ledger,
    forwarding: Option<&'a Forwarding>,
}

impl Down<'_> {
    /// Ends when the target's host keeps saying that nobody is there.
    async fn run(&self) {
        let mut refusals = 0;
        while refusals < REFUSALS {
            for _ in 0..TURN {
                match poll_fn(|cx| self.poll_batch(cx)).await {
                    Ok(()) => refusals = 0,
                    Err(()) => refusals += 1,
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Receives into the shard's buffer and passes on at once.
    fn poll_batch(&self, cx: &mut Context<'_>) -> Poll<Result<(), ()>> {
        RECEIVED.with_borrow_mut(|buffer| match self.target.poll_recv_marked(cx, buffer) {
            Poll::Ready(Ok((received, ecn))) => {
                self.pass(buffer, received, ecn);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => {
                self.ledger.metrics.dropped.unreachable.inc();
                Poll::Ready(Err(()))
            }
            Poll::Pending => Poll::Pending,
        })
    }

    fn pass(&self, buffer: &mut [u8], received: Received, ecn: Option<Ecn>) {
        self.ledger.passed.fetch_add(1, Ordering::Relaxed);
        let contents = buffer.get_mut(..received.len).unwrap_or_default();
        let segment = received.segment.max(1);
        let metrics = &self.ledger.metrics;
        if !self.ledger.pace.admits(received.len) {
            let lost = Batch { contents, segment }.payloads().count() as u64;
            metrics.dropped.bandwidth.inc_by(lost);
            return;
        }
        metrics.octets_to_client.udp.inc_by(received.len as u64);
        match self.forwarding.filter(|forwarding| forwarding.is_active()) {
            Some(forwarding) => forwarding.down(contents, segment, ecn, self),
            None => self.send(Batch { contents, segment }),
        }
    }
}

impl Tunnel for Down<'_> {
    fn send(&self, batch: Batch<'_>) {
        let metrics = &self.ledger.metrics;
        let sent = self.client.send(batch);
        metrics.datagrams_to_client.inc_by(sent.accepted as u64);
        if sent.full > 0 {
            metrics.dropped.client_full.inc_by(sent.full as u64);
        }
        if sent.too_large > 0 {
            metrics
                .dropped
                .too_large_for_client
                .inc_by(sent.too_large as u64);
        }
    }

    fn is_drained(&self, waited: Duration) -> bool {
        self.client.is_drained(waited)
    }
}
