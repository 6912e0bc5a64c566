//! Where the UDP payloads of a CONNECT-UDP request, or the IP packets of a CONNECT-IP request, go as they arrive, over all versions
//! alike, and capsules of forwarded mode, of IP proxying and of bound UDP.
//! The client's flow and the relay's target socket implement it; a session's driver calls it.

use std::ops::ControlFlow;

use bytes::Bytes;
use hoplite_wire::{
    bound_udp, connect_ip,
    forwarding::{Capsule, Malformed},
};

/// Takes the payloads of one flow. It never blocks: what it cannot take it drops and counts.
pub trait DatagramSink: Send + Sync {
    /// One UDP payload, or one IP packet.
    fn push(&self, payload: Bytes);

    /// What came in another context than that of CONNECT-UDP itself, and whether the sink knows that context; what it does not is counted.
    fn push_in(&self, context: u64, content: Bytes) -> bool {
        drop((context, content));
        false
    }

    /// Nothing more for now: what was pushed should leave.
    fn flush(&self);

    /// So many bytes are held now of a capsule that has come in part, whose rest they wait for; none, once it is whole. Whether there is room for them: what
    /// there is none for is dropped.
    fn holds(&self, bytes: usize) -> bool {
        let _ = bytes;
        true
    }

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

    /// A capsule of bound UDP, in order among what came on the request stream. Elsewhere it is an unknown capsule: dropped. `Break` ends the
    /// flow as a malformed message, and nothing more is read.
    fn bound_capsule(
        &self,
        _capsule: Result<bound_udp::Capsule, bound_udp::Malformed>,
    ) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
