//! The layers of relay cells: each relay of a circuit takes one off, or puts one on, and recognises the cells that are meant for it.
//! A circuit has a [`RelayLayer`] at a relay and [`ClientLayers`] at its client. In place, without allocation.
//! tor-spec, "Relay cell processing" ("tor1"): AES-128-CTR from a counter of zero, and a running SHA-1 in the cell's digest field.
//!
//! What it gives: a relay between learns nothing of a cell. What it does not: a relay can flip bits that another relay finds flipped
//! (tagging); the last one then recognises nothing any more, and the circuit dies. Nothing here is more than what Tor has.

use std::fmt;

use aws_lc_rs::{
    cipher::{AES_128, EncryptingKey, EncryptionContext, UnboundCipherKey},
    iv::FixedLength,
};
pub use hoplite_wire::cell::BODY;
use hoplite_wire::cell::relay::{DIGEST_AT, RECOGNIZED_AT};
use sha1::{Digest as _, Sha1};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

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

// One relay's layer, at the relay's end and at the client's.
// tor-spec, "Relay cell processing"; the keys' order: "KDF-RFC5869".

/// Df, Db, Kf and Kb, one after another.
struct Keys(Zeroizing<[u8; 72]>);

impl Keys {
    fn draw(seed: &Seed) -> Result<Self, Refused> {
        let mut bytes = Zeroizing::new([0; 72]);
        seed.fill(bytes.as_mut_slice())?;
        Ok(Self(bytes))
    }

    #[cfg(test)]
    fn of(bytes: &[u8; 72]) -> Self {
        Self(Zeroizing::new(*bytes))
    }

    /// Both directions: forward, backward.
    fn directions(&self) -> Result<(Direction, Direction), Refused> {
        let (forward_hash, rest) = self.0.split_first_chunk::<20>().ok_or(Refused::System)?;
        let (backward_hash, rest) = rest.split_first_chunk::<20>().ok_or(Refused::System)?;
        let (forward, rest) = rest.split_first_chunk().ok_or(Refused::System)?;
        let (backward, _) = rest.split_first_chunk().ok_or(Refused::System)?;
        Ok((
            Direction::new(forward_hash, forward)?,
            Direction::new(backward_hash, backward)?,
        ))
    }
}

/// The state of one direction.
struct Direction {
    stream: Stream,
    hash: Running,
}

impl Direction {
    fn new(hash: &[u8; 20], key: &[u8; 16]) -> Result<Self, Refused> {
        Ok(Self {
            stream: Stream::new(key)?,
            hash: Running::new(hash),
        })
    }

    fn originate(&mut self, body: &mut [u8; BODY]) -> Digest {
        let digest = self.hash.seal(body);
        self.stream.apply(body);
        digest
    }

    fn recognise(&mut self, body: &mut [u8; BODY]) -> Option<Digest> {
        self.stream.apply(body);
        self.hash.recognise(body)
    }
}

/// A relay's end of one circuit's layer. Cells must be given in the order in which they came.
pub struct RelayLayer {
    forward: Direction,
    backward: Direction,
}

impl RelayLayer {
    /// The layer that a handshake's seed gives.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn new(seed: &Seed) -> Result<Self, Refused> {
        Self::of(&Keys::draw(seed)?)
    }

    fn of(keys: &Keys) -> Result<Self, Refused> {
        let (forward, backward) = keys.directions()?;
        Ok(Self { forward, backward })
    }

    /// Takes the layer off a cell from the client. With a digest: it is for this relay. `None`: it goes on to the next, or, at the last, the
    /// circuit is to be closed.
    pub fn forward(&mut self, body: &mut [u8; BODY]) -> Option<Digest> {
        self.forward.recognise(body)
    }

    /// Puts the layer on a cell that came from the next relay.
    pub fn backward(&mut self, body: &mut [u8; BODY]) {
        self.backward.stream.apply(body);
    }

    /// Makes a cell for the client out of a body in the clear: sets its recognized and digest fields and enciphers it.
    pub fn originate(&mut self, body: &mut [u8; BODY]) -> Digest {
        self.backward.originate(body)
    }
}

impl fmt::Debug for RelayLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelayLayer(hidden)")
    }
}

/// The client's end of one relay's layer.
struct ClientLayer {
    forward: Direction,
    backward: Direction,
}

impl ClientLayer {
    fn new(keys: &Keys) -> Result<Self, Refused> {
        let (forward, backward) = keys.directions()?;
        Ok(Self { forward, backward })
    }

    /// A cell for this relay.
    fn originate(&mut self, body: &mut [u8; BODY]) -> Digest {
        self.forward.originate(body)
    }

    /// A cell for a relay behind this one.
    fn forward(&mut self, body: &mut [u8; BODY]) {
        self.forward.stream.apply(body);
    }

    /// A cell that came: with a digest if this relay said it.
    fn backward(&mut self, body: &mut [u8; BODY]) -> Option<Digest> {
        self.backward.recognise(body)
    }
}

// The running SHA-1 of one direction, seeded by the handshake, and the fields of a relay cell that carry it.
// tor-spec, "Relay cells": the digest covers "all data destined for this hop", with the digest field itself zero.

/// The state after all cells that were meant for this hop, or said by it. It is wiped when dropped.
#[derive(Clone)]
struct Running(Sha1);

impl Running {
    fn new(seed: &[u8; 20]) -> Self {
        Self(Sha1::new_with_prefix(seed))
    }

    /// Fills in the recognized and digest fields of a body, and counts it.
    fn seal(&mut self, body: &mut [u8; BODY]) -> Digest {
        set(body, RECOGNIZED_AT, [0; 2]);
        set(body, DIGEST_AT, [0; 4]);
        self.0.update(&body[..]);
        let digest = self.digest();
        let [a, b, c, d, ..] = digest;
        set(body, DIGEST_AT, [a, b, c, d]);
        digest
    }

    /// Counts a body if it is recognised: its recognized field is zero and its digest right. Else nothing has happened.
    fn recognise(&mut self, body: &[u8; BODY]) -> Option<Digest> {
        let (head, shown, rest) = parts(body)?;
        if !matches!(head, [_, 0, 0, ..]) {
            return None;
        }
        let mut after = self.clone();
        after.0.update(head);
        after.0.update([0; 4]);
        after.0.update(rest);
        let digest = after.digest();
        let right: bool = digest.first_chunk::<4>()?.ct_eq(shown).into();
        right.then(|| {
            *self = after;
            digest
        })
    }

    fn digest(&self) -> Digest {
        self.0.clone().finalize().into()
    }
}

/// What is before the digest field, the field, and what is behind it.
fn parts(body: &[u8; BODY]) -> Option<(&[u8; DIGEST_AT], &[u8; 4], &[u8])> {
    let (head, rest) = body.split_first_chunk()?;
    let (shown, rest) = rest.split_first_chunk()?;
    Some((head, shown, rest))
}

fn set<const N: usize>(body: &mut [u8; BODY], at: usize, value: [u8; N]) {
    if let Some(field) = body.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *field = value;
    }
}

// AES-128-CTR over one direction's cells: NIST SP 800-38A §6.5, the counter starts at zero.

const BLOCK: usize = 16;

const BLOCK_U64: u64 = 16;

const BODY_U64: u64 = 509;

/// A key, and how many bytes of its key stream are used up. The library wipes the key.
struct Stream {
    key: EncryptingKey,
    used: u64,
}

impl Stream {
    fn new(key: &[u8; 16]) -> Result<Self, Refused> {
        let key = UnboundCipherKey::new(&AES_128, key).map_err(|_| Refused::System)?;
        let key = EncryptingKey::ctr(key).map_err(|_| Refused::System)?;
        Ok(Self { key, used: 0 })
    }

    /// Enciphers or deciphers the next cell. Where the cipher failed, which it has no reason to, the body is wiped: it never leaves in the clear.
    ///
    /// A cell is no whole number of blocks, and the library starts at a block: the body is moved behind as many bytes as the block before has
    /// used up. One call for a cell is faster than keeping the rest of a block and two calls.
    fn apply(&mut self, body: &mut [u8; BODY]) {
        let mut room = [0; BLOCK + BODY];
        if self.apply_in(&mut room, body).is_none() {
            body.zeroize();
        }
        // What stands before the body is key stream; behind it, where the body is, the caller has the same.
        if let Some(head) = room.first_chunk_mut::<BLOCK>() {
            head.zeroize();
        }
        self.used = self.used.wrapping_add(BODY_U64);
    }

    fn apply_in(&self, room: &mut [u8; BLOCK + BODY], body: &mut [u8; BODY]) -> Option<()> {
        let skip = usize::try_from(self.used % BLOCK_U64).ok()?;
        let room = room.get_mut(..skip + BODY)?;
        room.get_mut(skip..)?.copy_from_slice(body);
        let counter = u128::from(self.used / BLOCK_U64).to_be_bytes();
        let counter = EncryptionContext::Iv128(FixedLength::from(counter));
        self.key.less_safe_encrypt(room, counter).ok()?;
        body.copy_from_slice(room.get(skip..)?);
        Some(())
    }
}

#[cfg(test)]
mod tests;
