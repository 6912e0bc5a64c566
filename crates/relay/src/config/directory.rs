//! `[directory]` in the relay's file: what the relay says of itself, and to which authorities, and whose list says which relays are known.
//! The binary signs the one and hands it in, and fetches the other.

use std::{net::SocketAddr, time::Duration};

use hoplite_wire::{
    Target,
    directory::{ADDRESSES, FAMILY, Key, LIST, Source, is_word},
};
use serde::Deserialize;

use super::ConfigError;

/// What the relay says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Directory {
    /// `host:port` of each authority to which the descriptor is handed in.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub publish: Vec<Target>,
    /// The known authorities, `KEY@host:port`: the relays of the list that they sign are known to this one.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub authorities: Vec<Source>,
    /// How many of them must have signed the list; 0 is as few as are safe.
    pub threshold: usize,
    /// How many of them may be hostile without two lists being right at one time, a number or `"third"` (none here): fewer than a third.
    #[serde(deserialize_with = "hoplite_config::or_third")]
    pub hostile: Option<usize>,
    /// Keep the list for clients, and give it to whoever asks in plain HTTP at this address; its port is told in the descriptor, as one of the first of
    /// `addresses`.
    pub cache: Option<SocketAddr>,
    /// How much those have who ask there.
    pub cache_limits: CacheLimits,
    /// Where clients reach the relay, the best first. Empty: `listen`, if no wildcard is in it.
    pub addresses: Vec<SocketAddr>,
    /// Where the relay stands: a word.
    pub region: Option<String>,
    /// Who runs it: a word.
    pub operator: Option<String>,
    /// The keys (`ed25519:…`) of other relays of the same operator; each of them must name this one too.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub family: Vec<Key>,
    /// What the relay can carry, in bytes a second.
    pub bandwidth: u64,
    /// How often the descriptor is handed in, in seconds: the same as long as it holds.
    pub every: u64,
    /// Seconds of a period whose statistics are told with it; 0: none are.
    pub statistics: u64,
}

/// Bounds of the server that gives the list. Many clients may come from one address: an exit's.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheLimits {
    /// Connections at once.
    pub connections: usize,
    /// Connections of one address (IPv6: /64) at once.
    pub per_client: usize,
    /// Lists that may be asked for within a minute.
    pub requests: u64,
    /// Lists that one address may ask for within a minute.
    pub requests_per_client: u64,
    /// Bytes that are given within a minute, as they go.
    pub bytes: u64,
    /// Bytes that one address is given within a minute.
    pub bytes_per_client: u64,
    /// How long a request's head may take, from the connection's begin or the last answer on.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub request: Duration,
    /// How long a connection may last.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub connection: Duration,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self {
            connections: 256,
            per_client: 16,
            requests: 60_000,
            requests_per_client: 600,
            bytes: 256 << 20,
            bytes_per_client: 64 << 20,
            request: Duration::from_secs(10),
            connection: Duration::from_secs(60),
        }
    }
}

impl CacheLimits {
    fn check(&self) -> Result<(), ConfigError> {
        let list = u64::try_from(LIST).unwrap_or(u64::MAX);
        let (one, bytes) = (
            "expected at least 1",
            "expected at least 8388608 a minute, the largest list",
        );
        let times = "expected more than 0 seconds";
        let all = [
            (
                "directory.cache_limits.connections",
                one,
                self.connections > 0,
            ),
            (
                "directory.cache_limits.per_client",
                one,
                self.per_client > 0,
            ),
            ("directory.cache_limits.requests", one, self.requests > 0),
            (
                "directory.cache_limits.requests_per_client",
                one,
                self.requests_per_client > 0,
            ),
            ("directory.cache_limits.bytes", bytes, self.bytes >= list),
            (
                "directory.cache_limits.bytes_per_client",
                bytes,
                self.bytes_per_client >= list,
            ),
            (
                "directory.cache_limits.request",
                times,
                !self.request.is_zero(),
            ),
            (
                "directory.cache_limits.connection",
                times,
                !self.connection.is_zero(),
            ),
        ];
        hoplite_config::wrongs(all).next().map_or(Ok(()), Err)
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self {
            publish: Vec::new(),
            authorities: Vec::new(),
            threshold: 0,
            hostile: None,
            cache: None,
            cache_limits: CacheLimits::default(),
            addresses: Vec::new(),
            region: None,
            operator: None,
            family: Vec::new(),
            bandwidth: 1_250_000,
            every: 3600,
            statistics: 86_400,
        }
    }
}

impl Directory {
    /// Where the relay says that it is reached, of one that listens at `listen`.
    pub fn reached_at<'a>(&'a self, listen: &'a [SocketAddr]) -> &'a [SocketAddr] {
        if self.addresses.is_empty() {
            listen
        } else {
            &self.addresses
        }
    }

    pub(super) fn check(&self, listen: &[SocketAddr]) -> Result<(), ConfigError> {
        let addresses = self.reached_at(listen);
        let is_wild = addresses
            .iter()
            .any(|address| address.ip().is_unspecified());
        if !self.publish.is_empty() && (is_wild || addresses.len() > ADDRESSES) {
            let problem =
                "expected 1 to 4 addresses that clients can connect to: `listen` does not say them";
            return Err(ConfigError::new("directory.addresses", problem));
        }
        let is_cache = self.cache.is_some_and(|cache| cache.port() > 0);
        if self.cache.is_some() && (self.authorities.is_empty() || !is_cache) {
            let problem = "expected an address with a port, and `authorities`: a list is believed by who has signed it";
            return Err(ConfigError::new("directory.cache", problem));
        }
        self.cache_limits.check()?;
        let wrong_word =
            |word: &Option<String>, most| word.as_ref().is_some_and(|word| !is_word(word, most));
        let word = "expected letters, digits, '-', '_' and '.', not too many";
        if wrong_word(&self.region, 32) {
            return Err(ConfigError::new("directory.region", word));
        }
        if wrong_word(&self.operator, 64) {
            return Err(ConfigError::new("directory.operator", word));
        }
        if self.family.len() > FAMILY {
            return Err(ConfigError::new(
                "directory.family",
                "expected at most 32 relays",
            ));
        }
        if !(1..=86_400).contains(&self.every) {
            let problem = "expected 1 to 86400 seconds";
            return Err(ConfigError::new("directory.every", problem));
        }
        if !(self.statistics == 0 || (10..=7 * 86_400).contains(&self.statistics)) {
            let problem = "expected 0 or 10 to 604800 seconds";
            return Err(ConfigError::new("directory.statistics", problem));
        }
        Ok(())
    }
}
