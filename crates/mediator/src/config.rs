//! What the front ends listen on and how much they give. `Default` is what an empty file means.
//! The binary reads it from the client's file: sections `[socks]`, `[http]` and `[limits]`.

use std::{fmt, net::SocketAddr, str::FromStr, time::Duration};

use hoplite_config::above_zero;
use serde::{Deserialize, Deserializer, de};

pub use hoplite_config::ConfigError;

/// The configuration of the SOCKS and HTTP front ends.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `[socks]`
    pub socks: Socks,
    /// `[http]`
    pub http: Http,
    /// `[limits]`
    pub limits: Limits,
    /// Whether flows of different users of this machine, and of different hosts that are let in, share no connection beyond the first relay, whatever
    /// isolation tokens they give. No key.
    #[serde(skip)]
    pub isolate_users: bool,
}

/// The SOCKS5 front end.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Socks {
    /// Where programs reach it; "off" for nowhere.
    pub listen: Listen,
    /// Whether `listen` may be an address that other machines reach: all who reach it may use it.
    pub remote: bool,
    /// Whether UDP ASSOCIATE is served.
    pub udp: bool,
}

/// The HTTP proxy front end.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Where programs reach it; "off" for nowhere.
    pub listen: Listen,
    /// Whether `listen` may be an address that other machines reach: all who reach it may use it.
    pub remote: bool,
}

/// How much of everything. Times are in seconds, whole or not.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Programs' connections open at once, SOCKS and HTTP together. When all places are taken, a further one takes that of the user who has most
    /// connections if its own user has fewer, whether anything moves there or not; else that of one of its own user that rests, or it waits, as one
    /// of 256: of more the newest of the user who has most is reset. Programs on this machine are told apart by their user and, where the kernel
    /// tells it, by their control group, others by their address.
    pub connections: usize,
    /// How long a program may take for its SOCKS handshake, or for the header of an HTTP request; also how
    /// long an HTTP connection waits for its next request.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub handshake: Duration,
    /// How long a flow may take to open.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub open: Duration,
    /// How long a TCP flow without any byte is kept; 0 is for ever, the relays have limits of their own.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub idle_stream: Duration,
    /// How long a UDP flow without any datagram is kept; RFC 4787 §4.3 wants at least two minutes.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub idle_datagrams: Duration,
    /// How long nothing must have moved on a program's connection before it is closed for another of the same user when all places are taken. Of an
    /// association only datagrams count.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub idle_when_full: Duration,
    /// UDP flows of one association; a further one takes the place of the one that was used least lately.
    pub datagram_flows: usize,
    /// Bytes of memory for datagrams that wait in the flows of all associations together; further ones are dropped. When there is none for a further
    /// flow, one of the user who has most flows ends.
    pub datagram_memory: usize,
    /// The largest header of an HTTP request or answer, in bytes; a larger one is refused.
    pub header: usize,
}

/// Where a front end listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// There; port 0 lets the system choose.
    At(SocketAddr),
}

impl Default for Socks {
    fn default() -> Self {
        Self {
            listen: Listen::At(SocketAddr::from(([127, 0, 0, 1], 1080))),
            remote: false,
            udp: true,
        }
    }
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: Listen::At(SocketAddr::from(([127, 0, 0, 1], 8118))),
            remote: false,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            handshake: Duration::from_secs(30),
            open: Duration::from_secs(30),
            idle_stream: Duration::ZERO,
            idle_datagrams: Duration::from_secs(180),
            idle_when_full: Duration::from_secs(60),
            datagram_flows: 256,
            datagram_memory: 64 << 20,
            header: 65_536,
        }
    }
}

impl Config {
    /// Checks every value.
    ///
    /// # Errors
    /// The first one that is out of range, with what may stand there.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.socks.listen.check("socks.listen", self.socks.remote)?;
        self.http.listen.check("http.listen", self.http.remote)?;
        self.limits.check()
    }
}

impl Listen {
    fn check(self, key: &'static str, remote: bool) -> Result<(), ConfigError> {
        let expected = "expected a loopback address such as 127.0.0.1, or remote = true beside it to let other machines in";
        match self {
            Self::At(addr) if !remote && !addr.ip().to_canonical().is_loopback() => {
                Err(ConfigError::new(key, expected))
            }
            _ => Ok(()),
        }
    }
}

impl Limits {
    fn check(&self) -> Result<(), ConfigError> {
        let zeros = [
            ("limits.connections", self.connections == 0),
            ("limits.handshake", self.handshake.is_zero()),
            ("limits.open", self.open.is_zero()),
            ("limits.idle_datagrams", self.idle_datagrams.is_zero()),
            ("limits.datagram_flows", self.datagram_flows == 0),
        ];
        above_zero(&zeros)?;
        if self.datagram_memory < 1 << 20 {
            return Err(ConfigError::new(
                "limits.datagram_memory",
                "expected at least 1048576 bytes",
            ));
        }
        if !(8192..=1 << 20).contains(&self.header) {
            return Err(ConfigError::new(
                "limits.header",
                "expected 8192 to 1048576 bytes",
            ));
        }
        Ok(())
    }
}

impl FromStr for Listen {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            addr => addr.parse().map(Self::At).map_err(
                |_| "expected an address and a port such as \"127.0.0.1:1080\", or \"off\"",
            ),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(addr) => addr.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        String::deserialize(input)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_means_the_defaults() {
        let config: Config = toml::from_str("").expect("parses");
        assert_eq!(config, Config::default());
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn every_key_is_read() {
        let text = r#"
            socks = { listen = "[::1]:1081", remote = true, udp = false }
            http = { listen = "off", remote = true }
            [limits]
            connections = 1
            handshake = 2
            open = 3
            idle_stream = 4
            idle_datagrams = 5.5
            datagram_flows = 6
            datagram_memory = 2000000
            idle_when_full = 0.5
            header = 8192
        "#;
        let config: Config = toml::from_str(text).expect("parses");
        assert_eq!(config.socks.listen.to_string(), "[::1]:1081");
        assert_eq!(config.http.listen, Listen::Off);
        assert_eq!(config.limits.idle_datagrams, Duration::from_millis(5500));
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn a_wrong_value_is_named() {
        for text in [
            "sock = {}",
            "socks = { listen = \"localhost:1\" }",
            "limits = { open = -1 }",
        ] {
            assert!(toml::from_str::<Config>(text).is_err(), "{text}");
        }
        let config: Config = toml::from_str("limits = { open = 0 }").expect("parses");
        let error = config.check().expect_err("zero");
        assert_eq!(error.to_string(), "limits.open: expected a number above 0");
    }

    #[test]
    fn other_machines_are_let_in_only_when_the_file_says_so() {
        let config: Config = toml::from_str("http = { listen = \"0.0.0.0:1\" }").expect("parses");
        assert_eq!(config.check().expect_err("open").key, "http.listen");
        let text = "http = { listen = \"0.0.0.0:1\", remote = true }";
        let config: Config = toml::from_str(text).expect("parses");
        assert_eq!(config.check(), Ok(()));
    }
}
