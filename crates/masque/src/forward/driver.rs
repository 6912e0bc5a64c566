//! Drives a flow's [`Machine`]: sorts what is sent, restores what is received, sends its capsules.
//! A tunnel has one if the relay agreed to forward; the link gives it the packets under its aliases.
//!
//! Locks are taken from the flow above to the flow below only. A capsule that finds no room waits for the next packet.

use std::{
    fmt,
    ops::ControlFlow,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use hoplite_crypto::Transform;
use hoplite_http::{Flow, HttpError};
use hoplite_link::{Beside, Bypass};
use hoplite_overlay::{Batch, End};
use hoplite_wire::forwarding::{Capsule, Malformed};
use tokio::time::Instant;

use super::{
    Action, Below, ConnectionId, Machine, Route,
    bargain::{Bargain, count},
    sorted::Sorted,
};
use crate::inbox::Inbox;

/// What is received is kept in pieces of a buffer of so many octets.
const PIECE: usize = 16 * 1024;
/// How old the link's round trip may be.
const FRESH: Duration = Duration::from_millis(500);

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
    bargain: Arc<Bargain>,
    flow: OnceLock<Weak<Flow>>,
}

#[derive(Default)]
struct Sending {
    sorted: Sorted,
    round_trip: Option<(Instant, Duration)>,
}

#[derive(Default)]
struct Receiving {
    buffer: BytesMut,
    /// Under which ids packets came since the last look, each once; and when last.
    used: Vec<ConnectionId>,
    at: Option<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Forwarder {
    pub(crate) fn new(
        transform: Transform,
        bypass: &Arc<Bypass>,
        inbox: &Arc<Inbox>,
        bargain: &Arc<Bargain>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            machine: Mutex::new(Machine::new(bargain.wanted.ids)),
            sending: Mutex::default(),
            receiving: Mutex::default(),
            transform,
            generation: AtomicU64::new(bypass.generation()),
            bypass: bypass.clone(),
            heard: AtomicBool::new(false),
            inbox: inbox.clone(),
            bargain: bargain.clone(),
            flow: OnceLock::new(),
        })
    }

    /// Its capsules go through `flow`.
    pub(crate) fn attach(&self, flow: &Arc<Flow>) {
        flow.carry_forwarded();
        self.flow.get_or_init(|| Arc::downgrade(flow));
        self.act(&mut lock(&self.machine));
    }

    /// Sends a batch, each packet its way: the whole, or nothing and wakes later.
    pub(crate) fn poll_send(
        &self,
        cx: &mut Context<'_>,
        flow: &Flow,
        batch: Batch<'_>,
    ) -> Poll<Result<(), HttpError>> {
        let mut sending = lock(&self.sending);
        let round_trip = sending.round_trip(flow);
        let sorted = &mut sending.sorted;
        ready!(self.poll_sort(cx, sorted, batch, flow, round_trip));
        let all = batch.payloads().count();
        if sorted.forwarded() == 0 {
            ready!(flow.poll_send(cx, batch))?;
            self.bargain.sent_tunnelled(all);
            return Poll::Ready(Ok(()));
        }
        if let Some(tunnelled) = sorted.to_tunnel(batch.segment) {
            ready!(flow.poll_send(cx, tunnelled))?;
        }
        self.bargain.sent_tunnelled(all - sorted.forwarded());
        self.send_forwarded(sorted);
        Poll::Ready(Ok(()))
    }

    /// Looks at every packet, if the way beside the connection is free where it may be taken.
    fn poll_sort(
        &self,
        cx: &mut Context<'_>,
        sorted: &mut Sorted,
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

    fn send_forwarded(&self, sorted: &mut Sorted) {
        sorted.seal(&self.transform);
        for run in sorted.to_forward() {
            let counter = match self.bypass.send(run) {
                true => &self.bargain.forwarded_sent,
                false => &self.bargain.lost,
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
                    self.bypass.announce(End::Target, alias.octets());
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
        let done = self.bypass.admit(alias.octets(), id.octets(), me);
        if done {
            self.bypass.announce(End::Client, alias.octets());
        }
        done
    }

    fn release(&self, end: End, alias: ConnectionId) {
        if end == End::Client
            && let Some(me) = self.me.upgrade()
        {
            let me: Arc<dyn Beside> = me;
            self.bypass.expel(alias.octets(), &me);
        }
        self.bypass.withdraw(end, alias.octets());
    }
}

impl Sending {
    fn round_trip(&mut self, flow: &Flow) -> Duration {
        let now = Instant::now();
        match self.round_trip {
            Some((at, known)) if now - at < FRESH => known,
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
        if self.used.last().is_none_or(|last| last.octets() != id) {
            self.use_id(id);
        }
        let size = 1 + id.len() + rest.len();
        if self.buffer.capacity() < size {
            self.buffer.reserve(PIECE.max(size));
        }
        self.buffer.extend_from_slice(&[first]);
        self.buffer.extend_from_slice(id);
        self.buffer.extend_from_slice(rest);
        self.buffer.split().freeze()
    }

    /// There are no more than rules.
    fn use_id(&mut self, id: &[u8]) {
        let new = ConnectionId::new(id).filter(|id| !self.used.contains(id));
        self.used.extend(new);
    }
}

impl Beside for Forwarder {
    /// "When receiving packets, the packet transform is applied before replacing a VCID with a CID."
    fn push(&self, packet: &mut [u8], alias_len: usize, id: &[u8]) {
        let opened = self.transform.open(packet, alias_len);
        let (Ok(()), Some(first), Some(rest)) =
            (opened, packet.first(), packet.get(1 + alias_len..))
        else {
            return count(&self.bargain.lost, 1);
        };
        let mut receiving = lock(&self.receiving);
        self.inbox.push(receiving.keep(*first, id, rest));
        count(&self.bargain.forwarded_received, 1);
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
