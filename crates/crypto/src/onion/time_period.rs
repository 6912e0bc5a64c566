//! When a service changes its blinded key, and which directories (HSDir) keep its descriptors meanwhile: time periods, which shared random value
//! goes with each, and the ring of directories that the value shuffles. rend-spec-v3, "Locating, uploading, and downloading hidden service
//! descriptors".
//!
//! All times are those of a consensus (`valid-after`), in seconds since 1970: clients and services with clocks that differ find each other so.

use std::fmt;

use super::service_keys::{BlindedKey, sha3_256};

/// Rounds of votes that make a shared random value: two phases of twelve. srv-spec, "Protocol".
const ROUNDS: u64 = 24;
/// Rounds by which periods begin after the values do.
const OFFSET: u64 = ROUNDS / 2;
/// Minutes that a period may have.
const MINUTES: std::ops::RangeInclusive<u32> = 30..=14_400;

/// A time period of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimePeriod {
    /// Counted from 1970.
    pub number: u64,
    /// How long one takes.
    pub minutes: u32,
}

impl TimePeriod {
    /// `INT_8` of the number and of the length.
    pub(super) fn parts(self) -> ([u8; 8], [u8; 8]) {
        (
            self.number.to_be_bytes(),
            u64::from(self.minutes).to_be_bytes(),
        )
    }

    fn before(self) -> Self {
        let number = self.number.saturating_sub(1);
        Self { number, ..self }
    }

    fn after(self) -> Self {
        let number = self.number.saturating_add(1);
        Self { number, ..self }
    }

    /// What stands for a shared random value that the authorities could not agree on. rend-spec-v3, "Client behavior in the absence of shared random
    /// values".
    pub fn disaster(self) -> [u8; 32] {
        let (number, minutes) = self.parts();
        sha3_256(&[b"shared-random-disaster", &minutes, &number])
    }
}

/// How time is divided, as consensuses say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    minutes: u32,
    voting: u64,
}

/// The shared random values of a consensus.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SharedRandom {
    /// `shared-rand-current-value`.
    pub current: Option<[u8; 32]>,
    /// `shared-rand-previous-value`.
    pub previous: Option<[u8; 32]>,
}

/// What orders the ring of directories: a period, and the random value that goes with it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The period whose blinded key signs.
    pub period: TimePeriod,
    /// The shared random value.
    pub random: [u8; 32],
}

impl Default for Schedule {
    /// The public network's: periods of a day, votes each hour.
    fn default() -> Self {
        Self {
            minutes: 1440,
            voting: 3600,
        }
    }
}

impl Schedule {
    /// Periods of `minutes` (`hsdir-interval`, kept between 30 and 14,400), and `voting` seconds between two consensuses, that is from `valid-after` to
    /// `fresh-until`, at least 1.
    pub fn new(minutes: u32, voting: u64) -> Self {
        Self {
            minutes: minutes.clamp(*MINUTES.start(), *MINUTES.end()),
            voting: voting.max(1),
        }
    }

    /// As C tor has it where `TestingTorNetwork` is set: a period takes as long as a shared random value needs, whatever the consensus says.
    pub fn testing(voting: u64) -> Self {
        let voting = voting.max(1);
        let minutes = voting.saturating_mul(ROUNDS) / 60;
        Self {
            minutes: u32::try_from(minutes).unwrap_or(u32::MAX).max(1),
            voting,
        }
    }

    /// Where a random value lasts as long as a period, of this even number of minutes: the directory of this workspace.
    pub fn of_runs(minutes: u32) -> Self {
        let minutes = minutes.clamp(1, *MINUTES.end()).next_multiple_of(2);
        Self {
            minutes,
            voting: u64::from(minutes).saturating_mul(60) / ROUNDS,
        }
    }

    /// The period of this time.
    pub fn period(&self, valid_after: u64) -> TimePeriod {
        let offset = OFFSET.saturating_mul(self.voting) / 60;
        let minutes = (valid_after / 60).saturating_sub(offset);
        TimePeriod {
            number: minutes / u64::from(self.minutes),
            minutes: self.minutes,
        }
    }

    /// When a period begins.
    pub fn begins(&self, period: TimePeriod) -> u64 {
        let seconds = u64::from(period.minutes).saturating_mul(60);
        let offset = OFFSET.saturating_mul(self.voting);
        period.number.saturating_mul(seconds).saturating_add(offset)
    }

    /// Whether the current period has begun after the current random value was made: they belong to each other then.
    fn is_between_period_and_value(&self, valid_after: u64) -> bool {
        let value = self.value_made(valid_after);
        let next = self.begins(self.period(value).after());
        !(value..next).contains(&valid_after)
    }

    /// When the rounds of votes began in which this time is, and the current random value was made.
    fn value_made(&self, valid_after: u64) -> u64 {
        let rounds = ROUNDS.saturating_mul(self.voting);
        (valid_after / rounds).saturating_mul(rounds)
    }

    /// Where a client looks for a descriptor.
    pub fn fetches(&self, valid_after: u64, values: &SharedRandom) -> Placement {
        let period = self.period(valid_after);
        if self.is_between_period_and_value(valid_after) {
            values.placed(period, values.current)
        } else {
            values.placed(period, values.previous)
        }
    }

    /// Where a service has to be found: its first descriptor, for clients whose consensus is older, and its second, for those whose is newer.
    pub fn uploads(&self, valid_after: u64, values: &SharedRandom) -> [Placement; 2] {
        let period = self.period(valid_after);
        let (first, second) = if self.is_between_period_and_value(valid_after) {
            (period.before(), period)
        } else {
            (period, period.after())
        };
        [
            values.placed(first, values.previous),
            values.placed(second, values.current),
        ]
    }

    /// From when the revisions of the two descriptors of [`Schedule::uploads`] are counted, as C tor does: when their random values were made. It
    /// stays for a period, whether its descriptor is the second or, later, the first.
    pub fn counted_from(&self, valid_after: u64) -> [u64; 2] {
        let value = self.value_made(valid_after);
        let rounds = ROUNDS.saturating_mul(self.voting);
        [value.saturating_sub(rounds), value]
    }
}

impl SharedRandom {
    fn placed(&self, period: TimePeriod, value: Option<[u8; 32]>) -> Placement {
        let random = value.unwrap_or_else(|| period.disaster());
        Placement { period, random }
    }
}

/// The directories of a consensus in the order that one [`Placement`] gives them.
#[derive(Clone)]
pub struct Ring {
    period: TimePeriod,
    /// Sorted by the index.
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    /// `hs_relay_index`.
    index: [u8; 32],
    identity: [u8; 32],
}

/// How many directories keep one descriptor, as consensuses say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Places on the ring (`hsdir_n_replicas`), 1 to 16.
    replicas: u8,
    /// Directories at each place that a client asks (`hsdir_spread_fetch`), 1 to 128.
    fetch: u8,
    /// Directories at each place that a service tells (`hsdir_spread_store`), 1 to 128.
    store: u8,
}

impl Spread {
    /// What a consensus says of `hsdir_n_replicas`, `hsdir_spread_fetch` and `hsdir_spread_store`, kept within what is specified.
    pub fn new(replicas: i32, fetch: i32, store: i32) -> Self {
        let within = |value: i32, most: u8| u8::try_from(value.clamp(1, most.into())).unwrap_or(1);
        Self {
            replicas: within(replicas, 16),
            fetch: within(fetch, 128),
            store: within(store, 128),
        }
    }
}

impl Default for Spread {
    fn default() -> Self {
        Self {
            replicas: 2,
            fetch: 3,
            store: 4,
        }
    }
}

impl Ring {
    /// Of the Ed25519 identities of all relays with the flag HSDir.
    pub fn new(placement: &Placement, identities: impl IntoIterator<Item = [u8; 32]>) -> Self {
        let period = placement.period;
        let (number, minutes) = period.parts();
        let nodes = identities.into_iter().map(|identity| Node {
            index: sha3_256(&[b"node-idx", &identity, &placement.random, &number, &minutes]),
            identity,
        });
        let mut nodes: Vec<_> = nodes.collect();
        nodes.sort_unstable();
        nodes.dedup();
        Self { period, nodes }
    }

    /// The identities of the directories that a client asks for the descriptor of this key, fewer where the ring has not as many.
    pub fn fetched_from(&self, key: &BlindedKey, spread: &Spread) -> Vec<[u8; 32]> {
        self.responsible(key, spread.replicas, spread.fetch)
    }

    /// The identities of the directories that a service tells its descriptor of this key.
    pub fn stored_at(&self, key: &BlindedKey, spread: &Spread) -> Vec<[u8; 32]> {
        self.responsible(key, spread.replicas, spread.store)
    }

    fn responsible(&self, key: &BlindedKey, replicas: u8, spread: u8) -> Vec<[u8; 32]> {
        let mut chosen = Vec::new();
        for replica in 1..=replicas {
            let index = self.service_index(key, replica);
            let start = self.nodes.partition_point(|node| node.index < index);
            let (before, after) = self.nodes.split_at(start);
            let around = after.iter().chain(before).map(|node| node.identity);
            // "If any of those nodes have already been selected for a lower-numbered replica of the service, any nodes already chosen are disregarded."
            let new = around.filter(|identity| !chosen.contains(identity));
            let new: Vec<_> = new.take(spread.into()).collect();
            chosen.extend(new);
        }
        chosen
    }

    /// `hs_service_index`.
    fn service_index(&self, key: &BlindedKey, replica: u8) -> [u8; 32] {
        let (number, minutes) = self.period.parts();
        let replica = u64::from(replica).to_be_bytes();
        let parts = [b"store-at-idx", &key.as_bytes()[..], &replica];
        sha3_256(&[&parts.concat(), &minutes, &number])
    }
}

impl fmt::Debug for SharedRandom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedRandom(hidden)")
    }
}

impl fmt::Debug for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Placement(hidden)")
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ring(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::testing::bytes, *};

    const HOUR: u64 = 3600;
    const VALUES: SharedRandom = SharedRandom {
        current: Some([2; 32]),
        previous: Some([1; 32]),
    };

    #[test]
    fn the_specifications_example_is_in_its_period() {
        let schedule = Schedule::default();
        let period = schedule.period(1_460_546_101);
        assert_eq!((period.number, period.minutes), (16_903, 1440));
        // 2016-04-12 12:00 to 2016-04-13 12:00.
        assert_eq!(schedule.begins(period), 1_460_462_400);
        assert_eq!(schedule.period(1_460_462_399).number, 16_902);
        assert_eq!(schedule.period(1_460_548_799).number, 16_903);
        assert_eq!(schedule.period(1_460_548_800).number, 16_904);
    }

    /// Hours after midnight of a day whose noon begins period 16,903.
    fn at(hours: u64) -> u64 {
        1_460_419_200 + hours * HOUR
    }

    #[test]
    fn clients_and_services_pair_periods_and_values_as_specified() {
        let schedule = Schedule::default();
        let of = |placement: Placement| (placement.period.number, placement.random[0]);
        let both = |hours| schedule.uploads(at(hours), &VALUES).map(of);
        let client = |hours| of(schedule.fetches(at(hours), &VALUES));
        // 13:00, "right after TP#1": it and the value of this midnight; the first descriptor is for the period before.
        for hours in [12, 13, 23] {
            assert_eq!(client(hours), (16_903, 2), "{hours}");
            assert_eq!(both(hours), [(16_902, 1), (16_903, 2)], "{hours}");
        }
        // 01:00 of the next day, "right after SRV#2": still the period of noon, and the value that is the previous one now.
        for hours in [24, 25, 35] {
            assert_eq!(client(hours), (16_903, 1), "{hours}");
            assert_eq!(both(hours), [(16_903, 1), (16_904, 2)], "{hours}");
        }
    }

    #[test]
    fn what_a_service_tells_is_where_clients_ask_whose_consensus_is_hours_older_or_newer() {
        // The value that is current in the half day before is the previous one after the next midnight.
        let values = |hours: u64| {
            let day = u8::try_from(hours / 24).expect("a few days");
            SharedRandom {
                current: Some([day + 1; 32]),
                previous: Some([day; 32]),
            }
        };
        let schedule = Schedule::default();
        for service in 24..72 {
            let told = schedule.uploads(at(service), &values(service));
            for client in service - 11..service + 11 {
                let asked = schedule.fetches(at(client), &values(client));
                assert!(told.contains(&asked), "{service} {client}");
            }
        }
    }

    #[test]
    fn revisions_of_a_period_are_counted_from_one_time() {
        let schedule = Schedule::default();
        let mut since = std::collections::HashMap::new();
        for hours in 24..96 {
            let uploads = schedule.uploads(at(hours), &VALUES);
            for (placement, from) in uploads.iter().zip(schedule.counted_from(at(hours))) {
                assert!(from <= at(hours));
                let before = *since.entry(placement.period).or_insert(from);
                assert_eq!(before, from, "{hours}");
            }
        }
    }

    #[test]
    fn a_value_that_is_not_there_is_replaced_by_that_of_the_disaster() {
        let nothing = SharedRandom::default();
        let schedule = Schedule::default();
        let [first, second] = schedule.uploads(at(13), &nothing);
        assert_eq!(first.random, first.period.disaster());
        assert_eq!(second, schedule.fetches(at(13), &nothing));
        assert_ne!(first.random, second.random);
    }

    #[test]
    fn a_test_network_has_short_periods() {
        let schedule = Schedule::testing(20);
        assert_eq!(schedule.period(0).minutes, 8);
        let begins = schedule.begins(schedule.period(1_000_000));
        assert!((999_520..=1_000_000).contains(&begins));
    }

    fn ring(of: impl IntoIterator<Item = u8>) -> Ring {
        let placement = Schedule::default().fetches(at(13), &VALUES);
        Ring::new(&placement, of.into_iter().map(|byte| [byte; 32]))
    }

    #[test]
    fn indexes_are_those_of_c_tor() {
        // C tor's `hs_build_hs_index` and `hs_build_hsdir_index` give these.
        let placement = Placement {
            period: TimePeriod {
                number: 42,
                minutes: 1440,
            },
            random: [0x43; 32],
        };
        let ring = Ring::new(&placement, [[0x42; 32]]);
        let service = ring.service_index(&BlindedKey::from_bytes([0x42; 32]), 1);
        assert_eq!(
            service,
            bytes("37E5CBBD56A22823714F18F1623ECE5983A0D64C78495A8CFAB854245E5F9A8A")
        );
        assert_eq!(
            ring.nodes[0].index,
            bytes("DB475361014A09965E7E5E4D4A25B8F8D4B8F16CB1D8A7E95EED50249CC1A2D5")
        );
    }

    #[test]
    fn no_directory_is_chosen_twice_and_a_small_ring_is_chosen_whole() {
        let key = BlindedKey::from_bytes([9; 32]);
        let spread = Spread::default();
        let chosen = ring(0..100).stored_at(&key, &spread);
        let mut once = chosen.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!((chosen.len(), once.len()), (8, 8));
        // What is fetched from is a part of what was told.
        let asked = ring(0..100).fetched_from(&key, &spread);
        let (first, second) = asked.split_at(3);
        assert_eq!(first, &chosen[..3]);
        assert!(second.iter().all(|one| chosen.contains(one)));
        assert_eq!(ring(0..5).stored_at(&key, &spread).len(), 5);
        assert_eq!(ring([1, 1, 1]).stored_at(&key, &spread).len(), 1);
        let kept = Spread::new(0, -1, i32::MAX);
        assert_eq!((kept.replicas, kept.fetch, kept.store), (1, 1, 128));
        assert!(
            ring([])
                .stored_at(&key, &Spread::new(99, 999, i32::MAX))
                .is_empty()
        );
    }

    proptest! {
        #[test]
        fn any_time_has_a_period_in_which_it_is(valid_after in 1_000_000_000..10_000_000_000_u64, minutes in 30..14_400_u32, voting in 1..10_u64) {
            let schedule = Schedule::new(minutes, voting * 60);
            let period = schedule.period(valid_after);
            prop_assert!(schedule.begins(period) <= valid_after);
            prop_assert!(valid_after < schedule.begins(period.after()));
        }

        #[test]
        fn no_time_and_no_schedule_panics(valid_after: u64, minutes: u32, voting: u64) {
            for schedule in [Schedule::new(minutes, voting), Schedule::testing(voting)] {
                let _ = (schedule.fetches(valid_after, &VALUES), schedule.uploads(valid_after, &VALUES), schedule.counted_from(valid_after));
            }
        }
    }
}
