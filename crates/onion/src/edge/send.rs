//! What leaves one end of a circuit: first what is urgent, then DATA, a cell of each stream in turn.
//! Part of [`super::Edge`]. tor-spec "Relay cells", "Closing streams", "Flow control".

use bytes::Bytes;
use hoplite_wire::cell::relay::{End, EndReason, Message, Sendme, StreamId, Xoff, Xon};
use tokio::time::Instant;

use super::{Edge, Outbound, Role, message, stream::Produced};
use crate::flow::{Digest, stream::Say};

impl Edge {
    /// What is to be sent next: first what is urgent, then DATA, a cell of each stream in turn.
    pub fn next_message(&mut self) -> Option<Outbound> {
        if let Some(message) = self.urgent.pop_front() {
            if message.acknowledges {
                self.incoming.acknowledged();
            }
            return Some(message);
        }
        let may_send = self.outgoing.may_send();
        for _ in 0..self.turn.len() {
            let id = self.turn.pop_front()?;
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            match stream.produce(may_send) {
                Produced::Cell(body, more) => {
                    match more {
                        true => self.turn.push_back(id),
                        false => stream.leave_turn(),
                    }
                    self.unpredictable.sent(body.len());
                    return Some(message::data(body, StreamId(id), self.random));
                }
                // Only the circuit's window is in the way.
                Produced::Later => self.turn.push_back(id),
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

    /// A message of [`Self::next_message`] that was [`Outbound::counted`] has been given its digest, and leaves.
    pub fn sealed(&mut self, digest: Digest, now: Instant) {
        self.outgoing.sent(digest, now);
    }

    pub(super) fn forget(&mut self, id: u16) {
        let Some(stream) = self.streams.remove(&id) else {
            return;
        };
        if self.role == Role::Exit {
            return;
        }
        if self.gone.len() >= self.limits.gone {
            self.gone.pop_front();
        }
        self.gone.push_back((id, stream.late(&self.incoming)));
    }

    /// Nobody holds the stream's handle any more.
    pub(super) fn drop_stream(&mut self, id: StreamId) {
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

    pub(super) fn take_turn(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id.0)
            && stream.enter_turn()
        {
            self.turn.push_back(id.0);
        }
        self.wake();
    }

    pub(super) fn say(&mut self, id: StreamId, message: &Message<'_>) {
        let message = self.message(id, message);
        self.urgent.push_back(message);
        self.wake();
    }

    pub(super) fn say_flow(&mut self, id: StreamId, say: Say) {
        match say {
            Say::Sendme => self.say(id, &Message::Sendme(Sendme::V0)),
            Say::Xoff => self.say(id, &Message::Xoff(Xoff)),
            Say::Xon => self.say(id, &Message::Xon(Xon { kbps: 0 })),
        }
    }

    pub(super) fn message(&self, id: StreamId, message: &Message<'_>) -> Outbound {
        message::control(message, id, self.random)
    }

    pub(super) fn fetch(&mut self, id: StreamId) -> Option<Bytes> {
        let (bytes, say) = self.streams.get_mut(&id.0)?.fetch()?;
        if let Some(say) = say {
            self.say_flow(id, say);
        }
        Some(bytes)
    }
}
