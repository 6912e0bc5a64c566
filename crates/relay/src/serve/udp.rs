//! A UDP tunnel once it is open: payloads both ways in batches, without a buffer of its own while it is idle.
//! The CONNECT-UDP handler runs it.
//! RFC 9298 §3.1 and §5: nothing that happens to one payload ends the tunnel, and none is split.

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use hoplite_http::{DatagramSink, Exchange, Flow};
use hoplite_overlay::{
    Batch, Datagrams, Received,
    direct::{ReceiveBuffer, UdpFlow},
};
use hoplite_quic::server::Ecn;
use hoplite_wire::{
    ecn_contexts::{self, EcnContexts},
    forwarding::{Capsule, Malformed},
};
use parking_lot::Mutex;

use super::{Shared, splice::watch};
use crate::{
    forward::{Forwarding, Ledger, Terms, Tunnel},
    limits::{Account, HeldPart, Pace},
};

/// Receive calls made before others get their turn.
const BATCH_BUDGET: usize = 16;
/// Refusals in a row, with nothing received between them, after which the tunnel is broken off.
const REFUSALS: u32 = 8;

thread_local! {
    /// Shared by all tunnels of a shard: what was received is passed on before anybody else may run.
    static RECEIVED: RefCell<ReceiveBuffer> = RefCell::default();
}

/// Carries payloads until the client closes the tunnel, nobody is there, or nothing has passed for long.
pub(crate) fn carry(
    shared: Arc<Shared>,
    (pace, account, part): (Pace, Option<Arc<Account>>, HeldPart),
    target: UdpFlow,
    exchange: Exchange,
    (terms, marks): (Option<Terms>, Option<EcnContexts>),
) -> impl Future<Output = ()> {
    let target = Arc::new(target);
    let ledger = Ledger {
        metrics: shared.metrics.clone(),
        pace,
        passed: Arc::new(AtomicU64::new(0)),
        account,
    };
    let forwarding = terms.map(|terms| {
        let kernel = shared.kernel.clone();
        Forwarding::new(terms, target.clone(), ledger.clone(), kernel)
    });
    let marks = marks.map(Arc::new);
    let sink = ToTarget::new(
        target.clone(),
        (ledger.clone(), part),
        forwarding.clone(),
        marks.clone(),
    );
    let client = exchange.datagrams(Arc::new(sink));
    if forwarding.is_some() {
        client.carry_forwarded();
    }
    async move {
        let forwarding = forwarding.as_deref();
        let _ending = forwarding.map(Ending);
        let down = Down {
            target: &target,
            client: &client,
            ledger: &ledger,
            forwarding,
            marks: marks.as_deref(),
        };
        tokio::select! {
            _ = client.closed() => (),
            () = down.run() => client.reset(),
            () = watch(shared.limits().idle_datagrams, &ledger.passed) => (),
            () = drive(forwarding, &client, shared.limits().idle_connection) => client.reset_for_breach(),
        }
        shared.metrics.dropped.socket_full.inc_by(target.dropped());
    }
}

async fn drive(forwarding: Option<&Forwarding>, client: &Flow, idle: Duration) {
    match forwarding {
        // Most flows have none, and need no room for it.
        Some(forwarding) => Box::pin(forwarding.drive(client, idle)).await,
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
    /// In which contexts the client is told how packets are marked.
    marks: Option<&'a EcnContexts>,
}

impl Down<'_> {
    /// Ends when the target's host keeps saying that nobody is there.
    async fn run(&self) {
        let mut refusals = 0;
        while refusals < REFUSALS {
            for _ in 0..BATCH_BUDGET {
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
        RECEIVED.with_borrow_mut(|buffer| {
            let pass = |contents: &mut [u8], received: Received, ecn| {
                self.pass(contents, received, ecn);
            };
            self.target.poll_recv_runs(cx, buffer, pass).map_err(|_| {
                self.ledger.metrics.dropped.unreachable.inc();
            })
        })
    }

    fn pass(&self, contents: &mut [u8], received: Received, ecn: Option<Ecn>) {
        self.ledger.passed.fetch_add(1, Ordering::Relaxed);
        let segment = received.segment.max(1);
        let metrics = &self.ledger.metrics;
        let count = Batch { contents, segment }.payloads().count();
        if !self.ledger.pace.admits_datagrams(count, received.len) {
            let lost = count as u64;
            metrics.dropped.bandwidth.inc_by(lost);
            return;
        }
        metrics.bytes_to_client.udp.inc_by(received.len as u64);
        match self.forwarding.filter(|forwarding| forwarding.is_active()) {
            Some(forwarding) => forwarding.down(contents, segment, ecn, self),
            None => self.send(Batch { contents, segment }, ecn),
        }
    }
}

impl Tunnel for Down<'_> {
    fn send(&self, batch: Batch<'_>, mark: Option<Ecn>) {
        let metrics = &self.ledger.metrics;
        let head = ecn_contexts::head(self.marks, mark.map(|mark| mark as u8));
        let sent = self.client.send_behind(&head, batch);
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

/// Payloads in one call; the kernel takes no more.
const SEGMENTS: usize = 64;
/// Bytes in one call: below what a UDP datagram may hold.
const BYTES: usize = 60_000;
/// Unused buffers that a shard keeps.
const MAX_SPARE_BUFFERS: usize = 4;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The client's payloads on their way to one target: those of one size are joined and leave in one system call. UDP_SEGMENT wants all payloads of a
/// call but the last to be of one size. It never blocks and never fails, it drops and counts.
pub(crate) struct ToTarget {
    flow: Arc<UdpFlow>,
    ledger: Ledger,
    part: HeldPart,
    /// Takes the capsules, if the client may send any.
    forwarding: Option<Arc<Forwarding>>,
    /// In which contexts the client says how packets are to be marked.
    marks: Option<Arc<EcnContexts>>,
    joined: Mutex<Joined>,
}

/// Payloads that wait for the end of the batch; at most [`SEGMENTS`] and [`BYTES`].
#[derive(Default)]
struct Joined {
    contents: Vec<u8>,
    segment: usize,
    count: usize,
    /// How all of them are to be marked.
    mark: Option<Ecn>,
    /// The last payload was shorter: nothing may follow.
    closed: bool,
}

impl ToTarget {
    /// A sink for `flow`.
    pub(crate) fn new(
        flow: Arc<UdpFlow>,
        (ledger, part): (Ledger, HeldPart),
        forwarding: Option<Arc<Forwarding>>,
        marks: Option<Arc<EcnContexts>>,
    ) -> Self {
        Self {
            flow,
            ledger,
            part,
            forwarding,
            marks,
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
        match self.flow.poll_send_marked(&mut cx, batch, joined.mark) {
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
        let bytes = joined.contents.len() as u64;
        self.ledger.metrics.bytes_to_target.udp.inc_by(bytes);
    }
}

impl ToTarget {
    fn take(&self, payload: &[u8], mark: Option<Ecn>) {
        if payload.len() > self.flow.max_payload() {
            self.ledger.metrics.dropped.too_large_for_target.inc();
            return;
        }
        if !self.ledger.pace.admits_datagrams(1, payload.len()) {
            self.ledger.metrics.dropped.bandwidth.inc();
            return;
        }
        let mut joined = self.joined.lock();
        if !joined.has_room_for(payload.len(), mark) {
            self.send(&mut joined);
        }
        joined.add(payload, mark);
    }
}

impl DatagramSink for ToTarget {
    fn push(&self, payload: Bytes) {
        self.take(&payload, None);
    }

    fn push_in(&self, context: u64, content: Bytes) -> bool {
        let marks = self.marks.as_ref();
        let code_point = marks.and_then(|marks| marks.code_point(context));
        if let Some(code_point) = code_point {
            self.take(&content, Ecn::from_bits(code_point));
        }
        code_point.is_some()
    }

    fn flush(&self) {
        let mut joined = self.joined.lock();
        self.send(&mut joined);
        joined.give_back();
        drop(joined);
        if let Some(forwarding) = &self.forwarding {
            forwarding.tunnelled();
        }
    }

    fn holds(&self, bytes: usize) -> bool {
        self.part.is(bytes)
    }

    fn capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        match &self.forwarding {
            Some(forwarding) => forwarding.capsule(capsule),
            None => ControlFlow::Continue(()),
        }
    }
}

impl Joined {
    fn has_room_for(&self, len: usize, mark: Option<Ecn>) -> bool {
        let fits = !self.closed && len <= self.segment && len > 0 && mark == self.mark;
        self.count == 0 || (fits && self.count < SEGMENTS && self.contents.len() + len <= BYTES)
    }

    fn add(&mut self, payload: &[u8], mark: Option<Ecn>) {
        if self.contents.capacity() == 0 {
            self.contents = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default();
        }
        if self.count == 0 {
            (self.segment, self.mark) = (payload.len(), mark);
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
            if spare.len() < MAX_SPARE_BUFFERS && contents.capacity() > 0 {
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
            if !joined.has_room_for(*size, None) {
                joined.reset();
                out.push(Vec::new());
            }
            joined.add(&vec![0; *size], None);
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
    fn what_is_marked_otherwise_leaves_apart() {
        let mut joined = Joined::default();
        joined.add(&[0; 10], Some(Ecn::Ect0));
        assert!(joined.has_room_for(10, Some(Ecn::Ect0)));
        assert!(!joined.has_room_for(10, None) && !joined.has_room_for(10, Some(Ecn::Ce)));
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
        let bytes = |batch: &Vec<usize>| batch.iter().sum::<usize>();
        assert!(
            batches(&[1400; 200])
                .iter()
                .all(|batch| bytes(batch) <= BYTES)
        );
    }
}
