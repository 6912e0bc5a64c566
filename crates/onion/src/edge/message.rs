//! Relay messages as bodies of cells, before they are encrypted.
//! Made by [`super::Edge`]. tor-spec "Relay cells".

use bytes::BytesMut;
use hoplite_wire::cell::{
    BODY, DATA,
    relay::{self, Command, HEADER, Header, Message, Sendme, StreamId},
};

/// A body to be encrypted and sent.
#[derive(Debug)]
pub struct Outbound {
    /// The body, digest still zero.
    pub body: BytesMut,
    /// It counts towards the circuit's window: its digest is to be told.
    pub counted: bool,
    /// It is a SENDME of the circuit.
    pub(super) acknowledges: bool,
}

/// A message; one that does not fit a cell (a list of answers that is too long) is cut.
pub(super) fn control(message: &Message<'_>, stream: StreamId, random: fn(&mut [u8])) -> Outbound {
    let mut data = Vec::with_capacity(32);
    message.write(&mut data);
    data.truncate(DATA);
    let mut body = BytesMut::zeroed(BODY);
    if let Ok(fixed) = body.as_mut().try_into()
        && let Ok(padding) = relay::write(fixed, message.command(), stream, &data)
    {
        random(padding);
    }
    Outbound {
        body,
        counted: false,
        acknowledges: stream == StreamId::CIRCUIT
            && matches!(message, Message::Sendme(Sendme::V1(_))),
    }
}

/// DATA: `body` has the octets behind room for the header.
pub(super) fn data(mut body: BytesMut, stream: StreamId, random: fn(&mut [u8])) -> Outbound {
    let filled = body.len();
    body.resize(BODY, 0);
    // "The padding is four zero-valued bytes, followed by as many random bytes as will fit."
    if let Some(padding) = body.get_mut(filled + 4..) {
        random(padding);
    }
    let header = Header {
        command: Command::DATA,
        recognized: 0,
        stream,
        digest: [0; 4],
        length: u16::try_from(filled.saturating_sub(HEADER)).unwrap_or(0),
    };
    if let Ok(fixed) = body.as_mut().try_into() {
        header.write(fixed);
    }
    Outbound {
        body,
        counted: true,
        acknowledges: false,
    }
}
