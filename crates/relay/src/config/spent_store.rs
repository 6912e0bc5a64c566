//! `[auth.private_tokens.store]`: a server with which the relays of a fleet mark spent tokens.

use std::{fmt, fs, path::PathBuf};

use hoplite_crypto::{Trust, client_tls};
use hoplite_tokens::SpentServer;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::{ConfigError, text};

/// More connections than this carry no more.
const MOST_CONNECTIONS: usize = 64;

/// A server of PostgreSQL, or of Redis's protocol.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpentStore {
    /// Where it is and how one logs in: `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, with `?sslmode=require` by TLS;
    /// `redis://USER:PASSWORD@HOST:PORT/NUMBER`, `rediss://` by TLS, `redis+unix:///PATH`.
    #[serde(deserialize_with = "text::secret")]
    pub url: Option<Zeroizing<String>>,
    /// A file that holds it, not open to everybody; white space around it is ignored. Read again when the relay is told to reload.
    pub url_file: Option<PathBuf>,
    /// A PEM file of the authorities by which its certificate is judged, instead of those of the web.
    pub ca: Option<PathBuf>,
    /// How many connections each relay has to it, each with many requests under way; 1 to 64.
    pub connections: usize,
}

impl Default for SpentStore {
    fn default() -> Self {
        Self {
            url: None,
            url_file: None,
            ca: None,
            connections: 2,
        }
    }
}

impl SpentStore {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.url.is_some() == self.url_file.is_some() {
            let problem = "expected either `url` or `url_file`";
            return Err(ConfigError::new("auth.private_tokens.store", problem));
        }
        if !(1..=MOST_CONNECTIONS).contains(&self.connections) {
            let problem = format!(
                "expected 1 to {MOST_CONNECTIONS}, found {}",
                self.connections
            );
            let key = "auth.private_tokens.store.connections";
            return Err(ConfigError::new(key, problem));
        }
        Ok(())
    }

    /// The server; nothing is sent to it.
    ///
    /// # Errors
    /// A file cannot be read, the one with the URL is open to everybody, or there is none in it.
    pub fn read(&self) -> Result<SpentServer, ConfigError> {
        let trust = match &self.ca {
            None => Trust::WebPki,
            Some(path) => {
                let failed = |problem: String| ConfigError {
                    key: "auth.private_tokens.store.ca",
                    problem: format!("{}: {problem}", path.display()),
                    file: Some(path.clone()),
                };
                let pem = fs::read(path).map_err(|error| failed(error.to_string()))?;
                Trust::roots(&pem).ok_or_else(|| failed("there is no certificate in it".into()))?
            }
        };
        let tls = client_tls(&trust, &[])
            .map_err(|error| ConfigError::new("auth.private_tokens.store.ca", error.to_string()))?;
        let (key, file, text) = match (&self.url, &self.url_file) {
            (None, Some(file)) => {
                let key = "auth.private_tokens.store.url_file";
                let text = hoplite_config::secret_text(file).map_err(|problem| ConfigError {
                    key,
                    problem,
                    file: Some(file.clone()),
                })?;
                (key, Some(file.clone()), text)
            }
            (url, _) => {
                let text = url.clone().unwrap_or_default();
                ("auth.private_tokens.store.url", None, text)
            }
        };
        // The message has nothing of the text, which holds a password.
        SpentServer::new(text.trim(), &tls.into()).map_err(|error| ConfigError {
            key,
            problem: error.to_string(),
            file,
        })
    }
}

impl fmt::Debug for SpentStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpentStore")
            .field("url_file", &self.url_file)
            .field("ca", &self.ca)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}
