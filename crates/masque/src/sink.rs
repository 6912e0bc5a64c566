//! Where the UDP payloads of a CONNECT-UDP request go as they arrive, over HTTP/3 and HTTP/2 alike, and capsules of forwarded mode.
//! The client's flow and the relay's target socket implement it; a session's driver calls it.

use std::ops::ControlFlow;

use bytes::Bytes;
use hoplite_wire::forwarding::{Capsule, Malformed};

/// Takes the payloads of one flow. It never blocks: what it cannot take it drops and counts.
pub trait DatagramSink: Send + Sync {
    /// One UDP payload.
    fn push(&self, payload: Bytes);

    /// Nothing more for now: what was pushed should leave.
    fn flush(&self);

    /// A capsule of forwarded mode, over HTTP/3 only, in order among what came on the request stream. Where there is no forwarded
    /// mode it is an unknown capsule: dropped. `Break` resets the stream with H3_DATAGRAM_ERROR, and nothing more is read.
    fn capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        drop(capsule);
        ControlFlow::Continue(())
    }
}
