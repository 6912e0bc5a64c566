//! Which addresses there are: an offset into an IPv4 prefix, and the same offset into an IPv6 one.
//! Used by [`super::Names`] alone. The prefixes are those of RFC 2544 (nobody routes it) and RFC 4193 (locally assigned).

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{Ipv4Net, Ipv6Net};
use serde::Deserialize;

use super::Pair;

/// The first addresses of each prefix are the device's own, its resolver's and its neighbours'.
const OWN: u32 = 256;

/// Where temporary addresses are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pools {
    /// A prefix of 8 to 22 bits. Its first 256 addresses are the device's. Default: `198.18.0.0/15`.
    pub ipv4: Ipv4Net,
    /// A prefix of at most 96 bits, the first 256 addresses of which are the device's. Default: `fd68:6f70:6c69:7465::/64`.
    pub ipv6: Ipv6Net,
}

impl Default for Pools {
    fn default() -> Self {
        let v4 = Ipv4Addr::new(198, 18, 0, 0);
        let v6 = Ipv6Addr::new(0xfd68, 0x6f70, 0x6c69, 0x7465, 0, 0, 0, 0);
        Self {
            ipv4: Ipv4Net::new_assert(v4, 15),
            ipv6: Ipv6Net::new_assert(v6, 64),
        }
    }
}

impl Pools {
    /// Whether both prefixes have a size that can be meant; the key of the first that has not, and what was expected.
    ///
    /// # Errors
    /// See above.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if !(8..=22).contains(&self.ipv4.prefix_len()) {
            return Err(("dns.ipv4", "a prefix of 8 to 22 bits"));
        }
        if !(8..=96).contains(&self.ipv6.prefix_len()) {
            return Err(("dns.ipv6", "a prefix of 8 to 96 bits"));
        }
        Ok(())
    }
}

/// Offsets and their addresses.
#[derive(Debug)]
pub(super) struct Pool {
    v4: Ipv4Net,
    v6: Ipv6Net,
    /// How many offsets there are behind [`OWN`].
    usable: u32,
    reserved: HashSet<u32>,
}

impl Pool {
    pub(super) fn new(pools: &Pools, reserved: &[IpAddr]) -> Self {
        let (v4, v6) = (pools.ipv4.trunc(), pools.ipv6.trunc());
        let all = 1u32 << (32 - u32::from(v4.prefix_len())).min(24);
        let mut pool = Self {
            v4,
            v6,
            // The last one is a broadcast address.
            usable: all.saturating_sub(OWN + 1),
            reserved: HashSet::new(),
        };
        pool.reserved = reserved
            .iter()
            .filter_map(|ip| pool.position(*ip))
            .collect();
        pool
    }

    /// How many may be taken before it takes long to find a free one.
    pub(super) fn room(&self) -> usize {
        usize::try_from(self.usable / 2).unwrap_or(usize::MAX)
    }

    /// The offset that a random number chooses; `None` if that is reserved.
    pub(super) fn offset(&self, random: u64) -> Option<u32> {
        let chosen = random.checked_rem(u64::from(self.usable))?;
        let offset = OWN + u32::try_from(chosen).ok()?;
        (!self.reserved.contains(&offset)).then_some(offset)
    }

    pub(super) fn pair(&self, offset: u32) -> Pair {
        Pair {
            v4: Ipv4Addr::from(u32::from(self.v4.network()) | offset),
            v6: Ipv6Addr::from(u128::from(self.v6.network()) | u128::from(offset)),
        }
    }

    /// The offset of a temporary address; `None` for all others.
    pub(super) fn find(&self, ip: IpAddr) -> Option<u32> {
        let offset = self.position(ip)?;
        let ours = (OWN..OWN + self.usable).contains(&offset);
        (ours && !self.reserved.contains(&offset)).then_some(offset)
    }

    /// Whether the address is of one of the prefixes.
    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        match ip.to_canonical() {
            IpAddr::V4(ip) => self.v4.contains(&ip),
            IpAddr::V6(ip) => self.v6.contains(&ip),
        }
    }

    /// How far into its prefix an address is.
    fn position(&self, ip: IpAddr) -> Option<u32> {
        match ip.to_canonical() {
            IpAddr::V4(ip) if self.v4.contains(&ip) => {
                Some(u32::from(ip) & u32::from(self.v4.hostmask()))
            }
            IpAddr::V6(ip) if self.v6.contains(&ip) => {
                u32::try_from(u128::from(ip) & u128::from(self.v6.hostmask())).ok()
            }
            _ => None,
        }
    }
}
