//! `[[host]]`, `[[router]]` and `[[link]]` of one case, as a `Topology`. `link` reads what a link does to packets.
//! Everything must be reachable from everything: a node that is not is nearly always a mistake in a name.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    complain::{Wrong, listed, meant, quoted},
    expression::Scope,
    link::{self, Traces},
    reader::{Reader, name},
};
use crate::topology::{Link, Node, NodeKind, Topology};

const MOST_HOSTS: usize = 1000;
const MOST_ROUTERS: usize = 1000;
const MOST_LINKS: usize = 5000;

/// Keys of a `[[host]]` and a `[[router]]`.
pub(crate) const NODE_KEYS: [&str; 3] = ["name", "repeat", "when"];

/// Draws the network of a case.
pub(crate) fn network(root: Reader<'_>, traces: &Traces<'_>) -> Topology {
    let mut drawing = Drawing::default();
    drawing.nodes(root, "host", NodeKind::Host, MOST_HOSTS);
    drawing.nodes(root, "router", NodeKind::Router, MOST_ROUTERS);
    if drawing
        .topology
        .nodes
        .iter()
        .all(|node| node.kind == NodeKind::Router)
    {
        root.missing(
            "host",
            "at least one, such as [[host]] with name = \"client\"",
        );
        return drawing.topology;
    }
    drawing.links(root, traces);
    drawing.check_connected(root);
    drawing.topology
}

#[derive(Default)]
struct Drawing {
    topology: Topology,
    /// Where each node is drawn.
    places: BTreeMap<String, usize>,
    links: BTreeSet<String>,
    /// A link that was drawn wrongly would make others look unconnected.
    broken: bool,
}

impl Drawing {
    fn nodes(&mut self, root: Reader<'_>, key: &str, kind: NodeKind, most: usize) {
        let mut count = 0;
        for entry in root.tables(key) {
            entry.only(&NODE_KEYS);
            for scope in entry.instances() {
                count += 1;
                if count > most {
                    entry.wrong(
                        "name",
                        Wrong::new(
                            format!("there are too many {key}s"),
                            format!("at most {most}"),
                        ),
                    );
                    return;
                }
                self.node(
                    Reader {
                        scope: &scope,
                        ..entry
                    },
                    kind,
                );
            }
        }
    }

    fn node(&mut self, entry: Reader<'_>, kind: NodeKind) {
        let Some(name) = entry.need("name", "what links and workloads call it", name) else {
            self.broken = true;
            return;
        };
        if name.eq_ignore_ascii_case("localhost") {
            let what = "every host calls itself localhost";
            entry.wrong("name", Wrong::new(what, "another name"));
        }
        if self.places.insert(name.clone(), entry.table.at).is_some() {
            let what = format!("there are two nodes with the name {}", quoted(&name));
            entry.wrong(
                "name",
                Wrong::new(what, "another name; {i} tells repeated ones apart"),
            );
            return;
        }
        self.topology.nodes.push(Node { name, kind });
    }

    fn links(&mut self, root: Reader<'_>, traces: &Traces<'_>) {
        for entry in root.tables("link") {
            entry.only(&link::KEYS);
            for scope in entry.instances() {
                if self.topology.links.len() == MOST_LINKS {
                    entry.wrong(
                        "ends",
                        Wrong::new("there are too many links", format!("at most {MOST_LINKS}")),
                    );
                    return;
                }
                let drawn = self.link(&entry, &scope, traces);
                self.broken |= drawn.is_none();
                self.topology.links.extend(drawn);
            }
        }
    }

    /// All of it is read, so that all mistakes are told.
    fn link(&mut self, entry: &Reader<'_>, scope: &Scope, traces: &Traces<'_>) -> Option<Link> {
        let entry = Reader { scope, ..*entry };
        let ends = self.ends(entry);
        let name = self.name(entry, ends.as_ref());
        let [forward, back] = link::directions(entry, traces);
        let mtu = link::mtu(entry);
        Some(Link {
            name: name?,
            ends: ends?,
            mtu,
            forward,
            back,
        })
    }

    fn name(&mut self, entry: Reader<'_>, ends: Option<&[String; 2]>) -> Option<String> {
        let given = entry.table.node("name").is_some();
        let name = if given {
            entry.read("name", name)?
        } else {
            let [first, second] = ends?;
            format!("{first}-{second}")
        };
        if self.links.insert(name.clone()) {
            return Some(name);
        }
        let what = format!("there are two links with the name {}", quoted(&name));
        let key = if given { "name" } else { "ends" };
        entry.wrong(key, Wrong::new(what, "another name = \"…\""));
        None
    }

    fn ends(&self, entry: Reader<'_>) -> Option<[String; 2]> {
        const ALLOWED: &str =
            "the two nodes that it joins, such as ends = [\"client\", \"server\"]";
        let list = entry.list("ends");
        let [first, second] = list else {
            match entry.table.node("ends") {
                None => entry.missing("ends", ALLOWED),
                Some(_) => entry.wrong(
                    "ends",
                    Wrong::new(format!("there are {} ends", list.len()), ALLOWED),
                ),
            }
            return None;
        };
        let known = |value: &super::expression::Value| {
            let end = name(value)?;
            self.known(&end).map(|()| end)
        };
        let first = entry.read_node(first, known);
        let ends = [first?, entry.read_node(second, known)?];
        if ends[0] == ends[1] {
            let what = format!("both ends are {}", quoted(&ends[0]));
            entry.wrong("ends", Wrong::new(what, ALLOWED));
            return None;
        }
        Some(ends)
    }

    fn known(&self, node: &str) -> Result<(), Wrong> {
        if self.places.contains_key(node) {
            return Ok(());
        }
        Err(Wrong::new(
            format!("there is no host or router {}", quoted(node)),
            nearest(node, self.places.keys().map(String::as_str)),
        ))
    }

    fn check_connected(&self, root: Reader<'_>) {
        let Some(first) = self.topology.nodes.first().filter(|_| !self.broken) else {
            return;
        };
        let reached = reached(&self.topology, &first.name);
        let lost = self
            .topology
            .nodes
            .iter()
            .find(|node| !reached.contains(node.name.as_str()));
        let Some(lost) = lost else { return };
        let at = self.places.get(&lost.name).copied().unwrap_or(0);
        let what = format!(
            "no link leads from {} to {}",
            quoted(&first.name),
            quoted(&lost.name)
        );
        root.complaints.add(
            at,
            Wrong::new(what, "links that join all hosts and routers"),
        );
    }
}

/// What was probably meant, and all that there is.
pub(crate) fn nearest<'n>(found: &str, known: impl Iterator<Item = &'n str>) -> String {
    let known: Vec<&str> = known.collect();
    let guess = meant(found, known.iter().copied());
    match guess.starts_with("did") {
        true => format!("{guess} There are {}", listed(&known)),
        false => format!("one of {}", listed(&known)),
    }
}

fn reached<'t>(topology: &'t Topology, from: &'t str) -> BTreeSet<&'t str> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for link in &topology.links {
        let [a, b] = [link.ends[0].as_str(), link.ends[1].as_str()];
        next.entry(a).or_default().push(b);
        next.entry(b).or_default().push(a);
    }
    let (mut reached, mut open) = (BTreeSet::from([from]), vec![from]);
    while let Some(here) = open.pop() {
        let around = next.get(here).map_or(&[][..], Vec::as_slice);
        open.extend(around.iter().copied().filter(|node| reached.insert(node)));
    }
    reached
}
