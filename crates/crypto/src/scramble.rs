//! The transforms of forwarded mode: what is done to a packet between client and relay, in place and without allocation.
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

/// An AES block: the bytes behind the connection id that start the counter.
const BLOCK: usize = 16;

/// Why no transform can be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("making a key for forwarded packets: the system has no randomness, or no AES")]
pub struct NoCipher;

/// A packet too short for its header, its connection id and the 16 bytes that start the counter; it is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packet is too short to be scrambled")]
pub struct TooShort;

impl From<Unspecified> for NoCipher {
    fn from(_: Unspecified) -> Self {
        Self
    }
}

/// One side's key, ready for use: unauthenticated re-encryption that keeps length, connection id and the Header Form bit.
/// Its security needs 16 bytes behind the connection id that never repeat, which QUIC version 1 gives. It is wiped when dropped.
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
        let mut bytes = Zeroizing::new([0; 32]);
        SystemRandom::new()
            .fill(bytes.as_mut_slice())
            .map_err(|_| NoCipher)?;
        Ok(Key::new(bytes))
    }

    /// Scrambles a packet with a short header whose connection id has `id_len` bytes.
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

    /// Runs the counter from `iv` over the first byte and what follows the block, and puts `block` there.
    ///
    /// The counter's input is not contiguous: the first byte stands in front of the id. So it is put where the block ends, which
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

    /// Transforms a packet that is about to be sent; its virtual id has `id_len` bytes.
    ///
    /// # Errors
    /// See [`TooShort`].
    pub fn seal(&self, packet: &mut [u8], id_len: usize) -> Result<(), TooShort> {
        match self {
            Self::Identity => Ok(()),
            Self::Scramble(pair) => pair.own.seal(packet, id_len),
        }
    }

    /// Restores a packet that was received; its virtual id has `id_len` bytes.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::onion::testing::hex;

    /// Appendix A of the draft.
    const KEY: &str = "f13a915f96fb8919d9d8655488ffea5778cac8cffbc27cd38c173bcbad955cff";

    const CLEAR: &str = "500123456789abcdef0123456789abcdef012345671ba3bed7043a21632023048def32f4f8f260c290490413d24ea6";

    const SEALED: &str = "320123456789abcdef0123456789abcdef012345678ebe6906e16ec5fc90a02c0109994c3fed03f9d5d88c5f408bb6";

    const ID: usize = 20;

    fn key(bytes: [u8; 32]) -> Key {
        Key::new(Zeroizing::new(bytes))
    }

    fn drafts() -> Scramble {
        let bytes = hex(KEY).try_into().expect("32 bytes");
        Scramble::new(&key(bytes)).expect("a cipher")
    }

    fn any_scramble() -> impl Strategy<Value = Scramble> {
        any::<[u8; 32]>().prop_map(|bytes| Scramble::new(&key(bytes)).expect("a cipher"))
    }

    #[test]
    fn the_drafts_example_is_sealed_as_it_says() {
        let mut packet = hex(CLEAR);
        drafts().seal(&mut packet, ID).expect("long enough");
        assert_eq!(packet, hex(SEALED));
    }

    #[test]
    fn the_drafts_example_is_opened_as_it_says() {
        let mut packet = hex(SEALED);
        drafts().open(&mut packet, ID).expect("long enough");
        assert_eq!(packet, hex(CLEAR));
    }

    /// The procedure of the draft, word for word, on single blocks.
    fn by_the_book(scramble: &Scramble, k1: &[u8], packet: &[u8], id_len: usize) -> Vec<u8> {
        let k1 =
            EncryptingKey::ecb(UnboundCipherKey::new(&AES_128, k1).expect("a key")).expect("AES");
        let ecb = |key: &EncryptingKey, mut block: [u8; BLOCK]| {
            let done = key.less_safe_encrypt(&mut block, EncryptionContext::None);
            done.map(|_| block).expect("a block")
        };
        let (cid, rest) = packet[1..].split_at(id_len);
        let iv: [u8; BLOCK] = rest[..BLOCK].try_into().expect("a block");
        let mut body = [&packet[..1], &rest[BLOCK..]].concat();
        let mut count = u128::from_be_bytes(iv);
        for chunk in body.chunks_mut(BLOCK) {
            let stream = ecb(&k1, count.to_be_bytes());
            chunk
                .iter_mut()
                .zip(stream)
                .for_each(|(byte, key)| *byte ^= key);
            count = count.wrapping_add(1);
        }
        let sealed = ecb(&scramble.block, iv);
        [&[body[0] & 0x7f][..], cid, &sealed, &body[1..]].concat()
    }

    #[test]
    fn the_counter_is_as_wide_as_a_block() {
        let scramble = drafts();
        for last in [[0xff; BLOCK].as_slice(), &[0xff; 4], &[0xff; 8]] {
            let mut packet = vec![0x40; 400];
            packet[1 + BLOCK - last.len()..=BLOCK].copy_from_slice(last);
            let wanted = by_the_book(&scramble, &hex(KEY)[..BLOCK], &packet, 0);
            scramble.seal(&mut packet, 0).expect("long enough");
            assert_eq!(packet, wanted);
        }
    }

    #[test]
    fn the_shortest_packet_has_a_block_behind_its_id() {
        for id_len in [0, 8, 20, 255] {
            let mut packet = vec![0x41; 1 + id_len + BLOCK];
            let clear = packet.clone();
            let short = &mut packet.clone()[1..];
            assert_eq!(drafts().seal(short, id_len), Err(TooShort));
            assert_eq!(drafts().seal(&mut packet, id_len), Ok(()));
            assert_ne!(packet, clear);
            assert_eq!(drafts().open(&mut packet, id_len), Ok(()));
            assert_eq!(packet, clear);
        }
    }

    #[test]
    fn what_one_end_seals_the_other_opens() {
        let (a, b) = (
            Scramble::fresh_key().expect("a key"),
            Scramble::fresh_key().expect("a key"),
        );
        let client = Transform::scramble(&a, &b).expect("a cipher");
        let relay = Transform::scramble(&b, &a).expect("a cipher");
        for (sender, receiver) in [(&client, &relay), (&relay, &client)] {
            let mut packet = hex(CLEAR);
            sender.seal(&mut packet, ID).expect("long enough");
            assert_ne!(packet, hex(CLEAR));
            receiver.open(&mut packet, ID).expect("long enough");
            assert_eq!(packet, hex(CLEAR));
        }
        let mut packet = hex(CLEAR);
        Transform::Identity.seal(&mut packet, ID).expect("anything");
        assert_eq!(packet, hex(CLEAR));
    }

    #[test]
    fn fresh_keys_differ_and_nothing_is_printed() {
        let (a, b) = (
            Scramble::fresh_key().expect("a key"),
            Scramble::fresh_key().expect("a key"),
        );
        assert_ne!(a.reveal(), b.reveal());
        let shown = format!("{:?}", Transform::scramble(&a, &b).expect("a cipher"));
        assert_eq!(shown.matches("hidden").count(), 2);
        assert!(!shown.contains(|letter: char| letter.is_ascii_digit()));
    }

    proptest! {
        #[test]
        fn an_opened_packet_is_what_was_sealed(scramble in any_scramble(), packet in proptest::collection::vec(any::<u8>(), 17..1600), id_len in 0_usize..=255) {
            let mut clear = packet;
            clear[0] &= 0x7f;
            let mut packet = clear.clone();
            match scramble.seal(&mut packet, id_len) {
                Ok(()) => {
                    prop_assert_eq!(packet.len(), clear.len());
                    prop_assert_eq!(&packet[1..=id_len], &clear[1..=id_len]);
                    prop_assert_eq!(packet[0] & 0x80, 0);
                    prop_assert_eq!(scramble.open(&mut packet, id_len), Ok(()));
                }
                Err(TooShort) => prop_assert!(clear.len() < 1 + id_len + BLOCK),
            }
            prop_assert_eq!(packet, clear);
        }

        #[test]
        fn a_packet_is_sealed_by_the_book(bytes: [u8; 32], packet in proptest::collection::vec(any::<u8>(), 37..200), id_len in 0_usize..=20) {
            let scramble = Scramble::new(&key(bytes)).expect("a cipher");
            let wanted = by_the_book(&scramble, &bytes[..BLOCK], &packet, id_len);
            let mut packet = packet;
            prop_assert_eq!(scramble.seal(&mut packet, id_len), Ok(()));
            prop_assert_eq!(packet, wanted);
        }

        #[test]
        fn any_bytes_are_opened_or_refused(packet: Vec<u8>, id_len: usize) {
            let scramble = drafts();
            for id_len in [id_len, id_len % 32] {
                let (mut a, mut b) = (packet.clone(), packet.clone());
                let opened = scramble.open(&mut a, id_len);
                prop_assert_eq!(opened, scramble.seal(&mut b, id_len));
                prop_assert_eq!(a.len(), packet.len());
                if opened.is_err() {
                    prop_assert_eq!(&a, &packet);
                    prop_assert_eq!(&b, &packet);
                }
            }
        }
    }
}
