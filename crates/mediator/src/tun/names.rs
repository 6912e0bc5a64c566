//! Temporary addresses and the names that they stand for, so that a name can be answered before anybody was asked, and travel
//! unresolved to the last relay. `dns` hands them out, the TCP and UDP tables ask what they mean.
//! Paper 003 §6: an address is told for 60 s, and means its name for 70 s, and as long as a flow uses it.
//!
//! A name has one mapping, which is an IPv4 and an IPv6 address; which ones is random, so that they do not tell how many names
//! were asked before. An address that has meant one name does not soon mean another: a program may know it for longer than
//! it was told to.

mod pool;
mod table;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hoplite_wire::{Host, HostName, Target};
use tokio::time::Instant;

pub use self::pool::Pools;
use self::{pool::Pool, table::Table};
use crate::users::User;

/// What an address of a packet means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// A name of the pool's, or the address itself, with the port.
    Target(Target),
    /// One of the pool's that means nothing, or nothing any more; also the device's own.
    Expired,
}

/// Both addresses of a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
}

/// How long mappings last and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// How long a mapping is kept after it was last told or used.
    pub(crate) keep: Duration,
    /// How long a name is known not to exist.
    pub(crate) missing: Duration,
    /// How many names have a mapping at once; a further one takes the place of one that another user, who has more, has not used for longest,
    /// or gets none until one has expired.
    pub(crate) names: usize,
}

/// All mappings. Each call holds the lock for a look-up or two.
pub(crate) struct Names {
    pool: Pool,
    /// The addresses of the prefixes at port 53 of which somebody is.
    resolvers: Vec<IpAddr>,
    table: Mutex<Table>,
}

/// Keeps the mapping of a flow's address for as long as the flow lasts.
pub(crate) struct Hold {
    names: Arc<Names>,
    offset: u32,
}

impl Names {
    /// No mapping yet; addresses of `reserved` are never given.
    pub(crate) fn new(pools: &Pools, reserved: &[IpAddr], terms: Terms) -> Self {
        let pool = Pool::new(pools, reserved);
        let table = Mutex::new(Table::new(terms, pool.room()));
        Self {
            pool,
            resolvers: Vec::new(),
            table,
        }
    }

    /// At port 53 of these addresses the device's resolver is.
    pub(crate) fn serving(mut self, resolvers: &[IpAddr]) -> Self {
        self.resolvers = resolvers.to_vec();
        self
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses that stand for `name` from now on, for `user` asks for it; `None` when all are in use.
    pub(crate) fn pair(&self, name: &HostName, user: User, now: Instant) -> Option<Pair> {
        let mut table = self.table();
        let offset = table.map(name, user, now, |n| self.pool.offset(n))?;
        Some(self.pool.pair(offset))
    }

    /// What `address` means; if a name, its mapping counts as used now.
    pub(crate) fn meaning(&self, address: SocketAddr, now: Instant) -> Meaning {
        let (ip, port) = (address.ip(), address.port());
        let host = match port == 53 && self.resolvers.contains(&ip) {
            true => Some(Host::ip(ip)),
            false => self.host(ip, now),
        };
        let target = host.and_then(|host| Target::new(host, port).ok());
        target.map_or(Meaning::Expired, Meaning::Target)
    }

    /// The same without a port; `None` for an address that means nothing.
    pub(crate) fn host(&self, ip: IpAddr, now: Instant) -> Option<Host> {
        match self.pool.find(ip) {
            None if self.pool.contains(ip) => None,
            None => Some(Host::ip(ip)),
            Some(offset) => self.table().use_now(offset, now).map(Host::Name),
        }
    }

    /// Keeps what `ip` means; `None` if it means no name.
    pub(crate) fn hold(self: &Arc<Self>, ip: IpAddr, now: Instant) -> Option<Hold> {
        let offset = self.pool.find(ip)?;
        let held = self.table().hold(offset, now);
        held.then(|| Hold {
            names: Arc::clone(self),
            offset,
        })
    }

    /// The name that `ip` stands for; that somebody wants to know does not make it last longer.
    pub(crate) fn name(&self, ip: IpAddr, now: Instant) -> Option<HostName> {
        self.table().name(self.pool.find(ip)?, now)
    }

    /// Whether `ip` is one of those that are handed out, or the device's own.
    pub(crate) fn is_temporary(&self, ip: IpAddr) -> bool {
        self.pool.contains(ip)
    }

    /// A flow to `ip` failed because its name does not exist: for a while it is answered so.
    pub(crate) fn fail(&self, ip: IpAddr, now: Instant) {
        if let Some(offset) = self.pool.find(ip) {
            self.table().fail(offset, now);
        }
    }

    /// Whether a flow found lately that `name` does not exist.
    pub(crate) fn is_missing(&self, name: &HostName, now: Instant) -> bool {
        self.table().is_missing(name, now)
    }

    /// How many names have a mapping now.
    pub(crate) fn len(&self) -> usize {
        self.table().len()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.names.table().release(self.offset, Instant::now());
    }
}

impl Pair {
    /// The address of the family that `ip`'s is.
    pub(crate) fn both(self) -> [IpAddr; 2] {
        [self.v4.into(), self.v6.into()]
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Names({})", self.len())
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pair(hidden)")
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hold")
    }
}
