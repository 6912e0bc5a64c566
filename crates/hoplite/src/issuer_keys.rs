//! The keys of the issuer whose private tokens a relay takes, fetched from where the issuer publishes them (RFC 9578 §4): again and again, and kept in
//! the file that the relay reads when it starts, so that one that starts while the issuer is down serves as before. What cannot be fetched or used
//! changes nothing.

use std::{fmt, path::Path, time::Duration};

use hoplite_crypto::Trust;
use hoplite_relay::{ConfigError, Handle, IssuerKeys, config::PrivateTokens};
use hoplite_tokens::{KeyDirectory, KeyDirectoryError, VerifierKeys};
use tokio::{sync::watch, time::sleep};
use tracing::{info, warn};

use crate::{
    client::random,
    fetch::{FetchError, fetch},
    identity,
};

/// Where an issuer publishes its keys: RFC 9578 §4.
pub(crate) const DIRECTORY: &str = "/.well-known/private-token-issuer-directory";
/// Bytes of a directory of keys, beyond which nothing is read.
pub(crate) const MOST_BYTES: usize = 64 << 10;
/// How long an issuer may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(20);
/// How soon it is asked again that failed, at first; and within which time those are asked first whose keys are in the file.
const RETRY: Duration = Duration::from_secs(60);
const LONGEST_RETRY: Duration = Duration::from_secs(3600);

/// Why the keys are those that were known before.
#[derive(Debug, thiserror::Error)]
enum KeysError {
    #[error("{0}")]
    Fetch(#[from] FetchError),
    #[error("it is no text")]
    NoText(#[from] std::str::Utf8Error),
    #[error("{0}")]
    Keys(#[from] KeyDirectoryError),
    #[error("it lists no key for tokens")]
    NoKey,
    #[error(
        "{0}: give the relay the file that the issuer writes as its `secrets`, as auth.private_tokens.secrets instead of `directory` and `keys`"
    )]
    NoSecret(KeyDirectoryError),
    #[error("{0}")]
    Relay(#[from] ConfigError),
}

/// What the file says of private tokens, now and after each reload.
pub(crate) type Said = watch::Receiver<Option<PrivateTokens>>;

/// Fetches them for a relay.
pub(crate) struct Keeper {
    said: Said,
    keys: IssuerKeys,
    random: Box<dyn FnMut(u64) -> u64 + Send>,
    /// Told in the log once.
    is_failing: bool,
}

impl Keeper {
    /// For a relay that runs.
    pub(crate) fn new(said: Said, handle: &Handle) -> Self {
        Self {
            said,
            keys: handle.issuer_keys(),
            random: random(),
            is_failing: false,
        }
    }

    /// Goes on as the file says, whenever it is read again; never ends.
    pub(crate) async fn run(mut self) {
        loop {
            let mut said = self.said.clone();
            let config = said.borrow_and_update().clone();
            let source =
                config.and_then(|config| Some((address(config.directory.as_ref()?), config)));
            let kept = async {
                match source {
                    Some((address, config)) => self.keep(&address, &config).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = kept => {}
                changed = said.changed() => if changed.is_err() { std::future::pending().await },
            }
            self.said = said;
        }
    }

    async fn keep(&mut self, address: &str, config: &PrivateTokens) {
        let retry = RETRY.min(config.refresh);
        let mut pause = retry;
        // Relays of a fleet that start together do not ask together.
        if config.keys.as_ref().is_some_and(|keys| keys.exists()) {
            sleep(self.within(retry)).await;
        }
        loop {
            match self.renew(address, config).await {
                Ok(()) => {
                    pause = retry;
                    sleep(config.refresh / 2 + self.within(config.refresh / 2)).await;
                }
                Err(error) => {
                    self.keys.failed();
                    if !self.is_failing {
                        warn!("the issuer's keys that are known stay: {address}: {error}");
                    }
                    self.is_failing = true;
                    sleep(pause / 2 + self.within(pause / 2)).await;
                    pause = (pause * 2).min(LONGEST_RETRY).min(config.refresh);
                }
            }
        }
    }

    async fn renew(&mut self, address: &str, config: &PrivateTokens) -> Result<(), KeysError> {
        let trust = config
            .pin
            .map_or(Trust::WebPki, |pin| Trust::Pins(vec![pin]));
        let document = fetch(address, &trust, MOST_BYTES, FETCH_TIMEOUT).await?;
        let keys = KeyDirectory::parse(std::str::from_utf8(&document)?)?;
        if keys.keys.is_empty() {
            return Err(KeysError::NoKey);
        }
        let keys = VerifierKeys::public(keys).map_err(KeysError::NoSecret)?;
        let is_new = self.keys.replace(&keys)?;
        let file = config.keys.as_ref();
        if let Some(file) = file.filter(|file| is_new || !file.exists()) {
            store(file, keys.directory());
        }
        if is_new || self.is_failing {
            info!(
                keys = keys.directory().keys.len(),
                "the issuer's keys were read"
            );
        }
        self.is_failing = false;
        Ok(())
    }

    /// A random time up to this.
    fn within(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis((self.random)(most.saturating_add(1)))
    }
}

/// What is known now serves without the file, until the relay starts again.
fn store(path: &Path, keys: &KeyDirectory) {
    if let Err(failure) = identity::write(path, keys.to_json().as_bytes(), 0o644) {
        warn!("the issuer's keys are not kept: {failure}");
    }
}

/// Where exactly they are: an address without a path is that of the issuer.
fn address(directory: &str) -> String {
    let rest = directory.strip_prefix("https://").unwrap_or(directory);
    match rest.split_once('/') {
        None | Some((_, "")) => format!("https://{}{DIRECTORY}", rest.trim_end_matches('/')),
        Some(_) => directory.to_owned(),
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keeper")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issuers_address_is_that_of_its_directory() {
        let well_known = "https://issuer.test:8443/.well-known/private-token-issuer-directory";
        for (given, found) in [
            ("https://issuer.test:8443", well_known),
            ("https://issuer.test:8443/", well_known),
            (well_known, well_known),
            (
                "https://issuer.test/keys.json",
                "https://issuer.test/keys.json",
            ),
        ] {
            assert_eq!(address(given), found);
        }
    }
}
