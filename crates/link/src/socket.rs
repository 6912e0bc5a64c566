//! A UDP flow of an overlay as the socket of a QUIC endpoint: this is how a hop runs over another.
//! What the connection sends within one turn of the runtime goes down as one batch: fewer system calls, fewer wake-ups.

use std::{
    fmt,
    io::{self, IoSliceMut},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
};

use hoplite_overlay::{Batch, Datagrams, Error, ErrorKind, Received};
use hoplite_quic::{
    AsyncUdpSocket, UdpPoller,
    coalesce::{Coalescer, MOST_SEGMENTS, Pushed},
    liveness::Pulse,
    udp::{RecvMeta, Transmit},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::bypass::Bypass;

/// Each endpoint has one peer, at the other end of its flow; the QUIC stack wants an address for it (RFC 5737).
pub(crate) const PEER: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 443));
const SELF: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 2), 443));

/// What quinn hands over in one call at most: a batch of no more has just begun.
const MAX_TRANSMIT: usize = 10;

/// After this many batches of which nothing was the connection's own, other tasks get their turn.
const MAX_DIVERTED: usize = 32;

/// Bytes that `hops` tunnels around a packet take of its size: header and tag 17 + 8 bytes of connection id + 3, frame, ids: 48 at most.
pub(crate) const fn overhead(hops: usize) -> usize {
    48 * hops
}

/// The socket. Its flow may end; the endpoint then gets another socket, and its connections move.
pub(crate) struct VirtualSocket {
    flow: Box<dyn Datagrams>,
    out: Mutex<Out>,
    /// Told once when the flow has ended.
    ended: Arc<Notify>,
    /// Takes the packets that are not the connection's own.
    bypass: Arc<Bypass>,
    /// Told of each packet.
    pulse: Arc<Pulse>,
    /// How many datagrams one receive call may bring.
    segments: usize,
}

#[derive(Default)]
struct Out {
    packets: Coalescer,
    /// How many packets the flusher saw when it last looked.
    seen: usize,
    /// The flow did not take the batch: nothing more is accepted until it does.
    blocked: bool,
    writers: Vec<Waker>,
    /// The flushing task, once it has run.
    flusher: Option<Waker>,
    failure: Option<Error>,
}

impl VirtualSocket {
    /// Wraps `flow`; `ended` is notified when it fails. The flushing task ends with the socket.
    pub(crate) fn new(
        flow: Box<dyn Datagrams>,
        ended: Arc<Notify>,
        bypass: &Arc<Bypass>,
        pulse: &Arc<Pulse>,
        segments: usize,
    ) -> Arc<Self> {
        let socket = Arc::new(Self {
            flow,
            out: Mutex::default(),
            ended,
            bypass: Arc::clone(bypass),
            pulse: Arc::clone(pulse),
            segments,
        });
        bypass.attach(&socket);
        tokio::spawn(flush_on_demand(Arc::downgrade(&socket)));
        socket
    }

    /// What it runs over.
    pub(crate) fn flow(&self) -> &dyn Datagrams {
        &*self.flow
    }

    /// Whether the device has moved since the flow was opened.
    pub(crate) fn moved(&self) -> bool {
        self.flow.moved()
    }

    /// Why the flow ended.
    pub(crate) fn failure(&self) -> Error {
        let ended = || Error::new(ErrorKind::PathFailed, "sending to a relay");
        self.out().failure.clone().unwrap_or_else(ended)
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock()
    }

    /// Hands the batch down. Afterwards the outbox is empty, or blocked until the flow wakes `cx`.
    fn flush(&self, out: &mut Out, cx: &mut Context<'_>) {
        let Some(batch) = out.packets.batch() else {
            return;
        };
        let contents = batch.contents;
        let segment = batch.segment_size.unwrap_or(contents.len()).max(1);
        if out.failure.is_none() {
            match self.flow.poll_send(cx, Batch { contents, segment }) {
                Poll::Pending => {
                    out.blocked = true;
                    return;
                }
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => self.lost(out, error),
            }
        }
        out.packets.clear();
        out.seen = 0;
        out.blocked = false;
        out.writers.drain(..).for_each(Waker::wake);
    }

    /// Sends packets that are not the connection's, behind what waits; whether they were taken. What the flow does not take now
    /// waits as a batch of the connection would: [`Self::poll_writable`] tells when there is room again.
    pub(crate) fn send_beside(&self, batch: Batch<'_>) -> bool {
        self.pulse.packet();
        let mut out = self.out();
        if !out.blocked {
            self.flush_now(&mut out);
        }
        if out.failure.is_some() || (out.blocked && out.packets.segments() >= MOST_SEGMENTS) {
            return false;
        }
        if !out.blocked {
            let flusher = out.flusher.clone();
            let waker = flusher.as_ref().unwrap_or(Waker::noop());
            match self.flow.poll_send(&mut Context::from_waker(waker), batch) {
                Poll::Ready(Ok(())) => return true,
                Poll::Ready(Err(error)) => {
                    self.lost(&mut out, error);
                    return false;
                }
                Poll::Pending => out.blocked = true,
            }
        }
        out.packets.push(&transmit(batch)) == Pushed::Kept
    }

    /// Ready when the outbox takes packets.
    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut out = self.out();
        if !out.blocked {
            return Poll::Ready(());
        }
        let known = |writer: &Waker| writer.will_wake(cx.waker());
        if !out.writers.iter().any(known) {
            out.writers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// One receive call, without what is not the connection's own. `None`: there is nothing for now.
    fn receive(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Option<Received> {
        for _ in 0..MAX_DIVERTED {
            match self.flow.poll_recv(cx, buf) {
                Poll::Ready(Ok(got)) => {
                    self.pulse.hear();
                    let left = self.bypass.divert(buf, got);
                    if left.len > 0 || got.len == 0 {
                        return Some(left);
                    }
                }
                Poll::Ready(Err(error)) => {
                    self.lost(&mut self.out(), error);
                    return None;
                }
                Poll::Pending => return None,
            }
        }
        cx.waker().wake_by_ref();
        None
    }

    /// What the flow says when it ends is no error of the socket: the connection waits for another one.
    /// Said once: the endpoint still listens to a socket that has been replaced.
    fn lost(&self, out: &mut Out, error: Error) {
        if out.failure.is_some() {
            return;
        }
        tracing::debug!(%error, "the flow under a link ended");
        out.failure = Some(error);
        self.ended.notify_one();
    }

    /// One wake-up for a batch: its first packet asks.
    fn ask_for_flush(&self, out: &Out) {
        if out.packets.segments() <= MAX_TRANSMIT
            && let Some(flusher) = &out.flusher
        {
            flusher.wake_by_ref();
        }
    }

    fn flush_now(&self, out: &mut Out) {
        let flusher = out.flusher.clone();
        let waker = flusher.as_ref().unwrap_or(Waker::noop());
        self.flush(out, &mut Context::from_waker(waker));
    }

    fn poll_flush(&self, cx: &mut Context<'_>) {
        let mut out = self.out();
        if !out
            .flusher
            .as_ref()
            .is_some_and(|known| known.will_wake(cx.waker()))
        {
            out.flusher = Some(cx.waker().clone());
        }
        if out.still_grows() {
            cx.waker().wake_by_ref();
            return;
        }
        self.flush(&mut out, cx);
    }
}

impl Out {
    /// Whether the batch is bulk and grew since the last look: the connection's task yields every 20 packets, and has more.
    fn still_grows(&mut self) -> bool {
        let now = self.packets.segments();
        let before = std::mem::replace(&mut self.seen, now);
        !self.blocked && now >= MAX_TRANSMIT && now > before
    }
}

/// Runs after the connection's task has yielded, so that all it had to send is in the outbox.
async fn flush_on_demand(socket: Weak<VirtualSocket>) {
    std::future::poll_fn(|cx| match socket.upgrade() {
        Some(socket) => {
            socket.poll_flush(cx);
            Poll::<()>::Pending
        }
        None => Poll::Ready(()),
    })
    .await;
}

impl Drop for VirtualSocket {
    fn drop(&mut self) {
        if let Some(flusher) = self.out().flusher.take() {
            flusher.wake();
        }
    }
}

impl AsyncUdpSocket for VirtualSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable(self))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.pulse.packet();
        let mut out = self.out();
        if !out.blocked && out.packets.push(transmit) == Pushed::Kept {
            self.ask_for_flush(&out);
            return Ok(());
        }
        self.flush_now(&mut out);
        if out.blocked || out.packets.push(transmit) == Pushed::Full {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.ask_for_flush(&out);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut filled = 0;
        for (buf, meta) in bufs.iter_mut().zip(metas) {
            let Some(got) = self.receive(cx, buf) else {
                break;
            };
            *meta = received(got.len, got.segment);
            filled += 1;
        }
        if filled == 0 {
            Poll::Pending
        } else {
            Poll::Ready(Ok(filled))
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SELF)
    }

    fn max_transmit_segments(&self) -> usize {
        MOST_SEGMENTS
    }

    fn max_receive_segments(&self) -> usize {
        self.segments.max(1)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

fn transmit(batch: Batch<'_>) -> Transmit<'_> {
    Transmit {
        destination: PEER,
        ecn: None,
        contents: batch.contents,
        segment_size: (batch.contents.len() > batch.segment).then_some(batch.segment),
        src_ip: None,
    }
}

fn received(len: usize, segment: usize) -> RecvMeta {
    RecvMeta {
        addr: PEER,
        len,
        stride: segment.max(1),
        ..RecvMeta::default()
    }
}

/// Wakes a connection when the outbox takes packets again.
#[derive(Debug)]
struct Writable(Arc<VirtualSocket>);

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_writable(cx).map(Ok)
    }
}

impl fmt::Debug for VirtualSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VirtualSocket")
    }
}
