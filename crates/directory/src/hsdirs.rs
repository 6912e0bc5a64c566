//! Which relays keep the descriptors of an onion service, by what a list says: ours, or C tor's consensus. rend-spec-v3, "Where to publish a
//! hidden service descriptor", "Using time periods and SRVs to fetch/upload HS descriptors". A pure function of the list: its `valid-after` is the
//! time, so that clients and services with clocks that differ find each other.

use std::sync::Arc;

use hoplite_crypto::onion::{
    service_keys::BlindedKey,
    time_period::{Placement, Ring, Schedule, SharedRandom, Spread},
};
use hoplite_wire::{
    directory::{Key, List, RelayFlags},
    tor::Flags,
};

use crate::tor::Network;

/// The parameter of a list of ours that says how many minutes a time period lasts, and a run of a shared random value.
pub(crate) const INTERVAL: &str = "hsdir-interval";

/// Those that keep descriptors, and how they share them.
#[derive(Clone, Debug)]
pub struct HsDirs {
    valid_after: u64,
    schedule: Schedule,
    values: SharedRandom,
    spread: Spread,
    /// The same with twice as many that are told.
    near: Spread,
    /// Ed25519 identities.
    identities: Arc<[[u8; 32]]>,
}

/// The ring that one descriptor is placed on.
#[derive(Clone, Debug)]
pub struct PlacedRing {
    /// Whose time period's blinded key names the descriptor.
    pub placement: Placement,
    ring: Ring,
    spread: Spread,
    near: Spread,
}

impl HsDirs {
    /// As a list of ours says; `None`: its authorities do nothing for onion services.
    pub fn of_list(list: &List) -> Option<Self> {
        let minutes = list.params.get(INTERVAL).copied();
        let minutes = minutes.and_then(|minutes| u32::try_from(minutes).ok())?;
        let param = |name: &str, silent: i32| {
            let said = list.params.get(name).copied();
            said.map_or(silent, |said| i32::try_from(said).unwrap_or(i32::MAX))
        };
        let (spread, near) = spreads(
            param("hsdir-n-replicas", 2),
            param("hsdir-spread-fetch", 3),
            param("hsdir-spread-store", 4),
        );
        let said = &list.shared_random;
        Some(Self {
            valid_after: list.valid_after,
            schedule: Schedule::of_runs(minutes),
            values: SharedRandom {
                current: said.current,
                previous: said.previous,
            },
            spread,
            near,
            identities: list.flagged(RelayFlags::HSDIR).map(|key| key.0).collect(),
        })
    }

    /// As a consensus of C tor says. `is_testing`: its network has `TestingTorNetwork 1`, by which periods are as short as its votes.
    pub fn of_tor(network: &Network, is_testing: bool) -> Self {
        let voting = network.fresh_until.saturating_sub(network.valid_after);
        let minutes = network.param("hsdir_interval", 1440, 30..=14_400);
        let param = |name: &str, silent: i32, most: i32| network.param(name, silent, 1..=most);
        let (spread, near) = spreads(
            param("hsdir_n_replicas", 2, 16),
            param("hsdir_spread_fetch", 3, 128),
            param("hsdir_spread_store", 4, 128),
        );
        let hsdirs = network.relays.iter().filter(|relay| {
            relay.router.flags.has(Flags::HS_DIR) && relay.router.keeps_descriptors
        });
        Self {
            valid_after: network.valid_after,
            schedule: if is_testing {
                Schedule::testing(voting)
            } else {
                Schedule::new(minutes.unsigned_abs(), voting)
            },
            values: network.shared_random,
            spread,
            near,
            identities: hsdirs.map(|relay| relay.keys.ed25519).collect(),
        }
    }

    /// How many keep descriptors.
    pub fn len(&self) -> usize {
        self.identities.len()
    }

    /// Whether nobody does.
    pub fn is_empty(&self) -> bool {
        self.identities.is_empty()
    }

    /// How time is divided.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// From when the revisions of a service's two descriptors are counted, in seconds since 1970, in the order of [`HsDirs::uploads`].
    pub fn counted_from(&self) -> [u64; 2] {
        self.schedule.counted_from(self.valid_after)
    }

    /// Where a client looks for a descriptor.
    pub fn fetches(&self) -> PlacedRing {
        self.ring(self.schedule.fetches(self.valid_after, &self.values))
    }

    /// Where a service publishes its two descriptors: for clients with an older list, and for those with a newer one.
    pub fn uploads(&self) -> [PlacedRing; 2] {
        let placements = self.schedule.uploads(self.valid_after, &self.values);
        placements.map(|placement| self.ring(placement))
    }

    fn ring(&self, placement: Placement) -> PlacedRing {
        PlacedRing {
            placement,
            ring: Ring::new(&placement, self.identities.iter().copied()),
            spread: self.spread,
            near: self.near,
        }
    }
}

/// How many share a descriptor, and how many are near it, by what the list says.
fn spreads(replicas: i32, fetch: i32, store: i32) -> (Spread, Spread) {
    let near = store.saturating_mul(2);
    (
        Spread::new(replicas, fetch, store),
        Spread::new(replicas, fetch, near),
    )
}

impl PlacedRing {
    /// Whom a client asks for the descriptor of this key of the ring's period, in no order that it should keep: it draws one.
    pub fn asked(&self, key: &BlindedKey) -> Vec<Key> {
        let asked = self.ring.fetched_from(key, &self.spread);
        asked.into_iter().map(Key).collect()
    }

    /// Whom a service gives the descriptor of this key of the ring's period.
    pub fn told(&self, key: &BlindedKey) -> Vec<Key> {
        let told = self.ring.stored_at(key, &self.spread);
        told.into_iter().map(Key).collect()
    }

    /// Whether a service may give this relay the descriptor of this key, by a list of its own that differs a little: twice as many as are told are near.
    pub fn is_near(&self, relay: &Key, key: &BlindedKey) -> bool {
        let near = self.ring.stored_at(key, &self.near);
        near.contains(&relay.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use hoplite_wire::directory::Opinion;

    use super::*;
    use crate::testing::{descriptor, list, public};

    const RUN: u64 = 86_400;
    const BEGINS: u64 = 1_700_000_000 / RUN * RUN;
    const HOUR: u64 = 3600;

    fn hsdir() -> Opinion {
        Opinion {
            flags: RelayFlags::HSDIR,
            measured: None,
        }
    }

    /// The list that begins so many hours after a run, among `known` relays; the value of run `n` is all `n`.
    fn at(hours: u64, known: u8) -> List {
        let relays: Vec<_> = (1..=known).map(descriptor).collect();
        let mut list = list(BEGINS + hours * HOUR, &relays);
        let run = u8::try_from(hours / 24).expect("few") + 100;
        list.shared_random.current = Some([run; 32]);
        list.shared_random.previous = Some([run - 1; 32]);
        list.params.insert(INTERVAL.to_owned(), 1440);
        list.opinions = (1..=known).map(|n| (public(n), hsdir())).collect();
        list
    }

    fn hsdirs(hours: u64, known: u8) -> HsDirs {
        HsDirs::of_list(&at(hours, known)).expect("for onion services")
    }

    /// A service's key in each period; the ring does not care whether it is one.
    fn key(service: u8, ring: &PlacedRing) -> BlindedKey {
        let mut key = [service; 32];
        key[..8].copy_from_slice(&ring.placement.period.number.to_be_bytes());
        BlindedKey::from_bytes(key)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever list of the last hours a client has, one of the two descriptors of a service with a newer or older one is where it looks.
        #[test]
        fn who_has_an_older_or_newer_list_finds_the_descriptor(hour in 12u64..90, ahead in 0u64..12, is_behind: bool, service: u8) {
            let (client, service_at) = if is_behind { (hour, hour + ahead) } else { (hour + ahead, hour) };
            let looks = hsdirs(client, 40).fetches();
            let asked = looks.asked(&key(service, &looks));
            prop_assert_eq!(asked.len(), 6);
            let told = hsdirs(service_at, 40).uploads();
            let told: BTreeSet<_> = told.iter().flat_map(|ring| ring.told(&key(service, ring))).collect();
            prop_assert!(asked.iter().all(|one| told.contains(one)));
        }
    }

    #[test]
    fn each_period_has_other_hsdirs_which_the_value_of_its_run_decides() {
        let before = hsdirs(13, 60).fetches();
        let after = hsdirs(37, 60).fetches();
        let same = BlindedKey::from_bytes([5; 32]);
        assert_ne!(before.asked(&same), after.asked(&same));
        let mut other = at(13, 60);
        other.shared_random.current = Some([7; 32]);
        let other = HsDirs::of_list(&other).expect("there").fetches();
        assert_eq!(other.placement.period, before.placement.period);
        assert_ne!(other.asked(&same), before.asked(&same));
    }

    #[test]
    fn without_a_value_all_use_the_same_one_instead() {
        let mut without = at(13, 60);
        without.shared_random = Default::default();
        let ring = HsDirs::of_list(&without).expect("there").fetches();
        let random = ring.placement.period.disaster();
        assert!(ring.placement.random == random);
        assert_eq!(ring.asked(&BlindedKey::from_bytes([5; 32])).len(), 6);
    }

    #[test]
    fn a_short_run_has_a_period_as_long() {
        let mut short = at(0, 9);
        short.params.insert(INTERVAL.to_owned(), 4);
        let periods: Vec<_> = (0..8)
            .map(|minutes| {
                short.valid_after = BEGINS + minutes * 60;
                let fetches = HsDirs::of_list(&short).expect("there").fetches();
                let random = fetches.placement.random;
                (fetches.placement.period.number, random == [100; 32])
            })
            .collect();
        // A run begins with minute 0 and 4, a period with 2 and 6.
        let first = periods[0].0;
        let expected = [
            (0, false),
            (0, false),
            (1, true),
            (1, true),
            (1, false),
            (1, false),
            (2, true),
            (2, true),
        ];
        assert_eq!(
            periods,
            expected.map(|(n, is_current)| (first + n, is_current))
        );
    }

    #[test]
    fn who_is_told_is_near_and_so_is_who_was_by_a_list_with_fewer_or_more_hsdirs() {
        let ring = hsdirs(13, 60).fetches();
        let key = BlindedKey::from_bytes([5; 32]);
        let near = (1..=60).map(public).filter(|one| ring.is_near(one, &key));
        let near: BTreeSet<_> = near.collect();
        assert_eq!(near.len(), 16);
        assert!(ring.told(&key).iter().all(|one| near.contains(one)));
        let fewer = hsdirs(13, 57).fetches();
        assert!(fewer.told(&key).iter().all(|one| near.contains(one)));
    }

    #[test]
    fn who_has_no_flag_is_not_asked_and_a_list_without_onion_services_has_no_ring() {
        let mut some = at(13, 9);
        some.opinions = [(public(3), hsdir())].into();
        let ring = HsDirs::of_list(&some).expect("there").fetches();
        assert_eq!(ring.asked(&BlindedKey::from_bytes([5; 32])), [public(3)]);
        some.params.remove(INTERVAL);
        assert!(HsDirs::of_list(&some).is_none());
    }
}
