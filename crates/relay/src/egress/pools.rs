//! Which address of this host a target sees. A pool is chosen by the region that the client shows, an address of it by lot: the same for all
//! flows of one connection for some hours, another for another connection. Nothing is kept beside the connection, and nothing can be counted
//! back to it.

use std::{
    hash::{BuildHasher, RandomState},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use hoplite_wire::region::Shown;
use ipnet::IpNet;
use tokio::time::Instant;

use crate::config::{self, Pool};

/// The lots of one connection, and what its client shows.
#[derive(Clone, Debug)]
pub(crate) struct Lots {
    /// A key of its own: who sees addresses learns nothing of it.
    key: RandomState,
    begun: Instant,
}

impl Lots {
    /// For a connection that begins now.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            key: RandomState::new(),
            begun: now,
        }
    }

    /// A number of 64 bits, another after each `renew`, the first time at a moment that nobody can tell from when the connection began.
    fn draw(&self, renew: Duration, now: Instant, what: u8) -> u64 {
        let renew = renew.as_millis().max(1);
        let jitter = u128::from(self.key.hash_one("jitter")) % renew;
        let age = now.saturating_duration_since(self.begun).as_millis();
        self.key.hash_one(((age + jitter) / renew, what))
    }
}

/// The pools of an egress.
#[derive(Debug)]
pub(super) struct Pools {
    pools: Vec<Pool>,
    renew: Duration,
}

impl Pools {
    pub(super) fn new(config: &config::Egress) -> Self {
        Self {
            pools: config.pool.clone(),
            renew: config.renew,
        }
    }

    /// The source of a flow towards `target`; `None`: as the system takes it.
    pub(super) fn source(
        &self,
        lots: &Lots,
        shown: Option<&Shown>,
        target: IpAddr,
        now: Instant,
    ) -> Option<IpAddr> {
        let nets = self.nets(shown, target.is_ipv4());
        let total: u64 = nets.iter().map(weight).sum();
        let mut lot = lots.draw(self.renew, now, 0).checked_rem(total)?;
        let drawn = nets.into_iter().find(|net| {
            let here = lot < weight(net);
            lot = lot.saturating_sub(weight(net));
            here
        })?;
        let low = lots.draw(self.renew, now, 1);
        let high = lots.draw(self.renew, now, 2);
        Some(host(&drawn, u128::from(high) << 64 | u128::from(low)))
    }

    /// The prefixes of the pools that fit best: the region itself; else of the same country, in the same time zone, or the whole of it; else
    /// those without a region.
    fn nets(&self, shown: Option<&Shown>, v4: bool) -> Vec<IpNet> {
        let of = |pool: &Pool| -> Vec<IpNet> {
            let all = pool.addresses.iter().copied();
            all.filter(|net| net.addr().is_ipv4() == v4).collect()
        };
        let having = self.pools.iter().map(|pool| (fit(pool, shown), of(pool)));
        let having: Vec<_> = having
            .filter(|(fit, nets)| fit.is_some() && !nets.is_empty())
            .collect();
        let best = having.iter().map(|(fit, _)| *fit).max().flatten();
        let best = having.into_iter().filter(|(fit, _)| *fit == best);
        best.flat_map(|(_, nets)| nets).collect()
    }
}

/// How well a pool fits what a client shows, the more the better; `None`: it is for others.
pub(crate) fn fit(pool: &Pool, shown: Option<&Shown>) -> Option<(u8, bool, bool)> {
    match (pool.region, shown) {
        (None, _) => Some((0, false, false)),
        (Some(region), Some(shown)) if region == shown.region => {
            Some((2, is_zone(pool, shown), false))
        }
        (Some(region), Some(shown)) if region.country() == shown.region.country() => {
            Some((1, is_zone(pool, shown), region.is_country()))
        }
        _ => None,
    }
}

fn is_zone(pool: &Pool, shown: &Shown) -> bool {
    shown.zone.is_some() && pool.zone == shown.zone
}

/// How many addresses it has, in effect: more than 2^32 count as so many.
fn weight(net: &IpNet) -> u64 {
    1 << (net.max_prefix_len() - net.prefix_len()).min(32)
}

/// The address of the prefix with these bits behind it.
fn host(net: &IpNet, bits: u128) -> IpAddr {
    match net {
        IpNet::V4(net) => {
            let low = u32::try_from(bits & u128::from(u32::MAX)).unwrap_or_default();
            let behind = net.hostmask().to_bits() & low;
            Ipv4Addr::from(net.network().to_bits() | behind).into()
        }
        IpNet::V6(net) => {
            let behind = net.hostmask().to_bits() & bits;
            Ipv6Addr::from(net.network().to_bits() | behind).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn pools(text: &str) -> Pools {
        let config: config::Egress = toml::from_str(text).expect("a table");
        Pools::new(&config)
    }

    fn nets(pools: &Pools, shown: &str) -> Vec<String> {
        let nets = pools.nets(Shown::read(shown.as_bytes()).as_ref(), true);
        nets.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_pool_that_fits_best_is_taken() {
        let pools = pools(
            r#"
            pool = [
                { addresses = ["192.0.2.0/28"] },
                { region = "US-CA", zone = "America/Los_Angeles", addresses = ["192.0.2.16/28"] },
                { region = "US-NY", zone = "America/New_York", addresses = ["192.0.2.32/28"] },
                { region = "US", addresses = ["192.0.2.48/28"] },
                { region = "FR-IDF", addresses = ["192.0.2.64/28", "2001:db8::/64"] },
                { region = "FR-ARA", addresses = ["192.0.2.80/28"] },
            ]
            "#,
        );
        for (shown, expected) in [
            ("US-CA", &["192.0.2.16/28"][..]),
            ("US-NY;zone=America/Los_Angeles", &["192.0.2.32/28"]),
            ("US-TX;zone=America/New_York", &["192.0.2.32/28"]),
            ("US-TX", &["192.0.2.48/28"]),
            ("US", &["192.0.2.48/28"]),
            ("FR", &["192.0.2.64/28", "192.0.2.80/28"]),
            ("DE-BE", &["192.0.2.0/28"]),
            ("", &["192.0.2.0/28"]),
        ] {
            assert_eq!(nets(&pools, shown), expected, "{shown}");
        }
        let shown = Shown::read(b"US-CA").expect("a region");
        assert!(
            pools.nets(Some(&shown), false).is_empty(),
            "no pool without a region has IPv6"
        );
    }

    #[tokio::test]
    async fn an_address_lasts_for_hours_and_not_for_ever() {
        let pools =
            pools("renew = 14400\npool = [{ addresses = [\"192.0.2.0/24\", \"2001:db8::/64\"] }]");
        let begun = Instant::now();
        let lots = Lots::new(begun);
        for target in ["198.51.100.1", "2001:db8:1::1"] {
            let target: IpAddr = target.parse().expect("an address");
            let at = |hours: u32| pools.source(&lots, None, target, begun + HOUR * hours);
            let day: Vec<_> = (0..24).map(at).collect();
            let changes = day.windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert!((3..=6).contains(&changes), "changes {changes} times a day");
        }
    }

    #[tokio::test]
    async fn connections_draw_apart_and_at_times_of_their_own() {
        let pools = pools("pool = [{ addresses = [\"2001:db8::/64\"] }]");
        let begun = Instant::now();
        let target: IpAddr = "2001:db8:1::1".parse().expect("an address");
        let all: Vec<Lots> = (0..64).map(|_| Lots::new(begun)).collect();
        let at = |lots: &Lots, hours| pools.source(lots, None, target, begun + HOUR * hours);
        let drawn: HashSet<_> = all.iter().map(|lots| at(lots, 0)).collect();
        assert_eq!(drawn.len(), 64);
        let changed = all.iter().filter(|lots| at(lots, 0) != at(lots, 2)).count();
        assert!(
            (8..=56).contains(&changed),
            "{changed} of 64 after half the time"
        );
    }

    proptest! {
        #[test]
        fn an_address_is_of_its_prefix(address: IpAddr, length in 0..=128u8, bits: u128) {
            let longest = if address.is_ipv4() { 32 } else { 128 };
            let net = IpNet::new(address, length.min(longest)).expect("short enough");
            prop_assert!(net.contains(&host(&net, bits)));
            prop_assert!(weight(&net) > 0);
        }
    }
}
