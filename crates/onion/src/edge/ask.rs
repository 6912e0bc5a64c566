//! Streams as they are asked for at the client's end, and answered at the exit's.
//! Part of [`super::Edge`]. tor-spec "Opening streams and transferring data", "Remote hostname lookup".

use std::net::IpAddr;

use hoplite_overlay::Error;
use hoplite_wire::{
    Target,
    cell::relay::{
        Begin, Connected, End, EndReason, Flags, Header, Message, Resolve, Resolved, StreamId,
    },
};

use super::{Asked, Broken, Edge, HALF_CLOSE, Role, stream::Answer};
use crate::failure;

/// For how many seconds a client may think that a name means the address it was connected to.
const ADDRESS_LASTS: u32 = 60;

impl Edge {
    /// Opens a stream (client); the answer is polled by [`super::io::Handle`].
    ///
    /// # Errors
    /// The circuit has closed, or has too many streams.
    pub fn begin(&mut self, target: &Target, flags: Flags) -> Result<StreamId, Error> {
        let target = target.clone();
        let half_close = flags.has(HALF_CLOSE);
        self.ask(half_close, &Message::Begin(Begin { target, flags }))
    }

    /// Opens a stream to the last relay's directory (client).
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn begin_directory(&mut self) -> Result<StreamId, Error> {
        self.ask(false, &Message::BeginDir)
    }

    /// Asks for a name's addresses (client).
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn resolve(&mut self, name: &str) -> Result<StreamId, Error> {
        self.ask(false, &Message::Resolve(Resolve(name)))
    }

    fn ask(&mut self, half_close: bool, message: &Message<'_>) -> Result<StreamId, Error> {
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        let id = self.free_id().ok_or_else(failure::too_many_streams)?;
        let stream = self.new_stream(half_close);
        self.streams.insert(id.0, stream);
        self.say(id, message);
        Ok(id)
    }

    fn free_id(&mut self) -> Option<StreamId> {
        if self.has_no_room() {
            return None;
        }
        for _ in 0..=self.limits.streams + self.limits.gone + 1 {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            let id = self.last_id;
            let recent = self.gone.iter().any(|(gone, _)| *gone == id);
            if !recent && !self.streams.contains_key(&id) {
                return Some(StreamId(id));
            }
        }
        None
    }

    /// The next thing that a client asks for (exit).
    pub fn next_asked(&mut self) -> Option<(StreamId, Asked)> {
        self.asked.pop_front()
    }

    /// The target has answered (exit): so the client is told.
    pub fn connected(&mut self, id: StreamId, address: Option<IpAddr>) {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return;
        };
        stream.answer(Ok(Answer::Connected));
        let address = address.map(|ip| (ip, ADDRESS_LASTS));
        self.say(id, &Message::Connected(Connected(address)));
        self.take_turn(id);
    }

    /// The stream does not come about, or breaks off (exit).
    pub fn refuse(&mut self, id: StreamId, end: End) {
        if self.streams.remove(&id.0).is_some() {
            self.say(id, &Message::End(end));
        }
    }

    /// The answer to a look-up (exit).
    pub fn resolved(&mut self, id: StreamId, answers: Resolved<'_>) {
        if self.streams.remove(&id.0).is_some() {
            self.say(id, &Message::Resolved(answers));
        }
    }

    pub(super) fn requested(&mut self, header: Header, asked: Asked) -> Result<(), Broken> {
        let id = header.stream;
        if self.role == Role::Client || id == StreamId::CIRCUIT {
            return Err(Broken::Unexpected(header.command));
        }
        if self.streams.contains_key(&id.0) {
            return Err(Broken::Unexpected(header.command));
        }
        if self.streams.len() >= self.limits.streams {
            self.say(id, &Message::End(End::new(EndReason::RESOURCELIMIT)));
            return Ok(());
        }
        let half_close = match &asked {
            Asked::Stream(begin) => begin.flags.has(HALF_CLOSE),
            Asked::Directory | Asked::Name(_) => false,
        };
        let stream = self.new_stream(half_close);
        self.streams.insert(id.0, stream.at_exit());
        self.asked.push_back((id, asked));
        Ok(())
    }
}
