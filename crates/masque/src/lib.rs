//! MASQUE: one to four nested relays as an overlay, and the HTTP connections that both ends of a hop share.
//! The overlay carries the client's flows; `relay` serves the other end with the same [`h3`] and [`h2`].
//!
//! # Not in this room
//! How a hop is dialled and authenticated (`link`), what a relay permits (`relay`), the octets of frames and capsules (`wire`).

pub mod h2;
pub mod h3;
pub mod sink;

pub use sink::DatagramSink;
