//! The verifiable oblivious pseudorandom function of RFC 9497 over P-384 with SHA-384 (suite 4). RFC 9578 §5: the issuer evaluates a blinded point with
//! its key and proves that it was the published one, without which each client could be given a key of its own, and be known by it.

use blind_rsa_signatures::{DefaultRng, reexports::rand::CryptoRng};
use hoplite_wire::privacy_pass::{ELEMENT_LEN, PROOF_LEN, VOPRF_OUTPUT_LEN};
use p384::{NistP384, ProjectivePoint, elliptic_curve::sec1::ToSec1Point};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;
use voprf_ng::{BlindedElement, EvaluationElement, Group, Proof, VoprfClient, VoprfServer};
use zeroize::{Zeroize, Zeroizing};

use super::KeyError;

/// What a key pair is derived for. RFC 9578 §5.5.
const KEY_INFO: &[u8] = b"PrivacyPass";
/// Bytes of a scalar (`Ns`).
const SCALAR_LEN: usize = 48;

/// A point that proofs are checked against.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct PublicKey(ProjectivePoint);

impl PublicKey {
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, KeyError> {
        let element = bytes.try_into().map_err(|_| KeyError::NotAKey)?;
        let element = compressed(element).ok_or(KeyError::NotAKey)?;
        let point = NistP384::deserialize_elem(element);
        point.map(Self).map_err(|_| KeyError::NotAKey)
    }

    pub(super) fn encode(self) -> Vec<u8> {
        self.0.to_sec1_point(true).as_bytes().to_vec()
    }

    pub(super) fn blind<R: CryptoRng>(
        self,
        random: &mut R,
        input: &[u8],
    ) -> Result<([u8; ELEMENT_LEN], Blinding), KeyError> {
        let blinded = VoprfClient::<NistP384>::blind(input, random);
        let blinded = blinded.map_err(|_| KeyError::Unusable)?;
        let element = array(&blinded.message.serialize()).ok_or(KeyError::Unusable)?;
        let blinding = Blinding {
            state: blinded.state,
            key: self,
        };
        Ok((element, blinding))
    }
}

/// What would tell the issuer which token it has made: wiped.
pub(super) struct Blinding {
    state: VoprfClient<NistP384>,
    key: PublicKey,
}

impl Blinding {
    /// The output, if the proof is right.
    pub(super) fn finalize(
        &self,
        input: &[u8],
        evaluated: &[u8; ELEMENT_LEN],
        proof: &[u8; PROOF_LEN],
    ) -> Result<[u8; VOPRF_OUTPUT_LEN], KeyError> {
        let element = compressed(evaluated).ok_or(KeyError::BadResponse)?;
        let element = EvaluationElement::deserialize(element);
        let element = element.map_err(|_| KeyError::BadResponse)?;
        let proof = Proof::deserialize(proof).map_err(|_| KeyError::BadResponse)?;
        let output = self.state.finalize(input, &element, &proof, self.key.0);
        output
            .ok()
            .and_then(|output| array(&output))
            .ok_or(KeyError::BadResponse)
    }
}

/// What evaluates: with it tokens are made, and verified.
pub(super) struct SecretKey {
    server: VoprfServer<NistP384>,
}

impl SecretKey {
    pub(super) fn generate() -> Result<Self, KeyError> {
        let mut seed = Zeroizing::new([0; SCALAR_LEN]);
        let random = SystemRandom::new();
        random.fill(&mut *seed).map_err(|_| KeyError::Unusable)?;
        let server = VoprfServer::new_from_seed(&*seed, KEY_INFO);
        server
            .map(|server| Self { server })
            .map_err(|_| KeyError::Unusable)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, KeyError> {
        // A shorter one would be taken for a number with zeros before it.
        if bytes.len() != SCALAR_LEN {
            return Err(KeyError::NotAKey);
        }
        let server = VoprfServer::new_with_key(bytes);
        server
            .map(|server| Self { server })
            .map_err(|_| KeyError::NotAKey)
    }

    pub(super) fn encode(&self) -> Zeroizing<Vec<u8>> {
        // The scalar, and the public key behind it.
        let mut both = self.server.serialize();
        let scalar = both.iter().take(SCALAR_LEN).copied();
        let scalar = Zeroizing::new(scalar.collect());
        both.as_mut_slice().zeroize();
        scalar
    }

    pub(super) fn public(&self) -> PublicKey {
        PublicKey(self.server.get_public_key())
    }

    pub(super) fn evaluate(
        &self,
        blinded: &[u8; ELEMENT_LEN],
    ) -> Result<([u8; ELEMENT_LEN], [u8; PROOF_LEN]), KeyError> {
        let element = compressed(blinded).ok_or(KeyError::Misfit)?;
        let element = BlindedElement::deserialize(element).map_err(|_| KeyError::Misfit)?;
        let evaluated = self.server.blind_evaluate(&mut DefaultRng, &element);
        let evaluated = evaluated.map_err(|_| KeyError::Misfit)?;
        let element = array(&evaluated.message.serialize());
        let proof = array(&evaluated.proof.serialize());
        element.zip(proof).ok_or(KeyError::Misfit)
    }

    /// Whether `output` is what it makes of `input`. In constant time: who guesses does not learn how far he is right.
    pub(super) fn verifies(&self, input: &[u8], output: &[u8; VOPRF_OUTPUT_LEN]) -> bool {
        let right = self.server.evaluate(input);
        right.is_ok_and(|right| right.as_slice().ct_eq(output).into())
    }
}

/// A point that is written as RFC 9497 §4.4 has it: SEC1 knows another form of the same length.
fn compressed(element: &[u8; ELEMENT_LEN]) -> Option<&[u8]> {
    matches!(element, [2 | 3, ..]).then_some(element)
}

fn array<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.try_into().ok()
}
