//! Who asks whom for the directory, when, and how much is answered: one event after the other, without a network between them. A question takes no time, and
//! what is counted is what answers have behind their heads.
//!
//! With lists of ours: who has none asks all authorities, and so does a relay that keeps lists; who has one asks three relays that keep it, and the
//! authorities where none of these has a later; always one for all of it or for the difference, the others for what makes theirs of that. With Tor's consensuses, as C tor does it: caches ask one authority, all others ask a cache, from the first.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{
    HOUR, Settings, Totals, Way,
    consensuses::Consensuses,
    lifetime,
    lists::Lists,
    population::{Population, Relay},
    valid_after,
};
use crate::random::Random;

/// Caches that are asked for a list at once.
const CACHES: usize = 3;
/// Directories of C tor's that are asked one after the other.
const TRIES: usize = 3;
/// Who has asked in vain waits so long.
const PAUSE: u64 = 600;

/// What is there to be given.
#[derive(Debug)]
pub(super) struct Documents {
    /// Of ours.
    pub(super) lists: Lists,
    /// Of Tor's.
    pub(super) consensuses: Consensuses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Client,
    Relay,
    Cache,
}

/// A relay or a client, with its directory.
#[derive(Debug)]
struct Node {
    role: Role,
    /// From when to when it is there.
    from: u64,
    until: u64,
    /// The hour of what it has.
    has: Option<usize>,
    /// The hour of the first that it has had.
    first: usize,
    random: Random,
}

impl Node {
    fn relay(relay: &Relay, number: usize, settings: &Settings, way: Way) -> Self {
        let mut random = Random::new(settings.seed, "relay's questions", number);
        let was_there = relay.from == 0;
        let begins = valid_after(relay.from);
        Self {
            role: if is_cache(relay, way) {
                Role::Cache
            } else {
                Role::Relay
            },
            // Who is listed has been there within the hour before.
            from: begins.saturating_sub(if was_there { 0 } else { random.below(HOUR) }),
            until: valid_after(relay.until),
            has: was_there.then_some(0),
            first: 0,
            random,
        }
    }

    fn client(number: usize, settings: &Settings) -> Self {
        let mut random = Random::new(settings.seed, "client's questions", number);
        let run = settings.end().saturating_sub(valid_after(0));
        Self {
            role: Role::Client,
            from: valid_after(0).saturating_add(random.below(run / 2)),
            until: settings.end(),
            has: None,
            first: 0,
            random,
        }
    }

    fn is_there(&self, now: u64) -> bool {
        (self.from..self.until).contains(&now)
    }
}

/// Whether it keeps what others ask for in this way.
fn is_cache(relay: &Relay, way: Way) -> bool {
    if way.is_tor() {
        relay.keeps_consensuses()
    } else {
        relay.keeps_lists && way != Way::ListsOfAuthorities
    }
}

/// What one question has brought.
#[derive(Clone, Copy, Debug, Default)]
struct Answer {
    /// The hour of the newest.
    newest: Option<usize>,
    of_authorities: u64,
    of_caches: u64,
}

/// A run.
pub(super) struct Traffic<'a> {
    settings: &'a Settings,
    way: Way,
    documents: &'a mut Documents,
    /// Relays first, by their numbers in the population.
    nodes: Vec<Node>,
    /// Relays that keep the directory, as each hour's list says.
    caches: Vec<Vec<usize>>,
    totals: Totals,
}

impl<'a> Traffic<'a> {
    pub(super) fn new(
        population: &Population,
        documents: &'a mut Documents,
        settings: &'a Settings,
        way: Way,
    ) -> Self {
        let relays = population.relays.iter().enumerate();
        let relays = relays.map(|(number, relay)| Node::relay(relay, number, settings, way));
        let clients = (0..settings.clients).map(|number| Node::client(number, settings));
        let keeps = |number: &usize| {
            let relay = population.relays.get(*number);
            relay.is_some_and(|relay| is_cache(relay, way))
        };
        let caches = population.hours.iter().map(|listed| {
            let listed = listed.iter().map(|one| one.relay);
            listed.filter(keeps).collect()
        });
        Self {
            settings,
            way,
            documents,
            nodes: relays.chain(clients).collect(),
            caches: caches.collect(),
            totals: Totals::new(settings.hours),
        }
    }

    /// Until the end.
    pub(super) fn run(mut self) -> Totals {
        let mut due = BinaryHeap::new();
        for number in 0..self.nodes.len() {
            due.extend(self.begins(number).map(|at| Reverse((at, number))));
        }
        while let Some(Reverse((now, number))) = due.pop() {
            if now >= self.settings.end() {
                break;
            }
            due.extend(self.ask(now, number).map(|next| Reverse((next, number))));
        }
        for node in self.nodes.iter().filter(|node| node.role == Role::Client) {
            let there = node.until.saturating_sub(node.from);
            self.totals.client_seconds = self.totals.client_seconds.saturating_add(there);
        }
        self.totals
    }

    /// When it asks first.
    fn begins(&mut self, number: usize) -> Option<u64> {
        let node = self.nodes.get(number)?;
        match node.has {
            Some(hour) => self.renews(number, hour),
            None => Some(node.from),
        }
    }

    /// When who has the document of an hour asks for the next.
    fn renews(&mut self, number: usize, hour: usize) -> Option<u64> {
        let lifetime = lifetime(hour);
        let node = self.nodes.get_mut(number)?;
        let random = &mut |below| node.random.below(below);
        Some(match (self.way.is_tor(), node.role) {
            (false, Role::Cache) => lifetime.next_list_of_cache(random),
            (false, _) => lifetime.next_list(random),
            (true, Role::Cache) => lifetime.next_consensus_of_cache(random),
            (true, _) => lifetime.next_consensus(random),
        })
    }

    /// One asks; when it does again, if it is there then.
    fn ask(&mut self, now: u64, number: usize) -> Option<u64> {
        let (role, has) = self
            .nodes
            .get(number)
            .filter(|node| node.is_there(now))
            .map(|node| (node.role, node.has))?;
        let answer = if self.way.is_tor() {
            self.consensus(now, number, role, has)
        } else {
            self.list(now, number, role, has)
        };
        self.totals.count(
            self.settings.hour(now),
            role == Role::Client,
            has.is_none(),
            (answer.of_authorities, answer.of_caches),
        );
        let Some(newest) = answer
            .newest
            .filter(|newest| has.is_none_or(|has| *newest > has))
        else {
            self.totals.in_vain = self.totals.in_vain.saturating_add(1);
            return Some(now.saturating_add(PAUSE));
        };
        let node = self.nodes.get_mut(number)?;
        node.first = if has.is_none() { newest } else { node.first };
        node.has = Some(newest);
        self.renews(number, newest)
    }

    /// For a list of ours.
    fn list(&mut self, now: u64, number: usize, role: Role, has: Option<usize>) -> Answer {
        let mut answer = Answer::default();
        let asks_caches = self.way != Way::ListsOfAuthorities && role != Role::Cache;
        if let Some(hour) = has.filter(|_| asks_caches) {
            let drawn = self.drawn(number, hour, CACHES).into_iter();
            let kept: Vec<_> = drawn.filter_map(|cache| self.kept(cache, now)).collect();
            (answer.of_caches, answer.newest) = self.lists(has, &kept);
        }
        if answer.newest <= has {
            let all = vec![(self.settings.hour(now), 0); self.settings.authorities];
            (answer.of_authorities, answer.newest) = self.lists(has, &all);
        }
        answer
    }

    /// What those answer together who have the lists of these hours, and had the first of those; and the latest. As `ask_for_list` asks.
    fn lists(&self, has: Option<usize>, sources: &[(usize, usize)]) -> (u64, Option<usize>) {
        let tells = self.way != Way::WholeLists;
        let (mut bytes, mut found, mut newest) = (0_u64, None, None);
        for (theirs, first) in sources {
            // Who keeps lists has had none before its first, to tell the difference to.
            let known = found.into_iter().chain(has.filter(|_| tells));
            let known: Vec<_> = known
                .filter(|hour| (*first..=*theirs).contains(hour))
                .collect();
            bytes = bytes.saturating_add(self.documents.lists.difference(&known, *theirs));
            found = found.or(Some(*theirs));
            newest = newest.max(Some(*theirs));
        }
        (bytes, newest)
    }

    /// For a consensus, and what describes its relays.
    fn consensus(&mut self, now: u64, number: usize, role: Role, has: Option<usize>) -> Answer {
        if role == Role::Cache {
            let newest = self.settings.hour(now);
            return Answer {
                newest: Some(newest),
                of_authorities: self.consensus_bytes(has, newest, 0),
                of_caches: 0,
            };
        }
        // Who begins asks one of the fallback directories that are built in: relays that are there.
        let listed = has.unwrap_or_else(|| self.settings.hour(now));
        for cache in self.drawn(number, listed, TRIES) {
            let Some((theirs, first)) = self
                .kept(cache, now)
                .filter(|(theirs, _)| has.is_none_or(|has| *theirs > has))
            else {
                // Nobody answers, or that there is no later one.
                continue;
            };
            return Answer {
                newest: Some(theirs),
                of_authorities: 0,
                of_caches: self.consensus_bytes(has, theirs, first),
            };
        }
        Answer::default()
    }

    /// Of a directory that has had consensuses from the hour `first` on.
    fn consensus_bytes(&mut self, has: Option<usize>, newest: usize, first: usize) -> u64 {
        let consensuses = &mut self.documents.consensuses;
        let from = has.filter(|has| self.way == Way::ConsensusDifferences && *has >= first);
        let certificates = if has.is_none() {
            consensuses.certificates()
        } else {
            0
        };
        let consensus = consensuses.consensus(from, newest);
        let described = consensuses.microdescriptors_since(has, newest);
        consensus
            .saturating_add(described)
            .saturating_add(certificates)
    }

    /// So many of the caches of an hour's list, one each.
    fn drawn(&mut self, number: usize, hour: usize, count: usize) -> Vec<usize> {
        let (Some(caches), Some(node)) = (self.caches.get(hour), self.nodes.get_mut(number)) else {
            return Vec::new();
        };
        let mut drawn = Vec::with_capacity(count);
        let most = count.min(caches.len());
        let bound = u64::try_from(caches.len()).unwrap_or(u64::MAX);
        while drawn.len() < most {
            let at = usize::try_from(node.random.below(bound)).unwrap_or(0);
            let one = caches.get(at).copied().filter(|one| !drawn.contains(one));
            drawn.extend(one);
        }
        drawn
    }

    /// What a cache has, and the first that it has had, if it is there and has any.
    fn kept(&self, cache: usize, now: u64) -> Option<(usize, usize)> {
        let node = self.nodes.get(cache).filter(|node| node.is_there(now))?;
        Some((node.has?, node.first))
    }
}
