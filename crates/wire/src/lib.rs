//! What goes over the wire: targets, relay descriptors, HTTP/3 frames, QPACK, capsules, HTTP datagrams, SOCKS.
//! Every other room uses it. Each module names the specification and section that it implements.
//!
//! # Not in this room
//! Keys and certificates (`crypto`), sockets and clocks (nobody here has any), HTTP/2 (crate `h2`).

pub mod socks;
pub mod target;

pub use target::{Host, HostName, Target, TargetError};
