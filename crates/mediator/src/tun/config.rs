//! What the transparent front end may use and how it treats headers. `Default` is what an empty file means.
//! The binary reads it from the client's file: sections `[device]`, `[flows]` and `[dns]`.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use hoplite_config::above_zero;
use hoplite_wire::HostName;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Deserializer, de};

use crate::{
    ConfigError,
    tun::names::{MappingLimits, Pools},
};

/// The configuration of the transparent front end.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `[device]`
    pub device: Device,
    /// `[flows]`
    pub flows: Flows,
    /// `[dns]`
    pub dns: Dns,
}

/// The interface, as programs see it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// The largest packet that goes through it whole, in bytes, 1280 to 65535.
    pub mtu: u16,
    /// Its own addresses: packets from others are dropped and counted. Empty: packets from everywhere are taken.
    pub addresses: Vec<IpAddr>,
    /// Networks behind this device: their TCP and UDP is taken as well. No key.
    #[serde(skip)]
    pub behind: Vec<IpNet>,
    /// Whether TCP and UDP flows of different users of this machine, and of different hosts behind it, share no connection beyond the first relay. No key.
    #[serde(skip)]
    pub isolate_users: bool,
    /// What comes first where a header would tell targets something.
    pub privacy: Privacy,
}

/// What is done with header fields that a few protocols need and that tell devices apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Privacy {
    /// They are never carried; packets with options are dropped and counted.
    #[default]
    Anonymity,
    /// The hop limit of packets that are neither TCP nor UDP is carried; packets with options are carried without them.
    Compatibility,
}

/// The flows. Times are in seconds, whole or not.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Flows {
    /// TCP flows open at once; a further one takes the place of one of the user that has most.
    pub tcp: usize,
    /// UDP flows open at once; a further one takes the place of one of the user that has most, exchanges that are done first.
    pub udp: usize,
    /// Flows of other packets (ICMP echo first of all) open at once, one for each protocol and target; a further one takes the place of the
    /// one that was not used for longest.
    pub packets: usize,
    /// Bytes under way in one direction of one TCP flow.
    pub window: usize,
    /// Bytes of memory for what waits in all TCP flows together; windows sink as it fills.
    pub memory: usize,
    /// Bytes of memory for datagrams that wait in all UDP flows together; further ones are dropped.
    pub udp_memory: usize,
    /// When a program's connection counts as open.
    pub open: Opening,
    /// How long a flow may take to open.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub opening: Duration,
    /// How long a small datagram may wait for others to share a packet with.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub pack_wait: Duration,
    /// How long a TCP flow is kept without any segment, keep-alives of the program included; 0 is for ever. RFC 5382 §5 wants at least two
    /// hours and four minutes.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub idle_stream: Duration,
    /// How long a UDP flow to port 53 is kept without any datagram.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub idle_dns: Duration,
    /// How long a UDP flow to port 443 is kept without any datagram.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub idle_quic: Duration,
    /// How long a UDP flow to any other port is kept without any datagram; RFC 4787 §4.3 wants at least two minutes.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub idle_datagrams: Duration,
    /// The most of these three times for a flow that was not answered, or is no more than an exchange of up to eight datagrams.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub idle_exchange: Duration,
    /// How long a flow of other packets is kept without any.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub idle_packets: Duration,
}

/// When a program's SYN is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Opening {
    /// At once for names and ports that lately worked, else when the far end has connected.
    #[default]
    Auto,
    /// At once: the first data travel with the request. A failure becomes a reset.
    Optimistic,
    /// When the far end has connected: a failure is told as what it is.
    Pessimistic,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            name: "hoplite0".to_owned(),
            mtu: 1500,
            addresses: own(),
            behind: Vec::new(),
            isolate_users: false,
            privacy: Privacy::default(),
        }
    }
}

/// The first of the ranges that temporary addresses are taken from: no network in use has them.
fn own() -> Vec<IpAddr> {
    let v4 = Ipv4Addr::new(198, 18, 0, 1);
    let v6 = Ipv6Addr::new(0xfd68, 0x6f70, 0x6c69, 0x7465, 0, 0, 0, 1);
    vec![v4.into(), v6.into()]
}

impl Default for Flows {
    fn default() -> Self {
        Self {
            tcp: 16_384,
            udp: 8192,
            packets: 256,
            window: 1 << 20,
            memory: 256 << 20,
            udp_memory: 64 << 20,
            open: Opening::default(),
            opening: Duration::from_secs(30),
            pack_wait: Duration::ZERO,
            idle_stream: Duration::from_secs(7440),
            idle_dns: Duration::from_secs(10),
            idle_quic: Duration::from_secs(180),
            idle_datagrams: Duration::from_secs(180),
            idle_exchange: Duration::from_secs(30),
            idle_packets: Duration::from_secs(60),
        }
    }
}

impl Config {
    /// Checks every value.
    ///
    /// # Errors
    /// The first one that is out of range, with what may stand there.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.device.check()?;
        self.flows.check()?;
        self.dns.check()
    }
}

impl Device {
    fn check(&self) -> Result<(), ConfigError> {
        // IFNAMSIZ is 16 with the zero at the end.
        let printable = self.name.bytes().all(|byte| byte.is_ascii_graphic());
        if !(1..16).contains(&self.name.len()) || !printable || self.name.contains('/') {
            return Err(ConfigError::new(
                "device.name",
                "expected 1 to 15 letters or digits",
            ));
        }
        if self.mtu < 1280 {
            return Err(ConfigError::new(
                "device.mtu",
                "expected 1280 to 65535 bytes",
            ));
        }
        Ok(())
    }
}

impl Flows {
    fn check(&self) -> Result<(), ConfigError> {
        let zeros = [
            ("flows.tcp", self.tcp == 0),
            ("flows.udp", self.udp == 0),
            ("flows.packets", self.packets == 0),
            ("flows.opening", self.opening.is_zero()),
            ("flows.idle_dns", self.idle_dns.is_zero()),
            ("flows.idle_quic", self.idle_quic.is_zero()),
            ("flows.idle_datagrams", self.idle_datagrams.is_zero()),
            ("flows.idle_exchange", self.idle_exchange.is_zero()),
            ("flows.idle_packets", self.idle_packets.is_zero()),
        ];
        above_zero(&zeros)?;
        if !(16_384..=1 << 30).contains(&self.window) {
            return Err(ConfigError::new(
                "flows.window",
                "expected 16384 to 1073741824 bytes",
            ));
        }
        if self.memory < self.window.saturating_mul(4) {
            return Err(ConfigError::new(
                "flows.memory",
                "expected at least four times flows.window",
            ));
        }
        if self.udp_memory < 1 << 20 {
            return Err(ConfigError::new(
                "flows.udp_memory",
                "expected at least 1048576 bytes",
            ));
        }
        if self.pack_wait > Duration::from_secs(1) {
            return Err(ConfigError::new(
                "flows.pack_wait",
                "expected 0 to 1 second",
            ));
        }
        Ok(())
    }

    /// How long a UDP flow to `port` is kept without any datagram.
    pub(crate) fn idle(&self, port: u16, is_stream: bool) -> Duration {
        let most = match port {
            53 => self.idle_dns,
            443 => self.idle_quic,
            _ => self.idle_datagrams,
        };
        if is_stream {
            most
        } else {
            most.min(self.idle_exchange)
        }
    }
}

/// How long a flow's finding that a name does not exist is believed.
const MISSING: Duration = Duration::from_secs(30);

/// How programs' DNS queries are answered. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dns {
    /// "optimistic": names are answered at once with temporary addresses, and travel unresolved to the last relay; failure is
    /// told when a flow opens. "pessimistic": every query is asked through the overlay.
    pub mode: DnsMode,
    /// The addresses of the device's resolver, at port 53; any will do.
    pub resolvers: Vec<IpAddr>,
    /// How long programs are told to keep a temporary address.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub ttl: Duration,
    /// How long a temporary address means its name after it was told, and after its last flow; above `ttl`.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub keep: Duration,
    /// How many names have temporary addresses at once; a further one takes that of another user that has more, or the far end is asked for
    /// it, as in pessimistic mode.
    pub names: usize,
    /// Where temporary IPv4 addresses are taken from; the first 256 are the device's.
    pub ipv4: Ipv4Net,
    /// Where temporary IPv6 addresses are taken from; the first 256 are the device's.
    pub ipv6: Ipv6Net,
    /// How many queries are asked through the overlay at once; of a further one and the oldest of the user that has most
    /// one fails (SERVFAIL).
    pub asked: usize,
    /// How long the far end may take to answer; then the query fails (SERVFAIL). Below the 5 s of C libraries.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub patience: Duration,
    /// The search domains of this device's resolver: names below them are asked for, and not answered at once, since
    /// resolvers try them until one exists.
    #[serde(deserialize_with = "hosts")]
    pub search: Vec<HostName>,
    /// Domains whose flows go another way than the overlay's path, local ones among them: they are asked for there.
    #[serde(deserialize_with = "hosts")]
    pub elsewhere: Vec<HostName>,
    /// Domains whose flows have a way of their own within the overlay: of names below them programs are told temporary addresses, or none. Of these
    /// and `elsewhere` the longest decides that has the name. No key.
    #[serde(skip)]
    pub by_name: Vec<HostName>,
    /// All other names are asked for as they are, and programs are told the real addresses. No key.
    #[serde(skip)]
    pub leaves_others: bool,
    /// Whether answers from the far end may name private and other special addresses.
    pub private: bool,
    /// Whether the overlay leads to onion services: names below `.onion` have temporary addresses, in both modes. No key.
    #[serde(skip)]
    pub onion_services: bool,
}

/// When a query for a name is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DnsMode {
    /// At once.
    #[default]
    Optimistic,
    /// After the far end has.
    Pessimistic,
}

impl Default for Dns {
    fn default() -> Self {
        let Pools { ipv4, ipv6 } = Pools::default();
        Self {
            mode: DnsMode::Optimistic,
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
            by_name: Vec::new(),
            leaves_others: false,
            private: false,
            onion_services: false,
        }
    }
}

impl Dns {
    /// Checks every value.
    ///
    /// # Errors
    /// The first one that is out of range, with what may stand there.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.keep <= self.ttl {
            return Err(ConfigError::new(
                "dns.keep",
                "expected more seconds than dns.ttl",
            ));
        }
        let zeros = [
            ("dns.ttl", self.ttl.is_zero()),
            ("dns.names", self.names == 0),
            ("dns.asked", self.asked == 0),
            ("dns.patience", self.patience.is_zero()),
        ];
        above_zero(&zeros)?;
        let sizes = self.pools().check();
        sizes.map_err(|(key, expected)| ConfigError::new(key, format!("expected {expected}")))
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

    /// How long mappings last, and how many there may be.
    pub(crate) fn mapping_limits(&self) -> MappingLimits {
        MappingLimits {
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

    fn key_of(text: &str) -> &'static str {
        let config: Config = toml::from_str(text).expect("parses");
        config.check().expect_err("wrong").key
    }

    #[test]
    fn an_empty_file_means_the_defaults() {
        let config: Config = toml::from_str("").expect("parses");
        assert_eq!(config, Config::default());
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn every_key_is_read() {
        let text = r#"
            device = { name = "tun7", mtu = 1400, addresses = ["198.18.0.1", "fd00::1"], privacy = "compatibility" }
            [flows]
            tcp = 1
            udp = 2
            window = 16384
            memory = 65536
            udp_memory = 1048576
            open = "pessimistic"
            opening = 3
            pack_wait = 0.005
            idle_stream = 0
            idle_dns = 4
            idle_quic = 5
            idle_datagrams = 6.5
            idle_exchange = 4.5
            packets = 3
            idle_packets = 7
        "#;
        let config: Config = toml::from_str(text).expect("parses");
        assert_eq!(config.check(), Ok(()));
        let (device, flows) = (&config.device, &config.flows);
        assert_eq!((device.mtu, device.addresses.len()), (1400, 2));
        assert_eq!(device.privacy, Privacy::Compatibility);
        assert_eq!((flows.memory, flows.udp_memory), (65_536, 1 << 20));
        assert_eq!(flows.open, Opening::Pessimistic);
        assert_eq!(flows.pack_wait, Duration::from_millis(5));
        assert_eq!(flows.idle_stream, Duration::ZERO);
        assert_eq!(
            [53, 443, 80].map(|port| flows.idle(port, true).as_millis()),
            [4000, 5000, 6500]
        );
        assert_eq!(
            [53, 443, 80].map(|port| flows.idle(port, false).as_millis()),
            [4000, 4500, 4500]
        );
    }

    #[test]
    fn a_wrong_value_is_named() {
        assert_eq!(key_of("device = { name = \"a/b\" }"), "device.name");
        assert_eq!(
            key_of("device = { name = \"a_name_too_long_\" }"),
            "device.name"
        );
        assert_eq!(key_of("device = { mtu = 1279 }"), "device.mtu");
        assert_eq!(key_of("flows = { udp = 0 }"), "flows.udp");
        assert_eq!(key_of("flows = { window = 1 }"), "flows.window");
        assert_eq!(key_of("flows = { memory = 4194303 }"), "flows.memory");
        assert_eq!(key_of("flows = { udp_memory = 1 }"), "flows.udp_memory");
        assert_eq!(key_of("flows = { pack_wait = 2 }"), "flows.pack_wait");
        assert!(toml::from_str::<Config>("flows = { open = \"maybe\" }").is_err());
    }
}

#[cfg(test)]
mod dns_tests {
    use super::*;

    #[test]
    fn an_empty_section_means_the_defaults() {
        let config: Dns = toml::from_str("").expect("parses");
        assert_eq!(config, Dns::default());
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
        let config: Dns = toml::from_str(text).expect("parses");
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.mode, DnsMode::Pessimistic);
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
            let config: Dns = toml::from_str(text).expect("parses");
            assert_eq!(config.check().expect_err(text).key, key);
        }
        for text in ["mode = \"brave\"", "search = [\"a b\"]", "ipv4 = \"x\""] {
            assert!(toml::from_str::<Dns>(text).is_err(), "{text}");
        }
    }
}
