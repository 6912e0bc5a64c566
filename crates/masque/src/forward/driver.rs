//! Drives a flow's [`Machine`]: sorts what is sent, restores what is received, sends its capsules.
//! A tunnel has one if the relay agreed to forward; the link gives it the packets under its aliases.
//!
//! Locks are taken from the flow above to the flow below only. A capsule that finds no room waits for the next packet.

use std::{
    fmt,
    ops::ControlFlow,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use hoplite_crypto::Transform;
use hoplite_http::{Flow, HttpError};
use hoplite_link::{Beside, Bypass};
use hoplite_overlay::{Batch, Ecn, End};
use hoplite_quic::coalesce::{MOST_BYTES, MOST_SEGMENTS};
use hoplite_wire::forwarding::{Capsule, ConnectionId, Malformed};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{Action, Below, Machine, Negotiation, Route, count};
use crate::inbox::Inbox;

/// What is received is kept in pieces of a buffer of this many bytes.
const BUFFER_SIZE: usize = 16 * 1024;
/// How old the link's round trip may be.
const MAX_RTT_AGE: Duration = Duration::from_millis(500);

/// Forwarded mode on one flow.
pub(crate) struct Forwarder {
    me: Weak<Self>,
    machine: Mutex<Machine>,
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
    transform: Transform,
    bypass: Arc<Bypass>,
    /// Of the link's socket, when last looked at.
    generation: AtomicU64,
    /// Something was received beside the connection since the last look.
    heard: AtomicBool,
    inbox: Arc<Inbox>,
    negotiation: Arc<Negotiation>,
    flow: OnceLock<Weak<Flow>>,
}

#[derive(Default)]
struct Sending {
    sorted: SortedBatch,
    round_trip: Option<(Instant, Duration)>,
}

/// Ids that are remembered: some more than a flow has in use.
const MOST_USED: usize = 16;

#[derive(Default)]
struct Receiving {
    buffer: BytesMut,
    /// Under which ids packets came since the last look, each once; and when last.
    used: Vec<ConnectionId>,
    at: Option<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Forwarder {
    pub(crate) fn new(
        transform: Transform,
        bypass: &Arc<Bypass>,
        inbox: &Arc<Inbox>,
        negotiation: &Arc<Negotiation>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            machine: Mutex::new(Machine::new(negotiation.ids)),
            sending: Mutex::default(),
            receiving: Mutex::default(),
            transform,
            generation: AtomicU64::new(bypass.generation()),
            bypass: bypass.clone(),
            heard: AtomicBool::new(false),
            inbox: inbox.clone(),
            negotiation: negotiation.clone(),
            flow: OnceLock::new(),
        })
    }

    /// Its capsules go through `flow`.
    pub(crate) fn attach(&self, flow: &Arc<Flow>) {
        flow.carry_forwarded();
        self.flow.get_or_init(|| Arc::downgrade(flow));
        self.act(&mut lock(&self.machine));
    }

    /// Sends a batch, each packet its way and marked so, in the tunnel behind `head`: the whole, or nothing and wakes later.
    pub(crate) fn poll_send(
        &self,
        cx: &mut Context<'_>,
        flow: &Flow,
        batch: Batch<'_>,
        (mark, head): (Option<Ecn>, &[u8]),
    ) -> Poll<Result<(), HttpError>> {
        let mut sending = lock(&self.sending);
        let round_trip = sending.round_trip(flow);
        let sorted = &mut sending.sorted;
        ready!(self.poll_sort(cx, sorted, batch, flow, round_trip));
        let all = batch.payloads().count();
        if sorted.forwarded() == 0 {
            ready!(flow.poll_send_behind(cx, head, batch))?;
            self.negotiation.sent_tunnelled(all);
            return Poll::Ready(Ok(()));
        }
        if let Some(tunnelled) = sorted.to_tunnel(batch.segment) {
            ready!(flow.poll_send_behind(cx, head, tunnelled))?;
        }
        self.negotiation.sent_tunnelled(all - sorted.forwarded());
        self.send_forwarded(sorted, mark);
        Poll::Ready(Ok(()))
    }

    /// Looks at every packet, if the way beside the connection is free where it may be taken.
    fn poll_sort(
        &self,
        cx: &mut Context<'_>,
        sorted: &mut SortedBatch,
        batch: Batch<'_>,
        flow: &Flow,
        round_trip: Duration,
    ) -> Poll<()> {
        let now = Instant::now();
        let room = flow.max_payload();
        let mut machine = lock(&self.machine);
        let settling = machine.settling(now);
        let drained = settling.is_none_or(|waited| flow.is_drained(waited));
        let below = Below {
            round_trip,
            drained,
        };
        self.look(&mut machine, below, now);
        if machine.is_forwarding() {
            ready!(self.bypass.poll_ready(cx));
        }
        sorted.clear();
        let mut seen = 0;
        for packet in batch.payloads() {
            let is_sorted = match machine.route(packet, room, now) {
                Route::Tunnelled => false,
                Route::Forwarded { id_len, alias } => {
                    let first = sorted.forwarded() == 0;
                    let done = sorted.forward(packet, id_len, alias);
                    if first && done {
                        sorted.tunnel(batch.contents.get(..seen).unwrap_or(&[]));
                    }
                    done
                }
            };
            if !is_sorted && sorted.forwarded() > 0 {
                sorted.tunnel(packet);
            }
            seen += packet.len();
        }
        self.act(&mut machine);
        Poll::Ready(())
    }

    fn send_forwarded(&self, sorted: &mut SortedBatch, mark: Option<Ecn>) {
        sorted.seal(&self.transform);
        for run in sorted.to_forward() {
            let counter = if self.bypass.send(run, mark) {
                &self.negotiation.forwarded_sent
            } else {
                &self.negotiation.lost
            };
            count(counter, run.payloads().count());
        }
    }

    /// What has happened since the last batch.
    fn look(&self, machine: &mut Machine, below: Below, now: Instant) {
        let generation = self.bypass.generation();
        if self.generation.swap(generation, Ordering::AcqRel) != generation {
            machine.moved(now);
        }
        if self.heard.swap(false, Ordering::AcqRel) {
            let mut receiving = lock(&self.receiving);
            let at = receiving.at.unwrap_or(now);
            receiving
                .used
                .drain(..)
                .for_each(|id| machine.heard(id, at));
        }
        machine.turn(below, now);
    }

    /// A packet came through the tunnel.
    pub(crate) fn received(&self, packet: &[u8]) {
        let mut machine = lock(&self.machine);
        machine.received(packet, Instant::now());
        self.act(&mut machine);
    }

    /// A capsule came; `Break` if it must not have.
    pub(crate) fn capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        let Ok(capsule) = capsule else {
            return ControlFlow::Break(());
        };
        let mut machine = lock(&self.machine);
        let answer = machine.capsule(&capsule, Instant::now());
        self.act(&mut machine);
        match answer {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    /// The flow above says what its packets will carry. What no QUIC version 1 knows is tunnelled.
    pub(crate) fn announce(&self, end: End, id: &[u8]) {
        let Some(id) = ConnectionId::new(id) else {
            return;
        };
        let mut machine = lock(&self.machine);
        machine.announce(end, id, Instant::now());
        self.act(&mut machine);
    }

    pub(crate) fn withdraw(&self, end: End, id: &[u8]) {
        let Some(id) = ConnectionId::new(id) else {
            return;
        };
        let mut machine = lock(&self.machine);
        machine.withdraw(end, id);
        self.act(&mut machine);
    }

    pub(crate) fn carries_quic(&self) {
        lock(&self.machine).carries_quic();
    }

    /// Nothing answers through the flow: what passes beside the connection may be swallowed. Whether something did.
    pub(crate) fn suspect(&self) -> bool {
        let mut machine = lock(&self.machine);
        let was = machine.suspect(Instant::now());
        self.act(&mut machine);
        was
    }

    /// Whether packets pass beside the connection now.
    pub(crate) fn is_forwarding(&self) -> bool {
        lock(&self.machine).is_forwarding()
    }

    /// The flow ends.
    pub(crate) fn close(&self) {
        let mut machine = lock(&self.machine);
        machine.close();
        self.act(&mut machine);
    }

    /// Does what the machine wants, as far as there is room for capsules.
    fn act(&self, machine: &mut Machine) {
        while let Some(action) = machine.poll_action() {
            match action {
                Action::Send(capsule) => {
                    if !self.send(&capsule) {
                        return machine.undone(Action::Send(capsule));
                    }
                }
                Action::Admit { id, alias } => {
                    let done = self.admit(id, alias);
                    machine.admitted(alias, done, Instant::now());
                }
                Action::Announce(alias) => {
                    self.bypass.announce(End::Target, &alias);
                }
                Action::Release(end, alias) => self.release(end, alias),
            }
        }
    }

    fn send(&self, capsule: &Capsule) -> bool {
        let flow = self.flow.get().and_then(Weak::upgrade);
        flow.is_some_and(|flow| flow.send_capsule(capsule))
    }

    /// "Once a client has sent an ACK_CLIENT_VCID capsule to the proxy, it MUST be prepared to receive".
    fn admit(&self, id: ConnectionId, alias: ConnectionId) -> bool {
        let Some(me) = self.me.upgrade() else {
            return false;
        };
        let done = self.bypass.admit(&alias, &id, me);
        if done {
            self.bypass.announce(End::Client, &alias);
        }
        done
    }

    fn release(&self, end: End, alias: ConnectionId) {
        if end == End::Client
            && let Some(me) = self.me.upgrade()
        {
            let me: Arc<dyn Beside> = me;
            self.bypass.expel(&alias, &me);
        }
        self.bypass.withdraw(end, &alias);
    }
}

impl Sending {
    fn round_trip(&mut self, flow: &Flow) -> Duration {
        let now = Instant::now();
        match self.round_trip {
            Some((at, known)) if now - at < MAX_RTT_AGE => known,
            _ => {
                let measured = flow.round_trip();
                self.round_trip = Some((now, measured));
                measured
            }
        }
    }
}

impl Receiving {
    /// The packet as the target sent it.
    fn keep(&mut self, first: u8, id: &[u8], rest: &[u8]) -> Bytes {
        if self.used.last().is_none_or(|last| &last[..] != id) {
            self.use_id(id);
        }
        let size = 1 + id.len() + rest.len();
        if self.buffer.capacity() < size {
            self.buffer.reserve(BUFFER_SIZE.max(size));
        }
        self.buffer.extend_from_slice(&[first]);
        self.buffer.extend_from_slice(id);
        self.buffer.extend_from_slice(rest);
        self.buffer.split().freeze()
    }

    /// A flow that sends nothing looks at none of them, however many the relay makes: the oldest is forgotten.
    fn use_id(&mut self, id: &[u8]) {
        let new = ConnectionId::new(id).filter(|id| !self.used.contains(id));
        if new.is_some() && self.used.len() >= MOST_USED {
            self.used.remove(0);
        }
        self.used.extend(new);
    }
}

impl Beside for Forwarder {
    /// "When receiving packets, the packet transform is applied before replacing a VCID with a CID."
    fn push(&self, packet: &mut [u8], alias_len: usize, id: &[u8], mark: Option<Ecn>) {
        let opened = self.transform.open(packet, alias_len);
        let (Ok(()), Some(first), Some(rest)) =
            (opened, packet.first(), packet.get(1 + alias_len..))
        else {
            return count(&self.negotiation.lost, 1);
        };
        let mut receiving = lock(&self.receiving);
        self.inbox.push(receiving.keep(*first, id, rest), mark);
        count(&self.negotiation.forwarded_received, 1);
    }

    fn flush(&self) {
        lock(&self.receiving).at = Some(Instant::now());
        self.heard.store(true, Ordering::Release);
        self.inbox.wake();
    }
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Forwarder")
    }
}

/// What the transform needs behind the id.
const SAMPLE: usize = 16;

/// A batch, sorted by the way that its packets take, with their ids replaced; its buffers are used again. It is filled under the machine's lock
/// and sealed outside.
#[derive(Debug, Default)]
pub(super) struct SortedBatch {
    tunnelled: Vec<u8>,
    forwarded: Vec<u8>,
    /// The size of each forwarded packet and of its alias.
    pieces: Vec<(usize, usize)>,
}

impl SortedBatch {
    pub(super) fn clear(&mut self) {
        self.tunnelled.clear();
        self.forwarded.clear();
        self.pieces.clear();
    }

    /// How many packets go forwarded.
    pub(super) fn forwarded(&self) -> usize {
        self.pieces.len()
    }

    /// The next packet, or packets of one size, of the batch are tunnelled.
    pub(super) fn tunnel(&mut self, packets: &[u8]) {
        self.tunnelled.extend_from_slice(packets);
    }

    /// The next packet is forwarded; `false` if it is too short for that.
    pub(super) fn forward(&mut self, packet: &[u8], id_len: usize, alias: ConnectionId) -> bool {
        let Some((first, rest)) = packet.split_first() else {
            return false;
        };
        let Some(rest) = rest.get(id_len..).filter(|rest| rest.len() >= SAMPLE) else {
            return false;
        };
        self.forwarded.push(*first);
        self.forwarded.extend_from_slice(&alias);
        self.forwarded.extend_from_slice(rest);
        let size = 1 + alias.len() + rest.len();
        self.pieces.push((size, alias.len()));
        true
    }

    /// "When sending packets, the packet transform is applied after replacing a CID with a VCID."
    pub(super) fn seal(&mut self, transform: &Transform) {
        let mut rest = &mut self.forwarded[..];
        for (size, id_len) in &self.pieces {
            let Some((packet, after)) = rest.split_at_mut_checked(*size) else {
                return;
            };
            // It is long enough: see `forward`.
            transform.seal(packet, *id_len).ok();
            rest = after;
        }
    }

    /// What is tunnelled: packets of `segment` bytes, the last one maybe shorter.
    pub(super) fn to_tunnel(&self, segment: usize) -> Option<Batch<'_>> {
        let contents = &self.tunnelled[..];
        (!contents.is_empty()).then_some(Batch { contents, segment })
    }

    /// What is forwarded, in batches that one system call can send.
    pub(super) fn to_forward(&self) -> Runs<'_> {
        Runs {
            contents: &self.forwarded,
            pieces: &self.pieces,
        }
    }
}

/// Batches of equal packets, each with a shorter one at its end where there is one.
pub(super) struct Runs<'a> {
    contents: &'a [u8],
    pieces: &'a [(usize, usize)],
}

impl<'a> Iterator for Runs<'a> {
    type Item = Batch<'a>;

    fn next(&mut self) -> Option<Batch<'a>> {
        let (segment, _) = *self.pieces.first()?;
        let (mut bytes, mut count) = (0, 0);
        for (size, _) in self.pieces.iter().take(MOST_SEGMENTS) {
            if *size > segment || bytes + size > MOST_BYTES.max(segment) {
                break;
            }
            bytes += size;
            count += 1;
            if *size < segment {
                break;
            }
        }
        self.pieces = self.pieces.get(count..)?;
        let (contents, rest) = self.contents.split_at_checked(bytes)?;
        self.contents = rest;
        Some(Batch { contents, segment })
    }
}

#[cfg(test)]
mod sorted_tests {
    use super::*;

    fn forwarded(sizes: &[usize]) -> SortedBatch {
        let mut sorted = SortedBatch::default();
        let alias = ConnectionId::new(b"virtually").expect("short");
        for size in sizes {
            assert!(sorted.forward(&vec![7; *size], 8, alias));
        }
        sorted
    }

    fn runs(sizes: &[usize]) -> Vec<(usize, usize)> {
        let sorted = forwarded(sizes);
        let run = |batch: Batch<'_>| (batch.contents.len(), batch.segment);
        sorted.to_forward().map(run).collect()
    }

    #[test]
    fn packets_of_one_size_stay_together_and_a_shorter_one_ends_the_run() {
        let expected = [(3 * 101, 101), (101 + 51, 101), (61, 61), (101, 101)];
        assert_eq!(runs(&[100, 100, 100, 100, 50, 60, 100])[1..], expected[2..]);
        assert_eq!(runs(&[100, 100, 100, 100, 50])[0], (4 * 101 + 51, 101));
    }

    #[test]
    fn a_run_is_no_longer_than_what_one_call_sends() {
        assert_eq!(runs(&[100; 65]), [(64 * 101, 101), (101, 101)]);
        assert_eq!(runs(&[1499; 44]), [(43 * 1500, 1500), (1500, 1500)]);
    }

    #[test]
    fn the_id_is_replaced_and_the_rest_is_kept() {
        let mut sorted = SortedBatch::default();
        let packet: Vec<u8> = (0..40).collect();
        let alias = ConnectionId::new(b"virtually").expect("short");
        assert!(sorted.forward(&packet, 8, alias));
        sorted.seal(&Transform::Identity);
        let expected = [&[0][..], b"virtually", &packet[9..]].concat();
        let runs: Vec<_> = sorted
            .to_forward()
            .map(|run| run.contents.to_vec())
            .collect();
        assert_eq!(runs, [expected]);
    }

    #[test]
    fn a_packet_without_16_bytes_behind_its_id_is_not_forwarded() {
        let alias = ConnectionId::new(b"virtually").expect("short");
        for size in 0..25 {
            let taken = SortedBatch::default().forward(&vec![7; size], 8, alias);
            assert!(!taken, "{size}");
        }
    }
}
