//! What may still come on a stream that this end has ended: what the peer had sent before it read END, and nothing else.
//! Part of [`super::Edge`]; the client's end keeps to it. tor-spec "Closing streams"; C tor calls such a stream half-closed.
//!
//! A cell that is thrown away is a mark that a relay can make on a circuit as often as it likes, for somebody who watches the client
//! (proposal 344, "dropped cells"): so each is counted against what the stream's windows had left, and one more closes the circuit.

use hoplite_wire::cell::relay::{Command, End, EndReason};

use super::{Broken, stream::Stream};
use crate::flow::{self, stream};

/// One such stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Late {
    /// Judges SENDME, XON and XOFF as while the stream was there.
    outgoing: stream::Outgoing,
    /// DATA cells left of the stream's own window, where it has one.
    window: Option<u32>,
    /// When so many DATA cells have come on the circuit, all that was on its way at END has come.
    until: u64,
    /// CONNECTED or RESOLVED is still to come.
    is_asked: bool,
    /// Times that the peer may still say END: with half-closed streams once for its side, and once for all of it.
    ends: u8,
}

impl Late {
    /// What may still come on `stream`, which is ended now.
    pub(super) fn new(stream: &Stream, circuit: &flow::Incoming) -> Self {
        let ended = stream.ended();
        let ends = match (ended, stream.knows_half_close()) {
            (None, half_close) => 1 + u8::from(half_close),
            (Some(end), true) => u8::from(end.reason == EndReason::DONE),
            (Some(_), false) => 0,
        };
        Self {
            outgoing: stream.outgoing,
            window: match ended {
                Some(_) => Some(0),
                None => stream.window(),
            },
            until: circuit.count().saturating_add(circuit.under_way()),
            is_asked: !stream.is_answered(),
            ends,
        }
    }

    /// A DATA cell; `circuit` has counted it.
    pub(super) fn data(&mut self, circuit: &flow::Incoming) -> Result<(), Broken> {
        if let Some(window) = &mut self.window {
            *window = window.checked_sub(1).ok_or(Broken::UnknownStream)?;
        }
        match circuit.count() <= self.until {
            true => Ok(()),
            false => Err(Broken::UnknownStream),
        }
    }

    /// CONNECTED or RESOLVED.
    pub(super) fn answered(&mut self, command: Command) -> Result<(), Broken> {
        match std::mem::take(&mut self.is_asked) {
            true => Ok(()),
            false => Err(Broken::Unexpected(command)),
        }
    }

    /// END: nothing but a second one may follow, and that only behind an orderly one.
    pub(super) fn ended(&mut self, end: End) -> Result<(), Broken> {
        self.ends = self.ends.checked_sub(1).ok_or(Broken::UnknownStream)?;
        if end.reason != EndReason::DONE {
            self.ends = 0;
        }
        self.window = Some(0);
        self.is_asked = false;
        Ok(())
    }

    /// SENDME.
    pub(super) fn acknowledged(&mut self) -> Result<(), Broken> {
        Ok(self.outgoing.acknowledged()?)
    }

    /// XOFF or XON.
    pub(super) fn told(&mut self, stop: bool) -> Result<(), Broken> {
        Ok(self.outgoing.told(stop, true)?)
    }
}
