//! Guards over months, outages and restarts, by a clock that is handed in.

use super::*;
use crate::{
    Store,
    testing::{descriptor, list, public},
};

const NOW: u64 = 1_700_000_000;
const MINUTE: u64 = 60;
const HOUR: u64 = 3600;

fn network(relays: impl IntoIterator<Item = u8>) -> Network {
    let relays: Vec<_> = relays.into_iter().map(descriptor).collect();
    Network::of(&list(NOW, &relays))
}

fn pick(guards: &mut Guards, network: &Network, now: u64) -> Key {
    let constraints = PathConstraints {
        hops: 2,
        ..PathConstraints::default()
    };
    guards
        .pick(network, &constraints, now, &mut |below| below / 2)
        .expect("there is one")
}

fn worked(guards: &mut Guards, guard: &Key, now: u64) -> bool {
    guards.worked(guard, now, &mut |_| 0)
}

#[test]
fn when_a_guard_first_carried_a_circuit_is_kept_less_exactly_than_to_six_days() {
    let (mut guards, network) = (Guards::default(), network(1..=20));
    let first = pick(&mut guards, &network, NOW);
    guards.worked(&first, NOW, &mut |below| below - 1);
    let confirmed = guards.kept()[0].confirmed.expect("confirmed");
    assert_eq!(NOW - confirmed, GUARD_CONFIRMED_MIN_LIFETIME / 10 - 1);
}

/// The order in which they would be used if each failed in turn.
fn order(guards: &Guards) -> Vec<Key> {
    guards.kept().iter().map(|guard| guard.identity).collect()
}

#[test]
fn a_guard_stays_whoever_else_comes_and_whatever_else_restarts() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("cache");
    let mut guards = Guards::default();
    let first = pick(&mut guards, &network(1..=9), NOW);
    assert!(worked(&mut guards, &first, NOW), "for the first time");
    assert!(!worked(&mut guards, &first, NOW + 1));
    let mut store = Store::open(&path).expect("made");
    store.keep_guards(&guards.kept()).expect("kept");
    drop(store);
    let kept = Store::open(&path).expect("opened").guards().expect("read");
    let mut again = Guards::new(kept);
    assert_eq!(order(&again), order(&guards));
    assert_eq!(
        pick(
            &mut again,
            &network(1..=200),
            NOW + GUARD_CONFIRMED_MIN_LIFETIME
        ),
        first
    );
    assert_eq!(order(&again), order(&guards), "nobody was added");
}

#[test]
fn a_guard_that_is_away_for_an_hour_is_tried_every_ten_minutes_and_come_back_to() {
    let (mut guards, network) = (Guards::default(), network(1..=20));
    let first = pick(&mut guards, &network, NOW);
    worked(&mut guards, &first, NOW);
    let mut tried = 0;
    for second in 0..HOUR {
        let guard = pick(&mut guards, &network, NOW + second);
        if guard == first {
            tried += 1;
            guards.failed(&first, NOW + second);
        } else {
            worked(&mut guards, &guard, NOW + second);
            assert_eq!(guard, order(&guards)[1], "the next in order, and no third");
        }
    }
    assert_eq!(tried, 6);
    assert_eq!(pick(&mut guards, &network, NOW + HOUR), first);
    worked(&mut guards, &first, NOW + HOUR);
    assert_eq!(pick(&mut guards, &network, NOW + HOUR + 1), first);
}

#[test]
fn the_longer_a_guard_fails_the_longer_it_rests_and_others_than_the_first_three_rest_longer() {
    let mut reach = Reach::Maybe;
    let mut tried = Vec::new();
    for minute in 0..8 * 24 * 60 {
        reach.rest(true, minute * MINUTE);
        if !reach.is_failing() {
            tried.push(minute);
            reach.fail(minute * MINUTE);
        }
    }
    let pauses: Vec<u64> = tried.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let count = |pause| pauses.iter().filter(|&&found| found == pause).count();
    assert_eq!(
        (count(10), count(90), count(240), count(540)),
        (36, 60, 18, 2)
    );
    reach = Reach::Maybe;
    reach.fail(0);
    reach.rest(false, HOUR - 1);
    assert!(reach.is_failing());
    reach.rest(false, HOUR);
    assert!(!reach.is_failing());
}

#[test]
fn a_guard_behind_which_too_many_fail_rests_for_nine_hours() {
    let (mut guards, network) = (Guards::default(), network(1..=20));
    let first = pick(&mut guards, &network, NOW);
    worked(&mut guards, &first, NOW);
    guards.put_off(&first, NOW);
    let next = pick(&mut guards, &network, NOW + 1);
    assert_ne!(next, first);
    worked(&mut guards, &next, NOW + 1);
    assert_eq!(pick(&mut guards, &network, NOW + 9 * HOUR - 1), next);
    assert_eq!(pick(&mut guards, &network, NOW + 9 * HOUR), first);
}

#[test]
fn a_guard_that_is_put_off_does_not_come_back_when_the_network_or_the_device_was_away() {
    let (mut guards, network) = (Guards::default(), network(1..=20));
    let first = pick(&mut guards, &network, NOW);
    worked(&mut guards, &first, NOW);
    guards.put_off(&first, NOW);
    // All others fail at once.
    for second in 1..=20 {
        let used = pick(&mut guards, &network, NOW + second);
        assert_ne!(used, first);
        guards.failed(&used, NOW + second);
    }
    // The device slept for an hour.
    let next = pick(&mut guards, &network, NOW + HOUR);
    worked(&mut guards, &next, NOW + HOUR);
    assert_ne!(pick(&mut guards, &network, NOW + HOUR + 1), first);
    assert_eq!(guards.kept().len(), 8, "no others are drawn");
}

#[test]
fn after_an_outage_of_the_network_the_first_guard_is_used_again_at_once() {
    let (mut guards, network) = (Guards::default(), network(1..=20));
    let first = pick(&mut guards, &network, NOW);
    worked(&mut guards, &first, NOW);
    // Everything fails for a quarter of an hour, and the third guard is the first to answer.
    let back = NOW + 900;
    for second in [880, 881, 882] {
        let guard = pick(&mut guards, &network, NOW + second);
        guards.failed(&guard, NOW + second);
    }
    let lucky = pick(&mut guards, &network, back);
    assert_ne!(lucky, first);
    worked(&mut guards, &lucky, back);
    assert_eq!(pick(&mut guards, &network, back + 1), first);
}

#[test]
fn if_all_fail_the_first_is_tried_again() {
    let (mut guards, network) = (Guards::default(), network(1..=4));
    let mut tried = Vec::new();
    for second in 0..5 {
        let guard = pick(&mut guards, &network, NOW + second);
        guards.failed(&guard, NOW + second);
        tried.push(guard);
    }
    assert_eq!(tried[4], tried[0]);
    tried.truncate(4);
    tried.sort_unstable();
    tried.dedup();
    assert_eq!(tried.len(), 4, "each once before");
}

#[test]
fn who_makes_guards_fail_gets_no_further_than_those_that_were_sampled() {
    let (mut guards, network) = (Guards::default(), network(1..=50));
    pick(&mut guards, &network, NOW);
    let sampled = order(&guards);
    for second in 0..100 {
        let guard = pick(&mut guards, &network, NOW + second);
        guards.failed(&guard, NOW + second);
    }
    assert_eq!(
        (sampled.len(), order(&guards)),
        (MIN_FILTERED_SAMPLE, sampled)
    );
}

#[test]
fn who_takes_guards_off_the_list_gets_no_further_than_twenty() {
    let mut guards = Guards::default();
    for n in 0..9 {
        let others = network(n * 20 + 1..=n * 20 + 20);
        let constraints = PathConstraints::default();
        guards.pick(&others, &constraints, NOW + u64::from(n), &mut |below| {
            below / 2
        });
    }
    assert_eq!(guards.kept().len(), MAX_SAMPLE_SIZE);
}

#[test]
fn those_that_have_carried_circuits_come_first_in_that_order() {
    let (mut guards, network) = (Guards::default(), network(1..=20));
    pick(&mut guards, &network, NOW);
    let sampled = order(&guards);
    worked(&mut guards, &sampled[5], NOW);
    worked(&mut guards, &sampled[2], NOW + 1);
    worked(&mut guards, &sampled[0], NOW + 2);
    let rest = [1, 3, 4, 6, 7];
    let expected: Vec<Key> = [5, 2, 0].iter().chain(&rest).map(|&n| sampled[n]).collect();
    assert_eq!(order(&guards), expected);
}

#[test]
fn a_guard_off_the_list_waits_20_days_for_its_return() {
    let mut guards = Guards::default();
    let first = pick(&mut guards, &network([1]), NOW);
    assert_eq!(first, public(1));
    assert_eq!(pick(&mut guards, &network([2]), NOW + 1), public(2));
    assert_eq!(pick(&mut guards, &network([1, 2]), NOW + 2), first);
    assert_eq!(pick(&mut guards, &network([2]), NOW + 3), public(2));
    let later = NOW + 4 + REMOVE_UNLISTED_GUARDS_AFTER;
    assert_eq!(pick(&mut guards, &network([2]), later), public(2));
    assert_eq!(order(&guards), [public(2)]);
}

#[test]
fn a_guard_is_replaced_after_120_days_but_not_before_60_of_use() {
    let (mut guards, network) = (Guards::default(), network(1..=3));
    let first = pick(&mut guards, &network, NOW);
    let chosen = guards.kept()[0].chosen;
    assert!(chosen <= NOW && NOW - chosen <= GUARD_LIFETIME / 10);
    worked(&mut guards, &first, chosen + GUARD_LIFETIME - 1);
    pick(&mut guards, &network, chosen + GUARD_LIFETIME + 1);
    let kept = guards.kept();
    assert_eq!(kept[0].identity, first, "it has just begun");
    assert!(kept[1..].iter().all(|guard| guard.chosen > chosen));
    pick(
        &mut guards,
        &network,
        chosen + GUARD_LIFETIME + GUARD_CONFIRMED_MIN_LIFETIME,
    );
    assert!(guards.kept().iter().all(|guard| guard.confirmed.is_none()));
}
