//! Traffic to measure with, and what it costs: the clients and servers that `hoplite bench`, `hoplite demo` and the lab share.
//!
//! # Not in this room
//! What is measured: relays and clients are processes of their own. The lab's protocols, phases and worlds (`lab`), the commands that
//! print figures (`hoplite`).

pub mod cpu;
pub mod datagrams;
pub mod load;
pub mod raw;
pub mod socks;
pub mod splitmix;
pub mod statistics;
pub mod web;
