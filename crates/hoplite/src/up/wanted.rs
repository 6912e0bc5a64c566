//! From the client's file to what shall be. Used by `crate::up`.

use super::plan::Wanted;
use crate::config::client::{Config, takeover::Dns};

impl Wanted {
    /// What the file asks for.
    pub(crate) fn from_config(config: &Config, block: bool) -> Self {
        let (device, takeover) = (&config.device, &config.takeover);
        let (exclude, include) = (&takeover.exclude, &takeover.include);
        let pools = config.dns.pools();
        Self {
            name: device.name.clone(),
            mtu: device.mtu,
            addresses: device.addresses.clone(),
            resolvers: config.dns.resolvers.clone(),
            pools: vec![pools.ipv4.into(), pools.ipv6.into()],
            block,
            no_firewall: false,
            dns: takeover.dns == Dns::Auto,
            lan: takeover.lan,
            past_addresses: exclude.addresses.clone(),
            past_users: exclude.users.clone(),
            past_cgroups: exclude.cgroups.clone(),
            only_addresses: include.addresses.clone(),
            only_users: include.users.clone(),
        }
    }
}
