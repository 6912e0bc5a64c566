//! An issuer's keys, and the three steps by which a token comes to be: blinded, made by the issuer, unblinded; and how it is verified. RFC 9578 §5
//! (VOPRF of RFC 9497) and §6 (blind RSA of RFC 9474). The type of a key is that of all that is made with it.

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use blind_rsa_signatures::{DefaultRng, reexports::rand::CryptoRng};
use hoplite_wire::privacy_pass::{
    Authenticator, BlindedMessage, PrivacyPassError, PrivateToken, TokenChallenge, TokenInput,
    TokenRequest, TokenResponse, TokenType,
};
use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};
use zeroize::Zeroizing;

mod blind_rsa;
mod voprf;

/// What stands before a secret key of the VOPRF in an issuer's file.
const VOPRF_TEXT: &str = "voprf ";

/// What is wrong with a key, or with what was made with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It is none of its type: a compressed point of P-384, or blind RSA with 2048 bits, SHA-384 and a salt of 48 bytes.
    #[error("it is no key for tokens of its type (RFC 9578 §5.5 and §6.5)")]
    NotAKey,
    /// There is no randomness, or the arithmetic failed.
    #[error("the key cannot be used")]
    Unusable,
    /// A blinded message is nothing that the key can make a token of.
    #[error("the blinded message does not fit the key")]
    Misfit,
    /// The response is none of this key's: a wrong signature, or a wrong proof.
    #[error("the issuer's answer was not made with its key")]
    BadResponse,
}

/// SHA-256 of a challenge: what a token is bound to. RFC 9577 §2.2.
///
/// # Errors
/// As [`TokenChallenge::encode`].
pub fn challenge_digest(challenge: &TokenChallenge) -> Result<[u8; 32], PrivacyPassError> {
    Ok(sha256(&challenge.encode()?))
}

/// What tokens of one issuer for one name are made for before anybody asks: SHA-256 of the challenge of each type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChallengeDigests {
    voprf: [u8; 32],
    blind_rsa: [u8; 32],
}

impl ChallengeDigests {
    /// Those of [`TokenChallenge::ahead`].
    ///
    /// # Errors
    /// A name is empty or too long.
    pub fn ahead(issuer: &str, origin: &str) -> Result<Self, PrivacyPassError> {
        let digest = |it| challenge_digest(&TokenChallenge::ahead(it, issuer, origin));
        Ok(Self {
            voprf: digest(TokenType::Voprf)?,
            blind_rsa: digest(TokenType::BlindRsa)?,
        })
    }

    /// That of this type.
    pub const fn of(&self, token_type: TokenType) -> &[u8; 32] {
        match token_type {
            TokenType::Voprf => &self.voprf,
            TokenType::BlindRsa => &self.blind_rsa,
        }
    }
}

/// What an issuer tells everybody of a key: tokens are made for it, and, if they are of blind RSA, verified with it.
#[derive(Clone, PartialEq)]
pub struct PublicKey {
    token_key: Vec<u8>,
    id: [u8; 32],
    form: Public,
}

#[derive(Clone, PartialEq)]
enum Public {
    Voprf(voprf::PublicKey),
    BlindRsa(Box<blind_rsa::PublicKey>),
}

impl PublicKey {
    /// Reads a key as an issuer's directory has it (`token-key`). For VOPRF a compressed point (RFC 9578 §5.5), for blind RSA DER with the parameters
    /// of RSASSA-PSS (§6.5).
    ///
    /// # Errors
    /// [`KeyError::NotAKey`].
    pub fn from_token_key(token_type: TokenType, bytes: &[u8]) -> Result<Self, KeyError> {
        let key = match token_type {
            TokenType::Voprf => Self::of_voprf(voprf::PublicKey::decode(bytes)?),
            TokenType::BlindRsa => Self::of_blind_rsa(blind_rsa::PublicKey::decode(bytes)?)?,
        };
        // One key has one form, and with it one id.
        if key.token_key == bytes {
            Ok(key)
        } else {
            Err(KeyError::NotAKey)
        }
    }

    fn of_voprf(key: voprf::PublicKey) -> Self {
        Self::new(key.encode(), Public::Voprf(key))
    }

    fn of_blind_rsa(key: blind_rsa::PublicKey) -> Result<Self, KeyError> {
        Ok(Self::new(key.encode()?, Public::BlindRsa(Box::new(key))))
    }

    fn new(token_key: Vec<u8>, form: Public) -> Self {
        Self {
            id: sha256(&token_key),
            token_key,
            form,
        }
    }

    /// The type of the tokens that are made with it.
    pub const fn token_type(&self) -> TokenType {
        match self.form {
            Public::Voprf(_) => TokenType::Voprf,
            Public::BlindRsa(_) => TokenType::BlindRsa,
        }
    }

    /// Its bytes, as [`Self::from_token_key`] reads them.
    pub fn token_key(&self) -> &[u8] {
        &self.token_key
    }

    /// SHA-256 of these: how tokens name it.
    pub const fn id(&self) -> &[u8; 32] {
        &self.id
    }

    /// The last byte of its id: how requests name it.
    pub const fn truncated_id(&self) -> u8 {
        let [.., last] = self.id;
        last
    }

    /// Whether it has signed `token`. Never for a key of the VOPRF: [`IssuerKey::verifies`] knows.
    pub(crate) fn verifies(&self, token: &PrivateToken) -> bool {
        match (&self.form, token.authenticator()) {
            (Public::BlindRsa(key), Authenticator::BlindRsa(signature)) => {
                token.key_id() == &self.id
                    && key.verifies(&token.input().encode(TokenType::BlindRsa), signature)
            }
            _ => false,
        }
    }

    /// Begins a token: what its issuer is asked, and what makes a token of the answer. RFC 9578 §5.1 and §6.1.
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
        self.request_with(&mut DefaultRng, nonce, *challenge_digest)
    }

    fn request_with<R: CryptoRng>(
        &self,
        random: &mut R,
        nonce: [u8; 32],
        challenge_digest: [u8; 32],
    ) -> Result<(TokenRequest, PendingToken), KeyError> {
        let input = TokenInput {
            nonce,
            challenge_digest,
            key_id: self.id,
        };
        let bytes = input.encode(self.token_type());
        let (blinded, blinding) = match &self.form {
            Public::Voprf(key) => {
                let (element, blinding) = key.blind(random, &bytes)?;
                let blinding = Box::new(blinding);
                (BlindedMessage::Voprf(element), Blinding::Voprf(blinding))
            }
            Public::BlindRsa(key) => {
                let (number, blinding) = key.blind(random, &bytes)?;
                let blinding = Box::new(blinding);
                (
                    BlindedMessage::BlindRsa(number),
                    Blinding::BlindRsa(blinding),
                )
            }
        };
        let request = TokenRequest {
            truncated_key_id: self.truncated_id(),
            blinded,
        };
        Ok((request, PendingToken { input, blinding }))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({:?})", self.token_type())
    }
}

/// A token that its issuer has not answered for yet.
pub struct PendingToken {
    input: TokenInput,
    blinding: Blinding,
}

enum Blinding {
    Voprf(Box<voprf::Blinding>),
    BlindRsa(Box<blind_rsa::Blinding>),
}

impl PendingToken {
    /// The token, if the response was made of the request, with the key that it was made for. RFC 9578 §5.3 and §6.3.
    ///
    /// # Errors
    /// [`KeyError::BadResponse`].
    pub fn finish(self, response: &TokenResponse) -> Result<PrivateToken, KeyError> {
        let input = |token_type| self.input.encode(token_type);
        let authenticator = match (&self.blinding, response) {
            (Blinding::Voprf(blinding), TokenResponse::Voprf { evaluated, proof }) => {
                let output = blinding.finalize(&input(TokenType::Voprf), evaluated, proof)?;
                Authenticator::Voprf(output)
            }
            (Blinding::BlindRsa(blinding), TokenResponse::BlindRsa(signature)) => {
                let signature = blinding.finalize(&input(TokenType::BlindRsa), signature)?;
                Authenticator::BlindRsa(signature)
            }
            _ => return Err(KeyError::BadResponse),
        };
        Ok(PrivateToken::new(self.input, authenticator))
    }
}

impl fmt::Debug for PendingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingToken(hidden)")
    }
}

/// What makes tokens: an issuer's alone. With one of the VOPRF tokens are verified, too, so its relays have that.
pub struct IssuerKey {
    secret: Secret,
    public: PublicKey,
}

enum Secret {
    Voprf(voprf::SecretKey),
    BlindRsa(Box<blind_rsa::SecretKey>),
}

impl IssuerKey {
    /// A new key. Takes a second or so for blind RSA.
    ///
    /// # Errors
    /// [`KeyError::Unusable`].
    pub fn generate(token_type: TokenType) -> Result<Self, KeyError> {
        match token_type {
            TokenType::Voprf => Ok(Self::of_voprf(voprf::SecretKey::generate()?)),
            TokenType::BlindRsa => Self::of_blind_rsa(blind_rsa::SecretKey::generate()?),
        }
    }

    /// Reads what [`Self::to_text`] writes.
    ///
    /// # Errors
    /// [`KeyError::NotAKey`].
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        let Some(scalar) = text.strip_prefix(VOPRF_TEXT) else {
            return Self::of_blind_rsa(blind_rsa::SecretKey::from_pem(text)?);
        };
        let bytes = URL_SAFE_NO_PAD.decode(scalar).map(Zeroizing::new);
        Self::from_voprf_secret(&bytes.map_err(|_| KeyError::NotAKey)?)
    }

    /// It as text, to be kept where nobody else reads it: PEM (PKCS #8) for blind RSA.
    ///
    /// # Errors
    /// [`KeyError::Unusable`].
    pub fn to_text(&self) -> Result<Zeroizing<String>, KeyError> {
        match &self.secret {
            Secret::Voprf(secret) => {
                let mut text = Zeroizing::new(String::with_capacity(128));
                text.push_str(VOPRF_TEXT);
                URL_SAFE_NO_PAD.encode_string(&*secret.encode(), &mut text);
                Ok(text)
            }
            Secret::BlindRsa(secret) => secret.to_pem(),
        }
    }

    /// Reads a secret key of the VOPRF (`SerializeScalar`, RFC 9497 §4.4).
    ///
    /// # Errors
    /// [`KeyError::NotAKey`].
    pub(crate) fn from_voprf_secret(bytes: &[u8]) -> Result<Self, KeyError> {
        Ok(Self::of_voprf(voprf::SecretKey::decode(bytes)?))
    }

    /// Its secret, if it is one of the VOPRF, as [`Self::from_voprf_secret`] reads it.
    pub(crate) fn voprf_secret(&self) -> Option<Zeroizing<Vec<u8>>> {
        match &self.secret {
            Secret::Voprf(secret) => Some(secret.encode()),
            Secret::BlindRsa(_) => None,
        }
    }

    fn of_voprf(secret: voprf::SecretKey) -> Self {
        Self {
            public: PublicKey::of_voprf(secret.public()),
            secret: Secret::Voprf(secret),
        }
    }

    fn of_blind_rsa(secret: blind_rsa::SecretKey) -> Result<Self, KeyError> {
        Ok(Self {
            public: PublicKey::of_blind_rsa(secret.public()?)?,
            secret: Secret::BlindRsa(Box::new(secret)),
        })
    }

    /// What everybody is told of it.
    pub const fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Makes of a blinded message what its client makes a token of. Some milliseconds of a processor. RFC 9578 §5.2 and §6.2.
    ///
    /// # Errors
    /// [`KeyError::Misfit`]: it is of another type, too, or no number or point that fits the key.
    pub fn issue(&self, blinded: &BlindedMessage) -> Result<TokenResponse, KeyError> {
        match (&self.secret, blinded) {
            (Secret::Voprf(secret), BlindedMessage::Voprf(element)) => {
                let (evaluated, proof) = secret.evaluate(element)?;
                Ok(TokenResponse::Voprf { evaluated, proof })
            }
            (Secret::BlindRsa(secret), BlindedMessage::BlindRsa(number)) => {
                Ok(TokenResponse::BlindRsa(secret.sign(number)?))
            }
            _ => Err(KeyError::Misfit),
        }
    }

    /// Whether `token` was made with it. RFC 9578 §5.4 and §6.4.
    pub fn verifies(&self, token: &PrivateToken) -> bool {
        match (&self.secret, token.authenticator()) {
            (Secret::Voprf(secret), Authenticator::Voprf(output)) => {
                token.key_id() == self.public.id()
                    && secret.verifies(&token.input().encode(TokenType::Voprf), output)
            }
            _ => self.public.verifies(token),
        }
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
mod tests;
