//! What an issuer publishes of its keys, and where (RFC 9578 §4); and the same with the secret keys of the VOPRF, which it gives the relays of its own
//! operator: only with these are such tokens verified.

use std::sync::Arc;

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use hoplite_wire::privacy_pass::{PrivateToken, TokenType};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::{IssuerKey, PublicKey};

/// Base64url, written with its padding, read with or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// More keys than an honest issuer has at a time: one for each client would tell them apart.
const MOST_KEYS: usize = 4;
/// Bytes of the longest text with secret keys; it does not grow while it is written, which would leave parts of them behind.
const MOST_SECRETS: usize = 16 << 10;

/// An issuer's keys, the preferred first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyDirectory {
    /// Where tokens are asked for, as seen from the directory.
    pub request_uri: String,
    /// Keys of tokens of any [`TokenType`].
    pub keys: Vec<ListedKey>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedKey {
    /// It.
    pub key: PublicKey,
    /// From when on it is used, in seconds since 1970.
    pub not_before: u64,
}

/// What verifies an issuer's tokens: its directory, and the secret key of each key in it that is of the VOPRF.
#[derive(Clone, Debug, Default)]
pub struct VerifierKeys {
    directory: KeyDirectory,
    secrets: Vec<Arc<IssuerKey>>,
}

/// Public keys tell which secret ones there are.
impl PartialEq for VerifierKeys {
    fn eq(&self, other: &Self) -> bool {
        self.directory == other.directory
    }
}

/// What is no directory of keys that can be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyDirectoryError {
    /// It is not the JSON of one.
    #[error("it is no directory of an issuer's keys (RFC 9578 §4): {0}")]
    Json(#[from] serde_json::Error),
    /// A key is none.
    #[error("its key number {0} is no key for tokens of its type")]
    Key(usize),
    /// So many keys tell clients apart.
    #[error("it has {0} keys for tokens; more than {MOST_KEYS} could tell clients apart")]
    TooMany(usize),
    /// A key of the VOPRF without its secret verifies nothing.
    #[error(
        "its key number {0} is for tokens of type 1, which only the issuer's secret key verifies, and that is not in it"
    )]
    NoSecret(usize),
    /// A secret key is none, or that of another key.
    #[error("the secret key of its key number {0} is not that key's")]
    Secret(usize),
}

#[derive(Deserialize, Serialize)]
struct Json {
    #[serde(rename = "issuer-request-uri")]
    request_uri: String,
    #[serde(rename = "token-keys")]
    keys: Vec<JsonKey>,
}

#[derive(Deserialize, Serialize)]
struct JsonKey {
    #[serde(rename = "token-type")]
    kind: u16,
    #[serde(rename = "token-key")]
    key: String,
    #[serde(rename = "not-before", default)]
    not_before: u64,
    /// In what relays of the issuer's operator are given alone.
    #[serde(
        rename = "secret-key",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    secret: Option<String>,
}

impl Drop for JsonKey {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl Json {
    fn of(directory: &KeyDirectory) -> Self {
        let listed = |listed: &ListedKey| JsonKey {
            kind: listed.key.token_type().number(),
            key: BASE64.encode(listed.key.token_key()),
            not_before: listed.not_before,
            secret: None,
        };
        Self {
            request_uri: directory.request_uri.clone(),
            keys: directory.keys.iter().map(listed).collect(),
        }
    }

    /// Keys of types that are supported, with their numbers.
    fn supported(&self) -> Result<Vec<(usize, TokenType, &JsonKey)>, KeyDirectoryError> {
        let mut keys = Vec::new();
        for (number, key) in (1..).zip(&self.keys) {
            keys.extend(TokenType::from_number(key.kind).map(|it| (number, it, key)));
        }
        if keys.len() > MOST_KEYS {
            return Err(KeyDirectoryError::TooMany(keys.len()));
        }
        Ok(keys)
    }

    fn directory(&self) -> Result<KeyDirectory, KeyDirectoryError> {
        let read = |(number, token_type, listed): (usize, _, &JsonKey)| {
            let key = BASE64.decode(&listed.key).ok();
            let key = key.and_then(|key| PublicKey::from_token_key(token_type, &key).ok());
            Ok(ListedKey {
                key: key.ok_or(KeyDirectoryError::Key(number))?,
                not_before: listed.not_before,
            })
        };
        Ok(KeyDirectory {
            request_uri: self.request_uri.clone(),
            keys: self
                .supported()?
                .into_iter()
                .map(read)
                .collect::<Result<_, KeyDirectoryError>>()?,
        })
    }
}

impl KeyDirectory {
    /// Its JSON.
    pub fn to_json(&self) -> String {
        // Texts and numbers alone: it always can.
        serde_json::to_string_pretty(&Json::of(self)).unwrap_or_default()
    }

    /// Reads one. Keys of other types of tokens are passed over.
    ///
    /// # Errors
    /// [`KeyDirectoryError`].
    pub fn parse(json: &str) -> Result<Self, KeyDirectoryError> {
        let json: Json = serde_json::from_str(json)?;
        json.directory()
    }

    /// The key that new tokens are made with: of those that are in use, the first (RFC 9578 §4).
    pub fn current(&self, now: u64) -> Option<&PublicKey> {
        let mut keys = self.keys.iter();
        let used = keys.find(|listed| listed.not_before <= now);
        used.map(|listed| &listed.key)
    }
}

impl VerifierKeys {
    /// What everybody knows verifies tokens of blind RSA.
    ///
    /// # Errors
    /// [`KeyDirectoryError::NoSecret`]: there is a key of the VOPRF among them.
    pub fn public(directory: KeyDirectory) -> Result<Self, KeyDirectoryError> {
        Self::new(directory, Vec::new())
    }

    /// A directory and the secret keys of those in it that are of the VOPRF, in any order and among others.
    ///
    /// # Errors
    /// [`KeyDirectoryError::NoSecret`]: one is missing.
    pub fn new(
        directory: KeyDirectory,
        secrets: Vec<Arc<IssuerKey>>,
    ) -> Result<Self, KeyDirectoryError> {
        let keys = Self { directory, secrets };
        let mut listed = (1..).zip(&keys.directory.keys);
        let lacks = listed.find(|(_, listed)| {
            let needs = listed.key.token_type() == TokenType::Voprf;
            needs && keys.secret(listed.key.id()).is_none()
        });
        match lacks {
            Some((number, _)) => Err(KeyDirectoryError::NoSecret(number)),
            None => Ok(keys),
        }
    }

    /// Reads what [`Self::to_json`] writes. Keys of other types of tokens are passed over.
    ///
    /// # Errors
    /// [`KeyDirectoryError`].
    pub fn parse(json: &str) -> Result<Self, KeyDirectoryError> {
        let json: Json = serde_json::from_str(json)?;
        let directory = json.directory()?;
        let mut secrets = Vec::new();
        for ((number, _, listed), public) in json.supported()?.into_iter().zip(&directory.keys) {
            let Some(text) = &listed.secret else {
                continue;
            };
            let bytes = BASE64.decode(text).map(Zeroizing::new).ok();
            let key = bytes.and_then(|bytes| IssuerKey::from_voprf_secret(&bytes).ok());
            let key = key.filter(|key| key.public() == &public.key);
            secrets.push(Arc::new(key.ok_or(KeyDirectoryError::Secret(number))?));
        }
        Self::new(directory, secrets)
    }

    /// The directory with the secret keys in it (`secret-key`, in base64url): for who runs the issuer's relays, and nobody else.
    pub fn to_json(&self) -> Zeroizing<String> {
        let mut json = Json::of(&self.directory);
        for (listed, public) in json.keys.iter_mut().zip(&self.directory.keys) {
            let secret = self
                .secret(public.key.id())
                .and_then(IssuerKey::voprf_secret);
            listed.secret = secret.map(|secret| BASE64.encode(&*secret));
        }
        let mut text = Zeroizing::new(Vec::with_capacity(MOST_SECRETS));
        // Into memory: it always can.
        drop(serde_json::to_writer_pretty(&mut *text, &json));
        Zeroizing::new(String::from_utf8(std::mem::take(&mut *text)).unwrap_or_default())
    }

    /// What the issuer publishes.
    pub const fn directory(&self) -> &KeyDirectory {
        &self.directory
    }

    fn secret(&self, id: &[u8; 32]) -> Option<&IssuerKey> {
        let mut secrets = self.secrets.iter();
        let found = secrets.find(|secret| secret.public().id() == id);
        found.map(Arc::as_ref)
    }

    /// Whether this key, one of the directory, has made the token.
    pub(crate) fn verifies(&self, key: &PublicKey, token: &PrivateToken) -> bool {
        match self.secret(key.id()) {
            Some(secret) => secret.verifies(token),
            None => key.verifies(token),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> [IssuerKey; 2] {
        TokenType::ALL.map(|it| IssuerKey::generate(it).expect("a key"))
    }

    fn directory(keys: &[&IssuerKey]) -> KeyDirectory {
        let listed = |(not_before, key): (u64, &&IssuerKey)| ListedKey {
            key: key.public().clone(),
            not_before,
        };
        KeyDirectory {
            request_uri: "/token-request".into(),
            keys: (100..).zip(keys).map(listed).collect(),
        }
    }

    #[test]
    fn a_directory_is_the_same_when_it_has_been_read_and_others_types_are_passed_over() {
        let [voprf, rsa] = keys();
        let directory = directory(&[&rsa, &voprf]);
        let json = directory.to_json();
        assert_eq!(KeyDirectory::parse(&json).expect("a directory"), directory);
        let first = r#""token-keys": ["#;
        let other = format!(r#"{first}{{"token-type": 55, "token-key": "AA", "extra": true}},"#);
        let more = json.replace(first, &other).replace('=', "");
        assert_eq!(KeyDirectory::parse(&more).expect("a directory"), directory);
        assert!(directory.current(50).is_none());
        let current = directory.current(101).expect("a key");
        assert_eq!(current.token_type(), TokenType::BlindRsa, "the first");
    }

    #[test]
    fn what_cannot_be_used_is_told() {
        KeyDirectory::parse("{}").expect_err("no directory");
        for kind in [1, 2] {
            let bad = format!(
                r#"{{"issuer-request-uri": "/", "token-keys": [{{"token-type": {kind}, "token-key": "AAAA"}}]}}"#
            );
            let error = KeyDirectory::parse(&bad).expect_err("no key");
            assert!(error.to_string().contains("number 1"), "{error}");
        }
        let [voprf, rsa] = keys();
        let many = directory(&[&voprf, &rsa, &voprf, &rsa, &voprf]).to_json();
        let told = KeyDirectory::parse(&many).expect_err("too many, of whichever type");
        assert!(matches!(told, KeyDirectoryError::TooMany(5)));
    }

    #[test]
    fn a_directory_alone_verifies_no_token_of_type_1() {
        let [voprf, rsa] = keys();
        VerifierKeys::public(directory(&[&rsa])).expect("everybody can");
        let told = VerifierKeys::public(directory(&[&rsa, &voprf])).expect_err("nobody can");
        assert!(told.to_string().contains("number 2"), "{told}");
        let json = directory(&[&rsa, &voprf]).to_json();
        let told = VerifierKeys::parse(&json).expect_err("it has no secret");
        assert!(matches!(told, KeyDirectoryError::NoSecret(2)));
    }

    #[test]
    fn secret_keys_are_the_same_when_they_have_been_read_and_nobody_else_is_told_them() {
        let [voprf, rsa] = keys().map(Arc::new);
        let directory = directory(&[&voprf, &rsa]);
        let secret = BASE64.encode(&*voprf.voprf_secret().expect("a secret"));
        let all = vec![Arc::clone(&voprf), rsa];
        let keys = VerifierKeys::new(directory.clone(), all).expect("keys");
        let json = keys.to_json();
        assert!(json.contains(&secret) && !directory.to_json().contains(&secret));
        assert!(!format!("{keys:?}").contains(&secret));
        let read = VerifierKeys::parse(&json).expect("keys");
        assert_eq!(read, keys);
        let (request, pending) = voprf.public().request(&[1; 32]).expect("a request");
        let answer = voprf.issue(&request.blinded).expect("an answer");
        let token = pending.finish(&answer).expect("a token");
        assert!(read.verifies(voprf.public(), &token));
        // As a directory it is one: what is secret is passed over.
        assert_eq!(KeyDirectory::parse(&json).expect("a directory"), directory);
        let other = IssuerKey::generate(TokenType::Voprf).expect("a key");
        let other = BASE64.encode(&*other.voprf_secret().expect("a secret"));
        for wrong in [other.as_str(), "", "AAAA", "%"] {
            let told = VerifierKeys::parse(&json.replace(&secret, wrong)).expect_err("not its");
            assert!(matches!(told, KeyDirectoryError::Secret(1)), "{told}");
            assert!(wrong.len() < 5 || !told.to_string().contains(wrong));
        }
    }
}
