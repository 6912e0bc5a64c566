//! From votes to a list, in one way only: authorities that have the same votes work out the same bytes.

use std::collections::BTreeMap;

use hoplite_wire::directory::{Key, List, RELAYS, SignedDescriptor, Stage};

use super::Config;

/// The name of the parameter that bounds what is believed of a relay.
const CAP: &str = "bandwidth-cap";

/// An authority's own vote.
pub(super) fn vote(
    config: &Config,
    valid_after: u64,
    relays: impl Iterator<Item = SignedDescriptor>,
) -> List {
    let params = BTreeMap::from([(CAP.to_owned(), config.bandwidth_cap)]);
    let relays = relays.take(RELAYS).collect();
    with_times(Stage::Vote, config, valid_after, params, relays)
}

/// What more than half of the *known* authorities have voted for, whoever else did not vote.
pub(super) fn agreed(votes: &[&List], config: &Config, valid_after: u64) -> List {
    let known = config.trust.authorities.len();
    let relays = relays(votes, known);
    with_times(
        Stage::List,
        config,
        valid_after,
        params(votes, known),
        relays,
    )
}

fn with_times(
    stage: Stage,
    config: &Config,
    valid_after: u64,
    params: BTreeMap<String, u64>,
    relays: Vec<SignedDescriptor>,
) -> List {
    let uses = config.interval.saturating_mul(config.intervals.max(1));
    List {
        stage,
        valid_after,
        fresh_until: valid_after.saturating_add(config.interval.max(1)),
        valid_until: valid_after.saturating_add(uses.max(1)),
        params,
        relays,
    }
}

fn is_majority(count: usize, known: usize) -> bool {
    count.saturating_mul(2) > known
}

/// Each relay that a majority lists, as most of them have it; between equals the one published last, then the one that is written first.
fn relays(votes: &[&List], known: usize) -> Vec<SignedDescriptor> {
    let mut said = BTreeMap::<Key, BTreeMap<String, (usize, &SignedDescriptor)>>::new();
    for relay in votes.iter().flat_map(|vote| &vote.relays) {
        let forms = said.entry(relay.descriptor.identity).or_default();
        forms.entry(relay.to_string()).or_insert((0, relay)).0 += 1;
    }
    let listed = said.into_values().filter_map(|forms| {
        let voters = forms.values().map(|(count, _)| count).sum();
        let best = forms
            .values()
            .rev()
            .max_by_key(|(count, relay)| (*count, relay.descriptor.published));
        best.filter(|_| is_majority(voters, known))
            .map(|(_, relay)| (*relay).clone())
    });
    listed.take(RELAYS).collect()
}

/// The lower median of each parameter that a majority names.
fn params(votes: &[&List], known: usize) -> BTreeMap<String, u64> {
    let mut named = BTreeMap::<&String, Vec<u64>>::new();
    for (name, number) in votes.iter().flat_map(|vote| &vote.params) {
        named.entry(name).or_default().push(*number);
    }
    let agreed = named
        .into_iter()
        .filter(|(_, numbers)| is_majority(numbers.len(), known));
    let median = |mut numbers: Vec<u64>| {
        numbers.sort_unstable();
        let middle = numbers.len().saturating_sub(1) / 2;
        numbers.get(middle).copied().unwrap_or(0)
    };
    agreed
        .map(|(name, numbers)| (name.clone(), median(numbers)))
        .collect()
}
