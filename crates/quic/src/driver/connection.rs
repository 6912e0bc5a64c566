//! One connection: its state with those who wait for it, and the handle by which programs use it.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    mem,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use quinn_proto::{
    ClosedStream, ConnectionError, ConnectionEvent, ConnectionHandle, ConnectionStats, Dir, Event,
    Side, StreamEvent, StreamId, Transmit, VarInt, congestion::Controller,
    crypto::ExportKeyingMaterialError,
};
use tokio::sync::Notify;

use super::{
    RecvStream, SendStream, WhenBlocked, WindowBounds, WindowBudget,
    endpoint::Shared,
    now,
    windows::{Heard, Help, Windows},
};
use crate::{congestion, held::Held};

/// What the task and the handles share.
pub(super) struct Inner {
    pub(super) handle: ConnectionHandle,
    endpoint: Arc<Shared>,
    state: Mutex<State>,
    /// Handles and streams; with the last of them the connection ends.
    holders: AtomicUsize,
    /// The peer opened a stream, of each direction.
    opened: [Notify; 2],
    /// We may open one.
    available: [Notify; 2],
    datagrams: Notify,
    datagrams_unblocked: Notify,
    closed: Notify,
}

pub(super) struct State {
    pub(super) stack: quinn_proto::Connection,
    /// The address of ours to which the peer's packets go now, where the system says. The stack knows that of the first one alone, which is of the
    /// wrong version of IP once the peer has moved from one to the other.
    reached: Option<IpAddr>,
    /// Why it ended, if it did.
    pub(super) error: Option<ConnectionError>,
    is_connected: bool,
    connecting: Option<Waker>,
    /// It is in the queue of those that have something to do.
    pub(super) is_due: bool,
    /// It is among those that wait for the socket.
    pub(super) is_blocked: bool,
    /// When it is to be asked at the latest.
    pub(super) deadline: Option<Instant>,
    pub(super) readers: BTreeMap<StreamId, Waker>,
    /// Streams that somebody may read, and those of them that were read since the peer has been blocked for good.
    pub(super) receiving: BTreeSet<StreamId>,
    read: BTreeSet<StreamId>,
    /// How streams have ended whose readers have not asked since.
    pub(super) ends: BTreeMap<StreamId, End>,
    pub(super) writers: BTreeMap<StreamId, Waker>,
    /// Who waits for the end of a stream.
    pub(super) stopped: BTreeMap<StreamId, Arc<Notify>>,
    /// Where windows grow with what moves.
    windows: Option<Box<Windows>>,
    /// What the peer may send ahead of who reads, where somebody has said so.
    window: Option<u64>,
    send_window: SendWindow,
    untold: Untold,
    /// What the stack holds of its streams, where that is bounded.
    pub(super) held: Option<Arc<Held>>,
    /// What had come was thrown away when the connection was closed here.
    pub(super) is_freed: bool,
}

/// How many bytes may wait for the peer's acknowledgement, on all streams of a connection. Clones are the same, and outlive it.
#[derive(Clone, Debug)]
pub struct SendWindow(Arc<AtomicU64>);

impl SendWindow {
    /// As many as there are.
    #[must_use]
    pub fn unbounded() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// From now on so many.
    pub fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// So many now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the peer may send more than it was told. By itself the stack tells of no less than an eighth of the window: too much where streams that nobody
/// reads have nearly all of it, and the others together less than that.
#[derive(Debug, Default)]
struct Untold {
    /// What was read since MAX_DATA last left. Of a window that got narrower it lets the peer send less, and of what came for streams that were stopped
    /// the stack says nothing: then it is told of too little now and then.
    read: u64,
    /// A stream was stopped, of which more may come.
    is_stopped: bool,
    /// How many DATA_BLOCKED frames have come, and MAX_DATA frames were sent.
    heard: (u64, u64),
    /// The peer has said that it may send nothing more, and was not told of anything since.
    is_blocked: bool,
}

impl Untold {
    fn look(&mut self, stats: &ConnectionStats) {
        let heard = (stats.frame_rx.data_blocked, stats.frame_tx.max_data);
        let before = mem::replace(&mut self.heard, heard);
        // One that was only sent again tells of nothing.
        if before.1 != heard.1 && self.read > 0 {
            (self.read, self.is_blocked) = (0, false);
        }
        if before.0 != heard.0 {
            self.is_blocked = true;
            self.read += u64::from(self.is_stopped);
        }
    }
}

/// How a stream has ended that its reader has not asked since.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Finished,
    Reset(VarInt),
    GivenUp,
}

/// A packet that came for a connection.
pub(super) struct Arrival {
    /// Which connection's.
    pub(super) number: usize,
    pub(super) from: SocketAddr,
    /// Which address of ours it came to, where the system says.
    pub(super) to: Option<IpAddr>,
    pub(super) event: ConnectionEvent,
}

/// Frames that have come: of packets that the peer's keys opened, and not twice. Those that it sends wherever it goes are enough.
fn frames(stats: &ConnectionStats) -> u64 {
    let come = &stats.frame_rx;
    [
        come.acks,
        come.crypto,
        come.datagram,
        come.immediate_ack,
        come.max_data,
        come.max_stream_data,
        come.new_connection_id,
        come.path_challenge,
        come.path_response,
        come.ping,
        come.retire_connection_id,
        come.stream,
    ]
    .into_iter()
    .sum()
}

impl State {
    /// A packet that is not from where the peer is, or that anybody may have sent, says nothing about where the peer reaches us: or whoever has seen an id
    /// of the connection would have it answer from an address of ours that the peer does not know.
    pub(super) fn take(&mut self, arrival: Arrival) {
        let other = arrival.to.filter(|to| self.reached != Some(*to));
        let before = other.map(|_| frames(&self.stack.stats()));
        self.stack.handle_event(arrival.event);
        let is_the_peers = || before.is_some_and(|before| frames(&self.stack.stats()) > before);
        if other.is_some() && arrival.from == self.stack.remote_address() && is_the_peers() {
            self.reached = other;
        }
    }

    /// When it wants to be asked next.
    pub(super) fn next_deadline(&mut self) -> Option<Instant> {
        let windows = self.windows.as_ref().filter(|_| self.error.is_none());
        let windows = windows.and_then(|windows| windows.deadline());
        [self.stack.poll_timeout(), windows]
            .into_iter()
            .flatten()
            .min()
    }

    /// Looks whether the peer is blocked by what nobody reads.
    pub(super) fn follow_windows(&mut self, now: Instant) {
        if self.windows.is_none() && self.window.is_some() {
            self.untold.look(&self.stack.stats());
            self.tell_if_blocked();
        }
        let Some(windows) = self.windows.as_mut().filter(|_| self.error.is_none()) else {
            return;
        };
        let stats = self.stack.stats();
        let heard = Heard {
            blocked: stats.frame_rx.data_blocked,
            stream: stats.frame_rx.stream,
            allowed: stats.frame_tx.max_data,
        };
        let held = self.held.as_ref();
        let unread = || held.map_or(u64::MAX, |held| held.unread());
        match windows.heard(heard, unread, self.stack.rtt(), now) {
            Some(Help::Wider(window)) => self.set_receive_window(window),
            Some(Help::NoRoom) => match windows.when_blocked() {
                WhenBlocked::GiveUp => self.give_up_unread(),
                WhenBlocked::Tell(whom) => whom.notify_one(),
            },
            None if !windows.is_still() && !self.read.is_empty() => self.read.clear(),
            None => {}
        }
    }

    /// Gives up the oldest stream of which something waits that nobody takes, if another one waits for more: what it holds is everybody's again.
    fn give_up_unread(&mut self) {
        let waiting: Vec<StreamId> = self.readers.keys().copied().collect();
        let mut waiting = waiting.into_iter().filter(|id| id.dir() == Dir::Bi);
        if waiting.all(|id| self.waits_unread(id)) {
            return;
        }
        let still: Vec<StreamId> = self.receiving.difference(&self.read).copied().collect();
        let unread = still.into_iter().find(|id| self.waits_unread(*id));
        if let Some(id) = unread
            && self.stop(id, 0_u32.into()).is_ok()
        {
            tracing::debug!("a stream that nobody reads kept others from going on: it is given up");
            self.end_unasked(id, End::GivenUp);
        }
    }

    /// Whether something of it has come that was not taken. Takes nothing but the end, which is kept for the reader.
    fn waits_unread(&mut self, id: StreamId) -> bool {
        if self.ends.contains_key(&id) {
            return false;
        }
        let mut stream = self.stack.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else {
            return false;
        };
        let next = chunks.next(0);
        let _nothing_taken = chunks.finalize();
        match next {
            Ok(Some(_)) => return true,
            Ok(None) => self.end_unasked(id, End::Finished),
            Err(quinn_proto::ReadError::Reset(code)) => self.end_unasked(id, End::Reset(code)),
            Err(quinn_proto::ReadError::Blocked) => {}
        }
        false
    }

    /// Asks the peer for no more of a stream, and gives its bytes' room back.
    pub(super) fn stop(&mut self, id: StreamId, code: VarInt) -> Result<(), ClosedStream> {
        self.has_freed();
        self.untold.is_stopped = true;
        self.end_receiving(id);
        self.stack.recv_stream(id).stop(code)
    }

    /// What has come of streams that nobody has is not kept until the stack forgets the connection (RFC 9000 §10.2), which the peer can put off.
    fn free_unaccepted(&mut self) {
        for dir in [Dir::Bi, Dir::Uni] {
            while let Some(id) = self.stack.streams().accept(dir) {
                drop(self.stop(id, 0_u32.into()));
            }
        }
    }

    /// The same of all streams: nobody will read any more.
    fn free_received(&mut self) {
        self.free_unaccepted();
        for id in mem::take(&mut self.receiving) {
            // Of one that has ended nothing is kept.
            drop(self.stop(id, 0_u32.into()));
        }
        self.windows = None;
        self.is_freed = true;
    }

    /// A stream has ended of which not all was read.
    pub(super) fn has_freed(&mut self) {
        self.untold.read += 1;
        if let Some(windows) = &mut self.windows {
            windows.freed();
        }
    }

    fn end_unasked(&mut self, id: StreamId, end: End) {
        self.has_freed();
        self.end_receiving(id);
        self.ends.insert(id, end);
        self.readers.remove(&id).into_iter().for_each(Waker::wake);
    }

    /// So many bytes were read of this stream. Whether the peer is to be told something.
    pub(super) fn has_read(&mut self, id: StreamId, bytes: usize) -> bool {
        if let Some(held) = self.held.as_ref().filter(|_| bytes > 0) {
            held.read(id.into(), bytes as u64);
        }
        if bytes == 0 || self.error.is_some() {
            return false;
        }
        let Some(windows) = &mut self.windows else {
            self.untold.read += bytes as u64;
            return self.tell_if_blocked();
        };
        if windows.is_still() {
            self.read.insert(id);
        }
        let window = windows.read(bytes as u64, self.stack.rtt(), now());
        if let Some(window) = window {
            self.set_receive_window(window);
        }
        window.is_some()
    }

    /// Tells the peer of all that it may send, if it waits for that. Whether it does.
    fn tell_if_blocked(&mut self) -> bool {
        let waits = self.untold.is_blocked && self.untold.read > 0;
        let Some(window) = self.window.filter(|_| waits) else {
            return false;
        };
        // A byte more has it told, and comes off again with what is read next.
        for window in [window.saturating_add(1), window] {
            let window = VarInt::from_u64(window).unwrap_or(VarInt::MAX);
            self.stack.set_receive_window(window);
        }
        self.untold.is_blocked = false;
        true
    }

    fn set_send_window(&mut self, bytes: u64) {
        self.send_window.set(bytes);
        self.stack.set_send_window(bytes);
    }

    fn set_receive_window(&mut self, bytes: u64) {
        if let Some(held) = &self.held {
            held.set_window(bytes);
        }
        self.window = Some(bytes);
        let bytes = VarInt::from_u64(bytes).unwrap_or(VarInt::MAX);
        self.stack.set_receive_window(bytes);
    }

    /// Somebody may read this stream from now on.
    pub(super) fn begin_receiving(&mut self, id: StreamId) {
        self.receiving.insert(id);
        if let Some(held) = &self.held {
            held.begin_stream(id.into());
        }
    }

    /// The stack holds nothing of this stream any more.
    pub(super) fn end_receiving(&self, id: StreamId) {
        if let Some(held) = &self.held {
            held.end_stream(id.into());
        }
    }

    /// A writer finds no room. Whether there is more now.
    pub(super) fn has_no_room(&mut self) -> bool {
        let Some(windows) = &mut self.windows else {
            return false;
        };
        let window = windows.full(self.stack.congestion_state().window());
        if let Some(window) = window {
            self.set_send_window(window);
        }
        window.is_some()
    }

    /// What the stack wants to send, from the address that the peer knows (RFC 9000 §9.5 has it answer from where it was reached).
    pub(super) fn poll_transmit(
        &mut self,
        now: Instant,
        most: usize,
        batch: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let mut transmit = self.stack.poll_transmit(now, most, batch)?;
        match &mut self.windows {
            Some(windows) => windows.allowed(self.stack.stats().frame_tx.max_data),
            None if self.window.is_some() => self.untold.look(&self.stack.stats()),
            None => {}
        }
        transmit.src_ip = self.source_towards(transmit.destination);
        // Who does not slow down for a mark must be dropped instead (RFC 3168 §6.1).
        if self.stack.congestion_state().window() >= congestion::NO_WINDOW {
            transmit.ecn = None;
        }
        Some(transmit)
    }

    /// Ours towards `peer`; none of another version of IP, which the system refuses.
    fn source_towards(&self, peer: SocketAddr) -> Option<IpAddr> {
        let is_v4 = |ip: IpAddr| ip.to_canonical().is_ipv4();
        [self.reached, self.stack.local_ip()]
            .into_iter()
            .flatten()
            .find(|ip| is_v4(*ip) == is_v4(peer.ip()))
    }
}

impl Inner {
    pub(super) fn new(
        stack: quinn_proto::Connection,
        held: Option<Arc<Held>>,
        handle: ConnectionHandle,
        endpoint: Arc<Shared>,
    ) -> Self {
        Self {
            handle,
            endpoint,
            state: Mutex::new(State {
                stack,
                reached: None,
                error: None,
                is_connected: false,
                connecting: None,
                is_due: false,
                is_blocked: false,
                deadline: None,
                readers: BTreeMap::new(),
                receiving: BTreeSet::new(),
                read: BTreeSet::new(),
                ends: BTreeMap::new(),
                writers: BTreeMap::new(),
                stopped: BTreeMap::new(),
                windows: None,
                window: None,
                send_window: SendWindow::unbounded(),
                untold: Untold::default(),
                held,
                is_freed: false,
            }),
            holders: AtomicUsize::new(0),
            opened: Default::default(),
            available: Default::default(),
            datagrams: Notify::new(),
            datagrams_unblocked: Notify::new(),
            closed: Notify::new(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// It has something to do.
    pub(super) fn make_due(self: &Arc<Self>) {
        self.wake(&mut self.state());
    }

    /// The same, for who holds the lock and has so many bytes to send.
    pub(super) fn written(self: &Arc<Self>, state: &mut State, bytes: usize) {
        self.endpoint.written.fetch_add(bytes, Ordering::Relaxed);
        self.wake(state);
    }

    /// The same, for who holds the lock.
    pub(super) fn wake(self: &Arc<Self>, state: &mut State) {
        if !mem::replace(&mut state.is_due, true) {
            self.endpoint.make_due(Arc::clone(self));
        }
    }

    /// Tells those who wait what has happened.
    pub(super) fn tell(&self, state: &mut State) {
        let mut datagrams = false;
        while let Some(event) = state.stack.poll() {
            match event {
                Event::HandshakeDataReady => {}
                Event::Connected => {
                    state.is_connected = true;
                    state.connecting.take().into_iter().for_each(Waker::wake);
                }
                Event::ConnectionLost { reason } => self.lose_locked(state, &reason),
                Event::DatagramReceived => datagrams = true,
                Event::DatagramsUnblocked => self.datagrams_unblocked.notify_waiters(),
                Event::Stream(event) => self.tell_stream(state, &event),
            }
        }
        if datagrams {
            self.datagrams.notify_waiters();
        }
    }

    fn tell_stream(&self, state: &mut State, event: &StreamEvent) {
        let wake = |waker: Option<Waker>| waker.into_iter().for_each(Waker::wake);
        let notify = |notify: Option<Arc<Notify>>| {
            notify
                .into_iter()
                .for_each(|notify| notify.notify_waiters());
        };
        match event {
            StreamEvent::Opened { dir } => self.opened[*dir as usize].notify_waiters(),
            StreamEvent::Available { dir } => self.available[*dir as usize].notify_waiters(),
            StreamEvent::Readable { id } => wake(state.readers.remove(id)),
            StreamEvent::Writable { id } => wake(state.writers.remove(id)),
            StreamEvent::Finished { id } => notify(state.stopped.remove(id)),
            StreamEvent::Stopped { id, .. } => {
                notify(state.stopped.remove(id));
                wake(state.writers.remove(id));
            }
        }
    }

    /// It has ended for this reason.
    pub(super) fn lose(&self, reason: &ConnectionError) {
        self.lose_locked(&mut self.state(), reason);
    }

    fn lose_locked(&self, state: &mut State, reason: &ConnectionError) {
        state.error.get_or_insert_with(|| reason.clone());
        state.free_unaccepted();
        if let Some(held) = &state.held {
            held.end();
        }
        let writers = mem::take(&mut state.writers).into_values();
        let readers = mem::take(&mut state.readers).into_values();
        let connecting = state.connecting.take();
        writers
            .chain(readers)
            .chain(connecting)
            .for_each(Waker::wake);
        for notify in mem::take(&mut state.stopped).into_values() {
            notify.notify_waiters();
        }
        let streams = self.opened.iter().chain(&self.available);
        let others = [&self.datagrams, &self.datagrams_unblocked, &self.closed];
        streams.chain(others).for_each(Notify::notify_waiters);
    }

    /// Closes it: what was not delivered is not.
    pub(super) fn close(self: &Arc<Self>, code: VarInt, reason: Bytes) {
        let mut state = self.state();
        if state.error.is_none() {
            state.free_received();
        }
        state.stack.close(now(), code, reason);
        self.lose_locked(&mut state, &ConnectionError::LocallyClosed);
        self.wake(&mut state);
    }
}

/// Keeps the connection open.
pub(super) struct Hold(Arc<Inner>);

impl Hold {
    fn new(inner: Arc<Inner>) -> Self {
        inner.holders.fetch_add(1, Ordering::Relaxed);
        Self(inner)
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Clone for Hold {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.0.holders.fetch_sub(1, Ordering::AcqRel) == 1 && !self.0.state().stack.is_drained()
        {
            self.0.close(0_u32.into(), Bytes::new());
        }
    }
}

/// A connection whose handshake is under way.
#[must_use = "a connection that nobody waits for is closed"]
pub struct Connecting(Hold);

impl Connecting {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        Self(Hold::new(inner))
    }

    /// Where the peer is.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.0.inner().state().stack.remote_address()
    }
}

impl Future for Connecting {
    type Output = Result<Connection, ConnectionError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.inner().state();
        if let Some(error) = &state.error {
            return Poll::Ready(Err(error.clone()));
        }
        if state.is_connected {
            return Poll::Ready(Ok(Connection(self.0.clone())));
        }
        state.connecting = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connecting")
    }
}

/// A connection. Clones are the same; when the last and all its streams are gone it is closed.
#[derive(Clone)]
pub struct Connection(Hold);

/// Why a datagram was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendDatagramError {
    /// The peer takes none.
    #[error("datagrams not supported by peer")]
    UnsupportedByPeer,
    /// This end takes none.
    #[error("datagram support disabled")]
    Disabled,
    /// No packet holds it now.
    #[error("datagram too large")]
    TooLarge,
    /// The connection has ended.
    #[error("connection lost")]
    ConnectionLost(#[from] ConnectionError),
}

impl From<quinn_proto::SendDatagramError> for SendDatagramError {
    fn from(error: quinn_proto::SendDatagramError) -> Self {
        use quinn_proto::SendDatagramError as Stack;
        match error {
            Stack::UnsupportedByPeer => Self::UnsupportedByPeer,
            Stack::Disabled => Self::Disabled,
            // Who does not wait has the oldest make room.
            Stack::TooLarge | Stack::Blocked(_) => Self::TooLarge,
        }
    }
}

/// Streams.
impl Connection {
    fn inner(&self) -> &Arc<Inner> {
        self.0.inner()
    }

    /// Asks `check` each time that `notify` is told, until it answers, or the connection has ended.
    async fn wait<T>(
        &self,
        notify: &Notify,
        mut check: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, ConnectionError> {
        loop {
            let told = notify.notified();
            {
                let mut state = self.inner().state();
                if let Some(answer) = check(&mut state) {
                    return Ok(answer);
                }
                if let Some(error) = &state.error {
                    return Err(error.clone());
                }
            }
            told.await;
        }
    }

    async fn open(&self, dir: Dir) -> Result<StreamId, ConnectionError> {
        let available = &self.inner().available[dir as usize];
        self.wait(available, |state| match state.error {
            None => state.stack.streams().open(dir),
            Some(_) => None,
        })
        .await
    }

    async fn accept(&self, dir: Dir) -> Result<StreamId, ConnectionError> {
        let opened = &self.inner().opened[dir as usize];
        let accepted = self.wait(opened, |state| state.stack.streams().accept(dir));
        let id = accepted.await?;
        // The peer may be told that it may open another one.
        self.inner().make_due();
        Ok(id)
    }

    /// Opens a stream on which this end alone sends, once the peer allows one.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn open_uni(&self) -> Result<SendStream, ConnectionError> {
        let id = self.open(Dir::Uni).await?;
        Ok(SendStream::new(self.0.clone(), id))
    }

    /// Opens a stream on which both send, once the peer allows one. The peer hears of it with what is sent.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn open_bi(&self) -> Result<(SendStream, RecvStream), ConnectionError> {
        let id = self.open(Dir::Bi).await?;
        let send = SendStream::new(self.0.clone(), id);
        Ok((send, RecvStream::new(self.0.clone(), id)))
    }

    /// The next stream that the peer opened and on which it alone sends.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn accept_uni(&self) -> Result<RecvStream, ConnectionError> {
        let id = self.accept(Dir::Uni).await?;
        Ok(RecvStream::new(self.0.clone(), id))
    }

    /// The next stream that the peer opened and on which both send.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn accept_bi(&self) -> Result<(SendStream, RecvStream), ConnectionError> {
        let id = self.accept(Dir::Bi).await?;
        let send = SendStream::new(self.0.clone(), id);
        Ok((send, RecvStream::new(self.0.clone(), id)))
    }

    /// How many streams the peer may have open on which it alone sends.
    pub fn set_max_concurrent_uni_streams(&self, count: VarInt) {
        self.change(|stack| stack.set_max_concurrent_streams(Dir::Uni, count));
    }

    /// How many streams the peer may have open on which both send.
    pub fn set_max_concurrent_bi_streams(&self, count: VarInt) {
        self.change(|stack| stack.set_max_concurrent_streams(Dir::Bi, count));
    }

    /// How many bytes may wait for the peer's acknowledgement.
    pub fn set_send_window(&self, bytes: u64) {
        let mut state = self.inner().state();
        state.set_send_window(bytes);
        self.inner().wake(&mut state);
    }

    /// The same to ask at any time; not known before it was set here.
    #[must_use]
    pub fn send_window(&self) -> SendWindow {
        self.inner().state().send_window.clone()
    }

    /// How many bytes the peer may send ahead of who reads, on all streams.
    pub fn set_receive_window(&self, bytes: u64) {
        let mut state = self.inner().state();
        state.set_receive_window(bytes);
        self.inner().wake(&mut state);
    }

    /// From now on both windows grow with what moves, and get narrow again. Of `bounds` those are the first that the connection has now.
    pub fn adapt_windows(
        &self,
        bounds: WindowBounds,
        budget: impl WindowBudget + 'static,
        when_blocked: WhenBlocked,
    ) {
        let windows = Windows::new(bounds, Box::new(budget), when_blocked, now());
        let mut state = self.inner().state();
        if state.error.is_none() {
            state.windows = Some(Box::new(windows));
        }
    }

    /// What the peer may send ahead of who reads, in bytes, where windows grow.
    #[must_use]
    pub fn receive_window(&self) -> Option<u64> {
        let state = self.inner().state();
        state.windows.as_ref().map(|windows| windows.receive())
    }

    /// What the stack holds of streams, in bytes.
    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        let state = self.inner().state();
        state.held.as_ref().map_or(0, |held| held.bytes())
    }

    /// The streams of which something has come that nobody has taken, the oldest first.
    #[must_use]
    pub fn unread(&self) -> Vec<StreamId> {
        let mut state = self.inner().state();
        let mut streams: Vec<StreamId> = state.receiving.iter().copied().collect();
        streams.retain(|id| state.waits_unread(*id));
        streams
    }

    fn change(&self, change: impl FnOnce(&mut quinn_proto::Connection)) {
        let mut state = self.inner().state();
        change(&mut state.stack);
        self.inner().wake(&mut state);
    }
}

/// Datagrams (RFC 9221).
impl Connection {
    /// The next datagram.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn read_datagram(&self) -> Result<Bytes, ConnectionError> {
        let datagrams = &self.inner().datagrams;
        self.wait(datagrams, |state| state.stack.datagrams().recv())
            .await
    }

    /// Puts datagrams that are here behind what `into` has, until that are `most`.
    pub fn take_datagrams(&self, into: &mut Vec<Bytes>, most: usize) {
        let room = most.saturating_sub(into.len());
        let mut state = self.inner().state();
        let mut datagrams = state.stack.datagrams();
        into.extend(std::iter::from_fn(|| datagrams.recv()).take(room));
    }

    /// Sends a datagram; where the buffer has no room, the oldest that wait there go.
    ///
    /// # Errors
    /// It is not sent.
    pub fn send_datagram(&self, datagram: Bytes) -> Result<(), SendDatagramError> {
        let mut sent = Ok(());
        self.send_datagrams([datagram], |error| sent = Err(error));
        sent
    }

    /// Sends datagrams as [`Self::send_datagram`] does, all at once. `refused` is told of each that is not sent.
    pub fn send_datagrams(
        &self,
        datagrams: impl IntoIterator<Item = Bytes>,
        mut refused: impl FnMut(SendDatagramError),
    ) {
        let mut state = self.inner().state();
        let mut bytes = 0;
        for datagram in datagrams {
            bytes += datagram.len();
            if let Some(error) = &state.error {
                refused(error.clone().into());
            } else if let Err(error) = state.stack.datagrams().send(datagram, true) {
                refused(error.into());
            }
        }
        self.inner().written(&mut state, bytes);
    }

    /// Sends a datagram once the buffer has room for it.
    ///
    /// # Errors
    /// It is not sent.
    pub async fn send_datagram_wait(&self, datagram: Bytes) -> Result<(), SendDatagramError> {
        let bytes = datagram.len();
        let mut datagram = Some(datagram);
        let unblocked = &self.inner().datagrams_unblocked;
        let sent = self.wait(unblocked, |state| {
            if state.error.is_some() {
                return None;
            }
            match state.stack.datagrams().send(datagram.take()?, false) {
                Err(quinn_proto::SendDatagramError::Blocked(back)) => {
                    datagram = Some(back);
                    None
                }
                sent => Some(sent),
            }
        });
        sent.await??;
        self.inner().written(&mut self.inner().state(), bytes);
        Ok(())
    }

    /// The largest datagram that is sent now; `None` where the peer takes none.
    #[must_use]
    pub fn max_datagram_size(&self) -> Option<usize> {
        self.inner().state().stack.datagrams().max_size()
    }

    /// How many bytes of datagrams may be sent without that the oldest go.
    #[must_use]
    pub fn datagram_send_buffer_space(&self) -> usize {
        self.inner().state().stack.datagrams().send_buffer_space()
    }
}

/// Its end, and what is known of it.
impl Connection {
    /// Closes it at once: what was not delivered is not, and what was not read is thrown away, unless the peer has closed it before.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        self.inner().close(code, Bytes::copy_from_slice(reason));
    }

    /// Waits until it has ended, and says why.
    pub async fn closed(&self) -> ConnectionError {
        loop {
            let told = self.inner().closed.notified();
            if let Some(error) = self.close_reason() {
                return error;
            }
            told.await;
        }
    }

    /// Why it ended, if it did.
    #[must_use]
    pub fn close_reason(&self) -> Option<ConnectionError> {
        self.inner().state().error.clone()
    }

    /// Who dialled.
    #[must_use]
    pub fn side(&self) -> Side {
        self.inner().state().stack.side()
    }

    /// Where the peer is now.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.inner().state().stack.remote_address()
    }

    /// The address of ours that the peer uses, where the system says.
    #[must_use]
    pub fn local_ip(&self) -> Option<IpAddr> {
        let inner = self.inner();
        let state = inner.state();
        state.source_towards(state.stack.remote_address())
    }

    /// How long an answer of the peer takes now.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.inner().state().stack.rtt()
    }

    /// What was counted.
    #[must_use]
    pub fn stats(&self) -> ConnectionStats {
        self.inner().state().stack.stats()
    }

    /// A copy of what governs how fast it sends.
    #[must_use]
    pub fn congestion_state(&self) -> Box<dyn Controller> {
        self.inner().state().stack.congestion_state().clone_box()
    }

    /// What was agreed on in the handshake; its type is the cryptography's.
    #[must_use]
    pub fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let state = self.inner().state();
        state.stack.crypto_session().handshake_data()
    }

    /// How the peer has shown who it is; its type is the cryptography's.
    #[must_use]
    pub fn peer_identity(&self) -> Option<Box<dyn Any>> {
        let state = self.inner().state();
        state.stack.crypto_session().peer_identity()
    }

    /// Bytes that only the two ends know (RFC 8446 §7.5).
    ///
    /// # Errors
    /// So many are not to be had.
    pub fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        let state = self.inner().state();
        let session = state.stack.crypto_session();
        session.export_keying_material(output, label, context)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection")
            .field(&self.inner().handle.0)
            .finish()
    }
}
