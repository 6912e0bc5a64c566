//! What is drawn: hosts, routers and the links between them, with every number resolved. Plain values: no I/O, no clock.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// A whole emulated network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// Every node, hosts and routers; names are unique.
    pub nodes: Vec<Node>,
    /// Every link; names are unique.
    pub links: Vec<Link>,
}

/// Where a host is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addresses {
    /// Its IPv4 address.
    pub v4: Ipv4Addr,
    /// Its IPv6 address.
    pub v6: Ipv6Addr,
}

impl Topology {
    /// The addresses of all hosts, by their place in the list: the first host has 10.77.0.1 and fd77::1. Up to 65,534 hosts.
    #[must_use]
    pub fn addresses(&self) -> BTreeMap<String, Addresses> {
        let hosts = self.nodes.iter().filter(|node| node.kind == NodeKind::Host);
        let place = |(node, number): (&Node, u16)| {
            let [high, low] = number.to_be_bytes();
            let v4 = Ipv4Addr::new(10, 77, high, low);
            let v6 = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number);
            (node.name.clone(), Addresses { v4, v6 })
        };
        hosts.zip(1..).map(place).collect()
    }
}

/// A place where packets begin, end or turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// What the scenario calls it.
    pub name: String,
    /// A network namespace with processes, or a router inside the emulator.
    pub kind: NodeKind,
}

impl Node {
    /// A host of this name.
    #[must_use]
    pub fn host(name: &str) -> Self {
        let (name, kind) = (name.to_owned(), NodeKind::Host);
        Self { name, kind }
    }

    /// A router of this name.
    #[must_use]
    pub fn router(name: &str) -> Self {
        let (name, kind) = (name.to_owned(), NodeKind::Router);
        Self { name, kind }
    }
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeKind {
    /// A network namespace: it has one IPv4 and one IPv6 address, on every one of its interfaces.
    Host,
    /// Forwards by shortest path inside the emulator; it counts the TTL down.
    Router,
}

/// Two directions between two nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// `a-b` unless the scenario names it.
    pub name: String,
    /// Where it begins and ends.
    pub ends: [String; 2],
    /// MTU of the interfaces at its ends, in bytes.
    pub mtu: u16,
    /// From the first end to the second.
    pub forward: Direction,
    /// From the second end to the first.
    pub back: Direction,
}

impl Link {
    /// The link `a-b` between two nodes, for packets of up to 1500 bytes, the same both ways.
    #[must_use]
    pub fn between(a: &str, b: &str, direction: &Direction) -> Self {
        Self {
            name: format!("{a}-{b}"),
            ends: [a.to_owned(), b.to_owned()],
            mtu: 1500,
            forward: direction.clone(),
            back: direction.clone(),
        }
    }
}

/// What happens to packets that travel one way. The default is a perfect link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Direction {
    /// Bits per second of IP packets; `None` is unlimited.
    pub rate: Option<u64>,
    /// Delivery opportunities of a mahimahi trace, in milliseconds from its beginning; repeats. Excludes `rate`.
    pub trace: Option<Vec<u64>>,
    /// One way, from the end of serialisation.
    pub delay: Duration,
    /// What is added to the delay.
    pub jitter: Option<Jitter>,
    /// Bytes that may wait for the bottleneck; `None` means no bound of its own (only the emulator's memory limit).
    pub queue: Option<u64>,
    /// Who drops from the queue.
    pub discipline: Discipline,
    /// Whether UDP never arrives, as where a firewall drops it.
    pub blocks_udp: bool,
    /// Loss before the queue.
    pub loss: Loss,
    /// The share of packets delivered twice, 0..1.
    pub duplicate: f64,
    /// The share of packets with one bit flipped in the payload, 0..1.
    pub corrupt: f64,
}

/// A random addition to a delay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Jitter {
    /// Its shape.
    pub shape: JitterShape,
    /// The width: the maximum of `uniform`, the standard deviation of `normal` (cut at 0 and 4 widths), the scale of `pareto` (shape 3, cut at 20 widths).
    pub width: Duration,
    /// Whether a later packet may overtake an earlier one.
    pub reorder: bool,
}

/// The shape of a jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JitterShape {
    /// Evenly in `0..width`.
    Uniform,
    /// |N(0, width)|.
    Normal,
    /// Heavy tailed.
    Pareto,
}

/// How a queue is kept short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// Drops what does not fit.
    #[default]
    DropTail,
    /// RFC 8289; marks ECN-capable packets instead of dropping them if `ecn`.
    CoDel {
        /// Acceptable standing delay.
        target: Duration,
        /// How long above it is too long.
        interval: Duration,
        /// Whether ECT packets are marked CE instead.
        ecn: bool,
    },
}

/// Which packets never arrive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "kebab-case")]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each with this probability, 0..1.
    Bernoulli {
        /// The share lost.
        share: f64,
    },
    /// Two states: from good to bad with `p` a packet, back with `r`; lost with `good_loss` and `bad_loss` there.
    GilbertElliott {
        /// Good to bad.
        p: f64,
        /// Bad to good.
        r: f64,
        /// Share lost in the good state.
        good_loss: f64,
        /// Share lost in the bad state.
        bad_loss: f64,
    },
    /// These packets of the direction, counted from 1.
    Packets {
        /// Ascending.
        packets: Vec<u64>,
    },
}
