//! The same layers, written down as the specification says them: every digest over all octets anew, every key stream block by block.
//! Of the primitives AES comes as a block cipher, SHA-1 from another library than the one that is tested.

use aws_lc_rs::cipher::{AES_128, EncryptingKey, EncryptionContext, UnboundCipherKey};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use super::*;

/// One direction of one hop.
struct Plain {
    said: Vec<u8>,
    key: EncryptingKey,
    used: usize,
}

impl Plain {
    fn new(seed: &[u8], key: &[u8]) -> Self {
        let key = UnboundCipherKey::new(&AES_128, key).expect("a key");
        Self {
            said: seed.to_vec(),
            key: EncryptingKey::ecb(key).expect("a cipher"),
            used: 0,
        }
    }

    fn seal(&mut self, body: &mut [u8; BODY]) -> Digest {
        self.said.extend_from_slice(body);
        let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, &self.said);
        body[5..9].copy_from_slice(&digest.as_ref()[..4]);
        digest.as_ref().try_into().expect("20 octets")
    }

    fn cipher(&mut self, body: &mut [u8; BODY]) {
        for octet in body {
            let mut block = (self.used as u128 / 16).to_be_bytes();
            let key = &self.key;
            key.less_safe_encrypt(&mut block, EncryptionContext::None)
                .expect("a block");
            *octet ^= block[self.used % 16];
            self.used += 1;
        }
    }
}

/// Forward and backward of each hop.
fn hops(number: usize) -> Vec<(Plain, Plain)> {
    let keys = (0..number).map(keys_of);
    keys.map(|keys| {
        (
            Plain::new(&keys[..20], &keys[40..56]),
            Plain::new(&keys[20..40], &keys[56..]),
        )
    })
    .collect()
}

#[test]
fn every_cell_is_that_of_the_plain_construction_in_both_directions() {
    let mut circuit = Circuit::of(3);
    let mut plain = hops(3);
    for number in 0..40 {
        let hop = number % 3;
        let (mut ours, mut theirs) = (message(number), message(number));
        let digest = circuit.client.encrypt_for(hop, &mut ours);
        assert_eq!(digest, Some(plain[hop].0.seal(&mut theirs)));
        let way = plain[..=hop].iter_mut().rev();
        way.for_each(|hop| hop.0.cipher(&mut theirs));
        assert_eq!(ours, theirs, "forward, cell {number}");

        let (mut ours, mut theirs) = (message(1000 + number), message(1000 + number));
        let digest = circuit.say(hop, &mut ours);
        assert_eq!(digest, plain[hop].1.seal(&mut theirs));
        let way = plain[..=hop].iter_mut().rev();
        way.for_each(|hop| hop.1.cipher(&mut theirs));
        assert_eq!(ours, theirs, "backward, cell {number}");
    }
}
