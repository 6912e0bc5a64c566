//! From the client's file to what shall be. Used by `crate::up`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::plan::Wanted;
use crate::config::client::{Config, takeover::Dns};

/// Who answers for names behind it.
pub(super) const RESOLVERS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2)),
    IpAddr::V6(Ipv6Addr::new(0xfd68, 0x6f70, 0x6c69, 0x7465, 0, 0, 0, 2)),
];

/// The addresses that stand for names.
const POOLS: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 15)),
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(0xfd68, 0x6f70, 0x6c69, 0x7465, 0, 0, 0, 0),
        64,
    )),
];

impl Wanted {
    /// What the file asks for.
    pub(crate) fn from_config(config: &Config, block: bool) -> Self {
        let (device, takeover) = (&config.device, &config.takeover);
        Self {
            name: device.name.clone(),
            mtu: device.mtu,
            addresses: device.addresses.clone(),
            resolvers: RESOLVERS.to_vec(),
            pools: POOLS.to_vec(),
            block,
            dns: takeover.dns == Dns::Auto,
            lan: takeover.lan,
            past_addresses: takeover.exclude.addresses.clone(),
            past_users: takeover.exclude.users.clone(),
            past_cgroups: takeover.exclude.cgroups.clone(),
            only_addresses: takeover.include.addresses.clone(),
            only_users: takeover.include.users.clone(),
        }
    }
}
