//! Connection ids that a load balancer can read, and nobody else: the number of the server inside is encrypted.
//! draft-ietf-quic-load-balancers-21, §3 (the first octet), §5 (the formats), Appendix B (the vectors of the tests).
//!
//! We do not make ids in the clear, because whoever sees them would know which of a client's connections have one relay.

use std::fmt;

use aws_lc_rs::cipher::{
    AES_128, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, UnboundCipherKey,
};
use ring::hmac;
use zeroize::Zeroizing;

use crate::NoCipher;

/// An AES block.
const BLOCK: usize = 16;

/// "the server ID and nonce lengths MUST sum to 19 octets or less."
const MOST: usize = 19;

/// "The nonce length MUST be at least 4 octets."
const LEAST_NONCE: usize = 4;

/// The configuration that "is always unroutable", and all above it.
const UNROUTABLE: u8 = 0b111;

/// Why ids cannot be made or read as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoutableError {
    /// There are seven configurations.
    #[error("expected a configuration of 0 to 6")]
    Config,
    /// The lengths are not those that the format has.
    #[error(
        "expected a server id of at least 1 byte and a nonce of at least 4, 19 bytes together at most"
    )]
    Length,
    /// No AES.
    #[error(transparent)]
    Cipher(#[from] NoCipher),
}

/// The key of the stateless resets of `server` (RFC 9000 §10.3): its own, so that no other relay of the fleet can be made to end its connections.
#[must_use]
pub fn fleet_reset_key(key: &[u8; BLOCK], server: &[u8]) -> Zeroizing<[u8; 32]> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let mut context = hmac::Context::with_key(&key);
    context.update(b"hoplite fleet reset");
    context.update(server);
    let mut bytes = Zeroizing::new([0; 32]);
    let tag = context.sign();
    bytes
        .iter_mut()
        .zip(tag.as_ref())
        .for_each(|(to, from)| *to = *from);
    bytes
}

/// One configuration of a fleet: what its relays and its balancers share. The key is wiped when this is dropped.
pub struct RoutableIds {
    config: u8,
    server: usize,
    /// Server id and nonce together.
    length: usize,
    forth: EncryptingKey,
    back: DecryptingKey,
}

/// An id, or what is inside of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RoutableId {
    bytes: [u8; 1 + MOST],
    length: usize,
}

impl RoutableId {
    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// An id says who is connected to whom.
impl fmt::Debug for RoutableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RoutableId(hidden)")
    }
}

impl RoutableIds {
    /// Configuration `config` with server ids and nonces of these lengths, in bytes.
    ///
    /// # Errors
    /// See [`RoutableError`].
    pub fn new(
        config: u8,
        server: usize,
        nonce: usize,
        key: &[u8; BLOCK],
    ) -> Result<Self, RoutableError> {
        if config >= UNROUTABLE {
            return Err(RoutableError::Config);
        }
        let length = server.checked_add(nonce).filter(|length| *length <= MOST);
        let length = length.filter(|_| server >= 1 && nonce >= LEAST_NONCE);
        let cipher = || UnboundCipherKey::new(&AES_128, key).map_err(NoCipher::from);
        Ok(Self {
            config,
            server,
            length: length.ok_or(RoutableError::Length)?,
            forth: EncryptingKey::ecb(cipher()?).map_err(NoCipher::from)?,
            back: DecryptingKey::ecb(cipher()?).map_err(NoCipher::from)?,
        })
    }

    /// How long its ids are, in bytes.
    #[must_use]
    pub const fn id_length(&self) -> usize {
        1 + self.length
    }

    /// The id of `server` with this nonce, which tells it from all others. `None` if one of them has not the length that was configured.
    #[must_use]
    pub fn seal(&self, server: &[u8], nonce: &[u8]) -> Option<RoutableId> {
        if server.len() != self.server || server.len() + nonce.len() != self.length {
            return None;
        }
        let mut plain = [0; MOST];
        let inside = server.iter().chain(nonce);
        plain
            .iter_mut()
            .zip(inside)
            .for_each(|(to, from)| *to = *from);
        let body = self.encrypted(plain)?;
        let mut bytes = [0; 1 + MOST];
        let (first, rest) = bytes.split_first_mut()?;
        // "the remaining 5 bits in the first octet of the Connection ID are reserved to express the length of the following connection ID".
        *first = self.config << 5 | u8::try_from(self.length).ok()?;
        rest.copy_from_slice(&body);
        Some(RoutableId {
            bytes,
            length: self.id_length(),
        })
    }

    /// Which server an id is of: one that begins with `id`, as what stands in a short header does. `None` if it is unroutable: of another
    /// configuration, or too short. Any bytes of the right shape have a server, most of them one that is not there.
    #[must_use]
    pub fn open(&self, id: &[u8]) -> Option<RoutableId> {
        let (first, rest) = id.split_first()?;
        if first >> 5 != self.config || usize::from(first & 0x1f) != self.length {
            return None;
        }
        let mut body = [0; MOST];
        let rest = rest.get(..self.length)?;
        body.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        let plain = self.decrypted(body)?;
        let mut bytes = [0; 1 + MOST];
        let server = plain.iter().take(self.server);
        bytes
            .iter_mut()
            .zip(server)
            .for_each(|(to, from)| *to = *from);
        Some(RoutableId {
            bytes,
            length: self.server,
        })
    }

    fn encrypted(&self, mut text: [u8; MOST]) -> Option<[u8; MOST]> {
        // "When the nonce length and server ID length sum to exactly 16 octets, the server MUST use a single-pass encryption algorithm."
        if self.length == BLOCK {
            let block = text.first_chunk_mut::<BLOCK>()?;
            self.forth
                .less_safe_encrypt(block, EncryptionContext::None)
                .ok()?;
            return Some(text);
        }
        let mut halves = Halves::split(&text, self.length);
        for pass in 1..=4 {
            halves.pass(pass, &self.forth)?;
        }
        Some(halves.joined())
    }

    fn decrypted(&self, mut text: [u8; MOST]) -> Option<[u8; MOST]> {
        if self.length == BLOCK {
            let block = text.first_chunk_mut::<BLOCK>()?;
            self.back.decrypt(block, DecryptionContext::None).ok()?;
            return Some(text);
        }
        let mut halves = Halves::split(&text, self.length);
        // "it can conclude after 3 passes as long as the server ID is entirely contained in left_0".
        let last = if self.server <= self.length / 2 { 2 } else { 1 };
        for pass in (last..=4).rev() {
            halves.pass(pass, &self.forth)?;
        }
        Some(halves.joined())
    }
}

impl fmt::Debug for RoutableIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RoutableIds(hidden)")
    }
}

/// The two halves of a text, of which a round changes one by the other (a Feistel network).
struct Halves {
    left: [u8; BLOCK],
    right: [u8; BLOCK],
    length: usize,
}

impl Halves {
    /// "If plaintext_len is odd, right_0 clears its first four bits, and left_0 clears its last four bits."
    fn split(text: &[u8; MOST], length: usize) -> Self {
        let mut halves = Self {
            left: [0; BLOCK],
            right: [0; BLOCK],
            length,
        };
        let half = halves.half();
        let left = text.iter().take(half);
        halves
            .left
            .iter_mut()
            .zip(left)
            .for_each(|(to, from)| *to = *from);
        let right = text.iter().take(length).skip(length - half);
        halves
            .right
            .iter_mut()
            .zip(right)
            .for_each(|(to, from)| *to = *from);
        halves.clear();
        halves
    }

    const fn half(&self) -> usize {
        self.length.div_ceil(2)
    }

    /// Takes the middle bits that a half has no part in, where they share a byte.
    fn clear(&mut self) {
        if self.length % 2 == 1 {
            if let Some(last) = self.left.get_mut(self.length / 2) {
                *last &= 0xf0;
            }
            self.right[0] &= 0x0f;
        }
    }

    /// One round: the odd ones change the right half, the even ones the left. Each is its own inverse.
    fn pass(&mut self, pass: u8, key: &EncryptingKey) -> Option<()> {
        let half = self.half();
        let (from, to) = match pass % 2 {
            1 => (&self.left, &mut self.right),
            _ => (&self.right, &mut self.left),
        };
        // "ExpandResult { input_bytes(...), ZeroPad(...), length(8), pass(8) }"
        let mut block = *from;
        block[BLOCK - 2] = u8::try_from(self.length).ok()?;
        block[BLOCK - 1] = pass;
        key.less_safe_encrypt(&mut block, EncryptionContext::None)
            .ok()?;
        to.iter_mut()
            .zip(block)
            .take(half)
            .for_each(|(to, by)| *to ^= by);
        self.clear();
        Some(())
    }

    fn joined(&self) -> [u8; MOST] {
        let mut text = [0; MOST];
        let half = self.half();
        text.iter_mut()
            .zip(self.left)
            .take(half)
            .for_each(|(to, from)| *to |= from);
        let behind = text.iter_mut().skip(self.length - half);
        behind
            .zip(self.right)
            .take(half)
            .for_each(|(to, from)| *to |= from);
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::onion::testing::hex;

    fn ids(config: u8, server: usize, nonce: usize, key: &str) -> RoutableIds {
        let key = hex(key).try_into().expect("16 bytes");
        RoutableIds::new(config, server, nonce, &key).expect("a configuration")
    }

    /// Appendix B.2. Its last line says configuration 3 and shows an id of configuration 0; the rest of the id is the same.
    const VECTORS: [(u8, &str, &str, &str); 4] = [
        (0, "ed793a", "ee080dbf", "0720b1d07b359d3c"),
        (
            1,
            "ed793a51d49b8f5fab65",
            "ee080dbf48",
            "2fcc381bc74cb4fbad2823a3d1f8fed2",
        ),
        (
            2,
            "ed793a51d49b8f5f",
            "ee080dbf48c0d1e5",
            "504dd2d05a7b0de9b2b9907afb5ecf8cc3",
        ),
        (
            0,
            "ed793a51d49b8f5fab",
            "ee080dbf48c0d1e55d",
            "125779c9cc86beb3a3a4a3ca96fce4bfe0cdbc",
        ),
    ];

    #[test]
    fn the_drafts_ids_are_made_and_read_as_it_says() {
        for (config, server, nonce, id) in VECTORS {
            let (server, nonce) = (hex(server), hex(nonce));
            let key = "8f95f09245765f80256934e50c66207f";
            let ids = ids(config, server.len(), nonce.len(), key);
            let sealed = ids.seal(&server, &nonce).expect("sealed");
            assert_eq!(sealed.as_bytes(), hex(id));
            assert_eq!(ids.open(&hex(id)).expect("opened").as_bytes(), server);
        }
    }

    /// §5.4.2.3.
    #[test]
    fn the_drafts_worked_example_comes_out() {
        let ids = ids(0, 3, 4, "fdf726a9893ec05c0632d3956680baf0");
        let sealed = ids.seal(&hex("31441a"), &hex("9c69c275")).expect("sealed");
        assert_eq!(sealed.as_bytes(), hex("0767947d29be054a"));
    }

    #[test]
    fn what_the_draft_does_not_allow_is_refused() {
        let new = |config, server, nonce| RoutableIds::new(config, server, nonce, &[7; 16]).err();
        assert_eq!(new(7, 2, 5), Some(RoutableError::Config));
        for (server, nonce) in [(0, 5), (1, 3), (10, 10), (usize::MAX, 4)] {
            assert_eq!(new(0, server, nonce), Some(RoutableError::Length));
        }
        assert_eq!(new(6, 15, 4), None);
    }

    #[test]
    fn an_id_of_another_configuration_or_cut_short_is_unroutable() {
        let ids = ids(1, 3, 4, "8f95f09245765f80256934e50c66207f");
        let id = ids.seal(&[1, 2, 3], &[4; 4]).expect("sealed");
        let id = id.as_bytes();
        assert!(ids.open(id).is_some());
        assert!(ids.open(&id[..7]).is_none());
        assert!(ids.open(&[]).is_none());
        let other = [&[id[0] ^ 0x20], &id[1..]].concat();
        assert!(ids.open(&other).is_none());
    }

    #[test]
    fn every_relay_of_a_fleet_has_a_key_of_resets_of_its_own() {
        let key = |fleet: u8, server: u8| *fleet_reset_key(&[fleet; 16], &[0, server]);
        assert_eq!(key(1, 1), key(1, 1));
        assert_ne!(key(1, 1), key(1, 2));
        assert_ne!(key(1, 1), key(2, 1));
    }

    #[test]
    fn neither_key_nor_id_is_printed() {
        let ids = ids(1, 3, 4, "8f95f09245765f80256934e50c66207f");
        let id = ids.seal(&[1, 2, 3], &[4; 4]);
        let shown = format!("{ids:?} {id:?}");
        assert!(!shown.contains(|letter: char| letter.is_ascii_digit()));
    }

    proptest! {
        #[test]
        fn the_server_of_an_id_is_whose_it_is(
            key: [u8; 16], text: [u8; 19], config in 0_u8..7, server in 1_usize..=15, nonce in 4_usize..=18,
        ) {
            prop_assume!(server + nonce <= 19);
            let ids = RoutableIds::new(config, server, nonce, &key).expect("a configuration");
            let (whose, rest) = text.split_at(server);
            let id = ids.seal(whose, &rest[..nonce]).expect("sealed");
            prop_assert_eq!(id.as_bytes().len(), ids.id_length());
            let opened = ids.open(id.as_bytes()).expect("opened");
            prop_assert_eq!(opened.as_bytes(), whose);
            // What follows the id in a short header is not looked at.
            let longer = [id.as_bytes(), &text].concat();
            prop_assert_eq!(ids.open(&longer), Some(opened));
        }

        #[test]
        fn ids_of_different_nonces_differ(key: [u8; 16], a: [u8; 5], b: [u8; 5]) {
            prop_assume!(a != b);
            let ids = RoutableIds::new(0, 2, 5, &key).expect("a configuration");
            prop_assert_ne!(ids.seal(&[0, 1], &a), ids.seal(&[0, 1], &b));
        }

        #[test]
        fn any_bytes_are_opened_or_unroutable(id: Vec<u8>, server in 1_usize..=15) {
            let ids = RoutableIds::new(0, server, 4, &[9; 16]).expect("a configuration");
            if let Some(opened) = ids.open(&id) {
                prop_assert_eq!(opened.as_bytes().len(), server);
            }
        }
    }
}
