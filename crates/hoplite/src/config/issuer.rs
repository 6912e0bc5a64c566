//! The issuer's file. Every key is explained in `examples/issuer.toml`, which a test holds equal to the defaults.

use std::{
    collections::HashSet,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use hoplite_crypto::Token;
use hoplite_relay::config::Tls;
use hoplite_wire::{Target, privacy_pass::TokenType};
use serde::Deserialize;

use super::Document;
use crate::{
    fetch,
    say::{Complaint, Failure},
};

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
    /// How tokens are made, with the keys that are made from now on.
    pub(crate) tokens: Tokens,
    /// The file that relays of the same operator verify tokens with; written at the start and with each new key.
    pub(crate) secrets: Option<PathBuf>,
    /// How long a key is used.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) epoch: Duration,
    /// Who may have tokens.
    pub(crate) account: Vec<Account>,
    /// Whose bearers say who may have tokens, beside the accounts.
    pub(crate) oidc: Option<Oidc>,
    /// A page on which people have tokens made; without it there is none.
    pub(crate) page: Option<Page>,
    /// Bounds of the server.
    pub(crate) limits: Limits,
}

/// How tokens are made, and who can verify them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Tokens {
    /// Type 2: anybody, by what the issuer publishes.
    #[default]
    BlindRsa,
    /// Type 1: relays that have its secret keys.
    Voprf,
}

impl From<Tokens> for TokenType {
    fn from(tokens: Tokens) -> Self {
        match tokens {
            Tokens::BlindRsa => Self::BlindRsa,
            Tokens::Voprf => Self::Voprf,
        }
    }
}

/// What the page knows, and everybody may know.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    /// The issuer's name, as the relays have it.
    pub(crate) issuer: String,
    /// The relays that it offers; others can be typed in.
    #[serde(default)]
    pub(crate) relay: Vec<PageRelay>,
}

/// One relay, or several of one name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageRelay {
    /// What it takes tokens for.
    pub(crate) origin: String,
    /// Host and port, for the lines that the page shows; the name at port 443 if absent.
    #[serde(default, deserialize_with = "hoplite_config::parsed_option")]
    pub(crate) address: Option<Target>,
}

/// An OpenID Connect provider.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Oidc {
    /// Its address, as it stands in `iss`.
    pub(crate) issuer: String,
    /// What must stand in `aud`.
    pub(crate) audience: String,
    /// The claim that is the account.
    #[serde(default = "Oidc::default_claim")]
    pub(crate) claim: String,
    /// What else its holder must have.
    #[serde(default)]
    pub(crate) require: Option<Require>,
    /// Tokens that each account may have in a day (UTC).
    #[serde(default = "Account::default_tokens")]
    pub(crate) tokens_per_day: u32,
    /// A file of its keys; without one they are fetched from it.
    #[serde(default)]
    pub(crate) keys: Option<PathBuf>,
    /// A PEM file of the authorities of its certificate, instead of the Web's.
    #[serde(default)]
    pub(crate) roots: Option<PathBuf>,
    /// How often its keys are read again.
    #[serde(
        default = "Oidc::default_refresh",
        deserialize_with = "hoplite_config::seconds"
    )]
    pub(crate) refresh: Duration,
    /// How soon, at the earliest, where one is unknown or they were not to be had.
    #[serde(
        default = "Oidc::default_retry",
        deserialize_with = "hoplite_config::seconds"
    )]
    pub(crate) retry: Duration,
    /// How far its clock and ours may be apart.
    #[serde(
        default = "Oidc::default_skew",
        deserialize_with = "hoplite_config::seconds"
    )]
    pub(crate) skew: Duration,
}

/// A claim, and what it must be or have in it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Require {
    /// Its name, or a JSON pointer.
    pub(crate) claim: String,
    /// The text.
    pub(crate) value: String,
}

impl Oidc {
    fn default_claim() -> String {
        "sub".into()
    }

    const fn default_refresh() -> Duration {
        Duration::from_secs(3600)
    }

    const fn default_retry() -> Duration {
        Duration::from_secs(60)
    }

    const fn default_skew() -> Duration {
        Duration::from_secs(60)
    }

    /// Which keys have no sense, and why.
    fn wrongs(&self) -> Vec<(&'static str, &'static str)> {
        let minute = Duration::from_secs(60);
        let mut wrong = Vec::new();
        let mut ask = |is: bool, key, why| wrong.extend((!is).then_some((key, why)));
        let fetched = self.keys.is_none();
        let address = fetch::is_address(&self.issuer);
        ask(
            !fetched || address,
            "issuer",
            "expected an https:// address, as the provider writes it",
        );
        ask(
            !self.issuer.is_empty(),
            "issuer",
            "expected what the provider writes as `iss`",
        );
        ask(
            !self.audience.is_empty(),
            "audience",
            "expected what the provider writes as `aud`",
        );
        ask(
            !self.claim.is_empty(),
            "claim",
            "expected the name of a claim",
        );
        let both = fetched || self.roots.is_none();
        ask(
            both,
            "roots",
            "with `keys` nothing is fetched: keep one of them",
        );
        let refresh = minute..=minute * 1440;
        ask(
            refresh.contains(&self.refresh),
            "refresh",
            "expected 60 to 86400 seconds",
        );
        let retry = Duration::from_secs(1)..=self.refresh;
        ask(
            retry.contains(&self.retry),
            "retry",
            "expected 1 second to `refresh`",
        );
        ask(
            self.skew <= minute * 10,
            "skew",
            "expected 600 seconds at most",
        );
        wrong
    }
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
    /// Requests within a minute, and connections.
    pub(crate) requests: u64,
    /// Requests of one address within a minute; it may have twice as many connections.
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
            tokens: Tokens::default(),
            secrets: None,
            epoch: Duration::from_secs(7 * 24 * 3600),
            account: Vec::new(),
            oidc: None,
            page: None,
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
    config.secrets = config.secrets.as_ref().map(beside);
    if let Some(tls) = &mut config.tls {
        (tls.cert, tls.key) = (beside(&tls.cert), beside(&tls.key));
    }
    if let Some(oidc) = &mut config.oidc {
        oidc.keys = oidc.keys.as_ref().map(beside);
        oidc.roots = oidc.roots.as_ref().map(beside);
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
    if config.account.is_empty() && config.oidc.is_none() {
        let why = "without an account nobody can have tokens";
        add("account", why, "add an [[account]], or [oidc]");
    }
    for (key, why) in config.oidc.iter().flat_map(Oidc::wrongs) {
        add(&format!("oidc.{key}"), why, "correct the value");
    }
    if config.tokens == Tokens::Voprf {
        if config.secrets.is_none() {
            let why = "nobody could verify these tokens: relays need the secret keys";
            add(
                "tokens",
                why,
                "say in which file they are written: `secrets`",
            );
        }
        if config.page.is_some() {
            let why = "the page makes tokens of blind RSA alone";
            add("page", why, "take it away, or `tokens`");
        }
    }
    let is_name = |name: &str| (1..=255).contains(&name.len()) && !name.contains(',');
    if let Some(page) = &config.page {
        let why = "expected a name of 1 to 255 characters without a comma, as relays have it";
        if !is_name(&page.issuer) {
            add("page.issuer", why, "correct the name");
        }
        for (i, relay) in page.relay.iter().enumerate() {
            if !is_name(&relay.origin) {
                let key = format!("page.relay[{i}].origin");
                add(&key, why, "correct the name");
            }
        }
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
