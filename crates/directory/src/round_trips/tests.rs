//! Many clients choose, by what each has measured: who is preferred, by how much, and what stays as it is. All seeds are fixed.

use std::{collections::HashMap, sync::LazyLock, time::Instant};

use hoplite_wire::directory::Descriptor;

use super::*;
use crate::{
    Moment, PathChooser,
    path_selection::{Apart, OverlayKind},
    testing::{key, list, public, said},
};

const NOW: u64 = 1_700_000_000;

/// Each its own operator and /16; `change` says what is different.
fn network(relays: u8, change: impl Fn(u8, &mut Descriptor)) -> Network {
    let relays = (1..=relays).map(|n| {
        let mut relay = said(n);
        relay.operator = Some(format!("operator{n}"));
        change(n, &mut relay);
        crate::sign_descriptor(relay, &key(n)).expect("signed")
    });
    Network::of(&list(NOW, &relays.collect::<Vec<_>>()))
}

fn is_ingress(relay: &mut Descriptor) {
    relay.roles.egress = false;
    relay.exit = None;
}

fn is_exit(relay: &mut Descriptor) {
    relay.roles.ingress = false;
}

fn now() -> Moment {
    Moment {
        calendar: NOW,
        steady: Instant::now(),
    }
}

fn two() -> PathConstraints {
    PathConstraints {
        hops: 2,
        ..PathConstraints::default()
    }
}

fn seeded(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut random = hoplite_testing::seeded(seed);
    move |below| random() % below
}

/// The last relays of a client's next 200 paths, by how far relays are from it.
fn exits(
    network: &Network,
    constraints: &PathConstraints,
    millis: impl Fn(u8) -> u32,
    random: Random<'_>,
) -> Vec<u8> {
    let mut chooser = PathChooser::unguarded();
    for exit in chooser.exits_to_measure(network, constraints, now(), random) {
        chooser.exit_measured(&exit, millis(number(&exit)));
    }
    let mut exit = || {
        let path = chooser.select_path(network, constraints, &[], now(), random);
        number(&path.expect("possible").last().expect("one").identity)
    };
    (0..200).map(|_| exit()).collect()
}

fn number(identity: &Key) -> u8 {
    static NUMBERS: LazyLock<HashMap<Key, u8>> =
        LazyLock::new(|| (1..100).map(|n| (public(n), n)).collect());
    *NUMBERS.get(identity).expect("one of ours")
}

/// How often each is there, of a thousand.
fn shares(those: impl IntoIterator<Item = u8>) -> HashMap<u8, usize> {
    let (mut shares, mut all) = (HashMap::<u8, usize>::new(), 0);
    for one in those {
        *shares.entry(one).or_default() += 1;
        all += 1;
    }
    shares
        .values_mut()
        .for_each(|share| *share = *share * 1000 / all);
    shares
}

/// Of many clients, each with candidates of its own.
fn shares_of_exits(
    network: &Network,
    clients: u64,
    millis: impl Fn(u8) -> u32,
) -> HashMap<u8, usize> {
    let of = |seed| exits(network, &two(), &millis, &mut seeded(seed));
    shares((0..clients).flat_map(of))
}

#[test]
fn nearer_exits_are_taken_more_often_and_none_always() {
    let relays = network(5, |n, relay| {
        if n <= 2 {
            is_ingress(relay)
        } else {
            is_exit(relay)
        }
    });
    let shares = shares_of_exits(&relays, 50, |n| if n == 3 { 10 } else { 150 });
    assert!((700..980).contains(&shares[&3]), "{shares:?}");
    assert!(shares[&4] > 10 && shares[&5] > 10, "{shares:?}");
}

#[test]
fn exits_that_are_as_far_are_taken_by_capacity() {
    let relays = network(5, |n, relay| match n {
        1 | 2 => is_ingress(relay),
        3 => {
            is_exit(relay);
            relay.bandwidth *= 3;
        }
        _ => is_exit(relay),
    });
    // Some milliseconds are no difference.
    let shares = shares_of_exits(&relays, 50, |n| 40 + u32::from(n % 2));
    assert!((550..650).contains(&shares[&3]), "{shares:?}");
    assert!((150..250).contains(&shares[&4]), "{shares:?}");
}

#[test]
fn one_that_is_far_away_does_not_win_by_its_capacity() {
    let relays = network(4, |n, relay| match n {
        1 | 2 => is_ingress(relay),
        3 => {
            is_exit(relay);
            relay.bandwidth = 10_000_000;
        }
        _ => {
            is_exit(relay);
            relay.bandwidth = 10_000;
        }
    });
    let shares = shares_of_exits(&relays, 50, |n| if n == 3 { 300 } else { 10 });
    assert!(shares[&4] > 600, "{shares:?}");
}

#[test]
fn who_answers_faster_than_all_others_gets_three_times_his_share_at_most() {
    let relays = network(42, |n, relay| {
        if n <= 2 {
            is_ingress(relay)
        } else {
            is_exit(relay)
        }
    });
    let shares = shares_of_exits(&relays, 400, |n| if n == 3 { 0 } else { 200 });
    // A fortieth is 25.
    assert!((50..=90).contains(&shares[&3]), "{shares:?}");
}

#[test]
fn a_path_of_near_relays_keeps_its_region_and_has_two_operators() {
    let relays = network(12, |n, relay| {
        relay.region = Some(["DE-BE", "de", "FR"][usize::from(n % 3)].into());
        relay.operator = Some(format!("operator{}", n % 4));
    });
    let constraints = PathConstraints {
        region: Some("DE".into()),
        ..two()
    };
    for seed in 0..20 {
        let random = &mut seeded(seed);
        let mut chooser = PathChooser::guarded(Vec::new());
        let guards = chooser.guards_to_measure(&relays, &constraints, now(), random);
        assert_eq!(guards.len(), CANDIDATES);
        let near = |guard: Key| (guard, Some(u32::from(number(&guard))));
        let measured: Vec<_> = guards.into_iter().map(near).collect();
        chooser.guards_measured(&relays, &measured, random);
        for exit in chooser.exits_to_measure(&relays, &constraints, now(), random) {
            chooser.exit_measured(&exit, u32::from(number(&exit)) * 20);
        }
        for _ in 0..50 {
            let path = chooser.select_path(&relays, &constraints, &[], now(), random);
            let path = path.expect("possible");
            assert_ne!(path[0].operator, path[1].operator);
            assert_ne!(path[1].region.as_deref(), Some("FR"));
        }
    }
}

#[test]
fn a_country_stands_for_its_parts_and_for_nothing_else() {
    let last = |region: &str, wanted: &str| {
        let relays = network(1, |_, relay| relay.region = Some(region.into()));
        let constraints = PathConstraints {
            hops: 1,
            region: Some(wanted.into()),
            ..PathConstraints::default()
        };
        relays.select_path(&constraints, &mut |_| 0).is_ok()
    };
    for (region, wanted, is_in) in [
        ("DE-BE", "DE", true),
        ("de", "DE", true),
        ("DE", "DE-BE", false),
        ("DEN", "DE", false),
        ("D", "DE", false),
        ("DE-BE", "DE-BY", false),
    ] {
        assert_eq!(last(region, wanted), is_in, "{region} for {wanted}");
    }
    // Relays of a country and of a part of it are not known to be apart.
    let relays = network(2, |n, relay| {
        relay.region = Some(["DE", "DE-BE"][usize::from(n % 2)].into())
    });
    let apart = Apart {
        region: true,
        ..Apart::hardly()
    };
    let constraints = PathConstraints { apart, ..two() };
    assert!(relays.select_path(&constraints, &mut |_| 0).is_err());
}

/// The first guard of a client, of whose guards these are so far.
fn first_guard(network: &Network, millis: impl Fn(u8) -> Option<u32>, seed: u64) -> u8 {
    let (random, mut chooser) = (&mut seeded(seed), PathChooser::guarded(Vec::new()));
    let guards = chooser.guards_to_measure(network, &two(), now(), random);
    let measured = guards
        .into_iter()
        .map(|guard| (guard, millis(number(&guard))));
    chooser.guards_measured(network, &measured.collect::<Vec<_>>(), random);
    let path = chooser.select_path(network, &two(), &[], now(), random);
    number(&path.expect("possible")[0].identity)
}

#[test]
fn the_first_guard_is_probably_the_nearest_of_three_and_one_that_answers_fast_is_not_everybodys() {
    let relays = network(43, |n, relay| {
        if n <= 40 {
            is_ingress(relay)
        } else {
            is_exit(relay)
        }
    });
    let far = |n: u8| Some(u32::from(n) * 10);
    let plain = (0..500).map(|seed| first_guard(&relays, |_| Some(50), seed));
    let near = (0..500).map(|seed| first_guard(&relays, far, seed));
    let mean =
        |guards: Vec<u8>| guards.iter().map(|n| usize::from(*n)).sum::<usize>() / guards.len();
    let (plain, near) = (mean(plain.collect()), mean(near.collect()));
    assert!((17..=24).contains(&plain), "{plain}");
    assert!(near <= 14, "{near}");
    let liar = |n: u8| Some(if n == 7 { 0 } else { 300 });
    let shares = shares((0..1000).map(|seed| first_guard(&relays, liar, seed)));
    assert!((40..=95).contains(&shares[&7]), "{shares:?}");
    // Who does not answer is nobody's while others do.
    let silent = |n: u8| (n != 7).then_some(100);
    assert!((0..500).all(|seed| first_guard(&relays, silent, seed) != 7));
}

#[test]
fn guards_are_measured_when_they_are_drawn_and_stay_whatever_is_measured_later() {
    let relays = network(20, |_, _| {});
    let (random, mut chooser) = (&mut seeded(1), PathChooser::guarded(Vec::new()));
    let guards = chooser.guards_to_measure(&relays, &two(), now(), random);
    assert_eq!(guards.len(), CANDIDATES);
    let measured: Vec<_> = guards.iter().map(|guard| (*guard, Some(30))).collect();
    chooser.guards_measured(&relays, &measured, random);
    let kept = |chooser: &PathChooser| chooser.kept().expect("guards");
    let order = kept(&chooser);
    assert_eq!(
        chooser.guards_to_measure(&relays, &two(), now(), random),
        []
    );
    // Nor are those of an earlier start, or of an earlier version.
    let mut again = PathChooser::guarded(order.clone());
    assert_eq!(again.guards_to_measure(&relays, &two(), now(), random), []);
    assert_eq!(kept(&again), order);
    // One that has carried something is never displaced, though another says it is nearer.
    again.guard_worked(&order[0].identity, now(), random);
    again.guards_measured(&relays, &[(order[1].identity, Some(1))], random);
    assert_eq!(kept(&again)[0].identity, order[0].identity);
}

#[test]
fn exits_are_measured_once_a_day_and_only_where_there_is_a_choice() {
    let relays = network(20, |_, _| {});
    let (random, mut chooser) = (&mut seeded(1), PathChooser::unguarded());
    let exits = chooser.exits_to_measure(&relays, &two(), now(), random);
    assert_eq!(exits.len(), CANDIDATES);
    exits
        .iter()
        .for_each(|exit| chooser.exit_measured(exit, 10));
    assert_eq!(chooser.exits_to_measure(&relays, &two(), now(), random), []);
    let next = Moment {
        calendar: NOW + 86_400,
        ..now()
    };
    assert_eq!(
        chooser
            .exits_to_measure(&relays, &two(), next, random)
            .len(),
        CANDIDATES
    );
    let one = network(1, |_, _| {});
    assert_eq!(chooser.exits_to_measure(&one, &two(), now(), random), []);
}

#[test]
fn circuits_take_their_exits_by_capacity_alone() {
    let relays = network(30, |n, relay| relay.onion = Some([n; 32]));
    let overlay = OverlayKind::Onion;
    let constraints = PathConstraints { overlay, ..two() };
    let different = shares(exits(&relays, &constraints, |_| 1, &mut seeded(3))).len();
    assert!(different > 2 * CANDIDATES, "{different}");
    let different = shares(exits(&relays, &two(), |_| 1, &mut seeded(3))).len();
    assert!(different <= CANDIDATES, "{different}");
}
