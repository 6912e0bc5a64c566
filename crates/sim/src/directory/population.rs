//! Which relays there are: taken from a consensus of a larger (or smaller) network, and what becomes of them hour by hour.
//! The sample is after Jansen, Tracey and Goldberg, "Once is Never Enough" (USENIX Security 2021), section 3.2: each class of relays keeps its share, and
//! within a class, sorted by weight, one relay at random is taken of each of as many equal strata.

use std::net::{Ipv4Addr, Ipv6Addr};

use hoplite_wire::tor::{Consensus, Flags, Router};

use super::{HOUR, Settings, Wrong, valid_after};
use crate::random::Random;

/// Seconds that C tor keeps an onion key ("Onion keys", tor-spec): after as long a relay's microdescriptor is another.
const ONION_KEY: u64 = 28 * 24 * HOUR;

/// What a relay of the sample is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// In thousands of bytes a second.
    pub weight: u64,
    /// What the authorities think of it.
    pub flags: Flags,
}

/// A relay for as long as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relay {
    /// What it is like.
    pub member: Member,
    /// The first hour whose list has it.
    pub from: usize,
    /// The first after that whose list has not.
    pub until: usize,
    /// It keeps lists of ours for others.
    pub keeps_lists: bool,
}

impl Relay {
    /// Whether it is a directory cache of Tor's.
    pub fn keeps_consensuses(&self) -> bool {
        self.member.flags.has(Flags::V2_DIR)
    }
}

/// What a relay calls itself, and its addresses: drawn, so that they compress as others do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Letters and digits.
    pub nickname: String,
    /// The first address.
    pub v4: Ipv4Addr,
    /// The second, which half of the relays have.
    pub v6: Option<Ipv6Addr>,
    /// The port of both.
    pub port: u16,
}

impl Named {
    /// The relay's of this number.
    pub fn of(relay: usize, seed: u64) -> Self {
        let mut random = Random::new(seed, "name", relay);
        let [first, second, third, length, kind, ..] = random.bytes();
        let letters = (0..4_u8.saturating_add(length % 12)).filter_map(|_| {
            let letter = u32::try_from(random.below(26)).ok()?;
            char::from_digit(letter.saturating_add(10), 36)
        });
        let nickname = letters.collect();
        let port = match kind % 4 {
            0 => 443,
            1 => 9001,
            _ => u16::try_from(random.below(50_000))
                .unwrap_or(0)
                .saturating_add(1024),
        };
        let high = u16::from_be_bytes([first, second]);
        let v6 = Ipv6Addr::new(0x2001, 0xdb8, high, third.into(), 0, 0, 0, 1);
        Self {
            nickname,
            v4: Ipv4Addr::new(44, first, second, third),
            v6: kind.is_multiple_of(2).then_some(v6),
            port,
        }
    }
}

/// What is known of a relay in one hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Which of [`Population::relays`].
    pub relay: usize,
    /// When it said its descriptor, in seconds since 1970.
    pub published: u64,
    /// How often its onion key has changed.
    pub onion: u64,
    /// What it was measured to carry, in thousands of bytes a second.
    pub measured: u64,
    /// Whether the authorities think that it is there for long.
    pub stable: bool,
}

/// All relays of a run, and each hour's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Population {
    /// All that were ever there.
    pub relays: Vec<Relay>,
    /// Who is listed, hour by hour.
    pub hours: Vec<Vec<Listed>>,
}

/// As many relays as are asked for, like those of a consensus.
///
/// # Errors
/// The text is no consensus, or one without relays.
pub fn sample(consensus: &str, relays: usize, seed: u64) -> Result<Vec<Member>, Wrong> {
    let consensus = Consensus::parse(consensus)
        .map_err(|_| Wrong("the population is no consensus with microdescriptors"))?;
    let all = consensus.routers.len();
    if all == 0 {
        return Err(Wrong("the population has no relays"));
    }
    let mut random = Random::new(seed, "sample", 0);
    let mut members = Vec::with_capacity(relays);
    let (mut passed, mut taken) = (0_usize, 0_usize);
    for (guard, exit) in [(true, true), (true, false), (false, true), (false, false)] {
        let class = consensus.routers.iter();
        let class = class.filter(|router| is_guard(router) == guard && is_exit(router) == exit);
        let mut class: Vec<_> = class.map(member).collect();
        class.sort_by_key(|member| member.weight);
        // Each class ends where its share does, so that the sum is what was asked for.
        passed = passed.saturating_add(class.len());
        let until = relays.saturating_mul(passed) / all;
        strata(
            &class,
            until.saturating_sub(taken),
            &mut random,
            &mut members,
        );
        taken = until;
    }
    Ok(members)
}

fn is_guard(router: &Router) -> bool {
    router.flags.has(Flags::GUARD)
}

fn is_exit(router: &Router) -> bool {
    router.flags.has(Flags::EXIT) && !router.flags.has(Flags::BAD_EXIT)
}

fn member(router: &Router) -> Member {
    Member {
        weight: router.bandwidth.max(1),
        flags: router.flags,
    }
}

/// One of each of so many strata; where there are more strata than relays, some relays stand for several.
fn strata(class: &[Member], count: usize, random: &mut Random, members: &mut Vec<Member>) {
    let bound = |number: usize| class.len().saturating_mul(number) / count.max(1);
    for number in 0..count {
        let (start, end) = (bound(number), bound(number.saturating_add(1)));
        let width = u64::try_from(end.saturating_sub(start)).unwrap_or(0);
        let within = usize::try_from(random.below(width)).unwrap_or(0);
        members.extend(class.get(start.saturating_add(within)));
    }
}

impl Population {
    /// What becomes of them.
    pub fn over(members: &[Member], settings: &Settings) -> Self {
        let mut population = Self {
            relays: Vec::new(),
            hours: vec![Vec::with_capacity(members.len()); settings.hours],
        };
        for (place, member) in members.iter().enumerate() {
            let random = Random::new(settings.seed, "relay", place);
            population.place(*member, settings, random);
        }
        population
    }

    /// One relay after the other, each like the one before, whose place it takes.
    fn place(&mut self, member: Member, settings: &Settings, mut random: Random) {
        let mut listed: Option<Listed> = None;
        for hour in 0..settings.hours {
            let now = valid_after(hour);
            let gone = listed.is_none() || random.happens(settings.leave);
            let is = match listed {
                Some(before) if !gone => before.later(now, settings, &mut random),
                _ => {
                    if let Some(last) = listed.and_then(|last| self.relays.get_mut(last.relay)) {
                        last.until = hour;
                    }
                    self.relays.push(Relay {
                        member,
                        from: hour,
                        until: settings.hours,
                        keeps_lists: member.flags.has(Flags::V2_DIR)
                            && random.happens(settings.keep),
                    });
                    Listed {
                        relay: self.relays.len().saturating_sub(1),
                        published: now
                            .saturating_sub(random.below(settings.republish_seconds()).max(1)),
                        onion: 0,
                        measured: member.weight,
                        stable: member.flags.has(Flags::STABLE),
                    }
                }
            };
            if let Some(list) = self.hours.get_mut(hour) {
                list.push(is);
            }
            listed = Some(is);
        }
    }
}

impl Listed {
    /// An hour later.
    fn later(mut self, now: u64, settings: &Settings, random: &mut Random) -> Self {
        let every = settings.republish_seconds();
        let passed = now.saturating_sub(self.published);
        self.published = self
            .published
            .saturating_add(passed.saturating_sub(1) / every * every);
        if random.below(ONION_KEY) < HOUR {
            (self.onion, self.published) = (self.onion.saturating_add(1), now.saturating_sub(1));
        }
        if random.happens(settings.remeasured) {
            // Between four fifths and five quarters of what it was.
            let share = random.below(450).saturating_add(800);
            self.measured = (self.measured.saturating_mul(share) / 1000).max(1);
        }
        self.stable ^= random.happens(settings.reflagged);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::SYNTHETIC;

    fn share(members: &[Member], flag: Flags) -> f64 {
        let having = members.iter().filter(|member| member.flags.has(flag));
        having.count() as f64 / members.len() as f64
    }

    #[test]
    fn a_sample_keeps_the_shares_of_guards_and_exits_and_the_spread_of_weights() {
        let median = |members: &[Member]| {
            let mut weights: Vec<_> = members.iter().map(|member| member.weight).collect();
            weights.sort_unstable();
            weights[weights.len() / 2] as f64
        };
        let whole = sample(SYNTHETIC, 120, 1).expect("read");
        for relays in [40, 120, 1000] {
            let members = sample(SYNTHETIC, relays, 7).expect("read");
            assert_eq!(members.len(), relays);
            for flag in [Flags::GUARD, Flags::EXIT] {
                let off = (share(&members, flag) - share(&whole, flag)).abs();
                assert!(off < 0.03, "{relays} relays are off by {off}");
            }
            let ratio = median(&members) / median(&whole);
            assert!((0.8..1.25).contains(&ratio), "{relays} relays: {ratio}");
        }
    }

    #[test]
    fn a_sample_of_all_is_all() {
        let consensus = Consensus::parse(SYNTHETIC).expect("read");
        let mut theirs: Vec<_> = consensus.routers.iter().map(|one| one.bandwidth).collect();
        let members = sample(SYNTHETIC, theirs.len(), 3).expect("read");
        let mut ours: Vec<_> = members.iter().map(|one| one.weight).collect();
        theirs.sort_unstable();
        ours.sort_unstable();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn what_is_no_consensus_is_refused() {
        assert!(sample("network-status-version 3\n", 10, 1).is_err());
    }

    #[test]
    fn relays_go_at_the_rate_that_is_set_and_others_take_their_place() {
        let settings = Settings {
            relays: 500,
            hours: 11,
            leave: 0.1,
            ..Settings::default()
        };
        let members = sample(SYNTHETIC, settings.relays, settings.seed).expect("read");
        let population = Population::over(&members, &settings);
        assert!(population.hours.iter().all(|hour| hour.len() == 500));
        let came = population.relays.len() - 500;
        // 500 of 5,000 expected.
        assert!((400..600).contains(&came), "{came}");
        for (hour, listed) in population.hours.iter().enumerate() {
            let is_there = |one: &Listed| {
                let relay = population.relays[one.relay];
                (relay.from..relay.until).contains(&hour) && one.published < valid_after(hour)
            };
            assert!(listed.iter().all(is_there));
        }
    }
}
