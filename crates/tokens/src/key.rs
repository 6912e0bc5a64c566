//! An issuer's keys, and the three steps by which a token comes to be: blinded, signed, unblinded. RFC 9578 §6, RFC 9474.

use std::fmt;

use blind_rsa_signatures::{
    BlindSignature, BlindingResult, DefaultRng, Deterministic, KeyPair, PSS, Sha384,
};
use hoplite_wire::privacy_pass::{
    PrivacyPassError, PrivateToken, SIGNATURE_LEN, TokenChallenge, TokenRequest,
};
use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
    signature::{RSA_PSS_2048_8192_SHA384, RsaPublicKeyComponents},
};
use zeroize::Zeroizing;

type BlindKey = blind_rsa_signatures::PublicKey<Sha384, PSS, Deterministic>;
type BlindSecret = blind_rsa_signatures::SecretKey<Sha384, PSS, Deterministic>;

/// The only size of tokens of type 2.
const BITS: usize = 2048;

/// What is wrong with a key, or with what was made with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It is none, or not one of blind RSA with 2048 bits, SHA-384 and a salt of 48 bytes.
    #[error("it is no key for tokens of type 2 (RFC 9578 §6.5)")]
    NotAKey,
    /// There is no randomness, or the arithmetic failed.
    #[error("the key cannot be used")]
    Unusable,
    /// What was to be signed is no number that the key can sign.
    #[error("what was to be signed does not fit the key")]
    Unsignable,
    /// The signature is none of this key's.
    #[error("the issuer's answer is no signature of its key")]
    BadSignature,
}

/// SHA-256 of a challenge: what a token is bound to. RFC 9577 §2.2.
///
/// # Errors
/// As [`TokenChallenge::encode`].
pub fn challenge_digest(challenge: &TokenChallenge) -> Result<[u8; 32], PrivacyPassError> {
    Ok(sha256(&challenge.encode()?))
}

/// What verifies an issuer's tokens, and is told to everybody.
#[derive(Clone, PartialEq)]
pub struct PublicKey {
    spki: Vec<u8>,
    id: [u8; 32],
    modulus: Vec<u8>,
    exponent: Vec<u8>,
    blind: BlindKey,
}

impl PublicKey {
    /// Reads a key as an issuer's directory has it: DER, with the parameters of RSASSA-PSS (RFC 9578 §6.5).
    ///
    /// # Errors
    /// [`KeyError::NotAKey`].
    pub fn from_spki(spki: &[u8]) -> Result<Self, KeyError> {
        let blind = BlindKey::from_spki(spki).map_err(|_| KeyError::NotAKey)?;
        let key = Self::of(blind)?;
        // One key has one form, and with it one id.
        if key.spki == spki {
            Ok(key)
        } else {
            Err(KeyError::NotAKey)
        }
    }

    fn of(blind: BlindKey) -> Result<Self, KeyError> {
        let spki = blind.to_spki().map_err(|_| KeyError::NotAKey)?;
        let (modulus, exponent) = (blind.components().n(), blind.components().e());
        let leading = |bytes: &[u8]| bytes.iter().take_while(|byte| **byte == 0).count();
        let (from, of) = (leading(&modulus), leading(&exponent));
        let (modulus, exponent) = (modulus.split_at(from).1, exponent.split_at(of).1);
        if modulus.len() != SIGNATURE_LEN {
            return Err(KeyError::NotAKey);
        }
        Ok(Self {
            id: sha256(&spki),
            modulus: modulus.to_vec(),
            exponent: exponent.to_vec(),
            spki,
            blind,
        })
    }

    /// Its bytes, as [`Self::from_spki`] reads them.
    pub fn spki(&self) -> &[u8] {
        &self.spki
    }

    /// SHA-256 of these: how tokens name it.
    pub fn id(&self) -> &[u8; 32] {
        &self.id
    }

    /// The last byte of its id: how requests name it.
    pub fn truncated_id(&self) -> u8 {
        let [.., last] = self.id;
        last
    }

    /// Whether it has signed `token`.
    pub fn verifies(&self, token: &PrivateToken) -> bool {
        let key = RsaPublicKeyComponents {
            n: &self.modulus,
            e: &self.exponent,
        };
        let verified = key.verify(
            &RSA_PSS_2048_8192_SHA384,
            token.signed(),
            token.authenticator(),
        );
        token.key_id() == &self.id && verified.is_ok()
    }

    /// Begins a token: what its issuer is asked to sign, and what makes a token of the answer. RFC 9578 §6.1.
    ///
    /// # Errors
    /// [`KeyError::Unusable`].
    pub fn request(
        &self,
        challenge_digest: &[u8; 32],
    ) -> Result<(TokenRequest, PendingToken), KeyError> {
        let mut nonce = [0; 32];
        let random = SystemRandom::new();
        random.fill(&mut nonce).map_err(|_| KeyError::Unusable)?;
        self.request_with(&mut DefaultRng, &nonce, challenge_digest)
    }

    fn request_with<R>(
        &self,
        random: &mut R,
        nonce: &[u8; 32],
        challenge_digest: &[u8; 32],
    ) -> Result<(TokenRequest, PendingToken), KeyError>
    where
        R: blind_rsa_signatures::reexports::rand::CryptoRng,
    {
        let signed = PrivateToken::signed_part(nonce, challenge_digest, &self.id);
        let blinding = self.blind.blind(random, signed);
        let blinding = blinding.map_err(|_| KeyError::Unusable)?;
        let blinded = blinding.blind_message.as_slice().try_into();
        let request = TokenRequest {
            truncated_key_id: self.truncated_id(),
            blinded: blinded.map_err(|_| KeyError::Unusable)?,
        };
        let pending = PendingToken {
            signed,
            blinding: Blinding(blinding),
            key: self.blind.clone(),
        };
        Ok((request, pending))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PublicKey")
    }
}

/// A token that its issuer has not signed yet.
pub struct PendingToken {
    signed: [u8; 98],
    blinding: Blinding,
    key: BlindKey,
}

/// What would tell its issuer which token it has signed: wiped.
struct Blinding(BlindingResult);

impl Drop for Blinding {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.0.secret.0);
    }
}

impl PendingToken {
    /// The token, if the answer is the signature that was asked for. RFC 9578 §6.3.
    ///
    /// # Errors
    /// [`KeyError::BadSignature`].
    pub fn finish(self, signature: &[u8; SIGNATURE_LEN]) -> Result<PrivateToken, KeyError> {
        let signature = BlindSignature(signature.to_vec());
        let finished = self
            .key
            .finalize(&signature, &self.blinding.0, self.signed)
            .map_err(|_| KeyError::BadSignature)?;
        let authenticator = finished.as_slice().try_into();
        let authenticator = authenticator.map_err(|_| KeyError::BadSignature)?;
        Ok(PrivateToken::new(&self.signed, authenticator))
    }
}

impl fmt::Debug for PendingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingToken(hidden)")
    }
}

/// What signs: an issuer's alone.
pub struct IssuerKey {
    secret: BlindSecret,
    public: PublicKey,
}

impl IssuerKey {
    /// A new key. Takes a second or so.
    ///
    /// # Errors
    /// [`KeyError::Unusable`].
    pub fn generate() -> Result<Self, KeyError> {
        let pair = KeyPair::<Sha384, PSS, Deterministic>::generate(&mut DefaultRng, BITS);
        Self::of(pair.map_err(|_| KeyError::Unusable)?.sk)
    }

    /// Reads a key in PEM (PKCS #8).
    ///
    /// # Errors
    /// [`KeyError::NotAKey`].
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        Self::of(BlindSecret::from_pem(pem).map_err(|_| KeyError::NotAKey)?)
    }

    fn of(secret: BlindSecret) -> Result<Self, KeyError> {
        let public = secret.public_key().map_err(|_| KeyError::NotAKey)?;
        Ok(Self {
            secret,
            public: PublicKey::of(public)?,
        })
    }

    /// It in PEM, to be kept where nobody else reads it.
    ///
    /// # Errors
    /// [`KeyError::Unusable`].
    pub fn to_pem(&self) -> Result<Zeroizing<String>, KeyError> {
        let pem = self.secret.to_pem().map_err(|_| KeyError::Unusable)?;
        Ok(Zeroizing::new(pem))
    }

    /// What verifies what it signs.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Signs what a client has blinded. About a millisecond of a processor. RFC 9578 §6.2.
    ///
    /// # Errors
    /// [`KeyError::Unsignable`].
    pub fn sign(&self, blinded: &[u8; SIGNATURE_LEN]) -> Result<[u8; SIGNATURE_LEN], KeyError> {
        let signature = self.secret.blind_sign(blinded);
        let signature = signature.map_err(|_| KeyError::Unsignable)?;
        signature
            .as_slice()
            .try_into()
            .map_err(|_| KeyError::Unsignable)
    }
}

impl fmt::Debug for IssuerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IssuerKey(hidden)")
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::LazyLock};

    use blind_rsa_signatures::reexports::rand::{TryCryptoRng, TryRng};
    use serde::Deserialize;

    use super::*;

    static KEY: LazyLock<IssuerKey> = LazyLock::new(|| IssuerKey::generate().expect("a key"));

    /// RFC 9578 appendix B.2.
    #[derive(Deserialize)]
    struct Vector {
        #[serde(rename = "skS")]
        secret: String,
        #[serde(rename = "pkS")]
        public: String,
        token_challenge: String,
        nonce: String,
        blind: String,
        salt: String,
        token_request: String,
        token_response: String,
        token: String,
    }

    /// Gives what a vector says instead of randomness: the salt, then the blind.
    struct Told(Vec<Vec<u8>>);

    impl TryRng for Told {
        type Error = Infallible;

        fn try_next_u32(&mut self) -> Result<u32, Infallible> {
            unreachable!("only bytes are asked for")
        }

        fn try_next_u64(&mut self) -> Result<u64, Infallible> {
            unreachable!("only bytes are asked for")
        }

        fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Infallible> {
            out.copy_from_slice(&self.0.remove(0));
            Ok(())
        }
    }

    impl TryCryptoRng for Told {}

    fn bytes(hex: &str) -> Vec<u8> {
        let pairs = hex.as_bytes().chunks(2);
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        pairs.map(|p| pair(p).expect("hex")).collect()
    }

    #[test]
    fn keys_requests_answers_and_tokens_are_those_of_the_standard() {
        let vectors: Vec<Vector> =
            serde_json::from_str(include_str!("../tests/rfc9578-b2.json")).expect("vectors");
        assert_eq!(vectors.len(), 5);
        for vector in vectors {
            let pem = String::from_utf8(bytes(&vector.secret)).expect("PEM");
            let key = IssuerKey::from_pem(&pem).expect("a key");
            assert_eq!(key.public().spki(), bytes(&vector.public));
            let public = PublicKey::from_spki(&bytes(&vector.public)).expect("a key");
            let digest = sha256(&bytes(&vector.token_challenge));
            let nonce = bytes(&vector.nonce).try_into().expect("32 bytes");
            // The library draws the blind's bytes in little endian.
            let mut blind = bytes(&vector.blind);
            blind.reverse();
            let mut told = Told(vec![bytes(&vector.salt), blind]);
            let asked = public.request_with(&mut told, &nonce, &digest);
            let (request, pending) = asked.expect("a request");
            assert_eq!(request.encode(), bytes(&vector.token_request));
            let answer = key.sign(&request.blinded).expect("a signature");
            assert_eq!(answer.to_vec(), bytes(&vector.token_response));
            let token = pending.finish(&answer).expect("a token");
            assert_eq!(token.as_bytes().to_vec(), bytes(&vector.token));
            assert!(public.verifies(&token));
        }
    }

    #[test]
    fn a_token_of_another_key_or_with_another_bit_is_not_verified() {
        let (request, pending) = KEY.public().request(&[1; 32]).expect("a request");
        let answer = KEY.sign(&request.blinded).expect("a signature");
        let token = pending.finish(&answer).expect("a token");
        assert!(KEY.public().verifies(&token));
        for place in [2, 40, 70, 98, 353] {
            let mut forged = *token.as_bytes();
            forged[place] ^= 1;
            let forged = PrivateToken::decode(&forged).expect("a token");
            assert!(!KEY.public().verifies(&forged), "{place}");
        }
    }

    #[test]
    fn an_answer_that_signs_something_else_makes_no_token() {
        let (_, pending) = KEY.public().request(&[1; 32]).expect("a request");
        let (other, _) = KEY.public().request(&[1; 32]).expect("a request");
        let answer = KEY.sign(&other.blinded).expect("a signature");
        assert_eq!(pending.finish(&answer), Err(KeyError::BadSignature));
    }

    #[test]
    fn what_is_no_number_of_the_key_is_not_signed() {
        assert_eq!(KEY.sign(&[0xff; SIGNATURE_LEN]), Err(KeyError::Unsignable));
    }

    #[test]
    fn a_key_is_the_same_from_its_file() {
        let again = IssuerKey::from_pem(&KEY.to_pem().expect("PEM")).expect("a key");
        assert_eq!(again.public().id(), KEY.public().id());
    }

    #[test]
    fn rubbish_is_no_key() {
        let spki = KEY.public().spki();
        for end in 0..spki.len() {
            PublicKey::from_spki(&spki[..end]).expect_err("it was cut");
        }
        let mut longer = spki.to_vec();
        longer.push(0);
        PublicKey::from_spki(&longer).expect_err("it goes on");
    }
}
