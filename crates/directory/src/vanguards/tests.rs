//! What whoever names relays, or has some, learns of the relays before them; and how long vanguards stay. All seeds are fixed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use hoplite_testing::seeded;
use proptest::prelude::*;

use super::*;
use crate::{
    Guard, Moment, PathChooser, Store,
    path_selection::{Apart, OverlayKind},
    testing::said,
};

const NOW: u64 = 1_700_000_000;
const PURPOSES: [ServicePurpose; 6] = [
    ServicePurpose::ClientRendezvous,
    ServicePurpose::ClientIntroduction,
    ServicePurpose::ClientHsDir,
    ServicePurpose::ServiceRendezvous,
    ServicePurpose::ServiceIntroduction,
    ServicePurpose::ServiceHsDir,
];

fn relay(n: u8) -> Descriptor {
    Descriptor {
        identity: Key([n; 32]),
        onion: Some([n; 32]),
        ..said(n)
    }
}

fn network(relays: impl IntoIterator<Item = u8>) -> Network {
    Network::unsigned(relays.into_iter().map(relay).collect())
}

fn constraints() -> PathConstraints {
    PathConstraints {
        hops: 3,
        overlay: OverlayKind::Onion,
        ..PathConstraints::default()
    }
}

fn moment(calendar: u64) -> Moment {
    Moment {
        calendar,
        steady: Instant::now(),
    }
}

/// A client, or a service, and chance.
struct User {
    chooser: PathChooser,
    network: Network,
    bits: Box<dyn FnMut() -> u64>,
    now: u64,
}

impl User {
    fn new(mode: VanguardsMode, network: Network, seed: u64) -> Self {
        let chooser = PathChooser::guarded(Vec::new());
        Self {
            chooser: chooser.with_vanguards(Vanguards::new(mode, Vec::new())),
            network,
            bits: Box::new(seeded(seed)),
            now: NOW,
        }
    }

    /// By their numbers, with the last.
    fn path(&mut self, purpose: ServicePurpose, end: ServiceEnd<'_>) -> Option<Vec<u8>> {
        let circuit = ServiceCircuit { purpose, end };
        let (bits, now) = (&mut self.bits, moment(self.now));
        let random = &mut |below: u64| bits() % below;
        let chooser = &mut self.chooser;
        let path =
            chooser.select_service_circuit(&self.network, &constraints(), circuit, now, random);
        let given = match end {
            ServiceEnd::Given(last) => Some(last.0[0]),
            ServiceEnd::OtherThan(_) | ServiceEnd::ToCome => None,
        };
        let path = path.ok()?.into_iter().map(|relay| relay.identity.0[0]);
        Some(path.chain(given).collect())
    }

    fn to(&mut self, purpose: ServicePurpose, last: u8) -> Vec<u8> {
        let end = ServiceEnd::Given(Key([last; 32]));
        self.path(purpose, end).expect("a path")
    }

    fn layer(&self, layer: Layer) -> BTreeSet<u8> {
        let kept = self.chooser.vanguards().into_iter();
        let those = kept.filter(|one| one.layer == layer);
        those.map(|one| one.identity.0[0]).collect()
    }

    fn restart(&mut self, mode: VanguardsMode) {
        let mut store = Store::in_memory().expect("made");
        let guards = self.chooser.kept().expect("guards");
        store.keep_guards(&guards).expect("kept");
        store
            .keep_vanguards(&self.chooser.vanguards())
            .expect("kept");
        let chooser = PathChooser::guarded(store.guards().expect("read"));
        let vanguards = Vanguards::new(mode, store.vanguards().expect("read"));
        self.chooser = chooser.with_vanguards(vanguards);
    }
}

#[test]
fn a_client_that_names_one_rendezvous_point_after_another_finds_four_relays_and_not_the_guard() {
    let mut service = User::new(VanguardsMode::Lite, network(1..=100), 1);
    let mut before = BTreeMap::<u8, BTreeSet<u8>>::new();
    let mut guards = BTreeSet::new();
    for named in (1..=100).chain(1..=100) {
        let path = service.to(ServicePurpose::ServiceRendezvous, named);
        guards.insert(path[0]);
        for pair in path.windows(2) {
            before.entry(pair[1]).or_default().insert(pair[0]);
        }
    }
    assert_eq!(guards.len(), 1, "one guard, also where it is named itself");
    let guard = *guards.first().expect("one");
    let next_to_it = before.iter().filter(|(_, before)| before.contains(&guard));
    let next_to_it: BTreeSet<u8> = next_to_it.map(|(relay, _)| *relay).collect();
    let second = service.layer(Layer::Second);
    assert_eq!(second.len(), 4);
    // The guard stands before relays that it named itself as well: as the last but one it never stands.
    assert!(next_to_it.is_subset(&second), "{next_to_it:?} {second:?}");
}

#[test]
fn full_vanguards_show_who_is_named_no_relay_that_knows_the_guard() {
    let mut service = User::new(VanguardsMode::Full, network(1..=100), 2);
    let (mut second, mut third) = (BTreeSet::new(), BTreeSet::new());
    for named in (1..=100).chain(1..=100) {
        let path = service.to(ServicePurpose::ServiceRendezvous, named);
        assert_eq!(path.len(), 5);
        second.insert(path[1]);
        third.insert(path[2]);
    }
    assert!(
        second.len() <= 4 && third.len() <= 8,
        "{second:?} {third:?}"
    );
    assert_eq!(service.layer(Layer::Third).len(), 8);
}

#[test]
fn a_client_that_names_the_guard_or_its_family_meets_the_service_there_by_the_same_guard() {
    let mut service = User::new(VanguardsMode::Lite, network(1..=20), 3);
    let guard = service.to(ServicePurpose::ServiceRendezvous, 99)[0];
    // All of one operator, in one network: as near as two relays can be.
    let near = |mut relay: Descriptor| {
        relay.operator = Some("one".into());
        relay.addresses = vec![([10, 1, 0, relay.identity.0[0]], 443).into()];
        relay
    };
    let relays = (1..=20).map(relay).map(near).collect();
    service.network = Network::unsigned(relays);
    for named in (1..=20).chain([guard; 20]) {
        let path = service.to(ServicePurpose::ServiceRendezvous, named);
        assert_eq!((path[0], path[3]), (guard, named));
    }
    assert!(Apart::default().network, "what other paths keep");
}

#[test]
fn who_is_next_to_the_last_relay_is_any_or_a_vanguard_by_what_the_circuit_is_for() {
    use ServicePurpose as For;
    let lengths = |mode| {
        let mut user = User::new(mode, network(1..=60), 4);
        PURPOSES.map(|purpose| {
            let path = match purpose {
                For::ClientRendezvous | For::ServiceIntroduction => {
                    let others = [Key([1; 32])];
                    user.path(purpose, ServiceEnd::OtherThan(&others))
                }
                _ => user.path(purpose, ServiceEnd::Given(Key([99; 32]))),
            };
            path.expect("a path").len()
        })
    };
    assert_eq!(lengths(VanguardsMode::Lite), [3, 4, 4, 4, 4, 4]);
    assert_eq!(lengths(VanguardsMode::Full), [4, 5, 5, 5, 4, 4]);
}

#[test]
fn a_path_to_a_relay_that_is_still_to_be_named_is_as_one_to_a_relay_that_is_given_without_it() {
    for (mode, length) in [(VanguardsMode::Lite, 3), (VanguardsMode::Full, 4)] {
        let mut user = User::new(mode, network(1..=60), 9);
        let path = user.path(ServicePurpose::ClientIntroduction, ServiceEnd::ToCome);
        let path = path.expect("a path");
        assert_eq!(path.len(), length);
        let second = user.layer(Layer::Second);
        assert!(second.contains(&path[1]), "behind the guard");
        let again = user.to(ServicePurpose::ClientIntroduction, 99);
        assert_eq!(path[0], again[0], "the same guard");
    }
}

#[test]
fn vanguards_stay_through_restarts_for_days_and_each_has_its_own_time() {
    let mut user = User::new(VanguardsMode::Lite, network(1..=200), 5);
    user.to(ServicePurpose::ServiceHsDir, 99);
    let first = user.chooser.vanguards();
    for one in &first {
        let stays = one.until - NOW;
        assert!((DAY..=12 * DAY).contains(&stays), "{stays}");
    }
    for _ in 0..20 {
        user.restart(VanguardsMode::Lite);
        user.to(ServicePurpose::ServiceHsDir, 99);
        assert_eq!(user.chooser.vanguards(), first);
    }
    user.now = first.iter().map(|one| one.until).min().expect("four");
    user.to(ServicePurpose::ServiceHsDir, 99);
    let kept = user.chooser.vanguards();
    assert_eq!(kept.len(), 4);
    assert_eq!(kept.iter().filter(|one| first.contains(one)).count(), 3);
}

#[test]
fn vanguards_stay_a_week_in_the_middle_and_rather_longer_than_shorter() {
    let size = VanguardsMode::Lite.size(Layer::Second);
    let mut bits = seeded(6);
    let mut lifetime = || size.lifetime(&mut |below| bits() % below);
    let mean = (0..4000).map(|_| lifetime()).sum::<u64>() / 4000;
    // max(X, X) from 1 to 12 days: 1 + 11 * 2/3.
    assert!((8 * DAY..=9 * DAY).contains(&mean), "{mean}");
}

#[test]
fn a_vanguard_that_leaves_the_list_or_was_chosen_by_a_clock_far_ahead_is_replaced_at_once() {
    let mut user = User::new(VanguardsMode::Lite, network(1..=50), 7);
    user.now = NOW + 1000 * DAY;
    user.to(ServicePurpose::ServiceHsDir, 99);
    let ahead = user.layer(Layer::Second);
    user.now = NOW;
    user.to(ServicePurpose::ServiceHsDir, 99);
    for one in user.chooser.vanguards() {
        assert!(one.until <= NOW + 12 * DAY);
    }
    assert_ne!(user.layer(Layer::Second), ahead);
    let there = user.layer(Layer::Second);
    let gone = *there.first().expect("four");
    user.network = network((1..=50).filter(|n| *n != gone));
    for _ in 0..50 {
        assert_ne!(user.to(ServicePurpose::ServiceHsDir, 99)[1], gone);
    }
    let now = user.layer(Layer::Second);
    assert_eq!((now.len(), there.intersection(&now).count()), (4, 3));
}

/// Or who hands out descriptions would choose the vanguards, and the guards.
#[test]
fn who_is_not_described_stays_and_is_not_used() {
    let mut user = User::new(VanguardsMode::Lite, network(1..=50).like_tors([]), 7);
    let guard = user.to(ServicePurpose::ServiceHsDir, 99)[0];
    let there = user.layer(Layer::Second);
    let vanguards = user.chooser.vanguards();
    let guards = user.chooser.kept().expect("guards");
    let lacking = *there.first().expect("four");
    // Nothing else is missing.
    let without = || network((1..=50).filter(|n| *n != lacking && *n != guard));
    user.network = without().like_tors([lacking, guard].map(|n| Key([n; 32])));
    for _ in 0..50 {
        let path = user.to(ServicePurpose::ServiceHsDir, 99);
        assert!(path[1] != lacking && there.contains(&path[1]));
    }
    assert_eq!(user.chooser.vanguards(), vanguards);
    let ids = |guards: &[Guard]| {
        guards
            .iter()
            .map(|one| (one.identity, one.unlisted))
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&user.chooser.kept().expect("guards")), ids(&guards));
    // Also over a restart.
    user.restart(VanguardsMode::Lite);
    user.to(ServicePurpose::ServiceHsDir, 99);
    assert_eq!(user.chooser.vanguards(), vanguards);
    assert_eq!(ids(&user.chooser.kept().expect("guards")), ids(&guards));
    // As soon as it is known that it is gone another one takes its place.
    user.network = without().like_tors([]);
    user.to(ServicePurpose::ServiceHsDir, 99);
    assert!(!user.layer(Layer::Second).contains(&lacking));
    assert_ne!(ids(&user.chooser.kept().expect("guards")), ids(&guards));
}

#[test]
fn a_guard_that_has_circuits_through_all_vanguards_but_one_fail_does_not_choose_that_one() {
    let mut user = User::new(VanguardsMode::Lite, network(1..=50), 8);
    user.to(ServicePurpose::ServiceHsDir, 99);
    let failed: Vec<u8> = user.layer(Layer::Second).into_iter().take(3).collect();
    for n in &failed {
        user.chooser.circuit_failed(Key([*n; 32]), 1, moment(NOW));
    }
    let paths = (0..200).map(|_| user.to(ServicePurpose::ServiceHsDir, 99));
    let through = paths.filter(|path| failed.contains(&path[1])).count();
    // Three of four, or two of three if the guard is one of them.
    assert!(through > 100, "{through} of 200");
}

#[test]
fn other_modes_keep_what_they_have_of_a_layer_in_common() {
    let mut user = User::new(VanguardsMode::Lite, network(1..=60), 9);
    user.to(ServicePurpose::ServiceHsDir, 99);
    let second = user.layer(Layer::Second);
    user.restart(VanguardsMode::Full);
    user.to(ServicePurpose::ServiceHsDir, 99);
    assert_eq!(user.layer(Layer::Second), second);
    assert_eq!(user.layer(Layer::Third).len(), 8);
    user.restart(VanguardsMode::Lite);
    user.to(ServicePurpose::ServiceHsDir, 99);
    assert!(user.layer(Layer::Third).is_empty());
}

#[test]
fn without_guards_any_entry_begins_the_path_and_vanguards_are_behind_it() {
    let mut user = User::new(VanguardsMode::Lite, network(1..=50), 10);
    user.chooser = PathChooser::unguarded();
    let paths: Vec<_> = (0..50)
        .map(|_| user.to(ServicePurpose::ServiceHsDir, 99))
        .collect();
    let distinct = |at: usize| paths.iter().map(|path| path[at]).collect::<BTreeSet<_>>();
    assert!(distinct(0).len() > 20);
    assert!(distinct(1).len() <= 4);
}

proptest! {
    /// Relays refuse to extend to themselves and to where the circuit came from: such a path would fail, and show by that what it goes through.
    #[test]
    fn no_circuit_goes_from_a_relay_to_itself_or_back(
        relays in 1u8..12,
        purpose in 0usize..6,
        full in any::<bool>(),
        last in prop::option::of(1u8..14),
        others in prop::collection::vec(1u8..12, 0..3),
        seed in any::<u64>(),
    ) {
        let mode = if full { VanguardsMode::Full } else { VanguardsMode::Lite };
        let mut user = User::new(mode, network(1..=relays), seed);
        let keys: Vec<Key> = others.iter().map(|n| Key([*n; 32])).collect();
        let end = match last {
            Some(last) => ServiceEnd::Given(Key([last; 32])),
            None => ServiceEnd::OtherThan(&keys),
        };
        let guards: Vec<Guard> = user.chooser.kept().expect("guards");
        prop_assert!(guards.is_empty());
        let purpose = PURPOSES[purpose];
        match user.path(purpose, end) {
            Some(path) => {
                for near in path.windows(2) {
                    prop_assert_ne!(near[0], near[1]);
                }
                for near in path.windows(3) {
                    prop_assert_ne!(near[0], near[2]);
                }
                if last.is_none() {
                    prop_assert!(!others.contains(path.last().expect("one")));
                }
                let guard = user.chooser.kept().expect("guards")[0].identity.0[0];
                prop_assert_eq!(path[0], guard);
            }
            // A client does not name the guard as its own rendezvous point. Six relays always do where nothing else is asked.
            None => prop_assert!(
                (last.is_some() && purpose == ServicePurpose::ClientRendezvous)
                    || relays < 6 + u8::try_from(others.len()).expect("few")
            ),
        }
    }
}
