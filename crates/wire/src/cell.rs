//! Tor's cells and what stands in them: the frame on a channel, the link handshake, circuits, relay messages and certificates.
//! `link::channel` reads and writes cells and shakes hands with them, `crypto::onion` signs and checks, `onion` speaks relay messages.
//! tor-spec: "Cell Packet format", for link protocol 4 and later (circuit ids of four octets).
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use std::fmt;

use bytes::{BufMut, BytesMut};

#[macro_use]
mod numbers;
mod input;
mod reader;

pub mod cert;
pub mod circuit;
pub mod handshake;
pub mod relay;

pub use reader::{LARGEST_VARIABLE, Reader};

/// A cell of fixed length on the wire, in octets: circuit id, command and body.
pub const LEN: usize = 514;
/// The body of a cell of fixed length, in octets (Tor's PAYLOAD_LEN).
pub const BODY: usize = 509;
/// What a relay message in one cell carries at most, in octets.
pub const DATA: usize = 498;

/// The circuit that a cell belongs to, on one channel. 0 belongs to none: the channel itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CircuitId(u32);

numbers! {
    /// What a cell is for. tor-spec: "The 'Command' field".
    pub struct Command(u8) {
        /// Keeps a channel alive, or hides what it carries.
        PADDING = 0,
        /// Makes a circuit by the first handshake (TAP); not spoken here.
        CREATE = 1,
        /// The answer to CREATE.
        CREATED = 2,
        /// Carries an encrypted relay message.
        RELAY = 3,
        /// Ends a circuit.
        DESTROY = 4,
        /// Makes a first hop without public keys; not spoken here.
        CREATE_FAST = 5,
        /// The answer to CREATE_FAST.
        CREATED_FAST = 6,
        /// Which link protocols somebody speaks; of variable length, as the only one below 128.
        VERSIONS = 7,
        /// Time and addresses; ends the link handshake.
        NETINFO = 8,
        /// RELAY that may carry EXTEND2; eight of them a circuit.
        RELAY_EARLY = 9,
        /// Makes a circuit.
        CREATE2 = 10,
        /// The answer to CREATE2.
        CREATED2 = 11,
        /// Asks for padding on the channel, or for none.
        PADDING_NEGOTIATE = 12,
        /// Padding of any length.
        VPADDING = 128,
        /// The certificates of whoever sends it.
        CERTS = 129,
        /// What an initiator that wants to be known has to sign.
        AUTH_CHALLENGE = 130,
        /// The answer to AUTH_CHALLENGE.
        AUTHENTICATE = 131,
        /// Reserved.
        AUTHORIZE = 132,
    }
}

/// A cell. Its body is split off the buffer that it was read into: it is encrypted in place and never copied on the way.
#[derive(Clone, PartialEq, Eq)]
pub struct Cell {
    /// Its circuit.
    pub circuit: CircuitId,
    /// What it is for.
    pub command: Command,
    /// [`BODY`] octets, or any number where the command is of variable length.
    pub body: BytesMut,
}

/// What was not as the specification has it; nothing of the octets themselves. The peer broke the protocol, or the writer is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub struct Malformed(pub &'static str);

impl CircuitId {
    /// The channel itself.
    pub const CHANNEL: Self = Self(0);

    /// The id of this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number, as it stands on the wire.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Whether no circuit is meant.
    pub const fn is_channel(self) -> bool {
        self.0 == 0
    }

    /// Whether it is for the initiator of a channel to choose: "whichever node initiated the connection MUST set its MSB to 1".
    pub const fn is_initiators(self) -> bool {
        self.0 >> 31 == 1
    }
}

impl Command {
    /// Whether a length stands before the body. "7 (VERSIONS), or greater than or equal to 128."
    pub const fn is_variable(self) -> bool {
        self.0 == Self::VERSIONS.0 || self.0 >= 128
    }
}

impl Cell {
    /// A cell whose body is what `write` writes, filled up with zeros to the fixed length.
    ///
    /// # Errors
    /// [`Malformed`] if the body is too long.
    pub fn new(
        circuit: CircuitId,
        command: Command,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<Self, Malformed> {
        let mut body = BytesMut::new();
        if !command.is_variable() {
            body.reserve(BODY);
        }
        write(&mut body);
        if !command.is_variable() && body.len() < BODY {
            body.resize(BODY, 0);
        }
        let cell = Self {
            circuit,
            command,
            body,
        };
        cell.head().map(|_| cell)
    }

    /// The body of a cell of fixed length, to encrypt it or to read and write a relay message.
    ///
    /// # Errors
    /// [`Malformed`] if it has another length.
    pub fn fixed(&mut self) -> Result<&mut [u8; BODY], Malformed> {
        self.body
            .as_mut()
            .try_into()
            .map_err(|_| Malformed("length of a cell"))
    }

    /// What stands before the body on the wire, for those that write both at once without copying.
    /// A VERSIONS cell has two octets of circuit id: it is the first on its channel.
    ///
    /// # Errors
    /// [`Malformed`] if the body does not fit the command.
    pub fn head(&self) -> Result<Head, Malformed> {
        let mut head = Head::default();
        match self.command {
            Command::VERSIONS => head.put(&[0, 0]),
            _ => head.put(&self.circuit.0.to_be_bytes()),
        }
        head.put(&[self.command.0]);
        if self.command.is_variable() {
            let length =
                u16::try_from(self.body.len()).map_err(|_| Malformed("length of a cell"))?;
            head.put(&length.to_be_bytes());
        } else if self.body.len() != BODY {
            return Err(Malformed("length of a cell"));
        }
        Ok(head)
    }

    /// Gives the body an allocation of its own. A cell that waits long would else keep the whole buffer that it came in.
    pub fn detach(&mut self) {
        self.body = BytesMut::from(self.body.as_ref());
    }
}

/// Writes a cell behind `out`.
///
/// # Errors
/// [`Malformed`] if the body does not fit the command; then nothing is written.
pub fn write(cell: &Cell, out: &mut BytesMut) -> Result<(), Malformed> {
    let head = cell.head()?;
    out.reserve(head.as_ref().len().saturating_add(cell.body.len()));
    out.put_slice(head.as_ref());
    out.put_slice(&cell.body);
    Ok(())
}

/// What stands before a cell's body: three to seven octets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    octets: [u8; 7],
    length: usize,
}

impl Head {
    fn put(&mut self, octets: &[u8]) {
        let room = self.octets.iter_mut().skip(self.length);
        room.zip(octets).for_each(|(to, from)| *to = *from);
        self.length = self.length.saturating_add(octets.len());
    }
}

impl AsRef<[u8]> for Head {
    fn as_ref(&self) -> &[u8] {
        self.octets.get(..self.length).unwrap_or_default()
    }
}

/// Contents stay out of every log.
impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cell")
            .field("circuit", &self.circuit.0)
            .field("command", &self.command)
            .field("octets", &self.body.len())
            .finish()
    }
}

#[cfg(test)]
mod tests;
