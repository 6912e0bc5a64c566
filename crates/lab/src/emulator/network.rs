//! A whole emulated network without a clock, a file or a thread: ports of hosts, links, routers.
//!
//! The calling order: [`Network::poll`] until it gives nothing more, then [`Network::arrive`] for what has come meanwhile; wake up at
//! [`Network::next_release`] or when a packet comes. Times are nanoseconds since the start and do not go back.
//! A port is `2 · link + end`, and so is the direction that begins there.
//! Routers lead along shortest paths over the drawn topology: fewest links first, earlier links of the file first. They answer as routers do
//! when a packet's hops are used up or the next link is too narrow.
//! The bytes of all packets inside are bounded ([`MEMORY`]); what does not fit is dropped with the cause `memory`.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use hoplite_wire::ip;
use serde::{Deserialize, Serialize};

use super::{
    link::{Pipe, Stage},
    packet::{self, Problem},
};
use crate::{
    experiments::trial::LinkCount,
    topology::{Addresses, NodeKind, Topology},
};

/// Bytes of packets in all queues and on all links.
pub const MEMORY: usize = 512 << 20;

/// A network at work.
#[derive(Debug)]
pub struct Network {
    pipes: Vec<Pipe>,
    names: Vec<String>,
    mtus: Vec<u16>,
    /// Where each direction ends.
    far: Vec<Far>,
    routes: Routes,
    pool: Pool,
    /// When which direction must be polled; an entry that `planned` does not confirm is out of date.
    agenda: BinaryHeap<Reverse<(u64, usize)>>,
    planned: Vec<u64>,
    now: u64,
}

/// What is at the far end of a direction.
#[derive(Clone, Copy, Debug)]
enum Far {
    Host,
    Router {
        node: usize,
        v4: Ipv4Addr,
        v6: Ipv6Addr,
    },
}

/// A packet for a host.
#[derive(Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When it had to be there.
    pub due: u64,
    /// Where it is to be written.
    pub port: usize,
    /// By which direction it came.
    pub direction: usize,
    /// The packet; give it back with [`Network::recycle`].
    pub packet: Vec<u8>,
}

impl Network {
    /// The network that `topology` draws, with hosts at these addresses.
    ///
    /// # Errors
    /// What is wrong with the topology.
    pub fn new(
        topology: &Topology,
        addresses: &BTreeMap<String, Addresses>,
        seed: u64,
    ) -> Result<Self, String> {
        Self::with_memory(topology, addresses, seed, MEMORY)
    }

    /// The network that `topology` draws, with another bound of its memory, in bytes.
    ///
    /// # Errors
    /// What is wrong with the topology.
    pub fn with_memory(
        topology: &Topology,
        addresses: &BTreeMap<String, Addresses>,
        seed: u64,
        memory: usize,
    ) -> Result<Self, String> {
        let ends = ends(topology)?;
        let far = |place: usize| far(topology, place);
        let (mut pipes, mut names) = (Vec::new(), Vec::new());
        for link in &topology.links {
            for (plan, arrow) in [(&link.forward, '>'), (&link.back, '<')] {
                let name = format!("{}{arrow}", link.name);
                if names.contains(&name) {
                    return Err(format!("two links have the name {}", link.name));
                }
                pipes.push(Pipe::new(plan, &name, pipes.len(), link.mtu, seed)?);
                names.push(name);
            }
        }
        Ok(Self {
            planned: vec![u64::MAX; pipes.len()],
            pipes,
            names,
            mtus: topology
                .links
                .iter()
                .flat_map(|link| [link.mtu; 2])
                .collect(),
            far: ends.iter().flat_map(|&[a, b]| [far(b), far(a)]).collect(),
            routes: Routes::new(topology, addresses)?,
            pool: Pool::new(memory),
            agenda: BinaryHeap::new(),
            now: 0,
        })
    }

    /// A host sends `packet` at `port`. What is no IP packet is dropped; what never leaves a link (multicast, link-local) is ignored.
    pub fn arrive(&mut self, now: u64, port: usize, packet: &[u8], watch: &mut impl Watch) {
        self.now = self.now.max(now);
        let (now, parsed) = (self.now, ip::parse(packet).ok());
        let stays = parsed.is_some_and(|ip| packet::stays_on_link(ip.destination));
        if stays || port >= self.pipes.len() {
            return;
        }
        let mut stage = Stage {
            pool: &mut self.pool,
            watch,
        };
        let Some(ip) = parsed else {
            return self.pipes[port].note_drop(now, Cause::Route, packet, &mut stage);
        };
        // What follows the packet is not carried.
        let packet = &packet[..ip.header_len + ip.payload.len()];
        match stage.pool.take(packet) {
            Some(packet) => self.pipes[port].arrive(now, packet, &mut stage),
            None => self.pipes[port].refuse(now, packet, &mut stage),
        }
        self.plan(port);
    }

    /// The next packet that is due for a host until `now`. What routers have to do until then is done.
    pub fn poll(&mut self, now: u64, watch: &mut impl Watch) -> Option<Delivery> {
        self.now = self.now.max(now);
        while let Some(&Reverse((time, direction))) = self.agenda.peek() {
            if time > self.now {
                return None;
            }
            self.agenda.pop();
            if self.planned[direction] != time {
                continue;
            }
            self.planned[direction] = u64::MAX;
            let mut stage = Stage {
                pool: &mut self.pool,
                watch,
            };
            let polled = self.pipes[direction].poll(time, &mut stage);
            self.plan(direction);
            let Some((due, packet)) = polled else {
                continue;
            };
            match self.far[direction] {
                Far::Host => {
                    return Some(Delivery {
                        due,
                        port: direction ^ 1,
                        direction,
                        packet,
                    });
                }
                Far::Router { node, v4, v6 } => {
                    self.turn(due, direction, packet, (node, v4, v6), watch)
                }
            }
        }
        None
    }

    /// When to poll next.
    #[must_use]
    pub fn next_release(&self) -> Option<u64> {
        self.agenda.peek().map(|&Reverse((time, _))| time)
    }

    /// Takes a delivered packet's buffer back.
    pub fn recycle(&mut self, packet: Vec<u8>) {
        self.pool.give(packet);
    }

    /// The host's device did not take a delivered packet.
    pub fn refused(&mut self, now: u64, delivery: Delivery, watch: &mut impl Watch) {
        let mut stage = Stage {
            pool: &mut self.pool,
            watch,
        };
        self.pipes[delivery.direction].discard(now, Cause::Tun, delivery.packet, &mut stage);
    }

    /// A router has a packet.
    fn turn(
        &mut self,
        now: u64,
        came_by: usize,
        mut packet: Vec<u8>,
        (node, v4, v6): (usize, Ipv4Addr, Ipv6Addr),
        watch: &mut impl Watch,
    ) {
        watch.left(now, came_by, &packet);
        let to = ip::parse(&packet).map(|ip| ip.destination).ok();
        let next = to.and_then(|to| self.routes.next(node, to));
        let (cause, problem) = match next {
            None => (Cause::Route, None),
            Some(next) if packet.len() > usize::from(self.mtus[next]) => {
                (Cause::Mtu, Some(Problem::TooBig(self.mtus[next])))
            }
            Some(next) if packet::count_down(&mut packet) => {
                let mut stage = Stage {
                    pool: &mut self.pool,
                    watch,
                };
                self.pipes[next].arrive(now, packet, &mut stage);
                return self.plan(next);
            }
            Some(_) => (Cause::Ttl, Some(Problem::TimeExceeded)),
        };
        let answer = problem.and_then(|problem| packet::answer(&packet, problem, v4, v6));
        let mut stage = Stage {
            pool: &mut self.pool,
            watch,
        };
        self.pipes[came_by].discard(now, cause, packet, &mut stage);
        if let Some(answer) = answer {
            self.send(now, node, &answer, watch);
        }
    }

    /// A router sends a packet of its own.
    fn send(&mut self, now: u64, node: usize, packet: &[u8], watch: &mut impl Watch) {
        let to = ip::parse(packet).map(|ip| ip.destination).ok();
        let Some(next) = to.and_then(|to| self.routes.next(node, to)) else {
            return;
        };
        let mut stage = Stage {
            pool: &mut self.pool,
            watch,
        };
        if let Some(packet) = stage.pool.take(packet) {
            self.pipes[next].arrive(now, packet, &mut stage);
        }
        self.plan(next);
    }

    fn plan(&mut self, direction: usize) {
        if let Some(time) = self.pipes[direction]
            .next()
            .filter(|&time| time < self.planned[direction])
        {
            self.planned[direction] = time;
            self.agenda.push(Reverse((time, direction)));
        }
    }

    /// What happened on every direction until now.
    #[must_use]
    pub fn counts(&self) -> Vec<LinkCount> {
        let both = self.names.iter().zip(&self.pipes);
        both.map(|(name, pipe)| link_count(name, pipe)).collect()
    }

    /// Packets of the directions that were dropped by a fault of the emulator itself.
    #[must_use]
    pub fn own_drops(&self) -> u64 {
        let own = |pipe: &Pipe| {
            let drops = pipe.count().0.drops;
            drops[Cause::Memory as usize] + drops[Cause::Tun as usize]
        };
        self.pipes.iter().map(own).sum()
    }
}

fn far(topology: &Topology, place: usize) -> Far {
    match topology.nodes[place].kind {
        NodeKind::Host => Far::Host,
        NodeKind::Router => {
            let before = topology.nodes[..place].iter();
            let number = before.filter(|node| node.kind == NodeKind::Router).count();
            let (v4, v6) = router_addresses(number);
            Far::Router {
                node: place,
                v4,
                v6,
            }
        }
    }
}

fn link_count(name: &str, pipe: &Pipe) -> LinkCount {
    let (count, marked) = pipe.count();
    let drops = Cause::ALL
        .iter()
        .zip(count.drops)
        .filter(|&(_, drops)| drops > 0);
    LinkCount {
        name: name.to_owned(),
        packets: count.packets,
        bytes: count.bytes,
        drops: drops
            .map(|(cause, drops)| (cause.name().to_owned(), drops))
            .collect(),
        duplicated: count.duplicated,
        corrupted: count.corrupted,
        marked,
    }
}

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

/// Spare buffers kept at most.
const SPARE: usize = 4096;
/// A buffer that has grown beyond is not kept.
const LARGEST_SPARE: usize = 4096;

/// Buffers for packets. When `limit` bytes are in use, no packet is taken any more: the driver counts it as a drop of its own.
#[derive(Debug)]
pub struct Pool {
    spare: Vec<Vec<u8>>,
    used: usize,
    limit: usize,
}

impl Pool {
    /// For this many bytes of packets.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            spare: Vec::new(),
            used: 0,
            limit,
        }
    }

    /// A copy of `bytes` in a buffer; `None` if that is beyond the limit.
    pub fn take(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        if self.used.saturating_add(buffer.capacity()) > self.limit {
            self.keep(buffer);
            return None;
        }
        self.used += buffer.capacity();
        Some(buffer)
    }

    /// Takes a buffer back.
    pub fn give(&mut self, buffer: Vec<u8>) {
        self.used = self.used.saturating_sub(buffer.capacity());
        self.keep(buffer);
    }

    fn keep(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE && buffer.capacity() <= LARGEST_SPARE {
            self.spare.push(buffer);
        }
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used
    }
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// The link lets no UDP through.
    Udp,
    /// The link's loss model.
    Loss,
    /// The queue was full.
    Queue,
    /// CoDel.
    CoDel,
    /// Its TTL or hop limit was used up at a router.
    Ttl,
    /// Too large for the next link.
    Mtu,
    /// No such destination, or no packet at all.
    Route,
    /// The emulator's memory limit: a fault of its own.
    Memory,
    /// The host's device did not take it: a fault of the emulator's own.
    Tun,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Udp,
        Self::Loss,
        Self::Queue,
        Self::CoDel,
        Self::Ttl,
        Self::Mtu,
        Self::Route,
        Self::Memory,
        Self::Tun,
    ];

    /// Its name in results and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Loss => "loss",
            Self::Queue => "queue",
            Self::CoDel => "codel",
            Self::Ttl => "ttl",
            Self::Mtu => "mtu",
            Self::Route => "route",
            Self::Memory => "memory",
            Self::Tun => "tun",
        }
    }
}

/// Told of everything as it happens. A direction is `2 · link + from`: even forward, odd back, in the topology's order.
pub trait Watch {
    /// A packet entered a direction, before loss.
    fn entered(&mut self, now: u64, direction: usize, packet: &[u8]);
    /// A packet came out at the far end of a direction.
    fn left(&mut self, now: u64, direction: usize, packet: &[u8]);
    /// A packet was dropped on or behind a direction.
    fn dropped(&mut self, now: u64, direction: usize, cause: Cause, packet: &[u8]);
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn entered(&mut self, _: u64, _: usize, _: &[u8]) {}
    fn left(&mut self, _: u64, _: usize, _: &[u8]) {}
    fn dropped(&mut self, _: u64, _: usize, _: Cause, _: &[u8]) {}
}

#[cfg(test)]
pub(super) mod tests;
