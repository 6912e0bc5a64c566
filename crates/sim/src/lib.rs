//! A network of relays and clients in one process and in virtual time: the real rooms (`onion`, `channel` over QUIC and over TLS,
//! `crypto`, the choice of paths of `directory`) over links in memory and a clock that leaps to the next event.
//! Scenario 5 of the thesis on QUIC for Tor, scaled up. docs/sim.md says what the model is.
//!
//! One seed gives one run, to the byte: every number is drawn from it ([`random`]), and whatever the rooms draw from the system (keys,
//! nonces, padding) changes neither a size nor a time nor an order.
//!
//! # Not in this room
//! Real sockets and real time (`lab`), the configuration files of the product (`hoplite`), analysis beyond a table (`lab`).

pub mod cascade;
mod client;
pub mod directory;
pub mod net;
mod paths;
pub mod random;
pub mod relay;
pub mod report;
pub mod run;
pub mod scan;

pub use run::{Failed, Progress, Settings, Traffic, run};
