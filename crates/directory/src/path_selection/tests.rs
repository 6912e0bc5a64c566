//! No constraint is ever broken, and over many paths each relay is chosen as often as its weight says. All seeds are fixed.

mod hostile;

use std::collections::HashMap;

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::testing::{public, said};
use hoplite_wire::directory::{Ports, Roles, Tokens};

fn seeded(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut random = hoplite_testing::seeded(seed);
    move |below| random() % below
}

fn network(mut relays: Vec<Descriptor>) -> Network {
    relays.sort_by_key(|relay| relay.identity);
    let weights = Weights::of(&relays, u64::MAX);
    Network {
        relays,
        weights: Some(weights),
        ..Network::default()
    }
}

fn with(n: u8, change: impl FnOnce(&mut Descriptor)) -> Descriptor {
    let mut relay = said(n);
    change(&mut relay);
    relay
}

fn ingress(n: u8) -> Descriptor {
    with(n, |relay| {
        relay.roles.egress = false;
        relay.exit = None;
    })
}

fn egress(n: u8) -> Descriptor {
    with(n, |relay| relay.roles.ingress = false)
}

fn hops(hops: usize) -> PathConstraints {
    PathConstraints {
        hops,
        ..PathConstraints::default()
    }
}

fn names(path: &[&Descriptor]) -> Vec<String> {
    path.iter().map(|relay| relay.name.clone()).collect()
}

#[test]
fn a_path_begins_with_an_ingress_and_ends_with_an_egress() {
    let network = network(vec![ingress(1), ingress(2), egress(3)]);
    let path = network
        .select_path(&hops(3), &mut seeded(1))
        .expect("possible");
    assert_eq!(names(&path).last().map(String::as_str), Some("relay3"));
    assert_eq!(
        network.select_path(&hops(4), &mut seeded(1)),
        Err(NoPath::Together)
    );
}

#[test]
fn who_is_missing_is_said() {
    let exits = network(vec![egress(1), egress(2)]);
    assert_eq!(
        exits.select_path(&hops(2), &mut seeded(1)),
        Err(NoPath::Nobody(Position::Entry))
    );
    let entries = network(vec![ingress(1), ingress(2)]);
    let error = entries
        .select_path(&hops(2), &mut seeded(1))
        .expect_err("nobody");
    assert_eq!(error, NoPath::Nobody(Position::Exit));
    assert!(error.to_string().contains("last relay") && error.to_string().contains("another port"));
}

#[test]
fn an_exit_must_permit_the_targets_port() {
    let web = with(2, |relay| relay.exit = "80,443".parse().ok());
    let network = network(vec![ingress(1), web, egress(3)]);
    let constraints = PathConstraints {
        ports: vec![25],
        ..hops(2)
    };
    for seed in 0..50 {
        let path = network
            .select_path(&constraints, &mut seeded(seed))
            .expect("possible");
        assert_eq!(path[1].name, "relay3");
    }
}

#[test]
fn family_counts_where_both_say_so() {
    let both = network(vec![
        with(1, |relay| relay.family = vec![public(2)]),
        with(2, |relay| relay.family = vec![public(1)]),
    ]);
    assert_eq!(
        both.select_path(&hops(2), &mut seeded(1)),
        Err(NoPath::Together)
    );
    let one = network(vec![
        with(1, |relay| relay.family = vec![public(2)]),
        said(2),
    ]);
    assert!(one.select_path(&hops(2), &mut seeded(1)).is_ok());
}

#[test]
fn neighbours_operators_and_regions_are_kept_apart_as_asked() {
    let near = with(2, |relay| {
        relay.addresses = vec![([10, 1, 9, 9], 443).into()]
    });
    let here = |n| with(n, |relay| relay.region = Some("de".into()));
    let theirs = |n, name: &str| with(n, |relay| relay.operator = Some(name.into()));
    let six = |n, last: u16| {
        with(n, |relay| {
            relay.addresses = vec![([0x2001, 0xdb8, last, 0, 0, 0, 0, 1], 443).into()]
        })
    };
    let region = PathConstraints {
        apart: Apart {
            region: true,
            ..Apart::default()
        },
        ..hops(2)
    };
    for (relays, constraints) in [
        (vec![said(1), near], hops(2)),
        (vec![six(1, 1), six(2, 2)], hops(2)),
        (vec![theirs(1, "Ann"), theirs(2, "ann")], hops(2)),
        (vec![here(1), here(2)], region),
    ] {
        let network = network(relays);
        assert_eq!(
            network.select_path(&constraints, &mut seeded(1)),
            Err(NoPath::Together)
        );
        let hardly = PathConstraints {
            apart: Apart::hardly(),
            ..constraints
        };
        assert!(network.select_path(&hardly, &mut seeded(1)).is_ok());
    }
}

#[test]
fn one_machine_under_two_identities_is_never_two_hops() {
    let twin = with(2, |relay| relay.pin = Some([1; 32]));
    let constraints = PathConstraints {
        apart: Apart::hardly(),
        ..hops(2)
    };
    assert_eq!(
        network(vec![said(1), twin]).select_path(&constraints, &mut seeded(1)),
        Err(NoPath::Together)
    );
}

#[test]
fn a_guard_is_kept_and_what_fails_is_avoided() {
    let network = network((1..=9).map(said).collect());
    let constraints = PathConstraints {
        entry: Some(public(4)),
        avoid: [public(5), public(6)].into(),
        ..hops(3)
    };
    for seed in 0..100 {
        let path = network
            .select_path(&constraints, &mut seeded(seed))
            .expect("possible");
        assert_eq!(path[0].identity, public(4));
        assert!(
            !path
                .iter()
                .any(|relay| constraints.avoid.contains(&relay.identity))
        );
    }
}

#[test]
fn an_explicit_path_is_taken_as_it_is_if_roles_allow() {
    let network = network(vec![ingress(1), said(2), egress(3)]);
    let path = |names: &[&str]| {
        let path: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        network
            .explicit(&path, &hops(0))
            .map(|path| self::names(&path))
    };
    assert_eq!(
        path(&["relay2", "relay3"]),
        Ok(vec!["relay2".into(), "relay3".into()])
    );
    assert_eq!(
        path(&[&public(1).to_string(), "relay2"]).map(|p| p.len()),
        Ok(2)
    );
    assert_eq!(path(&["relay3", "relay2"]), Err(NoPath::Explicit(0)));
    assert_eq!(path(&["relay2", "relay2"]), Err(NoPath::Explicit(1)));
    assert_eq!(path(&["relay1", "nobody"]), Err(NoPath::Explicit(1)));
}

#[test]
fn a_relay_that_takes_tokens_is_used_only_with_those_of_an_issuer_that_the_client_has() {
    let takes = |n, issuer: &str| {
        with(n, |relay| {
            let (issuer, origin) = (issuer.into(), "a".into());
            relay.tokens = Some(Tokens { issuer, origin });
        })
    };
    let relays = network(vec![takes(1, "known"), takes(2, "other"), said(3)]);
    let having = |issuers: &[&str]| PathConstraints {
        issuers: Some(issuers.iter().map(|&issuer| issuer.to_owned()).collect()),
        ..hops(1)
    };
    let chosen = |constraints: &PathConstraints| {
        let one = |seed| {
            let path = relays.select_path(constraints, &mut seeded(seed));
            names(&path.expect("possible")).concat()
        };
        (0..60).map(one).collect::<BTreeSet<String>>()
    };
    let of = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let all: BTreeSet<String> = of(&["relay1", "relay2", "relay3"]);
    assert_eq!(chosen(&having(&["known"])), of(&["relay1", "relay3"]));
    assert_eq!(chosen(&having(&[])), of(&["relay3"]));
    assert_eq!(chosen(&hops(1)), all, "it is not looked at");
    // Channels of circuits know no tokens.
    let circuits = network(vec![with(1, |relay| {
        *relay = takes(1, "other");
        relay.onion = Some([1; 32]);
    })]);
    let overlay = OverlayKind::Onion;
    let onion = PathConstraints {
        overlay,
        ..having(&[])
    };
    assert!(circuits.select_path(&onion, &mut seeded(1)).is_ok());
    // Why there is none is told plainly.
    let paid = network(vec![takes(1, "other"), takes(2, "another")]);
    let why = paid.select_path(&having(&["known"]), &mut seeded(1));
    let why = why.expect_err("of no issuer that is known");
    assert_eq!(why, NoPath::NoTokens(Position::Exit));
    let told = why.to_string();
    assert!(
        told.contains("takes tokens of an issuer that you have"),
        "{told}"
    );
    let why = paid.explicit(&["relay1".to_owned()], &having(&["known"]));
    assert_eq!(why, Err(NoPath::ExplicitTokens(0)));
    assert!(
        paid.explicit(&["relay1".to_owned()], &having(&["other"]))
            .is_ok()
    );
}

#[test]
fn the_same_seed_makes_the_same_path() {
    let network = network((1..=20).map(said).collect());
    let path = |seed| {
        names(
            &network
                .select_path(&hops(3), &mut seeded(seed))
                .expect("possible"),
        )
    };
    assert_eq!(path(7), path(7));
    assert!((0..20).any(|seed| path(seed) != path(7)));
}

#[test]
fn a_circuit_needs_onion_keys_and_masque_needs_pins() {
    let onion = with(1, |relay| (relay.pin, relay.onion) = (None, Some([1; 32])));
    let network = network(vec![onion]);
    assert_eq!(
        network.select_path(&hops(1), &mut seeded(1)),
        Err(NoPath::Nobody(Position::Exit))
    );
    assert!(
        network
            .select_path(
                &PathConstraints {
                    overlay: OverlayKind::Onion,
                    ..hops(1)
                },
                &mut seeded(1)
            )
            .is_ok()
    );
}

/// How often each relay of 100,000 paths stands in a place, beside what its weight says: no single one off by five standard deviations, and all
/// together no further than one seed in 100,000 would be (chi-square for up to seven degrees of freedom).
fn assert_follows(network: &Network, place: usize, may: impl Fn(&Descriptor) -> bool) {
    const PATHS: u32 = 100_000;
    const CHI_SQUARE: f64 = 36.0;
    let mut random = seeded(42);
    let mut counted = HashMap::<Key, u32>::new();
    for _ in 0..PATHS {
        let path = network
            .select_path(&hops(2), &mut random)
            .expect("possible");
        *counted.entry(path[place].identity).or_default() += 1;
    }
    let those: Vec<_> = network.relays().iter().filter(|relay| may(relay)).collect();
    let weight = |relay: &Descriptor| relay.bandwidth as f64;
    let total: f64 = those.iter().map(|relay| weight(relay)).sum();
    let mut off = 0.0;
    for relay in those {
        let share = weight(relay) / total;
        let expected = share * f64::from(PATHS);
        let found = f64::from(counted.remove(&relay.identity).unwrap_or(0));
        let deviation = (expected * (1.0 - share)).sqrt();
        let name = &relay.name;
        assert!(
            (found - expected).abs() < 5.0 * deviation,
            "{name}: {found} instead of {expected}"
        );
        off += (found - expected).powi(2) / expected;
    }
    assert!(off < CHI_SQUARE, "{off}");
    assert!(counted.is_empty(), "nobody else stands there");
}

#[test]
fn relays_are_chosen_as_often_as_they_can_carry() {
    let fast = |n: u8, relay: Descriptor| Descriptor {
        bandwidth: u64::from(n) * 1_000_000,
        ..relay
    };
    let relays = (1..=4)
        .map(|n| fast(n, ingress(n)))
        .chain((5..=8).map(|n| fast(n, egress(n))));
    let network = network(relays.collect());
    assert_follows(&network, 0, |relay| relay.roles.ingress);
    assert_follows(&network, 1, |relay| relay.roles.egress);
}

#[test]
fn scarce_exits_are_left_to_exits() {
    let scarce = network(vec![
        ingress(1),
        ingress(2),
        ingress(3),
        ingress(4),
        said(5),
    ]);
    let mut random = seeded(3);
    for _ in 0..200 {
        let path = scarce.select_path(&hops(2), &mut random).expect("possible");
        assert_eq!(path[1].name, "relay5");
    }
    assert_eq!(
        scarce
            .weights
            .expect("weighed")
            .of_relay(&said(5), Position::Entry),
        0
    );
    let plenty = network(vec![ingress(1), egress(2), egress(3), said(5)]);
    assert_eq!(
        plenty
            .weights
            .expect("weighed")
            .of_relay(&said(5), Position::Exit),
        0
    );
    assert!(
        network(vec![said(5)])
            .select_path(&hops(1), &mut seeded(1))
            .is_ok()
    );
}

#[test]
fn no_more_is_believed_than_the_lists_cap() {
    let liar = with(1, |relay| relay.bandwidth = u64::MAX);
    let weights = Weights::of(&[liar.clone(), said(2)], 1_000_000);
    assert_eq!(
        weights.of_relay(&liar, Position::Exit),
        weights.of_relay(&said(2), Position::Exit)
    );
}

fn any_relay(n: u8) -> impl Strategy<Value = Descriptor> {
    let words = prop::sample::select(vec![None, Some("a"), Some("b"), Some("c")]);
    let family = vec(1..30u8, 0..4);
    (
        0..3u8,
        words.clone(),
        words,
        0..8u8,
        family,
        any::<u32>(),
        prop::bool::ANY,
    )
        .prop_map(
            move |(roles, region, operator, net, family, bandwidth, web)| {
                with(n, |relay| {
                    relay.roles = Roles {
                        ingress: roles != 1,
                        egress: roles != 0,
                    };
                    let ports = if web {
                        "80,443".parse().ok()
                    } else {
                        Some(Ports::all())
                    };
                    relay.exit = ports.filter(|_| roles != 0);
                    relay.region = region.map(str::to_owned);
                    relay.operator = operator.filter(|_| n.is_multiple_of(3)).map(str::to_owned);
                    relay.addresses = vec![([10, net, n, 1], 443).into()];
                    relay.family = family.into_iter().map(public).collect();
                    relay.bandwidth = u64::from(bandwidth);
                })
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_path_breaks_a_constraint(
        relays in (2..30u8).prop_flat_map(|n| (1..=n).map(any_relay).collect::<Vec<_>>()),
        length in 1..=4usize,
        port in prop::option::of(prop::sample::select(vec![80u16, 25])),
        region in prop::bool::ANY,
        seed: u64,
    ) {
        let network = network(relays);
        let apart = Apart { region, ..Apart::default() };
        let constraints = PathConstraints { ports: port.into_iter().collect(), apart, ..hops(length) };
        let Ok(path) = network.select_path(&constraints, &mut seeded(seed)) else { return Ok(()) };
        prop_assert_eq!(path.len(), length);
        let (last, before) = path.split_last().expect("not empty");
        prop_assert!(last.roles.egress && before.iter().all(|relay| relay.roles.ingress));
        prop_assert!(port.is_none_or(|port| last.exit.as_ref().is_some_and(|exit| exit.contains(port))));
        for (i, a) in path.iter().enumerate() {
            for b in &path[i + 1..] {
                prop_assert_ne!(a.identity, b.identity);
                prop_assert!(!(a.family.contains(&b.identity) && b.family.contains(&a.identity)));
                prop_assert!(a.operator.is_none() || a.operator != b.operator);
                prop_assert!(!region || a.region.is_none() || a.region != b.region);
                let net = |relay: &Descriptor| relay.addresses[0].to_string().split('.').nth(1).map(str::to_owned);
                prop_assert_ne!(net(a), net(b));
            }
        }
    }
}

#[test]
fn parameters_of_a_list_are_told_and_those_too_large_for_tors_are_cut() {
    let mut list = crate::testing::list(0, &[]);
    list.params.insert("nf_ito_low".into(), 3_000);
    list.params.insert("large".into(), u64::MAX);
    let network = Network::of(&list);
    assert_eq!(network.param("nf_ito_low"), Some(3_000));
    assert_eq!(network.param("large"), Some(i32::MAX));
    assert_eq!(network.param("nf_ito_high"), None);
}
