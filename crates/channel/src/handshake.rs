//! The link handshake without I/O and without a clock, both ends: bytes in, bytes out, and at the end who the peer is.
//! `establish` drives it over a TLS stream and over QUIC's control stream alike.
//! tor-spec: "Negotiating and initializing connections" (link protocols 4 and 5).
//!
//! ```text
//! initiator  VERSIONS                                         [CERTS AUTHENTICATE] NETINFO
//! responder            VERSIONS CERTS AUTH_CHALLENGE NETINFO
//! ```
//! Calling order: [`Handshake::initiator`] or [`Handshake::responder`]; then, until it gives [`Established`] or an error: send what
//! [`Handshake::transmit`] gives, feed what comes to [`Handshake::receive`].

use std::{fmt, net::IpAddr, sync::Arc};

use bytes::BytesMut;
use hoplite_crypto::onion::identity::{
    EXPORTER_LABEL, Initiator, PeerId, Proof, RelayIdentity, Why, check_authentication,
    verify_initiator, verify_responder,
};
use hoplite_wire::cell::{
    self, Cell, CircuitId, Command, Malformed, Reader,
    handshake::{AuthChallenge, AuthType, Authenticate, Certs, Netinfo, Versions},
};
use ring::{
    digest::{Context, SHA256},
    rand::{SecureRandom, SystemRandom},
};

use super::Config;

#[cfg(test)]
mod tests;

/// What we speak. Versions before 4 have short circuit ids.
const VERSIONS: [u16; 2] = [4, 5];

/// A TLS exporter (RFC 5705): label and context in, 32 bytes out.
pub type Exporter<'a> = &'a dyn Fn(&[u8], &[u8]) -> Option<[u8; 32]>;

/// What the world around says at one moment: a machine has neither a clock nor a connection.
#[derive(Clone, Copy)]
pub struct Around<'a> {
    /// Unix time, in seconds.
    pub now: u64,
    /// That of this connection.
    pub exporter: Exporter<'a>,
}

/// What the handshake binds to, besides the exporter.
#[derive(Clone, Copy)]
pub struct Binding {
    /// SHA-256 of the responder's TLS certificate.
    pub certificate: [u8; 32],
    /// Where the peer is, as we see it: it is told.
    pub remote: Option<IpAddr>,
}

/// Who we are.
#[derive(Clone, Debug, Default)]
pub struct Us {
    /// None: a client, who proves nothing.
    pub identity: Option<Arc<RelayIdentity>>,
    /// Where others reach us; a client has none to tell.
    pub addresses: Vec<IpAddr>,
}

/// What came of it.
pub struct Established {
    /// The link protocol.
    pub version: u16,
    /// Who the peer is, proven; none: a client.
    pub peer: Option<PeerId>,
    /// Where the peer says that it is.
    pub theirs: Vec<IpAddr>,
    /// Where the peer sees us. It may lie.
    pub ours: Option<IpAddr>,
    /// How many seconds the peer's clock is before ours, if it told its time.
    pub ahead: Option<i64>,
    /// How many cells were thrown away, since they say nothing to us.
    pub ignored: u64,
}

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// A cell is not as it should be.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// No link protocol in common.
    #[error("the peer speaks no link protocol of ours (4 or 5)")]
    Versions,
    /// A cell that has no place there.
    #[error("the peer sent {0:?} where it has no place in the link handshake")]
    Unexpected(Command),
    /// More cells than a handshake has.
    #[error("the peer sent too many cells before NETINFO")]
    TooMany,
    /// The peer is not who it should be, or did not prove it.
    #[error("the peer's identity: {0}")]
    Identity(#[source] Why),
    /// We met ourselves.
    #[error("the peer is this relay itself")]
    Ourselves,
    /// The responder accepts no proof that we have.
    #[error("the responder accepts no proof of type 3 (Ed25519)")]
    NoMethod,
    /// Our own certificates or random numbers could not be made.
    #[error("making our own part of the link handshake: {0}")]
    Own(&'static str),
    /// The connection ended first.
    #[error("the connection ended within the link handshake")]
    Ended,
    /// It took too long.
    #[error("the link handshake took too long")]
    TimedOut,
    /// The connection failed.
    #[error("the connection failed within the link handshake: {0}")]
    Io(#[from] std::io::Error),
}

/// One end of one handshake.
pub struct Handshake {
    side: Side,
    us: Us,
    binding: Binding,
    greetings: usize,
    reader: Reader,
    out: BytesMut,
    sent: Log,
    received: Log,
    /// The responder's log up to AUTH_CHALLENGE; what it sends behind that is not signed.
    challenged: Option<[u8; 32]>,
    /// The initiator's log up to AUTHENTICATE, as the responder heard it.
    introduced: [u8; 32],
    version: Option<u16>,
    peer: Option<PeerId>,
    ignored: u64,
}

enum Side {
    Initiator(InitiatorStep),
    Responder(ResponderStep),
}

impl Handshake {
    /// For the end that connected. `expected` is the Ed25519 identity that the responder must have, if that is known.
    pub fn initiator(
        us: Us,
        expected: Option<[u8; 32]>,
        binding: Binding,
        config: &Config,
    ) -> Self {
        let step = InitiatorStep::Versions { expected };
        let mut handshake = Self::new(Side::Initiator(step), us, binding, config);
        handshake.send_versions();
        handshake
    }

    /// For the end that was connected to; `us` has an identity.
    pub fn responder(us: Us, binding: Binding, config: &Config) -> Self {
        let step = ResponderStep::Versions;
        Self::new(Side::Responder(step), us, binding, config)
    }

    fn new(side: Side, us: Us, binding: Binding, config: &Config) -> Self {
        Self {
            side,
            us,
            binding,
            greetings: config.greetings,
            reader: Reader::new(config.largest_variable),
            out: BytesMut::new(),
            sent: Log::new(),
            received: Log::new(),
            challenged: None,
            introduced: [0; 32],
            version: None,
            peer: None,
            ignored: 0,
        }
    }

    /// What is to be sent now, if anything.
    pub fn transmit(&mut self) -> Option<BytesMut> {
        Some(self.out.split()).filter(|bytes| !bytes.is_empty())
    }

    /// Takes what came. What comes behind NETINFO stays for [`Self::into_reader`].
    ///
    /// # Errors
    /// [`Refused`]: the connection is to be closed. Nothing is told to the peer.
    pub fn receive(
        &mut self,
        bytes: BytesMut,
        around: Around<'_>,
    ) -> Result<Option<Established>, Refused> {
        self.reader.push(bytes);
        self.proceed(around)
    }

    fn proceed(&mut self, around: Around<'_>) -> Result<Option<Established>, Refused> {
        while let Some(cell) = self.reader.next()? {
            self.greetings = self.greetings.checked_sub(1).ok_or(Refused::TooMany)?;
            if cell.command == Command::AUTHENTICATE {
                self.introduced = self.received.so_far();
            }
            self.received.add(self.reader.head());
            self.received.add(&cell.body);
            if let Some(established) = self.cell(&cell, around)? {
                return Ok(Some(established));
            }
        }
        Ok(None)
    }

    fn cell(&mut self, cell: &Cell, around: Around<'_>) -> Result<Option<Established>, Refused> {
        if self.version.is_none() {
            return self.versions(cell, around.now).map(|()| None);
        }
        if !cell.circuit.is_channel() && !cell.command.is_variable() {
            return Err(Refused::Unexpected(cell.command));
        }
        match cell.command {
            Command::CERTS | Command::AUTH_CHALLENGE | Command::AUTHENTICATE => {
                self.greeting(cell, around).map(|()| None)
            }
            Command::NETINFO => self.netinfo(&cell.body, around.now).map(Some),
            // "Implementations MUST ignore" padding and variable cells that they do not know.
            Command::VERSIONS => Err(Refused::Unexpected(cell.command)),
            Command::PADDING | Command::PADDING_NEGOTIATE => self.ignore(),
            command if command.is_variable() => self.ignore(),
            command => Err(Refused::Unexpected(command)),
        }
    }

    fn ignore(&mut self) -> Result<Option<Established>, Refused> {
        self.ignored = self.ignored.saturating_add(1);
        Ok(None)
    }

    fn versions(&mut self, cell: &Cell, now: u64) -> Result<(), Refused> {
        if cell.command != Command::VERSIONS {
            return Err(Refused::Unexpected(cell.command));
        }
        let common = Versions::parse(&cell.body)?.common(&VERSIONS);
        self.version = Some(common.ok_or(Refused::Versions)?);
        match &self.side {
            Side::Initiator(_) => self.initiator_versions(),
            Side::Responder(_) => self.responder_versions(now)?,
        }
        Ok(())
    }

    fn greeting(&mut self, cell: &Cell, around: Around<'_>) -> Result<(), Refused> {
        match &self.side {
            Side::Initiator(_) => self.initiator_greeting(cell, around),
            Side::Responder(_) => self.responder_greeting(cell, around),
        }
    }

    fn netinfo(&mut self, body: &[u8], now: u64) -> Result<Established, Refused> {
        let complete = match &self.side {
            Side::Initiator(step) => step.is_complete(),
            Side::Responder(_) => true,
        };
        if !complete {
            return Err(Refused::Unexpected(Command::NETINFO));
        }
        let netinfo = Netinfo::parse(body)?;
        let told = (netinfo.time != 0).then(|| i64::from(netinfo.time));
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        Ok(Established {
            version: self.version.unwrap_or_default(),
            peer: self.peer,
            theirs: netinfo.mine,
            ours: netinfo.other,
            ahead: told.map(|time| time.saturating_sub(now)),
            ignored: self.ignored,
        })
    }

    /// What came behind NETINFO, and all that is still to come.
    pub fn into_reader(self) -> Reader {
        self.reader
    }

    fn send_versions(&mut self) {
        let versions = Versions(VERSIONS.to_vec());
        // It fits: no cell of ours is longer than its length field says.
        drop(self.send(Command::VERSIONS, |out| versions.write(out)));
    }

    fn send_netinfo(&mut self, now: u64) -> Result<(), Refused> {
        let client = self.us.identity.is_none();
        let netinfo = Netinfo {
            // "Clients SHOULD send 0 as their timestamp, to avoid fingerprinting."
            time: if client {
                0
            } else {
                u32::try_from(now).unwrap_or(u32::MAX)
            },
            other: self.binding.remote,
            mine: self.us.addresses.clone(),
        };
        self.send(Command::NETINFO, |out| netinfo.write(out))
    }

    fn send(&mut self, command: Command, write: impl FnOnce(&mut BytesMut)) -> Result<(), Refused> {
        let cell = Cell::new(CircuitId::CHANNEL, command, write)?;
        let start = self.out.len();
        cell::write(&cell, &mut self.out)?;
        self.sent.add(self.out.get(start..).unwrap_or_default());
        Ok(())
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Established {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Established")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Binding")
    }
}

impl fmt::Debug for Around<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Around")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

// The initiator's part: it checks who the responder is, and says who it is itself if it is a relay.

/// What is to come next.
#[derive(Clone, Copy, Debug)]
enum InitiatorStep {
    /// VERSIONS.
    Versions { expected: Option<[u8; 32]> },
    /// CERTS.
    Certs { expected: Option<[u8; 32]> },
    /// AUTH_CHALLENGE.
    Challenge,
    /// NETINFO; ours is sent.
    Netinfo,
}

impl InitiatorStep {
    const fn is_complete(self) -> bool {
        matches!(self, Self::Netinfo)
    }
}

impl Handshake {
    fn initiator_versions(&mut self) {
        if let Side::Initiator(step) = &mut self.side
            && let InitiatorStep::Versions { expected } = *step
        {
            *step = InitiatorStep::Certs { expected };
        }
    }

    fn initiator_greeting(&mut self, cell: &Cell, around: Around<'_>) -> Result<(), Refused> {
        let Side::Initiator(step) = self.side else {
            return Err(Refused::Unexpected(cell.command));
        };
        let next = match (step, cell.command) {
            (InitiatorStep::Certs { expected }, Command::CERTS) => {
                self.responder_certs(&cell.body, expected, around.now)?;
                InitiatorStep::Challenge
            }
            (InitiatorStep::Challenge, Command::AUTH_CHALLENGE) => {
                self.answer(&cell.body, around)?;
                InitiatorStep::Netinfo
            }
            (_, command) => return Err(Refused::Unexpected(command)),
        };
        self.side = Side::Initiator(next);
        Ok(())
    }

    fn responder_certs(
        &mut self,
        body: &[u8],
        expected: Option<[u8; 32]>,
        now: u64,
    ) -> Result<(), Refused> {
        let certs = Certs::parse(body)?;
        let certificate = &self.binding.certificate;
        let peer = verify_responder(&certs, certificate, expected.as_ref(), now)
            .map_err(Refused::Identity)?;
        self.is_not_us(&peer)?;
        self.peer = Some(peer);
        Ok(())
    }

    /// A client sends NETINFO alone, a relay proves itself first.
    fn answer(&mut self, body: &[u8], around: Around<'_>) -> Result<(), Refused> {
        let challenge = AuthChallenge::parse(body)?;
        if let Some(identity) = self.us.identity.clone() {
            if !challenge
                .methods
                .contains(&AuthType::ED25519_SHA256_RFC5705)
            {
                return Err(Refused::NoMethod);
            }
            self.authenticate(&identity, around)?;
        }
        self.send_netinfo(around.now)
    }

    fn authenticate(
        &mut self,
        identity: &RelayIdentity,
        around: Around<'_>,
    ) -> Result<(), Refused> {
        let responder = self
            .peer
            .ok_or(Refused::Unexpected(Command::AUTH_CHALLENGE))?;
        let certs = identity.initiator_certs(around.now);
        let certs = certs.iter().map(|(kind, cert)| (*kind, cert.as_slice()));
        let certs = Certs(certs.collect());
        self.send(Command::CERTS, |out| certs.write(out))?;
        let proof = Proof {
            responder_log: self.received.so_far(),
            initiator_log: self.sent.so_far(),
            certificate: self.binding.certificate,
            exporter: around.export(&identity.peer())?,
        };
        let authentication = identity.authenticate(&responder, &proof);
        let authentication = authentication.map_err(|_| Refused::Own("proof"))?;
        let authenticate = Authenticate {
            method: AuthType::ED25519_SHA256_RFC5705,
            authentication: &authentication,
        };
        self.send(Command::AUTHENTICATE, |out| authenticate.write(out))
    }
}

impl Around<'_> {
    fn export(self, initiator: &PeerId) -> Result<[u8; 32], Refused> {
        let context = initiator.exporter_context();
        (self.exporter)(EXPORTER_LABEL, &context).ok_or(Refused::Own("exporter"))
    }
}

// The responder's part: it says who it is before it knows anything of the initiator, and then checks what that one
// says.

/// What may come next. NETINFO may always: who has not proven anything by then is a client.
enum ResponderStep {
    /// VERSIONS.
    Versions,
    /// CERTS.
    Certs,
    /// AUTHENTICATE.
    Authenticate(Box<Initiator>),
    /// NETINFO alone.
    Netinfo,
}

impl Handshake {
    fn responder_versions(&mut self, now: u64) -> Result<(), Refused> {
        self.send_versions();
        let identity = self.us.identity.clone();
        let identity = identity.ok_or(Refused::Own("identity"))?;
        let certs = identity.responder_certs(&self.binding.certificate, now);
        let certs = certs.iter().map(|(kind, cert)| (*kind, cert.as_slice()));
        let certs = Certs(certs.collect());
        self.send(Command::CERTS, |out| certs.write(out))?;
        self.challenge()?;
        self.side = Side::Responder(ResponderStep::Certs);
        self.send_netinfo(now)
    }

    fn challenge(&mut self) -> Result<(), Refused> {
        let mut challenge = [0; 32];
        let filled = SystemRandom::new().fill(&mut challenge);
        filled.map_err(|_| Refused::Own("random numbers"))?;
        let challenge = AuthChallenge {
            challenge,
            methods: vec![AuthType::ED25519_SHA256_RFC5705],
        };
        self.send(Command::AUTH_CHALLENGE, |out| challenge.write(out))?;
        // What follows is not in the log that the initiator signs.
        self.challenged = Some(self.sent.so_far());
        Ok(())
    }

    fn responder_greeting(&mut self, cell: &Cell, around: Around<'_>) -> Result<(), Refused> {
        let Side::Responder(step) = &self.side else {
            return Err(Refused::Unexpected(cell.command));
        };
        let next = match (step, cell.command) {
            (ResponderStep::Certs, Command::CERTS) => {
                let certs = Certs::parse(&cell.body)?;
                let initiator = verify_initiator(&certs, around.now).map_err(Refused::Identity)?;
                self.is_not_us(&initiator.peer)?;
                ResponderStep::Authenticate(Box::new(initiator))
            }
            (ResponderStep::Authenticate(initiator), Command::AUTHENTICATE) => {
                self.check(&cell.body, initiator, around)?;
                self.peer = Some(initiator.peer);
                ResponderStep::Netinfo
            }
            (_, command) => return Err(Refused::Unexpected(command)),
        };
        self.side = Side::Responder(next);
        Ok(())
    }

    fn check(&self, body: &[u8], initiator: &Initiator, around: Around<'_>) -> Result<(), Refused> {
        let authenticate = Authenticate::parse(body)?;
        if authenticate.method != AuthType::ED25519_SHA256_RFC5705 {
            return Err(Refused::Unexpected(Command::AUTHENTICATE));
        }
        let identity = self.us.identity.as_ref().ok_or(Refused::Own("identity"))?;
        let proof = Proof {
            responder_log: self.challenged.ok_or(Refused::Own("log"))?,
            initiator_log: self.introduced,
            certificate: self.binding.certificate,
            exporter: around.export(&initiator.peer)?,
        };
        let authentication = authenticate.authentication;
        check_authentication(authentication, initiator, &identity.peer(), &proof)
            .map_err(Refused::Identity)
    }

    /// A relay that dials itself would carry a circuit in a ring.
    fn is_not_us(&self, peer: &PeerId) -> Result<(), Refused> {
        let us = self.us.identity.as_ref().map(|identity| identity.peer());
        match us {
            Some(us) if us.ed25519 == peer.ed25519 => Err(Refused::Ourselves),
            _ => Ok(()),
        }
    }
}

// A running hash of all that one end sent: what an initiator signs (SLOG, CLOG). tor-spec: "Link authentication type
// 3: Ed25519-SHA256-RFC5705".

/// SHA-256 of what was added so far.
#[derive(Clone)]
struct Log(Context);

impl Log {
    fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash now; more may be added.
    fn so_far(&self) -> [u8; 32] {
        let hash = self.0.clone().finish();
        let mut bytes = [0; 32];
        let pairs = bytes.iter_mut().zip(hash.as_ref());
        pairs.for_each(|(to, from)| *to = *from);
        bytes
    }
}
