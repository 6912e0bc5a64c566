//! `[[egress.pool]]`: the addresses from which an egress connects for clients of a region, and the geofeed (RFC 8805) that says so to others.

use std::io;

use hoplite_wire::{
    geofeed::Geofeed,
    region::{Region, Zone},
};
use ipnet::IpNet;
use serde::Deserialize;

use super::{ConfigError, Egress, text};
use crate::host_addresses::HostAddresses;

/// Addresses of one region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pool {
    /// A country or a part of one, as `"DE"` or `"DE-BE"`; without it the pool is for all who show none, or one that no pool has.
    #[serde(deserialize_with = "hoplite_config::parsed_option")]
    pub region: Option<Region>,
    /// The time zone there, as `"Europe/Berlin"`: for clients who show their country and their time zone alone.
    #[serde(deserialize_with = "hoplite_config::parsed_option")]
    pub zone: Option<Zone>,
    /// Addresses and prefixes, IPv4 and IPv6. Those of IPv4 are this host's; those of IPv6 are routed to it.
    #[serde(deserialize_with = "text::nets")]
    pub addresses: Vec<IpNet>,
}

impl Egress {
    /// What the pools say to others of their addresses.
    ///
    /// # Errors
    /// An address that is in two of them, or a prefix with bits behind it.
    pub fn geofeed(&self) -> Result<Geofeed, ConfigError> {
        let mut feed = Geofeed::default();
        for pool in &self.pool {
            for prefix in &pool.addresses {
                feed.add(*prefix, pool.region).map_err(|fault| {
                    ConfigError::new("egress.pool.addresses", fault.to_string())
                })?;
            }
        }
        Ok(feed)
    }

    /// The prefixes, with the number of their pool, of which this host does not receive every address: flows that draw another get no answer.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn missing(&self) -> io::Result<Vec<(usize, IpNet)>> {
        let (local, _changes) = HostAddresses::look()?;
        let all = self.pool.iter().enumerate();
        let all =
            all.flat_map(|(number, pool)| pool.addresses.iter().map(move |net| (number, *net)));
        Ok(all.filter(|(_, net)| !local.has_all(net)).collect())
    }
}

/// Checks the pools.
pub(super) fn check(egress: &Egress) -> Result<(), ConfigError> {
    if egress.renew.is_zero() {
        return Err(ConfigError::new(
            "egress.renew",
            "expected more than 0 seconds",
        ));
    }
    if egress.pool.iter().any(|pool| pool.addresses.is_empty()) {
        let problem = "expected at least one address or prefix";
        return Err(ConfigError::new("egress.pool.addresses", problem));
    }
    egress.geofeed()?;
    // An address is in one place, whatever the geofeed's longest prefix says.
    let all: Vec<IpNet> = egress
        .pool
        .iter()
        .flat_map(|pool| &pool.addresses)
        .copied()
        .collect();
    let twice = all.iter().find_map(|net| {
        let around = all
            .iter()
            .find(|other| *other != net && other.contains(net))?;
        Some(format!(
            "{net} is also in {around}: expected each address once"
        ))
    });
    match twice {
        Some(problem) => Err(ConfigError::new("egress.pool.addresses", problem)),
        None => Ok(()),
    }
}
