//! Blind RSA of 2048 bits with SHA-384, PSS and no randomness before the message (RSABSSA-SHA384-PSS-Deterministic, RFC 9474). RFC 9578 §6.

use blind_rsa_signatures::{
    BlindSignature, BlindingResult, DefaultRng, Deterministic, KeyPair, PSS, Sha384,
    reexports::rand::CryptoRng,
};
use hoplite_wire::privacy_pass::SIGNATURE_LEN;
use parking_lot::Mutex;
use ring::{
    rand::{SecureRandom, SystemRandom},
    signature::{RSA_PSS_2048_8192_SHA384, RsaPublicKeyComponents},
};
use rsa::{
    BoxedUint, RsaPrivateKey,
    hazmat::{rsa_decrypt_and_check, rsa_encrypt},
    traits::PublicKeyParts,
};
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
pub(super) struct SecretKey {
    key: BlindSecret,
    /// One for each that signs at a time.
    masks: Mutex<Vec<Mask>>,
}

/// A message is multiplied by `r^e` before it meets the secret exponent, and the signature by `r^-1` behind it, so that no client knows what that
/// computes with: time tells nothing of the key (RFC 9474 §7.1). The inverse is a third of what a signature costs: both are squared for the next.
struct Mask {
    factor: BoxedUint,
    inverse: BoxedUint,
    left: u32,
}

/// As OpenSSL has it.
const MASK_LASTS: u32 = 32;

impl Mask {
    fn new(key: &RsaPrivateKey) -> Result<Self, KeyError> {
        let mut bytes = Zeroizing::new([0; SIGNATURE_LEN]);
        loop {
            let drawn = SystemRandom::new().fill(&mut *bytes);
            drawn.map_err(|_| KeyError::Unusable)?;
            let mut r = number(&*bytes).ok_or(KeyError::Unusable)?;
            // Half of what is drawn is too large.
            if r < *key.n().as_ref()
                && let Some(inverse) = r.invert_mod(key.n()).into()
            {
                let factor = rsa_encrypt(key, &r).map_err(|_| KeyError::Unusable);
                r.zeroize();
                return Ok(Self {
                    factor: factor?,
                    inverse,
                    left: MASK_LASTS,
                });
            }
        }
    }

    fn next(mut self, key: &RsaPrivateKey) -> Option<Self> {
        self.left = self.left.checked_sub(1)?;
        self.factor = self.factor.square_mod(key.n());
        self.inverse = self.inverse.square_mod(key.n());
        Some(self)
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        self.factor.zeroize();
        self.inverse.zeroize();
    }
}

fn number(bytes: &[u8]) -> Option<BoxedUint> {
    BoxedUint::from_be_slice(bytes, u32::try_from(BITS).ok()?).ok()
}

impl SecretKey {
    fn of(key: BlindSecret) -> Self {
        Self {
            key,
            masks: Mutex::default(),
        }
    }

    pub(super) fn generate() -> Result<Self, KeyError> {
        let pair = KeyPair::<Sha384, PSS, Deterministic>::generate(&mut DefaultRng, BITS);
        pair.map(|pair| Self::of(pair.sk))
            .map_err(|_| KeyError::Unusable)
    }

    pub(super) fn from_pem(pem: &str) -> Result<Self, KeyError> {
        BlindSecret::from_pem(pem)
            .map(Self::of)
            .map_err(|_| KeyError::NotAKey)
    }

    pub(super) fn to_pem(&self) -> Result<Zeroizing<String>, KeyError> {
        let pem = self.key.to_pem().map_err(|_| KeyError::Unusable)?;
        Ok(Zeroizing::new(pem))
    }

    pub(super) fn public(&self) -> Result<PublicKey, KeyError> {
        PublicKey::of(self.key.public_key().map_err(|_| KeyError::NotAKey)?)
    }

    /// RSASP1 (RFC 8017 §5.2.1), checked (RFC 9474 §4.3).
    pub(super) fn sign(
        &self,
        blinded: &[u8; SIGNATURE_LEN],
    ) -> Result<[u8; SIGNATURE_LEN], KeyError> {
        let key = self.key.as_ref();
        let message = number(blinded).filter(|message| message < key.n().as_ref());
        let message = message.ok_or(KeyError::Misfit)?;
        let kept = self.masks.lock().pop();
        let mask = kept.map_or_else(|| Mask::new(key), Ok)?;
        let masked = message.mul_mod(&mask.factor, key.n());
        let signed = rsa_decrypt_and_check(key, None::<&mut DefaultRng>, &masked);
        let signed = signed.map_err(|_| KeyError::Misfit)?;
        let signature = signed.mul_mod(&mask.inverse, key.n());
        if let Some(next) = mask.next(key) {
            self.masks.lock().push(next);
        }
        let bytes = signature.to_be_bytes();
        (*bytes).try_into().map_err(|_| KeyError::Misfit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signature_is_that_of_the_library_however_often_its_mask_was_used() {
        let secret = SecretKey::generate().expect("a key");
        let public = secret.public().expect("a key");
        for n in 0..3 * MASK_LASTS {
            let input = n.to_be_bytes();
            let (blinded, _) = public.blind(&mut DefaultRng, &input).expect("blinded");
            let expected = secret.key.blind_sign(blinded).expect("signed");
            assert_eq!(secret.sign(&blinded).expect("signed"), *expected.0);
        }
        assert_eq!(secret.masks.lock().len(), 1);
    }

    #[test]
    fn what_is_no_number_below_the_modulus_is_not_signed() {
        let secret = SecretKey::generate().expect("a key");
        assert_eq!(secret.sign(&[255; SIGNATURE_LEN]), Err(KeyError::Misfit));
    }
}
