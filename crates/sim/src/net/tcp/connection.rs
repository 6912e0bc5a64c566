//! One end of a stream: what comes goes to its two machines, what they have to say goes out at once, and the network wakes it when it was silent
//! for too long. `stream` reads and writes it.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::Waker,
    time::Duration,
};

use super::{
    Kind, RECEIVE_BUFFER, Segment,
    receiver::Receiver,
    sender::{Next, Sender},
};
use crate::net::{Key, Network, Packet, Payload, Port};

/// SYN is sent again after one second, then two, four, eight.
const PATIENCE: Duration = Duration::from_secs(1);
const MOST_SYN: u32 = 4;

pub(super) struct Connection {
    network: Network,
    here: SocketAddr,
    there: SocketAddr,
    own: Weak<Self>,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) stage: Stage,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    pub(super) reader: Option<Waker>,
    /// Who writes, or waits for the connection.
    pub(super) writer: Option<Waker>,
    /// The window that the peer was told last.
    told: u64,
    /// When the network rings next.
    rings: Option<Duration>,
    dropped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// SYN was sent so many times, and again then.
    Asking(u32, Duration),
    Open,
    /// There is nobody there, who could be asked.
    Unreachable,
    /// The peer will have nothing to do with it, or is gone.
    Reset,
}

impl Connection {
    fn new(network: &Network, here: SocketAddr, there: SocketAddr, stage: Stage) -> Arc<Self> {
        let connection = Arc::new_cyclic(|own| Self {
            network: network.clone(),
            here,
            there,
            own: Weak::clone(own),
            state: Mutex::new(State {
                stage,
                sender: Sender::default(),
                receiver: Receiver::default(),
                reader: None,
                writer: None,
                told: RECEIVE_BUFFER,
                rings: None,
                dropped: false,
            }),
        });
        network.open_at(Key::Stream(here, there), connection.clone());
        connection
    }

    /// The end that asks.
    pub(super) fn ask(network: &Network, here: SocketAddr, there: SocketAddr) -> Arc<Self> {
        let again = network.time() + PATIENCE;
        let connection = Self::new(network, here, there, Stage::Asking(1, again));
        connection.say(Segment::bare(Kind::Syn));
        connection.settle(&mut connection.state());
        connection
    }

    /// The end that was asked.
    pub(super) fn answer(network: &Network, here: SocketAddr, there: SocketAddr) -> Arc<Self> {
        let connection = Self::new(network, here, there, Stage::Open);
        connection.say(Segment::bare(Kind::SynAck));
        connection
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, segment: Segment) {
        self.network.send(Packet {
            from: self.here,
            to: self.there,
            payload: Payload::Tcp(segment),
        });
    }

    /// Sends what may be sent, and has the network ring in time. Called after each change.
    pub(super) fn settle(&self, state: &mut State) {
        let now = self.network.time();
        let open = state.stage == Stage::Open;
        while let Some(next) = open.then(|| state.sender.next(now)).flatten() {
            let segment = state.carry(next);
            self.say(segment);
        }
        let deadline = match state.stage {
            Stage::Asking(_, again) => Some(again),
            Stage::Open => state.sender.deadline(),
            Stage::Unreachable | Stage::Reset => None,
        };
        if let Some(deadline) = deadline
            && state.rings.is_none_or(|rings| deadline < rings)
            && let Some(own) = self.own.upgrade()
        {
            state.rings = Some(deadline);
            self.network.ring(deadline, own);
        }
        if state.is_over() {
            self.network.close(&Key::Stream(self.here, self.there));
        }
    }

    /// Tells the peer that there is much more room than it knows.
    pub(super) fn make_room(&self, state: &mut State) {
        let window = state.receiver.window();
        if window >= state.told.saturating_add(RECEIVE_BUFFER / 2) {
            let segment = state.acknowledge(None);
            self.say(segment);
        }
    }

    /// Nobody holds the stream any more.
    pub(super) fn release(&self) {
        let mut state = self.state();
        state.dropped = true;
        let orderly = state.sender.is_finished() && state.receiver.has_ended();
        if !orderly && state.stage != Stage::Reset {
            self.say(Segment::bare(Kind::Reset));
            state.stage = Stage::Reset;
        }
        self.settle(&mut state);
    }

    fn hear(&self, state: &mut State, segment: Segment) {
        match segment.kind {
            Kind::Reset => state.stage = Stage::Reset,
            // Our answer was lost.
            Kind::Syn => self.say(Segment::bare(Kind::SynAck)),
            Kind::SynAck => state.stage = Stage::Open,
            Kind::Plain => {
                let now = self.network.time();
                let (ack, window) = (segment.ack, segment.window);
                state.sender.acknowledged(ack, segment.heard, window, now);
                if !segment.data.is_empty() || segment.last {
                    let seq = segment.seq;
                    state.receiver.received(seq, segment.data, segment.last);
                    let answer = state.acknowledge(Some(seq));
                    self.say(answer);
                }
            }
        }
    }
}

impl State {
    fn carry(&mut self, next: Next) -> Segment {
        Segment {
            seq: next.seq,
            data: next.data,
            last: next.last,
            ..self.acknowledge(None)
        }
    }

    fn acknowledge(&mut self, heard: Option<u64>) -> Segment {
        self.told = self.receiver.window();
        Segment {
            ack: self.receiver.expected(),
            heard,
            window: self.told,
            ..Segment::bare(Kind::Plain)
        }
    }

    /// Whether nothing of it is needed any more.
    fn is_over(&self) -> bool {
        let ended = self.sender.is_done() && self.receiver.has_ended();
        matches!(self.stage, Stage::Reset | Stage::Unreachable) || (self.dropped && ended)
    }

    fn wake(&mut self) {
        let all = self.stage != Stage::Open;
        if (all || self.receiver.has_some() || self.receiver.has_ended())
            && let Some(reader) = self.reader.take()
        {
            reader.wake();
        }
        if (all || self.sender.has_room())
            && let Some(writer) = self.writer.take()
        {
            writer.wake();
        }
    }

    /// The time has come that the network was to ring at.
    fn ring(&mut self, now: Duration) -> Option<Kind> {
        self.rings = None;
        match self.stage {
            Stage::Asking(times, again) if again <= now => {
                self.stage = match times {
                    MOST_SYN => Stage::Unreachable,
                    _ => Stage::Asking(times + 1, now + PATIENCE * (1 << times)),
                };
                (times < MOST_SYN).then_some(Kind::Syn)
            }
            Stage::Open if self.sender.deadline().is_some_and(|at| at <= now) => {
                if !self.sender.silent(now) {
                    self.stage = Stage::Reset;
                }
                None
            }
            _ => None,
        }
    }
}

impl Port for Connection {
    fn receive(&self, packet: Packet) -> bool {
        if let Payload::Tcp(segment) = packet.payload {
            let mut state = self.state();
            self.hear(&mut state, segment);
            self.settle(&mut state);
            state.wake();
        }
        true
    }

    fn ring(&self) {
        let mut state = self.state();
        if let Some(kind) = state.ring(self.network.time()) {
            self.say(Segment::bare(kind));
        }
        self.settle(&mut state);
        state.wake();
    }
}
