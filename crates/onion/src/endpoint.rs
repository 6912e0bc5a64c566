//! One end of a circuit, where streams begin or end: the client's, and the exit's. It knows streams and flow control, not cells on channels and
//! not layers: relay messages in the clear come in ([`Endpoint::handle_message`]) and go out ([`Endpoint::next_message`], then [`Endpoint::sealed`] with the tag).
//! `client` and `relay` drive it; [`io`] is what programs and targets hold. tor-spec "Application connections and stream management".
//!
//! Its streams go over one circuit, or over the legs of a Conflux set (`legs`); a driver says on which leg something comes, and asks for what leaves on it.
//!
//! Every queue is bounded ([`Limits`]), for each stream and for all of them. While the channel takes nothing, acknowledgements gather up to [`Limits::urgent`]; then
//! [`Endpoint::is_full`], and the driver reads no more of this circuit.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    task::Waker,
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use hoplite_overlay::Error;
use hoplite_wire::cell::{
    self, Malformed,
    conflux::{Link, Nonce},
    datagram, onion_service,
    relay::{
        Begin, ConnectUdp, End, EndReason, Flags, Format, Header, Message, RelayCommand, Resolve,
        Resolved, Sendme, SendmeTag, StreamId, Xoff, Xon,
    },
};
use tokio::time::Instant;

use crate::{
    channel::CircuitBacklog,
    conflux::{self, Fate, LegId, Side},
    failure,
    flow_control::{self, Control, Violation, stream::FlowControlMessage, vegas},
};
use legs::{Coming, Legs};
use message::Unpredictable;
use stream::{Answer, Produced, Share, Stream, Sum};
use udp::UdpStream;

pub use message::Outbound;

pub mod io;
mod legs;
mod message;
mod stream;
pub mod udp;

/// A flag of BEGIN that only relays of this project know: END with reason DONE ends one direction of the stream, as a FIN does.
/// It is set towards relays that announce it, and others ignore it.
pub const HALF_CLOSE: Flags = Flags(1 << 31);

/// Bounds of one circuit's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Streams at once; the next is refused.
    pub streams: usize,
    /// Full cells of one stream that wait for its reader where there are no windows; more break the protocol. This many are XOFF's threshold and the
    /// largest window that the peer may have on its way until it hears XOFF.
    pub waiting: u32,
    /// Bytes of all streams that wait for their readers; beyond it the stream that holds most is ended.
    pub held: usize,
    /// Cells of one stream that wait to be sent; then its writer waits.
    pub sending: usize,
    /// Cells of all streams that wait to be sent; beyond it a stream may have [`FEW`] of its own.
    pub sending_all: usize,
    /// Messages that wait before DATA, acknowledgements mostly; then nothing more is read of the circuit.
    pub urgent: usize,
    /// Streams that have ended and on which may still come what was on its way, the oldest forgotten first.
    pub gone: usize,
    /// How long a small piece of a stream waits for more of it, so that they share a cell; zero: it leaves at once.
    pub share: Duration,
    /// Cells of a Conflux set that wait for others before them when the legs that are ahead are no longer acknowledged. Then one window more may come.
    pub early: usize,
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
            share: Duration::ZERO,
            early: 4096,
        }
    }
}

impl Limits {
    /// The same for a Conflux set: each leg may have the largest window.
    #[must_use]
    fn of_set(self) -> Self {
        let legs = u32::try_from(conflux::LEGS).unwrap_or(u32::MAX);
        let further = vegas::LARGEST.saturating_mul(legs.saturating_sub(1));
        let bytes = usize::try_from(further).unwrap_or(usize::MAX);
        Self {
            waiting: self.waiting.saturating_add(further),
            held: self.held.saturating_add(bytes.saturating_mul(cell::DATA)),
            ..self
        }
    }

    /// Bytes that may wait, both ways.
    pub fn most(&self) -> u64 {
        let held = self.of_set().held;
        let sending = self.sending_all + self.sending + self.streams.saturating_mul(FEW);
        let cells = sending.saturating_add(self.most_urgent());
        let early = self.most_early().saturating_mul(cell::BODY + legs::PLACE);
        let held = held.saturating_add(early);
        held.saturating_add(cells.saturating_mul(cell::LEN)) as u64
    }

    /// How many messages may wait before DATA if each stream that there may be is opened and ended at once.
    fn most_urgent(&self) -> usize {
        self.urgent + 2 * self.streams
    }

    /// How many messages of a Conflux set may wait for others.
    fn most_early(&self) -> usize {
        let largest = usize::try_from(vegas::LARGEST).unwrap_or(usize::MAX);
        self.early.saturating_add(largest)
    }
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opens streams.
    Client,
    /// Is asked for streams.
    Relay,
    /// An onion service: its clients ask it for streams.
    Service,
}

impl Role {
    /// Whether it is asked for streams, and does not ask.
    fn is_asked(self) -> bool {
        self != Self::Client
    }
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
    /// A stream to a port of the onion service.
    Port(u16),
    /// A UDP stream to a target.
    Udp(ConnectUdp),
    /// A UDP stream to a port of the onion service.
    UdpPort(u16),
}

/// What the peer did, for which the circuit is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Windows and their acknowledgements.
    #[error(transparent)]
    Flow(#[from] Violation),
    /// The order of a Conflux set, or its handshake.
    #[error(transparent)]
    Conflux(#[from] conflux::Violation),
    /// A message that cannot be read.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A message that its sender must not send, or not now.
    #[error("{0:?} where it is not allowed")]
    Unexpected(RelayCommand),
    /// More came early and is to be answered at once than streams can have asked.
    #[error("too many messages to be answered at once")]
    Unanswered,
    /// A message for a stream that never was, or on which nothing can be under way any more.
    #[error("a cell for an unknown stream")]
    UnknownStream,
}

/// When something comes, and whether the channel took the last cell.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// By which circuit.
    pub leg: LegId,
    /// Now.
    pub now: Instant,
    /// The channel holds the circuit back: a signal of congestion.
    pub blocked: bool,
}

/// Messages that go before DATA. They count as cells that wait to be sent.
#[derive(Debug)]
struct Urgent {
    waiting: VecDeque<Outbound>,
    counted: Share,
}

impl Urgent {
    fn counted(sending: &Sum) -> Self {
        Self {
            waiting: VecDeque::new(),
            counted: sending.share(),
        }
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }

    fn push_back(&mut self, message: Outbound) {
        self.counted.add(1);
        self.waiting.push_back(message);
    }

    fn pop_front(&mut self) -> Option<Outbound> {
        let message = self.waiting.pop_front()?;
        self.counted.take(1);
        Some(message)
    }

    fn clear(&mut self) {
        self.waiting.clear();
        self.counted.take(self.counted.own());
    }
}

/// One end of one circuit.
#[derive(Debug)]
pub struct Endpoint {
    role: Role,
    control: Control,
    limits: Limits,
    random: fn(&mut [u8]),
    legs: Legs,
    /// Cells with DATA or DATAGRAM that were handled.
    handled: u64,
    streams: BTreeMap<u16, Stream>,
    /// Those of datagrams; no two streams have one id.
    udp: BTreeMap<u16, UdpStream>,
    /// Bytes that wait for readers, and cells that wait to be sent, of all streams.
    held: Sum,
    sending: Sum,
    /// Streams that have something to send, in turn; and those that wait for the circuit's window alone, which go before them when it opens.
    turn: VecDeque<u16>,
    later: VecDeque<u16>,
    urgent: Urgent,
    /// Streams that ended here first, and what may still come on them (client).
    gone: VecDeque<(u16, Late)>,
    asked: VecDeque<(StreamId, Asked)>,
    /// Who waits for the next of those (onion service).
    asker: Option<Waker>,
    /// The last id that was given to a stream; the first is random, as C tor's is: it tells nobody how many there have been.
    last_id: u16,
    unpredictable: Unpredictable,
    retired: bool,
    closed: Option<Error>,
}

impl Endpoint {
    /// An end without streams. `random` fills padding; a circuit whose digests can be guessed could be acknowledged unseen.
    pub fn new(role: Role, control: Control, limits: Limits, random: fn(&mut [u8])) -> Self {
        let kept = Arc::default();
        let sending = Sum::sending(&kept);
        let mut first = [0; 2];
        random(&mut first);
        Self {
            role,
            control,
            limits,
            random,
            legs: Legs::one(control, random),
            handled: 0,
            streams: BTreeMap::new(),
            udp: BTreeMap::new(),
            held: Sum::received(&kept),
            urgent: Urgent::counted(&sending),
            sending,
            turn: VecDeque::new(),
            later: VecDeque::new(),
            gone: VecDeque::new(),
            asked: VecDeque::new(),
            asker: None,
            last_id: u16::from_be_bytes(first),
            unpredictable: Unpredictable::new(random),
            retired: false,
            closed: None,
        }
    }

    /// Counts there what waits in it, for the channel to know; before the first stream.
    #[must_use]
    pub fn counted(mut self, kept: &Arc<CircuitBacklog>) -> Self {
        self.count(kept);
        self
    }

    fn count(&mut self, kept: &Arc<CircuitBacklog>) {
        self.held = Sum::received(kept);
        self.sending = Sum::sending(kept);
        self.urgent = Urgent::counted(&self.sending);
    }

    /// With cells of another format; before the first stream.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.legs.set_format(format);
        self
    }

    /// Another flow control of a leg, and the format of its cells, as the handshake agreed on; before the first stream.
    ///
    /// # Errors
    /// Another leg's cells have another format.
    pub(crate) fn set(
        &mut self,
        leg: LegId,
        control: Control,
        format: Format,
    ) -> Result<(), Broken> {
        self.control = control;
        let outgoing = flow_control::Outgoing::new(control);
        self.legs.set_flow(leg, control, outgoing);
        self.legs.agree(format)
    }

    /// The far end is an onion service now, or, for a service, its client; before the first stream.
    pub(crate) fn meet(&mut self, role: Role, control: Control) {
        (self.role, self.control) = (role, control);
        let outgoing = flow_control::Outgoing::to_service(control);
        self.legs.set_flow(LegId::FIRST, control, outgoing);
        self.legs.set_format(Format::V0);
    }

    /// The channel of a leg holds each circuit back by itself; before the first stream.
    pub(crate) fn set_backpressure(&mut self, leg: LegId) {
        self.legs.set_backpressure(leg);
    }

    /// Who is woken when there is something to send on a leg, or to do.
    pub(crate) fn set_driver(&mut self, leg: LegId, waker: &Waker) {
        self.legs.set_driver(leg, waker);
    }

    /// How many streams there are.
    pub fn streams(&self) -> usize {
        self.streams.len() + self.udp.len()
    }

    /// Whether the next stream would be refused: there are too many, or too many were opened and given up while nothing could be sent.
    pub(crate) fn has_no_room(&self) -> bool {
        self.streams() >= self.limits.streams || self.urgent.len() >= self.limits.most_urgent()
    }

    /// Takes no further streams: the circuit ends with its last one.
    pub fn retire(&mut self) {
        self.retired = true;
        self.legs.wake_all();
    }

    /// Whether it takes no further streams.
    pub fn is_retired(&self) -> bool {
        self.retired
    }

    /// Why the circuit has closed.
    pub fn closed(&self) -> Option<&Error> {
        self.closed.as_ref()
    }

    /// Whether nothing more of a leg may be handled before something was sent.
    pub fn is_full(&self, leg: LegId) -> bool {
        self.urgent.len() + self.legs.waiting(leg) >= self.limits.urgent
    }

    /// The circuit has closed: every stream ends with this error. Those that only had the rest of their bytes to send are forgotten.
    pub fn close(&mut self, error: Error) {
        self.urgent.clear();
        self.turn.clear();
        self.later.clear();
        self.streams.retain(|_, stream| !stream.is_dropped());
        for stream in self.streams.values_mut() {
            stream.close();
        }
        self.udp.values_mut().for_each(UdpStream::close);
        self.closed.get_or_insert(error);
        self.legs.wake_all();
        self.wake_asker();
    }

    /// A leg has closed, and so has the circuit, unless it is a Conflux set that has lost nothing with it.
    pub fn close_leg(&mut self, leg: LegId, error: Error) {
        match self.legs.close(leg) {
            Fate::Over => self.close(error),
            Fate::GoesOn => self.legs.wake_all(),
        }
    }

    /// Bytes that this end owns, buffers included.
    pub fn owned(&self) -> usize {
        let streams: usize = self.streams.values().map(Stream::owned).sum();
        let udp: usize = self.udp.values().map(UdpStream::owned).sum();
        let urgent = self.urgent.waiting.capacity() * size_of::<Outbound>();
        let bodies = self.urgent.len() + self.legs.owned();
        size_of::<Self>() + streams + udp + urgent + bodies * cell::BODY
    }

    fn new_stream(&self, half_close: bool) -> Stream {
        let shares = [&self.held, &self.sending].map(Sum::share);
        Stream::new(
            self.control,
            self.legs.format(),
            &self.limits,
            half_close,
            shares,
        )
    }

    /// How many cells of a stream may wait to be sent now.
    fn may_queue(&self) -> usize {
        if self.sending.total() < self.limits.sending_all {
            self.limits.sending
        } else {
            self.limits.sending.min(FEW)
        }
    }

    fn wake(&mut self) {
        self.legs.wake_next();
    }

    fn wake_asker(&mut self) {
        if let Some(asker) = self.asker.take() {
            asker.wake();
        }
    }
}

#[cfg(test)]
mod tests;

// Conflux sets: several circuits carry the streams. Proposal 329.

impl Endpoint {
    /// The end of a set without legs.
    pub fn of_set(side: Side, nonce: Nonce, limits: Limits, random: fn(&mut [u8])) -> Self {
        let role = match side {
            Side::Client => Role::Client,
            Side::Exit => Role::Relay,
        };
        let limits = limits.of_set();
        let end = Self::new(role, Control::Fixed, limits, random);
        Self {
            legs: Legs::set(side, nonce, &limits, random),
            ..end
        }
    }

    /// Another leg of the set, which is to be linked; its channel counts at `kept` what came on it and waits out of order, and that of the first what waits
    /// in streams.
    pub(crate) fn add_leg(&mut self, control: Control, kept: &Arc<CircuitBacklog>) -> LegId {
        self.control = control;
        let leg = self.legs.add(control, kept);
        if leg == LegId::FIRST {
            self.count(kept);
        }
        leg
    }

    /// A leg has all of its hops, and is to be linked (client).
    ///
    /// # Errors
    /// [`Broken`]: it has no congestion control, or was linked before.
    pub(crate) fn link(&mut self, leg: LegId, now: Instant) -> Result<(), Broken> {
        self.check_control()?;
        self.legs.ask(leg, now)
    }

    /// The client asks for a leg to be linked (exit).
    ///
    /// # Errors
    /// [`Broken`]: it is refused.
    pub(crate) fn answer_link(
        &mut self,
        leg: LegId,
        link: &Link,
        now: Instant,
    ) -> Result<(), Broken> {
        self.check_control()?;
        self.legs.answer(leg, link, now)
    }

    /// "If congestion control negotiation has failed, the circuit MUST be closed."
    fn check_control(&self) -> Result<(), Broken> {
        match self.control {
            Control::Vegas { .. } => Ok(()),
            Control::Fixed => Err(Broken::Unexpected(RelayCommand::CONFLUX_LINK)),
        }
    }

    /// Whether both ends have measured this leg.
    pub(crate) fn is_linked(&self, leg: LegId) -> bool {
        self.legs.is_linked(leg)
    }

    /// Whether the channel of a leg takes a cell now.
    pub(crate) fn set_ready(&mut self, leg: LegId, ready: bool, now: Instant) {
        self.legs.set_ready(leg, ready, now);
    }
}

// What comes to one end of a circuit: relay messages in the clear, each handed to its stream. tor-spec "Relay cells",
// "Closing streams", "Flow control".

impl Endpoint {
    /// A relay message for this end has come, in a cell with this tag.
    ///
    /// # Errors
    /// [`Broken`]: the circuit is to be closed.
    pub fn handle_message(
        &mut self,
        body: BytesMut,
        tag: SendmeTag,
        at: Arrival,
    ) -> Result<(), Broken> {
        let fixed: &[u8; cell::BODY] = body.as_ref().try_into().map_err(|_| Malformed("cell"))?;
        let header = Header::read(self.legs.format(), fixed)?;
        let data = header.data(fixed)?;
        if matches!(header.command, RelayCommand::DATA | RelayCommand::DATAGRAM) {
            self.legs.received(at.leg, tag)?;
        }
        if conflux::is_of_set(header.command) {
            return self.legs.linking(header.command, data, at);
        }
        if !self.legs.is_set() || !conflux::is_multiplexed(header.command) {
            return self.in_order(header, body, at);
        }
        let mut next = self.legs.order(at.leg, header, body)?;
        while let Some(message) = next {
            // All that came early may be asked for an answer, and none can leave meanwhile.
            if self.urgent.len() >= self.limits.most_urgent() {
                return Err(Broken::Unanswered);
            }
            self.in_order(message.header, message.body, at)?;
            next = self.legs.due();
        }
        Ok(())
    }

    /// A message whose turn it is: header and data of it.
    fn in_order(&mut self, header: Header, body: BytesMut, at: Arrival) -> Result<(), Broken> {
        if header.command == RelayCommand::DATA {
            return self.data(header, body);
        }
        let data = body.get(header.len()..header.len() + usize::from(header.length));
        let data = data.ok_or(Malformed("length of a relay message"))?;
        if header.command == RelayCommand::DATAGRAM {
            self.handled = self.handled.saturating_add(1);
            return self.datagram(header.stream, data);
        }
        if header.command == RelayCommand::BEGIN && self.role == Role::Service {
            return self.requested(header, Asked::Port(onion_service::begin(data)?));
        }
        if header.command == RelayCommand::CONNECT_UDP && self.role == Role::Service {
            return self.requested(header, Asked::UdpPort(datagram::port(data)?));
        }
        let message = match Message::parse(header.command, data) {
            Ok(message) => message,
            Err(error) => return self.unreadable(header, error),
        };
        match message {
            Message::Sendme(sendme) => self.sendme(header.stream, sendme, at),
            Message::Connected(_) => self.answered(header, Answer::Connected),
            Message::ConnectedUdp(_) => self.answered(header, Answer::ConnectedUdp),
            Message::Resolved(resolved) => self.looked_up(header, &resolved),
            Message::End(end) => self.ended(header.stream, end),
            Message::Xon(Xon { .. }) => self.told(header, false),
            Message::Xoff(Xoff) => self.told(header, true),
            Message::Begin(_) | Message::BeginDir | Message::Resolve(_)
                if self.role == Role::Service =>
            {
                Err(Broken::Unexpected(header.command))
            }
            Message::Begin(begin) => self.requested(header, Asked::Stream(begin)),
            Message::ConnectUdp(connect) => self.requested(header, Asked::Udp(connect)),
            Message::BeginDir => self.requested(header, Asked::Directory),
            Message::Resolve(Resolve(name)) => self.requested(header, Asked::Name(name.into())),
            // "If the relay command is not understood, the cell must be dropped and ignored." That an exit does; a client has asked for nothing
            // that it does not understand, nor for padding (proposal 254), and who may send it cells without end may mark its circuit.
            Message::Drop | Message::Unknown(..) if self.role.is_asked() => Ok(()),
            other => Err(Broken::Unexpected(other.command())),
        }
    }

    /// What nobody can be connected to is the program's mistake, not the client's.
    fn unreadable(&mut self, header: Header, error: Malformed) -> Result<(), Broken> {
        let asks = matches!(
            header.command,
            RelayCommand::BEGIN | RelayCommand::RESOLVE | RelayCommand::CONNECT_UDP
        );
        if !asks || self.role != Role::Relay || header.stream == StreamId::CIRCUIT {
            return Err(error.into());
        }
        self.say(
            header.stream,
            &Message::End(End::new(EndReason::TORPROTOCOL)),
        );
        Ok(())
    }

    fn data(&mut self, header: Header, mut body: BytesMut) -> Result<(), Broken> {
        self.handled = self.handled.saturating_add(1);
        let at_client = self.role == Role::Client;
        // Nobody has a reason to send a client nothing.
        if at_client && header.length == 0 {
            return Err(Broken::Unexpected(RelayCommand::DATA));
        }
        let Some(stream) = self.stream(header.stream) else {
            return self.stray(header.stream, Late::data);
        };
        if at_client && !stream.is_answered() {
            return Err(Broken::Unexpected(RelayCommand::DATA));
        }
        body.advance(header.len());
        body.truncate(header.length.into());
        if let Some(say) = stream.receive(&body)? {
            self.say_flow(header.stream, say);
        }
        if self.held.total() > self.limits.held {
            self.relieve();
        }
        Ok(())
    }

    /// Ends the stream that holds most. Proposal 324 §4.1.3 has those ended that hold the oldest; whoever stands still longest holds most, too.
    fn relieve(&mut self) {
        let reason = match self.role {
            // tor-spec "Closing streams": a client "SHOULD NOT" give another reason.
            Role::Client | Role::Service => EndReason::MISC,
            Role::Relay => EndReason::RESOURCELIMIT,
        };
        let fullest = self
            .streams
            .iter_mut()
            .max_by_key(|(_, stream)| stream.held());
        let Some((id, stream)) = fullest else {
            return;
        };
        let id = StreamId(*id);
        let coming = self.legs.coming(self.handled);
        let late = (self.role == Role::Client).then(|| Late::new(stream, coming));
        stream.cut(reason, late);
        self.say(id, &Message::End(End::new(reason)));
        self.take_turn(id);
    }

    fn sendme(&mut self, id: StreamId, sendme: Sendme, at: Arrival) -> Result<(), Broken> {
        if id == StreamId::CIRCUIT {
            let tag = match sendme {
                Sendme::V1(tag) => Some(tag),
                Sendme::V0 => None,
            };
            return self.legs.acknowledged(tag, at);
        }
        let Some(stream) = self.stream(id) else {
            return self.stray(id, |late, _| late.acknowledged());
        };
        stream.outgoing.acknowledged()?;
        self.take_turn(id);
        Ok(())
    }

    fn answered(&mut self, header: Header, answer: Answer) -> Result<(), Broken> {
        if self.role.is_asked() {
            return Err(Broken::Unexpected(header.command));
        }
        if let Some(stream) = self.udp.get_mut(&header.stream.0) {
            if stream.is_answered() || answer != Answer::ConnectedUdp {
                return Err(Broken::Unexpected(header.command));
            }
            stream.answer(Ok(()));
            return Ok(());
        }
        match self.stream(header.stream) {
            Some(stream) if stream.is_answered() || answer == Answer::ConnectedUdp => {
                Err(Broken::Unexpected(header.command))
            }
            Some(stream) => {
                stream.answer(Ok(answer));
                Ok(())
            }
            None => self.stray(header.stream, |late, _| late.answered(header.command)),
        }
    }

    fn looked_up(&mut self, header: Header, resolved: &Resolved<'_>) -> Result<(), Broken> {
        let answer = failure::addresses(resolved);
        let at_exit = self.role.is_asked();
        let Some(stream) = self.stream(header.stream) else {
            return self.answered(header, Answer::Connected);
        };
        if at_exit || stream.is_answered() {
            return Err(Broken::Unexpected(header.command));
        }
        stream.answer(answer.map(Answer::Addresses));
        stream.end(End::new(EndReason::DONE));
        Ok(())
    }

    fn ended(&mut self, id: StreamId, end: End) -> Result<(), Broken> {
        let at_exit = self.role.is_asked();
        if let Some(stream) = self.udp.get_mut(&id.0) {
            if !at_exit && stream.ended().is_some() {
                return Err(Broken::Unexpected(RelayCommand::END));
            }
            stream.end(end);
            return Ok(());
        }
        let Some(stream) = self.stream(id) else {
            return self.stray(id, |late, _| late.ended(end));
        };
        if !at_exit && !stream.may_end(end) {
            return Err(Broken::Unexpected(RelayCommand::END));
        }
        stream.end(end);
        // A writer that waited for the other side's end may end now.
        self.take_turn(id);
        Ok(())
    }

    fn told(&mut self, header: Header, stop: bool) -> Result<(), Broken> {
        let strict = self.role == Role::Client;
        let Some(stream) = self.stream(header.stream) else {
            return self.stray(header.stream, |late, _| late.told(stop));
        };
        stream.outgoing.told(stop, strict)?;
        if !stop {
            self.take_turn(header.stream);
        }
        Ok(())
    }

    /// A stream that goes on here.
    fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        let stream = self.streams.get_mut(&id.0)?;
        stream.cut_off().is_none().then_some(stream)
    }

    /// A cell for a stream that is not there. An exit cannot know which streams its client has given up, and drops it;
    /// a client knows which it had, and what may still be on its way there.
    fn stray(
        &mut self,
        id: StreamId,
        judge: impl FnOnce(&mut Late, u64) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        if self.role.is_asked() {
            return Ok(());
        }
        let mut gone = self.gone.iter_mut();
        let late = match self.streams.get_mut(&id.0) {
            Some(stream) => stream.cut_off(),
            None => gone.find(|(gone, _)| *gone == id.0).map(|(_, late)| late),
        };
        judge(late.ok_or(Broken::UnknownStream)?, self.handled)
    }
}

// What leaves one end of a circuit: first what is urgent, then DATA, a cell of each stream in turn. tor-spec "Relay
// cells", "Closing streams", "Flow control".

impl Endpoint {
    /// What is to be sent next on a leg: first what is its own, then what is urgent, then DATA, a cell of each stream in turn.
    pub fn next_message(&mut self, leg: LegId) -> Option<Outbound> {
        if let Some(message) = self.legs.next_own(leg) {
            return Some(message);
        }
        if self.urgent.len() == 0 && self.turn.is_empty() && self.later.is_empty() {
            self.legs.rests(leg);
            return None;
        }
        let may_send = self.legs.may_send(leg)?;
        let message = self.next_of_streams(may_send)?;
        Some(self.legs.number(leg, message))
    }

    fn next_of_streams(&mut self, may_send: bool) -> Option<Outbound> {
        let was_full = self.urgent.len() >= self.limits.urgent;
        if let Some(message) = self.urgent.pop_front() {
            if was_full && self.urgent.len() < self.limits.urgent {
                // Nothing more was read of the other legs of a set either.
                self.legs.wake_all();
            }
            return Some(message);
        }
        if may_send {
            self.later.append(&mut self.turn);
            std::mem::swap(&mut self.later, &mut self.turn);
        }
        for _ in 0..self.turn.len() {
            let id = self.turn.pop_front()?;
            if let Some(datagram) = self.next_datagram(id, may_send) {
                return Some(datagram);
            }
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            match stream.produce(may_send) {
                Produced::Cell(body, more) => {
                    if more {
                        self.turn.push_back(id)
                    } else {
                        stream.leave_turn()
                    }
                    self.unpredictable.sent(body.len());
                    return Some(self.that_counts(RelayCommand::DATA, StreamId(id), body));
                }
                Produced::Later => self.later.push_back(id),
                Produced::End => {
                    stream.leave_turn();
                    let done = End::new(EndReason::DONE);
                    if stream.is_over() {
                        self.forget(id);
                    }
                    return Some(self.message(StreamId(id), &Message::End(done)));
                }
                Produced::Nothing => {
                    stream.leave_turn();
                    if stream.is_over() {
                        self.forget(id);
                    }
                }
            }
        }
        None
    }

    /// The next DATAGRAM of a UDP stream, if it is one and has any.
    fn next_datagram(&mut self, id: u16, may_send: bool) -> Option<Outbound> {
        let stream = self.udp.get_mut(&id)?;
        match stream.produce(may_send) {
            Produced::Cell(body, more) => {
                if more {
                    self.turn.push_back(id)
                } else {
                    stream.leave_turn()
                }
                self.unpredictable.left_room();
                return Some(self.that_counts(RelayCommand::DATAGRAM, StreamId(id), body));
            }
            Produced::Later => self.later.push_back(id),
            Produced::End | Produced::Nothing => stream.leave_turn(),
        }
        None
    }

    fn that_counts(&self, command: RelayCommand, id: StreamId, body: BytesMut) -> Outbound {
        message::counted(self.legs.format(), command, body, id, self.random)
    }

    /// A message of [`Self::next_message`] that was [`Outbound::counted`] has been given its tag, and leaves.
    pub fn sealed(&mut self, leg: LegId, tag: SendmeTag, now: Instant) {
        self.legs.sealed(leg, tag, now);
    }

    fn forget(&mut self, id: u16) {
        self.waits_no_more(id);
        let Some(stream) = self.streams.remove(&id) else {
            return;
        };
        if self.role.is_asked() {
            return;
        }
        let coming = self.legs.coming(self.handled);
        self.remember(StreamId(id), stream.late(coming));
    }

    /// A stream has ended here, and this may still come on it.
    fn remember(&mut self, id: StreamId, late: Late) {
        if self.gone.len() >= self.limits.gone {
            self.gone.pop_front();
        }
        self.gone.push_back((id.0, late));
    }

    /// Nobody holds the stream's handle any more.
    fn drop_stream(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return;
        };
        let reset = stream.drop_handle();
        let (told, over) = (stream.is_told(), stream.is_over());
        if reset || over || self.closed.is_some() {
            self.forget(id.0);
        } else {
            self.take_turn(id);
        }
        if reset && !told && self.closed.is_none() {
            // tor-spec "Closing streams": a client "SHOULD NOT" give another reason.
            self.say(id, &Message::End(End::new(EndReason::MISC)));
        }
    }

    fn take_turn(&mut self, id: StreamId) {
        let stream = self.streams.get_mut(&id.0);
        let stream = stream.map(|stream| (stream.enter_turn(), stream.queues_nothing()));
        let udp = self.udp.get_mut(&id.0);
        let udp = udp.map(|stream| (stream.enter_turn(), stream.queues_nothing()));
        for (enters, queues_nothing) in [stream, udp].into_iter().flatten() {
            if enters {
                self.turn.push_back(id.0);
            } else if queues_nothing {
                self.come_forward(id.0);
            }
        }
        self.wake();
    }

    /// What queues nothing any more does not wait for the window: it may only have to end.
    fn come_forward(&mut self, id: u16) {
        if let Some(place) = self.later.iter().position(|later| *later == id) {
            self.later.remove(place);
            self.turn.push_back(id);
        }
    }

    /// The stream is gone: nothing of it waits for the window.
    fn waits_no_more(&mut self, id: u16) {
        self.later.retain(|later| *later != id);
    }

    fn say(&mut self, id: StreamId, message: &Message<'_>) {
        if self.closed.is_some() {
            return;
        }
        let message = self.message(id, message);
        self.urgent.push_back(message);
        self.wake();
    }

    fn say_flow(&mut self, id: StreamId, say: FlowControlMessage) {
        match say {
            FlowControlMessage::Sendme => self.say(id, &Message::Sendme(Sendme::V0)),
            FlowControlMessage::Xoff => self.say(id, &Message::Xoff(Xoff)),
            FlowControlMessage::Xon => self.say(id, &Message::Xon(Xon { kbps: 0 })),
        }
    }

    fn message(&self, id: StreamId, message: &Message<'_>) -> Outbound {
        message::control(self.legs.format(), message, id, self.random)
    }

    fn fetch(&mut self, id: StreamId) -> Option<Bytes> {
        let (bytes, say) = self.streams.get_mut(&id.0)?.fetch()?;
        if let Some(say) = say {
            self.say_flow(id, say);
        }
        Some(bytes)
    }

    /// Copies of what waits on a stream as much as fits; it stays. How much.
    fn peek(&self, id: StreamId, into: &mut [u8]) -> usize {
        let stream = self.streams.get(&id.0);
        stream.map_or(0, |stream| stream.peek(into))
    }

    /// So much of it was taken.
    fn consume(&mut self, id: StreamId, mut bytes: usize) {
        while bytes > 0 {
            let stream = self.streams.get_mut(&id.0);
            let Some((taken, say)) = stream.and_then(|stream| stream.consume(bytes)) else {
                return;
            };
            bytes -= taken;
            if let Some(say) = say {
                self.say_flow(id, say);
            }
        }
    }
}

// What may still come on a stream that this end has ended: what the peer had sent before it read END, and nothing
// else; the client's end keeps to it. tor-spec "Closing streams"; C tor calls such a stream half-closed. A cell that
// is thrown away is a mark that a relay can make on a circuit as often as it likes, for somebody who watches the
// client (proposal 344, "dropped cells"): so each is counted against what the stream's windows had left, and one more
// closes the circuit.

/// One such stream.
#[derive(Clone, Copy, Debug)]
struct Late {
    /// Judges SENDME, XON and XOFF as while the stream was there; a UDP stream has none.
    outgoing: Option<flow_control::stream::Outgoing>,
    /// DATA cells left of the stream's own window, where it has one.
    window: Option<u32>,
    /// When this many DATA cells have come on the circuit, all that was on its way at END has come.
    until: u64,
    /// CONNECTED or RESOLVED is still to come.
    is_asked: bool,
    /// Times that the peer may still say END: with half-closed streams once for its side, and once for all of it.
    ends: u8,
}

impl Late {
    /// What may still come on `stream`, which is ended now.
    fn new(stream: &Stream, circuit: Coming) -> Self {
        let ended = stream.ended();
        let ends = match (ended, stream.knows_half_close()) {
            (None, half_close) => 1 + u8::from(half_close),
            (Some(end), true) => u8::from(end.reason == EndReason::DONE),
            (Some(_), false) => 0,
        };
        Self {
            outgoing: Some(stream.outgoing),
            window: match ended {
                Some(_) => Some(0),
                None => stream.window(),
            },
            until: circuit.handled.saturating_add(circuit.under_way),
            is_asked: !stream.is_answered(),
            ends,
        }
    }

    /// A DATA cell, one of so many that were handled.
    fn data(&mut self, handled: u64) -> Result<(), Broken> {
        if let Some(window) = &mut self.window {
            *window = window.checked_sub(1).ok_or(Broken::UnknownStream)?;
        }
        if handled <= self.until {
            Ok(())
        } else {
            Err(Broken::UnknownStream)
        }
    }

    /// CONNECTED or RESOLVED.
    fn answered(&mut self, command: RelayCommand) -> Result<(), Broken> {
        if std::mem::take(&mut self.is_asked) {
            Ok(())
        } else {
            Err(Broken::Unexpected(command))
        }
    }

    /// END: nothing but a second one may follow, and that only behind an orderly one.
    fn ended(&mut self, end: End) -> Result<(), Broken> {
        self.ends = self.ends.checked_sub(1).ok_or(Broken::UnknownStream)?;
        if end.reason != EndReason::DONE {
            self.ends = 0;
        }
        self.window = Some(0);
        self.is_asked = false;
        Ok(())
    }

    /// SENDME.
    fn acknowledged(&mut self) -> Result<(), Broken> {
        let outgoing = self.outgoing.as_mut().ok_or(Broken::UnknownStream)?;
        Ok(outgoing.acknowledged()?)
    }

    /// XOFF or XON.
    fn told(&mut self, stop: bool) -> Result<(), Broken> {
        let outgoing = self.outgoing.as_mut().ok_or(Broken::UnknownStream)?;
        Ok(outgoing.told(stop, true)?)
    }
}
