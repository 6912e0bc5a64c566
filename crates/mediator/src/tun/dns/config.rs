//! `[dns]` of the client's file: how programs' queries are answered.
//! `Default` is what an empty file means.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use hoplite_wire::HostName;
use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Deserializer, de};

use crate::{
    ConfigError,
    config::seconds,
    tun::names::{Pools, Terms},
};

/// How long a flow's finding that a name does not exist is believed.
const MISSING: Duration = Duration::from_secs(30);

/// How queries are answered. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// "optimistic": names are answered at once with temporary addresses, and travel unresolved to the last relay; failure is
    /// told when a flow opens. "pessimistic": every query is asked through the overlay. Default: "optimistic".
    pub mode: Mode,
    /// The addresses of the device's resolver, at port 53; any will do. Default: ["198.18.0.2", "fd68:6f70:6c69:7465::2"].
    pub resolvers: Vec<IpAddr>,
    /// How long programs are told to keep a temporary address. Default: 60.
    #[serde(deserialize_with = "seconds")]
    pub ttl: Duration,
    /// How long a temporary address means its name after it was told, and after its last flow; above `ttl`. Default: 70.
    #[serde(deserialize_with = "seconds")]
    pub keep: Duration,
    /// How many names have temporary addresses at once; a further one takes that of another user that has more, or the far end is asked for
    /// it, as in pessimistic mode. Default: 16384.
    pub names: usize,
    /// Where temporary IPv4 addresses are taken from; the first 256 are the device's. Default: "198.18.0.0/15".
    pub ipv4: Ipv4Net,
    /// The same for IPv6. Default: "fd68:6f70:6c69:7465::/64".
    pub ipv6: Ipv6Net,
    /// How many queries are asked through the overlay at once; of a further one and the oldest of the user that has most
    /// one fails (SERVFAIL). Default: 256.
    pub asked: usize,
    /// How long the far end may take to answer; then the query fails (SERVFAIL). Below the 5 s of C libraries. Default: 4.
    #[serde(deserialize_with = "seconds")]
    pub patience: Duration,
    /// The search domains of this device's resolver: names below them are asked for, and not answered at once, since
    /// resolvers try them until one exists. Default: none.
    #[serde(deserialize_with = "hosts")]
    pub search: Vec<HostName>,
    /// Domains whose flows go another way than the overlay's path, local ones among them: they are asked for there. Default: none.
    #[serde(deserialize_with = "hosts")]
    pub elsewhere: Vec<HostName>,
    /// Whether answers from the far end may name private and other special addresses. Default: false.
    pub private: bool,
}

/// When a name is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// At once.
    #[default]
    Optimistic,
    /// After the far end has.
    Pessimistic,
}

impl Default for Config {
    fn default() -> Self {
        let Pools { ipv4, ipv6 } = Pools::default();
        Self {
            mode: Mode::Optimistic,
            resolvers: vec![
                Ipv4Addr::new(198, 18, 0, 2).into(),
                Ipv6Addr::new(0xfd68, 0x6f70, 0x6c69, 0x7465, 0, 0, 0, 2).into(),
            ],
            ttl: Duration::from_secs(60),
            keep: Duration::from_secs(70),
            names: 16_384,
            ipv4,
            ipv6,
            asked: 256,
            patience: Duration::from_secs(4),
            search: Vec::new(),
            elsewhere: Vec::new(),
            private: false,
        }
    }
}

impl Config {
    /// Whether all values can be meant.
    ///
    /// # Errors
    /// The first one that cannot.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key, expected| Err(ConfigError { key, expected });
        if self.keep <= self.ttl {
            return wrong("dns.keep", "more seconds than dns.ttl");
        }
        let zeros = [
            ("dns.ttl", self.ttl.is_zero()),
            ("dns.names", self.names == 0),
            ("dns.asked", self.asked == 0),
            ("dns.patience", self.patience.is_zero()),
        ];
        if let Some((key, _)) = zeros.into_iter().find(|(_, zero)| *zero) {
            return wrong(key, "a number above 0");
        }
        let sizes = self.pools().check();
        sizes.map_err(|(key, expected)| ConfigError { key, expected })
    }

    /// Whether packets to `address` are for the device's resolver.
    pub(crate) fn resolves_at(&self, address: SocketAddr) -> bool {
        address.port() == 53 && self.resolvers.contains(&address.ip())
    }

    /// Where temporary addresses are taken from.
    pub fn pools(&self) -> Pools {
        Pools {
            ipv4: self.ipv4,
            ipv6: self.ipv6,
        }
    }

    /// How long and how many.
    pub(crate) fn terms(&self) -> Terms {
        Terms {
            keep: self.keep,
            missing: MISSING,
            names: self.names,
        }
    }
}

fn hosts<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<HostName>, D::Error> {
    let read = |text: String| {
        let bare = text.strip_prefix('.').unwrap_or(&text);
        HostName::new(bare).map_err(|error| de::Error::custom(format!("{text:?}: {error}")))
    };
    let texts = Vec::<String>::deserialize(input)?;
    texts.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_section_means_the_defaults() {
        let config: Config = toml::from_str("").expect("parses");
        assert_eq!(config, Config::default());
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn every_key_is_read() {
        let text = r#"
            mode = "pessimistic"
            resolvers = ["192.0.2.53"]
            ttl = 5
            keep = 6
            names = 7
            ipv4 = "10.0.0.0/16"
            ipv6 = "fd00::/64"
            asked = 8
            patience = 0.5
            search = ["corp.example", ".Other.example"]
            elsewhere = ["lan"]
            private = true
        "#;
        let config: Config = toml::from_str(text).expect("parses");
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.mode, Mode::Pessimistic);
        let at = |text: &str| config.resolves_at(text.parse().expect("an address"));
        assert!(at("192.0.2.53:53") && !at("192.0.2.53:853") && !at("198.18.0.2:53"));
        assert_eq!(config.search[1].as_str(), "other.example");
        assert_eq!(config.patience, Duration::from_millis(500));
    }

    #[test]
    fn a_wrong_value_is_named() {
        for (text, key) in [
            ("keep = 60", "dns.keep"),
            ("names = 0", "dns.names"),
            ("asked = 0", "dns.asked"),
            ("ipv4 = \"10.0.0.0/30\"", "dns.ipv4"),
        ] {
            let config: Config = toml::from_str(text).expect("parses");
            assert_eq!(config.check().expect_err(text).key, key);
        }
        for text in ["mode = \"brave\"", "search = [\"a b\"]", "ipv4 = \"x\""] {
            assert!(toml::from_str::<Config>(text).is_err(), "{text}");
        }
    }
}
