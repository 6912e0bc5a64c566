//! One list in the making: which votes count, so that all honest authorities count the same, and the signatures under what they work out.
//!
//! It is the authenticated broadcast of Dolev and Strong ("Authenticated Algorithms for Byzantine Agreement", 1983), of the commitment to each
//! vote, all at once: the remedy of Luo et al., "Attacking and Improving the Tor Directory Protocol" (IEEE S&P 2024), against an authority that
//! shows one vote here and another there. Time is cut in slices. In slice 0 authorities exchange commitments, and no vote is shown. In
//! slice `r`, up to as many as the threshold, a vote is accepted that bears `r` signatures, its voter's among them, and whose text is here;
//! who accepts it signs it too and hands it on. A second commitment of one voter is accepted by the same count, and with two of them
//! the voter does not count. So what one honest authority accepts, all have accepted a slice later; and what is accepted in the last
//! slice bears an honest signature already, as long as fewer than `threshold` authorities are hostile and those that are honest reach each
//! other within a slice. Where they do not, `threshold` itself keeps two lists from being right ([`Trust::is_safe`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use hoplite_crypto::{onion::rsa::sha256, signing::is_signed};
use hoplite_wire::directory::{
    COMMITMENTS_PER_VOTER, Commitment, Commitments, Key, List, Signature, SignedList, Stage,
    split_signed, write_signatures,
};

use super::{Config, Event, Promise, Want, Wanted, sign, tally};
use crate::{Refused, Trust, check::are_own};

/// One list in the making.
#[derive(Debug)]
pub(super) struct Period {
    pub(super) valid_after: u64,
    times: Times,
    own: Key,
    /// Our own vote, whose descriptors are known to be signed.
    vote: Arc<List>,
    seen: BTreeMap<Commitment, Seen>,
    /// Who has committed to two votes, as far as it was told.
    two_faced: BTreeSet<Key>,
    made: Made,
    /// Who signed another list.
    others: BTreeSet<Key>,
    is_published: bool,
}

/// When votes are exchanged.
#[derive(Clone, Copy, Debug)]
struct Times {
    begins: Duration,
    slice: Duration,
    slices: u32,
    ends: Duration,
}

/// A commitment that its voter has signed.
#[derive(Debug)]
struct Seen {
    /// Of known authorities, each checked.
    signatures: BTreeMap<Key, Signature>,
    /// It was here before any vote was shown.
    in_time: bool,
    /// We have signed it.
    is_accepted: bool,
    vote: VoteState,
}

/// The vote that belongs to a commitment.
#[derive(Debug)]
enum VoteState {
    Missing,
    /// Somebody looks whether it can be believed.
    Checking,
    /// It can.
    Good(Arc<List>, Bytes),
    /// It cannot, whoever shows it.
    Bad,
}

/// What we have signed.
#[derive(Debug)]
enum Made {
    /// It is too early.
    Not,
    /// Too few votes count, or we have signed another list.
    Nothing,
    /// A list, with the signatures that others gave to the same.
    List {
        body: String,
        list: Box<List>,
        signatures: BTreeMap<Key, Signature>,
        /// All of it.
        text: Bytes,
    },
}

/// A vote whose descriptors are still to be checked: thousands of signatures, for a thread that may block.
#[derive(Debug)]
pub struct Unchecked {
    commitment: Commitment,
    text: String,
    valid_after: u64,
    fresh_until: u64,
    valid_until: u64,
    known: Arc<List>,
}

/// It, when that has been done.
#[derive(Debug)]
pub struct Checked {
    commitment: Commitment,
    text: String,
    vote: Result<List, Refused>,
}

impl Unchecked {
    /// Reads the vote, and checks each descriptor that our own vote does not have in the same words.
    pub fn check(self) -> Checked {
        let vote = self.read();
        Checked {
            commitment: self.commitment,
            text: self.text,
            vote,
        }
    }

    fn read(&self) -> Result<List, Refused> {
        let vote = SignedList::parse(&self.text, Stage::Vote)?.list;
        let times = (vote.valid_after, vote.fresh_until, vote.valid_until);
        // Else its voter is configured otherwise.
        if times != (self.valid_after, self.fresh_until, self.valid_until) {
            return Err(Refused::Forged { good: 0, needed: 1 });
        }
        if are_own(&vote.relays, &[&self.known.relays]) {
            Ok(vote)
        } else {
            Err(Refused::Unsigned)
        }
    }
}

impl Times {
    fn of(config: &Config, valid_after: u64) -> Self {
        let voting = Duration::from_secs(config.voting);
        let ends = Duration::from_secs(valid_after).saturating_sub(voting);
        let rounds = u32::try_from(config.trust.threshold.max(1)).unwrap_or(u32::MAX);
        let slices = rounds.saturating_add(1);
        Self {
            begins: ends.saturating_sub(voting),
            slice: voting / slices,
            slices,
            ends,
        }
    }

    /// Which slice it is; `None` when it is too late for votes.
    fn slice(&self, now: Duration) -> Option<usize> {
        let slice = |n: u32| self.begins.saturating_add(self.slice.saturating_mul(n));
        let begun = (1..self.slices).filter(|n| now >= slice(*n)).count();
        (now < self.ends).then_some(begun)
    }
}

/// Whether `voter`'s vote of this text, without its signature, is what it has committed to by the signature.
fn commitment(valid_after: u64, text: &str) -> Option<(Commitment, Signature)> {
    let (body, signatures) = split_signed(text).ok()?;
    let (voter, signature) = signatures
        .first_key_value()
        .filter(|_| signatures.len() == 1)?;
    let commitment = Commitment {
        valid_after,
        voter: *voter,
        vote: sha256(body.as_bytes()),
    };
    Some((commitment, *signature))
}

fn has_signed(key: &Key, commitment: &Commitment, signature: &Signature) -> bool {
    is_signed(&key.0, commitment.text().as_bytes(), &signature.0)
}

impl Period {
    /// Begins with our own vote.
    pub(super) fn new(config: &Config, valid_after: u64, vote: List) -> Self {
        let own = Key(config.key.public());
        let body = vote.text();
        let commitment = Commitment {
            valid_after,
            voter: own,
            vote: sha256(body.as_bytes()),
        };
        let signatures = BTreeMap::from([sign(&config.key, &commitment.text())]);
        let vote = Arc::new(vote);
        let text = signed_text(&body, &signatures);
        let seen = Seen {
            signatures,
            in_time: true,
            is_accepted: true,
            vote: VoteState::Good(Arc::clone(&vote), text),
        };
        Self {
            valid_after,
            times: Times::of(config, valid_after),
            own,
            vote,
            seen: BTreeMap::from([(commitment, seen)]),
            two_faced: BTreeSet::new(),
            made: Made::Not,
            others: BTreeSet::new(),
            is_published: false,
        }
    }

    /// The beginning of each slice that is still to come.
    pub(super) fn steps(&self) -> impl Iterator<Item = Duration> {
        let times = self.times;
        (1..times.slices).map(move |n| times.begins.saturating_add(times.slice.saturating_mul(n)))
    }

    /// What we know of commitments, for others.
    pub(super) fn commitments(&self) -> String {
        let told = self.seen.iter();
        let told = told.map(|(commitment, seen)| (*commitment, seen.signatures.clone()));
        Commitments {
            all: told.collect(),
        }
        .to_string()
    }

    /// A vote that is here, the one that was accepted first; none before all had time to commit to theirs.
    pub(super) fn vote(&self, voter: &Key, now: Duration) -> Option<Bytes> {
        (self.times.slice(now) != Some(0)).then_some(())?;
        let of_voter = self.seen.iter().filter(|(of, _)| of.voter == *voter);
        let held = of_voter.filter_map(|(_, seen)| match &seen.vote {
            VoteState::Good(_, text) => Some((!seen.is_accepted, text)),
            _ => None,
        });
        held.min_by_key(|(later, _)| *later)
            .map(|(_, text)| text.clone())
    }

    /// The list that we have signed, with the signatures that are known.
    pub(super) fn signed(&self) -> Option<Bytes> {
        match &self.made {
            Made::List { text, .. } => Some(text.clone()),
            Made::Not | Made::Nothing => None,
        }
    }

    /// What is to be asked: commitments as long as votes are exchanged; votes that are missing, from their voters and from all who say that they
    /// hold them; and then signatures.
    pub(super) fn wants(&self, others: &[Key], now: Duration) -> Vec<Want> {
        let at = self.valid_after;
        let want = |from: &Key, path: String, what| Want {
            from: *from,
            path,
            what,
        };
        let Some(slice) = self.times.slice(now) else {
            return self.signatures_wanted(others);
        };
        let path = format!("/hoplite/commitments/{at}");
        let ask = |from| want(from, path.clone(), Wanted::Commitments);
        let mut wants: Vec<_> = others.iter().map(ask).collect();
        let is_missing = |seen: &Seen| matches!(seen.vote, VoteState::Missing) && !seen.is_accepted;
        let missing = self.seen.iter().filter(|(_, seen)| is_missing(seen));
        for (commitment, seen) in missing.filter(|_| slice > 0) {
            let path = format!("/hoplite/vote/{at}/{}", commitment.voter);
            let holders = seen.signatures.keys().filter(|key| **key != self.own);
            wants.extend(holders.map(|from| want(from, path.clone(), Wanted::Vote)));
        }
        wants
    }

    fn signatures_wanted(&self, others: &[Key]) -> Vec<Want> {
        let Made::List { signatures, .. } = &self.made else {
            return Vec::new();
        };
        let missing = others.iter().filter(|key| !signatures.contains_key(key));
        let want = |from: &Key| Want {
            from: *from,
            path: format!("/hoplite/list/{}", self.valid_after),
            what: Wanted::Signatures,
        };
        missing.map(want).collect()
    }

    /// Takes what another knows of commitments.
    pub(super) fn take_commitments(
        &mut self,
        text: &str,
        config: &Config,
        now: Duration,
    ) -> Result<Vec<Event>, Refused> {
        let Some(slice) = self.times.slice(now) else {
            return Ok(Vec::new());
        };
        let found = Commitments::parse(text)?;
        let is_ours = |of: &Commitment| of.valid_after == self.valid_after;
        if !found.all.keys().all(is_ours) {
            return Err(Refused::Forged { good: 0, needed: 1 });
        }
        for (commitment, signatures) in found.all {
            self.note(commitment, signatures, &config.trust, slice);
        }
        Ok(self.accept(config, slice))
    }

    /// Takes a vote: what its signature commits to counts as told, and the text is to be checked if it is missing here.
    pub(super) fn take_vote(
        &mut self,
        text: String,
        config: &Config,
        now: Duration,
    ) -> Result<(Vec<Event>, Option<Unchecked>), Refused> {
        let Some(slice) = self.times.slice(now) else {
            return Ok((Vec::new(), None));
        };
        let forged = Refused::Forged { good: 0, needed: 1 };
        let (commitment, signature) = commitment(self.valid_after, &text).ok_or(forged)?;
        let signatures = BTreeMap::from([(commitment.voter, signature)]);
        self.note(commitment, signatures, &config.trust, slice);
        let events = self.accept(config, slice);
        let Some(seen) = self.seen.get_mut(&commitment) else {
            return Err(forged);
        };
        if !matches!(seen.vote, VoteState::Missing) {
            return Ok((events, None));
        }
        seen.vote = VoteState::Checking;
        let unchecked = Unchecked {
            commitment,
            text,
            valid_after: self.vote.valid_after,
            fresh_until: self.vote.fresh_until,
            valid_until: self.vote.valid_until,
            known: Arc::clone(&self.vote),
        };
        Ok((events, Some(unchecked)))
    }

    /// Takes what was found out about a vote.
    pub(super) fn take_checked(
        &mut self,
        checked: Checked,
        config: &Config,
        now: Duration,
    ) -> Result<Vec<Event>, Refused> {
        let Some(seen) = self.seen.get_mut(&checked.commitment) else {
            return Ok(Vec::new());
        };
        match checked.vote {
            Ok(vote) => seen.vote = VoteState::Good(Arc::new(vote), checked.text.into()),
            Err(refused) => {
                seen.vote = VoteState::Bad;
                return Err(refused);
            }
        }
        let slice = self.times.slice(now);
        Ok(slice.map_or_else(Vec::new, |slice| self.accept(config, slice)))
    }

    /// Notes a commitment if its voter has signed it, with those signatures of known authorities that are good.
    fn note(
        &mut self,
        commitment: Commitment,
        mut signatures: BTreeMap<Key, Signature>,
        trust: &Trust,
        slice: usize,
    ) {
        let known = self.seen.get(&commitment);
        // Each is checked once.
        signatures.retain(|key, signature| {
            let is_new = known.is_none_or(|seen| !seen.signatures.contains_key(key));
            is_new && trust.authorities.contains(key) && has_signed(key, &commitment, signature)
        });
        if let Some(seen) = self.seen.get_mut(&commitment) {
            seen.signatures.extend(signatures);
            return;
        }
        if signatures.contains_key(&commitment.voter) && self.make_room(&commitment, &signatures) {
            let seen = Seen {
                signatures,
                in_time: slice == 0,
                is_accepted: false,
                vote: VoteState::Missing,
            };
            self.seen.insert(commitment, seen);
        }
    }

    /// Two of a voter are enough; one that fewer have signed gives way as long as we have not signed it.
    fn make_room(&mut self, new: &Commitment, signatures: &BTreeMap<Key, Signature>) -> bool {
        let of_voter = self.seen.iter().filter(|(of, _)| of.voter == new.voter);
        if of_voter.clone().count() < COMMITMENTS_PER_VOTER {
            return true;
        }
        let open = of_voter.filter(|(_, seen)| !seen.is_accepted);
        let least = open.min_by_key(|(_, seen)| seen.signatures.len());
        let weaker = least.filter(|(_, seen)| seen.signatures.len() < signatures.len());
        match weaker.map(|(of, _)| *of) {
            Some(weaker) => self.seen.remove(&weaker).is_some(),
            None => false,
        }
    }

    /// Signs each commitment that bears as many signatures as slices have passed, and whose vote is here; or, of a voter that has two of them,
    /// both, as nobody needs the votes then.
    fn accept(&mut self, config: &Config, slice: usize) -> Vec<Event> {
        let mut events = Vec::new();
        let voters: BTreeSet<Key> = self.seen.keys().map(|of| of.voter).collect();
        for voter in voters {
            let mut of_voter: Vec<_> = self.seen.iter_mut().collect();
            of_voter.retain(|(of, _)| of.voter == voter);
            let is_two_faced = of_voter.len() > 1;
            if is_two_faced && self.two_faced.insert(voter) {
                events.extend(config.number(&voter).map(Event::TwoFaced));
            }
            // A commitment that comes first when votes are shown counts for nothing but against its voter.
            let is_enough = |seen: &Seen| {
                let in_time = slice > 1 || seen.in_time || is_two_faced;
                seen.is_accepted || in_time && seen.signatures.len() >= slice
            };
            let enough = of_voter.iter().filter(|(_, seen)| is_enough(seen)).count();
            for (commitment, seen) in of_voter.into_iter().filter(|_| slice > 0) {
                let is_here = matches!(seen.vote, VoteState::Good(..));
                if !seen.is_accepted && is_enough(seen) && (is_here || enough > 1) {
                    seen.is_accepted = true;
                    let (key, signature) = sign(&config.key, &commitment.text());
                    seen.signatures.insert(key, signature);
                }
            }
        }
        events
    }

    /// The votes that count, by voter: of voters of whom exactly one was accepted.
    fn counted(&self) -> BTreeMap<Key, Arc<List>> {
        let mut of_voter = BTreeMap::<Key, Vec<&Seen>>::new();
        for (of, seen) in self.seen.iter().filter(|(_, seen)| seen.is_accepted) {
            of_voter.entry(of.voter).or_default().push(seen);
        }
        let counted = of_voter
            .iter()
            .filter_map(|(voter, seen)| match seen.as_slice() {
                [
                    Seen {
                        vote: VoteState::Good(vote, _),
                        ..
                    },
                ] => Some((*voter, Arc::clone(vote))),
                _ => None,
            });
        counted.collect()
    }

    /// Works the list out when votes are exchanged no more, and signs it, once. Fewer votes than the threshold make no list that enough would sign.
    pub(super) fn make(
        &mut self,
        config: &Config,
        promise: &mut Promise,
        now: Duration,
    ) -> Option<Event> {
        if now < self.times.ends || !matches!(self.made, Made::Not) {
            return None;
        }
        let votes = self.counted();
        let needed = config.trust.threshold;
        if votes.len() < needed {
            self.made = Made::Nothing;
            let votes = votes.len();
            return Some(Event::TooFew { votes, needed });
        }
        let lists = votes.iter().map(|(voter, vote)| (*voter, vote.as_ref()));
        let lists: BTreeMap<Key, &List> = lists.collect();
        let list = tally::agreed(&lists, config, self.valid_after);
        let relays = list.relays.len();
        let body = list.text();
        if let Err(event) = promise.give(Stage::List, self.valid_after, &body) {
            self.made = Made::Nothing;
            return Some(event);
        }
        let signatures = BTreeMap::from([sign(&config.key, &body)]);
        self.made = Made::List {
            text: signed_text(&body, &signatures),
            body,
            list: Box::new(list),
            signatures,
        };
        Some(Event::Signed {
            votes: votes.len(),
            relays,
        })
    }

    /// Takes the known authorities' signatures under a list that is the same as ours. Others are compared, and not read.
    pub(super) fn take_signatures(&mut self, text: &str, trust: &Trust) -> Result<(), Refused> {
        let (theirs, signatures) = split_signed(text)?;
        let head = format!(
            "{}valid-after {}\n",
            Stage::List.head_line(),
            self.valid_after
        );
        let is_known = |key: &Key| match &self.made {
            Made::List {
                body, signatures, ..
            } => body == theirs && signatures.contains_key(key),
            Made::Not | Made::Nothing => false,
        };
        let good = signatures.into_iter().filter(|(key, signature)| {
            trust.authorities.contains(key)
                && (is_known(key) || is_signed(&key.0, theirs.as_bytes(), &signature.0))
        });
        let good: BTreeMap<_, _> = good.collect();
        match &mut self.made {
            _ if good.is_empty() || !theirs.starts_with(&head) => {
                let good = good.len();
                return Err(Refused::Forged { good, needed: 1 });
            }
            Made::List {
                body,
                signatures,
                text,
                ..
            } if body == theirs => {
                let before = signatures.len();
                good.into_iter().for_each(|(key, signature)| {
                    signatures.entry(key).or_insert(signature);
                });
                if signatures.len() > before {
                    *text = signed_text(body, signatures);
                }
            }
            _ => self.others.extend(good.into_keys()),
        }
        Ok(())
    }

    /// The list, once, when it has begun and has enough signatures.
    pub(super) fn publish(&mut self, trust: &Trust, now: Duration) -> Option<(SignedList, Bytes)> {
        let Made::List {
            list,
            signatures,
            text,
            ..
        } = &self.made
        else {
            return None;
        };
        let enough = signatures.len() >= trust.threshold;
        if self.is_published || !enough || now < Duration::from_secs(self.valid_after) {
            return None;
        }
        self.is_published = true;
        let signed = SignedList {
            list: (**list).clone(),
            signatures: signatures.clone(),
        };
        Some((signed, text.clone()))
    }

    /// What to say if it ends without a list.
    pub(super) fn failure(&self) -> Option<Event> {
        let signatures = match &self.made {
            Made::List { signatures, .. } => signatures.len(),
            Made::Not | Made::Nothing => 0,
        };
        let event = Event::Failed {
            signatures,
            others: self.others.len(),
        };
        (!self.is_published).then_some(event)
    }
}

fn signed_text(body: &str, signatures: &BTreeMap<Key, Signature>) -> Bytes {
    format!("{body}{}", write_signatures(signatures)).into()
}
