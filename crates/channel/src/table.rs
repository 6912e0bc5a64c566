//! Which channels there are to which relays, for which requests each may be used, and who may be dialled, and how. Without I/O and without a clock;
//! [`super::Channels`] drives it. tor-spec: "Canonical connections", "Opening connections".
//!
//! Calling order: [`Table::ask`] for each request; where that says [`Lookup::Dial`], dial so and hand what came of it to [`Table::dialled`];
//! [`Table::accepted`] for each channel that a relay dialled; [`Table::sweep`] now and then.
//!
//! What others name is not to be believed: whoever asks a relay to extend a circuit chooses identity and address freely, and whoever dials a relay makes
//! identities at no cost. Therefore:
//! - a channel serves a request only if it goes to the address that is asked for, or to one that its peer says is its own;
//! - a dial is shared by those who ask for the same relay at the same address in the same way, and its failure is remembered for them alone;
//! - relays of the directory's list go before those that were dialled where they say that they are, and these before all others
//!   ([`Priority`]); of equals the idle go first, and those of which many are at one address; nobody goes for one who stands lower;
//! - QUIC, whose first packets are large, is dialled only where the list has the relay, or beside TLS where it has just shown itself;
//! - towards addresses that the list does not have, this many dials are begun and no more, to each and to all; of those to all, whoever asks for many
//!   leaves others theirs.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hoplite_link::LinkKind;
use hoplite_overlay::{Error, ErrorKind, Reason};
use hoplite_wire::{Host, Target, networks::host_network};
use tokio::{sync::SetOnce, time::Instant};

use super::{
    Config, How, Rate, Recent, Whom,
    registry::Remembered,
    registry::{Failed, Memory, Times},
};

/// How many channels to one relay are kept: each end may have dialled one at the same time, in two ways, and over another address.
const MAX_PER_RELAY: usize = 4;

/// What is known of relays beside their channels: the directory's list, and what the operator's file says. A client, who chooses whom it dials, needs
/// none.
pub trait Listing: Send + Sync {
    /// Whether a relay of this identity is in the list.
    fn lists(&self, identity: &[u8; 32]) -> bool;

    /// Whether it is in the list with this address, or the operator names a relay there.
    fn lists_at(&self, identity: &[u8; 32], address: SocketAddr) -> bool;

    /// Whether QUIC may be dialled at an address of which nothing is known, where that is the only way.
    fn permits_quic(&self, address: SocketAddr) -> bool;
}

/// A channel, as far as this machine looks at it.
pub(super) trait TableChannel: Clone {
    fn is_open(&self) -> bool;
    fn circuits(&self) -> usize;
    /// We dialled it.
    fn is_ours(&self) -> bool;
    fn kind(&self) -> LinkKind;
    /// The address of the connection, as it is now.
    fn remote(&self) -> Option<IpAddr>;
    /// Whether the peer says that this is an address of its own.
    fn is_peer_address_confirmed(&self) -> bool;
    /// Whether it may be used by whoever asks for the peer there.
    fn serves(&self, target: &Target) -> bool;
    /// Whether what is new should go over it, as far as it is known to answer and none has taken its place.
    fn takes_new(&self) -> bool;
    /// Another one has taken its place.
    fn supersede(&self);
    fn is_same(&self, other: &Self) -> bool;
    fn close(&self);
}

/// What became of a dial; nothing yet while it runs. Whoever waits is woken in the order of waiting.
pub(super) type Outcome<C> = Arc<SetOnce<Result<C, Error>>>;

/// What is to be done for a caller.
pub(super) enum Lookup<C> {
    /// And a dial that nobody waits for, where it runs over TLS and the relay may be had over QUIC: the circuits after this one.
    Here(C, Option<Plan<C>>),
    Wait(Outcome<C>),
    Dial(Plan<C>),
}

/// How a relay is to be dialled.
pub(super) struct Plan<C> {
    pub(super) how: How,
    /// Where that fails, so is it dialled after it.
    pub(super) otherwise: Option<How>,
    /// Where that succeeds and the peer says that it is there, so is it dialled beside it: the address is proven.
    pub(super) beside: Option<How>,
    /// Which dial this is.
    pub(super) number: u64,
    pub(super) outcome: Outcome<C>,
}

/// Who goes before whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Priority {
    /// It dialled us, or was dialled where it does not say that it is: identities cost nothing.
    Guest,
    /// We dialled it, and it says itself that it is there.
    Dialled,
    /// It is in the list; without a list, whoever is asked for.
    Listed,
}

/// All relays to which there is a channel, or a dial in progress.
pub(super) struct Table<C> {
    bounds: Config,
    listing: Option<Arc<dyn Listing>>,
    relays: BTreeMap<[u8; 32], Relay<C>>,
    /// Channels that we dialled and that nobody finds here: each ends when it has been without circuits for a while.
    unkept: Vec<TableEntry<C>>,
    failed: Failed,
    /// Where TLS was there first, when it was raced.
    slow: Remembered,
    /// Until when what was dialled is paid for, in all and to each address.
    paid: Option<Instant>,
    paid_at: HashMap<IpAddr, Instant>,
    /// How many of them each has asked for of late.
    asked: HashMap<u64, Recent>,
    number: u64,
}

/// What there is of one relay.
struct Relay<C> {
    /// Where it was when it came to be known: an IPv4 address or an IPv6 /64.
    place: Option<IpAddr>,
    channels: Vec<TableEntry<C>>,
    dials: Vec<Dial<C>>,
}

struct TableEntry<C> {
    channel: C,
    /// The peer says that it is there, or the list does.
    is_known_there: bool,
    /// Since when it has been seen without circuits.
    idle: Option<Instant>,
}

struct Dial<C> {
    target: Target,
    how: How,
    number: u64,
    outcome: Outcome<C>,
}

impl<C: TableChannel> Table<C> {
    pub(super) fn new(bounds: Config) -> Self {
        Self {
            bounds,
            listing: None,
            relays: BTreeMap::new(),
            unkept: Vec::new(),
            failed: Failed::default(),
            slow: Remembered::default(),
            paid: None,
            paid_at: HashMap::new(),
            asked: HashMap::new(),
            number: 0,
        }
    }

    /// From now on others choose who is dialled, and this says who is known.
    pub(super) fn set_listing(&mut self, listing: Arc<dyn Listing>) {
        self.listing = Some(listing);
    }

    /// Somebody needs a channel to the relay `identity` at `whom.address`, on behalf of `who`, if others choose. `ours`: whether, of two, the one that we dialled is taken.
    ///
    /// # Errors
    /// [`Reason::Limit`] at a bound; why a dial like this failed a short time ago.
    pub(super) fn ask(
        &mut self,
        (identity, whom): (&[u8; 32], &Whom),
        who: Option<u64>,
        how: How,
        ours: bool,
        now: Instant,
    ) -> Result<Lookup<C>, Error> {
        let here = self.relays.get_mut(identity);
        let here = here.and_then(|relay| relay.find(&whom.address, ours));
        // A client does not wait until silence is an end: it may be that UDP is blocked from now on. A relay would be made to dial by it.
        let fits = |channel: &C| self.listing.is_some() || channel.takes_new();
        if let Some(channel) = here.filter(fits) {
            let better = match channel.kind() {
                LinkKind::Tls => self.better((identity, whom), how, now),
                LinkKind::Quic => None,
            };
            return Ok(Lookup::Here(channel, better));
        }
        if let Some(relay) = self.relays.get_mut(identity) {
            let same = |dial: &Dial<C>| dial.target == whom.address && dial.how == how;
            if let Some(dial) = relay.dials.iter_mut().find(|dial| same(dial)) {
                if dial.outcome.initialized() {
                    // Those who waited have a channel that the relay dialled meanwhile; it no longer serves.
                    dial.outcome = Outcome::default();
                }
                return Ok(Lookup::Wait(Arc::clone(&dial.outcome)));
            }
        }
        if let Some(error) = self.failed.find(whom, how, now) {
            return Err(error);
        }
        let mut plan = self.plan((identity, whom), how, now)?;
        self.admit((identity, whom), who, now)?;
        let relay = self.relays.entry(*identity).or_insert_with(|| Relay {
            place: place_of(&whom.address),
            channels: Vec::new(),
            dials: Vec::new(),
        });
        self.number = self.number.wrapping_add(1);
        plan.number = self.number;
        relay.dials.push(Dial::of(&plan, whom, how));
        Ok(Lookup::Dial(plan))
    }

    /// A relay to which there is a channel over TLS is said to have QUIC: it may have dialled us, or nothing was known of it then. A way that fails is not
    /// tried again for a while.
    fn better(
        &mut self,
        (identity, whom): (&[u8; 32], &Whom),
        how: How,
        now: Instant,
    ) -> Option<Plan<C>> {
        let target = &whom.address;
        let known = how != How::Tls && self.lists_at(identity, target);
        let fails = || {
            self.slow.is_tls(identity, target, now)
                || self.failed.find(whom, How::Quic, now).is_some()
        };
        if !known || fails() {
            return None;
        }
        self.quic((identity, whom))
    }

    /// A dial over QUIC beside what there is, unless another one to there runs.
    pub(super) fn quic(&mut self, (identity, whom): (&[u8; 32], &Whom)) -> Option<Plan<C>> {
        let relay = self.relays.get_mut(identity)?;
        if relay.dials.iter().any(|dial| dial.target == whom.address) {
            return None;
        }
        self.number = self.number.wrapping_add(1);
        let plan = Plan {
            how: How::Quic,
            otherwise: None,
            beside: None,
            number: self.number,
            outcome: Outcome::default(),
        };
        relay.dials.push(Dial::of(&plan, whom, How::Quic));
        Some(plan)
    }

    /// Whether `channel`, which was dialled by this plan, is to be left for TLS if it loses much.
    pub(super) fn may_leave_quic(
        &self,
        (identity, whom): (&[u8; 32], &Whom),
        plan: &Plan<C>,
        channel: &C,
    ) -> bool {
        let has_tls = |relay: &Relay<C>| relay.has_tls(&whom.address);
        // What was dialled over QUIC alone came back to it, or is to have nothing else.
        let may = plan.how == How::Raced || self.relays.get(identity).is_some_and(has_tls);
        may && channel.kind() == LinkKind::Quic && self.listing.is_none()
    }

    /// QUIC loses much, and what is new goes over `tls` instead. How long until QUIC is to be tried again.
    pub(super) fn leave_quic(
        &mut self,
        (identity, whom): (&[u8; 32], &Whom),
        tls: C,
        now: Instant,
    ) -> Duration {
        self.slow.note(*identity, &whom.address, now);
        self.keep(identity, tls, Some(&whom.address));
        if let Some(relay) = self.relays.get(identity) {
            relay.supersede(LinkKind::Quic, &whom.address);
        }
        next_retry(
            self.bounds.quic_retry,
            self.slow.lost(identity, &whom.address),
        )
    }

    /// How long after `channel` was dialled by this plan QUIC is to be tried for the first time, if it is.
    pub(super) fn quic_retry(
        &self,
        (identity, whom): (&[u8; 32], &Whom),
        plan: &Plan<C>,
        channel: &C,
    ) -> Option<Duration> {
        let raced = [Some(plan.how), plan.otherwise].contains(&Some(How::Raced));
        let is_for_it = raced && channel.kind() == LinkKind::Tls && self.listing.is_none();
        let lost = self.slow.lost(identity, &whom.address);
        is_for_it.then(|| next_retry(self.bounds.quic_retry, lost))
    }

    /// What came of a dial that `plan` asked for, in the way `how`. Who waited for it is told.
    pub(super) fn dialled(
        &mut self,
        (identity, whom): (&[u8; 32], &Whom),
        plan: &Plan<C>,
        made: Result<C, Error>,
        ours: bool,
        times: Times,
    ) {
        let asked = self.end_dial(identity, plan.number);
        let how = asked.as_ref().map(|dial| dial.how);
        // That there is no room here says nothing of the relay.
        let failed = made.as_ref().err();
        if let Some(error) = failed.filter(|error| error.reason() != Some(Reason::Limit)) {
            let memory = Memory {
                kept: self.bounds.failed,
                most: self.bounds.channels,
            };
            if let Some(how) = how {
                self.failed.note(memory, (whom, how), times, error);
            }
            let relay = self.relays.get_mut(identity);
            if plan.how == How::Quic && relay.is_some_and(|relay| relay.has_tls(&whom.address)) {
                self.slow.note(*identity, &whom.address, times.now);
            }
        }
        let told = made.map(|channel| {
            self.raced(identity, whom, plan, &channel, times.now);
            self.keep(identity, channel.clone(), Some(&whom.address));
            let relay = self.relays.get_mut(identity);
            let chosen = relay.and_then(|relay| relay.find(&whom.address, ours));
            chosen.unwrap_or(channel)
        });
        self.forget_dead(identity);
        let waiting = asked.map_or_else(|| Arc::clone(&plan.outcome), |dial| dial.outcome);
        waiting.set(told).ok();
    }

    /// A further channel to a relay that was dialled: nobody waits for it.
    pub(super) fn beside(&mut self, (identity, whom): (&[u8; 32], &Whom), channel: C) {
        self.keep(identity, channel, Some(&whom.address));
    }

    /// The relay `identity` dialled us. Beyond the bounds nothing is kept of it: its circuits are served, but it is not used to extend others to it.
    pub(super) fn accepted(&mut self, identity: &[u8; 32], channel: C) {
        self.failed.forget(identity);
        self.keep(identity, channel, None);
    }

    /// The channels that are open.
    pub(super) fn open(&self) -> impl Iterator<Item = &C> {
        let kept = self.relays.values().flat_map(|relay| &relay.channels);
        kept.chain(&self.unkept)
            .map(|kept| &kept.channel)
            .filter(|channel| channel.is_open())
    }

    /// Forgets channels that have ended and closes those that have been without circuits for [`Config::idle`].
    pub(super) fn sweep(&mut self, now: Instant) {
        let patience = self.bounds.idle;
        self.relays.retain(|_, relay| {
            relay
                .channels
                .retain_mut(|kept| kept.is_wanted(now, patience));
            !relay.dials.is_empty() || !relay.channels.is_empty()
        });
        self.unkept.retain_mut(|gone| gone.is_wanted(now, patience));
        self.paid_at.retain(|_, paid| *paid > now);
        self.asked.retain(|_, recent| recent.count(now) > 0);
    }
}

/// Who is dialled, and how.
impl<C: TableChannel> Table<C> {
    fn lists_at(&self, identity: &[u8; 32], target: &Target) -> bool {
        let Some(listing) = &self.listing else {
            return true;
        };
        socket(target).is_some_and(|address| listing.lists_at(identity, address))
    }

    fn plan(
        &mut self,
        (identity, whom): (&[u8; 32], &Whom),
        how: How,
        now: Instant,
    ) -> Result<Plan<C>, Error> {
        let plan = |how, otherwise, beside| Plan {
            how,
            otherwise,
            beside,
            number: 0,
            outcome: Outcome::default(),
        };
        let target = &whom.address;
        if self.lists_at(identity, target) {
            let slow = how == How::Raced && self.slow.is_tls(identity, target, now);
            return Ok(if slow {
                plan(How::Tls, Some(How::Raced), None)
            } else {
                plan(how, None, None)
            });
        }
        let listing = self.listing.as_ref();
        let permits = |address| listing.is_some_and(|listing| listing.permits_quic(address));
        match how {
            How::Tls => Ok(plan(How::Tls, None, None)),
            How::Raced => Ok(plan(How::Tls, None, Some(How::Quic))),
            How::Quic if socket(target).is_some_and(permits) => Ok(plan(How::Quic, None, None)),
            How::Quic => Err(refused(whom, "nothing is known of it").because(Reason::Policy)),
        }
    }

    /// Whether one more dial may begin, and be remembered.
    fn admit(
        &mut self,
        (identity, whom): (&[u8; 32], &Whom),
        who: Option<u64>,
        now: Instant,
    ) -> Result<(), Error> {
        let listed = self.lists_at(identity, &whom.address);
        let place = place_of(&whom.address);
        let paid = if listed {
            None
        } else {
            Some(self.price(place, who, now).ok_or_else(|| {
                let why = "too many relays that the list does not have are dialled";
                refused(whom, why).because(Reason::Limit)
            })?)
        };
        let priority = if listed {
            Priority::Listed
        } else {
            Priority::Guest
        };
        let here = self.relays.contains_key(identity);
        if !here && !self.make_room(priority, place) {
            let why = "there are channels to too many relays";
            return Err(refused(whom, why).because(Reason::Limit));
        }
        if let Some((all, each)) = paid {
            self.paid = Some(all);
            if let Some(place) = place {
                self.paid_at.insert(place, each);
            }
            if let Some(who) = who {
                let recent = self.asked.entry(who);
                recent.or_insert_with(|| Recent::new(now)).add(1);
            }
        }
        Ok(())
    }

    /// Until when all and this address would be paid for with one more dial.
    fn price(
        &mut self,
        place: Option<IpAddr>,
        who: Option<u64>,
        now: Instant,
    ) -> Option<(Instant, Instant)> {
        let left = self.bounds.dials.left(self.paid, now);
        let recent = who.and_then(|who| self.asked.get_mut(&who));
        if recent.is_some_and(|recent| !recent.is_fair(left, now)) {
            return None;
        }
        let each = place.and_then(|place| self.paid_at.get(&place).copied());
        let all = self.bounds.dials.paid(self.paid, now)?;
        Some((all, self.bounds.dials_per_address.paid(each, now)?))
    }

    /// Where both ways were tried and TLS was there first, QUIC is not waited for again for a while.
    fn raced(
        &mut self,
        identity: &[u8; 32],
        whom: &Whom,
        plan: &Plan<C>,
        channel: &C,
        now: Instant,
    ) {
        match (plan.how, channel.kind()) {
            (How::Raced, LinkKind::Tls) => self.slow.note(*identity, &whom.address, now),
            (_, LinkKind::Quic) => self.slow.quic(identity, &whom.address, now),
            (_, LinkKind::Tls) => {}
        }
    }

    fn end_dial(&mut self, identity: &[u8; 32], number: u64) -> Option<Dial<C>> {
        let relay = self.relays.get_mut(identity)?;
        let mut dials = relay.dials.iter();
        let place = dials.position(|dial| dial.number == number)?;
        Some(relay.dials.remove(place))
    }
}

/// Who is kept.
impl<C: TableChannel> Table<C> {
    /// Keeps a channel if there is room; who waits for a dial to where it serves has it at once.
    fn keep(&mut self, identity: &[u8; 32], channel: C, dialled: Option<&Target>) {
        let place = dialled
            .and_then(place_of)
            .or_else(|| channel.remote().map(host_network));
        let listed = dialled.is_some_and(|target| self.lists_at(identity, target));
        let is_known_there = channel.is_peer_address_confirmed() || listed;
        let priority = match (
            self.is_listed(identity),
            dialled.is_some() && is_known_there,
        ) {
            (true, _) => Priority::Listed,
            (false, true) => Priority::Dialled,
            (false, false) => Priority::Guest,
        };
        let new = TableEntry {
            channel,
            is_known_there,
            idle: None,
        };
        if !self.relays.contains_key(identity) && !self.make_room(priority, place) {
            self.let_new_go(new);
            return;
        }
        let channel = new.channel.clone();
        let relay = self.relays.entry(*identity).or_insert_with(|| Relay {
            place,
            channels: Vec::new(),
            dials: Vec::new(),
        });
        for dial in &relay.dials {
            if channel.serves(&dial.target) {
                dial.outcome.set(Ok(channel.clone())).ok();
            }
        }
        let is_quic = channel.kind() == LinkKind::Quic;
        let gone = relay.add(new);
        if let Some(target) = dialled.filter(|_| is_quic && self.listing.is_none()) {
            relay.supersede(LinkKind::Tls, target);
        }
        match gone {
            Some(gone) if gone.channel.is_same(&channel) => self.let_new_go(gone),
            Some(gone) => self.let_go(gone),
            None => {}
        }
    }

    /// Who asked for it is about to begin a circuit on it. If he does not, or when it has ended, nothing else closes what we dialled.
    fn let_new_go(&mut self, new: TableEntry<C>) {
        if new.channel.is_ours() {
            self.unkept.push(new);
        }
    }

    /// What has circuits goes on with them; nothing would close the others.
    fn let_go(&mut self, gone: TableEntry<C>) {
        if gone.channel.circuits() == 0 {
            gone.channel.close();
        } else {
            self.let_new_go(gone);
        }
    }

    fn is_listed(&self, identity: &[u8; 32]) -> bool {
        let listing = self.listing.as_ref();
        listing.is_none_or(|listing| listing.lists(identity))
    }

    fn priority(&self, identity: &[u8; 32], relay: &Relay<C>) -> Priority {
        match (self.is_listed(identity), relay.is_dialled()) {
            (true, _) => Priority::Listed,
            (false, true) => Priority::Dialled,
            (false, false) => Priority::Guest,
        }
    }

    /// Forgets a relay, if one more of this priority at this place would be too many. Whether there is room then.
    fn make_room(&mut self, newcomer: Priority, place: Option<IpAddr>) -> bool {
        let here = self.relays.iter();
        let here =
            here.filter(|(identity, relay)| relay.place == place && !self.is_listed(identity));
        let here = here.count();
        if newcomer < Priority::Listed && here >= self.bounds.channels_per_address {
            return self.evict(newcomer, |priority, relay| {
                let fits = relay.place == place && priority <= newcomer && relay.is_at_rest();
                fits.then_some(0)
            });
        }
        if self.relays.len() < self.bounds.channels {
            return true;
        }
        self.relays.retain(|_, relay| relay.is_alive());
        if self.relays.len() < self.bounds.channels {
            return true;
        }
        let crowds = self.crowds();
        self.evict(newcomer, |priority, relay| {
            let there = crowds.get(&relay.place).copied().unwrap_or_default();
            let lower = priority < newcomer;
            let idle = priority == newcomer && relay.is_at_rest();
            let crowded = priority == newcomer
                && priority < Priority::Listed
                && there > here.saturating_add(1);
            (lower || idle || crowded).then_some(there)
        })
    }

    /// How many relays that the list does not have are at each place.
    fn crowds(&self) -> HashMap<Option<IpAddr>, usize> {
        let mut crowds = HashMap::new();
        for (identity, relay) in &self.relays {
            if !self.is_listed(identity) {
                *crowds.entry(relay.place).or_default() += 1;
            }
        }
        crowds
    }

    /// Forgets the one that stands lowest, the idle first, then those in the largest crowd. `may` says which may go, and how many are where it is.
    fn evict(
        &mut self,
        newcomer: Priority,
        may: impl Fn(Priority, &Relay<C>) -> Option<usize>,
    ) -> bool {
        let all = self.relays.iter();
        let ranked = all.filter_map(|(identity, relay)| {
            let priority = self.priority(identity, relay);
            let crowd = may(priority, relay).filter(|_| priority <= newcomer)?;
            Some((
                (priority, !relay.is_at_rest(), Reverse(crowd), relay.idle()),
                *identity,
            ))
        });
        let Some((_, identity)) = ranked.min() else {
            return false;
        };
        let gone = self.relays.remove(&identity);
        let channels = gone.into_iter().flat_map(|relay| relay.channels);
        channels.for_each(|kept| self.let_go(kept));
        true
    }

    fn forget_dead(&mut self, identity: &[u8; 32]) {
        if self
            .relays
            .get(identity)
            .is_some_and(|relay| !relay.is_alive())
        {
            self.relays.remove(identity);
        }
    }
}

impl<C> Dial<C> {
    fn of(plan: &Plan<C>, whom: &Whom, how: How) -> Self {
        Self {
            target: whom.address.clone(),
            how,
            number: plan.number,
            outcome: Arc::clone(&plan.outcome),
        }
    }
}

impl<C: TableChannel> Relay<C> {
    /// Whether there is one to the address that runs over TLS.
    fn has_tls(&self, target: &Target) -> bool {
        let mut channels = self.channels.iter().map(|kept| &kept.channel);
        channels.any(|one| one.is_open() && one.kind() == LinkKind::Tls && one.serves(target))
    }

    /// What is new is not to go over such channels any more.
    fn supersede(&self, kind: LinkKind, target: &Target) {
        let channels = self.channels.iter().map(|kept| &kept.channel);
        channels
            .filter(|one| one.kind() == kind && one.serves(target))
            .for_each(TableChannel::supersede);
    }

    fn is_alive(&self) -> bool {
        !self.dials.is_empty() || self.channels.iter().any(|kept| kept.channel.is_open())
    }

    /// We dialled it where it says that it is.
    fn is_dialled(&self) -> bool {
        self.channels.iter().any(|kept| {
            let channel = &kept.channel;
            channel.is_ours() && channel.is_open() && channel.is_peer_address_confirmed()
        })
    }

    /// None of its channels had a circuit when that was last looked at, and none was handed out since.
    fn is_at_rest(&self) -> bool {
        let rests = |kept: &TableEntry<C>| kept.idle.is_some() && kept.channel.circuits() == 0;
        self.dials.is_empty() && self.channels.iter().all(rests)
    }

    /// Since when.
    fn idle(&self) -> Option<Instant> {
        self.channels.iter().filter_map(|kept| kept.idle).max()
    }

    /// Of several that serve the address one that answers; then QUIC; then one that we dialled (`ours`) or one that the peer did; of those the oldest.
    fn find(&mut self, target: &Target, ours: bool) -> Option<C> {
        self.channels.retain(|kept| kept.channel.is_open());
        let serving = self.channels.iter_mut();
        let serving = serving.filter(|kept| kept.channel.serves(target));
        let kept = serving.min_by_key(|kept| {
            let channel = &kept.channel;
            let is_tls = channel.kind() == LinkKind::Tls;
            (!channel.takes_new(), is_tls, channel.is_ours() != ours)
        })?;
        kept.idle = None;
        Some(kept.channel.clone())
    }

    /// The oldest stays first. Beyond the bound one goes of which nobody says that the relay is there, then one without circuits, then the newest;
    /// circuits that it has live on. Answers which one goes.
    fn add(&mut self, kept: TableEntry<C>) -> Option<TableEntry<C>> {
        self.channels.retain(|kept| kept.channel.is_open());
        if self
            .channels
            .iter()
            .any(|other| other.channel.is_same(&kept.channel))
        {
            return None;
        }
        self.channels.push(kept);
        if self.channels.len() <= MAX_PER_RELAY {
            return None;
        }
        let numbered = self.channels.iter().enumerate();
        let worst = numbered.min_by_key(|(number, kept)| {
            // The new one has none yet, but is wanted.
            let used = kept.channel.circuits() > 0 || number + 1 == self.channels.len();
            (kept.is_known_there, used, Reverse(*number))
        });
        let (number, _) = worst?;
        Some(self.channels.remove(number))
    }
}

impl<C: TableChannel> TableEntry<C> {
    fn is_wanted(&mut self, now: Instant, patience: Duration) -> bool {
        if !self.channel.is_open() {
            return false;
        }
        if self.channel.circuits() > 0 {
            self.idle = None;
            return true;
        }
        let since = *self.idle.get_or_insert(now);
        let wanted = now.saturating_duration_since(since) < patience;
        if !wanted {
            self.channel.close();
        }
        wanted
    }
}

/// The longest time between two tries of QUIC beside one channel over TLS.
pub const QUIC_RETRY_AT_MOST: Duration = Duration::from_secs(320);

/// After so many tries, or losses, each of which doubles the time to the next.
pub(super) fn next_retry(first: Duration, doublings: u32) -> Duration {
    let longer = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
    first.saturating_mul(longer).min(QUIC_RETRY_AT_MOST)
}

fn place_of(target: &Target) -> Option<IpAddr> {
    socket(target).map(|address| host_network(address.ip()))
}

fn socket(target: &Target) -> Option<SocketAddr> {
    match &target.host {
        Host::Ip(address) => Some(SocketAddr::new(*address, target.port)),
        Host::Name(_) => None,
    }
}

fn refused(whom: &Whom, why: &str) -> Error {
    let doing = format!("making a channel to relay {}: {why}", whom.name);
    Error::new(ErrorKind::PathFailed, doing)
}

impl Rate {
    /// Until when is paid for with one more, if it may be; `paid` is until when it is now. The generic cell rate algorithm (ITU-T I.371, annex A).
    fn paid(self, paid: Option<Instant>, now: Instant) -> Option<Instant> {
        let each = Duration::from_secs(1) / self.per_second.max(1);
        let after = paid.map_or(now, |paid| paid.max(now)) + each;
        (after <= now + each.saturating_mul(self.at_once)).then_some(after)
    }

    /// How many more there may be at once.
    fn left(self, paid: Option<Instant>, now: Instant) -> u32 {
        let each = Duration::from_secs(1) / self.per_second.max(1);
        let ahead = paid.map_or(Duration::ZERO, |paid| paid.saturating_duration_since(now));
        let taken = ahead.as_nanos().div_ceil(each.as_nanos().max(1));
        let taken = u32::try_from(taken).unwrap_or(u32::MAX);
        self.at_once.saturating_sub(taken)
    }
}

#[cfg(test)]
mod tests;
