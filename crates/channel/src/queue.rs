//! A bounded queue of cells between one sender and one reader: over TLS each circuit has its own, with its own lock, for each direction.
//! When it is full the sender waits (`poll_ready`: backpressure) or is told (`push`); nothing is ever dropped silently.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use hoplite_wire::cell::{Cell, CircuitId, Command};
use parking_lot::{Mutex, MutexGuard};

use super::{CircuitBacklog, Handle, Hold, Origin, Share, budget::Gauge, ids::Ids, quic, tls};

/// So much room a queue keeps when it is empty; what it had for more cells it gives back as they are read.
const KEPT_ROOM: usize = 256;

/// Makes a queue of at most `bound` cells.
pub(super) fn circuit_queue(bound: usize) -> (Tx, Rx) {
    let queue = Arc::new(CircuitQueue {
        bound: bound.max(1),
        state: Mutex::default(),
    });
    (Tx(Arc::clone(&queue)), Rx(queue))
}

/// How a queue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The sender is gone; what it left is to be delivered.
    Finished,
    /// The sender threw away what was queued, and gave this reason (tor-spec, "Tearing down circuits").
    Aborted(u8),
}

/// Why a cell was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// As many cells wait as may.
    Full,
    /// The reader is gone.
    Closed,
}

#[derive(Debug)]
struct CircuitQueue {
    bound: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    cells: VecDeque<Cell>,
    sender: Option<Waker>,
    reader: Option<Waker>,
    end: Option<End>,
    unread: bool,
    /// The sender was told to wait.
    waits: bool,
    /// Cells that were read.
    taken: u64,
}

/// Sees how much waits in a queue, and may end it; holds neither end.
#[derive(Debug)]
pub(super) struct Watch(Weak<CircuitQueue>);

/// The sending end. Dropping it finishes the queue.
#[derive(Debug)]
pub(super) struct Tx(Arc<CircuitQueue>);

/// The reading end. Dropping it closes the queue; what waits is thrown away.
#[derive(Debug)]
pub(super) struct Rx(Arc<CircuitQueue>);

impl CircuitQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The first end counts.
    fn end(&self, end: End) {
        let mut state = self.lock();
        if matches!(end, End::Aborted(_)) {
            state.cells = VecDeque::new();
        }
        state.end.get_or_insert(end);
        let wakers = [state.reader.take(), state.sender.take()];
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Watch {
    /// Cells that wait, and how many were taken.
    pub(super) fn measure(&self) -> (usize, u64) {
        self.0.upgrade().map_or((0, 0), |queue| {
            let state = queue.lock();
            (state.cells.len(), state.taken)
        })
    }

    /// Ends the queue for `reason`, whoever holds it: its sender is told when it next asks, and woken to ask.
    pub(super) fn end(&self, reason: u8) {
        if let Some(queue) = self.0.upgrade() {
            queue.end(End::Aborted(reason));
        }
    }
}

impl Tx {
    /// Sees into it.
    pub(super) fn watch(&self) -> Watch {
        Watch(Arc::downgrade(&self.0))
    }

    /// Whether a cell can be pushed now.
    pub(super) fn poll_ready(&self, cx: &Context<'_>) -> Poll<Result<(), Refused>> {
        let mut state = self.0.lock();
        if state.unread || state.end.is_some() {
            return Poll::Ready(Err(Refused::Closed));
        }
        // Also when there is room: the queue may be ended by neither of its holders.
        store(&mut state.sender, cx);
        state.waits = state.cells.len() >= self.0.bound;
        if state.waits {
            Poll::Pending
        } else {
            Poll::Ready(Ok(()))
        }
    }

    /// Queues a cell; tells whether the queue was empty.
    pub(super) fn push(&self, cell: Cell) -> Result<bool, Refused> {
        self.push_within(cell, self.0.bound)
    }

    /// Queues the last cell even where the queue is full, and finishes.
    pub(super) fn push_last(&self, cell: Cell) {
        let taken = self.push_within(cell, self.0.bound.saturating_add(1));
        debug_assert!(taken != Err(Refused::Full), "one more fits always");
        self.0.end(End::Finished);
    }

    /// Throws away what waits, queues a last cell instead, and finishes.
    pub(super) fn replace(&self, cell: Cell) {
        self.0.lock().cells = VecDeque::new();
        self.push_last(cell);
    }

    /// A cell is copied: in a queue that stands still each, and be it the only one, could else hold the whole buffer of the channel that it came in. In
    /// bulk that is no more than what those cost that wait behind others.
    fn push_within(&self, mut cell: Cell, bound: usize) -> Result<bool, Refused> {
        let mut state = self.0.lock();
        if state.unread || state.end.is_some() {
            return Err(Refused::Closed);
        }
        if state.cells.len() >= bound {
            return Err(Refused::Full);
        }
        let first = state.cells.is_empty();
        cell.detach();
        state.cells.push_back(cell);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        Ok(first)
    }

    /// Throws away what waits and ends for `reason`.
    pub(super) fn abort(&self, reason: u8) {
        self.0.end(End::Aborted(reason));
    }

    /// How many cells wait.
    pub(super) fn len(&self) -> usize {
        self.0.lock().cells.len()
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.0.end(End::Finished);
    }
}

impl Rx {
    /// Sees into it.
    pub(super) fn watch(&self) -> Watch {
        Watch(Arc::downgrade(&self.0))
    }

    /// The next cell; `None` when the queue has ended and all was read.
    pub(super) fn poll_pop(&self, cx: &Context<'_>) -> Poll<Option<Cell>> {
        let mut state = self.0.lock();
        if let Some(cell) = pop(&mut state, self.0.bound) {
            return Poll::Ready(Some(cell));
        }
        if state.end.is_some() {
            return Poll::Ready(None);
        }
        store(&mut state.reader, cx);
        Poll::Pending
    }

    /// The next cell if there is one.
    pub(super) fn pop(&self) -> Option<Cell> {
        pop(&mut self.0.lock(), self.0.bound)
    }

    /// How it ended, if it did.
    #[cfg(test)]
    pub(super) fn ended(&self) -> Option<End> {
        self.0.lock().end
    }

    /// How many cells wait.
    pub(super) fn len(&self) -> usize {
        self.0.lock().cells.len()
    }

    /// No more can be sent; what waits is thrown away.
    pub(super) fn close(&self) {
        let mut state = self.0.lock();
        state.unread = true;
        state.cells = VecDeque::new();
        let sender = state.sender.take();
        drop(state);
        sender.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.close();
    }
}

fn pop(state: &mut State, bound: usize) -> Option<Cell> {
    let cell = state.cells.pop_front()?;
    // By halves: of the cells that are moved by it, as many have been read before.
    let room = state.cells.capacity();
    if room > KEPT_ROOM && state.cells.len() <= room / 4 {
        state.cells.shrink_to(room / 2);
    }
    took(state, 1, bound).into_iter().for_each(Waker::wake);
    Some(cell)
}

/// Counts what was taken. A sender that waits is woken when half the queue is free: not for each cell.
fn took(state: &mut State, count: usize, bound: usize) -> Option<Waker> {
    state.taken = state.taken.saturating_add(count as u64);
    let wake = state.waits && state.cells.len() <= bound / 2;
    state.waits &= !wake;
    state.sender.take_if(|_| wake)
}

fn store(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

// The two ends of a circuit on a channel: where its cells go in, and where they come out. The same for QUIC and TLS.
// `onion` polls them; each has a bounded queue of its own.

/// Why a cell was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The queue is full: wait for [`Sender::poll_ready`].
    #[error("the circuit's queue is full")]
    Full,
    /// The circuit has ended.
    #[error("the circuit has ended")]
    Ended,
}

/// Where a circuit's cells go in. Dropping it sends what waits, then ends this direction.
pub struct Sender {
    sink: Sink,
    place: Arc<Place>,
    /// Its place among those of the channel, where it was begun for somebody.
    share: Option<Share>,
}

pub(super) enum Sink {
    /// The TLS writer takes from it.
    Queue(Tx),
    /// Written by whoever sends; nothing once that has ended.
    Stream(Option<Box<quic::Outbound>>),
}

/// Where a circuit's cells come out. Dropping it throws away what still comes.
pub struct Receiver {
    source: Source,
    place: Arc<Place>,
}

pub(super) enum Source {
    /// The TLS reader fills it.
    Queue(Rx),
    /// Read by whoever reads the circuit.
    Stream(Box<quic::Inbound>),
}

/// What both ends share: the circuit's id, which is free again when both are gone.
pub(super) struct Place {
    pub(super) id: CircuitId,
    /// Whether DESTROY was said, by either side.
    destroyed: AtomicBool,
    keeper: Keeper,
    _hold: Hold,
    gauge: Arc<Gauge>,
}

/// Whom to tell what becomes of a circuit.
pub(super) enum Keeper {
    /// TLS: that there are cells to send, and that the circuit has ended.
    Tls(Arc<tls::Shared>, u64),
    /// QUIC: that the id is free again; the rest is the stream's.
    Quic(Arc<Mutex<Ids>>),
}

impl Place {
    pub(super) fn new(id: CircuitId, keeper: Keeper, hold: Hold, gauge: Arc<Gauge>) -> Arc<Self> {
        Arc::new(Self {
            id,
            destroyed: AtomicBool::new(false),
            keeper,
            _hold: hold,
            gauge,
        })
    }

    fn tls(&self) -> Option<(&tls::Shared, tls::CircuitKey)> {
        match &self.keeper {
            Keeper::Tls(shared, serial) => Some((
                shared,
                tls::CircuitKey {
                    id: self.id,
                    serial: *serial,
                },
            )),
            Keeper::Quic(_) => None,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let destroyed = *self.destroyed.get_mut();
        match &self.keeper {
            Keeper::Quic(ids) => ids.lock().release(self.id),
            // The id is released when what is queued has been sent.
            Keeper::Tls(..) => {
                if let Some((tls, key)) = self.tls() {
                    tls.abandon(key, destroyed);
                }
            }
        }
    }
}

impl Sender {
    pub(super) const fn new(sink: Sink, place: Arc<Place>) -> Self {
        Self {
            sink,
            place,
            share: None,
        }
    }

    /// It was begun for somebody, who has this share of the channel's circuits.
    pub(super) fn is_for(&mut self, origin: &Origin, share: Share) {
        self.place.gauge.is_for(origin);
        self.share = Some(share);
    }

    /// Ends the circuit, and sees whether it moves.
    pub fn handle(&self) -> Handle {
        Handle::new(&self.place.gauge)
    }

    /// Ready when a cell can be sent; then [`send`](Self::send) takes one.
    ///
    /// # Errors
    /// [`Rejected::Ended`].
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Rejected>> {
        match &mut self.sink {
            Sink::Queue(queue) => queue.poll_ready(cx).map_err(Rejected::from),
            Sink::Stream(stream) => poll_stream(stream, |stream| stream.poll_ready(cx)),
        }
    }

    /// Waits until a cell can be sent.
    ///
    /// # Errors
    /// [`Rejected::Ended`].
    pub async fn ready(&mut self) -> Result<(), Rejected> {
        poll_fn(|cx| self.poll_ready(cx)).await
    }

    /// Takes a cell; its circuit id is set here. It may wait until [`poll_flush`](Self::poll_flush) is asked, so that several leave together.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn send(&mut self, mut cell: Cell) -> Result<(), Rejected> {
        cell.circuit = self.place.id;
        if cell.command == Command::DESTROY {
            self.place.destroyed.store(true, Relaxed);
        }
        match &mut self.sink {
            Sink::Queue(queue) => {
                let first = queue.push(cell)?;
                if first && let Some((tls, key)) = self.place.tls() {
                    tls.has_cells(key);
                }
                Ok(())
            }
            Sink::Stream(None) => Err(Rejected::Ended),
            Sink::Stream(Some(stream)) => {
                let taken = stream.push(cell);
                taken.then_some(()).ok_or(Rejected::Full)
            }
        }
    }

    /// Ready when what was sent has been handed to the channel: over QUIC, which takes it as windows have it. Who waits for nothing but cells asks all
    /// the same: it is woken when the circuit takes no more, and when it goes on.
    ///
    /// # Errors
    /// [`Rejected::Ended`].
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Rejected>> {
        match &mut self.sink {
            Sink::Queue(_) => Poll::Ready(Ok(())),
            Sink::Stream(stream) => poll_stream(stream, |stream| stream.poll_flush(cx)),
        }
    }

    /// Waits until what was sent has been handed to the channel.
    ///
    /// # Errors
    /// [`Rejected::Ended`].
    pub async fn flush(&mut self) -> Result<(), Rejected> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Ends the circuit at once: what waits is thrown away and DESTROY goes out instead. Where the peer takes nothing, QUIC resets the stream,
    /// which says the same.
    pub fn destroy(mut self, reason: u8) {
        let was_destroyed = self.place.destroyed.swap(true, Relaxed);
        match &mut self.sink {
            Sink::Queue(queue) => {
                queue.abort(reason);
                if !was_destroyed && let Some((tls, key)) = self.place.tls() {
                    tls.destroy(key, reason);
                }
            }
            Sink::Stream(stream) => end_stream(stream, quic::End::Aborted(reason)),
        }
    }

    /// Where whoever holds the circuit counts what it keeps for it.
    pub fn backlog(&self) -> &Arc<CircuitBacklog> {
        self.place.gauge.backlog()
    }

    /// Whether the peer says of each circuit how much it takes (QUIC).
    pub const fn has_backpressure(&self) -> bool {
        matches!(self.sink, Sink::Stream(_))
    }

    /// How many cells wait.
    pub fn buffered(&self) -> usize {
        match &self.sink {
            Sink::Queue(queue) => queue.len(),
            Sink::Stream(stream) => stream.as_ref().map_or(0, |stream| stream.buffered()),
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if let Sink::Stream(stream) = &mut self.sink {
            end_stream(stream, quic::End::Finished);
        }
    }
}

/// Asks a stream, which ends where it takes no more.
fn poll_stream(
    stream: &mut Option<Box<quic::Outbound>>,
    poll: impl FnOnce(&mut quic::Outbound) -> Poll<Result<(), quic::Stop>>,
) -> Poll<Result<(), Rejected>> {
    let polled = match stream {
        None => return Poll::Ready(Err(Rejected::Ended)),
        Some(stream) => poll(stream),
    };
    polled.map_err(|stop| {
        stream
            .take()
            .into_iter()
            .for_each(|stream| stream.stop(&stop));
        Rejected::Ended
    })
}

fn end_stream(stream: &mut Option<Box<quic::Outbound>>, end: quic::End) {
    stream.take().into_iter().for_each(|stream| stream.end(end));
}

impl Receiver {
    pub(super) fn new(source: Source, place: Arc<Place>) -> Self {
        Self { source, place }
    }

    /// The next cell; `None` when the circuit has ended. A peer that ends it properly sends DESTROY first.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Cell>> {
        let next = match &mut self.source {
            Source::Queue(queue) => queue.poll_pop(cx),
            Source::Stream(stream) => stream.poll_recv(cx),
        };
        if let Poll::Ready(Some(cell)) = &next
            && cell.command == Command::DESTROY
        {
            self.place.destroyed.store(true, Relaxed);
        }
        next
    }

    /// Waits for the next cell.
    pub async fn recv(&mut self) -> Option<Cell> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// How many whole cells wait in our own memory; QUIC keeps further ones in the stream's window.
    pub fn buffered(&self) -> usize {
        match &self.source {
            Source::Queue(queue) => queue.len(),
            Source::Stream(stream) => stream.buffered(),
        }
    }
}

impl From<Refused> for Rejected {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Full => Self::Full,
            Refused::Closed => Self::Ended,
        }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("id", &self.place.id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("id", &self.place.id)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use hoplite_wire::cell::{BODY, relay::StreamId};

    use super::*;

    fn cell(body: BytesMut) -> Cell {
        Cell {
            circuit: CircuitId::new(1),
            command: Command::RELAY,
            stream: StreamId::CIRCUIT,
            body,
        }
    }

    #[test]
    fn a_circuit_that_had_many_cells_once_keeps_no_room_for_them_when_few_wait() {
        let (tx, rx) = circuit_queue(50_000);
        let room = || tx.0.lock().cells.capacity();
        for _ in 0..50_000 {
            tx.push(cell(BytesMut::new())).unwrap();
        }
        assert!(room() >= 50_000);
        // Not all of them: one cell that stays would else keep the room of all.
        (1..50_000).for_each(|_| drop(rx.pop().unwrap()));
        assert!(room() <= KEPT_ROOM, "{}", room());
        for _ in 1..50_000 {
            tx.push(cell(BytesMut::new())).unwrap();
        }
        tx.replace(cell(BytesMut::new()));
        assert!(room() <= KEPT_ROOM, "{}", room());
    }

    #[test]
    fn no_cell_that_waits_keeps_the_buffer_that_it_came_in_and_be_it_the_only_one() {
        const READ: usize = 32 << 10;
        let mut buffer = BytesMut::zeroed(READ);
        let (tx, rx) = circuit_queue(8);
        // Who reads the circuit may be kept by its other side, asked or not.
        assert!(
            rx.poll_pop(&Context::from_waker(Waker::noop()))
                .is_pending()
        );
        tx.push(cell(buffer.split_to(BODY))).unwrap();
        tx.push(cell(buffer.split_to(BODY))).unwrap();
        buffer.clear();
        assert!(buffer.try_reclaim(READ), "nobody else holds it");
        assert_eq!(rx.pop().unwrap().body.len(), BODY);
    }
}
