//! The shared random value of a list: agreed by commit and reveal, over the lists themselves. srv-spec is the model.
//!
//! Each vote reveals a value to which its voter has committed in the list before, and commits to that of the next. What the list before said, each
//! voter repeats, so that a list is worked out from its votes alone, and also by who has missed the one before. A run's first list for which enough
//! committed values were revealed makes the run's value; the others carry it on.

use std::collections::BTreeMap;

use hoplite_crypto::shared_random::{commitment, reveal, shared_random_value};
use hoplite_wire::directory::{Contribution, Key, List, SharedRandomLines};

use super::{Config, tally::is_majority};

/// What this authority says in its vote: what the last list that it knows means for this time, and what it adds.
pub(super) fn voted(config: &Config, last: Option<&List>, valid_after: u64) -> SharedRandomLines {
    let (interval, run) = (config.interval.max(1), config.run());
    if run == 0 {
        return SharedRandomLines::default();
    }
    let own = Contribution {
        reveal: reveal(&config.key, valid_after),
        commitment: commitment(&reveal(&config.key, valid_after.saturating_add(interval))),
    };
    let carried = last.map_or_else(SharedRandomLines::default, |last| {
        let runs = (valid_after / run).checked_sub(last.valid_after / run);
        let values = &last.shared_random;
        let (previous, current) = match runs {
            Some(0) => (values.previous, values.current),
            Some(1) => (values.current, None),
            _ => (None, None),
        };
        let is_next = last.valid_after.checked_add(interval) == Some(valid_after);
        let commitments = is_next.then(|| values.commitments.clone());
        SharedRandomLines {
            previous,
            current,
            commitments: commitments.unwrap_or_default(),
            own: None,
        }
    });
    SharedRandomLines {
        own: Some(own),
        ..carried
    }
}

/// What the list says, from the votes that count, by voter: what more than half of the known authorities say that it was before; and, where there
/// is no value for this run yet and the threshold of committed values was revealed, a new one.
pub(super) fn agreed(votes: &BTreeMap<Key, &List>, config: &Config) -> SharedRandomLines {
    let known = config.trust.authorities.len();
    let said = || votes.values().map(|vote| &vote.shared_random);
    let previous = by_majority(said().filter_map(|said| said.previous), known);
    let current = by_majority(said().filter_map(|said| said.current), known);
    SharedRandomLines {
        previous,
        current: current.or_else(|| made(votes, config, previous.as_ref())),
        commitments: contributions(votes)
            .map(|(voter, own)| (voter, own.commitment))
            .collect(),
        own: None,
    }
}

fn contributions<'a>(
    votes: &'a BTreeMap<Key, &List>,
) -> impl Iterator<Item = (Key, Contribution)> + 'a {
    let all = votes.iter();
    all.filter_map(|(voter, vote)| Some((*voter, vote.shared_random.own?)))
}

fn made(
    votes: &BTreeMap<Key, &List>,
    config: &Config,
    previous: Option<&[u8; 32]>,
) -> Option<[u8; 32]> {
    let known = config.trust.authorities.len();
    let committed = |voter: &Key| {
        let said = votes.values();
        let said = said.filter_map(|vote| vote.shared_random.commitments.get(voter));
        by_majority(said.copied(), known)
    };
    let revealed = contributions(votes).filter_map(|(voter, own)| {
        let is_kept = committed(&voter) == Some(commitment(&own.reveal));
        is_kept.then_some((voter.0, own.reveal))
    });
    let revealed: BTreeMap<_, _> = revealed.collect();
    let is_enough = revealed.len() >= config.trust.threshold.max(1);
    is_enough.then(|| shared_random_value(&revealed, previous))
}

fn by_majority(said: impl Iterator<Item = [u8; 32]>, known: usize) -> Option<[u8; 32]> {
    let mut counts = BTreeMap::<[u8; 32], usize>::new();
    for value in said {
        let count = counts.entry(value).or_default();
        *count = count.saturating_add(1);
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    let most = most.filter(|(_, count)| is_majority(*count, known));
    most.map(|(value, _)| value)
}
