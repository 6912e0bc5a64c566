//! One authority: gathers descriptors, votes at fixed times, and signs what a majority of the known authorities voted for. A machine without I/O
//! or clock: the binary calls [`Authority::tick`] when [`Authority::next`] says, asks others for what [`Authority::wants`], and hands in what they say.
//!
//! For each period that begins at a multiple of the interval, `P`, with a voting time `v`: at `P - 2v` the own vote is made, and votes are exchanged; at
//! `P - v` each authority works out the list from the votes that it has, signs it, and signatures are exchanged; from `P` on a list with enough of
//! them is published. An authority signs one list a period, and none in a period that it did not begin with: so two lists for the
//! same time with a majority of signatures need authorities that lie.

mod admission;
mod period;
mod tally;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;
use hoplite_crypto::SigningKey;
use hoplite_wire::directory::{Key, Signature, SignedDescriptor, SignedList};

use crate::{Refused, Trust, check_descriptor, check_list};

pub use admission::{Admission, Rejected};
use period::Period;

/// How an authority works. All times are seconds.
#[derive(Debug)]
pub struct Config {
    /// Its secret key.
    pub key: SigningKey,
    /// All authorities, this one among them, and how many must sign.
    pub trust: Trust,
    /// A list is made for each multiple of this since 1970.
    pub interval: u64,
    /// How long votes are exchanged, and then as long signatures; at most a quarter of the interval.
    pub voting: u64,
    /// How many intervals a list may be used.
    pub intervals: u64,
    /// More than this is not believed of any relay, in octets a second.
    pub bandwidth_cap: u64,
    /// Which descriptors are taken.
    pub admission: Admission,
}

/// What an authority wants to be told by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// By whom.
    pub from: Key,
    /// What to get there.
    pub path: String,
    /// Whether it is a vote; else a list.
    pub is_vote: bool,
}

/// What has happened, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The own vote was made, with so many relays.
    Voted(usize),
    /// A list was worked out from so many votes, with so many relays, and signed.
    Signed {
        /// Votes that were there.
        votes: usize,
        /// Relays of the list.
        relays: usize,
    },
    /// A list is published, with so many signatures.
    Published(usize),
    /// A period ends without a list: so many signatures for ours, so many authorities with another.
    Failed {
        /// Signatures for what was worked out here.
        signatures: usize,
        /// Authorities that signed something else.
        others: usize,
    },
    /// An authority has signed two different votes for one time: neither counts.
    TwoFaced,
}

/// The machine.
#[derive(Debug)]
pub struct Authority {
    config: Config,
    started: u64,
    pool: BTreeMap<Key, SignedDescriptor>,
    period: Option<Period>,
    published: Option<(SignedList, Bytes)>,
}

impl Authority {
    /// An authority that begins now, with what it gathered before and the last list that it published.
    pub fn new(config: Config, now: u64) -> Self {
        Self {
            config,
            started: now,
            pool: BTreeMap::new(),
            period: None,
            published: None,
        }
    }

    /// Takes up a list that was published before a restart.
    ///
    /// # Errors
    /// Why it is of no use any more.
    pub fn resume(&mut self, text: &str, now: u64) -> Result<(), Refused> {
        let list = check_list(text, &self.config.trust, now)?;
        self.published = Some((list, Bytes::copy_from_slice(text.as_bytes())));
        Ok(())
    }

    /// Takes a relay's descriptor in; what is kept of it is to be stored.
    ///
    /// # Errors
    /// [`Rejected`], in words for its operator.
    pub fn upload(&mut self, text: &str, now: u64) -> Result<Key, Rejected> {
        let signed = check_descriptor(text).map_err(Rejected::Refused)?;
        let (admission, skew) = (&self.config.admission, self.config.trust.skew);
        admission.admit(&signed.descriptor, &self.pool, now, skew)?;
        let identity = signed.descriptor.identity;
        self.pool.insert(identity, signed);
        Ok(identity)
    }

    /// Forgets relays that have not said anything for too long; those are to be forgotten in the store too.
    pub fn forget(&mut self, now: u64) -> Vec<Key> {
        let admission = &self.config.admission;
        let old = |signed: &SignedDescriptor| admission.is_old(&signed.descriptor, now);
        let gone = self.pool.extract_if(.., |_, signed| old(signed));
        gone.map(|(identity, _)| identity).collect()
    }

    /// How many relays are known.
    pub fn relays(&self) -> usize {
        self.pool.len()
    }

    /// The list to be handed out.
    pub fn list(&self) -> Option<Bytes> {
        self.published.as_ref().map(|(_, text)| text.clone())
    }

    /// A vote that we have, our own or another's.
    pub fn vote(&self, valid_after: u64, voter: &Key) -> Option<String> {
        let period = self.at(valid_after)?;
        Some(period.votes.get(voter)?.to_string())
    }

    /// The list that we have signed for a period, with the signatures that we have.
    pub fn signed(&self, valid_after: u64) -> Option<String> {
        let period = self.at(valid_after)?;
        Some(period.made.as_ref()?.to_string())
    }

    fn at(&self, valid_after: u64) -> Option<&Period> {
        let period = self.period.as_ref();
        period.filter(|period| period.valid_after == valid_after)
    }

    /// The period whose votes or signatures are exchanged now.
    fn due(&self, now: u64) -> u64 {
        let (interval, lead) = (self.config.interval.max(1), self.lead());
        let number = now.saturating_add(lead) / interval;
        number.saturating_mul(interval)
    }

    /// Voting begins so long before the period.
    fn lead(&self) -> u64 {
        self.config.voting.saturating_mul(2)
    }

    /// When to call [`Self::tick`] again at the latest.
    pub fn next(&self, now: u64) -> u64 {
        let (due, voting) = (self.due(now), self.config.voting);
        let begins = due.saturating_sub(self.lead());
        let coming = begins.saturating_add(self.config.interval);
        let steps = [due.saturating_sub(voting), due, coming];
        let next = steps.into_iter().filter(|step| *step > now).min();
        next.unwrap_or(coming)
    }

    /// Does what is to be done now.
    pub fn tick(&mut self, now: u64) -> Vec<Event> {
        let mut events = Vec::new();
        let due = self.due(now);
        let before = self.period.as_ref().map(|period| period.valid_after);
        let published = self
            .published
            .as_ref()
            .map(|(list, _)| list.list.valid_after);
        let begins = due.saturating_sub(self.lead());
        if before.max(published) < Some(due) && begins >= self.started {
            events.extend(self.period.as_ref().and_then(Period::failure));
            events.extend(self.begin(due));
        }
        if let Some(period) = &mut self.period {
            let voting = self.config.voting;
            if now >= period.valid_after.saturating_sub(voting) {
                events.extend(period.make(&self.config));
            }
            if let Some(list) = period.publish(&self.config.trust, now) {
                events.push(Event::Published(list.signatures.len()));
                let text = list.to_string().into();
                self.published = Some((list, text));
            }
        }
        events
    }

    fn begin(&mut self, due: u64) -> Vec<Event> {
        let vote = tally::vote(&self.config, due, self.pool.values().cloned());
        let relays = vote.list.relays.len();
        let own = Key(self.config.key.public());
        self.period = Some(Period::new(due, own, vote));
        vec![Event::Voted(relays)]
    }

    /// What to ask others for now; asking once more does no harm.
    pub fn wants(&self, now: u64) -> Vec<Want> {
        let Some(period) = &self.period else {
            return Vec::new();
        };
        let own = Key(self.config.key.public());
        let others = self
            .config
            .trust
            .authorities
            .iter()
            .filter(|key| **key != own);
        let others: Vec<Key> = others.copied().collect();
        match now < period.valid_after.saturating_sub(self.config.voting) {
            true => period.votes_wanted(&others),
            false => period.signatures_wanted(&others),
        }
    }

    /// What an authority has answered to such a question.
    ///
    /// # Errors
    /// Why it does not count; a vote or list for another time, or from nobody we know, is [`Refused::Forged`].
    pub fn heard(&mut self, want: &Want, text: &str, now: u64) -> Result<Vec<Event>, Refused> {
        let Some(period) = &mut self.period else {
            return Ok(Vec::new());
        };
        if !want.is_vote {
            period.take_signatures(text, &self.config.trust)?;
            return Ok(self.tick(now));
        }
        let is_late = now >= period.valid_after.saturating_sub(self.config.voting);
        match is_late {
            true => Ok(Vec::new()),
            false => period.take_vote(text, &self.config),
        }
    }
}

/// This authority's signature under `text`.
fn sign(key: &SigningKey, text: &str) -> (Key, Signature) {
    (Key(key.public()), Signature(key.sign(text.as_bytes())))
}
