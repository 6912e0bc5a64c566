//! A relay's machine for one circuit: its layer, and what a cell means for it. Guard, middle and exit are the same.
//! [`super::driver`] drives it. tor-spec "Routing relay cells", "Handling relay_early cells", proposal 324 §10.3.

use std::fmt;

use hoplite_crypto::onion::{OnionKeys, Refused, ntor, ntor3, tor1::RelayLayer};
use hoplite_wire::cell::{
    self, Cell, Command, Malformed,
    circuit::{
        ClientExtensions, Create2, Created2, DestroyReason, HandshakeType, ServerExtensions,
    },
};

use crate::flow::{Control, Digest};

/// RELAY_EARLY cells that a circuit may have.
const EARLY: u8 = 8;

/// DATA cells that one SENDME acknowledges where there is congestion control (`cc_sendme_inc`).
const INCREMENT: u8 = 31;

/// One circuit of a relay.
pub struct Circuit {
    layer: RelayLayer,
    early: u8,
}

/// What a cell from the client's side is.
#[derive(Debug)]
pub enum Forward {
    /// For a relay further on, this layer taken off.
    Next(Cell),
    /// For this one, in the clear; EXTEND2 is only good in a RELAY_EARLY cell.
    Here(Cell, Digest),
}

impl Circuit {
    /// Answers a CREATE2: the circuit, the flow control that was agreed on, and CREATED2.
    ///
    /// # Errors
    /// [`Refused`]: what the client did wrong, or that its handshake is not spoken here.
    pub fn create(
        keys: &OnionKeys,
        create: &Create2<'_>,
        congestion_control: bool,
    ) -> Result<(Self, Control, Vec<u8>), Refused> {
        let mut control = Control::Fixed;
        let (reply, seed) = match create.handshake {
            HandshakeType::NTOR => ntor::server(keys, create.data)?,
            HandshakeType::NTOR_V3 => ntor3::server(keys, create.data, |message| {
                answer(message, congestion_control, &mut control)
            })?,
            _ => return Err(Refused::Unacceptable),
        };
        let circuit = Self {
            layer: RelayLayer::new(&seed)?,
            early: EARLY,
        };
        let mut body = Vec::with_capacity(reply.len() + 2);
        Created2 { data: &reply }.write(&mut body);
        Ok((circuit, control, body))
    }

    /// A cell from the client's side.
    ///
    /// # Errors
    /// Why the circuit is to be destroyed.
    pub fn forward(&mut self, mut cell: Cell) -> Result<Forward, DestroyReason> {
        match cell.command {
            Command::RELAY => {}
            // "If any OR sees more than 8 RELAY_EARLY cells, it MUST close the circuit."
            Command::RELAY_EARLY => {
                self.early = self.early.checked_sub(1).ok_or(DestroyReason::PROTOCOL)?;
            }
            _ => return Err(DestroyReason::PROTOCOL),
        }
        let body = cell.fixed().map_err(|_| DestroyReason::PROTOCOL)?;
        Ok(match self.layer.forward(body) {
            Some(digest) => Forward::Here(cell, digest),
            None => Forward::Next(cell),
        })
    }

    /// A cell from the next relay: one layer more.
    ///
    /// # Errors
    /// Why the circuit is to be destroyed.
    pub fn backward(&mut self, cell: &mut Cell) -> Result<(), DestroyReason> {
        let body = cell.fixed().map_err(|_| DestroyReason::PROTOCOL)?;
        self.layer.backward(body);
        Ok(())
    }

    /// A message of this relay's own, towards the client.
    ///
    /// # Errors
    /// [`Malformed`]: the body has not the length of a cell.
    pub fn originate(&mut self, cell: &mut Cell) -> Result<Digest, Malformed> {
        let body: &mut [u8; cell::BODY] = cell.fixed()?;
        Ok(self.layer.originate(body))
    }
}

/// What is answered to the client's extensions; `None` if they cannot be read, or ask for what is not done here.
fn answer(message: &[u8], offered: bool, control: &mut Control) -> Option<Vec<u8>> {
    let asked = ClientExtensions::parse(message).ok()?;
    // Proposal 346: a relay that does not do all that is asked for refuses the circuit. There is nothing that could be asked for: the client would
    // else take us for somebody who does, another relay encryption (`Relay=6`) say.
    if !asked.subprotocols.is_empty() {
        return None;
    }
    let increment = (asked.congestion_control && offered).then_some(INCREMENT);
    if let Some(increment) = increment {
        *control = Control::Vegas { increment };
    }
    let mut out = Vec::new();
    ServerExtensions {
        sendme_increment: increment,
    }
    .write(&mut out);
    Some(out)
}

impl fmt::Debug for Circuit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("relay::Circuit")
    }
}
