//! Against the documents of a private network of C tor 0.4.9.11 (those of `wire::tor`): three authorities, three relays.

use std::collections::BTreeSet;

use hoplite_crypto::onion::{service_keys::BlindedKey, time_period::Schedule};
use hoplite_overlay::memory::Network as MemoryNetwork;
use hoplite_wire::{Target, tor::hsdir_request::HsDirRequest};

use super::*;
use crate::{
    HsDirs, PlacedRing,
    path_selection::{self, Apart, OverlayKind, PathConstraints},
};

pub(super) const CONSENSUS: &str = include_str!("../../../wire/src/tor/tests/consensus-microdesc");
pub(super) const CERTIFICATES: &str = include_str!("../../../wire/src/tor/tests/certificates");
pub(super) const MICRODESCRIPTORS: &str =
    include_str!("../../../wire/src/tor/tests/microdescriptors");
/// As its tor-gencert named the authorities.
pub(super) const AUTHORITIES: [&str; 3] = [
    "4CB0A1456D97AECE1CF5F2A1F60A987D443C405C",
    "AEE1438A3AB5E14CD84E2D4ED7ECEB715E26381E",
    "A383B666F5D4DE83BCB617177AD37A7CDC916613",
];
/// 2026-11-22 03:04:00, within the minute for which it holds.
pub(super) const NOW: u64 = 1_795_316_640;

pub(super) fn trust() -> Trust {
    Trust {
        authorities: AUTHORITIES.map(id).to_vec(),
        skew: 0,
    }
}

fn id(digits: &str) -> [u8; 20] {
    hoplite_wire::tor::fingerprint(digits).expect("forty digits")
}

fn read(consensus: &str, certificates: &str, trust: &Trust, now: u64) -> Result<Network, Refused> {
    Network::read(consensus, certificates, MICRODESCRIPTORS, trust, now)
}

fn forged(good: usize) -> Option<Refused> {
    Some(Refused::Forged { good, needed: 2 })
}

#[test]
fn a_consensus_of_c_tor_is_believed_and_its_relays_are_known() {
    let network = read(CONSENSUS, CERTIFICATES, &trust(), NOW).expect("believed");
    assert_eq!(network.relays.len(), 6);
    assert_eq!(network.param("cc_alg", 2, 0..=2), 2);
    for relay in &network.relays {
        assert!(relay.router.ntor3 && relay.router.congestion_control);
        assert!(relay.exit.is_some());
    }
    let descriptors = network.descriptors();
    assert_eq!(descriptors.len(), 6);
    assert!(descriptors.iter().all(|one| one.check().is_ok()));
}

#[test]
fn who_says_that_it_has_quic_is_known_by_its_ed25519_identity() {
    let says = CONSENSUS.replacen("\npr ", "\npr X-HopliteQuic=1 ", 1);
    let consensus = Consensus::parse(&says).expect("read");
    let found = Microdescriptor::parse_all(MICRODESCRIPTORS).expect("read");
    let found = found.iter();
    let named = found.map(|one| (sha256(one.text.as_bytes()), Arc::new(Described::of(one))));
    let network = Network::of(consensus, &named.collect());
    let chosen = path_selection::Network::of_tor(&network);
    let has_quic = |relay: &&Relay| {
        let known = chosen.tor_relay(&Key(relay.keys.ed25519));
        known.is_some_and(|known| known.quic)
    };
    let quic: Vec<_> = network.relays.iter().filter(has_quic).collect();
    let first = network.relays.first().expect("one");
    assert_eq!(quic, [first]);
}

#[test]
fn descriptors_of_onion_services_are_looked_for_where_the_consensus_says() {
    let network = read(CONSENSUS, CERTIFICATES, &trust(), NOW).expect("believed");
    // Votes each 20 seconds: 24 of them are 8 minutes.
    let hsdirs = HsDirs::of_tor(&network, true);
    assert_eq!(
        (hsdirs.len(), hsdirs.schedule()),
        (6, Schedule::testing(20))
    );
    let [first, second] = hsdirs.uploads();
    assert_eq!(
        first.placement.period.number + 1,
        second.placement.period.number
    );
    assert!(second.placement.random == network.shared_random.current.expect("one"));
    assert!(first.placement.random == first.placement.period.disaster());
    let key = BlindedKey::from_bytes([7; 32]);
    assert_eq!(hsdirs.fetches().asked(&key).len(), 6, "all that there are");
    let slow = HsDirs::of_tor(&network, false);
    assert_eq!(slow.schedule(), Schedule::new(1440, 20));
    let without = |from: &str, to: &str| {
        let mut fewer = network.clone();
        let consensus = CONSENSUS.replace(from, to);
        assert_ne!(consensus, CONSENSUS);
        let routers = Consensus::parse(&consensus).expect("read").routers;
        for (relay, router) in fewer.relays.iter_mut().zip(routers) {
            relay.router = router;
        }
        HsDirs::of_tor(&fewer, true).len()
    };
    assert_eq!(without("Guard HSDir", "Guard"), 0);
    assert_eq!(without("HSDir=2 HSIntro=4-5 HSRend=1-2", "HSDir=1"), 0);
}

/// Of another network, with where a service of C tor published: `hsdirs/README.md`.
#[test]
fn a_service_of_c_tor_publishes_where_we_look_for_its_descriptors() {
    let consensus = include_str!("hsdirs/consensus-microdesc");
    let certificates = include_str!("hsdirs/certificates");
    let microdescriptors = include_str!("hsdirs/microdescriptors");
    let now = Consensus::parse(consensus).expect("read").valid_after;
    let authorities = KeyCertificate::parse_all(certificates).expect("read");
    let authorities = authorities.iter().map(|one| one.fingerprint);
    let trust = Trust {
        authorities: authorities.collect(),
        skew: 0,
    };
    let network = Network::read(consensus, certificates, microdescriptors, &trust, now);
    let network = network.expect("believed");
    let hsdirs = HsDirs::of_tor(&network, true);
    assert_eq!(hsdirs.len(), 8);
    let values = &network.shared_random;
    assert!(values.current.is_some() && values.previous.is_some());
    let mut uploads = BTreeMap::<[u8; 32], BTreeSet<[u8; 20]>>::new();
    for line in include_str!("hsdirs/uploads").lines() {
        let (relay, key) = line.split_once(' ').expect("two words");
        let asked = HsDirRequest::parse("GET", &format!("/tor/hs/3/{key}"));
        let Some(HsDirRequest::Fetch(key)) = asked else {
            unreachable!("{key} is no key");
        };
        uploads.entry(key).or_default().insert(id(relay));
    }
    let rsa = |key: Key| {
        let mut relays = network.relays.iter();
        let relay = relays.find(|relay| relay.keys.ed25519 == key.0);
        relay.expect("a relay").keys.rsa_id
    };
    let told = |ring: &PlacedRing, key| {
        let told = ring.told(&BlindedKey::from_bytes(key)).into_iter();
        told.map(rsa).collect::<BTreeSet<_>>()
    };
    // One of the two is each ring's, and told nobody else.
    let rings = hsdirs.uploads();
    for ring in &rings {
        let own = uploads
            .iter()
            .filter(|(key, where_)| told(ring, **key) == **where_);
        assert_eq!(own.count(), 1);
    }
    // Whoever looks for the one of the period asks two of its four.
    let asks = hsdirs.fetches();
    let asked = uploads.iter().filter(|(key, where_)| {
        let asked = asks.asked(&BlindedKey::from_bytes(**key)).into_iter();
        let asked: BTreeSet<_> = asked.map(rsa).collect();
        asked.len() == 2 && asked.is_subset(where_) && told(&asks, **key) == **where_
    });
    assert_eq!((uploads.len(), asked.count()), (2, 1));
}

#[test]
fn a_path_begins_at_a_guard_of_the_consensus_and_has_no_two_of_one_family_however_large() {
    let mut network = read(CONSENSUS, CERTIFICATES, &trust(), NOW).expect("believed");
    let flagless = CONSENSUS.replacen("Guard HSDir Running", "HSDir Running", 1);
    assert_ne!(flagless, CONSENSUS);
    let routers = Consensus::parse(&flagless).expect("read").routers;
    for (relay, router) in network.relays.iter_mut().zip(routers) {
        relay.router = router;
    }
    // Bandwidth counts everywhere: nothing but its flags keeps a relay from being the first.
    network.weights.clear();
    let ids: Vec<_> = network.relays.iter().map(|it| it.keys).collect();
    for relay in network.relays.iter_mut().take(3) {
        // More than a descriptor of ours names.
        relay.family = vec![ids[5].rsa_id; 40];
    }
    network.relays[0].family.push(ids[1].rsa_id);
    network.relays[1].family.push(ids[0].rsa_id);
    network.relays[2].family.push(ids[0].rsa_id);
    for proven in [3, 4] {
        network.relays[proven].family_ids = vec!["ed25519:family".to_owned()];
    }
    let known = path_selection::Network::of_tor(&network);
    let constraints = PathConstraints {
        hops: 3,
        overlay: OverlayKind::Onion,
        apart: Apart {
            family: true,
            ..Apart::hardly()
        },
        ..PathConstraints::default()
    };
    let is_guard = |number: usize| network.relays[number].router.flags.has(Flags::GUARD);
    let mut bits = hoplite_testing::seeded(5);
    let mut together = BTreeSet::new();
    for _ in 0..500 {
        let path = known.select_path(&constraints, &mut |most| bits() % most);
        let path = path.expect("possible").into_iter();
        let number = |identity: Key| ids.iter().position(|keys| keys.ed25519 == identity.0);
        let path: Vec<_> = path.filter_map(|relay| number(relay.identity)).collect();
        assert!(is_guard(path[0]), "{path:?}");
        for (at, one) in path.iter().enumerate() {
            let others = path.iter().skip(at + 1);
            together.extend(others.map(|other| (*one.min(other), *one.max(other))));
        }
    }
    assert!(!together.contains(&(0, 1)), "both say so");
    assert!(!together.contains(&(3, 4)), "it is proven");
    assert!(together.contains(&(0, 2)), "one alone says so");
    assert_eq!(together.len(), 13);
}

#[test]
fn more_than_half_of_the_known_authorities_must_have_signed() {
    let mut trust = trust();
    trust.authorities[0] = [1; 20];
    assert!(read(CONSENSUS, CERTIFICATES, &trust, NOW).is_ok());
    trust.authorities[1] = [2; 20];
    assert_eq!(read(CONSENSUS, CERTIFICATES, &trust, NOW).err(), forged(1));
    trust.authorities = vec![id(AUTHORITIES[0]); 3];
    let twice = read(CONSENSUS, CERTIFICATES, &trust, NOW);
    assert_eq!(twice.err(), forged(1), "one authority counts once");
    trust.authorities.clear();
    let nobody = Some(Refused::Forged { good: 0, needed: 1 });
    assert_eq!(read(CONSENSUS, CERTIFICATES, &trust, NOW).err(), nobody);
}

#[test]
fn what_was_changed_on_the_way_is_forged() {
    for (from, to) in [
        ("Exit Fast", "Exit Slow"),
        (" 5004 ", " 5005 "),
        ("Wbm=10000", "Wbm=10001"),
        ("directory-footer\n", "directory-footer\n\n"),
    ] {
        let changed = CONSENSUS.replacen(from, to, 1);
        assert_ne!(changed, CONSENSUS, "{from}");
        let refused = read(&changed, CERTIFICATES, &trust(), NOW);
        assert_eq!(refused.err(), forged(0), "{from}");
    }
}

#[test]
fn a_certificate_that_was_changed_or_has_expired_does_not_count() {
    let changed = CERTIFICATES.replace("dir-address 127.0.0.1:700", "dir-address 127.0.0.1:800");
    assert_eq!(read(CONSENSUS, &changed, &trust(), NOW).err(), forged(0));
    let years = NOW + 2 * 365 * 24 * 3600;
    assert_eq!(
        read(CONSENSUS, CERTIFICATES, &trust(), years).err(),
        forged(0)
    );
    assert_eq!(read(CONSENSUS, "", &trust(), NOW).err(), forged(0));
}

#[test]
fn it_holds_for_its_time() {
    let at = |now| read(CONSENSUS, CERTIFICATES, &trust(), now).map(drop);
    assert_eq!(at(NOW + 40), Ok(()));
    assert_eq!(at(NOW + 41), Err(Refused::Stale { ago: 1 }));
    assert_eq!(at(NOW - 21), Err(Refused::Early { ahead: 1 }));
}

#[test]
fn a_microdescriptor_that_the_consensus_does_not_name_is_nobodys() {
    let changed = MICRODESCRIPTORS.replacen("p accept 1-65535", "p accept 1-65534", 1);
    let network = Network::read(CONSENSUS, CERTIFICATES, &changed, &trust(), NOW);
    assert_eq!(network.expect("believed").relays.len(), 5);
}

#[test]
fn a_relay_that_is_not_described_is_on_the_list_by_its_rsa_identity() {
    let whole = read(CONSENSUS, CERTIFICATES, &trust(), NOW).expect("believed");
    let all = Microdescriptor::parse_all(MICRODESCRIPTORS).expect("read");
    let some: String = all.iter().skip(1).map(|one| one.text).collect();
    let network = Network::read(CONSENSUS, CERTIFICATES, &some, &trust(), NOW);
    let network = network.expect("believed");
    let is_missing = |relay: &&Relay| !network.relays.iter().any(|one| one.keys == relay.keys);
    let [lacking] = whole.relays.iter().filter(is_missing).collect::<Vec<_>>()[..] else {
        unreachable!("one is not described");
    };
    let (identity, rsa_id) = (Key(lacking.keys.ed25519), lacking.keys.rsa_id);
    let [whole, network] = [&whole, &network].map(path_selection::Network::of_tor);
    assert_eq!(whole.rsa_id(&identity), Some(rsa_id));
    assert!(!whole.is_undescribed(&identity, Some(&rsa_id)));
    assert!(network.is_undescribed(&identity, Some(&rsa_id)));
    // By no other name, and nobody else.
    assert!(!network.is_undescribed(&identity, None));
    assert!(!network.is_undescribed(&identity, Some(&[7; 20])));
}

#[tokio::test]
async fn a_directory_that_cannot_be_reached_is_told() {
    let network = MemoryNetwork::new(1);
    let overlay = network.overlay([192, 0, 2, 1].into());
    let source = Target::from(std::net::SocketAddr::from(([192, 0, 2, 2], 80)));
    let limit = Duration::from_secs(5);
    let failed = fetch_all(&overlay, &source, &trust(), NOW, limit).await;
    let failed = failed.expect_err("nobody is there");
    assert!(failed.to_string().contains("cannot be reached"), "{failed}");
}
