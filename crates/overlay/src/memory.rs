//! A network inside one process, for tests: hosts, latency, loss, rate, faults, and an eavesdropper who writes down what passes.
//! It runs under tokio's paused clock and is the same for the same seed.

mod pipe;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::{pending, poll_fn},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use hoplite_wire::{
    Host, HostName, Target,
    connect_ip::{Prefix, Route, Scope, ScopeTarget},
    dns::{Code, Question, Unfit},
    ip::{
        self, Packet,
        icmp::{self, Echo, Unreachable},
    },
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, Sleep, sleep, sleep_until},
};

use self::pipe::{MemoryStream, Pipe};
use crate::{
    Batch, Datagrams, Error, ErrorKind, Opening, Overlay, Packets, Reason, Received, Stream, Terms,
};

/// How many connections wait to be accepted; the next one is refused.
const BACKLOG: usize = 1024;

/// What every packet goes through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// One way.
    pub latency: Duration,
    /// The share of datagrams that is lost, 0 to 1. Streams do not lose.
    pub loss: f64,
    /// Bytes per second into each receiver; `None` is unlimited.
    pub rate: Option<u32>,
    /// The largest datagram payload, in bytes.
    pub max_payload: usize,
}

impl Default for Conditions {
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

/// What an eavesdropper sees of one packet.
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

/// What kind of packet an eavesdropper saw, with its size in bytes.
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
    conditions: Conditions,
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
            conditions: Conditions::default(),
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

    /// Changes the conditions, for packets that are sent from now on.
    pub fn set_conditions(&self, conditions: Conditions) {
        self.state().conditions = conditions;
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
        self.0.lock()
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
        share < self.conditions.loss
    }
}

/// When something of `bytes` that is sent now arrives; `free_at` is when the receiver's line is idle again.
fn arrival(conditions: &Conditions, free_at: &mut Instant, bytes: usize) -> Instant {
    let now = Instant::now();
    let Some(rate) = conditions.rate.filter(|rate| *rate > 0) else {
        return now + conditions.latency;
    };
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    *free_at = (*free_at).max(now) + Duration::from_secs(1) * bytes / rate;
    *free_at + conditions.latency
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Network")
            .field("conditions", &state.conditions)
            .field("fault", &state.fault)
            .finish_non_exhaustive()
    }
}

// What a host of the in-memory network does: listen, receive datagrams, open flows.

/// Accepts streams at one address until it is dropped.
pub struct Listener {
    network: Network,
    address: SocketAddr,
    accepted: mpsc::Receiver<Stream>,
}

/// Receives and sends datagrams at one address until it is dropped.
pub struct Socket {
    network: Network,
    address: SocketAddr,
    inbox: Arc<Inbox>,
}

/// The overlay by which one host opens flows to the others.
#[derive(Debug, Clone)]
pub struct MemoryOverlay {
    network: Network,
    host: IpAddr,
}

struct MemoryDatagrams {
    socket: Socket,
    there: SocketAddr,
}

impl Network {
    /// The overlay by which `host` opens flows.
    pub fn overlay(&self, host: IpAddr) -> MemoryOverlay {
        self.state().hosts.push(host);
        MemoryOverlay {
            network: self.clone(),
            host,
        }
    }

    /// Listens for streams at a free port of `host`.
    pub fn listen(&self, host: IpAddr) -> Listener {
        let address = self.state().free_port(host);
        self.listen_at(address)
    }

    /// Listens for streams at `address`; whoever listened there before hears no more.
    pub fn listen_at(&self, address: SocketAddr) -> Listener {
        let (sender, accepted) = mpsc::channel(BACKLOG);
        let mut state = self.state();
        state.hosts.push(address.ip());
        state.listeners.insert(address, sender);
        drop(state);
        Listener {
            network: self.clone(),
            address,
            accepted,
        }
    }

    /// Receives datagrams at a free port of `host`.
    pub fn bind(&self, host: IpAddr) -> Socket {
        let address = self.state().free_port(host);
        self.bind_at(address)
    }

    /// Receives datagrams at `address`; whoever received there before does no more.
    pub fn bind_at(&self, address: SocketAddr) -> Socket {
        let inbox = Arc::new(Inbox::new());
        let mut state = self.state();
        state.hosts.push(address.ip());
        state.inboxes.insert(address, Arc::downgrade(&inbox));
        drop(state);
        Socket {
            network: self.clone(),
            address,
            inbox,
        }
    }

    /// Both ends of a stream from `from`; the far one is still to be accepted.
    fn pair(&self, from: IpAddr, there: SocketAddr) -> (MemoryStream, MemoryStream) {
        let here = self.state().free_port(from);
        let (up, down) = (Pipe::new(), Pipe::new());
        let end = |here, there, incoming: &Arc<Pipe>, outgoing: &Arc<Pipe>| MemoryStream {
            network: self.clone(),
            here,
            there,
            incoming: Arc::clone(incoming),
            outgoing: Arc::clone(outgoing),
            current: Bytes::new(),
            timer: None,
            read_ended: false,
            write_ended: false,
            answer: None,
        };
        let ends = (end(here, there, &down, &up), end(there, here, &up, &down));
        let mut state = self.state();
        state.pipes.retain(|pipe| pipe.strong_count() > 0);
        state
            .pipes
            .extend([Arc::downgrade(&up), Arc::downgrade(&down)]);
        drop(state);
        ends
    }

    /// Hands the far end of a stream to whoever listens there.
    fn deliver(&self, far: MemoryStream) -> Result<(), Error> {
        let listener = self.state().listeners.get(&far.here).cloned();
        let taken = listener.is_some_and(|listener| listener.try_send(Stream::new(far)).is_ok());
        if taken {
            Ok(())
        } else {
            Err(target_failed(Reason::Refused))
        }
    }

    fn carry(&self, from: SocketAddr, to: SocketAddr, payload: &[u8]) {
        self.note(from, to, What::Datagram(payload.len()));
        let mut state = self.state();
        if payload.len() > state.conditions.max_payload
            || state.fault != Fault::None
            || state.loses()
        {
            return;
        }
        let conditions = state.conditions;
        let inbox = |address| state.inboxes.get(address).and_then(Weak::upgrade);
        match (inbox(&to), inbox(&from)) {
            (Some(receiver), _) => {
                receiver.put(
                    &conditions,
                    Letter::From(from, Bytes::copy_from_slice(payload)),
                );
            }
            (None, Some(sender)) => sender.put(&conditions, Letter::Refused),
            (None, None) => {}
        }
    }

    /// What a resolver that knows this network's names says.
    fn answer(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let question = match Question::read(message) {
            Ok(question) => question,
            Err(Unfit::Answered(reply)) => return Ok(reply),
            Err(Unfit::Nothing) => return Err(target_failed(Reason::ResolverFailed)),
        };
        let found = question.name().map(|name| self.find(&Host::Name(name)));
        Ok(match found {
            Some(Ok(ip)) => question.addresses([ip], 60),
            _ => question.nothing(Code::NO_NAME, 60),
        })
    }

    fn find(&self, host: &Host) -> Result<IpAddr, Error> {
        let state = self.state();
        match host {
            Host::Name(name) => state
                .names
                .get(name)
                .copied()
                .ok_or_else(|| target_failed(Reason::NameNotFound)),
            Host::Ip(ip) if state.hosts.contains(ip) => Ok(*ip),
            Host::Ip(_) => Err(target_failed(Reason::HostUnreachable)),
        }
    }
}

impl Listener {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next stream; pending for ever once another listener has taken its place.
    pub async fn accept(&mut self) -> Stream {
        match self.accepted.recv().await {
            Some(stream) => stream,
            None => pending().await,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.accepted.close();
        let mut state = self.network.state();
        let ours = |sender: &mpsc::Sender<Stream>| sender.is_closed();
        if state.listeners.get(&self.address).is_some_and(ours) {
            state.listeners.remove(&self.address);
        }
    }
}

impl Socket {
    /// Where it receives.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next datagram and who sent it.
    pub async fn recv(&self) -> (Bytes, SocketAddr) {
        loop {
            let letter = poll_fn(|cx| self.inbox.poll_take(cx)).await;
            if let Letter::From(sender, payload) = letter {
                return (payload, sender);
            }
        }
    }

    /// Sends a datagram.
    pub fn send(&self, payload: &[u8], to: SocketAddr) {
        self.network.carry(self.address, to, payload);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut state = self.network.state();
        let inboxes = &mut state.inboxes;
        let ours = |inbox: &Weak<Inbox>| inbox.as_ptr() == Arc::as_ptr(&self.inbox);
        if inboxes.get(&self.address).is_some_and(ours) {
            inboxes.remove(&self.address);
        }
    }
}

impl MemoryOverlay {
    async fn stream(&self, target: &Target) -> Result<Stream, Error> {
        let there = self.ask(target)?;
        if self.is_silent(there) {
            return pending().await;
        }
        let latency = self.network.state().conditions.latency;
        sleep(latency * 2).await;
        let (near, far) = self.network.pair(self.host, there);
        self.network.deliver(far)?;
        Ok(Stream::new(near))
    }

    /// Opens a stream at once: what is written follows the request, and a failure is told when it would be known.
    fn early(&self, target: &Target, terms: &Terms) -> Stream {
        let asked = self.ask(target);
        let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), target.port);
        let there = asked.as_ref().map_or(nowhere, |there| *there);
        let (mut near, far) = self.network.pair(self.host, there);
        let (mut say, answer) = oneshot::channel();
        near.answer = Some(answer);
        let (network, silent) = (self.network.clone(), self.is_silent(there));
        tokio::spawn(async move {
            if silent {
                say.closed().await;
                return drop(far);
            }
            let latency = network.state().conditions.latency;
            sleep(latency).await;
            let said = asked.and_then(|_| network.deliver(far));
            sleep(latency).await;
            drop(say.send(said));
        });
        Stream::early(near, terms.deadline)
    }

    /// Says to the eavesdropper that a stream is being opened; answers with where to.
    fn ask(&self, target: &Target) -> Result<SocketAddr, Error> {
        let there = SocketAddr::new(self.network.find(&target.host)?, target.port);
        let here = SocketAddr::new(self.host, 0);
        self.network.note(here, there, What::Open);
        match self.network.state().fault {
            Fault::Down => Err(target_failed(Reason::HostUnreachable)),
            _ => Ok(there),
        }
    }

    fn is_silent(&self, there: SocketAddr) -> bool {
        let state = self.network.state();
        state.fault == Fault::Silent || state.silent.contains(&there)
    }
}

impl Overlay for MemoryOverlay {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        if terms.early {
            Box::pin(async move { Ok(self.early(target, terms)) })
        } else {
            Box::pin(terms.run("connecting", self.stream(target)))
        }
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        _: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        Box::pin(async move {
            let there = SocketAddr::new(self.network.find(&target.host)?, target.port);
            let socket = self.network.bind(self.host);
            Ok(Box::new(MemoryDatagrams { socket, there }) as Box<dyn Datagrams>)
        })
    }

    fn resolve<'a>(&'a self, name: &'a str, _: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        Box::pin(async move {
            let name = HostName::new(name).map_err(|_| target_failed(Reason::NameNotFound))?;
            Ok(vec![self.network.find(&Host::Name(name))?])
        })
    }

    fn open_packets<'a>(&'a self, scope: &'a Scope, _: &'a Terms) -> Opening<'a, Box<dyn Packets>> {
        Box::pin(async move {
            let flow = MemoryPackets::open(&self.network, self.host, scope)?;
            Ok(Box::new(flow) as Box<dyn Packets>)
        })
    }

    fn query<'a>(&'a self, message: &'a [u8], _: &'a Terms) -> Opening<'a, Vec<u8>> {
        Box::pin(async move { self.network.answer(message) })
    }
}

impl Datagrams for MemoryDatagrams {
    fn max_payload(&self) -> usize {
        self.socket.network.state().conditions.max_payload
    }

    fn poll_send(&self, _: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        for payload in batch.payloads() {
            self.socket.send(payload, self.there);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        loop {
            let payload = match ready!(self.socket.inbox.poll_take(cx)) {
                Letter::Refused => return Poll::Ready(Err(target_failed(Reason::Refused))),
                Letter::From(sender, _) if sender != self.there => continue,
                Letter::From(_, payload) => payload,
            };
            let Some(filled) = buf.get_mut(..payload.len()) else {
                continue;
            };
            filled.copy_from_slice(&payload);
            return Poll::Ready(Ok(Received {
                len: payload.len(),
                segment: payload.len().max(1),
            }));
        }
    }
}

fn target_failed(reason: Reason) -> Error {
    Error::new(ErrorKind::TargetFailed, "opening a flow in memory").because(reason)
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Socket")
    }
}

impl fmt::Debug for MemoryDatagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryDatagrams")
    }
}

// Where the datagrams for one address wait in memory.

/// How many datagrams wait; the next one is lost.
const LENGTH: usize = 4096;

/// The datagrams under way to one address.
struct Inbox(Mutex<Waiting>);

struct Waiting {
    datagrams: VecDeque<(Instant, Letter)>,
    free_at: Instant,
    waker: Option<Waker>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// What arrives.
enum Letter {
    From(SocketAddr, Bytes),
    /// Nobody is at the address that a datagram was sent to.
    Refused,
}

impl Inbox {
    fn new() -> Self {
        Self(Mutex::new(Waiting {
            datagrams: VecDeque::new(),
            free_at: Instant::now(),
            waker: None,
            timer: None,
        }))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock()
    }

    fn put(&self, conditions: &Conditions, letter: Letter) {
        let mut waiting = self.waiting();
        if waiting.datagrams.len() >= LENGTH {
            return;
        }
        let bytes = match &letter {
            Letter::From(_, payload) => payload.len(),
            Letter::Refused => 0,
        };
        let at = arrival(conditions, &mut waiting.free_at, bytes);
        waiting.datagrams.push_back((at, letter));
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
    }

    fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Letter> {
        let mut waiting = self.waiting();
        waiting.waker = Some(cx.waker().clone());
        let Some(at) = waiting.datagrams.front().map(|(at, _)| *at) else {
            return Poll::Pending;
        };
        if at > Instant::now() {
            let timer = waiting
                .timer
                .get_or_insert_with(|| Box::pin(sleep_until(at)));
            timer.as_mut().reset(at);
            ready!(timer.as_mut().poll(cx));
        }
        match waiting.datagrams.pop_front() {
            Some((_, letter)) => Poll::Ready(letter),
            None => Poll::Pending,
        }
    }
}

// IP packets in the in-memory network: every host answers echoes, and sends back what it gets of any other protocol.

/// The addresses that every flow is given.
const ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 8)),
    IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 8)),
];

/// Packets that wait for the receiver; the next ones are lost.
const MAX_QUEUED: usize = 1024;

/// A flow of packets.
struct MemoryPackets {
    network: Network,
    host: IpAddr,
    routes: Vec<Route>,
    back: Mutex<Back>,
}

#[derive(Default)]
struct Back {
    packets: VecDeque<Vec<u8>>,
    receiver: Option<Waker>,
}

impl MemoryPackets {
    fn open(network: &Network, host: IpAddr, scope: &Scope) -> Result<Self, Error> {
        let protocol = scope.protocol.unwrap_or(0);
        let to = |ip| Prefix::one(ip).route(protocol);
        let routes = match &scope.target {
            ScopeTarget::Name(name) => {
                let ip = network.find(&Host::Name(name.clone()))?;
                // Each family has its own ICMP.
                if matches!(protocol, ip::ICMP | ip::ICMPV6) && protocol != ip::icmp_of(ip) {
                    return Err(target_failed(Reason::NetworkUnreachable));
                }
                vec![to(ip)]
            }
            ScopeTarget::Prefix(prefix) => match prefix.single() {
                Some(ip) => vec![to(network.find(&Host::Ip(ip))?)],
                None => vec![prefix.route(protocol)],
            },
            ScopeTarget::Any => {
                let families = ADDRESSES.iter().filter_map(|ip| Prefix::new(*ip, 0));
                families.map(|all| all.route(protocol)).collect()
            }
        };
        Ok(Self {
            network: network.clone(),
            host,
            routes,
            back: Mutex::default(),
        })
    }

    fn carry(&self, bytes: &[u8]) -> Option<()> {
        let packet = ip::parse(bytes).ok()?;
        let (there, protocol) = (packet.destination, packet.protocol);
        let routed = self
            .routes
            .iter()
            .any(|route| route.allows(there, protocol));
        if !ADDRESSES.contains(&packet.source) || !routed {
            return None;
        }
        let end = |ip| SocketAddr::new(ip, 0);
        let what = What::Datagram(bytes.len());
        self.network.note(end(self.host), end(there), what);
        let (is_known, fault) = {
            let state = self.network.state();
            (state.hosts.contains(&there), state.fault)
        };
        let answer = if fault != Fault::None {
            None
        } else if is_known {
            answer(&packet)
        } else {
            icmp::unreachable(bytes, Unreachable::Host)
        }?;
        let mut back = self.back.lock();
        if back.packets.len() < MAX_QUEUED {
            back.packets.push_back(answer);
        }
        back.receiver.take().map(Waker::wake)
    }
}

/// What a host sends back.
fn answer(packet: &Packet<'_>) -> Option<Vec<u8>> {
    let (here, there) = (packet.source, packet.destination);
    if let Some(echo) = icmp::echo(packet) {
        let reply = Echo {
            reply: true,
            ..echo
        };
        return (!echo.reply).then(|| reply.packet(there, here));
    }
    let mut out = Vec::new();
    let (protocol, len) = (packet.protocol, packet.payload.len());
    ip::write_header(&mut out, there, here, protocol, 64, len);
    out.extend_from_slice(packet.payload);
    Some(out)
}

impl Packets for MemoryPackets {
    fn addresses(&self) -> Vec<Prefix> {
        ADDRESSES.map(Prefix::one).to_vec()
    }

    fn routes(&self) -> Vec<Route> {
        self.routes.clone()
    }

    fn mtu(&self) -> usize {
        self.network.state().conditions.max_payload
    }

    fn poll_send(&self, _: &mut Context<'_>, packets: Batch<'_>) -> Poll<Result<(), Error>> {
        let mtu = self.mtu();
        for packet in packets.payloads().filter(|packet| packet.len() <= mtu) {
            self.carry(packet);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        let mut back = self.back.lock();
        while let Some(packet) = back.packets.pop_front() {
            if let Some(to) = buf.get_mut(..packet.len()) {
                to.copy_from_slice(&packet);
                let (len, segment) = (packet.len(), packet.len());
                return Poll::Ready(Ok(Received { len, segment }));
            }
        }
        back.receiver = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl fmt::Debug for MemoryPackets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryPackets")
    }
}

#[cfg(test)]
mod tests;
