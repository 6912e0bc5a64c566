//! Which descriptors an authority takes, and which of them it votes for: recent ones, newer than those it has, from relays that its operator does not
//! refuse, not too many of one place; and only those whose every address was found to be the relay's, by a handshake that proves its key. That a pin
//! is the relay's own, its holder has proven before ([`crate::said_by_holder`]).
//! A machine without I/O: [`Pool::probes`] says what to test, [`Pool::probed`] is told what came of it.
//!
//! What was tested and what was not are apart: a relay that waits for its test takes no place from one that has passed it. Who hands in the most
//! waits the longest, by the network that it hands in from.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hoplite_config::ConfigError;
use hoplite_wire::{
    directory::{Descriptor, Key, RELAYS, SignedDescriptor},
    networks::{host_network, network},
    special,
};
use serde::{Deserialize, Deserializer, de};

use crate::Refused;

/// The operator's rules: `[admission]` in the authority's file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admission {
    /// Tested relays that are known at once; more are refused, those that are there stay.
    pub relays: usize,
    /// Tested relays with one address.
    pub per_address: usize,
    /// Tested relays in one /24 of IPv4.
    pub per_24: usize,
    /// Tested relays in one /16 of IPv4.
    pub per_16: usize,
    /// Tested relays in one /48 of IPv6.
    pub per_48: usize,
    /// Tested relays in one /32 of IPv6.
    pub per_32: usize,
    /// Descriptors that wait for their test at once. When they are so many, the network that handed in the most loses its last.
    pub untested: usize,
    /// Descriptors handed in by one network (/24, IPv6: /48) that wait for their test at once; when they are so many, its oldest goes.
    pub untested_per_network: usize,
    /// Tests at once.
    pub tests: usize,
    /// After how long a relay is tested again. One that has not passed a test for twice as long is forgotten.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub retest: Duration,
    /// Which addresses this machine can test; others are believed beside one that passed.
    #[serde(deserialize_with = "families")]
    pub reaches: Families,
    /// How old a descriptor may be.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub life: Duration,
    /// Whether relays may have private or loopback addresses: for laboratories.
    pub private: bool,
    /// If there are any: only these relays.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub only: Vec<Key>,
    /// Never these.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub refuse: Vec<Key>,
}

/// Kinds of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
}

/// Why a descriptor is not taken, in words for its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// It cannot be believed.
    #[error("{0}")]
    Refused(Refused),
    /// The holder of its pin's key has not proven that the descriptor is its own.
    #[error(
        "the holder of the TLS key that the descriptor names has not signed it: the relay itself must hand it in; update its program if it does"
    )]
    Unproven,
    /// It is too old.
    #[error("the descriptor is too old: set the relay's clock")]
    Old,
    /// It is from the future.
    #[error("the descriptor is from the future: set the relay's clock")]
    Early,
    /// A newer one is here.
    #[error(
        "a newer descriptor of this relay is here: sign a new one, and check that no other relay has its key"
    )]
    Superseded,
    /// The operator refuses it.
    #[error("this authority does not list this relay: ask its operator")]
    Forbidden,
    /// An address of it is private.
    #[error(
        "an address of the relay is private or otherwise special: publish those that the Internet reaches"
    )]
    Private,
    /// Too many relays have one of its addresses.
    #[error("too many relays have this address or are in its network: run fewer in one place")]
    Crowded,
    /// None of its addresses can be tested here.
    #[error(
        "this authority reaches none of the relay's addresses: publish one of IPv4 and one of IPv6"
    )]
    Unreached,
    /// Too many wait.
    #[error("too many descriptors wait to be tested: hand it in again in a few minutes")]
    Busy,
    /// The table is full.
    #[error("this authority knows as many relays as it can: ask its operator")]
    Full,
}

/// A relay whose addresses are to be tested: each one that [`Admission::reaches`], by its channel identity if it has an onion key, and by its pin if
/// it has one.
#[derive(Clone, Debug)]
pub struct Probe {
    /// What it says.
    pub relay: Descriptor,
    /// Those of its addresses that are to be tested.
    pub addresses: Vec<SocketAddr>,
    /// It has passed before.
    again: bool,
    /// Which test it is.
    number: u64,
}

/// What a descriptor that was taken in means for the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The relay whose descriptor is to be kept.
    pub identity: Key,
    /// One that had to give way.
    pub gone: Option<Key>,
    /// It is here already, in the same words: nothing is to be done.
    pub known: bool,
}

/// What came of a test, for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The relay is to be forgotten.
    Forget(Key),
    /// The relay passes its tests since then, in seconds since 1970.
    Since(Key, u64),
}

/// All descriptors of an authority.
#[derive(Debug, Default)]
pub(super) struct Pool {
    tested: BTreeMap<Key, Tested>,
    waiting: BTreeMap<Key, Waiting>,
    /// How many have waited so far.
    arrived: u64,
    /// The tests that have begun and not ended, whatever has become of the descriptors since, and how many have begun.
    under_way: BTreeMap<u64, UnderWay>,
    begun: u64,
}

#[derive(Debug)]
struct UnderWay {
    identity: Key,
    /// As whose it counts.
    network: Option<IpAddr>,
    ips: Vec<IpAddr>,
    again: bool,
}

/// A relay that may be tested next.
#[derive(Clone, Copy)]
struct Next<'a> {
    relay: &'a Descriptor,
    network: Option<IpAddr>,
    again: bool,
}

/// How many tests are under way, and what they dial, or would if they were not in each other's way.
#[derive(Default)]
struct Dialled {
    again: (usize, HashSet<IpAddr>),
    new: (usize, HashSet<IpAddr>),
}

#[derive(Debug)]
struct Tested {
    signed: SignedDescriptor,
    /// Since when it passes its tests, before restarts too.
    since: u64,
    passed: u64,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    signed: SignedDescriptor,
    /// The host from which it was handed in; none if it was here before a restart.
    host: Option<IpAddr>,
    /// Since when it had passed its tests before a restart.
    since: Option<u64>,
    /// Such a one has failed since: when it is tested again, and until when.
    retried: Option<Retried>,
    arrived: u64,
}

#[derive(Clone, Copy, Debug)]
struct Retried {
    next: u64,
    until: u64,
}

/// The network that hands in from a host: what one customer, or one site, has.
fn site_of(host: IpAddr) -> IpAddr {
    network(host, 24, 48)
}

/// One that waits and was handed in.
#[derive(Clone, Copy, Debug)]
struct Handed {
    identity: Key,
    host: IpAddr,
    arrived: u64,
}

impl Waiting {
    /// After a test that failed: whether it had passed before a restart, and has as long as tested relays have. It may be our own network that was not there.
    fn is_tried_again(&mut self, retest: u64, now: u64) -> bool {
        let until = now.saturating_add(retest.saturating_mul(2));
        let until = self.retried.map_or(until, |retried| retried.until);
        let next = now.saturating_add(retest / 4);
        self.retried = Some(Retried { next, until });
        self.since.is_some() && next <= until
    }
}

impl Families {
    fn has(self, address: &SocketAddr) -> bool {
        if address.is_ipv4() { self.v4 } else { self.v6 }
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            relays: 4096,
            per_address: 2,
            per_24: 16,
            per_16: 128,
            per_48: 16,
            per_32: 128,
            untested: 1024,
            untested_per_network: 64,
            tests: 32,
            retest: Duration::from_secs(1800),
            reaches: Families { v4: true, v6: true },
            life: Duration::from_secs(24 * 3600),
            private: false,
            only: Vec::new(),
            refuse: Vec::new(),
        }
    }
}

impl Admission {
    /// Which keys have no sense, and why.
    pub fn wrongs(&self) -> impl Iterator<Item = ConfigError> {
        let (one, relays) = ("expected at least 1", 1..=RELAYS);
        let reaches = self.reaches.v4 || self.reaches.v6;
        let all = [
            (
                "admission.relays",
                "expected 1 to 8192",
                relays.contains(&self.relays),
            ),
            ("admission.per_address", one, self.per_address > 0),
            ("admission.per_24", one, self.per_24 > 0),
            ("admission.per_16", one, self.per_16 > 0),
            ("admission.per_48", one, self.per_48 > 0),
            ("admission.per_32", one, self.per_32 > 0),
            (
                "admission.untested",
                "expected 1 to 8192",
                relays.contains(&self.untested),
            ),
            (
                "admission.untested_per_network",
                one,
                self.untested_per_network > 0,
            ),
            (
                "admission.tests",
                "expected 1 to 1024",
                (1..=1024).contains(&self.tests),
            ),
            (
                "admission.retest",
                "expected at least 4 seconds",
                self.retest.as_secs() >= 4,
            ),
            (
                "admission.reaches",
                "expected \"ipv4\" and \"ipv6\", or one of them",
                reaches,
            ),
        ];
        hoplite_config::wrongs(all)
    }

    /// By the first bits of an address, how many tested relays may be there.
    fn caps(&self, ip: IpAddr) -> [(u32, usize); 3] {
        match ip {
            IpAddr::V4(_) => [(32, self.per_address), (24, self.per_24), (16, self.per_16)],
            IpAddr::V6(_) => [
                (128, self.per_address),
                (48, self.per_48),
                (32, self.per_32),
            ],
        }
    }

    fn is_old(&self, relay: &Descriptor, now: u64) -> bool {
        relay.published.saturating_add(self.life.as_secs()) < now
    }
}

fn families<'de, D: Deserializer<'de>>(input: D) -> Result<Families, D::Error> {
    let mut families = Families {
        v4: false,
        v6: false,
    };
    for word in Vec::<String>::deserialize(input)? {
        match word.as_str() {
            "ipv4" => families.v4 = true,
            "ipv6" => families.v6 = true,
            _ => {
                return Err(de::Error::custom(
                    "expected \"ipv4\" and \"ipv6\", or one of them",
                ));
            }
        }
    }
    Ok(families)
}

/// What a test of a relay is of, beside its identity: where it is, and by which keys it is found there.
pub(super) type Place<'a> = (&'a [SocketAddr], Option<[u8; 32]>, bool);

pub(super) fn place(relay: &Descriptor) -> Place<'_> {
    (&relay.addresses, relay.pin, relay.onion.is_some())
}

/// Whether a test of the one is a test of the other.
fn is_same_place(one: &Descriptor, other: &Descriptor) -> bool {
    one.identity == other.identity && place(one) == place(other)
}

/// Where a relay is, by its first address.
fn home(relay: &Descriptor) -> Option<IpAddr> {
    ips(relay).next().map(|ip| network(ip, 16, 32))
}

fn ips(relay: &Descriptor) -> impl Iterator<Item = IpAddr> {
    relay.addresses.iter().map(SocketAddr::ip)
}

impl Dialled {
    fn of(under_way: &BTreeMap<u64, UnderWay>) -> Self {
        let mut dialled = Self::default();
        for one in under_way.values() {
            let (count, all) = dialled.one(one.again);
            *count = count.saturating_add(1);
            all.extend(&one.ips);
        }
        dialled
    }

    fn one(&mut self, again: bool) -> &mut (usize, HashSet<IpAddr>) {
        if again {
            &mut self.again
        } else {
            &mut self.new
        }
    }

    fn count(&mut self, again: bool) -> usize {
        self.one(again).0
    }

    /// Whether this relay's addresses may be dialled now. If not it is the next there: who comes behind it does not go first.
    fn add(&mut self, relay: &Descriptor, again: bool) -> bool {
        let is_dialled =
            |ip: IpAddr| self.again.1.contains(&ip) || (!again && self.new.1.contains(&ip));
        let is_free = !ips(relay).any(is_dialled);
        let (count, all) = self.one(again);
        all.extend(ips(relay));
        *count = count.saturating_add(usize::from(is_free));
        is_free
    }
}

impl Pool {
    /// How many relays are known, tested or not.
    pub(super) fn len(&self) -> usize {
        let new = self
            .waiting
            .keys()
            .filter(|key| !self.tested.contains_key(key));
        self.tested.len().saturating_add(new.count())
    }

    /// Those that have passed their tests.
    pub(super) fn tested(&self) -> impl Iterator<Item = &SignedDescriptor> {
        self.tested.values().map(|tested| &tested.signed)
    }

    /// Those that have passed a test lately enough to be taken to be there: dir-spec has 45 minutes, where tests are 21 apart.
    pub(super) fn running(&self, rules: &Admission, now: u64) -> impl Iterator<Item = &Descriptor> {
        let retest = rules.retest.as_secs();
        let late = retest.saturating_add(retest / 2);
        let running = self.tested.values();
        let running = running.filter(move |tested| tested.passed.saturating_add(late) >= now);
        running.map(|tested| &tested.signed.descriptor)
    }

    /// Those that keep descriptors of onion services and have passed their tests for so long at that time.
    pub(super) fn hsdirs(&self, uptime: u64, at: u64) -> BTreeSet<Key> {
        let long = self.tested.iter().filter(|(_, tested)| {
            tested.signed.descriptor.hsdir && tested.since.saturating_add(uptime) <= at
        });
        long.map(|(identity, _)| *identity).collect()
    }

    /// A relay that waits for its test had passed it since then, before a restart.
    pub(super) fn has_passed(&mut self, identity: &Key, since: Option<u64>) {
        if let Some(waiting) = self.waiting.get_mut(identity) {
            waiting.since = since;
        }
    }

    /// Whether this relay has passed its tests.
    pub(super) fn is_tested(&self, identity: &Key) -> bool {
        self.tested.contains_key(identity)
    }

    /// Takes a descriptor, whose signature was checked, in from a relay at `from`, or from the store.
    pub(super) fn take(
        &mut self,
        signed: SignedDescriptor,
        from: Option<IpAddr>,
        rules: &Admission,
        now: u64,
        skew: u64,
    ) -> Result<Taken, Rejected> {
        let identity = signed.descriptor.identity;
        if self.has(&signed) {
            return Ok(Taken {
                identity,
                gone: None,
                known: true,
            });
        }
        self.judge(&signed.descriptor, rules, now, skew)?;
        let before = self.tested.get_mut(&identity);
        if let Some(before) =
            before.filter(|before| is_same_place(&before.signed.descriptor, &signed.descriptor))
        {
            before.signed = signed;
            self.waiting.remove(&identity);
            return Ok(Taken {
                identity,
                gone: None,
                known: false,
            });
        }
        let host = from.map(host_network);
        let gone = if self.waiting.contains_key(&identity) {
            None
        } else {
            self.make_room(host, rules)?
        };
        self.arrived = self.arrived.saturating_add(1);
        let before = self.waiting.get(&identity);
        let waiting = Waiting {
            signed,
            host,
            since: before.and_then(|before| before.since),
            retried: before.and_then(|before| before.retried),
            arrived: self.arrived,
        };
        self.waiting.insert(identity, waiting);
        let gone = gone.filter(|gone| !self.tested.contains_key(gone));
        Ok(Taken {
            identity,
            gone,
            known: false,
        })
    }

    /// Whether this, word for word, is the last that the relay has said.
    fn has(&self, signed: &SignedDescriptor) -> bool {
        let identity = &signed.descriptor.identity;
        let waiting = self.waiting.get(identity).map(|waiting| &waiting.signed);
        let tested = self.tested.get(identity).map(|tested| &tested.signed);
        waiting.or(tested) == Some(signed)
    }

    fn judge(
        &self,
        relay: &Descriptor,
        rules: &Admission,
        now: u64,
        skew: u64,
    ) -> Result<(), Rejected> {
        let identity = &relay.identity;
        let tested = self.tested.get(identity).map(|tested| &tested.signed);
        let waiting = self.waiting.get(identity).map(|waiting| &waiting.signed);
        let known = tested.into_iter().chain(waiting);
        let known = known.map(|known| known.descriptor.published).max();
        // What carries an IPv4 address is that one over again, to where no cap of addresses sees it.
        let is_private = |address: &SocketAddr| {
            let ip = address.ip().to_canonical();
            special::is_special_purpose(ip) || !special::carried(ip).is_empty()
        };
        let is_listed = rules.only.is_empty() || rules.only.contains(identity);
        let is_full = tested.is_none() && self.tested.len() >= rules.relays;
        let wrongs = [
            (
                !is_listed || rules.refuse.contains(identity),
                Rejected::Forbidden,
            ),
            (rules.is_old(relay, now), Rejected::Old),
            (relay.published > now.saturating_add(skew), Rejected::Early),
            (known >= Some(relay.published), Rejected::Superseded),
            (
                !rules.private && relay.addresses.iter().any(is_private),
                Rejected::Private,
            ),
            (
                !relay
                    .addresses
                    .iter()
                    .any(|address| rules.reaches.has(address)),
                Rejected::Unreached,
            ),
            (is_full, Rejected::Full),
            (self.is_crowded(relay, rules), Rejected::Crowded),
        ];
        let wrong = wrongs.into_iter().find(|(is_wrong, _)| *is_wrong);
        wrong.map_or(Ok(()), |(_, rejected)| Err(rejected))
    }

    /// Whether as many other relays as may be are in one of its places. Only those that have passed a test count: who merely names an address
    /// keeps nobody from it.
    fn is_crowded(&self, relay: &Descriptor, rules: &Admission) -> bool {
        let others = || {
            let tested = self.tested().map(|signed| &signed.descriptor);
            tested.filter(|other| other.identity != relay.identity)
        };
        let limits = relay.addresses.iter().flat_map(|address| {
            let ip = address.ip();
            rules.caps(ip).map(|(bits, most)| (ip, bits, most))
        });
        limits.into_iter().any(|(ip, bits, most)| {
            let place = network(ip, bits, bits);
            let is_there = |other: &&Descriptor| {
                let mut addresses = other.addresses.iter().map(SocketAddr::ip);
                addresses.any(|other| {
                    other.is_ipv4() == ip.is_ipv4() && network(other, bits, bits) == place
                })
            };
            others().filter(is_there).count() >= most
        })
    }

    /// A place among those that wait, for who hands in from `host`. Where its network has no more, the host there that has most gives its last, if that is
    /// more, or this one its own oldest. Where there are no more at all it is the wide network with most, or the narrow one. What of others is under test stays.
    fn make_room(
        &mut self,
        host: Option<IpAddr>,
        rules: &Admission,
    ) -> Result<Option<Key>, Rejected> {
        let Some(host) = host else { return Ok(None) };
        let all = self.waiting.iter();
        let all = all.filter_map(|(identity, waiting)| {
            Some(Handed {
                identity: *identity,
                host: waiting.host?,
                arrived: waiting.arrived,
            })
        });
        let all: Vec<_> = all.collect();
        let home = site_of(host);
        let here: Vec<_> = all
            .iter()
            .filter(|one| site_of(one.host) == home)
            .copied()
            .collect();
        let gone = if here.len() >= rules.untested_per_network {
            let own = here.iter().filter(|one| one.host == host);
            let own = own.min_by_key(|one| one.arrived).copied();
            self.last_of_most(&here, host, |host| host).or(own)
        } else if all.len() >= rules.untested {
            let wide = |host| network(host, 16, 32);
            let most = self.last_of_most(&all, host, wide);
            most.or_else(|| self.last_of_most(&all, host, site_of))
        } else {
            return Ok(None);
        };
        let gone = gone.ok_or(Rejected::Busy)?.identity;
        self.waiting.remove(&gone);
        Ok(Some(gone))
    }

    /// Of the network with the most, the last that came, if that has more than `host`'s would have with one more.
    fn last_of_most(
        &self,
        all: &[Handed],
        host: IpAddr,
        network: impl Fn(IpAddr) -> IpAddr,
    ) -> Option<Handed> {
        let mut counts = HashMap::<IpAddr, usize>::new();
        for one in all {
            let count = counts.entry(network(one.host)).or_default();
            *count = count.saturating_add(1);
        }
        let own = counts.get(&network(host)).copied().unwrap_or(0);
        let (most, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        if count <= own.saturating_add(1) {
            return None;
        }
        let is_under_test = |one: &&Handed| {
            let mut under_way = self.under_way.values();
            under_way.any(|test| test.identity == one.identity)
        };
        let those = all.iter().filter(|one| network(one.host) == most);
        let those = those.filter(|one| !is_under_test(one));
        those.max_by_key(|one| one.arrived).copied()
    }

    /// What is to be tested now. Of each network's the first comes first, then of each the second; no address of new ones is tested twice at once. Three of
    /// four tests are for new ones at most, and as many for those that have passed before, which wait for none but each other.
    pub(super) fn probes(&mut self, rules: &Admission, now: u64) -> Vec<Probe> {
        let most = rules.tests.saturating_sub(rules.tests / 4);
        let mut chosen = Vec::new();
        let mut under_way = Vec::new();
        let mut dialled = Dialled::of(&self.under_way);
        for next in self.due(now).into_iter().chain(self.new_ones(now)) {
            let Next {
                relay,
                network,
                again,
            } = next;
            let all = dialled.again.0.saturating_add(dialled.new.0);
            if all >= rules.tests || dialled.count(again) >= most || !dialled.add(relay, again) {
                continue;
            }
            let addresses = relay
                .addresses
                .iter()
                .filter(|address| rules.reaches.has(address));
            chosen.push(Probe {
                relay: relay.clone(),
                addresses: addresses.copied().collect(),
                again,
                number: self.begun.saturating_add(chosen.len() as u64),
            });
            under_way.push(UnderWay {
                identity: relay.identity,
                network,
                ips: ips(relay).collect(),
                again,
            });
        }
        let numbers = chosen.iter().map(|probe| probe.number);
        self.under_way.extend(numbers.zip(under_way));
        self.begun = self.begun.saturating_add(chosen.len() as u64);
        chosen
    }

    /// Those whose test is due again, round by round of the networks they are in, who has waited longest first.
    fn due(&self, now: u64) -> Vec<Next<'_>> {
        let mut due: Vec<_> = self.tested.values().collect();
        due.retain(|tested| tested.next <= now);
        due.sort_by_key(|tested| tested.next);
        let due = due.into_iter().map(|tested| &tested.signed.descriptor);
        self.in_rounds(due.map(|relay| (home(relay), relay)), true)
    }

    /// Those that wait, round by round of the networks that handed them in; first those that had passed before a restart.
    fn new_ones(&self, now: u64) -> Vec<Next<'_>> {
        let mut waiting: Vec<_> = self.waiting.values().collect();
        waiting.retain(|waiting| waiting.retried.is_none_or(|retried| retried.next <= now));
        waiting.sort_by_key(|waiting| waiting.arrived);
        let of = |had_passed: bool| {
            let these = waiting
                .iter()
                .filter(move |waiting| waiting.since.is_some() == had_passed);
            let these = these.map(|waiting| {
                let relay = &waiting.signed.descriptor;
                let site = waiting.host.map(site_of);
                (site.or_else(|| home(relay)), relay)
            });
            self.in_rounds(these, false)
        };
        [of(true), of(false)].concat()
    }

    /// The first of each network, in their order, then the second; those under way stand before them, whatever has become of their descriptors.
    fn in_rounds<'a>(
        &'a self,
        all: impl Iterator<Item = (Option<IpAddr>, &'a Descriptor)>,
        again: bool,
    ) -> Vec<Next<'a>> {
        let mut rounds = HashMap::<Option<IpAddr>, usize>::new();
        let mut round = |network| {
            let round = rounds.entry(network).or_default();
            *round = round.saturating_add(1);
            *round
        };
        let under_way = self.under_way.values().filter(|one| one.again == again);
        let under_way: HashSet<_> = under_way
            .map(|one| {
                round(one.network);
                one.identity
            })
            .collect();
        let waits = all.filter(|(_, relay)| !under_way.contains(&relay.identity));
        let mut waits: Vec<_> = waits
            .map(|(network, relay)| {
                let next = Next {
                    relay,
                    network,
                    again,
                };
                (round(network), next)
            })
            .collect();
        waits.sort_by_key(|(round, _)| *round);
        waits.into_iter().map(|(_, next)| next).collect()
    }

    /// What came of a test. Gives what is to be done in the store.
    pub(super) fn probed(
        &mut self,
        probe: &Probe,
        passed: bool,
        rules: &Admission,
        now: u64,
    ) -> Option<Settled> {
        self.under_way.remove(&probe.number);
        let identity = probe.relay.identity;
        if probe.again {
            let tested = self.tested.get_mut(&identity)?;
            if passed {
                (tested.passed, tested.next) = (now, now.saturating_add(rules.retest.as_secs()));
            } else {
                tested.next = now.saturating_add(rules.retest.as_secs() / 4);
            }
            return None;
        }
        // Another descriptor of it may have come meanwhile: that waits for its own.
        let same = self.waiting.get_mut(&identity);
        let waiting =
            same.filter(|waiting| is_same_place(&waiting.signed.descriptor, &probe.relay))?;
        if !passed && waiting.is_tried_again(rules.retest.as_secs(), now) {
            return None;
        }
        let waiting = self.waiting.remove(&identity)?;
        let known = self.tested.get(&identity).map(|tested| tested.since);
        let has_room = known.is_some() || self.tested.len() < rules.relays;
        if !passed || !has_room || self.is_crowded(&waiting.signed.descriptor, rules) {
            return known.is_none().then_some(Settled::Forget(identity));
        }
        let before = known.or(waiting.since);
        let since = before.unwrap_or(now);
        let tested = Tested {
            signed: waiting.signed,
            since,
            passed: now,
            next: now.saturating_add(rules.retest.as_secs()),
        };
        self.tested.insert(identity, tested);
        before.is_none().then_some(Settled::Since(identity, since))
    }

    /// Forgets relays that have said nothing, or passed no test, for too long.
    pub(super) fn forget(&mut self, rules: &Admission, now: u64) -> Vec<Key> {
        let fails = |tested: &Tested| {
            tested
                .passed
                .saturating_add(rules.retest.as_secs().saturating_mul(2))
                < now
        };
        let mut gone: Vec<Key> = Vec::new();
        self.tested.retain(|identity, tested| {
            let stays = !fails(tested) && !rules.is_old(&tested.signed.descriptor, now);
            gone.extend((!stays).then_some(*identity));
            stays
        });
        self.waiting.retain(|identity, waiting| {
            let stays = !rules.is_old(&waiting.signed.descriptor, now);
            gone.extend((!stays).then_some(*identity));
            stays
        });
        gone.retain(|identity| {
            !self.tested.contains_key(identity) && !self.waiting.contains_key(identity)
        });
        gone.sort_unstable();
        gone.dedup();
        gone
    }
}
