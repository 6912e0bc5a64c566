//! Circuits of Tor's cells through one to eight relays: the client's end as an overlay, and the relay's as guard, middle and exit.
//! The binary assembles it; channels come from `channel`, or in memory for tests; handshakes and layers are `crypto::onion`'s, cells `wire::cell`'s.
//! tor-spec, rend-spec-v3, proposals 289 (authenticated SENDMEs), 324 (congestion control), 332 (ntor-v3) and 339 (UDP).
//!
//! ```text
//! client: Onion ── pool ── driver ── ClientCircuit (layers, building)      relay: serve ── driver ── RelayCircuit (one layer)
//!                             └────── Endpoint (streams, flow control) ◀─────────────────┘ at an exit
//! ```
//!
//! Each circuit is a task of its own with queues of its own; nothing on the way of a cell is shared between circuits. A circuit that
//! cannot send does not read either, in the direction that is stuck, and so pushes back on nobody but itself.
//!
//! # Not in this room
//! Channels (`channel`), which relays there are and which to take (`directory`; see [`path::Paths`]), who may use a relay (`relay`).
//! Descriptors of onion services ([`onion_service`] is told what they say).

pub mod channel;
pub mod client;
pub mod conflux;
pub mod endpoint;
mod failure;
pub mod flow_control;
pub mod onion_service;
pub mod path;
pub mod relay;

use std::fmt;

pub use client::{Config, Events, Onion};

/// What fills padding and tells which cells leave room for it (proposal 289): the system's randomness, but in a simulator, where one seed shall give
/// one result.
#[derive(Clone, Copy)]
pub struct Randomness(pub fn(&mut [u8]));

impl Default for Randomness {
    fn default() -> Self {
        Self(random)
    }
}

impl PartialEq for Randomness {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for Randomness {}

impl fmt::Debug for Randomness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Randomness")
    }
}

/// Fills padding with what nobody can guess.
fn random(bytes: &mut [u8]) {
    use ring::rand::SecureRandom;
    let filled = ring::rand::SystemRandom::new().fill(bytes);
    // Without randomness no handshake comes about either; there is no circuit whose digests could be guessed.
    debug_assert!(filled.is_ok(), "the system has no randomness");
}

/// A number that nobody can guess, from 0 up to below `most`.
fn random_below(most: u32) -> u32 {
    let mut bytes = [0; 8];
    random(&mut bytes);
    // The bias is less than 2^-32.
    let number = u64::from_be_bytes(bytes) % u64::from(most.max(1));
    u32::try_from(number).unwrap_or(0)
}
