//! Forwarded mode at the client: QUIC packets with a short header pass a relay without being encrypted for it once more.
//! [`crate::Hop`] offers it for every UDP flow; whose QUIC runs in the flow does not matter, its packets are snooped.
//! draft-ietf-masque-quic-proxy; what may be known of any QUIC packet: RFC 8999.
//!
//! [`Machine`] decides and does nothing. Its driver is called with `now` and does what it is told, in order.
//!
//! # Not in this room
//! The capsules and fields (`wire::forwarding`), the transforms (`crypto::scramble`), the way past the link (`link::Bypass`),
//! the relay's end (`relay::forward`).

mod bargain;
mod driver;
mod id;
mod machine;
mod rule;
mod snoop;
mod sorted;
#[cfg(test)]
mod tests;
mod watchdog;

pub(crate) use bargain::Bargain;
pub use bargain::{Forwarding, Mode, Passed};
pub(crate) use driver::Forwarder;
pub use id::ConnectionId;
pub use machine::{Action, Below, Breach, Machine, Route};
