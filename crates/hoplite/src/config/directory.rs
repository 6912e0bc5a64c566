//! The files' keys about the directory: the authority's whole file, and how all files name authorities.
//! The keys are explained in `examples/directory.toml`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use hoplite_config::ConfigError;
use hoplite_directory::{
    Trust,
    authority::{Admission, FlagRules},
};
use hoplite_wire::directory::{AUTHORITIES, LIST, Source};
use serde::Deserialize;

use super::Document;
use crate::say::{Complaint, Failure};

/// The longest time period of onion services, in minutes: rend-spec-v3, "Dividing time into periods".
const HSDIR_INTERVAL: u64 = 14_400;

/// The authority's file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Where it answers, in plain HTTP.
    pub(crate) listen: SocketAddr,
    /// The file of its secret key.
    pub(crate) key: PathBuf,
    /// The file in which it keeps what it knows.
    pub(crate) store: PathBuf,
    /// All authorities, this one among them.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub(crate) authorities: Vec<Source>,
    /// How many must sign a list.
    pub(crate) threshold: usize,
    /// How many of them may be hostile: if it is not said, fewer than a third.
    #[serde(deserialize_with = "hoplite_config::or_third")]
    pub(crate) hostile: Option<usize>,
    /// How far clocks may be apart.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) skew: Duration,
    /// A list is made for each multiple of this.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) interval: Duration,
    /// How long votes are exchanged, and then as long signatures.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) voting: Duration,
    /// How many intervals a list may be used.
    pub(crate) intervals: u64,
    /// More is not believed of a relay, in bytes a second.
    pub(crate) bandwidth_cap: u64,
    /// Minutes of a time period of onion services and of a run of a shared random value; 0: nothing for onion services.
    pub(crate) hsdir_interval: u64,
    /// For how long a relay must have passed its tests to be an HSDir.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) hsdir_uptime: Duration,
    /// What a scanner has measured, if it has.
    pub(crate) bandwidth_file: Option<PathBuf>,
    /// Which relays are taken.
    pub(crate) admission: Admission,
    /// Which flags they are given.
    pub(crate) flags: FlagRules,
    /// Bounds of the server.
    pub(crate) limits: Limits,
}

/// Bounds of the server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    /// Connections at once.
    pub(crate) connections: usize,
    /// Connections of one address (IPv6: /64) at once.
    pub(crate) per_client: usize,
    /// Descriptors that may be handed in within a minute.
    pub(crate) uploads: u64,
    /// Descriptors that one address may hand in within a minute.
    pub(crate) uploads_per_client: u64,
    /// Documents that may be asked for within a minute.
    pub(crate) requests: u64,
    /// Documents that one address may ask for within a minute.
    pub(crate) requests_per_client: u64,
    /// Bytes of documents that are given within a minute.
    pub(crate) bytes: u64,
    /// Bytes of documents that one address is given within a minute.
    pub(crate) bytes_per_client: u64,
    /// How long a request's head may take, from the connection's begin or the last answer on, and then its body.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) request: Duration,
    /// How long one may last.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub(crate) connection: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([0u16; 8], 9030)),
            key: "authority.key".into(),
            store: "directory.sqlite".into(),
            authorities: Vec::new(),
            threshold: 0,
            hostile: None,
            skew: Duration::from_secs(60),
            interval: Duration::from_secs(3600),
            voting: Duration::from_secs(300),
            intervals: 3,
            bandwidth_cap: 12_500_000,
            hsdir_interval: 1440,
            hsdir_uptime: Duration::from_secs(96 * 3600),
            bandwidth_file: None,
            admission: Admission::default(),
            flags: FlagRules::default(),
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            per_client: 16,
            uploads: 6000,
            uploads_per_client: 600,
            requests: 60_000,
            requests_per_client: 600,
            bytes: 2 << 30,
            bytes_per_client: 64 << 20,
            request: Duration::from_secs(10),
            connection: Duration::from_secs(60),
        }
    }
}

/// Whom to trust, from the keys that all files have in common.
pub(crate) fn trust(
    authorities: &[Source],
    threshold: usize,
    hostile: Option<usize>,
    skew: Duration,
) -> Trust {
    let known = authorities.len();
    let hostile = hostile.unwrap_or_else(|| Trust::bearable(known));
    Trust {
        authorities: authorities.iter().map(|source| source.key).collect(),
        // Without a number: the least that is safe.
        threshold: match threshold {
            0 => Trust::least(known, hostile),
            given => given,
        },
        hostile,
        skew: skew.as_secs(),
    }
}

/// What is wrong with `authorities` and `threshold` below `prefix`.
pub(crate) fn complaints(
    document: &Document,
    prefix: &str,
    authorities: &[Source],
    threshold: usize,
    hostile: Option<usize>,
) -> Vec<Complaint> {
    let trust = trust(authorities, threshold, hostile, Duration::ZERO);
    let mut complaints = Vec::new();
    let mut add = |key: &str, why: String, remedy: &str| {
        complaints.push(document.complain(&format!("{prefix}{key}"), why, remedy));
    };
    let (keys, given) = (&trust.authorities, authorities.len());
    if !(1..=AUTHORITIES).contains(&given) {
        let why = format!("expected 1 to {AUTHORITIES} authorities, found {given}");
        add("authorities", why, "name them as \"ed25519:…@host:port\"");
    }
    if let Some(double) =
        (0..given).find(|i| keys.iter().take(*i).any(|key| Some(key) == keys.get(*i)))
    {
        let key = format!("authorities[{double}]");
        add(
            &key,
            "this key stands there twice".into(),
            "name each authority once",
        );
    }
    let (threshold, hostile) = (trust.threshold, trust.hostile);
    if given > 0 && !trust.is_safe() {
        let least = Trust::least(given, hostile);
        let why = if least <= given {
            format!(
                "expected more than half of {given} authorities and {hostile} hostile ones, hence {least} to {given}, found {threshold}"
            )
        } else {
            format!("of {given} authorities {hostile} cannot be hostile")
        };
        let remedy = if least <= given {
            "with less, two different lists could be right at one time"
        } else {
            "say less for `hostile`, or have more authorities"
        };
        add("threshold", why, remedy);
    }
    complaints
}

/// Reads and checks an authority's file.
pub(crate) fn read(document: &Document) -> Result<Config, Failure> {
    let mut config: Config = super::value(document)?;
    config.key = super::beside(document.path(), &config.key);
    config.store = super::beside(document.path(), &config.store);
    let measured = config.bandwidth_file.as_ref();
    config.bandwidth_file = measured.map(|file| super::beside(document.path(), file));
    let mut wrong = complaints(
        document,
        "",
        &config.authorities,
        config.threshold,
        config.hostile,
    );
    let mut add =
        |key: &str, why: &str, remedy: &str| wrong.push(document.complain(key, why, remedy));
    let (interval, voting) = (config.interval.as_secs(), config.voting.as_secs());
    if voting == 0 || voting.saturating_mul(4) > interval {
        add(
            "voting",
            "expected at least 1 second, and at most a quarter of `interval`",
            "correct the value",
        );
    }
    if !(1..=1000).contains(&config.intervals) {
        add("intervals", "expected 1 to 1000", "correct the value");
    }
    let runs = interval.div_ceil(15).max(1)..=HSDIR_INTERVAL;
    let is_even = config.hsdir_interval.is_multiple_of(2);
    if config.hsdir_interval != 0 && !(is_even && runs.contains(&config.hsdir_interval)) {
        add(
            "hsdir_interval",
            "expected 0, or an even number of minutes, at least four times `interval` and at most 14400",
            "correct the value",
        );
    }
    let tables = config.admission.wrongs().chain(config.flags.wrongs());
    for error in tables.chain(config.limits.wrongs()) {
        add(error.key, &error.problem, "correct the value");
    }
    if wrong.is_empty() {
        Ok(config)
    } else {
        Err(wrong.into())
    }
}

impl Config {
    /// Whom it works with.
    pub(crate) fn trust(&self) -> Trust {
        trust(&self.authorities, self.threshold, self.hostile, self.skew)
    }
}

impl Limits {
    /// Which keys have no sense, and why.
    fn wrongs(&self) -> impl Iterator<Item = ConfigError> {
        let list = u64::try_from(LIST).unwrap_or(u64::MAX);
        let (one, bytes) = (
            "expected at least 1 a minute",
            "expected at least 8388608 a minute, the largest list",
        );
        let all = [
            (
                "limits.connections",
                "expected at least one",
                self.connections > 0,
            ),
            (
                "limits.per_client",
                "expected at least one",
                self.per_client > 0,
            ),
            ("limits.uploads", one, self.uploads > 0),
            (
                "limits.uploads_per_client",
                one,
                self.uploads_per_client > 0,
            ),
            ("limits.requests", one, self.requests > 0),
            (
                "limits.requests_per_client",
                one,
                self.requests_per_client > 0,
            ),
            ("limits.bytes", bytes, self.bytes >= list),
            (
                "limits.bytes_per_client",
                bytes,
                self.bytes_per_client >= list,
            ),
            (
                "limits.request",
                "expected at least 1 second",
                !self.request.is_zero(),
            ),
            (
                "limits.connection",
                "expected at least 1 second",
                !self.connection.is_zero(),
            ),
        ];
        hoplite_config::wrongs(all)
    }
}
