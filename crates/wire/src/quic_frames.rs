//! The frames of a QUIC packet whose payload is in the clear: what each is and how many bytes it takes. Total: any bytes are read without a panic.
//! RFC 9000 §19; DATAGRAM: RFC 9221 §4; ACK_FREQUENCY and IMMEDIATE_ACK: draft-ietf-quic-ack-frequency §4, §5.

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use bytes::BufMut;

use crate::varint;

/// Frame types, as they stand on the wire.
pub mod kind {
    /// Fills up.
    pub const PADDING: u64 = 0x00;
    /// Asks for a sign of life.
    pub const PING: u64 = 0x01;
    /// Acknowledges.
    pub const ACK: u64 = 0x02;
    /// Acknowledges, and counts ECN marks.
    pub const ACK_ECN: u64 = 0x03;
    /// Gives a stream up.
    pub const RESET_STREAM: u64 = 0x04;
    /// Handshake bytes.
    pub const CRYPTO: u64 = 0x06;
    /// Address validation for later.
    pub const NEW_TOKEN: u64 = 0x07;
    /// The first of eight: stream bytes.
    pub const STREAM: u64 = 0x08;
    /// The last of the eight.
    pub const STREAM_LAST: u64 = 0x0f;
    /// Another name for the connection.
    pub const NEW_CONNECTION_ID: u64 = 0x18;
    /// Proves a path.
    pub const PATH_CHALLENGE: u64 = 0x1a;
    /// Its answer.
    pub const PATH_RESPONSE: u64 = 0x1b;
    /// Ends the connection.
    pub const CONNECTION_CLOSE: u64 = 0x1c;
    /// Ends it for a reason of the application.
    pub const APPLICATION_CLOSE: u64 = 0x1d;
    /// Asks for an acknowledgement at once.
    pub const IMMEDIATE_ACK: u64 = 0x1f;
    /// A datagram up to the packet's end.
    pub const DATAGRAM: u64 = 0x30;
    /// A datagram with its length.
    pub const DATAGRAM_LEN: u64 = 0x31;
    /// Asks the peer to acknowledge less often.
    pub const ACK_FREQUENCY: u64 = 0xaf;
}

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its type; see [`kind`].
    pub kind: u64,
    /// Bytes on the wire, type included. Neighbouring PADDING frames are told as one.
    pub size: usize,
    /// What it says.
    pub content: Content<'a>,
}

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// PADDING.
    Padding,
    /// ACK, with or without ECN counts.
    Ack(Ack<'a>),
    /// CRYPTO.
    Crypto {
        /// Where its bytes stand in the handshake.
        offset: u64,
        /// The handshake's bytes.
        data: &'a [u8],
    },
    /// STREAM.
    Stream {
        /// Which stream.
        id: u64,
        /// Where its bytes stand in the stream.
        offset: u64,
        /// The stream's bytes.
        data: &'a [u8],
        /// Whether the stream ends here.
        fin: bool,
    },
    /// DATAGRAM.
    Datagram(&'a [u8]),
    /// Everything that consists of integers, in their order; 0 where there are fewer than four.
    Numbers([u64; 4]),
    /// NEW_TOKEN, NEW_CONNECTION_ID, PATH_CHALLENGE and PATH_RESPONSE: bytes that nobody needs to know.
    Opaque,
    /// CONNECTION_CLOSE of either kind.
    Close {
        /// The error code.
        error: u64,
    },
}

/// An acknowledgement: its ranges lie within the packet numbers that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    /// The largest packet number that it acknowledges.
    pub largest: u64,
    /// How long it was held back, in units that the sender's transport parameters give (8 µs by default).
    pub delay: u64,
    /// How far below `largest` the first range begins.
    first: u64,
    /// Gaps and lengths of the others, still encoded.
    others: &'a [u8],
    /// Counts of ECT(0), ECT(1) and CE marks.
    pub ecn: Option<[u64; 3]>,
}

/// A payload that is no sequence of frames of RFC 9000 and the extensions above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The frames of a payload, in order. After [`Malformed`] nothing follows.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a>(&'a [u8]);

impl<'a> Frames<'a> {
    /// Reads the decrypted payload of one packet.
    pub const fn new(payload: &'a [u8]) -> Self {
        Self(payload)
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let mut rest = self.0;
        let Some((kind, content)) = frame(&mut rest) else {
            self.0 = &[];
            return Some(Err(Malformed));
        };
        let size = self.0.len().saturating_sub(rest.len());
        self.0 = rest;
        Some(Ok(Frame {
            kind,
            size,
            content,
        }))
    }
}

fn frame<'a>(rest: &mut &'a [u8]) -> Option<(u64, Content<'a>)> {
    let kind = varint::read(rest)?;
    let content = match kind {
        kind::PADDING => padding(rest),
        kind::ACK | kind::ACK_ECN => Content::Ack(ack(rest, kind == kind::ACK_ECN)?),
        kind::CRYPTO => Content::Crypto {
            offset: varint::read(rest)?,
            data: counted(rest)?,
        },
        kind::STREAM..=kind::STREAM_LAST => stream(rest, kind)?,
        kind::DATAGRAM => Content::Datagram(std::mem::take(rest)),
        kind::DATAGRAM_LEN => Content::Datagram(counted(rest)?),
        kind::NEW_TOKEN => counted(rest).map(|_| Content::Opaque)?,
        kind::NEW_CONNECTION_ID => connection_id(rest)?,
        kind::PATH_CHALLENGE | kind::PATH_RESPONSE => take(rest, 8).map(|_| Content::Opaque)?,
        kind::CONNECTION_CLOSE | kind::APPLICATION_CLOSE => close(rest, kind)?,
        _ => numbers(rest, integers(kind)?)?,
    };
    Some((kind, content))
}

/// How many integers make up a frame that has nothing else.
fn integers(kind: u64) -> Option<usize> {
    match kind {
        kind::PING | 0x1e | kind::IMMEDIATE_ACK => Some(0),
        0x10 | 0x12 | 0x13 | 0x14 | 0x16 | 0x17 | 0x19 => Some(1),
        0x05 | 0x11 | 0x15 => Some(2),
        0x04 => Some(3),
        kind::ACK_FREQUENCY => Some(4),
        _ => None,
    }
}

fn numbers<'a>(rest: &mut &'a [u8], count: usize) -> Option<Content<'a>> {
    let mut values = [0; 4];
    for value in values.iter_mut().take(count) {
        *value = varint::read(rest)?;
    }
    Some(Content::Numbers(values))
}

/// "A PADDING frame … has no semantic value": a run of them is one.
fn padding<'a>(rest: &mut &'a [u8]) -> Content<'a> {
    let run = rest.iter().take_while(|byte| **byte == 0).count();
    *rest = rest.get(run..).unwrap_or_default();
    Content::Padding
}

fn stream<'a>(rest: &mut &'a [u8], kind: u64) -> Option<Content<'a>> {
    let id = varint::read(rest)?;
    let offset = match kind & 0x04 {
        0 => 0,
        _ => varint::read(rest)?,
    };
    let data = match kind & 0x02 {
        0 => std::mem::take(rest),
        _ => counted(rest)?,
    };
    Some(Content::Stream {
        id,
        offset,
        data,
        fin: kind & 0x01 != 0,
    })
}

fn connection_id<'a>(rest: &mut &'a [u8]) -> Option<Content<'a>> {
    varint::read(rest)?;
    varint::read(rest)?;
    let (length, _) = rest.split_first()?;
    // Length, connection id, stateless reset token.
    take(rest, u64::from(*length).checked_add(17)?)?;
    Some(Content::Opaque)
}

fn close<'a>(rest: &mut &'a [u8], kind: u64) -> Option<Content<'a>> {
    let error = varint::read(rest)?;
    if kind == kind::CONNECTION_CLOSE {
        varint::read(rest)?;
    }
    counted(rest)?;
    Some(Content::Close { error })
}

fn ack<'a>(rest: &mut &'a [u8], ecn: bool) -> Option<Ack<'a>> {
    let largest = varint::read(rest)?;
    let delay = varint::read(rest)?;
    let count = varint::read(rest)?;
    let first = varint::read(rest)?;
    let mut smallest = largest.checked_sub(first)?;
    let before = *rest;
    for _ in 0..count {
        smallest = next_range(rest, smallest)?.0;
    }
    let others = before.get(..before.len().checked_sub(rest.len())?)?;
    let ecn = if ecn {
        Some([
            varint::read(rest)?,
            varint::read(rest)?,
            varint::read(rest)?,
        ])
    } else {
        None
    };
    Some(Ack {
        largest,
        delay,
        first,
        others,
        ecn,
    })
}

/// "If any computed packet number is negative, an endpoint MUST generate a connection error of type FRAME_ENCODING_ERROR."
fn next_range(rest: &mut &[u8], above: u64) -> Option<(u64, u64)> {
    let gap = varint::read(rest)?;
    let length = varint::read(rest)?;
    let highest = above.checked_sub(gap)?.checked_sub(2)?;
    Some((highest.checked_sub(length)?, highest))
}

impl<'a> Ack<'a> {
    /// The ranges, both ends included, the highest first.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let first = (self.largest.saturating_sub(self.first), self.largest);
        let mut rest = self.others;
        std::iter::successors(Some(first), move |(smallest, _)| {
            next_range(&mut rest, *smallest)
        })
    }
}

/// Bytes preceded by their number.
fn counted<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = varint::read(rest)?;
    take(rest, length)
}

fn take<'a>(rest: &mut &'a [u8], length: u64) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = left;
    Some(taken)
}

/// What an ACK_FREQUENCY frame asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckFrequency {
    /// Larger than that of every such frame before it.
    pub sequence: u64,
    /// This many ack-eliciting packets may go without an acknowledgement.
    pub threshold: u64,
    /// The longest time without one, in microseconds.
    pub delay: u64,
    /// Whether packets out of order are acknowledged at once: 0 no, 1 yes (RFC 9000 §13.2.1), more by the draft's §6.2.
    pub reordering: u64,
}

impl AckFrequency {
    /// Writes the frame.
    pub fn write(&self, out: &mut impl BufMut) {
        let Self {
            sequence,
            threshold,
            delay,
            reordering,
        } = *self;
        for number in [kind::ACK_FREQUENCY, sequence, threshold, delay, reordering] {
            varint::write(out, number);
        }
    }
}

#[cfg(test)]
mod tests;
