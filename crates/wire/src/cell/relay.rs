//! Relay messages: what client and relay tell each other inside a circuit, in the body of a RELAY cell once it is decrypted.
//! `onion` speaks them, `crypto::onion` computes the digest in the header. tor-spec: "Relay cells"; proposal 324 §4 (XON, XOFF).

use super::{BODY, DATA, Malformed};

mod answer;
mod begin;
mod end;
mod flow;
mod message;
mod resolve;

pub use super::circuit::{Create2, Created2, Extend2, Extended2, LinkSpecifier, Truncated};
pub use answer::Connected;
pub use begin::{Begin, Flags};
pub use end::{End, EndReason};
pub use flow::{Sendme, Xoff, Xon};
pub use message::Message;
pub use resolve::{Answer, Resolve, Resolved, Value};

/// A relay message's header, in octets.
pub const HEADER: usize = 11;
/// Where "recognized" stands in the body: two octets, zero when the message is for whoever reads it.
pub const RECOGNIZED_AT: usize = 1;
/// Where the digest stands in the body: four octets, taken as zero when it is computed.
pub const DIGEST_AT: usize = 5;

numbers! {
    /// What a relay message is. tor-spec: "The relay commands"; later ones from the specifications that they name.
    pub struct Command(u8) {
        /// Opens a stream to a target.
        BEGIN = 1,
        /// Octets of a stream.
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
        /// Conflux (proposal 329).
        CONFLUX_LINK = 19,
        /// Conflux.
        CONFLUX_LINKED = 20,
        /// Conflux.
        CONFLUX_LINKED_ACK = 21,
        /// Conflux.
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

/// What stands before the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the message is.
    pub command: Command,
    /// Zero if the body is decrypted; else chance.
    pub recognized: u16,
    /// The stream that it is about.
    pub stream: StreamId,
    /// The first octets of the running digest.
    pub digest: [u8; 4],
    /// How many octets of the body are data. An encrypted body says anything here.
    pub length: u16,
}

impl Header {
    /// What stands at the front of a body, encrypted or not.
    pub const fn read(body: &[u8; BODY]) -> Self {
        let [command, r0, r1, s0, s1, d0, d1, d2, d3, l0, l1, ..] = *body;
        Self {
            command: Command(command),
            recognized: u16::from_be_bytes([r0, r1]),
            stream: StreamId(u16::from_be_bytes([s0, s1])),
            digest: [d0, d1, d2, d3],
            length: u16::from_be_bytes([l0, l1]),
        }
    }

    /// Writes the header at the front of a body.
    pub fn write(&self, body: &mut [u8; BODY]) {
        let [recognized, stream, length] =
            [self.recognized, self.stream.0, self.length].map(u16::to_be_bytes);
        let fields = [&[self.command.0][..], &recognized, &stream, &self.digest];
        let octets = fields.into_iter().flatten().chain(&length);
        body.iter_mut()
            .zip(octets)
            .for_each(|(to, from)| *to = *from);
    }

    /// The data behind this header.
    ///
    /// # Errors
    /// [`Malformed`] if it says that there are more than fit.
    pub fn data<'a>(&self, body: &'a [u8; BODY]) -> Result<&'a [u8], Malformed> {
        let (_, data) = body.split_at_checked(HEADER).unwrap_or_default();
        data.get(..self.length.into())
            .ok_or(Malformed("length of a relay message"))
    }
}

/// Writes a whole relay message into a body, with a digest of zero, and hands out the padding to be filled: "four zero-valued bytes,
/// followed by as many random bytes as will fit". The zeros are written, the random octets are the caller's: what was there stays.
///
/// # Errors
/// [`Malformed`] if there are more than [`DATA`] octets of data; then nothing is written.
pub fn write<'a>(
    body: &'a mut [u8; BODY],
    command: Command,
    stream: StreamId,
    data: &[u8],
) -> Result<&'a mut [u8], Malformed> {
    let length = u16::try_from(data.len())
        .ok()
        .filter(|_| data.len() <= DATA);
    Header {
        command,
        recognized: 0,
        stream,
        digest: [0; 4],
        length: length.ok_or(Malformed("length of a relay message"))?,
    }
    .write(body);
    let (_, rest) = body.split_at_mut_checked(HEADER).unwrap_or_default();
    let (to, padding) = rest.split_at_mut_checked(data.len()).unwrap_or_default();
    to.copy_from_slice(data);
    let zeros = padding.len().min(4);
    let (zeros, random) = padding.split_at_mut_checked(zeros).unwrap_or_default();
    zeros.fill(0);
    Ok(random)
}

#[cfg(test)]
mod tests;
