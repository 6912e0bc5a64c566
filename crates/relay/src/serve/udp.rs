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
};

use hoplite_overlay::{Batch, Datagrams, Received, direct::UdpFlow};

use super::{
    Shared,
    exchange::{ClientFlow, Exchange},
    gather::ToTarget,
    splice::watch,
};
use crate::{limits::Pace, metrics::Metrics};

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
pub(crate) async fn carry(shared: &Shared, pace: Pace, target: UdpFlow, exchange: impl Exchange) {
    let target = Arc::new(target);
    let passed = Arc::new(AtomicU64::new(0));
    let sink = ToTarget::new(
        target.clone(),
        shared.metrics.clone(),
        pace.clone(),
        passed.clone(),
    );
    let client = exchange.datagrams(Arc::new(sink));
    let down = Down {
        target: &target,
        client: &client,
        metrics: &shared.metrics,
        pace,
        passed: &passed,
    };
    tokio::select! {
        () = client.closed() => (),
        () = down.run() => client.reset(),
        () = watch(shared.limits.idle_datagrams, &passed) => (),
    }
    shared.metrics.dropped.socket_full.inc_by(target.dropped());
}

/// From the target to the client.
struct Down<'a, F> {
    target: &'a UdpFlow,
    client: &'a F,
    metrics: &'a Metrics,
    pace: Pace,
    passed: &'a AtomicU64,
}

impl<F: ClientFlow> Down<'_, F> {
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
        RECEIVED.with_borrow_mut(|buffer| match self.target.poll_recv(cx, buffer) {
            Poll::Ready(Ok(received)) => {
                self.pass(buffer, received);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => {
                self.metrics.dropped.unreachable.inc();
                Poll::Ready(Err(()))
            }
            Poll::Pending => Poll::Pending,
        })
    }

    fn pass(&self, buffer: &[u8], received: Received) {
        self.passed.fetch_add(1, Ordering::Relaxed);
        let batch = Batch {
            contents: buffer.get(..received.len).unwrap_or_default(),
            segment: received.segment.max(1),
        };
        let metrics = self.metrics;
        if !self.pace.admits(received.len) {
            let lost = batch.payloads().count() as u64;
            metrics.dropped.bandwidth.inc_by(lost);
            return;
        }
        let sent = self.client.send(batch);
        metrics.datagrams_to_client.inc_by(sent.accepted as u64);
        metrics.octets_to_client.udp.inc_by(received.len as u64);
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
}
