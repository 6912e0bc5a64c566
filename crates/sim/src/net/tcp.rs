//! Streams of octets like TCP's, over the same links as datagrams: under TLS channels, and between exits and targets.
//! `host` opens them, relays and targets listen.
//!
//! What is modelled: segments of 1,448 octets with 52 of headers; a handshake of one round trip; acknowledgement of every segment, which names
//! the segment and what has come in order; loss told by three later segments or by a timer (RFC 6298, 200 ms at least); retransmission, and
//! waiting for what is missing before what came after it; slow start from ten segments and CUBIC (RFC 9438); a window of the receiver's.
//! What is not: delayed acknowledgements, pacing, HyStart, tail loss probes, ECN, options, keep-alive.

mod connection;
mod cubic;
mod listener;
mod receiver;
mod sender;
mod stream;
#[cfg(test)]
mod tests;

use bytes::Bytes;

pub use self::{listener::Listener, stream::TcpStream};

/// The octets that a segment carries at most.
pub(super) const SEGMENT: usize = 1448;
/// What an IPv4 and a TCP header with time stamps take of a packet.
pub(super) const HEADERS: usize = 52;
/// How many octets a writer may be ahead of what has been acknowledged.
const SEND_BUFFER: usize = 1 << 20;
/// How many octets may wait for their reader.
const RECEIVE_BUFFER: u64 = 1 << 20;

/// A segment.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) kind: Kind,
    /// The number of its first octet.
    pub(super) seq: u64,
    pub(super) data: Bytes,
    /// Nothing follows; it has a number of its own.
    pub(super) last: bool,
    /// All before this number has come.
    pub(super) ack: u64,
    /// The segment that this acknowledges.
    pub(super) heard: Option<u64>,
    /// How much may follow `ack`.
    pub(super) window: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Syn,
    SynAck,
    Plain,
    Reset,
}

impl Segment {
    /// What is said where nobody knows of its stream. Resets are not answered.
    pub(super) fn refused(&self) -> Option<Self> {
        (self.kind != Kind::Reset).then(|| Self::bare(Kind::Reset))
    }

    /// One without data.
    pub(super) fn bare(kind: Kind) -> Self {
        Self {
            kind,
            seq: 0,
            data: Bytes::new(),
            last: false,
            ack: 0,
            heard: None,
            window: RECEIVE_BUFFER,
        }
    }
}
