//! Any relay message, told by its command.
//! Who dispatches messages uses it; those who know what comes use the types themselves.

use bytes::BufMut;

use super::{
    Begin, Command, Connected, End, Extend2, Extended2, Resolve, Resolved, Sendme, Truncated, Xoff,
    Xon,
};
use crate::cell::Malformed;

/// What a relay message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Opens a stream to a target.
    Begin(Begin),
    /// Opens a stream to the relay's directory.
    BeginDir,
    /// Octets of a stream.
    Data(&'a [u8]),
    /// Ends a stream.
    End(End),
    /// The stream is open.
    Connected(Connected),
    /// More may be sent.
    Sendme(Sendme),
    /// The stream may go on.
    Xon(Xon),
    /// The stream is to pause.
    Xoff(Xoff),
    /// Lengthens the circuit.
    Extend2(Extend2<'a>),
    /// Its answer.
    Extended2(Extended2<'a>),
    /// Cuts the circuit off.
    Truncate,
    /// The circuit ends here now.
    Truncated(Truncated),
    /// Asks for a name's addresses.
    Resolve(Resolve<'a>),
    /// Its answer.
    Resolved(Resolved<'a>),
    /// Padding.
    Drop,
    /// "If the relay command is not understood, the cell must be dropped and ignored."
    Unknown(Command, &'a [u8]),
}

impl<'a> Message<'a> {
    /// Reads the data of a message.
    ///
    /// # Errors
    /// [`Malformed`] as the message's own type says.
    pub fn parse(command: Command, data: &'a [u8]) -> Result<Self, Malformed> {
        Ok(match command {
            Command::BEGIN => Self::Begin(Begin::parse(data)?),
            Command::BEGIN_DIR => Self::BeginDir,
            Command::DATA => Self::Data(data),
            Command::END => Self::End(End::parse(data)),
            Command::CONNECTED => Self::Connected(Connected::parse(data)?),
            Command::SENDME => Self::Sendme(Sendme::parse(data)?),
            Command::XON => Self::Xon(Xon::parse(data)?),
            Command::XOFF => Self::Xoff(Xoff::parse(data)?),
            Command::EXTEND2 => Self::Extend2(Extend2::parse(data)?),
            Command::EXTENDED2 => Self::Extended2(Extended2::parse(data)?),
            Command::TRUNCATE => Self::Truncate,
            Command::TRUNCATED => Self::Truncated(Truncated::parse(data)?),
            Command::RESOLVE => Self::Resolve(Resolve::parse(data)?),
            Command::RESOLVED => Self::Resolved(Resolved::parse(data)?),
            Command::DROP => Self::Drop,
            _ => Self::Unknown(command, data),
        })
    }

    /// Its command.
    pub const fn command(&self) -> Command {
        match self {
            Self::Begin(_) => Command::BEGIN,
            Self::BeginDir => Command::BEGIN_DIR,
            Self::Data(_) => Command::DATA,
            Self::End(_) => Command::END,
            Self::Connected(_) => Command::CONNECTED,
            Self::Sendme(_) => Command::SENDME,
            Self::Xon(_) => Command::XON,
            Self::Xoff(_) => Command::XOFF,
            Self::Extend2(_) => Command::EXTEND2,
            Self::Extended2(_) => Command::EXTENDED2,
            Self::Truncate => Command::TRUNCATE,
            Self::Truncated(_) => Command::TRUNCATED,
            Self::Resolve(_) => Command::RESOLVE,
            Self::Resolved(_) => Command::RESOLVED,
            Self::Drop => Command::DROP,
            Self::Unknown(command, _) => *command,
        }
    }

    /// Writes its data. Whether they fit a cell is told when they are put into one.
    pub fn write(&self, out: &mut impl BufMut) {
        match self {
            Self::Begin(begin) => begin.write(out),
            Self::Data(data) | Self::Unknown(_, data) => out.put_slice(data),
            Self::End(end) => end.write(out),
            Self::Connected(connected) => connected.write(out),
            Self::Sendme(sendme) => sendme.write(out),
            Self::Xon(xon) => xon.write(out),
            Self::Xoff(xoff) => xoff.write(out),
            Self::Extend2(extend) => extend.write(out),
            Self::Extended2(extended) => extended.write(out),
            Self::Truncated(reason) => reason.write(out),
            Self::Resolve(resolve) => resolve.write(out),
            Self::Resolved(resolved) => resolved.write(out),
            Self::BeginDir | Self::Truncate | Self::Drop => {}
        }
    }
}
