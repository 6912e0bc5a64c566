//! What an issuer publishes of its keys, and where: RFC 9578 §4.

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use hoplite_wire::privacy_pass::BLIND_RSA;
use serde::{Deserialize, Serialize};

use crate::PublicKey;

/// Base64url, written with its padding, read with or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// More keys than an honest issuer has at a time: one for each client would tell them apart.
const MOST_KEYS: usize = 4;

/// An issuer's keys, the preferred first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyDirectory {
    /// Where tokens are asked for, as seen from the directory.
    pub request_uri: String,
    /// Keys of tokens of type 2.
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

/// What is no directory of keys that can be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyDirectoryError {
    /// It is not the JSON of one.
    #[error("it is no directory of an issuer's keys (RFC 9578 §4): {0}")]
    Json(#[from] serde_json::Error),
    /// A key of type 2 is none.
    #[error("its key number {0} is no key for tokens of type 2")]
    Key(usize),
    /// So many keys tell clients apart.
    #[error("it has {0} keys for tokens of type 2; more than {MOST_KEYS} could tell clients apart")]
    TooMany(usize),
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
}

impl KeyDirectory {
    /// Its JSON.
    pub fn to_json(&self) -> String {
        let listed = |listed: &ListedKey| JsonKey {
            kind: BLIND_RSA,
            key: BASE64.encode(listed.key.spki()),
            not_before: listed.not_before,
        };
        let json = Json {
            request_uri: self.request_uri.clone(),
            keys: self.keys.iter().map(listed).collect(),
        };
        // Texts and numbers alone: it always can.
        serde_json::to_string_pretty(&json).unwrap_or_default()
    }

    /// Reads one. Keys of other types of tokens are passed over.
    ///
    /// # Errors
    /// [`KeyDirectoryError`].
    pub fn parse(json: &str) -> Result<Self, KeyDirectoryError> {
        let json: Json = serde_json::from_str(json)?;
        let ours: Vec<_> = (1..)
            .zip(&json.keys)
            .filter(|(_, key)| key.kind == BLIND_RSA)
            .collect();
        if ours.len() > MOST_KEYS {
            return Err(KeyDirectoryError::TooMany(ours.len()));
        }
        let read = |(number, listed): (usize, &JsonKey)| {
            let spki = BASE64.decode(&listed.key);
            let key = spki.ok().and_then(|spki| PublicKey::from_spki(&spki).ok());
            Ok::<_, KeyDirectoryError>(ListedKey {
                key: key.ok_or(KeyDirectoryError::Key(number))?,
                not_before: listed.not_before,
            })
        };
        Ok(Self {
            request_uri: json.request_uri,
            keys: ours.into_iter().map(read).collect::<Result<_, _>>()?,
        })
    }

    /// The key that new tokens are made with: of those that are in use, the first (RFC 9578 §4).
    pub fn current(&self, now: u64) -> Option<&PublicKey> {
        let mut keys = self.keys.iter();
        let used = keys.find(|listed| listed.not_before <= now);
        used.map(|listed| &listed.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IssuerKey;

    #[test]
    fn a_directory_is_the_same_when_it_has_been_read_and_others_types_are_passed_over() {
        let key = IssuerKey::generate().expect("a key").public().clone();
        let listed = |not_before| ListedKey {
            key: key.clone(),
            not_before,
        };
        let directory = KeyDirectory {
            request_uri: "/token-request".into(),
            keys: vec![listed(200), listed(100)],
        };
        let json = directory.to_json();
        assert_eq!(KeyDirectory::parse(&json).expect("a directory"), directory);
        let first = r#""token-keys": ["#;
        let other = format!(r#"{first}{{"token-type": 1, "token-key": "AA", "extra": true}},"#);
        let more = json.replace(first, &other).replace('=', "");
        assert_eq!(KeyDirectory::parse(&more).expect("a directory"), directory);
        assert!(directory.current(50).is_none());
        assert!(directory.current(150).is_some());
    }

    #[test]
    fn what_cannot_be_used_is_told() {
        KeyDirectory::parse("{}").expect_err("no directory");
        let bad = r#"{"issuer-request-uri": "/", "token-keys": [{"token-type": 2, "token-key": "AAAA"}]}"#;
        let error = KeyDirectory::parse(bad).expect_err("no key");
        assert!(error.to_string().contains("number 1"), "{error}");
    }
}
