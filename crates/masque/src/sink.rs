//! Where the UDP payloads of a CONNECT-UDP request go as they arrive, over HTTP/3 and HTTP/2 alike.
//! The client's flow and the relay's target socket implement it; a session's driver calls it.

use bytes::Bytes;

/// Takes the payloads of one flow. It never blocks: what it cannot take it drops and counts.
pub trait DatagramSink: Send + Sync {
    /// One UDP payload.
    fn push(&self, payload: Bytes);

    /// Nothing more for now: what was pushed should leave.
    fn flush(&self);
}
