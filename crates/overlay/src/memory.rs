//! A network inside one process, for tests: hosts, latency, loss, rate, faults, and an eavesdropper who writes down what passes.
//! Used by the tests of every room above; runs under tokio's paused clock and is the same for the same seed.

mod host;
mod inbox;
mod packets;
mod pipe;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use hoplite_wire::HostName;
use tokio::{sync::mpsc, time::Instant};

pub use self::host::{Listener, MemoryOverlay, Socket};
use self::{inbox::Inbox, pipe::Pipe};
use crate::Stream;

/// How many connections wait to be accepted; the next one is refused.
const BACKLOG: usize = 1024;

/// What every packet goes through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Road {
    /// One way.
    pub latency: Duration,
    /// The share of datagrams that is lost, 0 to 1. Streams do not lose.
    pub loss: f64,
    /// Octets per second into each receiver; `None` is unlimited.
    pub rate: Option<u32>,
    /// The largest datagram payload, in octets.
    pub max_payload: usize,
}

impl Default for Road {
    fn default() -> Self {
        Self {
            latency: Duration::ZERO,
            loss: 0.0,
            rate: None,
            max_payload: 1472,
        }
    }
}

/// What is wrong with the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Datagrams vanish; streams work.
    UdpBlocked,
    /// Everything vanishes without an answer; streams go on where they stopped when it is over.
    Silent,
    /// Open streams are reset, hosts cannot be reached.
    Down,
}

/// What an eavesdropper on the road sees of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When.
    pub at: Instant,
    /// Who sent it.
    pub from: SocketAddr,
    /// Who is to receive it.
    pub to: SocketAddr,
    /// What it is.
    pub what: What,
}

/// What kind of packet an eavesdropper saw, with its size in octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A datagram.
    Datagram(usize),
    /// A connection is being opened.
    Open,
    /// A piece of a stream.
    Data(usize),
    /// One side of a stream has ended.
    End,
    /// A stream was reset.
    Reset,
}

/// A network. Clones are the same network.
#[derive(Clone)]
pub struct Network(Arc<Mutex<State>>);

struct State {
    road: Road,
    fault: Fault,
    random: u64,
    names: HashMap<HostName, IpAddr>,
    hosts: Vec<IpAddr>,
    silent: Vec<SocketAddr>,
    listeners: HashMap<SocketAddr, mpsc::Sender<Stream>>,
    inboxes: HashMap<SocketAddr, Weak<Inbox>>,
    pipes: Vec<Weak<Pipe>>,
    seen: Vec<Seen>,
    next_port: u16,
}

impl Network {
    /// An empty network; `seed` decides which datagrams are lost.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            road: Road::default(),
            fault: Fault::None,
            random: seed | 1,
            names: HashMap::new(),
            hosts: Vec::new(),
            silent: Vec::new(),
            listeners: HashMap::new(),
            inboxes: HashMap::new(),
            pipes: Vec::new(),
            seen: Vec::new(),
            next_port: 49_152,
        })))
    }

    /// Adds a host under a name.
    pub fn host(&self, name: HostName, ip: IpAddr) {
        let mut state = self.state();
        state.names.insert(name, ip);
        state.hosts.push(ip);
    }

    /// Changes the road, for packets that are sent from now on.
    pub fn set_road(&self, road: Road) {
        self.state().road = road;
    }

    /// Breaks the network, or repairs it.
    pub fn set_fault(&self, fault: Fault) {
        let pipes = {
            let mut state = self.state();
            state.fault = fault;
            state.pipes.retain(|pipe| pipe.strong_count() > 0);
            state.pipes.clone()
        };
        for pipe in pipes.iter().filter_map(Weak::upgrade) {
            pipe.set_fault(fault);
        }
    }

    /// Lets nobody answer at `address`: opening a stream to it hangs.
    pub fn silence(&self, address: SocketAddr) {
        self.state().silent.push(address);
    }

    /// What the eavesdropper has written down, in order.
    pub fn seen(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }

    /// Forgets what the eavesdropper has written down.
    pub fn forget(&self) {
        self.state().seen.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, from: SocketAddr, to: SocketAddr, what: What) {
        let at = Instant::now();
        self.state().seen.push(Seen { at, from, to, what });
    }
}

impl State {
    fn free_port(&mut self, ip: IpAddr) -> SocketAddr {
        loop {
            let address = SocketAddr::new(ip, self.next_port);
            self.next_port = self.next_port.checked_add(1).unwrap_or(49_152);
            let taken = |inbox: &Weak<Inbox>| inbox.strong_count() > 0;
            let by_inbox = self.inboxes.get(&address).is_some_and(taken);
            if !by_inbox && !self.listeners.contains_key(&address) {
                return address;
            }
        }
    }

    /// Whether the next datagram is lost (xorshift64).
    fn loses(&mut self) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let share = f64::from(u32::try_from(self.random >> 32).unwrap_or(0)) / f64::from(u32::MAX);
        share < self.road.loss
    }
}

/// When something of `octets` that is sent now arrives; `free_at` is when the receiver's line is idle again.
fn arrival(road: &Road, free_at: &mut Instant, octets: usize) -> Instant {
    let now = Instant::now();
    let Some(rate) = road.rate.filter(|rate| *rate > 0) else {
        return now + road.latency;
    };
    let octets = u32::try_from(octets).unwrap_or(u32::MAX);
    *free_at = (*free_at).max(now) + Duration::from_secs(1) * octets / rate;
    *free_at + road.latency
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Network")
            .field("road", &state.road)
            .field("fault", &state.fault)
            .finish_non_exhaustive()
    }
}
