//! Who may have how much: connections, requests and bandwidth, of one client and of all. Handlers hold the permits.
//! A client is a token, or an address prefix hashed with a key of this process: no address is kept.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::config::Limits;

mod bucket;

use bucket::Bucket;

/// Below this many clients nobody is forgotten.
const FEW: usize = 1024;

/// Who a client is, to the limits only.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
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
pub(crate) struct Gate {
    limits: Limits,
    hasher: RandomState,
    all: Arc<Usage>,
    clients: Mutex<Clients>,
}

struct Clients {
    /// Bounded by twice the clients that hold a permit, or a few.
    known: HashMap<ClientKey, Arc<Usage>>,
    sweep_at: usize,
}

/// What somebody uses now.
#[derive(Debug)]
struct Usage {
    connections: AtomicUsize,
    requests: AtomicUsize,
    bandwidth: Bucket,
    queries: Bucket,
}

/// An admitted connection or request; dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct Permit {
    client: Arc<Usage>,
    all: Arc<Usage>,
    what: fn(&Usage) -> &AtomicUsize,
}

/// How fast one request may go.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    client: Arc<Usage>,
    all: Arc<Usage>,
}

impl Gate {
    /// Nothing is used yet.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            all: Arc::new(Usage::new(limits.bandwidth, 0)),
            limits,
            hasher: RandomState::new(),
            clients: Mutex::new(Clients {
                known: HashMap::new(),
                sweep_at: FEW,
            }),
        }
    }

    /// The client at this address: an IPv4 address, or an IPv6 /56 (what one customer gets, RFC 6177).
    pub(crate) fn by_address(&self, ip: IpAddr) -> ClientKey {
        let prefix = match ip.to_canonical() {
            IpAddr::V4(ip) => u128::from(u32::from(ip)),
            IpAddr::V6(ip) => u128::from(ip) >> 72 | 1 << 64,
        };
        ClientKey(self.hasher.hash_one(prefix))
    }

    /// The holder of the token with this index.
    pub(crate) fn by_token(&self, index: usize) -> ClientKey {
        ClientKey(self.hasher.hash_one(("token", index)))
    }

    /// The relay with this identity, which was dialled.
    pub(crate) fn by_identity(&self, identity: &[u8; 32]) -> ClientKey {
        ClientKey(self.hasher.hash_one(("relay", identity)))
    }

    /// Admits a connection.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn connection(&self, key: ClientKey) -> Result<Permit, Reached> {
        let limits = (self.limits.connections_per_client, self.limits.connections);
        self.permit(key, |usage| &usage.connections, limits)
    }

    /// Admits a request.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(crate) fn request(&self, key: ClientKey) -> Result<Permit, Reached> {
        let limits = (self.limits.requests_per_client, self.limits.requests);
        self.permit(key, |usage| &usage.requests, limits)
    }

    fn permit(
        &self,
        key: ClientKey,
        what: fn(&Usage) -> &AtomicUsize,
        (per_client, total): (usize, usize),
    ) -> Result<Permit, Reached> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let client = clients.usage(key, &self.limits);
        take(what(&self.all), total).map_err(|()| Reached::Total)?;
        if take(what(&client), per_client).is_err() {
            what(&self.all).fetch_sub(1, Ordering::Relaxed);
            return Err(Reached::Client);
        }
        Ok(Permit {
            client,
            all: self.all.clone(),
            what,
        })
    }
}

impl Clients {
    fn usage(&mut self, key: ClientKey, limits: &Limits) -> Arc<Usage> {
        if self.known.len() >= self.sweep_at {
            self.known.retain(|_, usage| !usage.is_idle());
            self.sweep_at = FEW.max(self.known.len() * 2);
        }
        let fresh = || {
            let usage = Usage::new(limits.bandwidth_per_client, limits.queries_per_client);
            Arc::new(usage)
        };
        self.known.entry(key).or_insert_with(fresh).clone()
    }
}

/// Takes one of `limit` places.
fn take(count: &AtomicUsize, limit: usize) -> Result<(), ()> {
    let more = |n| (n < limit).then_some(n + 1);
    count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
        .map(drop)
        .map_err(drop)
}

impl Usage {
    fn new(bandwidth: u64, queries: u32) -> Self {
        Self {
            connections: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            bandwidth: Bucket::new(bandwidth),
            queries: Bucket::of_things(queries),
        }
    }

    fn is_idle(&self) -> bool {
        let places = [&self.connections, &self.requests];
        let owes = self.bandwidth.is_in_debt() || self.queries.is_in_debt();
        places.iter().all(|n| n.load(Ordering::Relaxed) == 0) && !owes
    }
}

impl Permit {
    /// The pace that whoever holds this permit keeps.
    pub(crate) fn pace(&self) -> Pace {
        Pace {
            client: self.client.clone(),
            all: self.all.clone(),
        }
    }
}

impl Permit {
    /// Whether the client may ask the resolver now.
    pub(crate) fn admits_query(&self) -> bool {
        self.client.queries.admits(1)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        (self.what)(&self.client).fetch_sub(1, Ordering::Relaxed);
        (self.what)(&self.all).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pace {
    /// Whether `octets` may pass now; if not they are to be dropped. For datagrams.
    pub(crate) fn admits(&self, octets: usize) -> bool {
        self.client.bandwidth.admits(octets) && self.all.bandwidth.admits(octets)
    }

    /// Counts `octets` that have passed, and waits until the debt is paid. For streams.
    pub(crate) async fn spend(&self, octets: usize) {
        let wait = self.owes(octets);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Counts `octets` that have passed; how long it takes until the debt is paid.
    pub(crate) fn owes(&self, octets: usize) -> Duration {
        let client = self.client.bandwidth.spend(octets);
        client.max(self.all.bandwidth.spend(octets))
    }
}

impl ClientKey {
    /// For limits that are kept elsewhere.
    pub(crate) fn number(self) -> u64 {
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

    fn gate(change: fn(&mut Limits)) -> Gate {
        let mut limits = Limits::default();
        change(&mut limits);
        Gate::new(limits)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn a_place_that_was_given_back_can_be_taken_again() {
        let gate = gate(|limits| limits.requests_per_client = 2);
        let key = gate.by_token(0);
        let first = gate.request(key).expect("free");
        let _second = gate.request(key).expect("free");
        assert_eq!(gate.request(key).expect_err("full"), Reached::Client);
        drop(first);
        assert!(gate.request(key).is_ok());
    }

    #[test]
    fn one_client_does_not_take_the_places_of_another_but_all_share_the_total() {
        let gate = gate(|limits| {
            limits.connections = 2;
            limits.connections_per_client = 1;
        });
        let [a, b, c] =
            ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|text| gate.by_address(ip(text)));
        let _a = gate.connection(a).expect("free");
        assert_eq!(gate.connection(a).expect_err("full"), Reached::Client);
        let _b = gate.connection(b).expect("free");
        assert_eq!(gate.connection(c).expect_err("full"), Reached::Total);
    }

    #[test]
    fn addresses_of_one_ipv6_customer_are_one_client() {
        let gate = gate(|_| ());
        let key = |text| gate.by_address(ip(text));
        assert!(key("2001:db8:0:100::1") == key("2001:db8:0:1ff::2"));
        assert!(key("2001:db8:0:100::1") != key("2001:db8:0:200::1"));
        assert!(key("::ffff:192.0.2.1") == key("192.0.2.1"));
        assert!(key("192.0.2.1") != key("192.0.2.2"));
    }

    #[test]
    fn clients_that_left_are_forgotten() {
        let gate = gate(|_| ());
        for index in 0..10 * FEW {
            drop(gate.request(gate.by_token(index)));
        }
        let known = gate.clients.lock().expect("sound").known.len();
        assert!(known <= FEW, "{known}");
    }
}
