//! One end of a circuit, where streams begin or end: the client's, and the exit's. It knows streams and flow control, not cells on channels and
//! not layers: relay messages in the clear come in ([`Edge::handle`]) and go out ([`Edge::next_message`], then [`Edge::sealed`] with the digest).
//! `client` and `relay` drive it; [`io`] is what programs and targets hold. tor-spec "Application connections and stream management".
//!
//! Every queue is bounded ([`Limits`]), for each stream and for all of them. While the channel takes nothing, acknowledgements gather up to [`Limits::urgent`]; then
//! [`Edge::is_full`], and the driver reads no more of this circuit.

mod ask;
pub mod io;
mod late;
mod message;
mod receive;
mod send;
mod share;
mod stream;
mod unpredictable;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    task::Waker,
};

use hoplite_overlay::Error;
use hoplite_wire::cell::{
    self, Malformed,
    relay::{Begin, Command, Flags, StreamId},
};
use tokio::time::Instant;

pub use self::message::Outbound;
use self::{late::Late, share::Sum, stream::Stream, unpredictable::Unpredictable};
use crate::{
    channel::Kept,
    flow::{self, Control, Violation, vegas},
};

/// A flag of BEGIN that only relays of this project know: END with reason DONE ends one direction of the stream, as a FIN does.
/// It is set towards relays that announce it, and others ignore it.
pub const HALF_CLOSE: Flags = Flags(1 << 31);

/// Bounds of one circuit's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Streams at once; the next is refused.
    pub streams: usize,
    /// Full cells of one stream that wait for its reader where there are no windows; more break the protocol. So many are XOFF's threshold and the
    /// largest window that the peer may have on its way until it hears XOFF.
    pub waiting: u32,
    /// Octets of all streams that wait for their readers; beyond it the stream that holds most is ended.
    pub held: usize,
    /// Cells of one stream that wait to be sent; then its writer waits.
    pub sending: usize,
    /// Cells of all streams that wait to be sent; beyond it a stream may have [`FEW`] of its own.
    pub sending_all: usize,
    /// Messages that wait before DATA, acknowledgements mostly; then nothing more is read of the circuit.
    pub urgent: usize,
    /// Streams that have ended and on which may still come what was on its way, the oldest forgotten first.
    pub gone: usize,
}

/// Cells that a stream may always have waiting to be sent, so that each has its turn.
pub const FEW: usize = 8;

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: 512,
            waiting: vegas::LARGEST + 1024,
            held: 16 << 20,
            sending: 128,
            sending_all: 4096,
            urgent: 256,
            gone: 512,
        }
    }
}

impl Limits {
    /// Octets that may wait in all streams, both ways.
    pub fn most(&self) -> u64 {
        let cells = self.sending_all + self.sending + self.streams.saturating_mul(FEW);
        self.held.saturating_add(cells.saturating_mul(cell::LEN)) as u64
    }
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opens streams.
    Client,
    /// Is asked for streams.
    Exit,
}

/// What a client asks of an exit.
#[derive(Debug)]
pub enum Asked {
    /// A stream to a target.
    Stream(Begin),
    /// A stream to the relay's directory.
    Directory,
    /// The addresses of a name, or of an address the name.
    Name(String),
}

/// What the peer did, for which the circuit is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Windows and their acknowledgements.
    #[error(transparent)]
    Flow(#[from] Violation),
    /// A message that cannot be read.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A message that its sender must not send, or not now.
    #[error("{0:?} where it is not allowed")]
    Unexpected(Command),
    /// A message for a stream that never was, or on which nothing can be under way any more.
    #[error("a cell for an unknown stream")]
    UnknownStream,
}

/// When something comes, and whether the channel took the last cell.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Now.
    pub now: Instant,
    /// The channel holds the circuit back: a signal of congestion.
    pub blocked: bool,
}

/// One end of one circuit.
#[derive(Debug)]
pub struct Edge {
    role: Role,
    control: Control,
    limits: Limits,
    random: fn(&mut [u8]),
    outgoing: flow::Outgoing,
    incoming: flow::Incoming,
    streams: BTreeMap<u16, Stream>,
    /// Octets that wait for readers, and cells that wait to be sent, of all streams.
    held: Sum,
    sending: Sum,
    /// Streams that have something to send, in turn.
    turn: VecDeque<u16>,
    urgent: VecDeque<Outbound>,
    /// Streams that ended here first, and what may still come on them (client).
    gone: VecDeque<(u16, Late)>,
    asked: VecDeque<(StreamId, Asked)>,
    /// The last id that was given to a stream; the first is random, as C tor's is: it tells nobody how many there have been.
    last_id: u16,
    unpredictable: Unpredictable,
    driver: Option<Waker>,
    retired: bool,
    closed: Option<Error>,
}

impl Edge {
    /// An end without streams. `random` fills padding; a circuit whose digests can be guessed could be acknowledged unseen.
    pub fn new(role: Role, control: Control, limits: Limits, random: fn(&mut [u8])) -> Self {
        let kept = Arc::default();
        let mut first = [0; 2];
        random(&mut first);
        Self {
            role,
            control,
            limits,
            random,
            outgoing: flow::Outgoing::new(control),
            incoming: flow::Incoming::new(control),
            streams: BTreeMap::new(),
            held: Sum::received(&kept),
            sending: Sum::sending(&kept),
            turn: VecDeque::new(),
            urgent: VecDeque::new(),
            gone: VecDeque::new(),
            asked: VecDeque::new(),
            last_id: u16::from_be_bytes(first),
            unpredictable: Unpredictable::new(random),
            driver: None,
            retired: false,
            closed: None,
        }
    }

    /// Counts there what waits in its streams, for the channel to know; before the first stream.
    #[must_use]
    pub fn counted(mut self, kept: &Arc<Kept>) -> Self {
        self.held = Sum::received(kept);
        self.sending = Sum::sending(kept);
        self
    }

    /// Another flow control, as the handshake agreed on; before the first stream.
    pub fn set_control(&mut self, control: Control) {
        self.control = control;
        self.outgoing = flow::Outgoing::new(control);
        self.incoming = flow::Incoming::new(control);
    }

    /// Who is woken when there is something to send or to do.
    pub fn set_driver(&mut self, waker: &Waker) {
        match &mut self.driver {
            Some(driver) => driver.clone_from(waker),
            None => self.driver = Some(waker.clone()),
        }
    }

    /// How many streams there are.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Whether the next stream would be refused: there are too many, or too many were opened and given up while nothing could be sent.
    pub fn has_no_room(&self) -> bool {
        let said = self.limits.urgent + 2 * self.limits.streams;
        self.streams.len() >= self.limits.streams || self.urgent.len() >= said
    }

    /// Takes no further streams: the circuit ends with its last one.
    pub fn retire(&mut self) {
        self.retired = true;
        self.wake();
    }

    /// Whether it takes no further streams.
    pub fn is_retired(&self) -> bool {
        self.retired
    }

    /// Why the circuit has closed.
    pub fn closed(&self) -> Option<&Error> {
        self.closed.as_ref()
    }

    /// Whether nothing more may be handled before something was sent.
    pub fn is_full(&self) -> bool {
        self.urgent.len() >= self.limits.urgent
    }

    /// The circuit has closed: every stream ends with this error.
    pub fn close(&mut self, error: Error) {
        self.urgent.clear();
        self.turn.clear();
        for stream in self.streams.values_mut() {
            stream.close();
        }
        self.closed.get_or_insert(error);
        self.wake();
    }

    /// Octets that this end owns, buffers included.
    pub fn owned(&self) -> usize {
        let streams: usize = self.streams.values().map(Stream::owned).sum();
        let urgent = self.urgent.capacity() * size_of::<Outbound>();
        size_of::<Self>() + streams + urgent + self.urgent.len() * cell::BODY
    }

    fn new_stream(&self, half_close: bool) -> Stream {
        let shares = [&self.held, &self.sending].map(Sum::share);
        Stream::new(self.control, &self.limits, half_close, shares)
    }

    /// How many cells of a stream may wait to be sent now.
    fn may_queue(&self) -> usize {
        match self.sending.total() < self.limits.sending_all {
            true => self.limits.sending,
            false => self.limits.sending.min(FEW),
        }
    }

    fn wake(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }
}

#[cfg(test)]
mod tests;
