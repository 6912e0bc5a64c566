//! Room that several share whom nobody can tell apart: whoever has as many places as are free gets no more of them. So one alone has half, and each
//! that comes may have half of what the others have left; nobody who has some is given a place that somebody without any could not have as well. A
//! service gives out by it its streams, by circuit, and the clients whom it meets, by the introduction point through which they came; a client its
//! circuits to services, and its turns to look for them, by token.
//!
//! Where it is asked to make room, it takes a place back instead of refusing one: of those who have most, the one that nothing has kept for longest. Each
//! may be left to whoever has it for some time ([`Room::lasting`]): else many who come at once would leave nobody the time that he needs.

use std::{cmp::Reverse, collections::HashMap, fmt, hash::Hash, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::SetOnce, time::Instant};

/// Places, and who has how many of them. Clones are the same room.
#[derive(Debug)]
pub(super) struct Room<K>(Arc<Mutex<Taken<K>>>);

/// One place, until it is dropped or taken back.
pub(super) struct Place<K: Eq + Hash + Clone> {
    room: Room<K>,
    number: u64,
    /// Set when it is taken back.
    lost: Arc<SetOnce<()>>,
}

/// Keeps a place from being taken back, until it is dropped.
pub(super) struct Stay<K: Eq + Hash + Clone> {
    room: Room<K>,
    number: u64,
}

#[derive(Debug)]
struct Taken<K> {
    most: usize,
    /// How long nobody's place is taken back.
    lasts: Duration,
    /// Those who have any, and how many.
    of: HashMap<K, usize>,
    /// By their places' numbers.
    guests: HashMap<u64, Guest<K>>,
    /// Places so far, and ends of stays.
    count: u64,
}

/// Who has a place.
#[derive(Debug)]
struct Guest<K> {
    key: K,
    /// How much keeps it.
    stays: usize,
    /// Since when nothing does, by the count.
    since: u64,
    /// When it came.
    came: Instant,
    lost: Arc<SetOnce<()>>,
}

impl<K: Eq + Hash + Clone> Room<K> {
    /// With so many places.
    pub(super) fn new(most: usize) -> Self {
        Self::lasting(most, Duration::ZERO)
    }

    /// With so many places, each of which is taken back from nobody who has had it for less than that.
    pub(super) fn lasting(most: usize, lasts: Duration) -> Self {
        Self(Arc::new(Mutex::new(Taken {
            most,
            lasts,
            of: HashMap::new(),
            guests: HashMap::new(),
            count: 0,
        })))
    }

    /// A place for `key`, if it has fewer than are free.
    pub(super) fn take(&self, key: K) -> Option<Place<K>> {
        let mut taken = self.0.lock();
        taken.admits(&key).then(|| self.place(&mut taken, key))
    }

    /// The same; where it has no fewer, one is taken back for it that nothing keeps, of who has most, and more than `key`, or is `key` itself.
    pub(super) fn make_room(&self, key: K) -> Option<Place<K>> {
        let mut taken = self.0.lock();
        if !taken.admits(&key) {
            taken.take_back(&key)?;
        }
        Some(self.place(&mut taken, key))
    }

    fn place(&self, taken: &mut Taken<K>, key: K) -> Place<K> {
        let (number, lost) = (taken.next(), Arc::<SetOnce<()>>::default());
        *taken.of.entry(key.clone()).or_default() += 1;
        let guest = Guest {
            key,
            stays: 0,
            since: number,
            came: Instant::now(),
            lost: Arc::clone(&lost),
        };
        taken.guests.insert(number, guest);
        let room = self.clone();
        Place { room, number, lost }
    }

    /// How many places are taken.
    pub(super) fn taken(&self) -> usize {
        self.0.lock().guests.len()
    }
}

impl<K: Eq + Hash> Taken<K> {
    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn has(&self, key: &K) -> usize {
        self.of.get(key).copied().unwrap_or_default()
    }

    fn admits(&self, key: &K) -> bool {
        self.has(key) < self.most.saturating_sub(self.guests.len())
    }

    /// Has one give way to `key`, if there is such a one.
    fn take_back(&mut self, key: &K) -> Option<()> {
        let own = self.has(key);
        let may = |guest: &Guest<K>| {
            let has_had_it = guest.stays == 0 && guest.came.elapsed() >= self.lasts;
            has_had_it && (guest.key == *key || self.has(&guest.key) > own)
        };
        let those = self.guests.iter().filter(|(_, guest)| may(guest));
        let rank = |guest: &Guest<K>| (self.has(&guest.key), Reverse(guest.since));
        let (number, _) = those.max_by_key(|(_, guest)| rank(guest))?;
        let guest = self.leave(*number)?;
        guest.lost.set(()).ok();
        Some(())
    }

    fn leave(&mut self, number: u64) -> Option<Guest<K>> {
        let guest = self.guests.remove(&number)?;
        if let Some(of) = self.of.get_mut(&guest.key) {
            *of = of.saturating_sub(1);
            if *of == 0 {
                self.of.remove(&guest.key);
            }
        }
        Some(guest)
    }
}

impl<K: Eq + Hash + Clone> Place<K> {
    /// Keeps it.
    pub(super) fn stay(&self) -> Stay<K> {
        let mut taken = self.room.0.lock();
        if let Some(guest) = taken.guests.get_mut(&self.number) {
            guest.stays += 1;
        }
        Stay {
            room: self.room.clone(),
            number: self.number,
        }
    }

    /// Waits until it is taken back.
    pub(super) async fn lost(&self) {
        self.lost.wait().await;
    }
}

impl<K> Clone for Room<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Eq + Hash + Clone> Drop for Place<K> {
    fn drop(&mut self) {
        // Nobody's, if it was taken back.
        self.room.0.lock().leave(self.number);
    }
}

impl<K: Eq + Hash + Clone> Drop for Stay<K> {
    fn drop(&mut self) {
        let mut taken = self.room.0.lock();
        let now = taken.next();
        if let Some(guest) = taken.guests.get_mut(&self.number) {
            guest.stays = guest.stays.saturating_sub(1);
            guest.since = now;
        }
    }
}

impl<K: Eq + Hash + Clone> fmt::Debug for Place<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place")
    }
}

impl<K: Eq + Hash + Clone> fmt::Debug for Stay<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stay")
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn all(room: &Room<u64>, key: u64) -> Vec<Place<u64>> {
        std::iter::from_fn(|| room.take(key)).collect()
    }

    fn is_lost(place: &Place<u64>) -> bool {
        place.lost.initialized()
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

    #[test]
    fn who_has_most_gives_way_first_with_what_it_has_had_longest() {
        let room = Room::new(8);
        let (loud, quiet) = (all(&room, 1), all(&room, 2));
        assert_eq!((loud.len(), quiet.len()), (4, 2));
        let more = room.make_room(1).expect("its own");
        assert!(is_lost(&loud[0]) && !is_lost(&loud[1]));
        let third = room.make_room(2).expect("of the loud one");
        assert!(is_lost(&loud[1]) && !quiet.iter().any(is_lost));
        assert_eq!(room.taken(), 6);
        drop(loud);
        assert_eq!(room.taken(), 4, "what was taken back is not freed again");
        drop((more, third, quiet));
        assert_eq!(room.taken(), 0);
    }

    #[test]
    fn what_is_kept_does_not_give_way_and_comes_last_when_it_is_kept_no_more() {
        let room = Room::new(4);
        let places = all(&room, 1);
        let stays: Vec<_> = places.iter().map(Place::stay).collect();
        assert!(room.make_room(1).is_none());
        let other = room.make_room(2).expect("free");
        assert!(room.make_room(1).is_none(), "the other has fewer");
        drop(stays);
        drop((places[0].stay(), other));
        let _more = room.make_room(1).expect("its own");
        assert!(is_lost(&places[1]) && !is_lost(&places[0]));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_gives_way_before_its_time() {
        let room = Room::lasting(2, Duration::from_secs(5));
        let first = room.make_room(1).expect("free");
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(room.make_room(1).is_none());
        tokio::time::advance(Duration::from_secs(2)).await;
        let second = room.make_room(1).expect("the first has had its time");
        assert!(is_lost(&first) && room.make_room(1).is_none());
        drop(second);
    }

    #[tokio::test]
    async fn who_gives_way_is_told() {
        let room = Room::new(1);
        let first = room.make_room(1).expect("free");
        let (second, ()) = tokio::join!(async { room.make_room(1) }, first.lost());
        assert!(second.is_some());
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

        #[test]
        fn only_who_has_more_or_oneself_gives_way_and_nobody_who_stays(
            turns in vec(any::<u64>(), 0..500), keys in 1u64..6,
        ) {
            let room = Room::new(23);
            let mut held: Vec<(u64, Place<u64>, Option<Stay<u64>>)> = Vec::new();
            for turn in turns {
                let key = turn % keys;
                let has = |of: u64| held.iter().filter(|(key, ..)| *key == of).count();
                let (own, free) = (has(key), 23 - held.len());
                let gives_way = |(of, _, stay): &&(u64, Place<u64>, Option<Stay<u64>>)| {
                    stay.is_none() && (*of == key || has(*of) > own)
                };
                let most = held.iter().filter(gives_way).map(|(of, ..)| has(*of)).max();
                let place = room.make_room(key);
                prop_assert_eq!(place.is_some(), own < free || most.is_some());
                let lost = held.iter().position(|(_, place, _)| is_lost(place));
                prop_assert_eq!(lost.is_some(), own >= free && most.is_some());
                if let Some(lost) = lost {
                    prop_assert_eq!(Some(has(held[lost].0)), most);
                    prop_assert!(gives_way(&&held[lost]));
                    held.remove(lost);
                }
                held.extend(place.map(|place| {
                    let stay = (turn >> 8).is_multiple_of(3).then(|| place.stay());
                    (key, place, stay)
                }));
                prop_assert!(!held.iter().any(|(_, place, _)| is_lost(place)));
                prop_assert_eq!(room.taken(), held.len());
            }
        }
    }
}
