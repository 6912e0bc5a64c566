//! From votes to a list, in one way only: authorities that have the same votes work out the same bytes.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_wire::directory::{
    AUTHORITIES, Descriptor, Key, LIST, List, Opinion, RELAYS, RelayFlags, SharedRandomLines,
    Signature, SignedDescriptor, Stage, write_signatures,
};

use super::{
    Config,
    admission::{Place, place},
    shared_random,
};
use crate::{hsdirs, scanner::median};

/// The name of the parameter that bounds what is believed of a relay.
const CAP: &str = "bandwidth-cap";

/// What a list or a vote says of relays.
pub(super) struct Relays {
    /// They, by identity.
    pub(super) all: Vec<SignedDescriptor>,
    /// What is to be said of them.
    pub(super) opinions: BTreeMap<Key, Opinion>,
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
    let params = params(&votes, known);
    let cap = params.get("bandwidth-cap").copied().unwrap_or(u64::MAX);
    let all = relays(&votes, known);
    let opinions = all.iter().map(|relay| {
        let relay = &relay.descriptor;
        let opinion = opinion(&votes, relay, cap, known);
        (relay.identity, opinion)
    });
    let opinions = opinions.collect();
    let said = Said {
        params,
        shared_random,
        relays: Relays { all, opinions },
    };
    with_times(Stage::List, config, valid_after, said)
}

fn with_times(stage: Stage, config: &Config, valid_after: u64, said: Said) -> List {
    let uses = config.interval.saturating_mul(config.intervals.max(1));
    let mut relays = said.relays.all;
    relays.truncate(RELAYS);
    let opinions = relays.iter().map(|relay| {
        let relay = &relay.descriptor;
        let opinion = said.relays.opinions.get(&relay.identity).copied();
        let mut opinion = opinion.unwrap_or_default();
        // The flag goes with what the relay says in the form that is listed.
        if !relay.hsdir {
            opinion.flags = opinion.flags.without(RelayFlags::HSDIR);
        }
        (relay.identity, opinion)
    });
    let opinions = opinions.filter(|(_, opinion)| !opinion.is_nothing());
    let list = List {
        stage,
        valid_after,
        fresh_until: valid_after.saturating_add(config.interval.max(1)),
        valid_until: valid_after.saturating_add(uses.max(1)),
        params: said.params,
        shared_random: said.shared_random,
        opinions: opinions.collect(),
        relays,
    };
    fitting(list)
}

/// What can be read again, signed by as many authorities as there may be: the largest descriptors are left out until it can. So a few thousand that are as
/// large as may be cost relays that say much a place, their own or others, and not everybody the list.
fn fitting(mut list: List) -> List {
    let signature = BTreeMap::from([(Key([0; 32]), Signature([0; 64]))]);
    let signatures = write_signatures(&signature).len();
    let signatures = signatures.saturating_mul(AUTHORITIES);
    let whole = list.text().len().saturating_add(signatures);
    let mut excess = whole.saturating_sub(LIST);
    if excess == 0 {
        return list;
    }
    let sizes = list.relays.iter().map(|relay| {
        let identity = relay.descriptor.identity;
        let opinion = list.opinion(&identity).to_string().len();
        (relay.to_string().len().saturating_add(opinion), identity)
    });
    let mut sizes: Vec<_> = sizes.collect();
    sizes.sort_unstable();
    let mut left_out = BTreeSet::new();
    while excess > 0
        && let Some((size, relay)) = sizes.pop()
    {
        excess = excess.saturating_sub(size);
        left_out.insert(relay);
    }
    list.relays
        .retain(|relay| !left_out.contains(&relay.descriptor.identity));
    list.opinions.retain(|relay, _| !left_out.contains(relay));
    list
}

pub(super) fn is_majority(count: usize, known: usize) -> bool {
    count.saturating_mul(2) > known
}

/// Each relay that a majority has found at one place. Whatever else it says there is its own word, so any form will do; that it is at another place may be
/// only liars' word.
fn relays(votes: &[&List], known: usize) -> Vec<SignedDescriptor> {
    let mut said = BTreeMap::<Key, BTreeMap<Place<'_>, Vec<&SignedDescriptor>>>::new();
    for relay in votes.iter().flat_map(|vote| &vote.relays) {
        let places = said.entry(relay.descriptor.identity).or_default();
        let forms = places.entry(place(&relay.descriptor)).or_default();
        forms.push(relay);
    }
    let listed = said.into_values().filter_map(|places| {
        let mut places = places.into_values();
        form(&places.find(|forms| is_majority(forms.len(), known))?).cloned()
    });
    listed.take(RELAYS).collect()
}

/// A relay as most have it; between equals the one published last, then the one that is written first.
fn form<'a>(forms: &[&'a SignedDescriptor]) -> Option<&'a SignedDescriptor> {
    let mut said = BTreeMap::<String, (usize, &SignedDescriptor)>::new();
    for relay in forms {
        said.entry(relay.to_string()).or_insert((0, relay)).0 += 1;
    }
    let best = said
        .values()
        .rev()
        .max_by_key(|(count, relay)| (*count, relay.descriptor.published));
    best.map(|(_, relay)| *relay)
}

/// The flags that a majority would have a relay have, and the lower median of what all known authorities have measured it to, if a majority has: the others
/// count as the relay's own word, as far as that counts. So fewer liars than a majority give no weight to who was not measured, none below what all honest
/// authorities that measured have, and none above that, or above the relay's own word where an honest one has not measured.
fn opinion(votes: &[&List], relay: &Descriptor, cap: u64, known: usize) -> Opinion {
    let opinions = votes.iter().map(|vote| vote.opinion(&relay.identity));
    let voters = |flag| {
        let those = opinions.clone();
        those.filter(|opinion| opinion.flags.has(flag)).count()
    };
    let flags = RelayFlags::NAMES.into_iter().map(|(flag, _)| flag);
    let flags = flags.filter(|flag| is_majority(voters(*flag), known));
    let measured = opinions.clone().filter_map(|opinion| opinion.measured);
    let mut measured: Vec<_> = measured.collect();
    let enough = is_majority(measured.len(), known);
    let all = known.max(measured.len());
    measured.resize(all, relay.bandwidth.min(cap));
    Opinion {
        flags: flags.fold(RelayFlags::NONE, RelayFlags::with),
        measured: enough.then(|| median(measured)).flatten(),
    }
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
    agreed
        .filter_map(|(name, numbers)| Some((name.clone(), median(numbers)?)))
        .collect()
}
