//! A relay's machine for one circuit: its layer, and what a cell means for it. Guard, middle and exit are the same.
//! [`super::driver`] drives it. tor-spec "Routing relay cells", "Handling relay_early cells", proposals 324 §10.3 and 346.

use std::{
    fmt,
    future::poll_fn,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Poll, ready},
};

use hoplite_crypto::onion::{
    CircuitNonce, OnionKeys, Refused, create_fast,
    layers::{RelayCrypto, RelayLayer},
    ntor, ntor3,
};
use hoplite_wire::cell::{
    self, Cell, Command, Malformed,
    circuit::{
        ClientExtensions, Create2, CreateFast, Created2, CreatedFast, DestroyReason, HandshakeType,
        ServerExtensions, Subprotocol,
    },
    relay::{Format, SendmeTag},
};
use tokio::time::timeout;

use super::{Relay, Requester};
use crate::{channel, flow_control::Control};

/// RELAY_EARLY cells that a circuit may have.
const EARLY: u8 = 8;

/// DATA cells that one SENDME acknowledges where there is congestion control (`cc_sendme_inc`).
const INCREMENT: u8 = 31;

/// One circuit of a relay.
pub struct RelayCircuit {
    layer: RelayLayer,
    nonce: CircuitNonce,
    early: u8,
}

/// What a relay agrees to where it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    /// Congestion control (proposal 324).
    pub congestion_control: bool,
    /// CGO (proposal 359), with congestion control alone.
    pub cgo: bool,
}

/// What a handshake has led to, beside keys.
struct Agreed {
    control: Control,
    crypto: RelayCrypto,
}

/// What a cell from the client's side is.
#[derive(Debug)]
pub enum Forward {
    /// For a relay further on, this layer taken off.
    Next(Cell),
    /// For this one, in the clear; EXTEND2 is only good in a RELAY_EARLY cell.
    Here(Cell, SendmeTag),
}

impl RelayCircuit {
    /// Answers a CREATE2: the circuit, the flow control that was agreed on, and CREATED2.
    ///
    /// # Errors
    /// [`Refused`]: what the client did wrong, or that its handshake is not spoken here.
    pub fn create(
        keys: &OnionKeys,
        create: &Create2<'_>,
        offers: Offers,
    ) -> Result<(Self, Control, Vec<u8>), Refused> {
        let mut agreed = Agreed {
            control: Control::Fixed,
            crypto: RelayCrypto::Tor1,
        };
        let (reply, seed) = match create.handshake {
            HandshakeType::NTOR => ntor::server(keys, create.data)?,
            HandshakeType::NTOR_V3 => ntor3::server(keys, create.data, |message| {
                negotiate(message, offers, &mut agreed)
            })?,
            _ => return Err(Refused::Unacceptable),
        };
        let circuit = Self {
            layer: RelayLayer::new(&seed, agreed.crypto)?,
            nonce: CircuitNonce::draw(&seed, agreed.crypto)?,
            early: EARLY,
        };
        let mut body = Vec::with_capacity(reply.len() + 2);
        Created2 { data: &reply }.write(&mut body);
        Ok((circuit, agreed.control, body))
    }

    /// Answers a CREATE_FAST: the circuit, and CREATED_FAST.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn create_fast(create: CreateFast) -> Result<(Self, Vec<u8>), Refused> {
        let answer = create_fast::server(&create.0)?;
        let circuit = Self {
            layer: RelayLayer::new(&answer.seed, RelayCrypto::Tor1)?,
            nonce: answer.nonce,
            early: EARLY,
        };
        let created = CreatedFast {
            half: answer.half,
            proof: answer.proof,
        };
        let mut body = Vec::new();
        created.write(&mut body);
        Ok((circuit, body))
    }

    /// How messages between this relay and the client stand in their cells.
    pub fn format(&self) -> Format {
        self.layer.format()
    }

    /// What binds messages to this circuit.
    pub fn nonce(&self) -> &CircuitNonce {
        &self.nonce
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
        let command = cell.command;
        let body = cell.fixed().map_err(|_| DestroyReason::PROTOCOL)?;
        Ok(match self.layer.forward(command, body) {
            Some(tag) => Forward::Here(cell, tag),
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
    pub fn originate(&mut self, cell: &mut Cell) -> Result<SendmeTag, Malformed> {
        let body: &mut [u8; cell::BODY] = cell.fixed()?;
        Ok(self.layer.originate(body))
    }
}

/// How a peer asks for a circuit.
enum Request {
    /// CREATE2.
    Two(Cell),
    /// CREATE_FAST.
    Fast(CreateFast),
}

impl Request {
    fn of(cell: Cell) -> Result<Self, DestroyReason> {
        let malformed = |_| DestroyReason::PROTOCOL;
        match cell.command {
            Command::CREATE2 => {
                Create2::parse(&cell.body).map_err(malformed)?;
                Ok(Self::Two(cell))
            }
            Command::CREATE_FAST => {
                let create = CreateFast::parse(&cell.body).map_err(malformed)?;
                Ok(Self::Fast(create))
            }
            _ => Err(DestroyReason::PROTOCOL),
        }
    }

    /// Which cell answers it.
    fn answered_by(&self) -> Command {
        match self {
            Self::Two(_) => Command::CREATED2,
            Self::Fast(_) => Command::CREATED_FAST,
        }
    }

    fn answer(&self, relay: &Relay) -> Made {
        match self {
            Self::Two(cell) => {
                let create = Create2::parse(&cell.body).ok()?;
                if !relay.is_new(create.data) {
                    return None;
                }
                RelayCircuit::create(&relay.keys(), &create, relay.config.offers).ok()
            }
            Self::Fast(create) => {
                if !relay.is_new(&create.0) {
                    return None;
                }
                let (circuit, body) = RelayCircuit::create_fast(*create).ok()?;
                Some((circuit, Control::Fixed, body))
            }
        }
    }
}

/// What is answered to the client's extensions; `None` if they cannot be read, or ask for what is not done here.
fn negotiate(message: &[u8], offers: Offers, agreed: &mut Agreed) -> Option<Vec<u8>> {
    let asked = ClientExtensions::parse(message).ok()?;
    let congestion_control = asked.congestion_control && offers.congestion_control;
    // Proposal 346: a relay that does not do all that is asked for refuses the circuit: the client would else take it for somebody who does.
    agreed.crypto = match asked.subprotocols[..] {
        [] => RelayCrypto::Tor1,
        // As C tor: CGO's cells have no SENDME of a stream.
        [Subprotocol::CGO] if offers.cgo && congestion_control => RelayCrypto::Cgo,
        _ => return None,
    };
    let increment = congestion_control.then_some(INCREMENT);
    if let Some(increment) = increment {
        agreed.control = Control::Vegas { increment };
    }
    let mut out = Vec::new();
    ServerExtensions {
        sendme_increment: increment,
    }
    .write(&mut out);
    Some(out)
}

impl fmt::Debug for RelayCircuit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("relay::RelayCircuit")
    }
}

// A circuit's two neighbours as it is made: the CREATE2, or CREATE_FAST, that a peer sends, and the one that is sent on for it. tor-
// spec "CREATE and CREATED cells", "EXTEND and EXTENDED cells".

/// The circuit to the next relay, and what its CREATED2 said.
pub(super) type Extended = (channel::CircuitEnds, Vec<u8>);

/// What comes of it: the circuit, its flow control, and what is answered; nothing if it is bad, or a replay.
pub(super) type Made = Option<(RelayCircuit, Control, Vec<u8>)>;

/// Waits for CREATE2 or CREATE_FAST, and answers it.
pub(super) async fn create(
    back: &mut channel::CircuitEnds,
    relay: &Arc<Relay>,
    requester: Requester,
) -> Result<(RelayCircuit, Control), DestroyReason> {
    let receiver = &mut back.receiver;
    let first = timeout(relay.config.patience, poll_fn(|cx| receiver.poll_recv(cx))).await;
    let request = match first {
        Ok(Some(cell)) => Request::of(cell)?,
        Ok(None) => return Err(DestroyReason::PROTOCOL),
        Err(_) => return Err(DestroyReason::TIMEOUT),
    };
    let answered_by = request.answered_by();
    let made = answer(&mut *back.receiver, request, relay, requester).await?;
    let Some((circuit, control, created)) = made else {
        relay.counters.refused.fetch_add(1, Relaxed);
        return Err(DestroyReason::PROTOCOL);
    };
    let cell = Cell::new(back.id, answered_by, |body| {
        body.extend_from_slice(&created)
    });
    let cell = cell.map_err(|_| DestroyReason::INTERNAL)?;
    send(back, cell).await?;
    Ok((circuit, control))
}

/// Has the answer computed. Nothing may come on the circuit meanwhile but its end: then it is not.
async fn answer(
    receiver: &mut dyn channel::Receiver,
    request: Request,
    relay: &Arc<Relay>,
    requester: Requester,
) -> Result<Made, DestroyReason> {
    let of = Arc::clone(relay);
    let handshakes = &relay.handshakes;
    let computing = handshakes.compute(requester, move || request.answer(&of));
    tokio::select! {
        biased;
        made = computing => made.map_err(|_| {
            relay.counters.limited.fetch_add(1, Relaxed);
            DestroyReason::RESOURCELIMIT
        }),
        cell = poll_fn(|cx| receiver.poll_recv(cx)) => Err(match cell {
            Some(cell) if cell.command != Command::DESTROY => DestroyReason::PROTOCOL,
            _ => DestroyReason::NONE,
        }),
    }
}

/// Makes the circuit to the next relay on somebody's behalf, for as long as patience lasts.
pub(super) async fn dial(
    relay: Arc<Relay>,
    next: crate::path::Relay,
    create: Vec<u8>,
    (requester, origin): (Requester, Option<channel::Origin>),
) -> Result<Extended, DestroyReason> {
    let dialling = async {
        let channel = relay
            .dialer
            .channel_for(&next, requester)
            .await
            .map_err(|error| reason(&error))?;
        if !relay.admits_extension(requester, &next.keys.ed25519) {
            relay.counters.limited.fetch_add(1, Relaxed);
            return Err(DestroyReason::RESOURCELIMIT);
        }
        let opened = match &origin {
            Some(origin) => channel.open_for(origin).await,
            None => channel.open().await,
        };
        let mut circuit = opened.map_err(|_| DestroyReason::CONNECTFAILED)?;
        let cell = Cell::new(circuit.id, Command::CREATE2, |body| {
            body.extend_from_slice(&create)
        });
        send(&mut circuit, cell.map_err(|_| DestroyReason::PROTOCOL)?).await?;
        let answer = poll_fn(|cx| circuit.receiver.poll_recv(cx)).await;
        let created = created(answer)?;
        Ok((circuit, created))
    };
    let dialled = timeout(relay.config.patience, dialling).await;
    dialled.unwrap_or(Err(DestroyReason::TIMEOUT))
}

/// What a relay further on answered to CREATE2: the data of EXTENDED2.
fn created(answer: Option<Cell>) -> Result<Vec<u8>, DestroyReason> {
    let cell = answer.ok_or(DestroyReason::CHANNEL_CLOSED)?;
    match cell.command {
        Command::CREATED2 => {
            let parsed = Created2::parse(&cell.body).map_err(|_| DestroyReason::PROTOCOL)?;
            let mut data = Vec::with_capacity(parsed.data.len() + 2);
            parsed.write(&mut data);
            Ok(data)
        }
        // Its own reason stays here: see [`super::driver`].
        Command::DESTROY => Err(DestroyReason::DESTROYED),
        _ => Err(DestroyReason::PROTOCOL),
    }
}

async fn send(circuit: &mut channel::CircuitEnds, cell: Cell) -> Result<(), DestroyReason> {
    poll_fn(|cx| {
        let ready = ready!(circuit.sender.poll_ready(cx));
        Poll::Ready(ready.map_err(|_| DestroyReason::CHANNEL_CLOSED))
    })
    .await?;
    circuit.sender.send(cell);
    let flushed = poll_fn(|cx| circuit.sender.poll_flush(cx)).await;
    flushed.map_err(|_| DestroyReason::CHANNEL_CLOSED)
}

fn reason(error: &hoplite_overlay::Error) -> DestroyReason {
    use hoplite_overlay::{ErrorKind, Reason};
    match (error.kind(), error.reason()) {
        (_, Some(Reason::Identity)) => DestroyReason::OR_IDENTITY,
        (_, Some(Reason::Limit)) => DestroyReason::RESOURCELIMIT,
        (ErrorKind::TimedOut, _) => DestroyReason::TIMEOUT,
        _ => DestroyReason::CONNECTFAILED,
    }
}
