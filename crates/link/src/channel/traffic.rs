//! The two ends of a circuit on a channel: where its cells go in, and where they come out. The same for QUIC and TLS.
//! `onion` polls them; each has a bounded queue of its own.

use std::{
    fmt,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use hoplite_wire::cell::{Cell, CircuitId, Command};

use super::{Guarded, Handle, Hold, Kept, Share, hoard::Gauge, ids::Ids, lane, quic, tls};

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

/// Where a circuit's cells go in. Dropping it sends what is queued, then ends this direction.
pub struct Sender {
    lane: lane::Tx,
    place: Arc<Place>,
    /// Its place among those of the channel, where it was begun for somebody.
    share: Option<Share>,
}

/// Where a circuit's cells come out. Dropping it throws away what still comes.
pub struct Receiver {
    source: Source,
    place: Arc<Place>,
}

pub(super) enum Source {
    /// The TLS reader fills it.
    Lane(lane::Rx),
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
    Quic(Arc<Guarded<Ids>>),
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

    fn tls(&self) -> Option<(&tls::Shared, tls::Line)> {
        match &self.keeper {
            Keeper::Tls(shared, serial) => Some((
                shared,
                tls::Line {
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
                if let Some((tls, line)) = self.tls() {
                    tls.abandon(line, destroyed);
                }
            }
        }
    }
}

impl Sender {
    pub(super) const fn new(lane: lane::Tx, place: Arc<Place>) -> Self {
        Self {
            lane,
            place,
            share: None,
        }
    }

    pub(super) fn hold(&mut self, share: Share) {
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
        self.lane.poll_ready(cx).map_err(Rejected::from)
    }

    /// Waits until a cell can be sent.
    ///
    /// # Errors
    /// [`Rejected::Ended`].
    pub async fn ready(&mut self) -> Result<(), Rejected> {
        poll_fn(|cx| self.poll_ready(cx)).await
    }

    /// Queues a cell; its circuit id is set here.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn send(&mut self, mut cell: Cell) -> Result<(), Rejected> {
        cell.circuit = self.place.id;
        if cell.command == Command::DESTROY {
            self.place.destroyed.store(true, Relaxed);
        }
        let first = self.lane.push(cell)?;
        if first && let Some((tls, line)) = self.place.tls() {
            tls.has_cells(line);
        }
        Ok(())
    }

    /// Ends the circuit at once: what is queued is thrown away and DESTROY goes out instead. Where the peer takes nothing, QUIC resets the stream,
    /// which says the same.
    pub fn destroy(self, reason: u8) {
        self.lane.abort(reason);
        if !self.place.destroyed.swap(true, Relaxed)
            && let Some((tls, line)) = self.place.tls()
        {
            tls.destroy(line, reason);
        }
    }

    /// Where whoever holds the circuit counts what it keeps for it.
    pub fn kept(&self) -> &Arc<Kept> {
        self.place.gauge.kept()
    }

    /// How many cells wait in the queue.
    pub fn buffered(&self) -> usize {
        self.lane.len()
    }
}

impl Receiver {
    pub(super) fn new(source: Source, place: Arc<Place>) -> Self {
        Self { source, place }
    }

    /// The next cell; `None` when the circuit has ended. A peer that ends it properly sends DESTROY first.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Cell>> {
        let next = match &mut self.source {
            Source::Lane(lane) => lane.poll_pop(cx),
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
            Source::Lane(lane) => lane.len(),
            Source::Stream(stream) => stream.buffered(),
        }
    }
}

impl From<lane::Refused> for Rejected {
    fn from(refused: lane::Refused) -> Self {
        match refused {
            lane::Refused::Full => Self::Full,
            lane::Refused::Closed => Self::Ended,
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
