//! How a client chooses its paths: from a guard on where it keeps guards, around what failed lately, and by what is asked of all its paths. The product's
//! client and the simulator have one each. Pure: times and randomness are handed in.

use std::{
    collections::{HashSet, VecDeque},
    time::{Duration, Instant},
};

use hoplite_wire::{
    CircuitFate, Protocols,
    directory::{Descriptor, Key},
};

use crate::{
    Guard, Guards, ServiceCircuit, Suspect, Vanguard, Vanguards,
    path_selection::{Network, NoPath, OverlayKind, PathConstraints, Position, Random},
    round_trips::{self, CANDIDATES, Candidate, Candidates},
};

/// How long a relay that failed on a circuit is avoided behind the guard. Not longer: a guard that lies about others must not choose the path for long.
pub const AVOIDED: Duration = Duration::from_secs(60);
/// This many of them at most.
const MOST_AVOIDED: usize = 64;
/// So many guards at most are passed over because no exit goes with them; those that may not stand on one path count as one. Else an exit that alone permits a
/// port could name operators, and stand in networks, until a guard's turn comes that is its friend.
const MOST_PASSED_OVER: usize = 2;

/// One moment by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Seconds since 1970: guards live for months, over restarts.
    pub calendar: u64,
    /// By a clock that never jumps: failures are forgotten by it.
    pub steady: Instant,
}

/// One client's choice of paths.
#[derive(Clone, Debug, Default)]
pub struct PathChooser {
    /// The few relays of which one is the first of each path; `None`: any entry may be.
    guards: Option<Guards>,
    /// Relays that failed lately on circuits, behind the guard or as one, the last at the end: not to be used behind another.
    failed: VecDeque<(Key, Instant)>,
    /// The exits of which one is taken, and how far they are.
    candidates: Candidates,
    /// The relays behind the guard of all circuits of onion services.
    vanguards: Vanguards,
}

impl PathChooser {
    /// Without guards: any relay that may be an entry is one.
    pub fn unguarded() -> Self {
        Self::default()
    }

    /// With the guards that the store has kept, in its order.
    pub fn guarded(kept: Vec<Guard>) -> Self {
        Self {
            guards: Some(Guards::new(kept)),
            ..Self::default()
        }
    }

    /// Whether a guard whose circuits fail is used all the same, and only told of.
    #[must_use]
    pub fn only_telling(mut self, only_telling: bool) -> Self {
        if let Some(guards) = &mut self.guards {
            guards.only_tell(only_telling);
        }
        self
    }

    /// With these vanguards.
    #[must_use]
    pub fn with_vanguards(self, vanguards: Vanguards) -> Self {
        Self { vanguards, ..self }
    }

    /// The vanguards that the store should keep.
    pub fn vanguards(&self) -> Vec<Vanguard> {
        self.vanguards.kept()
    }

    /// With the exits that the store has kept.
    pub fn with_candidates(mut self, kept: &[Candidate]) -> Self {
        self.candidates = Candidates::new(kept);
        self
    }

    /// The exits that the store should keep.
    pub fn candidates(&self) -> Vec<Candidate> {
        self.candidates.kept()
    }

    /// Draws guards where there are none yet, and says which of them are to be dialled before one is used, [`CANDIDATES`] at most. Where there are some,
    /// none: they stay as they are.
    pub fn guards_to_measure(
        &mut self,
        network: &Network,
        constraints: &PathConstraints,
        now: Moment,
        random: Random<'_>,
    ) -> Vec<Key> {
        match &mut self.guards {
            Some(guards) if constraints.hops > 1 => {
                guards.draw(network, constraints, CANDIDATES, (now.calendar, random))
            }
            _ => Vec::new(),
        }
    }

    /// The round trips to these guards in milliseconds, nothing for those that did not answer: nearer ones are probably used first.
    pub fn guards_measured(
        &mut self,
        network: &Network,
        measured: &[(Key, Option<u32>)],
        random: Random<'_>,
    ) {
        if let Some(guards) = &mut self.guards {
            guards.put_first(&round_trips::order(network, measured, random));
        }
    }

    /// The exits that are to be dialled through the first relay, [`CANDIDATES`] at most: each once a day.
    pub fn exits_to_measure(
        &mut self,
        network: &Network,
        constraints: &PathConstraints,
        now: Moment,
        random: Random<'_>,
    ) -> Vec<Key> {
        let now = now.calendar;
        self.candidates
            .exits_to_measure(network, constraints, now, random)
    }

    /// The round trip to one of them in milliseconds: nearer ones are taken more often.
    pub fn exit_measured(&mut self, exit: &Key, millis: u32) {
        self.candidates.exit_measured(exit, millis);
    }

    /// The guards that the store should keep, if there are any to be kept.
    pub fn kept(&self) -> Option<Vec<Guard>> {
        self.guards.as_ref().map(Guards::kept)
    }

    /// A path without the relays that `failed`, or at least without the last of them.
    ///
    /// # Errors
    /// [`NoPath`].
    pub fn select_path<'a>(
        &mut self,
        network: &'a Network,
        constraints: &PathConstraints,
        failed: &[Key],
        now: Moment,
        random: Random<'_>,
    ) -> Result<Vec<&'a Descriptor>, NoPath> {
        let mut why = NoPath::Unguarded;
        let mut last = None;
        for first in [0, failed.len().saturating_sub(1), failed.len()] {
            if last.replace(first) == Some(first) {
                continue;
            }
            let mut constraints = constraints.clone();
            constraints.avoid.extend(failed.iter().skip(first));
            // Each circuit has another exit: what is drawn for days is not for them.
            if constraints.overlay == OverlayKind::Masque
                && let Some(exits) = self.candidates.exits(network, &constraints, now.calendar)
            {
                let near = PathConstraints {
                    exits: Some(exits),
                    ..constraints.clone()
                };
                if let Ok(path) = self.guarded_path(network, near, now, random) {
                    return Ok(path);
                }
            }
            match self.guarded_path(network, constraints, now, random) {
                Ok(path) => return Ok(path),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// A path for a circuit, around what failed lately. Its exit permits all ports that are asked for if they are `required`; else as many of the first
    /// of them as can be.
    ///
    /// # Errors
    /// [`NoPath`].
    pub fn select_circuit<'a>(
        &mut self,
        network: &'a Network,
        constraints: &PathConstraints,
        required: bool,
        now: Moment,
        random: Random<'_>,
    ) -> Result<Vec<&'a Descriptor>, NoPath> {
        let failed = self.failed_lately(now);
        let all = constraints.ports.len();
        let least = if required { all } else { 0 };
        let mut why = NoPath::Together;
        for ports in (least..=all).rev() {
            let mut constraints = constraints.clone();
            constraints.ports.truncate(ports);
            match self.select_path(network, &constraints, &failed, now, random) {
                Ok(path) => return Ok(path),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// The relays of a circuit of an onion service, without a last one that is given: the guard of all circuits, whatever the last one is, and behind it
    /// vanguards. Of what `constraints` asks, that relays are apart, the exit and the number of hops do not count.
    ///
    /// # Errors
    /// [`NoPath`].
    pub fn select_service_circuit<'a>(
        &mut self,
        network: &'a Network,
        constraints: &PathConstraints,
        circuit: ServiceCircuit<'_>,
        now: Moment,
        random: Random<'_>,
    ) -> Result<Vec<&'a Descriptor>, NoPath> {
        let mut constraints = constraints.clone();
        let guard = match &mut self.guards {
            Some(guards) => guards.pick(network, &constraints, now.calendar, random),
            None => network
                .one(Position::Entry, &constraints, random)
                .map(|entry| entry.identity),
        };
        let guard = guard.and_then(|guard| network.relay(&guard));
        let guard = guard.ok_or(NoPath::Unguarded)?;
        constraints.avoid.extend(self.failed_lately(now));
        let time = (now.calendar, random);
        let path = self
            .vanguards
            .path(network, &constraints, guard, circuit, time);
        path.ok_or(NoPath::Service)
    }

    /// A circuit through this guard fares so. What is to be told of the guard, if that is something new. Nothing changes for a relay that is no guard.
    pub fn circuit_fares(&mut self, guard: &Key, fate: CircuitFate) -> Option<Suspect> {
        self.guards.as_mut()?.circuit_fares(guard, fate)
    }

    /// Two paths for circuits that carry the same streams (Conflux): to one exit that speaks it, from two guards, and with no other relay in both. Else as
    /// [`Self::select_circuit`]; but what failed lately is avoided in both, and there is no guard that could make up for a second one.
    ///
    /// # Errors
    /// [`NoPath`]: then one circuit may be there all the same.
    pub fn select_pair<'a>(
        &mut self,
        network: &'a Network,
        constraints: &PathConstraints,
        required: bool,
        now: Moment,
        random: Random<'_>,
    ) -> Result<[Vec<&'a Descriptor>; 2], NoPath> {
        let mut constraints = PathConstraints {
            protocols: constraints.protocols | Protocols::CONFLUX,
            ..constraints.clone()
        };
        let one = self.select_circuit(network, &constraints, required, now, random)?;
        let (exit, before) = one.split_last().ok_or(NoPath::Together)?;
        constraints.exits = Some(vec![(exit.identity, 1)]);
        let taken: Vec<_> = before.iter().map(|relay| relay.identity).collect();
        constraints.avoid.extend(&taken);
        constraints.avoid.extend(self.failed_lately(now));
        constraints.ports.retain(|port| {
            let ports = exit.exit.as_ref();
            ports.is_some_and(|ports| ports.contains(*port))
        });
        let other = self.guarded_path_beside(network, constraints, &taken, now, random)?;
        Ok([one, other])
    }

    /// A guard carried what it should. True if the store should keep that.
    pub fn guard_worked(&mut self, guard: &Key, now: Moment, random: Random<'_>) -> bool {
        let guards = self.guards.as_mut();
        guards.is_some_and(|guards| guards.worked(guard, now.calendar, random))
    }

    /// A guard could not be reached. Nothing changes for a relay that is no guard.
    pub fn guard_failed(&mut self, guard: &Key, now: Moment) {
        if let Some(guards) = &mut self.guards {
            guards.failed(guard, now.calendar);
        }
    }

    /// A guard lets too many others fail behind it: it rests for long.
    pub fn guard_put_off(&mut self, guard: &Key, now: Moment) {
        if let Some(guards) = &mut self.guards {
            guards.put_off(guard, now.calendar);
        }
    }

    /// The guard that would be used instead of this one, if there is one: it comes before it, and has not failed lately.
    pub fn guard_before(
        &mut self,
        guard: &Key,
        network: &Network,
        constraints: &PathConstraints,
        now: Moment,
        random: Random<'_>,
    ) -> Option<Key> {
        let guards = self.guards.as_mut().filter(|_| constraints.hops > 1)?;
        let first = guards.pick(network, constraints, now.calendar, random)?;
        (first != *guard).then_some(first)
    }

    /// The relay of a circuit in this place, from 0, failed: it is avoided behind the guard, without which there is no path at all.
    pub fn circuit_failed(&mut self, identity: Key, hop: usize, now: Moment) {
        if hop == 0 {
            self.guard_failed(&identity, now);
        }
        self.failed.retain(|(other, _)| *other != identity);
        if self.failed.len() >= MOST_AVOIDED {
            self.failed.pop_front();
        }
        self.failed.push_back((identity, now.steady));
    }

    fn failed_lately(&mut self, now: Moment) -> Vec<Key> {
        let lately = |since: Instant| now.steady.saturating_duration_since(since) < AVOIDED;
        self.failed.retain(|(_, since)| lately(*since));
        self.failed.iter().map(|(identity, _)| *identity).collect()
    }

    /// A path that begins at a guard and at no other relay: an attacker who makes guards fail, or takes them off the list, becomes no entry by it.
    fn guarded_path<'a>(
        &mut self,
        network: &'a Network,
        constraints: PathConstraints,
        now: Moment,
        random: Random<'_>,
    ) -> Result<Vec<&'a Descriptor>, NoPath> {
        self.guarded_path_beside(network, constraints, &[], now, random)
    }

    /// The same, from a guard that is none of `others`.
    fn guarded_path_beside<'a>(
        &mut self,
        network: &'a Network,
        mut constraints: PathConstraints,
        others: &[Key],
        now: Moment,
        random: Random<'_>,
    ) -> Result<Vec<&'a Descriptor>, NoPath> {
        let open = network.select_path(&constraints, random)?;
        let Some(guards) = self.guards.as_mut().filter(|_| constraints.hops > 1) else {
            return Ok(open);
        };
        // A relay that failed may still be a guard: whether it can be reached, `Guards` knows, which draws no others for those that rest.
        let mut unfit: HashSet<Key> = others.iter().copied().collect();
        let mut passed_over = Vec::<&Descriptor>::new();
        loop {
            let asked = PathConstraints {
                avoid: unfit.clone(),
                ..constraints.clone()
            };
            let guard = guards.pick(network, &asked, now.calendar, random);
            let guard = guard.ok_or(NoPath::Unguarded)?;
            constraints.entry = Some(guard);
            let mut from = constraints.clone();
            from.avoid.remove(&guard);
            if let Ok(path) = network.select_path(&from, random) {
                return Ok(path);
            }
            if !unfit.insert(guard) {
                return Err(NoPath::Unguarded);
            }
            let guard = network.relay(&guard).ok_or(NoPath::Unguarded)?;
            let mut before = passed_over.iter();
            if before.all(|other| network.are_apart(guard, other, constraints.apart)) {
                passed_over.push(guard);
            }
            if passed_over.len() > MOST_PASSED_OVER {
                return Err(NoPath::Unguarded);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hoplite_wire::{Protocols, directory::Roles};
    use proptest::prelude::*;

    use super::*;
    use crate::path_selection::Apart;

    fn relay(number: u8, ingress: bool, egress: bool, operator: &str) -> Descriptor {
        Descriptor {
            name: format!("relay{number}"),
            identity: Key([number; 32]),
            published: 0,
            addresses: Vec::new(),
            pin: Some([number; 32]),
            onion: None,
            roles: Roles { ingress, egress },
            region: None,
            operator: Some(operator.into()),
            family: Vec::new(),
            bandwidth: 0,
            exit: None,
            tokens: None,
            hsdir: false,
            cache: None,
            protocols: Protocols::NONE,
        }
    }

    fn hops(hops: usize) -> PathConstraints {
        PathConstraints {
            hops,
            apart: Apart {
                operator: true,
                ..Apart::hardly()
            },
            ..PathConstraints::default()
        }
    }

    fn now() -> Moment {
        Moment {
            calendar: 0,
            steady: Instant::now(),
        }
    }

    /// By their numbers.
    fn select(
        relays: &[Descriptor],
        constraints: &PathConstraints,
        failed: &[u8],
        random: Random<'_>,
    ) -> Option<Vec<u8>> {
        let network = Network::unsigned(relays.to_vec());
        let failed: Vec<_> = failed.iter().map(|number| Key([*number; 32])).collect();
        let mut chooser = PathChooser::unguarded();
        let path = chooser.select_path(&network, constraints, &failed, now(), random);
        let number = |relay: &Descriptor| relay.identity.0[0];
        Some(path.ok()?.into_iter().map(number).collect())
    }

    fn last(most: u64) -> u64 {
        most - 1
    }

    #[test]
    fn a_failed_relay_is_avoided_while_there_is_another() {
        let relays = [1, 2, 3, 4].map(|number| relay(number, true, true, &number.to_string()));
        for seed in 0..20 {
            let random = &mut |most| seed % most;
            let path = select(&relays[..3], &hops(2), &[2], random).expect("two are left");
            assert!(!path.contains(&2));
            let path = select(&relays[..3], &hops(3), &[2], random).expect("all are needed");
            assert!(path.contains(&2));
            let path = select(&relays, &hops(3), &[2, 3], random).expect("one of them is needed");
            assert!(path.contains(&2) && !path.contains(&3), "the later one");
        }
    }

    #[test]
    fn one_operator_never_stands_twice_on_a_path() {
        let relays = [relay(1, true, true, "a"), relay(2, true, true, "a")];
        assert_eq!(select(&relays, &hops(2), &[], &mut last), None);
    }

    #[test]
    fn relays_of_a_list_that_nobody_signed_are_all_as_likely() {
        let relays = [1, 2, 3].map(|number| relay(number, true, true, &number.to_string()));
        let exits = (0..3).map(|place| {
            let path = select(&relays, &hops(1), &[], &mut |_| place);
            path.expect("possible")[0]
        });
        assert_eq!(exits.collect::<Vec<_>>(), [1, 2, 3]);
    }

    /// Eight relays of which the first two are exits that speak Conflux.
    fn for_pairs() -> Vec<Descriptor> {
        let relays = (1..=8).map(|number| Descriptor {
            onion: Some([number; 32]),
            bandwidth: 1_000_000,
            exit: (number <= 4).then(|| "80".parse().expect("ports")),
            protocols: if number <= 2 {
                Protocols::CONFLUX
            } else {
                Protocols::NONE
            },
            ..relay(number, true, number <= 4, &number.to_string())
        });
        relays.collect()
    }

    #[test]
    fn two_paths_of_a_pair_share_the_exit_alone_and_keep_to_two_guards() {
        let network = Network::unsigned(for_pairs());
        let mut chooser = PathChooser::guarded(Vec::new());
        let constraints = PathConstraints {
            overlay: OverlayKind::Onion,
            ports: vec![80],
            ..hops(3)
        };
        let mut guards = std::collections::BTreeSet::new();
        for seed in 0..50u64 {
            let mut state = seed;
            let random = &mut |most: u64| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 33) % most
            };
            let pair = chooser.select_pair(&network, &constraints, false, now(), random);
            let [one, other] = pair.expect("possible").map(|path| {
                let numbers = path.into_iter().map(|relay| relay.identity.0[0]);
                numbers.collect::<Vec<_>>()
            });
            assert_eq!((one.len(), other.len()), (3, 3));
            assert_eq!(one[2], other[2]);
            assert!(one[2] <= 2, "it speaks Conflux");
            assert!(one[..2].iter().all(|relay| !other.contains(relay)));
            guards.extend([one[0], other[0]]);
        }
        // The exit may be one of the guards, and then the next takes its place.
        assert!(guards.len() <= 4, "{guards:?}");
    }

    #[test]
    fn who_keeps_guards_away_for_a_minute_has_no_others_drawn_and_the_first_is_come_back_to() {
        let relays = (1..=40).map(|number| relay(number, true, true, &number.to_string()));
        let network = Network::unsigned(relays.collect());
        let at = |second| Moment {
            calendar: 1_000_000 + second,
            ..now()
        };
        let random = &mut |most| most / 2;
        let mut chooser = PathChooser::guarded(Vec::new());
        let mut first_of = |chooser: &mut PathChooser, failed: &[Key], second| {
            let path = chooser.select_path(&network, &hops(2), failed, at(second), random);
            path.expect("possible")[0].identity
        };
        let first = first_of(&mut chooser, &[], 0);
        chooser.guard_worked(&first, at(0), &mut last);
        let sampled = chooser.kept().expect("guarded").len();
        let (mut failed, mut used) = (Vec::new(), first);
        for second in 1..sampled as u64 {
            chooser.guard_failed(&used, at(second));
            failed.push(used);
            used = first_of(&mut chooser, &failed, second);
            assert!(!failed.contains(&used));
        }
        assert_eq!(chooser.kept().expect("guarded").len(), sampled);
        chooser.guard_worked(&used, at(10), &mut last);
        let mut before =
            |second| chooser.guard_before(&used, &network, &hops(2), at(second), &mut last);
        assert_eq!(before(500), None);
        assert_eq!(before(601), Some(first), "it has rested");
        assert_eq!(first_of(&mut chooser, &failed, 602), first);
    }

    #[test]
    fn where_no_exit_speaks_conflux_or_no_second_guard_is_left_there_is_no_pair() {
        let constraints = PathConstraints {
            overlay: OverlayKind::Onion,
            ..hops(3)
        };
        let pair = |relays: Vec<Descriptor>| {
            let network = Network::unsigned(relays);
            let mut chooser = PathChooser::guarded(Vec::new());
            let pair = chooser.select_pair(&network, &constraints, false, now(), &mut last);
            pair.is_ok()
        };
        assert!(pair(for_pairs()));
        let mut none = for_pairs();
        for relay in &mut none {
            relay.protocols = Protocols::NONE;
        }
        assert!(!pair(none));
        let few = for_pairs().into_iter().take(4).collect();
        assert!(!pair(few), "two paths need five relays");
    }

    /// Nine guards in networks and of operators of their own, the first of them the attacker's, and exits of his, to port 6667: whose operators they name, and
    /// in whose networks they stand.
    fn with_exits_that_name(named: &[(u8, [u8; 4])]) -> Vec<Descriptor> {
        let address = |network: u8, host| ([10, network, 0, host], 443).into();
        let guards = (0..9).map(|number| Descriptor {
            addresses: vec![address(number, 1)],
            ..relay(number, true, false, &number.to_string())
        });
        let exits = (9..).zip(named).map(|(number, (operator, networks))| {
            let networks: std::collections::BTreeSet<_> = networks.iter().copied().collect();
            Descriptor {
                addresses: networks.iter().map(|one| address(*one, number)).collect(),
                exit: "6667".parse().ok(),
                ..relay(number, false, true, &operator.to_string())
            }
        });
        guards.chain(exits).collect()
    }

    #[test]
    fn guards_of_one_operator_are_passed_over_as_one() {
        let mut relays = with_exits_that_name(&[(1, [20; 4])]);
        for guard in relays.iter_mut().take(9).filter(|one| one.name != "relay5") {
            guard.operator = Some("1".into());
        }
        let constraints = PathConstraints {
            hops: 2,
            ..PathConstraints::default()
        };
        let network = Network::unsigned(relays);
        for seed in 0..20 {
            let mut chooser = PathChooser::guarded(Vec::new());
            let random = &mut |most| seed % most;
            let path = chooser.select_path(&network, &constraints, &[], now(), random);
            assert_eq!(path.expect("possible")[0].name, "relay5");
        }
    }

    proptest! {
        #[test]
        fn whatever_exits_say_a_path_begins_at_one_of_the_first_three_guards(
            named in prop::collection::vec((1u8..9, any::<[u8; 4]>()), 1..4),
            seed in any::<u64>(),
        ) {
            let networks = |(operator, at): (u8, [u8; 4])| (operator, at.map(|one| 1 + one % 8));
            let named: Vec<_> = named.into_iter().map(networks).collect();
            let network = Network::unsigned(with_exits_that_name(&named));
            let mut state = seed;
            let random = &mut |most: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) % most
            };
            let constraints = PathConstraints { hops: 2, ports: vec![6667], ..PathConstraints::default() };
            let mut chooser = PathChooser::guarded(Vec::new());
            let path = chooser.select_path(&network, &constraints, &[], now(), random);
            let guards = chooser.kept().expect("guarded");
            if let Ok(path) = path {
                let place = guards.iter().position(|guard| guard.identity == path[0].identity);
                prop_assert!(place.is_some_and(|place| place < 3), "{place:?}");
            }
        }

        #[test]
        fn every_path_keeps_the_rules(
            raw in prop::collection::vec((any::<bool>(), any::<bool>(), 0u8..4), 0..8),
            length in 1usize..5,
            seed in any::<u64>(),
        ) {
            let relays: Vec<_> = (0u8..).zip(&raw).map(|(number, (i, e, o))| relay(number, *i, *e, &o.to_string())).collect();
            if let Some(path) = select(&relays, &hops(length), &[], &mut |most| seed % most) {
                let of = |number: &u8| &relays[usize::from(*number)];
                prop_assert_eq!(path.len(), length);
                prop_assert!(of(&path[length - 1]).roles.egress);
                prop_assert!(path[..length - 1].iter().all(|number| of(number).roles.ingress));
                let mut operators: Vec<_> = path.iter().map(|number| of(number).operator.clone()).collect();
                operators.sort();
                operators.dedup();
                prop_assert_eq!(operators.len(), length);
            }
        }
    }
}
