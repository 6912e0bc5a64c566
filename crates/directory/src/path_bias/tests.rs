//! Guards that choose, and networks that fail by chance. All seeds are fixed.

use hoplite_testing::seeded;
use hoplite_wire::directory::Key;

use super::*;
use crate::{
    Guards, Store,
    path_selection::{Network, PathConstraints},
    testing::{descriptor, list},
};

const NOW: u64 = 1_700_000_000;

/// What fails of a hundred circuits, each by chance, and then only of those that the guard does not want.
struct Weather {
    bits: Box<dyn FnMut() -> u64>,
    /// Percent that fail whoever the guard is.
    lossy: u64,
    /// Percent whose other relays the guard likes; it lets no other circuit come about.
    liked: u64,
}

impl Weather {
    fn new(seed: u64, lossy: u64, liked: u64) -> Self {
        Self {
            bits: Box::new(seeded(seed)),
            lossy,
            liked,
        }
    }

    fn chance(&mut self, percent: u64) -> bool {
        (self.bits)() % 100 < percent
    }

    /// How the next circuit fares.
    fn circuit(&mut self) -> CircuitFate {
        if self.chance(self.lossy) || !self.chance(self.liked) {
            CircuitFate::NotBuilt
        } else {
            CircuitFate::Built
        }
    }
}

/// The number of circuits after which a guard was so suspect for the first time.
fn noticed(weather: &mut Weather, suspicion: Suspicion, most: u32) -> Option<u32> {
    let mut bias = PathBias::default();
    (1..=most).find(|_| {
        bias.note(weather.circuit());
        bias.suspicion() >= suspicion
    })
}

#[test]
fn a_guard_that_lets_only_circuits_to_its_friends_come_about_is_noticed_within_fifty() {
    for seed in 0..100 {
        let found = noticed(&mut Weather::new(seed, 5, 10), Suspicion::Extreme, 50);
        assert_eq!(found, Some(MIN_CIRCUITS), "seed {seed}");
    }
}

#[test]
fn a_guard_that_begins_to_choose_after_a_good_year_is_noticed_within_a_hundred_and_fifty() {
    for seed in 0..100 {
        let mut bias = PathBias::default();
        let mut good = Weather::new(seed, 5, 100);
        (0..5000).for_each(|_| bias.note(good.circuit()));
        let mut bad = Weather::new(seed, 5, 10);
        let found = (1..=150).find(|_| {
            bias.note(bad.circuit());
            bias.suspicion() == Suspicion::Extreme
        });
        assert!(found.is_some(), "seed {seed}");
    }
}

#[test]
fn an_honest_guard_in_a_network_that_loses_every_fifth_circuit_is_never_suspect() {
    for seed in 0..100 {
        let found = noticed(&mut Weather::new(seed, 20, 100), Suspicion::Warn, 10_000);
        assert_eq!(found, None, "seed {seed}");
    }
}

#[test]
fn circuits_that_a_guard_lets_be_built_and_then_no_stream_through_are_noticed_within_forty() {
    for (fate, within) in [(CircuitFate::NotUsed, 20), (CircuitFate::Collapsed, 50)] {
        let mut bias = PathBias::default();
        let found = (1..=100).find(|_| {
            bias.note(CircuitFate::Built);
            bias.note(fate);
            bias.suspicion() == Suspicion::Extreme
        });
        assert_eq!(found, Some(within));
    }
}

#[test]
fn nothing_is_said_of_a_guard_by_a_few_circuits() {
    let mut bias = PathBias::default();
    for _ in 1..MIN_CIRCUITS {
        bias.note(CircuitFate::NotBuilt);
    }
    for _ in 1..MIN_USES {
        bias.note(CircuitFate::NotUsed);
    }
    assert_eq!(bias.suspicion(), Suspicion::None);
}

// With the guards.

struct Client {
    guards: Guards,
    network: Network,
}

impl Client {
    fn new() -> Self {
        let relays: Vec<_> = (1..=30).map(descriptor).collect();
        Self {
            guards: Guards::default(),
            network: Network::of(&list(NOW, &relays)),
        }
    }

    fn guard(&mut self) -> Key {
        let constraints = PathConstraints {
            hops: 3,
            ..PathConstraints::default()
        };
        let random = &mut |below| below / 2;
        let picked = self.guards.pick(&self.network, &constraints, NOW, random);
        picked.expect("there is one")
    }

    /// Circuits of the first guard fail until it is told of, or not.
    fn fail(&mut self, circuits: u32) -> Vec<(Suspicion, bool)> {
        let guard = self.guard();
        let told = (0..circuits).filter_map(|_| {
            let told = self.guards.circuit_fares(&guard, CircuitFate::NotBuilt);
            told.map(|suspect| (suspect.suspicion, suspect.given_up))
        });
        told.collect()
    }
}

#[test]
fn a_guard_that_chooses_is_given_up_once_and_stays_so_after_a_restart() {
    let mut client = Client::new();
    let first = client.guard();
    assert_eq!(client.fail(200), [(Suspicion::Extreme, true)]);
    let second = client.guard();
    assert_ne!(second, first);
    let mut store = Store::in_memory().expect("made");
    store.keep_guards(&client.guards.kept()).expect("kept");
    client.guards = Guards::new(store.guards().expect("read"));
    assert_eq!(client.guard(), second);
}

#[test]
fn who_has_circuits_through_every_guard_fail_takes_a_client_from_one_alone() {
    let mut client = Client::new();
    client.fail(200);
    let second = client.guard();
    assert_eq!(client.fail(200), [(Suspicion::Extreme, false)]);
    assert_eq!(client.guard(), second);
}

#[test]
fn who_wants_to_be_told_alone_is_told_and_keeps_the_guard() {
    let mut client = Client::new();
    client.guards.only_tell(true);
    let first = client.guard();
    assert_eq!(client.fail(200), [(Suspicion::Extreme, false)]);
    assert_eq!(client.guard(), first);
}

#[test]
fn a_guard_that_was_given_up_is_used_where_there_is_no_other() {
    let mut client = Client::new();
    let first = client.guard();
    client.fail(200);
    let number = (1..=30).find(|n| crate::testing::public(*n) == first);
    let alone = descriptor(number.expect("one of them"));
    client.network = Network::of(&list(NOW, &[alone]));
    assert_eq!(client.guard(), first);
}

#[test]
fn a_rate_that_wavers_about_a_bound_is_told_once() {
    let mut client = Client::new();
    let guard = client.guard();
    let told = (0..2000).filter_map(|n| {
        let fate = if n % 2 == 0 {
            CircuitFate::NotBuilt
        } else {
            CircuitFate::Built
        };
        client.guards.circuit_fares(&guard, fate)
    });
    let told: Vec<_> = told.map(|suspect| suspect.suspicion).collect();
    assert!(told.len() <= 2, "{told:?}");
}
