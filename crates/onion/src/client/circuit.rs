//! The client's machine for one circuit: it is built hop by hop, then carries the relay messages of an [`Endpoint`] under its layers.
//! [`super::driver`] drives it: [`ClientCircuit::handle`] for each cell that comes, [`ClientCircuit::next`] while the channel takes cells.
//! tor-spec "Creating circuits", "Routing relay cells", "Tearing down circuits".
//!
//! One that is for an onion service first talks to its last relay ([`ClientCircuit::say`]). At a rendezvous point it gets one hop more: the service,
//! or at the service the client; from then on the endpoint's streams are with that one. rend-spec-v3, "The rendezvous protocol".

use std::{collections::VecDeque, fmt};

use bytes::BytesMut;
use hoplite_crypto::onion::{
    CircuitNonce, Seed, hs_ntor,
    layers::{ClientLayers, RelayCrypto},
    ntor, ntor3,
    tor1::Party,
};
use hoplite_overlay::{Error, ErrorKind};
use hoplite_wire::{
    Protocols,
    cell::{
        self, Cell, CircuitId, Command, Malformed,
        circuit::{
            ClientExtensions, Create2, Created2, DestroyReason, Extend2, HandshakeType,
            ServerExtensions, Subprotocol,
        },
        relay::{self, Header, RelayCommand, StreamId},
    },
};
use tokio::time::Instant;

use crate::{
    conflux::LegId,
    endpoint::{Arrival, Broken, Endpoint, Role},
    failure,
    flow_control::Control,
    path::{MOST_HOPS, Relay},
};

/// RELAY_EARLY cells that a circuit may have.
const EARLY: u8 = 8;

/// `cc_sendme_inc` of the consensus is 31; a far end that wants another is not believed. The proposal allows a factor of two (§10.5), C tor one
/// more or less, and so do we: what differs would mark the relay's clients.
pub(crate) const INCREMENTS: std::ops::RangeInclusive<u8> = 30..=32;

/// What a cell has brought about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing new.
    None,
    /// The circuit has all of its hops.
    Built,
    /// The last relay has said this, of an onion service.
    Heard(RelayCommand, Vec<u8>),
    /// The onion service has come, and is one hop more.
    Met,
}

/// What a client asks of relays that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asks {
    /// Congestion control (proposal 324) with the last one.
    pub congestion_control: bool,
    /// CGO (proposal 359). It needs congestion control, as its cells have no SENDME of a stream; so it is not asked for without.
    pub cgo: bool,
}

/// One circuit of a client.
pub struct ClientCircuit {
    id: CircuitId,
    path: Vec<Relay>,
    layers: ClientLayers,
    handshake: Option<Handshake>,
    asks: Asks,
    early: u8,
    /// The hop behind the one that has lost it.
    truncated: Option<usize>,
    out: VecDeque<Cell>,
    /// Which of its endpoint's circuits it is.
    leg: LegId,
    /// It may hear of onion services; else that breaks the protocol.
    talks: bool,
    /// Its last relay is still to be named.
    is_stem: bool,
    /// Of the last relay, on a circuit that talks.
    nonce: Option<CircuitNonce>,
    /// The handshake that RENDEZVOUS2 is to complete, and how to hold back then.
    awaited: Option<(hs_ntor::ClientState, Control)>,
    random: fn(&mut [u8]),
}

enum Handshake {
    Ntor(ntor::ClientState),
    /// And what was asked for.
    Ntor3(ntor3::ClientState, Asks),
}

/// What a handshake has led to.
struct Agreed {
    seed: Seed,
    control: Control,
    crypto: RelayCrypto,
}

impl ClientCircuit {
    /// Begins to build a circuit over `path`; the first cell is CREATE2.
    ///
    /// # Errors
    /// The path is empty or too long, or a handshake cannot be made.
    pub fn new(
        id: CircuitId,
        path: Vec<Relay>,
        asks: Asks,
        random: fn(&mut [u8]),
    ) -> Result<Self, Error> {
        if path.is_empty() || path.len() > MOST_HOPS {
            let doing = "building a circuit: a path has one to eight relays";
            return Err(Error::new(ErrorKind::Bug, doing));
        }
        let mut circuit = Self {
            id,
            path,
            layers: ClientLayers::new(),
            handshake: None,
            asks,
            early: EARLY,
            truncated: None,
            out: VecDeque::new(),
            leg: LegId::FIRST,
            talks: false,
            is_stem: false,
            nonce: None,
            awaited: None,
            random,
        };
        circuit.create()?;
        Ok(circuit)
    }

    /// A circuit that is this leg of a Conflux set.
    #[must_use]
    pub fn leg(mut self, leg: LegId) -> Self {
        self.leg = leg;
        self
    }

    /// A circuit that is for an onion service: it may hear of it.
    #[must_use]
    pub fn talking(mut self) -> Self {
        self.talks = true;
        self
    }

    /// A circuit that talks to a relay which is named only when all others are there ([`Self::lead_on`]): with these nothing is agreed but the way.
    #[must_use]
    pub fn stem(mut self) -> Self {
        (self.talks, self.is_stem) = (true, true);
        self
    }

    /// Leads a stem that is built on to its last relay.
    ///
    /// # Errors
    /// It is none, or too long, or the handshake cannot be made.
    pub fn lead_on(&mut self, relay: Relay) -> Result<(), Error> {
        let can = self.is_stem && self.is_built() && self.path.len() < MOST_HOPS;
        if !can {
            let doing = "leading a circuit on that has its last relay";
            return Err(Error::new(ErrorKind::Bug, doing));
        }
        self.is_stem = false;
        self.path.push(relay);
        self.extend()
    }

    /// What binds a message to the last relay of a circuit that talks, once it is built.
    pub fn nonce(&self) -> Option<&CircuitNonce> {
        self.nonce.as_ref()
    }

    /// How many relays it has, of how many.
    pub fn hops(&self) -> (usize, usize) {
        (self.layers.len().min(self.path.len()), self.path.len())
    }

    /// The hop that is to blame if it fails now, from 0.
    pub fn failing(&self) -> usize {
        self.truncated.unwrap_or(self.layers.len())
    }

    /// The hop that it has lost after all had been there, if `error` ended it.
    pub fn lost(&self, error: &Error) -> Option<usize> {
        let first = || failure::is_of_channel(error).then_some(0);
        self.truncated.or_else(first).filter(|_| self.is_built())
    }

    /// Whether it has all of its hops.
    pub(crate) fn is_built(&self) -> bool {
        self.layers.len() >= self.path.len()
    }

    /// Whether it has all of its hops, and the last of them is known.
    fn is_whole(&self) -> bool {
        self.is_built() && !self.is_stem
    }

    /// Whether it has, behind its relays, an onion service, or a service's client.
    fn has_met(&self) -> bool {
        self.layers.len() > self.path.len()
    }

    /// The path.
    pub fn path(&self) -> &[Relay] {
        &self.path
    }

    /// A cell of this circuit has come.
    ///
    /// # Errors
    /// Why the circuit is to be closed.
    pub fn handle(
        &mut self,
        cell: Cell,
        endpoint: &mut Endpoint,
        at: Arrival,
    ) -> Result<Progress, Error> {
        match cell.command {
            Command::RELAY => self.handle_message(cell.body, endpoint, at),
            Command::CREATED2 if self.layers.is_empty() => {
                let created = Created2::parse(&cell.body).map_err(failure::broken)?;
                self.extended(created.data, endpoint)
            }
            Command::DESTROY => {
                let reason = DestroyReason::parse(&cell.body).unwrap_or(DestroyReason::NONE);
                Err(failure::destroyed(reason, self.layers.is_empty()))
            }
            // "If a client receives a RELAY_EARLY cell, it MUST tear down the circuit."
            _ => Err(failure::broken(Malformed("cell where it is not allowed"))),
        }
    }

    /// The next cell to be sent.
    pub fn next(&mut self, endpoint: &mut Endpoint, now: Instant) -> Option<Cell> {
        if let Some(cell) = self.out.pop_front() {
            return Some(cell);
        }
        if !self.is_built() {
            return None;
        }
        let message = endpoint.next_message(self.leg)?;
        let mut cell = self.cell(message.body);
        cell.stream = message.stream;
        let last = self.layers.len().checked_sub(1)?;
        let command = cell.command;
        let tag = self.layers.encrypt_for(last, command, cell.fixed().ok()?)?;
        if message.counted {
            endpoint.sealed(self.leg, tag, now);
        }
        Some(cell)
    }

    /// Has a cell sent to the last relay that says nothing and is not answered.
    ///
    /// # Errors
    /// A bug.
    pub fn pad(&mut self) -> Result<(), Error> {
        self.say(RelayCommand::DROP, &[])
    }

    /// Has a message sent to the last relay of a circuit that is built.
    ///
    /// # Errors
    /// It does not fit a cell: a bug.
    pub fn say(&mut self, command: RelayCommand, data: &[u8]) -> Result<(), Error> {
        let cell = self.cell(BytesMut::zeroed(cell::BODY));
        self.put(cell, self.path.len().saturating_sub(1), command, data)
    }

    /// Has a message of the circuit sent to `hop` in this cell.
    fn put(
        &mut self,
        mut cell: Cell,
        hop: usize,
        command: RelayCommand,
        data: &[u8],
    ) -> Result<(), Error> {
        let (format, of_cell) = (self.layers.format(hop), cell.command);
        let body = cell.fixed().map_err(ours)?;
        let padding = relay::write(format, body, command, StreamId::CIRCUIT, data);
        (self.random)(padding.map_err(ours)?);
        self.layers.encrypt_for(hop, of_cell, body);
        self.out.push_back(cell);
        Ok(())
    }

    /// RENDEZVOUS2 is to complete this handshake, and no other that was awaited before; the streams then hold back by `control`.
    pub fn await_service(&mut self, state: hs_ntor::ClientState, control: Control) {
        self.awaited = Some((state, control));
    }

    /// The other party is one hop more from now on, and streams are with it.
    ///
    /// # Errors
    /// There is one already, or the system gives no cipher.
    pub fn meet(
        &mut self,
        seed: &Seed,
        own: Party,
        control: Control,
        endpoint: &mut Endpoint,
    ) -> Result<(), Error> {
        self.layers.push_service(seed, own).map_err(ours)?;
        let role = match own {
            Party::Client => Role::Client,
            Party::Service => Role::Service,
        };
        endpoint.meet(role, control);
        Ok(())
    }

    fn cell(&mut self, body: BytesMut) -> Cell {
        let early = self.early > 0 && self.path.len() > 1;
        self.early = self.early.saturating_sub(u8::from(early));
        let command = if early {
            Command::RELAY_EARLY
        } else {
            Command::RELAY
        };
        Cell {
            circuit: self.id,
            command,
            stream: StreamId::CIRCUIT,
            body,
        }
    }

    fn handle_message(
        &mut self,
        mut body: BytesMut,
        endpoint: &mut Endpoint,
        at: Arrival,
    ) -> Result<Progress, Error> {
        let fixed: &mut [u8; cell::BODY] = (body.as_mut().try_into())
            .map_err(|_| failure::broken(Malformed("length of a cell")))?;
        let found = self.layers.decrypt(fixed);
        let (hop, tag) =
            found.ok_or_else(|| failure::broken(Malformed("relay cell, which no hop has sent")))?;
        let header = Header::read(self.layers.format(hop), fixed).map_err(failure::broken)?;
        let last = hop + 1 == self.layers.len();
        match header.command {
            RelayCommand::TRUNCATED if hop < self.path.len() => {
                let data = header.data(fixed).map_err(failure::broken)?;
                let reason = DestroyReason::parse(data).unwrap_or(DestroyReason::NONE);
                // With other reasons it is passed on from where a hop could not be added, if hops are missing.
                let lost = reason == DestroyReason::CHANNEL_CLOSED || self.is_built();
                self.truncated = lost.then_some(hop + 1);
                Err(failure::destroyed(reason, false))
            }
            RelayCommand::EXTENDED2 if last && !self.is_built() => {
                let data = header.data(fixed).map_err(failure::broken)?;
                let extended = Created2::parse(data).map_err(failure::broken)?;
                self.extended(extended.data, endpoint)
            }
            command if last && header.stream == StreamId::CIRCUIT && self.hears(command) => {
                let data = header.data(fixed).map_err(failure::broken)?;
                self.heard(command, data, endpoint)
            }
            _ if last && self.is_whole() => {
                let handled = endpoint.handle_message(body, tag, at);
                handled.map(|()| Progress::None).map_err(failure::broken)
            }
            command => Err(failure::broken(Broken::Unexpected(command))),
        }
    }

    /// Whether it is about an onion service, and the last relay may say so here.
    fn hears(&self, command: RelayCommand) -> bool {
        let is_such = matches!(
            command,
            RelayCommand::INTRO_ESTABLISHED
                | RelayCommand::RENDEZVOUS_ESTABLISHED
                | RelayCommand::INTRODUCE_ACK
                | RelayCommand::INTRODUCE2
                | RelayCommand::RENDEZVOUS2
        );
        is_such && self.talks && self.is_whole() && !self.has_met()
    }

    fn heard(
        &mut self,
        command: RelayCommand,
        data: &[u8],
        endpoint: &mut Endpoint,
    ) -> Result<Progress, Error> {
        if command != RelayCommand::RENDEZVOUS2 {
            return Ok(Progress::Heard(command, data.to_vec()));
        }
        let awaited = self.awaited.take();
        let (state, control) =
            awaited.ok_or_else(|| failure::broken(Broken::Unexpected(command)))?;
        let seed = state.finish(data).map_err(failure::broken)?;
        self.meet(&seed, Party::Client, control, endpoint)?;
        Ok(Progress::Met)
    }

    /// The relay that was asked has answered: one hop more.
    fn extended(&mut self, reply: &[u8], endpoint: &mut Endpoint) -> Result<Progress, Error> {
        let handshake = self.handshake.take();
        let handshake =
            handshake.ok_or_else(|| failure::broken(Malformed("answer that nobody asked for")))?;
        let agreed = handshake.finish(reply)?;
        let pushed = self.layers.push(&agreed.seed, agreed.crypto);
        pushed.map_err(failure::broken)?;
        if !self.is_built() {
            self.extend()?;
            return Ok(Progress::None);
        }
        if self.talks {
            let nonce = CircuitNonce::draw(&agreed.seed, agreed.crypto);
            self.nonce = Some(nonce.map_err(ours)?);
        }
        if !self.is_stem {
            let format = agreed.crypto.format();
            let set = endpoint.set(self.leg, agreed.control, format);
            set.map_err(failure::broken)?;
        }
        Ok(Progress::Built)
    }

    fn create(&mut self) -> Result<(), Error> {
        let (handshake, data) = self.begin_handshake()?;
        let create = Create2 {
            handshake,
            data: &data,
        };
        let cell = Cell::new(self.id, Command::CREATE2, |body| create.write(body));
        self.out.push_back(cell.map_err(ours)?);
        Ok(())
    }

    fn extend(&mut self) -> Result<(), Error> {
        let (handshake, data) = self.begin_handshake()?;
        let last = self.layers.len().saturating_sub(1);
        let relay = self.path.get(self.layers.len());
        let extend = Extend2 {
            specifiers: relay.map(Relay::specifiers).unwrap_or_default(),
            create: Create2 {
                handshake,
                data: &data,
            },
        };
        let mut message = Vec::with_capacity(cell::DATA);
        extend.write(&mut message);
        let mut cell = self.cell(BytesMut::zeroed(cell::BODY));
        // "When speaking to an OR, EXTEND2 MUST be in a RELAY_EARLY cell."
        cell.command = Command::RELAY_EARLY;
        self.put(cell, last, RelayCommand::EXTEND2, &message)
    }

    /// ntor-v3 with what is asked of this hop, ntor where the relay has no v3.
    fn begin_handshake(&mut self) -> Result<(HandshakeType, Vec<u8>), Error> {
        let hop = self.layers.len();
        let Some(relay) = self.path.get(hop) else {
            return Err(Error::new(
                ErrorKind::Bug,
                "building a circuit beyond its path",
            ));
        };
        if !relay.ntor3 {
            let (state, data) = ntor::client(&relay.keys).map_err(ours)?;
            self.handshake = Some(Handshake::Ntor(state));
            return Ok((HandshakeType::NTOR, data));
        }
        let is_last = hop + 1 == self.path.len() && !self.is_stem;
        let asked = self.asks.of(relay, is_last);
        let cgo = asked.cgo.then_some(Subprotocol::CGO);
        let extensions = ClientExtensions {
            congestion_control: asked.congestion_control,
            subprotocols: cgo.into_iter().collect(),
        };
        let mut message = Vec::new();
        extensions.write(&mut message);
        let (state, data) = ntor3::client(&relay.keys, &message).map_err(ours)?;
        self.handshake = Some(Handshake::Ntor3(state, asked));
        Ok((HandshakeType::NTOR_V3, data))
    }
}

impl Asks {
    /// What is asked of this relay.
    fn of(self, relay: &Relay, last: bool) -> Self {
        let control = self.congestion_control && relay.congestion_control;
        let cgo = self.cgo && control && relay.protocols.has(Protocols::CGO);
        Self {
            // A relay in the middle has no streams; there it goes with CGO alone.
            congestion_control: control && (last || cgo),
            cgo,
        }
    }
}

impl Handshake {
    fn finish(self, reply: &[u8]) -> Result<Agreed, Error> {
        let (state, asked) = match self {
            Self::Ntor(state) => {
                return Ok(Agreed {
                    seed: state.finish(reply).map_err(failure::broken)?,
                    control: Control::Fixed,
                    crypto: RelayCrypto::Tor1,
                });
            }
            Self::Ntor3(state, asked) => (state, asked),
        };
        let (message, seed) = state.finish(reply).map_err(failure::broken)?;
        let extensions = ServerExtensions::parse(&message).map_err(failure::broken)?;
        let wrong = |what| Err(failure::broken(Malformed(what)));
        let control = match extensions.sendme_increment {
            // Who has CGO has congestion control: it would be a circuit of its own kind.
            None if asked.cgo => return wrong("CGO without congestion control"),
            None => Control::Fixed,
            // Proposal 324 §10.3: the answer to a request. Unasked it would mark the circuit by how it behaves.
            Some(_) if !asked.congestion_control => return wrong("unasked congestion control"),
            Some(increment) if INCREMENTS.contains(&increment) => Control::Vegas { increment },
            Some(_) => return wrong("congestion control parameter"),
        };
        // Proposal 346: a relay does all that it was asked for, or refuses.
        let crypto = if asked.cgo {
            RelayCrypto::Cgo
        } else {
            RelayCrypto::Tor1
        };
        Ok(Agreed {
            seed,
            control,
            crypto,
        })
    }
}

fn ours(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Bug, "building a circuit").caused_by(error)
}

impl fmt::Debug for ClientCircuit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "client::ClientCircuit({} of {} hops)",
            self.layers.len(),
            self.path.len()
        )
    }
}
