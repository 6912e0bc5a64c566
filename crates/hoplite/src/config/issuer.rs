//! The issuer's file. Every key is explained in `examples/issuer.toml`, which a test holds equal to the defaults.

use std::{
    collections::HashSet,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use hoplite_crypto::Token;
use hoplite_relay::config::Tls;
use serde::Deserialize;

use super::Document;
use crate::say::{Complaint, Failure};

/// The whole file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Where it answers, in HTTPS.
    pub(crate) listen: SocketAddr,
    /// The directory of its certificate and key.
    pub(crate) identity: PathBuf,
    /// A certificate of a public authority instead.
    pub(crate) tls: Option<Tls>,
    /// The file of its keys for tokens, and of what its accounts have had.
    pub(crate) store: PathBuf,
    /// How long a key is used.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) epoch: Duration,
    /// Who may have tokens.
    pub(crate) account: Vec<Account>,
    /// Bounds of the server.
    pub(crate) limits: Limits,
}

/// One account.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Account {
    /// What the operator calls it.
    pub(crate) name: String,
    /// What its holder shows.
    #[serde(default, deserialize_with = "super::token")]
    pub(crate) token: Option<Token>,
    /// A file that holds it.
    #[serde(default)]
    pub(crate) token_file: Option<PathBuf>,
    /// Tokens that it may have in a day (UTC).
    #[serde(default = "Account::default_tokens")]
    pub(crate) tokens_per_day: u32,
}

impl Account {
    const fn default_tokens() -> u32 {
        200
    }
}

/// Bounds of the server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    /// Connections at once.
    pub(crate) connections: usize,
    /// Connections of one address (IPv6: /64) at once.
    pub(crate) per_client: usize,
    /// Requests within a minute.
    pub(crate) requests: u64,
    /// Requests of one address within a minute.
    pub(crate) requests_per_client: u64,
    /// Requests of one address within a minute that show no account's token.
    pub(crate) failures_per_client: u64,
    /// Tokens that may be asked for at once.
    pub(crate) batch: usize,
    /// Threads that sign; 0 is as many as there are processors.
    pub(crate) signers: usize,
    /// How long a TLS handshake, a request's head and its body may take, each.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) request: Duration,
    /// How long a connection may last.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) connection: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([0u16; 8], 8443)),
            identity: "identity".into(),
            tls: None,
            store: "issuer.sqlite".into(),
            epoch: Duration::from_secs(7 * 24 * 3600),
            account: Vec::new(),
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            per_client: 16,
            requests: 60_000,
            requests_per_client: 600,
            failures_per_client: 30,
            batch: 64,
            signers: 0,
            request: Duration::from_secs(10),
            connection: Duration::from_secs(60),
        }
    }
}

/// Reads the file at `path`.
pub(crate) fn load(path: &Path) -> Result<Config, Failure> {
    read(&super::open(path)?)
}

/// Reads and checks an issuer's file.
pub(crate) fn read(document: &Document) -> Result<Config, Failure> {
    let mut config: Config = super::value(document)?;
    let beside = |path: &PathBuf| super::beside(document.path(), path);
    config.identity = beside(&config.identity);
    config.store = beside(&config.store);
    if let Some(tls) = &mut config.tls {
        (tls.cert, tls.key) = (beside(&tls.cert), beside(&tls.key));
    }
    let mut wrong = complaints(&config, document);
    for (i, account) in config.account.iter_mut().enumerate() {
        match account.read(i, document) {
            Ok(token) => account.token = Some(token),
            Err(complaint) => wrong.push(complaint),
        }
    }
    if wrong.is_empty() {
        Ok(config)
    } else {
        Err(wrong.into())
    }
}

impl Account {
    /// Its token, from wherever the file has it.
    fn read(&self, number: usize, document: &Document) -> Result<Token, Complaint> {
        let complain = |key: &str, why: String, remedy: &str| {
            document.complain(&format!("account[{number}].{key}"), why, remedy)
        };
        let file = match (&self.token, &self.token_file) {
            (Some(token), None) => return Ok(token.clone()),
            (None, Some(file)) => super::beside(document.path(), file),
            _ => {
                let why = "expected either `token` or `token_file`".into();
                return Err(complain("token", why, "give one of them"));
            }
        };
        let refused = |why: String| {
            let why = format!("{}: {why}", file.display());
            complain("token_file", why, "correct the file")
        };
        let text = std::fs::read_to_string(&file).map_err(|error| refused(error.to_string()))?;
        super::trimmed(text).ok_or_else(|| refused("there is no token in it".into()))
    }
}

fn complaints(config: &Config, document: &Document) -> Vec<Complaint> {
    let mut wrong = Vec::new();
    let mut add =
        |key: &str, why: &str, remedy: &str| wrong.push(document.complain(key, why, remedy));
    if config.account.is_empty() {
        let why = "without an account nobody can have tokens";
        add("account", why, "add an [[account]]");
    }
    let mut names = HashSet::new();
    for (i, account) in config.account.iter().enumerate() {
        if account.name.is_empty() || !names.insert(account.name.as_str()) {
            let why = "expected a name of its own: what it has had is kept by it";
            add(&format!("account[{i}].name"), why, "give each account one");
        }
    }
    // What was spent is kept by key: an hour is far below what relays can follow.
    if config.epoch < Duration::from_secs(3600) {
        let why = "expected at least 3600 seconds: relays read a new key once a day or so";
        add("epoch", why, "correct the number");
    }
    let limits = &config.limits;
    let zeros = [
        ("limits.connections", limits.connections == 0),
        ("limits.per_client", limits.per_client == 0),
        ("limits.requests", limits.requests == 0),
        (
            "limits.requests_per_client",
            limits.requests_per_client == 0,
        ),
        (
            "limits.failures_per_client",
            limits.failures_per_client == 0,
        ),
        ("limits.request", limits.request.is_zero()),
        ("limits.connection", limits.connection.is_zero()),
    ];
    for (key, _) in zeros.into_iter().filter(|(_, is_zero)| *is_zero) {
        add(key, "expected at least 1", "correct the number");
    }
    if !(1..=1024).contains(&limits.batch) {
        add("limits.batch", "expected 1 to 1024", "correct the number");
    }
    wrong
}
