//! From the client to the target, past the connection: a batch as it was received is restored, readdressed in place and sent on.
//! The shard's socket calls it while it receives. draft-ietf-masque-quic-proxy, "Using Forwarded Mode".

use std::{
    cell::RefCell,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use hoplite_link::server::{ALIAS, Ecn, Forward, Packets};
use hoplite_overlay::Batch;

use super::{
    Forwarding, Id,
    packets::{readdress, shortest, usable},
};
use crate::metrics::Metrics;

thread_local! {
    /// For packets whose target has ids of another length. A shard has one.
    static ROOM: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What stands behind an alias.
#[derive(Debug)]
pub(super) struct Rule {
    flow: Weak<Forwarding>,
    metrics: Arc<Metrics>,
    /// The target's own id.
    id: Id,
    /// Where the client was when it asked for the rule.
    from: SocketAddr,
    closed: AtomicBool,
}

impl Rule {
    pub(super) fn new(
        flow: Weak<Forwarding>,
        metrics: Arc<Metrics>,
        id: Id,
        from: SocketAddr,
    ) -> Self {
        Self {
            flow,
            metrics,
            id,
            from,
            closed: AtomicBool::new(false),
        }
    }

    /// What comes from now on is only counted.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn flow(&self) -> Option<Arc<Forwarding>> {
        let open = !self.closed.load(Ordering::Relaxed);
        open.then(|| self.flow.upgrade()).flatten()
    }
}

impl Forward for Rule {
    fn forward(&self, packets: Packets<'_>) {
        let count = packets.contents.len().div_ceil(packets.segment) as u64;
        let dropped = &self.metrics.forwarding.dropped;
        let Some(flow) = self.flow() else {
            dropped.unknown_id.inc_by(count);
            return;
        };
        if packets.from != self.from || flow.road.address() != self.from {
            dropped.wrong_address.inc_by(count);
            flow.look_around();
            return;
        }
        flow.up(&self.id, packets);
    }
}

impl Forwarding {
    fn up(&self, id: &Id, packets: Packets<'_>) {
        let Packets {
            contents,
            segment,
            ecn,
            ..
        } = packets;
        self.forwarded.fetch_add(1, Ordering::Relaxed);
        self.ledger.passed.fetch_add(1, Ordering::Relaxed);
        let admitted = self.admitted(contents.len(), segment);
        let contents = contents.get_mut(..admitted).unwrap_or_default();
        if contents.is_empty() || !self.open(contents, segment) {
            return;
        }
        ROOM.with_borrow_mut(|room| {
            let (contents, segment) = readdress(contents, segment, ALIAS, id, room);
            self.to_target(Batch { contents, segment }, ecn);
        });
    }

    /// How many bytes of a batch of `len` are passed on; the rest is counted. Only the last packet may be shorter than the others.
    fn admitted(&self, len: usize, segment: usize) -> usize {
        let metrics = &self.ledger.metrics;
        let admitted = usable(len, segment, shortest(&self.transform, ALIAS));
        let packets = admitted.div_ceil(segment);
        let short = len.div_ceil(segment) - packets;
        if short > 0 {
            let dropped = &metrics.forwarding.dropped;
            dropped.too_short.inc_by(short as u64);
        }
        if self.ledger.pace.admits(admitted) {
            return admitted;
        }
        metrics.dropped.bandwidth.inc_by(packets as u64);
        0
    }

    /// Each packet is long enough: nothing fails but the cipher, and then nothing is passed on.
    fn open(&self, contents: &mut [u8], segment: usize) -> bool {
        let mut packets = contents.chunks_mut(segment);
        packets.all(|packet| self.transform.open(packet, ALIAS).is_ok())
    }

    fn to_target(&self, batch: Batch<'_>, ecn: Option<Ecn>) {
        let metrics = &self.ledger.metrics;
        let count = batch.payloads().count() as u64;
        let mut cx = Context::from_waker(Waker::noop());
        match self.target.poll_send_marked(&mut cx, batch, ecn) {
            Poll::Ready(Ok(())) => {
                let octets = batch.contents.len() as u64;
                metrics.datagrams_to_target.inc_by(count);
                metrics.octets_to_target.udp.inc_by(octets);
                metrics.forwarding.to_target.count(count, octets);
            }
            // A full socket loses the newest, as a full router would.
            Poll::Ready(Err(_)) | Poll::Pending => {
                metrics.forwarding.dropped.target_full.inc_by(count);
            }
        }
    }
}
