//! What programs' flows may hold in memory, all together: so many octets, shared out by how much is left, so that whoever came first
//! cannot keep the rest from those who come later. The tables of the TUN front end have one each.
//!
//! Dynamic thresholds (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM Transactions on
//! Networking 6(2), 1998): a flow may hold a fixed part of what is still free, the flows to a target together twice that which is free, the
//! flows of a source four times that. As long as much is free nothing binds; as it fills, all limits sink, and some always stays free.
//!
//! Whatever the others hold, a flow has its floor, which is set aside from the beginning to the end of it: enough to go on, slowly. So nobody
//! waits for anybody else, and the sum is never above the budget. When not even a floor is left, no flow is opened.

use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hoplite_wire::Host;

/// One part in so many is for floors alone.
const FLOORS: usize = 4;
/// A flow may hold one part in so many of what else is free.
const FLOW: usize = 16;
/// The flows of a source may hold so many times what else is free, those to a target so many times.
const SOURCE: usize = 4;
const TARGET: usize = 2;
/// Who may take no more octets than this besides what he has is short of memory.
pub(crate) const SHORT: usize = 128 * 1024;
/// A flow that has rested for so long rests: that it has for longer makes it no less worth than its neighbours are many.
const LONG: Duration = Duration::from_secs(60);

/// Whom a flow's memory and place are counted against.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Party {
    /// The address that a program sends from; of IPv6 its /64, in which a host takes as many as it likes.
    Source(IpAddr),
    /// The address or the name that it sends to; at the TUN device one of a name's temporary addresses stands for it.
    Target(Host),
}

/// What is held, by whom.
pub(crate) struct Budget {
    total: usize,
    all: AtomicUsize,
    /// The floors among them.
    floors: AtomicUsize,
    short: AtomicBool,
    /// Those that have flows, and no others.
    parties: Mutex<HashMap<Party, Arc<Share>>>,
}

#[derive(Debug, Default)]
struct Share {
    /// What its flows hold above their floors.
    held: AtomicUsize,
    flows: AtomicUsize,
}

/// A flow's part. Dropped, it gives everything back.
pub(crate) struct Account {
    budget: Arc<Budget>,
    parties: [(Party, Arc<Share>); 2],
    floor: usize,
    /// What it holds above that.
    above: usize,
}

impl Budget {
    /// So many octets for all.
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self {
            total,
            all: AtomicUsize::new(0),
            floors: AtomicUsize::new(0),
            short: AtomicBool::new(false),
            parties: Mutex::default(),
        })
    }

    fn parties(&self) -> MutexGuard<'_, HashMap<Party, Arc<Share>>> {
        self.parties.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is left beside the floors of those that are here, or may come.
    fn free(&self) -> usize {
        let floors = self.floors.load(Relaxed);
        let above = self.held().saturating_sub(floors);
        let kept = floors.max(self.total / FLOORS);
        self.total.saturating_sub(kept + above)
    }

    /// What is held, floors included.
    pub(crate) fn held(&self) -> usize {
        self.all.load(Relaxed)
    }

    /// Whether somebody was allowed less than [`SHORT`] since this was asked last.
    pub(crate) fn was_short(&self) -> bool {
        self.short.swap(false, Relaxed)
    }

    /// How much must be given back until half is free.
    pub(crate) fn excess(&self) -> usize {
        self.held().saturating_sub(self.total / 2)
    }

    /// An account for a new flow; `None` when its floor is not left.
    pub(crate) fn open(
        self: &Arc<Self>,
        source: IpAddr,
        target: Host,
        floor: usize,
    ) -> Option<Account> {
        if self.held() + floor > self.total {
            return None;
        }
        let mut known = self.parties();
        let parties = [Party::Source(host(source)), Party::Target(target)].map(|party| {
            let share = Arc::clone(known.entry(party.clone()).or_default());
            share.flows.fetch_add(1, Relaxed);
            (party, share)
        });
        drop(known);
        self.all.fetch_add(floor, Relaxed);
        self.floors.fetch_add(floor, Relaxed);
        Some(Account {
            budget: Arc::clone(self),
            parties,
            floor,
            above: 0,
        })
    }
}

/// A host's address, or what its addresses have in common.
fn host(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
        v4 => v4,
    }
}

impl Account {
    /// How many octets the flow may hold besides what it holds; its floor it may hold in any case.
    pub(crate) fn allowance(&self) -> usize {
        let budget = &self.budget;
        let free = budget.free();
        let [source, target] = self
            .parties
            .each_ref()
            .map(|(_, share)| share.held.load(Relaxed));
        let own = (free / FLOW).saturating_sub(self.above);
        let allowed = own
            .min((SOURCE * free).saturating_sub(source))
            .min((TARGET * free).saturating_sub(target));
        if allowed < SHORT {
            budget.short.store(true, Relaxed);
        }
        allowed
    }

    /// The flow holds so many octets now.
    pub(crate) fn set(&mut self, held: usize) {
        let above = held.saturating_sub(self.floor);
        if above != self.above {
            self.count(above);
        }
    }

    fn count(&mut self, above: usize) {
        let shares = self.parties.iter().map(|(_, share)| &share.held);
        for sum in shares.chain([&self.budget.all]) {
            match above.checked_sub(self.above) {
                Some(more) => sum.fetch_add(more, Relaxed),
                None => sum.fetch_sub(self.above - above, Relaxed),
            };
        }
        self.above = above;
    }

    /// How much others miss its place when it has rested for so long: the more, the longer that is (at most [`LONG`]), and the more flows its
    /// source and its target have; then the longer it has really rested.
    pub(crate) fn rest_counts(&self, rested: Duration) -> (u128, Duration) {
        let counted = rested.min(LONG) + Duration::from_secs(1);
        let crowd = self.crowd() as u128;
        (counted.as_millis().saturating_mul(crowd), rested)
    }

    /// How crowded it is where this flow is: the flows of its source times those to its target.
    fn crowd(&self) -> usize {
        let flows = self
            .parties
            .iter()
            .map(|(_, share)| share.flows.load(Relaxed));
        flows.fold(1, usize::saturating_mul)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.count(0);
        self.budget.all.fetch_sub(self.floor, Relaxed);
        self.budget.floors.fetch_sub(self.floor, Relaxed);
        let mut known = self.budget.parties();
        for (party, share) in &self.parties {
            if share.flows.fetch_sub(1, Relaxed) == 1 {
                known.remove(party);
            }
        }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budget({} of {})", self.held(), self.total)
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

    type Ends = (IpAddr, Host);

    fn ends(source: u8, target: u16) -> Ends {
        let [high, low] = target.to_be_bytes();
        let source = IpAddr::from([198, 18, 0, source]);
        (source, Host::ip([192, 0, high, low].into()))
    }

    fn open(budget: &Arc<Budget>, (source, target): Ends) -> Option<Account> {
        budget.open(source, target, FLOOR)
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
        assert!(budget.held() < TOTAL / 4 * 3);
        let other = open(&budget, ends(1, 2)).expect("a floor");
        assert!(
            other.allowance() > 512 << 10,
            "{other:?} {}",
            other.allowance()
        );
    }

    #[test]
    fn a_source_cannot_keep_another_from_its_memory() {
        let budget = Budget::new(TOTAL);
        let _all = greedy(&budget, 4000, |n| ends(1, n));
        let other = open(&budget, ends(2, 1)).expect("a floor");
        assert!(other.allowance() > 512 << 10, "{}", other.allowance());
    }

    #[test]
    fn a_host_with_many_addresses_of_ipv6_is_one_source() {
        let (budget, target) = (Budget::new(TOTAL), IpAddr::from([192, 0, 2, 1]));
        let from = |n: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, n]);
        let open = |n| {
            budget
                .open(from(n), Host::ip(target), FLOOR)
                .expect("a floor")
        };
        let both = [open(1), open(2)];
        assert_eq!(both.each_ref().map(Account::crowd), [4, 4]);
    }

    #[test]
    fn what_is_closed_is_free_again_and_nobody_is_remembered() {
        let budget = Budget::new(TOTAL);
        let all = greedy(&budget, 1000, |n| ends(n.to_be_bytes()[1], n));
        assert_eq!(all[0].crowd(), 4);
        drop(all);
        assert_eq!((budget.held(), budget.parties().len()), (0, 0));
    }

    proptest! {
        #[test]
        fn whatever_flows_do_the_sum_is_within_the_budget(
            total in 1_usize << 16..1 << 22,
            deeds in prop::collection::vec((0_u8..4, 0_u16..5, 0_usize..200, 0_usize..1 << 20), 1..400),
        ) {
            let (budget, mut all) = (Budget::new(total), Vec::new());
            for (source, target, which, octets) in deeds {
                match which {
                    0..100 => all.extend(open(&budget, ends(source, target))),
                    _ if all.is_empty() => {}
                    100..120 => drop(all.swap_remove(octets % all.len())),
                    120..150 => {
                        let which = octets % all.len();
                        all[which].set(0);
                    }
                    _ => {
                        let which = octets % all.len();
                        let account = &mut all[which];
                        account.set(FLOOR + account.above + octets.min(account.allowance()));
                    }
                }
                let sum: usize = all.iter().map(|account| FLOOR + account.above).sum();
                prop_assert_eq!(budget.held(), sum);
                prop_assert!(sum <= total);
            }
        }
    }
}
