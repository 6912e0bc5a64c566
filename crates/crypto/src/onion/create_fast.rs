//! CREATE_FAST: a client and the first relay of a circuit, whose channel has its own encryption already, agree on keys without public-key cryptography.
//! It proves nothing and hides nothing from who can read the channel. Clients and authorities of C tor use it for circuits of one hop, to a relay's
//! directory. tor-spec, "CREATE_FAST/CREATED_FAST cells", "KDF-TOR" (SHA-1).

use std::fmt;

use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use super::{CircuitNonce, Refused, Seed, rsa::sha1};

/// Bytes of each half.
pub const HALF: usize = 20;

/// What a relay answers.
pub struct Answer {
    /// The relay's half.
    pub half: [u8; HALF],
    /// What shows that it has the client's half (`KH`).
    pub proof: [u8; HALF],
    /// The keys of its layer.
    pub seed: Seed,
    /// What binds messages to the circuit: `KH` as well.
    pub nonce: CircuitNonce,
}

/// A relay's answer to a client's half.
///
/// # Errors
/// [`Refused::System`].
pub fn server(client: &[u8; HALF]) -> Result<Answer, Refused> {
    let mut half = [0; HALF];
    let filled = SystemRandom::new().fill(&mut half);
    filled.map_err(|_| Refused::System)?;
    Ok(agreed(client, half))
}

fn agreed(client: &[u8; HALF], half: [u8; HALF]) -> Answer {
    let mut secret = Zeroizing::new([0; 2 * HALF]);
    let (first, second) = secret.split_at_mut(HALF);
    first.copy_from_slice(client);
    second.copy_from_slice(&half);
    let proof = block(&secret, 0);
    Answer {
        half,
        proof: *proof,
        seed: Seed::kdf_tor(secret),
        nonce: CircuitNonce::of(proof),
    }
}

/// `H(K0 | [number])`: block 0 is `KH`, the keys come behind it.
pub(super) fn block(secret: &[u8; 2 * HALF], number: u8) -> Zeroizing<[u8; HALF]> {
    let mut text = Zeroizing::new([number; 2 * HALF + 1]);
    text.split_at_mut(2 * HALF).0.copy_from_slice(secret);
    Zeroizing::new(sha1(text.as_slice()))
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("create_fast::Answer(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::hex, *};

    /// Computed by Python's hashlib from the two halves 00…13 and 14…27.
    #[test]
    fn the_proof_and_the_keys_are_those_of_the_specification() {
        let halves: Vec<u8> = (0..40).collect();
        let (client, relay) = halves.split_at(HALF);
        let answer = agreed(
            client.try_into().expect("20 bytes"),
            relay.try_into().expect("20 bytes"),
        );
        assert_eq!(
            answer.proof[..],
            hex("ee4290b7cadc050642954479851159fd567f8cf3")
        );
        let mut keys = [0; 72];
        answer.seed.fill(&mut keys).expect("keys");
        assert_eq!(
            keys[..],
            hex(
                "9e917161fbf90a6e0016f447e7b0c384fea2312acdb67f371199aade028288f642c193300a48d9e169024d75bc21fa80d52349328e7d0ce219337e74a980c2672535f15661c9aa31"
            )
        );
        assert!(answer.nonce.as_bytes() == &answer.proof);
        assert!(answer.seed.fill(&mut vec![0; 20 * 255 + 1]).is_err());
    }

    #[test]
    fn each_answer_has_a_half_of_its_own() {
        let [one, other] = [(); 2].map(|()| server(&[7; HALF]).expect("random"));
        assert_ne!(one.half, other.half);
        assert_ne!(one.proof, other.proof);
    }
}
