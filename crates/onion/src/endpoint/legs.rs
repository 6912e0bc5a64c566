//! The circuits that carry an endpoint's streams: one, or the legs of a Conflux set. Each has its own flow control and its own driver.
//! [`super::Endpoint`] asks here which of them is to send, and what comes in which order; [`crate::conflux`] knows the rules. Proposal 329 §2.5.
//!
//! Acknowledgements are of one leg. They tell of what has come there, in whatever order; but while much waits for a slower leg, a faster one is not
//! acknowledged: so what waits is bounded by that and by one window, and an honest sender never has the set closed for it.

use std::{collections::VecDeque, sync::Arc, task::Waker, time::Duration};

use bytes::BytesMut;
use hoplite_wire::cell::{
    conflux::{Link, Nonce, Switch, linked_ack},
    relay::{Format, Header, Message, RelayCommand, Sendme, SendmeTag, StreamId},
};
use tokio::time::Instant;

use super::{
    Arrival, Broken, Limits, Outbound, message,
    stream::{Share, Sum},
};
use crate::{
    channel::CircuitBacklog,
    conflux::{Bounds, Fate, LegId, Room, Set, Side, Violation},
    flow_control::{self, Control},
};

/// The circuits of one endpoint.
#[derive(Debug)]
pub(super) struct Legs {
    legs: Vec<Leg>,
    /// What makes them a set; `None`: there is one circuit, and all leaves and comes on it.
    set: Option<Box<Set<Early>>>,
    next: u16,
    /// Of their cells, once a handshake has agreed on it.
    format: Option<Format>,
    /// When a driver last asked.
    now: Instant,
    random: fn(&mut [u8]),
}

/// One of them.
#[derive(Debug)]
struct Leg {
    id: LegId,
    outgoing: flow_control::Outgoing,
    incoming: flow_control::Incoming,
    /// Messages of this leg alone, and what is to follow a SWITCH: they go before all else.
    own: VecDeque<Outbound>,
    /// Acknowledgements that are held, of what came too early.
    held: VecDeque<Outbound>,
    /// Since when its window or its channel was full again whenever it had had room.
    full_since: Option<Instant>,
    /// Its channel takes a cell.
    ready: bool,
    driver: Option<Waker>,
    /// Where its channel counts what waits out of order.
    early: Sum,
    /// Its channel holds each circuit back by itself.
    backpressure: bool,
}

/// A message that came before others that go before it.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) header: Header,
    /// Header and data, and nothing behind.
    pub(super) body: BytesMut,
    counted: Option<Share>,
}

/// Bytes that one takes beside its body: a place in the order, and what an allocation costs. Most that come early may be hardly more than that.
pub(super) const PLACE: usize = 2 * size_of::<Early>();

/// What has come and may still come on all legs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coming {
    /// Cells with DATA or DATAGRAM that were handled.
    pub(super) handled: u64,
    /// Those that may be under way, or wait for others.
    pub(super) under_way: u64,
}

impl Leg {
    fn new(id: LegId, control: Control, kept: &Arc<CircuitBacklog>) -> Self {
        Self {
            id,
            outgoing: flow_control::Outgoing::new(control),
            incoming: flow_control::Incoming::new(control),
            own: VecDeque::new(),
            held: VecDeque::new(),
            full_since: None,
            ready: true,
            driver: None,
            early: Sum::received(kept),
            backpressure: false,
        }
    }

    fn may_send(&self) -> bool {
        self.ready && self.outgoing.may_send()
    }
}

impl Legs {
    /// One circuit.
    pub(super) fn one(control: Control, random: fn(&mut [u8])) -> Self {
        Self {
            legs: vec![Leg::new(LegId::FIRST, control, &Arc::default())],
            set: None,
            next: 1,
            format: None,
            now: Instant::now(),
            random,
        }
    }

    /// A set without legs.
    pub(super) fn set(side: Side, nonce: Nonce, limits: &Limits, random: fn(&mut [u8])) -> Self {
        let bounds = Bounds {
            hold: limits.early,
            most: limits.most_early(),
        };
        Self {
            legs: Vec::new(),
            set: Some(Box::new(Set::new(side, nonce, bounds))),
            next: 0,
            format: None,
            now: Instant::now(),
            random,
        }
    }

    /// Another leg of the set.
    pub(super) fn add(&mut self, control: Control, kept: &Arc<CircuitBacklog>) -> LegId {
        let id = LegId(self.next);
        self.next = self.next.saturating_add(1);
        self.legs.push(Leg::new(id, control, kept));
        id
    }

    /// Whether it is a set.
    pub(super) fn is_set(&self) -> bool {
        self.set.is_some()
    }

    /// Of all cells to and from the far end.
    pub(super) fn format(&self) -> Format {
        self.format.unwrap_or_default()
    }

    /// Another format of them, before anything was sent.
    pub(super) fn set_format(&mut self, format: Format) {
        self.format = Some(format);
    }

    /// A leg's handshake has agreed on this format.
    ///
    /// # Errors
    /// Another leg's has agreed on another: what is to be sent fits one alone.
    pub(super) fn agree(&mut self, format: Format) -> Result<(), Broken> {
        if *self.format.get_or_insert(format) == format {
            Ok(())
        } else {
            Err(Violation::Handshake.into())
        }
    }

    /// Another flow control of a leg, before anything was sent on it.
    pub(super) fn set_flow(&mut self, id: LegId, control: Control, to: flow_control::Outgoing) {
        if let Some(leg) = self.leg(id) {
            leg.outgoing = to;
            if leg.backpressure {
                leg.outgoing.set_backpressure();
            }
            leg.incoming = flow_control::Incoming::new(control);
        }
    }

    /// A leg's channel holds each circuit back by itself; before anything was sent on it.
    pub(super) fn set_backpressure(&mut self, id: LegId) {
        if let Some(leg) = self.leg(id) {
            leg.backpressure = true;
            leg.outgoing.set_backpressure();
        }
    }

    /// Who is woken when this leg has something to send or to do.
    pub(super) fn set_driver(&mut self, id: LegId, waker: &Waker) {
        let Some(leg) = self.leg(id) else {
            return;
        };
        match &mut leg.driver {
            Some(driver) => driver.clone_from(waker),
            None => leg.driver = Some(waker.clone()),
        }
    }

    /// Whether the channel of a leg takes a cell now.
    pub(super) fn set_ready(&mut self, id: LegId, ready: bool, now: Instant) {
        self.now = now;
        let Some(leg) = self.leg(id) else {
            return;
        };
        if !ready {
            leg.full_since.get_or_insert(now);
        }
        if std::mem::replace(&mut leg.ready, ready) != ready {
            self.wake_next();
        }
    }

    /// There is nothing to be sent that a leg would take.
    pub(super) fn rests(&mut self, id: LegId) {
        if let Some(leg) = self.leg(id) {
            leg.full_since = None;
        }
    }

    /// Wakes the driver of one leg.
    pub(super) fn wake(&mut self, id: LegId) {
        if let Some(driver) = self.leg(id).and_then(|leg| leg.driver.take()) {
            driver.wake();
        }
    }

    /// Wakes all drivers.
    pub(super) fn wake_all(&mut self) {
        for leg in &mut self.legs {
            leg.driver.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Wakes the driver whose turn it is to send.
    pub(super) fn wake_next(&mut self) {
        match self.whose_turn() {
            Some((id, _)) => self.wake(id),
            None => self.wake_all(),
        }
    }

    /// Messages of a leg alone that wait to be sent.
    pub(super) fn waiting(&self, id: LegId) -> usize {
        let mut legs = self.legs.iter();
        legs.find(|leg| leg.id == id).map_or(0, |leg| leg.own.len())
    }

    /// All bodies that are kept.
    pub(super) fn owned(&self) -> usize {
        let queues = self.legs.iter().map(|leg| leg.own.len() + leg.held.len());
        queues.sum::<usize>() + self.early()
    }

    /// Messages that came early.
    fn early(&self) -> usize {
        self.set.as_ref().map_or(0, |set| set.waiting())
    }

    /// What has come and may still come, of which so many DATA cells were handled.
    pub(super) fn coming(&self, handled: u64) -> Coming {
        let under_way = self.legs.iter().map(|leg| leg.incoming.under_way());
        Coming {
            handled,
            under_way: under_way.sum::<u64>().saturating_add(self.early() as u64),
        }
    }

    fn leg(&mut self, id: LegId) -> Option<&mut Leg> {
        self.legs.iter_mut().find(|leg| leg.id == id)
    }
}

// What leaves.

impl Legs {
    /// A message of this leg alone.
    pub(super) fn say(&mut self, id: LegId, message: &Message<'_>) {
        let message = message::control(self.format(), message, StreamId::CIRCUIT, self.random);
        if let Some(leg) = self.leg(id) {
            leg.own.push_back(message);
        }
        self.wake(id);
    }

    /// A message of the set's streams that is not numbered (BEGIN_DIR), on the present leg.
    pub(super) fn say_unnumbered(&mut self, message: Outbound) {
        let Some((id, _)) = self.whose_turn() else {
            return;
        };
        if let Some(leg) = self.leg(id) {
            leg.own.push_back(message);
        }
        self.wake(id);
    }

    /// The next message of this leg alone.
    pub(super) fn next_own(&mut self, id: LegId) -> Option<Outbound> {
        let leg = self.leg(id)?;
        let message = leg.own.pop_front()?;
        if message.acknowledges {
            leg.incoming.acknowledged();
        }
        Some(message)
    }

    /// Whether this leg is to send the streams' next message, and then whether it may be DATA. If it is another one's turn, that one's driver is woken.
    pub(super) fn may_send(&mut self, id: LegId) -> Option<bool> {
        let (turn, data) = self.whose_turn()?;
        if turn == id {
            return Some(data);
        }
        self.wake(turn);
        None
    }

    fn whose_turn(&self) -> Option<(LegId, bool)> {
        let Some(set) = &self.set else {
            let leg = self.legs.first()?;
            return Some((leg.id, leg.outgoing.may_send()));
        };
        let room = |id: LegId| {
            let leg = self.legs.iter().find(|leg| leg.id == id)?;
            let full = |since| self.now.saturating_duration_since(since);
            Some(Room {
                may_send: leg.may_send(),
                full_for: leg.full_since.map_or(Duration::ZERO, full),
                rtt: leg.outgoing.round_trip(),
            })
        };
        match set.choose(room) {
            Some(id) => Some((id, true)),
            None => set.fallback().map(|id| (id, false)),
        }
    }

    /// A message of the streams leaves on this leg; or a SWITCH does, and it follows.
    pub(super) fn number(&mut self, id: LegId, message: Outbound) -> Outbound {
        let Some(switch) = self.set.as_mut().and_then(|set| set.send(id)) else {
            return message;
        };
        let mut data = Vec::with_capacity(4);
        switch.write(&mut data);
        if let Some(leg) = self.leg(id) {
            leg.own.push_front(message);
        }
        let switch = Message::Unknown(RelayCommand::CONFLUX_SWITCH, &data);
        message::control(self.format(), &switch, StreamId::CIRCUIT, self.random)
    }

    /// A cell that counts to the window has left on this leg.
    pub(super) fn sealed(&mut self, id: LegId, tag: SendmeTag, now: Instant) {
        self.now = now;
        if let Some(leg) = self.leg(id) {
            leg.outgoing.sent(tag, now);
            if !leg.outgoing.may_send() {
                leg.full_since.get_or_insert(now);
            }
        }
    }
}

// What comes.

impl Legs {
    /// A cell that counts to the window has come on this leg: it is acknowledged when that is due.
    pub(super) fn received(&mut self, id: LegId, tag: SendmeTag) -> Result<(), Broken> {
        let holds = self.set.as_ref().is_some_and(|set| set.holds(id));
        let (format, random) = (self.format(), self.random);
        let leg = self.leg(id).ok_or(Violation::Unlinked)?;
        if leg.incoming.received()? {
            let sendme = Message::Sendme(Sendme::V1(tag));
            let sendme = message::control(format, &sendme, StreamId::CIRCUIT, random);
            let queue = if holds { &mut leg.held } else { &mut leg.own };
            queue.push_back(sendme);
            self.wake(id);
        }
        Ok(())
    }

    /// An acknowledgement has come on this leg.
    pub(super) fn acknowledged(
        &mut self,
        tag: Option<SendmeTag>,
        at: Arrival,
    ) -> Result<(), Broken> {
        let leg = self.leg(at.leg).ok_or(Violation::Unlinked)?;
        leg.outgoing.acknowledged(tag, at.now, at.blocked)?;
        self.wake_next();
        Ok(())
    }

    /// A numbered message of the streams has come on a leg: it is handed back if it is the next.
    pub(super) fn order(
        &mut self,
        id: LegId,
        header: Header,
        mut body: BytesMut,
    ) -> Result<Option<Early>, Broken> {
        let set = self.set.as_mut().ok_or(Violation::Unlinked)?;
        let mut counted = None;
        if !set.is_next(id) {
            // What waits must not hold the channel's large buffers.
            body.truncate(header.len() + usize::from(header.length));
            body = BytesMut::from(body.as_ref());
            let leg = self.legs.iter().find(|leg| leg.id == id);
            counted = leg.map(|leg| leg.early.share());
            if let Some(share) = &mut counted {
                share.add(body.len() + PLACE);
            }
        }
        let message = Early {
            header,
            body,
            counted,
        };
        Ok(set.receive(id, message)?)
    }

    /// The next of those that came early, if its turn has come; else what was held is let go.
    pub(super) fn due(&mut self) -> Option<Early> {
        let set = self.set.as_mut()?;
        let next = set.due();
        if next.is_none() {
            self.release();
        }
        next.map(|mut early| {
            early.counted = None;
            early
        })
    }

    /// Acknowledges what was held, where that has no reason any more.
    fn release(&mut self) {
        let Some(set) = &self.set else {
            return;
        };
        for leg in &mut self.legs {
            if !leg.held.is_empty() && !set.holds(leg.id) {
                leg.own.append(&mut leg.held);
                leg.driver.take().into_iter().for_each(Waker::wake);
            }
        }
    }
}

// The set.

impl Legs {
    /// Asks the far end to make this leg one of the set (client).
    pub(super) fn ask(&mut self, id: LegId, now: Instant) -> Result<(), Broken> {
        let set = self.set.as_mut().ok_or(Violation::Handshake)?;
        let link = set.ask(id, now)?;
        self.say_link(id, RelayCommand::CONFLUX_LINK, &link);
        Ok(())
    }

    /// The far end asks for it (exit).
    pub(super) fn answer(&mut self, id: LegId, link: &Link, now: Instant) -> Result<(), Broken> {
        let set = self.set.as_mut().ok_or(Violation::Handshake)?;
        let linked = set.answer(id, link, now)?;
        self.say_link(id, RelayCommand::CONFLUX_LINKED, &linked);
        Ok(())
    }

    fn say_link(&mut self, id: LegId, command: RelayCommand, link: &Link) {
        let mut data = Vec::with_capacity(64);
        link.write(&mut data);
        self.say(id, &Message::Unknown(command, &data));
    }

    /// A message of the set itself has come on a leg that is one of it, or asked to be.
    pub(super) fn linking(
        &mut self,
        command: RelayCommand,
        data: &[u8],
        at: Arrival,
    ) -> Result<(), Broken> {
        let set = self.set.as_mut().ok_or(Broken::Unexpected(command))?;
        match command {
            RelayCommand::CONFLUX_LINKED => {
                set.linked(at.leg, &Link::parse(data)?, at.now)?;
                let ack = Message::Unknown(RelayCommand::CONFLUX_LINKED_ACK, &[]);
                self.say(at.leg, &ack);
            }
            RelayCommand::CONFLUX_LINKED_ACK => {
                linked_ack(data)?;
                set.acknowledged(at.leg, at.now)?;
            }
            RelayCommand::CONFLUX_SWITCH => set.switched(at.leg, Switch::parse(data)?)?,
            // LINK goes to whoever knows all sets; a second one comes here.
            _ => return Err(Violation::Handshake.into()),
        }
        Ok(())
    }

    /// Whether both ends have measured this leg.
    pub(super) fn is_linked(&self, id: LegId) -> bool {
        self.set.as_ref().is_some_and(|set| set.is_linked(id))
    }

    /// A leg is gone. What waits is counted on the first, so none goes on without that.
    pub(super) fn close(&mut self, id: LegId) -> Fate {
        let Some(place) = self.legs.iter().position(|leg| leg.id == id) else {
            return Fate::GoesOn;
        };
        let gone = self.legs.swap_remove(place);
        let Some(set) = &mut self.set else {
            return Fate::Over;
        };
        match set.close(id, gone.outgoing.carries()) {
            Fate::GoesOn if id != LegId::FIRST => Fate::GoesOn,
            _ => Fate::Over,
        }
    }
}
