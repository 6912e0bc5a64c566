//! The identity provider whose bearers an issuer takes: what is asked of them is `hoplite_tokens`'s, here are the provider's keys, from a file or from
//! the provider itself (OpenID Connect Discovery 1.0 §4), read again from time to time and kept while they cannot be.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use hoplite_crypto::Trust;
use hoplite_tokens::{
    BearerRefused, BearerRules, Holder, KeySet, ProviderError, discovery_uri, keys_uri,
};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tracing::{info, warn};

use crate::{
    config::issuer::Oidc,
    directory::now,
    fetch::{FetchError, fetch},
    say::Failure,
};

/// Bytes of a provider's document, beyond which nothing is read.
const MOST_BYTES: usize = 256 << 10;
/// How long a provider may take for one.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// One provider, and what its bearers are worth.
#[derive(Debug)]
pub(crate) struct Provider {
    rules: BearerRules,
    per_day: u32,
    source: Source,
    refresh: Duration,
    retry: Duration,
    /// None until they were to be had.
    keys: ArcSwapOption<KeySet>,
    /// Told when a bearer names a key that is not among them.
    unknown: Notify,
    failing: AtomicBool,
}

#[derive(Clone, Debug, PartialEq)]
enum Source {
    File(PathBuf),
    Discovery(String, Trust),
}

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeysError {
    #[error("{0}: {1}")]
    File(String, std::io::Error),
    #[error("{0}: {1}")]
    Fetch(String, FetchError),
    #[error("{0}: {1}")]
    Unusable(String, ProviderError),
}

/// Why nobody knows whose a bearer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// It is none that is taken.
    Refused(BearerRefused),
    /// The keys have not been to be had yet.
    NoKeys,
}

impl Provider {
    /// With the file's keys, or those that `before` has had of the same source.
    pub(crate) fn new(config: &Oidc, before: Option<&Self>) -> Result<Self, Failure> {
        let source = Source::of(config)?;
        let provider = Self {
            rules: BearerRules {
                issuer: config.issuer.clone(),
                audience: config.audience.clone(),
                account: config.claim.clone(),
                required: config
                    .require
                    .as_ref()
                    .map(|require| (require.claim.clone(), require.value.clone())),
                skew: config.skew.as_secs(),
            },
            per_day: config.tokens_per_day,
            refresh: config.refresh,
            retry: config.retry,
            keys: ArcSwapOption::empty(),
            unknown: Notify::new(),
            failing: AtomicBool::new(false),
            source,
        };
        if let Source::File(path) = &provider.source {
            let keys = from_file(path).map_err(|error| {
                let remedy = "correct `oidc.keys`, or the file";
                Failure::new("reading the identity provider's keys", error, remedy)
            })?;
            provider.keys.store(Some(Arc::new(keys)));
        } else if let Some(before) = before.filter(|before| before.source == provider.source) {
            provider.keys.store(before.keys.load_full());
        }
        Ok(provider)
    }

    /// Whose `bearer` is, and how many tokens he may have in a day.
    pub(crate) fn holder(&self, bearer: &[u8]) -> Result<(Holder, u32), Unknown> {
        let keys = self.keys.load();
        let keys = keys.as_ref().ok_or(Unknown::NoKeys)?;
        let holder = self.rules.holder(keys, bearer, now());
        if holder == Err(BearerRefused::UnknownKey) {
            self.unknown.notify_one();
        }
        let holder = holder.map_err(Unknown::Refused)?;
        Ok((holder, self.per_day))
    }

    /// Reads the keys again every so often, and once when an unknown one was named; never ends.
    pub(crate) async fn keep(&self) {
        let (mut wait, mut pause) = (Duration::ZERO, self.retry);
        if matches!(self.source, Source::File(_)) {
            wait = self.refresh;
        }
        loop {
            // Whoever has a bearer with a key that nobody knows has the provider asked, and not more often than this.
            sleep(wait.min(self.retry)).await;
            let rest = wait.saturating_sub(self.retry);
            drop(timeout(rest, self.unknown.notified()).await);
            wait = match self.read().await {
                Ok(keys) => {
                    self.take(keys);
                    pause = self.retry;
                    self.refresh
                }
                Err(error) => {
                    if !self.failing.swap(true, Ordering::Relaxed) {
                        warn!("the identity provider's keys that are known stay: {error}");
                    }
                    pause = (pause * 2).min(self.refresh);
                    pause
                }
            };
        }
    }

    fn take(&self, keys: KeySet) {
        let was_failing = self.failing.swap(false, Ordering::Relaxed);
        let same = self.keys.load().as_deref() == Some(&keys);
        if was_failing || !same {
            info!(keys = keys.len(), "the identity provider's keys were read");
        }
        self.keys.store(Some(Arc::new(keys)));
    }

    async fn read(&self) -> Result<KeySet, KeysError> {
        let (issuer, trust) = match &self.source {
            Source::File(path) => return from_file(path),
            Source::Discovery(issuer, trust) => (issuer, trust),
        };
        let get = async |address: &str| {
            let fetched = fetch(address, trust, MOST_BYTES, FETCH_TIMEOUT).await;
            fetched.map_err(|error| KeysError::Fetch(address.to_owned(), error))
        };
        let discovery = discovery_uri(issuer);
        let document = get(&discovery).await?;
        let address = keys_uri(&document, issuer)
            .map_err(|error| KeysError::Unusable(discovery.clone(), error))?;
        let keys = get(&address).await?;
        KeySet::parse(&keys).map_err(|error| KeysError::Unusable(address, error))
    }
}

impl Source {
    fn of(config: &Oidc) -> Result<Self, Failure> {
        if let Some(path) = &config.keys {
            return Ok(Self::File(path.clone()));
        }
        let Some(path) = &config.roots else {
            return Ok(Self::Discovery(config.issuer.clone(), Trust::WebPki));
        };
        let doing = "reading the identity provider's authorities";
        let pem = std::fs::read(path).map_err(|error| Failure::file(doing, path, &error))?;
        let roots = Trust::roots(&pem).ok_or_else(|| {
            let why = format!("{}: there is no certificate in it", path.display());
            Failure::new(doing, why, "give a PEM file as `oidc.roots`")
        })?;
        Ok(Self::Discovery(config.issuer.clone(), roots))
    }
}

fn from_file(path: &PathBuf) -> Result<KeySet, KeysError> {
    let place = || path.display().to_string();
    let json = std::fs::read(path).map_err(|error| KeysError::File(place(), error))?;
    KeySet::parse(&json).map_err(|error| KeysError::Unusable(place(), error))
}
