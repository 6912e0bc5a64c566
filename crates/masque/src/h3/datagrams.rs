//! The task that reads a connection's QUIC DATAGRAM frames and hands them to the flows, in batches.
//! Each session runs one.
//! RFC 9297 §2.1.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use hoplite_wire::{h3::Code, http_datagram};

use super::{counters::add, flow::Inbound, routes::Found, session::Inner};

/// How many datagrams are handed out before the flows flush and other tasks get their turn.
const BATCH: usize = 256;

/// Runs until the connection is lost.
pub(super) async fn run(inner: Arc<Inner>) {
    let mut batch = Batch {
        number: 0,
        touched: Vec::new(),
        last: None,
    };
    while let Ok(first) = inner.conn.read_datagram().await {
        batch.begin();
        let mut next = Some(first);
        let mut count = 0;
        while let Some(datagram) = next {
            batch.route(&inner, datagram);
            count += 1;
            next = match count {
                BATCH => None,
                _ => inner
                    .conn
                    .read_datagram()
                    .now_or_never()
                    .and_then(Result::ok),
            };
        }
        batch.flush();
        if count == BATCH {
            tokio::task::yield_now().await;
        }
    }
}

struct Batch {
    number: u64,
    touched: Vec<Arc<Inbound>>,
    /// Stream and slot of the datagram before: most batches are for one flow.
    last: Option<(u64, usize)>,
}

impl Batch {
    fn begin(&mut self) {
        self.number += 1;
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
