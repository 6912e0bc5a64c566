//! `[ip]`: IP packets for clients, RFC 9484: echoes for every relay, all protocols where the operator has set up a TUN device.

use std::net::IpAddr;

use hoplite_wire::connect_ip::{Capsule, DnsConfiguration, Nameserver, Nat64Prefix};
use ipnet::{IpNet, Ipv6Net};
use serde::Deserialize;

use super::{ConfigError, Pool};

/// How many bytes of a TUN device's name the kernel keeps.
const NAME: usize = 15;
/// A smaller pool has no address to give: the first is nobody's, the second the device's, the last of IPv4 everybody's.
const LEAST_BITS: u8 = 2;

/// IP packets (CONNECT-IP).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ip {
    /// Whether an egress serves flows of IP packets. Without a device these are ICMP echoes, by the system's ping sockets, which
    /// the relay's group must be allowed to open (`net.ipv4.ping_group_range`); where it is not, the answer is 501.
    pub enabled: bool,
    /// The TUN device that packets of all protocols leave by and come back from. The operator makes it and gives it a route back, a
    /// masquerade and the pools; the relay opens it. Without one: echoes alone.
    pub device: Option<String>,
    /// What clients are given their addresses from, at most one network of each family; the second address of each is for the device.
    /// They are seen on the device and nowhere else.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub pools: Vec<IpNet>,
    /// The same for clients who show a region, by its pool, so that the masquerade can give them an address of it: networks apart from the others,
    /// and only with a device. Echoes without one leave from the pools of `[egress]`.
    pub pool: Vec<Pool>,
    /// Nameservers that clients whose flow goes anywhere are told to ask for all names, in the flow and without encryption (DNS_ASSIGN).
    /// The policy must let packets to them pass.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub nameservers: Vec<IpAddr>,
    /// The NAT64 prefixes of the network behind the device, which such clients are told of (PREF64).
    #[serde(deserialize_with = "hoplite_config::list")]
    pub nat64: Vec<Ipv6Net>,
    /// Open flows of packets of all clients; more are answered 429.
    pub flows: usize,
    /// Open flows of packets of one client; more are answered 429.
    pub flows_per_client: usize,
    /// Echo identifiers (one for each `ping`) that a flow may use at a time; each holds a socket. The one that was used longest ago makes
    /// room.
    pub idents_per_flow: usize,
    /// Echo requests that a flow may send in a second; more are dropped. 0 is no limit.
    pub echoes_per_second: u32,
    /// Echo requests that a client may send in a second, over all its flows; more are dropped. 0 is no limit.
    pub echoes_per_client: u32,
    /// Echo requests of all clients in a second; 0 is no limit. Each has an equal share, and what others leave.
    pub echoes: u32,
}

impl Default for Ip {
    fn default() -> Self {
        Self {
            enabled: true,
            device: None,
            pools: ["100.96.0.0/16", "fd68:6f70:6970::/64"]
                .iter()
                .filter_map(|net| net.parse().ok())
                .collect(),
            pool: Vec::new(),
            nameservers: Vec::new(),
            nat64: Vec::new(),
            flows: 16_384,
            flows_per_client: 2048,
            idents_per_flow: 16,
            echoes_per_second: 100,
            echoes_per_client: 1000,
            echoes: 10_000,
        }
    }
}

impl Ip {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.check_device()?;
        self.check_pools()?;
        self.check_network()?;
        let numbers = [
            ("ip.flows", self.flows),
            ("ip.flows_per_client", self.flows_per_client),
            ("ip.idents_per_flow", self.idents_per_flow),
        ];
        match numbers.iter().find(|(_, number)| *number == 0) {
            Some((key, _)) => Err(ConfigError::new(key, "expected a number above 0")),
            None => Ok(()),
        }
    }

    fn check_device(&self) -> Result<(), ConfigError> {
        let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        match &self.device {
            Some(name) if name.is_empty() || name.len() > NAME || !name.chars().all(fine) => {
                let problem = format!(
                    "expected the name of a TUN device, 1 to {NAME} letters, digits, '-', '_' or '.'"
                );
                Err(ConfigError::new("ip.device", problem))
            }
            _ => Ok(()),
        }
    }

    fn check_pools(&self) -> Result<(), ConfigError> {
        let of = |v6: bool| {
            self.pools
                .iter()
                .filter(move |net| net.addr().is_ipv6() == v6)
        };
        if of(false).count() > 1 || of(true).count() > 1 || self.pools.is_empty() {
            let problem = "expected one network of each family, or of one";
            return Err(ConfigError::new("ip.pools", problem));
        }
        let small = |net: &&IpNet| net.max_prefix_len() - net.prefix_len() < LEAST_BITS;
        match self.pools.iter().find(small) {
            Some(_) => {
                let problem = "a network of fewer than four addresses has none for clients";
                Err(ConfigError::new("ip.pools", problem))
            }
            None => self.check_regions(),
        }
    }

    fn check_regions(&self) -> Result<(), ConfigError> {
        let told = |problem: String| Err(ConfigError::new("ip.pool.addresses", problem));
        if !self.pool.is_empty() && self.device.is_none() {
            let problem = "these addresses are seen on a device alone: set ip.device; echoes without one leave from [[egress.pool]]";
            return Err(ConfigError::new("ip.pool", problem));
        }
        if self.pool.iter().any(|pool| pool.addresses.is_empty()) {
            return told("expected at least one network".into());
        }
        let nets = self.pool.iter().flat_map(|pool| &pool.addresses);
        let nets: Vec<&IpNet> = nets.chain(&self.pools).collect();
        for (number, net) in nets.iter().enumerate() {
            if net.max_prefix_len() - net.prefix_len() < LEAST_BITS {
                return told(format!(
                    "{net} has fewer than four addresses: none for clients"
                ));
            }
            if !self.serves(net.addr().is_ipv6()) {
                return told(format!(
                    "ip.pools has no network of the family of {net}, for clients without a region"
                ));
            }
            let mut others = nets.iter().skip(number + 1);
            if let Some(other) = others.find(|other| other.contains(*net) || net.contains(**other))
            {
                return told(format!(
                    "{net} and {other} overlap: expected each address once"
                ));
            }
        }
        Ok(())
    }

    fn check_network(&self) -> Result<(), ConfigError> {
        if self.nat64.iter().any(|net| prefix(net).is_none()) {
            let problem = "expected prefixes of 32, 40, 48, 56, 64 or 96 bits";
            return Err(ConfigError::new("ip.nat64", problem));
        }
        Ok(())
    }

    /// What a client is told of nameservers, if there are any.
    pub(crate) fn dns_assign(&self) -> Option<Capsule> {
        let (mut ipv4, mut ipv6) = (Vec::new(), Vec::new());
        for address in &self.nameservers {
            match address {
                IpAddr::V4(ip) => ipv4.push(*ip),
                IpAddr::V6(ip) => ipv6.push(*ip),
            }
        }
        let nameserver = Nameserver {
            priority: 1,
            ipv4,
            ipv6,
            name: None,
            parameters: Vec::new(),
        };
        let configuration = DnsConfiguration {
            nameservers: vec![nameserver],
            internal: vec![None],
            search: Vec::new(),
        };
        (!self.nameservers.is_empty()).then(|| Capsule::DnsAssign(vec![configuration]))
    }

    /// What a client is told of NAT64, if there is any.
    pub(crate) fn pref64(&self) -> Option<Capsule> {
        let prefixes = self.nat64.iter().filter_map(prefix).collect();
        (!self.nat64.is_empty()).then_some(Capsule::Pref64(prefixes))
    }

    /// Whether there are addresses of a family.
    pub(crate) fn serves(&self, is_v6: bool) -> bool {
        self.pools.iter().any(|net| net.addr().is_ipv6() == is_v6)
    }
}

fn prefix(net: &Ipv6Net) -> Option<Nat64Prefix> {
    Nat64Prefix::new(net.network(), net.prefix_len())
}
