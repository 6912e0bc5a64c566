//! Which way a packet goes: shortest paths over the drawn topology, fewest links first, earlier links of the file first.
//! `network` asks for every packet at a router; the same table says how a host reaches another.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::topology::{Addresses, NodeKind, Topology};

/// Where everything is, by the places of nodes and links in the topology.
#[derive(Clone, Debug)]
pub struct Routes {
    /// The node of each address.
    nodes: HashMap<IpAddr, usize>,
    /// For each node, the direction (`2 · link + end`) that leads to each node.
    next: Vec<Vec<Option<usize>>>,
}

impl Routes {
    /// All shortest paths. They lead through routers only: hosts do not forward.
    ///
    /// # Errors
    /// A link whose end is no node, or is its other end; a host without addresses; a name that two nodes have.
    pub fn new(
        topology: &Topology,
        addresses: &BTreeMap<String, Addresses>,
    ) -> Result<Self, String> {
        let ends = ends(topology)?;
        let mut nodes = HashMap::new();
        for (place, node) in topology
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.kind == NodeKind::Host)
        {
            let at = addresses
                .get(&node.name)
                .ok_or_else(|| format!("host {} has no addresses", node.name))?;
            nodes.insert(IpAddr::from(at.v4), place);
            nodes.insert(IpAddr::from(at.v6), place);
        }
        let mut next = vec![vec![None; topology.nodes.len()]; topology.nodes.len()];
        let neighbours = neighbours(topology, &ends);
        for target in nodes
            .values()
            .copied()
            .collect::<std::collections::BTreeSet<_>>()
        {
            for (node, direction) in towards(target, topology, &neighbours) {
                next[node][target] = Some(direction);
            }
        }
        Ok(Self { nodes, next })
    }

    /// The direction by which `node` sends a packet for this address.
    #[must_use]
    pub fn next(&self, node: usize, address: IpAddr) -> Option<usize> {
        let target = self.nodes.get(&address)?;
        *self.next.get(node)?.get(*target)?
    }
}

/// The two nodes of every link.
///
/// # Errors
/// A name that two nodes have, an end that is no node, a link from a node to itself.
pub fn ends(topology: &Topology) -> Result<Vec<[usize; 2]>, String> {
    let mut places = HashMap::new();
    for (place, node) in topology.nodes.iter().enumerate() {
        if places.insert(node.name.as_str(), place).is_some() {
            return Err(format!("two nodes have the name {}", node.name));
        }
    }
    let end = |link: &str, name: &str| {
        let place = places.get(name).copied();
        place.ok_or_else(|| format!("link {link} ends at {name}, which is no node"))
    };
    let ends = topology.links.iter().map(|link| {
        let [a, b] = [
            end(&link.name, &link.ends[0])?,
            end(&link.name, &link.ends[1])?,
        ];
        if a == b {
            Err(format!(
                "link {} joins {} with itself",
                link.name, link.ends[0]
            ))
        } else {
            Ok([a, b])
        }
    });
    ends.collect()
}

/// For each node, the directions that lead to it and where they come from, in the order of the links.
fn neighbours(topology: &Topology, ends: &[[usize; 2]]) -> Vec<Vec<(usize, usize)>> {
    let mut neighbours = vec![Vec::new(); topology.nodes.len()];
    for (link, &[a, b]) in ends.iter().enumerate() {
        neighbours[b].push((2 * link, a));
        neighbours[a].push((2 * link + 1, b));
    }
    neighbours
}

/// For each node that can reach `target`, the direction that it takes.
fn towards(
    target: usize,
    topology: &Topology,
    neighbours: &[Vec<(usize, usize)>],
) -> BTreeMap<usize, usize> {
    let mut taken = BTreeMap::new();
    let mut queue = VecDeque::from([target]);
    while let Some(node) = queue.pop_front() {
        for &(direction, from) in &neighbours[node] {
            if from == target || taken.contains_key(&from) {
                continue;
            }
            taken.insert(from, direction);
            if topology.nodes[from].kind == NodeKind::Router {
                queue.push_back(from);
            }
        }
    }
    taken
}

/// Whence the `number`th router's ICMP comes, counted from 0: 10.78.0.1 and fd78::1 for the first.
#[must_use]
pub fn router_addresses(number: usize) -> (Ipv4Addr, Ipv6Addr) {
    let number = u16::try_from(number + 1).unwrap_or(u16::MAX);
    let [high, low] = number.to_be_bytes();
    (
        Ipv4Addr::new(10, 78, high, low),
        Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, number),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::network::tests::topology;

    /// The links on the way of a packet.
    fn way(nodes: &[&str], links: &[[&str; 2]], from: &str, to: &str) -> Vec<usize> {
        let topology = topology(nodes, links);
        let addresses = topology.addresses();
        let routes = Routes::new(&topology, &addresses).unwrap();
        let ends = ends(&topology).unwrap();
        let place = |name: &str| {
            topology
                .nodes
                .iter()
                .position(|node| node.name == name)
                .unwrap()
        };
        let (mut at, mut way) = (place(from), Vec::new());
        while at != place(to) {
            let Some(direction) = routes.next(at, addresses[to].v4.into()) else {
                break;
            };
            way.push(direction / 2);
            at = ends[direction / 2][1 - direction % 2];
        }
        way
    }

    #[test]
    fn the_way_with_fewest_links_is_taken_and_the_first_of_equal_ones() {
        let links = [
            ["a", "R1"],
            ["R1", "R2"],
            ["R2", "b"],
            ["R1", "b"],
            ["a", "R3"],
            ["R3", "b"],
        ];
        assert_eq!(way(&["a", "b", "R1", "R2", "R3"], &links, "a", "b"), [0, 3]);
        assert_eq!(way(&["a", "b", "R1", "R2", "R3"], &links, "b", "a"), [3, 0]);
    }

    #[test]
    fn no_way_leads_through_a_host() {
        let links = [
            ["a", "h"],
            ["h", "b"],
            ["a", "R1"],
            ["R1", "R2"],
            ["R2", "b"],
        ];
        assert_eq!(
            way(&["a", "b", "h", "R1", "R2"], &links, "a", "b"),
            [2, 3, 4]
        );
        assert!(way(&["a", "b", "h"], &links[..2], "a", "b").is_empty());
    }

    #[test]
    fn there_is_no_way_to_an_island() {
        assert!(way(&["a", "b", "c"], &[["a", "b"]], "a", "c").is_empty());
    }

    #[test]
    fn a_link_to_nowhere_or_to_itself_is_refused() {
        for links in [[["a", "x"]], [["a", "a"]]] {
            assert!(ends(&topology(&["a", "b"], &links)).is_err());
        }
    }
}
