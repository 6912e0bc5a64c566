//! The network: nodes, each with an access link, and packets that cross from one to another in virtual time.
//! [`udp`] and [`tcp`] are what nodes send by.
//!
//! A packet waits for its sender's uplink, travels for as long as the two nodes are apart, waits for its receiver's downlink, and is handed over.
//! Times are kept in nanoseconds; what wakes the rooms is the runtime's timer, which goes in steps of a millisecond.

pub mod tcp;
pub mod udp;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::random::Random;

/// What an IPv4 and a UDP header take of a packet, in bytes.
const UDP_HEADERS: usize = 28;

/// The largest UDP payload that the network carries: Ethernet's.
pub const MAX_DATAGRAM: usize = 1472;

/// The first of the 16 bits by which nodes are told apart: 11.0.0.0/16 and so on, of which none is special.
const FIRST_NET: u32 = 0x0b00;

/// From here on ports are given out.
const FIRST_PORT: u16 = 10_000;

/// This many nodes have addresses that are not special.
pub const MAX_NODES: usize = 0x5000;

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
    up: Bottleneck,
    down: Bottleneck,
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
        tokio::spawn(drive(network.clone()));
        network
    }

    /// One more node. There are [`MAX_NODES`] at most; further ones are not reached.
    pub fn add(&self, place: Place, access: Access) -> Node {
        let mut state = self.state();
        state.books.add_node();
        state.nodes.push(Host {
            place,
            up: Bottleneck::new(access.up, access.queue),
            down: Bottleneck::new(access.down, access.queue),
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
        self.0.state.lock()
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

/// What it takes of a line, in bytes.
fn size(packet: &Packet) -> u64 {
    let bytes = match &packet.payload {
        Payload::Udp(payload) => payload.len().saturating_add(UDP_HEADERS),
        Payload::Tcp(segment) => segment.data.len().saturating_add(tcp::HEADERS),
    };
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Network")
    }
}

// Where a node is: a point of a map, and how far it is from there to the map. So latencies differ from pair to pair, go both ways alike, and
// no way over a third node is much shorter than the direct one.

const MS: f64 = 1e6;

/// One side of the map, in milliseconds of one way: the farthest corners are 85 ms apart.
const SIDE: f64 = 60.0;

/// The last mile, one way: 1 to 6 ms.
const LAST_MILE: (f64, f64) = (1.0, 6.0);

/// A place, in milliseconds of one way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    x: f64,
    y: f64,
    last_mile: f64,
}

impl Place {
    /// Somewhere.
    pub fn drawn(random: &mut Random) -> Self {
        let (least, most) = LAST_MILE;
        Self {
            x: SIDE * random.unit(),
            y: SIDE * random.unit(),
            last_mile: least + (most - least) * random.unit(),
        }
    }

    /// This many milliseconds from everywhere, whatever the other node's own distance is.
    pub const fn apart(ms: f64) -> Self {
        Self {
            x: 0.0,
            y: 0.0,
            last_mile: ms,
        }
    }

    /// One way to another, in nanoseconds.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most 97 ms on the map, never negative; a float that is too large saturates"
    )]
    fn latency(&self, other: &Self) -> u64 {
        let way = (self.x - other.x).hypot(self.y - other.y);
        ((way + self.last_mile + other.last_mile) * MS) as u64
    }
}

// One direction of a node's access link: this many bytes a second, and a queue with a bound. It drops the newest.
// A machine without clock: the network says when a packet comes, and hears when it has left.

const SECOND: u128 = 1_000_000_000;

/// A node's access link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Bytes a second, away from the node.
    pub up: u64,
    /// Bytes a second, to it.
    pub down: u64,
    /// Bytes that may wait in each direction.
    pub queue: u64,
}

/// One direction.
#[derive(Clone, Debug)]
struct Bottleneck {
    rate: u64,
    queue: u64,
    /// When all that was taken will have left, in nanoseconds.
    free: u64,
}

impl Bottleneck {
    fn new(rate: u64, queue: u64) -> Self {
        let rate = rate.max(1);
        Self {
            rate,
            queue,
            free: 0,
        }
    }

    /// When `bytes` that come at `now` have left; nothing: the queue is full.
    fn take(&mut self, bytes: u64, now: u64) -> Option<u64> {
        let begins = self.free.max(now);
        let waiting = u128::from(begins.saturating_sub(now)) * u128::from(self.rate) / SECOND;
        if waiting.saturating_add(bytes.into()) > u128::from(self.queue.max(bytes)) {
            return None;
        }
        let takes = u128::from(bytes) * SECOND / u128::from(self.rate);
        self.free = begins.saturating_add(u64::try_from(takes).unwrap_or(u64::MAX));
        Some(self.free)
    }
}

// What is to happen, and when. What happens at the same time does so in the order in which it was added.
// The heap has only times and places: a packet is moved once into its place and once out of it, whatever goes before it.

/// What is to happen.
#[derive(Debug)]
struct Agenda<T> {
    /// When, the how-manieth that was added, and where it is.
    times: BinaryHeap<Reverse<(u64, u64, usize)>>,
    added: u64,
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self {
            times: BinaryHeap::new(),
            added: 0,
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Agenda<T> {
    /// `what` happens at this time.
    fn add(&mut self, at: u64, what: T) {
        self.added = self.added.wrapping_add(1);
        let place = self.place(what);
        self.times.push(Reverse((at, self.added, place)));
    }

    fn place(&mut self, what: T) -> usize {
        let free = self.free.pop();
        let free = free.and_then(|place| Some((place, self.places.get_mut(place)?)));
        if let Some((place, room)) = free {
            *room = Some(what);
            return place;
        }
        self.places.push(Some(what));
        self.places.len().saturating_sub(1)
    }

    /// When the next one happens.
    fn next(&self) -> Option<u64> {
        let next = self.times.peek();
        next.map(|Reverse((at, ..))| *at)
    }

    /// The next one that happens until `now`, with its time.
    fn take(&mut self, now: u64) -> Option<(u64, T)> {
        self.next().filter(|at| *at <= now)?;
        let Reverse((at, _, place)) = self.times.pop()?;
        let what = self.places.get_mut(place)?.take()?;
        self.free.push(place);
        Some((at, what))
    }

    /// All of it, in no order.
    fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }
}

// Moves packets: sleeps until the next one is somewhere, and hands over what has come. One task for the whole network.

/// Packets handed over before those who received them have their turn.
const MAX_BURST: usize = 256;

/// Runs for ever.
async fn drive(network: Network) {
    loop {
        let sooner = network.0.sooner.notified();
        match network.turn() {
            Some(next) if next <= network.now() => tokio::task::yield_now().await,
            Some(next) => tokio::select! {
                biased;
                () = sooner => {}
                () = sleep_until(network.0.began + Duration::from_nanos(next)) => {}
            },
            None => sooner.await,
        }
    }
}

impl Network {
    /// Hands over what has come; answers with when the next packet is somewhere.
    fn turn(&self) -> Option<u64> {
        let now = self.now();
        for _ in 0..MAX_BURST {
            let happens = self.state().happens(now);
            match happens {
                Some(Happens::Arrives(port, packet)) => self.hand(&*port, packet),
                Some(Happens::Rings(port)) => port.ring(),
                Some(Happens::Refuses(packet)) => self.refuse(&packet),
                None => break,
            }
        }
        let mut state = self.state();
        let next = state.agenda.next();
        state.wakes = next;
        next
    }

    fn hand(&self, port: &dyn Port, packet: Packet) {
        let (to, size) = (node(packet.to.ip()), size(&packet));
        let fate = if port.receive(packet) {
            Fate::Received
        } else {
            Fate::Overfull
        };
        self.state().books.end(fate, to, size);
    }

    /// Nobody has a stream there: who thinks so is told.
    fn refuse(&self, packet: &Packet) {
        if let Payload::Tcp(segment) = &packet.payload
            && let Some(payload) = segment.refused().map(Payload::Tcp)
        {
            let (from, to) = (packet.to, packet.from);
            self.send(Packet { from, to, payload });
        }
    }
}

// What became of every packet: the network writes it down, tests see that nothing is made and nothing vanishes.

/// Packets, and their bytes with headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub packets: u64,
    /// Of which size together.
    pub bytes: u64,
}

/// How a packet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was received.
    Received,
    /// It was lost on its way.
    Lost,
    /// A line's queue was full.
    QueueFull,
    /// Its sender or receiver is not there any more.
    NoHost,
    /// Nobody listens there.
    NoPort,
    /// Whoever listens takes no more.
    Overfull,
}

/// What became of everything that was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// All that was sent.
    pub sent: Count,
    /// What was received.
    pub received: Count,
    /// What was lost on its way.
    pub lost: Count,
    /// What a full queue dropped.
    pub queue_full: Count,
    /// What was for, or from, a node that is gone.
    pub no_host: Count,
    /// What nobody listened for.
    pub no_port: Count,
    /// What its receiver had no room for.
    pub overfull: Count,
    /// What is under way.
    pub under_way: Count,
    /// What each node sent and received.
    pub nodes: Vec<(Count, Count)>,
    /// Made of when each packet was sent, by whom, to whom, and how large: two runs that have the same were the same.
    pub trace: u64,
}

/// The ledger while it is written.
#[derive(Debug, Default)]
struct Books(Ledger);

impl Count {
    fn add(&mut self, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
    }
}

impl Ledger {
    /// Whether all that was sent is somewhere.
    pub fn is_balanced(&self) -> bool {
        let ends = [
            self.received,
            self.lost,
            self.queue_full,
            self.no_host,
            self.no_port,
            self.overfull,
            self.under_way,
        ];
        let packets: u64 = ends.iter().map(|count| count.packets).sum();
        let bytes: u64 = ends.iter().map(|count| count.bytes).sum();
        self.sent == Count { packets, bytes }
    }
}

impl Books {
    fn add_node(&mut self) {
        self.0.nodes.push(<(Count, Count)>::default());
    }

    fn sent(&mut self, from: Node, to: Node, bytes: u64, now: u64) {
        let ends = [from.0, to.0].map(|node| u64::try_from(node).unwrap_or(u64::MAX));
        for number in [now, bytes].into_iter().chain(ends) {
            // FNV-1a, by numbers instead of bytes, and rotated so that high bits reach low ones.
            self.0.trace = (self.0.trace ^ number)
                .wrapping_mul(0x0100_0000_01b3)
                .rotate_left(29);
        }
        self.0.sent.add(bytes);
        if let Some((sent, _)) = self.0.nodes.get_mut(from.0) {
            sent.add(bytes);
        }
    }

    fn end(&mut self, fate: Fate, to: Node, bytes: u64) {
        let ledger = &mut self.0;
        let count = match fate {
            Fate::Received => &mut ledger.received,
            Fate::Lost => &mut ledger.lost,
            Fate::QueueFull => &mut ledger.queue_full,
            Fate::NoHost => &mut ledger.no_host,
            Fate::NoPort => &mut ledger.no_port,
            Fate::Overfull => &mut ledger.overfull,
        };
        count.add(bytes);
        let receiver = ledger.nodes.get_mut(to.0);
        if let (Fate::Received, Some((_, received))) = (fate, receiver) {
            received.add(bytes);
        }
    }

    fn ledger(&self, under_way: impl Iterator<Item = u64>) -> Ledger {
        let mut ledger = self.0.clone();
        under_way.for_each(|bytes| ledger.under_way.add(bytes));
        ledger
    }
}

#[cfg(test)]
mod tests;
