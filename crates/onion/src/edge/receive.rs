//! What comes to one end of a circuit: relay messages in the clear, each handed to its stream.
//! Part of [`super::Edge`]. tor-spec "Relay cells", "Closing streams", "Flow control".

use bytes::{Buf, BytesMut};
use hoplite_wire::cell::{
    self, Malformed,
    relay::{
        Command, End, EndReason, HEADER, Header, Message, Resolve, Resolved, Sendme, StreamId,
        Xoff, Xon,
    },
};

use super::{
    Asked, Broken, Edge, Moment, Role,
    late::Late,
    stream::{Answer, Stream},
};
use crate::{
    failure,
    flow::{self, Digest},
};

impl Edge {
    /// A relay message for this end has come; `digest` is the running digest after its cell.
    ///
    /// # Errors
    /// [`Broken`]: the circuit is to be closed.
    pub fn handle(&mut self, body: BytesMut, digest: Digest, at: Moment) -> Result<(), Broken> {
        let fixed: &[u8; cell::BODY] = body.as_ref().try_into().map_err(|_| Malformed("cell"))?;
        let header = Header::read(fixed);
        let data = header.data(fixed)?;
        if header.command == Command::DATA {
            return self.data(header, body, digest);
        }
        let message = match Message::parse(header.command, data) {
            Ok(message) => message,
            Err(error) => return self.unreadable(header, error),
        };
        match message {
            Message::Sendme(sendme) => self.sendme(header.stream, sendme, at),
            Message::Connected(_) => self.answered(header, Answer::Connected),
            Message::Resolved(resolved) => self.looked_up(header, &resolved),
            Message::End(end) => self.ended(header.stream, end),
            Message::Xon(Xon { .. }) => self.told(header, false),
            Message::Xoff(Xoff) => self.told(header, true),
            Message::Begin(begin) => self.requested(header, Asked::Stream(begin)),
            Message::BeginDir => self.requested(header, Asked::Directory),
            Message::Resolve(Resolve(name)) => self.requested(header, Asked::Name(name.into())),
            // "If the relay command is not understood, the cell must be dropped and ignored." That an exit does; a client has asked for nothing
            // that it does not understand, nor for padding (proposal 254), and who may send it cells without end may mark its circuit.
            Message::Drop | Message::Unknown(..) if self.role == Role::Exit => Ok(()),
            other => Err(Broken::Unexpected(other.command())),
        }
    }

    /// What nobody can be connected to is the program's mistake, not the client's.
    fn unreadable(&mut self, header: Header, error: Malformed) -> Result<(), Broken> {
        let asks = matches!(header.command, Command::BEGIN | Command::RESOLVE);
        if !asks || self.role == Role::Client || header.stream == StreamId::CIRCUIT {
            return Err(error.into());
        }
        self.say(
            header.stream,
            &Message::End(End::new(EndReason::TORPROTOCOL)),
        );
        Ok(())
    }

    fn data(&mut self, header: Header, mut body: BytesMut, digest: Digest) -> Result<(), Broken> {
        if self.incoming.received()? {
            self.say(StreamId::CIRCUIT, &Message::Sendme(Sendme::V1(digest)));
        }
        let at_client = self.role == Role::Client;
        // Nobody has a reason to send a client nothing.
        if at_client && header.length == 0 {
            return Err(Broken::Unexpected(Command::DATA));
        }
        let Some(stream) = self.stream(header.stream) else {
            return self.stray(header.stream, Late::data);
        };
        if at_client && !stream.is_answered() {
            return Err(Broken::Unexpected(Command::DATA));
        }
        body.advance(HEADER);
        body.truncate(header.length.into());
        if let Some(say) = stream.receive(body)? {
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
            Role::Client => EndReason::MISC,
            Role::Exit => EndReason::RESOURCELIMIT,
        };
        let fullest = self
            .streams
            .iter_mut()
            .max_by_key(|(_, stream)| stream.held());
        let Some((id, stream)) = fullest else {
            return;
        };
        let id = StreamId(*id);
        let late = (self.role == Role::Client).then(|| Late::new(stream, &self.incoming));
        stream.cut(reason, late);
        self.say(id, &Message::End(End::new(reason)));
    }

    fn sendme(&mut self, id: StreamId, sendme: Sendme, at: Moment) -> Result<(), Broken> {
        if id == StreamId::CIRCUIT {
            let digest = match sendme {
                Sendme::V1(digest) => Some(digest),
                Sendme::V0 => None,
            };
            self.outgoing.acknowledged(digest, at.now, at.blocked)?;
            self.wake();
            return Ok(());
        }
        let Some(stream) = self.stream(id) else {
            return self.stray(id, |late, _| late.acknowledged());
        };
        stream.outgoing.acknowledged()?;
        self.take_turn(id);
        Ok(())
    }

    fn answered(&mut self, header: Header, answer: Answer) -> Result<(), Broken> {
        if self.role == Role::Exit {
            return Err(Broken::Unexpected(header.command));
        }
        match self.stream(header.stream) {
            Some(stream) if stream.is_answered() => Err(Broken::Unexpected(header.command)),
            Some(stream) => {
                stream.answer(Ok(answer));
                Ok(())
            }
            None => self.stray(header.stream, |late, _| late.answered(header.command)),
        }
    }

    fn looked_up(&mut self, header: Header, resolved: &Resolved<'_>) -> Result<(), Broken> {
        let answer = failure::addresses(resolved);
        let at_exit = self.role == Role::Exit;
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
        let at_exit = self.role == Role::Exit;
        let Some(stream) = self.stream(id) else {
            return self.stray(id, |late, _| late.ended(end));
        };
        if !at_exit && !stream.may_end(end) {
            return Err(Broken::Unexpected(Command::END));
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
        judge: impl FnOnce(&mut Late, &flow::Incoming) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        if self.role == Role::Exit {
            return Ok(());
        }
        let mut gone = self.gone.iter_mut();
        let late = match self.streams.get_mut(&id.0) {
            Some(stream) => stream.cut_off(),
            None => gone.find(|(gone, _)| *gone == id.0).map(|(_, late)| late),
        };
        judge(late.ok_or(Broken::UnknownStream)?, &self.incoming)
    }
}
