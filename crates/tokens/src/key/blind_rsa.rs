//! Blind RSA of 2048 bits with SHA-384, PSS and no randomness before the message (RSABSSA-SHA384-PSS-Deterministic, RFC 9474). RFC 9578 §6.

use blind_rsa_signatures::{
    BlindSignature, BlindingResult, DefaultRng, Deterministic, KeyPair, PSS, Sha384,
    reexports::rand::CryptoRng,
};
use hoplite_wire::privacy_pass::SIGNATURE_LEN;
use ring::signature::{RSA_PSS_2048_8192_SHA384, RsaPublicKeyComponents};
use zeroize::{Zeroize, Zeroizing};

use super::KeyError;

type BlindKey = blind_rsa_signatures::PublicKey<Sha384, PSS, Deterministic>;
type BlindSecret = blind_rsa_signatures::SecretKey<Sha384, PSS, Deterministic>;

/// The only size of tokens of type 2.
const BITS: usize = 2048;

/// What verifies a signature.
#[derive(Clone, PartialEq)]
pub(super) struct PublicKey {
    modulus: Vec<u8>,
    exponent: Vec<u8>,
    blind: BlindKey,
}

impl PublicKey {
    /// Reads DER, with the parameters of RSASSA-PSS.
    pub(super) fn decode(spki: &[u8]) -> Result<Self, KeyError> {
        Self::of(BlindKey::from_spki(spki).map_err(|_| KeyError::NotAKey)?)
    }

    fn of(blind: BlindKey) -> Result<Self, KeyError> {
        let (modulus, exponent) = (blind.components().n(), blind.components().e());
        let leading = |bytes: &[u8]| bytes.iter().take_while(|byte| **byte == 0).count();
        let (from, of) = (leading(&modulus), leading(&exponent));
        let (modulus, exponent) = (modulus.split_at(from).1, exponent.split_at(of).1);
        if modulus.len() != SIGNATURE_LEN {
            return Err(KeyError::NotAKey);
        }
        Ok(Self {
            modulus: modulus.to_vec(),
            exponent: exponent.to_vec(),
            blind,
        })
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, KeyError> {
        self.blind.to_spki().map_err(|_| KeyError::NotAKey)
    }

    pub(super) fn verifies(&self, input: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
        let key = RsaPublicKeyComponents {
            n: &self.modulus,
            e: &self.exponent,
        };
        key.verify(&RSA_PSS_2048_8192_SHA384, input, signature)
            .is_ok()
    }

    pub(super) fn blind<R: CryptoRng>(
        &self,
        random: &mut R,
        input: &[u8],
    ) -> Result<([u8; SIGNATURE_LEN], Blinding), KeyError> {
        let blinding = self.blind.blind(random, input);
        let blinding = blinding.map_err(|_| KeyError::Unusable)?;
        let blinded = blinding.blind_message.as_slice().try_into();
        let blinded = blinded.map_err(|_| KeyError::Unusable)?;
        let key = self.blind.clone();
        Ok((blinded, Blinding { blinding, key }))
    }
}

/// What would tell the issuer which token it has signed: wiped.
pub(super) struct Blinding {
    blinding: BlindingResult,
    key: BlindKey,
}

impl Drop for Blinding {
    fn drop(&mut self) {
        self.blinding.secret.0.zeroize();
    }
}

impl Blinding {
    pub(super) fn finalize(
        &self,
        input: &[u8],
        signature: &[u8; SIGNATURE_LEN],
    ) -> Result<[u8; SIGNATURE_LEN], KeyError> {
        let signature = BlindSignature(signature.to_vec());
        let finished = self
            .key
            .finalize(&signature, &self.blinding, input)
            .map_err(|_| KeyError::BadResponse)?;
        finished
            .as_slice()
            .try_into()
            .map_err(|_| KeyError::BadResponse)
    }
}

/// What signs.
pub(super) struct SecretKey(BlindSecret);

impl SecretKey {
    pub(super) fn generate() -> Result<Self, KeyError> {
        let pair = KeyPair::<Sha384, PSS, Deterministic>::generate(&mut DefaultRng, BITS);
        pair.map(|pair| Self(pair.sk))
            .map_err(|_| KeyError::Unusable)
    }

    pub(super) fn from_pem(pem: &str) -> Result<Self, KeyError> {
        BlindSecret::from_pem(pem)
            .map(Self)
            .map_err(|_| KeyError::NotAKey)
    }

    pub(super) fn to_pem(&self) -> Result<Zeroizing<String>, KeyError> {
        let pem = self.0.to_pem().map_err(|_| KeyError::Unusable)?;
        Ok(Zeroizing::new(pem))
    }

    pub(super) fn public(&self) -> Result<PublicKey, KeyError> {
        PublicKey::of(self.0.public_key().map_err(|_| KeyError::NotAKey)?)
    }

    pub(super) fn sign(
        &self,
        blinded: &[u8; SIGNATURE_LEN],
    ) -> Result<[u8; SIGNATURE_LEN], KeyError> {
        let signature = self.0.blind_sign(blinded).map_err(|_| KeyError::Misfit)?;
        signature
            .as_slice()
            .try_into()
            .map_err(|_| KeyError::Misfit)
    }
}
