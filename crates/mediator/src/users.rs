//! The users among which slots and memory are shared: how many slots each has, and which of them loses one when all are taken.
//! No I/O, no clock.
//!
//! Max-min fairness (Bertsekas and Gallager, "Data Networks", §6.5.2), in two levels: owners share among each other, and what an owner has is
//! shared by its control groups. So whoever may make control groups of its own gains nothing from other owners by it. Nobody loses one
//! while a slot is free.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    fmt,
    hash::Hash,
    net::IpAddr,
    sync::Arc,
};

use hoplite_overlay::Isolation;
use hoplite_wire::networks::host_network;
use parking_lot::{Mutex, MutexGuard};

/// Whose programs have flows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Owner {
    /// A user of this machine.
    Uid(u32),
    /// Whoever sends from this address, when no socket of this machine does; of IPv6 its /64, in which a host takes as many as it likes.
    Address(IpAddr),
}

impl Owner {
    /// The token with which flows share no connection with those of other owners, beside the one that is given.
    pub(crate) fn isolation(self, given: &Isolation) -> Isolation {
        let name = match self {
            Self::Uid(uid) => [&[0_u8][..], &uid.to_be_bytes()].concat(),
            Self::Address(IpAddr::V4(address)) => [&[4_u8][..], &address.octets()].concat(),
            Self::Address(IpAddr::V6(address)) => [&[6_u8][..], &address.octets()].concat(),
        };
        given.of_owner(&name)
    }
}

/// A program as far as it can be told from others: its owner and its control group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct User {
    pub(crate) owner: Owner,
    /// The number that the kernel gave the control group; 0 where it tells none.
    pub(crate) group: u64,
}

impl User {
    /// A program on this machine.
    #[cfg_attr(
        not(target_os = "linux"),
        expect(dead_code, reason = "nobody tells whose a socket is")
    )]
    pub(crate) const fn local(uid: u32, group: u64) -> Self {
        let owner = Owner::Uid(uid);
        Self { owner, group }
    }

    /// The program at an address.
    pub(crate) fn at(source: IpAddr) -> Self {
        let owner = Owner::Address(host_network(source));
        Self { owner, group: 0 }
    }
}

/// How many slots each user has.
#[derive(Default)]
pub(crate) struct Shares {
    owners: HashMap<Owner, usize>,
    users: HashMap<User, usize>,
    /// The counts in order, who has most last.
    by_owner: BTreeSet<(usize, Owner)>,
    by_user: BTreeSet<(Owner, usize, u64)>,
}

impl Shares {
    /// A user has one slot more.
    pub(crate) fn add(&mut self, user: User) {
        let owned = up(&mut self.owners, user.owner);
        let had = up(&mut self.users, user);
        self.moved(user, (owned, owned + 1), (had, had + 1));
    }

    /// A user has one slot less.
    pub(crate) fn remove(&mut self, user: User) {
        let owned = down(&mut self.owners, &user.owner);
        let had = down(&mut self.users, &user);
        self.moved(user, (owned, owned.saturating_sub(1)), (had, had - 1));
    }

    fn moved(&mut self, user: User, owned: (usize, usize), had: (usize, usize)) {
        let User { owner, group } = user;
        self.by_owner.remove(&(owned.0, owner));
        self.by_user.remove(&(owner, had.0, group));
        if owned.1 > 0 {
            self.by_owner.insert((owned.1, owner));
        }
        if had.1 > 0 {
            self.by_user.insert((owner, had.1, group));
        }
    }

    /// How many slots a user's owner has, and how many the user; for comparing.
    pub(crate) fn of(&self, user: User) -> (usize, usize) {
        let owned = self.owners.get(&user.owner).copied();
        let had = self.users.get(&user).copied();
        (owned.unwrap_or(0), had.unwrap_or(0))
    }

    /// Who loses a slot for a further one of `newcomer`: of the owner that has most the user that has most; the newcomer itself where it would
    /// have as many as those. `None` when there is nobody.
    pub(crate) fn victim(&self, newcomer: User) -> Option<User> {
        let (owned, had) = self.of(newcomer);
        let &(most, owner) = self.by_owner.last()?;
        if owned == 0 || owned + 1 < most {
            return self.largest(owner).map(|(_, user)| user);
        }
        let (most, user) = self.largest(newcomer.owner)?;
        let itself = had > 0 && had + 1 >= most;
        Some(if itself { newcomer } else { user })
    }

    /// Of an owner's users the one that has most.
    fn largest(&self, owner: Owner) -> Option<(usize, User)> {
        let all = (owner, 0, 0)..=(owner, usize::MAX, u64::MAX);
        let &(owner, most, group) = self.by_user.range(all).next_back()?;
        Some((most, User { owner, group }))
    }
}

/// Counts one more; answers what the count was before.
fn up<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: K) -> usize {
    let count = counts.entry(key).or_default();
    *count += 1;
    *count - 1
}

/// Counts one less; answers what the count was before.
fn down<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) -> usize {
    let Some(count) = counts.get_mut(key) else {
        return 0;
    };
    let before = *count;
    *count = before.saturating_sub(1);
    if *count == 0 {
        counts.remove(key);
    }
    before
}

/// Slots that are taken, and by whom. The taker keeps to how many there may be.
#[derive(Default)]
pub(crate) struct Slots(Mutex<CountedSlots>);

#[derive(Default)]
struct CountedSlots {
    shares: Shares,
    all: usize,
}

/// One slot. Dropped, it is free again.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    pub(crate) user: User,
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, CountedSlots> {
        self.0.lock()
    }

    /// How many are taken.
    pub(crate) fn len(&self) -> usize {
        self.lock().all
    }

    /// Takes a slot for `user`.
    pub(crate) fn take(self: &Arc<Self>, user: User) -> Slot {
        let mut counted = self.lock();
        counted.shares.add(user);
        counted.all += 1;
        let slots = Arc::clone(self);
        Slot { slots, user }
    }

    /// Who loses a slot for a further one: see [`Shares::victim`].
    pub(crate) fn victim(&self, newcomer: User) -> Option<User> {
        self.lock().shares.victim(newcomer)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counted = self.slots.lock();
        counted.shares.remove(self.user);
        counted.all -= 1;
    }
}

/// What each user has, in the order in which it is looked at when one has to be evicted.
pub(crate) struct UserQueues<T> {
    queues: HashMap<User, VecDeque<T>>,
    all: usize,
}

impl<T> Default for UserQueues<T> {
    fn default() -> Self {
        let queues = HashMap::new();
        Self { queues, all: 0 }
    }
}

impl<T> UserQueues<T> {
    /// Looked at after all others of its user.
    pub(crate) fn push(&mut self, user: User, item: T) {
        self.queues.entry(user).or_default().push_back(item);
        self.all += 1;
    }

    /// The next one to be looked at. Who keeps it pushes it again.
    pub(crate) fn pop(&mut self, user: User) -> Option<T> {
        let queue = self.queues.get_mut(&user)?;
        let item = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&user);
        }
        self.all -= usize::from(item.is_some());
        item
    }

    /// Those that are looked at next, in this order.
    pub(crate) fn next(&self, user: User) -> impl Iterator<Item = &T> {
        self.queues.get(&user).into_iter().flatten()
    }

    /// Takes one of those out; those that stood before it are looked at again last.
    pub(crate) fn take(&mut self, user: User, at: usize) -> Option<T> {
        let queue = self.queues.get_mut(&user)?;
        queue.rotate_left(at.min(queue.len()));
        self.pop(user)
    }

    /// How many a user has.
    pub(crate) fn count(&self, user: User) -> usize {
        self.queues.get(&user).map_or(0, VecDeque::len)
    }

    /// Forgets those that are over, when there are `many`.
    pub(crate) fn tidy(&mut self, many: usize, is_there: impl Fn(&T) -> bool) {
        if self.all < many {
            return;
        }
        self.queues.retain(|_, queue| {
            queue.retain(&is_there);
            !queue.is_empty()
        });
        self.all = self.queues.values().map(VecDeque::len).sum();
    }
}

/// Those that wait for a slot, a bounded number of them. Who has least slots is the first to have one; when there are too many, the newest of
/// the user that has most, slots and waiting ones together, is sent away.
pub(crate) struct WaitingRoom<T> {
    /// In the order in which they came.
    waiting: VecDeque<(User, T)>,
    shares: Shares,
    places: usize,
}

impl<T> WaitingRoom<T> {
    /// With room for so many.
    pub(crate) fn new(places: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            shares: Shares::default(),
            places,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A further one waits; answers who is sent away, it or another. `slots` are those that are taken.
    pub(crate) fn enter(&mut self, user: User, item: T, slots: &Shares) -> Option<T> {
        self.shares.add(user);
        self.waiting.push_back((user, item));
        if self.waiting.len() <= self.places {
            return None;
        }
        let has = |user| {
            let ((owned, had), (owner_waits, waits)) = (slots.of(user), self.shares.of(user));
            (owned + owner_waits, had + waits)
        };
        let waiting = self.waiting.iter().enumerate();
        let (at, _) = waiting.max_by_key(|(_, (user, _))| has(*user))?;
        self.remove(at)
    }

    /// The next to have a slot: of the user that has least the one that has waited longest.
    pub(crate) fn leave(&mut self, slots: &Shares) -> Option<T> {
        let waiting = self.waiting.iter().enumerate();
        let (at, _) = waiting.min_by_key(|(_, (user, _))| slots.of(*user))?;
        self.remove(at)
    }

    /// Who waits, each user once, who has least slots first.
    pub(crate) fn users(&self, slots: &Shares) -> Vec<User> {
        let mut users: Vec<_> = self.shares.users.keys().copied().collect();
        users.sort_unstable_by_key(|user| (slots.of(*user), *user));
        users
    }

    fn remove(&mut self, at: usize) -> Option<T> {
        let (user, item) = self.waiting.remove(at)?;
        self.shares.remove(user);
        Some(item)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owner(hidden)")
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("User(hidden)")
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slots({} taken)", self.len())
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slot")
    }
}

impl<T> fmt::Debug for UserQueues<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserQueues({})", self.all)
    }
}

impl<T> fmt::Debug for WaitingRoom<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WaitingRoom({} wait)", self.waiting.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A table with this many places whose users come again and again, in the order given; answers who was evicted for whom.
    fn served(slots: usize, comers: &[User]) -> (Shares, Vec<(User, User)>) {
        let (mut shares, mut all, mut evicted) = (Shares::default(), 0, Vec::new());
        for comer in comers {
            if all == slots {
                let victim = shares.victim(*comer).expect("somebody has a place");
                shares.remove(victim);
                evicted.push((victim, *comer));
            } else {
                all += 1;
            }
            shares.add(*comer);
        }
        (shares, evicted)
    }

    fn user(owner: u32, group: u64) -> User {
        User::local(owner, group)
    }

    #[test]
    fn a_busy_user_that_has_all_places_makes_room_for_a_quiet_one_and_for_itself() {
        let (busy, quiet) = (user(1, 1), user(2, 1));
        let comers = [vec![busy; 200], vec![quiet; 10], vec![busy; 200]].concat();
        let (shares, evicted) = served(100, &comers);
        assert_eq!(shares.of(quiet).1, 10);
        assert!(evicted.iter().all(|(victim, _)| *victim == busy));
    }

    #[test]
    fn control_groups_without_number_take_nothing_from_another_owner() {
        let groups: Vec<_> = (0..1000).map(|group| user(1, group)).collect();
        let quiet = vec![user(2, 1); 50];
        let (shares, evicted) = served(100, &[groups.clone(), quiet, groups].concat());
        assert_eq!(shares.of(user(2, 1)), (50, 50));
        assert!(
            evicted
                .iter()
                .all(|(victim, _)| victim.owner == Owner::Uid(1))
        );
    }

    #[test]
    fn programs_of_one_owner_are_told_apart_by_their_control_groups() {
        let (busy, quiet) = (user(1, 7), user(1, 8));
        let comers = [vec![busy; 200], vec![quiet; 10], vec![busy; 200]].concat();
        let (shares, _) = served(100, &comers);
        assert_eq!((shares.of(busy).1, shares.of(quiet).1), (90, 10));
    }

    #[test]
    fn a_host_with_many_addresses_of_ipv6_is_one_user() {
        let from = |n: u16| User::at(IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, n]));
        assert_eq!(from(1), from(2));
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().expect("an address");
        assert_eq!(User::at(mapped), User::at(mapped.to_canonical()));
    }

    #[test]
    fn a_place_that_is_given_back_is_nobodys_and_nobody_is_remembered() {
        let slots = Arc::new(Slots::default());
        let taken: Vec<_> = (0..9).map(|n| slots.take(user(n % 2, n.into()))).collect();
        assert_eq!(slots.len(), 9);
        drop(taken);
        assert_eq!((slots.len(), slots.victim(user(1, 1))), (0, None));
        let counted = slots.lock();
        let left = (counted.shares.owners.len(), counted.shares.users.len());
        let sorted = (counted.shares.by_owner.len(), counted.shares.by_user.len());
        assert_eq!((left, sorted), ((0, 0), (0, 0)));
    }

    #[test]
    fn who_waits_has_a_place_by_how_few_its_user_has_and_the_newest_of_a_crowd_is_sent_away() {
        let (crowd, quiet) = (user(1, 1), user(2, 1));
        let (mut slots, mut room) = (Shares::default(), WaitingRoom::new(4));
        (0..10).for_each(|_| slots.add(crowd));
        slots.add(quiet);
        for number in 0..4 {
            assert_eq!(room.enter(crowd, number, &slots), None);
        }
        assert_eq!(room.enter(crowd, 4, &slots), Some(4));
        assert_eq!(room.enter(quiet, 5, &slots), Some(3));
        assert_eq!(room.enter(quiet, 6, &slots), Some(2));
        assert_eq!(room.users(&slots), [quiet, crowd]);
        let left: Vec<_> = std::iter::from_fn(|| room.leave(&slots)).collect();
        assert_eq!(left, [5, 6, 0, 1]);
        assert!(room.is_empty() && room.shares.users.is_empty());
    }

    proptest! {
        #[test]
        fn whoever_makes_room_has_most_or_comes_itself(
            comers in prop::collection::vec((0_u32..4, 0_u64..3), 1..400), slots in 1_usize..60,
        ) {
            let (mut shares, mut all) = (Shares::default(), 0);
            let mut model: HashMap<User, usize> = HashMap::new();
            for (owner, group) in comers {
                let comer = user(owner, group);
                if all == slots {
                    let victim = shares.victim(comer).expect("somebody has a place");
                    let owned = |owner| model.iter().filter(|(user, _)| user.owner == owner).map(|(_, count)| count).sum::<usize>();
                    let most = (0..4).map(|uid| owned(Owner::Uid(uid))).max().expect("four");
                    prop_assert!(owned(victim.owner) == most || victim.owner == comer.owner && owned(victim.owner) + 1 >= most);
                    let within = model.iter().filter(|(user, _)| user.owner == victim.owner);
                    let largest = within.map(|(_, count)| *count).max().expect("one");
                    prop_assert!(model[&victim] == largest || victim == comer && model[&victim] + 1 >= largest);
                    shares.remove(victim);
                    *model.get_mut(&victim).expect("it has some") -= 1;
                } else {
                    all += 1;
                }
                shares.add(comer);
                *model.entry(comer).or_default() += 1;
                for (user, count) in &model {
                    prop_assert_eq!(shares.of(*user).1, *count);
                }
            }
        }
    }
}
