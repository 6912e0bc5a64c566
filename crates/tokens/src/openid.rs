//! Whose an OpenID Connect bearer is: a JSON Web Token (RFC 7519) in the compact form (RFC 7515 §3.1) that a provider has signed with one of its keys
//! (JWK Set, RFC 7517 §5), and what else is asked of it (RFC 8725). Neither sockets nor clock; times are seconds since 1970.
//!
//! We do not use a library for it: those that are kept well read the clock themselves, take their cryptography from a setting of the whole process, or
//! bring a second copy of it. What is left when a key alone says how it signs is short.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use std::fmt;

use base64::{
    Engine, alphabet,
    engine::{
        DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::URL_SAFE_NO_PAD,
    },
};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Longer bearers are none.
pub const MOST_BEARER: usize = 8 << 10;
/// Bytes of an account's name at the provider (OpenID Connect Core §2: a subject has 255 at most).
const MOST_NAME: usize = 255;
/// More keys than a provider has at a time.
const MOST_KEYS: usize = 64;
/// Keys are written with padding now and then.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Why a bearer says nothing of who somebody is, or not enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BearerRefused {
    /// It is no JSON Web Token, is too long, or says something in a way that has no meaning.
    #[error("it is no JSON Web Token that could be read")]
    Malformed,
    /// It is signed in a way that none of the provider's keys signs, or not at all.
    #[error("it is not signed as the provider's keys sign")]
    Algorithm,
    /// The provider has no such key, as far as is known here.
    #[error("its key is not one of the provider's")]
    UnknownKey,
    /// Its signature is wrong.
    #[error("its signature is wrong")]
    Forged,
    /// Another provider has made it.
    #[error("it is another provider's")]
    OtherIssuer,
    /// It is meant for somebody else.
    #[error("it is for another audience")]
    OtherAudience,
    /// Its time is over.
    #[error("it has expired")]
    Expired,
    /// Its time has not begun.
    #[error("it is not valid yet")]
    NotYet,
    /// It has not the claim that says whose it is.
    #[error("it does not say whose it is")]
    NoAccount,
    /// Its holder is known, and may not have tokens.
    #[error("its holder may not have tokens here")]
    NotEntitled,
}

/// What is no JWK Set, or no discovery document, that could be used.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// It is not the JSON of one.
    #[error("it is not the JSON that was expected: {0}")]
    Json(#[from] serde_json::Error),
    /// It has none, or too many.
    #[error("it has no key for RS256, PS256, ES256, ES384 or EdDSA, or more than {MOST_KEYS} keys")]
    NoKey,
    /// A document of somebody else (OpenID Connect Discovery §4.3).
    #[error("it is the document of another issuer")]
    OtherIssuer,
}

/// Where a provider keeps what it says of itself. OpenID Connect Discovery 1.0 §4.
pub fn discovery_uri(issuer: &str) -> String {
    let issuer = issuer.trim_end_matches('/');
    format!("{issuer}/.well-known/openid-configuration")
}

/// Where the keys are, by the provider's discovery document.
///
/// # Errors
/// It is none, or another provider's.
pub fn keys_uri(document: &[u8], issuer: &str) -> Result<String, ProviderError> {
    #[derive(Deserialize)]
    struct Document {
        issuer: String,
        jwks_uri: String,
    }
    let document: Document = serde_json::from_slice(document)?;
    // "The issuer value returned MUST be identical to the Issuer URL that was used as the prefix".
    if document.issuer == issuer {
        Ok(document.jwks_uri)
    } else {
        Err(ProviderError::OtherIssuer)
    }
}

/// The ways of signing that are taken: none with a secret that both ends have, and none without a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Rs256,
    Ps256,
    Es256,
    Es384,
    EdDsa,
}

impl Algorithm {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "PS256" => Self::Ps256,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "EdDSA" | "Ed25519" => Self::EdDsa,
            _ => return None,
        })
    }
}

/// A provider's public keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySet(Vec<Key>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    id: Option<String>,
    /// Its only way of signing, where it names one.
    only: Option<Algorithm>,
    public: Public,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Public {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// RFC 7517 §4, RFC 7518 §6, RFC 8037 §2.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(rename = "use")]
    used_for: Option<String>,
    alg: Option<String>,
    kid: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Reads a JWK Set. Keys of which nothing is known here, or that are for something else, are passed over (RFC 7517 §5).
    ///
    /// # Errors
    /// It is none, or none of its keys can be used.
    pub fn parse(json: &[u8]) -> Result<Self, ProviderError> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let set: Set = serde_json::from_slice(json)?;
        let read = |key| Key::of(serde_json::from_value(key).ok()?);
        let keys: Vec<_> = set.keys.into_iter().filter_map(read).collect();
        if (1..=MOST_KEYS).contains(&keys.len()) {
            Ok(Self(keys))
        } else {
            Err(ProviderError::NoKey)
        }
    }

    /// How many there are that can be used.
    #[expect(clippy::len_without_is_empty, reason = "there is one at least")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The keys that may have signed what says so.
    fn fitting(&self, id: Option<&str>, algorithm: Algorithm) -> Result<Vec<&Key>, BearerRefused> {
        let named = |key: &&Key| id.is_none() || key.id.as_deref() == id;
        let named: Vec<_> = self.0.iter().filter(named).collect();
        if named.is_empty() {
            return Err(BearerRefused::UnknownKey);
        }
        let signs = |key: &&Key| key.signs(algorithm);
        let fitting: Vec<_> = named.into_iter().filter(signs).collect();
        match fitting.len() {
            0 => Err(BearerRefused::Algorithm),
            1 => Ok(fitting),
            // Who names no key would have us try all.
            _ if id.is_none() => Err(BearerRefused::UnknownKey),
            _ => Ok(fitting),
        }
    }
}

impl Key {
    fn of(jwk: Jwk) -> Option<Self> {
        if jwk.used_for.is_some_and(|used_for| used_for != "sig") {
            return None;
        }
        let bytes = |text: Option<String>| LENIENT.decode(text?).ok();
        let curve = jwk.crv.as_deref();
        let public = match (jwk.kty.as_str(), curve) {
            ("RSA", None) => Public::Rsa {
                n: bytes(jwk.n)?,
                e: bytes(jwk.e)?,
            },
            ("EC", Some("P-256")) => Public::P256(point(&bytes(jwk.x)?, &bytes(jwk.y)?, 32)?),
            ("EC", Some("P-384")) => Public::P384(point(&bytes(jwk.x)?, &bytes(jwk.y)?, 48)?),
            ("OKP", Some("Ed25519")) => {
                Public::Ed25519(bytes(jwk.x).filter(|key| key.len() == 32)?)
            }
            _ => return None,
        };
        // A key for an algorithm that is not taken here is of no use, whatever its type could do.
        let only = jwk.alg.map(|name| Algorithm::named(&name));
        let only = only.map_or(Some(None), |known| known.map(Some))?;
        Some(Self {
            id: jwk.kid,
            only,
            public,
        })
    }

    /// Whether it signs so: the key says it, not who shows something (RFC 8725 §3.1).
    fn signs(&self, algorithm: Algorithm) -> bool {
        let can = match self.public {
            Public::Rsa { .. } => matches!(algorithm, Algorithm::Rs256 | Algorithm::Ps256),
            Public::P256(_) => algorithm == Algorithm::Es256,
            Public::P384(_) => algorithm == Algorithm::Es384,
            Public::Ed25519(_) => algorithm == Algorithm::EdDsa,
        };
        can && self.only.is_none_or(|only| only == algorithm)
    }

    fn has_signed(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let plain = |by: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(by, key).verify(message, signature)
        };
        let verified = match &self.public {
            Public::Rsa { n, e } => {
                let by = match algorithm {
                    Algorithm::Ps256 => &RSA_PSS_2048_8192_SHA256,
                    _ => &RSA_PKCS1_2048_8192_SHA256,
                };
                RsaPublicKeyComponents { n, e }.verify(by, message, signature)
            }
            Public::P256(key) => plain(&ECDSA_P256_SHA256_FIXED, key),
            Public::P384(key) => plain(&ECDSA_P384_SHA384_FIXED, key),
            Public::Ed25519(key) => plain(&ED25519, key),
        };
        verified.is_ok()
    }
}

/// SEC 1 §2.3.3, without compression.
fn point(x: &[u8], y: &[u8], len: usize) -> Option<Vec<u8>> {
    let right = x.len() == len && y.len() == len;
    right.then(|| [&[4], x, y].concat())
}

/// What is asked of a bearer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BearerRules {
    /// The provider, exactly as it writes itself.
    pub issuer: String,
    /// For whom it must be.
    pub audience: String,
    /// The claim that is the account, such as `sub`.
    pub account: String,
    /// A claim, and the text that it must be or have in it.
    pub required: Option<(String, String)>,
    /// How far the clocks may be apart, in seconds.
    pub skew: u64,
}

/// Whose a bearer is. Not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Holder {
    /// Who says so.
    pub issuer: String,
    /// The account's name at the provider.
    pub name: String,
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Holder(hidden)")
    }
}

/// RFC 7515 §4.1.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    crit: Option<Value>,
}

impl BearerRules {
    /// Whose `bearer` is, if one of the provider's keys has signed it and it is all that is asked.
    ///
    /// # Errors
    /// [`BearerRefused`].
    pub fn holder(&self, keys: &KeySet, bearer: &[u8], now: u64) -> Result<Holder, BearerRefused> {
        let claims = verified(keys, bearer)?;
        if text(&claims, "iss") != Some(&self.issuer) {
            return Err(BearerRefused::OtherIssuer);
        }
        if !claims
            .get("aud")
            .is_some_and(|aud| has(aud, &self.audience))
        {
            return Err(BearerRefused::OtherAudience);
        }
        self.check_time(&claims, now)?;
        if let Some((claim, wanted)) = &self.required {
            let found = find(&claims, claim);
            // Scopes are words of one text (RFC 8693 §4.2).
            let scope = found.filter(|_| claim == "scope").and_then(Value::as_str);
            let scope = scope.is_some_and(|all| all.split(' ').any(|word| word == wanted));
            if !scope && !found.is_some_and(|found| has(found, wanted)) {
                return Err(BearerRefused::NotEntitled);
            }
        }
        let name = find(&claims, &self.account).and_then(Value::as_str);
        let name = name.filter(|name| (1..=MOST_NAME).contains(&name.len()));
        Ok(Holder {
            issuer: self.issuer.clone(),
            name: name.ok_or(BearerRefused::NoAccount)?.to_owned(),
        })
    }

    /// RFC 7519 §4.1.4, §4.1.5: a bearer that never expires is none.
    fn check_time(&self, claims: &Map<String, Value>, now: u64) -> Result<(), BearerRefused> {
        #[expect(clippy::cast_precision_loss, reason = "seconds are far below 2^52")]
        let (now, skew) = (now as f64, self.skew as f64);
        let ends = claims.get("exp").and_then(Value::as_f64);
        if ends.ok_or(BearerRefused::Malformed)? + skew <= now {
            return Err(BearerRefused::Expired);
        }
        match claims.get("nbf").map(Value::as_f64) {
            Some(None) => Err(BearerRefused::Malformed),
            Some(Some(begins)) if begins > now + skew => Err(BearerRefused::NotYet),
            _ => Ok(()),
        }
    }
}

/// What a bearer claims, if its signature is right.
fn verified(keys: &KeySet, bearer: &[u8]) -> Result<Map<String, Value>, BearerRefused> {
    if bearer.len() > MOST_BEARER {
        return Err(BearerRefused::Malformed);
    }
    let malformed = || BearerRefused::Malformed;
    let dot = |byte: &u8| *byte == b'.';
    let end = bearer.iter().rposition(dot).ok_or_else(malformed)?;
    let (signed, signature) = bearer.split_at(end);
    let parts: Vec<_> = signed.split(dot).collect();
    let [header, claims] = parts.as_slice() else {
        return Err(BearerRefused::Malformed);
    };
    let read = |part: &[u8]| URL_SAFE_NO_PAD.decode(part).map_err(|_| malformed());
    let header: Header = serde_json::from_slice(&read(header)?).map_err(|_| malformed())?;
    // RFC 7515 §4.1.11: what must be understood is not.
    if header.crit.is_some() {
        return Err(BearerRefused::Malformed);
    }
    // RFC 8725 §3.11: a provider signs other things with these keys, such as logout tokens.
    let kind = header.typ.unwrap_or_default().to_ascii_lowercase();
    let kind = kind.strip_prefix("application/").unwrap_or(&kind);
    if !["", "jwt", "at+jwt"].contains(&kind) {
        return Err(BearerRefused::Malformed);
    }
    let algorithm = Algorithm::named(&header.alg).ok_or(BearerRefused::Algorithm)?;
    let signature = read(signature.split_first().ok_or_else(malformed)?.1)?;
    let keys = keys.fitting(header.kid.as_deref(), algorithm)?;
    let right = |key: &&Key| key.has_signed(algorithm, signed, &signature);
    if !keys.iter().any(right) {
        return Err(BearerRefused::Forged);
    }
    serde_json::from_slice(&read(claims)?).map_err(|_| malformed())
}

/// A claim by its name, or by the JSON pointer (RFC 6901) that begins with a slash.
fn find<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let Some(path) = name.strip_prefix('/') else {
        return claims.get(name);
    };
    let (first, rest) = path
        .split_once('/')
        .map_or((path, None), |(a, b)| (a, Some(b)));
    let found = claims.get(first)?;
    rest.map_or(Some(found), |rest| found.pointer(&format!("/{rest}")))
}

fn text<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a String> {
    match claims.get(name)? {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// Whether it is this text, or a list that has it.
fn has(value: &Value, wanted: &str) -> bool {
    match value {
        Value::String(text) => text == wanted,
        Value::Bool(is) => wanted == is.to_string(),
        Value::Array(all) => all.iter().any(|one| one.as_str() == Some(wanted)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use ring::{
        rand::SystemRandom,
        rsa,
        signature::{
            ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
            RSA_PKCS1_SHA256, RSA_PSS_SHA256,
        },
    };
    use serde_json::json;

    use super::*;
    use hoplite_wire::privacy_pass::TokenType;

    const NOW: u64 = 1_000_000;

    /// A provider with a key of each kind.
    struct Provider {
        rsa: rsa::KeyPair,
        ec: EcdsaKeyPair,
        ed: Ed25519KeyPair,
        random: SystemRandom,
    }

    fn encoded(bytes: impl AsRef<[u8]>) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    impl Provider {
        fn new() -> Self {
            let random = SystemRandom::new();
            let key = crate::IssuerKey::generate(TokenType::BlindRsa);
            let pem = key.and_then(|key| key.to_text());
            let pem = pem.expect("a key");
            let inner: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
            let der = base64::engine::general_purpose::STANDARD.decode(inner);
            let by = &ECDSA_P256_SHA256_FIXED_SIGNING;
            let ec = EcdsaKeyPair::generate_pkcs8(by, &random).expect("a key");
            let ed = Ed25519KeyPair::generate_pkcs8(&random).expect("a key");
            Self {
                rsa: rsa::KeyPair::from_pkcs8(&der.expect("base64")).expect("a key"),
                ec: EcdsaKeyPair::from_pkcs8(by, ec.as_ref(), &random).expect("a key"),
                ed: Ed25519KeyPair::from_pkcs8(ed.as_ref()).expect("a key"),
                random,
            }
        }

        fn jwks(&self) -> Value {
            let rsa = rsa::PublicKeyComponents::<Vec<u8>>::from(self.rsa.public());
            let ec = &self.ec.public_key().as_ref()[1..];
            json!({"keys": [
                {"kty": "RSA", "kid": "r", "use": "sig", "n": encoded(rsa.n), "e": encoded(rsa.e)},
                {"kty": "EC", "kid": "e", "alg": "ES256", "crv": "P-256", "x": encoded(&ec[..32]), "y": encoded(&ec[32..])},
                {"kty": "OKP", "kid": "o", "crv": "Ed25519", "x": encoded(self.ed.public_key())},
                {"kty": "RSA", "kid": "encrypts", "use": "enc", "n": "AQAB", "e": "AQAB"},
                {"kty": "oct", "kid": "secret", "k": "AAAA"},
                {"kty": "XYZ"},
                7,
            ]})
        }

        fn keys(&self) -> KeySet {
            KeySet::parse(self.jwks().to_string().as_bytes()).expect("keys")
        }

        fn sign(&self, header: &Value, claims: &Value) -> String {
            let signed = format!(
                "{}.{}",
                encoded(header.to_string()),
                encoded(claims.to_string())
            );
            let rsa = |by: &'static dyn ring::signature::RsaEncoding| {
                let mut out = vec![0; self.rsa.public().modulus_len()];
                let done = self.rsa.sign(by, &self.random, signed.as_bytes(), &mut out);
                done.map(|()| out).expect("signed")
            };
            let signature = match header["alg"].as_str() {
                Some("RS256") => rsa(&RSA_PKCS1_SHA256),
                Some("PS256") => rsa(&RSA_PSS_SHA256),
                Some("ES256") => {
                    let signed = self.ec.sign(&self.random, signed.as_bytes());
                    signed.expect("signed").as_ref().to_vec()
                }
                Some("EdDSA") => self.ed.sign(signed.as_bytes()).as_ref().to_vec(),
                // Who has only what is published signs with that as a secret.
                Some("HS256") => {
                    let n = rsa::PublicKeyComponents::<Vec<u8>>::from(self.rsa.public()).n;
                    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &n);
                    ring::hmac::sign(&key, signed.as_bytes()).as_ref().to_vec()
                }
                _ => Vec::new(),
            };
            format!("{signed}.{}", encoded(signature))
        }
    }

    fn rules() -> BearerRules {
        BearerRules {
            issuer: "https://login.test".into(),
            audience: "hoplite".into(),
            account: "sub".into(),
            required: None,
            skew: 60,
        }
    }

    fn claims() -> Value {
        json!({"iss": "https://login.test", "aud": "hoplite", "sub": "ann", "exp": NOW + 300, "nbf": NOW - 5})
    }

    fn with(change: &Value) -> Value {
        let mut all = claims();
        for (name, value) in change.as_object().expect("claims") {
            all[name] = value.clone();
        }
        all
    }

    fn judged(rules: &BearerRules, keys: &KeySet, bearer: &str) -> Result<String, BearerRefused> {
        let holder = rules.holder(keys, bearer.as_bytes(), NOW);
        holder.map(|holder| holder.name)
    }

    #[test]
    fn a_bearer_of_each_kind_of_key_says_whose_it_is() {
        let (provider, other) = (Provider::new(), Provider::new());
        let keys = provider.keys();
        for (algorithm, id) in [
            ("RS256", "r"),
            ("PS256", "r"),
            ("ES256", "e"),
            ("EdDSA", "o"),
        ] {
            for header in [
                json!({"alg": algorithm, "kid": id, "typ": "JWT"}),
                json!({"alg": algorithm, "typ": "application/at+jwt"}),
            ] {
                let found = judged(&rules(), &keys, &provider.sign(&header, &claims()));
                assert_eq!(found.as_deref(), Ok("ann"), "{header}");
                let found = judged(&rules(), &keys, &other.sign(&header, &claims()));
                assert_eq!(found, Err(BearerRefused::Forged), "{header}");
            }
        }
    }

    #[test]
    fn no_change_of_the_header_makes_another_signature_good() {
        let provider = Provider::new();
        let keys = provider.keys();
        let refused = |header: Value| {
            let bearer = provider.sign(&header, &claims());
            judged(&rules(), &keys, &bearer).expect_err("refused")
        };
        let id = |alg: &str, kid: &str| json!({"alg": alg, "kid": kid});
        for alg in ["none", "None", "HS256", "RS512", ""] {
            assert_eq!(refused(id(alg, "r")), BearerRefused::Algorithm, "{alg}");
        }
        assert_eq!(refused(id("ES256", "r")), BearerRefused::Algorithm);
        assert_eq!(refused(id("RS256", "e")), BearerRefused::Algorithm);
        assert_eq!(refused(id("RS256", "secret")), BearerRefused::UnknownKey);
        assert_eq!(refused(id("RS256", "encrypts")), BearerRefused::UnknownKey);
        assert_eq!(refused(id("RS256", "gone")), BearerRefused::UnknownKey);
        let critical = json!({"alg": "RS256", "kid": "r", "crit": ["exp"]});
        assert_eq!(refused(critical), BearerRefused::Malformed);
        let logout = json!({"alg": "RS256", "kid": "r", "typ": "logout+jwt"});
        assert_eq!(refused(logout), BearerRefused::Malformed);
    }

    #[test]
    fn what_is_signed_and_changed_cut_or_too_long_is_refused() {
        let provider = Provider::new();
        let keys = provider.keys();
        let header = json!({"alg": "EdDSA", "kid": "o"});
        let bearer = provider.sign(&header, &claims());
        let parts: Vec<_> = bearer.split('.').collect();
        let forged = encoded(with(&json!({"sub": "bob"})).to_string());
        let forged = format!("{}.{forged}.{}", parts[0], parts[2]);
        assert_eq!(judged(&rules(), &keys, &forged), Err(BearerRefused::Forged));
        for end in 0..bearer.len() {
            let cut = rules().holder(&keys, bearer.as_bytes().split_at(end).0, NOW);
            cut.expect_err("it was cut");
        }
        for more in ["", ".", ".a", "..", "=", "\n"] {
            judged(&rules(), &keys, &format!("{bearer}{more}x")).expect_err("it goes on");
        }
        let long = with(&json!({"more": "x".repeat(MOST_BEARER)}));
        let long = provider.sign(&header, &long);
        assert_eq!(
            judged(&rules(), &keys, &long),
            Err(BearerRefused::Malformed)
        );
    }

    #[test]
    fn a_bearer_of_somebody_else_for_somebody_else_or_of_another_time_is_refused() {
        let provider = Provider::new();
        let keys = provider.keys();
        let judge = |change: Value| {
            let header = json!({"alg": "EdDSA", "kid": "o"});
            let bearer = provider.sign(&header, &with(&change));
            judged(&rules(), &keys, &bearer).map(drop)
        };
        use BearerRefused as No;
        for (change, judged) in [
            (json!({"aud": ["other", "hoplite"]}), Ok(())),
            (
                json!({"aud": ["other", "hoplite2"]}),
                Err(No::OtherAudience),
            ),
            (json!({"aud": null}), Err(No::OtherAudience)),
            (
                json!({"aud": {"hoplite": "hoplite"}}),
                Err(No::OtherAudience),
            ),
            (json!({"iss": "https://login.test/"}), Err(No::OtherIssuer)),
            (json!({"iss": ["https://login.test"]}), Err(No::OtherIssuer)),
            (json!({"exp": NOW - 59}), Ok(())),
            (json!({"exp": NOW - 60}), Err(No::Expired)),
            (json!({"exp": null}), Err(No::Malformed)),
            (json!({"exp": "9999999999"}), Err(No::Malformed)),
            (json!({"exp": NOW as f64 + 0.5}), Ok(())),
            (json!({"nbf": NOW + 60}), Ok(())),
            (json!({"nbf": NOW + 61}), Err(No::NotYet)),
            (json!({"nbf": "soon"}), Err(No::Malformed)),
            (json!({"sub": ""}), Err(No::NoAccount)),
            (json!({"sub": 7}), Err(No::NoAccount)),
            (json!({"sub": "x".repeat(256)}), Err(No::NoAccount)),
        ] {
            assert_eq!(judge(change.clone()), judged, "{change}");
        }
    }

    #[test]
    fn a_claim_may_be_asked_for_and_another_one_be_the_account() {
        let provider = Provider::new();
        let keys = provider.keys();
        let judge = |claim: &str, change: Value| {
            let rules = BearerRules {
                required: Some((claim.into(), "relays".into())),
                account: "/person/id".into(),
                ..rules()
            };
            let mut all = with(&change);
            all["person"] = json!({"id": "p-7"});
            let bearer = provider.sign(&json!({"alg": "EdDSA", "kid": "o"}), &all);
            judged(&rules, &keys, &bearer)
        };
        let ours = Ok("p-7".to_owned());
        assert_eq!(judge("groups", json!({"groups": ["a", "relays"]})), ours);
        assert_eq!(judge("group", json!({"group": "relays"})), ours);
        assert_eq!(judge("scope", json!({"scope": "openid relays"})), ours);
        let nested = json!({"realm_access": {"roles": ["relays"]}});
        assert_eq!(judge("/realm_access/roles", nested), ours);
        for change in [
            json!({}),
            json!({"groups": "some relays"}),
            json!({"groups": {"relays": true}}),
        ] {
            let judged = judge("groups", change.clone());
            assert_eq!(judged, Err(BearerRefused::NotEntitled), "{change}");
        }
    }

    #[test]
    fn who_names_no_key_is_not_let_try_all() {
        let provider = Provider::new();
        let mut twice = provider.jwks();
        let mut second = twice["keys"][2].clone();
        second["kid"] = json!("p");
        let all = twice["keys"].as_array_mut().expect("keys");
        all.push(second);
        let keys = KeySet::parse(twice.to_string().as_bytes()).expect("keys");
        let bearer = provider.sign(&json!({"alg": "EdDSA"}), &claims());
        assert_eq!(
            judged(&rules(), &keys, &bearer),
            Err(BearerRefused::UnknownKey)
        );
        let bearer = provider.sign(&json!({"alg": "EdDSA", "kid": "p"}), &claims());
        assert_eq!(judged(&rules(), &keys, &bearer).as_deref(), Ok("ann"));
    }

    #[test]
    fn what_is_no_set_of_keys_or_another_providers_document_is_told() {
        for json in [
            "",
            "{}",
            r#"{"keys": []}"#,
            r#"{"keys": [{"kty": "oct", "k": "AA"}]}"#,
        ] {
            KeySet::parse(json.as_bytes()).expect_err(json);
        }
        let document =
            br#"{"issuer": "https://a.test", "jwks_uri": "https://a.test/k", "more": 1}"#;
        let found = keys_uri(document, "https://a.test").expect("a document");
        assert_eq!(found, "https://a.test/k");
        keys_uri(document, "https://b.test").expect_err("another's");
        assert_eq!(
            discovery_uri("https://a.test/x/"),
            "https://a.test/x/.well-known/openid-configuration"
        );
    }

    #[test]
    fn nobodys_name_is_printed() {
        let holder = Holder {
            issuer: "https://login.test".into(),
            name: "ann".into(),
        };
        assert_eq!(format!("{holder:?}"), "Holder(hidden)");
    }
}
