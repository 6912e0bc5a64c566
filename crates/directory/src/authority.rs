//! One authority: gathers descriptors, votes at fixed times, and signs what a majority of the known authorities voted for. A machine without I/O
//! or clock: the binary calls [`Authority::tick`] when [`Authority::next`] says, asks others for what [`Authority::wants`], and hands in what they say.
//!
//! For each period that begins at a multiple of the interval, `P`, with a voting time `v`: at `P - 2v` the own vote is made, authorities commit
//! to theirs and then exchange them; at `P - v` each works out the list from the votes that count, signs it, and signatures are exchanged; from
//! `P` on a list with enough of them is published. Which votes count, all honest authorities decide alike: `authority/period.rs` says how. An authority
//! signs one vote and one list a period, after a restart too (`authority/promise.rs`), and none in a period that it did not begin with.

mod admission;
mod flags;
mod period;
mod promise;
mod shared_random;
mod tally;
#[cfg(test)]
mod tests;
mod uptime;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use bytes::Bytes;
use hoplite_crypto::{Proof, SigningKey};
use hoplite_wire::{
    directory::{
        COMMITMENTS, Key, LIST, Opinion, RelayFlags, Signature, SignedDescriptor, SignedList, Stage,
    },
    tor::bandwidth_file::BandwidthFile,
};

use crate::{
    Refused, Trust,
    check::{check_descriptor, check_list, is_by_holder},
};

use admission::Pool;
pub use admission::{Admission, Families, Probe, Rejected, Settled, Taken};
pub use flags::FlagRules;
use flags::Running;
use period::Period;
pub use period::{Checked, Unchecked};
pub use promise::{Document, LastSigned, Promise, Unreadable};
use tally::Relays;
pub use uptime::Uptimes;

/// An older bandwidth file is not believed, as with C tor.
const MEASURED: u64 = 3 * 86_400;

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
    /// More than this is not believed of any relay, in bytes a second.
    pub bandwidth_cap: u64,
    /// Minutes of a time period of onion services, and of a run of a shared random value; 0: the list says nothing for onion services.
    pub hsdir_interval: u64,
    /// For how long a relay must have passed its tests to be an HSDir.
    pub hsdir_uptime: u64,
    /// Which descriptors are taken.
    pub admission: Admission,
    /// Which flags relays are given.
    pub flags: FlagRules,
}

/// What an authority wants to be told by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// By whom.
    pub from: Key,
    /// What to get there.
    pub path: String,
    /// What that is.
    pub what: Wanted,
}

/// What is asked of another authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// What it knows of commitments.
    Commitments,
    /// A vote, its own or another's.
    Vote,
    /// The list that it has signed.
    Signatures,
}

impl Wanted {
    /// The most bytes of an answer.
    pub fn most(self) -> usize {
        match self {
            Self::Commitments => COMMITMENTS,
            Self::Vote | Self::Signatures => LIST,
        }
    }
}

/// What an answer came to.
#[derive(Debug)]
pub enum Heard {
    /// All is done.
    Done(Vec<Event>),
    /// Beside that a vote is to be checked, in a thread that may block, and handed to [`Authority::checked`].
    Check(Vec<Event>, Unchecked),
}

/// What has happened, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The own vote was made, with this many relays.
    Voted(usize),
    /// A list was worked out from this many votes, with this many relays, and signed.
    Signed {
        /// Votes that were there.
        votes: usize,
        /// Relays of the list.
        relays: usize,
    },
    /// A list is published, with this many signatures.
    Published(usize),
    /// A period ends without a list: this many signatures for ours, this many authorities with another.
    Failed {
        /// Signatures for what was worked out here.
        signatures: usize,
        /// Authorities that signed something else.
        others: usize,
    },
    /// Too few votes count for a list that enough authorities would sign.
    TooFew {
        /// Votes that count.
        votes: usize,
        /// How many there must be.
        needed: usize,
    },
    /// The authority of this number in the configuration, from 1, has committed to two different votes for one time: neither is to count.
    TwoFaced(usize),
    /// Nothing is signed: this authority has signed another vote or list for this time already, or one for this later time.
    Promised(u64),
    /// Nothing is signed: that it is could not be kept.
    NotKept,
}

/// The machine.
#[derive(Debug)]
pub struct Authority {
    config: Config,
    promise: Promise,
    started: u64,
    pool: Pool,
    /// The last period that has begun, with a vote of our own or without.
    begun: Option<u64>,
    period: Option<Period>,
    published: Option<(SignedList, Bytes)>,
    uptimes: Uptimes,
    /// What relays were measured to carry, in bytes a second, and until when that counts.
    measured: (BTreeMap<Key, u64>, u64),
    /// The flags that were voted for last.
    had: BTreeMap<Key, RelayFlags>,
}

impl Authority {
    /// An authority that begins now, with what it has promised before.
    pub fn new(config: Config, promise: Promise, now: u64) -> Self {
        Self {
            config,
            promise,
            started: now,
            pool: Pool::default(),
            begun: None,
            period: None,
            published: None,
            uptimes: Uptimes::default(),
            measured: (BTreeMap::new(), 0),
            had: BTreeMap::new(),
        }
    }

    /// Takes up for how long relays were there before a restart.
    pub fn remember(&mut self, uptimes: Uptimes) {
        self.uptimes = uptimes;
    }

    /// For how long relays were there: to be kept.
    pub fn uptimes(&self) -> &Uptimes {
        &self.uptimes
    }

    /// What a scanner has measured counts from now on, instead of what counted before, and for three days from when the file was made.
    pub fn measured(&mut self, file: &BandwidthFile) {
        let voted = file.relays.iter().filter(|relay| relay.votes);
        let bandwidths = voted.filter_map(|relay| {
            let bandwidth = relay.bandwidth.saturating_mul(1000);
            Some((Key(*relay.relay.ed25519()?), bandwidth))
        });
        self.measured = (
            bandwidths.collect(),
            file.timestamp.saturating_add(MEASURED),
        );
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

    /// Takes in a relay's descriptor that was handed in from this address, with what proves its pin; what is to be done in the store. It is
    /// not voted for before its addresses have passed a test.
    ///
    /// # Errors
    /// [`Rejected`], in words for its operator.
    pub fn upload(
        &mut self,
        text: &str,
        proof: Option<&Proof>,
        from: IpAddr,
        now: u64,
    ) -> Result<Taken, Rejected> {
        let signed = check_descriptor(text).map_err(Rejected::Refused)?;
        if is_by_holder(&signed, proof) {
            self.take(signed, Some(from), now)
        } else {
            Err(Rejected::Unproven)
        }
    }

    /// Takes up a descriptor that was stored before a restart, and since when its relay had passed its tests: its pin was proven when it came.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn restore(&mut self, text: &str, since: Option<u64>, now: u64) -> Result<Taken, Rejected> {
        let signed = check_descriptor(text).map_err(Rejected::Refused)?;
        let identity = signed.descriptor.identity;
        let taken = self.take(signed, None, now)?;
        self.pool.has_passed(&identity, since);
        Ok(taken)
    }

    fn take(
        &mut self,
        signed: SignedDescriptor,
        from: Option<IpAddr>,
        now: u64,
    ) -> Result<Taken, Rejected> {
        let (rules, skew) = (&self.config.admission, self.config.trust.skew);
        self.pool.take(signed, from, rules, now, skew)
    }

    /// What is to be tested now, as far as tests are not under way; each is to be answered with [`Self::probed`].
    pub fn probes(&mut self, now: u64) -> Vec<Probe> {
        self.pool.probes(&self.config.admission, now)
    }

    /// Whether all that was tested was the relay's. Gives what is to be done in the store.
    pub fn probed(&mut self, probe: &Probe, passed: bool, now: u64) -> Option<Settled> {
        let settled = self.pool.probed(probe, passed, &self.config.admission, now);
        let identity = &probe.relay.identity;
        if passed && self.pool.is_tested(identity) {
            self.uptimes.is_there(identity, now);
        }
        settled
    }

    /// Forgets relays that have not said anything, or were not reached, for too long; those are to be forgotten in the store too.
    pub fn forget(&mut self, now: u64) -> Vec<Key> {
        let running: BTreeSet<_> = self
            .pool
            .running(&self.config.admission, now)
            .map(|relay| relay.identity)
            .collect();
        self.uptimes.only(|relay| running.contains(relay), now);
        self.pool.forget(&self.config.admission, now)
    }

    /// What is to be said of relays that are running.
    fn opinions(&mut self, at: u64) -> BTreeMap<Key, Opinion> {
        let config = &self.config;
        let (measured, until) = &self.measured;
        let measured = |relay: &Key| measured.get(relay).copied().filter(|_| *until >= at);
        let running = self.pool.running(&config.admission, at).map(|relay| {
            let identity = relay.identity;
            let said = relay.bandwidth.min(config.bandwidth_cap);
            Running {
                identity,
                bandwidth: measured(&identity).map_or(said, |measured| measured.min(said)),
                record: self.uptimes.record(&identity, at),
                is_ingress: relay.roles.ingress,
                is_exit: relay.roles.egress,
            }
        });
        let running: Vec<_> = running.collect();
        let hsdirs = self.pool.hsdirs(config.hsdir_uptime, at);
        let flags = flags::flags(&running, &config.flags, &self.had);
        let opinion = |relay: &Key| Opinion {
            flags: flags
                .get(relay)
                .copied()
                .unwrap_or_default()
                .with_if(RelayFlags::HSDIR, hsdirs.contains(relay)),
            measured: measured(relay),
        };
        let tested = self.pool.tested().map(|relay| relay.descriptor.identity);
        let opinions = tested.map(|relay| (relay, opinion(&relay))).collect();
        self.had = flags;
        opinions
    }

    /// How many relays are known, tested or not.
    pub fn relays(&self) -> usize {
        self.pool.len()
    }

    /// Whether this relay has passed its test: it goes before those that have not.
    pub fn is_tested(&self, relay: &Key) -> bool {
        self.pool.is_tested(relay)
    }

    /// The list to be handed out.
    pub fn list(&self) -> Option<Bytes> {
        self.published.as_ref().map(|(_, text)| text.clone())
    }

    /// A vote that we have, our own or another's; none as long as authorities commit to theirs.
    pub fn vote(&self, valid_after: u64, voter: &Key, now: Duration) -> Option<Bytes> {
        self.at(valid_after)?.vote(voter, now)
    }

    /// What we know of commitments to votes.
    pub fn commitments(&self, valid_after: u64) -> Option<String> {
        Some(self.at(valid_after)?.commitments())
    }

    /// The list that we have signed for a period, with the signatures that we have.
    pub fn signed(&self, valid_after: u64) -> Option<Bytes> {
        self.at(valid_after)?.signed()
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

    /// When to call [`Self::tick`] again at the latest. Times of voting are since 1970.
    pub fn next(&self, now: Duration) -> Duration {
        let (due, voting) = (self.due(now.as_secs()), self.config.voting);
        let begins = due.saturating_sub(self.lead());
        let coming = begins.saturating_add(self.config.interval);
        let steps = [due.saturating_sub(voting), due, coming].map(Duration::from_secs);
        let slices = self.period.iter().flat_map(Period::steps);
        let next = steps.into_iter().chain(slices).filter(|step| *step > now);
        next.min().unwrap_or_else(|| Duration::from_secs(coming))
    }

    /// Does what is to be done now.
    pub fn tick(&mut self, now: Duration) -> Vec<Event> {
        let mut events = Vec::new();
        let due = self.due(now.as_secs());
        let published = self
            .published
            .as_ref()
            .map(|(list, _)| list.list.valid_after);
        let begins = due.saturating_sub(self.lead());
        if self.begun.max(published) < Some(due) && begins >= self.started {
            events.extend(self.period.as_ref().and_then(Period::failure));
            events.extend(self.begin(due));
        }
        if let Some(period) = &mut self.period {
            events.extend(period.make(&self.config, &mut self.promise, now));
            if let Some((list, text)) = period.publish(&self.config.trust, now) {
                events.push(Event::Published(list.signatures.len()));
                self.published = Some((list, text));
            }
        }
        events
    }

    fn begin(&mut self, due: u64) -> Vec<Event> {
        let relays = Relays {
            all: self.pool.tested().cloned().collect(),
            opinions: self.opinions(due),
        };
        let last = self.published.as_ref().map(|(list, _)| &list.list);
        let vote = tally::vote(&self.config, last, due, relays);
        self.begun = Some(due);
        self.period = None;
        if let Err(event) = self.promise.give(Stage::Vote, due, &vote.text()) {
            return vec![event];
        }
        let relays = vote.relays.len();
        self.period = Some(Period::new(&self.config, due, vote));
        vec![Event::Voted(relays)]
    }

    /// What to ask others for now; asking once more does no harm, and is needed: others learn of more.
    pub fn wants(&self, now: Duration) -> Vec<Want> {
        let Some(period) = &self.period else {
            return Vec::new();
        };
        let own = Key(self.config.key.public());
        let others = self.config.trust.authorities.iter();
        let others: Vec<Key> = others.filter(|key| **key != own).copied().collect();
        period.wants(&others, now)
    }

    /// What an authority has answered to such a question.
    ///
    /// # Errors
    /// Why it does not count; what is for another time, or from nobody we know, is [`Refused::Forged`].
    pub fn heard(&mut self, want: &Want, text: String, now: Duration) -> Result<Heard, Refused> {
        let (Some(period), config) = (&mut self.period, &self.config) else {
            return Ok(Heard::Done(Vec::new()));
        };
        match want.what {
            Wanted::Commitments => {
                let events = period.take_commitments(&text, config, now)?;
                Ok(Heard::Done(events))
            }
            Wanted::Vote => {
                let (events, unchecked) = period.take_vote(text, config, now)?;
                Ok(match unchecked {
                    Some(unchecked) => Heard::Check(events, unchecked),
                    None => Heard::Done(events),
                })
            }
            Wanted::Signatures => {
                period.take_signatures(&text, &config.trust)?;
                Ok(Heard::Done(self.tick(now)))
            }
        }
    }

    /// What was found out about a vote.
    ///
    /// # Errors
    /// Why that vote does not count, whoever shows it.
    pub fn checked(&mut self, checked: Checked, now: Duration) -> Result<Vec<Event>, Refused> {
        match &mut self.period {
            Some(period) => period.take_checked(checked, &self.config, now),
            None => Ok(Vec::new()),
        }
    }
}

impl Config {
    /// Seconds of a run of a shared random value.
    fn run(&self) -> u64 {
        self.hsdir_interval.saturating_mul(60)
    }

    /// How the operator's file numbers an authority, from 1.
    fn number(&self, authority: &Key) -> Option<usize> {
        let known = &self.trust.authorities;
        let place = known.iter().position(|known| known == authority)?;
        Some(place.saturating_add(1))
    }
}

/// This authority's signature under `text`.
fn sign(key: &SigningKey, text: &str) -> (Key, Signature) {
    (Key(key.public()), Signature(key.sign(text.as_bytes())))
}
