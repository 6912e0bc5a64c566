//! Relays that say of themselves what they like, among honest ones.

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::guards::Guards;

/// Honest relays: each in a network of its own, of both roles, at the cap.
const HONEST: u8 = 6;
const HOSTILE: u8 = 12;
const CAP: u64 = 1_000_000;

/// A lie says something that an honest relay (or another hostile one) also says of itself.
fn hostile(n: u8) -> impl Strategy<Value = Descriptor> {
    let who = || 1..=HONEST + HOSTILE;
    let bandwidth = select(vec![0, 1, CAP, CAP + 1, 1 << 40, u64::MAX]);
    let ports = select(vec![None, Some("80"), Some("1-65535"), Some("25,443")]);
    let operator = select(vec![None, Some("Ann"), Some("ann"), Some("bob")]);
    let key = prop::option::of(who());
    let same = (who(), vec((who(), 1..3u8), 1..=4), key.clone(), key);
    let roles = (prop::bool::ANY, prop::bool::ANY);
    (same, roles, bandwidth, ports, operator, vec(who(), 0..=32)).prop_map(
        move |((name, places, pin, onion), roles, bandwidth, ports, operator, family)| {
            with(n, |relay| {
                relay.name = format!("relay{name}");
                let at = |(net, host): (u8, u8)| ([10, net, 0, host], 443).into();
                relay.addresses = places.into_iter().map(at).collect();
                relay.pin = pin.map(|of| [of; 32]);
                relay.onion = onion.map(|of| [of; 32]);
                (relay.roles.ingress, relay.roles.egress) = roles;
                relay.bandwidth = bandwidth;
                relay.exit = ports.and_then(|ports| ports.parse().ok());
                relay.operator = operator.map(str::to_owned);
                relay.family = family.into_iter().map(public).collect();
            })
        },
    )
}

fn honest(n: u8) -> Descriptor {
    with(n, |relay| {
        relay.bandwidth = CAP;
        relay.onion = Some([n; 32]);
    })
}

fn capped(mut relays: Vec<Descriptor>) -> Network {
    relays.sort_by_key(|relay| relay.identity);
    let weights = Weights::of(&relays, CAP);
    Network {
        relays,
        weights: Some(weights),
        ..Network::default()
    }
}

fn mixed() -> impl Strategy<Value = Network> {
    let hostile: Vec<_> = (HONEST + 1..=HONEST + HOSTILE).map(hostile).collect();
    hostile.prop_map(|hostile| capped((1..=HONEST).map(honest).chain(hostile).collect()))
}

/// What no two relays of a path have in common.
fn assert_two(a: &Descriptor, b: &Descriptor, apart: Apart) -> Result<(), TestCaseError> {
    prop_assert_ne!(a.identity, b.identity);
    prop_assert!(a.pin.is_none() || a.pin != b.pin);
    prop_assert!(a.onion.is_none() || a.onion != b.onion);
    let net = |ip: std::net::IpAddr| ip.to_string().split('.').nth(1).map(str::to_owned);
    for (one, other) in a
        .addresses
        .iter()
        .flat_map(|one| b.addresses.iter().map(move |other| (one, other)))
    {
        prop_assert_ne!(one, other);
        prop_assert!(!apart.network || net(one.ip()) != net(other.ip()));
    }
    let both = a.family.contains(&b.identity) && b.family.contains(&a.identity);
    prop_assert!(!apart.family || !both);
    let operator = |relay: &Descriptor| relay.operator.as_ref().map(|name| name.to_lowercase());
    prop_assert!(!apart.operator || a.operator.is_none() || operator(a) != operator(b));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_relays_say_a_path_keeps_its_promises(
        network in mixed(),
        length in 1..=4usize,
        port in prop::option::of(select(vec![25u16, 80, 9000])),
        onion: bool,
        (family, operator, in_network) in any::<(bool, bool, bool)>(),
        seed: u64,
    ) {
        let apart = Apart { family, operator, network: in_network, region: false };
        let overlay = if onion { OverlayKind::Onion } else { OverlayKind::Masque };
        let constraints = PathConstraints { ports: port.into_iter().collect(), apart, overlay, ..hops(length) };
        let (mut random, mut guards) = (seeded(seed), Guards::default());
        let Some(entry) = guards.pick(&network, &constraints, 1_700_000_000, &mut random) else { return Ok(()) };
        let constraints = PathConstraints { entry: Some(entry), ..constraints };
        let Ok(path) = network.select_path(&constraints, &mut random) else { return Ok(()) };
        prop_assert_eq!(path.len(), length);
        prop_assert_eq!(path[0].identity, entry);
        prop_assert!(guards.kept().iter().any(|guard| guard.identity == entry));
        let (last, before) = path.split_last().expect("not empty");
        prop_assert!(last.roles.egress && before.iter().all(|relay| relay.roles.ingress));
        prop_assert!(port.is_none_or(|port| last.exit.as_ref().is_some_and(|exit| exit.contains(port))));
        for (i, a) in path.iter().enumerate() {
            prop_assert!(is_carried(a, overlay));
            for b in &path[i + 1..] {
                assert_two(a, b, apart)?;
            }
        }
    }

    #[test]
    fn no_relay_is_likelier_than_an_honest_one_of_its_roles_at_the_cap(network in mixed()) {
        let constraints = hops(3);
        for position in [Position::Entry, Position::Middle, Position::Exit] {
            let weighed = network.fitting(position, &constraints, &[]);
            for (relay, weight) in &weighed {
                let at_the_cap = Descriptor { bandwidth: CAP, ..(*relay).clone() };
                let most = network.weights.expect("weighed").of_relay(&at_the_cap, position);
                // Where nobody has any weight, all have the same.
                prop_assert!(*weight <= most.max(1), "{weight} of {most}");
                prop_assert!(*weight <= CAP * 1000);
            }
        }
    }

    #[test]
    fn who_calls_an_honest_relay_family_keeps_it_off_no_path(seed: u64) {
        // The liars claim everybody, and have nothing else in common with anybody.
        let all: Vec<Key> = (1..=HONEST + HOSTILE).map(public).collect();
        let liars = (HONEST + 1..=HONEST + HOSTILE).map(|n| with(n, |relay| relay.family = all.clone()));
        let network = capped((1..=HONEST).map(honest).chain(liars).collect());
        for n in 1..=HONEST {
            let honest = network.relay(&public(n)).expect("listed");
            for relay in network.relays.iter().filter(|relay| relay.identity != honest.identity) {
                prop_assert!(Apart::default().are_apart(honest, relay));
            }
            let constraints = PathConstraints { entry: Some(public(n)), ..hops(3) };
            prop_assert!(network.select_path(&constraints, &mut seeded(seed)).is_ok());
        }
    }
}
