//! The network: nodes, each with an access link, and packets that cross from one to another in virtual time.
//! `world` puts relays, clients and targets on it; [`udp`] and [`tcp`] are what they send by.
//!
//! A packet waits for its sender's uplink, travels for as long as the two nodes are apart, waits for its receiver's downlink, and is handed over.
//! Times are kept in nanoseconds; what wakes the rooms is the runtime's timer, which goes in steps of a millisecond.

mod agenda;
mod driver;
mod ledger;
mod line;
mod place;
pub mod tcp;
#[cfg(test)]
mod tests;
pub mod udp;

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Notify, time::Instant};

use self::{agenda::Agenda, ledger::Books, line::Line};
pub use self::{
    ledger::{Count, Fate, Ledger},
    line::Access,
    place::Place,
};
use crate::random::Random;

/// What an IPv4 and a UDP header take of a packet, in octets.
const UDP_HEADERS: usize = 28;
/// The largest UDP payload that the network carries: Ethernet's.
pub const LARGEST_DATAGRAM: usize = 1472;
/// The first of the 16 bits by which nodes are told apart: 11.0.0.0/16 and so on, of which none is special.
const FIRST_NET: u32 = 0x0b00;
/// From here on ports are given out.
const FIRST_PORT: u16 = 10_000;
/// So many nodes have addresses that are not special.
pub const MOST_NODES: usize = 0x5000;

/// A node's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub usize);

/// A packet under way.
#[derive(Debug)]
pub struct Packet {
    /// Who sent it.
    pub from: SocketAddr,
    /// For whom it is.
    pub to: SocketAddr,
    /// What it carries.
    payload: Payload,
}

#[derive(Debug)]
enum Payload {
    Udp(Bytes),
    Tcp(tcp::Segment),
}

/// Who is handed what comes for an address.
trait Port: Send + Sync {
    /// Whether it was taken.
    fn receive(&self, packet: Packet) -> bool;

    /// The time has come that [`Network::ring`] was asked for.
    fn ring(&self) {}
}

/// What a port is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Socket(SocketAddr),
    Listener(SocketAddr),
    /// From here to there.
    Stream(SocketAddr, SocketAddr),
}

impl Key {
    const fn address(&self) -> SocketAddr {
        match self {
            Self::Socket(address) | Self::Listener(address) | Self::Stream(address, _) => *address,
        }
    }
}

/// The network. Clones are the same one.
#[derive(Clone)]
pub struct Network(Arc<Inner>);

struct Inner {
    began: Instant,
    /// Something happens earlier than the driver thinks.
    sooner: Notify,
    state: Mutex<State>,
}

struct State {
    nodes: Vec<Host>,
    ports: HashMap<Key, Arc<dyn Port>>,
    agenda: Agenda<What>,
    /// When the driver wakes; nothing: not before it is told.
    wakes: Option<u64>,
    loss: f64,
    random: Random,
    books: Books,
}

struct Host {
    place: Place,
    up: Line,
    down: Line,
    gone: bool,
    /// Nothing from it or to it is lost.
    spared: bool,
    next_port: u16,
}

enum What {
    /// A packet has come to its receiver's downlink.
    There(Packet),
    /// A packet is through it.
    Over(Packet),
    /// Somebody wanted to be rung.
    Ring(Arc<dyn Port>),
}

/// What is to be done outside of the network's own state.
enum Happens {
    Arrives(Arc<dyn Port>, Packet),
    Rings(Arc<dyn Port>),
    Refuses(Packet),
}

impl Network {
    /// Without nodes; each packet is lost with probability `loss`. Has to be made within the runtime; a task moves what is under way.
    pub fn new(seed: u64, loss: f64) -> Self {
        let network = Self(Arc::new(Inner {
            began: Instant::now(),
            sooner: Notify::new(),
            state: Mutex::new(State {
                nodes: Vec::new(),
                ports: HashMap::new(),
                agenda: Agenda::default(),
                wakes: None,
                loss,
                random: Random::new(seed, "losses", 0),
                books: Books::default(),
            }),
        }));
        tokio::spawn(driver::run(network.clone()));
        network
    }

    /// One more node. There are [`MOST_NODES`] at most; further ones are not reached.
    pub fn add(&self, place: Place, access: Access) -> Node {
        let mut state = self.state();
        state.books.add_node();
        state.nodes.push(Host {
            place,
            up: Line::new(access.up, access.queue),
            down: Line::new(access.down, access.queue),
            gone: false,
            spared: false,
            next_port: FIRST_PORT,
        });
        Node(state.nodes.len().saturating_sub(1))
    }

    /// A node's address. No two share 16 bits, so that the rules for paths keep none apart.
    pub fn address(node: Node) -> IpAddr {
        let number = u32::try_from(node.0).unwrap_or(u32::MAX);
        let net = FIRST_NET.saturating_add(number).min(0xdfff);
        Ipv4Addr::from((net << 16) | 1).into()
    }

    /// From now on nothing comes from the node and nothing reaches it.
    pub fn remove(&self, node: Node) {
        let mut state = self.state();
        if let Some(host) = state.nodes.get_mut(node.0) {
            host.gone = true;
        }
        let address = Self::address(node);
        state.ports.retain(|key, _| key.address().ip() != address);
    }

    /// From now on no packet from the node or to it is lost on its way; queues drop it as ever.
    pub fn spare(&self, node: Node) {
        if let Some(host) = self.state().nodes.get_mut(node.0) {
            host.spared = true;
        }
    }

    /// How long a packet takes from one to the other, on lines without limits.
    pub fn latency(&self, one: Node, other: Node) -> Option<Duration> {
        let state = self.state();
        let (one, other) = (state.nodes.get(one.0)?, state.nodes.get(other.0)?);
        Some(Duration::from_nanos(one.place.latency(&other.place)))
    }

    /// What became of everything that was sent.
    pub fn ledger(&self) -> Ledger {
        let state = self.state();
        let under_way = state.agenda.iter().filter_map(|what| match what {
            What::There(packet) | What::Over(packet) => Some(size(packet)),
            What::Ring(_) => None,
        });
        state.books.ledger(under_way)
    }

    /// Nanoseconds since the network began.
    fn now(&self) -> u64 {
        u64::try_from(self.0.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// How old the network is.
    fn time(&self) -> Duration {
        self.0.began.elapsed()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, packet: Packet) {
        let now = self.now();
        let mut state = self.state();
        state.send(packet, now);
        if state.is_late() {
            drop(state);
            self.0.sooner.notify_one();
        }
    }

    /// Has `port` rung when the network is so old.
    fn ring(&self, at: Duration, port: Arc<dyn Port>) {
        let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        let mut state = self.state();
        state.agenda.add(at, What::Ring(port));
        if state.is_late() {
            drop(state);
            self.0.sooner.notify_one();
        }
    }

    /// An address of the node at a port that was not given out for long.
    fn free_address(&self, node: Node) -> SocketAddr {
        let mut state = self.state();
        let port = state.nodes.get_mut(node.0).map_or(0, Host::next_port);
        SocketAddr::new(Self::address(node), port)
    }

    fn open_at(&self, key: Key, port: Arc<dyn Port>) {
        self.state().ports.insert(key, port);
    }

    fn close(&self, key: &Key) {
        let closed = self.state().ports.remove(key);
        // Whoever it was may ask the network for something when it goes.
        drop(closed);
    }
}

impl Host {
    fn next_port(&mut self) -> u16 {
        self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT);
        self.next_port
    }
}

impl State {
    fn send(&mut self, packet: Packet, now: u64) {
        let size = size(&packet);
        let (from, to) = (node(packet.from.ip()), node(packet.to.ip()));
        self.books.sent(from, to, size, now);
        let receiver = self.nodes.get(to.0).map(|host| (host.place, host.spared));
        let sender = self.nodes.get_mut(from.0).filter(|host| !host.gone);
        let (Some((place, spared)), Some(sender)) = (receiver, sender) else {
            return self.books.end(Fate::NoHost, to, size);
        };
        let distance = sender.place.latency(&place);
        let Some(left) = sender.up.take(size, now) else {
            return self.books.end(Fate::QueueFull, to, size);
        };
        let spared = spared || sender.spared;
        if !spared && self.random.happens(self.loss) {
            return self.books.end(Fate::Lost, to, size);
        }
        let there = left.saturating_add(distance);
        self.agenda.add(there, What::There(packet));
    }

    /// Whether something happens before the driver wakes.
    fn is_late(&self) -> bool {
        let next = self.agenda.next();
        next.is_some_and(|next| self.wakes.is_none_or(|wakes| next < wakes))
    }

    /// The next thing that happens until `now` and concerns somebody.
    fn happens(&mut self, now: u64) -> Option<Happens> {
        while let Some((at, what)) = self.agenda.take(now) {
            match what {
                What::Ring(port) => return Some(Happens::Rings(port)),
                What::There(packet) => self.there(packet, at),
                What::Over(packet) => match self.receiver(&packet) {
                    Some(port) => return Some(Happens::Arrives(port, packet)),
                    None => {
                        let to = node(packet.to.ip());
                        self.books.end(Fate::NoPort, to, size(&packet));
                        return Some(Happens::Refuses(packet));
                    }
                },
            }
        }
        None
    }

    fn receiver(&self, packet: &Packet) -> Option<Arc<dyn Port>> {
        let port = match &packet.payload {
            Payload::Udp(_) => self.ports.get(&Key::Socket(packet.to)),
            Payload::Tcp(_) => {
                let stream = self.ports.get(&Key::Stream(packet.to, packet.from));
                stream.or_else(|| self.ports.get(&Key::Listener(packet.to)))
            }
        };
        port.map(Arc::clone)
    }

    fn there(&mut self, packet: Packet, at: u64) {
        let (to, size) = (node(packet.to.ip()), size(&packet));
        let host = self.nodes.get_mut(to.0).filter(|host| !host.gone);
        let Some(host) = host else {
            return self.books.end(Fate::NoHost, to, size);
        };
        match host.down.take(size, at) {
            Some(over) => self.agenda.add(over, What::Over(packet)),
            None => self.books.end(Fate::QueueFull, to, size),
        }
    }
}

/// Whose address this is.
fn node(address: IpAddr) -> Node {
    let number = match address {
        IpAddr::V4(address) => (u32::from(address) >> 16).checked_sub(FIRST_NET),
        IpAddr::V6(_) => None,
    };
    let number = number.and_then(|number| usize::try_from(number).ok());
    Node(number.unwrap_or(usize::MAX))
}

/// What it takes of a line, in octets.
fn size(packet: &Packet) -> u64 {
    let octets = match &packet.payload {
        Payload::Udp(payload) => payload.len().saturating_add(UDP_HEADERS),
        Payload::Tcp(segment) => segment.data.len().saturating_add(tcp::HEADERS),
    };
    u64::try_from(octets).unwrap_or(u64::MAX)
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Network")
    }
}
