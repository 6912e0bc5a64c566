//! A channel over TLS: all circuits on one stream of bytes, which may be one of QUIC where the lab asks for it
//! ([`Rival::OneStream`](crate::Rival)). One task reads and never waits for a circuit, one writes the quietest circuit first.
//! What they and the circuits' ends share is [`Shared`], with the machine [`mux`] inside; the tasks are dull.
//! tor-spec: "Cell Packet format", "Relay cells"; C tor's `circuitmux_ewma`.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{Arc, Weak},
};

use bytes::BytesMut;
use hoplite_link::QuicLink;
use hoplite_wire::cell::{self, Cell, CircuitId, Command, Reader, relay::StreamId};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{Notify, mpsc},
    time::{Instant, timeout},
};

use super::{
    Circuit, Closed, Config, Counts, Ending, Hold, HoldInner, Why,
    budget::Gauge,
    ewma::{Activity, HalfLives, Scale, Turns},
    ids::{Ids, NoId},
    padding::Padding,
    queue::{self, Keeper, Place, Receiver, Refused, Sender, Sink, Source, circuit_queue},
    traffic::Flow,
};

#[cfg(test)]
mod tests;

/// How much is read at once, in bytes.
const READ_SIZE: usize = 32 << 10;
/// How much is written at once, in bytes: one TLS record. More would be decided too early.
const WRITE_SIZE: usize = 16 << 10;
/// DESTROY without a reason (tor-spec: "Tearing down circuits").
const NO_REASON: u8 = 0;
/// DESTROY: the peer broke the protocol.
const PROTOCOL: u8 = 1;
/// DESTROY: no room.
const RESOURCE_LIMIT: u8 = 5;

/// What the two tasks and all circuits of a channel share. The lock is held for a batch of cells at most, and over no wait.
pub(super) struct Shared {
    mux: Mutex<Mux>,
    /// The writer has something to do.
    work: Notify,
    padding: Arc<Padding>,
    counts: Arc<Counts>,
    flow: Arc<Flow>,
    config: Config,
    ending: Ending,
}

/// What a channel keeps of it.
pub(super) struct Transport(Arc<Shared>);

/// Which circuit of a channel a circuit's end belongs to. Ids come again, serial numbers do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CircuitKey {
    pub(super) id: CircuitId,
    pub(super) serial: u64,
}

/// What the tasks need besides.
pub(super) struct ChannelIo<S> {
    pub(super) stream: S,
    /// What watches over the connection, where it is one of QUIC that we dialled.
    pub(super) link: Option<QuicLink>,
    /// With what was read behind the handshake.
    pub(super) reader: Reader,
    pub(super) padding: Arc<Padding>,
    pub(super) arrivals: mpsc::Sender<Circuit>,
}

/// Starts the tasks.
pub(super) fn start<S>(
    io: ChannelIo<S>,
    ids: Ids,
    config: &Config,
    counts: &Arc<Counts>,
) -> (Transport, Hold)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let ending = Ending::new();
    let hold = Hold::new(ending.clone(), io.link);
    let scale = Scale::new(Instant::now(), config.half_life);
    let shared = Arc::new(Shared {
        mux: Mutex::new(Mux::new(ids, scale, config, Arc::clone(counts))),
        work: Notify::new(),
        padding: io.padding,
        counts: Arc::clone(counts),
        flow: counts.traffic.enter(),
        config: config.clone(),
        ending,
    });
    let (read, write) = tokio::io::split(io.stream);
    let reader_task = CellReader {
        shared: Arc::clone(&shared),
        hold: Arc::downgrade(&hold.0),
        arrivals: io.arrivals,
    };
    tokio::spawn(reader_task.run(read, io.reader));
    tokio::spawn(run_writer(Arc::clone(&shared), write));
    (Transport(shared), hold)
}

impl Transport {
    pub(super) fn open(&self, hold: &Hold) -> Result<Circuit, Closed> {
        if let Some(why) = self.0.ending.why() {
            return Err(Closed::Channel(why));
        }
        let news = self.0.mux.lock().open().ok_or(Closed::Full)?;
        Ok(self.0.circuit(news, hold.clone()))
    }

    pub(super) fn circuits(&self) -> usize {
        self.0.mux.lock().len()
    }

    /// Bytes of cells that it has carried, both ways.
    pub(super) fn carried(&self) -> u64 {
        self.0.flow.carried()
    }
}

impl Shared {
    /// A circuit's queue is no longer empty.
    pub(super) fn has_cells(&self, key: CircuitKey) {
        self.mux.lock().has_cells(key);
        self.work.notify_one();
    }

    /// The circuit is ended here, and the peer is told before anything else.
    pub(super) fn destroy(&self, key: CircuitKey, reason: u8) {
        self.mux.lock().destroy(key, reason);
        self.work.notify_one();
    }

    /// Nobody holds an end of the circuit any more.
    pub(super) fn abandon(&self, key: CircuitKey, destroyed: bool) {
        self.mux.lock().abandon(key, destroyed);
        self.work.notify_one();
    }

    /// Waits until there is something to write.
    async fn rest(&self) {
        tokio::select! {
            biased;
            () = self.work.notified() => {}
            cell = self.padding.next(|| self.mux.lock().len()) => self.mux.lock().say(cell),
        }
    }

    fn circuit(self: &Arc<Self>, news: News, hold: Hold) -> Circuit {
        let key = news.key;
        let gauge = Arc::new(Gauge::tls(news.outbox.watch(), news.inbox.watch()));
        self.counts.enter(&gauge, &self.config);
        let keeper = Keeper::Tls(Arc::clone(self), key.serial);
        let place = Place::new(key.id, keeper, hold, gauge);
        Circuit {
            id: key.id,
            sender: Sender::new(Sink::Queue(news.outbox), Arc::clone(&place)),
            receiver: Receiver::new(Source::Queue(news.inbox), place),
        }
    }
}

/// Takes cells in.
struct CellReader {
    shared: Arc<Shared>,
    hold: Weak<HoldInner>,
    arrivals: mpsc::Sender<Circuit>,
}

impl CellReader {
    async fn run<R: AsyncRead + Unpin>(self, mut stream: R, mut reader: Reader) {
        let ending = self.shared.ending.clone();
        let why = tokio::select! {
            biased;
            why = self.read(&mut stream, &mut reader) => why,
            why = ending.wait() => why,
        };
        if matches!(why, Why::Violation(_)) {
            self.shared.counts.violations.up();
        }
        // The writer, which has the last word, ends the circuits.
        ending.end(why);
        if why == Why::Ours {
            // A stream that is dropped before the peer has ended it is reset, and takes our last words with it.
            drop(timeout(self.shared.config.linger, until_end(&mut stream)).await);
        }
    }

    async fn read<R: AsyncRead + Unpin>(&self, stream: &mut R, reader: &mut Reader) -> Why {
        let mut room = BytesMut::new();
        loop {
            if let Err(why) = self.take(reader) {
                return why;
            }
            // What a read leaves of the room is for the next: few bytes do not hold much memory.
            if room.capacity() < READ_SIZE / 2 {
                room = BytesMut::with_capacity(READ_SIZE);
            }
            match stream.read_buf(&mut room).await {
                Ok(0) | Err(_) => return Why::Gone,
                Ok(bytes) => {
                    self.shared.flow.read(bytes);
                    reader.push(room.split());
                }
            }
        }
    }

    /// Hands out the cells that are there. Never waits.
    fn take(&self, reader: &mut Reader) -> Result<(), Why> {
        let mut new = Vec::new();
        let mut mux = self.shared.mux.lock();
        let end = loop {
            match reader.next() {
                Ok(Some(cell)) if cell.command == Command::PADDING_NEGOTIATE => {
                    if let Err(why) = self.shared.padding.negotiated(&cell) {
                        break Err(why);
                    }
                }
                Ok(Some(cell)) => new.extend(mux.arrived(cell)),
                Ok(None) => break Ok(()),
                Err(_) => break Err(Why::Violation("a malformed cell")),
            }
        };
        let answers = mux.has_answers();
        drop(mux);
        new.into_iter().for_each(|news| self.announce(news));
        if answers {
            self.shared.work.notify_one();
        }
        end
    }

    /// Refuses what nobody accepts.
    fn announce(&self, news: News) {
        let Some(hold) = self.hold.upgrade().map(Hold) else {
            return;
        };
        let circuit = self.shared.circuit(news, hold);
        if let Err(refused) = self.arrivals.try_send(circuit) {
            self.shared.counts.too_many.up();
            refused.into_inner().sender.destroy(RESOURCE_LIMIT);
        }
    }
}

/// Throws away what still comes.
async fn until_end<R: AsyncRead + Unpin>(stream: &mut R) {
    let mut bytes = BytesMut::with_capacity(READ_SIZE);
    while let Ok(1..) = stream.read_buf(&mut bytes).await {
        bytes.clear();
    }
}

async fn run_writer<W: AsyncWrite + Unpin>(shared: Arc<Shared>, mut stream: W) {
    let mut out = BytesMut::with_capacity(WRITE_SIZE);
    let ending = shared.ending.clone();
    let why = tokio::select! {
        biased;
        why = keep_writing(&shared, &mut stream, &mut out) => why,
        why = ending.wait() => why,
    };
    ending.end(why);
    if why == Why::Ours {
        drop(
            timeout(
                shared.config.linger,
                last_words(&shared, &mut stream, &mut out),
            )
            .await,
        );
    }
    shared.mux.lock().end();
}

async fn keep_writing<W: AsyncWrite + Unpin>(
    shared: &Shared,
    stream: &mut W,
    out: &mut BytesMut,
) -> Why {
    loop {
        shared.mux.lock().take(Instant::now(), WRITE_SIZE, out);
        if out.is_empty() {
            shared.rest().await;
            continue;
        }
        shared.flow.wrote(out.len());
        match timeout(shared.config.stuck, write(stream, out)).await {
            Ok(Ok(())) => shared.padding.sent(),
            Ok(Err(_)) => return Why::Gone,
            Err(_) => {
                shared.counts.stuck.up();
                return Why::Stuck;
            }
        }
    }
}

/// What is still queued when the channel is closed here: DESTROY most of all.
async fn last_words<W: AsyncWrite + Unpin>(
    shared: &Shared,
    stream: &mut W,
    out: &mut BytesMut,
) -> io::Result<()> {
    loop {
        write(stream, out).await?;
        shared.mux.lock().take(Instant::now(), WRITE_SIZE, out);
        if out.is_empty() {
            return stream.shutdown().await;
        }
    }
}

/// Cancelled within a write, the rest stays in `out`.
async fn write<W: AsyncWrite + Unpin>(stream: &mut W, out: &mut BytesMut) -> io::Result<()> {
    while !out.is_empty() {
        if stream.write_buf(out).await? == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    stream.flush().await
}

// All circuits of a TLS channel as a machine without I/O: cells come in and go to their circuits' queues; the
// quietest circuit's go out first. The two tasks of `tls` drive it, under one lock. tor-spec: "Choosing circuit IDs
// in create cells", "Tearing down circuits".

struct Mux {
    ids: Ids,
    circuits: BTreeMap<CircuitId, Entry>,
    turns: Turns<CircuitKey>,
    /// What the channel itself says: DESTROY, and padding. It goes first.
    answers: VecDeque<Cell>,
    scale: Scale,
    serial: u64,
    outbox: usize,
    inbox: usize,
    most_answers: usize,
    counts: Arc<Counts>,
    ended: bool,
}

struct Entry {
    serial: u64,
    inbox: queue::Tx,
    outbox: queue::Rx,
    activity: Activity,
    /// Whether it waits for its turn.
    waiting: bool,
    /// Nobody holds an end: it is gone once the queue is sent.
    abandoned: bool,
    /// The peer does not know yet that it has ended.
    owes: bool,
}

/// A circuit that begins, for whoever holds its ends.
struct News {
    key: CircuitKey,
    outbox: queue::Tx,
    inbox: queue::Rx,
}

impl Mux {
    fn new(ids: Ids, scale: Scale, config: &Config, counts: Arc<Counts>) -> Self {
        Self {
            ids,
            circuits: BTreeMap::new(),
            turns: Turns::default(),
            answers: VecDeque::new(),
            scale,
            serial: 0,
            outbox: config.outbox,
            inbox: config.inbox,
            most_answers: config.answers,
            counts,
            ended: false,
        }
    }

    fn len(&self) -> usize {
        self.circuits.len()
    }

    fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// A circuit of ours begins, if there may be another.
    fn open(&mut self) -> Option<News> {
        let id = self.ids.choose()?;
        Some(self.begin(id))
    }

    fn begin(&mut self, id: CircuitId) -> News {
        self.serial = self.serial.wrapping_add(1);
        let key = CircuitKey {
            id,
            serial: self.serial,
        };
        let (outbox, from) = circuit_queue(self.outbox);
        let (to, inbox) = circuit_queue(self.inbox);
        if !self.ended {
            let entry = Entry {
                serial: key.serial,
                inbox: to,
                outbox: from,
                activity: Activity::NONE,
                waiting: false,
                abandoned: false,
                owes: false,
            };
            self.circuits.insert(id, entry);
        }
        News { key, outbox, inbox }
    }

    /// A cell came; tells of a circuit that begins by it.
    fn arrived(&mut self, cell: Cell) -> Option<News> {
        if cell.circuit.is_channel() || cell.command.is_variable() {
            self.ignore(cell.command);
            return None;
        }
        match cell.command {
            Command::RELAY
            | Command::RELAY_EARLY
            | Command::CREATED
            | Command::CREATED_FAST
            | Command::CREATED2 => self.deliver(cell),
            Command::DESTROY => self.destroyed(cell),
            Command::CREATE | Command::CREATE_FAST | Command::CREATE2 => return self.create(cell),
            command => self.ignore(command),
        }
        None
    }

    /// Padding is meant to be ignored; all else has no place here.
    fn ignore(&self, command: Command) {
        match command {
            Command::PADDING => self.counts.padding_read.up(),
            Command::VPADDING => {}
            _ => self.counts.ignored.up(),
        }
    }

    fn deliver(&mut self, cell: Cell) {
        let id = cell.circuit;
        let Some(entry) = self.circuits.get(&id) else {
            return self.counts.unknown.up();
        };
        if entry.inbox.push(cell) == Err(Refused::Full) {
            self.overflow(id);
        }
    }

    /// Nothing stops the peer from sending, and nobody else shall wait: the circuit is destroyed, both ends are told.
    fn overflow(&mut self, id: CircuitId) {
        self.counts.overfull.up();
        if let Some(entry) = self.remove(id) {
            entry.inbox.replace(destroy(id, RESOURCE_LIMIT));
        }
        self.answer(id, RESOURCE_LIMIT);
    }

    fn destroyed(&mut self, cell: Cell) {
        match self.remove(cell.circuit) {
            Some(entry) => entry.inbox.push_last(cell),
            None => self.counts.unknown.up(),
        }
    }

    fn create(&mut self, cell: Cell) -> Option<News> {
        let id = cell.circuit;
        match self.ids.claim(id) {
            Ok(()) => {
                let news = self.begin(id);
                self.deliver(cell);
                return Some(news);
            }
            // The circuit that has the id lives on.
            Err(NoId::Taken) => self.counts.collisions.up(),
            Err(NoId::NotTheirs) => {
                self.counts.wrong_ids.up();
                self.answer(id, PROTOCOL);
            }
            Err(NoId::TooMany) => {
                self.counts.too_many.up();
                self.answer(id, RESOURCE_LIMIT);
            }
        }
        None
    }

    fn answer(&mut self, id: CircuitId, reason: u8) {
        if self.answers.len() < self.most_answers {
            self.answers.push_back(destroy(id, reason));
        } else {
            self.counts.unanswered.up();
        }
    }

    /// The channel itself says this, where nothing else waits to be sent.
    fn say(&mut self, cell: Cell) {
        if cell.command == Command::PADDING {
            self.counts.padding.up();
        }
        self.answers.push_back(cell);
    }

    fn remove(&mut self, id: CircuitId) -> Option<Entry> {
        let entry = self.circuits.remove(&id)?;
        self.ids.release(id);
        Some(entry)
    }

    fn entry(&mut self, key: CircuitKey) -> Option<&mut Entry> {
        let entry = self.circuits.get_mut(&key.id);
        entry.filter(|entry| entry.serial == key.serial)
    }

    /// A circuit's queue is no longer empty.
    fn has_cells(&mut self, key: CircuitKey) {
        let Some(entry) = self.entry(key) else {
            return;
        };
        if !std::mem::replace(&mut entry.waiting, true) {
            let activity = entry.activity;
            self.turns.add(key, activity);
        }
    }

    /// Our side ends the circuit at once.
    fn destroy(&mut self, key: CircuitKey, reason: u8) {
        if self.entry(key).is_some() {
            self.answer(key.id, reason);
        }
    }

    /// Nobody holds an end of the circuit. What is queued is sent; then the peer is told, unless it is `destroyed` already.
    fn abandon(&mut self, key: CircuitKey, destroyed: bool) {
        let Some(entry) = self.entry(key) else {
            return;
        };
        entry.abandoned = true;
        entry.owes = !destroyed;
        if !entry.waiting {
            self.bury(key);
        }
    }

    fn bury(&mut self, key: CircuitKey) {
        if let Some(entry) = self.remove(key.id)
            && entry.owes
        {
            self.answer(key.id, NO_REASON);
        }
    }

    /// Writes cells behind `out` while it is shorter than `most`: the channel's own, then the quietest circuit's, one by one.
    fn take(&mut self, now: Instant, most: usize, out: &mut BytesMut) {
        let now = self.scale.at(now);
        while out.len() < most {
            if let Some(answer) = self.answers.pop_front() {
                put(&answer, out);
            } else if let Some(key) = self.turns.take() {
                self.turn(key, now, out);
            } else {
                return;
            }
        }
    }

    fn turn(&mut self, key: CircuitKey, now: HalfLives, out: &mut BytesMut) {
        let Some(entry) = self.entry(key) else {
            return;
        };
        if let Some(cell) = entry.outbox.pop() {
            put(&cell, out);
            entry.activity.add(1, now);
        }
        entry.waiting = entry.outbox.len() > 0;
        let (waiting, activity, abandoned) = (entry.waiting, entry.activity, entry.abandoned);
        if waiting {
            self.turns.add(key, activity);
        } else if abandoned {
            self.bury(key);
        }
    }

    /// The channel has ended, and all circuits with it.
    fn end(&mut self) {
        self.ended = true;
        self.circuits.clear();
        self.answers.clear();
        self.turns = Turns::default();
    }
}

fn put(cell: &Cell, out: &mut BytesMut) {
    let written = cell::write(cell, out);
    debug_assert!(written.is_ok(), "a cell that fits no frame is left out");
}

/// A DESTROY cell.
pub(super) fn destroy(id: CircuitId, reason: u8) -> Cell {
    let mut body = BytesMut::zeroed(cell::BODY);
    if let Some(first) = body.first_mut() {
        *first = reason;
    }
    Cell {
        circuit: id,
        command: Command::DESTROY,
        stream: StreamId::CIRCUIT,
        body,
    }
}
