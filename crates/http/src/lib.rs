//! HTTP as MASQUE needs it, at both ends of a hop: CONNECT, CONNECT-UDP and CONNECT-IP over HTTP/3 and HTTP/2.
//! `masque` makes the requests, `relay` serves them.
//!
//! # Not in this room
//! What a path is and how its hops are chosen (`masque`), what a relay permits (`relay`), the octets of frames and capsules (`wire`).

pub mod h2;
pub mod h3;
mod refusal;
mod sink;

pub use refusal::accepted;
pub use sink::DatagramSink;
