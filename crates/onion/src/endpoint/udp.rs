//! One UDP stream at one end of a circuit: datagrams that wait to be sent and to be read, as DATAGRAM messages have them. [`super::Endpoint`]
//! owns it; programs and targets hold a [`UdpHandle`]. Proposal 339; `hoplite_wire::cell::datagram` says how a datagram is cut.
//!
//! Circuits lose nothing and change no order, and DATAGRAM counts to their windows as DATA does. There is no window of the stream: what its
//! reader does not take is dropped, at the last place where it waits, and nobody is told to wait for it.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fmt,
    future::poll_fn,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{BufMut, BytesMut};
use hoplite_overlay::{Batch, Datagrams, Error, Received};
use hoplite_wire::{
    Target,
    cell::{
        BODY, Malformed,
        datagram::{self, FULL, LARGEST},
        relay::{
            ConnectUdp, ConnectedUdp, End, EndReason, Flags, Format, Message, RelayCommand,
            StreamId,
        },
    },
};
use tokio::time::timeout;

use super::{
    Broken, Coming, Endpoint, Late,
    io::Shared,
    stream::{Produced, Share, Sum, wake},
};
use crate::failure;

/// The largest payload that a client sends: the exit's path to the target has that much with IPv6 over Ethernet.
const MAX_PAYLOAD: usize = 1452;
/// Datagrams of one stream that wait for its reader, and their bytes; the next is dropped.
const WAITING: usize = 512;
const HELD: usize = 512 << 10;
/// What stands for an address that is not said.
pub(crate) const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Not quite a [`super::Stream`]: it has datagrams, no window, and one end for both directions.
#[derive(Debug)]
pub(super) struct UdpStream {
    at_exit: bool,
    answer: Option<Result<(), Error>>,
    /// Bytes of a body's header.
    header: usize,
    /// Bodies with room for it; datagrams are all there, or not at all.
    sending: VecDeque<BytesMut>,
    queued: Share,
    /// What has come of a datagram that goes on.
    part: Vec<u8>,
    /// It is too much: what is still to come of it is dropped, too.
    skips: bool,
    waiting: VecDeque<Vec<u8>>,
    held: Share,
    dropped: u64,
    in_turn: bool,
    ended: Option<End>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl UdpStream {
    /// `held` and `queued` are its shares of what waits.
    fn new(at_exit: bool, format: Format, [held, queued]: [Share; 2]) -> Self {
        Self {
            at_exit,
            header: format.header(RelayCommand::DATAGRAM),
            answer: None,
            sending: VecDeque::new(),
            queued,
            part: Vec::new(),
            skips: false,
            waiting: VecDeque::new(),
            held,
            dropped: 0,
            in_turn: false,
            ended: None,
            reader: None,
            writer: None,
        }
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answer.is_some()
    }

    pub(super) fn answer(&mut self, answer: Result<(), Error>) {
        self.answer = Some(answer);
        self.wake();
    }

    /// A DATAGRAM message has come; with no `room` in all streams its datagram is dropped.
    fn receive(&mut self, data: &[u8], room: bool) -> Result<(), Broken> {
        if data.len() > FULL {
            return Err(Malformed("DATAGRAM").into());
        }
        if self.ended.is_some() {
            return Err(Broken::Unexpected(RelayCommand::DATAGRAM));
        }
        let fits = room
            && self.waiting.len() < WAITING
            && self.held.own() + data.len() <= HELD
            && self.part.len() + data.len() <= LARGEST;
        self.skips |= !fits;
        if self.skips {
            self.held.take(self.part.len());
            self.part = Vec::new();
        } else {
            self.part.extend_from_slice(data);
            self.held.add(data.len());
        }
        if data.len() < FULL {
            self.complete();
        }
        Ok(())
    }

    fn complete(&mut self) {
        let datagram = std::mem::take(&mut self.part);
        if std::mem::take(&mut self.skips) {
            self.dropped += 1;
        } else {
            self.waiting.push_back(datagram);
            wake(&mut self.reader);
        }
    }

    /// As many payloads of one size as fit; those that are larger than `buf` are dropped.
    fn fetch(&mut self, buf: &mut [u8]) -> Option<Received> {
        let segment = loop {
            let first = self.waiting.front()?.len();
            if first <= buf.len() {
                break first;
            }
            self.held.take(first);
            self.waiting.pop_front();
            self.dropped += 1;
        };
        let (mut rest, mut len) = (buf, 0);
        while let Some(next) = self.waiting.front()
            && next.len() <= segment
            && next.len() <= rest.len()
            && (len == 0 || !next.is_empty())
        {
            let payload = self.waiting.pop_front().unwrap_or_default();
            self.held.take(payload.len());
            rest.put_slice(&payload);
            len += payload.len();
            if payload.is_empty() || payload.len() < segment {
                break;
            }
        }
        Some(Received { len, segment })
    }

    /// Takes all payloads, or none if as many cells wait as may.
    fn send(&mut self, batch: Batch<'_>, most: usize) -> bool {
        if self.sending.len() >= most {
            return false;
        }
        for payload in batch.payloads() {
            if payload.len() > LARGEST {
                self.dropped += 1;
            } else {
                self.cut(payload);
            }
        }
        true
    }

    fn cut(&mut self, payload: &[u8]) {
        let (mut rest, mut more) = (payload, true);
        while more {
            let (now, later) = rest.split_at(rest.len().min(FULL));
            let mut body = BytesMut::with_capacity(BODY);
            body.resize(self.header, 0);
            body.extend_from_slice(now);
            self.sending.push_back(body);
            self.queued.add(1);
            (rest, more) = (later, now.len() == FULL);
        }
    }

    pub(super) fn produce(&mut self, may_send: bool) -> Produced {
        // An exit sends nothing before CONNECTED_UDP.
        if self.sending.is_empty() || (self.at_exit && self.answer.is_none()) {
            return Produced::Nothing;
        }
        if !may_send {
            return Produced::Later;
        }
        let Some(body) = self.sending.pop_front() else {
            return Produced::Nothing;
        };
        self.queued.take(1);
        wake(&mut self.writer);
        Produced::Cell(body, !self.sending.is_empty())
    }

    /// The peer has ended it.
    pub(super) fn end(&mut self, end: End) {
        if self.answer.is_none() && !self.at_exit {
            self.answer = Some(Err(failure::ended(end.reason)));
        }
        self.ended = Some(end);
        self.close();
    }

    /// Nothing more is sent.
    pub(super) fn close(&mut self) {
        self.sending.clear();
        self.queued.take(usize::MAX);
        self.wake();
    }

    pub(super) fn ended(&self) -> Option<End> {
        self.ended
    }

    /// Whether it was not in the turn already.
    pub(super) fn enter_turn(&mut self) -> bool {
        !std::mem::replace(&mut self.in_turn, true)
    }

    pub(super) fn leave_turn(&mut self) {
        self.in_turn = false;
    }

    pub(super) fn queues_nothing(&self) -> bool {
        self.sending.is_empty()
    }

    pub(super) fn owned(&self) -> usize {
        let sending: usize = self.sending.iter().map(BytesMut::capacity).sum();
        let waiting: usize = self.waiting.iter().map(Vec::capacity).sum();
        let queues = self.sending.capacity() * size_of::<BytesMut>()
            + self.waiting.capacity() * size_of::<Vec<u8>>();
        size_of::<Self>() + sending + waiting + queues + self.part.capacity()
    }

    fn wake(&mut self) {
        wake(&mut self.reader);
        wake(&mut self.writer);
    }
}

// UDP streams of a circuit's end.

impl Endpoint {
    /// Opens a UDP stream (client); the answer is polled by [`UdpHandle`].
    ///
    /// # Errors
    /// The circuit has closed, or has too many streams.
    pub fn connect_udp(&mut self, target: &Target, flags: Flags) -> Result<StreamId, Error> {
        let target = target.clone();
        self.ask_for_udp(&Message::ConnectUdp(ConnectUdp { target, flags }))
    }

    /// Opens a UDP stream to a port of the onion service that is met (client).
    ///
    /// # Errors
    /// As [`Self::connect_udp`].
    pub fn connect_udp_port(&mut self, port: u16) -> Result<StreamId, Error> {
        let mut data = Vec::new();
        datagram::write_port(port, &mut data);
        self.ask_for_udp(&Message::Unknown(RelayCommand::CONNECT_UDP, &data))
    }

    fn ask_for_udp(&mut self, message: &Message<'_>) -> Result<StreamId, Error> {
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        let id = self.free_id().ok_or_else(failure::too_many_streams)?;
        self.add_udp(id);
        self.say(id, message);
        Ok(id)
    }

    pub(super) fn add_udp(&mut self, id: StreamId) {
        let shares = [&self.held, &self.sending].map(Sum::share);
        let stream = UdpStream::new(self.role.is_asked(), self.legs.format(), shares);
        self.udp.insert(id.0, stream);
    }

    /// The target's socket is there (exit), or the local server's (onion service): so the client is told.
    pub fn connected_udp(&mut self, id: StreamId, target: SocketAddr) {
        let Some(stream) = self.udp.get_mut(&id.0) else {
            return;
        };
        stream.answer(Ok(()));
        // Which of its addresses datagrams leave from is the relay's affair.
        let own = NOWHERE;
        let connected = ConnectedUdp { own, target };
        self.say(id, &Message::ConnectedUdp(connected));
        self.take_turn(id);
    }

    pub(super) fn datagram(&mut self, id: StreamId, data: &[u8]) -> Result<(), Broken> {
        let at_client = !self.role.is_asked();
        let room = self.held.total() <= self.limits.held;
        let Some(stream) = self.udp.get_mut(&id.0) else {
            return self.stray(id, Late::data);
        };
        if at_client && !stream.is_answered() {
            return Err(Broken::Unexpected(RelayCommand::DATAGRAM));
        }
        stream.receive(data, room)
    }

    fn drop_udp(&mut self, id: StreamId) {
        self.waits_no_more(id.0);
        let Some(stream) = self.udp.remove(&id.0) else {
            return;
        };
        if !self.role.is_asked() {
            let coming = self.legs.coming(self.handled);
            self.remember(id, Late::of_udp(&stream, coming));
        }
        if stream.ended.is_none() && self.closed.is_none() {
            let reason = if self.role.is_asked() {
                EndReason::DONE
            } else {
                // tor-spec "Closing streams": a client "SHOULD NOT" give another reason.
                EndReason::MISC
            };
            self.say(id, &Message::End(End::new(reason)));
        }
        self.wake();
    }
}

impl Late {
    /// What may still come on `stream`, which is ended now.
    fn of_udp(stream: &UdpStream, circuit: Coming) -> Self {
        Self {
            outgoing: None,
            window: stream.ended.map(|_| 0),
            until: circuit.handled.saturating_add(circuit.under_way),
            is_asked: !stream.is_answered(),
            ends: u8::from(stream.ended.is_none()),
        }
    }
}

/// One UDP stream, for who has opened it or was asked for it. Dropped, it ends.
pub struct UdpHandle {
    shared: Arc<Shared>,
    id: StreamId,
    /// What ends with it.
    _held: Option<Box<dyn Send + Sync>>,
}

impl UdpHandle {
    /// The handle of a stream that has just been opened, or asked for. There is one for each.
    pub fn new(shared: &Arc<Shared>, id: StreamId) -> Self {
        Self {
            shared: Arc::clone(shared),
            id,
            _held: None,
        }
    }

    /// Keeps something as long as the stream: a place among others.
    #[must_use]
    pub fn holding(mut self, held: impl Send + Sync + 'static) -> Self {
        self._held = Some(Box::new(held));
        self
    }

    /// Which stream it is.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The far end's answer.
    pub fn poll_said(&self, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        let mut endpoint = self.shared.lock();
        let closed = endpoint.closed().cloned();
        let Some(stream) = endpoint.udp.get_mut(&self.id.0) else {
            return Poll::Ready(Err(failure::gone()));
        };
        match (&stream.answer, closed) {
            (Some(said), _) => Poll::Ready(said.clone()),
            (None, Some(error)) => Poll::Ready(Err(error)),
            (None, None) => {
                stream.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Datagrams that were dropped because nobody took them, or were too large.
    pub fn dropped(&self) -> u64 {
        let endpoint = self.shared.lock();
        endpoint
            .udp
            .get(&self.id.0)
            .map_or(0, |stream| stream.dropped)
    }
}

impl Datagrams for UdpHandle {
    fn max_payload(&self) -> usize {
        MAX_PAYLOAD
    }

    fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        let endpoint = &mut *self.shared.lock();
        if let Some(error) = endpoint.closed() {
            return Poll::Ready(Err(error.clone()));
        }
        let most = endpoint.may_queue();
        let Some(stream) = endpoint.udp.get_mut(&self.id.0) else {
            return Poll::Ready(Err(failure::gone()));
        };
        if let Some(end) = stream.ended {
            return Poll::Ready(Err(failure::ended(end.reason)));
        }
        if !stream.send(batch, most) {
            stream.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        endpoint.take_turn(self.id);
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        let mut endpoint = self.shared.lock();
        let closed = endpoint.closed().cloned();
        let Some(stream) = endpoint.udp.get_mut(&self.id.0) else {
            return Poll::Ready(Err(failure::gone()));
        };
        if let Some(received) = stream.fetch(buf) {
            return Poll::Ready(Ok(received));
        }
        match (stream.ended, closed) {
            (Some(end), _) => Poll::Ready(Err(failure::ended(end.reason))),
            (None, Some(error)) => Poll::Ready(Err(error)),
            (None, None) => {
                stream.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for UdpHandle {
    fn drop(&mut self) {
        self.shared.lock().drop_udp(self.id);
    }
}

impl fmt::Debug for UdpHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("onion::UdpHandle")
    }
}

// Between a UDP stream and a socket.

/// What one receive call may bring.
const BUFFER: usize = 65_536;
/// Receive calls of one direction before the other has its turn.
const BATCHES: usize = 16;

thread_local! {
    /// Shared by all UDP streams of a thread: what was received is passed on before anybody else may run.
    static RECEIVED: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Both directions, until one ends or nothing has passed for `idle`. What the other side does not take at once is dropped.
///
/// # Errors
/// Of the one that has ended.
pub async fn carry(
    one: &dyn Datagrams,
    other: &dyn Datagrams,
    idle: Duration,
) -> Result<(), Error> {
    let mut moving = true;
    while moving {
        let moved =
            poll_fn(|cx| RECEIVED.with_borrow_mut(|buffer| poll_move(cx, one, other, buffer)));
        moving = match timeout(idle, moved).await {
            Ok(moved) => moved.map(|()| true)?,
            Err(_) => false,
        };
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Ready when something has passed.
fn poll_move(
    cx: &mut Context<'_>,
    one: &dyn Datagrams,
    other: &dyn Datagrams,
    buffer: &mut [u8],
) -> Poll<Result<(), Error>> {
    let mut moved = false;
    for (from, to) in [(one, other), (other, one)] {
        for _ in 0..BATCHES {
            let Poll::Ready(received) = from.poll_recv(cx, buffer) else {
                break;
            };
            let Received { len, segment } = received?;
            let contents = buffer.get(..len).unwrap_or_default();
            // A path that is full loses them, as any path of UDP does.
            if let Poll::Ready(sent) = to.poll_send(
                cx,
                Batch {
                    contents,
                    segment: segment.max(1),
                },
            ) {
                sent?;
            }
            moved = true;
        }
    }
    if moved {
        Poll::Ready(Ok(()))
    } else {
        Poll::Pending
    }
}
