//! What programs and targets hold of a stream: they read, write and finish it; dropped before both sides have ended, it is reset.
//! `client` hands it out as the overlay's stream, `relay` copies between it and the target. Each circuit's end has a lock of its own.

use std::{
    fmt, io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use hoplite_overlay::Error;
use hoplite_wire::{
    Target,
    cell::{
        BODY, onion_service,
        relay::{
            Begin, Connected, End, EndReason, Flags, Format, Header, Message, RelayCommand,
            Resolve, Resolved, StreamId,
        },
    },
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use super::{
    Asked, Broken, Endpoint, HALF_CLOSE, Role,
    stream::{Answer, Stream},
    udp::UdpStream,
};
use crate::{client::StreamEvents, failure};

/// A piece of this many bytes fills a cell of either version.
pub(crate) const FILLS: usize = BODY - Format::V1.header(RelayCommand::DATA);

/// So much is carried between a stream and a target at once.
pub(crate) const AT_ONCE: usize = 8 << 10;

/// What is written so soon behind a piece that has waited for more was there before it left.
const TOGETHER: Duration = Duration::from_millis(1);

/// One end of a circuit, shared by its driver and its streams.
pub struct Shared {
    endpoint: Mutex<Endpoint>,
    /// How long a small piece of a stream waits for more.
    share: Duration,
}

/// A program that has finished may be gone, or wait for an answer: its FIN is the same. Where the far end would take its END for the end of both
/// sides, that follows when nothing more has come for so long. C tor sends it at once, and loses what such a program waits for; without it each
/// connection that a program closes would stay a stream for as long as the server keeps connections.
const LINGER: Duration = Duration::from_secs(5);

/// One stream of it.
pub struct Handle {
    shared: Arc<Shared>,
    id: StreamId,
    current: Bytes,
    /// Runs while it waits only for what the far end may still have to say.
    linger: Option<Pin<Box<Sleep>>>,
    /// Runs while a small piece waits for more to share its cell with.
    waits: Option<Pin<Box<Sleep>>>,
    /// When the last one that waited left.
    left: Option<Instant>,
    /// What it tells, at the client's end.
    events: StreamEvents,
}

impl Shared {
    /// To be shared.
    pub fn new(endpoint: Endpoint) -> Arc<Self> {
        Arc::new(Self {
            share: endpoint.limits.share,
            endpoint: Mutex::new(endpoint),
        })
    }

    /// The end itself; never held across an await.
    pub fn lock(&self) -> MutexGuard<'_, Endpoint> {
        self.endpoint.lock()
    }
}

impl Handle {
    /// The handle of a stream that has just been opened, or asked for. There is one for each.
    pub fn new(shared: &Arc<Shared>, id: StreamId) -> Self {
        Self {
            shared: Arc::clone(shared),
            id,
            current: Bytes::new(),
            linger: None,
            waits: None,
            left: None,
            events: StreamEvents::default(),
        }
    }

    /// Tells what becomes of it.
    pub(crate) fn telling(mut self, events: StreamEvents) -> Self {
        self.events = events;
        self
    }

    /// Which stream it is.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The far end's answer.
    pub fn poll_said(&mut self, cx: &mut Context<'_>) -> Poll<Result<Answer, Error>> {
        let mut endpoint = self.shared.lock();
        let closed = endpoint.closed().cloned();
        let Some(stream) = endpoint.streams.get_mut(&self.id.0) else {
            return Poll::Ready(Err(failure::gone()));
        };
        match (stream.said(), closed) {
            (Some(said), _) => {
                if said.is_ok() {
                    self.events.succeeded();
                }
                Poll::Ready(said.clone())
            }
            (None, Some(error)) => Poll::Ready(Err(error)),
            (None, None) => {
                stream.reader = Some(cx.waker().clone());
                stream.writer = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The addresses that a look-up found.
    pub(crate) fn poll_addresses(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Vec<IpAddr>, Error>> {
        Poll::Ready(match ready!(self.poll_said(cx))? {
            Answer::Addresses(found) => Ok(found),
            Answer::Connected | Answer::ConnectedUdp => Err(failure::gone()),
        })
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.current.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut endpoint = self.shared.lock();
        if let Some(bytes) = endpoint.fetch(self.id) {
            (self.current, self.linger) = (bytes, None);
            return Poll::Ready(Ok(()));
        }
        let closed = endpoint.closed().cloned();
        let Some(stream) = endpoint.streams.get_mut(&self.id.0) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        match (stream.read_end(), closed) {
            (Some(end), _) => Poll::Ready(end.map_err(io::Error::from)),
            (None, Some(error)) => Poll::Ready(Err(error.into())),
            (None, None) => {
                stream.reader = Some(cx.waker().clone());
                let lasts = stream.lingers();
                drop(endpoint);
                lasts.map_or(Poll::Pending, |lasts| self.poll_linger(lasts, cx))
            }
        }
    }

    /// The end, as far as the program is concerned, when nothing has come for [`LINGER`]; not before what it has said `is_sent`.
    fn poll_linger(&mut self, is_sent: bool, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        while linger.as_mut().poll(cx).is_ready() {
            if is_sent {
                return Poll::Ready(Ok(()));
            }
            linger.as_mut().reset(Instant::now() + LINGER);
        }
        Poll::Pending
    }

    /// Ready when a piece of so many bytes may be put in a cell. While it is not, more gathers where it comes from, or behind it.
    fn poll_share(&mut self, cx: &mut Context<'_>, bytes: usize) -> Poll<()> {
        let share = self.shared.share;
        let behind = self.left.is_some_and(|left| left.elapsed() < TOGETHER);
        if share.is_zero() || behind || bytes >= FILLS {
            self.waits = None;
            return Poll::Ready(());
        }
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(share)));
        ready!(waits.as_mut().poll(cx));
        (self.waits, self.left) = (None, Some(Instant::now()));
        Poll::Ready(())
    }

    /// Has `target` take what waits, as much as it takes at once: the rest stays in the circuit's end, where it counts. How much; nothing at the end.
    pub(crate) fn poll_write_to(
        &mut self,
        cx: &mut Context<'_>,
        target: Pin<&mut impl AsyncWrite>,
    ) -> Poll<io::Result<usize>> {
        let mut piece = [0; AT_ONCE];
        let mut waits = 0;
        if self.current.is_empty() {
            waits = self.shared.lock().peek(self.id, &mut piece);
        }
        if waits == 0 {
            ready!(self.poll_next(cx))?;
            if self.current.is_empty() {
                return Poll::Ready(Ok(0));
            }
        }
        let offered = if waits > 0 {
            &piece[..waits]
        } else {
            &self.current
        };
        let taken = match target.poll_write(cx, offered)? {
            Poll::Ready(taken) => taken,
            Poll::Pending => {
                self.is_not_reset(cx)?;
                return Poll::Pending;
            }
        };
        if waits > 0 {
            self.shared.lock().consume(self.id, taken);
            self.linger = None;
        } else {
            self.current.advance(taken);
        }
        if taken == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        Poll::Ready(Ok(taken))
    }

    /// Whoever waits for a target is woken when the far end gives the stream up meanwhile.
    pub(crate) fn is_not_reset(&self, cx: &Context<'_>) -> io::Result<()> {
        let endpoint = &mut *self.shared.lock();
        if let Some(error) = endpoint.closed() {
            return Err(error.clone().into());
        }
        let stream = endpoint.streams.get_mut(&self.id.0);
        let stream = stream.ok_or(io::ErrorKind::ConnectionReset)?;
        if let Some(Err(error)) = stream.read_end() {
            return Err(error.into());
        }
        stream.reader = Some(cx.waker().clone());
        Ok(())
    }

    /// How much may be written, once that is anything.
    pub(crate) fn poll_may_write(&self, cx: &Context<'_>) -> Poll<io::Result<usize>> {
        let endpoint = &mut *self.shared.lock();
        let most = endpoint.may_queue();
        let stream = writable(endpoint, self.id)?;
        let room = stream.may_write(most);
        if room == 0 {
            stream.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(room))
    }

    fn poll_put(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let endpoint = &mut *self.shared.lock();
        let most = endpoint.may_queue();
        writable(endpoint, self.id)?;
        let Some(stream) = endpoint.streams.get_mut(&self.id.0) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let taken = stream.write(bytes, most, &mut endpoint.unpredictable);
        if taken == 0 && !bytes.is_empty() {
            stream.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        endpoint.take_turn(self.id);
        Poll::Ready(Ok(taken))
    }
}

/// The stream, if it may still be written.
fn writable(endpoint: &mut Endpoint, id: StreamId) -> io::Result<&mut Stream> {
    if let Some(error) = endpoint.closed() {
        return Err(error.clone().into());
    }
    let stream = endpoint.streams.get_mut(&id.0);
    let stream = stream.ok_or(io::ErrorKind::BrokenPipe)?;
    if let Some(Err(error)) = stream.said() {
        return Err(error.clone().into());
    }
    if !stream.is_writable() || stream.is_finished() {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    Ok(stream)
}

impl hoplite_overlay::PendingStream for Handle {
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let answer = self.poll_said(cx).map_ok(drop);
        if let Poll::Ready(Err(error)) = &answer {
            self.events.failed(error);
        }
        answer
    }
}

impl AsyncRead for Handle {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let handle = self.get_mut();
        let before = buf.filled().len();
        // As much as is there: a lock and a wake-up for each cell would cost more than the cell.
        loop {
            match handle.poll_next(cx) {
                Poll::Ready(Ok(())) => {}
                waiting if buf.filled().len() == before => return waiting,
                _ => return Poll::Ready(Ok(())),
            }
            let count = handle.current.len().min(buf.remaining());
            if count == 0 {
                return Poll::Ready(Ok(()));
            }
            buf.put_slice(&handle.current.split_to(count));
        }
    }
}

impl AsyncBufRead for Handle {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let handle = self.get_mut();
        ready!(handle.poll_next(cx))?;
        Poll::Ready(Ok(&handle.current))
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        let amt = amt.min(self.current.len());
        self.current.advance(amt);
    }
}

impl AsyncWrite for Handle {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let handle = self.get_mut();
        ready!(handle.poll_share(cx, buf.len()));
        handle.poll_put(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut endpoint = self.shared.lock();
        if let Some(stream) = endpoint.streams.get_mut(&self.id.0) {
            stream.finish();
            // From now on it lingers.
            super::stream::wake(&mut stream.reader);
        }
        endpoint.take_turn(self.id);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut endpoint = self.shared.lock();
        self.events.closed(endpoint.closed());
        endpoint.drop_stream(self.id);
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("onion::Handle")
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("onion::Shared")
    }
}

// Streams as they are asked for at the client's end, and answered at the exit's. tor-spec "Opening streams and
// transferring data", "Remote hostname lookup".

/// For how many seconds a client may think that a name means the address it was connected to.
const ADDRESS_LASTS: u32 = 60;

impl Endpoint {
    /// Opens a stream (client); the answer is polled by [`Handle`].
    ///
    /// # Errors
    /// The circuit has closed, or has too many streams.
    pub fn begin(&mut self, target: &Target, flags: Flags) -> Result<StreamId, Error> {
        let target = target.clone();
        let half_close = flags.has(HALF_CLOSE);
        self.ask(half_close, &Message::Begin(Begin { target, flags }))
    }

    /// Opens a stream to a port of the onion service that is met (client).
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn begin_port(&mut self, port: u16) -> Result<StreamId, Error> {
        let mut data = Vec::new();
        onion_service::write_begin(port, &mut data);
        self.ask(false, &Message::Unknown(RelayCommand::BEGIN, &data))
    }

    /// Opens a stream to the last relay's directory (client).
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn begin_directory(&mut self) -> Result<StreamId, Error> {
        self.ask(false, &Message::BeginDir)
    }

    /// Asks for a name's addresses (client).
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn resolve(&mut self, name: &str) -> Result<StreamId, Error> {
        self.ask(false, &Message::Resolve(Resolve(name)))
    }

    fn ask(&mut self, half_close: bool, message: &Message<'_>) -> Result<StreamId, Error> {
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        let id = self.free_id().ok_or_else(failure::too_many_streams)?;
        let stream = self.new_stream(half_close);
        self.streams.insert(id.0, stream);
        // Which is not numbered in a Conflux set: nothing may follow before it is answered.
        if self.legs.is_set() && *message == Message::BeginDir {
            self.legs.say_unnumbered(self.message(id, message));
        } else {
            self.say(id, message);
        }
        Ok(id)
    }

    fn is_there(&self, id: StreamId) -> bool {
        self.streams.contains_key(&id.0) || self.udp.contains_key(&id.0)
    }

    pub(super) fn free_id(&mut self) -> Option<StreamId> {
        if self.has_no_room() {
            return None;
        }
        for _ in 0..=self.limits.streams + self.limits.gone + 1 {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            let id = self.last_id;
            let recent = self.gone.iter().any(|(gone, _)| *gone == id);
            if !recent && !self.is_there(StreamId(id)) {
                return Some(StreamId(id));
            }
        }
        None
    }

    /// The next thing that a client asks for (exit).
    pub(crate) fn next_asked(&mut self) -> Option<(StreamId, Asked)> {
        self.asked.pop_front()
    }

    /// What the client asks for next, once it does (onion service): [`Asked::Port`] or [`Asked::UdpPort`].
    ///
    /// # Errors
    /// Why the circuit has closed.
    pub(crate) fn poll_asked(
        &mut self,
        cx: &Context<'_>,
    ) -> Poll<Result<(StreamId, Asked), Error>> {
        if let Some(asked) = self.asked.pop_front() {
            return Poll::Ready(Ok(asked));
        }
        if let Some(error) = &self.closed {
            return Poll::Ready(Err(error.clone()));
        }
        self.asker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The target has answered (exit): so the client is told.
    pub fn connected(&mut self, id: StreamId, address: Option<IpAddr>) {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return;
        };
        stream.answer(Ok(Answer::Connected));
        let address = address.map(|ip| (ip, ADDRESS_LASTS));
        self.say(id, &Message::Connected(Connected(address)));
        self.take_turn(id);
    }

    /// The stream does not come about, or breaks off (exit).
    pub fn refuse(&mut self, id: StreamId, end: End) {
        self.waits_no_more(id.0);
        let is_open = |stream: UdpStream| stream.ended().is_none();
        if self.streams.remove(&id.0).is_some() || self.udp.remove(&id.0).is_some_and(is_open) {
            self.say(id, &Message::End(end));
        }
    }

    /// The answer to a look-up (exit).
    pub fn resolved(&mut self, id: StreamId, answers: Resolved<'_>) {
        self.waits_no_more(id.0);
        if self.streams.remove(&id.0).is_some() {
            self.say(id, &Message::Resolved(answers));
        }
    }

    fn add_asked(&mut self, id: StreamId, half_close: bool) {
        let stream = self.new_stream(half_close);
        self.streams.insert(id.0, stream.at_exit());
    }

    pub(super) fn requested(&mut self, header: Header, asked: Asked) -> Result<(), Broken> {
        let id = header.stream;
        if self.role == Role::Client || id == StreamId::CIRCUIT {
            return Err(Broken::Unexpected(header.command));
        }
        if self.is_there(id) {
            return Err(Broken::Unexpected(header.command));
        }
        if self.streams() >= self.limits.streams {
            let reason = match self.role {
                // rend-spec-v3, "Managing streams": "to avoid leaking any further information".
                Role::Service => EndReason::DONE,
                Role::Client | Role::Relay => EndReason::RESOURCELIMIT,
            };
            self.say(id, &Message::End(End::new(reason)));
            return Ok(());
        }
        match &asked {
            Asked::Udp(_) | Asked::UdpPort(_) => self.add_udp(id),
            Asked::Stream(begin) => self.add_asked(id, begin.flags.has(HALF_CLOSE)),
            Asked::Directory | Asked::Name(_) | Asked::Port(_) => self.add_asked(id, false),
        }
        self.asked.push_back((id, asked));
        self.wake_asker();
        Ok(())
    }
}
