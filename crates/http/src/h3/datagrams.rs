//! The task that reads a connection's QUIC DATAGRAM frames and hands them to the flows, in batches.
//! Each session runs one.
//! RFC 9297 §2.1.

use std::{sync::Arc, task::Poll};

use bytes::Bytes;
use futures_util::FutureExt as _;
use hoplite_wire::{h3::Code, http_datagram};

use super::{counters::add, flow::Inbound, routes::Found, session::Inner};

/// How many datagrams are handed out before the flows flush and other tasks get their turn.
const BATCH: usize = 256;

/// After so many batches the governor is told what the round trip is.
const ROUND_TRIP_AFTER: u64 = 64;

/// Runs until the connection is lost.
pub(super) async fn run(inner: Arc<Inner>) {
    let mut batch = Batch {
        number: 0,
        touched: Vec::new(),
        last: None,
    };
    while let Some(first) = next(&inner).await {
        batch.begin(&inner);
        let mut next = Some(first);
        let mut count = 0;
        while let Some(datagram) = next {
            batch.route(&inner, datagram);
            count += 1;
            next = match count {
                BATCH => None,
                _ => waiting(&inner),
            };
        }
        batch.flush();
        if count == BATCH {
            tokio::task::yield_now().await;
        }
    }
}

/// The next datagram: one that the stack received, or one that was cut out of a packet before the stack saw it.
/// `None` when the connection is lost.
async fn next(inner: &Inner) -> Option<Bytes> {
    let cut_out = std::future::poll_fn(|cx| match &inner.config.reins {
        Some(reins) => reins.governor().poll_datagram(cx),
        None => Poll::Pending,
    });
    tokio::select! {
        biased;
        datagram = cut_out => Some(datagram),
        datagram = inner.conn.read_datagram() => datagram.ok(),
    }
}

/// The same, if one is there.
fn waiting(inner: &Inner) -> Option<Bytes> {
    let reins = inner.config.reins.as_ref();
    let cut_out = reins.and_then(|reins| reins.governor().next_datagram());
    let received = || inner.conn.read_datagram().now_or_never();
    cut_out.or_else(|| received().and_then(Result::ok))
}

struct Batch {
    number: u64,
    touched: Vec<Arc<Inbound>>,
    /// Stream and slot of the datagram before: most batches are for one flow.
    last: Option<(u64, usize)>,
}

impl Batch {
    fn begin(&mut self, inner: &Inner) {
        self.number += 1;
        if let Some(reins) = &inner.config.reins
            && self.number.is_multiple_of(ROUND_TRIP_AFTER)
        {
            reins.governor().round_trip(inner.conn.rtt());
        }
    }

    fn route(&mut self, inner: &Inner, datagram: Bytes) {
        let Some((id, rest)) = http_datagram::split(datagram) else {
            return inner.fail(Code::DATAGRAM_ERROR, "a datagram for no possible stream");
        };
        let slot = match self.last {
            Some((last, slot)) if last == id => Some(slot),
            _ => self.find(inner, id, &rest),
        };
        if let Some(inbound) = slot.and_then(|slot| self.touched.get(slot)) {
            inbound.datagram(rest);
        }
    }

    fn find(&mut self, inner: &Inner, id: u64, rest: &Bytes) -> Option<usize> {
        let found = inner
            .routes()
            .find(id, rest, self.number, self.touched.len());
        match found {
            Found::Flow { slot, first } => {
                self.touched.extend(first);
                self.last = Some((id, slot));
                return Some(slot);
            }
            Found::Kept => {}
            Found::NoRoom => add(&inner.config.counters.early_dropped, 1),
            Found::Nobody => add(&inner.config.counters.unrouted, 1),
        }
        None
    }

    fn flush(&mut self) {
        self.last = None;
        for inbound in self.touched.drain(..) {
            inbound.seen_frames();
            inbound.flush();
        }
    }
}
