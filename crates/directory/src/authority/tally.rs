//! From votes to a list, in one way only: authorities that have the same votes work out the same bytes.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_wire::directory::{Key, List, RELAYS, SharedRandomLines, SignedDescriptor, Stage};

use super::{Config, shared_random};
use crate::hsdirs;

/// The name of the parameter that bounds what is believed of a relay.
const CAP: &str = "bandwidth-cap";

/// What a list or a vote says of relays.
pub(super) struct Relays {
    /// They, by identity.
    pub(super) all: Vec<SignedDescriptor>,
    /// Who of them is to have the HSDir flag.
    pub(super) hsdirs: BTreeSet<Key>,
}

/// What a vote or a list says beside its times.
struct Said {
    params: BTreeMap<String, u64>,
    shared_random: SharedRandomLines,
    relays: Relays,
}

/// An authority's own vote; `last` is the last list that it knows.
pub(super) fn vote(config: &Config, last: Option<&List>, valid_after: u64, relays: Relays) -> List {
    let mut params = BTreeMap::from([(CAP.to_owned(), config.bandwidth_cap)]);
    if config.hsdir_interval > 0 {
        params.insert(hsdirs::INTERVAL.to_owned(), config.hsdir_interval);
    }
    let said = Said {
        params,
        shared_random: shared_random::voted(config, last, valid_after),
        relays,
    };
    with_times(Stage::Vote, config, valid_after, said)
}

/// What more than half of the *known* authorities have voted for, whoever else did not vote; the votes are by voter.
pub(super) fn agreed(votes: &BTreeMap<Key, &List>, config: &Config, valid_after: u64) -> List {
    let known = config.trust.authorities.len();
    let shared_random = shared_random::agreed(votes, config);
    let votes: Vec<&List> = votes.values().copied().collect();
    let all = relays(&votes, known);
    let hsdirs = flagged(&votes, &all, known);
    let said = Said {
        params: params(&votes, known),
        shared_random,
        relays: Relays { all, hsdirs },
    };
    with_times(Stage::List, config, valid_after, said)
}

fn with_times(stage: Stage, config: &Config, valid_after: u64, said: Said) -> List {
    let uses = config.interval.saturating_mul(config.intervals.max(1));
    let mut relays = said.relays.all;
    relays.truncate(RELAYS);
    // The flag goes with what the relay says in the form that is listed.
    let serving = relays.iter().map(|relay| &relay.descriptor);
    let serving = serving
        .filter(|relay| relay.hsdir)
        .map(|relay| relay.identity);
    let hsdirs = serving.filter(|relay| said.relays.hsdirs.contains(relay));
    List {
        stage,
        valid_after,
        fresh_until: valid_after.saturating_add(config.interval.max(1)),
        valid_until: valid_after.saturating_add(uses.max(1)),
        params: said.params,
        shared_random: said.shared_random,
        hsdirs: hsdirs.collect(),
        relays,
    }
}

pub(super) fn is_majority(count: usize, known: usize) -> bool {
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

/// Those of the listed relays that a majority would have as HSDirs.
fn flagged(votes: &[&List], listed: &[SignedDescriptor], known: usize) -> BTreeSet<Key> {
    let identities = listed.iter().map(|relay| relay.descriptor.identity);
    let voters = |relay: &Key| {
        votes
            .iter()
            .filter(|vote| vote.hsdirs.contains(relay))
            .count()
    };
    identities
        .filter(|relay| is_majority(voters(relay), known))
        .collect()
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
