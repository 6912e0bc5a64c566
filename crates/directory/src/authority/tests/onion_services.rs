//! What lists say for onion services: shared random values, among authorities that are absent or lie, and who is an HSDir.

use std::collections::BTreeMap;

use hoplite_crypto::shared_random::{commitment, reveal, shared_random_value};
use hoplite_wire::directory::{List, SharedRandomLines};

use super::*;
use crate::authority::tally;

const RUN: u64 = 4 * INTERVAL;
/// A run begins.
const BEGINS: u64 = START / RUN * RUN + RUN;

fn published(authority: &Authority) -> List {
    let text = text(authority).expect("a list");
    let list = SignedList::parse(&text, Stage::List).expect("a list");
    list.list
}

fn values(authority: &Authority) -> (Option<[u8; 32]>, Option<[u8; 32]>) {
    let said = published(authority).shared_random;
    (said.previous, said.current)
}

/// The list that begins so many intervals after the run.
fn list_at(authorities: &mut [Authority], intervals: u64) {
    period(authorities, BEGINS + intervals * INTERVAL, everybody);
}

#[test]
fn each_run_has_a_value_that_all_authorities_agree_on_and_the_list_has_the_one_before_too() {
    let mut three = authorities(3, 2);
    list_at(&mut three, 0);
    assert_eq!(values(&three[0]), (None, None), "nobody had committed");
    let mut runs = Vec::new();
    for n in 1..12 {
        list_at(&mut three, n);
        let lists: Vec<_> = three.iter().map(Authority::list).collect();
        assert!(lists.iter().all(|list| *list == lists[0]));
        runs.push(values(&three[0]));
    }
    let (first, second, third) = (runs[0].1, runs[3].1, runs[7].1);
    assert!(first.is_some() && second.is_some() && third.is_some());
    assert!(first != second && second != third);
    // Within a run nothing changes.
    assert!(runs[..3].iter().all(|run| *run == (None, first)));
    assert!(runs[3..7].iter().all(|run| *run == (first, second)));
    assert!(runs[7..].iter().all(|run| *run == (second, third)));
}

#[test]
fn a_run_whose_first_list_was_missed_gets_its_value_with_the_next_that_can_make_it() {
    let mut three = authorities(3, 2);
    list_at(&mut three, 2);
    list_at(&mut three, 3);
    let before = values(&three[0]).1;
    // Nobody reaches anybody: no list for the time that the run begins.
    period(&mut three, BEGINS + RUN, |_, _| false);
    list_at(&mut three, 5);
    assert_eq!(values(&three[0]), (before, None));
    list_at(&mut three, 6);
    let (previous, made) = values(&three[0]);
    assert!(previous == before && made.is_some() && made != before);
    list_at(&mut three, 7);
    assert_eq!(values(&three[0]), (before, made));
}

#[test]
fn an_authority_that_knows_no_list_takes_the_values_from_the_others_votes() {
    let mut three = authorities(3, 2);
    (0..2).for_each(|n| list_at(&mut three, n));
    let before = values(&three[0]);
    three[2] = Authority::new(config(3, 3, 2), Promise::forgetful(), BEGINS + INTERVAL);
    list_at(&mut three, 2);
    assert!(before.1.is_some());
    assert_eq!(values(&three[2]), before);
    assert_eq!(three[2].list(), three[0].list());
}

#[test]
fn a_directory_without_onion_services_says_nothing_for_them() {
    let new = |n| {
        let config = Config {
            hsdir_interval: 0,
            ..config(n, 3, 2)
        };
        Authority::new(config, Promise::forgetful(), START - INTERVAL)
    };
    let mut three: Vec<_> = (1..=3).map(new).collect();
    (0..2).for_each(|n| list_at(&mut three, n));
    let list = text(&three[0]).expect("a list");
    assert!(!list.contains("shared-random") && !list.contains("hsdir-interval"));
}

// Votes by hand: what a liar among three can do about the value.

fn none() -> Relays {
    Relays {
        all: Vec::new(),
        opinions: BTreeMap::new(),
    }
}

fn votes(last: Option<&List>, at: u64) -> BTreeMap<Key, List> {
    let vote = |n| (public(n), tally::vote(&config(n, 3, 2), last, at, none()));
    (1..=3).map(vote).collect()
}

fn agreed(votes: &BTreeMap<Key, List>, at: u64) -> List {
    let votes = votes.iter().map(|(voter, vote)| (*voter, vote)).collect();
    tally::agreed(&votes, &config(1, 3, 2), at)
}

/// The value that the reveals of these authorities make.
fn made_by(authorities: &[u8], at: u64, previous: Option<[u8; 32]>) -> Option<[u8; 32]> {
    let reveals = authorities.iter();
    let reveals = reveals.map(|n| (public(*n).0, reveal(&key(*n), at)));
    Some(shared_random_value(&reveals.collect(), previous.as_ref()))
}

/// The list before a run, and the votes for the run's first.
fn before_a_run() -> (List, BTreeMap<Key, List>) {
    let last = agreed(&votes(None, BEGINS - INTERVAL), BEGINS - INTERVAL);
    let votes = votes(Some(&last), BEGINS);
    (last, votes)
}

fn lie(votes: &mut BTreeMap<Key, List>, lie: impl FnOnce(&mut SharedRandomLines)) {
    let vote = votes.get_mut(&public(3)).expect("there");
    lie(&mut vote.shared_random);
}

#[test]
fn who_reveals_another_value_than_it_committed_to_adds_nothing() {
    let (_, mut votes) = before_a_run();
    let honest = made_by(&[1, 2, 3], BEGINS, None);
    assert_eq!(agreed(&votes, BEGINS).shared_random.current, honest);
    let without = made_by(&[1, 2], BEGINS, None);
    for chosen in [[0; 32], [7; 32], reveal(&key(2), BEGINS)] {
        lie(&mut votes, |said| {
            // It says that it had committed to this, too.
            said.commitments.insert(public(3), commitment(&chosen));
            said.own.as_mut().expect("there").reveal = chosen;
        });
        assert_eq!(agreed(&votes, BEGINS).shared_random.current, without);
    }
    // What is left to it: not to reveal at all.
    lie(&mut votes, |said| said.own = None);
    assert_eq!(agreed(&votes, BEGINS).shared_random.current, without);
}

#[test]
fn who_did_not_commit_in_the_list_before_adds_nothing() {
    let at = BEGINS - INTERVAL;
    let mut first = votes(None, at);
    first.remove(&public(3));
    let last = agreed(&first, at);
    let votes = votes(Some(&last), BEGINS);
    let current = agreed(&votes, BEGINS).shared_random.current;
    assert_eq!(current, made_by(&[1, 2], BEGINS, None));
}

#[test]
fn one_liar_changes_no_value_that_the_others_know_nor_their_commitments() {
    let (last, mut votes) = before_a_run();
    lie(&mut votes, |said| {
        (said.previous, said.current) = (Some([8; 32]), Some([9; 32]));
        for value in said.commitments.values_mut() {
            *value = [7; 32];
        }
    });
    let made = agreed(&votes, BEGINS);
    assert_eq!(made.shared_random.previous, last.shared_random.current);
    let all = made_by(&[1, 2, 3], BEGINS, made.shared_random.previous);
    assert_eq!(made.shared_random.current, all);
    // Nor when the run has its value.
    let mut votes = self::votes(Some(&made), BEGINS + INTERVAL);
    lie(&mut votes, |said| said.current = None);
    let next = agreed(&votes, BEGINS + INTERVAL).shared_random;
    assert_eq!(next.current, made.shared_random.current);
}

#[test]
fn fewer_reveals_than_the_threshold_make_no_value() {
    let (_, mut votes) = before_a_run();
    for n in [2, 3] {
        let vote = votes.get_mut(&public(n)).expect("there");
        vote.shared_random.own = None;
    }
    assert_eq!(agreed(&votes, BEGINS).shared_random.current, None);
}

// HSDirs.

/// What relay `n` says if it keeps descriptors of onion services, or not.
fn says(n: u8, hsdir: bool, published: u64) -> String {
    let relay = Descriptor {
        hsdir,
        published,
        ..of_circuits(n)
    };
    let signed = sign_descriptor(relay, &key(n)).expect("signed");
    signed.to_string()
}

fn hand_in(authority: &mut Authority, text: &str, now: u64) {
    authority.upload(text, None, FROM, now).expect("taken");
}

fn hsdirs(authority: &Authority) -> Vec<Key> {
    let list = published(authority);
    list.flagged(RelayFlags::HSDIR).copied().collect()
}

#[test]
fn a_relay_is_an_hsdir_when_most_authorities_have_found_it_there_for_long_enough_and_it_says_so() {
    let mut three = authorities(3, 2);
    let early = BEGINS - 2 * INTERVAL;
    // Relay 11 is known to all, 12 says nothing of descriptors, 13 is known to one for long enough and to the others not.
    for (place, authority) in three.iter_mut().enumerate() {
        hand_in(authority, &says(11, true, early), early);
        hand_in(authority, &says(12, false, early), early);
        if place == 0 {
            hand_in(authority, &says(13, true, early), early);
        }
        test(authority, early, |_| true);
    }
    for authority in &mut three[1..] {
        hand_in(authority, &says(13, true, early + 1), early + 1);
        test(authority, early + 1, |_| true);
    }
    period(&mut three, BEGINS - INTERVAL, everybody);
    assert_eq!(hsdirs(&three[0]), []);
    period(&mut three, BEGINS, everybody);
    assert_eq!(hsdirs(&three[0]), [public(11)]);
    period(&mut three, BEGINS + INTERVAL, everybody);
    let mut both = [public(11), public(13)];
    both.sort();
    assert_eq!(hsdirs(&three[0]), both);
}

#[test]
fn how_long_a_relay_is_there_survives_a_restart_and_another_address_but_not_its_absence() {
    let mut one = authorities(1, 1).remove(0);
    let early = BEGINS - 2 * INTERVAL;
    hand_in(&mut one, &says(11, true, early), early);
    let probe = one.probes(early).remove(0);
    let noted = one.probed(&probe, true, early);
    assert_eq!(noted, Some(Settled::Since(public(11), early)));
    // A restart: the store has the descriptor and that time. Another test of it notes nothing new.
    let mut again = Authority::new(config(1, 1, 1), Promise::forgetful(), early);
    let text = says(11, true, early);
    again
        .restore(&text, Some(early), early + 60)
        .expect("taken");
    let probe = again.probes(early + 60).remove(0);
    assert_eq!(again.probed(&probe, true, early + 60), None);
    // It moves.
    let mut moved = SignedDescriptor::parse(&says(11, true, early + 70))
        .expect("right")
        .descriptor;
    moved.addresses = vec![([10, 99, 0, 1], 443).into()];
    let moved = sign_descriptor(moved, &key(11)).expect("signed");
    hand_in(&mut again, &moved.to_string(), early + 80);
    test(&mut again, early + 80, |_| true);
    period(std::slice::from_mut(&mut again), BEGINS, everybody);
    assert_eq!(hsdirs(&again), [public(11)]);
    // It is not found for long, is forgotten, and comes back.
    let late = BEGINS + 4 * INTERVAL;
    test(&mut again, late - INTERVAL, |_| false);
    assert_eq!(again.forget(late), [public(11)]);
    hand_in(&mut again, &says(11, true, late), late);
    test(&mut again, late, |_| true);
    period(std::slice::from_mut(&mut again), late + INTERVAL, everybody);
    assert_eq!(hsdirs(&again), []);
}

#[test]
fn the_flag_goes_with_what_the_relay_says_in_the_form_that_is_listed() {
    let of = |n: u8, hsdir, published| {
        let text = says(11, hsdir, published);
        let relay = SignedDescriptor::parse(&text).expect("right");
        let opinion = Opinion {
            flags: RelayFlags::NONE.with_if(RelayFlags::HSDIR, hsdir),
            measured: None,
        };
        let relays = Relays {
            all: vec![relay],
            opinions: BTreeMap::from([(public(11), opinion)]),
        };
        let vote = tally::vote(&config(n, 5, 3), None, BEGINS, relays);
        (public(n), vote)
    };
    // Three of five would have it as an HSDir, each by another descriptor; most have the one in which it keeps none any more.
    let mut votes = BTreeMap::from([of(1, true, 1), of(2, true, 2), of(3, true, 3)]);
    votes.extend([of(4, false, 4), of(5, false, 4)]);
    let votes = votes.iter().map(|(voter, vote)| (*voter, vote)).collect();
    let list = tally::agreed(&votes, &config(1, 5, 3), BEGINS);
    assert_eq!(list.relays.len(), 1);
    assert!(!list.relays[0].descriptor.hsdir && list.opinions.is_empty());
    let list = SignedList {
        list,
        signatures: BTreeMap::new(),
    };
    assert!(SignedList::parse(&list.to_string(), Stage::List).is_ok());
}
