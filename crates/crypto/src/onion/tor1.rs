//! The layers of relay cells: each relay of a circuit takes one off, or puts one on, and recognises the cells that are meant for it.
//! A layer is a [`RelayLayer`] at a relay and one of [`super::layers::ClientLayers`] at the client. In place, without allocation.
//! tor-spec, "Relay cell processing" ("tor1"): AES-128-CTR from a counter of zero, and a running SHA-1 in the cell's digest field. Between a client
//! and an onion service it is AES-256 and SHA3-256: rend-spec-v3, "Encrypting data between client and host".
//!
//! What it gives: a relay between learns nothing of a cell. What it does not: a relay can flip bits that another relay finds flipped
//! (tagging); the last one then recognises nothing any more, and the circuit dies. Nothing here is more than what Tor has.

use std::{fmt, hint::black_box};

use aes::{
    Aes128Enc, Aes256Enc,
    cipher::{BlockCipherEncrypt, KeyInit, consts::U16},
};
use aws_lc_rs::digest::{Context, SHA3_256};
pub use hoplite_wire::cell::BODY;
use hoplite_wire::cell::relay::{DIGEST_AT, RECOGNIZED_AT};
use sha1::{Digest as _, Sha1};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{
    Refused, Seed,
    key_stream::{BLOCK, KeyStream},
};

/// Bytes of a handshake's seed that the keys of a relay's layer take.
pub(super) const KEYS: usize = 2 * (<Sha1 as Hash>::SEED + <Sha1 as Hash>::KEY);

/// The running digest after a cell, as an authenticated SENDME repeats it (tor-spec, "Flow control": SENDME version 1): all of a SHA-1, the first 20
/// bytes of a SHA3-256.
pub type Digest = [u8; 20];

/// Who has this end of the layer between a client and an onion service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The client: it sends forward.
    Client,
    /// The service: it sends backward.
    Service,
}

// One relay's layer, at the relay's end and at the client's.
// tor-spec, "Relay cell processing"; the keys' order: "KDF-RFC5869".

/// Df, Db, Kf and Kb, one after another.
struct Keys(Zeroizing<Vec<u8>>);

impl Keys {
    /// For a layer with this hash.
    fn draw<H: Hash>(seed: &Seed) -> Result<Self, Refused> {
        let mut bytes = Zeroizing::new(vec![0; 2 * (H::SEED + H::KEY)]);
        seed.fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    #[cfg(test)]
    fn of(bytes: &[u8]) -> Self {
        Self(Zeroizing::new(bytes.to_vec()))
    }

    /// Both directions: forward, backward.
    fn directions<H: Hash>(&self) -> Result<(Direction<H>, Direction<H>), Refused> {
        let mut rest = self.0.as_slice();
        let mut take = |length| rest.split_off(..length).ok_or(Refused::System);
        let (forward_hash, backward_hash) = (take(H::SEED)?, take(H::SEED)?);
        let (forward, backward) = (take(H::KEY)?, take(H::KEY)?);
        Ok((
            Direction::new(forward_hash, forward)?,
            Direction::new(backward_hash, backward)?,
        ))
    }
}

/// The state of one direction.
struct Direction<H: Hash> {
    stream: Stream<H::Cipher>,
    hash: Running<H>,
}

impl<H: Hash> Direction<H> {
    fn new(hash: &[u8], key: &[u8]) -> Result<Self, Refused> {
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
    forward: Direction<Sha1>,
    backward: Direction<Sha1>,
}

impl RelayLayer {
    /// The layer that a handshake's seed gives.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn new(seed: &Seed) -> Result<Self, Refused> {
        Self::of(&Keys::draw::<Sha1>(seed)?)
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

/// The client's end of one layer.
pub(super) enum ClientLayer {
    /// With a relay.
    Relay(Ends<Sha1>),
    /// Between client and onion service, at either of them.
    Service(Ends<Sha3>),
}

/// What leaves, and what comes.
pub(super) struct Ends<H: Hash> {
    outgoing: Direction<H>,
    incoming: Direction<H>,
}

impl ClientLayer {
    /// The layer of a relay that a handshake's seed gives.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub(super) fn relay(seed: &Seed) -> Result<Self, Refused> {
        Self::relay_of(&Keys::draw::<Sha1>(seed)?)
    }

    fn relay_of(keys: &Keys) -> Result<Self, Refused> {
        let (outgoing, incoming) = keys.directions()?;
        Ok(Self::Relay(Ends { outgoing, incoming }))
    }

    /// "The client encrypts with Kf and decrypts with Kb; the service host does the opposite."
    ///
    /// # Errors
    /// [`Refused::System`].
    pub(super) fn service(seed: &Seed, own: Party) -> Result<Self, Refused> {
        let (forward, backward) = Keys::draw::<Sha3>(seed)?.directions()?;
        let (outgoing, incoming) = match own {
            Party::Client => (forward, backward),
            Party::Service => (backward, forward),
        };
        Ok(Self::Service(Ends { outgoing, incoming }))
    }

    /// A cell for this hop.
    pub(super) fn originate(&mut self, body: &mut [u8; BODY]) -> Digest {
        match self {
            Self::Relay(ends) => ends.outgoing.originate(body),
            Self::Service(ends) => ends.outgoing.originate(body),
        }
    }

    /// A cell for a hop behind this one.
    pub(super) fn forward(&mut self, body: &mut [u8; BODY]) {
        match self {
            Self::Relay(ends) => ends.outgoing.stream.apply(body),
            Self::Service(ends) => ends.outgoing.stream.apply(body),
        }
    }

    /// A cell that came: with a digest if this hop said it.
    pub(super) fn backward(&mut self, body: &mut [u8; BODY]) -> Option<Digest> {
        match self {
            Self::Relay(ends) => ends.incoming.recognise(body),
            Self::Service(ends) => ends.incoming.recognise(body),
        }
    }
}

// The running digest of one direction, seeded by the handshake, and the fields of a relay cell that carry it.
// tor-spec, "Relay cells": the digest covers "all data destined for this hop", with the digest field itself zero.

/// A hash, and the cipher that goes with it.
pub(super) trait Hash: Clone {
    /// Bytes that a running digest begins with (`HASH_LEN`).
    const SEED: usize;
    /// Bytes of the cipher's key (`KEY_LEN`).
    const KEY: usize;
    type Cipher: Cipher;

    fn begin(seed: &[u8]) -> Self;
    fn count(&mut self, bytes: &[u8]);
    fn digest(&self) -> Digest;
}

/// For the layers of relays.
impl Hash for Sha1 {
    const SEED: usize = 20;
    const KEY: usize = 16;
    type Cipher = Aes128Enc;

    fn begin(seed: &[u8]) -> Self {
        Self::new_with_prefix(seed)
    }

    fn count(&mut self, bytes: &[u8]) {
        self.update(bytes);
    }

    fn digest(&self) -> Digest {
        self.clone().finalize().into()
    }
}

/// SHA3-256, for the layer between client and onion service.
#[derive(Clone)]
pub(super) struct Sha3(Context);

impl Hash for Sha3 {
    const SEED: usize = 32;
    const KEY: usize = 32;
    type Cipher = Aes256Enc;

    fn begin(seed: &[u8]) -> Self {
        let mut context = Context::new(&SHA3_256);
        context.update(seed);
        Self(context)
    }

    fn count(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn digest(&self) -> Digest {
        let digest = self.0.clone().finish();
        digest.as_ref().first_chunk().copied().unwrap_or_default()
    }
}

/// The state after all cells that were meant for this hop, or said by it. It is wiped when dropped.
#[derive(Clone)]
struct Running<H>(H);

impl<H: Hash> Running<H> {
    fn new(seed: &[u8]) -> Self {
        Self(H::begin(seed))
    }

    /// Fills in the recognized and digest fields of a body, and counts it.
    fn seal(&mut self, body: &mut [u8; BODY]) -> Digest {
        set(body, RECOGNIZED_AT, [0; 2]);
        set(body, DIGEST_AT, [0; 4]);
        self.0.count(body);
        let digest = self.0.digest();
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
        after.0.count(head);
        after.0.count(&[0; 4]);
        after.0.count(rest);
        let digest = after.0.digest();
        let right: bool = digest.first_chunk::<4>()?.ct_eq(shown).into();
        right.then(|| {
            *self = after;
            digest
        })
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

// AES-CTR over one direction's cells: NIST SP 800-38A §6.5, the counter starts at zero.

/// Blocks of a cell's key stream: what the cell before has left of a block, and the body.
const STREAM: usize = (BLOCK - 1 + BODY).div_ceil(BLOCK);

const BLOCK_U64: u64 = 16;

const BODY_U64: u64 = 509;

/// A key, and how many bytes of its key stream are used up. The key is overwritten by one of zeros when dropped.
struct Stream<C: Cipher> {
    key: C,
    used: u64,
}

/// AES with keys of some length.
pub(super) trait Cipher: KeyInit + BlockCipherEncrypt<BlockSize = U16> {}

impl Cipher for Aes128Enc {}

impl Cipher for Aes256Enc {}

impl<C: Cipher> Stream<C> {
    fn new(key: &[u8]) -> Result<Self, Refused> {
        let key = C::new_from_slice(key).map_err(|_| Refused::System)?;
        Ok(Self { key, used: 0 })
    }

    /// Enciphers or deciphers the next cell. A cell is no whole number of blocks: it begins within one.
    fn apply(&mut self, body: &mut [u8; BODY]) {
        let first = u128::from(self.used / BLOCK_U64);
        let skip = usize::try_from(self.used % BLOCK_U64).unwrap_or_default();
        let stream = KeyStream::<STREAM>::new(&self.key, first..);
        stream.apply(skip, body);
        self.used = self.used.wrapping_add(BODY_U64);
    }
}

impl<C: Cipher> Drop for Stream<C> {
    fn drop(&mut self) {
        self.key = C::new(&Default::default());
        black_box(self);
    }
}

#[cfg(test)]
mod tests;
