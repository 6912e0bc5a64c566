//! The UDP socket of one shard: what quinn sends is collected into long batches, what arrives comes in long batches (GRO).
//! udp(7) UDP_SEGMENT and UDP_GRO.
//!
//! [`AsyncUdpSocket::try_send`] appends to the batch. A batch that takes no more is sent at once; the rest is sent by the flusher,
//! a task that the first append wakes, so that it runs when the tasks that were ready before it have had their turn.

use std::{
    fmt,
    future::{Future, poll_fn},
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use quinn::{AsyncUdpSocket, UdpPoller};
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::io::Errno;
use tokio::{io::Interest, net::UdpSocket};

use super::divert::{self, Aliases};
use crate::coalesce::{Coalescer, MOST_SEGMENTS, Pushed};

#[cfg(test)]
mod tests;

/// From how many segments on a batch that still grows is worth another round of the runtime: a whole transmit of quinn's.
const BULK_SEGMENTS: usize = 10;

/// What quinn holds. When the last holder has gone, the flusher sends what is left and ends.
#[derive(Debug)]
pub(super) struct CoalescingSocket {
    shared: Arc<Shared>,
    /// Whose packets are not for quinn.
    aliases: Arc<Aliases>,
}

/// What the socket, its pollers, its flusher and those who forward share.
#[derive(Debug)]
pub(super) struct Shared {
    io: UdpSocket,
    receiving: UdpSocketState,
    outgoing: Mutex<Outgoing>,
    /// A copy of what `outgoing` grants, for quinn's question before each transmit.
    most_segments: AtomicUsize,
    /// The kernel's queue is full and a batch waits for it.
    blocked: AtomicBool,
    closed: AtomicBool,
    flusher: AtomicWaker,
}

impl CoalescingSocket {
    /// Takes over a bound socket and starts the flusher on the current runtime.
    pub(super) fn new(socket: std::net::UdpSocket, aliases: Arc<Aliases>) -> io::Result<Arc<Self>> {
        let outgoing = Outgoing::new(&socket)?;
        let shared = Arc::new(Shared {
            receiving: UdpSocketState::new(UdpSockRef::from(&socket))?,
            io: UdpSocket::from_std(socket)?,
            most_segments: AtomicUsize::new(outgoing.most_segments()),
            outgoing: Mutex::new(outgoing),
            blocked: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            flusher: AtomicWaker::new(),
        });
        drop(tokio::spawn(flush_forever(Arc::clone(&shared))));
        Ok(Arc::new(Self { shared, aliases }))
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

impl Drop for CoalescingSocket {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.flusher.wake();
    }
}

impl Shared {
    fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock()
    }

    fn push(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut outgoing = self.outgoing();
        if self.is_blocked() || !outgoing.push(transmit) {
            self.send(&mut outgoing)?;
            // An empty batch takes everything.
            outgoing.push(transmit);
        }
        if outgoing.wants_flusher() {
            drop(outgoing);
            self.flusher.wake();
        }
        Ok(())
    }

    /// Sends at once what is a batch already, behind what was pushed before; what is not joins the batch.
    /// The only error is that the kernel's queue is full: then nothing was taken.
    pub(super) fn pass(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len());
        if transmit.contents.len() < BULK_SEGMENTS * segment {
            return self.push(transmit);
        }
        let mut outgoing = self.outgoing();
        if !outgoing.is_empty() {
            self.send(&mut outgoing)?;
        }
        self.io.try_io(Interest::WRITABLE, || {
            outgoing.send_through(&self.io, transmit)
        })
    }

    /// How many datagrams one call may send.
    pub(super) fn most_segments(&self) -> usize {
        self.most_segments.load(Ordering::Relaxed).max(1)
    }

    fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Acquire)
    }

    /// Sends the batch. The only error is that the kernel's queue is full: then the batch stays.
    fn send(&self, outgoing: &mut Outgoing) -> io::Result<()> {
        let sent = self
            .io
            .try_io(Interest::WRITABLE, || outgoing.send(&self.io));
        self.blocked.store(sent.is_err(), Ordering::Release);
        self.most_segments
            .store(outgoing.most_segments(), Ordering::Relaxed);
        sent
    }

    /// Resolves when no batch waits for the kernel.
    async fn unblocked(&self) -> io::Result<()> {
        while self.is_blocked() {
            self.io.writable().await?;
            drop(self.send(&mut self.outgoing()));
        }
        Ok(())
    }

    /// Waits until there is a batch that no longer grows, and sends it. `false` when the socket was closed and all is gone.
    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<bool> {
        self.flusher.register(cx.waker());
        let closed = self.closed.load(Ordering::Acquire);
        let mut outgoing = self.outgoing();
        if outgoing.is_empty() {
            return if closed {
                Poll::Ready(false)
            } else {
                Poll::Pending
            };
        }
        if outgoing.grew() && outgoing.segments() >= BULK_SEGMENTS && !closed {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        drop(self.send(&mut outgoing));
        Poll::Ready(true)
    }
}

/// The flusher. It ends with its socket, or with the runtime.
async fn flush_forever(shared: Arc<Shared>) {
    while poll_fn(|cx| shared.poll_flush(cx)).await {
        if let Err(error) = shared.unblocked().await {
            tracing::debug!(%error, "the runtime is going");
            return;
        }
    }
}

impl AsyncUdpSocket for CoalescingSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller::new(Arc::clone(&self.shared)))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        // A packet may come from port 0, but nothing can be sent there: the kernel would refuse the whole batch.
        match transmit.destination.port() {
            0 => Ok(()),
            _ => self.shared.push(transmit),
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let Shared { io, receiving, .. } = &*self.shared;
        loop {
            ready!(io.poll_recv_ready(cx))?;
            let received = io.try_io(Interest::READABLE, || {
                receiving.recv(UdpSockRef::from(io), bufs, meta)
            });
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // An error here would end all connections of the shard; none is worth that.
                Err(error) => {
                    tracing::debug!(%error, "receiving failed");
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Ok(count) => {
                    if self.aliases.any() {
                        divert::divert(&self.aliases, bufs, &mut meta[..count]);
                    }
                    return Poll::Ready(Ok(count));
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.shared.io.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.shared.most_segments.load(Ordering::Relaxed)
    }

    fn max_receive_segments(&self) -> usize {
        self.shared.receiving.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.shared.receiving.may_fragment()
    }
}

// The sending half of a shard's socket: the batch, and what the network interface is known to take. udp(7)
// UDP_SEGMENT.

/// After how many refused batches in a row we take it that the interface cannot segment.
const REFUSALS: u32 = 8;

/// The batch and how to send it.
#[derive(Debug)]
struct Outgoing {
    batch: Coalescer,
    state: UdpSocketState,
    /// How many batches in a row were refused although each of their datagrams was taken alone.
    refused: u32,
    /// How many segments the flusher saw; none before the flusher was woken for this batch.
    seen: Option<usize>,
}

impl Outgoing {
    fn new(socket: &std::net::UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(socket))?;
        let mut outgoing = Self {
            batch: Coalescer::default(),
            refused: 0,
            seen: None,
            state,
        };
        outgoing.batch.limit(outgoing.most_segments());
        Ok(outgoing)
    }

    /// How many datagrams one batch may hold.
    fn most_segments(&self) -> usize {
        match self.refused {
            0..REFUSALS => self.state.max_gso_segments().min(MOST_SEGMENTS),
            _ => 1,
        }
    }

    /// Whether the batch took it.
    fn push(&mut self, transmit: &Transmit<'_>) -> bool {
        self.batch.push(transmit) == Pushed::Kept
    }

    fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    fn segments(&self) -> usize {
        self.batch.segments()
    }

    /// Whether the flusher has yet to be woken for this batch; says so once.
    fn wants_flusher(&mut self) -> bool {
        let fresh = self.seen.is_none();
        self.seen.get_or_insert(0);
        fresh
    }

    /// Whether the batch has grown since the flusher last asked.
    fn grew(&mut self) -> bool {
        let now = self.segments();
        self.seen.replace(now) != Some(now)
    }

    /// Sends the batch. The only error is that the kernel's queue is full: then the batch stays.
    /// Whatever else is wrong concerns this batch alone, which UDP may lose.
    fn send(&mut self, socket: &UdpSocket) -> io::Result<()> {
        let Some(transmit) = self.batch.batch() else {
            return Ok(());
        };
        match self.state.try_send(UdpSockRef::from(socket), &transmit) {
            Ok(()) => self.accepted(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            Err(error) => self.recover(socket, &error),
        }
        self.batch.clear();
        self.seen = None;
        Ok(())
    }

    /// Sends a batch that somebody else has made, while there is none of ours. The errors are those of [`Self::send`].
    fn send_through(&mut self, socket: &UdpSocket, transmit: &Transmit<'_>) -> io::Result<()> {
        match self.state.try_send(UdpSockRef::from(socket), transmit) {
            Ok(()) => self.refused = 0,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            Err(error) => {
                self.push(transmit);
                self.recover(socket, &error);
                self.batch.clear();
                self.seen = None;
            }
        }
        Ok(())
    }

    fn accepted(&mut self) {
        if self.segments() > 1 {
            self.refused = 0;
        }
    }

    /// One datagram is lost: a probe of the MTU that is too long, or no route. Of several, those may be sent that are not too long.
    fn recover(&mut self, socket: &UdpSocket, error: &io::Error) {
        tracing::trace!(%error, "a batch was not sent");
        let errno = Errno::from_io_error(error);
        let impossible = matches!(errno, Some(Errno::IO | Errno::INVAL));
        let several = self.segments() > 1;
        if several && (impossible || errno == Some(Errno::MSGSIZE)) && self.send_singly(socket) {
            self.refused += 1;
        }
        if impossible {
            self.renew_state(socket);
        }
        self.batch.limit(self.most_segments());
    }

    /// Whether all were sent: then only their being together was wrong. A full queue loses the rest, as a network would.
    fn send_singly(&self, socket: &UdpSocket) -> bool {
        let Some(transmit) = self.batch.batch() else {
            return true;
        };
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len());
        let sent = transmit.contents.chunks(segment).map(|contents| {
            let single = Transmit {
                contents,
                segment_size: None,
                ..transmit
            };
            self.state.try_send(UdpSockRef::from(socket), &single)
        });
        // Every one of them is tried.
        sent.filter(Result::is_err).count() == 0
    }

    /// The state takes one refusal for a final one, but a peer may cause it (by an address that cannot be answered): we count instead.
    fn renew_state(&mut self, socket: &UdpSocket) {
        match UdpSocketState::new(UdpSockRef::from(socket)) {
            Ok(state) => self.state = state,
            Err(error) => tracing::debug!(%error, "the socket's options cannot be set again"),
        }
    }
}

// Tells one task of quinn's when the socket takes packets again; see [`quinn::UdpPoller`].

type Waiting = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// Costs one look while the kernel takes what is sent.
struct Poller {
    shared: Arc<Shared>,
    /// There is one only while the socket is blocked.
    waiting: Option<Waiting>,
}

impl Poller {
    fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            waiting: None,
        }
    }
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.shared.is_blocked() {
            self.waiting = None;
            return Poll::Ready(Ok(()));
        }
        let shared = Arc::clone(&self.shared);
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(async move { shared.unblocked().await }));
        let polled = waiting.as_mut().poll(cx);
        if polled.is_ready() {
            self.waiting = None;
        }
        polled
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").finish_non_exhaustive()
    }
}
