//! Forwarded mode at the client: QUIC packets with a short header pass a relay without being encrypted for it once more.
//! [`crate::Hop`] offers it for every UDP flow; whose QUIC runs in the flow does not matter, the connection ids are learned from its packets.
//! draft-ietf-masque-quic-proxy; what may be known of any QUIC packet: RFC 8999.
//!
//! [`Machine`] decides and does nothing. Its driver is called with `now` and does what it is told, in order.
//!
//! # Not in this room
//! The capsules and fields (`wire::forwarding`), the transforms (`crypto::scramble`), the way past the link (`link::Bypass`),
//! the relay's end (`relay::forward`).

mod driver;
mod ids;
mod machine;
mod negotiation;
mod rule;
#[cfg(test)]
mod tests;

pub(crate) use driver::Forwarder;
pub use ids::ConnectionId;
pub use machine::{Action, Below, Breach, Machine, Route};
pub(crate) use negotiation::Negotiation;
pub use negotiation::{Forwarding, Mode, Passed};
