//! Making, lengthening and ending circuits: CREATE2 and its answer, EXTEND2 and its answer, and why a circuit ended.
//! tor-spec: "Circuit management".

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6},
};

use bytes::BufMut;

use super::{Input, Malformed, short, wide};

numbers! {
    /// Which handshake makes a hop. tor-spec: "Recognized HTYPEs".
    pub struct HandshakeType(u16) {
        /// The first one; not spoken here.
        TAP = 0,
        /// With curve25519 and SHA-256.
        NTOR = 2,
        /// ntor with encrypted extensions.
        NTOR_V3 = 3,
    }
}

numbers! {
    /// Why a circuit ended. tor-spec: "Tearing down circuits".
    pub struct DestroyReason(u8) {
        /// No reason given.
        NONE = 0,
        /// Somebody broke the protocol.
        PROTOCOL = 1,
        /// Internal error.
        INTERNAL = 2,
        /// A client sent TRUNCATE.
        REQUESTED = 3,
        /// Not operating, to save bandwidth.
        HIBERNATING = 4,
        /// Out of memory, sockets, or circuit ids.
        RESOURCELIMIT = 5,
        /// The relay could not be reached.
        CONNECTFAILED = 6,
        /// The relay is another one.
        OR_IDENTITY = 7,
        /// The channel that carried the circuit ended.
        CHANNEL_CLOSED = 8,
        /// The circuit has become too old.
        FINISHED = 9,
        /// Building it took too long.
        TIMEOUT = 10,
        /// It was destroyed without a client's TRUNCATE.
        DESTROYED = 11,
        /// Nobody knows the onion service.
        NOSUCHSERVICE = 12,
    }
}

/// CREATE2: the client's half of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create2<'a> {
    /// Which handshake.
    pub handshake: HandshakeType,
    /// What it says.
    pub data: &'a [u8],
}

/// CREATED2, and EXTENDED2 in a relay message: the relay's half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created2<'a> {
    /// What the handshake says.
    pub data: &'a [u8],
}

/// CREATE_FAST: the client's half of the keys of a first hop. tor-spec: "CREATE_FAST/CREATED_FAST cells".
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CreateFast(pub [u8; 20]);

/// CREATED_FAST: the relay's half, and what shows that it has the client's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CreatedFast {
    /// The relay's half.
    pub half: [u8; 20],
    /// `KH`.
    pub proof: [u8; 20],
}

/// EXTENDED2 has the same body as CREATED2.
pub type Extended2<'a> = Created2<'a>;

/// EXTEND2: where the circuit is to go, and the client's half of the handshake with that relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extend2<'a> {
    /// Who and where; at most one identity of each kind. Sent in the order IPv4, RSA, Ed25519, IPv6.
    pub specifiers: Vec<LinkSpecifier<'a>>,
    /// What CREATE2 will say.
    pub create: Create2<'a>,
}

/// DESTROY, and TRUNCATED in a relay message.
pub type Truncated = DestroyReason;

impl<'a> Create2<'a> {
    /// Reads the body of a CREATE2 cell; what follows the handshake is padding.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off.
    pub fn parse(body: &'a [u8]) -> Result<Self, Malformed> {
        Self::read(&mut Input::new(body, "CREATE2"))
    }

    fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        Ok(Self {
            handshake: HandshakeType(input.u16()?),
            data: input.counted_wide()?,
        })
    }

    /// Writes the body. Whether it fits a cell is told when the cell is made.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_u16(self.handshake.0);
        put(out, self.data);
    }
}

impl<'a> Created2<'a> {
    /// Reads the body of a CREATED2 cell or an EXTENDED2 message; what follows is padding.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off.
    pub fn parse(body: &'a [u8]) -> Result<Self, Malformed> {
        let data = Input::new(body, "CREATED2").counted_wide()?;
        Ok(Self { data })
    }

    /// Writes the body.
    pub fn write(&self, out: &mut impl BufMut) {
        put(out, self.data);
    }
}

impl CreateFast {
    /// Reads a cell's body; what follows is padding.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        Input::new(body, "CREATE_FAST").array().map(Self)
    }

    /// Writes the body without padding.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_slice(&self.0);
    }
}

impl CreatedFast {
    /// Reads a cell's body; what follows is padding.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(body, "CREATED_FAST");
        Ok(Self {
            half: input.array()?,
            proof: input.array()?,
        })
    }

    /// Writes the body without padding.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_slice(&self.half);
        out.put_slice(&self.proof);
    }
}

impl fmt::Debug for CreateFast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CreateFast(hidden)")
    }
}

impl fmt::Debug for CreatedFast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CreatedFast(hidden)")
    }
}

impl<'a> Extend2<'a> {
    /// Reads an EXTEND2 message.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off, for a specifier of a wrong length, and for two identities of one kind.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "EXTEND2");
        Ok(Self {
            specifiers: LinkSpecifier::read_all(&mut input)?,
            create: Create2::read(&mut input)?,
        })
    }

    /// Writes the message: 255 specifiers at most.
    pub fn write(&self, out: &mut impl BufMut) {
        LinkSpecifier::write_all(&self.specifiers, out);
        self.create.write(out);
    }
}

impl DestroyReason {
    /// Reads the body of a DESTROY cell or a TRUNCATED message.
    ///
    /// # Errors
    /// [`Malformed`] when there is none.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        Input::new(body, "reason of a circuit's end").u8().map(Self)
    }

    /// Writes the body.
    pub fn write(self, out: &mut impl BufMut) {
        out.put_u8(self.0);
    }
}

fn put(out: &mut impl BufMut, data: &[u8]) {
    let length = wide(data.len());
    out.put_u16(length);
    out.put_slice(data.get(..length.into()).unwrap_or(data));
}

// Link specifiers: who a relay is and where it listens.
// tor-spec: "EXTEND and EXTENDED cells".

/// One thing that is known of a relay.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LinkSpecifier<'a> {
    /// Where it listens.
    Ipv4(SocketAddrV4),
    /// Where it listens.
    Ipv6(SocketAddrV6),
    /// SHA-1 of its RSA identity key.
    Rsa([u8; 20]),
    /// Its Ed25519 identity.
    Ed25519([u8; 32]),
    /// "Nodes MUST ignore unrecognized specifiers."
    Unknown {
        /// Its type, none of the above.
        kind: u8,
        /// Its value: up to 255 bytes.
        value: &'a [u8],
    },
}

impl<'a> LinkSpecifier<'a> {
    /// Reads all that a block has: their number, and they. rend-spec-v3, "Protocol building blocks".
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off or follows, for a specifier of a wrong length, and for two identities of one kind.
    pub fn parse_all(block: &'a [u8]) -> Result<Vec<Self>, Malformed> {
        let mut input = Input::new(block, "link specifiers");
        let specifiers = Self::read_all(&mut input)?;
        let whole = input.is_empty().then_some(specifiers);
        whole.ok_or_else(|| input.malformed())
    }

    /// Writes a block: 255 specifiers at most.
    pub fn write_all(specifiers: &[Self], out: &mut impl BufMut) {
        let number = short(specifiers.len());
        out.put_u8(number);
        let specifiers = specifiers.iter().take(number.into());
        specifiers.for_each(|specifier| specifier.write(out));
    }

    fn read_all(input: &mut Input<'a>) -> Result<Vec<Self>, Malformed> {
        let mut specifiers: Vec<Self> = Vec::new();
        for _ in 0..input.u8()? {
            let next = Self::read(input)?;
            if specifiers.iter().any(|one| one.excludes(&next)) {
                return Err(input.malformed());
            }
            specifiers.push(next);
        }
        Ok(specifiers)
    }

    /// Type and value off the front. An error names what the input is.
    pub(super) fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        let malformed = input.malformed();
        let kind = input.u8()?;
        let mut value = Input::new(input.counted()?, malformed.0);
        let specifier = match kind {
            0 => Self::Ipv4(SocketAddrV4::new(
                Ipv4Addr::from(value.u32()?),
                value.u16()?,
            )),
            1 => {
                let ip = Ipv6Addr::from(value.array::<16>()?);
                Self::Ipv6(SocketAddrV6::new(ip, value.u16()?, 0, 0))
            }
            2 => Self::Rsa(value.array()?),
            3 => Self::Ed25519(value.array()?),
            _ => Self::Unknown {
                kind,
                value: value.take(value.rest().len())?,
            },
        };
        value.is_empty().then_some(specifier).ok_or(malformed)
    }

    /// Writes type, length and value.
    pub fn write(&self, out: &mut impl BufMut) {
        match self {
            Self::Ipv4(address) => {
                out.put_slice(&[0, 6]);
                out.put_slice(&address.ip().octets());
                out.put_u16(address.port());
            }
            Self::Ipv6(address) => {
                out.put_slice(&[1, 18]);
                out.put_slice(&address.ip().octets());
                out.put_u16(address.port());
            }
            Self::Rsa(identity) => {
                out.put_slice(&[2, 20]);
                out.put_slice(identity);
            }
            Self::Ed25519(identity) => {
                out.put_slice(&[3, 32]);
                out.put_slice(identity);
            }
            Self::Unknown { kind, value } => {
                let length = short(value.len());
                out.put_slice(&[*kind, length]);
                out.put_slice(value.get(..length.into()).unwrap_or(value));
            }
        }
    }

    /// "Nodes SHOULD reject link specifier lists that include multiple instances of either one of those specifiers."
    const fn excludes(&self, other: &Self) -> bool {
        matches!(
            (self, other),
            (Self::Rsa(_), Self::Rsa(_)) | (Self::Ed25519(_), Self::Ed25519(_))
        )
    }
}

/// Addresses and identities stay out of every log.
impl fmt::Debug for LinkSpecifier<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4(_) => "Ipv4(hidden)",
            Self::Ipv6(_) => "Ipv6(hidden)",
            Self::Rsa(_) => "Rsa(hidden)",
            Self::Ed25519(_) => "Ed25519(hidden)",
            Self::Unknown { .. } => "Unknown",
        })
    }
}

// Extensions of the ntor-v3 handshake: what client and relay agree on for a circuit, encrypted with it.
// Proposal 332 §A.2 (format), 324 §10.3 (congestion control), 346 (subprotocols).

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

impl Subprotocol {
    /// Counter Galois Onion (`Relay=6`).
    pub const CGO: Self = Self {
        protocol: 2,
        capability: 6,
    };
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
    /// Congestion control is on, with a SENDME for this many cells (CC_FIELD_RESPONSE).
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
    /// [`Malformed`] for what is cut off, and for an increment that is no byte.
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

/// Hands out each extension. A message without any byte has none.
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

#[cfg(test)]
mod tests;
