//! Tor's cells and what stands in them: the frame on a channel, the link handshake, circuits, relay messages and certificates.
//! tor-spec: "Cell Packet format", for link protocol 4 and later (circuit ids of four bytes).

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

macro_rules! numbers {
    ($(#[$doc:meta])* pub struct $type:ident($number:ty) { $($(#[$about:meta])* $name:ident = $value:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(pub $number);

        impl $type {
            $($(#[$about])* pub const $name: Self = Self($value);)+

            /// Those that the specification lists, with their names there.
            pub const KNOWN: &'static [(Self, &'static str)] = &[$((Self::$name, stringify!($name))),+];

            /// Its name in the specification, if it has one.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{}({})", stringify!($type), self.0),
                }
            }
        }
    };
}

pub mod cert;
pub mod circuit;
pub mod conflux;
pub mod datagram;
pub mod handshake;
pub mod onion_service;
pub mod padding;
pub mod relay;

use std::fmt;

use bytes::{Buf, BufMut, BytesMut};

/// A cell of fixed length on the wire, in bytes: circuit id, command and body.
pub const LEN: usize = 514;

/// The body of a cell of fixed length, in bytes (Tor's PAYLOAD_LEN).
pub const BODY: usize = 509;

/// What a relay message in one cell carries at most, in bytes.
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
    /// The stream of the circuit that it is for, where this end knows. It is never written: on the wire a relay in the middle is not told.
    pub stream: relay::StreamId,
    /// [`BODY`] bytes, or any number where the command is of variable length.
    pub body: BytesMut,
}

/// What was not as the specification has it; nothing of the bytes themselves. The peer broke the protocol, or the writer is wrong.
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
            stream: relay::StreamId::CIRCUIT,
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
    /// A VERSIONS cell has two bytes of circuit id: it is the first on its channel.
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

/// What stands before a cell's body: three to seven bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    bytes: [u8; 7],
    length: usize,
}

impl Head {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.length.saturating_add(bytes.len());
        if let Some(room) = self.bytes.get_mut(self.length..end) {
            room.copy_from_slice(bytes);
            self.length = end;
        }
    }
}

impl AsRef<[u8]> for Head {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Contents stay out of every log.
impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cell")
            .field("circuit", &self.circuit.0)
            .field("command", &self.command)
            .field("bytes", &self.body.len())
            .finish()
    }
}

// Cuts what a channel brings into cells, without copying their bodies.
// tor-spec: "Cell Packet format".

/// The largest cell of variable length that is taken by default, in bytes: a CERTS cell has about 2,000.
pub const LARGEST_VARIABLE: usize = 16_384;

/// Cuts bytes into cells. Only a cell that came in pieces is copied, at most one for each [`push`](Self::push);
/// so it holds one cell besides what was pushed and not taken yet.
#[derive(Debug)]
pub struct Reader {
    input: BytesMut,
    /// The beginning of a cell whose rest has not come.
    begun: BytesMut,
    wide: bool,
    largest: usize,
    head: (usize, [u8; 7]),
}

/// What a cell's head says.
#[derive(Clone, Copy)]
struct Frame {
    circuit: CircuitId,
    command: Command,
    head: usize,
    body: usize,
}

impl Frame {
    fn whole(&self) -> usize {
        self.head.saturating_add(self.body)
    }
}

impl Reader {
    /// For a new channel: circuit ids have two bytes up to and including the first VERSIONS cell, four after it.
    /// `largest` bounds the body of a cell of variable length.
    pub fn new(largest: usize) -> Self {
        Self {
            input: BytesMut::new(),
            begun: BytesMut::new(),
            wide: false,
            largest,
            head: (0, [0; 7]),
        }
    }

    /// For bytes behind the VERSIONS cell, or a stream that has none.
    pub fn wide(largest: usize) -> Self {
        Self {
            wide: true,
            ..Self::new(largest)
        }
    }

    /// Takes what has been read. Take all cells before the next push: else this copies.
    pub fn push(&mut self, bytes: BytesMut) {
        if self.input.is_empty() {
            self.input = bytes;
        } else {
            self.input.unsplit(bytes);
        }
    }

    /// The next cell. `None` when more is needed.
    ///
    /// # Errors
    /// [`Malformed`] for a cell that is larger than allowed, ever after: the channel is of no more use.
    #[expect(
        clippy::should_implement_trait,
        reason = "None is not the end: more may be pushed"
    )]
    pub fn next(&mut self) -> Result<Option<Cell>, Malformed> {
        if !self.begun.is_empty() {
            return self.finish_begun();
        }
        let Some(frame) = self.frame(&self.input)? else {
            self.begin();
            return Ok(None);
        };
        if self.input.len() < frame.whole() {
            self.begin();
            return Ok(None);
        }
        let bytes = self.input.split_to(frame.whole());
        Ok(Some(self.cell(frame, bytes)))
    }

    /// Whether the channel may end here, and not inside a cell.
    pub fn is_between_cells(&self) -> bool {
        self.pending() == 0
    }

    /// Bytes that were pushed and are not handed out yet.
    pub fn pending(&self) -> usize {
        self.begun.len().saturating_add(self.input.len())
    }

    /// The bytes before the body of the last cell, as they came: hashes of the link handshake are over whole cells.
    pub fn head(&self) -> &[u8] {
        self.head.1.get(..self.head.0).unwrap_or_default()
    }

    fn finish_begun(&mut self) -> Result<Option<Cell>, Malformed> {
        loop {
            let wanted = match self.frame(&self.begun)? {
                Some(frame) if self.begun.len() == frame.whole() => {
                    let bytes = std::mem::take(&mut self.begun);
                    return Ok(Some(self.cell(frame, bytes)));
                }
                Some(frame) => frame.whole(),
                None => self.begun.len().saturating_add(1),
            };
            if self.input.is_empty() {
                return Ok(None);
            }
            let missing = wanted.saturating_sub(self.begun.len());
            let piece = self.input.split_to(missing.min(self.input.len()));
            self.begun.extend_from_slice(&piece);
        }
    }

    /// Copies the beginning of a cell away, so that the rest of the buffer can be used again.
    fn begin(&mut self) {
        if !self.input.is_empty() {
            self.begun = BytesMut::with_capacity(LEN.max(self.input.len()));
            self.begun.extend_from_slice(&self.input);
        }
        self.input = BytesMut::new();
    }

    fn cell(&mut self, frame: Frame, mut bytes: BytesMut) -> Cell {
        self.head.0 = frame.head;
        let kept = self.head.1.iter_mut().zip(&bytes);
        kept.take(frame.head).for_each(|(to, from)| *to = *from);
        self.wide |= frame.command == Command::VERSIONS;
        bytes.advance(frame.head);
        Cell {
            circuit: frame.circuit,
            command: frame.command,
            stream: relay::StreamId::CIRCUIT,
            body: bytes,
        }
    }

    /// What the cell at the front of `bytes` is, once its head is there.
    fn frame(&self, bytes: &[u8]) -> Result<Option<Frame>, Malformed> {
        let mut front = bytes;
        let circuit = if self.wide {
            front.try_get_u32()
        } else {
            front.try_get_u16().map(u32::from)
        };
        let (Ok(circuit), Ok(command)) = (circuit, front.try_get_u8()) else {
            return Ok(None);
        };
        let body = if Command(command).is_variable() {
            front.try_get_u16().map(usize::from)
        } else {
            Ok(BODY)
        };
        let Ok(body) = body else { return Ok(None) };
        if Command(command).is_variable() && body > self.largest {
            return Err(Malformed("length of a cell"));
        }
        Ok(Some(Frame {
            circuit: CircuitId(circuit),
            command: Command(command),
            head: bytes.len().saturating_sub(front.len()),
            body,
        }))
    }
}

// Takes bytes off the front of a body.

/// What is left to read, and what it is: that is what an error says.
#[derive(Clone, Debug)]
struct Input<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Input<'a> {
    const fn new(rest: &'a [u8], what: &'static str) -> Self {
        Self { rest, what }
    }

    /// The error for this input.
    const fn malformed(&self) -> Malformed {
        Malformed(self.what)
    }

    const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(Malformed(self.what))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(Malformed(self.what))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// A length of one byte, and as many bytes.
    fn counted(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u8()?;
        self.take(length.into())
    }

    /// A length of two bytes, and as many bytes.
    fn counted_wide(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u16()?;
        self.take(length.into())
    }

    /// Bytes up to a zero, which is taken too.
    fn until_zero(&mut self) -> Result<&'a [u8], Malformed> {
        let at = self.rest.iter().position(|byte| *byte == 0);
        let text = self.take(at.ok_or(Malformed(self.what))?)?;
        self.u8().map(|_| text)
    }
}

/// The length of a list or a value as one byte; what does not fit is cut by the caller's `take`.
fn short(length: usize) -> u8 {
    u8::try_from(length).unwrap_or(u8::MAX)
}

/// The length of a list or a value as two bytes; what does not fit is cut by the caller's `take`.
fn wide(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests;
