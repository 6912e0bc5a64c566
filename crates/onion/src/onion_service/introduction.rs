//! How long a service keeps an introduction point, and which introductions it has had there: a machine without a clock and without keys.
//! [`super::service`] has one for each point. rend-spec-v3, "Processing an INTRODUCE2 cell at the hidden service" (replays); the numbers are C tor's.
//!
//! An introduction counts when it was authentic and is no copy of another: garbage, which anybody sends who knows the point, wears out nothing. What is
//! remembered is bounded by the introductions that a point has in its life.

use std::{collections::HashSet, time::Duration};

use hoplite_wire::cell::onion_service::COOKIE;
use tokio::time::Instant;

/// Introductions of a point's life (`INTRO_POINT_MIN_LIFETIME_INTRODUCTIONS`), and as many more at random.
const LEAST_INTRODUCTIONS: u32 = 16 * 1024;
/// Seconds of a point's life (`INTRO_POINT_LIFETIME_MIN_SECONDS`).
const LEAST_AGE: u32 = 18 * 3600;
/// Up to this many more.
const MORE_AGE: u32 = 6 * 3600;
/// What ends every introduction: its MAC, which no two have in common.
const MAC: usize = 32;

/// What an authentic introduction is to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is to be answered.
    Fresh,
    /// It, or its cookie, was seen before: nothing is said.
    Replayed,
}

/// The life of one introduction point.
#[derive(Debug)]
pub struct Life {
    until: Instant,
    /// Introductions that are still taken.
    left: u32,
    seen: HashSet<[u8; MAC]>,
    cookies: HashSet<[u8; COOKIE]>,
}

impl Life {
    /// A point that is chosen now. `random_below` gives a number below another that nobody can guess.
    pub fn new(now: Instant, random_below: impl Fn(u32) -> u32) -> Self {
        let age = LEAST_AGE.saturating_add(random_below(MORE_AGE + 1));
        let left = LEAST_INTRODUCTIONS.saturating_add(random_below(LEAST_INTRODUCTIONS + 1));
        Self {
            until: now + Duration::from_secs(age.into()),
            left,
            seen: HashSet::new(),
            cookies: HashSet::new(),
        }
    }

    /// For tests: with as few introductions.
    #[must_use]
    pub fn of(mut self, introductions: u32) -> Self {
        self.left = self.left.min(introductions);
        self
    }

    /// When it ends.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Whether another point is to take its place.
    pub fn is_over(&self, now: Instant) -> bool {
        self.left == 0 || now >= self.until
    }

    /// Whether a message was seen before, whatever it is: that costs less than to decrypt it.
    pub fn has_seen(&self, message: &[u8]) -> bool {
        message
            .last_chunk()
            .is_none_or(|mac| self.seen.contains(mac))
    }

    /// An introduction that is authentic.
    pub fn introduced(&mut self, message: &[u8], cookie: [u8; COOKIE]) -> Verdict {
        let Some(mac) = message.last_chunk().filter(|_| self.left > 0) else {
            return Verdict::Replayed;
        };
        if self.seen.contains(mac) {
            return Verdict::Replayed;
        }
        // One with a cookie that was seen counts, too: else a point that makes such by itself has its service remember them for ever.
        self.left -= 1;
        self.seen.insert(*mac);
        if self.cookies.insert(cookie) {
            Verdict::Fresh
        } else {
            Verdict::Replayed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(n: u32) -> Vec<u8> {
        let mut message = vec![0; 60];
        message.extend(n.to_be_bytes());
        message
    }

    fn cookie(n: u32) -> [u8; COOKIE] {
        let mut cookie = [0; COOKIE];
        cookie[..4].copy_from_slice(&n.to_be_bytes());
        cookie
    }

    #[test]
    fn what_was_seen_is_not_answered_nor_is_its_cookie() {
        let mut life = Life::new(Instant::now(), |_| 0);
        assert!(!life.has_seen(&message(1)));
        assert_eq!(life.introduced(&message(1), cookie(1)), Verdict::Fresh);
        assert!(life.has_seen(&message(1)));
        assert_eq!(life.introduced(&message(1), cookie(2)), Verdict::Replayed);
        assert_eq!(life.introduced(&message(2), cookie(1)), Verdict::Replayed);
        assert_eq!(life.introduced(&message(3), cookie(3)), Verdict::Fresh);
        assert!(life.has_seen(&[0; 31]), "what has no MAC is nothing new");
    }

    #[test]
    fn introductions_of_one_cookie_wear_a_point_out_as_others_do() {
        let now = Instant::now();
        let mut life = Life::new(now, |_| 0);
        for n in 0..100_000 {
            life.introduced(&message(n), cookie(1));
        }
        assert!(life.is_over(now), "another point takes its place");
        assert!(life.seen.len() <= 32_768, "{}", life.seen.len());
    }

    #[test]
    fn a_point_ends_by_its_introductions_between_16384_and_32768() {
        for (random, expected) in [(0, 16_384), (u32::MAX, 32_768)] {
            let now = Instant::now();
            let mut life = Life::new(now, |most| random.min(most - 1));
            let mut taken = 0;
            while !life.is_over(now) {
                assert_eq!(
                    life.introduced(&message(taken), cookie(taken)),
                    Verdict::Fresh
                );
                taken += 1;
            }
            assert_eq!(taken, expected);
            assert_eq!(
                life.introduced(&message(taken), cookie(taken)),
                Verdict::Replayed
            );
        }
    }

    #[test]
    fn a_point_ends_after_18_to_24_hours() {
        let now = Instant::now();
        for (random, hours) in [(0, 18), (u32::MAX, 24)] {
            let life = Life::new(now, |most| random.min(most - 1));
            let end = now + Duration::from_secs(hours * 3600);
            assert_eq!(life.until(), end);
            assert!(life.is_over(end) && !life.is_over(end - Duration::from_secs(1)));
        }
    }
}
