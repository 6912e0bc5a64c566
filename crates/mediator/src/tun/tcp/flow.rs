//! A TCP flow: a program's connection and the overlay's stream that it goes on as. The table hands segments in and sends what follows from a
//! batch of them; the flow's task opens the stream and moves bytes between the two; each wakes the other.

use std::{
    cell::RefCell,
    fmt,
    future::{Future, poll_fn},
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use hoplite_overlay::{Error, ErrorKind, Reason, Stream};
use hoplite_wire::{
    Target,
    ip::tcp::{Flags, Segment},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{AsyncBufRead, AsyncWrite},
    time::{Instant, Sleep, sleep_until},
};

use super::{
    HalfOpenSlot, Shared,
    connection::{CloseReason, Connection, OutgoingSegment},
    send::MAX_PAYLOAD,
};
use crate::{
    budget::Account,
    copy::{IdleTimer, LINGER},
    tun::{
        Counters, FlowKey,
        names::MappingHold,
        outgoing::{OutgoingPacket, PacketSink, tcp_headers, tell_unreachable, unreachable_for},
    },
    users::User,
};

thread_local! {
    /// Where headers are put together.
    static HEADERS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A TCP flow, as the table and its task share it.
pub(super) struct TcpFlow {
    pub(super) key: FlowKey,
    pub(super) user: User,
    half_open: AtomicBool,
    state: Mutex<FlowState>,
}

#[derive(Debug)]
pub(super) struct FlowState {
    pub(super) connection: Connection,
    task: Option<Waker>,
    /// There is something for the task to do.
    task_due: bool,
    /// It waits for the end of the batch to be sent for.
    flush_pending: bool,
    /// When the task's timer wakes it.
    armed: Option<Instant>,
    /// Its part of the budget, until it has been evicted.
    account: Option<Account>,
    /// Since when what waits in it has waited, at least.
    waiting_since: Option<Instant>,
}

impl TcpFlow {
    pub(super) fn new(key: FlowKey, connection: Connection, account: Account) -> Self {
        let user = account.user();
        let state = FlowState {
            connection,
            task: None,
            task_due: false,
            flush_pending: false,
            armed: None,
            account: Some(account),
            waiting_since: None,
        };
        Self {
            key,
            user,
            half_open: AtomicBool::new(true),
            state: Mutex::new(state),
        }
    }

    /// Whether it waits for the stream or for the program's confirmation.
    pub(super) fn is_half_open(&self) -> bool {
        self.half_open.load(Ordering::Relaxed)
    }

    pub(super) fn set_opened(&self) {
        self.half_open.store(false, Ordering::Relaxed);
    }

    /// Never held across an await, and all is on one thread: nobody waits here.
    pub(super) fn lock(&self) -> MutexGuard<'_, FlowState> {
        self.state.lock()
    }

    /// Takes a segment; `true` if the flow is to be flushed and nobody knows yet.
    pub(super) fn received(&self, segment: &Segment<'_>, payload: Bytes, now: Instant) -> bool {
        let mut state = self.lock();
        if !payload.is_empty() {
            state.set_memory_limit();
        }
        state.task_due |= !payload.is_empty() || segment.flags.intersects(Flags::FIN | Flags::RST);
        state.connection.segment(segment, payload, now);
        state.account_memory(now);
        state.task_due |= state.connection.can_send_again() || state.connection.ended().is_some();
        !std::mem::replace(&mut state.flush_pending, true)
    }

    /// Sends what follows from a batch of segments, and wakes the task if it has something to do.
    pub(super) fn flush(&self, sink: &dyn PacketSink, now: Instant) {
        let mut state = self.lock();
        state.flush_pending = false;
        state.transmit(self.key, sink, now);
        if state.task_due || state.needs_earlier_wake() {
            state.wake();
        }
    }

    /// Ends the connection without a word to the program, for it has forgotten it.
    pub(super) fn abandon(&self) {
        let mut state = self.lock();
        state.connection.abandon();
        state.wake();
    }

    /// Ends a connection so that others have its place and its memory from now on.
    pub(super) fn evict(&self, now: Instant) {
        self.abort();
        let mut state = self.lock();
        state.account_memory(now);
        state.account = None;
    }

    /// Ends a connection that has not begun. A program that has no answer yet will ask again.
    pub(super) fn abort(&self) {
        let mut state = self.lock();
        if state.connection.is_syn_pending() {
            state.connection.abandon()
        } else {
            state.connection.reset()
        }
        state.wake();
    }
}

impl FlowState {
    /// The task begins its turn.
    pub(super) fn begin_turn(&mut self, cx: &Context<'_>, now: Instant) {
        self.task_due = false;
        if !self
            .task
            .as_ref()
            .is_some_and(|task| task.will_wake(cx.waker()))
        {
            self.task = Some(cx.waker().clone());
        }
        self.connection.expire(now);
    }

    /// Tells the connection what it may hold now.
    fn set_memory_limit(&mut self) {
        let more = self.account.as_ref().map_or(0, Account::allowance);
        self.connection.set_memory_limit(more);
    }

    /// Counts what the connection holds.
    pub(super) fn account_memory(&mut self, now: Instant) {
        self.waiting_since = self.connection.waiting_since(now);
        let memory = self.connection.memory();
        if let Some(account) = &mut self.account {
            account.set(memory);
        }
    }

    /// Since when it has held memory for bytes that nobody takes.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        self.waiting_since.filter(|_| self.account.is_some())
    }

    /// How readily it is evicted: see [`Account::eviction_weight`]. `None` if it has been evicted already.
    pub(super) fn eviction_weight(&self, now: Instant) -> Option<(u128, Duration)> {
        let last_heard = self.connection.last_heard().unwrap_or(now);
        let account = self.account.as_ref()?;
        Some(account.eviction_weight(now.saturating_duration_since(last_heard)))
    }

    /// How many bytes the flows of its owner hold, and those of its user.
    pub(super) fn memory_of_user(&self) -> Option<(usize, usize)> {
        let [owner, user, _] = self.account.as_ref()?.in_use();
        Some((owner, user))
    }

    /// How many bytes may be pushed now.
    pub(super) fn room(&mut self) -> usize {
        self.set_memory_limit();
        self.connection.room()
    }

    /// Bytes for the program; no more than there is [`Self::room`] for.
    pub(super) fn push(&mut self, bytes: &[u8], now: Instant) {
        self.connection.push(bytes);
        self.account_memory(now);
    }

    /// The task's turn is over, and it will be woken at `armed`.
    pub(super) fn set_armed(&mut self, armed: Option<Instant>) {
        self.armed = armed;
    }

    /// Whether the connection must be looked after before the task's timer does.
    fn needs_earlier_wake(&self) -> bool {
        match (self.connection.timeout(), self.armed) {
            (Some(wanted), Some(armed)) => wanted < armed,
            (wanted, _) => wanted.is_some(),
        }
    }

    fn wake(&mut self) {
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    /// Whether the connection ended otherwise than by both sides finishing.
    pub(super) fn is_broken(&self) -> bool {
        self.connection
            .ended()
            .is_some_and(|end| end != CloseReason::Complete)
    }

    /// Sends all that may leave. When the port is full, the rest waits for acknowledgements or the timer.
    pub(super) fn transmit(&mut self, key: FlowKey, sink: &dyn PacketSink, now: Instant) {
        while let Some(packet) = self.connection.transmit(now) {
            if !self.send(key, sink, packet) {
                return;
            }
        }
    }

    fn send(&self, key: FlowKey, sink: &dyn PacketSink, packet: OutgoingSegment) -> bool {
        let (payload, segment) = self.connection.payload(&packet);
        send(key, sink, packet, payload, segment)
    }
}

/// Sends one packet to the program.
pub(super) fn send(
    key: FlowKey,
    sink: &dyn PacketSink,
    packet: OutgoingSegment,
    payload: [&[u8]; 2],
    segment: Option<u16>,
) -> bool {
    let (from, to, mut header) = (key.target, key.program, packet.header);
    (header.source, header.destination) = (from.port(), to.port());
    let len = payload[0].len() + payload[1].len();
    HEADERS.with_borrow_mut(|headers| {
        tcp_headers(headers, from.ip(), to.ip(), &header, len);
        sink.send(OutgoingPacket::tcp(headers, payload, segment))
    })
}

impl fmt::Debug for TcpFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TcpFlow")
    }
}

/// A flow's task: opens the stream, hands it to the [`Pump`], and stays until the program's side of the connection has ended too. A program that
/// was answered early has its stream early: whether that came about is found out by the pump. Dropped before its end, it resets the program's
/// connection and the stream.
pub(super) struct FlowTask {
    shared: Arc<Shared>,
    flow: Arc<TcpFlow>,
    timer: DeadlineTimer,
    /// As long as the flow lasts, its address means what it meant.
    _mapping: Option<MappingHold>,
}

/// The stream that a flow asks the overlay for.
pub(super) struct OpenRequest {
    pub(super) target: Target,
    /// The SYN is answered: what the program says travels with the request.
    pub(super) early: bool,
    /// The packet with the SYN, if it is not answered before the stream is open: a refusal quotes it.
    pub(super) cause: Option<Box<[u8]>>,
}

impl FlowTask {
    pub(super) fn new(shared: &Arc<Shared>, flow: &Arc<TcpFlow>, now: Instant) -> Self {
        shared.context.counters.tcp_opened.add(1);
        let target = flow.key.target.ip();
        Self {
            shared: Arc::clone(shared),
            flow: Arc::clone(flow),
            timer: DeadlineTimer::default(),
            _mapping: shared.context.names.hold(target, now),
        }
    }

    pub(super) async fn run(mut self, order: OpenRequest, half_open: HalfOpenSlot) {
        let Some(stream) = self.open(&order).await else {
            return;
        };
        let asked = (!stream.is_answered()).then_some(order.target);
        drop(order.cause);
        let mut pump = Pump::new(&mut self, stream, asked, half_open);
        poll_fn(|cx| pump.poll(cx)).await;
        drop(pump);
        poll_fn(|cx| self.poll_end(cx)).await;
    }

    /// Opens the stream and answers the SYN accordingly; `None` if there is nothing to carry.
    async fn open(&mut self, order: &OpenRequest) -> Option<Stream> {
        let context = Arc::clone(&self.shared.context);
        let terms = context.terms(Some(self.flow.user)).early(order.early);
        let opening = context.open_stream(&order.target, self.flow.user, &terms);
        let mut opening = pin!(terms.run("opening a stream", opening));
        let opened = poll_fn(|cx| match self.poll_end(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => opening.as_mut().poll(cx).map(Some),
        });
        match opened.await? {
            Ok(stream) => {
                if stream.is_answered() {
                    self.worked(&order.target);
                }
                self.accept();
                Some(stream)
            }
            Err(error) => {
                self.failed(&order.target, &error);
                self.refuse(&error, order.cause.as_deref());
                None
            }
        }
    }

    /// The target has accepted the stream.
    pub(super) fn worked(&self, target: &Target) {
        let mut recent = self.shared.recent.lock();
        recent.worked(self.flow.user, target, Instant::now());
    }

    /// The stream could not be opened.
    pub(super) fn failed(&self, target: &Target, error: &Error) {
        self.shared.recent.lock().failed(self.flow.user, target);
        let address = self.flow.key.target.ip();
        self.shared.context.flow_failed(address, error);
    }

    fn accept(&self) {
        let (mut state, now) = (self.flow.lock(), Instant::now());
        state.connection.accept(now);
        self.transmit(&mut state, now);
    }

    /// Tells the program: by a reset, or by ICMP where the SYN was not answered and the target did not refuse it.
    fn refuse(&self, error: &Error, cause: Option<&[u8]>) {
        let (mut state, now) = (self.flow.lock(), Instant::now());
        match cause.filter(|_| error.reason() != Some(Reason::Refused)) {
            Some(cause) => {
                tell_unreachable(&self.shared.context, cause, unreachable_for(error));
                state.connection.abandon();
            }
            None => state.connection.reset(),
        }
        self.transmit(&mut state, now);
    }

    /// Does what the connection wants while there is no stream; ready when it has ended.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let flow = self.flow();
        let (mut state, now) = (flow.lock(), Instant::now());
        state.begin_turn(cx, now);
        self.end_turn(cx, &mut state, now);
        match state.connection.ended() {
            Some(_) => Poll::Ready(()),
            None => Poll::Pending,
        }
    }

    /// Sends what is due and sets the timer.
    pub(super) fn end_turn(&mut self, cx: &mut Context<'_>, state: &mut FlowState, now: Instant) {
        self.transmit(state, now);
        while self.timer.poll(cx, state.connection.timeout()).is_ready() {
            let now = Instant::now();
            state.connection.expire(now);
            self.transmit(state, now);
        }
        state.account_memory(now);
        state.set_armed(self.timer.armed());
    }

    pub(super) fn transmit(&self, state: &mut FlowState, now: Instant) {
        state.transmit(self.flow.key, &*self.shared.context.sink, now);
    }

    pub(super) fn flow(&self) -> Arc<TcpFlow> {
        Arc::clone(&self.flow)
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.shared.context.counters
    }
}

impl Drop for FlowTask {
    fn drop(&mut self) {
        let mut state = self.flow.lock();
        if state.connection.ended() == Some(CloseReason::Idle) {
            self.counters().tcp_idle.add(1);
        }
        state.connection.reset();
        self.transmit(&mut state, Instant::now());
        drop(state);
        self.shared.remove(&self.flow);
        self.shared.context.counters.tcp_closed.add(1);
    }
}

/// How many pieces one write takes.
const MAX_SLICES: usize = 16;

/// How far the direction to the target has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadPhase {
    Copying,
    /// The program has finished: the stream is being finished.
    Finishing,
    Finished,
    /// The target reads no more; the program may still send.
    Discarding,
}

/// Moves bytes between a connection and the overlay's stream, both ways, and half-closes too. Down, no more is taken from the stream than the
/// program has room for; up, the connection's window is all that waits. So whoever is slow stops the other, and a flow in which nothing moves
/// owns no buffer. If the stream takes bytes before its target has answered, the answer is noted here.
struct Pump<'a> {
    task: &'a mut FlowTask,
    half_open: Option<HalfOpenSlot>,
    stream: Stream,
    /// The target, until it is known whether it takes the flow.
    asked: Option<Target>,
    up: UploadPhase,
    /// Whether the stream may hold back what was written.
    unflushed: bool,
    down_ended: bool,
    /// Changes when something moves down.
    moved: usize,
    idle: IdleTimer,
}

impl<'a> Pump<'a> {
    /// `asked` is the target of a stream that was handed out before its answer.
    pub(super) fn new(
        task: &'a mut FlowTask,
        stream: Stream,
        asked: Option<Target>,
        half_open: HalfOpenSlot,
    ) -> Self {
        Self {
            task,
            half_open: Some(half_open),
            stream,
            asked,
            up: UploadPhase::Copying,
            unflushed: false,
            down_ended: false,
            moved: 0,
            idle: IdleTimer::default(),
        }
    }

    /// Ready when the stream is of no more use: both directions have ended, or one end broke.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let flow = self.task.flow();
        let (mut state, now) = (flow.lock(), Instant::now());
        state.begin_turn(cx, now);
        if state.is_broken() {
            return Poll::Ready(());
        }
        self.poll_down(cx, &mut state, now);
        let up = self.poll_up(cx, &mut state.connection);
        self.note(&state.connection);
        self.task.end_turn(cx, &mut state, now);
        if state.is_broken() || (up.is_ready() && self.down_ended) {
            return Poll::Ready(());
        }
        ready!(self.poll_refused(cx, &mut state.connection));
        state.connection.reset();
        self.task.end_turn(cx, &mut state, now);
        Poll::Ready(())
    }

    /// What has come about meanwhile: the target's answer, the program's confirmation.
    fn note(&mut self, connection: &Connection) {
        if self.stream.is_answered()
            && let Some(target) = self.asked.take()
        {
            self.task.worked(&target);
        }
        if self.asked.is_none() && connection.is_open() {
            self.half_open = None;
        }
    }

    /// The stream is of no use any more, or never was.
    fn broke(&mut self, error: &io::Error, connection: &mut Connection) {
        tracing::trace!(%error, "the target's stream broke");
        if let Some(target) = self.asked.take_if(|_| !self.stream.is_answered()) {
            let unknown = || Error::new(ErrorKind::PathFailed, "opening a stream");
            let error = Error::from_io(error).cloned().unwrap_or_else(unknown);
            self.task.failed(&target, &error);
        }
        connection.reset();
    }

    /// A target that reads no more has broken its connection, whatever the way down looks like; but what it sent before is told first.
    /// Ready when the program has that, or when nothing more comes.
    fn poll_refused(&mut self, cx: &mut Context<'_>, connection: &mut Connection) -> Poll<()> {
        if self.up == UploadPhase::Discarding && self.down_ended && connection.is_drained() {
            return Poll::Ready(());
        }
        let limit = match self.up {
            UploadPhase::Discarding => LINGER,
            _ => Duration::ZERO,
        };
        self.idle.poll(cx, limit, self.moved)
    }

    fn poll_down(&mut self, cx: &mut Context<'_>, state: &mut FlowState, now: Instant) {
        while !self.down_ended {
            let slice = match Pin::new(&mut self.stream).poll_fill_buf(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok([])) => {
                    self.down_ended = true;
                    return self.finish(state, now);
                }
                Poll::Ready(Ok(slice)) => slice,
                Poll::Ready(Err(error)) => return self.broke(&error, &mut state.connection),
            };
            let space = state.room();
            if space == 0 {
                return state.connection.stall(now);
            }
            let piece = slice.get(..space).unwrap_or(slice);
            let len = piece.len();
            state.push(piece, now);
            Pin::new(&mut self.stream).consume(len);
            self.moved = self.moved.wrapping_add(len);
            self.task.counters().tcp_down.add(len);
            if state.connection.unsent() >= MAX_PAYLOAD {
                self.task.transmit(state, now);
            }
        }
    }

    fn finish(&self, state: &mut FlowState, now: Instant) {
        if self.up != UploadPhase::Discarding {
            state.connection.finish(now);
        }
    }

    /// Ready when this direction has ended in order.
    fn poll_up(&mut self, cx: &mut Context<'_>, connection: &mut Connection) -> Poll<()> {
        loop {
            let step = match self.up {
                UploadPhase::Finished => return Poll::Ready(()),
                UploadPhase::Discarding => return Poll::Pending,
                UploadPhase::Finishing => self.poll_shutdown(cx),
                UploadPhase::Copying if connection.readable() > 0 => {
                    self.poll_write(cx, connection)
                }
                UploadPhase::Copying if connection.read_ended() => {
                    self.up = UploadPhase::Finishing;
                    continue;
                }
                UploadPhase::Copying => self.poll_flush(cx),
            };
            if let Err(error) = ready!(step) {
                if self.asked.is_some() && !self.stream.is_answered() {
                    self.broke(&error, connection);
                    return Poll::Pending;
                }
                tracing::trace!(%error, "the target reads no more");
                self.up = UploadPhase::Discarding;
                connection.discard();
                return Poll::Pending;
            }
        }
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut Connection,
    ) -> Poll<io::Result<()>> {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let count = connection.read(&mut slices);
        let slices = slices.get(..count).unwrap_or_default();
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        connection.consume(written);
        self.unflushed = true;
        self.task.counters().tcp_up.add(written);
        Poll::Ready(Ok(()))
    }

    /// Nothing to write: what an overlay still holds back leaves now. Ready only when that fails.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.unflushed {
            return Poll::Pending;
        }
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        self.unflushed = false;
        match flushed {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        self.up = UploadPhase::Finished;
        Poll::Ready(Ok(()))
    }
}

/// A flow's timer. Deadlines mostly move later, so it is armed for the earliest and looks again when that has come: a busy flow touches the
/// runtime's timers a few times a second, an idle one never.
#[derive(Debug, Default)]
struct DeadlineTimer {
    sleep: Option<Pin<Box<Sleep>>>,
    armed: Option<Instant>,
}

impl DeadlineTimer {
    /// When it wakes the task.
    pub(super) fn armed(&self) -> Option<Instant> {
        self.armed
    }

    /// Ready when it is time to look whether `deadline` has come; else the task is woken then, or before.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
        if let Some(at) = deadline.filter(|at| self.armed.is_none_or(|armed| *at < armed)) {
            self.arm(at);
        }
        let Some(sleep) = self.sleep.as_mut().filter(|_| self.armed.is_some()) else {
            return Poll::Pending;
        };
        if sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.armed = None;
        Poll::Ready(())
    }

    fn arm(&mut self, at: Instant) {
        self.armed = Some(at);
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().reset(at),
            None => self.sleep = Some(Box::pin(sleep_until(at))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::Wake,
    };

    use hoplite_wire::ip::tcp::{self, Header};

    use super::*;
    use crate::{
        budget::Budget,
        tun::{
            tcp::connection::Settings,
            testing::{MemorySink, PROGRAM, TARGET, parsed, tcp_packet},
        },
    };

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn flow() -> TcpFlow {
        let header = Header {
            flags: Flags::SYN,
            ..Header::default()
        };
        let bytes = tcp_packet(PROGRAM, TARGET, &header, b"");
        let syn = tcp::parse(parsed(&bytes).payload).expect("a segment");
        let settings = Settings {
            isn: 1,
            window: 1 << 20,
            floor: 2048,
            mss: 1460,
            default_mss: 536,
            idle: Duration::ZERO,
        };
        let (program, target) = ((PROGRAM, 1).into(), (TARGET, 2).into());
        let account =
            Budget::new(1 << 20).open(User::at(PROGRAM), hoplite_wire::Host::ip(TARGET), 4096);
        let connection = Connection::new(&syn, settings);
        TcpFlow::new(
            FlowKey { program, target },
            connection,
            account.expect("there is room"),
        )
    }

    #[test]
    fn a_task_whose_timer_would_come_too_late_is_woken() {
        let (flow, now) = (flow(), Instant::now());
        let (sink, woken) = (MemorySink::new(1500), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        flow.lock().begin_turn(&Context::from_waker(&waker), now);
        flow.flush(&*sink, now);
        assert_eq!(woken.0.load(Ordering::SeqCst), 0, "nothing to wait for");
        flow.lock().connection.accept(now);
        flow.flush(&*sink, now);
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        flow.lock().begin_turn(&Context::from_waker(&waker), now);
        let deadline = flow.lock().connection.timeout();
        flow.lock().set_armed(deadline);
        flow.flush(&*sink, now);
        assert_eq!(woken.0.load(Ordering::SeqCst), 1, "it wakes by itself");
    }
}

#[cfg(test)]
mod timer_tests {
    use std::{future::poll_fn, time::Duration};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_wakes_at_the_earliest_deadline_and_not_at_all_without_one() {
        let (mut timer, start) = (DeadlineTimer::default(), Instant::now());
        let at = |seconds| Some(start + Duration::from_secs(seconds));
        let early =
            |timer: &mut DeadlineTimer, cx: &mut Context<'_>, n| timer.poll(cx, at(n)).is_pending();
        poll_fn(|cx| {
            assert!(
                early(&mut timer, cx, 3) && early(&mut timer, cx, 1) && early(&mut timer, cx, 2)
            );
            Poll::Ready(())
        })
        .await;
        assert_eq!(timer.armed(), at(1));
        poll_fn(|cx| timer.poll(cx, at(2))).await;
        assert_eq!(start.elapsed().as_secs(), 1);
        poll_fn(|cx| timer.poll(cx, at(2))).await;
        assert_eq!(start.elapsed().as_secs(), 2);
        assert!(poll_fn(|cx| Poll::Ready(timer.poll(cx, None).is_pending())).await);
    }
}
