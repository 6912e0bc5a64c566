//! The transforms of forwarded mode: what is done to a packet between client and relay, in place and without allocation.
//! `masque` seals and opens with it at the client's end, `relay` at its own.
//! draft-ietf-masque-quic-proxy, "Packet Transforms"; the blocks and the counter: NIST SP 800-38A §6.1, §6.5, B.1.

use std::fmt;

use aws_lc_rs::{
    cipher::{
        AES_128, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext,
        UnboundCipherKey,
    },
    error::Unspecified,
    iv::FixedLength,
};
use hoplite_wire::forwarding::{self, Key};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

#[cfg(test)]
mod tests;

/// An AES block: the octets behind the connection id that start the counter.
const BLOCK: usize = 16;

/// Why no transform can be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("making a key for forwarded packets: the system has no randomness, or no AES")]
pub struct NoCipher;

/// A packet too short for its header, its connection id and the 16 octets that start the counter; it is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packet is too short to be scrambled")]
pub struct TooShort;

impl From<Unspecified> for NoCipher {
    fn from(_: Unspecified) -> Self {
        Self
    }
}

/// One side's key, ready for use: unauthenticated re-encryption that keeps length, connection id and the Header Form bit.
/// Its security needs 16 octets behind the connection id that never repeat, which QUIC version 1 gives. It is wiped when dropped.
pub struct Scramble {
    /// `k1`.
    body: EncryptingKey,
    /// `k2`, forth and back.
    block: EncryptingKey,
    inverse: DecryptingKey,
}

impl Scramble {
    /// Prepares a key.
    ///
    /// # Errors
    /// The library has no AES.
    pub fn new(key: &Key) -> Result<Self, NoCipher> {
        let (k1, k2) = key.reveal().split_at(BLOCK);
        Ok(Self {
            body: EncryptingKey::ctr(UnboundCipherKey::new(&AES_128, k1)?)?,
            block: EncryptingKey::ecb(UnboundCipherKey::new(&AES_128, k2)?)?,
            inverse: DecryptingKey::ecb(UnboundCipherKey::new(&AES_128, k2)?)?,
        })
    }

    /// A key that nobody has: "a 32-byte random symmetric key".
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn fresh_key() -> Result<Key, NoCipher> {
        let mut octets = Zeroizing::new([0; 32]);
        SystemRandom::new()
            .fill(octets.as_mut_slice())
            .map_err(|_| NoCipher)?;
        Ok(Key::new(octets))
    }

    /// Scrambles a packet with a short header whose connection id has `id_len` octets.
    ///
    /// # Errors
    /// See [`TooShort`].
    pub fn seal(&self, packet: &mut [u8], id_len: usize) -> Result<(), TooShort> {
        let iv = *counter(packet, id_len)?;
        let mut sealed = iv;
        let done = self
            .block
            .less_safe_encrypt(&mut sealed, EncryptionContext::None);
        done.map_err(|_| TooShort)?;
        self.apply(packet, id_len, &iv, &sealed)
    }

    /// The inverse of [`Scramble::seal`].
    ///
    /// # Errors
    /// See [`TooShort`].
    pub fn open(&self, packet: &mut [u8], id_len: usize) -> Result<(), TooShort> {
        let mut iv = *counter(packet, id_len)?;
        let done = self.inverse.decrypt(&mut iv, DecryptionContext::None);
        done.map_err(|_| TooShort)?;
        self.apply(packet, id_len, &iv, &iv)
    }

    /// Runs the counter from `iv` over the first octet and what follows the block, and puts `block` there.
    ///
    /// The counter's input is not contiguous: the first octet stands in front of the id. So it is put where the block ends, which
    /// is just before the rest, until the counter has run.
    fn apply(
        &self,
        packet: &mut [u8],
        id_len: usize,
        iv: &[u8; BLOCK],
        block: &[u8; BLOCK],
    ) -> Result<(), TooShort> {
        let (head, body) = packet
            .split_at_mut_checked(id_len + BLOCK)
            .ok_or(TooShort)?;
        let (Some(first), Some(input)) = (head.first_mut(), body.first_mut()) else {
            return Err(TooShort);
        };
        *input = *first;
        let context = EncryptionContext::Iv128(FixedLength::from(iv));
        let done = self.body.less_safe_encrypt(body, context);
        done.map_err(|_| TooShort)?;
        // "This ensures that the Header Form bit is zero".
        *first = body.first().ok_or(TooShort)? & 0x7f;
        *counter(packet, id_len)? = *block;
        Ok(())
    }
}

/// The block behind the id.
fn counter(packet: &mut [u8], id_len: usize) -> Result<&mut [u8; BLOCK], TooShort> {
    let start = id_len.checked_add(1).ok_or(TooShort)?;
    let rest = packet.get_mut(start..).ok_or(TooShort)?;
    rest.first_chunk_mut().ok_or(TooShort)
}

impl fmt::Debug for Scramble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scramble(hidden)")
    }
}

/// What is done to the packets of a flow at one end: it seals what it sends with its own key and opens with the peer's.
#[derive(Debug)]
pub enum Transform {
    /// Nothing.
    Identity,
    /// Each side's key.
    Scramble(Box<Pair>),
}

/// The keys of both sides.
#[derive(Debug)]
pub struct Pair {
    own: Scramble,
    peer: Scramble,
}

impl Transform {
    /// Scrambles with `own` what is sent, opens with the key of the `peer` what is received.
    ///
    /// # Errors
    /// The library has no AES.
    pub fn scramble(own: &Key, peer: &Key) -> Result<Self, NoCipher> {
        let own = Scramble::new(own)?;
        let peer = Scramble::new(peer)?;
        Ok(Self::Scramble(Box::new(Pair { own, peer })))
    }

    /// Its name in fields and configurations.
    pub const fn kind(&self) -> forwarding::Transform {
        match self {
            Self::Identity => forwarding::Transform::Identity,
            Self::Scramble(_) => forwarding::Transform::Scramble,
        }
    }

    /// Transforms a packet that is about to be sent; its virtual id has `id_len` octets.
    ///
    /// # Errors
    /// See [`TooShort`].
    pub fn seal(&self, packet: &mut [u8], id_len: usize) -> Result<(), TooShort> {
        match self {
            Self::Identity => Ok(()),
            Self::Scramble(pair) => pair.own.seal(packet, id_len),
        }
    }

    /// Restores a packet that was received; its virtual id has `id_len` octets.
    ///
    /// # Errors
    /// See [`TooShort`].
    pub fn open(&self, packet: &mut [u8], id_len: usize) -> Result<(), TooShort> {
        match self {
            Self::Identity => Ok(()),
            Self::Scramble(pair) => pair.peer.open(packet, id_len),
        }
    }
}
