//! The layers of relay cells by Counter Galois Onion (CGO): proposal 359, `Relay=6`. In place, without allocation.
//!
//! Every cell is enciphered whole, so that who flips a bit of it on the way makes noise of all of it and of every cell behind it: a relay cannot
//! tag a cell for another one. A cell has 16 bytes before its message: at the hop that it is for they turn out to be the nonce that both ends
//! expect. After each such cell both ends draw new keys from the old ones and forget these. The relay always enciphers, the client always deciphers:
//! what a relay changes is not malleable.

use std::{fmt, hint::black_box};

use aws_lc_rs::{
    cipher::{
        AES_128, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext,
        UnboundCipherKey,
    },
    iv::FixedLength,
};
pub use hoplite_wire::cell::BODY;
use hoplite_wire::cell::Command;
use polyval::{Polyval, universal_hash::UniversalHash};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

use super::{Refused, Seed};

/// Bytes before the message of a cell, and of what an authenticated SENDME repeats.
pub const TAG: usize = 16;

/// A cell's first bytes as the relay end of its last layer has them: an authenticated SENDME repeats them.
pub type Tag = [u8; TAG];

/// Bytes of an AES block, of its key, and of a key of the universal hash.
const BLOCK: usize = 16;
/// What is enciphered by the stream.
const MESSAGE: usize = BODY - TAG;
/// What the first block is tweaked with: the tag before, the command, the message; and zeros up to a whole block.
const TWEAK: usize = 512;
/// What one direction begins with: four keys and the nonce.
const STATE: usize = 5 * BLOCK;
/// Where in the key stream new keys are, in blocks: behind all that a message can take. A counter begins at a multiple of 64, so that adding it is
/// setting these bits.
const RENEWAL: u8 = 31;

/// Bytes of a handshake's seed that the keys of a layer take.
pub(super) const KEYS: usize = 2 * STATE;

type Block = [u8; BLOCK];
type State = Zeroizing<[u8; STATE]>;

/// A relay's end of one circuit's layer. Cells must be given in the order in which they came, each with the command of its cell.
pub struct RelayLayer {
    forward: Direction<Encrypt>,
    backward: Direction<Encrypt>,
}

impl RelayLayer {
    /// The layer that a handshake's seed gives.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn new(seed: &Seed) -> Result<Self, Refused> {
        let (forward, backward) = directions(seed)?;
        Ok(Self { forward, backward })
    }

    /// Takes the layer off a cell from the client. With a tag: it is for this relay. `None`: it goes on to the next, or, at the last, the circuit
    /// is to be closed.
    pub fn forward(&mut self, command: Command, body: &mut [u8; BODY]) -> Option<Tag> {
        let came = *tag(body);
        self.forward.apply(command, body);
        self.forward.last = Zeroizing::new(*tag(body));
        if !self.forward.expects(tag(body)) {
            return None;
        }
        let nonce = self.forward.nonce.clone();
        self.forward.renew(&nonce, body)?;
        Some(came)
    }

    /// Puts the layer on a cell that came from the next relay.
    pub fn backward(&mut self, command: Command, body: &mut [u8; BODY]) {
        self.backward.apply(command, body);
        self.backward.last = Zeroizing::new(*tag(body));
    }

    /// Makes a cell for the client out of a body in the clear, whose first [`TAG`] bytes it sets.
    pub fn originate(&mut self, command: Command, body: &mut [u8; BODY]) -> Tag {
        *tag_mut(body) = *self.backward.nonce;
        self.backward(command, body);
        let sent = *tag(body);
        self.backward.renew(&sent, body);
        sent
    }
}

impl fmt::Debug for RelayLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cgo::RelayLayer(hidden)")
    }
}

/// The client's end of one relay's layer.
pub struct ClientLayer {
    forward: Direction<Decrypt>,
    backward: Direction<Decrypt>,
}

impl ClientLayer {
    /// The layer that a handshake's seed gives.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn new(seed: &Seed) -> Result<Self, Refused> {
        let (forward, backward) = directions(seed)?;
        Ok(Self { forward, backward })
    }

    /// Makes a cell for this relay out of a body in the clear, whose first [`TAG`] bytes it sets; the layers of the relays before come next.
    pub fn originate(&mut self, command: Command, body: &mut [u8; BODY]) -> Tag {
        *tag_mut(body) = *self.forward.nonce;
        self.forward(command, body);
        let (sent, nonce) = (*tag(body), self.forward.nonce.clone());
        self.forward.renew(&nonce, body);
        sent
    }

    /// Puts the layer on a cell for a relay behind this one.
    pub fn forward(&mut self, command: Command, body: &mut [u8; BODY]) {
        let before = *tag(body);
        self.forward.apply(command, body);
        self.forward.last = Zeroizing::new(before);
    }

    /// Takes the layer off a cell that came: with a tag if this relay said it.
    pub fn backward(&mut self, command: Command, body: &mut [u8; BODY]) -> Option<Tag> {
        let came = *tag(body);
        self.backward.apply(command, body);
        self.backward.last = Zeroizing::new(came);
        if !self.backward.expects(tag(body)) {
            return None;
        }
        self.backward.renew(&came, body)?;
        Some(came)
    }
}

impl fmt::Debug for ClientLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cgo::ClientLayer(hidden)")
    }
}

/// Forward, backward.
fn directions<B: BlockCipher>(seed: &Seed) -> Result<(Direction<B>, Direction<B>), Refused> {
    let mut bytes = Zeroizing::new([0; KEYS]);
    seed.fill(bytes.as_mut_slice())?;
    let (forward, backward) = bytes.split_first_chunk().ok_or(Refused::System)?;
    let backward = backward.first_chunk().ok_or(Refused::System)?;
    Ok((Direction::new(forward)?, Direction::new(backward)?))
}

// One direction of one layer: the keys of now, the nonce by which the next cell for this hop is known, and the tag of the cell before.

struct Direction<B> {
    keys: Keys<B>,
    nonce: Zeroizing<Block>,
    last: Zeroizing<Block>,
}

impl<B: BlockCipher> Direction<B> {
    fn new(state: &[u8; STATE]) -> Result<Self, Refused> {
        let (keys, nonce) = state.split_first_chunk().ok_or(Refused::System)?;
        let nonce = nonce.first_chunk().ok_or(Refused::System)?;
        Ok(Self {
            keys: Keys::new(keys)?,
            nonce: Zeroizing::new(*nonce),
            last: Zeroizing::new([0; BLOCK]),
        })
    }

    /// The layer, on or off. Where a cipher failed, which it has no reason to, the body is wiped: it never leaves in the clear.
    fn apply(&self, command: Command, body: &mut [u8; BODY]) {
        if self.keys.apply(&self.last, command.0, body).is_none() {
            body.zeroize();
        }
    }

    fn expects(&self, tag: &Tag) -> bool {
        self.nonce.ct_eq(tag).into()
    }

    /// New keys and a new nonce. Without them the other end is not understood any more, and the circuit ends; the body is wiped.
    fn renew(&mut self, nonce: &Block, body: &mut [u8; BODY]) -> Option<()> {
        let renewed = self.keys.renewal(nonce).map(|state| Self::new(&state));
        let Some(Ok(renewed)) = renewed else {
            body.zeroize();
            return None;
        };
        self.keys = renewed.keys;
        self.nonce = renewed.nonce;
        Some(())
    }
}

/// Keys of the wide block (UIV+): of the first block and its tweak, and of the stream over the message. The library wipes those of AES.
struct Keys<B> {
    block: B,
    tweak: Polyval,
    stream: EncryptingKey,
    counter: Polyval,
}

impl<B: BlockCipher> Keys<B> {
    fn new(bytes: &[u8; 4 * BLOCK]) -> Result<Self, Refused> {
        let mut keys = bytes.as_chunks::<BLOCK>().0.iter();
        let mut next = || keys.next().ok_or(Refused::System);
        Ok(Self {
            block: B::new(key(next()?)?)?,
            tweak: Polyval::new(next()?.into()),
            stream: EncryptingKey::ctr(key(next()?)?).map_err(|_| Refused::System)?,
            counter: Polyval::new(next()?.into()),
        })
    }

    fn apply(&self, last: &Block, command: u8, body: &mut [u8; BODY]) -> Option<()> {
        if B::BEFORE_STREAM {
            self.first(last, command, body)?;
        }
        let (first, message) = body.split_first_chunk_mut::<BLOCK>()?;
        self.xor_stream(first, 0, message)?;
        if !B::BEFORE_STREAM {
            self.first(last, command, body)?;
        }
        Some(())
    }

    /// The first block, tweaked by all else (LRW2).
    fn first(&self, last: &Block, command: u8, body: &mut [u8; BODY]) -> Option<()> {
        let (first, message) = body.split_first_chunk_mut::<BLOCK>()?;
        let mask = self.mask(last, command, message)?;
        xor(first, &mask);
        self.block.apply(first)?;
        xor(first, &mask);
        Some(())
    }

    fn mask(&self, last: &Block, command: u8, message: &[u8]) -> Option<Zeroizing<Block>> {
        // The caller has the same.
        let mut tweak = [0; TWEAK];
        let (before, rest) = tweak.split_first_chunk_mut::<BLOCK>()?;
        *before = *last;
        let (word, rest) = rest.split_first_mut()?;
        *word = command;
        rest.get_mut(..MESSAGE)?.copy_from_slice(message);
        let mut hash = self.tweak.clone();
        hash.update(polyval::Block::cast_slice_from_core(tweak.as_chunks().0));
        Some(Zeroizing::new(hash.finalize().into()))
    }

    /// The stream that `nonce` leads to, from this block of it on.
    fn xor_stream(&self, nonce: &Block, from: u8, bytes: &mut [u8]) -> Option<()> {
        let mut hash = self.counter.clone();
        hash.update(&[(*nonce).into()]);
        let mut counter: Block = hash.finalize().into();
        let low = counter.last_mut()?;
        *low = *low & 0b1100_0000 | from;
        let counter = EncryptionContext::Iv128(FixedLength::from(counter));
        self.stream.less_safe_encrypt(bytes, counter).ok()?;
        Some(())
    }

    /// What the next keys and the next nonce are made of.
    fn renewal(&self, nonce: &Block) -> Option<State> {
        let mut state = Zeroizing::new([0; STATE]);
        self.xor_stream(nonce, RENEWAL, state.as_mut_slice())?;
        Some(state)
    }
}

/// Hashing clones a hash's key, and a library that wipes each clone byte by byte takes as long as the whole cell; so the keys are overwritten here.
impl<B> Drop for Keys<B> {
    fn drop(&mut self) {
        for hash in [&mut self.tweak, &mut self.counter] {
            *hash = Polyval::new(&[0; BLOCK].into());
            black_box(hash);
        }
    }
}

/// AES-128 over the first block: a relay enciphers it, before the stream, which begins with what comes out; a client deciphers it, behind.
trait BlockCipher: Sized {
    const BEFORE_STREAM: bool;
    fn new(key: UnboundCipherKey) -> Result<Self, Refused>;
    fn apply(&self, block: &mut Block) -> Option<()>;
}

struct Encrypt(EncryptingKey);

impl BlockCipher for Encrypt {
    const BEFORE_STREAM: bool = true;

    fn new(key: UnboundCipherKey) -> Result<Self, Refused> {
        EncryptingKey::ecb(key)
            .map(Self)
            .map_err(|_| Refused::System)
    }

    fn apply(&self, block: &mut Block) -> Option<()> {
        self.0.encrypt(block).ok().map(|_| ())
    }
}

struct Decrypt(DecryptingKey);

impl BlockCipher for Decrypt {
    const BEFORE_STREAM: bool = false;

    fn new(key: UnboundCipherKey) -> Result<Self, Refused> {
        DecryptingKey::ecb(key)
            .map(Self)
            .map_err(|_| Refused::System)
    }

    fn apply(&self, block: &mut Block) -> Option<()> {
        let decrypted = self.0.decrypt(block, DecryptionContext::None);
        decrypted.ok().map(|_| ())
    }
}

fn key(bytes: &Block) -> Result<UnboundCipherKey, Refused> {
    UnboundCipherKey::new(&AES_128, bytes).map_err(|_| Refused::System)
}

fn xor(block: &mut Block, with: &Block) {
    for (byte, other) in block.iter_mut().zip(with) {
        *byte ^= other;
    }
}

fn tag(body: &[u8; BODY]) -> &Tag {
    body.first_chunk().unwrap_or(&[0; TAG])
}

fn tag_mut(body: &mut [u8; BODY]) -> &mut Tag {
    let (first, _) = body.split_first_chunk_mut().expect("a body is longer");
    first
}

#[cfg(test)]
mod tests;
