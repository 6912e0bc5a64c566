//! Streams of bytes like TCP's, over the same links as datagrams: under TLS channels, and between exits and targets.
//!
//! What is modelled: segments of 1,448 bytes with 52 of headers; a handshake of one round trip; acknowledgement of every segment, which names
//! the segment and what has come in order; loss told by three later segments or by a timer (RFC 6298, 200 ms at least); retransmission, and
//! waiting for what is missing before what came after it; slow start from ten segments and CUBIC (RFC 9438); a window of the receiver's.
//! What is not: delayed acknowledgements, pacing, HyStart, tail loss probes, ECN, options, keep-alive.

mod sender;

use std::{
    fmt,
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use hoplite_overlay::{Error, ErrorKind, Reason};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf},
    sync::mpsc,
};

use self::sender::{Next, Receiver, Sender};
use super::{Key, Network, Node, Packet, Payload, Port};

/// The bytes that a segment carries at most.
pub(super) const SEGMENT: usize = 1448;

/// What an IPv4 and a TCP header with time stamps take of a packet.
pub(super) const HEADERS: usize = 52;

/// How many bytes a writer may be ahead of what has been acknowledged.
const SEND_BUFFER: usize = 1 << 20;

/// How many bytes may wait for their reader.
const RECEIVE_BUFFER: u64 = 1 << 20;

/// A segment.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) kind: Kind,
    /// The number of its first byte.
    pub(super) seq: u64,
    pub(super) data: Bytes,
    /// Nothing follows; it has a number of its own.
    pub(super) last: bool,
    /// All before this number has come.
    pub(super) ack: u64,
    /// The segment that this acknowledges.
    pub(super) heard: Option<u64>,
    /// How much may follow `ack`.
    pub(super) window: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Syn,
    SynAck,
    Plain,
    Reset,
}

impl Segment {
    /// What is said where nobody knows of its stream. Resets are not answered.
    pub(super) fn refused(&self) -> Option<Self> {
        (self.kind != Kind::Reset).then(|| Self::bare(Kind::Reset))
    }

    /// One without data.
    pub(super) fn bare(kind: Kind) -> Self {
        Self {
            kind,
            seq: 0,
            data: Bytes::new(),
            last: false,
            ack: 0,
            heard: None,
            window: RECEIVE_BUFFER,
        }
    }
}

// One end of a stream: what comes goes to its two machines, what they have to say goes out at once, and the network wakes it when it was silent
// for too long.

/// SYN is sent again after one second, then two, four, eight.
const SYN_TIMEOUT: Duration = Duration::from_secs(1);

const MAX_SYN_RETRIES: u32 = 4;

struct Connection {
    network: Network,
    here: SocketAddr,
    there: SocketAddr,
    own: Weak<Self>,
    state: Mutex<State>,
}

struct State {
    stage: Stage,
    sender: Sender,
    receiver: Receiver,
    reader: Option<Waker>,
    /// Who writes, or waits for the connection.
    writer: Option<Waker>,
    /// The window that the peer was told last.
    told: u64,
    /// When the network rings next.
    rings: Option<Duration>,
    dropped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// SYN was sent this many times, and again then.
    Asking(u32, Duration),
    Open,
    /// There is nobody there, who could be asked.
    Unreachable,
    /// The peer will have nothing to do with it, or is gone.
    Reset,
}

impl Connection {
    fn new(network: &Network, here: SocketAddr, there: SocketAddr, stage: Stage) -> Arc<Self> {
        let connection = Arc::new_cyclic(|own| Self {
            network: network.clone(),
            here,
            there,
            own: Weak::clone(own),
            state: Mutex::new(State {
                stage,
                sender: Sender::default(),
                receiver: Receiver::default(),
                reader: None,
                writer: None,
                told: RECEIVE_BUFFER,
                rings: None,
                dropped: false,
            }),
        });
        network.open_at(Key::Stream(here, there), connection.clone());
        connection
    }

    /// The end that asks.
    fn ask(network: &Network, here: SocketAddr, there: SocketAddr) -> Arc<Self> {
        let again = network.time() + SYN_TIMEOUT;
        let connection = Self::new(network, here, there, Stage::Asking(1, again));
        connection.say(Segment::bare(Kind::Syn));
        connection.settle(&mut connection.state.lock());
        connection
    }

    /// The end that was asked.
    fn answer(network: &Network, here: SocketAddr, there: SocketAddr) -> Arc<Self> {
        let connection = Self::new(network, here, there, Stage::Open);
        connection.say(Segment::bare(Kind::SynAck));
        connection
    }

    fn say(&self, segment: Segment) {
        self.network.send(Packet {
            from: self.here,
            to: self.there,
            payload: Payload::Tcp(segment),
        });
    }

    /// Sends what may be sent, and has the network ring in time. Called after each change.
    fn settle(&self, state: &mut State) {
        let now = self.network.time();
        let open = state.stage == Stage::Open;
        while let Some(next) = open.then(|| state.sender.next(now)).flatten() {
            let segment = state.carry(next);
            self.say(segment);
        }
        let deadline = match state.stage {
            Stage::Asking(_, again) => Some(again),
            Stage::Open => state.sender.deadline(),
            Stage::Unreachable | Stage::Reset => None,
        };
        if let Some(deadline) = deadline
            && state.rings.is_none_or(|rings| deadline < rings)
            && let Some(own) = self.own.upgrade()
        {
            state.rings = Some(deadline);
            self.network.ring(deadline, own);
        }
        if state.is_over() {
            self.network.close(&Key::Stream(self.here, self.there));
        }
    }

    /// Tells the peer that there is much more room than it knows.
    fn make_room(&self, state: &mut State) {
        let window = state.receiver.window();
        if window >= state.told.saturating_add(RECEIVE_BUFFER / 2) {
            let segment = state.acknowledge(None);
            self.say(segment);
        }
    }

    /// Nobody holds the stream any more.
    fn release(&self) {
        let mut state = self.state.lock();
        state.dropped = true;
        let orderly = state.sender.is_finished() && state.receiver.has_ended();
        if !orderly && state.stage != Stage::Reset {
            self.say(Segment::bare(Kind::Reset));
            state.stage = Stage::Reset;
        }
        self.settle(&mut state);
    }

    fn hear(&self, state: &mut State, segment: Segment) {
        match segment.kind {
            Kind::Reset => state.stage = Stage::Reset,
            // Our answer was lost.
            Kind::Syn => self.say(Segment::bare(Kind::SynAck)),
            Kind::SynAck => state.stage = Stage::Open,
            Kind::Plain => {
                let now = self.network.time();
                let (ack, window) = (segment.ack, segment.window);
                state.sender.acknowledged(ack, segment.heard, window, now);
                if !segment.data.is_empty() || segment.last {
                    let seq = segment.seq;
                    state.receiver.received(seq, segment.data, segment.last);
                    let answer = state.acknowledge(Some(seq));
                    self.say(answer);
                }
            }
        }
    }
}

impl State {
    fn carry(&mut self, next: Next) -> Segment {
        Segment {
            seq: next.seq,
            data: next.data,
            last: next.last,
            ..self.acknowledge(None)
        }
    }

    fn acknowledge(&mut self, heard: Option<u64>) -> Segment {
        self.told = self.receiver.window();
        Segment {
            ack: self.receiver.expected(),
            heard,
            window: self.told,
            ..Segment::bare(Kind::Plain)
        }
    }

    /// Whether nothing of it is needed any more.
    fn is_over(&self) -> bool {
        let ended = self.sender.is_done() && self.receiver.has_ended();
        matches!(self.stage, Stage::Reset | Stage::Unreachable) || (self.dropped && ended)
    }

    fn wake(&mut self) {
        let all = self.stage != Stage::Open;
        if (all || self.receiver.has_some() || self.receiver.has_ended())
            && let Some(reader) = self.reader.take()
        {
            reader.wake();
        }
        if (all || self.sender.has_room())
            && let Some(writer) = self.writer.take()
        {
            writer.wake();
        }
    }

    /// The time has come that the network was to ring at.
    fn ring(&mut self, now: Duration) -> Option<Kind> {
        self.rings = None;
        match self.stage {
            Stage::Asking(times, again) if again <= now => {
                self.stage = match times {
                    MAX_SYN_RETRIES => Stage::Unreachable,
                    _ => Stage::Asking(times + 1, now + SYN_TIMEOUT * (1 << times)),
                };
                (times < MAX_SYN_RETRIES).then_some(Kind::Syn)
            }
            Stage::Open if self.sender.deadline().is_some_and(|at| at <= now) => {
                if !self.sender.silent(now) {
                    self.stage = Stage::Reset;
                }
                None
            }
            _ => None,
        }
    }
}

impl Port for Connection {
    fn receive(&self, packet: Packet) -> bool {
        if let Payload::Tcp(segment) = packet.payload {
            let mut state = self.state.lock();
            self.hear(&mut state, segment);
            self.settle(&mut state);
            state.wake();
        }
        true
    }

    fn ring(&self) {
        let mut state = self.state.lock();
        if let Some(kind) = state.ring(self.network.time()) {
            self.say(Segment::bare(kind));
        }
        self.settle(&mut state);
        state.wake();
    }
}

// Accepts streams at one address of a node.

/// Streams that may wait to be accepted; one more is refused.
const BACKLOG: usize = 4096;

/// Accepts until it is dropped.
pub struct Listener {
    network: Network,
    address: SocketAddr,
    accepted: mpsc::Receiver<(TcpStream, SocketAddr)>,
}

struct ListeningPort {
    network: Network,
    accepted: mpsc::Sender<(TcpStream, SocketAddr)>,
}

impl Listener {
    /// At `address`, which must be one of the network's nodes.
    pub fn at(network: &Network, address: SocketAddr) -> Self {
        let (sender, accepted) = mpsc::channel(BACKLOG);
        let port = ListeningPort {
            network: network.clone(),
            accepted: sender,
        };
        network.open_at(Key::Listener(address), Arc::new(port));
        Self {
            network: network.clone(),
            address,
            accepted,
        }
    }

    /// The next stream, and who asked for it; nothing once the node is gone.
    pub async fn accept(&mut self) -> Option<(TcpStream, SocketAddr)> {
        self.accepted.recv().await
    }
}

impl Port for ListeningPort {
    fn receive(&self, packet: Packet) -> bool {
        let Payload::Tcp(Segment {
            kind: Kind::Syn, ..
        }) = packet.payload
        else {
            return false;
        };
        let Ok(place) = self.accepted.try_reserve() else {
            return false;
        };
        let connection = Connection::answer(&self.network, packet.to, packet.from);
        place.send((TcpStream::of(connection), packet.from));
        true
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.network.close(&Key::Listener(self.address));
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sim::Listener")
    }
}

// A stream as programs have it: dialled here, or accepted from a [`super::Listener`].

/// One end. Dropped before both sides have ended it is reset.
pub struct TcpStream {
    connection: Arc<Connection>,
    current: Bytes,
}

impl TcpStream {
    /// Connects `node` to `there`.
    ///
    /// # Errors
    /// Nobody listens there, or nobody answers within 15 s.
    pub async fn connect(network: &Network, node: Node, there: SocketAddr) -> Result<Self, Error> {
        let here = network.free_address(node);
        let stream = Self::of(Connection::ask(network, here, there));
        let stage = poll_fn(|cx| stream.poll_open(cx)).await;
        let failed = |reason| Error::new(ErrorKind::TargetFailed, "connecting").because(reason);
        match stage {
            Stage::Open => Ok(stream),
            Stage::Reset => Err(failed(Reason::Refused)),
            _ => Err(failed(Reason::HostUnreachable)),
        }
    }

    fn of(connection: Arc<Connection>) -> Self {
        Self {
            connection,
            current: Bytes::new(),
        }
    }

    fn poll_open(&self, cx: &Context<'_>) -> Poll<Stage> {
        let mut state = self.connection.state.lock();
        match state.stage {
            Stage::Asking(..) => {
                state.writer = Some(cx.waker().clone());
                Poll::Pending
            }
            stage => Poll::Ready(stage),
        }
    }

    /// Ready with bytes in `current`, or at the end.
    fn poll_next(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if !self.current.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut state = self.connection.state.lock();
        if let Some(data) = state.receiver.take() {
            self.connection.make_room(&mut state);
            self.current = data;
            return Poll::Ready(Ok(()));
        }
        if state.receiver.has_ended() {
            return Poll::Ready(Ok(()));
        }
        if state.stage != Stage::Open {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let before = buf.filled().len();
        while buf.remaining() > 0 {
            match stream.poll_next(cx) {
                Poll::Ready(Ok(())) if stream.current.is_empty() => break,
                Poll::Ready(Ok(())) => {}
                waiting if buf.filled().len() == before => return waiting,
                _ => break,
            }
            let count = stream.current.len().min(buf.remaining());
            buf.put_slice(&stream.current.split_to(count));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for TcpStream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let stream = self.get_mut();
        ready!(stream.poll_next(cx))?;
        Poll::Ready(Ok(&stream.current))
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        let amt = amt.min(self.current.len());
        self.current.advance(amt);
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.connection.state.lock();
        if state.stage != Stage::Open || state.sender.is_finished() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let taken = state.sender.write(buf);
        if taken == 0 && !buf.is_empty() {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.connection.settle(&mut state);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.connection.state.lock();
        state.sender.finish();
        self.connection.settle(&mut state);
        Poll::Ready(Ok(()))
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.connection.release();
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sim::TcpStream")
    }
}

#[cfg(test)]
mod tests;
