//! Temporary (elsewhere: fake) addresses and the names that they stand for, so that a name can be answered before anybody was asked, and travel
//! unresolved to the last relay. The resolver hands them out, flows ask what they mean.
//! Paper 003 §6: an address is told for 60 s, and means its name for 70 s, and as long as a flow uses it.
//!
//! A name has one mapping, which is an IPv4 and an IPv6 address; which ones is random, so that they do not tell how many names
//! were asked before. An address that has meant one name does not soon mean another: a program may know it for longer than
//! it was told to.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    fmt,
    hash::{BuildHasher, RandomState},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hoplite_wire::{Host, HostName, Target};
use ipnet::{Ipv4Net, Ipv6Net};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use crate::users::{Owner, Shares, User};

/// Both addresses of a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddressPair {
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
}

/// How long mappings last and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MappingLimits {
    /// How long a mapping is kept after it was last told or used.
    pub(crate) keep: Duration,
    /// How long a name is known not to exist.
    pub(crate) missing: Duration,
    /// How many names have a mapping at once. A further one takes the place of the least lately used one of a user who has more; without such a
    /// user it has none until one expires.
    pub(crate) names: usize,
}

/// All mappings. Each call holds the lock for a look-up or two.
pub(crate) struct Names {
    pool: AddressPool,
    /// The addresses within the prefixes at which a resolver listens on port 53.
    resolvers: Vec<IpAddr>,
    table: Mutex<MappingTable>,
}

/// Keeps the mapping of a flow's address for as long as the flow lasts.
pub(crate) struct MappingHold {
    names: Arc<Names>,
    offset: u32,
}

impl Names {
    /// No mapping yet; addresses of `reserved` are never given.
    pub(crate) fn new(pools: &Pools, reserved: &[IpAddr], limits: MappingLimits) -> Self {
        let pool = AddressPool::new(pools, reserved);
        let table = Mutex::new(MappingTable::new(limits, pool.room()));
        Self {
            pool,
            resolvers: Vec::new(),
            table,
        }
    }

    /// The device's resolver listens on port 53 of these addresses.
    pub(crate) fn serving(mut self, resolvers: &[IpAddr]) -> Self {
        self.resolvers = resolvers.to_vec();
        self
    }

    /// The addresses that stand for `name` from now on, for `user` asks for it; `None` when all are in use.
    pub(crate) fn pair(&self, name: &HostName, user: User, now: Instant) -> Option<AddressPair> {
        let mut table = self.table.lock();
        let offset = table.map(name, user, now, |n| self.pool.offset(n))?;
        Some(self.pool.pair(offset))
    }

    /// What `address` means: a name, whose mapping counts as used now, or the address itself, with the port. `None` for a temporary address that
    /// means nothing, or nothing any more, and for the device's own.
    pub(crate) fn meaning(&self, address: SocketAddr, now: Instant) -> Option<Target> {
        let (ip, port) = (address.ip(), address.port());
        let host = if port == 53 && self.resolvers.contains(&ip) {
            Some(Host::ip(ip))
        } else {
            self.host(ip, now)
        };
        Target::new(host?, port).ok()
    }

    /// What `ip` means, without a port; `None` for an address that means nothing.
    pub(crate) fn host(&self, ip: IpAddr, now: Instant) -> Option<Host> {
        match self.pool.find(ip) {
            None if self.pool.contains(ip) => None,
            None => Some(Host::ip(ip)),
            Some(offset) => self.table.lock().use_now(offset, now).map(Host::Name),
        }
    }

    /// Keeps what `ip` means; `None` if it means no name.
    pub(crate) fn hold(self: &Arc<Self>, ip: IpAddr, now: Instant) -> Option<MappingHold> {
        let offset = self.pool.find(ip)?;
        let held = self.table.lock().hold(offset, now);
        held.then(|| MappingHold {
            names: Arc::clone(self),
            offset,
        })
    }

    /// The name that `ip` stands for; that somebody wants to know does not make it last longer.
    #[cfg(test)]
    fn name(&self, ip: IpAddr, now: Instant) -> Option<HostName> {
        self.table.lock().name(self.pool.find(ip)?, now)
    }

    /// The same, if `user` is one of those who were told it.
    pub(crate) fn name_for(&self, user: User, ip: IpAddr, now: Instant) -> Option<HostName> {
        let (offset, table) = (self.pool.find(ip)?, self.table.lock());
        table
            .name(offset, now)
            .filter(|_| table.was_told(offset, user))
    }

    /// Whether `ip` is one of those that are handed out, or the device's own.
    pub(crate) fn is_temporary(&self, ip: IpAddr) -> bool {
        self.pool.contains(ip)
    }

    /// A flow to `ip` failed because its name does not exist: for a while it is answered so.
    pub(crate) fn fail(&self, ip: IpAddr, now: Instant) {
        if let Some(offset) = self.pool.find(ip) {
            self.table.lock().fail(offset, now);
        }
    }

    /// Whether a flow found lately that `name` does not exist.
    pub(crate) fn is_missing(&self, name: &HostName, now: Instant) -> bool {
        self.table.lock().is_missing(name, now)
    }

    /// How many names have a mapping now.
    pub(crate) fn len(&self) -> usize {
        self.table.lock().len()
    }
}

impl Drop for MappingHold {
    fn drop(&mut self) {
        self.names.table.lock().release(self.offset, Instant::now());
    }
}

impl AddressPair {
    /// The IPv4 address and the IPv6 one.
    pub(crate) fn both(self) -> [IpAddr; 2] {
        [self.v4.into(), self.v6.into()]
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Names({})", self.len())
    }
}

impl fmt::Debug for AddressPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressPair(hidden)")
    }
}

impl fmt::Debug for MappingHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MappingHold")
    }
}

/// The first addresses of each prefix are the device's own, its resolver's and its neighbours'.
const OWN: u32 = 256;

/// Where temporary addresses are taken from: by default prefixes of RFC 2544 (nobody routes it) and RFC 4193 (locally assigned).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pools {
    /// A prefix of 8 to 22 bits. Its first 256 addresses are the device's.
    pub ipv4: Ipv4Net,
    /// A prefix of at most 96 bits, the first 256 addresses of which are the device's.
    pub ipv6: Ipv6Net,
}

impl Default for Pools {
    fn default() -> Self {
        let v4 = Ipv4Addr::new(198, 18, 0, 0);
        let v6 = Ipv6Addr::new(0xfd68, 0x6f70, 0x6c69, 0x7465, 0, 0, 0, 0);
        Self {
            ipv4: Ipv4Net::new_assert(v4, 15),
            ipv6: Ipv6Net::new_assert(v6, 64),
        }
    }
}

impl Pools {
    /// Checks that both prefixes have a size that makes sense.
    ///
    /// # Errors
    /// The key of the first that has not, and what was expected.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if !(8..=22).contains(&self.ipv4.prefix_len()) {
            return Err(("dns.ipv4", "a prefix of 8 to 22 bits"));
        }
        if !(8..=96).contains(&self.ipv6.prefix_len()) {
            return Err(("dns.ipv6", "a prefix of 8 to 96 bits"));
        }
        Ok(())
    }
}

/// Which temporary addresses there are: an offset into an IPv4 prefix, and the same offset into an IPv6 one.
#[derive(Debug)]
struct AddressPool {
    v4: Ipv4Net,
    v6: Ipv6Net,
    /// How many offsets there are behind [`OWN`].
    usable: u32,
    reserved: HashSet<u32>,
}

impl AddressPool {
    fn new(pools: &Pools, reserved: &[IpAddr]) -> Self {
        let (v4, v6) = (pools.ipv4.trunc(), pools.ipv6.trunc());
        let all = 1u32 << (32 - u32::from(v4.prefix_len())).min(24);
        let mut pool = Self {
            v4,
            v6,
            // The last one is a broadcast address.
            usable: all.saturating_sub(OWN + 1),
            reserved: HashSet::new(),
        };
        pool.reserved = reserved
            .iter()
            .filter_map(|ip| pool.position(*ip))
            .collect();
        pool
    }

    /// How many may be taken before it takes long to find a free one.
    fn room(&self) -> usize {
        usize::try_from(self.usable / 2).unwrap_or(usize::MAX)
    }

    /// The offset that a random number chooses; `None` if that is reserved.
    fn offset(&self, random: u64) -> Option<u32> {
        let chosen = random.checked_rem(u64::from(self.usable))?;
        let offset = OWN + u32::try_from(chosen).ok()?;
        (!self.reserved.contains(&offset)).then_some(offset)
    }

    fn pair(&self, offset: u32) -> AddressPair {
        AddressPair {
            v4: Ipv4Addr::from(u32::from(self.v4.network()) | offset),
            v6: Ipv6Addr::from(u128::from(self.v6.network()) | u128::from(offset)),
        }
    }

    /// The offset of a temporary address; `None` for all others.
    fn find(&self, ip: IpAddr) -> Option<u32> {
        let offset = self.position(ip)?;
        let ours = (OWN..OWN + self.usable).contains(&offset);
        (ours && !self.reserved.contains(&offset)).then_some(offset)
    }

    /// Whether the address is of one of the prefixes.
    fn contains(&self, ip: IpAddr) -> bool {
        match ip.to_canonical() {
            IpAddr::V4(ip) => self.v4.contains(&ip),
            IpAddr::V6(ip) => self.v6.contains(&ip),
        }
    }

    /// How far into its prefix an address is.
    fn position(&self, ip: IpAddr) -> Option<u32> {
        match ip.to_canonical() {
            IpAddr::V4(ip) if self.v4.contains(&ip) => {
                Some(u32::from(ip) & u32::from(self.v4.hostmask()))
            }
            IpAddr::V6(ip) if self.v6.contains(&ip) => {
                u32::try_from(u128::from(ip) & u128::from(self.v6.hostmask())).ok()
            }
            _ => None,
        }
    }
}

/// How many expired mappings one call forgets: more than it can make.
const TIDIED: usize = 8;
/// How many of those who asked for a name are remembered: the latest.
const MAX_TOLD: usize = 8;
/// How often a free address is looked for. Half of them are free, so this fails once in 2^64 times.
const MAX_PROBES: usize = 64;

/// The mappings and their ages, a machine without a clock. Every call forgets a bounded number of expired ones.
struct MappingTable {
    limits: MappingLimits,
    /// How many addresses may be out of reach: those in use and those that have been used.
    room: usize,
    by_name: HashMap<HostName, u32>,
    mappings: HashMap<u32, Mapping>,
    /// Those that no flow holds, by when they were used last: all, and each user's.
    unheld: BTreeSet<(Instant, u32)>,
    unheld_of: HashMap<User, BTreeSet<(Instant, u32)>>,
    shares: Shares,
    /// Addresses that have meant something, the oldest first: they are given again when there is no room for more.
    retired: VecDeque<u32>,
    is_retired: HashSet<u32>,
    random: RandomState,
    drawn: u64,
}

/// What is known of one temporary address.
struct Mapping {
    name: HostName,
    /// Whom it is counted against: of those who asked for it the one who had fewest.
    user: User,
    /// The owners of those who asked for it, each once, who asked last at the end; at most [`MAX_TOLD`].
    told: VecDeque<Owner>,
    /// When it was told or used last.
    used: Instant,
    /// How many flows hold it.
    holds: usize,
    /// When a flow found that the name does not exist.
    missing: Option<Instant>,
}

impl MappingTable {
    /// No mapping, and room for as many addresses.
    fn new(limits: MappingLimits, room: usize) -> Self {
        let names = limits.names.min(room / 2);
        Self {
            limits: MappingLimits { names, ..limits },
            room,
            by_name: HashMap::new(),
            mappings: HashMap::new(),
            unheld: BTreeSet::new(),
            unheld_of: HashMap::new(),
            shares: Shares::default(),
            retired: VecDeque::new(),
            is_retired: HashSet::new(),
            random: RandomState::new(),
            drawn: 0,
        }
    }

    /// The address of `name`, which `user` is told now; one that `choose` makes of a random number if it has none.
    fn map(
        &mut self,
        name: &HostName,
        user: User,
        now: Instant,
        choose: impl Fn(u64) -> Option<u32>,
    ) -> Option<u32> {
        self.tidy(now);
        if let Some(&offset) = self.by_name.get(name) {
            self.touch(offset, now);
            self.reassign(offset, user);
            self.note_told(offset, user);
            return Some(offset);
        }
        if self.mappings.len() >= self.limits.names {
            self.evict(user)?;
        }
        let offset = (0..MAX_PROBES).find_map(|_| self.draw(&choose))?;
        let mapping = Mapping {
            name: name.clone(),
            user,
            told: VecDeque::from([user.owner]),
            used: now,
            holds: 0,
            missing: None,
        };
        self.by_name.insert(name.clone(), offset);
        self.mappings.insert(offset, mapping);
        self.shares.add(user);
        self.mark_unheld(user, now, offset);
        Some(offset)
    }

    fn note_told(&mut self, offset: u32, user: User) {
        let Some(mapping) = self.mappings.get_mut(&offset) else {
            return;
        };
        mapping.told.retain(|owner| *owner != user.owner);
        if mapping.told.len() >= MAX_TOLD {
            mapping.told.pop_front();
        }
        mapping.told.push_back(user.owner);
    }

    fn was_told(&self, offset: u32, user: User) -> bool {
        let mapping = self.mappings.get(&offset);
        mapping.is_some_and(|mapping| mapping.told.contains(&user.owner))
    }

    /// A name that several users ask for is counted against the one who has fewest, so that it does not go with what another one asks for.
    fn reassign(&mut self, offset: u32, user: User) {
        let Some(mapping) = self.mappings.get_mut(&offset) else {
            return;
        };
        let (before, used, free) = (mapping.user, mapping.used, mapping.holds == 0);
        if self.shares.of(user) >= self.shares.of(before) {
            return;
        }
        mapping.user = user;
        self.shares.remove(before);
        self.shares.add(user);
        if free {
            self.mark_held(before, used, offset);
            self.mark_unheld(user, used, offset);
        }
    }

    /// Another user that has more loses what it has not used for longest; `None` if there is none, or flows hold all that it has.
    fn evict(&mut self, newcomer: User) -> Option<()> {
        let victim = self
            .shares
            .victim(newcomer)
            .filter(|user| *user != newcomer)?;
        let &(used, offset) = self.unheld_of.get(&victim)?.first()?;
        self.forget(used, offset);
        Some(())
    }

    /// A flow holds it from now on, or it is gone.
    fn mark_held(&mut self, user: User, used: Instant, offset: u32) {
        self.unheld.remove(&(used, offset));
        if let Some(unheld) = self.unheld_of.get_mut(&user) {
            unheld.remove(&(used, offset));
            if unheld.is_empty() {
                self.unheld_of.remove(&user);
            }
        }
    }

    /// No flow holds it.
    fn mark_unheld(&mut self, user: User, used: Instant, offset: u32) {
        self.unheld.insert((used, offset));
        let unheld = self.unheld_of.entry(user).or_default();
        unheld.insert((used, offset));
    }

    fn draw(&mut self, choose: impl Fn(u64) -> Option<u32>) -> Option<u32> {
        self.drawn = self.drawn.wrapping_add(1);
        let offset = choose(self.random.hash_one(self.drawn))?;
        let taken = self.mappings.contains_key(&offset) || self.is_retired.contains(&offset);
        (!taken).then_some(offset)
    }

    /// The name behind an address that is used now.
    fn use_now(&mut self, offset: u32, now: Instant) -> Option<HostName> {
        let name = self.name(offset, now)?;
        self.touch(offset, now);
        Some(name)
    }

    /// The name behind an address.
    fn name(&self, offset: u32, now: Instant) -> Option<HostName> {
        let mapping = self.mappings.get(&offset)?;
        self.is_alive(mapping, now).then(|| mapping.name.clone())
    }

    /// Keeps a mapping until it is released as often as it was held; false if there is none.
    fn hold(&mut self, offset: u32, now: Instant) -> bool {
        let keep = self.limits.keep;
        let Some(mapping) = self.mappings.get_mut(&offset) else {
            return false;
        };
        if mapping.holds == 0 && now >= mapping.used + keep {
            return false;
        }
        mapping.holds += 1;
        let (user, used, first) = (mapping.user, mapping.used, mapping.holds == 1);
        if first {
            self.mark_held(user, used, offset);
        }
        true
    }

    /// A flow has ended.
    fn release(&mut self, offset: u32, now: Instant) {
        let Some(mapping) = self.mappings.get_mut(&offset) else {
            return;
        };
        mapping.holds = mapping.holds.saturating_sub(1);
        mapping.used = mapping.used.max(now);
        let (user, used, free) = (mapping.user, mapping.used, mapping.holds == 0);
        if free {
            self.mark_unheld(user, used, offset);
        }
    }

    /// The name behind an address does not exist.
    fn fail(&mut self, offset: u32, now: Instant) {
        if let Some(mapping) = self.mappings.get_mut(&offset) {
            mapping.missing = Some(now);
        }
    }

    fn is_missing(&self, name: &HostName, now: Instant) -> bool {
        let mapping = self.by_name.get(name).and_then(|at| self.mappings.get(at));
        let missing = mapping.and_then(|mapping| mapping.missing);
        missing.is_some_and(|since| now < since + self.limits.missing)
    }

    fn len(&self) -> usize {
        self.mappings.len()
    }

    fn is_alive(&self, mapping: &Mapping, now: Instant) -> bool {
        mapping.holds > 0 || now < mapping.used + self.limits.keep
    }

    fn touch(&mut self, offset: u32, now: Instant) {
        let Some(mapping) = self.mappings.get_mut(&offset) else {
            return;
        };
        let before = mapping.used;
        mapping.used = before.max(now);
        let (user, used, free) = (mapping.user, mapping.used, mapping.holds == 0);
        if free && before != used {
            self.mark_held(user, before, offset);
            self.mark_unheld(user, used, offset);
        }
    }

    /// Forgets the names of some mappings that have expired; their addresses rest.
    fn tidy(&mut self, now: Instant) {
        for _ in 0..TIDIED {
            let Some(&(used, offset)) = self.unheld.first() else {
                return;
            };
            if now < used + self.limits.keep {
                return;
            }
            self.forget(used, offset);
        }
    }

    /// The name behind an address that no flow holds.
    fn forget(&mut self, used: Instant, offset: u32) {
        if let Some(mapping) = self.mappings.remove(&offset) {
            self.mark_held(mapping.user, used, offset);
            self.shares.remove(mapping.user);
            self.by_name.remove(&mapping.name);
        }
        self.retire(offset);
    }

    fn retire(&mut self, offset: u32) {
        self.is_retired.insert(offset);
        self.retired.push_back(offset);
        let names = self.limits.names;
        if self.retired.len() > self.room.saturating_sub(names)
            && let Some(rested) = self.retired.pop_front()
        {
            self.is_retired.remove(&rested);
        }
    }
}

#[cfg(test)]
mod tests;
