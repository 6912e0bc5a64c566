//! A channel over QUIC: a control stream for circuit id 0 (the first bidirectional stream, the initiator's), and a bidirectional stream for each
//! circuit, whose cells keep their 514 bytes. On the way of a cell circuits share nothing of ours: each has its stream with its window, which whoever
//! reads the circuit reads, and whoever sends on it writes, without a task between. What they share is QUIC's: the congestion window and the stack itself.
//! RFC 9000 §2, §4 (streams, flow control); tor-spec: "Cell Packet format".

use std::{
    convert::Infallible,
    future::{pending, poll_fn},
    mem,
    net::IpAddr,
    slice,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use hoplite_link::QuicLink;
use hoplite_quic::{
    Connection, ReadError, RecvStream, SendStream, SendWindow, SharedBudget, VarInt, WhenBlocked,
    WindowBounds, WindowBudget,
    liveness::{Pulse, Vigil},
};
use hoplite_wire::cell::{self, Cell, CircuitId, Command, Reader};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use self::lanes::{Lanes, LanesIn, LanesOut};
use super::{
    Circuit, Closed, Config, Counts, Ending, Hold, HoldInner, Rival, Why,
    budget::{CELL, Gauge},
    ewma::{Activity, Scale},
    ids::{Ids, NoId},
    padding::Padding,
    queue::{Keeper, Place, Receiver, Sender, Sink, Source},
    tls::destroy,
    traffic::Flow,
    unread::Readers,
};

mod lanes;
#[cfg(test)]
pub(super) mod tests;

/// A stream that is reset for the reason of a DESTROY cell has this code and the reason.
const RESET_CODE: u32 = 0x100;
/// DESTROY: the peer broke the protocol.
const PROTOCOL: u8 = 1;
/// DESTROY: no room.
const RESOURCE_LIMIT: u8 = 5;
/// The control stream goes before all circuits.
const CONTROL_PRIORITY: i32 = 1;

/// What a channel and its tasks share. Nothing of it is locked on the way of a cell.
struct Shared {
    connection: Connection,
    ids: Arc<Mutex<Ids>>,
    counts: Arc<Counts>,
    flow: Arc<Flow>,
    config: Config,
    scale: Scale,
    ending: Ending,
    padding: Arc<Padding>,
    /// Where end-to-end streams have streams of their own, those that the peer opens.
    lanes: Option<Lanes>,
    /// Told when cells are sent on a connection that a relay dialled. One that we dialled has its own.
    pulse: Option<Arc<Pulse>>,
    readers: Readers,
    known: bool,
    send_window: SendWindow,
    /// Told while the peer may send nothing more because of what nobody reads.
    is_blocked: Arc<Notify>,
}

/// What a channel keeps of it.
pub(super) struct Transport(Arc<Shared>);

/// What a circuit has before it has a stream.
struct Berth {
    place: Arc<Place>,
    gauge: Arc<Gauge>,
}

/// What the tasks need besides.
pub(super) struct ChannelIo {
    pub(super) connection: Connection,
    /// What watches over it, where we dialled.
    pub(super) link: Option<QuicLink>,
    pub(super) control: (SendStream, RecvStream),
    /// With what was read behind the handshake.
    pub(super) reader: Reader,
    /// Whether the peer said who it is.
    pub(super) known: bool,
    pub(super) padding: Arc<Padding>,
    pub(super) arrivals: mpsc::Sender<Circuit>,
}

/// Starts the tasks, and lets the peer open streams.
pub(super) fn start(
    io: ChannelIo,
    ids: Ids,
    config: &Config,
    counts: &Arc<Counts>,
) -> (Transport, Hold) {
    let ending = Ending::new();
    let accepted = io.known && io.link.is_none();
    allow_streams(&io.connection, config, io.known);
    let hold = Hold::new(ending.clone(), io.link);
    let shared = Arc::new(Shared {
        send_window: io.connection.send_window(),
        connection: io.connection,
        ids: Arc::new(Mutex::new(ids)),
        counts: Arc::clone(counts),
        flow: counts.traffic.enter(),
        config: config.clone(),
        scale: Scale::new(Instant::now(), config.half_life),
        ending,
        padding: io.padding,
        lanes: (config.rival == Some(Rival::StreamPerStream)).then(Lanes::default),
        pulse: accepted.then(Pulse::new),
        readers: Readers::new(config.window.into()),
        known: io.known,
        is_blocked: Arc::default(),
    });
    if config.narrow {
        set_windows(&shared.connection, config.greeting_window.into());
    } else {
        shared.widen();
    }
    if shared.lanes.is_some() {
        let connection = &shared.connection;
        connection.set_max_concurrent_uni_streams(lanes::MOST_LANES.into());
        tokio::spawn(lanes::accept(Arc::clone(&shared)));
    }
    shared.watch();
    let acceptor = CircuitAcceptor {
        shared: Arc::clone(&shared),
        hold: Arc::downgrade(&hold.0),
        arrivals: io.arrivals,
    };
    let room = Room::new(config.most_circuits(io.known));
    tokio::spawn(acceptor.run(room));
    tokio::spawn(control(Arc::clone(&shared), io.control, io.reader));
    (Transport(shared), hold)
}

impl Transport {
    pub(super) async fn open(&self, hold: &Hold) -> Result<Circuit, Closed> {
        let shared = &self.0;
        let id = shared.ids.lock().choose().ok_or(Closed::Full)?;
        // From here on the id is released by the place, also if this is given up.
        let berth = shared.berth(id, hold.clone());
        let (send, receive) = tokio::select! {
            biased;
            why = shared.ending.wait() => return Err(Closed::Channel(why)),
            opened = shared.connection.open_bi() => opened.map_err(|_| Closed::Channel(Why::Gone))?,
        };
        let first = First::of(receive, shared);
        Ok(shared.circuit(berth, hold, send, first))
    }

    pub(super) fn circuits(&self) -> usize {
        self.0.ids.lock().len()
    }

    /// How many circuits somebody may have who asks for one.
    pub(super) fn may_have(&self, who: u64, now: Instant) -> usize {
        self.0.readers.may_have(who, self.0.whole_window(), now)
    }

    /// Windows so wide that no circuit takes another's.
    pub(super) fn widen(&self) {
        self.0.widen();
    }

    /// Windows that grow, as far as there is room in the budget.
    pub(super) fn adapt_windows(&self, budget: impl WindowBudget + 'static) {
        let first = self.0.config.greeting_window.into();
        self.0.adapt_windows(first, budget);
    }

    /// Bytes of cells that it has carried, both ways.
    pub(super) fn carried(&self) -> u64 {
        self.0.flow.carried()
    }

    /// Where the peer is now, as the connection sees it.
    pub(super) fn remote(&self) -> IpAddr {
        self.0.connection.remote_address().ip().to_canonical()
    }
}

/// Streams for the peer's first circuits, and a window so wide that no circuit takes another's.
pub(super) fn widen(connection: &Connection, config: &Config, known: bool) {
    allow_streams(connection, config, known);
    set_windows(connection, config.whole_window(known));
}

fn allow_streams(connection: &Connection, config: &Config, known: bool) {
    let streams = streams_at_first(config.most_circuits(known));
    connection.set_max_concurrent_bi_streams(streams.into());
    connection.set_max_concurrent_uni_streams(0u32.into());
}

fn set_windows(connection: &Connection, bytes: u64) {
    connection.set_send_window(bytes);
    connection.set_receive_window(bytes);
}

impl Shared {
    fn whole_window(&self) -> u64 {
        self.config.whole_window(self.known)
    }

    /// What the peer may send ahead of who reads, in all circuits.
    fn window(&self) -> u64 {
        let adapted = self.connection.receive_window();
        adapted.unwrap_or_else(|| self.whole_window())
    }

    fn widen(&self) {
        let whole = self.whole_window();
        set_windows(&self.connection, whole);
        // They stay so: what is left to say is when the peer is blocked.
        self.adapt_windows(whole, SharedBudget::new(0));
    }

    fn adapt_windows(&self, first: u64, budget: impl WindowBudget + 'static) {
        let whole = self.whole_window().max(first);
        let bounds = WindowBounds {
            receive: (first, whole),
            send: (first, whole),
        };
        let when_blocked = WhenBlocked::Tell(Arc::clone(&self.is_blocked));
        self.connection.adapt_windows(bounds, budget, when_blocked);
    }

    /// A relay that dialled us and is gone is noticed while we send to it.
    fn watch(&self) {
        let Some(pulse) = self.pulse.clone() else {
            return;
        };
        let vigil = Vigil {
            connection: self.connection.clone(),
            pulse,
            broken_after: self.config.broken_after,
        };
        tokio::spawn(vigil.run());
    }

    fn berth(&self, id: CircuitId, hold: Hold) -> Berth {
        let gauge = Arc::new(Gauge::quic(self.config.window, self.send_window.clone()));
        self.counts.enter(&gauge, &self.config);
        let keeper = Keeper::Quic(Arc::clone(&self.ids));
        Berth {
            place: Place::new(id, keeper, hold, Arc::clone(&gauge)),
            gauge,
        }
    }

    fn circuit(&self, berth: Berth, hold: &Hold, send: SendStream, first: First) -> Circuit {
        let Berth { place, gauge } = berth;
        let lanes = self.lanes.as_ref();
        let lanes = lanes.map(|lanes| lanes.enter(place.id, &self.connection));
        let (lanes_in, lanes_out) = lanes.unzip();
        let outbound = Outbound {
            id: place.id,
            stream: send,
            waiting: Waiting::default(),
            bound: self.config.outbox.max(1).saturating_mul(cell::LEN),
            is_full: false,
            cells: 0,
            activity: Activity::NONE,
            level: 0,
            scale: self.scale,
            linger: self.config.linger,
            counts: Arc::clone(&self.counts),
            flow: Arc::clone(&self.flow),
            gauge: Arc::clone(&gauge),
            written: 0,
            pulse: self.pulse.clone(),
            padding: Arc::clone(&self.padding),
            lanes: lanes_out,
            _hold: hold.clone(),
        };
        self.readers.enter(outbound.stream.id(), &gauge);
        let inbound = first.inbound(place.id, Arc::clone(&self.counts), gauge, lanes_in);
        Circuit {
            id: place.id,
            sender: Sender::new(Sink::Stream(Some(Box::new(outbound))), Arc::clone(&place)),
            receiver: Receiver::new(Source::Stream(Box::new(inbound)), place),
        }
    }
}

/// Takes in the circuits that the peer begins.
#[derive(Clone)]
struct CircuitAcceptor {
    shared: Arc<Shared>,
    hold: Weak<HoldInner>,
    arrivals: mpsc::Sender<Circuit>,
}

impl CircuitAcceptor {
    async fn run(self, mut room: Room) {
        let mut arriving = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                _ = self.shared.ending.wait() => return,
                Some(_) = arriving.join_next() => {}
                // Not more of them than the peer may have streams.
                opened = self.shared.connection.accept_bi() => match opened {
                    Ok((send, receive)) => {
                        arriving.spawn(self.clone().welcome(send, receive));
                        self.make(&mut room, arriving.len());
                    }
                    Err(_) => return,
                },
            }
        }
    }

    /// Makes room for further streams; this many of those that are open are no circuits yet.
    fn make(&self, room: &mut Room, arriving: usize) {
        let open = self.shared.ids.lock().len().saturating_add(arriving);
        if let Some(streams) = room.more(open) {
            let connection = &self.shared.connection;
            connection.set_max_concurrent_bi_streams(streams.into());
        }
    }

    /// A stream is a circuit from its first cell on.
    async fn welcome(self, mut send: SendStream, receive: RecvStream) {
        let mut first = First::of(receive, &self.shared);
        let read = timeout(self.shared.config.handshake, first.read()).await;
        let Ok(Some(id)) = read else {
            self.shared.counts.no_circuits.up();
            drop(send.reset(code(PROTOCOL)));
            return;
        };
        if let Err(reason) = self.admit(id, send, first) {
            tracing::trace!(reason, "a circuit was refused");
        }
    }

    fn admit(&self, id: CircuitId, mut send: SendStream, mut first: First) -> Result<(), u8> {
        let counts = &self.shared.counts;
        let claimed = self.shared.ids.lock().claim(id);
        let refused = match claimed {
            Ok(()) => return self.announce(id, send, first),
            Err(NoId::Taken) => (PROTOCOL, &counts.collisions),
            Err(NoId::NotTheirs) => (PROTOCOL, &counts.wrong_ids),
            Err(NoId::TooMany) => (RESOURCE_LIMIT, &counts.too_many),
        };
        let (reason, count) = refused;
        count.up();
        drop(send.reset(code(reason)));
        first.stop(code(reason));
        Err(reason)
    }

    fn announce(&self, id: CircuitId, send: SendStream, first: First) -> Result<(), u8> {
        let Some(hold) = self.hold.upgrade().map(Hold) else {
            self.shared.ids.lock().release(id);
            return Ok(());
        };
        let berth = self.shared.berth(id, hold.clone());
        let circuit = self.shared.circuit(berth, &hold, send, first);
        self.arrivals.try_send(circuit).map_err(|refused| {
            self.shared.counts.too_many.up();
            refused.into_inner().sender.destroy(RESOURCE_LIMIT);
            RESOURCE_LIMIT
        })
    }
}

/// Reads the control stream, and pads on it, until the channel ends, and ends the connection with it.
async fn control(shared: Arc<Shared>, streams: (SendStream, RecvStream), mut reader: Reader) {
    let (mut send, mut receive) = streams;
    drop(send.set_priority(CONTROL_PRIORITY));
    let why = tokio::select! {
        biased;
        why = read_control(&mut receive, &mut reader, &shared) => why,
        why = shared.ending.wait() => why,
        _ = shared.connection.closed() => Why::Gone,
        why = pad(&mut send, &shared) => why,
        never = make_room(&shared) => match never {},
    };
    if matches!(why, Why::Violation(_)) {
        shared.counts.violations.up();
    }
    shared.ending.end(why);
    shared.connection.close(0u32.into(), b"");
}

/// For so long circuits that nobody reads may keep others from going on.
const UNREAD_FOR: Duration = Duration::from_secs(1);
/// Whoever is told while the peer is blocked is told again within this time.
const TOLD_AGAIN: Duration = Duration::from_millis(200);

/// Ends circuits that nobody reads where they leave no room for the others.
async fn make_room(shared: &Shared) -> Infallible {
    // A peer that nobody knows harms its own circuits alone.
    if !shared.known {
        return pending().await;
    }
    let is_blocked = &shared.is_blocked;
    loop {
        is_blocked.notified().await;
        let marks = shared.readers.marks();
        sleep(UNREAD_FOR).await;
        // What was told meanwhile may be over.
        drop(timeout(Duration::ZERO, is_blocked.notified()).await);
        if timeout(TOLD_AGAIN, is_blocked.notified()).await.is_err() {
            continue;
        }
        let unread = shared.connection.unread();
        let ended = shared
            .readers
            .end(&unread, &marks, shared.window(), Instant::now());
        shared.counts.ended_for_room.add(ended);
        tracing::debug!(ended, "circuits that nobody read kept others from going on");
    }
}

/// How a stream is reset for the reason of a DESTROY cell.
fn code(reason: u8) -> VarInt {
    VarInt::from_u32(RESET_CODE | u32::from(reason))
}

/// The reason of a DESTROY cell that a stream was reset for, if it was for one.
fn reason(code: VarInt) -> Option<u8> {
    let code = code.into_inner().checked_sub(RESET_CODE.into())?;
    u8::try_from(code).ok()
}

// Reads a circuit's stream, by whoever reads the circuit: what nobody reads stays in the stream's window, and stops
// that stream alone. And the control stream, whose cells say nothing to us after the handshake.

/// How many pieces are taken from a stream at once: as many packets have a batch of cells.
const MAX_CHUNKS: usize = 16;
/// After this many cells that say nothing, others get their turn first.
const MAX_IGNORED: usize = 64;

/// A stream with its cells.
struct Cells {
    stream: RecvStream,
    reader: Reader,
    /// Bytes that were taken from the stream.
    taken: u64,
    flow: Arc<Flow>,
}

/// A stream that may become a circuit.
struct First {
    cells: Cells,
    /// The one that says which circuit it is.
    first: Option<Cell>,
}

/// One circuit's receiving side.
pub(super) struct Inbound {
    cells: Cells,
    first: Option<Cell>,
    lanes: Option<Box<LanesIn>>,
    id: CircuitId,
    counts: Arc<Counts>,
    gauge: Arc<Gauge>,
    /// Bytes of cells that were read.
    read: u64,
    ended: bool,
}

/// What comes of reading.
enum Read {
    Cell(Cell),
    /// The stream has ended, between cells or within one.
    End {
        cut: bool,
    },
    /// It was reset, or the connection is gone.
    Reset(Option<u8>),
    Malformed,
}

impl Cells {
    /// Bytes of the cells that were read.
    fn read(&self) -> u64 {
        self.taken.saturating_sub(self.reader.pending() as u64)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        loop {
            match self.reader.next() {
                Ok(Some(cell)) => return Poll::Ready(Read::Cell(cell)),
                Ok(None) => {}
                Err(_) => return Poll::Ready(Read::Malformed),
            }
            match ready!(poll_pieces(&mut self.stream, cx)) {
                Ok(Some(bytes)) => {
                    self.flow.read(bytes.len());
                    self.taken = self.taken.saturating_add(bytes.len() as u64);
                    self.reader.push(bytes);
                }
                Ok(None) => {
                    let cut = !self.reader.is_between_cells();
                    return Poll::Ready(Read::End { cut });
                }
                Err(ReadError::Reset(code)) => return Poll::Ready(Read::Reset(reason(code))),
                Err(_) => return Poll::Ready(Read::Reset(None)),
            }
        }
    }
}

/// All that has come, in memory of its own: a stream that rests keeps no buffer.
fn poll_pieces(
    stream: &mut RecvStream,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<BytesMut>, ReadError>> {
    let mut pieces: [Bytes; MAX_CHUNKS] = std::array::from_fn(|_| Bytes::new());
    let count = ready!(stream.poll_read_chunks(cx, &mut pieces))?;
    let Some(count) = count else {
        return Poll::Ready(Ok(None));
    };
    let pieces = pieces.iter().take(count);
    let mut bytes = BytesMut::with_capacity(pieces.clone().map(Bytes::len).sum());
    pieces.for_each(|piece| bytes.extend_from_slice(piece));
    Poll::Ready(Ok(Some(bytes)))
}

impl First {
    fn of(stream: RecvStream, shared: &Shared) -> Self {
        let reader = Reader::wide(shared.config.largest_variable);
        let flow = Arc::clone(&shared.flow);
        Self {
            cells: Cells {
                stream,
                reader,
                taken: 0,
                flow,
            },
            first: None,
        }
    }

    /// The id of the circuit that the first cell makes; `None` if it makes none.
    async fn read(&mut self) -> Option<CircuitId> {
        let read = poll_fn(|cx| self.cells.poll_next(cx)).await;
        let Read::Cell(cell) = read else {
            return None;
        };
        let id = makes_circuit(cell.command).then_some(cell.circuit);
        self.first = Some(cell);
        id
    }

    fn stop(&mut self, code: VarInt) {
        drop(self.cells.stream.stop(code));
    }

    fn inbound(
        self,
        id: CircuitId,
        counts: Arc<Counts>,
        gauge: Arc<Gauge>,
        lanes: Option<Box<LanesIn>>,
    ) -> Inbound {
        gauge.receives(self.cells.stream.received());
        Inbound {
            cells: self.cells,
            first: self.first,
            lanes,
            id,
            counts,
            gauge,
            read: 0,
            ended: false,
        }
    }
}

fn makes_circuit(command: Command) -> bool {
    let makes = [Command::CREATE, Command::CREATE_FAST, Command::CREATE2];
    makes.contains(&command)
}

impl Inbound {
    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Cell>> {
        if let Some(first) = self.first.take() {
            self.note();
            return Poll::Ready(Some(first));
        }
        for _ in 0..MAX_IGNORED {
            if self.ended {
                return Poll::Ready(None);
            }
            let read = match &mut self.lanes {
                None => self.cells.poll_next(cx),
                Some(lanes) => lanes.poll_next(&mut self.cells, self.id, cx),
            };
            let read = ready!(read);
            self.note();
            if let Some(cell) = self.judge(read) {
                return Poll::Ready(Some(cell));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// A cell was read, or the end.
    fn note(&mut self) {
        self.read = match self.lanes {
            None => self.cells.read(),
            // Those of the lanes, too.
            Some(_) => self.read.saturating_add(CELL),
        };
        self.gauge.read(self.read, self.cells.reader.pending());
    }

    pub(crate) fn buffered(&self) -> usize {
        usize::from(self.first.is_some())
    }

    /// What the circuit gets to see of it.
    fn judge(&mut self, read: Read) -> Option<Cell> {
        match read {
            Read::Cell(cell) if cell.circuit != self.id => self.break_off(),
            Read::Cell(cell) => self.sort(cell),
            Read::Malformed => self.break_off(),
            Read::End { cut } => {
                self.ended = true;
                if cut {
                    self.counts.cut.up();
                }
                None
            }
            Read::Reset(reason) => {
                self.ended = true;
                reason.map(|reason| destroy(self.id, reason))
            }
        }
    }

    fn sort(&mut self, cell: Cell) -> Option<Cell> {
        match cell.command {
            Command::RELAY
            | Command::RELAY_EARLY
            | Command::CREATED
            | Command::CREATED_FAST
            | Command::CREATED2 => return Some(cell),
            Command::DESTROY => {
                self.ended = true;
                return Some(cell);
            }
            Command::PADDING | Command::VPADDING => {}
            command if makes_circuit(command) => self.counts.collisions.up(),
            _ => self.counts.ignored.up(),
        }
        None
    }

    /// A stream that carries what is not its circuit's ends here; the circuit is told like any that the peer destroys.
    fn break_off(&mut self) -> Option<Cell> {
        self.ended = true;
        self.counts.mismatched.up();
        drop(self.cells.stream.stop(code(PROTOCOL)));
        Some(destroy(self.id, PROTOCOL))
    }
}

/// Reads the control stream until it ends.
async fn read_control(stream: &mut RecvStream, reader: &mut Reader, shared: &Shared) -> Why {
    loop {
        loop {
            match reader.next() {
                Ok(Some(cell)) if !cell.circuit.is_channel() => {
                    return Why::Violation("a circuit's cell on the control stream");
                }
                Ok(Some(cell)) if cell.command == Command::PADDING_NEGOTIATE => {
                    if let Err(why) = shared.padding.negotiated(&cell) {
                        return why;
                    }
                }
                Ok(Some(cell)) if cell.command == Command::PADDING => {
                    shared.counts.padding_read.up();
                }
                Ok(Some(cell)) if cell.command == Command::VPADDING => {}
                Ok(Some(_)) => shared.counts.ignored.up(),
                Ok(None) => break,
                Err(_) => return Why::Violation("a malformed cell on the control stream"),
            }
        }
        match poll_fn(|cx| poll_pieces(stream, cx)).await {
            Ok(Some(bytes)) => {
                shared.flow.read(bytes.len());
                reader.push(bytes);
            }
            Ok(None) | Err(_) => return Why::Gone,
        }
        tokio::task::yield_now().await;
    }
}

/// Sends what the channel itself has to say, one cell after another: a peer that does not take it is sent nothing more of it.
async fn pad(stream: &mut SendStream, shared: &Shared) -> Why {
    loop {
        let cell = shared.padding.next(|| shared.ids.lock().len()).await;
        if cell.command == Command::PADDING {
            shared.counts.padding.up();
        }
        shared.flow.wrote(cell::LEN);
        let mut waiting = Waiting::default();
        waiting.push(&cell);
        if stream.write_chunk(waiting.fresh.freeze()).await.is_err() {
            return Why::Gone;
        }
        shared.padding.sent();
    }
}

// Writes a circuit's stream, by whoever sends on the circuit. Its only wait for others is the connection's congestion window, where quiet
// streams go first.

/// DESTROY: the stream is of no use any more.
const FINISHED: u8 = 9;

/// One circuit's sending side.
pub(super) struct Outbound {
    id: CircuitId,
    stream: SendStream,
    waiting: Waiting,
    /// How many bytes may wait, and whether so many did when a cell was last to be sent.
    bound: usize,
    is_full: bool,
    /// Cells since they were last written.
    cells: usize,
    activity: Activity,
    level: i32,
    scale: Scale,
    linger: Duration,
    counts: Arc<Counts>,
    flow: Arc<Flow>,
    gauge: Arc<Gauge>,
    /// Bytes that were handed to QUIC.
    written: u64,
    /// Told that something was.
    pulse: Option<Arc<Pulse>>,
    padding: Arc<Padding>,
    lanes: Option<Box<LanesOut>>,
    _hold: Hold,
}

/// Cells, as they stand on the wire, that QUIC has not taken.
#[derive(Default)]
struct Waiting {
    /// What of it was offered to QUIC.
    offered: Bytes,
    fresh: BytesMut,
}

/// Why nothing more is sent.
#[derive(Debug)]
pub(super) enum Stop {
    /// The peer takes no more, or is gone.
    Theirs,
    /// Too much waits in the circuits of the process, and this one is to make room.
    NoRoom,
}

/// How a circuit's sending side ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// What waits is delivered.
    Finished,
    /// What waits is thrown away, for this reason (tor-spec, "Tearing down circuits").
    Aborted(u8),
}

impl Waiting {
    fn push(&mut self, cell: &Cell) {
        let written = cell::write(cell, &mut self.fresh);
        debug_assert!(written.is_ok(), "a cell that fits no frame is left out");
    }

    fn len(&self) -> usize {
        self.offered.len().saturating_add(self.fresh.len())
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the peer has the beginning of a cell whose rest waits.
    fn is_within_cell(&self) -> bool {
        !self.len().is_multiple_of(cell::LEN)
    }

    /// Has the stream take it all; `taken` counts what it took.
    fn poll_write(
        &mut self,
        stream: &mut SendStream,
        cx: &Context<'_>,
        taken: &mut u64,
    ) -> Poll<Result<(), Stop>> {
        while !self.is_empty() {
            if self.offered.is_empty() {
                self.offered = mem::take(&mut self.fresh).freeze();
            }
            let offered = slice::from_mut(&mut self.offered);
            match ready!(stream.poll_write_chunks(cx, offered)) {
                Ok(written) => *taken = taken.saturating_add(written.bytes as u64),
                Err(_) => return Poll::Ready(Err(Stop::Theirs)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Outbound {
    /// Whether a cell can be sent. Once as many wait as may, half of them have to go first: nobody is woken for each cell.
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if self.gauge.is_over() {
            return Poll::Ready(Err(Stop::NoRoom));
        }
        self.is_full |= self.waits() >= self.bound;
        if self.is_full {
            if let Poll::Ready(Err(stop)) = self.poll_flush(cx) {
                return Poll::Ready(Err(stop));
            }
            self.is_full = self.waits() > self.bound / 2;
        }
        if self.is_full {
            Poll::Pending
        } else {
            Poll::Ready(Ok(()))
        }
    }

    /// Takes a cell; whether there was room for it.
    pub(super) fn push(&mut self, cell: Cell) -> bool {
        let has_room = self.waits() < self.bound;
        if has_room {
            self.put(cell);
        }
        has_room
    }

    fn put(&mut self, cell: Cell) {
        self.cells = self.cells.saturating_add(1);
        match &mut self.lanes {
            None => self.waiting.push(&cell),
            Some(lanes) => lanes.push(cell),
        }
    }

    /// How many cells wait.
    pub(super) fn buffered(&self) -> usize {
        self.waits().div_ceil(cell::LEN)
    }

    fn waits(&self) -> usize {
        let lanes = self.lanes.as_ref();
        lanes.map_or(self.waiting.len(), |lanes| lanes.waits())
    }

    /// Hands QUIC what waits; ready when it has taken all. The task is woken when it takes more, and when the circuit is to end.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        self.prioritise();
        let before = self.written;
        let flushed = match &mut self.lanes {
            None => self
                .waiting
                .poll_write(&mut self.stream, cx, &mut self.written),
            Some(lanes) => lanes.poll_write(&mut self.stream, cx, &mut self.written),
        };
        self.account(before);
        if self.gauge.poll_over(cx).is_ready() {
            return Poll::Ready(Err(Stop::NoRoom));
        }
        ready!(flushed)?;
        match self.stream.poll_stopped(cx) {
            Poll::Ready(_) => Poll::Ready(Err(Stop::Theirs)),
            Poll::Pending => Poll::Ready(Ok(())),
        }
    }

    /// The stream goes the later the more its circuit has sent.
    fn prioritise(&mut self) {
        let cells = mem::take(&mut self.cells);
        if cells == 0 {
            return;
        }
        let now = self.scale.at(Instant::now());
        self.activity.add(cells, now);
        let level = self.activity.level(now);
        if mem::replace(&mut self.level, level) != level {
            drop(self.stream.set_priority(-level));
            if let Some(lanes) = &mut self.lanes {
                lanes.set_priority(-level);
            }
        }
    }

    /// Tells of what QUIC has taken since `before`.
    fn account(&self, before: u64) {
        self.gauge.waits(self.waits());
        let more = self.written.saturating_sub(before);
        if more == 0 {
            return;
        }
        self.gauge.wrote(self.written);
        self.flow.wrote(usize::try_from(more).unwrap_or(usize::MAX));
        self.padding.sent();
        if let Some(pulse) = &self.pulse {
            pulse.packet();
        }
    }

    /// Nothing more is sent.
    pub(super) fn stop(self: Box<Self>, stop: &Stop) {
        match stop {
            Stop::Theirs => {}
            Stop::NoRoom => self.end(End::Aborted(RESOURCE_LIMIT)),
        }
    }

    /// Ends it, in a task of its own: the last cells are still on their way when nobody holds the circuit any more. Without a runtime that is left to
    /// the stream.
    pub(super) fn end(self: Box<Self>, end: End) {
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(self.bury(end));
        }
    }

    async fn bury(mut self: Box<Self>, end: End) {
        match end {
            // A circuit that is to make room does not wait.
            End::Finished if !self.gauge.is_over() => {
                let linger = self.linger;
                let flushing = poll_fn(|cx| self.poll_flush(cx));
                match timeout(linger, flushing).await {
                    Ok(Ok(())) => self.finish(FINISHED).await,
                    Ok(Err(Stop::Theirs)) => {}
                    Ok(Err(Stop::NoRoom)) | Err(_) => self.leave(FINISHED),
                }
            }
            End::Finished => self.abort(RESOURCE_LIMIT).await,
            End::Aborted(reason) => self.abort(reason).await,
        }
    }

    /// Says DESTROY instead of what waits. It may not fit: then the reset says it.
    async fn abort(mut self: Box<Self>, reason: u8) {
        let is_within_cell = self.waiting.is_within_cell();
        self.waiting = Waiting::default();
        if is_within_cell {
            return self.leave(reason);
        }
        self.waiting.push(&destroy(self.id, reason));
        let (stream, written) = (&mut self.stream, &mut self.written);
        let said = poll_fn(|cx| Poll::Ready(self.waiting.poll_write(stream, cx, written)));
        match said.await {
            Poll::Ready(Ok(())) => self.finish(reason).await,
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.leave(reason),
        }
    }

    /// Says that nothing follows, and waits until all has arrived; what does not in time is not kept.
    async fn finish(mut self: Box<Self>, reason: u8) {
        if self.stream.finish().is_ok()
            && timeout(self.linger, self.stream.stopped()).await.is_err()
        {
            self.leave(reason);
        }
    }

    /// What the peer did not take in time is thrown away.
    fn leave(&mut self, reason: u8) {
        self.counts.unread.up();
        drop(self.stream.reset(code(reason)));
    }
}

// How many circuits the peer may open on one connection: few at first, and more as it uses them. The QUIC stack keeps
// about 90 bytes for each stream that it allows, used or not: a channel at rest costs little this way.

/// What a new channel may have at once.
const FIRST_CIRCUITS: u32 = 128;
/// When half of what is allowed is open, this many times as much is allowed.
const GROWTH: u32 = 4;

/// The room on one connection.
struct Room {
    allowed: u32,
    most: u32,
}

/// The streams of a new connection whose peer may have `most` circuits. The control stream is one more.
pub(crate) fn streams_at_first(most: u32) -> u32 {
    most.min(FIRST_CIRCUITS).saturating_add(1)
}

impl Room {
    /// On a connection that was given [`streams_at_first`].
    fn new(most: u32) -> Self {
        let allowed = most.min(FIRST_CIRCUITS);
        Self { allowed, most }
    }

    /// How many streams are allowed from now on, where that is more than before.
    fn more(&mut self, open: usize) -> Option<u32> {
        let crowded = open >= usize::try_from(self.allowed / 2).unwrap_or(usize::MAX);
        if !crowded || self.allowed >= self.most {
            return None;
        }
        self.allowed = self.allowed.saturating_mul(GROWTH).min(self.most);
        Some(self.allowed.saturating_add(1))
    }
}

#[cfg(test)]
mod room_tests {
    use super::*;

    #[test]
    fn room_grows_with_use_up_to_the_limit() {
        assert_eq!(streams_at_first(1024), 129);
        let mut room = Room::new(1024);
        assert_eq!(room.more(63), None);
        assert_eq!(room.more(64), Some(513));
        assert_eq!(room.more(65), None);
        assert_eq!(room.more(300), Some(1025));
        assert_eq!(room.more(1024), None);
    }

    #[test]
    fn a_limit_below_the_first_room_is_kept() {
        assert_eq!(streams_at_first(10), 11);
        assert_eq!(Room::new(10).more(10), None);
    }
}
