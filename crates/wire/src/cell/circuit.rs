//! Making, lengthening and ending circuits: CREATE2 and its answer, EXTEND2 and its answer, and why a circuit ended.
//! `onion` speaks them at both ends, `crypto::onion` makes the handshake data. tor-spec: "Circuit management".

use bytes::BufMut;

use super::{
    Malformed,
    input::{Input, short, wide},
};

mod extension;
mod specifier;

pub use extension::{ClientExtensions, ServerExtensions, Subprotocol};
pub use specifier::LinkSpecifier;

numbers! {
    /// Which handshake makes a hop. tor-spec: "Recognized HTYPEs".
    pub struct HandshakeType(u16) {
        /// The first one; not spoken here.
        TAP = 0,
        /// With curve25519 and SHA-256.
        NTOR = 2,
        /// The same with encrypted extensions.
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

impl<'a> Extend2<'a> {
    /// Reads an EXTEND2 message.
    ///
    /// # Errors
    /// [`Malformed`] for what is cut off, for a specifier of a wrong length, and for two identities of one kind.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "EXTEND2");
        let mut specifiers: Vec<LinkSpecifier<'a>> = Vec::new();
        for _ in 0..input.u8()? {
            let next = LinkSpecifier::read(&mut input)?;
            if specifiers.iter().any(|one| one.excludes(&next)) {
                return Err(input.malformed());
            }
            specifiers.push(next);
        }
        Ok(Self {
            specifiers,
            create: Create2::read(&mut input)?,
        })
    }

    /// Writes the message: 255 specifiers at most.
    pub fn write(&self, out: &mut impl BufMut) {
        let number = short(self.specifiers.len());
        out.put_u8(number);
        let specifiers = self.specifiers.iter().take(number.into());
        specifiers.for_each(|specifier| specifier.write(out));
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

#[cfg(test)]
mod tests;
