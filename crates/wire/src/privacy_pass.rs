//! Privacy Pass: challenges, tokens, and the fields that carry them (RFC 9577 §2); requests for tokens and their answers (RFC 9578 §5 and §6), one or
//! many at a time (draft-ietf-privacypass-batched-tokens-08 §6). Tokens are of two types, and what belongs to one has its sizes: neither can be taken
//! for the other.
//! Only the bytes: keys, blinding and hashes are those of `hoplite-tokens`.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use bytes::{Buf, BufMut};
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use crate::varint;

/// Bytes of an element of P-384 (`Ne`): a blinded message and an evaluated one of [`TokenType::Voprf`]. RFC 9497 §4.4.
pub const ELEMENT_LEN: usize = 49;
/// Bytes of a proof that an element was evaluated with the issuer's key (`Ns + Ns`). RFC 9578 §5.2.
pub const PROOF_LEN: usize = 96;
/// Bytes of an authenticator of [`TokenType::Voprf`] (`Nk`). RFC 9578 §8.2.1.
pub const VOPRF_OUTPUT_LEN: usize = 48;
/// Bytes of a blinded message, a blind signature and an authenticator (`Nk`) of [`TokenType::BlindRsa`]. RFC 9578 §8.2.2.
pub const SIGNATURE_LEN: usize = 256;
/// Bytes of the longest [`PrivateToken`].
pub const LONGEST_TOKEN: usize = TokenInput::LEN + SIGNATURE_LEN;
/// Bytes of the longest [`TokenRequest`].
pub const LONGEST_REQUEST: usize = 2 + 1 + SIGNATURE_LEN;
/// The scheme of the fields.
pub const SCHEME: &str = "PrivateToken";
/// Media type of one [`TokenRequest`]. RFC 9578 §5.1 and §6.1.
pub const REQUEST_TYPE: &str = "application/private-token-request";
/// Media type of one [`TokenResponse`]. RFC 9578 §5.2 and §6.2.
pub const RESPONSE_TYPE: &str = "application/private-token-response";
/// Media type of [`encode_batch`].
pub const BATCH_REQUEST_TYPE: &str = "application/private-token-generic-batch-request";
/// Media type of [`encode_batch_response`].
pub const BATCH_RESPONSE_TYPE: &str = "application/private-token-generic-batch-response";

/// Base64url, written with its padding, read with or without (RFC 9577 §2.1.1).
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What is no Privacy Pass structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PrivacyPassError {
    /// It ends too early, goes on too long, or a length in it is impossible.
    #[error("malformed")]
    Malformed,
    /// Its type is no [`TokenType`].
    #[error("a type of token that is not supported")]
    UnknownType,
    /// It asks for more tokens than may be asked for at once.
    #[error("too many tokens at once")]
    TooMany,
}

/// How a token is made, and who can verify it. RFC 9578 §8.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenType {
    /// VOPRF(P-384, SHA-384): only who has the issuer's secret key can verify a token. RFC 9578 §8.2.1.
    Voprf,
    /// Blind RSA (2048 bits): whoever knows the issuer's public key can. RFC 9578 §8.2.2.
    BlindRsa,
}

impl TokenType {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Voprf, Self::BlindRsa];

    /// Its number in IANA's registry.
    pub const fn number(self) -> u16 {
        match self {
            Self::Voprf => 1,
            Self::BlindRsa => 2,
        }
    }

    /// The one with this number, if it is supported.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.number() == number)
    }

    fn take(bytes: &mut &[u8]) -> Result<Self, PrivacyPassError> {
        let number = bytes.try_get_u16().map_err(malformed)?;
        Self::from_number(number).ok_or(PrivacyPassError::UnknownType)
    }
}

/// What a token is for: who issues it, and where it may be spent. RFC 9577 §2.1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TokenChallenge {
    /// How the token is made.
    pub token_type: TokenType,
    /// The issuer's host name.
    pub issuer: String,
    /// Binds the token to one challenge. Without it tokens can be fetched before they are asked for.
    pub redemption_context: Option<[u8; 32]>,
    /// The names of those that take the token, separated by commas; empty for anyone.
    pub origin_info: String,
}

/// What the issuer authenticates without seeing it (`token_input`): all of a token but the authenticator, whose type stands before it.
/// RFC 9578 §5.1 and §6.1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenInput {
    /// What makes the token unlike any other: it is spent when its nonce is.
    pub nonce: [u8; 32],
    /// SHA-256 of the challenge that it is for.
    pub challenge_digest: [u8; 32],
    /// SHA-256 of the issuer's key, as its directory publishes it.
    pub key_id: [u8; 32],
}

/// What shows that an issuer has made a token.
#[derive(Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "the smaller one is the rarer, and neither lives long"
)]
pub enum Authenticator {
    /// What the VOPRF makes of the input.
    Voprf([u8; VOPRF_OUTPUT_LEN]),
    /// A signature of the input.
    BlindRsa([u8; SIGNATURE_LEN]),
}

/// A token: RFC 9577 §2.2.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateToken {
    input: TokenInput,
    authenticator: Authenticator,
}

/// A token's input as its issuer sees it (`blinded_msg`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "the smaller one is the rarer, and neither lives long"
)]
pub enum BlindedMessage {
    /// A compressed point of P-384.
    Voprf([u8; ELEMENT_LEN]),
    /// A number below the key's modulus.
    BlindRsa([u8; SIGNATURE_LEN]),
}

/// A request for one token: RFC 9578 §5.1 and §6.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRequest {
    /// The last byte of the key's id.
    pub truncated_key_id: u8,
    /// What a token is to be made of.
    pub blinded: BlindedMessage,
}

/// What an issuer makes of a [`BlindedMessage`]: RFC 9578 §5.2 and §6.2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenResponse {
    /// The blinded element, evaluated.
    Voprf {
        /// `evaluate_msg`.
        evaluated: [u8; ELEMENT_LEN],
        /// Shows that it was with the key that the issuer publishes (`evaluate_proof`).
        proof: [u8; PROOF_LEN],
    },
    /// A blind signature.
    BlindRsa([u8; SIGNATURE_LEN]),
}

impl TokenChallenge {
    /// One for a token that is fetched before it is asked for: what a relay sees then says nothing of when and for what.
    pub fn ahead(token_type: TokenType, issuer: &str, origin_info: &str) -> Self {
        Self {
            token_type,
            issuer: issuer.to_owned(),
            redemption_context: None,
            origin_info: origin_info.to_owned(),
        }
    }

    /// The bytes that a token's `challenge_digest` is of, and that a challenge field carries.
    ///
    /// # Errors
    /// [`PrivacyPassError::Malformed`]: a name is empty or longer than 65,535 bytes.
    pub fn encode(&self) -> Result<Vec<u8>, PrivacyPassError> {
        let len = |text: &str| u16::try_from(text.len()).map_err(|_| PrivacyPassError::Malformed);
        let (issuer, origin) = (len(&self.issuer)?, len(&self.origin_info)?);
        if issuer == 0 {
            return Err(PrivacyPassError::Malformed);
        }
        let mut out = Vec::new();
        out.put_u16(self.token_type.number());
        out.put_u16(issuer);
        out.put_slice(self.issuer.as_bytes());
        match &self.redemption_context {
            Some(context) => {
                out.put_u8(32);
                out.put_slice(context);
            }
            None => out.put_u8(0),
        }
        out.put_u16(origin);
        out.put_slice(self.origin_info.as_bytes());
        Ok(out)
    }

    /// Reads a challenge.
    ///
    /// # Errors
    /// It is none, or of a type that is not supported.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, PrivacyPassError> {
        let bytes = &mut bytes;
        let token_type = TokenType::take(bytes)?;
        let issuer = text(bytes)?;
        let context = bytes.try_get_u8().map_err(malformed)?;
        let redemption_context = match context {
            0 => None,
            32 => Some(array(bytes)?),
            _ => return Err(PrivacyPassError::Malformed),
        };
        let origin_info = text(bytes)?;
        if issuer.is_empty() || !bytes.is_empty() {
            return Err(PrivacyPassError::Malformed);
        }
        Ok(Self {
            token_type,
            issuer,
            redemption_context,
            origin_info,
        })
    }

    /// The value of `WWW-Authenticate` or `Proxy-Authenticate`, with the issuer's key as its directory publishes it. RFC 9577 §2.1.1.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn to_field(&self, key: &[u8]) -> Result<String, PrivacyPassError> {
        let challenge = BASE64.encode(self.encode()?);
        let key = BASE64.encode(key);
        // Base64 may end in "=", which a token of a field may not: quoted.
        Ok(format!(
            "{SCHEME} challenge=\"{challenge}\", token-key=\"{key}\""
        ))
    }
}

impl TokenInput {
    /// Bytes of it, with the type before it.
    const LEN: usize = 2 + 3 * 32;

    /// Its bytes in a token of this type.
    pub fn encode(&self, token_type: TokenType) -> [u8; 98] {
        let mut out = [0; Self::LEN];
        let mut rest = out.as_mut_slice();
        rest.put_u16(token_type.number());
        rest.put_slice(&self.nonce);
        rest.put_slice(&self.challenge_digest);
        rest.put_slice(&self.key_id);
        out
    }
}

impl Authenticator {
    /// The type of a token that has it.
    pub const fn token_type(&self) -> TokenType {
        match self {
            Self::Voprf(_) => TokenType::Voprf,
            Self::BlindRsa(_) => TokenType::BlindRsa,
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Voprf(output) => output,
            Self::BlindRsa(signature) => signature,
        }
    }

    fn take(token_type: TokenType, bytes: &mut &[u8]) -> Result<Self, PrivacyPassError> {
        Ok(match token_type {
            TokenType::Voprf => Self::Voprf(array(bytes)?),
            TokenType::BlindRsa => Self::BlindRsa(array(bytes)?),
        })
    }
}

impl PrivateToken {
    /// A token of this input, and what its issuer has made of it.
    pub const fn new(input: TokenInput, authenticator: Authenticator) -> Self {
        Self {
            input,
            authenticator,
        }
    }

    /// Reads a token.
    ///
    /// # Errors
    /// It is none, or of a type that is not supported.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, PrivacyPassError> {
        let bytes = &mut bytes;
        let token_type = TokenType::take(bytes)?;
        let input = TokenInput {
            nonce: array(bytes)?,
            challenge_digest: array(bytes)?,
            key_id: array(bytes)?,
        };
        let token = Self::new(input, Authenticator::take(token_type, bytes)?);
        if bytes.is_empty() {
            Ok(token)
        } else {
            Err(PrivacyPassError::Malformed)
        }
    }

    /// Its bytes.
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(LONGEST_TOKEN));
        out.put_slice(&self.input.encode(self.token_type()));
        out.put_slice(self.authenticator.as_bytes());
        out
    }

    /// How it was made.
    pub const fn token_type(&self) -> TokenType {
        self.authenticator.token_type()
    }

    /// What its issuer has authenticated.
    pub const fn input(&self) -> &TokenInput {
        &self.input
    }

    /// What its issuer has made of the input.
    pub const fn authenticator(&self) -> &Authenticator {
        &self.authenticator
    }

    /// What makes it unlike any other: a token is spent when its nonce is.
    pub const fn nonce(&self) -> &[u8; 32] {
        &self.input.nonce
    }

    /// SHA-256 of the challenge that it is for.
    pub const fn challenge_digest(&self) -> &[u8; 32] {
        &self.input.challenge_digest
    }

    /// SHA-256 of the issuer's key, as its directory publishes it.
    pub const fn key_id(&self) -> &[u8; 32] {
        &self.input.key_id
    }

    /// The value of `Authorization` or `Proxy-Authorization`. RFC 9577 §2.2.1.
    pub fn to_field(&self) -> String {
        format!("{SCHEME} token=\"{}\"", self.to_text())
    }

    /// It in base64url: what stands in a field, and what serves as a password where only that can be given.
    pub fn to_text(&self) -> String {
        BASE64.encode(&*self.encode())
    }

    /// Reads what [`Self::to_text`] writes.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn from_text(text: &[u8]) -> Result<Self, PrivacyPassError> {
        // What is longer is not decoded: it is whatever a client likes to send.
        let longest = LONGEST_TOKEN.div_ceil(3).saturating_mul(4);
        if text.len() > longest {
            return Err(PrivacyPassError::Malformed);
        }
        let bytes = Zeroizing::new(BASE64.decode(text).map_err(malformed)?);
        Self::decode(&bytes)
    }

    /// The token of an `Authorization` or `Proxy-Authorization` field; `None` if it is of another scheme.
    ///
    /// # Errors
    /// There is no token in it, or one that cannot be read.
    pub fn from_field(value: &[u8]) -> Option<Result<Self, PrivacyPassError>> {
        let value = value.trim_ascii();
        let (scheme, rest) = value.split_at_checked(SCHEME.len())?;
        let ours = scheme.eq_ignore_ascii_case(SCHEME.as_bytes());
        let apart = rest.first().is_none_or(u8::is_ascii_whitespace);
        (ours && apart).then(|| {
            let token = parameter(rest, b"token").ok_or(PrivacyPassError::Malformed)?;
            Self::from_text(token)
        })
    }
}

/// A token is money: it is wiped, and not printed.
impl Drop for PrivateToken {
    fn drop(&mut self) {
        self.input.nonce.zeroize();
        match &mut self.authenticator {
            Authenticator::Voprf(output) => output.zeroize(),
            Authenticator::BlindRsa(signature) => signature.zeroize(),
        }
    }
}

impl std::fmt::Debug for PrivateToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrivateToken(hidden)")
    }
}

impl std::fmt::Debug for TokenInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenInput(hidden)")
    }
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authenticator(hidden)")
    }
}

impl BlindedMessage {
    /// The type of a token that is made of it.
    pub const fn token_type(&self) -> TokenType {
        match self {
            Self::Voprf(_) => TokenType::Voprf,
            Self::BlindRsa(_) => TokenType::BlindRsa,
        }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Voprf(element) => element,
            Self::BlindRsa(number) => number,
        }
    }

    fn take(token_type: TokenType, bytes: &mut &[u8]) -> Result<Self, PrivacyPassError> {
        Ok(match token_type {
            TokenType::Voprf => Self::Voprf(array(bytes)?),
            TokenType::BlindRsa => Self::BlindRsa(array(bytes)?),
        })
    }
}

impl TokenResponse {
    /// The type of the token that comes of it.
    pub const fn token_type(&self) -> TokenType {
        match self {
            Self::Voprf { .. } => TokenType::Voprf,
            Self::BlindRsa(_) => TokenType::BlindRsa,
        }
    }

    /// Its bytes, which do not say its type: who has asked knows it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    /// Reads the answer to a request for a token of this type.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(token_type: TokenType, mut bytes: &[u8]) -> Result<Self, PrivacyPassError> {
        let response = Self::take(token_type, &mut bytes)?;
        if bytes.is_empty() {
            Ok(response)
        } else {
            Err(PrivacyPassError::Malformed)
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Voprf { evaluated, proof } => {
                out.put_slice(evaluated);
                out.put_slice(proof);
            }
            Self::BlindRsa(signature) => out.put_slice(signature),
        }
    }

    fn take(token_type: TokenType, bytes: &mut &[u8]) -> Result<Self, PrivacyPassError> {
        Ok(match token_type {
            TokenType::Voprf => Self::Voprf {
                evaluated: array(bytes)?,
                proof: array(bytes)?,
            },
            TokenType::BlindRsa => Self::BlindRsa(array(bytes)?),
        })
    }
}

impl TokenRequest {
    /// How the token is to be made.
    pub const fn token_type(&self) -> TokenType {
        self.blinded.token_type()
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LONGEST_REQUEST);
        self.put(&mut out);
        out
    }

    /// Reads one request and nothing behind it.
    ///
    /// # Errors
    /// It is none, or for a type that is not supported.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, PrivacyPassError> {
        let request = Self::take(&mut bytes)?;
        if bytes.is_empty() {
            Ok(request)
        } else {
            Err(PrivacyPassError::Malformed)
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.put_u16(self.token_type().number());
        out.put_u8(self.truncated_key_id);
        out.put_slice(self.blinded.as_bytes());
    }

    fn take(bytes: &mut &[u8]) -> Result<Self, PrivacyPassError> {
        let token_type = TokenType::take(bytes)?;
        Ok(Self {
            truncated_key_id: bytes.try_get_u8().map_err(malformed)?,
            blinded: BlindedMessage::take(token_type, bytes)?,
        })
    }
}

/// A batch of requests.
pub fn encode_batch(requests: &[TokenRequest]) -> Vec<u8> {
    let mut items = Vec::with_capacity(requests.len().saturating_mul(LONGEST_REQUEST));
    requests.iter().for_each(|request| request.put(&mut items));
    counted(&items)
}

/// Reads a batch of at most `most` requests.
///
/// # Errors
/// It is none, is empty, asks for a type that is not supported, or for more.
pub fn decode_batch(mut bytes: &[u8], most: usize) -> Result<Vec<TokenRequest>, PrivacyPassError> {
    let mut items = vector(&mut bytes)?;
    if items.is_empty() {
        return Err(PrivacyPassError::Malformed);
    }
    let mut requests = Vec::new();
    while !items.is_empty() {
        if requests.len() == most {
            return Err(PrivacyPassError::TooMany);
        }
        requests.push(TokenRequest::take(&mut items)?);
    }
    Ok(requests)
}

/// The answer to a batch: a response to each request, in their order, or none where it was not granted.
pub fn encode_batch_response(responses: &[Option<TokenResponse>]) -> Vec<u8> {
    let mut items = Vec::new();
    for response in responses {
        items.put_u8(u8::from(response.is_some()));
        if let Some(response) = response {
            items.put_u16(response.token_type().number());
            response.put(&mut items);
        }
    }
    counted(&items)
}

/// Reads the answer to a batch of `asked` requests.
///
/// # Errors
/// It is none, or not of so many.
pub fn decode_batch_response(
    mut bytes: &[u8],
    asked: usize,
) -> Result<Vec<Option<TokenResponse>>, PrivacyPassError> {
    let mut items = vector(&mut bytes)?;
    let mut responses = Vec::new();
    while !items.is_empty() && responses.len() < asked {
        responses.push(match items.try_get_u8().map_err(malformed)? {
            0 => None,
            1 => {
                let token_type = TokenType::take(&mut items)?;
                Some(TokenResponse::take(token_type, &mut items)?)
            }
            _ => return Err(PrivacyPassError::Malformed),
        });
    }
    if responses.len() == asked && items.is_empty() {
        Ok(responses)
    } else {
        Err(PrivacyPassError::Malformed)
    }
}

/// Every challenge of this scheme in a `WWW-Authenticate` or `Proxy-Authenticate` field that can be read, with the issuer's key. Other
/// schemes and other types of token are passed over (RFC 9577 §2.1.2: servers send what nobody knows on purpose).
pub fn challenges(value: &[u8]) -> Vec<(TokenChallenge, Vec<u8>)> {
    let read = |parameters: &[u8]| {
        let challenge = BASE64.decode(parameter(parameters, b"challenge")?).ok()?;
        let key = BASE64.decode(parameter(parameters, b"token-key")?).ok()?;
        Some((TokenChallenge::decode(&challenge).ok()?, key))
    };
    split_by_scheme(value)
        .into_iter()
        .filter_map(read)
        .collect()
}

/// The parameters of each challenge of our scheme. A new challenge begins where a word is followed by white space and not by "=".
fn split_by_scheme(value: &[u8]) -> Vec<&[u8]> {
    let (mut found, mut start) = (Vec::new(), None);
    let mut offset = 0;
    for piece in split_unquoted(value) {
        let word = piece.trim_ascii_start();
        let len = word.iter().take_while(|byte| is_name(**byte)).count();
        let (name, rest) = word.split_at(len);
        let ends = rest.trim_ascii_start();
        let scheme = !name.is_empty()
            && (ends.is_empty() || (ends.first() != Some(&b'=') && rest.len() > ends.len()));
        if scheme {
            found.extend(start.take().and_then(|from: usize| value.get(from..offset)));
            let behind = offset
                .saturating_add(piece.len().saturating_sub(word.len()))
                .saturating_add(len);
            start = name
                .eq_ignore_ascii_case(SCHEME.as_bytes())
                .then_some(behind);
        }
        offset = offset.saturating_add(piece.len()).saturating_add(1);
    }
    found.extend(start.and_then(|from| value.get(from..)));
    found
}

/// The value of the parameter `name`, without its quotes. What is of use here needs no escapes.
fn parameter<'a>(parameters: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    split_unquoted(parameters).into_iter().find_map(|piece| {
        let equals = piece.iter().position(|byte| *byte == b'=')?;
        let (key, value) = piece.split_at(equals);
        let value = value.get(1..)?.trim_ascii();
        let quoted = value
            .strip_prefix(b"\"")
            .and_then(|value| value.strip_suffix(b"\""));
        let same = key.trim_ascii().eq_ignore_ascii_case(name);
        same.then_some(quoted.unwrap_or(value))
    })
}

/// Splits at commas outside of quoted strings.
fn split_unquoted(text: &[u8]) -> Vec<&[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(|byte| {
        let was_escaped = std::mem::take(&mut escaped);
        match byte {
            b'\\' if quoted && !was_escaped => escaped = true,
            b'"' if !was_escaped => quoted = !quoted,
            _ => {}
        }
        *byte == b',' && !quoted
    })
    .collect()
}

/// A character of a token of RFC 9110 §5.6.2.
fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// A text behind its length in two bytes.
fn text(bytes: &mut &[u8]) -> Result<String, PrivacyPassError> {
    let len = usize::from(bytes.try_get_u16().map_err(malformed)?);
    let (text, rest) = bytes
        .split_at_checked(len)
        .ok_or(PrivacyPassError::Malformed)?;
    *bytes = rest;
    String::from_utf8(text.to_vec()).map_err(malformed)
}

fn array<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], PrivacyPassError> {
    let (array, rest) = bytes
        .split_first_chunk()
        .ok_or(PrivacyPassError::Malformed)?;
    *bytes = rest;
    Ok(*array)
}

/// Bytes behind their length.
fn counted(items: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(items.len().saturating_add(8));
    varint::write(&mut out, u64::try_from(items.len()).unwrap_or(varint::MAX));
    out.extend_from_slice(items);
    out
}

/// The bytes behind a length that goes to the end.
fn vector<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], PrivacyPassError> {
    let len = varint::read(bytes).and_then(|len| usize::try_from(len).ok());
    if len == Some(bytes.len()) {
        Ok(bytes)
    } else {
        Err(PrivacyPassError::Malformed)
    }
}

fn malformed<E>(_: E) -> PrivacyPassError {
    PrivacyPassError::Malformed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge() -> TokenChallenge {
        TokenChallenge {
            token_type: TokenType::BlindRsa,
            issuer: "issuer.example".into(),
            redemption_context: None,
            origin_info: "origin.example".into(),
        }
    }

    const INPUT: TokenInput = TokenInput {
        nonce: [1; 32],
        challenge_digest: [2; 32],
        key_id: [3; 32],
    };

    /// One of each type.
    fn tokens() -> [PrivateToken; 2] {
        [
            Authenticator::Voprf([4; VOPRF_OUTPUT_LEN]),
            Authenticator::BlindRsa([4; SIGNATURE_LEN]),
        ]
        .map(|authenticator| PrivateToken::new(INPUT, authenticator))
    }

    /// A request of each type.
    fn both_requests() -> [TokenRequest; 2] {
        [
            BlindedMessage::Voprf([5; ELEMENT_LEN]),
            BlindedMessage::BlindRsa([5; SIGNATURE_LEN]),
        ]
        .map(|blinded| TokenRequest {
            truncated_key_id: 7,
            blinded,
        })
    }

    #[test]
    fn a_challenge_is_the_same_when_it_has_been_read() {
        let bound = TokenChallenge {
            redemption_context: Some([9; 32]),
            ..challenge()
        };
        let anywhere = TokenChallenge {
            origin_info: String::new(),
            ..challenge()
        };
        let private = TokenChallenge {
            token_type: TokenType::Voprf,
            ..challenge()
        };
        for challenge in [challenge(), bound, anywhere, private] {
            let bytes = challenge.encode().expect("a name");
            assert_eq!(TokenChallenge::decode(&bytes), Ok(challenge));
            for end in 0..bytes.len() {
                TokenChallenge::decode(&bytes[..end]).expect_err("it was cut");
            }
        }
    }

    #[test]
    fn a_challenge_has_the_bytes_of_the_standard() {
        let bytes = challenge().encode().expect("a name");
        let expected = b"\x00\x02\x00\x0eissuer.example\x00\x00\x0eorigin.example";
        assert_eq!(bytes, expected);
        for other in [0, 3, 0xda7a] {
            let other = [&u16::to_be_bytes(other), expected.split_at(2).1].concat();
            assert_eq!(
                TokenChallenge::decode(&other),
                Err(PrivacyPassError::UnknownType)
            );
        }
    }

    #[test]
    fn a_token_is_read_from_the_fields_that_clients_write() {
        for token in tokens() {
            let text = token.to_text();
            for field in [
                token.to_field(),
                format!("privatetoken   token={text}"),
                format!("PrivateToken other=\"a,b\", Token = \"{text}\" "),
                format!("PrivateToken token=\"{}\"", text.trim_end_matches('=')),
            ] {
                let read = PrivateToken::from_field(field.as_bytes());
                assert_eq!(read, Some(Ok(token.clone())));
            }
            let long = format!("PrivateToken token=\"{text}AAAA\"");
            let read = PrivateToken::from_field(long.as_bytes());
            assert!(read.is_some_and(|read| read.is_err()));
        }
        assert_eq!(PrivateToken::from_field(b"Bearer abc"), None);
        assert_eq!(PrivateToken::from_field(b"PrivateTokens token=abc"), None);
        for field in [
            "PrivateToken",
            "PrivateToken token=",
            "PrivateToken token=abc",
        ] {
            let read = PrivateToken::from_field(field.as_bytes()).expect("our scheme");
            read.expect_err("no token");
        }
    }

    #[test]
    fn the_parts_of_a_token_are_where_the_standard_has_them() {
        for (token, kind, len) in tokens()
            .into_iter()
            .zip([1, 2])
            .zip([146, 354])
            .map(|((token, kind), len)| (token, kind, len))
        {
            let bytes = token.encode();
            assert_eq!(bytes.len(), len);
            assert_eq!(bytes[..2], [0, kind]);
            assert_eq!(bytes[2..34], [1; 32]);
            assert_eq!(bytes[34..66], [2; 32]);
            assert_eq!(bytes[66..98], [3; 32]);
            assert!(bytes[98..].iter().all(|byte| *byte == 4));
        }
    }

    #[test]
    fn what_is_of_one_type_is_none_of_the_other() {
        for (token, request) in tokens().into_iter().zip(both_requests()) {
            for bytes in [token.encode().to_vec(), request.encode()] {
                let mut other = bytes.clone();
                other[1] = 3 - bytes[1];
                assert!(PrivateToken::decode(&other).is_err());
                assert!(TokenRequest::decode(&other).is_err());
            }
            for end in 0..token.encode().len() {
                PrivateToken::decode(&token.encode()[..end]).expect_err("it was cut");
            }
            for end in 0..request.encode().len() {
                TokenRequest::decode(&request.encode()[..end]).expect_err("it was cut");
            }
        }
        for len in 0..300 {
            let bytes = vec![2; len];
            let of = |token_type| TokenResponse::decode(token_type, &bytes).is_ok();
            assert_eq!(of(TokenType::Voprf), len == ELEMENT_LEN + PROOF_LEN);
            assert_eq!(of(TokenType::BlindRsa), len == SIGNATURE_LEN);
        }
    }

    #[test]
    fn a_token_is_not_printed() {
        for token in tokens() {
            assert_eq!(format!("{token:?}"), "PrivateToken(hidden)");
            assert_eq!(format!("{:?}", token.input()), "TokenInput(hidden)");
            let authenticator = format!("{:?}", token.authenticator());
            assert_eq!(authenticator, "Authenticator(hidden)");
        }
    }

    #[test]
    fn challenges_are_found_among_others() {
        let ours = challenge().to_field(b"a key").expect("a name");
        let odd = format!(
            "Basic realm=\"a, PrivateToken b\", {ours}, Bearer, PrivateToken challenge=AAAA, token-key=\"\", {ours}"
        );
        let both = vec![(challenge(), b"a key".to_vec()); 2];
        assert_eq!(challenges(odd.as_bytes()), both);
        let bare = ours.replace('"', "").replace('=', " = ");
        // Without quotes "=" cannot stand in a value: the padding is left out.
        let bare = bare.replace(" =  = ", "").replace(" = ,", ",");
        let bare = bare.trim_end_matches([' ', '=']);
        assert_eq!(challenges(bare.as_bytes()).len(), 1, "{bare}");
    }

    #[test]
    fn a_batch_is_the_same_when_it_has_been_read_and_has_a_bound() {
        let [voprf, rsa] = both_requests();
        for request in [&voprf, &rsa] {
            let read = TokenRequest::decode(&request.encode());
            assert_eq!(read.as_ref(), Ok(request));
        }
        // The generic batch has room for several types.
        let many = vec![voprf.clone(), rsa, voprf];
        let bytes = encode_batch(&many);
        assert_eq!(decode_batch(&bytes, 3), Ok(many));
        assert_eq!(decode_batch(&bytes, 2), Err(PrivacyPassError::TooMany));
        assert_eq!(
            decode_batch(&encode_batch(&[]), 3),
            Err(PrivacyPassError::Malformed)
        );
        for end in 0..bytes.len() {
            decode_batch(&bytes[..end], 3).expect_err("it was cut");
        }
    }

    #[test]
    fn an_answer_has_one_place_for_each_request() {
        let responses = [
            Some(TokenResponse::BlindRsa([6; SIGNATURE_LEN])),
            None,
            Some(TokenResponse::Voprf {
                evaluated: [2; ELEMENT_LEN],
                proof: [9; PROOF_LEN],
            }),
        ];
        let bytes = encode_batch_response(&responses);
        assert_eq!(decode_batch_response(&bytes, 3), Ok(responses.to_vec()));
        for end in 0..bytes.len() {
            decode_batch_response(&bytes[..end], 3).expect_err("it was cut");
        }
        for asked in [0, 2, 4] {
            decode_batch_response(&bytes, asked).expect_err("another number");
        }
    }
}
