//! `[bound_udp]`: UDP flows with a public address of their own, for WebRTC and games.

use std::net::IpAddr;

use serde::Deserialize;

use super::{ConfigError, Egress};

/// Bound UDP (draft-ietf-masque-connect-udp-listen).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BoundUdp {
    /// Whether an egress serves it. Such a flow is heard by anybody on the Internet, if its client wants that.
    pub enabled: bool,
    /// The addresses of this host that flows have where no pool of `[[egress.pool]]` has one for them, at most one of each family. Peers must
    /// reach the relay there.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub addresses: Vec<IpAddr>,
    /// How many peers of one flow may have a context of their own; further ones share that of anybody.
    pub contexts: usize,
    /// To how many targets one flow may send within a minute; what goes to further ones is dropped.
    pub targets: usize,
}

impl Default for BoundUdp {
    fn default() -> Self {
        Self {
            enabled: false,
            addresses: Vec::new(),
            contexts: 64,
            targets: 256,
        }
    }
}

impl BoundUdp {
    pub(super) fn check(&self, egress: &Egress) -> Result<(), ConfigError> {
        let of = |v6| self.addresses.iter().filter(move |ip| ip.is_ipv6() == v6);
        if of(false).count() > 1 || of(true).count() > 1 {
            let problem = "expected at most one address of each family";
            return Err(ConfigError::new("bound_udp.addresses", problem));
        }
        if self.addresses.iter().any(IpAddr::is_unspecified) {
            let problem = "expected addresses that peers can be told, no wildcard";
            return Err(ConfigError::new("bound_udp.addresses", problem));
        }
        if self.enabled && self.addresses.is_empty() && egress.pool.is_empty() {
            let problem =
                "expected the addresses that peers reach this relay at, or an [[egress.pool]]";
            return Err(ConfigError::new("bound_udp.addresses", problem));
        }
        let numbers = [
            ("bound_udp.contexts", self.contexts),
            ("bound_udp.targets", self.targets),
        ];
        match numbers.iter().find(|(_, number)| *number == 0) {
            Some((key, _)) => Err(ConfigError::new(key, "expected a number above 0")),
            None => Ok(()),
        }
    }
}
