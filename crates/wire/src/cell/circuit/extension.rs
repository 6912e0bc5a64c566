//! Extensions of the ntor-v3 handshake: what client and relay agree on for a circuit, encrypted with it.
//! `onion` asks and answers, `crypto::onion` carries them. Proposal 332 §A.2 (format), 324 §10.3 (congestion control), 346 (subprotocols).

use bytes::BufMut;

use crate::cell::{
    Malformed,
    input::{Input, short},
};

const CONGESTION_REQUEST: u8 = 1;
const CONGESTION_RESPONSE: u8 = 2;
const SUBPROTOCOLS: u8 = 3;

/// A protocol and one of its capabilities, as numbers: `Relay=6` is (2, 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subprotocol {
    /// Which protocol: Link 0, LinkAuth 1, Relay 2, … FlowCtrl 11, Conflux 12.
    pub protocol: u8,
    /// Which capability.
    pub capability: u8,
}

/// What a client asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientExtensions {
    /// Congestion control (CC_FIELD_REQUEST).
    pub congestion_control: bool,
    /// Capabilities to be used on this circuit; in ascending order, none twice.
    pub subprotocols: Vec<Subprotocol>,
}

/// What a relay answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerExtensions {
    /// Congestion control is on, with a SENDME for so many cells (CC_FIELD_RESPONSE).
    pub sendme_increment: Option<u8>,
}

impl ClientExtensions {
    /// Reads a client's message. "Unrecognized extensions MUST be ignored"; of several of a kind "only the first one counts".
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off, and for subprotocols out of order.
    pub fn parse(message: &[u8]) -> Result<Self, Malformed> {
        let mut extensions = Self::default();
        let mut asked = false;
        read(message, |kind, value| {
            match kind {
                CONGESTION_REQUEST => extensions.congestion_control = true,
                SUBPROTOCOLS if !asked => {
                    asked = true;
                    extensions.subprotocols = subprotocols(value)?;
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(extensions)
    }

    /// Writes the message: 127 subprotocols at most.
    pub fn write(&self, out: &mut impl BufMut) {
        let asks = !self.subprotocols.is_empty();
        out.put_u8(u8::from(self.congestion_control).saturating_add(u8::from(asks)));
        if self.congestion_control {
            out.put_slice(&[CONGESTION_REQUEST, 0]);
        }
        if asks {
            let number = self.subprotocols.len().min(127);
            out.put_slice(&[SUBPROTOCOLS, short(number.saturating_mul(2))]);
            let some = self.subprotocols.iter().take(number);
            some.for_each(|one| out.put_slice(&[one.protocol, one.capability]));
        }
    }
}

impl ServerExtensions {
    /// Reads a relay's message.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off, and for an increment that is no octet.
    pub fn parse(message: &[u8]) -> Result<Self, Malformed> {
        let mut extensions = Self::default();
        read(message, |kind, value| {
            if kind == CONGESTION_RESPONSE && extensions.sendme_increment.is_none() {
                let [increment] = *value else {
                    return Err(Malformed("congestion control response"));
                };
                extensions.sendme_increment = Some(increment);
            }
            Ok(())
        })?;
        Ok(extensions)
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        match self.sendme_increment {
            Some(increment) => out.put_slice(&[1, CONGESTION_RESPONSE, 1, increment]),
            None => out.put_u8(0),
        }
    }
}

/// Hands out each extension. A message without any octet has none.
fn read<'a>(
    message: &'a [u8],
    mut take: impl FnMut(u8, &'a [u8]) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let mut input = Input::new(message, "extensions of a handshake");
    if input.is_empty() {
        return Ok(());
    }
    for _ in 0..input.u8()? {
        take(input.u8()?, input.counted()?)?;
    }
    Ok(())
}

fn subprotocols(value: &[u8]) -> Result<Vec<Subprotocol>, Malformed> {
    let what = Malformed("subprotocol request");
    let (pairs, []) = value.as_chunks::<2>() else {
        return Err(what);
    };
    let list = pairs.iter().map(|[protocol, capability]| Subprotocol {
        protocol: *protocol,
        capability: *capability,
    });
    let list: Vec<_> = list.collect();
    let sorted = list.iter().zip(list.iter().skip(1)).all(|(a, b)| a < b);
    sorted.then_some(list).ok_or(what)
}
