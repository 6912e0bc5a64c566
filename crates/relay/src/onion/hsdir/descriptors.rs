//! The descriptors of onion services that an HSDir keeps: which of them, for how long, and which goes when there are too many. A machine without
//! I/O or clock. rend-spec-v3, "Expiring hidden service descriptors", "revision-counter".
//!
//! Nobody knows who publishes: anybody may sign descriptors for as many keys as he likes. So when there are too many, one goes that nobody has asked
//! for, before any that somebody has; and among those, by a lot that each key has and nobody knows. Who floods the relay cannot aim at a service, nor
//! keep out one that is used, unless he asks for all of his own as well.

use std::{
    collections::{BTreeSet, HashMap},
    hash::{BuildHasher, RandomState},
};

use bytes::Bytes;
use tokio::time::Instant;

/// How many may be kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Descriptors.
    pub(super) descriptors: usize,
    /// Their bytes.
    pub(super) bytes: usize,
}

/// A descriptor whose signatures were checked.
#[derive(Clone)]
pub(super) struct Offered {
    /// The blinded key that it is published by.
    pub(super) key: [u8; 32],
    /// Greater than that of the one before.
    pub(super) revision: u64,
    /// Until when it is kept.
    pub(super) until: Instant,
    /// All of it.
    pub(super) text: Bytes,
}

/// Those that are kept.
pub(super) struct Descriptors {
    limits: Limits,
    lots: RandomState,
    kept: HashMap<[u8; 32], Kept>,
    /// The first goes first.
    order: BTreeSet<Turn>,
    bytes: usize,
}

struct Kept {
    offered: Offered,
    turn: Turn,
}

/// When one goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    is_asked_for: bool,
    lot: u64,
    key: [u8; 32],
}

impl Descriptors {
    /// None yet.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            lots: RandomState::new(),
            kept: HashMap::new(),
            order: BTreeSet::new(),
            bytes: 0,
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Their bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a descriptor instead of an older one of its key, if there is one. Whether it is kept.
    pub(super) fn publish(&mut self, offered: Offered, now: Instant) -> bool {
        let key = offered.key;
        self.forget_at(&key, now);
        let before = self.kept.get(&key);
        if offered.until <= now || before.is_some_and(|it| it.offered.revision >= offered.revision)
        {
            return false;
        }
        let turn = Turn {
            is_asked_for: before.is_some_and(|it| it.turn.is_asked_for),
            lot: self.lots.hash_one(key),
            key,
        };
        self.remove(&key);
        self.bytes = self.bytes.saturating_add(offered.text.len());
        self.order.insert(turn);
        self.kept.insert(key, Kept { offered, turn });
        self.make_room();
        self.kept.contains_key(&key)
    }

    /// The descriptor of this key.
    pub(super) fn fetch(&mut self, key: &[u8; 32], now: Instant) -> Option<Bytes> {
        self.forget_at(key, now);
        let kept = self.kept.get_mut(key)?;
        if !kept.turn.is_asked_for {
            self.order.remove(&kept.turn);
            kept.turn.is_asked_for = true;
            self.order.insert(kept.turn);
        }
        Some(kept.offered.text.clone())
    }

    /// The blinded keys of all.
    pub(super) fn keys(&self) -> Vec<[u8; 32]> {
        self.kept.keys().copied().collect()
    }

    /// Forgets the descriptors of these keys.
    pub(super) fn forget(&mut self, keys: &[[u8; 32]]) {
        keys.iter().for_each(|key| self.remove(key));
    }

    /// Forgets those whose time is over.
    pub(super) fn sweep(&mut self, now: Instant) {
        let gone = self.kept.iter();
        let gone = gone.filter(|(_, kept)| kept.offered.until <= now);
        let gone: Vec<_> = gone.map(|(key, _)| *key).collect();
        self.forget(&gone);
    }

    fn make_room(&mut self) {
        while self.kept.len() > self.limits.descriptors || self.bytes > self.limits.bytes {
            let Some(first) = self.order.first().copied() else {
                return;
            };
            self.remove(&first.key);
        }
    }

    fn forget_at(&mut self, key: &[u8; 32], now: Instant) {
        let kept = self.kept.get(key);
        if kept.is_some_and(|kept| kept.offered.until <= now) {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: &[u8; 32]) {
        if let Some(kept) = self.kept.remove(key) {
            self.order.remove(&kept.turn);
            self.bytes = self.bytes.saturating_sub(kept.offered.text.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    const LIFE: Duration = Duration::from_secs(10_800);

    fn descriptors(count: usize) -> Descriptors {
        Descriptors::new(Limits {
            descriptors: count,
            bytes: 1000 * count,
        })
    }

    fn offered(key: u8, revision: u64, now: Instant) -> Offered {
        let text = vec![key; 100].into();
        Offered {
            key: [key; 32],
            revision,
            until: now + LIFE,
            text,
        }
    }

    fn publish(all: &mut Descriptors, key: u8, revision: u64, now: Instant) {
        all.publish(offered(key, revision, now), now);
    }

    /// Whether there is one, without asking for it.
    fn has(all: &Descriptors, key: u8) -> bool {
        all.kept.contains_key(&[key; 32])
    }

    #[test]
    fn the_greater_revision_counts_and_an_older_one_is_not_taken_for_it() {
        let (mut all, now) = (descriptors(9), Instant::now());
        assert!(all.publish(offered(1, 5, now), now));
        for (revision, is_kept) in [(4, false), (5, false), (6, true), (5, false)] {
            assert_eq!(all.publish(offered(1, revision, now), now), is_kept);
        }
        let kept = all.kept.get(&[1; 32]).expect("there");
        assert_eq!(kept.offered.revision, 6);
        assert_eq!((all.len(), all.bytes()), (1, 100));
    }

    #[test]
    fn one_is_kept_for_its_time() {
        let (mut all, now) = (descriptors(9), Instant::now());
        all.publish(offered(1, 5, now), now);
        all.publish(offered(2, 5, now), now);
        let last = now + LIFE - Duration::from_secs(1);
        assert!(all.fetch(&[1; 32], last).is_some());
        assert!(all.fetch(&[1; 32], now + LIFE).is_none());
        all.sweep(last);
        assert!(has(&all, 2));
        all.sweep(now + LIFE);
        assert_eq!((all.len(), all.bytes(), all.order.len()), (0, 0, 0));
        assert!(!all.publish(offered(1, 5, now), now + LIFE));
    }

    #[test]
    fn what_is_to_be_forgotten_goes() {
        let (mut all, now) = (descriptors(9), Instant::now());
        (1..5).for_each(|key| publish(&mut all, key, 1, now));
        assert_eq!(all.keys().len(), 4);
        all.forget(&[[3; 32], [9; 32]]);
        assert_eq!(
            [1, 2, 3, 4].map(|key| has(&all, key)),
            [true, true, false, true]
        );
    }

    #[test]
    fn a_flood_pushes_out_nothing_that_was_asked_for() {
        let (mut all, now) = (descriptors(20), Instant::now());
        for key in 0..10 {
            assert!(all.publish(offered(key, 1, now), now));
            assert!(all.fetch(&[key; 32], now).is_some());
        }
        for key in 100..=255 {
            all.publish(offered(key, 1, now), now);
        }
        assert!((0..10).all(|key| has(&all, key)));
        assert_eq!(all.len(), 20);
        // Published anew it keeps its place.
        assert!(all.publish(offered(3, 2, now), now));
        (50..100).for_each(|key| publish(&mut all, key, 1, now));
        assert!((0..10).all(|key| has(&all, key)));
    }

    #[test]
    fn who_floods_cannot_choose_which_of_the_others_goes() {
        let now = Instant::now();
        // The same flood, at two relays: it is not the same services that stay.
        let survivors = || {
            let mut all = descriptors(64);
            (0..=255).for_each(|key| publish(&mut all, key, 1, now));
            let kept: BTreeSet<_> = all.kept.keys().copied().collect();
            kept
        };
        let (one, other) = (survivors(), survivors());
        assert_eq!((one.len(), other.len()), (64, 64));
        assert_ne!(one, other);
        // Nor does it help to be the last, or to come again.
        let mut all = descriptors(64);
        (0..=255).for_each(|key| publish(&mut all, key, 1, now));
        let kept: Vec<_> = (0..=255).filter(|key| has(&all, *key)).collect();
        for revision in 2..5 {
            (0..=255).for_each(|key| publish(&mut all, key, revision, now));
        }
        assert_eq!(
            (0..=255).filter(|key| has(&all, *key)).collect::<Vec<_>>(),
            kept
        );
    }

    #[derive(Clone, Debug)]
    enum Step {
        Publish(u8, u64, usize),
        Fetch(u8),
        Later(u64),
        Forget(u8),
        Sweep,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u8..12, 0u64..5, 0usize..900).prop_map(|(key, revision, size)| Step::Publish(key, revision, size)),
            2 => (0u8..12).prop_map(Step::Fetch),
            1 => (0u64..8000).prop_map(Step::Later),
            1 => (0u8..12).prop_map(Step::Forget),
            1 => Just(Step::Sweep),
        ]
    }

    proptest! {
        #[test]
        fn the_bounds_hold_and_the_books_agree_whatever_comes(steps in vec(step(), 0..60)) {
            let mut now = Instant::now();
            let mut all = Descriptors::new(Limits { descriptors: 5, bytes: 2000 });
            for step in steps {
                match step {
                    Step::Publish(key, revision, size) => {
                        let new = Offered { text: vec![0; size].into(), ..offered(key, revision, now) };
                        let before = all.kept.get(&[key; 32]).filter(|kept| kept.offered.until > now);
                        let before = before.map(|kept| kept.offered.revision);
                        if all.publish(new, now) {
                            prop_assert!(before.is_none_or(|before| before < revision));
                            prop_assert_eq!(all.kept[&[key; 32]].offered.revision, revision);
                        }
                    }
                    Step::Fetch(key) => drop(all.fetch(&[key; 32], now)),
                    Step::Later(seconds) => now += Duration::from_secs(seconds),
                    Step::Forget(key) => all.forget(&[[key; 32]]),
                    Step::Sweep => all.sweep(now),
                }
                prop_assert!(all.len() <= 5 && all.bytes() <= 2000);
                prop_assert_eq!(all.len(), all.order.len());
                let bytes: usize = all.kept.values().map(|kept| kept.offered.text.len()).sum();
                prop_assert_eq!(bytes, all.bytes());
            }
        }
    }
}
