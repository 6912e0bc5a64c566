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

pub use client::{Config, Onion};

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
