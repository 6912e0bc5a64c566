//! Who may have how much: connections, requests, flows of packets, look-ups, echoes and bandwidth, of one client and of all. Handlers hold
//! the permits. A client is a token, or an address prefix hashed with a key of this process: no address is kept.
//!
//! Of whatever there is a number of, no client has more than are left free for others: however many want everything, each of them holds as
//! much as the others and as much is free, so that one that has little is always let in (dynamic thresholds: Choudhury and Hahne, 1998).
//! Of what there is a rate of, an equal share is each client's who has a request open, and what they leave is anybody's.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};
use hoplite_wire::networks::customer_network;
use parking_lot::Mutex;

use crate::{
    config::{self, Limits},
    metrics::Level,
    status::Use,
};

mod bucket;
pub(crate) mod memory;
mod places;
mod unvalidated;

pub(crate) use bucket::Bucket;
use memory::Memory;
pub(crate) use memory::{
    Account, HeldPart, INITIAL_WINDOWS, InHand, MemoryReservation, Stalled, TUNNEL, Transport,
};
use places::Places;
pub(crate) use places::{Busy, Place};
use unvalidated::HandshakeBounds;
pub(crate) use unvalidated::{Room, UnvalidatedHandshakes};

/// From 32768 to 60999, where the system does not say.
const USUAL_PORTS: usize = 28_232;

/// Bytes that a datagram has beside its payload: IPv4's header and UDP's.
const DATAGRAM_HEADERS: usize = 28;

/// Below this many clients nobody is forgotten.
const FEW: usize = 1024;

/// Who a client is, to the limits only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientKey(u64);

/// Which limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// Too much of all clients together.
    Total,
    /// Too much of this client.
    Client,
}

/// The relay's limits and what is used of them.
#[derive(Debug)]
pub(crate) struct Quotas {
    limits: ArcSwap<Limits>,
    ip: config::Ip,
    hasher: RandomState,
    places: Arc<Places>,
    handshakes: Arc<HandshakeBounds>,
    memory: Arc<Memory>,
    /// How often there was no memory left for a client that had none.
    memory_short: AtomicU64,
    /// A flood of handshakes is over.
    handshakes_fallen: Arc<AtomicBool>,
    all: Arc<Usage>,
    clients: Mutex<Clients>,
}

struct Clients {
    /// Bounded by twice the clients that hold a permit, or a few.
    known: HashMap<ClientKey, Arc<Usage>>,
    sweep_at: usize,
}

/// What there is a number of.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Request,
    IpFlow,
    Udp,
    Id,
    LookUp,
}

/// What somebody uses now.
#[derive(Debug)]
struct Usage {
    places: [AtomicUsize; 5],
    /// Of all: how many ids may be registered.
    ids: usize,
    /// Of all: the clients that have a request open.
    active: AtomicUsize,
    bandwidth: Bucket,
    queries: Bucket,
    /// Of one client: targets that are names.
    names: Bucket,
    echoes: Bucket,
    /// Of one client: its part of the bandwidth and of the echoes of all.
    share: Bucket,
    echo_share: Bucket,
}

/// An admitted request, flow of packets or look-up; dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct QuotaGuard {
    client: Arc<Usage>,
    all: Arc<Usage>,
    kind: Kind,
}

/// How fast one request may go.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    client: Arc<Usage>,
    all: Arc<Usage>,
}

/// For whom the resolver is asked.
#[derive(Debug)]
pub(crate) struct QueryQuota<'a> {
    quotas: &'a Quotas,
    /// `None`: the question has its place already.
    client: Option<Arc<Usage>>,
}

impl Quotas {
    /// Nothing is used yet.
    pub(crate) fn new(limits: Limits, ip: config::Ip, ids: usize) -> Self {
        let limits = settled(limits);
        let all = Usage {
            bandwidth: Bucket::bits_per_second(limits.bandwidth),
            echoes: Bucket::per_second(ip.echoes),
            ids,
            ..Usage::unlimited()
        };
        Self {
            places: Places::new(&limits),
            handshakes: HandshakeBounds::new(&limits),
            memory: Memory::new(&limits),
            memory_short: AtomicU64::new(0),
            handshakes_fallen: Arc::default(),
            all: Arc::new(all),
            limits: ArcSwap::from_pointee(limits),
            ip,
            hasher: RandomState::new(),
            clients: Mutex::new(Clients {
                known: HashMap::new(),
                sweep_at: FEW,
            }),
        }
    }

    /// From now on these hold. Nobody loses what he has: where there is less now, newcomers find less.
    pub(crate) fn set_limits(&self, limits: Limits) {
        let limits = Arc::new(settled(limits));
        self.places.set_bounds(&limits);
        self.handshakes.set(&limits);
        self.memory.set_most(limits.memory);
        self.all.bandwidth.set_bits_per_second(limits.bandwidth);
        // Before those that are known are told: who comes to be known meanwhile has it from here.
        self.limits.store(Arc::clone(&limits));
        for client in self.clients.lock().known.values() {
            let Usage {
                bandwidth,
                share,
                queries,
                names,
                ..
            } = &**client;
            bandwidth.set_bits_per_second(limits.bandwidth_per_client);
            share.set_bits_per_second(limits.bandwidth);
            queries.set_per_second(limits.queries_per_client);
            names.set_per_second(limits.queries_per_client);
        }
    }

    fn limits(&self) -> Guard<Arc<Limits>> {
        self.limits.load()
    }

    /// The client at this address: an IPv4 address, or an IPv6 /56 (what one customer gets, RFC 6177).
    pub(crate) fn by_address(&self, ip: IpAddr) -> ClientKey {
        ClientKey(self.hasher.hash_one(customer_network(ip)))
    }

    /// The holder of the token with this index.
    pub(crate) fn by_token(&self, index: usize) -> ClientKey {
        ClientKey(self.hasher.hash_one(("token", index)))
    }

    /// Whoever has spent the token with this nonce.
    pub(crate) fn by_private_token(&self, nonce: &[u8; 32]) -> ClientKey {
        ClientKey(self.hasher.hash_one(("private token", nonce)))
    }

    /// The relay with this identity, which was dialled.
    pub(crate) fn by_identity(&self, identity: &[u8; 32]) -> ClientKey {
        ClientKey(self.hasher.hash_one(("relay", identity)))
    }

    /// Gives a connection a place; one that is idle may have to make room for it.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn connection(&self, key: ClientKey) -> Result<Place, Reached> {
        self.places.enter(key)
    }

    /// Opens an account of memory for a connection.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn account(&self, key: ClientKey) -> Result<Account, Reached> {
        let account = self.memory.enter(key, self.limits().stream_window);
        if matches!(account, Err(Reached::Total)) {
            self.memory_short.fetch_add(1, Ordering::Relaxed);
        }
        account
    }

    /// How often there was no memory left for a client that had none: whoever has taken his share and wants more says nothing of the relay.
    pub(crate) fn memory_short(&self) -> u64 {
        self.memory_short.load(Ordering::Relaxed)
    }

    /// A pool of handshakes with clients whose addresses are not validated, for one shard.
    pub(crate) fn unvalidated(&self) -> UnvalidatedHandshakes {
        UnvalidatedHandshakes::new(
            Arc::clone(&self.handshakes),
            Arc::clone(&self.handshakes_fallen),
        )
    }

    /// Whether connections, or handshakes of unvalidated addresses, hold much less memory than they did when this was last so.
    pub(crate) fn has_fallen(&self) -> bool {
        let handshakes = self.handshakes_fallen.swap(false, Ordering::Relaxed);
        self.memory.has_fallen() || handshakes
    }

    /// Shows on this level how many bytes of memory are promised to clients' streams.
    pub(crate) fn show_memory(&self, level: &Level) {
        self.memory.show(level);
    }

    /// Clients that have a request open.
    pub(crate) fn users(&self) -> u64 {
        number(self.all.active.load(Ordering::Relaxed))
    }

    /// What all clients may move, in bit/s; 0 is no limit.
    pub(crate) fn bandwidth(&self) -> u64 {
        self.limits().bandwidth
    }

    /// How near the limits of all clients are.
    pub(crate) fn uses(&self) -> Vec<Use> {
        let (held, waiting) = self.places.held();
        let limits = self.limits();
        let taken = |kind| self.all.places(kind).load(Ordering::Relaxed);
        let counts = [
            ("limits.connections", held, limits.connections),
            ("limits.waiting", waiting, limits.waiting),
            ("limits.requests", taken(Kind::Request), limits.requests),
            ("limits.udp_tunnels", taken(Kind::Udp), limits.udp_tunnels),
            ("limits.lookups", taken(Kind::LookUp), limits.lookups),
            ("ip.flows", taken(Kind::IpFlow), self.ip.flows),
            ("forwarding.ids", taken(Kind::Id), self.all.ids),
        ];
        let counts = counts.map(|(limit, used, most)| (limit, number(used), number(most)));
        let (used, most) = self.memory.promised();
        let all = counts.into_iter().chain([("limits.memory", used, most)]);
        let all = all.map(|(limit, used, most)| Use {
            limit: limit.into(),
            used,
            most,
        });
        all.collect()
    }

    /// Whether a connection would get a place.
    pub(crate) fn admits_connection(&self, key: ClientKey) -> bool {
        self.places.admits(key)
    }

    /// Sends an idle connection away, because the system is short of something.
    pub(crate) fn free_one(&self) -> bool {
        self.places.free_one()
    }

    /// Admits a request.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn request(&self, key: ClientKey) -> Result<QuotaGuard, Reached> {
        let limits = self.limits();
        let limits = (limits.requests_per_client, limits.requests);
        self.quota(self.usage(key), Kind::Request, limits)
    }

    /// Admits a flow of packets of the client that has this request.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn ip_flow(&self, request: &QuotaGuard) -> Result<QuotaGuard, Reached> {
        let limits = (self.ip.flows_per_client, self.ip.flows);
        self.quota(Arc::clone(&request.client), Kind::IpFlow, limits)
    }

    /// Admits a UDP tunnel, which holds one of the host's ports, of the client that has this request.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn udp(&self, request: &QuotaGuard) -> Result<QuotaGuard, Reached> {
        let total = self.limits().udp_tunnels;
        self.quota(Arc::clone(&request.client), Kind::Udp, (total, total))
    }

    /// The client that has this request.
    pub(crate) fn queries(&self, request: &QuotaGuard) -> QueryQuota<'_> {
        QueryQuota {
            quotas: self,
            client: Some(Arc::clone(&request.client)),
        }
    }

    /// Whoever asks has a place: a circuit's stream takes that of its client.
    pub(crate) fn placed(&self) -> QueryQuota<'_> {
        QueryQuota {
            quotas: self,
            client: None,
        }
    }

    fn usage(&self, key: ClientKey) -> Arc<Usage> {
        let mut clients = self.clients.lock();
        let limits = self.limits();
        clients.usage(key, || Usage {
            bandwidth: Bucket::bits_per_second(limits.bandwidth_per_client),
            queries: Bucket::per_second(limits.queries_per_client),
            names: Bucket::per_second(limits.queries_per_client),
            echoes: Bucket::per_second(self.ip.echoes_per_client),
            share: Bucket::bits_per_second(limits.bandwidth),
            echo_share: Bucket::per_second(self.ip.echoes),
            ..Usage::unlimited()
        })
    }

    fn quota(
        &self,
        client: Arc<Usage>,
        kind: Kind,
        limits: (usize, usize),
    ) -> Result<QuotaGuard, Reached> {
        QuotaGuard::take(client, Arc::clone(&self.all), kind, limits)
    }
}

impl Clients {
    fn usage(&mut self, key: ClientKey, fresh: impl FnOnce() -> Usage) -> Arc<Usage> {
        if self.known.len() >= self.sweep_at {
            // Whoever is looked up at this moment is held by more than the table.
            self.known
                .retain(|_, usage| Arc::strong_count(usage) > 1 || !usage.is_idle());
            self.sweep_at = FEW.max(self.known.len() * 2);
        }
        let usage = self.known.entry(key).or_insert_with(|| fresh().into());
        Arc::clone(usage)
    }
}

/// What stands for the machine's own measure is that.
fn settled(mut limits: Limits) -> Limits {
    if limits.udp_tunnels == 0 {
        limits.udp_tunnels = ports() / 8 * 7;
    }
    if limits.memory == 0 {
        limits.memory = memory::of_machine() / 4;
    }
    limits.waiting = limits.waiting.min(memory::waiting(limits.memory));
    limits
}

fn number(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// How many ports the system gives out by itself (ip(7)): UDP sockets of any address share them, those of the resolver too.
fn ports() -> usize {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    text.ok()
        .and_then(|text| range(&text))
        .filter(|ports| *ports >= 8)
        .unwrap_or(USUAL_PORTS)
}

fn range(text: &str) -> Option<usize> {
    let (first, last) = text.trim().split_once(char::is_whitespace)?;
    let (first, last): (usize, usize) = (first.parse().ok()?, last.trim().parse().ok()?);
    last.checked_sub(first).map(|more| more + 1)
}

/// Takes one of `limit` places; how many were taken before.
fn take(count: &AtomicUsize, limit: usize) -> Option<usize> {
    let more = |n| (n < limit).then_some(n + 1);
    count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
        .ok()
}

impl Usage {
    fn unlimited() -> Self {
        Self {
            places: Default::default(),
            ids: 0,
            active: AtomicUsize::new(0),
            bandwidth: Bucket::unlimited(),
            queries: Bucket::unlimited(),
            names: Bucket::unlimited(),
            echoes: Bucket::unlimited(),
            share: Bucket::unlimited(),
            echo_share: Bucket::unlimited(),
        }
    }

    fn places(&self, kind: Kind) -> &AtomicUsize {
        let [requests, ip_flows, udp, ids, look_ups] = &self.places;
        match kind {
            Kind::Request => requests,
            Kind::IpFlow => ip_flows,
            Kind::Udp => udp,
            Kind::Id => ids,
            Kind::LookUp => look_ups,
        }
    }

    fn is_idle(&self) -> bool {
        let buckets = [
            &self.bandwidth,
            &self.queries,
            &self.names,
            &self.echoes,
            &self.share,
            &self.echo_share,
        ];
        let owes = buckets.iter().any(|bucket| bucket.is_in_debt());
        self.places.iter().all(|n| n.load(Ordering::Relaxed) == 0) && !owes
    }

    /// Of all: how many clients share.
    fn sharers(&self) -> usize {
        self.active.load(Ordering::Relaxed).max(1)
    }
}

impl QuotaGuard {
    fn take(
        client: Arc<Usage>,
        all: Arc<Usage>,
        kind: Kind,
        (per_client, total): (usize, usize),
    ) -> Result<Self, Reached> {
        let taken = take(all.places(kind), total).ok_or(Reached::Total)?;
        let free = total.saturating_sub(taken);
        let Some(had) = take(client.places(kind), per_client.min(free)) else {
            all.places(kind).fetch_sub(1, Ordering::Relaxed);
            return Err(Reached::Client);
        };
        if had == 0 && matches!(kind, Kind::Request) {
            all.active.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Self { client, all, kind })
    }

    /// The pace that whoever holds this permit keeps.
    pub(crate) fn pace(&self) -> Pace {
        Pace {
            client: self.client.clone(),
            all: self.all.clone(),
        }
    }
}

impl Drop for QuotaGuard {
    fn drop(&mut self) {
        let had = self
            .client
            .places(self.kind)
            .fetch_sub(1, Ordering::Relaxed);
        self.all.places(self.kind).fetch_sub(1, Ordering::Relaxed);
        if had == 1 && matches!(self.kind, Kind::Request) {
            self.all.active.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl QueryQuota<'_> {
    /// Whether the client may ask the resolver now.
    pub(crate) fn admits_query(&self) -> bool {
        let client = self.client.as_ref();
        client.is_none_or(|client| client.queries.admits(1))
    }

    /// Whether the client may open a flow to a name now. Apart from its queries: a program that floods the resolver keeps no other one's flow from
    /// opening.
    pub(crate) fn admits_name(&self) -> bool {
        let client = self.client.as_ref();
        client.is_none_or(|client| client.names.admits(1))
    }

    /// A place for a question that was admitted, until it is answered.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn look_up(&self) -> Result<Option<QuotaGuard>, Reached> {
        let total = self.quotas.limits().lookups;
        let client = self.client.as_ref().map(Arc::clone);
        client
            .map(|client| self.quotas.quota(client, Kind::LookUp, (total, total)))
            .transpose()
    }
}

impl Pace {
    /// Whether anything is ever held back.
    pub(crate) fn is_limited(&self) -> bool {
        self.client.bandwidth.is_limited() || self.all.bandwidth.is_limited()
    }

    /// Admits an id of forwarded mode.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn id(&self) -> Result<QuotaGuard, Reached> {
        let (client, all) = (Arc::clone(&self.client), Arc::clone(&self.all));
        let total = all.ids;
        QuotaGuard::take(client, all, Kind::Id, (total, total))
    }

    /// Whether `bytes` may pass now; if not they are to be dropped. For datagrams.
    pub(crate) fn admits(&self, bytes: usize) -> bool {
        self.client.bandwidth.admits(bytes)
            && (self.is_within_share(bytes) || self.all.bandwidth.admits(bytes))
    }

    /// The same for so many datagrams whose payloads have `bytes`: each is a packet, with nothing in it, too.
    pub(crate) fn admits_datagrams(&self, count: usize, bytes: usize) -> bool {
        let headers = count.saturating_mul(DATAGRAM_HEADERS);
        self.admits(bytes.saturating_add(headers))
    }

    /// Whether one more echo may pass.
    pub(crate) fn admits_echo(&self) -> bool {
        let Usage {
            echoes, echo_share, ..
        } = &*self.client;
        echoes.admits(1)
            && (shares(echo_share, &self.all.echoes, 1, self.all.sharers())
                || self.all.echoes.admits(1))
    }

    /// Counts `bytes` that have passed, and waits until the debt is paid. For streams.
    pub(crate) async fn spend(&self, bytes: usize) {
        let wait = self.owes(bytes);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Counts `bytes` that have passed; how long it takes until the debt is paid.
    pub(crate) fn owes(&self, bytes: usize) -> Duration {
        let client = self.client.bandwidth.spend(bytes);
        if self.is_within_share(bytes) {
            client
        } else {
            client.max(self.all.bandwidth.spend(bytes))
        }
    }

    fn is_within_share(&self, bytes: usize) -> bool {
        let all = &self.all.bandwidth;
        shares(&self.client.share, all, bytes, self.all.sharers())
    }
}

/// Takes from a client's own part of what all have. It is counted for all, who have less to give beyond their parts for it.
fn shares(own: &Bucket, all: &Bucket, bytes: usize, sharers: usize) -> bool {
    let within = all.is_limited() && own.admits(bytes.saturating_mul(sharers));
    if within {
        all.spend(bytes);
    }
    within
}

impl ClientKey {
    /// The same for whoever counts beside the quotas; it is another one in the next process.
    pub(crate) const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientKey(hidden)")
    }
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clients({})", self.known.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotas(change: fn(&mut Limits)) -> Quotas {
        let mut limits = Limits::default();
        change(&mut limits);
        Quotas::new(limits, config::Ip::default(), 100)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    /// Takes as many as it gets.
    fn all_of(quotas: &Quotas, key: ClientKey) -> Vec<QuotaGuard> {
        std::iter::from_fn(|| quotas.request(key).ok()).collect()
    }

    #[test]
    fn memory_is_short_when_there_is_none_for_a_newcomer_and_not_when_one_client_wants_more() {
        let roomy = quotas(|limits| limits.memory = 1 << 20);
        let greedy = roomy.by_token(1);
        let held: Vec<_> = std::iter::from_fn(|| roomy.account(greedy).ok()).collect();
        assert!(!held.is_empty() && roomy.account(greedy).is_err());
        assert_eq!(roomy.memory_short(), 0, "of one client's doing");
        let tight = quotas(|limits| limits.memory = 1);
        assert!(tight.account(tight.by_token(1)).is_err());
        assert_eq!(tight.memory_short(), 1);
    }

    #[test]
    fn whoever_wants_everything_leaves_as_much_free_as_it_has() {
        let quotas = quotas(|limits| limits.requests = 1000);
        let greedy: Vec<_> = (0..9)
            .map(|n| all_of(&quotas, quotas.by_token(n)))
            .collect();
        let first = greedy[0].len();
        assert!((450..=500).contains(&first), "{first}");
        let held: usize = greedy.iter().map(Vec::len).sum();
        assert!(held < 1000, "{held}");
        let quiet = quotas.by_token(100);
        assert!(quotas.request(quiet).is_ok(), "a quiet client is served");
        drop(greedy);
        let (one, other) = (quotas.by_token(1), quotas.by_token(2));
        // In turn they come to the same.
        let mut held = [Vec::new(), Vec::new()];
        for _ in 0..1000 {
            held[0].extend(quotas.request(one).ok());
            held[1].extend(quotas.request(other).ok());
        }
        assert!(held.iter().all(|held| (330..=334).contains(&held.len())));
    }

    #[test]
    fn flows_of_packets_of_one_client_leave_room_for_anothers() {
        let ip = config::Ip {
            flows: 100,
            flows_per_client: 20,
            ..config::Ip::default()
        };
        let quotas = Quotas::new(Limits::default(), ip, 100);
        let requests = [0, 1].map(|n| quotas.request(quotas.by_token(n)).expect("free"));
        let greedy: Vec<_> = std::iter::from_fn(|| quotas.ip_flow(&requests[0]).ok()).collect();
        assert_eq!(greedy.len(), 20);
        assert!(quotas.ip_flow(&requests[1]).is_ok());
    }

    #[test]
    fn udp_tunnels_of_one_client_leave_ports_for_others_and_for_the_resolver() {
        for (text, ports) in [
            ("32768\t60999\n", Some(28_232)),
            ("1 1", Some(1)),
            ("9 1", None),
            ("", None),
        ] {
            assert_eq!(range(text), ports, "{text:?}");
        }
        let quotas = quotas(|_| ());
        let all = quotas.limits().udp_tunnels;
        assert!((7..65_536).contains(&all), "{all}");
        let requests = [0, 1].map(|n| quotas.request(quotas.by_token(n)).expect("free"));
        let held: Vec<_> = std::iter::from_fn(|| quotas.udp(&requests[0]).ok()).collect();
        assert_eq!(held.len(), all.div_ceil(2));
        assert!(quotas.udp(&requests[1]).is_ok());
    }

    #[test]
    fn ids_of_one_clients_tunnels_leave_room_for_anothers() {
        let quotas = quotas(|_| ());
        let requests = [0, 0, 1].map(|n| quotas.request(quotas.by_token(n)).expect("free"));
        let [one, more, other] = requests.each_ref().map(QuotaGuard::pace);
        let mut held: Vec<_> = std::iter::from_fn(|| one.id().ok()).collect();
        assert_eq!(held.len(), 50);
        assert!(more.id().is_err(), "whichever of its tunnels");
        assert!(other.id().is_ok());
        held.pop();
        assert!(more.id().is_ok());
    }

    #[test]
    fn look_ups_of_one_client_leave_half_of_the_resolver_for_others() {
        let quotas = quotas(|limits| limits.lookups = 100);
        let request = quotas.request(quotas.by_token(0)).expect("free");
        let greedy = quotas.queries(&request);
        let held: Vec<_> = std::iter::from_fn(|| greedy.look_up().ok()).collect();
        assert_eq!(held.len(), 50);
        let other = quotas.request(quotas.by_token(1)).expect("free");
        assert!(quotas.queries(&other).look_up().is_ok());
    }

    /// This many bytes of a thousand, offered all the time for a second, pass.
    async fn offered(paces: &[(&Pace, usize)]) -> Vec<usize> {
        let mut passed = vec![0; paces.len()];
        for _ in 0..1000 {
            tokio::time::advance(Duration::from_millis(1)).await;
            for ((pace, packets), passed) in paces.iter().zip(&mut passed) {
                *passed += (0..*packets).filter(|_| pace.admits(1000)).count();
            }
        }
        passed
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_one_client_leaves_another_its_share_of_the_bandwidth() {
        // A thousand packets a second.
        let quotas = quotas(|limits| limits.bandwidth = 8_000_000);
        let requests = [0, 1].map(|n| quotas.request(quotas.by_token(n)).expect("free"));
        let [greedy, other] = requests.each_ref().map(QuotaGuard::pace);
        // Each pays for its burst first.
        offered(&[(&greedy, 50)]).await;
        let passed = offered(&[(&greedy, 50), (&other, 1)]).await;
        assert!((490..=620).contains(&passed[1]), "{passed:?}");
        assert!((380..=620).contains(&passed[0]), "{passed:?}");
        assert!(passed[0] + passed[1] <= 1250, "{passed:?}");
        // Who is quiet leaves everything to the other.
        let passed = offered(&[(&greedy, 50), (&other, 0)]).await;
        assert!((900..=1110).contains(&passed[0]), "{passed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_within_its_share_does_not_wait_for_the_debts_of_another() {
        let quotas = quotas(|limits| limits.bandwidth = 8_000_000);
        let requests = [0, 1].map(|n| quotas.request(quotas.by_token(n)).expect("free"));
        let [greedy, other] = requests.each_ref().map(QuotaGuard::pace);
        for _ in 0..100 {
            greedy.owes(64_000);
        }
        assert!(greedy.owes(64_000) > Duration::from_secs(5));
        assert_eq!(other.owes(10_000), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn echoes_count_per_client_and_in_all_and_one_client_has_not_all_of_them() {
        let ip = config::Ip {
            echoes: 200,
            echoes_per_client: 150,
            ..config::Ip::default()
        };
        let quotas = Quotas::new(Limits::default(), ip, 100);
        let requests = [0, 1].map(|n| quotas.request(quotas.by_token(n)).expect("free"));
        let [greedy, other] = requests.each_ref().map(QuotaGuard::pace);
        let passed = |pace: &Pace| (0..1000).filter(|_| pace.admits_echo()).count();
        let first = passed(&greedy);
        assert!((150..=151).contains(&first), "{first}");
        let second = passed(&other);
        assert!((100..=151).contains(&second), "{second}");
    }

    #[test]
    fn a_place_that_was_given_back_can_be_taken_again() {
        let quotas = quotas(|limits| limits.requests_per_client = 2);
        let key = quotas.by_token(0);
        let first = quotas.request(key).expect("free");
        let _second = quotas.request(key).expect("free");
        assert_eq!(quotas.request(key).expect_err("full"), Reached::Client);
        drop(first);
        assert!(quotas.request(key).is_ok());
    }

    #[test]
    fn new_limits_hold_for_who_is_there_and_take_nothing_away() {
        let quotas = quotas(|limits| limits.requests_per_client = 3);
        let key = quotas.by_token(0);
        let held = all_of(&quotas, key);
        let pace = held[0].pace();
        assert_eq!((held.len(), pace.owes(1 << 30)), (3, Duration::ZERO));
        quotas.set_limits(Limits {
            requests_per_client: 1,
            bandwidth_per_client: 8_000,
            queries_per_client: 1,
            ..Limits::default()
        });
        assert_eq!(quotas.users(), 1, "what is open stays open");
        assert!(pace.owes(10_000) > Duration::from_secs(5));
        let asks = quotas.queries(&held[0]);
        let admitted = (0..10).filter(|_| asks.admits_query()).count();
        assert!((1..=2).contains(&admitted), "{admitted}");
        let mut held = held.into_iter();
        drop((held.next(), held.next()));
        assert_eq!(quotas.request(key).expect_err("full"), Reached::Client);
        drop(held);
        assert!(quotas.request(key).is_ok());
        assert_eq!(quotas.request(quotas.by_token(1)).map(drop), Ok(()));
    }

    #[test]
    fn one_client_does_not_take_the_places_of_another_but_all_share_the_total() {
        let quotas = quotas(|limits| {
            limits.requests = 2;
            limits.requests_per_client = 1;
        });
        let [a, b, c] =
            ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|text| quotas.by_address(ip(text)));
        let _a = quotas.request(a).expect("free");
        assert_eq!(quotas.request(a).expect_err("full"), Reached::Client);
        let _b = quotas.request(b).expect("free");
        assert_eq!(quotas.request(c).expect_err("full"), Reached::Total);
    }

    #[test]
    fn addresses_of_one_ipv6_customer_are_one_client() {
        let quotas = quotas(|_| ());
        let key = |text| quotas.by_address(ip(text));
        assert!(key("2001:db8:0:100::1") == key("2001:db8:0:1ff::2"));
        assert!(key("2001:db8:0:100::1") != key("2001:db8:0:200::1"));
        assert!(key("::ffff:192.0.2.1") == key("192.0.2.1"));
        assert!(key("192.0.2.1") != key("192.0.2.2"));
    }

    #[test]
    fn clients_that_left_are_forgotten() {
        let quotas = quotas(|_| ());
        for index in 0..10 * FEW {
            drop(quotas.request(quotas.by_token(index)));
        }
        let known = quotas.clients.lock().known.len();
        assert!(known <= FEW, "{known}");
    }
}
