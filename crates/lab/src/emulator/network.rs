//! A whole emulated network without a clock, a file or a thread: ports of hosts, links, routers. `driver` moves it, tests too.
//!
//! The calling order: [`Network::poll`] until it gives nothing more, then [`Network::arrive`] for what has come meanwhile; wake up at
//! [`Network::next_release`] or when a packet comes. Times are nanoseconds since the start and do not go back.
//! A port is `2 · link + end`, and so is the direction that begins there.
//! The octets of all packets inside are bounded ([`MEMORY`]); what does not fit is dropped with the cause `memory`.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    collections::BinaryHeap,
    net::{Ipv4Addr, Ipv6Addr},
};

use super::{
    icmp::{self, Problem},
    link::{Pipe, Stage},
    packet::{self, View},
    pool::Pool,
    router::{self, Routes},
    watch::{Cause, Watch},
};
use crate::{
    topology::{Addresses, NodeKind, Topology},
    trial::LinkCount,
};

/// Octets of packets in all queues and on all links.
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

    /// The same with another bound of its memory, in octets.
    ///
    /// # Errors
    /// What is wrong with the topology.
    pub fn with_memory(
        topology: &Topology,
        addresses: &BTreeMap<String, Addresses>,
        seed: u64,
        memory: usize,
    ) -> Result<Self, String> {
        let ends = router::ends(topology)?;
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
        let (now, view) = (self.now, View::parse(packet));
        if view.is_some_and(|view| view.stays_on_link()) || port >= self.pipes.len() {
            return;
        }
        let mut stage = Stage {
            pool: &mut self.pool,
            watch,
        };
        let Some(view) = view else {
            return self.pipes[port].note_drop(now, Cause::Route, packet, &mut stage);
        };
        match stage.pool.take(view.octets()) {
            Some(packet) => self.pipes[port].arrive(now, packet, &mut stage),
            None => self.pipes[port].refuse(now, view.octets(), &mut stage),
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
        let to = View::parse(&packet).map(|view| view.destination());
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
        let answer = problem.and_then(|problem| icmp::answer(&packet, problem, v4, v6));
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
        let to = View::parse(packet).map(|view| view.destination());
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
            let (v4, v6) = router::router_addresses(number);
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
        octets: count.octets,
        drops: drops
            .map(|(cause, drops)| (cause.name().to_owned(), drops))
            .collect(),
        duplicated: count.duplicated,
        corrupted: count.corrupted,
        marked,
    }
}

#[cfg(test)]
pub(super) mod tests;
