//! The mappings and their ages, as a machine without a clock.
//! Used by [`super::Names`] under its lock. Every call tidies up a bounded number of expired mappings.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    hash::{BuildHasher, RandomState},
};

use hoplite_wire::HostName;
use tokio::time::Instant;

use super::Terms;
use crate::users::{Shares, User};

/// How many expired mappings one call forgets: more than it can make.
const TIDIED: usize = 8;
/// How often a free address is looked for. Half of them are free, so this fails once in 2^64 times.
const TRIES: usize = 64;

/// All mappings.
pub(super) struct Table {
    terms: Terms,
    /// How many addresses may be out of reach: those in use and those that have been used.
    room: usize,
    by_name: HashMap<HostName, u32>,
    slots: HashMap<u32, Slot>,
    /// Those that no flow holds, by when they were used last: all, and each user's.
    unheld: BTreeSet<(Instant, u32)>,
    unheld_of: HashMap<User, BTreeSet<(Instant, u32)>>,
    shares: Shares,
    /// Addresses that have meant something, the oldest first: they are given again when there is no room for more.
    spent: VecDeque<u32>,
    is_spent: HashSet<u32>,
    random: RandomState,
    drawn: u64,
}

/// One mapping.
struct Slot {
    name: HostName,
    /// Whom it is counted against: of those who asked for it the one who had fewest.
    user: User,
    /// When it was told or used last.
    used: Instant,
    /// How many flows hold it.
    holds: usize,
    /// When a flow found that the name does not exist.
    missing: Option<Instant>,
}

impl Table {
    /// No mapping, and room for as many addresses.
    pub(super) fn new(terms: Terms, room: usize) -> Self {
        let names = terms.names.min(room / 2);
        Self {
            terms: Terms { names, ..terms },
            room,
            by_name: HashMap::new(),
            slots: HashMap::new(),
            unheld: BTreeSet::new(),
            unheld_of: HashMap::new(),
            shares: Shares::default(),
            spent: VecDeque::new(),
            is_spent: HashSet::new(),
            random: RandomState::new(),
            drawn: 0,
        }
    }

    /// The address of `name`, which `user` is told now; one that `choose` makes of a random number if it has none.
    pub(super) fn map(
        &mut self,
        name: &HostName,
        user: User,
        now: Instant,
        choose: impl Fn(u64) -> Option<u32>,
    ) -> Option<u32> {
        self.tidy(now);
        if let Some(&offset) = self.by_name.get(name) {
            self.touch(offset, now);
            self.pass_on(offset, user);
            return Some(offset);
        }
        if self.slots.len() >= self.terms.names {
            self.make_room(user)?;
        }
        let offset = (0..TRIES).find_map(|_| self.draw(&choose))?;
        let slot = Slot {
            name: name.clone(),
            user,
            used: now,
            holds: 0,
            missing: None,
        };
        self.by_name.insert(name.clone(), offset);
        self.slots.insert(offset, slot);
        self.shares.add(user);
        self.let_go(user, now, offset);
        Some(offset)
    }

    /// A name that several users ask for is counted against the one who has fewest, so that it does not go with what another one asks for.
    fn pass_on(&mut self, offset: u32, user: User) {
        let Some(slot) = self.slots.get_mut(&offset) else {
            return;
        };
        let (before, used, free) = (slot.user, slot.used, slot.holds == 0);
        if self.shares.of(user) >= self.shares.of(before) {
            return;
        }
        slot.user = user;
        self.shares.remove(before);
        self.shares.add(user);
        if free {
            self.take(before, used, offset);
            self.let_go(user, used, offset);
        }
    }

    /// Another user that has more loses what it has not used for longest; `None` if there is none, or flows hold all that it has.
    fn make_room(&mut self, newcomer: User) -> Option<()> {
        let giver = self
            .shares
            .gives(newcomer)
            .filter(|user| *user != newcomer)?;
        let &(used, offset) = self.unheld_of.get(&giver)?.first()?;
        self.forget(used, offset);
        Some(())
    }

    /// A flow holds it from now on, or it is gone.
    fn take(&mut self, user: User, used: Instant, offset: u32) {
        self.unheld.remove(&(used, offset));
        if let Some(unheld) = self.unheld_of.get_mut(&user) {
            unheld.remove(&(used, offset));
            if unheld.is_empty() {
                self.unheld_of.remove(&user);
            }
        }
    }

    /// No flow holds it.
    fn let_go(&mut self, user: User, used: Instant, offset: u32) {
        self.unheld.insert((used, offset));
        let unheld = self.unheld_of.entry(user).or_default();
        unheld.insert((used, offset));
    }

    fn draw(&mut self, choose: impl Fn(u64) -> Option<u32>) -> Option<u32> {
        self.drawn = self.drawn.wrapping_add(1);
        let offset = choose(self.random.hash_one(self.drawn))?;
        let taken = self.slots.contains_key(&offset) || self.is_spent.contains(&offset);
        (!taken).then_some(offset)
    }

    /// The name behind an address that is used now.
    pub(super) fn use_now(&mut self, offset: u32, now: Instant) -> Option<HostName> {
        let name = self.name(offset, now)?;
        self.touch(offset, now);
        Some(name)
    }

    /// The name behind an address.
    pub(super) fn name(&self, offset: u32, now: Instant) -> Option<HostName> {
        let slot = self.slots.get(&offset)?;
        self.is_alive(slot, now).then(|| slot.name.clone())
    }

    /// Keeps a mapping until it is released as often as it was held; false if there is none.
    pub(super) fn hold(&mut self, offset: u32, now: Instant) -> bool {
        let keep = self.terms.keep;
        let Some(slot) = self.slots.get_mut(&offset) else {
            return false;
        };
        if slot.holds == 0 && now >= slot.used + keep {
            return false;
        }
        slot.holds += 1;
        let (user, used, first) = (slot.user, slot.used, slot.holds == 1);
        if first {
            self.take(user, used, offset);
        }
        true
    }

    /// A flow has ended.
    pub(super) fn release(&mut self, offset: u32, now: Instant) {
        let Some(slot) = self.slots.get_mut(&offset) else {
            return;
        };
        slot.holds = slot.holds.saturating_sub(1);
        slot.used = slot.used.max(now);
        let (user, used, free) = (slot.user, slot.used, slot.holds == 0);
        if free {
            self.let_go(user, used, offset);
        }
    }

    /// The name behind an address does not exist.
    pub(super) fn fail(&mut self, offset: u32, now: Instant) {
        if let Some(slot) = self.slots.get_mut(&offset) {
            slot.missing = Some(now);
        }
    }

    pub(super) fn is_missing(&self, name: &HostName, now: Instant) -> bool {
        let slot = self.by_name.get(name).and_then(|at| self.slots.get(at));
        let missing = slot.and_then(|slot| slot.missing);
        missing.is_some_and(|since| now < since + self.terms.missing)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    fn is_alive(&self, slot: &Slot, now: Instant) -> bool {
        slot.holds > 0 || now < slot.used + self.terms.keep
    }

    fn touch(&mut self, offset: u32, now: Instant) {
        let Some(slot) = self.slots.get_mut(&offset) else {
            return;
        };
        let before = slot.used;
        slot.used = before.max(now);
        let (user, used, free) = (slot.user, slot.used, slot.holds == 0);
        if free && before != used {
            self.take(user, before, offset);
            self.let_go(user, used, offset);
        }
    }

    /// Forgets the names of some mappings that have expired; their addresses rest.
    fn tidy(&mut self, now: Instant) {
        for _ in 0..TIDIED {
            let Some(&(used, offset)) = self.unheld.first() else {
                return;
            };
            if now < used + self.terms.keep {
                return;
            }
            self.forget(used, offset);
        }
    }

    /// The name behind an address that no flow holds.
    fn forget(&mut self, used: Instant, offset: u32) {
        if let Some(slot) = self.slots.remove(&offset) {
            self.take(slot.user, used, offset);
            self.shares.remove(slot.user);
            self.by_name.remove(&slot.name);
        }
        self.rest(offset);
    }

    fn rest(&mut self, offset: u32) {
        self.is_spent.insert(offset);
        self.spent.push_back(offset);
        let names = self.terms.names;
        if self.spent.len() > self.room.saturating_sub(names)
            && let Some(rested) = self.spent.pop_front()
        {
            self.is_spent.remove(&rested);
        }
    }
}
