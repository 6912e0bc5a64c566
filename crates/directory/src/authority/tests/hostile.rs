//! Authorities that lie: two votes, votes held back or shown late, replayed, not what was committed to; and honest ones who still sign one list.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_crypto::onion::rsa::sha256;
use hoplite_wire::directory::{Commitment, Commitments, List, Signature, SignedList, Stage};
use proptest::{collection::vec, prelude::*};

use super::*;

/// A vote for the relays of these numbers, by authority `n`, as a vote is signed.
fn vote(n: u8, start: u64, relays: &[u8]) -> (Commitment, Signature, String) {
    let sign = |n: &u8| sign_descriptor(of_circuits(*n), &key(*n)).expect("signed");
    let relays: Vec<_> = relays.iter().map(sign).collect();
    let list = List {
        stage: Stage::Vote,
        ..crate::testing::list(start, &relays)
    };
    let commitment = Commitment {
        valid_after: start,
        voter: public(n),
        vote: sha256(list.text().as_bytes()),
    };
    let signature = Signature(key(n).sign(commitment.text().as_bytes()));
    let signatures = BTreeMap::from([(public(n), signature)]);
    let text = SignedList { list, signatures }.to_string();
    (commitment, signature, text)
}

fn told(commitments: &[(Commitment, &[u8])]) -> String {
    let signed = |(commitment, by): &(Commitment, &[u8])| {
        let sign = |n: &u8| {
            (
                public(*n),
                Signature(key(*n).sign(commitment.text().as_bytes())),
            )
        };
        (*commitment, by.iter().map(sign).collect())
    };
    Commitments {
        all: commitments.iter().map(signed).collect(),
    }
    .to_string()
}

/// Two honest authorities of three; `lie` answers for the third, by the place of whoever asks.
fn two_of_three(lie: impl Fn(usize, &Want, u64) -> Option<String>) -> (Vec<Authority>, Vec<Event>) {
    let mut three = authorities(3, 2);
    three.truncate(2);
    for (authority, relay) in [(0, 11), (1, 11), (0, 12)] {
        upload(&mut three[authority], relay);
    }
    let mut events = Vec::new();
    for now in times(START, 2) {
        events.extend(exchange(&mut three, now, everybody));
        for (asking, authority) in three.iter_mut().enumerate() {
            for want in authority.wants(seconds(now)) {
                let answer = (want.from == public(3)).then(|| lie(asking, &want, now));
                if let Some(text) = answer.flatten() {
                    events.extend(hear(authority, &want, &text, now).unwrap_or_default());
                }
            }
        }
    }
    (three, events)
}

fn lists(authorities: &[Authority]) -> Vec<Option<Vec<String>>> {
    let authorities = authorities.iter();
    authorities
        .map(|authority| names(authority, 3, 2))
        .collect()
}

#[test]
fn who_shows_each_authority_another_vote_is_dropped_by_both_and_they_agree() {
    let (one, other) = (vote(3, START, &[11, 12]), vote(3, START, &[11]));
    let (honest, events) = two_of_three(|asking, want, _| {
        let vote = [&one, &other][asking];
        match want.what {
            Wanted::Commitments => Some(told(&[(vote.0, &[3])])),
            Wanted::Vote => Some(vote.2.clone()),
            Wanted::Signatures => None,
        }
    });
    let both = events.iter().filter(|event| **event == Event::TwoFaced(3));
    assert_eq!(both.count(), 2, "{events:?}");
    let expected = Some(vec!["relay11".to_owned()]);
    assert_eq!(lists(&honest), [expected.clone(), expected]);
    assert_eq!(honest[0].list(), honest[1].list());
}

#[test]
fn a_vote_other_than_the_one_committed_to_is_a_second_one() {
    let (committed, shown) = (vote(3, START, &[11, 12]), vote(3, START, &[11]));
    let (honest, events) = two_of_three(|asking, want, _| match want.what {
        Wanted::Commitments => Some(told(&[(committed.0, &[3])])),
        Wanted::Vote if asking == 0 => Some(committed.2.clone()),
        Wanted::Vote => Some(shown.2.clone()),
        Wanted::Signatures => None,
    });
    assert!(events.contains(&Event::TwoFaced(3)), "{events:?}");
    assert_eq!(honest[0].list(), honest[1].list());
    assert!(honest[0].list().is_some());
}

#[test]
fn a_vote_that_only_one_is_shown_counts_for_both() {
    let shown = vote(3, START, &[11, 12]);
    let (honest, events) = two_of_three(|asking, want, _| match want.what {
        Wanted::Commitments if asking == 0 => Some(told(&[(shown.0, &[3])])),
        Wanted::Vote if asking == 0 => Some(shown.2.clone()),
        _ => None,
    });
    let signed = Event::Signed {
        votes: 3,
        relays: 2,
    };
    assert_eq!(
        events.iter().filter(|event| **event == signed).count(),
        2,
        "{events:?}"
    );
    assert_eq!(honest[0].list(), honest[1].list());
}

#[test]
fn a_vote_that_is_shown_to_one_at_the_last_moment_counts_for_nobody() {
    let shown = vote(3, START, &[11, 12]);
    let last_slice = START - VOTING - VOTING / 3;
    let (honest, events) = two_of_three(|asking, want, now| match want.what {
        Wanted::Commitments if asking == 0 => Some(told(&[(shown.0, &[3])])),
        Wanted::Vote if asking == 0 && now >= last_slice => Some(shown.2.clone()),
        _ => None,
    });
    let signed = Event::Signed {
        votes: 2,
        relays: 1,
    };
    assert_eq!(
        events.iter().filter(|event| **event == signed).count(),
        2,
        "{events:?}"
    );
    assert_eq!(honest[0].list(), honest[1].list());
}

#[test]
fn who_commits_only_when_it_has_seen_the_others_votes_does_not_count() {
    let shown = vote(3, START, &[11, 12]);
    let begun = START - 2 * VOTING + VOTING / 3;
    let (honest, events) = two_of_three(|_, want, now| match want.what {
        Wanted::Commitments if now >= begun => Some(told(&[(shown.0, &[3])])),
        Wanted::Vote => Some(shown.2.clone()),
        _ => None,
    });
    let signed = Event::Signed {
        votes: 2,
        relays: 1,
    };
    assert_eq!(
        events.iter().filter(|event| **event == signed).count(),
        2,
        "{events:?}"
    );
    assert_eq!(honest[0].list(), honest[1].list());
}

#[test]
fn no_vote_is_shown_before_all_had_time_to_commit_to_theirs() {
    let mut one = authorities(3, 2).remove(0);
    let begins = START - 2 * VOTING;
    one.tick(seconds(begins));
    let shown = |now| one.vote(START, &public(1), seconds(now));
    assert_eq!(shown(begins + VOTING / 3 - 1), None);
    assert!(shown(begins + VOTING / 3).is_some());
    assert!(one.commitments(START).is_some());
}

#[test]
fn votes_of_strangers_for_other_times_and_of_relays_that_did_not_say_so_are_refused() {
    let mut one = authorities(3, 2).remove(0);
    let begins = START - 2 * VOTING;
    one.tick(seconds(begins));
    let want = |what| Want {
        from: public(2),
        path: String::new(),
        what,
    };
    let stranger = vote(9, START, &[]);
    let forged = Err(Refused::Forged { good: 0, needed: 1 });
    let now = begins + VOTING / 3;
    assert_eq!(
        hear(&mut one, &want(Wanted::Vote), &stranger.2, now),
        forged
    );
    let later = vote(2, START + INTERVAL, &[]);
    assert_eq!(hear(&mut one, &want(Wanted::Vote), &later.2, now), forged);
    let replayed = told(&[(later.0, &[2])]);
    let heard = hear(&mut one, &want(Wanted::Commitments), &replayed, begins + 1);
    assert_eq!(heard, forged);
    let mut made_up = SignedList::parse(&vote(2, START, &[11]).2, Stage::Vote).expect("a vote");
    made_up.list.relays[0].descriptor.bandwidth += 1;
    let commitment = Commitment {
        valid_after: START,
        voter: public(2),
        vote: sha256(made_up.list.text().as_bytes()),
    };
    let signature = Signature(key(2).sign(commitment.text().as_bytes()));
    made_up.signatures = BTreeMap::from([(public(2), signature)]);
    let told = told(&[(commitment, &[2])]);
    assert_eq!(
        hear(&mut one, &want(Wanted::Commitments), &told, begins + 1),
        Ok(vec![])
    );
    let heard = hear(&mut one, &want(Wanted::Vote), &made_up.to_string(), now);
    assert_eq!(heard, Err(Refused::Unsigned));
    // It is looked at once.
    assert_eq!(
        hear(&mut one, &want(Wanted::Vote), &made_up.to_string(), now),
        Ok(vec![])
    );
    let asked = one.wants(seconds(now));
    assert!(
        asked.iter().all(|want| want.what == Wanted::Commitments),
        "{asked:?}"
    );
}

/// The relay of number 11 on the list of three authorities, each of whom has found it by one of these addresses, and was told so at these times: the later
/// the more it is to be believed.
fn listed(found: [(&str, u64); 3]) -> Option<Descriptor> {
    let mut three = authorities(3, 2);
    for (authority, (address, after)) in three.iter_mut().zip(found) {
        let relay = Descriptor {
            published: START - INTERVAL + after,
            addresses: vec![address.parse().expect("an address")],
            ..of_circuits(11)
        };
        let text = sign_descriptor(relay, &key(11))
            .expect("signed")
            .to_string();
        let restored = authority.restore(&text, None, START - INTERVAL);
        restored.expect("taken");
        test(authority, START - INTERVAL, |_| true);
    }
    period(&mut three, START, everybody);
    let list = check_list(&text(&three[0])?, &trust(3, 2), START).expect("right");
    let mut relays = list.list.relays.into_iter();
    relays.next().map(|relay| relay.descriptor)
}

#[test]
fn an_authority_and_a_relay_of_its_own_list_nobody_at_an_address_that_no_honest_one_has_tested() {
    let (own, other, victim) = ("10.11.0.1:443", "10.11.0.2:443", "10.99.0.1:443");
    let found =
        |found| listed(found).map(|relay| (relay.addresses[0].to_string(), relay.published));
    let at = |address: &str, after| Some((address.to_owned(), START - INTERVAL + after));
    // The relay has told each honest one something else, and its own authority the most.
    assert_eq!(found([(own, 1), (own, 2), (victim, 3)]), at(own, 2));
    // It moves: nobody knows yet where it is.
    assert_eq!(found([(own, 1), (other, 2), (victim, 3)]), None);
    // The liar says what one honest one has found out, too.
    assert_eq!(found([(own, 1), (other, 2), (own, 3)]), at(own, 3));
}

/// All that hostile authorities can say: each has three votes, all of them sign whatever they like, and they know what honest ones have said.
struct Liars {
    /// By number.
    who: Vec<u8>,
    votes: Vec<(Commitment, String)>,
    heard: BTreeMap<Commitment, BTreeMap<Key, Signature>>,
    /// Decides what each question is answered with.
    dice: Vec<u8>,
    thrown: usize,
}

impl Liars {
    fn new(who: Vec<u8>, dice: Vec<u8>) -> Self {
        let votes = who.iter().flat_map(|n| {
            let votes = [&[11u8, 12][..], &[11, 13], &[12, 13]];
            votes.map(|relays| vote(*n, START, relays))
        });
        let votes = votes
            .map(|(commitment, _, text)| (commitment, text))
            .collect();
        Self {
            who,
            votes,
            heard: BTreeMap::new(),
            dice,
            thrown: 0,
        }
    }

    fn throw(&mut self) -> u8 {
        self.thrown += 1;
        self.dice[self.thrown % self.dice.len()]
    }

    /// Which of its three votes a liar shows to whom in which slice: mostly none, so that it matters when one is.
    fn shown(&self, liar: usize, asking: usize, slice: usize) -> u8 {
        let place = (slice * 7 + asking) * 3 + liar;
        match self.dice[place * 5 % self.dice.len()] {
            often if often < 80 => often % 8,
            once if once < 128 => 1,
            _ => 0,
        }
    }

    fn learn(&mut self, text: &str) {
        let heard = Commitments::parse(text).expect("honest");
        for (commitment, signatures) in heard.all {
            self.heard.entry(commitment).or_default().extend(signatures);
        }
    }

    /// What the liar that is asked says to the authority `asking`.
    fn answer(&mut self, want: &Want, asking: usize, slice: usize) -> Option<String> {
        let liar = self.who.iter().position(|n| public(*n) == want.from)?;
        let mask = self.shown(liar, asking, slice);
        match want.what {
            Wanted::Commitments => (mask != 0).then(|| self.commitments(mask)),
            Wanted::Vote => {
                let wanted = self.votes.iter().enumerate().filter(|(place, (of, _))| {
                    want.path.ends_with(&of.voter.to_string()) && mask >> (place % 3) & 1 == 1
                });
                let texts: Vec<_> = wanted.map(|(_, (_, text))| text.clone()).collect();
                let which = usize::from(self.throw()) % texts.len().max(1);
                texts.get(which).cloned()
            }
            Wanted::Signatures => {
                let relays: Vec<_> = [11, 12].map(descriptor).into();
                let list = crate::testing::list(START, &relays);
                Some(signed_by(&list, &self.who).to_string())
            }
        }
    }

    /// Some of the liars' votes, signed by some of them and by whoever honest has signed it; sometimes of another time.
    fn commitments(&mut self, mask: u8) -> String {
        let mut all = BTreeMap::new();
        for place in (0..self.votes.len()).filter(|place| mask >> (place % 3) & 1 == 1) {
            let mut commitment = self.votes[place].0;
            let of_voter = |all: &BTreeMap<Commitment, _>| {
                all.keys().filter(|of| of.voter == commitment.voter).count()
            };
            if of_voter(&all) > 1 {
                continue;
            }
            let mut signatures = self.heard.get(&commitment).cloned().unwrap_or_default();
            if self.throw() < 4 {
                commitment.valid_after += INTERVAL;
                signatures.clear();
                all.clear();
            }
            for n in self.who.clone() {
                if public(n) == commitment.voter || self.throw() < 128 {
                    let signature = key(n).sign(commitment.text().as_bytes());
                    signatures.insert(public(n), Signature(signature));
                }
            }
            let period = commitment.valid_after;
            all.retain(|of: &Commitment, _| of.valid_after == period);
            all.insert(commitment, signatures);
        }
        Commitments { all }.to_string()
    }

    /// All that `authority` asks the liars is answered, or not.
    fn lie(&mut self, authority: &mut Authority, asking: usize, now: u64, threshold: usize) {
        if let Some(text) = authority.commitments(START) {
            self.learn(&text);
        }
        let slice = (now + 2 * VOTING - START) * (threshold as u64 + 1) / VOTING;
        for want in authority.wants(seconds(now)) {
            if let Some(text) = self.answer(&want, asking, slice as usize) {
                drop(hear(authority, &want, &text, now));
            }
        }
    }
}

/// One period of `known` authorities of which the last `hostile` lie.
fn with_liars(
    known: u8,
    threshold: usize,
    hostile: u8,
    dice: Vec<u8>,
    held: &[u8],
) -> Vec<Authority> {
    let mut honest = authorities(known, threshold);
    honest.truncate(usize::from(known - hostile));
    for (authority, relays) in honest.iter_mut().zip(held) {
        for (bit, relay) in [11, 12, 13].into_iter().enumerate() {
            if relays >> bit & 1 == 1 {
                upload(authority, relay);
            }
        }
    }
    let mut liars = Liars::new((known - hostile + 1..=known).collect(), dice);
    for now in times(START, threshold as u64) {
        exchange(&mut honest, now, everybody);
        for (asking, authority) in honest.iter_mut().enumerate() {
            liars.lie(authority, asking, now, threshold);
        }
    }
    honest
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Where honest authorities reach each other, fewer liars than the threshold change nothing of it; and honest ones enough for the threshold
    /// make a list, whatever the others do.
    #[test]
    fn honest_authorities_sign_one_list_whatever_fewer_liars_than_the_threshold_say(
        size in prop_oneof![Just((3u8, 2usize, 1u8)), Just((4, 3, 1)), Just((4, 3, 2)), Just((5, 4, 1)), Just((5, 3, 2)), Just((7, 5, 2))],
        dice in vec(any::<u8>(), 64..512),
        held in vec(any::<u8>(), 7),
    ) {
        let (known, threshold, hostile) = size;
        let honest = with_liars(known, threshold, hostile, dice, &held);
        let bodies: BTreeSet<_> = honest.iter().map(|authority| {
            let signed = authority.signed(START).map(|text| String::from_utf8(text.into()).expect("text"));
            signed.map(|text| SignedList::parse(&text, Stage::List).expect("a list").list.text())
        }).collect();
        prop_assert_eq!(bodies.len(), 1, "they sign the same, or none of them anything");
        if honest.len() >= threshold {
            prop_assert!(honest.iter().all(|authority| authority.list().is_some()));
        }
    }

    /// Where the network is the attacker's too: a threshold above half of all and of the liars leaves at most one list right.
    #[test]
    fn a_safe_threshold_leaves_one_list_right_whoever_is_cut_off(
        dice in vec(any::<u8>(), 64..256),
        reach in vec(any::<bool>(), 9),
        held in vec(any::<u8>(), 3),
    ) {
        let mut honest = authorities(4, 3);
        honest.truncate(3);
        for (authority, relays) in honest.iter_mut().zip(&held) {
            [11, 12, 13].into_iter().enumerate().filter(|(bit, _)| relays >> bit & 1 == 1).for_each(|(_, relay)| upload(authority, relay));
        }
        let mut liars = Liars::new(vec![4], dice);
        for now in times(START, 3) {
            exchange(&mut honest, now, |a, b| reach[a * 3 + b]);
            for (asking, authority) in honest.iter_mut().enumerate() {
                liars.lie(authority, asking, now, 3);
            }
        }
        // The liar signs whatever it is asked to.
        let mut right = BTreeMap::<String, BTreeSet<Key>>::new();
        for authority in &honest {
            let Some(text) = authority.signed(START) else { continue };
            let text = String::from_utf8(text.into()).expect("text");
            let signed = SignedList::parse(&text, Stage::List).expect("a list");
            let signers = right.entry(signed.list.text()).or_default();
            signers.extend(signed.signatures.keys());
            signers.insert(public(4));
        }
        prop_assert!(right.values().filter(|signers| signers.len() >= 3).count() <= 1);
    }
}
