//! The files' keys about the directory: the authority's whole file, and how all files name authorities.
//! The keys are explained in `examples/directory.toml`.

use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use hoplite_directory::{
    Source, Trust,
    authority::{Admission, Caps, Families},
};
use hoplite_wire::directory::{AUTHORITIES, Key, LIST, RELAYS};
use serde::{Deserialize, Deserializer, de};

use super::Document;
use crate::say::{Complaint, Failure};

/// Where an authority answers, and its key: `"ed25519:…@host:port"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Authority(pub(crate) Source);

/// How many authorities may be hostile without two lists being right at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected a number, or \"third\"")]
pub(crate) enum Hostile {
    /// So many.
    Most(usize),
    /// Fewer than a third: then the others are enough for a list.
    #[serde(deserialize_with = "third")]
    Third,
}

impl From<Option<usize>> for Hostile {
    fn from(most: Option<usize>) -> Self {
        most.map_or(Self::Third, Self::Most)
    }
}

fn third<'de, D: Deserializer<'de>>(input: D) -> Result<(), D::Error> {
    match String::deserialize(input)?.as_str() {
        "third" => Ok(()),
        _ => Err(de::Error::custom("expected a number, or \"third\"")),
    }
}

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
    pub(crate) authorities: Vec<Authority>,
    /// How many must sign a list.
    pub(crate) threshold: usize,
    /// How many of them may be hostile: if it is not said, fewer than a third.
    pub(crate) hostile: Hostile,
    /// How far clocks may be apart.
    #[serde(deserialize_with = "super::seconds")]
    pub(crate) skew: Duration,
    /// A list is made for each multiple of this.
    #[serde(deserialize_with = "super::seconds")]
    pub(crate) interval: Duration,
    /// How long votes are exchanged, and then as long signatures.
    #[serde(deserialize_with = "super::seconds")]
    pub(crate) voting: Duration,
    /// How many intervals a list may be used.
    pub(crate) intervals: u64,
    /// More is not believed of a relay, in bytes a second.
    pub(crate) bandwidth_cap: u64,
    /// Which relays are taken.
    pub(crate) admission: Rules,
    /// Bounds of the server.
    pub(crate) limits: Limits,
}

/// Which relays are taken.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Rules {
    /// Relays known at once.
    pub(crate) relays: usize,
    /// Relays with one address.
    pub(crate) per_address: usize,
    /// Relays in one /24 of IPv4.
    pub(crate) per_24: usize,
    /// Relays in one /16 of IPv4.
    pub(crate) per_16: usize,
    /// Relays in one /48 of IPv6.
    pub(crate) per_48: usize,
    /// Relays in one /32 of IPv6.
    pub(crate) per_32: usize,
    /// Descriptors that wait for their test at once.
    pub(crate) untested: usize,
    /// The same of one network that hands them in.
    pub(crate) untested_per_network: usize,
    /// Tests at once.
    pub(crate) tests: usize,
    /// After how long a relay is tested again.
    #[serde(deserialize_with = "super::seconds")]
    pub(crate) retest: Duration,
    /// Which addresses this machine can test.
    #[serde(deserialize_with = "families")]
    pub(crate) reaches: Families,
    /// How old a descriptor may be.
    #[serde(deserialize_with = "super::seconds")]
    pub(crate) life: Duration,
    /// Whether relays may have private addresses.
    pub(crate) private: bool,
    /// If there are any, only these.
    #[serde(deserialize_with = "keys")]
    pub(crate) only: Vec<Key>,
    /// Never these.
    #[serde(deserialize_with = "keys")]
    pub(crate) refuse: Vec<Key>,
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
    /// The same from one address.
    pub(crate) uploads_per_client: u64,
    /// Documents that may be asked for within a minute.
    pub(crate) requests: u64,
    /// The same from one address.
    pub(crate) requests_per_client: u64,
    /// Bytes of documents that are given within a minute.
    pub(crate) octets: u64,
    /// The same to one address.
    pub(crate) octets_per_client: u64,
    /// How long a request's head may take, from the connection's begin or the last answer on, and then its body.
    #[serde(deserialize_with = "super::seconds")]
    pub(crate) request: Duration,
    /// How long one may last.
    #[serde(deserialize_with = "super::seconds")]
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
            hostile: Hostile::Third,
            skew: Duration::from_secs(60),
            interval: Duration::from_secs(3600),
            voting: Duration::from_secs(300),
            intervals: 3,
            bandwidth_cap: 12_500_000,
            admission: Rules::default(),
            limits: Limits::default(),
        }
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            relays: 4096,
            per_address: 2,
            per_24: 16,
            per_16: 128,
            per_48: 16,
            per_32: 128,
            untested: 1024,
            untested_per_network: 64,
            tests: 32,
            retest: Duration::from_secs(1800),
            reaches: Families { v4: true, v6: true },
            life: Duration::from_secs(18 * 3600),
            private: false,
            only: Vec::new(),
            refuse: Vec::new(),
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
            octets: 2 << 30,
            octets_per_client: 64 << 20,
            request: Duration::from_secs(10),
            connection: Duration::from_secs(60),
        }
    }
}

impl FromStr for Authority {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let expected = "expected \"ed25519:…@host:port\"";
        let (key, address) = text.split_once('@').ok_or(expected)?;
        let key = key.parse().map_err(|_| expected)?;
        let address = address.parse().map_err(|_| expected)?;
        Ok(Self(Source { address, key }))
    }
}

impl<'de> Deserialize<'de> for Authority {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        super::parsed(input)
    }
}

fn keys<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<Key>, D::Error> {
    let texts = Vec::<String>::deserialize(input)?;
    let keys = texts.iter().map(|text| text.parse());
    keys.collect::<Result<_, _>>().map_err(de::Error::custom)
}

fn families<'de, D: Deserializer<'de>>(input: D) -> Result<Families, D::Error> {
    let mut families = Families {
        v4: false,
        v6: false,
    };
    for word in Vec::<String>::deserialize(input)? {
        match word.as_str() {
            "ipv4" => families.v4 = true,
            "ipv6" => families.v6 = true,
            _ => {
                return Err(de::Error::custom(
                    "expected \"ipv4\" and \"ipv6\", or one of them",
                ));
            }
        }
    }
    Ok(families)
}

/// Whom to trust, from the keys that all files have in common.
pub(crate) fn trust(
    authorities: &[Authority],
    threshold: usize,
    hostile: Hostile,
    skew: Duration,
) -> Trust {
    let known = authorities.len();
    let hostile = match hostile {
        Hostile::Third => Trust::bearable(known),
        Hostile::Most(given) => given,
    };
    Trust {
        authorities: authorities
            .iter()
            .map(|authority| authority.0.key)
            .collect(),
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
    authorities: &[Authority],
    threshold: usize,
    hostile: Hostile,
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
    for (key, why) in config.admission.wrongs().chain(config.limits.wrongs()) {
        add(key, why, "correct the value");
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
    fn wrongs(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let list = u64::try_from(LIST).unwrap_or(u64::MAX);
        let (one, octets) = (
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
            ("limits.octets", octets, self.octets >= list),
            (
                "limits.octets_per_client",
                octets,
                self.octets_per_client >= list,
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
        wrong_of(all)
    }
}

fn wrong_of<const N: usize>(
    all: [(&'static str, &'static str, bool); N],
) -> impl Iterator<Item = (&'static str, &'static str)> {
    let wrong = all.into_iter().filter(|(.., is_right)| !is_right);
    wrong.map(|(key, why, _)| (key, why))
}

impl Rules {
    /// Which keys have no sense, and why.
    fn wrongs(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let (one, relays) = ("expected at least 1", 1..=RELAYS);
        let reaches = self.reaches.v4 || self.reaches.v6;
        let all = [
            (
                "admission.relays",
                "expected 1 to 8192",
                relays.contains(&self.relays),
            ),
            ("admission.per_address", one, self.per_address > 0),
            ("admission.per_24", one, self.per_24 > 0),
            ("admission.per_16", one, self.per_16 > 0),
            ("admission.per_48", one, self.per_48 > 0),
            ("admission.per_32", one, self.per_32 > 0),
            (
                "admission.untested",
                "expected 1 to 8192",
                relays.contains(&self.untested),
            ),
            (
                "admission.untested_per_network",
                one,
                self.untested_per_network > 0,
            ),
            (
                "admission.tests",
                "expected 1 to 1024",
                (1..=1024).contains(&self.tests),
            ),
            (
                "admission.retest",
                "expected at least 4 seconds",
                self.retest.as_secs() >= 4,
            ),
            (
                "admission.reaches",
                "expected \"ipv4\" and \"ipv6\", or one of them",
                reaches,
            ),
        ];
        wrong_of(all)
    }

    /// For the machine.
    pub(crate) fn admission(&self) -> Admission {
        Admission {
            relays: self.relays,
            caps: Caps {
                address: self.per_address,
                v4_24: self.per_24,
                v4_16: self.per_16,
                v6_48: self.per_48,
                v6_32: self.per_32,
            },
            untested: self.untested,
            untested_per_network: self.untested_per_network,
            tests: self.tests,
            retest: self.retest.as_secs(),
            reaches: self.reaches,
            life: self.life.as_secs(),
            private: self.private,
            only: self.only.clone(),
            refuse: self.refuse.clone(),
        }
    }
}
