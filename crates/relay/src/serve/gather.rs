//! The client's payloads on their way to a target: payloads of one size are joined and leave in one system call.
//! The CONNECT-UDP handler gives it to the session as a sink; it never blocks and never fails, it drops and counts.
//! RFC 9298 §5: a payload is never split; UDP_SEGMENT wants all payloads of a call but the last to be of one size.

use std::{
    cell::RefCell,
    ops::ControlFlow,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use hoplite_http::DatagramSink;
use hoplite_overlay::{Batch, Datagrams, direct::UdpFlow};
use hoplite_wire::forwarding::{Capsule, Malformed};

use crate::forward::{Forwarding, Ledger};

/// Payloads in one call; the kernel takes no more.
const SEGMENTS: usize = 64;
/// Octets in one call: below what a UDP datagram may hold.
const OCTETS: usize = 60_000;
/// Unused buffers that a shard keeps.
const SPARE: usize = 4;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Sends what it is given to one target.
pub(crate) struct ToTarget {
    flow: Arc<UdpFlow>,
    ledger: Ledger,
    /// Takes the capsules, if the client may send any.
    forwarding: Option<Arc<Forwarding>>,
    joined: Mutex<Joined>,
}

/// Payloads that wait for the end of the batch; at most [`SEGMENTS`] and [`OCTETS`].
#[derive(Default)]
struct Joined {
    contents: Vec<u8>,
    segment: usize,
    count: usize,
    /// The last payload was shorter: nothing may follow.
    closed: bool,
}

impl ToTarget {
    /// A sink for `flow`.
    pub(crate) fn new(
        flow: Arc<UdpFlow>,
        ledger: Ledger,
        forwarding: Option<Arc<Forwarding>>,
    ) -> Self {
        Self {
            flow,
            ledger,
            forwarding,
            joined: Mutex::default(),
        }
    }

    fn send(&self, joined: &mut Joined) {
        if joined.count == 0 {
            return;
        }
        let batch = Batch {
            contents: &joined.contents,
            segment: joined.segment.max(1),
        };
        let mut cx = Context::from_waker(Waker::noop());
        match self.flow.poll_send(&mut cx, batch) {
            Poll::Ready(Ok(())) => self.count(joined),
            // A full socket loses the newest, as a full router would.
            Poll::Ready(Err(_)) | Poll::Pending => {
                self.ledger
                    .metrics
                    .dropped
                    .socket_full
                    .inc_by(joined.count as u64);
            }
        }
        joined.reset();
    }

    fn count(&self, joined: &Joined) {
        self.ledger.passed.fetch_add(1, Ordering::Relaxed);
        self.ledger
            .metrics
            .datagrams_to_target
            .inc_by(joined.count as u64);
        if let Some(account) = &self.ledger.account {
            account.read(joined.contents.len());
        }
        let octets = joined.contents.len() as u64;
        self.ledger.metrics.octets_to_target.udp.inc_by(octets);
    }
}

impl DatagramSink for ToTarget {
    fn push(&self, payload: Bytes) {
        if payload.len() > self.flow.max_payload() {
            self.ledger.metrics.dropped.too_large_for_target.inc();
            return;
        }
        if !self.ledger.pace.admits(payload.len()) {
            self.ledger.metrics.dropped.bandwidth.inc();
            return;
        }
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        if !joined.has_room_for(payload.len()) {
            self.send(&mut joined);
        }
        joined.add(&payload);
    }

    fn flush(&self) {
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        self.send(&mut joined);
        joined.give_back();
        drop(joined);
        if let Some(forwarding) = &self.forwarding {
            forwarding.tunnelled();
        }
    }

    fn capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        match &self.forwarding {
            Some(forwarding) => forwarding.capsule(capsule),
            None => ControlFlow::Continue(()),
        }
    }
}

impl Joined {
    fn has_room_for(&self, len: usize) -> bool {
        let fits = !self.closed && len <= self.segment && len > 0;
        self.count == 0 || (fits && self.count < SEGMENTS && self.contents.len() + len <= OCTETS)
    }

    fn add(&mut self, payload: &[u8]) {
        if self.contents.capacity() == 0 {
            self.contents = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default();
        }
        if self.count == 0 {
            self.segment = payload.len();
        }
        self.closed = payload.len() < self.segment || payload.is_empty();
        self.contents.extend_from_slice(payload);
        self.count += 1;
    }

    fn reset(&mut self) {
        self.contents.clear();
        self.count = 0;
        self.closed = false;
    }

    /// Between batches a flow owns no buffer.
    fn give_back(&mut self) {
        let contents = std::mem::take(&mut self.contents);
        BUFFERS.with_borrow_mut(|spare| {
            if spare.len() < SPARE && contents.capacity() > 0 {
                spare.push(contents);
            }
        });
    }
}

impl std::fmt::Debug for ToTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ToTarget")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The batches that payloads of these sizes leave in.
    fn batches(sizes: &[usize]) -> Vec<Vec<usize>> {
        let mut joined = Joined::default();
        let mut out = vec![Vec::new()];
        for size in sizes {
            if !joined.has_room_for(*size) {
                joined.reset();
                out.push(Vec::new());
            }
            joined.add(&vec![0; *size]);
            out.last_mut().expect("one").push(*size);
        }
        out
    }

    #[test]
    fn payloads_of_one_size_leave_together_and_a_shorter_one_ends_the_batch() {
        assert_eq!(
            batches(&[1200, 1200, 300, 1200, 1300]),
            [vec![1200, 1200, 300], vec![1200], vec![1300]]
        );
    }

    #[test]
    fn an_empty_payload_leaves_alone() {
        assert_eq!(batches(&[10, 0, 10]), [vec![10], vec![0], vec![10]]);
    }

    #[test]
    fn a_batch_is_never_larger_than_the_kernel_takes() {
        assert!(
            batches(&[64; 1000])
                .iter()
                .all(|batch| batch.len() <= SEGMENTS)
        );
        let octets = |batch: &Vec<usize>| batch.iter().sum::<usize>();
        assert!(
            batches(&[1400; 200])
                .iter()
                .all(|batch| octets(batch) <= OCTETS)
        );
    }
}
