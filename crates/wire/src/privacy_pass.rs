//! Privacy Pass: challenges, tokens, and the fields that carry them (RFC 9577 §2); requests for tokens of type 2, blind RSA of 2048
//! bits, and their answers (RFC 9578 §6), one or many at a time (draft-ietf-privacypass-batched-tokens-08 §6).
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

/// Blind RSA (2048 bits): whoever knows the issuer's public key can verify a token. RFC 9578 §8.2.2.
pub const BLIND_RSA: u16 = 2;
/// Bytes of a blinded message, a blind signature and an authenticator of [`BLIND_RSA`] (`Nk`).
pub const SIGNATURE_LEN: usize = 256;
/// Bytes of a [`PrivateToken`].
pub const TOKEN_LEN: usize = SIGNED_LEN + SIGNATURE_LEN;
/// The scheme of the fields.
pub const SCHEME: &str = "PrivateToken";
/// Media type of one [`TokenRequest`]. RFC 9578 §6.1.
pub const REQUEST_TYPE: &str = "application/private-token-request";
/// Media type of one blind signature. RFC 9578 §6.2.
pub const RESPONSE_TYPE: &str = "application/private-token-response";
/// Media type of [`encode_batch`].
pub const BATCH_REQUEST_TYPE: &str = "application/private-token-generic-batch-request";
/// Media type of [`encode_batch_response`].
pub const BATCH_RESPONSE_TYPE: &str = "application/private-token-generic-batch-response";

/// The part of a token that its issuer has signed without seeing it: all but the authenticator.
const SIGNED_LEN: usize = 2 + 3 * 32;
const REQUEST_LEN: usize = 2 + 1 + SIGNATURE_LEN;

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
    /// Its type is not [`BLIND_RSA`].
    #[error("a type of token that is not supported")]
    UnknownType,
    /// It asks for more tokens than may be asked for at once.
    #[error("too many tokens at once")]
    TooMany,
}

/// What a token is for: who issues it, and where it may be spent. RFC 9577 §2.1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TokenChallenge {
    /// The issuer's host name.
    pub issuer: String,
    /// Binds the token to one challenge. Without it tokens can be fetched before they are asked for.
    pub redemption_context: Option<[u8; 32]>,
    /// The names of those that take the token, separated by commas; empty for anyone.
    pub origin_info: String,
}

/// A token: RFC 9577 §2.2.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateToken([u8; TOKEN_LEN]);

/// A request for one token: RFC 9578 §6.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRequest {
    /// The last byte of the key's id.
    pub truncated_key_id: u8,
    /// What is to be signed, blinded.
    pub blinded: [u8; SIGNATURE_LEN],
}

impl TokenChallenge {
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
        out.put_u16(BLIND_RSA);
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
    /// It is none, or of another type.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, PrivacyPassError> {
        let bytes = &mut bytes;
        expect_type(bytes)?;
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

impl PrivateToken {
    /// A token of what was signed (see [`Self::signed_part`]) and its signature.
    pub fn new(signed: &[u8; 98], authenticator: &[u8; SIGNATURE_LEN]) -> Self {
        let mut bytes = [0; TOKEN_LEN];
        let (head, tail) = bytes.split_at_mut(SIGNED_LEN);
        head.copy_from_slice(signed);
        tail.copy_from_slice(authenticator);
        Self(bytes)
    }

    /// What an issuer signs, blinded: type, nonce, digest of the challenge, id of the key. RFC 9578 §6.1.
    pub fn signed_part(nonce: &[u8; 32], challenge: &[u8; 32], key_id: &[u8; 32]) -> [u8; 98] {
        let mut out = [0; SIGNED_LEN];
        let mut rest = out.as_mut_slice();
        rest.put_u16(BLIND_RSA);
        rest.put_slice(nonce);
        rest.put_slice(challenge);
        rest.put_slice(key_id);
        out
    }

    /// Reads a token.
    ///
    /// # Errors
    /// It is none, or of another type.
    pub fn decode(bytes: &[u8]) -> Result<Self, PrivacyPassError> {
        let mut rest = bytes;
        expect_type(&mut rest)?;
        bytes.try_into().map(Self).map_err(malformed)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; TOKEN_LEN] {
        &self.0
    }

    /// What its issuer has signed.
    pub fn signed(&self) -> &[u8] {
        self.0.split_at(SIGNED_LEN).0
    }

    /// The issuer's signature of it.
    pub fn authenticator(&self) -> &[u8] {
        self.0.split_at(SIGNED_LEN).1
    }

    /// What makes it unlike any other: a token is spent when its nonce is.
    pub fn nonce(&self) -> &[u8; 32] {
        self.part(0)
    }

    /// SHA-256 of the challenge that it is for.
    pub fn challenge_digest(&self) -> &[u8; 32] {
        self.part(1)
    }

    /// SHA-256 of the issuer's key, as its directory publishes it.
    pub fn key_id(&self) -> &[u8; 32] {
        self.part(2)
    }

    fn part(&self, number: usize) -> &[u8; 32] {
        const NONE: &[u8; 32] = &[0; 32];
        let parts = self.0.split_at(2).1.as_chunks::<32>().0;
        parts.get(number).unwrap_or(NONE)
    }

    /// The value of `Authorization` or `Proxy-Authorization`. RFC 9577 §2.2.1.
    pub fn to_field(&self) -> String {
        format!("{SCHEME} token=\"{}\"", self.to_text())
    }

    /// It in base64url: what stands in a field, and what serves as a password where only that can be given.
    pub fn to_text(&self) -> String {
        BASE64.encode(self.0)
    }

    /// Reads what [`Self::to_text`] writes.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn from_text(text: &[u8]) -> Result<Self, PrivacyPassError> {
        // What is longer is not decoded: it is whatever a client likes to send.
        let longest = TOKEN_LEN.div_ceil(3).saturating_mul(4);
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
        self.0.zeroize();
    }
}

impl std::fmt::Debug for PrivateToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrivateToken(hidden)")
    }
}

impl TokenRequest {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(REQUEST_LEN);
        self.put(&mut out);
        out
    }

    /// Reads one request and nothing behind it.
    ///
    /// # Errors
    /// It is none, or for another type.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, PrivacyPassError> {
        let request = Self::take(&mut bytes)?;
        if bytes.is_empty() {
            Ok(request)
        } else {
            Err(PrivacyPassError::Malformed)
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.put_u16(BLIND_RSA);
        out.put_u8(self.truncated_key_id);
        out.put_slice(&self.blinded);
    }

    fn take(bytes: &mut &[u8]) -> Result<Self, PrivacyPassError> {
        expect_type(bytes)?;
        Ok(Self {
            truncated_key_id: bytes.try_get_u8().map_err(malformed)?,
            blinded: array(bytes)?,
        })
    }
}

/// A batch of requests.
pub fn encode_batch(requests: &[TokenRequest]) -> Vec<u8> {
    let body = requests.len().saturating_mul(REQUEST_LEN);
    let mut out = Vec::with_capacity(body.saturating_add(8));
    varint::write(&mut out, u64::try_from(body).unwrap_or(varint::MAX));
    requests.iter().for_each(|request| request.put(&mut out));
    out
}

/// Reads a batch of at most `most` requests.
///
/// # Errors
/// It is none, is empty, asks for another type, or for more.
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

/// The answer to a batch: a blind signature for each request, in their order, or none where it was not granted.
pub fn encode_batch_response(signatures: &[Option<[u8; SIGNATURE_LEN]>]) -> Vec<u8> {
    let mut items = Vec::new();
    for signature in signatures {
        items.put_u8(u8::from(signature.is_some()));
        if let Some(signature) = signature {
            items.put_u16(BLIND_RSA);
            items.put_slice(signature);
        }
    }
    let mut out = Vec::with_capacity(items.len().saturating_add(8));
    varint::write(&mut out, u64::try_from(items.len()).unwrap_or(varint::MAX));
    out.extend_from_slice(&items);
    out
}

/// Reads the answer to a batch of `asked` requests.
///
/// # Errors
/// It is none, or not of so many.
pub fn decode_batch_response(
    mut bytes: &[u8],
    asked: usize,
) -> Result<Vec<Option<[u8; SIGNATURE_LEN]>>, PrivacyPassError> {
    let mut items = vector(&mut bytes)?;
    let mut signatures = Vec::new();
    while !items.is_empty() && signatures.len() < asked {
        signatures.push(match items.try_get_u8().map_err(malformed)? {
            0 => None,
            1 => {
                expect_type(&mut items)?;
                Some(array(&mut items)?)
            }
            _ => return Err(PrivacyPassError::Malformed),
        });
    }
    if signatures.len() == asked && items.is_empty() {
        Ok(signatures)
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

fn expect_type(bytes: &mut &[u8]) -> Result<(), PrivacyPassError> {
    match bytes.try_get_u16().map_err(malformed)? {
        BLIND_RSA => Ok(()),
        _ => Err(PrivacyPassError::UnknownType),
    }
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
            issuer: "issuer.example".into(),
            redemption_context: None,
            origin_info: "origin.example".into(),
        }
    }

    fn token() -> PrivateToken {
        let signed = PrivateToken::signed_part(&[1; 32], &[2; 32], &[3; 32]);
        PrivateToken::new(&signed, &[4; SIGNATURE_LEN])
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
        for challenge in [challenge(), bound, anywhere] {
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
    }

    #[test]
    fn a_token_is_read_from_the_fields_that_clients_write() {
        let text = token().to_text();
        for field in [
            token().to_field(),
            format!("privatetoken   token={text}"),
            format!("PrivateToken other=\"a,b\", Token = \"{text}\" "),
            format!("PrivateToken token=\"{}\"", text.trim_end_matches('=')),
        ] {
            assert_eq!(
                PrivateToken::from_field(field.as_bytes()),
                Some(Ok(token()))
            );
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
        let long = format!("PrivateToken token=\"{text}AAAA\"");
        assert!(PrivateToken::from_field(long.as_bytes()).is_some_and(|read| read.is_err()));
    }

    #[test]
    fn the_parts_of_a_token_are_where_the_standard_has_them() {
        let token = token();
        assert_eq!(token.nonce(), &[1; 32]);
        assert_eq!(token.challenge_digest(), &[2; 32]);
        assert_eq!(token.key_id(), &[3; 32]);
        assert_eq!(token.authenticator(), &[4; SIGNATURE_LEN]);
        assert_eq!(token.signed(), &token.as_bytes()[..98]);
    }

    #[test]
    fn a_token_is_not_printed() {
        assert_eq!(format!("{:?}", token()), "PrivateToken(hidden)");
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
        let request = TokenRequest {
            truncated_key_id: 7,
            blinded: [5; SIGNATURE_LEN],
        };
        assert_eq!(TokenRequest::decode(&request.encode()), Ok(request.clone()));
        let many = vec![request; 3];
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
        let signatures = [Some([6; SIGNATURE_LEN]), None, Some([8; SIGNATURE_LEN])];
        let bytes = encode_batch_response(&signatures);
        assert_eq!(decode_batch_response(&bytes, 3), Ok(signatures.to_vec()));
        for asked in [0, 2, 4] {
            decode_batch_response(&bytes, asked).expect_err("another number");
        }
    }
}
