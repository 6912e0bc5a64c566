//! The layers of relay cells by Counter Galois Onion (CGO): proposal 359, `Relay=6`. In place, without allocation.
//!
//! Every cell is enciphered whole, so that who flips a bit of it on the way makes noise of all of it and of every cell behind it: a relay cannot
//! tag a cell for another one. A cell has 16 bytes before its message: at the hop that it is for they turn out to be the nonce that both ends
//! expect. After each such cell both ends draw new keys from the old ones and forget these. The relay always enciphers, the client always deciphers:
//! what a relay changes is not malleable.
//!
//! The ends have new keys with every cell: a schedule is made for one direction of AES alone, and written over the one before. That wipes it; a library
//! that wipes each one byte by byte takes longer for it than for all else of the cell.

use std::{fmt, hint::black_box};

use aes::{
    Aes128Dec, Aes128Enc,
    cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit, consts::U16},
};
pub use hoplite_wire::cell::BODY;
use hoplite_wire::cell::Command;
use polyval::{Polyval, universal_hash::UniversalHash};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{
    Refused, Seed,
    key_stream::{BLOCK, Block, KeyStream, xor},
};

/// Bytes before the message of a cell, and of what an authenticated SENDME repeats.
pub const TAG: usize = 16;

/// A cell's first bytes as the relay end of its last layer has them: an authenticated SENDME repeats them.
pub type Tag = [u8; TAG];

/// What is enciphered by the stream.
const MESSAGE: usize = BODY - TAG;
/// Blocks of the key stream that are made for a message: of the last one nothing is used, but they are made eight at a time.
const STREAM: usize = 32;
/// Blocks of what the first block is tweaked with: the tag before, the command, the message; and zeros up to a whole block.
const TWEAK: usize = (TAG + 1 + MESSAGE).div_ceil(BLOCK);
/// Where in the key stream new keys are, in blocks: behind all that a message can take.
const RENEWAL: u8 = 31;

/// Bytes of a handshake's seed that the keys of a layer take.
pub(super) const KEYS: usize = size_of::<[State; 2]>();

/// What one direction begins with: the keys of the first block and of its tweak, those of the stream and of its counter, and the nonce.
type State = [Block; 5];

/// A relay's end of one circuit's layer. Cells must be given in the order in which they came, each with the command of its cell.
pub struct RelayLayer {
    forward: Direction<Aes128Enc>,
    backward: Direction<Aes128Enc>,
}

impl RelayLayer {
    /// The layer that a handshake's seed gives.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn new(seed: &Seed) -> Result<Self, Refused> {
        let [forward, backward] = directions(seed)?;
        Ok(Self { forward, backward })
    }

    /// Takes the layer off a cell from the client. With a tag: it is for this relay. `None`: it goes on to the next, or, at the last, the circuit
    /// is to be closed.
    pub fn forward(&mut self, command: Command, body: &mut [u8; BODY]) -> Option<Tag> {
        let came = *tag(body);
        let counter = self.forward.apply(command, body);
        self.forward.last = *tag(body);
        self.forward.is_for_this_hop(body).then(|| {
            self.forward.renew(&counter);
            came
        })
    }

    /// Puts the layer on a cell that came from the next relay.
    pub fn backward(&mut self, command: Command, body: &mut [u8; BODY]) {
        self.pass_back(command, body);
    }

    fn pass_back(&mut self, command: Command, body: &mut [u8; BODY]) -> Counter {
        let counter = self.backward.apply(command, body);
        self.backward.last = *tag(body);
        counter
    }

    /// Makes a cell for the client out of a body in the clear, whose first [`TAG`] bytes it sets.
    pub fn originate(&mut self, command: Command, body: &mut [u8; BODY]) -> Tag {
        self.backward.address(body);
        let counter = self.pass_back(command, body);
        self.backward.renew(&counter);
        self.backward.last
    }
}

impl fmt::Debug for RelayLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cgo::RelayLayer(hidden)")
    }
}

/// The client's end of one relay's layer.
pub struct ClientLayer {
    forward: Direction<Aes128Dec>,
    backward: Direction<Aes128Dec>,
}

impl ClientLayer {
    /// The layer that a handshake's seed gives.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn new(seed: &Seed) -> Result<Self, Refused> {
        let [forward, backward] = directions(seed)?;
        Ok(Self { forward, backward })
    }

    /// Makes a cell for this relay out of a body in the clear, whose first [`TAG`] bytes it sets; the layers of the relays before come next.
    pub fn originate(&mut self, command: Command, body: &mut [u8; BODY]) -> Tag {
        self.forward.address(body);
        let counter = self.pass_on(command, body);
        self.forward.renew(&counter);
        *tag(body)
    }

    /// Puts the layer on a cell for a relay behind this one.
    pub fn forward(&mut self, command: Command, body: &mut [u8; BODY]) {
        self.pass_on(command, body);
    }

    fn pass_on(&mut self, command: Command, body: &mut [u8; BODY]) -> Counter {
        let before = *tag(body);
        let counter = self.forward.apply(command, body);
        self.forward.last = before;
        counter
    }

    /// Takes the layer off a cell that came: with a tag if this relay said it.
    pub fn backward(&mut self, command: Command, body: &mut [u8; BODY]) -> Option<Tag> {
        let came = *tag(body);
        let counter = self.backward.apply(command, body);
        self.backward.last = came;
        self.backward.is_for_this_hop(body).then(|| {
            self.backward.renew(&counter);
            came
        })
    }
}

impl fmt::Debug for ClientLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cgo::ClientLayer(hidden)")
    }
}

/// Forward, backward.
fn directions<B: BlockCipher>(seed: &Seed) -> Result<[Direction<B>; 2], Refused> {
    let mut states = Zeroizing::new([State::default(); 2]);
    seed.fill(states.as_flattened_mut().as_flattened_mut())?;
    Ok(states.each_ref().map(Direction::new))
}

/// One direction of one layer: the keys of now, those of the wide block (UIV+) among them, the nonce by which the next cell for this hop is known,
/// and the tag of the cell before.
struct Direction<B: BlockCipher> {
    block: B,
    tweak: Polyval,
    stream: Aes128Enc,
    counter: Polyval,
    nonce: Block,
    last: Tag,
}

/// What the blocks of a cell's key stream are made of, each with its number in the lowest six bits, which are zero here.
type Counter = Zeroizing<u128>;

impl<B: BlockCipher> Direction<B> {
    fn new([block, tweak, stream, counter, nonce]: &State) -> Self {
        Self {
            block: B::new(block.into()),
            tweak: Polyval::new(tweak.into()),
            stream: Aes128Enc::new(stream.into()),
            counter: Polyval::new(counter.into()),
            nonce: *nonce,
            last: [0; TAG],
        }
    }

    /// Writes new keys and a new nonce over the old ones.
    fn set(&mut self, [block, tweak, stream, counter, nonce]: &State) {
        self.block = B::new(block.into());
        self.tweak = Polyval::new(tweak.into());
        self.stream = Aes128Enc::new(stream.into());
        self.counter = Polyval::new(counter.into());
        self.nonce = *nonce;
    }

    /// New keys and a new nonce, out of the key stream behind the cell that has been enciphered.
    fn renew(&mut self, counter: &Counter) {
        let state = self.key_stream(counter, RENEWAL);
        self.set(state.blocks());
    }

    /// The key stream from the block of this number on.
    fn key_stream<const N: usize>(&self, counter: &Counter, from: u8) -> KeyStream<N> {
        let counter = **counter;
        KeyStream::new(
            &self.stream,
            (from..).map(|number| counter | u128::from(number)),
        )
    }

    /// Sets what a cell for the other end begins with.
    fn address(&self, body: &mut [u8; BODY]) {
        *parts(body).0 = self.nonce;
    }

    fn is_for_this_hop(&self, body: &[u8; BODY]) -> bool {
        // As numbers: byte by byte, the library takes a tenth of what the whole cell does.
        let [nonce, tag] = [&self.nonce, tag(body)].map(|tag| u128::from_ne_bytes(*tag));
        nonce.ct_eq(&tag).into()
    }

    /// The layer, on or off.
    fn apply(&mut self, Command(command): Command, body: &mut [u8; BODY]) -> Counter {
        let (first, message) = parts(body);
        if B::BEFORE_STREAM {
            self.apply_first(command, first, message);
        }
        let counter = self.counter(first);
        self.key_stream::<STREAM>(&counter, 0).apply(0, message);
        if !B::BEFORE_STREAM {
            self.apply_first(command, first, message);
        }
        counter
    }

    /// The first block, tweaked by all else (LRW2).
    fn apply_first(&mut self, command: u8, first: &mut Block, message: &[u8]) {
        let mask = self.mask(command, message);
        xor(first, &mask.to_be_bytes());
        self.block.apply(first.into());
        xor(first, &mask.to_be_bytes());
    }

    fn mask(&mut self, command: u8, message: &[u8]) -> Zeroizing<u128> {
        // The caller has the same.
        let mut tweak = [[0; BLOCK]; TWEAK];
        let (before, rest) = tweak.as_flattened_mut().split_at_mut(TAG);
        before.copy_from_slice(&self.last);
        let (word, rest) = rest.split_at_mut(1);
        word.copy_from_slice(&[command]);
        let (text, _zeros) = rest.split_at_mut(MESSAGE);
        text.copy_from_slice(message);
        hash(&mut self.tweak, &tweak)
    }

    fn counter(&mut self, nonce: &Block) -> Counter {
        let mut counter = hash(&mut self.counter, &[*nonce]);
        *counter &= !0b11_1111;
        counter
    }
}

fn hash(key: &mut Polyval, blocks: &[Block]) -> Zeroizing<u128> {
    key.update(polyval::Block::cast_slice_from_core(blocks));
    Zeroizing::new(u128::from_be_bytes(key.finalize_reset().into()))
}

/// Keys are overwritten by those of zeros.
impl<B: BlockCipher> Drop for Direction<B> {
    fn drop(&mut self) {
        self.set(&State::default());
        black_box(self);
    }
}

/// AES-128 over the first block: a relay enciphers it, before the stream, which begins with what comes out; a client deciphers it, behind.
trait BlockCipher: KeyInit<KeySize = U16> {
    const BEFORE_STREAM: bool;
    fn apply(&self, block: &mut aes::Block);
}

impl BlockCipher for Aes128Enc {
    const BEFORE_STREAM: bool = true;

    fn apply(&self, block: &mut aes::Block) {
        self.encrypt_block(block);
    }
}

impl BlockCipher for Aes128Dec {
    const BEFORE_STREAM: bool = false;

    fn apply(&self, block: &mut aes::Block) {
        self.decrypt_block(block);
    }
}

fn tag(body: &[u8; BODY]) -> &Tag {
    body.first_chunk().unwrap_or(&[0; TAG])
}

/// The first block, and the message behind it.
fn parts(body: &mut [u8; BODY]) -> (&mut Block, &mut [u8]) {
    body.split_first_chunk_mut().expect("a body is longer")
}

#[cfg(test)]
mod tests;
