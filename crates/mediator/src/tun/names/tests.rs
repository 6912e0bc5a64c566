//! What programs may rely on, with a clock that the test winds.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

const TERMS: MappingLimits = MappingLimits {
    keep: Duration::from_secs(70),
    missing: Duration::from_secs(30),
    names: 1024,
};

fn names(limits: MappingLimits) -> Arc<Names> {
    Arc::new(Names::new(&Pools::default(), &[], limits))
}

fn user(uid: u32) -> User {
    User::local(uid, 1)
}

fn host(name: &str) -> HostName {
    HostName::new(name).expect("valid")
}

fn at(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, 443)
}

fn means(name: &str) -> Option<Target> {
    let target = Target::new(Host::Name(host(name)), 443);
    Some(target.expect("a port"))
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn both_addresses_of_a_name_mean_it_with_the_packets_port() {
    let (names, now) = (names(TERMS), Instant::now());
    let pair = names
        .pair(&host("www.example"), user(1), now)
        .expect("room");
    for ip in pair.both() {
        assert_eq!(names.meaning(at(ip), now), means("www.example"));
        assert!(names.is_temporary(ip));
    }
    assert_eq!(names.pair(&host("www.example"), user(1), now), Some(pair));
}

#[test]
fn an_address_that_is_none_of_ours_means_itself() {
    let (names, now) = (names(TERMS), Instant::now());
    let real = at("192.0.2.1".parse().expect("an address"));
    assert_eq!(names.meaning(real, now), Some(real.into()));
    let mapped = "[::ffff:192.0.2.1]:443".parse().expect("an address");
    assert_eq!(names.meaning(mapped, now), Some(real.into()));
}

#[test]
fn a_mapping_lasts_for_seventy_seconds_after_its_last_use() {
    let (names, start) = (names(TERMS), Instant::now());
    let pair = names
        .pair(&host("www.example"), user(1), start)
        .expect("room");
    let [v4, v6] = pair.both();
    let later = start + seconds(69);
    assert_eq!(names.meaning(at(v4), later), means("www.example"));
    assert_eq!(
        names.meaning(at(v6), later + seconds(69)),
        means("www.example")
    );
    let end = later + seconds(69 + 70);
    assert_eq!(names.meaning(at(v4), end), None);
    assert_eq!(names.name(v6, end), None);
}

#[test]
fn asking_for_the_name_of_an_address_does_not_make_it_last() {
    let (names, start) = (names(TERMS), Instant::now());
    let [v4, _] = names
        .pair(&host("a.example"), user(1), start)
        .expect("room")
        .both();
    let later = start + seconds(69);
    assert_eq!(names.name(v4, later), Some(host("a.example")));
    assert_eq!(names.name(v4, later + seconds(2)), None);
}

#[tokio::test(start_paused = true)]
async fn a_flow_keeps_its_mapping_and_seventy_seconds_beyond() {
    let names = names(TERMS);
    let [v4, _] = names
        .pair(&host("a.example"), user(1), Instant::now())
        .expect("room")
        .both();
    let first = names.hold(v4, Instant::now()).expect("a name");
    let second = names.hold(v4, Instant::now()).expect("a name");
    tokio::time::advance(seconds(5000)).await;
    drop(first);
    tokio::time::advance(seconds(5000)).await;
    assert_eq!(names.name(v4, Instant::now()), Some(host("a.example")));
    drop(second);
    tokio::time::advance(seconds(69)).await;
    assert_eq!(names.name(v4, Instant::now()), Some(host("a.example")));
    tokio::time::advance(seconds(1)).await;
    assert_eq!(names.meaning(at(v4), Instant::now()), None);
    assert!(names.hold(v4, Instant::now()).is_none());
}

#[test]
fn when_all_are_in_use_a_further_name_gets_none_until_one_has_expired() {
    let limits = MappingLimits { names: 2, ..TERMS };
    let (names, start) = (names(limits), Instant::now());
    let first = names
        .pair(&host("a.example"), user(1), start)
        .expect("room");
    names
        .pair(&host("b.example"), user(1), start + seconds(5))
        .expect("room");
    assert_eq!(
        names.pair(&host("c.example"), user(1), start + seconds(69)),
        None
    );
    assert_eq!(names.len(), 2);
    let third = names.pair(&host("c.example"), user(1), start + seconds(70));
    assert_ne!(third.expect("the first has expired"), first);
    assert_eq!(names.name(first.v4.into(), start + seconds(70)), None);
}

#[test]
fn a_user_that_has_all_names_loses_what_it_has_not_used_for_longest_to_one_that_has_none() {
    let limits = MappingLimits { names: 4, ..TERMS };
    let (names, start) = (names(limits), Instant::now());
    let mine: Vec<_> = (0..4)
        .map(|n| {
            let name = host(&format!("n{n}.example"));
            names
                .pair(&name, user(1), start + seconds(n))
                .expect("room")
        })
        .collect();
    let now = start + seconds(5);
    assert_eq!(
        names.meaning(at(mine[0].v4.into()), now),
        means("n0.example")
    );
    let _held = names.hold(mine[1].v4.into(), now).expect("a name");
    let other = names.pair(&host("quiet.example"), user(2), now);
    let other = other.expect("another makes room");
    let alive = |pair: &AddressPair| names.name(pair.v4.into(), now).is_some();
    let left: Vec<_> = mine.iter().map(alive).collect();
    assert_eq!(left, [true, true, false, true]);
    assert_eq!(names.pair(&host("n9.example"), user(1), now), None);
    assert!(alive(&other), "who has most takes nobody's");
}

#[test]
fn a_name_that_two_users_asked_for_stays_with_the_one_that_has_fewer() {
    let limits = MappingLimits { names: 4, ..TERMS };
    let (names, start) = (names(limits), Instant::now());
    for n in 0..4 {
        let name = host(&format!("n{n}.example"));
        names
            .pair(&name, user(1), start + seconds(n))
            .expect("room");
    }
    let shared = names.pair(&host("n0.example"), user(2), start + seconds(4));
    for n in 5..20 {
        for again in 1..4 {
            let name = host(&format!("n{again}.example"));
            names.pair(&name, user(1), start + seconds(n));
        }
    }
    let third = names.pair(&host("quiet.example"), user(3), start + seconds(20));
    assert!(third.is_some());
    let ip = shared.expect("room").v4.into();
    assert_eq!(
        names.name(ip, start + seconds(20)),
        Some(host("n0.example"))
    );
}

#[test]
fn who_has_asked_again_is_told_the_name_behind_an_address_after_who_asked_before_is_not() {
    let (names, now) = (names(TERMS), Instant::now());
    let name = host("www.example");
    let asked = [1, 2, 3, 4, 5, 6, 7, 8, 1, 9].map(|one| names.pair(&name, user(one), now));
    let address = asked.into_iter().flatten().next().expect("room").v4.into();
    let told = |one| names.name_for(user(one), address, now);
    assert_eq!(told(1), Some(name.clone()));
    assert_eq!(told(2), None, "the latest eight alone are known");
}

#[test]
fn an_address_does_not_soon_mean_another_name() {
    let limits = MappingLimits { names: 16, ..TERMS };
    let (names, mut now) = (names(limits), Instant::now());
    let mut before = HashSet::new();
    for n in 0..5000 {
        let pair = names
            .pair(&host(&format!("n{n}.example")), user(1), now)
            .expect("room");
        assert!(before.insert(pair.v4), "given twice, at {n}");
        now += seconds(71);
    }
}

#[test]
fn addresses_do_not_tell_the_order_of_names() {
    let (names, now) = (names(TERMS), Instant::now());
    let addresses: Vec<Ipv4Addr> = (0..64)
        .map(|n| {
            names
                .pair(&host(&format!("n{n}.example")), user(1), now)
                .expect("room")
                .v4
        })
        .collect();
    let mut sorted = addresses.clone();
    sorted.sort();
    assert_ne!(addresses, sorted);
    let near = |pair: &[Ipv4Addr]| u32::from(pair[1]) - u32::from(pair[0]) < 4;
    assert!(sorted.windows(2).filter(|pair| near(pair)).count() < 16);
}

#[test]
fn the_devices_own_addresses_are_never_given() {
    let pools = Pools {
        ipv4: "10.9.8.0/22".parse().expect("a prefix"),
        ..Pools::default()
    };
    let own: IpAddr = "10.9.9.7".parse().expect("an address");
    let names = Names::new(&pools, &[own], TERMS);
    let now = Instant::now();
    let mut given = 0;
    for n in 0..1000 {
        let Some(pair) = names.pair(&host(&format!("n{n}.example")), user(1), now) else {
            break;
        };
        given += 1;
        let [a, b, c, d] = pair.v4.octets();
        assert_eq!([a, b], [10, 9]);
        assert!((9..=11).contains(&c), "the first 256 are the device's");
        assert!([c, d] != [11, 255] && IpAddr::V4(pair.v4) != own);
    }
    assert_eq!(given, 767 / 2 / 2);
    assert_eq!(names.meaning(at(own), now), None);
}

#[test]
fn a_name_that_a_flow_did_not_find_is_known_to_be_missing_for_a_while() {
    let (names, start) = (names(TERMS), Instant::now());
    let [v4, _] = names
        .pair(&host("a.example"), user(1), start)
        .expect("room")
        .both();
    assert!(!names.is_missing(&host("a.example"), start));
    names.fail(v4, start);
    assert!(names.is_missing(&host("a.example"), start + seconds(29)));
    assert!(!names.is_missing(&host("a.example"), start + seconds(30)));
}

#[test]
fn prefixes_of_absurd_sizes_are_refused() {
    assert_eq!(Pools::default().check(), Ok(()));
    for (text, key) in [
        ("ipv4 = \"198.18.0.0/24\"", "dns.ipv4"),
        ("ipv4 = \"0.0.0.0/0\"", "dns.ipv4"),
        ("ipv6 = \"fd00::/97\"", "dns.ipv6"),
    ] {
        let pools: Pools = toml::from_str(text).expect("parses");
        assert_eq!(pools.check().expect_err(text).0, key);
    }
}

#[test]
fn debug_output_names_nothing() {
    let (names, now) = (names(TERMS), Instant::now());
    let pair = names
        .pair(&host("secret.example"), user(1), now)
        .expect("room");
    let text = format!("{names:?} {pair:?}");
    assert!(!text.contains("secret") && !text.contains("198."), "{text}");
}

#[derive(Clone, Debug)]
enum Step {
    Ask(u8),
    Use(u8, bool),
    MappingHold(u8),
    Release(u8),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..24u8).prop_map(Step::Ask),
        3 => (0..24u8, any::<bool>()).prop_map(|(n, v6)| Step::Use(n, v6)),
        1 => (0..24u8).prop_map(Step::MappingHold),
        1 => (0..24u8).prop_map(Step::Release),
        2 => (0..90u64).prop_map(Step::Wait),
    ]
}

/// What a program knows of one name.
struct Known {
    pair: AddressPair,
    used: Instant,
    holds: usize,
}

proptest! {
    /// Against a model that remembers everything: what was told or used within 70 s, or is held, means its name, and nothing
    /// else means anything.
    #[test]
    fn an_address_means_its_name_or_nothing(steps in prop::collection::vec(step(), 1..200)) {
        let limits = MappingLimits { names: 16, ..TERMS };
        let names = names(limits);
        let mut now = Instant::now();
        let mut known: HashMap<u8, Known> = HashMap::new();
        for step in steps {
            match step {
                Step::Wait(n) => now += seconds(n),
                Step::Ask(n) => {
                    let alive = known.values().filter(|k| k.holds > 0 || now < k.used + TERMS.keep).count();
                    let told = names.pair(&host(&format!("n{n}.example")), user(1), now);
                    // Tidying up is bounded, so that an expired one may still take a place.
                    prop_assert!(told.is_some() || alive + 8 >= limits.names);
                    if let Some(pair) = told {
                        let holds = known.get(&n).map_or(0, |k| k.holds);
                        known.insert(n, Known { pair, used: now, holds });
                    }
                }
                Step::Use(n, v6) => {
                    let Some(k) = known.get_mut(&n) else { continue };
                    let ip = k.pair.both()[usize::from(v6)];
                    let alive = k.holds > 0 || now < k.used + TERMS.keep;
                    let expected = if alive { means(&format!("n{n}.example")) } else { None };
                    prop_assert_eq!(names.meaning(at(ip), now), expected);
                    if alive { k.used = now; }
                }
                Step::MappingHold(n) => {
                    let Some(k) = known.get_mut(&n) else { continue };
                    let offset = names.pool.find(k.pair.v4.into()).expect("ours");
                    let alive = k.holds > 0 || now < k.used + TERMS.keep;
                    prop_assert_eq!(names.table.lock().hold(offset, now), alive);
                    k.holds += usize::from(alive);
                }
                Step::Release(n) => {
                    let Some(k) = known.get_mut(&n).filter(|k| k.holds > 0) else { continue };
                    let offset = names.pool.find(k.pair.v4.into()).expect("ours");
                    names.table.lock().release(offset, now);
                    (k.holds, k.used) = (k.holds - 1, now);
                }
            }
            prop_assert!(names.len() <= limits.names);
        }
        let mut addresses = HashSet::new();
        for (n, k) in known.iter().filter(|(_, k)| k.holds > 0 || now < k.used + TERMS.keep) {
            prop_assert!(addresses.insert(k.pair.v4), "two names have one address, one of them n{n}");
        }
    }
}
