//! Which interface of a host leads to which other host: the fewest links, ties by the order of the links.
//! `configure` makes routes of it. Pure.
//!
//! A path leads through routers only: hosts do not forward.

use std::collections::{HashMap, VecDeque};

use crate::topology::{Node, NodeKind, Topology};

/// A host's ends of links: (index of the link, which end), in the order of the links.
#[must_use]
pub fn ends(topology: &Topology, host: &str) -> Vec<(usize, usize)> {
    let links = topology.links.iter().enumerate();
    links
        .flat_map(|(i, link)| [(i, 0, &link.ends[0]), (i, 1, &link.ends[1])])
        .filter(|(_, _, name)| *name == host)
        .map(|(i, end, _)| (i, end))
        .collect()
}

/// A topology with its neighbours at hand; made once for all hosts.
#[derive(Debug)]
pub struct Map<'a> {
    nodes: HashMap<&'a str, &'a Node>,
    neighbours: HashMap<&'a str, Vec<&'a str>>,
}

impl<'a> Map<'a> {
    /// Of this topology.
    #[must_use]
    pub fn new(topology: &'a Topology) -> Self {
        let nodes = topology.nodes.iter().map(|node| (node.name.as_str(), node));
        let mut neighbours: HashMap<&str, Vec<&str>> = HashMap::new();
        for link in &topology.links {
            let [a, b] = [link.ends[0].as_str(), link.ends[1].as_str()];
            neighbours.entry(a).or_default().push(b);
            neighbours.entry(b).or_default().push(a);
        }
        Self {
            nodes: nodes.collect(),
            neighbours,
        }
    }

    /// For every other host that can be reached from `host`: the number of the interface (0 is the first) that leads there.
    #[must_use]
    pub fn first_hops(&self, host: &str) -> HashMap<&'a str, usize> {
        let mut found: HashMap<&str, usize> = HashMap::new();
        let mut queue: VecDeque<(&str, usize)> = VecDeque::new();
        let near = self.neighbours.get(host).into_iter().flatten();
        queue.extend(near.enumerate().map(|(interface, name)| (*name, interface)));
        while let Some((name, interface)) = queue.pop_front() {
            if name == host || found.contains_key(name) {
                continue;
            }
            found.insert(name, interface);
            if self.is_router(name) {
                let further = self.neighbours.get(name).into_iter().flatten();
                queue.extend(further.map(|next| (*next, interface)));
            }
        }
        found.retain(|name, _| !self.is_router(name));
        found
    }

    fn is_router(&self, name: &str) -> bool {
        let node = self.nodes.get(name);
        node.is_some_and(|node| node.kind == NodeKind::Router)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Direction, Link};

    fn topology(links: &[(&str, &str)]) -> Topology {
        let mut names: Vec<&str> = links.iter().flat_map(|(a, b)| [*a, *b]).collect();
        names.sort_unstable();
        names.dedup();
        let kind = |name: &str| match name.starts_with('r') {
            true => NodeKind::Router,
            false => NodeKind::Host,
        };
        let node = |name: &&str| Node {
            name: (*name).to_owned(),
            kind: kind(name),
        };
        let link = |(a, b): &(&str, &str)| Link {
            name: format!("{a}-{b}"),
            ends: [(*a).to_owned(), (*b).to_owned()],
            mtu: 1500,
            forward: Direction::default(),
            back: Direction::default(),
        };
        Topology {
            nodes: names.iter().map(node).collect(),
            links: links.iter().map(link).collect(),
        }
    }

    #[test]
    fn the_way_with_fewer_links_wins_although_it_was_drawn_later() {
        let drawn = topology(&[
            ("a", "r1"),
            ("r1", "r2"),
            ("r2", "b"),
            ("a", "r3"),
            ("r3", "b"),
        ]);
        assert_eq!(Map::new(&drawn).first_hops("a"), HashMap::from([("b", 1)]));
    }

    #[test]
    fn of_two_equal_ways_the_one_drawn_first_wins() {
        let drawn = topology(&[("a", "r1"), ("a", "r2"), ("r2", "b"), ("r1", "b")]);
        assert_eq!(Map::new(&drawn).first_hops("a"), HashMap::from([("b", 0)]));
    }

    #[test]
    fn hosts_do_not_forward() {
        let drawn = topology(&[("a", "b"), ("b", "c")]);
        assert_eq!(Map::new(&drawn).first_hops("a"), HashMap::from([("b", 0)]));
    }

    #[test]
    fn an_interface_is_numbered_by_the_order_of_the_links() {
        let drawn = topology(&[("a", "b"), ("c", "b"), ("b", "d")]);
        assert_eq!(ends(&drawn, "b"), [(0, 1), (1, 1), (2, 0)]);
        let hops = Map::new(&drawn).first_hops("b");
        assert_eq!(hops, HashMap::from([("a", 0), ("c", 1), ("d", 2)]));
    }
}
