//! A UDP flow of an overlay as the socket of a QUIC endpoint: this is how a hop runs over another.
//! What the connection sends goes down as it is, a batch at a time; what passes beside it waits here while the flow takes nothing.

use std::{
    fmt,
    io::{self, IoSliceMut},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use hoplite_overlay::{Batch, Datagrams, Ecn, Error, ErrorKind, Received};
use hoplite_quic::{
    AsyncUdpSocket,
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

/// After this many batches of which nothing was the connection's own, other tasks get their turn.
const MAX_DIVERTED: usize = 32;

/// Bytes that `hops` tunnels around a packet take of its size: header and tag 17 + 8 bytes of connection id + 3, frame, ids: 48 at most.
pub(crate) const fn overhead(hops: usize) -> usize {
    48 * hops
}

/// The socket. Its flow may end; the endpoint then gets another socket, and its connections move.
pub(crate) struct VirtualSocket {
    flow: Box<dyn Datagrams>,
    beside: Mutex<Out>,
    failure: Mutex<Option<Error>>,
    /// Told once when the flow has ended.
    ended: Arc<Notify>,
    /// Takes the packets that are not the connection's own.
    bypass: Arc<Bypass>,
    /// Told of each packet.
    pulse: Arc<Pulse>,
    /// How many datagrams one receive call may bring.
    segments: usize,
}

/// What passes beside the connection.
#[derive(Default)]
struct Out {
    /// The flow did not take it.
    packets: Coalescer,
    writers: Vec<Waker>,
    /// The endpoint's task, once it has run.
    task: Option<Waker>,
}

impl VirtualSocket {
    /// Wraps `flow`; `ended` is notified when it fails.
    pub(crate) fn new(
        flow: Box<dyn Datagrams>,
        ended: Arc<Notify>,
        bypass: &Arc<Bypass>,
        pulse: &Arc<Pulse>,
        segments: usize,
    ) -> Arc<Self> {
        let socket = Arc::new(Self {
            flow,
            beside: Mutex::default(),
            failure: Mutex::default(),
            ended,
            bypass: Arc::clone(bypass),
            pulse: Arc::clone(pulse),
            segments,
        });
        bypass.attach(&socket);
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

    /// Whether the flow has left something off, because nothing answers through it.
    pub(crate) fn suspect(&self) -> bool {
        self.flow.suspect()
    }

    /// Why the flow ended.
    pub(crate) fn failure(&self) -> Error {
        let ended = || Error::new(ErrorKind::PathFailed, "sending to a relay");
        self.failure.lock().clone().unwrap_or_else(ended)
    }

    fn beside(&self) -> MutexGuard<'_, Out> {
        self.beside.lock()
    }

    /// Hands `batch` down. What is sent into a flow that has ended is lost.
    fn send(&self, batch: Batch<'_>, mark: Option<Ecn>, cx: &mut Context<'_>) -> Poll<bool> {
        if self.failure.lock().is_some() {
            return Poll::Ready(false);
        }
        match ready!(self.flow.poll_send_marked(cx, batch, mark)) {
            Ok(()) => Poll::Ready(true),
            Err(error) => {
                self.lost(error);
                Poll::Ready(false)
            }
        }
    }

    /// Sends packets that are not the connection's, marked so; whether they were taken. What the flow does not take now
    /// waits as a batch of the connection would: [`Self::poll_writable`] tells when there is room again.
    pub(crate) fn send_beside(&self, batch: Batch<'_>, mark: Option<Ecn>) -> bool {
        self.pulse.packet();
        let mut out = self.beside();
        if out.packets.is_empty() {
            let task = out.task.clone();
            let waker = task.as_ref().unwrap_or(Waker::noop());
            match self.send(batch, mark, &mut Context::from_waker(waker)) {
                Poll::Ready(taken) => return taken,
                Poll::Pending => {}
            }
        }
        out.packets.segments() < MOST_SEGMENTS
            && out.packets.push(&transmit(batch, mark)) == Pushed::Kept
    }

    /// Ready when packets are taken.
    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut out = self.beside();
        if out.packets.is_empty() {
            return Poll::Ready(());
        }
        let known = |writer: &Waker| writer.will_wake(cx.waker());
        if !out.writers.iter().any(known) {
            out.writers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// One receive call, without what is not the connection's own, and how the network has marked it. `None`: there is nothing for now.
    fn receive(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Option<(Received, Option<Ecn>)> {
        for _ in 0..MAX_DIVERTED {
            match self.flow.poll_recv_marked(cx, buf) {
                Poll::Ready(Ok((got, mark))) => {
                    self.pulse.hear();
                    let left = self.bypass.divert(buf, got, mark);
                    if left.len > 0 || got.len == 0 {
                        return Some((left, mark));
                    }
                }
                Poll::Ready(Err(error)) => {
                    self.lost(error);
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
    fn lost(&self, error: Error) {
        let mut failure = self.failure.lock();
        if failure.is_none() {
            tracing::debug!(%error, "the flow under a link ended");
            *failure = Some(error);
            self.ended.notify_one();
        }
    }
}

impl AsyncUdpSocket for VirtualSocket {
    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut out = self.beside();
        let known = out.task.as_ref();
        if !known.is_some_and(|known| known.will_wake(cx.waker())) {
            out.task = Some(cx.waker().clone());
        }
        if let Some(batch) = out.packets.batch() {
            let contents = batch.contents;
            let segment = batch.segment_size.unwrap_or(contents.len()).max(1);
            ready!(self.send(Batch { contents, segment }, batch.ecn, cx));
            out.packets.clear();
            out.writers.drain(..).for_each(Waker::wake);
        }
        Poll::Ready(())
    }

    fn poll_send(&self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<io::Result<()>> {
        let contents = transmit.contents;
        let segment = transmit.segment_size.unwrap_or(contents.len()).max(1);
        ready!(self.send(Batch { contents, segment }, transmit.ecn, cx));
        self.pulse.packet();
        Poll::Ready(Ok(()))
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut filled = 0;
        for (buf, meta) in bufs.iter_mut().zip(metas) {
            let Some((got, mark)) = self.receive(cx, buf) else {
                break;
            };
            *meta = received(got, mark);
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

fn transmit(batch: Batch<'_>, mark: Option<Ecn>) -> Transmit<'_> {
    Transmit {
        destination: PEER,
        ecn: mark,
        contents: batch.contents,
        segment_size: (batch.contents.len() > batch.segment).then_some(batch.segment),
        src_ip: None,
    }
}

fn received(got: Received, mark: Option<Ecn>) -> RecvMeta {
    RecvMeta {
        addr: PEER,
        len: got.len,
        stride: got.segment.max(1),
        ecn: mark,
        ..RecvMeta::default()
    }
}

impl fmt::Debug for VirtualSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VirtualSocket")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flow whose packets are the network's.
    #[derive(Debug, Default)]
    struct Network(Arc<Mutex<Vec<Option<Ecn>>>>);

    impl Datagrams for Network {
        fn max_payload(&self) -> usize {
            1452
        }

        fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
            self.poll_send_marked(cx, batch, None)
        }

        fn poll_send_marked(
            &self,
            _: &mut Context<'_>,
            _: Batch<'_>,
            mark: Option<Ecn>,
        ) -> Poll<Result<(), Error>> {
            self.0.lock().push(mark);
            Poll::Ready(Ok(()))
        }

        fn poll_recv(&self, _: &mut Context<'_>, _: &mut [u8]) -> Poll<Result<Received, Error>> {
            Poll::Pending
        }

        fn poll_recv_marked(
            &self,
            _: &mut Context<'_>,
            _: &mut [u8],
        ) -> Poll<Result<(Received, Option<Ecn>), Error>> {
            let (len, segment) = (100, 50);
            Poll::Ready(Ok((Received { len, segment }, Some(Ecn::Ce))))
        }
    }

    #[tokio::test]
    async fn marks_of_congestion_pass_both_ways() {
        let sent = Arc::default();
        let flow = Box::new(Network(Arc::clone(&sent)));
        let socket = VirtualSocket::new(flow, Arc::default(), &Arc::default(), &Pulse::new(), 1);
        let mut cx = Context::from_waker(Waker::noop());
        let packet = transmit(Batch::one(&[7; 100]), Some(Ecn::Ect0));
        assert!(socket.poll_send(&mut cx, &packet).is_ready());
        assert_eq!(*sent.lock(), [Some(Ecn::Ect0)]);
        let (mut room, mut metas) = ([0; 100], [RecvMeta::default()]);
        let received = socket.poll_recv(&mut cx, &mut [IoSliceMut::new(&mut room)], &mut metas);
        assert!(matches!(received, Poll::Ready(Ok(1))));
        assert_eq!(
            (metas[0].len, metas[0].stride, metas[0].ecn),
            (100, 50, Some(Ecn::Ce))
        );
    }
}
