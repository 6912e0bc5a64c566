//! What authorities say of relays: flags, and what was measured.

use std::collections::BTreeMap;

use hoplite_wire::{
    directory::{List, Opinion, RelayFlags},
    tor::bandwidth_file::BandwidthFile,
};

use super::*;
use crate::path_selection::{Network, OverlayKind, PathConstraints, Position};

/// A scanner's file, of when, with what it has measured of relays by number, in thousands of bytes a second.
fn file(at: u64, measured: &[(u8, u64)]) -> BandwidthFile {
    let line = |(n, bandwidth): &(u8, u64)| {
        let relay = hoplite_wire::tor::bandwidth_file::RelayName::Ed25519(public(*n).0);
        let more = Default::default();
        hoplite_wire::tor::bandwidth_file::RelayLine {
            relay,
            bandwidth: *bandwidth,
            votes: *bandwidth != 7,
            more,
        }
    };
    BandwidthFile {
        timestamp: at,
        header: Default::default(),
        relays: measured.iter().map(line).collect(),
    }
}

/// Three authorities that know relays 11 to 14, and have these files; the list that they make.
fn list(files: [Option<BandwidthFile>; 3], may: impl Fn(usize, usize) -> bool + Copy) -> List {
    let mut three = authorities(3, 2);
    for (authority, file) in three.iter_mut().zip(files) {
        for n in 11..=14 {
            let mut said = said(n);
            said.published = START - INTERVAL;
            let text = sign_descriptor(said, &key(n)).expect("signed").to_string();
            authority
                .restore(&text, None, START - INTERVAL)
                .expect("taken");
        }
        test(authority, START - INTERVAL, |_| true);
        if let Some(file) = file {
            authority.measured(&file);
        }
    }
    period(&mut three, START, may);
    let text = three[0].list().expect("a list");
    let text = String::from_utf8(text.to_vec()).expect("text");
    SignedList::parse(&text, Stage::List).expect("right").list
}

fn measured(list: &List, n: u8) -> Option<u64> {
    list.opinion(&public(n)).measured
}

#[test]
fn a_scanner_that_lies_gives_nobody_more_than_an_honest_one_does() {
    let honest = |of| Some(file(START, &[(11, 100), (12, 200), (13, of)]));
    let liar = Some(file(
        START,
        &[(11, 1_000_000), (12, 1), (14, 1_000_000), (13, 9)],
    ));
    let list = list([honest(10), liar, honest(11)], everybody);
    assert_eq!(measured(&list, 11), Some(100_000));
    assert_eq!(measured(&list, 12), Some(200_000));
    assert_eq!(measured(&list, 13), Some(10_000));
    assert_eq!(measured(&list, 14), None, "it alone has measured it");
}

#[test]
fn an_authority_that_keeps_its_vote_back_counts_as_the_relays_own_word() {
    let of = |bandwidth| Some(file(START, &[(11, bandwidth)]));
    let silent = |asking: usize, asked: usize| asking != 2 && asked != 2;
    // Each says 1,000,000.
    let other = list([of(100), of(300), of(200)], silent);
    assert_eq!(measured(&other, 11), Some(300_000));
    let more = list([of(1100), of(3000), of(200)], silent);
    assert_eq!(measured(&more, 11), Some(1_100_000));
}

/// Else it would set all weights but its own relays' to nothing.
#[test]
fn a_scanner_that_lies_leaves_relays_what_the_one_honest_scanner_has_measured() {
    let honest = || Some(file(START, &[(11, 100), (12, 200), (13, 300)]));
    let liar = || Some(file(START, &[(11, 0), (12, 0), (13, 1_000_000)]));
    for files in [
        [honest(), liar(), None],
        [honest(), None, liar()],
        [honest(), liar(), Some(file(START, &[(14, 1)]))],
    ] {
        let list = list(files, everybody);
        assert_eq!(measured(&list, 11), Some(100_000));
        assert_eq!(measured(&list, 12), Some(200_000));
        // No more than it says itself.
        assert_eq!(measured(&list, 13), Some(1_000_000));
    }
}

#[test]
fn what_is_old_or_not_to_be_voted_for_is_not_and_one_scanner_of_three_is_too_few() {
    let old = || Some(file(START - 4 * 86_400, &[(11, 100)]));
    assert_eq!(measured(&list([old(), old(), old()], everybody), 11), None);
    let unsure = || Some(file(START, &[(11, 7)]));
    assert_eq!(
        measured(&list([unsure(), unsure(), unsure()], everybody), 11),
        None
    );
    let one = || Some(file(START, &[(11, 100)]));
    assert_eq!(measured(&list([one(), None, None], everybody), 11), None);
    assert_eq!(
        measured(&list([one(), one(), None], everybody), 11),
        Some(100_000)
    );
}

/// How a client sees relays 11 to 14.
fn seen(opinions: &[(u8, RelayFlags, Option<u64>)]) -> Network {
    let relays: Vec<_> = (11..=14).map(descriptor).collect();
    let mut list = crate::testing::list(START, &relays);
    list.opinions = opinions
        .iter()
        .map(|(n, flags, measured)| {
            let opinion = Opinion {
                flags: *flags,
                measured: *measured,
            };
            (public(*n), opinion)
        })
        .collect();
    Network::of(&list)
}

fn fit(network: &Network, position: Position) -> Vec<u8> {
    let constraints = PathConstraints {
        hops: 3,
        overlay: OverlayKind::Masque,
        ..PathConstraints::default()
    };
    let fits = |n: &u8| network.is_fit(&public(*n), position, &constraints);
    (11..=14).filter(fits).collect()
}

#[test]
fn guards_come_first_and_bad_exits_never_last() {
    let none = seen(&[]);
    for position in [Position::Entry, Position::Lasting, Position::Exit] {
        assert_eq!(
            fit(&none, position),
            [11, 12, 13, 14],
            "no flags, no difference"
        );
    }
    let lasting = RelayFlags::STABLE.with(RelayFlags::FAST);
    let some = seen(&[
        (11, lasting.with(RelayFlags::GUARD), None),
        (12, lasting, None),
        (13, RelayFlags::FAST.with(RelayFlags::BAD_EXIT), None),
    ]);
    assert_eq!(fit(&some, Position::Entry), [11]);
    assert_eq!(fit(&some, Position::Lasting), [11, 12]);
    assert_eq!(fit(&some, Position::Exit), [11, 12, 14]);
    assert_eq!(fit(&some, Position::Middle), [11, 12, 13, 14]);
}

#[test]
fn what_was_measured_is_the_weight_and_a_claim_is_a_cap() {
    let network = seen(&[
        (11, RelayFlags::NONE, Some(400_000)),
        (12, RelayFlags::NONE, Some(9_000_000)),
    ]);
    let bandwidth = |n| network.relay(&public(n)).expect("listed").bandwidth;
    // Each says 1,000,000.
    let bandwidths = [11, 12, 13].map(bandwidth);
    assert_eq!(bandwidths, [400_000, 1_000_000, 20_000]);
    assert_eq!(
        seen(&[]).relay(&public(13)).expect("listed").bandwidth,
        1_000_000
    );
}

#[test]
fn relays_are_on_paths_as_often_as_they_were_measured_to_carry() {
    let measured = [(11, 100_000), (12, 200_000), (13, 400_000)];
    let opinions = measured.map(|(n, measured)| (n, RelayFlags::NONE, Some(measured)));
    let network = seen(&opinions);
    let constraints = PathConstraints {
        hops: 1,
        avoid: [public(14)].into(),
        ..PathConstraints::default()
    };
    let mut state = 1u64;
    let mut random = |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 20) % below
    };
    let mut counts = BTreeMap::<Key, u64>::new();
    for _ in 0..7000 {
        let path = network
            .select_path(&constraints, &mut random)
            .expect("a path");
        *counts.entry(path[0].identity).or_default() += 1;
    }
    for (n, wanted) in [(11, 1000), (12, 2000), (13, 4000)] {
        let found = counts[&public(n)];
        assert!(found.abs_diff(wanted) * 100 <= wanted * 15, "{n}: {found}");
    }
}

/// What one authority votes for relays 11 and 12, of which the second is found for half an hour of every three.
#[test]
fn a_relay_that_flaps_is_not_stable_and_none_of_that_is_lost_by_a_restart() {
    let with_flags = || {
        let mut config = config(1, 1, 1);
        config.flags.vote = true;
        config.flags.guard_known = Duration::from_secs(INTERVAL);
        config
    };
    let mut one = Authority::new(with_flags(), Promise::forgetful(), START - 1);
    let mut now = START;
    let step = |one: &mut Authority, now: u64| {
        let there = (now - START) % (3 * INTERVAL) < 1800;
        for n in [11, 12] {
            let mut said = said(n);
            said.published = now - 1;
            let text = sign_descriptor(said, &key(n)).expect("signed").to_string();
            one.restore(&text, None, now).ok();
        }
        test(one, now, |probe| {
            probe.relay.identity == public(11) || there
        });
        one.forget(now);
    };
    while now < START + 48 * INTERVAL {
        step(&mut one, now);
        now += 600;
    }
    let flags = |one: &mut Authority, now| {
        let opinions = one.opinions(now);
        [11, 12].map(|n| {
            opinions
                .get(&public(n))
                .map(|one| one.flags)
                .unwrap_or_default()
        })
    };
    step(&mut one, now);
    let [stays, flaps] = flags(&mut one, now);
    let all = RelayFlags::STABLE
        .with(RelayFlags::FAST)
        .with(RelayFlags::GUARD);
    assert!(stays.has(all), "{stays:?}");
    assert!(!flaps.has(RelayFlags::STABLE), "{flaps:?}");
    let kept = one.uptimes().to_string();
    let mut again = Authority::new(with_flags(), Promise::forgetful(), now);
    again.remember(Uptimes::restore(&kept, now));
    step(&mut again, now);
    assert_eq!(flags(&mut again, now), [stays, flaps]);
    let unread: BTreeMap<_, _> =
        Authority::new(with_flags(), Promise::forgetful(), now).opinions(now);
    assert!(unread.is_empty());
}
