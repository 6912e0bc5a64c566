//! What drives the stack: an endpoint's socket, its connections and their timers, in one task. The stack itself (`quinn-proto`) is a state machine; this
//! task brings it packets and time, and carries away what it has to send.
//!
//! ```text
//!             poll_recv              handle_event                 wakers
//!   socket ────────────▶ endpoint ─────────────────▶ connection ─────────▶ who reads
//!          ◀───────────────────────────────────────            ◀───────── who writes
//!             poll_send, up to 64 packets a call                 due
//! ```
//!
//! A round of the task takes what has come and tells those who wait for it; then it gives each connection that has something to do its turn: one batch of
//! packets, and to the end of the queue. Who writes only says that the connection is due: all that is written before the task runs leaves in the same
//! batches, and where that is little, others write first. While the socket takes nothing, one batch waits for it, and connections keep what they have.
//!
//! Locks: a connection's before the endpoint's, never the other way round; none while the socket is called.

mod connection;
mod endpoint;
mod socket;
mod streams;
mod windows;

use std::{
    cell::Cell,
    collections::{BTreeSet, VecDeque},
    future::Future,
    io::IoSliceMut,
    mem,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Instant,
};

use bytes::BytesMut;
use parking_lot::MutexGuard;
use quinn_proto::{
    ConnectionError, DatagramEvent, EcnCodepoint, Transmit, TransportError, TransportErrorCode,
};
use quinn_udp::RecvMeta;

use self::{
    connection::{Arrival, Inner},
    endpoint::Shared,
};
pub use self::{
    connection::{Connecting, Connection, SendDatagramError, SendWindow},
    endpoint::{Endpoint, Incoming, RetryError},
    socket::{AsyncUdpSocket, UdpSocket},
    streams::{
        ReadError, ReadExactError, ReadToEndError, Received, RecvStream, SendStream, StoppedError,
        WriteError,
    },
    windows::{Lately, SharedBudget, WhenBlocked, WindowBounds, WindowBudget},
};
use crate::{
    coalesce::{MOST_BYTES, MOST_SEGMENTS},
    timer::{Timer, Timers},
};

/// Rounds before other tasks get their turn.
const ROUNDS: usize = 4;
/// For so many rounds of the runtime at most a task waits with sending, while what is written does not fill a batch.
const MOST_WAITS: usize = 2;
/// Packets that are received in a round, but for those of the last call: no flood keeps other tasks from their turn for long.
const RECEIVED: usize = 256;
/// Buffers of one receive call: each takes a batch where the system makes batches of what arrives (GRO).
const BUFFERS: usize = 8;
/// Packets of a batch that are kept in one allocation: who keeps some bytes of one keeps all of them.
const TOGETHER: usize = 8;
/// A buffer is not larger than the largest batch there is.
const MOST_BUFFER: usize = 64 * 1024;
/// The time by the runtime's clock, which tests stop.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The task.
struct Task {
    shared: Arc<Shared>,
    socket: Arc<dyn AsyncUdpSocket>,
    before: Option<Arc<dyn AsyncUdpSocket>>,
    generation: u64,
    /// The largest packet that is received.
    largest: usize,
    timer: Timer,
    /// When which connection wants to be asked next.
    deadlines: BTreeSet<(Instant, usize)>,
    /// Connections that have something to do, in the order in which they have it.
    turn: VecDeque<Arc<Inner>>,
    /// What had been written when that was last looked at, and for how many rounds of the runtime more was waited for.
    seen: usize,
    waited: usize,
    /// Those that have something to send while the socket takes nothing.
    blocked: Vec<Arc<Inner>>,
    /// The packets that are being sent; of the thread's memory, but while they wait.
    batch: Vec<u8>,
    /// The socket has not taken them yet.
    waiting: Option<Transmit>,
}

/// What a task needs while it runs, and no task keeps.
struct Memory {
    /// To receive into.
    received: Vec<u8>,
    /// Which connection gets what of it.
    events: Vec<Arrival>,
    batch: Vec<u8>,
}

thread_local!(static MEMORY: Cell<Memory> = const { Cell::new(Memory::EMPTY) });

impl Default for Memory {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Memory {
    const EMPTY: Self = Self {
        received: Vec::new(),
        events: Vec::new(),
        batch: Vec::new(),
    };

    /// At least `bytes` to receive into. The system gives pages when they are written to: what is never filled costs nothing.
    fn received(&mut self, bytes: usize) -> &mut [u8] {
        if self.received.len() < bytes {
            self.received = vec![0; bytes];
        }
        &mut self.received
    }
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let task = &mut *self;
        task.shared.task.register(cx.waker());
        task.follow_socket();
        let mut memory = MEMORY.take();
        if task.waiting.is_none() {
            task.batch = mem::take(&mut memory.batch);
        }
        let busy = task.rounds(&mut memory, cx);
        if task.waiting.is_none() {
            memory.batch = mem::take(&mut task.batch);
        }
        MEMORY.set(memory);
        if busy {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if task.shared.unused.load(Ordering::Acquire)
            && task.shared.open.load(Ordering::Acquire) == 0
            && task.shared.state().answers.is_empty()
        {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Task {
    fn new(
        shared: Arc<Shared>,
        socket: Arc<dyn AsyncUdpSocket>,
        largest: usize,
        timers: Timers,
    ) -> Self {
        Self {
            shared,
            socket,
            before: None,
            generation: 0,
            largest,
            timer: Timer::new(timers),
            deadlines: BTreeSet::new(),
            turn: VecDeque::new(),
            seen: 0,
            waited: 0,
            blocked: Vec::new(),
            batch: Vec::new(),
            waiting: None,
        }
    }

    /// Whether there is more to do at once.
    fn rounds(&mut self, memory: &mut Memory, cx: &mut Context<'_>) -> bool {
        for _ in 0..ROUNDS {
            let received = self.receive(memory, cx);
            self.take_time();
            if self.waits_for_more() {
                return true;
            }
            if !(self.send_all(cx) || received) {
                return false;
            }
        }
        true
    }

    /// Whether others are to run before anything is sent: what was written since then fills no batch, and more of it came since this was last asked.
    fn waits_for_more(&mut self) -> bool {
        self.turn.extend(self.shared.due.lock().drain(..));
        let written = self.shared.written.load(Ordering::Relaxed);
        let waits =
            (1..MOST_BYTES).contains(&written) && written != self.seen && self.waited < MOST_WAITS;
        if waits {
            self.seen = written;
            self.waited += 1;
        } else {
            self.shared.written.store(0, Ordering::Relaxed);
            (self.seen, self.waited) = (0, 0);
        }
        waits
    }

    /// Sends what there is to send now. Whether there is more to do at once.
    fn send_all(&mut self, cx: &mut Context<'_>) -> bool {
        let is_open = self.unblock(cx) && self.answer(cx);
        self.turns(cx, is_open);
        let first = self.deadlines.first().map(|(at, _)| *at);
        let late = self.timer.poll(first, cx).is_ready();
        late || !self.turn.is_empty() || !self.shared.due.lock().is_empty()
    }

    fn follow_socket(&mut self) {
        let generation = self.shared.generation.load(Ordering::Acquire);
        if self.generation != generation {
            self.generation = generation;
            let sockets = self.shared.socket.lock();
            self.socket = Arc::clone(&sockets.now);
            self.before = sockets.before.clone();
        }
    }

    /// Whether more may be there.
    fn receive(&mut self, memory: &mut Memory, cx: &mut Context<'_>) -> bool {
        if let Some(before) = self.before.clone() {
            self.receive_from(&*before, memory, cx);
        }
        let socket = Arc::clone(&self.socket);
        let (got, more) = self.receive_from(&*socket, memory, cx);
        if got && self.before.take().is_some() {
            self.shared.socket.lock().before = None;
        }
        more
    }

    /// Whether anything came, and whether more may be there.
    fn receive_from(
        &mut self,
        socket: &dyn AsyncUdpSocket,
        memory: &mut Memory,
        cx: &mut Context<'_>,
    ) -> (bool, bool) {
        let segments = socket.max_receive_segments().max(1);
        let size = self.largest.saturating_mul(segments).clamp(1, MOST_BUFFER);
        let mut events = mem::take(&mut memory.events);
        let room = memory.received(size * BUFFERS);
        let (mut got, mut more) = (0, true);
        while got < RECEIVED {
            let mut buffers = room.chunks_exact_mut(size);
            let mut buffers: [_; BUFFERS] =
                std::array::from_fn(|_| IoSliceMut::new(buffers.next().unwrap_or_default()));
            let mut metas = [RecvMeta::default(); BUFFERS];
            match socket.poll_recv(cx, &mut buffers, &mut metas) {
                Poll::Ready(Ok(received)) => {
                    let received = buffers.iter().zip(&metas).take(received);
                    let received = received.map(|(buffer, meta)| (&**buffer, meta));
                    got += self.take(received, &mut events);
                    self.hand_over(&mut events);
                }
                // One datagram is lost, and what the network said of another.
                Poll::Ready(Err(error)) => {
                    tracing::debug!(%error, "receiving failed");
                    break;
                }
                Poll::Pending => {
                    more = false;
                    break;
                }
            }
        }
        memory.events = events;
        (got > 0, more)
    }

    /// What packets are to their connections; how many there were, and one for the call.
    fn take<'a>(
        &self,
        received: impl Iterator<Item = (&'a [u8], &'a RecvMeta)>,
        events: &mut Vec<Arrival>,
    ) -> usize {
        let now = now();
        let mut count = 1;
        let mut state = self.shared.state();
        for (buffer, meta) in received {
            let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
            let whole = buffer.get(..meta.len).unwrap_or_default();
            let stride = meta.stride.max(1);
            // "UDP datagrams with payloads larger than this limit are not likely to be processed by the receiver" (RFC 9000 §18.2): whoever keeps a byte
            // of one keeps all of it.
            if stride.min(whole.len()) > self.largest {
                continue;
            }
            for together in whole.chunks(stride.saturating_mul(TOGETHER)) {
                let mut left = BytesMut::from(together);
                while !left.is_empty() {
                    count += 1;
                    let packet = if left.len() > stride {
                        left.split_to(stride)
                    } else {
                        mem::take(&mut left)
                    };
                    self.sort(&mut state, now, (meta, ecn), packet, events);
                }
            }
        }
        count
    }

    /// What one packet is.
    fn sort(
        &self,
        state: &mut endpoint::State,
        now: Instant,
        (meta, ecn): (&RecvMeta, Option<EcnCodepoint>),
        packet: BytesMut,
        events: &mut Vec<Arrival>,
    ) {
        let mut contents = Vec::new();
        let (from, to) = (meta.addr, meta.dst_ip);
        match state
            .stack
            .handle(now, from, to, ecn, packet, &mut contents)
        {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                events.push(Arrival {
                    number: handle.0,
                    from,
                    to,
                    event,
                });
            }
            Some(DatagramEvent::NewConnection(attempt)) => {
                if state.closed.is_some() {
                    self.shared.refuse(state, attempt);
                } else {
                    state.incoming.push_back(attempt);
                    self.shared.incoming.notify_waiters();
                }
            }
            Some(DatagramEvent::Response(transmit)) => {
                self.shared.answer(state, transmit, contents);
            }
            None => {}
        }
    }

    /// Gives each connection its events: those that follow each other under one lock.
    fn hand_over(&mut self, events: &mut Vec<Arrival>) {
        let mut all = events.drain(..).peekable();
        while let Some(arrival) = all.next() {
            let number = arrival.number;
            let Some(inner) = self.shared.connection(number) else {
                continue;
            };
            let mut connection = inner.state();
            connection.take(arrival);
            while let Some(arrival) = all.next_if(|next| next.number == number) {
                connection.take(arrival);
            }
            self.made_due(inner.clone(), connection);
        }
    }

    /// Something happened to a connection: who waits for that is told, and it gets its turn.
    fn made_due(&mut self, inner: Arc<Inner>, mut connection: MutexGuard<'_, connection::State>) {
        inner.tell(&mut connection);
        let is_queued = mem::replace(&mut connection.is_due, true);
        drop(connection);
        if !is_queued {
            self.turn.push_back(inner);
        }
    }

    /// Has those whose time has come take their turn.
    fn take_time(&mut self) {
        let now = now();
        while let Some((at, number)) = self.deadlines.first().copied() {
            if at > now {
                break;
            }
            self.deadlines.pop_first();
            let Some(inner) = self.shared.connection(number) else {
                continue;
            };
            let mut connection = inner.state();
            connection.deadline = None;
            connection.stack.handle_timeout(now);
            self.made_due(inner.clone(), connection);
        }
    }

    /// Sends the batch that waits. Whether the socket takes more.
    fn unblock(&mut self, cx: &mut Context<'_>) -> bool {
        if self.socket.poll_flush(cx).is_pending() {
            return false;
        }
        if let Some(transmit) = self.waiting.take()
            && !self.send(transmit, cx)
        {
            return false;
        }
        for inner in mem::take(&mut self.blocked) {
            let mut connection = inner.state();
            connection.is_blocked = false;
            self.made_due(inner.clone(), connection);
        }
        true
    }

    /// Sends what the endpoint itself has to say. Whether the socket takes more.
    fn answer(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            let answer = self.shared.state().answers.pop_front();
            let Some((transmit, contents)) = answer else {
                return true;
            };
            self.batch = contents;
            if !self.send(transmit, cx) {
                return false;
            }
        }
    }

    /// A turn for each that has something to do now.
    fn turns(&mut self, cx: &mut Context<'_>, mut is_open: bool) {
        for _ in 0..self.turn.len() {
            let Some(inner) = self.turn.pop_front() else {
                return;
            };
            is_open = self.one_turn(inner, cx, is_open);
        }
    }

    /// Whether the socket takes more afterwards.
    fn one_turn(&mut self, inner: Arc<Inner>, cx: &mut Context<'_>, is_open: bool) -> bool {
        let mut connection = inner.state();
        connection.is_due = false;
        let mut is_drained = false;
        while let Some(event) = connection.stack.poll_endpoint_events() {
            let mut state = self.shared.state();
            if event.is_drained() {
                is_drained = true;
                // Under the lock under which the stack gives its number to the next one.
                state.connections[inner.handle.0] = None;
            }
            if let Some(answer) = state.stack.handle_event(inner.handle, event) {
                connection.stack.handle_event(answer);
            }
        }
        inner.tell(&mut connection);
        connection.follow_windows(now());
        if is_drained {
            self.set_deadline(&inner, connection.deadline.take(), None);
            if self.shared.open.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.shared.idle.notify_waiters();
            }
            return is_open;
        }
        let mut transmit = None;
        if is_open {
            self.batch.clear();
            let most = self.most_segments(usize::from(connection.stack.current_mtu()));
            transmit = connection.poll_transmit(now(), most, &mut self.batch);
        } else if !mem::replace(&mut connection.is_blocked, true) {
            self.blocked.push(Arc::clone(&inner));
        }
        if transmit.is_some() {
            connection.is_due = true;
            drop(connection);
            self.turn.push_back(inner);
        } else {
            let next = connection.next_deadline();
            let last = mem::replace(&mut connection.deadline, next);
            drop(connection);
            self.set_deadline(&inner, last, next);
        }
        transmit.is_none_or(|transmit| self.send(transmit, cx)) && is_open
    }

    fn most_segments(&self, size: usize) -> usize {
        let most = self.socket.max_transmit_segments().min(MOST_SEGMENTS);
        most.min(MOST_BYTES / size.max(1)).max(1)
    }

    fn set_deadline(&mut self, inner: &Inner, last: Option<Instant>, next: Option<Instant>) {
        if last == next {
            return;
        }
        if let Some(last) = last {
            self.deadlines.remove(&(last, inner.handle.0));
        }
        if let Some(next) = next {
            self.deadlines.insert((next, inner.handle.0));
        }
    }

    /// Sends the batch; what the socket does not take now waits. Whether it was taken. Other errors lose the packets, as the network may.
    fn send(&mut self, transmit: Transmit, cx: &mut Context<'_>) -> bool {
        let contents = self.batch.get(..transmit.size).unwrap_or_default();
        let packets = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit
                .ecn
                .and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents,
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        match self.socket.poll_send(cx, &packets) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(error)) => {
                tracing::debug!(%error, "a batch was not sent");
                true
            }
            Poll::Pending => {
                self.waiting = Some(transmit);
                false
            }
        }
    }
}

/// The runtime ends: nobody waits for ever.
impl Drop for Task {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.gone = true;
        let endpoint::State {
            stack, incoming, ..
        } = &mut *state;
        incoming.drain(..).for_each(|attempt| stack.ignore(attempt));
        let connections: Vec<_> = state.connections.drain(..).flatten().collect();
        drop(state);
        self.shared.open.store(0, Ordering::Release);
        for inner in connections {
            let error = TransportError {
                code: TransportErrorCode::INTERNAL_ERROR,
                frame: None,
                reason: "the endpoint has ended".to_owned(),
            };
            inner.lose(&ConnectionError::TransportError(error));
        }
        // What ends with its connection may ask for locks that others hold who wait for this one.
        let due = mem::take(&mut *self.shared.due.lock());
        drop(due);
        self.shared.incoming.notify_waiters();
        self.shared.idle.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
