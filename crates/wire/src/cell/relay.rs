//! Relay messages: what client and relay tell each other inside a circuit, in the body of a RELAY cell once it is decrypted.
//! tor-spec: "Relay cells"; proposals 324 §4 (XON, XOFF) and 359 (version 1 of the format).

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

use bytes::BufMut;

pub use super::circuit::{Create2, Created2, Extend2, Extended2, LinkSpecifier, Truncated};
pub use super::datagram::{ConnectUdp, ConnectedUdp};
use super::{BODY, Input, Malformed, short};
use crate::Target;

/// Where "recognized" stands in a body of version 0: two bytes, zero when the message is for whoever reads it.
pub const RECOGNIZED_AT: usize = 1;

/// Where the digest stands in a body of version 0: four bytes, taken as zero when it is computed.
pub const DIGEST_AT: usize = 5;

numbers! {
    /// A relay command: what a relay message is. tor-spec: "The relay commands"; later ones from the specifications that they name.
    /// Three functions `handle_message` of `onion` act on it: a relay's in `relay::driver`, a client's in `client::circuit`, and for streams at
    /// either end that of `endpoint::Endpoint`.
    pub struct RelayCommand(u8) {
        /// Opens a stream to a target.
        BEGIN = 1,
        /// Bytes of a stream.
        DATA = 2,
        /// Ends a stream.
        END = 3,
        /// The stream is open.
        CONNECTED = 4,
        /// More may be sent, on a circuit or a stream.
        SENDME = 5,
        /// Lengthens the circuit by the first handshake; not spoken here.
        EXTEND = 6,
        /// Its answer.
        EXTENDED = 7,
        /// Cuts the circuit off behind this relay.
        TRUNCATE = 8,
        /// The circuit ends here now.
        TRUNCATED = 9,
        /// Padding over the circuit.
        DROP = 10,
        /// Asks for a name's addresses.
        RESOLVE = 11,
        /// Its answer.
        RESOLVED = 12,
        /// Opens a stream to the relay's directory.
        BEGIN_DIR = 13,
        /// Lengthens the circuit.
        EXTEND2 = 14,
        /// Its answer.
        EXTENDED2 = 15,
        /// Opens a UDP stream to a target (proposal 339).
        CONNECT_UDP = 16,
        /// The UDP stream is open.
        CONNECTED_UDP = 17,
        /// A datagram of a UDP stream, or a part of one.
        DATAGRAM = 18,
        /// The circuit is a leg of a Conflux set (proposal 329; [`super::conflux`]).
        CONFLUX_LINK = 19,
        /// Its answer.
        CONFLUX_LINKED = 20,
        /// The answer to that.
        CONFLUX_LINKED_ACK = 21,
        /// What is sent next comes on this leg.
        CONFLUX_SWITCH = 22,
        /// Onion services (rend-spec).
        ESTABLISH_INTRO = 32,
        /// Onion services.
        ESTABLISH_RENDEZVOUS = 33,
        /// Onion services.
        INTRODUCE1 = 34,
        /// Onion services.
        INTRODUCE2 = 35,
        /// Onion services.
        RENDEZVOUS1 = 36,
        /// Onion services.
        RENDEZVOUS2 = 37,
        /// Onion services.
        INTRO_ESTABLISHED = 38,
        /// Onion services.
        RENDEZVOUS_ESTABLISHED = 39,
        /// Onion services.
        INTRODUCE_ACK = 40,
        /// Padding machines (padding-spec).
        PADDING_NEGOTIATE = 41,
        /// Padding machines.
        PADDING_NEGOTIATED = 42,
        /// The stream is to pause.
        XOFF = 43,
        /// The stream may go on.
        XON = 44,
    }
}

/// A stream of a circuit. 0 is the circuit itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u16);

impl StreamId {
    /// The circuit itself.
    pub const CIRCUIT: Self = Self(0);
}

impl RelayCommand {
    /// Whether it is about a stream wherever there is congestion control: a stream has no SENDME of its own there.
    const fn names_stream(self) -> bool {
        matches!(
            self,
            Self::BEGIN
                | Self::BEGIN_DIR
                | Self::CONNECT_UDP
                | Self::CONNECTED
                | Self::CONNECTED_UDP
                | Self::DATA
                | Self::DATAGRAM
                | Self::END
                | Self::RESOLVE
                | Self::RESOLVED
                | Self::XOFF
                | Self::XON
        )
    }
}

/// How relay messages stand in the bodies of cells. It goes with the encryption of a hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// With tor1: command, recognized (2 bytes), stream (2), digest (4), length (2), data.
    #[default]
    V0,
    /// With CGO: tag (16 bytes), command, length (2), stream (2) where the command is about one, data.
    V1,
}

/// Bytes before the command in version 1: the tag, which the encryption sets.
const TAG: usize = 16;

impl Format {
    /// Bytes before the data of a message with this command.
    pub const fn header(self, command: RelayCommand) -> usize {
        match self {
            Self::V0 => 11,
            Self::V1 if command.names_stream() => TAG + 5,
            Self::V1 => TAG + 3,
        }
    }

    /// Bytes of data that a message with this command may have.
    pub const fn most(self, command: RelayCommand) -> usize {
        BODY.saturating_sub(self.header(command))
    }
}

/// What stands before the data, but for what the encryption sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Where its fields are.
    pub format: Format,
    /// What the message is.
    pub command: RelayCommand,
    /// The stream that it is about.
    pub stream: StreamId,
    /// How many bytes of the body are data.
    pub length: u16,
}

impl Header {
    /// What stands at the front of a decrypted body.
    ///
    /// # Errors
    /// [`Malformed`] in version 1 if the command is about a stream and names none.
    pub fn read(format: Format, body: &[u8; BODY]) -> Result<Self, Malformed> {
        let number = |high, low| u16::from_be_bytes([high, low]);
        let (command, stream, length) = match (format, body) {
            (Format::V0, [command, _, _, s0, s1, _, _, _, _, l0, l1, ..]) => {
                (command, number(*s0, *s1), number(*l0, *l1))
            }
            (
                Format::V1,
                [
                    _,
                    _,
                    _,
                    _,
                    _,
                    _,
                    _,
                    _,
                    _,
                    _,
                    _,
                    _,
                    _,
                    _,
                    _,
                    _,
                    command,
                    l0,
                    l1,
                    s0,
                    s1,
                    ..,
                ],
            ) => {
                let names_stream = RelayCommand(*command).names_stream();
                let stream = if names_stream { number(*s0, *s1) } else { 0 };
                (command, stream, number(*l0, *l1))
            }
        };
        let header = Self {
            format,
            command: RelayCommand(*command),
            stream: StreamId(stream),
            length,
        };
        header.check_stream().map(|()| header)
    }

    /// Writes it at the front of a body, with zeros where the encryption sets something.
    ///
    /// # Errors
    /// [`Malformed`] if there is more data than fits, or in version 1 if the command is about a stream and names none, or the other way round; then
    /// nothing is written.
    pub fn write(&self, body: &mut [u8; BODY]) -> Result<(), Malformed> {
        self.check_stream()?;
        self.check_length()?;
        let command = [self.command.0];
        let [stream, length] = [self.stream.0, self.length].map(u16::to_be_bytes);
        let fields: [&[u8]; 5] = match self.format {
            Format::V0 => [&command, &[0; 2], &stream, &[0; 4], &length],
            Format::V1 if self.command.names_stream() => {
                [&[0; TAG], &command, &length, &stream, &[]]
            }
            Format::V1 => [&[0; TAG], &command, &length, &[], &[]],
        };
        let bytes = fields.into_iter().flatten();
        let pairs = body.iter_mut().zip(bytes);
        pairs.for_each(|(to, from)| *to = *from);
        Ok(())
    }

    /// The data behind this header.
    ///
    /// # Errors
    /// [`Malformed`] if it says that there are more than fit.
    pub fn data<'a>(&self, body: &'a [u8; BODY]) -> Result<&'a [u8], Malformed> {
        self.check_length()?;
        let (_, data) = body.split_at_checked(self.len()).unwrap_or_default();
        data.get(..self.length.into()).ok_or(LENGTH)
    }

    /// How many bytes it takes itself.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        self.format.header(self.command)
    }

    fn check_length(&self) -> Result<(), Malformed> {
        let fits = usize::from(self.length) <= self.format.most(self.command);
        fits.then_some(()).ok_or(LENGTH)
    }

    /// Version 0 can say everything; who understands a message says what its stream means.
    fn check_stream(&self) -> Result<(), Malformed> {
        let names_one = self.stream != StreamId::CIRCUIT;
        let right = self.format == Format::V0 || names_one == self.command.names_stream();
        right
            .then_some(())
            .ok_or(Malformed("stream of a relay message"))
    }
}

const LENGTH: Malformed = Malformed("length of a relay message");

/// Writes a whole relay message into a body, with zeros where the encryption sets something, and hands out the padding to be filled: "four
/// zero-valued bytes, followed by as many random bytes as will fit". The zeros are written, the random bytes are the caller's: what was there stays.
///
/// # Errors
/// As [`Header::write`]; then nothing is written.
pub fn write<'a>(
    format: Format,
    body: &'a mut [u8; BODY],
    command: RelayCommand,
    stream: StreamId,
    data: &[u8],
) -> Result<&'a mut [u8], Malformed> {
    let header = Header {
        format,
        command,
        stream,
        length: data.len().try_into().map_err(|_| LENGTH)?,
    };
    header.write(body)?;
    let (_, rest) = body.split_at_mut_checked(header.len()).unwrap_or_default();
    let (to, padding) = rest.split_at_mut_checked(data.len()).unwrap_or_default();
    to.copy_from_slice(data);
    let zeros = padding.len().min(4);
    let (zeros, random) = padding.split_at_mut_checked(zeros).unwrap_or_default();
    zeros.fill(0);
    Ok(random)
}

// Any relay message, told by its command.

/// What a relay message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Opens a stream to a target.
    Begin(Begin),
    /// Opens a stream to the relay's directory.
    BeginDir,
    /// Bytes of a stream.
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
    /// Opens a UDP stream to a target.
    ConnectUdp(ConnectUdp),
    /// The UDP stream is open.
    ConnectedUdp(ConnectedUdp),
    /// A datagram, or a part of one.
    Datagram(&'a [u8]),
    /// Padding.
    Drop,
    /// "If the relay command is not understood, the cell must be dropped and ignored."
    Unknown(RelayCommand, &'a [u8]),
}

impl<'a> Message<'a> {
    /// Reads the data of a message.
    ///
    /// # Errors
    /// [`Malformed`] as the message's own type says.
    pub fn parse(command: RelayCommand, data: &'a [u8]) -> Result<Self, Malformed> {
        Ok(match command {
            RelayCommand::BEGIN => Self::Begin(Begin::parse(data)?),
            RelayCommand::BEGIN_DIR => Self::BeginDir,
            RelayCommand::DATA => Self::Data(data),
            RelayCommand::END => Self::End(End::parse(data)),
            RelayCommand::CONNECTED => Self::Connected(Connected::parse(data)?),
            RelayCommand::SENDME => Self::Sendme(Sendme::parse(data)?),
            RelayCommand::XON => Self::Xon(Xon::parse(data)?),
            RelayCommand::XOFF => Self::Xoff(Xoff::parse(data)?),
            RelayCommand::EXTEND2 => Self::Extend2(Extend2::parse(data)?),
            RelayCommand::EXTENDED2 => Self::Extended2(Extended2::parse(data)?),
            RelayCommand::TRUNCATE => Self::Truncate,
            RelayCommand::TRUNCATED => Self::Truncated(Truncated::parse(data)?),
            RelayCommand::RESOLVE => Self::Resolve(Resolve::parse(data)?),
            RelayCommand::RESOLVED => Self::Resolved(Resolved::parse(data)?),
            RelayCommand::CONNECT_UDP => Self::ConnectUdp(ConnectUdp::parse(data)?),
            RelayCommand::CONNECTED_UDP => Self::ConnectedUdp(ConnectedUdp::parse(data)?),
            RelayCommand::DATAGRAM => Self::Datagram(data),
            RelayCommand::DROP => Self::Drop,
            _ => Self::Unknown(command, data),
        })
    }

    /// Its command.
    pub const fn command(&self) -> RelayCommand {
        match self {
            Self::Begin(_) => RelayCommand::BEGIN,
            Self::BeginDir => RelayCommand::BEGIN_DIR,
            Self::Data(_) => RelayCommand::DATA,
            Self::End(_) => RelayCommand::END,
            Self::Connected(_) => RelayCommand::CONNECTED,
            Self::Sendme(_) => RelayCommand::SENDME,
            Self::Xon(_) => RelayCommand::XON,
            Self::Xoff(_) => RelayCommand::XOFF,
            Self::Extend2(_) => RelayCommand::EXTEND2,
            Self::Extended2(_) => RelayCommand::EXTENDED2,
            Self::Truncate => RelayCommand::TRUNCATE,
            Self::Truncated(_) => RelayCommand::TRUNCATED,
            Self::Resolve(_) => RelayCommand::RESOLVE,
            Self::Resolved(_) => RelayCommand::RESOLVED,
            Self::ConnectUdp(_) => RelayCommand::CONNECT_UDP,
            Self::ConnectedUdp(_) => RelayCommand::CONNECTED_UDP,
            Self::Datagram(_) => RelayCommand::DATAGRAM,
            Self::Drop => RelayCommand::DROP,
            Self::Unknown(command, _) => *command,
        }
    }

    /// Writes its data. Whether they fit a cell is told when they are put into one.
    pub fn write(&self, out: &mut impl BufMut) {
        match self {
            Self::Begin(begin) => begin.write(out),
            Self::Data(data) | Self::Datagram(data) | Self::Unknown(_, data) => {
                out.put_slice(data);
            }
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
            Self::ConnectUdp(connect) => connect.write(out),
            Self::ConnectedUdp(connected) => connected.write(out),
            Self::BeginDir | Self::Truncate | Self::Drop => {}
        }
    }
}

// BEGIN: opens a stream to a target. tor-spec: "Opening streams and transferring data".

/// Where a stream is to go, and which addresses will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Where to; in lower case on the wire.
    pub target: Target,
    /// Which addresses will do.
    pub flags: Flags,
}

/// Which addresses of a name will do. Other bits "clients MUST NOT set", "servers MUST ignore".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    /// IPv6 will do.
    pub const IPV6_OKAY: Self = Self(1);
    /// IPv4 will not do.
    pub const IPV4_NOT_OKAY: Self = Self(2);
    /// IPv6 rather than IPv4.
    pub const IPV6_PREFERRED: Self = Self(4);

    /// Whether all of `others` are set.
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// Both.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

impl Begin {
    /// Reads a BEGIN message. Flags that are missing are not set.
    ///
    /// # Errors
    /// [`Malformed`] for what is no target.
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "BEGIN");
        let text = std::str::from_utf8(input.until_zero()?).map_err(|_| input.malformed())?;
        let target = text.parse().map_err(|_| input.malformed())?;
        let flags = Flags(input.u32().unwrap_or(0));
        Ok(Self { target, flags })
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_slice(self.target.to_string().as_bytes());
        out.put_u8(0);
        out.put_u32(self.flags.0);
    }
}

// CONNECTED: a stream is open, and to which address. tor-spec: "Opening streams and transferring data".

/// The address that a stream goes to, with the seconds for which the name may be taken to mean it.
/// There is none for streams to a relay's directory and to an onion service.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Connected(pub Option<(IpAddr, u32)>);

impl Connected {
    /// Reads a CONNECTED message. Nothing but zeros is no address; a missing time is 0.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off, and for an address of another type.
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        if data.iter().all(|byte| *byte == 0) {
            return Ok(Self(None));
        }
        let mut input = Input::new(data, "CONNECTED");
        let v4 = Ipv4Addr::from(input.u32()?);
        if !v4.is_unspecified() {
            return Ok(Self(Some((v4.into(), input.u32().unwrap_or(0)))));
        }
        if input.u8()? != 6 {
            return Err(input.malformed());
        }
        let v6 = IpAddr::from(input.array::<16>()?);
        Ok(Self(Some((v6, input.u32().unwrap_or(0)))))
    }

    /// Writes the message. There is no way to write the IPv4 address 0.0.0.0.
    pub fn write(&self, out: &mut impl BufMut) {
        match self.0 {
            Some((IpAddr::V4(ip), seconds)) => {
                out.put_slice(&ip.octets());
                out.put_u32(seconds);
            }
            Some((IpAddr::V6(ip), seconds)) => {
                out.put_slice(&[0, 0, 0, 0, 6]);
                out.put_slice(&ip.octets());
                out.put_u32(seconds);
            }
            None => {}
        }
    }
}

/// Addresses stay out of every log.
impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Some(_) => "Connected(hidden)",
            None => "Connected",
        })
    }
}

// END: a stream has ended, and why. tor-spec: "Closing streams".

numbers! {
    /// Why a stream ended. tor-spec: "Closing streams".
    pub struct EndReason(u8) {
        /// Any other reason; the only one that a client sends.
        MISC = 1,
        /// The name could not be resolved.
        RESOLVEFAILED = 2,
        /// The target refused.
        CONNECTREFUSED = 3,
        /// The relay does not serve this target.
        EXITPOLICY = 4,
        /// The circuit is being destroyed.
        DESTROY = 5,
        /// The target closed the connection.
        DONE = 6,
        /// The target did not answer in time.
        TIMEOUT = 7,
        /// There is no way to the target.
        NOROUTE = 8,
        /// The relay rests.
        HIBERNATING = 9,
        /// Internal error.
        INTERNAL = 10,
        /// The relay cannot serve more.
        RESOURCELIMIT = 11,
        /// The target reset the connection.
        CONNRESET = 12,
        /// Somebody broke the protocol.
        TORPROTOCOL = 13,
        /// The relay has no directory.
        NOTDIRECTORY = 14,
    }
}

/// Why a stream ended; for [`EndReason::EXITPOLICY`] also the address that is not served and for how many seconds that may be kept in mind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Why.
    pub reason: EndReason,
    /// What is not served.
    pub address: Option<(IpAddr, u32)>,
}

impl End {
    /// An end without an address.
    pub const fn new(reason: EndReason) -> Self {
        Self {
            reason,
            address: None,
        }
    }

    /// Reads an END message. "Implementations SHOULD accept empty RELAY_END messages"; "if the TTL is absent, it should be treated as if it
    /// were 0xffffffff"; "if the address is absent or is the wrong length, the RELAY_END message should be processed anyway".
    pub fn parse(data: &[u8]) -> Self {
        let mut input = Input::new(data, "END");
        let reason = input.u8().map_or(EndReason::MISC, EndReason);
        let address = match (reason, input.rest()) {
            (EndReason::EXITPOLICY, rest) => address(rest),
            _ => None,
        };
        Self { reason, address }
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_u8(self.reason.0);
        let (EndReason::EXITPOLICY, Some((address, seconds))) = (self.reason, self.address) else {
            return;
        };
        match address {
            IpAddr::V4(ip) => out.put_slice(&ip.octets()),
            IpAddr::V6(ip) => out.put_slice(&ip.octets()),
        }
        out.put_u32(seconds);
    }
}

fn address(rest: &[u8]) -> Option<(IpAddr, u32)> {
    let mut input = Input::new(rest, "END");
    let address = match rest.len() {
        4 | 8 => IpAddr::from(input.array::<4>().ok()?),
        16 | 20 => IpAddr::from(input.array::<16>().ok()?),
        _ => return None,
    };
    Some((address, input.u32().unwrap_or(u32::MAX)))
}

/// Addresses stay out of every log.
impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("End").field(&self.reason).finish()
    }
}

// Flow control of circuits and streams. tor-spec: "SENDME Cell Format"; proposal 324 §4: XON and XOFF.

/// SENDME: more may be sent. On a stream it says nothing else, and what it carries is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sendme {
    /// Without a proof.
    V0,
    /// With the tag of the cell that it answers: only whoever has seen that cell knows it.
    V1(SendmeTag),
}

/// What the encryption of a hop makes of each cell for an authenticated SENDME to repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendmeTag {
    /// Of tor1: the running digest after the cell; all of a SHA-1, the first 20 bytes of a SHA3-256.
    Tor1([u8; 20]),
    /// Of CGO: the first bytes of the cell, as its last layer has them.
    Cgo([u8; 16]),
}

impl SendmeTag {
    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Tor1(digest) => digest,
            Self::Cgo(tag) => tag,
        }
    }

    /// More than 20 bytes are cut.
    fn of(bytes: &[u8]) -> Option<Self> {
        match <[u8; 16]>::try_from(bytes) {
            Ok(tag) => Some(Self::Cgo(tag)),
            Err(_) => bytes.first_chunk().copied().map(Self::Tor1),
        }
    }
}

/// XON: the stream may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xon {
    /// What the reader takes, in kilobytes a second; 0 is no limit.
    pub kbps: u32,
}

/// XOFF: the stream is to pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xoff;

impl Sendme {
    /// Reads a SENDME message. Nothing at all is version 0.
    ///
    /// # Errors
    /// [`Malformed`] for another version and for a tag of a length that none has: "the circuit should be torn down".
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "SENDME");
        if input.is_empty() {
            return Ok(Self::V0);
        }
        match input.u8()? {
            0 => Ok(Self::V0),
            1 => {
                let tag = SendmeTag::of(input.counted_wide()?);
                tag.map(Self::V1).ok_or(Malformed("SENDME"))
            }
            _ => Err(input.malformed()),
        }
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        if let Self::V1(tag) = self {
            out.put_slice(&[1, 0, short(tag.as_bytes().len())]);
            out.put_slice(tag.as_bytes());
        }
    }
}

impl Xon {
    /// Reads an XON message.
    ///
    /// # Errors
    /// [`Malformed`] for another version and for what is cut off: "a protocol violation".
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "XON");
        match input.u8()? {
            0 => Ok(Self { kbps: input.u32()? }),
            _ => Err(input.malformed()),
        }
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_u8(0);
        out.put_u32(self.kbps);
    }
}

impl Xoff {
    /// Reads an XOFF message.
    ///
    /// # Errors
    /// [`Malformed`] for another version: "a protocol violation".
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        match Input::new(data, "XOFF").u8()? {
            0 => Ok(Self),
            _ => Err(Malformed("XOFF")),
        }
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_u8(0);
    }
}

// RESOLVE and RESOLVED: a name's addresses, or an address's name. tor-spec: "Remote hostname lookup".

const HOSTNAME: u8 = 0x00;

const IPV4: u8 = 0x04;

const IPV6: u8 = 0x06;

const TRANSIENT: u8 = 0xf0;

const PERMANENT: u8 = 0xf1;

/// What is asked for: a host name, or a name under in-addr.arpa or ip6.arpa. Not checked any further here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Resolve<'a>(pub &'a str);

/// The answers: an error stands alone; IPv4 addresses come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved<'a>(pub Vec<Answer<'a>>);

/// One answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// What it is.
    pub value: Value<'a>,
    /// For how many seconds it may be kept.
    pub seconds: u32,
}

/// What an answer says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// A name: up to 255 bytes, unchecked.
    Name(&'a [u8]),
    /// An address.
    Ip(IpAddr),
    /// An error that may pass.
    Transient,
    /// An error that stays.
    Permanent,
    /// Something else, or an address of a wrong length: not to be looked at.
    Unknown {
        /// Its type.
        kind: u8,
        /// Its value: up to 255 bytes.
        value: &'a [u8],
    },
}

impl<'a> Resolve<'a> {
    /// Reads a RESOLVE message.
    ///
    /// # Errors
    /// [`Malformed`] without an end, without a name, and for one that is no text or too long for any.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "RESOLVE");
        let name = input.until_zero()?;
        let text = std::str::from_utf8(name).map_err(|_| input.malformed())?;
        let fits = (1..=255).contains(&text.len());
        fits.then_some(Self(text)).ok_or(Malformed("RESOLVE"))
    }

    /// Writes the message: the name up to its first zero, if there were one.
    pub fn write(&self, out: &mut impl BufMut) {
        let name = self.0.split('\0').next().unwrap_or_default();
        out.put_slice(name.as_bytes());
        out.put_u8(0);
    }
}

impl<'a> Resolved<'a> {
    /// Reads a RESOLVED message.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off, and for an error beside another answer.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "RESOLVED");
        let mut answers = Vec::new();
        while !input.is_empty() {
            answers.push(Answer::read(&mut input)?);
        }
        let errors = answers.iter().filter(|answer| answer.is_error()).count();
        if errors == 0 || answers.len() == 1 {
            Ok(Self(answers))
        } else {
            Err(input.malformed())
        }
    }

    /// Writes the message.
    pub fn write(&self, out: &mut impl BufMut) {
        self.0.iter().for_each(|answer| answer.write(out));
    }
}

impl<'a> Answer<'a> {
    fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        let kind = input.u8()?;
        let value = Value::of(kind, input.counted()?);
        let seconds = input.u32()?;
        Ok(Self { value, seconds })
    }

    fn write(&self, out: &mut impl BufMut) {
        match self.value {
            Value::Name(name) => put(out, HOSTNAME, name),
            Value::Ip(IpAddr::V4(ip)) => put(out, IPV4, &ip.octets()),
            Value::Ip(IpAddr::V6(ip)) => put(out, IPV6, &ip.octets()),
            Value::Transient => put(out, TRANSIENT, b"Error resolving hostname"),
            Value::Permanent => put(out, PERMANENT, b"Error resolving hostname"),
            Value::Unknown { kind, value } => put(out, kind, value),
        }
        out.put_u32(self.seconds);
    }

    /// Whether it says that there is no answer.
    pub const fn is_error(&self) -> bool {
        matches!(self.value, Value::Transient | Value::Permanent)
    }
}

impl<'a> Value<'a> {
    fn of(kind: u8, value: &'a [u8]) -> Self {
        let ip = match kind {
            HOSTNAME => return Self::Name(value),
            TRANSIENT => return Self::Transient,
            PERMANENT => return Self::Permanent,
            IPV4 => <[u8; 4]>::try_from(value).map(IpAddr::from).ok(),
            IPV6 => <[u8; 16]>::try_from(value).map(IpAddr::from).ok(),
            _ => None,
        };
        ip.map_or(Self::Unknown { kind, value }, Self::Ip)
    }
}

fn put(out: &mut impl BufMut, kind: u8, value: &[u8]) {
    let length = short(value.len());
    out.put_slice(&[kind, length]);
    out.put_slice(value.get(..length.into()).unwrap_or(value));
}

/// Names stay out of every log.
impl fmt::Debug for Resolve<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolve(hidden)")
    }
}

/// So do addresses.
impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name(_) => "Name(hidden)",
            Self::Ip(_) => "Ip(hidden)",
            Self::Transient => "Transient",
            Self::Permanent => "Permanent",
            Self::Unknown { .. } => "Unknown",
        })
    }
}

#[cfg(test)]
mod tests;
