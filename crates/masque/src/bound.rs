//! A flow of bound UDP at the client's end: one address at the last relay for all whom the flows over it are with, and for whoever else writes
//! there. [`Agreed`] is what both ends have agreed on, without I/O; [`BoundTunnel`] moves payloads by it.
//! draft-ietf-masque-connect-udp-listen-13, §3 to §7.
//!
//! We refuse contexts that the relay wants to open, because who matters to the programs behind us is known here.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    net::SocketAddr,
    ops::ControlFlow,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use hoplite_http::{DatagramSink, Flow};
use hoplite_overlay::{Batch, Bound, Datagrams, Error, ErrorKind, Received};
use hoplite_wire::{
    RequestHead,
    bound_udp::{self, Capsule, MAX_HEAD, Malformed, split_peer},
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    connection::{Connection, Lease},
    inbox::Inbox,
};

/// The context of anybody. Those of peers follow.
const ANYBODY: u64 = 2;
/// After so many payloads to a peer it gets a context of its own. "If an endpoint intends to use compression, it SHOULD request it as early as
/// possible"; a question and its answer do not pay for it.
const WORTH_IT: u32 = 4;
/// How many contexts are open at a time.
const MAX_CONTEXTS: usize = 32;
/// How many contexts that were closed are still understood: what the relay sent before it heard of it.
const CLOSED: usize = 64;

/// What both ends have agreed on.
struct Agreed {
    next: u64,
    /// Whose payloads come in a context, and whether the relay has taken it.
    contexts: HashMap<u64, (SocketAddr, bool)>,
    by_peer: HashMap<SocketAddr, u64>,
    closed: VecDeque<(u64, SocketAddr)>,
    /// The relay has refused one: it takes no more, or none of that peer.
    refused: u32,
}

/// The relay broke a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Breach;

impl Agreed {
    fn new() -> Self {
        Self {
            next: ANYBODY + 2,
            contexts: HashMap::new(),
            by_peer: HashMap::new(),
            closed: VecDeque::new(),
            refused: 0,
        }
    }

    /// What stands before a payload to `peer`: its own context as soon as the relay has taken that.
    fn head(&self, peer: SocketAddr) -> Vec<u8> {
        let own = self.by_peer.get(&peer).copied();
        let taken =
            own.filter(|context| self.contexts.get(context).is_some_and(|(_, taken)| *taken));
        match taken {
            Some(context) => bound_udp::head(context, None),
            None => bound_udp::head(ANYBODY, Some(peer)),
        }
    }

    /// Opens a context for a peer, if there is room.
    fn open(&mut self, peer: SocketAddr) -> Option<Capsule> {
        let room = self.contexts.len() < MAX_CONTEXTS && self.refused == 0;
        if !room || self.by_peer.contains_key(&peer) {
            return None;
        }
        let context = self.next;
        self.next += 2;
        self.contexts.insert(context, (peer, false));
        self.by_peer.insert(peer, context);
        Some(Capsule::Assign {
            context,
            peer: Some(peer),
        })
    }

    /// Nothing more is sent to a peer.
    fn close(&mut self, peer: SocketAddr) -> Option<Capsule> {
        let context = self.by_peer.get(&peer).copied()?;
        self.forget(context);
        // Room again.
        self.refused = self.refused.saturating_sub(1);
        Some(Capsule::Close { context })
    }

    fn forget(&mut self, context: u64) {
        let Some((peer, _)) = self.contexts.remove(&context) else {
            return;
        };
        self.by_peer.remove(&peer);
        if self.closed.len() == CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back((context, peer));
    }

    /// The relay has taken a context.
    fn taken(&mut self, context: u64) -> Result<(), Breach> {
        if let Some((_, taken)) = self.contexts.get_mut(&context) {
            *taken = true;
            return Ok(());
        }
        let known = self.closed.iter().any(|(closed, _)| *closed == context);
        if known { Ok(()) } else { Err(Breach) }
    }

    /// The relay has refused or closed one.
    fn closed(&mut self, context: u64) {
        if self.contexts.contains_key(&context) {
            self.refused += 1;
            self.forget(context);
        }
    }

    /// Who sent what came in a context of a peer's.
    fn sender(&self, context: u64) -> Option<SocketAddr> {
        let open = self.contexts.get(&context).map(|(peer, _)| *peer);
        let closed = || {
            let mut closed = self.closed.iter();
            closed
                .find(|(closed, _)| *closed == context)
                .map(|(_, peer)| *peer)
        };
        open.or_else(closed)
    }
}

/// An open flow.
pub(crate) struct BoundTunnel {
    flow: Arc<Flow>,
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    /// Ends with the tunnel: tells the readers that the relay has closed the flow.
    watch: tokio::task::JoinHandle<()>,
    _lease: Lease,
}

/// What the connection's driver, the tunnel and its flows share.
struct Shared {
    /// For the driver, which must not keep it.
    flow: OnceLock<Weak<Flow>>,
    state: Mutex<State>,
    /// Bytes that may wait for one reader.
    queue: usize,
    /// The relay has answered the first capsule.
    answered: Notify,
    stands: AtomicBool,
    over: AtomicBool,
}

struct State {
    agreed: Agreed,
    /// Those that a flow is with.
    peers: HashMap<SocketAddr, Arc<Inbox>>,
    /// What came of others, the sender before the payload.
    others: Others,
}

/// Payloads of those that no flow is with; the newest are dropped.
#[derive(Default)]
struct Others {
    queue: VecDeque<(SocketAddr, Bytes)>,
    bytes: usize,
    reader: Option<Waker>,
}

/// The flow with one peer.
struct With {
    tunnel: Arc<BoundTunnel>,
    peer: SocketAddr,
    inbox: Arc<Inbox>,
    sent: AtomicU32,
}

impl BoundTunnel {
    /// Asks for the flow, and that anybody may write to it.
    pub(crate) async fn open(
        connection: Arc<Connection>,
        head: &RequestHead,
        queue: usize,
    ) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            flow: OnceLock::new(),
            state: Mutex::new(State {
                agreed: Agreed::new(),
                peers: HashMap::new(),
                others: Others::default(),
            }),
            queue,
            answered: Notify::new(),
            stands: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let sink = Arriving(shared.clone());
        let (flow, addresses, lease) = connection.bound(head, Arc::new(sink)).await?;
        drop(shared.flow.set(Arc::downgrade(&flow)));
        let watch = tokio::spawn(tell_end(flow.clone(), shared.clone()));
        let tunnel = Self {
            flow: flow.clone(),
            shared,
            addresses,
            watch,
            _lease: lease,
        };
        let anybody = Capsule::Assign {
            context: ANYBODY,
            peer: None,
        };
        if !flow.send_bound_capsule(&anybody) {
            return Err(closed());
        }
        tokio::select! {
            () = tunnel.shared.answered.notified() => (),
            _ = flow.closed() => (),
        }
        if tunnel.shared.stands.load(Ordering::Relaxed) {
            Ok(tunnel)
        } else {
            Err(closed())
        }
    }
}

async fn tell_end(flow: Arc<Flow>, shared: Arc<Shared>) {
    drop(flow.closed().await);
    shared.end();
}

fn closed() -> Error {
    Error::new(
        ErrorKind::PathFailed,
        "receiving from a relay: it closed the flow",
    )
}

impl Shared {
    fn flow(&self) -> Option<Arc<Flow>> {
        self.flow.get().and_then(Weak::upgrade)
    }

    fn send(&self, capsule: &Capsule) {
        if let Some(flow) = self.flow()
            && !flow.send_bound_capsule(capsule)
        {
            tracing::trace!("a flow of bound UDP ended, or its relay reads no capsules");
        }
    }

    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        let mut state = self.state.lock();
        let peers: Vec<_> = state.peers.values().cloned().collect();
        let reader = state.others.reader.take();
        drop(state);
        peers.iter().for_each(|inbox| inbox.end(closed()));
        reader.into_iter().for_each(Waker::wake);
    }

    fn arrived(&self, peer: SocketAddr, payload: Bytes) {
        let mut state = self.state.lock();
        if let Some(inbox) = state.peers.get(&peer) {
            inbox.push(payload, None);
        } else {
            state.others.push(peer, payload, self.queue);
        }
    }

    fn take(&self, capsule: Capsule) -> Result<(), Breach> {
        match capsule {
            Capsule::Ack { context: ANYBODY } => {
                self.stands.store(true, Ordering::Relaxed);
                self.answered.notify_one();
            }
            Capsule::Close { context: ANYBODY } => {
                self.answered.notify_one();
                self.end();
            }
            Capsule::Ack { context } => self.state.lock().agreed.taken(context)?,
            Capsule::Close { context } => self.state.lock().agreed.closed(context),
            // "If a client receives a COMPRESSION_ASSIGN capsule with the IP Version set to 0, it MUST treat it as malformed."
            Capsule::Assign { peer: None, .. } => return Err(Breach),
            Capsule::Assign { context, .. } if context.is_multiple_of(2) => return Err(Breach),
            Capsule::Assign { context, .. } => self.send(&Capsule::Close { context }),
        }
        Ok(())
    }
}

impl Others {
    fn push(&mut self, peer: SocketAddr, payload: Bytes, most: usize) {
        let cost = payload.len() + MAX_HEAD;
        if self.bytes + cost <= most {
            self.bytes += cost;
            self.queue.push_back((peer, payload));
        }
    }

    fn pop(&mut self) -> Option<(SocketAddr, Bytes)> {
        let (peer, payload) = self.queue.pop_front()?;
        self.bytes -= payload.len() + MAX_HEAD;
        Some((peer, payload))
    }
}

/// Where the connection puts what arrives.
struct Arriving(Arc<Shared>);

impl DatagramSink for Arriving {
    /// "Context ID 0 MUST NOT be used in HTTP Datagrams. If one is received, the recipient MUST abort the request stream."
    fn push(&self, _: Bytes) {
        if let Some(flow) = self.0.flow() {
            flow.reset_for_breach();
        }
        self.0.end();
    }

    fn push_in(&self, context: u64, content: Bytes) -> bool {
        if context == ANYBODY {
            if let Some((peer, payload)) = split_peer(content) {
                self.0.arrived(peer, payload);
            }
            return true;
        }
        let sender = self.0.state.lock().agreed.sender(context);
        match sender {
            Some(peer) => self.0.arrived(peer, content),
            None => return false,
        }
        true
    }

    fn flush(&self) {
        let mut state = self.0.state.lock();
        let peers: Vec<_> = state.peers.values().cloned().collect();
        let others = &mut state.others;
        let reader = (!others.queue.is_empty()).then(|| others.reader.take());
        drop(state);
        peers.iter().for_each(|inbox| inbox.wake_if_any());
        reader.flatten().into_iter().for_each(Waker::wake);
    }

    fn bound_capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        let taken = capsule
            .map_err(|Malformed| Breach)
            .and_then(|capsule| self.0.take(capsule));
        match taken {
            Ok(()) => ControlFlow::Continue(()),
            Err(Breach) => {
                self.0.end();
                ControlFlow::Break(())
            }
        }
    }
}

impl Bound for BoundTunnel {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    fn with(self: Arc<Self>, peer: SocketAddr) -> Box<dyn Datagrams> {
        let inbox = Arc::new(Inbox::new(self.shared.queue));
        self.shared.state.lock().peers.insert(peer, inbox.clone());
        if self.shared.over.load(Ordering::Relaxed) {
            inbox.end(closed());
        }
        Box::new(With {
            tunnel: self,
            peer,
            inbox,
            sent: 0.into(),
        })
    }

    fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<(usize, SocketAddr), Error>> {
        let mut state = self.shared.state.lock();
        while let Some((peer, payload)) = state.others.pop() {
            if let Some(room) = buf.get_mut(..payload.len()) {
                room.copy_from_slice(&payload);
                return Poll::Ready(Ok((payload.len(), peer)));
            }
        }
        if self.shared.over.load(Ordering::Relaxed) {
            return Poll::Ready(Err(closed()));
        }
        state.others.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn is_open(&self) -> bool {
        !self.shared.over.load(Ordering::Relaxed)
    }
}

impl Drop for BoundTunnel {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl With {
    /// What stands before what is sent now.
    fn head(&self, payloads: usize) -> Vec<u8> {
        let count = u32::try_from(payloads).unwrap_or(u32::MAX);
        let before = self.sent.fetch_add(count, Ordering::Relaxed);
        let mut state = self.tunnel.shared.state.lock();
        let asked = if before < WORTH_IT && before.saturating_add(count) >= WORTH_IT {
            state.agreed.open(self.peer)
        } else {
            None
        };
        let head = state.agreed.head(self.peer);
        drop(state);
        asked
            .iter()
            .for_each(|capsule| self.tunnel.shared.send(capsule));
        head
    }
}

impl Datagrams for With {
    /// The same whether the peer has a context of its own or not.
    fn max_payload(&self) -> usize {
        self.tunnel.flow.max_payload().saturating_sub(MAX_HEAD)
    }

    /// What there is no room for is dropped, as on any network: other flows of the tunnel must not wait for this one.
    fn poll_send(&self, _: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        if !self.tunnel.is_open() {
            return Poll::Ready(Err(closed()));
        }
        let head = self.head(batch.payloads().count());
        self.tunnel.flow.send_behind(&head, batch);
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        self.inbox
            .poll_recv(cx, buf)
            .map_ok(|(received, _)| received)
    }
}

impl Drop for With {
    fn drop(&mut self) {
        let mut state = self.tunnel.shared.state.lock();
        let current = state.peers.get(&self.peer);
        if !current.is_some_and(|inbox| Arc::ptr_eq(inbox, &self.inbox)) {
            return;
        }
        state.peers.remove(&self.peer);
        let closed = state.agreed.close(self.peer);
        drop(state);
        closed
            .iter()
            .for_each(|capsule| self.tunnel.shared.send(capsule));
    }
}

impl fmt::Debug for BoundTunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoundTunnel(hidden)")
    }
}

impl fmt::Debug for With {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("With(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    fn open(agreed: &mut Agreed, port: u16) -> u64 {
        match agreed.open(peer(port)) {
            Some(Capsule::Assign { context, .. }) => context,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn a_context_is_used_once_the_relay_has_taken_it_and_understood_after_its_end() {
        let mut agreed = Agreed::new();
        let anybody = bound_udp::head(ANYBODY, Some(peer(1)));
        let context = open(&mut agreed, 1);
        assert_eq!((context, agreed.open(peer(1))), (4, None));
        assert_eq!(agreed.head(peer(1)), anybody);
        assert_eq!(agreed.taken(context), Ok(()));
        assert_eq!(agreed.head(peer(1)), [4]);
        assert_eq!(agreed.sender(4), Some(peer(1)));
        assert_eq!(agreed.close(peer(1)), Some(Capsule::Close { context }));
        assert_eq!(agreed.head(peer(1)), anybody);
        assert_eq!(agreed.sender(4), Some(peer(1)));
        assert_eq!(agreed.taken(context), Ok(()), "it crossed the end");
        assert_eq!(open(&mut agreed, 1), 6, "no number twice");
    }

    #[test]
    fn a_relay_that_takes_what_was_not_asked_breaks_a_rule() {
        let mut agreed = Agreed::new();
        assert_eq!(agreed.taken(4), Err(Breach));
        agreed.closed(4);
        assert_eq!(agreed.sender(4), None);
    }

    #[test]
    fn a_relay_that_refuses_is_asked_again_when_there_is_room() {
        let mut agreed = Agreed::new();
        let first = open(&mut agreed, 1);
        let second = open(&mut agreed, 2);
        agreed.closed(second);
        assert_eq!(agreed.open(peer(3)), None);
        assert_eq!(
            agreed.close(peer(1)),
            Some(Capsule::Close { context: first })
        );
        assert_eq!(open(&mut agreed, 3), 8);
    }

    #[test]
    fn contexts_are_few() {
        let mut agreed = Agreed::new();
        let opened = (1..100).filter(|port| agreed.open(peer(*port)).is_some());
        assert_eq!(opened.count(), MAX_CONTEXTS);
        for port in 1..100 {
            agreed.close(peer(port));
        }
        assert!(agreed.contexts.is_empty() && agreed.by_peer.is_empty());
        assert!(agreed.closed.len() <= CLOSED);
    }
}
