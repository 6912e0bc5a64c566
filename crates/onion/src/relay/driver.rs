//! Drives one circuit of a relay between its two sides. Nothing is read from a side while the other takes nothing: so a circuit that is stuck
//! pushes back on itself alone. [`super::serve`] starts it as a task. tor-spec "Routing relay cells", "Tearing down circuits".

mod here;
mod moved;

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
};

use bytes::BytesMut;
use hoplite_wire::cell::{
    self, Cell, CircuitId, Command,
    circuit::DestroyReason,
    relay::{self, StreamId},
};
use tokio::{task::JoinSet, time::Instant};

use self::moved::Moved;
use super::{
    Circuit, Forward, Relay,
    hop::{Extended, create},
};
use crate::{
    channel::{self, Channel},
    edge::io::Shared,
    failure,
    flow::{Control, pressure::Pressure},
};

/// Cells handled in one direction before the other has its turn, and how often before other tasks have theirs. A direction in which nothing
/// moves is asked once a turn: asking costs a lock of the channel, and on QUIC one of the connection.
const BATCH: usize = 32;
const TURNS: usize = 2;
/// This relay's own messages that wait to be sent to the client; beyond it, nothing more is read of the client's.
const REPLIES: usize = 8;

/// One circuit of a relay.
pub(super) struct Driver {
    relay: Arc<Relay>,
    circuit: Circuit,
    control: Control,
    back: channel::Circuit,
    next: Next,
    /// This end, if streams were asked for.
    edge: Option<Arc<Shared>>,
    tasks: JoinSet<()>,
    replies: VecDeque<(relay::Command, Vec<u8>)>,
    /// The channel that it came by.
    from: Arc<dyn Channel>,
    pressure: Pressure,
    moved: Moved,
    /// Of the present turn.
    now: Instant,
}

enum Next {
    None,
    Extending(Extending),
    Open(channel::Circuit),
    /// It was there; the client has been told, or is about to be.
    Lost,
}

type Extending = Pin<Box<dyn Future<Output = Result<Extended, DestroyReason>> + Send>>;

/// What the client's side is still to be told of a circuit's end; nothing if it said so itself. The next relay is told DESTROYED, whoever ended it
/// and why: another relay's reason would be an octet that travels along the circuit, and our own one that it could choose by what it does.
/// tor-spec "Tearing down circuits".
struct Ended(Option<DestroyReason>);

/// Counts a circuit as long as it lives.
struct Counted(Arc<Relay>);

impl Driver {
    /// Serves a circuit that a peer has opened, from CREATE2 to its end.
    pub(super) async fn run(mut back: channel::Circuit, relay: Arc<Relay>, from: Arc<dyn Channel>) {
        relay.counters.open.fetch_add(1, Relaxed);
        let _counted = Counted(Arc::clone(&relay));
        let created = create(&mut back, &relay, from.asker()).await;
        let (circuit, control) = match created {
            Ok(created) => created,
            Err(reason) => return back.sender.destroy(reason),
        };
        relay.counters.created.fetch_add(1, Relaxed);
        let mut driver = Self {
            relay,
            circuit,
            control,
            back,
            next: Next::None,
            edge: None,
            tasks: JoinSet::new(),
            replies: VecDeque::new(),
            from,
            pressure: Pressure::default(),
            moved: Moved::default(),
            now: Instant::now(),
        };
        let ended = poll_fn(|cx| driver.poll(cx)).await;
        driver.end(&ended);
    }

    fn end(self, ended: &Ended) {
        if let Some(edge) = &self.edge {
            edge.lock().close(failure::retired());
        }
        if let Next::Open(next) = self.next {
            next.sender.destroy(DestroyReason::DESTROYED);
        }
        if let Some(reason) = ended.0 {
            if reason == DestroyReason::PROTOCOL {
                self.relay.counters.broken.fetch_add(1, Relaxed);
            }
            self.back.sender.destroy(reason);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        let polled = self.take_turns(cx);
        self.moved.tell(&self.relay.counters.cells);
        polled
    }

    fn take_turns(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        self.now = Instant::now();
        for _ in 0..TURNS {
            match self.turn(cx) {
                Ok(true) => {}
                Ok(false) => {
                    while let Poll::Ready(Some(_)) = self.tasks.poll_join_next(cx) {}
                    return Poll::Pending;
                }
                Err(ended) => return Poll::Ready(ended),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Answers whether there may be more to do.
    fn turn(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let extended = self.poll_extending(cx)?;
        let mut back = 0;
        while back < BATCH && self.backward(cx)? {
            back += 1;
        }
        let mut forth = 0;
        while forth < BATCH && self.forward(cx)? {
            forth += 1;
        }
        // What went forth may have brought about something that is to go back.
        Ok(extended || forth > 0 || back == BATCH)
    }

    /// One cell from the client's side, if whoever it is for takes it.
    fn forward(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        if self.replies.len() >= REPLIES || self.edge().is_some_and(|edge| edge.lock().is_full()) {
            return Ok(false);
        }
        if let Next::Open(next) = &mut self.next {
            match next.sender.poll_ready(cx) {
                // If it takes nothing any more, what comes from it says why, or ends.
                Poll::Pending | Poll::Ready(Err(channel::Closed)) => return Ok(false),
                Poll::Ready(Ok(())) => {}
            }
        }
        let cell = match self.back.receiver.poll_recv(cx) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Some(cell)) => cell,
            Poll::Ready(None) => return Err(Ended(None)),
        };
        if cell.command == Command::DESTROY {
            return Err(Ended(None));
        }
        let early = cell.command == Command::RELAY_EARLY;
        match self.circuit.forward(cell)? {
            Forward::Here(cell, digest) => {
                self.moved.taken += 1;
                self.here(cell, digest, early, cx)?;
            }
            Forward::Next(cell) => match &mut self.next {
                Next::Open(next) => {
                    self.moved.passed_forth += 1;
                    next.sender.send(cell);
                }
                // It was on its way when the next relay was lost: a DESTROY for it would overtake TRUNCATED, which says what has happened.
                Next::Lost => {}
                // "If the cell is not recognized and there is no next hop, the circuit is closed."
                _ => return Err(DestroyReason::PROTOCOL.into()),
            },
        }
        Ok(true)
    }

    /// One cell towards the client: this relay's own answers first, then its streams', then what comes from the next.
    fn backward(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let ready = match self.back.sender.poll_ready(cx) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(channel::Closed)) => {
                return Err(Ended(None));
            }
            Poll::Pending => false,
        };
        self.pressure.note(ready, self.now);
        if !ready {
            return Ok(false);
        }
        if let Some((command, data)) = self.replies.pop_front() {
            return self.reply(command, &data).map(|()| true);
        }
        Ok(self.stream_cell(cx)? || self.next_cell(cx)?)
    }

    fn stream_cell(&mut self, cx: &Context<'_>) -> Result<bool, Ended> {
        let Some(shared) = &self.edge else {
            return Ok(false);
        };
        let mut edge = shared.lock();
        let Some(message) = edge.next_message() else {
            edge.set_driver(cx.waker());
            return Ok(false);
        };
        let mut cell = relay_cell(message.body);
        let sealed = self.circuit.originate(&mut cell);
        let digest = sealed.map_err(|_| Ended::from(DestroyReason::INTERNAL))?;
        if message.counted {
            edge.sealed(digest, self.now);
        }
        drop(edge);
        self.moved.made += 1;
        self.back.sender.send(cell);
        Ok(true)
    }

    fn next_cell(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let Next::Open(next) = &mut self.next else {
            return Ok(false);
        };
        let mut cell = match next.receiver.poll_recv(cx) {
            Poll::Pending => return Ok(false),
            Poll::Ready(None) => return self.lost(DestroyReason::CHANNEL_CLOSED),
            Poll::Ready(Some(cell)) => cell,
        };
        match cell.command {
            Command::RELAY => {
                self.circuit.backward(&mut cell)?;
                self.moved.passed_back += 1;
                self.back.sender.send(cell);
                Ok(true)
            }
            // Whatever reason it gives.
            Command::DESTROY => self.lost(DestroyReason::DESTROYED),
            // "A relay MUST NOT send RELAY_EARLY towards the client."
            _ => Err(DestroyReason::PROTOCOL.into()),
        }
    }

    /// The circuit ends here now: the client is told, and may extend it anew.
    fn lost(&mut self, reason: DestroyReason) -> Result<bool, Ended> {
        self.next = Next::Lost;
        let mut data = Vec::with_capacity(1);
        reason.write(&mut data);
        self.replies.push_back((relay::Command::TRUNCATED, data));
        Ok(true)
    }

    fn reply(&mut self, command: relay::Command, data: &[u8]) -> Result<(), Ended> {
        let mut cell = relay_cell(BytesMut::zeroed(cell::BODY));
        let written = (|| {
            let padding = relay::write(cell.fixed()?, command, StreamId::CIRCUIT, data)?;
            crate::random(padding);
            self.circuit.originate(&mut cell)
        })();
        written.map_err(|_| Ended::from(DestroyReason::INTERNAL))?;
        self.moved.made += 1;
        self.back.sender.send(cell);
        Ok(())
    }

    fn edge(&self) -> Option<&Shared> {
        self.edge.as_deref()
    }
}

/// The channel sets the circuit's id.
fn relay_cell(body: BytesMut) -> Cell {
    Cell {
        circuit: CircuitId::CHANNEL,
        command: Command::RELAY,
        body,
    }
}

impl From<DestroyReason> for Ended {
    fn from(reason: DestroyReason) -> Self {
        Self(Some(reason))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.counters.open.fetch_sub(1, Relaxed);
    }
}
