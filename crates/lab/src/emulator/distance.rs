//! How far the hosts of a drawn network are from each other: delays of the links that packets take, which routes decide. Rates, queues and
//! jitter do not count.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    time::Duration,
};

use super::network::{Routes, ends};
use crate::topology::{Addresses, Topology};

/// The distances of one network.
#[derive(Clone, Debug)]
pub struct Distances<'t> {
    topology: &'t Topology,
    addresses: BTreeMap<String, Addresses>,
    /// Nodes by their names.
    places: HashMap<&'t str, usize>,
    /// The two nodes of every link.
    ends: Vec<[usize; 2]>,
    routes: Routes,
}

impl<'t> Distances<'t> {
    /// Those of the network that `topology` draws.
    ///
    /// # Errors
    /// What is wrong with the topology.
    pub fn of(topology: &'t Topology) -> Result<Self, String> {
        let addresses = topology.addresses();
        let names = topology.nodes.iter().map(|node| node.name.as_str());
        Ok(Self {
            places: names.zip(0..).collect(),
            ends: ends(topology)?,
            routes: Routes::new(topology, &addresses)?,
            topology,
            addresses,
        })
    }

    /// Delays of the links from one host to another, there and back; `None` if there is no way.
    #[must_use]
    pub fn round_trip(&self, from: &str, to: &str) -> Option<Duration> {
        let (mut here, target) = (*self.places.get(from)?, *self.places.get(to)?);
        let address = IpAddr::from(self.addresses.get(to)?.v4);
        let mut sum = Duration::ZERO;
        while here != target {
            let direction = self.routes.next(here, address)?;
            let (link, end) = (direction / 2, direction % 2);
            let drawn = self.topology.links.get(link)?;
            sum += drawn.forward.delay + drawn.back.delay;
            here = self.ends.get(link)?[1 - end];
        }
        Some(sum)
    }

    /// The one of some hosts that is nearest to another; of those that are equally near the first.
    #[must_use]
    pub fn nearest<'h>(&self, to: &str, hosts: &'h [String]) -> Option<&'h str> {
        let far = |host: &'h String| Some((self.round_trip(to, host)?, host.as_str()));
        let reached = hosts.iter().filter_map(far);
        reached.min_by_key(|(far, _)| *far).map(|(_, host)| host)
    }

    /// The nearest of some hosts to each address of the network, by its own address.
    #[must_use]
    pub fn nearest_to_each(&self, hosts: &[String]) -> BTreeMap<IpAddr, IpAddr> {
        let nearest = |(name, of): (&String, &Addresses)| {
            let host = self.addresses.get(self.nearest(name, hosts)?)?;
            let address = IpAddr::from(host.v4);
            Some([IpAddr::from(of.v4), IpAddr::from(of.v6)].map(|seen| (seen, address)))
        };
        self.addresses
            .iter()
            .filter_map(nearest)
            .flatten()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Direction, Link, Node};

    /// A client and a relay on two routers, each with a server beside it, and a short but congested way that routes do not take.
    fn two_places() -> Topology {
        let link = |ends: [&str; 2], ms| {
            let delay = Duration::from_millis(ms);
            let direction = Direction {
                delay,
                ..Direction::default()
            };
            Link::between(ends[0], ends[1], &direction)
        };
        let hosts = ["client", "relay", "here", "there"].map(Node::host);
        let routers = ["R1", "R2", "R3"].map(Node::router);
        Topology {
            nodes: [&hosts[..], &routers[..]].concat(),
            links: vec![
                link(["client", "R1"], 1),
                link(["R1", "R2"], 7),
                link(["R1", "R3"], 1),
                link(["R3", "R2"], 1),
                link(["here", "R1"], 3),
                link(["there", "R2"], 2),
                link(["relay", "R2"], 0),
            ],
        }
    }

    #[test]
    fn a_distance_is_that_of_the_way_that_packets_take() {
        let topology = two_places();
        let distances = Distances::of(&topology).unwrap();
        let ms = |from, to| distances.round_trip(from, to).map(|trip| trip.as_millis());
        assert_eq!(ms("client", "here"), Some(8));
        assert_eq!(
            ms("client", "there"),
            Some(20),
            "fewest links, not least delay"
        );
        assert_eq!(ms("client", "client"), Some(0));
        assert_eq!(ms("client", "nobody"), None);
    }

    #[test]
    fn the_nearest_host_depends_on_whose_address_is_seen() {
        let topology = two_places();
        let distances = Distances::of(&topology).unwrap();
        let servers = ["here", "there"].map(String::from);
        let nearest = distances.nearest_to_each(&servers);
        let addresses = topology.addresses();
        for (seen, server) in [("client", "here"), ("relay", "there"), ("there", "there")] {
            let (seen, server) = (addresses[seen], addresses[server].v4);
            assert_eq!(nearest[&IpAddr::from(seen.v4)], server);
            assert_eq!(nearest[&IpAddr::from(seen.v6)], server);
        }
        assert_eq!(nearest.len(), 2 * addresses.len());
    }

    #[test]
    fn of_equally_near_hosts_the_first_is_taken() {
        let mut topology = two_places();
        for link in &mut topology.links {
            (link.forward.delay, link.back.delay) = Default::default();
        }
        let distances = Distances::of(&topology).unwrap();
        for servers in [["here", "there"], ["there", "here"]] {
            let servers = servers.map(String::from);
            assert_eq!(
                distances.nearest("client", &servers),
                Some(servers[0].as_str())
            );
        }
    }
}
