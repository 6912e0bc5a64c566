//! The link handshake without I/O and without a clock, both ends: octets in, octets out, and at the end who the peer is.
//! `shake` drives it over a TLS stream and over QUIC's control stream alike.
//! tor-spec: "Negotiating and initializing connections" (link protocols 4 and 5).
//!
//! ```text
//! initiator  VERSIONS                                         [CERTS AUTHENTICATE] NETINFO
//! responder            VERSIONS CERTS AUTH_CHALLENGE NETINFO
//! ```
//! Calling order: [`Handshake::initiator`] or [`Handshake::responder`]; then, until it gives [`Established`] or an error: send what
//! [`Handshake::transmit`] gives, feed what comes to [`Handshake::receive`].

mod initiator;
mod log;
mod responder;
#[cfg(test)]
mod tests;

use std::{fmt, net::IpAddr, sync::Arc};

use bytes::BytesMut;
use hoplite_crypto::onion::identity::{PeerId, RelayIdentity, Why};
use hoplite_wire::cell::{
    self, Cell, CircuitId, Command, Malformed, Reader,
    handshake::{Netinfo, Versions},
};

use self::log::Log;
use super::Config;

/// What we speak. Versions before 4 have short circuit ids.
const VERSIONS: [u16; 2] = [4, 5];

/// A TLS exporter (RFC 5705): label and context in, 32 octets out.
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
    Initiator(initiator::Step),
    Responder(responder::Step),
}

impl Handshake {
    /// For the end that connected. `expected` is the Ed25519 identity that the responder must have, if that is known.
    pub fn initiator(
        us: Us,
        expected: Option<[u8; 32]>,
        binding: Binding,
        config: &Config,
    ) -> Self {
        let step = initiator::Step::Versions { expected };
        let mut handshake = Self::new(Side::Initiator(step), us, binding, config);
        handshake.send_versions();
        handshake
    }

    /// For the end that was connected to; `us` has an identity.
    pub fn responder(us: Us, binding: Binding, config: &Config) -> Self {
        let step = responder::Step::Versions;
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
        Some(self.out.split()).filter(|octets| !octets.is_empty())
    }

    /// Takes what came. What comes behind NETINFO stays for [`Self::into_reader`].
    ///
    /// # Errors
    /// [`Refused`]: the connection is to be closed. Nothing is told to the peer.
    pub fn receive(
        &mut self,
        octets: BytesMut,
        around: Around<'_>,
    ) -> Result<Option<Established>, Refused> {
        self.reader.push(octets);
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
