//! Who is let in: tokens by `Proxy-Authorization` or `Authorization`, as a bearer, as the password of Basic, or as a private token, which is spent with the
//! connection that it admits and tells no two of them of one client. Asked once for each request; bearer tokens are compared in constant time, and all can
//! be replaced while the relay runs. RFC 9110 §11.6 and §11.7, RFC 6750 §2.1, RFC 7617, RFC 9577 §2.

use std::{
    collections::VecDeque,
    fmt,
    io::ErrorKind,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use hoplite_crypto::{Token, Tokens};
use hoplite_tokens::{
    AlreadySpent, KeyDirectory, KeyDirectoryError, SpentOptions, SpentTokens, TokenRefused,
    Verifier, VerifierKeys,
};
use hoplite_wire::privacy_pass::{PrivateToken, TokenType};
use parking_lot::Mutex;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::{
    config::{Auth, ConfigError, PrivateTokens},
    limits::Bucket,
    metrics::Metrics,
};

/// What a refused client is asked for (RFC 9110 §11.7.1).
const CHALLENGE: &str = "Bearer realm=\"hoplite\", Basic realm=\"hoplite\"";
/// Tokens that admit further connections for a while: beyond so many the oldest does no more.
const REMEMBERED: usize = 65_536;

/// The tokens that are accepted.
#[derive(Debug)]
pub(crate) struct Admission {
    tokens: Option<Arc<Tokens>>,
    private: Option<Private>,
}

/// Who may use the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmittedClient {
    /// Nobody needs a token here.
    Anyone,
    /// The holder of the token with this index.
    Holder(usize),
    /// Whoever has spent the token with this nonce.
    Spender([u8; 32]),
}

/// Why a client is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// No token, or one that is not taken; the word is the metrics'.
    Token(&'static str),
    /// Nobody knows whether the token is spent.
    Unknown,
}

/// Tokens that are verified on one connection, at most: a wrong one costs its client nothing, and the relay as much as a good one. Another
/// connection costs more than that.
const TRIED: u32 = 8;

/// As how many of [`TRIED`] one counts: those of the VOPRF take far longer to verify.
const fn weight(token_type: TokenType) -> u32 {
    match token_type {
        TokenType::Voprf => 4,
        TokenType::BlindRsa => 1,
    }
}

/// By whose token a connection was admitted: the requests that follow need none.
#[derive(Debug, Default)]
pub(crate) struct AdmittedBy(tokio::sync::Mutex<Shown>);

/// What a connection has shown.
#[derive(Debug, Default)]
struct Shown {
    /// The nonce of the token that was spent.
    spent: Option<[u8; 32]>,
    tried: u32,
}

/// Tokens that nobody can link, each for one connection. RFC 9577.
#[derive(Debug)]
struct Private {
    config: PrivateTokens,
    verifier: Verifier,
    spent: SpentTokens,
    again: Arc<Again>,
    unchecked: Arc<Bucket>,
    metrics: Arc<Metrics>,
}

/// The tokens that admit further connections for a while.
#[derive(Debug)]
struct Again {
    lasts: Duration,
    until: Mutex<VecDeque<(Instant, [u8; 32])>>,
}

impl Admission {
    /// Reads the tokens of `[[auth.token]]`, and what `[auth.private_tokens]` names.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub(crate) fn new(auth: &Auth, metrics: &Arc<Metrics>) -> Result<Self, ConfigError> {
        let tokens: Vec<Token> = auth
            .token
            .iter()
            .map(|entry| entry.read().map(|text| Token::new(text.to_string())))
            .collect::<Result<_, _>>()?;
        let tokens = (!tokens.is_empty()).then(|| Arc::new(Tokens::new(&tokens)));
        let private = auth.private_tokens.as_ref();
        let private = private.map(|config| Private::new(config, metrics));
        let private = private.transpose()?;
        Ok(Self { tokens, private })
    }

    /// The same with other keys of the issuer of private tokens. None where none are taken, or they are what it has.
    ///
    /// # Errors
    /// What is spent cannot be read or used.
    pub(crate) fn with_keys(&self, keys: &VerifierKeys) -> Result<Option<Self>, ConfigError> {
        let private = self.private.as_ref();
        let Some(private) = private.filter(|private| private.verifier.keys() != keys) else {
            return Ok(None);
        };
        Ok(Some(Self {
            tokens: self.tokens.clone(),
            private: Some(private.with_keys(keys.clone())?),
        }))
    }

    /// Whether nobody needs a token.
    pub(crate) fn is_open(&self) -> bool {
        self.tokens.is_none() && self.private.is_none()
    }

    /// What a refused client is asked for: the values of its fields.
    pub(crate) fn challenges(&self) -> Vec<String> {
        let private = self.private.as_ref();
        let private = private.and_then(|private| private.verifier.challenge(unix_time()));
        // A browser asks its user for the password of Basic, which may be a private token.
        let plain = [CHALLENGE.to_owned()];
        private.into_iter().chain(plain).collect()
    }

    /// Judges the values of `Proxy-Authorization` and `Authorization` of a request on the connection that was admitted `by` somebody, or will be.
    /// Browsers send one or the other.
    pub(crate) async fn judge<'a>(
        &self,
        values: impl IntoIterator<Item = &'a [u8]>,
        by: &AdmittedBy,
    ) -> Result<AdmittedClient, NotAdmitted> {
        if self.is_open() {
            return Ok(AdmittedClient::Anyone);
        }
        let mut shown = None;
        for value in values {
            let credential = credential(value);
            let bearer = credential.as_deref().zip(self.tokens.as_deref());
            if let Some(index) = bearer.and_then(|(text, tokens)| tokens.find(text)) {
                return Ok(AdmittedClient::Holder(index));
            }
            let private = PrivateToken::from_field(value);
            let password = || credential.map(|text| PrivateToken::from_text(&text));
            shown = shown.or_else(|| private.or_else(password));
        }
        match &self.private {
            Some(private) => private.judge(shown.and_then(Result::ok), by).await,
            None => Err(NotAdmitted::Token("bearer")),
        }
    }
}

impl Private {
    fn new(config: &PrivateTokens, metrics: &Arc<Metrics>) -> Result<Self, ConfigError> {
        let again = Again {
            lasts: config.again,
            until: Mutex::default(),
        };
        let unchecked = Bucket::per_second(config.unchecked);
        Self::of(
            config,
            keys(config)?,
            (again.into(), unchecked.into()),
            metrics,
        )
    }

    /// What was spent is opened anew: when it may forget a token is told by the keys.
    fn with_keys(&self, keys: VerifierKeys) -> Result<Self, ConfigError> {
        let kept = (Arc::clone(&self.again), Arc::clone(&self.unchecked));
        Self::of(&self.config, keys, kept, &self.metrics)
    }

    fn of(
        config: &PrivateTokens,
        keys: VerifierKeys,
        (again, unchecked): (Arc<Again>, Arc<Bucket>),
        metrics: &Arc<Metrics>,
    ) -> Result<Self, ConfigError> {
        let options = options(config, metrics);
        let spent = if let Some(store) = &config.store {
            SpentTokens::share(store.read()?, keys.directory(), store.connections, options)
        } else {
            let listed = &keys.directory().keys;
            let ids: Vec<_> = listed.iter().map(|listed| *listed.key.id()).collect();
            let file = config.spent();
            SpentTokens::open(&file, &ids, unix_time(), options)
                .map_err(|error| wrong("auth.private_tokens.spent", &error, &file))?
        };
        let verifier = Verifier::new(&config.issuer, &config.origin, keys);
        Ok(Self {
            config: config.clone(),
            verifier: verifier.map_err(|error| {
                ConfigError::new("auth.private_tokens.issuer", error.to_string())
            })?,
            spent,
            again,
            unchecked,
            metrics: Arc::clone(metrics),
        })
    }

    /// Spends the token that is shown, unless the connection was admitted before. Of several requests at once one spends, and the others wait for it.
    async fn judge(
        &self,
        shown: Option<PrivateToken>,
        by: &AdmittedBy,
    ) -> Result<AdmittedClient, NotAdmitted> {
        let mut by = by.0.lock().await;
        if let Some(nonce) = by.spent {
            return Ok(AdmittedClient::Spender(nonce));
        }
        let token = shown.ok_or(NotAdmitted::Token("none"))?;
        let tried = by.tried.saturating_add(weight(token.token_type()));
        if tried > TRIED {
            return Err(NotAdmitted::Token("too_many"));
        }
        by.tried = tried;
        let nonce = self.spend(&token).await?;
        by.spent = Some(nonce);
        Ok(AdmittedClient::Spender(nonce))
    }

    async fn spend(&self, token: &PrivateToken) -> Result<[u8; 32], NotAdmitted> {
        let refused = |why| match why {
            TokenRefused::OtherChallenge => "other_challenge",
            TokenRefused::UnknownKey => "unknown_key",
            TokenRefused::Forged => "forged",
        };
        let nonce = *token.nonce();
        let verified = self.verifier.verify(token, unix_time());
        verified.map_err(|why| NotAdmitted::Token(refused(why)))?;
        match self.spent.spend(token).await {
            Ok(Ok(())) => self.again.begin(nonce),
            Ok(Err(AlreadySpent)) if self.again.lasts(&nonce) => {}
            Ok(Err(AlreadySpent)) => return Err(NotAdmitted::Token("spent")),
            Err(error) => {
                self.metrics.spent_store_failed(error.cause());
                if !self.unchecked.is_limited() || !self.unchecked.admits(1) {
                    return Err(NotAdmitted::Unknown);
                }
                self.metrics.tokens_unchecked.inc();
            }
        }
        Ok(nonce)
    }
}

/// The issuer's keys as the file has them: none yet, if they are still to be fetched.
fn keys(config: &PrivateTokens) -> Result<VerifierKeys, ConfigError> {
    if let Some(file) = &config.secrets {
        let key = "auth.private_tokens.secrets";
        let text = hoplite_config::secret_text(file);
        let text = text.map_err(|problem| ConfigError::new(key, problem))?;
        return VerifierKeys::parse(&text).map_err(|error| {
            let remedy = match error {
                KeyDirectoryError::NoSecret(_) => {
                    ": take the file that the issuer writes as its `secrets`, not its directory"
                }
                _ => "",
            };
            wrong(key, &format!("{error}{remedy}"), file)
        });
    }
    let file = config.keys.clone().unwrap_or_default();
    let unread = |why: &dyn fmt::Display| wrong("auth.private_tokens.keys", why, &file);
    let text = match std::fs::read_to_string(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound && config.directory.is_some() => {
            return Ok(VerifierKeys::default());
        }
        text => text.map_err(|error| unread(&error))?,
    };
    let keys = KeyDirectory::parse(&text).and_then(VerifierKeys::public);
    keys.map_err(|error| {
        let remedy = match error {
            KeyDirectoryError::NoSecret(_) => ": give the relay the file that the issuer writes as its `secrets`, as `secrets` instead of `keys`",
            _ => "",
        };
        unread(&format!("{error}{remedy}"))
    })
}

fn wrong(key: &'static str, why: &dyn fmt::Display, file: &Path) -> ConfigError {
    ConfigError::new(key, format!("{}: {why}", file.display()))
}

/// What the store of spent tokens is told, and tells: the beginning and the end of an outage, not each of its tokens.
fn options(config: &PrivateTokens, metrics: &Arc<Metrics>) -> SpentOptions {
    let (up, unchecked) = (metrics.spent_store_up.clone(), config.unchecked);
    SpentOptions {
        deadline: config.deadline,
        queue: config.queue,
        told: Arc::new(move |answers| match answers {
            Ok(()) => {
                up.set(1);
                tracing::info!("the store of spent tokens answers");
            }
            Err(error) => {
                up.set(0);
                tracing::error!(%error, unchecked, "nobody knows which tokens are spent");
            }
        }),
    }
}

impl Again {
    fn begin(&self, nonce: [u8; 32]) {
        if self.lasts.is_zero() {
            return;
        }
        let now = Instant::now();
        let mut until = self.until.lock();
        while until.len() >= REMEMBERED || until.front().is_some_and(|(end, _)| *end <= now) {
            until.pop_front();
        }
        until.push_back((now + self.lasts, nonce));
    }

    fn lasts(&self, nonce: &[u8; 32]) -> bool {
        let now = Instant::now();
        let until = self.until.lock();
        until
            .iter()
            .any(|(end, other)| *end > now && other == nonce)
    }
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.as_ref().map_or(0, Duration::as_secs)
}

/// The secret in a header's value: a bearer, or the password of Basic.
fn credential(value: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let value = value.trim_ascii();
    let space = value.iter().position(|byte| *byte == b' ')?;
    let (scheme, rest) = value.split_at(space);
    let rest = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(Zeroizing::new(rest.to_vec()));
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let pair = Zeroizing::new(STANDARD.decode(rest).ok()?);
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(Zeroizing::new(pair.get(colon + 1..)?.to_vec()))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::config::TokenEntry;

    fn admission(tokens: &[&str]) -> Admission {
        let entry = |token: &&str| TokenEntry {
            token: Some(Zeroizing::new((*token).to_owned())),
            ..TokenEntry::default()
        };
        let auth = Auth {
            token: tokens.iter().map(entry).collect(),
            ..Auth::default()
        };
        Admission::new(&auth, &Arc::default()).expect("tokens")
    }

    fn all(admission: &Admission, values: &[&str]) -> Option<AdmittedClient> {
        let (values, by) = (
            values.iter().map(|value| value.as_bytes()),
            AdmittedBy::default(),
        );
        let judged = admission.judge(values, &by).now_or_never();
        judged.expect("nothing is waited for").ok()
    }

    fn judge(admission: &Admission, value: &str) -> Option<AdmittedClient> {
        all(admission, &[value])
    }

    #[test]
    fn a_token_is_taken_as_bearer_and_as_the_password_of_basic() {
        let admission = admission(&["alpha", "beta"]);
        let basic = format!("Basic {}", STANDARD.encode("anybody:beta"));
        for value in [
            "Bearer beta",
            "bearer  beta ",
            "BEARER beta",
            basic.as_str(),
        ] {
            assert_eq!(
                judge(&admission, value),
                Some(AdmittedClient::Holder(1)),
                "{value}"
            );
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let admission = admission(&["alpha"]);
        for value in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer alph",
            "Bearer alphaa",
            "Digest alpha",
            "alpha",
            "Basic !!",
            "Basic YWxwaGE=",
        ] {
            assert_eq!(judge(&admission, value), None, "{value}");
        }
        assert_eq!(all(&admission, &[]), None);
    }

    #[test]
    fn the_second_header_counts_when_the_first_is_wrong() {
        let values = ["Bearer wrong", "Bearer alpha"];
        assert_eq!(
            all(&admission(&["alpha"]), &values),
            Some(AdmittedClient::Holder(0))
        );
    }

    #[test]
    fn without_tokens_everybody_is_let_in() {
        assert_eq!(all(&admission(&[]), &[]), Some(AdmittedClient::Anyone));
    }
}
