//! Room that several share whom nobody can tell apart: whoever has as many places as are free gets no more of them. So one alone has half, and each
//! that comes may have half of what the others have left; nobody who has some is given a place that somebody without any could not have as well. A
//! service gives out by it its streams, by circuit, and the clients whom it meets, by the introduction point through which they came.

use std::{collections::HashMap, fmt, hash::Hash, sync::Arc};

use parking_lot::Mutex;

/// Places, and who has how many of them. Clones are the same room.
#[derive(Debug)]
pub(super) struct Room<K>(Arc<Mutex<Taken<K>>>);

/// One place, until it is dropped.
pub(super) struct Place<K: Eq + Hash + Copy> {
    room: Room<K>,
    key: K,
}

#[derive(Debug)]
struct Taken<K> {
    most: usize,
    all: usize,
    /// Those who have any.
    of: HashMap<K, usize>,
}

impl<K: Eq + Hash + Copy> Room<K> {
    /// With so many places.
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(Taken {
            most,
            all: 0,
            of: HashMap::new(),
        })))
    }

    /// A place for `key`, if it has fewer than are free.
    pub(super) fn take(&self, key: K) -> Option<Place<K>> {
        let mut taken = self.0.lock();
        let free = taken.most.saturating_sub(taken.all);
        if taken.of.get(&key).is_some_and(|of| *of >= free) || free == 0 {
            return None;
        }
        taken.all += 1;
        *taken.of.entry(key).or_default() += 1;
        let room = self.clone();
        Some(Place { room, key })
    }

    /// How many places are taken.
    pub(super) fn taken(&self) -> usize {
        self.0.lock().all
    }
}

impl<K> Clone for Room<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Eq + Hash + Copy> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.room.0.lock();
        taken.all = taken.all.saturating_sub(1);
        if let Some(of) = taken.of.get_mut(&self.key) {
            *of = of.saturating_sub(1);
            if *of == 0 {
                taken.of.remove(&self.key);
            }
        }
    }
}

impl<K: Eq + Hash + Copy> fmt::Debug for Place<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place")
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn all(room: &Room<u64>, key: u64) -> Vec<Place<u64>> {
        std::iter::from_fn(|| room.take(key)).collect()
    }

    #[test]
    fn one_alone_has_half_and_who_comes_later_half_of_the_rest() {
        let room = Room::new(1024);
        let loud = all(&room, 1);
        assert_eq!(loud.len(), 512);
        let second = all(&room, 2);
        assert_eq!(second.len(), 256);
        // Once it leaves, it may come again, with what is free then.
        drop(loud);
        assert_eq!(all(&room, 1).len(), 384);
        drop(second);
        assert_eq!(room.taken(), 0);
    }

    #[test]
    fn the_only_place_is_given() {
        let room = Room::new(1);
        let place = room.take(1);
        assert!(place.is_some() && room.take(2).is_none());
        drop(place);
        assert!(room.take(2).is_some());
    }

    proptest! {
        #[test]
        fn nobody_gets_more_than_are_free_and_a_newcomer_gets_whatever_is_left(
            turns in vec(any::<u64>(), 0..2000), keys in 1u64..40,
        ) {
            let room = Room::new(101);
            let mut held: Vec<(u64, Place<u64>)> = Vec::new();
            for turn in turns {
                let key = turn % keys;
                let has = held.iter().filter(|(of, _)| *of == key).count();
                let free = 101 - held.len();
                let place = room.take(key);
                prop_assert_eq!(place.is_some(), has < free);
                held.extend(place.map(|place| (key, place)));
                if turn % 7 == 0 && !held.is_empty() {
                    held.swap_remove(usize::try_from(turn >> 32).unwrap() % held.len());
                }
                prop_assert_eq!(room.taken(), held.len());
            }
            prop_assert_eq!(room.take(keys).is_some(), held.len() < 101);
        }
    }
}
