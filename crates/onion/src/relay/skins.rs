//! What protects a relay from CREATE2: so many a second for each client, and none twice.
//! [`super::handshakes`] and [`super::hop`] ask. tor-spec "Creating circuits"; C tor's DoS mitigation has the like.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use tokio::time::Instant;

/// Tokens that come back at a rate.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    most: u32,
    per_second: u32,
    left: u32,
    since: Instant,
}

/// Which onion skins have been answered. Two generations: what is asked again after both is answered again, with other keys.
///
/// A replay learns nothing by itself; but a relay that answers it tells a watcher that a circuit was there.
#[derive(Debug)]
pub struct Skins {
    hasher: RandomState,
    most: usize,
    lasts: Duration,
    since: Instant,
    current: HashSet<u64>,
    last: HashSet<u64>,
}

impl Bucket {
    /// A full bucket.
    pub fn new(most: u32, per_second: u32, now: Instant) -> Self {
        Self {
            most,
            per_second,
            left: most,
            since: now,
        }
    }

    /// Takes a token, if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since);
        let came = passed.as_millis() * u128::from(self.per_second) / 1000;
        if came > 0 {
            let came = u32::try_from(came).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(came).min(self.most);
            self.since = now;
        }
        let taken = self.left > 0;
        self.left = self.left.saturating_sub(1);
        taken
    }
}

impl Skins {
    /// Remembers each skin for `lasts` at least, unless more than `most` come in that time.
    pub fn new(most: usize, lasts: Duration, now: Instant) -> Self {
        Self {
            hasher: RandomState::new(),
            most,
            lasts,
            since: now,
            current: HashSet::new(),
            last: HashSet::new(),
        }
    }

    /// Whether it has not been seen before. It has now.
    pub fn is_new(&mut self, skin: &[u8], now: Instant) -> bool {
        let old = now.saturating_duration_since(self.since) >= self.lasts;
        if old || self.current.len() >= self.most {
            self.last = std::mem::take(&mut self.current);
            self.since = now;
        }
        // A keyed hash that nobody outside can predict stands for the skin.
        let key = self.hasher.hash_one(skin);
        !self.last.contains(&key) && self.current.insert(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_what_it_has_and_then_what_comes() {
        let mut now = Instant::now();
        let mut bucket = Bucket::new(10, 5, now);
        assert_eq!((0..20).filter(|_| bucket.take(now)).count(), 10);
        now += Duration::from_secs(1);
        assert_eq!((0..20).filter(|_| bucket.take(now)).count(), 5);
        now += Duration::from_secs(100);
        assert_eq!((0..20).filter(|_| bucket.take(now)).count(), 10);
    }

    #[test]
    fn a_bucket_asked_often_still_fills() {
        let mut now = Instant::now();
        let mut bucket = Bucket::new(1, 5, now);
        let taken = (0..1000).filter(|_| {
            now += Duration::from_millis(1);
            bucket.take(now)
        });
        assert_eq!(taken.count(), 6);
    }

    #[test]
    fn a_skin_is_new_once() {
        let mut now = Instant::now();
        let mut skins = Skins::new(1000, Duration::from_secs(60), now);
        assert!(skins.is_new(b"skin", now));
        assert!(!skins.is_new(b"skin", now));
        now += Duration::from_secs(61);
        assert!(!skins.is_new(b"skin", now), "the last generation");
        assert!(skins.is_new(b"another", now));
    }

    #[test]
    fn skins_are_forgotten_rather_than_gathered_without_bound() {
        let now = Instant::now();
        let mut skins = Skins::new(100, Duration::from_secs(3600), now);
        for n in 0..10_000u32 {
            assert!(skins.is_new(&n.to_be_bytes(), now));
            assert!(skins.current.len() + skins.last.len() <= 200);
        }
    }
}
