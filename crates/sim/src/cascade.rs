//! Tunnels in tunnels in virtual time: a client, relays in a row and a server, the QUIC stack of the product at every end, its acknowledgement
//! policies and its congestion control, over links with a rate, a delay and a queue. It is what `hoplite-lab run ack-policies` measures, without a
//! machine that has other things to do: one seed gives one outcome, and policies are compared exactly. docs/sim.md says what the model is.
//! Nesting: RFC 9298; what is compared: Elmenhorst et al., Cascades of Nested Acknowledgments in Multi-Hop MASQUE (ANRW 2025).
//!
//! # Not in this room
//! Processors but for a constant price of a packet, forwarded mode, datagrams that wait for each other (`masque::gather`), HTTP: the lab has them.

mod books;
mod end;
mod line;

use std::{
    cell::Cell,
    cmp::Reverse,
    collections::BinaryHeap,
    fmt,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hoplite_quic::ConnectionController;
use hoplite_wire::tuning::{Congestion, NotAnAckPolicy, TuningGrant, TuningRequest};
use serde::Serialize;

use self::{
    books::Books,
    end::{Cryptography, End},
    line::{Line, Way},
};
use crate::{random::Random, run::Unmade};

/// What is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Relays, each a tunnel within the one before; none is the direct way.
    pub hops: usize,
    /// Bits a second of the client's link, to the client; 0: no limit.
    pub down: u64,
    /// The same from the client.
    pub up: u64,
    /// From one end to the other: a fifth of it on each link but the last, which has the rest.
    pub delay: Duration,
    /// The queue before the client's link, as a multiple of what it carries within a round trip.
    pub queue: f64,
    /// Both directions of the client's link share one line, as in the air.
    pub half_duplex: bool,
    /// The share of packets that the client's link loses.
    pub loss: f64,
    /// What is transferred, in bytes.
    pub bytes: u64,
    /// What crosses the tunnels.
    pub transfer: Transfer,
    /// What a node's processor takes for each packet that it encrypts or decrypts.
    pub work: Duration,
    /// How the tunnels acknowledge.
    pub policy: Policy,
    /// Everything is drawn from it.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            hops: 4,
            down: 10_000_000,
            up: 10_000_000,
            delay: Duration::from_millis(25),
            queue: 1.5,
            half_duplex: false,
            loss: 0.0,
            bytes: 2_000_000,
            transfer: Transfer::Download,
            work: Duration::ZERO,
            policy: Policy::default(),
            seed: 1,
        }
    }
}

/// What crosses the tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transfer {
    /// A QUIC connection to the server, from which the client takes.
    Download,
    /// The same, by which the client gives.
    Upload,
    /// A stream of the last relay's, as a TCP target's; the client takes.
    Stream,
}

/// How the tunnels acknowledge and what else they do, as `[tunnel]` in a client's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What it is called.
    pub name: String,
    /// What is asked of every relay; `"auto"` becomes what suits each.
    pub request: TuningRequest,
    /// The one hop, from 1, whose relay is asked for it, and what all others are asked for.
    pub only: Option<(usize, TuningRequest)>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            name: "auto".into(),
            request: TuningRequest::default(),
            only: None,
        }
    }
}

impl Policy {
    /// A policy by its text in a file; by two, of what the client sends and of what the relays send, as in `1ms/1rtt`; or `"naive"`: 1 ms from the
    /// first packet on. Behind it may stand the one hop that has it, as in `1rtt@1`, where the others are naive. `congestion` is that of all tunnels.
    ///
    /// # Errors
    /// It is no policy.
    pub fn named(name: &str, congestion: Congestion) -> Result<Self, NotAnAckPolicy> {
        let (policy, hop) = match name.split_once('@') {
            Some((policy, hop)) => (
                policy,
                Some(hop.parse::<usize>().map_err(|_| NotAnAckPolicy)?),
            ),
            None => (name, None),
        };
        let naive = Self::request("naive", congestion)?;
        Ok(Self {
            name: name.into(),
            request: Self::request(policy, congestion)?,
            only: match hop {
                Some(hop) if !(1..=MAX_HOPS).contains(&hop) => return Err(NotAnAckPolicy),
                hop => hop.map(|hop| (hop, naive)),
            },
        })
    }

    /// What the relay of this hop is asked for.
    fn of_hop(&self, hop: usize) -> TuningRequest {
        match self.only {
            Some((only, others)) if only != hop => others,
            _ => self.request,
        }
    }

    fn request(name: &str, congestion: Congestion) -> Result<TuningRequest, NotAnAckPolicy> {
        let usual = TuningRequest {
            congestion,
            ..TuningRequest::default()
        };
        let request = if name == "naive" {
            let (up, down) = TuningRequest::both("1ms")?;
            TuningRequest {
                up,
                down,
                after: 0,
                ..usual
            }
        } else if let Some((up, down)) = name.split_once('/') {
            let (up, down) = (up.parse()?, down.parse()?);
            TuningRequest { up, down, ..usual }
        } else {
            let (up, down) = TuningRequest::both(name)?;
            TuningRequest { up, down, ..usual }
        };
        Ok(request)
    }
}

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// From the beginning of the connection end to end, or of the stream, to the last byte, in seconds.
    pub ttlb_s: f64,
    /// To the first byte.
    pub ttfb_s: f64,
    /// Bytes of IP packets on the client's link, from it and to it.
    pub up_bytes: u64,
    /// To it.
    pub down_bytes: u64,
    /// What acknowledgements of tunnels take of all of them, as the paper counts (section 5.2).
    pub ack_share: f64,
    /// The same of what the client sends.
    pub ack_share_up: f64,
    /// The same of what comes to it.
    pub ack_share_down: f64,
    /// What is not the end-to-end connection's: its packets as they would be without a tunnel.
    pub overhead_share: f64,
    /// ACK frames of tunnels for each data packet of the end-to-end connection.
    pub ack_frames_per_packet: f64,
    /// Packets that found no room in the queue of the client's link, from it and to it.
    pub dropped_up: u64,
    /// To it.
    pub dropped_down: u64,
    /// Datagrams that found no room in a tunnel at a relay.
    pub dropped_at_relays: u64,
    /// Packets that the tunnels' senders believe lost.
    pub lost_in_tunnels: u64,
    /// The same as a share of those that they sent.
    pub lost_in_tunnels_share: f64,
    /// How often a tunnel's congestion control was told of congestion.
    pub congestion_in_tunnels: u64,
    /// Packets that the end-to-end sender believes lost.
    pub lost: u64,
}

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// Not so.
    #[error("running a cascade: {0}")]
    Wrong(&'static str),
    /// Keys, or the stack's configuration.
    #[error(transparent)]
    Unmade(#[from] Unmade),
    /// A connection could not begin.
    #[error("connecting in a cascade: {0}")]
    Connect(String),
    /// It does not end.
    #[error(
        "a cascade of {hops} hops with {policy} stands still after {seconds} virtual seconds: {what}"
    )]
    Stuck {
        /// How many hops.
        hops: usize,
        /// Which policy.
        policy: String,
        /// The time that it was given.
        seconds: u64,
        /// What is not there.
        what: String,
    },
}

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The most hops.
pub const MAX_HOPS: usize = 4;

/// UDP payload on the links: what the product's first hop takes (`link::Config::largest_payload`).
const LARGEST: usize = 1452;

/// Bytes of a request.
const REQUEST: u64 = 100;

thread_local! {
    /// The time of the cascade that this thread runs.
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The clock of the hooks.
fn clock() -> Instant {
    NOW.get().unwrap_or_else(Instant::now)
}

/// Runs it.
///
/// # Errors
/// [`Failed`]
pub fn run(settings: &Settings) -> Result<Outcome, Failed> {
    check(settings)?;
    let mut world = World::new(settings)?;
    for hop in 0..settings.hops {
        world.dial(hop)?;
    }
    world.begin()?;
    world.until(|world| world.transfer.is_over(), "the transfer's end")?;
    Ok(world.outcome())
}

fn check(settings: &Settings) -> Result<(), Failed> {
    let wrong = [
        (settings.hops > MAX_HOPS, "there may be four hops at most"),
        (
            settings.hops == 0 && settings.transfer == Transfer::Stream,
            "a stream needs a relay: take at least one hop",
        ),
        (
            !(0.0..1.0).contains(&settings.loss),
            "the loss is a share, from 0 to below 1",
        ),
        (
            !(settings.queue > 0.0 && settings.queue <= 1000.0),
            "the queue is a multiple of a round trip's bytes, above 0 and up to 1000",
        ),
        (settings.bytes == 0, "there is nothing to transfer"),
    ];
    let wrong = wrong.into_iter().find(|(wrong, _)| *wrong);
    wrong.map_or(Ok(()), |(_, why)| Err(Failed::Wrong(why)))
}

/// A packet under way. The earliest comes first, of those at once the one that was sent first.
struct Arrival {
    at: Instant,
    serial: u64,
    node: usize,
    way: Way,
    packet: Bytes,
}

impl Arrival {
    const fn order(&self) -> (Instant, u64) {
        (self.at, self.serial)
    }
}

impl PartialEq for Arrival {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Arrival {}

impl PartialOrd for Arrival {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Arrival {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

/// Node 0 is the client, the last one the server, the relays stand between; link `i` is between node `i` and the next.
struct World<'a> {
    settings: &'a Settings,
    cryptography: Cryptography,
    now: Instant,
    /// The client's ends: of its tunnel to each relay, and of the connection to the server.
    client: Vec<End>,
    /// Each relay's end of its tunnel.
    relays: Vec<End>,
    server: Option<End>,
    links: Vec<Line>,
    under_way: BinaryHeap<Reverse<Arrival>>,
    serial: u64,
    /// Until when each node's processor is busy.
    busy: Vec<Instant>,
    random: Random,
    books: Arc<Books>,
    transfer: end::Exchange,
    dropped_at_relays: u64,
}

impl<'a> World<'a> {
    fn new(settings: &'a Settings) -> Result<Self, Failed> {
        let now = Instant::now();
        NOW.set(Some(now));
        let nodes = settings.hops + 2;
        let books = Books::new(nodes);
        let step = settings.delay / 5;
        let links = (0..=settings.hops).map(|link| {
            let last = link == settings.hops;
            let steps = u32::try_from(settings.hops).unwrap_or(u32::MAX);
            let delay = if last {
                settings.delay.saturating_sub(step * steps)
            } else {
                step
            };
            if link == 0 {
                Line::access(settings, delay, now)
            } else {
                Line::free(delay, now)
            }
        });
        Ok(Self {
            settings,
            cryptography: Cryptography::new(&books)?,
            now,
            client: Vec::new(),
            relays: Vec::new(),
            server: None,
            links: links.collect(),
            under_way: BinaryHeap::new(),
            serial: 0,
            busy: vec![now; nodes],
            random: Random::new(settings.seed, "cascade", 0),
            books,
            transfer: end::Exchange::default(),
            dropped_at_relays: 0,
        })
    }

    /// The client's tunnel to one more relay, and what both ends agree on.
    fn dial(&mut self, hop: usize) -> Result<(), Failed> {
        let carries_next = hop + 1 < self.settings.hops;
        let request = self.settings.policy.of_hop(hop + 1).for_hop(carries_next);
        let near = ConnectionController::client(request, end::INBOX);
        let far = ConnectionController::relay(TuningGrant::default(), end::INBOX);
        let settings = (near.tuning_setting(), far.tuning_setting());
        self.connect(hop + 1, Some([near.clone(), far.clone()]))?;
        near.agree_tuning(Some(settings.1));
        far.agree_tuning(Some(settings.0));
        Ok(())
    }

    /// A connection between the client and the node, within the client's tunnels.
    fn connect(
        &mut self,
        node: usize,
        controllers: Option<[ConnectionController; 2]>,
    ) -> Result<(), Failed> {
        let mtu = match self.client.last_mut() {
            Some(tunnel) => tunnel.carries(),
            None => LARGEST,
        };
        let [near, far] = controllers.map_or([None, None], |all| all.map(Some));
        let address = SocketAddr::from(([10, 0, 0, 1], u16::try_from(node).unwrap_or(0) + 1));
        let seeds = [self.random.bytes(), self.random.bytes()];
        let far = End::listening(&self.cryptography, node, mtu, far, seeds[1]);
        let near = End::dialling(
            &self.cryptography,
            (self.now, address),
            (node, mtu),
            near,
            seeds[0],
        )?;
        self.client.push(near);
        if node > self.settings.hops {
            self.server = Some(far);
        } else {
            self.relays.push(far);
        }
        self.until(
            |world| {
                let near = world.client.last().is_some_and(|end| end.connected);
                near && world.far(node).is_some_and(|end| end.connected)
            },
            "a connection",
        )
    }

    fn far(&self, node: usize) -> Option<&End> {
        if node > self.settings.hops {
            self.server.as_ref()
        } else {
            self.relays.get(node.checked_sub(1)?)
        }
    }

    /// What is measured begins: at another time within some milliseconds with each seed.
    fn begin(&mut self) -> Result<(), Failed> {
        let phase = self.random.within(Duration::from_millis(10));
        self.wait(self.now + Duration::from_millis(200) + phase);
        self.books.begin();
        let (asked, answered) = match self.settings.transfer {
            Transfer::Upload => (self.settings.bytes, 0),
            _ => (REQUEST, self.settings.bytes),
        };
        self.transfer = end::Exchange::new(self.now, asked, answered);
        if self.settings.transfer != Transfer::Stream {
            return self.connect(self.settings.hops + 1, None);
        }
        let ends = self.client.last().into_iter().chain(self.relays.last());
        ends.for_each(End::stream_begins);
        Ok(())
    }

    fn at(&mut self, now: Instant) {
        self.now = now;
        NOW.set(Some(now));
    }

    /// Lets so much time pass.
    fn wait(&mut self, end: Instant) {
        self.settle();
        while let Some(next) = self.next().filter(|next| *next <= end) {
            self.step(next);
        }
        self.at(end);
    }

    fn step(&mut self, next: Instant) {
        self.at(self.now.max(next));
        self.fire();
        self.arrive();
        self.settle();
    }

    /// Lets time pass until it is so.
    fn until(&mut self, over: impl Fn(&Self) -> bool, what: &str) -> Result<(), Failed> {
        let end = self.now + PATIENCE;
        self.settle();
        while !over(self) {
            let Some(next) = self.next().filter(|next| *next <= end) else {
                return Err(self.stuck(what));
            };
            self.step(next);
        }
        Ok(())
    }

    fn stuck(&self, what: &str) -> Failed {
        let ends = self.client.iter().chain(&self.relays).chain(&self.server);
        let lost: Vec<_> = ends.filter_map(|end| end.lost.clone()).collect();
        Failed::Stuck {
            hops: self.settings.hops,
            policy: self.settings.policy.name.clone(),
            seconds: PATIENCE.as_secs(),
            what: format!("{what} ({})", lost.join(", ")),
        }
    }

    /// When something happens next.
    fn next(&mut self) -> Option<Instant> {
        let arrival = self.under_way.peek().map(|Reverse(next)| next.at);
        let busy = &self.busy;
        let free = |node: usize| busy.get(node).copied();
        let server = self.settings.hops + 1;
        let client = self.client.iter_mut().map(|end| (0, end));
        let relays = self
            .relays
            .iter_mut()
            .zip(1..)
            .map(|(end, node)| (node, end));
        let server = self.server.iter_mut().map(|end| (server, end));
        let timers = client.chain(relays).chain(server);
        let timers = timers.filter_map(|(node, end)| Some(end.timeout()?.max(free(node)?)));
        timers.chain(arrival).min()
    }

    fn fire(&mut self) {
        let (now, busy, server) = (self.now, &self.busy, self.settings.hops + 1);
        let is_free = |node: usize| busy.get(node).is_some_and(|free| *free <= now);
        if is_free(0) {
            self.client.iter_mut().for_each(|end| end.fire(now));
        }
        for (end, node) in self.relays.iter_mut().zip(1..) {
            if is_free(node) {
                end.fire(now);
            }
        }
        if is_free(server) {
            self.server.iter_mut().for_each(|end| end.fire(now));
        }
    }

    /// What is there now is handed over; what finds its node's processor busy waits for it.
    fn arrive(&mut self) {
        while let Some(Reverse(next)) = self.under_way.peek()
            && next.at <= self.now
        {
            let Some(Reverse(arrival)) = self.under_way.pop() else {
                return;
            };
            match self.busy.get(arrival.node) {
                Some(free) if *free > self.now => {
                    let later = Arrival {
                        at: *free,
                        ..arrival
                    };
                    self.under_way.push(Reverse(later));
                }
                _ => {
                    self.deliver(arrival);
                    // Nothing comes of it later than it is worked on.
                    self.settle();
                }
            }
        }
    }

    fn deliver(&mut self, arrival: Arrival) {
        let Arrival {
            node, way, packet, ..
        } = arrival;
        if node == 0 {
            self.received(0, &packet);
        } else if node > self.settings.hops {
            let now = self.now;
            self.server.iter_mut().for_each(|end| {
                end.handle(now, &packet);
            });
        } else {
            self.relay(node, way, &packet);
        }
    }

    /// A packet of the client's connection to the relay `layer` has come, or of the one to the server.
    fn received(&mut self, layer: usize, packet: &[u8]) {
        let now = self.now;
        let Some(end) = self.client.get_mut(layer) else {
            return;
        };
        for datagram in end.handle(now, packet) {
            self.received(layer + 1, &datagram);
        }
    }

    fn relay(&mut self, node: usize, way: Way, packet: &[u8]) {
        let now = self.now;
        let Some(end) = self.relays.get_mut(node - 1) else {
            return;
        };
        match way {
            Way::Up => {
                for datagram in end.handle(now, packet) {
                    self.send(node, Way::Up, datagram);
                }
            }
            // A relay drops the newest when a tunnel's queue is full.
            Way::Down => self.dropped_at_relays += u64::from(!end.push(packet)),
        }
    }

    /// All that can be sent or read now is.
    fn settle(&mut self) {
        while self.exchange() | self.flush_client() | self.flush_relays() | self.flush_server() {}
        for (node, busy) in self.busy.iter_mut().enumerate() {
            let work = self.settings.work * self.books.take_work(node);
            *busy = (*busy).max(self.now) + work;
        }
    }

    fn exchange(&mut self) -> bool {
        let now = self.now;
        let ends = match (self.settings.transfer, &mut self.server) {
            (Transfer::Stream, _) => self.client.last_mut().zip(self.relays.last_mut()),
            (_, Some(server)) => self.client.last_mut().zip(Some(server)),
            _ => None,
        };
        ends.is_some_and(|(near, far)| self.transfer.go_on(now, near, far))
    }

    fn flush_client(&mut self) -> bool {
        let mut any = false;
        for layer in (0..self.client.len()).rev() {
            while let Some(packet) = self.next_of_client(layer) {
                any = true;
                match layer
                    .checked_sub(1)
                    .and_then(|below| self.client.get_mut(below))
                {
                    Some(tunnel) => {
                        tunnel.push(&packet);
                    }
                    None => self.send(0, Way::Up, packet),
                }
            }
        }
        any
    }

    /// The client's stack pushes back: a packet is only made when the tunnel below has room for it.
    fn next_of_client(&mut self, layer: usize) -> Option<Bytes> {
        let below = layer
            .checked_sub(1)
            .and_then(|below| self.client.get_mut(below));
        if below.is_some_and(|tunnel| !tunnel.has_room()) {
            return None;
        }
        self.client.get_mut(layer)?.transmit(self.now, &self.books)
    }

    fn flush_relays(&mut self) -> bool {
        let mut any = false;
        for relay in 0..self.relays.len() {
            while let Some(packet) = self
                .relays
                .get_mut(relay)
                .and_then(|end| end.transmit(self.now, &self.books))
            {
                any = true;
                self.send(relay + 1, Way::Down, packet);
            }
        }
        any
    }

    fn flush_server(&mut self) -> bool {
        let (mut any, node) = (false, self.settings.hops + 1);
        while let Some(packet) = self
            .server
            .as_mut()
            .and_then(|end| end.transmit(self.now, &self.books))
        {
            any = true;
            self.send(node, Way::Down, packet);
        }
        any
    }

    /// Puts a packet on the link that leads this way from the node.
    fn send(&mut self, node: usize, way: Way, packet: Bytes) {
        let (link, to) = match way {
            Way::Up => (node, node + 1),
            Way::Down => (node - 1, node - 1),
        };
        let Some(line) = self.links.get_mut(link) else {
            return;
        };
        let Some(at) = line.send(self.now, way, packet.len()) else {
            self.books.forget(&packet);
            return;
        };
        if link == 0 {
            self.books.count(way, &packet);
            if self.random.happens(self.settings.loss) {
                return;
            }
        }
        self.serial += 1;
        self.under_way.push(Reverse(Arrival {
            at,
            serial: self.serial,
            node: to,
            way,
            packet,
        }));
    }

    fn outcome(&mut self) -> Outcome {
        let mut outcome = self.books.outcome();
        (outcome.ttfb_s, outcome.ttlb_s) = self.transfer.times();
        if let Some(access) = self.links.first() {
            (outcome.dropped_up, outcome.dropped_down) = access.dropped();
        }
        outcome.dropped_at_relays = self.dropped_at_relays;
        let tunnels = self.settings.hops;
        let mut sent = 0;
        for end in self.client.iter().take(tunnels).chain(&self.relays) {
            let path = end.path();
            sent += path.sent_packets;
            outcome.lost_in_tunnels += path.lost_packets;
            outcome.congestion_in_tunnels += path.congestion_events;
        }
        outcome.lost_in_tunnels_share = books::share(outcome.lost_in_tunnels.cast_signed(), sent);
        let ends = self.client.get(tunnels).into_iter().chain(&self.server);
        outcome.lost = ends.map(|end| end.path().lost_packets).sum();
        outcome
    }
}

// Figures of several runs, for a table.

/// What one policy came to in some runs.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The policy.
    pub policy: String,
    /// How many runs, each with another seed.
    pub n: usize,
    /// The median, the least and the most seconds to the last byte.
    pub ttlb_s: [f64; 3],
    /// Medians of all.
    pub median: Outcome,
}

impl Row {
    /// Runs a policy with the seeds from that of the settings on.
    ///
    /// # Errors
    /// The first run that failed.
    pub fn of(settings: &Settings, runs: u64) -> Result<Self, Failed> {
        let seeds = (0..runs.max(1)).map(|run| settings.seed.saturating_add(run));
        let outcomes: Result<Vec<_>, _> = seeds
            .map(|seed| {
                run(&Settings {
                    seed,
                    ..settings.clone()
                })
            })
            .collect();
        let outcomes = outcomes?;
        let median = |of: fn(&Outcome) -> f64| middle(outcomes.iter().map(of));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a median of counts is a count"
        )]
        let count = |of: fn(&Outcome) -> u64| {
            #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
            let counts = outcomes.iter().map(|outcome| of(outcome) as f64);
            middle(counts).round() as u64
        };
        let times = outcomes.iter().map(|outcome| outcome.ttlb_s);
        Ok(Self {
            policy: settings.policy.name.clone(),
            n: outcomes.len(),
            ttlb_s: [
                middle(times.clone()),
                times.clone().fold(f64::INFINITY, f64::min),
                times.fold(0.0, f64::max),
            ],
            median: Outcome {
                ttlb_s: median(|outcome| outcome.ttlb_s),
                ttfb_s: median(|outcome| outcome.ttfb_s),
                up_bytes: count(|outcome| outcome.up_bytes),
                down_bytes: count(|outcome| outcome.down_bytes),
                ack_share: median(|outcome| outcome.ack_share),
                ack_share_up: median(|outcome| outcome.ack_share_up),
                ack_share_down: median(|outcome| outcome.ack_share_down),
                overhead_share: median(|outcome| outcome.overhead_share),
                ack_frames_per_packet: median(|outcome| outcome.ack_frames_per_packet),
                dropped_up: count(|outcome| outcome.dropped_up),
                dropped_down: count(|outcome| outcome.dropped_down),
                dropped_at_relays: count(|outcome| outcome.dropped_at_relays),
                lost_in_tunnels: count(|outcome| outcome.lost_in_tunnels),
                lost_in_tunnels_share: median(|outcome| outcome.lost_in_tunnels_share),
                congestion_in_tunnels: count(|outcome| outcome.congestion_in_tunnels),
                lost: count(|outcome| outcome.lost),
            },
        })
    }
}

/// The median; 0 of nothing.
fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or_default();
    let half = values.len() / 2;
    if values.len() % 2 == 1 {
        at(half)
    } else {
        f64::midpoint(at(half.saturating_sub(1)), at(half))
    }
}

impl Row {
    /// What the columns of [`fmt::Display`] are.
    pub const HEAD: &'static str = "policy        n  ttlb_s (least - most)      acks %   up % down %  overhead %  frames  queue up/down  relays  tunnels lost/told  lost %  lost";
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            policy,
            n,
            ttlb_s: [median, least, most],
            median: of,
        } = self;
        let percent = |share: f64| share * 100.0;
        write!(
            f,
            "{policy:<12} {n:>2}  {median:.3} ({least:.3} - {most:.3})  {:>6.2} {:>6.2} {:>6.2}  {:>10.2}  {:>6.2}  {:>6}/{:<6}  {:>6}  {:>8}/{:<8}  {:>6.2}  {:>4}",
            percent(of.ack_share),
            percent(of.ack_share_up),
            percent(of.ack_share_down),
            percent(of.overhead_share),
            of.ack_frames_per_packet,
            of.dropped_up,
            of.dropped_down,
            of.dropped_at_relays,
            of.lost_in_tunnels,
            of.congestion_in_tunnels,
            percent(of.lost_in_tunnels_share),
            of.lost,
        )
    }
}
