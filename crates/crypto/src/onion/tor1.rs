//! The layers of relay cells: each relay of a circuit takes one off, or puts one on, and recognises the cells that are meant for it.
//! `onion` has a [`RelayLayer`] for each circuit of a relay and [`ClientLayers`] for each circuit of a client. In place, without allocation.
//! tor-spec, "Relay cell processing" ("tor1"): AES-128-CTR from a counter of zero, and a running SHA-1 in the cell's digest field.
//!
//! What it gives: a relay between learns nothing of a cell. What it does not: a relay can flip bits that another relay finds flipped
//! (tagging); the last one then recognises nothing any more, and the circuit dies. Nothing here is more than what Tor has.

mod hash;
mod layer;
mod stream;

use std::fmt;

pub use hoplite_wire::cell::BODY;
pub use layer::RelayLayer;
use layer::{ClientLayer, Keys};

use super::{Refused, Seed};

/// The relays that a circuit of ours may have.
pub const MAX_HOPS: usize = 8;

/// The whole running digest after a cell, as an authenticated SENDME repeats it (tor-spec, "Flow control": SENDME version 1).
pub type Digest = [u8; 20];

/// A client's end of the layers of one circuit. Hops are counted from 0, the guard.
#[derive(Default)]
pub struct ClientLayers(Vec<ClientLayer>);

impl ClientLayers {
    /// No hop yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the layer of the next hop.
    ///
    /// # Errors
    /// [`Refused::System`]; [`Refused::Unacceptable`]: there are [`MAX_HOPS`] already.
    pub fn push(&mut self, seed: &Seed) -> Result<(), Refused> {
        if self.0.len() >= MAX_HOPS {
            return Err(Refused::Unacceptable);
        }
        self.0.push(ClientLayer::new(&Keys::draw(seed)?)?);
        Ok(())
    }

    /// How many hops there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no hop.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets the hops behind the first `hops`: the circuit was truncated.
    pub fn truncate(&mut self, hops: usize) {
        self.0.truncate(hops);
    }

    /// Makes a cell for `hop` out of a body in the clear: sets its recognized and digest fields, and enciphers it for each hop on the way.
    /// `None`, and nothing done, if there is no such hop.
    pub fn encrypt_for(&mut self, hop: usize, body: &mut [u8; BODY]) -> Option<Digest> {
        let (target, before) = self.0.get_mut(..=hop)?.split_last_mut()?;
        let digest = target.originate(body);
        for layer in before.iter_mut().rev() {
            layer.forward(body);
        }
        Some(digest)
    }

    /// Deciphers a cell that came: which hop said it, and the digest after it. `None`: nobody did, and the circuit is to be closed.
    pub fn decrypt(&mut self, body: &mut [u8; BODY]) -> Option<(usize, Digest)> {
        let layers = self.0.iter_mut().enumerate();
        layers
            .map(|(hop, layer)| Some((hop, layer.backward(body)?)))
            .find_map(|found| found)
    }
}

impl fmt::Debug for ClientLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientLayers({} hops)", self.0.len())
    }
}

#[cfg(test)]
mod tests;
