//! Where a relay of Tor's network may stand on a path, how likely it is there, and whose relative it is. Pure.
//! dir-spec "Computing bandwidth weights", path-spec "Choosing a path for a circuit", guard-spec "Terminology" (`GUARDS`), proposal 321.

use std::collections::{BTreeMap, HashMap, HashSet};

use hoplite_wire::{
    directory::Key,
    tor::{Consensus, Flags, Router},
};

use super::{Network, Relay};
use crate::path_selection::Position;

/// What a guard must be: fit for every circuit, and for questions to a directory.
const GUARD: [Flags; 4] = [Flags::GUARD, Flags::STABLE, Flags::FAST, Flags::V2_DIR];
/// What a relay must be that a service depends on for long (path-spec: "Stable", for a vanguard "Stable and Fast").
const LASTING: [Flags; 2] = [Flags::STABLE, Flags::FAST];
/// Weights are of this many parts.
const PARTS: i32 = 10_000;
/// More is not believed of any relay, so that sums do not overflow: 4 TB/s, in thousands of bytes.
const MAX_BANDWIDTH: u64 = 1 << 32;
const POSITIONS: [Position; 3] = [Position::Entry, Position::Middle, Position::Exit];

/// What a consensus says of one relay, beside what [`crate::path_selection`] knows of every relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TorRelay {
    /// SHA-1 of its RSA identity.
    pub rsa_id: [u8; 20],
    /// It speaks ntor-v3.
    pub ntor3: bool,
    /// It has congestion control.
    pub congestion_control: bool,
    /// It answers as a directory.
    pub is_directory: bool,
    /// Its channels run over QUIC too.
    pub quic: bool,
    is_guard: bool,
    is_lasting: bool,
    /// As an entry, between, and as an exit.
    weights: [u64; 3],
    /// Those that call it family as it calls them.
    family: HashSet<Key>,
    /// Its proven families.
    family_ids: Vec<String>,
}

impl TorRelay {
    /// One that may stand anywhere and has no family, for tests.
    #[cfg(test)]
    pub(crate) fn plain(rsa_id: [u8; 20]) -> Self {
        Self {
            rsa_id,
            ntor3: true,
            congestion_control: true,
            is_directory: true,
            quic: false,
            is_guard: true,
            is_lasting: true,
            weights: [1; 3],
            family: HashSet::new(),
            family_ids: Vec::new(),
        }
    }

    /// Whether it may stand there, for all that descriptors do not say.
    pub(crate) fn may_stand(&self, position: Position) -> bool {
        match position {
            Position::Entry => self.is_guard,
            Position::Lasting => self.is_lasting,
            Position::Middle | Position::Exit => true,
        }
    }

    /// How likely it is there, beside the others.
    pub(crate) fn weight(&self, position: Position) -> u64 {
        let position = match position {
            Position::Lasting => Position::Middle,
            other => other,
        };
        let places = POSITIONS.iter().zip(self.weights);
        let mut here = places.filter(|(place, _)| **place == position);
        here.next().map_or(0, |(_, weight)| weight)
    }

    /// Whether both say that they are of one family. Descriptors name too few for Tor's large families.
    pub(crate) fn is_family(&self, (other, them): (&Key, &Self)) -> bool {
        let mut proven = self.family_ids.iter();
        self.family.contains(other) || proven.any(|id| them.family_ids.contains(id))
    }
}

/// Of all relays of a network, by their identities.
pub(crate) fn relays(network: &Network) -> HashMap<Key, TorRelay> {
    let identity = |relay: &Relay| Key(relay.keys.ed25519);
    let named: HashMap<_, _> = network
        .relays
        .iter()
        .map(|relay| (relay.keys.rsa_id, relay))
        .collect();
    let family = |relay: &Relay| {
        let called = relay.family.iter().filter_map(|id| named.get(id));
        let both = called.filter(|other| other.family.contains(&relay.keys.rsa_id));
        both.map(|other| identity(other)).collect()
    };
    let relays = network.relays.iter().map(|relay| {
        let router = &relay.router;
        let known = TorRelay {
            rsa_id: relay.keys.rsa_id,
            ntor3: router.ntor3,
            congestion_control: router.congestion_control,
            is_directory: router.flags.has(Flags::V2_DIR),
            quic: router.quic,
            is_guard: may_be(router, Position::Entry),
            is_lasting: may_be(router, Position::Lasting),
            weights: POSITIONS.map(|position| weight(router, &network.weights, position)),
            family: family(relay),
            family_ids: relay.family_ids.clone(),
        };
        (identity(relay), known)
    });
    relays.collect()
}

/// How much of a relay's bandwidth counts in each position, in [`PARTS`]: `bwweightscale` says in how many parts the consensus has it.
pub(crate) fn weights(consensus: &Consensus<'_>) -> BTreeMap<String, i32> {
    let scale = consensus.params.get("bwweightscale").copied();
    let scale = i64::from(scale.unwrap_or(PARTS).max(1));
    let all = consensus.weights.iter().map(|(name, said)| {
        let parts = i64::from(*said).saturating_mul(i64::from(PARTS));
        let parts = parts.checked_div(scale).unwrap_or(0);
        let parts = parts.clamp(0, i64::from(PARTS));
        (name.clone(), i32::try_from(parts).unwrap_or(PARTS))
    });
    all.collect()
}

/// A relay's bandwidth, as much of it as counts there.
fn weight(router: &Router, weights: &BTreeMap<String, i32>, position: Position) -> u64 {
    let place = match position {
        Position::Entry => 'g',
        Position::Middle | Position::Lasting => 'm',
        Position::Exit => 'e',
    };
    let kind = match (router.flags.has(Flags::GUARD), is_exit(router)) {
        (true, true) => 'd',
        (true, false) => 'g',
        (false, true) => 'e',
        (false, false) => 'm',
    };
    let said = weights.get(&format!("W{place}{kind}")).copied();
    let parts = said.unwrap_or(PARTS).clamp(0, PARTS).unsigned_abs();
    let bandwidth = router.bandwidth.min(MAX_BANDWIDTH);
    bandwidth.saturating_mul(u64::from(parts))
}

fn is_exit(router: &Router) -> bool {
    router.flags.has(Flags::EXIT) && !router.flags.has(Flags::BAD_EXIT)
}

fn may_be(router: &Router, position: Position) -> bool {
    match position {
        Position::Entry => GUARD.iter().all(|flag| router.flags.has(*flag)),
        Position::Middle => true,
        Position::Lasting => LASTING.iter().all(|flag| router.flags.has(*flag)),
        Position::Exit => is_exit(router),
    }
}

/// How many of a hundred paths, by weight, could be built with the relays that are `known`: the product of the shares of each position.
/// path-spec "When we build": with too few, who hands out descriptors would choose the paths.
pub(crate) fn paths_known(
    routers: &[Router],
    weights: &BTreeMap<String, i32>,
    known: impl Fn(&Router) -> bool,
) -> u64 {
    let shares = POSITIONS.map(|position| share(routers, weights, &known, position));
    let all = shares.iter().product::<u128>();
    // Thousandths, three times multiplied: to hundredths.
    u64::try_from(all / 10_000_000).unwrap_or(0)
}

/// In thousandths; of a position that nobody can stand in, none is missing.
fn share(
    routers: &[Router],
    weights: &BTreeMap<String, i32>,
    known: &impl Fn(&Router) -> bool,
    position: Position,
) -> u128 {
    let fitting = routers.iter().filter(|router| {
        let flags = router.flags;
        flags.has(Flags::RUNNING) && flags.has(Flags::VALID) && may_be(router, position)
    });
    // One at least: where nobody measures bandwidth, relays are counted.
    let of = |router: &Router| u128::from(weight(router, weights, position).max(1));
    let (mut all, mut here) = (0u128, 0u128);
    for router in fitting {
        all = all.saturating_add(of(router));
        if known(router) {
            here = here.saturating_add(of(router));
        }
    }
    here.saturating_mul(1000).checked_div(all).unwrap_or(1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tor::tests::CONSENSUS;

    fn router(number: u8, flags: &str, bandwidth: u64) -> Router {
        let text = format!(
            "network-status-version 3 microdesc\nvote-status consensus\nvalid-after 2026-11-22 03:00:00\nfresh-until 2026-11-22 03:01:00\n\
             valid-until 2026-11-22 03:02:00\nr n{number} AAAAAAAAAAAAAAAAAAAAAAAAAAA 2026-11-22 03:00:00 192.0.2.{number} 9001 0\n\
             m AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\ns Running Valid {flags}\nw Bandwidth={bandwidth}\ndirectory-footer\n\
             directory-signature "
        );
        let nobody = "0".repeat(40);
        let text = format!(
            "{text}sha256 {nobody} {nobody}\n-----BEGIN SIGNATURE-----\nAAAA\n-----END SIGNATURE-----\n"
        );
        let consensus = Consensus::parse(&text);
        let mut routers = consensus.expect("read").routers;
        routers.remove(0)
    }

    const ALL: &str = "Guard Stable Fast V2Dir";

    #[test]
    fn bandwidth_counts_in_each_position_as_the_consensus_says() {
        let weights = [("Wgg", 6000), ("Wmg", 4000), ("Wed", 0), ("Wee", 10_000)];
        let weights = weights.map(|(name, parts)| (name.to_owned(), parts)).into();
        let guard = router(1, ALL, 5);
        assert_eq!(weight(&guard, &weights, Position::Entry), 30_000);
        assert_eq!(weight(&guard, &weights, Position::Middle), 20_000);
        let both = router(2, "Guard Exit", 5);
        assert_eq!(weight(&both, &weights, Position::Exit), 0);
        assert_eq!(weight(&both, &weights, Position::Entry), 50_000, "not said");
        let bad = router(3, "Exit BadExit", 5);
        assert_eq!(
            weight(&bad, &weights, Position::Middle),
            50_000,
            "as no exit"
        );
        let huge = router(4, "", u64::MAX);
        let most = weight(&huge, &weights, Position::Middle);
        assert!(u128::from(most) * 16_384 < u128::from(u64::MAX), "{most}");
    }

    #[test]
    fn weights_are_in_as_many_parts_as_the_consensus_says() {
        let said = |params: &[(&str, i32)], weight: i32| {
            let mut consensus = Consensus::parse(CONSENSUS).expect("read");
            let params = params
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value));
            consensus.params = params.collect();
            consensus.weights = [("Wgg".to_owned(), weight)].into();
            weights(&consensus).get("Wgg").copied()
        };
        assert_eq!(said(&[], 6000), Some(6000));
        assert_eq!(said(&[("bwweightscale", 1000)], 600), Some(6000));
        assert_eq!(
            said(&[("bwweightscale", i32::MAX)], i32::MAX / 2),
            Some(4999)
        );
        assert_eq!(said(&[("bwweightscale", 0)], 3), Some(10_000));
        assert_eq!(said(&[], -1), Some(0));
    }

    #[test]
    fn what_a_service_depends_on_for_long_is_stable_and_fast() {
        for (flags, may) in [("Stable Fast", true), ("Fast", false), ("Stable", false)] {
            assert_eq!(may_be(&router(1, flags, 5), Position::Lasting), may);
        }
    }

    #[test]
    fn paths_are_missing_where_relays_of_any_position_are() {
        let routers = [
            router(1, ALL, 6),
            router(2, ALL, 4),
            router(3, "Exit", 5),
            router(4, "", 5),
        ];
        let none = BTreeMap::new();
        let known = |missing: &[&str]| {
            paths_known(&routers, &none, |router| {
                !missing.contains(&router.nickname.as_str())
            })
        };
        assert_eq!(known(&[]), 100);
        assert_eq!(known(&["n3"]), 0, "no exit");
        // 4 of 10 guards, 14 of 20 in the middle.
        assert_eq!(known(&["n1"]), 28);
        assert_eq!(known(&["n1", "n2"]), 0, "no guard");
    }
}
