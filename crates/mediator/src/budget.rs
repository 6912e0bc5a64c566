//! What programs' flows may hold in memory, all together: this many bytes, shared out by how much is left, so that whoever came first
//! cannot keep the rest from those who come later. There is one for TCP and one for UDP at the TUN device, and one for SOCKS associations.
//!
//! Dynamic thresholds (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM Transactions on
//! Networking 6(2), 1998): a flow may hold a fixed part of what is still free, a user's flows to one target together twice that which is free,
//! all flows of a user, and of those with the same owner, four times that. As long as much is free nothing binds; as it fills, all limits
//! sink, and some always stays free.
//!
//! Whatever the others hold, a flow has its floor, which is set aside from the beginning to the end of it: enough to go on, slowly. So nobody
//! waits for anybody else, and the sum is never above the budget. When not even a floor is left, no flow is opened.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hoplite_wire::Host;
use parking_lot::Mutex;

use crate::users::{Owner, Slot, Slots, User};

/// One part in this many is for floors alone.
const FLOORS: usize = 4;
/// A flow may hold one part in this many of what else is free.
const FLOW: usize = 16;
/// The flows of an owner and of a user may hold this many times what else is free, those of a user to one target this many times.
const USER: usize = 4;
const TARGET: usize = 2;
/// Who may take no more bytes than this besides what he has is short of memory.
pub(crate) const LOW_ALLOWANCE: usize = 128 * 1024;
/// Idle time beyond this counts no more against a flow: then it counts how many neighbours it has.
const MAX_COUNTED_IDLE: Duration = Duration::from_secs(60);

/// Whom a flow's memory is counted against.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Party {
    Owner(Owner),
    User(User),
    /// The address or the name that a user sends to; at the TUN device one of a name's temporary addresses stands for it.
    Target(User, Host),
}

/// What is held, by whom.
pub(crate) struct Budget {
    total: usize,
    all: AtomicUsize,
    /// The floors among them.
    floors: AtomicUsize,
    short: AtomicBool,
    slots: Arc<Slots>,
    /// Those that have flows, and no others.
    parties: Mutex<HashMap<Party, Arc<Share>>>,
}

#[derive(Debug, Default)]
struct Share {
    /// What its flows hold above their floors.
    in_use: AtomicUsize,
    flows: AtomicUsize,
}

/// A flow's part. Dropped, it gives everything back.
pub(crate) struct Account {
    budget: Arc<Budget>,
    slot: Slot,
    parties: [(Party, Arc<Share>); 3],
    floor: usize,
    /// What it holds above that.
    above: usize,
}

impl Budget {
    /// This many bytes for all.
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self {
            total,
            all: AtomicUsize::new(0),
            floors: AtomicUsize::new(0),
            short: AtomicBool::new(false),
            slots: Arc::default(),
            parties: Mutex::default(),
        })
    }

    /// What is left beside the floors of those that are here, or may come.
    fn free(&self) -> usize {
        let floors = self.floors.load(Relaxed);
        let above = self.in_use().saturating_sub(floors);
        let kept = floors.max(self.total / FLOORS);
        self.total.saturating_sub(kept + above)
    }

    /// What is held, floors included.
    pub(crate) fn in_use(&self) -> usize {
        self.all.load(Relaxed)
    }

    /// Whether somebody was allowed less than [`LOW_ALLOWANCE`] since this was asked last.
    pub(crate) fn was_short(&self) -> bool {
        self.short.swap(false, Relaxed)
    }

    /// How many flows have a part of it.
    pub(crate) fn flows(&self) -> usize {
        self.slots.len()
    }

    /// Whose flow is evicted for one of `newcomer`: see [`crate::users::Shares::victim`].
    pub(crate) fn victim(&self, newcomer: User) -> Option<User> {
        self.slots.victim(newcomer)
    }

    /// How much must be given back until half is free.
    pub(crate) fn excess(&self) -> usize {
        self.in_use().saturating_sub(self.total / 2)
    }

    /// An account for a new flow; `None` when its floor is not left.
    pub(crate) fn open(
        self: &Arc<Self>,
        user: User,
        target: Host,
        floor: usize,
    ) -> Option<Account> {
        if self.in_use() + floor > self.total {
            return None;
        }
        let mut known = self.parties.lock();
        let parties = [
            Party::Owner(user.owner),
            Party::User(user),
            Party::Target(user, target),
        ];
        let parties = parties.map(|party| {
            let share = Arc::clone(known.entry(party.clone()).or_default());
            share.flows.fetch_add(1, Relaxed);
            (party, share)
        });
        drop(known);
        self.all.fetch_add(floor, Relaxed);
        self.floors.fetch_add(floor, Relaxed);
        Some(Account {
            budget: Arc::clone(self),
            slot: self.slots.take(user),
            parties,
            floor,
            above: 0,
        })
    }
}

impl Account {
    /// Whose flow it is.
    pub(crate) fn user(&self) -> User {
        self.slot.user
    }

    /// How many bytes the flow may hold besides what it holds; its floor it may hold in any case.
    pub(crate) fn allowance(&self) -> usize {
        let budget = &self.budget;
        let free = budget.free();
        let [owner, user, target] = self.in_use();
        let own = (free / FLOW).saturating_sub(self.above);
        let allowed = own
            .min((USER * free).saturating_sub(owner.max(user)))
            .min((TARGET * free).saturating_sub(target));
        if allowed < LOW_ALLOWANCE {
            budget.short.store(true, Relaxed);
        }
        allowed
    }

    /// What the flows of its owner, of its user and of that to its target hold above their floors.
    pub(crate) fn in_use(&self) -> [usize; 3] {
        let shares = self.parties.each_ref();
        shares.map(|(_, share)| share.in_use.load(Relaxed))
    }

    /// The flow holds this many bytes now.
    pub(crate) fn set(&mut self, in_use: usize) {
        let above = in_use.saturating_sub(self.floor);
        if above != self.above {
            self.count(above);
        }
    }

    fn count(&mut self, above: usize) {
        let shares = self.parties.iter().map(|(_, share)| &share.in_use);
        for sum in shares.chain([&self.budget.all]) {
            match above.checked_sub(self.above) {
                Some(more) => sum.fetch_add(more, Relaxed),
                None => sum.fetch_sub(self.above - above, Relaxed),
            };
        }
        self.above = above;
    }

    /// How readily it is evicted among flows of its user when it has been idle for this long: the more, the longer that is (at most
    /// [`MAX_COUNTED_IDLE`]), and the more flows the user has to its target; then the longer it has really been idle.
    pub(crate) fn eviction_weight(&self, idle: Duration) -> (u128, Duration) {
        let counted = idle.min(MAX_COUNTED_IDLE) + Duration::from_secs(1);
        let [.., (_, target)] = &self.parties;
        let neighbours = target.flows.load(Relaxed) as u128;
        (counted.as_millis().saturating_mul(neighbours), idle)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.count(0);
        self.budget.all.fetch_sub(self.floor, Relaxed);
        self.budget.floors.fetch_sub(self.floor, Relaxed);
        let mut known = self.budget.parties.lock();
        for (party, share) in &self.parties {
            if share.flows.fetch_sub(1, Relaxed) == 1 {
                known.remove(party);
            }
        }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budget({} of {})", self.in_use(), self.total)
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({} above {})", self.above, self.floor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FLOOR: usize = 4096;
    const TOTAL: usize = 64 << 20;

    type Ends = (User, Host);

    fn ends(user: u8, target: u16) -> Ends {
        let [high, low] = target.to_be_bytes();
        let target = Host::ip([192, 0, high, low].into());
        (User::local(user.into(), 1), target)
    }

    fn open(budget: &Arc<Budget>, (user, target): Ends) -> Option<Account> {
        budget.open(user, target, FLOOR)
    }

    /// Takes all that it may.
    fn fill(account: &mut Account) {
        account.set(FLOOR + account.above + account.allowance());
    }

    fn greedy(budget: &Arc<Budget>, flows: u16, ends: impl Fn(u16) -> Ends) -> Vec<Account> {
        let fresh = |n| open(budget, ends(n)).expect("a floor is left");
        let mut all: Vec<_> = (0..flows).map(fresh).collect();
        all.iter_mut().for_each(fill);
        all
    }

    #[test]
    fn a_target_cannot_keep_its_flows_neighbours_from_their_memory() {
        let budget = Budget::new(TOTAL);
        let _all = greedy(&budget, 4000, |_| ends(1, 1));
        assert!(budget.in_use() < TOTAL / 4 * 3);
        let other = open(&budget, ends(1, 2)).expect("a floor");
        assert!(
            other.allowance() > 512 << 10,
            "{other:?} {}",
            other.allowance()
        );
    }

    #[test]
    fn a_user_cannot_keep_another_from_its_memory() {
        let budget = Budget::new(TOTAL);
        let _all = greedy(&budget, 4000, |n| ends(1, n));
        let other = open(&budget, ends(2, 1)).expect("a floor");
        assert!(other.allowance() > 512 << 10, "{}", other.allowance());
    }

    #[test]
    fn an_owner_cannot_keep_another_from_its_memory_by_control_groups() {
        let budget = Budget::new(TOTAL);
        let group = |n: u16| (User::local(1, n.into()), ends(1, n).1);
        let _all = greedy(&budget, 4000, group);
        let other = open(&budget, ends(2, 1)).expect("a floor");
        assert!(other.allowance() > 512 << 10, "{}", other.allowance());
    }

    #[test]
    fn what_a_user_leaves_lying_at_a_target_is_not_counted_against_another_user_of_it() {
        let budget = Budget::new(TOTAL);
        let _all = greedy(&budget, 4000, |_| ends(1, 1));
        let other = open(&budget, ends(2, 1)).expect("a floor");
        assert!(other.allowance() > 512 << 10, "{}", other.allowance());
    }

    #[test]
    fn what_is_closed_is_free_again_and_nobody_is_remembered() {
        let budget = Budget::new(TOTAL);
        let all = greedy(&budget, 1000, |n| ends(n.to_be_bytes()[1], n));
        assert_eq!(budget.victim(ends(0, 1).0), Some(ends(0, 1).0));
        drop(all);
        assert_eq!((budget.in_use(), budget.parties.lock().len()), (0, 0));
    }

    proptest! {
        #[test]
        fn whatever_flows_do_the_sum_is_within_the_budget(
            total in 1_usize << 16..1 << 22,
            deeds in prop::collection::vec((0_u8..4, 0_u16..5, 0_usize..200, 0_usize..1 << 20), 1..400),
        ) {
            let (budget, mut all) = (Budget::new(total), Vec::new());
            for (user, target, which, bytes) in deeds {
                match which {
                    0..100 => all.extend(open(&budget, ends(user, target))),
                    _ if all.is_empty() => {}
                    100..120 => drop(all.swap_remove(bytes % all.len())),
                    120..150 => {
                        let which = bytes % all.len();
                        all[which].set(0);
                    }
                    _ => {
                        let which = bytes % all.len();
                        let account = &mut all[which];
                        account.set(FLOOR + account.above + bytes.min(account.allowance()));
                    }
                }
                let sum: usize = all.iter().map(|account| FLOOR + account.above).sum();
                prop_assert_eq!(budget.in_use(), sum);
                prop_assert!(sum <= total);
            }
        }
    }
}
