//! Which flags an authority votes for. dir-spec "Assigning flags in a vote", in a smaller size: that a relay is listed says that it is running, and its line
//! `exit` that it is one. A relay that has a flag keeps it until it is below nine tenths of what the flag asks for, so that it does not flap.

use std::collections::BTreeMap;

use hoplite_config::ConfigError;
use hoplite_wire::directory::{Key, RelayFlags};
use serde::Deserialize;

use super::uptime::Record;

/// While seven eighths of the relays are known for less, only who reaches what the file says is told apart: seconds would decide who may be a guard.
const YOUNG: u64 = 3600;

/// Of these parts of the relays the young do not decide what is asked of all: whoever runs more relays than there are others would have none asked for
/// anything, and his own as soon as the others.
const OLDEST_EIGHTH: (usize, usize) = (7, 8);
const OLDEST_QUARTER: (usize, usize) = (3, 4);

/// What flags ask for: `[flags]` in the authority's file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlagRules {
    /// Whether any are voted for, but those for onion services.
    pub vote: bool,
    /// Who is there for so long at a time is stable; or for as long as a quarter of the relays.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub stable: std::time::Duration,
    /// Who carries so many bytes a second is fast; or as much as seven eighths of the relays.
    pub fast: u64,
    /// Who carries so many bytes a second may be a guard; or as much as the fastest quarter.
    pub guard: u64,
    /// Who is known for so long may be a guard; or for as long as an eighth of the relays.
    #[serde(deserialize_with = "hoplite_config::seconds")]
    pub guard_known: std::time::Duration,
    /// Who is there for so many hundredths of the time may be a guard; or for as many as half of the relays.
    pub guard_uptime: u64,
    /// Relays that are not to be the last of a path.
    #[serde(deserialize_with = "hoplite_config::list")]
    pub bad_exits: Vec<Key>,
}

impl Default for FlagRules {
    fn default() -> Self {
        let days = |days: u64| std::time::Duration::from_secs(days.saturating_mul(86_400));
        Self {
            vote: true,
            stable: days(7),
            fast: 100_000,
            guard: 2_000_000,
            guard_known: days(8),
            guard_uptime: 98,
            bad_exits: Vec::new(),
        }
    }
}

impl FlagRules {
    /// Which keys have no sense, and why.
    pub fn wrongs(&self) -> impl Iterator<Item = ConfigError> {
        hoplite_config::wrongs([(
            "flags.guard_uptime",
            "expected 0 to 100",
            self.guard_uptime <= 100,
        )])
    }
}

/// A relay that is running.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    /// Which.
    pub(super) identity: Key,
    /// What it can carry, as far as is known, in bytes a second.
    pub(super) bandwidth: u64,
    /// How long it was there.
    pub(super) record: Record,
    /// It may be the first relay of a path.
    pub(super) is_ingress: bool,
    /// It may be the last.
    pub(super) is_exit: bool,
}

/// What the flags ask for among these relays.
struct Thresholds {
    stable: u64,
    fast: u64,
    guard: u64,
    known: u64,
    part: u64,
}

impl Thresholds {
    fn of(relays: &[Running], rules: &FlagRules) -> Self {
        let above = |(share, of): (usize, usize), value: fn(&Running) -> u64| {
            quantile(relays.iter().map(value).collect(), share, of)
        };
        let known = above(OLDEST_EIGHTH, |relay| relay.record.known);
        let most = Self {
            stable: rules.stable.as_secs(),
            fast: rules.fast,
            guard: rules.guard,
            known: rules.guard_known.as_secs(),
            part: rules.guard_uptime.saturating_mul(10),
        };
        if known < YOUNG {
            return most;
        }
        Self {
            stable: most
                .stable
                .min(above(OLDEST_QUARTER, |relay| relay.record.between_failures)),
            fast: most.fast.min(above((1, 8), |relay| relay.bandwidth)),
            guard: most.guard.min(above((3, 4), |relay| relay.bandwidth)),
            known: most.known.min(known),
            part: most.part.min(above((1, 2), |relay| relay.record.part)),
        }
    }
}

/// What `share` of `of` are below.
fn quantile(mut values: Vec<u64>, share: usize, of: usize) -> u64 {
    values.sort_unstable();
    let place = values.len().saturating_mul(share).checked_div(of);
    let last = values.len().saturating_sub(1);
    let found = values.get(place.unwrap_or(0).min(last));
    found.copied().unwrap_or(0)
}

/// The flags of each; `had` has those that were voted for last.
pub(super) fn flags(
    relays: &[Running],
    rules: &FlagRules,
    had: &BTreeMap<Key, RelayFlags>,
) -> BTreeMap<Key, RelayFlags> {
    let asked = Thresholds::of(relays, rules);
    let of = |relay: &Running| {
        let had = had.get(&relay.identity).copied().unwrap_or_default();
        let reaches = |flag: RelayFlags, value: u64, threshold: u64| {
            let threshold = if had.has(flag) {
                threshold.saturating_sub(threshold / 10)
            } else {
                threshold
            };
            value >= threshold
        };
        let record = relay.record;
        let is_stable = reaches(RelayFlags::STABLE, record.between_failures, asked.stable);
        let is_fast = reaches(RelayFlags::FAST, relay.bandwidth, asked.fast);
        let is_guard = relay.is_ingress
            && is_stable
            && is_fast
            && reaches(RelayFlags::GUARD, relay.bandwidth, asked.guard)
            && reaches(RelayFlags::GUARD, record.known, asked.known)
            && reaches(RelayFlags::GUARD, record.part, asked.part);
        let is_bad = relay.is_exit && rules.bad_exits.contains(&relay.identity);
        RelayFlags::NONE
            .with_if(RelayFlags::STABLE, is_stable)
            .with_if(RelayFlags::FAST, is_fast)
            .with_if(RelayFlags::GUARD, is_guard)
            .with_if(RelayFlags::BAD_EXIT, is_bad)
    };
    if !rules.vote {
        return BTreeMap::new();
    }
    relays
        .iter()
        .map(|relay| (relay.identity, of(relay)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;
    const ALL: RelayFlags = RelayFlags::GUARD
        .with(RelayFlags::STABLE)
        .with(RelayFlags::FAST);

    fn relay(n: u8, bandwidth: u64, days: u64) -> Running {
        Running {
            identity: Key([n; 32]),
            bandwidth,
            record: Record {
                between_failures: days * DAY,
                part: 990,
                known: days * DAY,
            },
            is_ingress: true,
            is_exit: true,
        }
    }

    fn voted(relays: &[Running], had: &BTreeMap<Key, RelayFlags>) -> BTreeMap<Key, RelayFlags> {
        flags(relays, &FlagRules::default(), had)
    }

    #[test]
    fn who_is_fast_and_there_for_long_may_be_a_guard() {
        let mut relays: Vec<_> = (1..=8).map(|n| relay(n, 5_000_000, 30)).collect();
        relays.push(relay(9, 50_000, 30));
        relays.push(relay(10, 5_000_000, 1));
        relays.push(Running {
            is_ingress: false,
            ..relay(11, 5_000_000, 30)
        });
        let flags = voted(&relays, &BTreeMap::new());
        assert_eq!(flags[&Key([1; 32])], ALL);
        assert_eq!(flags[&Key([9; 32])], RelayFlags::STABLE, "slow");
        assert_eq!(flags[&Key([10; 32])], RelayFlags::FAST, "new");
        assert!(
            !flags[&Key([11; 32])].has(RelayFlags::GUARD),
            "an exit alone"
        );
    }

    #[test]
    fn in_a_young_network_a_quarter_of_the_relays_are_stable_and_some_may_be_guards() {
        let relays: Vec<_> = (1..=8)
            .map(|n| Running {
                record: Record {
                    between_failures: u64::from(n) * 3600,
                    part: 1000,
                    known: u64::from(n) * 3600,
                },
                ..relay(n, 1000, 0)
            })
            .collect();
        let flags = voted(&relays, &BTreeMap::new());
        let stable = flags.values().filter(|flags| flags.has(RelayFlags::STABLE));
        assert_eq!(stable.count(), 2);
        assert!(flags.values().any(|flags| flags.has(RelayFlags::GUARD)));
        let new = relays.iter().map(|relay| Running {
            record: Record {
                known: 60,
                ..relay.record
            },
            ..*relay
        });
        let flags = voted(&new.collect::<Vec<_>>(), &BTreeMap::new());
        assert!(
            flags.values().all(|flags| *flags == RelayFlags::NONE),
            "too young"
        );
    }

    #[test]
    fn who_brings_more_new_relays_than_there_are_others_takes_no_flag_from_those_and_has_none() {
        for (of_one_relay, age) in [(1, 60), (1, 7200), (2, 7200)] {
            let old = (1..=8).map(|n| relay(n, 5_000_000, 30));
            let new = (9..9 + 9 * of_one_relay).map(|n| Running {
                record: Record {
                    between_failures: age,
                    part: 1000,
                    known: age,
                },
                ..relay(n, 50_000_000, 0)
            });
            let flags = voted(&old.chain(new).collect::<Vec<_>>(), &BTreeMap::new());
            for (relay, flags) in flags {
                let is_old = relay.0[0] <= 8;
                let asked = if is_old { ALL } else { RelayFlags::FAST };
                assert_eq!(flags, asked, "{relay:?}, {age} s");
            }
        }
    }

    #[test]
    fn a_flag_that_a_relay_has_it_keeps_until_it_is_a_tenth_below() {
        let others = (1..=8).map(|n| relay(n, 5_000_000, 30));
        let with = |bandwidth| {
            others
                .clone()
                .chain([relay(9, bandwidth, 30)])
                .collect::<Vec<_>>()
        };
        let nine = Key([9; 32]);
        let had = |flags| BTreeMap::from([(nine, flags)]);
        assert!(!voted(&with(1_900_000), &BTreeMap::new())[&nine].has(RelayFlags::GUARD));
        assert!(voted(&with(1_900_000), &had(ALL))[&nine].has(RelayFlags::GUARD));
        assert!(!voted(&with(1_700_000), &had(ALL))[&nine].has(RelayFlags::GUARD));
    }

    #[test]
    fn who_is_refused_as_an_exit_is_told_so_and_none_are_voted_for_where_that_is_off() {
        let relays = [relay(1, 1, 1)];
        let bad = FlagRules {
            bad_exits: vec![Key([1; 32])],
            ..FlagRules::default()
        };
        let voted = flags(&relays, &bad, &BTreeMap::new());
        assert!(voted[&Key([1; 32])].has(RelayFlags::BAD_EXIT));
        let off = FlagRules { vote: false, ..bad };
        assert!(flags(&relays, &off, &BTreeMap::new()).is_empty());
        assert!(flags(&[], &FlagRules::default(), &BTreeMap::new()).is_empty());
    }
}
