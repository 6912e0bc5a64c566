//! MASQUE: one to four nested relays as an overlay.
//!
//! # Not in this room
//! How a hop is dialled and authenticated (`link`), what a relay permits (`relay`), the octets of frames and capsules (`wire`).

pub mod sink;

pub use sink::DatagramSink;
