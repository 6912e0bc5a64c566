//! The votes and signatures for one list.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_crypto::signing::is_signed;
use hoplite_wire::directory::{Key, SignedList, Stage};

use super::{Config, Event, Want, sign, tally};
use crate::{Refused, Trust, check::is_own};

/// One list in the making.
#[derive(Debug)]
pub(super) struct Period {
    pub(super) valid_after: u64,
    /// By voter; each is checked.
    pub(super) votes: BTreeMap<Key, SignedList>,
    /// What we have signed, with the signatures that others gave to the same.
    pub(super) made: Option<SignedList>,
    /// Who signed two votes.
    two_faced: BTreeSet<Key>,
    /// Who signed another list.
    others: BTreeSet<Key>,
    is_published: bool,
}

impl Period {
    pub(super) fn new(valid_after: u64, own: Key, vote: SignedList) -> Self {
        Self {
            valid_after,
            votes: BTreeMap::from([(own, vote)]),
            made: None,
            two_faced: BTreeSet::new(),
            others: BTreeSet::new(),
            is_published: false,
        }
    }

    /// Each vote that is missing, from its voter and from everybody else: one of them may have got it.
    pub(super) fn votes_wanted(&self, others: &[Key]) -> Vec<Want> {
        let missing = others
            .iter()
            .filter(|voter| !self.votes.contains_key(voter));
        let asked = missing.flat_map(|voter| others.iter().map(move |from| (from, voter)));
        let want = |(from, voter): (&Key, &Key)| Want {
            from: *from,
            path: format!("/hoplite/vote/{}/{voter}", self.valid_after),
            is_vote: true,
        };
        asked.map(want).collect()
    }

    pub(super) fn signatures_wanted(&self, others: &[Key]) -> Vec<Want> {
        let Some(made) = &self.made else {
            return Vec::new();
        };
        let missing = others
            .iter()
            .filter(|key| !made.signatures.contains_key(key));
        let want = |from: &Key| Want {
            from: *from,
            path: format!("/hoplite/list/{}", self.valid_after),
            is_vote: false,
        };
        missing.map(want).collect()
    }

    /// Takes a vote of a known authority for this period; a second, different one makes both void.
    pub(super) fn take_vote(&mut self, text: &str, config: &Config) -> Result<Vec<Event>, Refused> {
        let vote = SignedList::parse(text, Stage::Vote)?;
        let needed = 1;
        let good = config.trust.count(&vote);
        let is_ours = tally::has_times(&vote.list, config, self.valid_after);
        let voter = vote.signatures.keys().next().copied();
        let Some(voter) =
            voter.filter(|_| good == needed && vote.signatures.len() == needed && is_ours)
        else {
            return Err(Refused::Forged { good, needed });
        };
        if !vote.list.relays.iter().all(is_own) {
            return Err(Refused::Unsigned);
        }
        let other = self
            .votes
            .get(&voter)
            .is_some_and(|known| known.list != vote.list);
        if other && self.two_faced.insert(voter) {
            return Ok(vec![Event::TwoFaced]);
        }
        self.votes.entry(voter).or_insert(vote);
        Ok(Vec::new())
    }

    /// Works the list out and signs it, once.
    pub(super) fn make(&mut self, config: &Config) -> Option<Event> {
        if self.made.is_some() {
            return None;
        }
        let votes = self
            .votes
            .iter()
            .filter(|(voter, _)| !self.two_faced.contains(voter));
        let votes: Vec<_> = votes.map(|(_, vote)| &vote.list).collect();
        let list = tally::agreed(&votes, config, self.valid_after);
        let (votes, relays) = (votes.len(), list.relays.len());
        let signatures = BTreeMap::from([sign(&config.key, &list.text())]);
        self.made = Some(SignedList { list, signatures });
        Some(Event::Signed { votes, relays })
    }

    /// Takes the known authorities' signatures under a list that is the same as ours.
    pub(super) fn take_signatures(&mut self, text: &str, trust: &Trust) -> Result<(), Refused> {
        let theirs = SignedList::parse(text, Stage::List)?;
        let body = theirs.list.text();
        let known = theirs.signatures.iter();
        let known = known.filter(|(key, _)| trust.authorities.contains(key));
        let good: Vec<_> = known
            .filter(|(key, signature)| is_signed(&key.0, body.as_bytes(), &signature.0))
            .map(|(key, signature)| (*key, *signature))
            .collect();
        match &mut self.made {
            _ if good.is_empty() || theirs.list.valid_after != self.valid_after => {
                Err(Refused::Forged {
                    good: good.len(),
                    needed: 1,
                })
            }
            Some(made) if made.list == theirs.list => {
                made.signatures.extend(good);
                Ok(())
            }
            _ => {
                self.others.extend(good.into_iter().map(|(key, _)| key));
                Ok(())
            }
        }
    }

    /// The list, once, when it has begun and has enough signatures.
    pub(super) fn publish(&mut self, trust: &Trust, now: u64) -> Option<SignedList> {
        let made = self.made.as_ref()?;
        let enough = made.signatures.len() >= trust.threshold;
        if self.is_published || !enough || now < self.valid_after {
            return None;
        }
        self.is_published = true;
        Some(made.clone())
    }

    /// What to say if it ends without a list.
    pub(super) fn failure(&self) -> Option<Event> {
        let made = self.made.as_ref();
        let event = Event::Failed {
            signatures: made.map_or(0, |made| made.signatures.len()),
            others: self.others.len(),
        };
        (!self.is_published).then_some(event)
    }
}
