//! Where the UDP payloads of a CONNECT-UDP request, or the IP packets of a CONNECT-IP request, go as they arrive, over all versions
//! alike, and capsules of forwarded mode and of IP proxying.
//! The client's flow and the relay's target socket implement it; a session's driver calls it.

use std::ops::ControlFlow;

use bytes::Bytes;
use hoplite_wire::{
    connect_ip,
    forwarding::{Capsule, Malformed},
};

/// Takes the payloads of one flow. It never blocks: what it cannot take it drops and counts.
pub trait DatagramSink: Send + Sync {
    /// One UDP payload, or one IP packet.
    fn push(&self, payload: Bytes);

    /// Nothing more for now: what was pushed should leave.
    fn flush(&self);

    /// A capsule of forwarded mode, in order among what came on the request stream. Where there is no forwarded
    /// mode it is an unknown capsule: dropped. `Break` ends the flow, over HTTP/3 with H3_DATAGRAM_ERROR, and nothing more is read.
    fn capsule(&self, capsule: Result<Capsule, Malformed>) -> ControlFlow<()> {
        drop(capsule);
        ControlFlow::Continue(())
    }
    /// A capsule of IP proxying, in order among what came on the request stream. Elsewhere than in CONNECT-IP it is an unknown
    /// capsule: dropped. `Break` ends the flow as a malformed message (RFC 9297 §3.3), and nothing more is read.
    fn ip_capsule(
        &self,
        capsule: Result<connect_ip::Capsule, connect_ip::Malformed>,
    ) -> ControlFlow<()> {
        drop(capsule);
        ControlFlow::Continue(())
    }
}
