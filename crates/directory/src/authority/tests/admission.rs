//! What relays hand in, and strangers in their name: what is refused, what waits, what is voted for.

use super::*;
use crate::said_by_holder;
use hoplite_crypto::{Certificates, Identity};
use std::net::SocketAddr;

/// What relay `n` says at `published`, with these addresses.
fn says(n: u8, published: u64, addresses: &[&str]) -> String {
    let address = |text: &&str| -> SocketAddr { text.parse().expect("an address") };
    let relay = Descriptor {
        published,
        addresses: addresses.iter().map(address).collect(),
        ..of_circuits(n)
    };
    sign_descriptor(relay, &key(n)).expect("signed").to_string()
}

fn from(network: u8) -> IpAddr {
    IpAddr::from([198, 51, network, 7])
}

fn one() -> Authority {
    authorities(1, 1).remove(0)
}

/// Who would be voted for.
fn voted(authority: &Authority) -> Vec<Key> {
    let tested = authority.pool.tested();
    tested.map(|signed| signed.descriptor.identity).collect()
}

#[test]
fn what_a_relay_says_again_word_for_word_is_as_it_was_and_tested_no_sooner() {
    let mut one = one();
    let said = says(11, START, &["10.11.0.1:443"]);
    let known = |one: &mut Authority, now| {
        let taken = one.upload(&said, None, FROM, now).expect("taken");
        taken.known
    };
    assert!(!known(&mut one, START));
    let probes = one.probes(START);
    assert_eq!(probes.len(), 1);
    assert!(known(&mut one, START + 1), "while it is tested");
    // Other words for the same time are none of these.
    let other = says(11, START, &["10.11.0.2:443"]);
    let other = one.upload(&other, None, FROM, START + 2);
    assert_eq!(other, Err(Rejected::Superseded));
    one.probed(&probes[0], true, START + 3);
    assert!(known(&mut one, START + 4));
    assert!(one.probes(START + 5).is_empty());
}

#[test]
fn what_a_relay_hands_in_is_refused_with_the_reason() {
    let mut one = one();
    let now = START;
    let mut upload = |n, published, address: &str| {
        let taken = one.upload(&says(n, published, &[address]), None, FROM, now);
        test(&mut one, now, |_| true);
        taken.map(|taken| taken.identity)
    };
    assert_eq!(upload(11, now - 10, "10.11.0.1:443"), Ok(public(11)));
    assert_eq!(upload(11, now, "10.11.0.1:443"), Ok(public(11)));
    assert_eq!(
        upload(11, now - 10, "10.11.0.1:443"),
        Err(Rejected::Superseded)
    );
    assert_eq!(
        upload(12, now - 20 * 3600, "10.12.0.1:443"),
        Err(Rejected::Old)
    );
    assert_eq!(upload(12, now + 61, "10.12.0.1:443"), Err(Rejected::Early));
    let mut strict = config(1, 1, 1);
    strict.admission.private = false;
    strict.admission.refuse = vec![public(14)];
    strict.admission.relays = 0;
    strict.admission.reaches.v6 = false;
    let mut strict = Authority::new(strict, Promise::forgetful(), now);
    let mut upload = |n, address: &str| strict.upload(&says(n, now, &[address]), None, FROM, now);
    assert_eq!(upload(14, "10.0.0.1:443"), Err(Rejected::Forbidden));
    assert_eq!(upload(15, "10.0.0.1:443"), Err(Rejected::Private));
    // Private addresses in others, and ones that are somebody else's address over again.
    for carries in [
        "[2002:7f00:1::]:443",
        "[64:ff9b::a9fe:a9fe]:443",
        "[64:ff9b::909:909]:443",
    ] {
        assert_eq!(upload(15, carries), Err(Rejected::Private));
    }
    assert_eq!(upload(15, "[2a00::1]:443"), Err(Rejected::Unreached));
    assert_eq!(upload(15, "9.9.9.9:443"), Err(Rejected::Full));
    let changed = says(15, now, &["9.9.9.9:443"]).replace("9.9.9.9", "9.9.9.8");
    let unsigned = Err(Rejected::Refused(Refused::Unsigned));
    assert_eq!(strict.upload(&changed, None, FROM, now), unsigned);
}

#[test]
fn a_relay_that_says_nothing_more_is_forgotten() {
    let mut one = one();
    upload(&mut one, 11);
    // It passes its tests all the time.
    for now in (START..START + 17 * 3600).step_by(1800) {
        test(&mut one, now, |_| true);
        assert_eq!(one.forget(now), vec![]);
    }
    assert_eq!(one.forget(START + 17 * 3600 + 1), vec![public(11)]);
    assert_eq!(one.relays(), 0);
}

#[test]
fn a_strangers_address_is_never_voted_for_and_is_dialled_once() {
    let mut one = one();
    let text = says(11, START, &["10.11.0.1:443", "10.66.0.1:443"]);
    one.upload(&text, None, FROM, START).expect("waits");
    assert_eq!(voted(&one), []);
    let probes = one.probes(START);
    assert_eq!(probes.len(), 1);
    assert_eq!(probes[0].addresses.len(), 2, "every address");
    assert!(one.probes(START).is_empty(), "it is under way");
    assert_eq!(
        one.probed(&probes[0], false, START),
        Some(Settled::Forget(public(11)))
    );
    assert_eq!(voted(&one), []);
    assert!(one.probes(START + 3600).is_empty(), "it is forgotten");
    assert_eq!(one.relays(), 0);
}

#[test]
fn a_flood_of_strangers_addresses_pushes_no_tested_relay_out_and_delays_a_new_one_by_one_test() {
    let mut one = one();
    upload(&mut one, 11);
    // One network hands in all that it likes; nothing of it is tested yet.
    for n in 100..200 {
        let text = says(n, START, &[&format!("10.{n}.0.1:443")]);
        one.upload(&text, None, from(1), START)
            .expect("waits at its own cost");
    }
    assert_eq!(one.relays(), 1 + 4);
    // As many of it as may be are being tested when another relay comes, from elsewhere.
    let mut under_way = one.probes(START);
    under_way.retain(|probe| probe.relay.identity != public(11));
    assert_eq!(under_way.len(), 3);
    for n in 200..210 {
        let text = says(n, START, &[&format!("10.{n}.0.1:443")]);
        one.upload(&text, None, from(1), START).expect("waits");
    }
    one.upload(&says(12, START, &["10.12.0.1:443"]), None, from(2), START)
        .expect("waits");
    one.probed(&under_way[0], false, START);
    let next = one.probes(START);
    assert!(next.iter().any(|probe| probe.relay.identity == public(12)));
    for probe in next {
        let is_there = probe.relay.identity == public(12);
        one.probed(&probe, is_there, START);
    }
    let mut expected = [public(11), public(12)];
    expected.sort();
    assert_eq!(voted(&one), expected);
}

#[test]
fn a_relay_is_tested_again_whatever_strangers_hand_in_with_its_address_and_that_of_who_stands_first()
 {
    let mut one = one();
    for n in 11..31 {
        one.upload(
            &says(n, START, &[&format!("10.{n}.0.1:443")]),
            None,
            from(n),
            START,
        )
        .expect("waits");
        test(&mut one, START, |_| true);
    }
    let due = START + 1800;
    let first = one.pool.tested().next().expect("tested");
    let its = first.descriptor.addresses[0].to_string();
    one.upload(
        &says(100, due, &[&its, "10.100.0.1:443"]),
        None,
        from(100),
        due,
    )
    .expect("waits");
    let stranger = one.probes(due - 1);
    assert_eq!(stranger.len(), 1, "its test takes long");
    let mut again = Vec::new();
    test(&mut one, due, |probe| {
        again.push(probe.relay.identity);
        true
    });
    again.sort();
    assert_eq!(again, voted(&one));
}

#[test]
fn tests_are_no_more_than_may_be_at_once_whatever_is_handed_in_anew_meanwhile() {
    let mut one = one();
    let mut under_way = Vec::new();
    for turn in 0..50 {
        for n in 100..110 {
            // Another place each time.
            let text = says(n, START + turn, &[&format!("10.{n}.{turn}.1:443")]);
            drop(one.upload(&text, None, from(n), START + turn));
        }
        under_way.extend(one.probes(START + turn));
    }
    assert_eq!(under_way.len(), 3);
    // What came last is tested when they are over.
    for probe in &under_way {
        one.probed(probe, true, START + 50);
    }
    assert_eq!(voted(&one), []);
    test(&mut one, START + 50, |_| true);
    assert!(voted(&one).contains(&under_way[0].relay.identity));
}

#[test]
fn who_names_a_relays_two_addresses_in_turn_does_not_go_before_it() {
    let mut one = one();
    let upload = |one: &mut Authority, n, addresses: &[&str]| {
        one.upload(&says(n, START, addresses), None, from(n), START)
            .expect("waits");
    };
    let (v4, v6) = ("10.12.0.1:443", "[2a00:1::1]:443");
    upload(&mut one, 100, &[v4]);
    upload(&mut one, 101, &[v6]);
    let under_way = one.probes(START);
    assert_eq!(under_way.len(), 2);
    upload(&mut one, 12, &[v4, v6]);
    upload(&mut one, 102, &[v4]);
    upload(&mut one, 103, &[v6]);
    one.probed(&under_way[0], false, START);
    assert!(one.probes(START).is_empty(), "it is the next there");
    one.probed(&under_way[1], false, START);
    let next = one.probes(START);
    assert_eq!(next[0].relay.identity, public(12));
}

#[test]
fn when_all_places_to_wait_are_taken_the_network_with_the_most_gives_way() {
    let mut one = one();
    let mut upload = |n: u8, network| {
        let text = says(n, START, &[&format!("10.{n}.0.1:443")]);
        one.upload(&text, None, from(network), START)
            .map(|taken| taken.gone)
    };
    for n in 100..104 {
        assert_eq!(upload(n, 1), Ok(None));
    }
    assert_eq!(upload(104, 1), Ok(Some(public(100))), "its own oldest");
    assert_eq!(upload(110, 2), Ok(None));
    assert_eq!(upload(111, 3), Ok(None));
    assert_eq!(
        upload(112, 4),
        Ok(Some(public(104))),
        "the last of the most"
    );
    assert_eq!(upload(113, 5), Ok(Some(public(103))));
    assert_eq!(upload(114, 6), Ok(Some(public(102))));
    assert_eq!(upload(115, 7), Err(Rejected::Busy));
}

#[test]
fn a_neighbour_who_hands_in_without_end_pushes_nobody_of_his_network_out() {
    let mut one = one();
    let mut upload = |n: u8, host| {
        let text = says(n, START, &[&format!("10.{n}.0.1:443")]);
        let from = IpAddr::from([198, 51, 100, host]);
        one.upload(&text, None, from, START).map(|taken| taken.gone)
    };
    assert_eq!(upload(11, 2), Ok(None));
    for n in 100..200 {
        upload(n, 3).expect("at its own cost");
    }
    assert_eq!(upload(12, 4), Ok(Some(public(199))), "the last of the most");
    let probes = one.probes(START);
    let is_tested = |n| probes.iter().any(|probe| probe.relay.identity == public(n));
    assert!(is_tested(11));
}

#[test]
fn who_has_all_networks_of_a_provider_keeps_nobody_out_who_is_elsewhere() {
    let mut one = one();
    let mut upload = |n: u8, from: [u16; 3]| {
        let text = says(n, START, &[&format!("10.{n}.0.1:443")]);
        let from = IpAddr::from([from[0], from[1], from[2], 0, 0, 0, 0, 7]);
        one.upload(&text, None, from, START).map(|taken| taken.gone)
    };
    for n in 100..106 {
        assert_eq!(upload(n, [0x2001, 0xdb8, n.into()]), Ok(None));
    }
    assert_eq!(upload(11, [0x2001, 0xdb8, 7]), Err(Rejected::Busy));
    assert_eq!(upload(11, [0x2001, 0xdb9, 7]), Ok(Some(public(105))));
}

#[test]
fn relays_of_one_place_are_as_many_as_the_caps_and_those_that_passed_count_alone() {
    let mut one = one();
    let place = |one: &mut Authority, n, address: &str, is_there| {
        let taken = one.upload(&says(n, START, &[address]), None, FROM, START);
        test(one, START, |_| is_there);
        taken.map(drop)
    };
    // Strangers that name the address keep nobody from it.
    for n in 100..110 {
        assert_eq!(place(&mut one, n, "9.9.9.9:443", false), Ok(()));
    }
    assert_eq!(place(&mut one, 11, "9.9.9.9:443", true), Ok(()));
    assert_eq!(place(&mut one, 12, "9.9.9.9:444", true), Ok(()));
    assert_eq!(
        place(&mut one, 13, "9.9.9.9:445", true),
        Err(Rejected::Crowded)
    );
    assert_eq!(place(&mut one, 13, "9.9.9.8:443", true), Ok(()));
    assert_eq!(
        place(&mut one, 14, "9.9.9.7:443", true),
        Err(Rejected::Crowded),
        "the /24"
    );
    assert_eq!(place(&mut one, 15, "[2a00:1:2::1]:443", true), Ok(()));
    assert_eq!(place(&mut one, 16, "[2a00:1:2::2]:443", true), Ok(()));
    assert_eq!(
        place(&mut one, 17, "[2a00:1:2:9::3]:443", true),
        Err(Rejected::Crowded),
        "the /48"
    );
    assert_eq!(place(&mut one, 17, "[2a00:1:3::3]:443", true), Ok(()));
    assert_eq!(
        place(&mut one, 18, "[2a00:1:4::3]:443", true),
        Err(Rejected::Crowded),
        "the /32"
    );
    // Two that passed at the same time: the caps hold then, too.
    for n in [20, 21, 22] {
        one.upload(&says(n, START, &["9.8.7.6:443"]), None, FROM, START)
            .expect("waits");
    }
    test(&mut one, START, |_| true);
    assert_eq!(voted(&one).len(), 3 + 3 + 2);
}

#[test]
fn a_relay_that_moves_is_voted_for_where_it_was_until_it_has_passed_where_it_is() {
    let mut one = one();
    let addresses = |one: &Authority| {
        let tested = one.pool.tested();
        let addresses = tested.flat_map(|signed| signed.descriptor.addresses.clone());
        addresses
            .map(|address| address.to_string())
            .collect::<Vec<_>>()
    };
    one.upload(&says(11, START, &["10.11.0.1:443"]), None, FROM, START)
        .expect("taken");
    test(&mut one, START, |_| true);
    one.upload(
        &says(11, START + 1, &["10.12.0.1:443"]),
        None,
        FROM,
        START + 1,
    )
    .expect("waits");
    assert_eq!(addresses(&one), ["10.11.0.1:443"]);
    let gone = test(&mut one, START + 1, |_| false);
    assert_eq!(
        (addresses(&one), gone),
        (vec!["10.11.0.1:443".to_owned()], vec![])
    );
    one.upload(
        &says(11, START + 2, &["10.12.0.1:443"]),
        None,
        FROM,
        START + 2,
    )
    .expect("waits");
    test(&mut one, START + 2, |_| true);
    assert_eq!(addresses(&one), ["10.12.0.1:443"]);
    // The same place needs no new test.
    one.upload(
        &says(11, START + 3, &["10.12.0.1:443"]),
        None,
        FROM,
        START + 3,
    )
    .expect("taken");
    assert!(one.probes(START + 3).is_empty());
}

#[test]
fn a_relay_that_is_gone_is_voted_for_no_more_after_two_tests_time() {
    let mut one = one();
    one.upload(&says(11, START, &["10.11.0.1:443"]), None, FROM, START)
        .expect("taken");
    test(&mut one, START, |_| true);
    assert!(one.probes(START + 1799).is_empty());
    test(&mut one, START + 1800, |_| false);
    assert!(one.probes(START + 1801).is_empty(), "not all the time");
    assert_eq!(one.forget(START + 3600), []);
    assert_eq!(voted(&one), [public(11)]);
    assert_eq!(one.forget(START + 3601), [public(11)]);
    assert_eq!(voted(&one), []);
}

#[test]
fn after_a_restart_what_was_stored_is_tested_first() {
    let mut one = one();
    for n in 11..20 {
        one.restore(&says(n, START, &[&format!("10.{n}.0.1:443")]), None, START)
            .expect("taken");
    }
    assert_eq!((one.relays(), voted(&one).len()), (9, 0));
    test(&mut one, START, |_| true);
    assert_eq!(voted(&one).len(), 9);
}

#[test]
fn after_a_restart_who_had_passed_goes_before_strangers_that_wait() {
    let mut one = one();
    for n in 100..103 {
        let text = says(n, START, &[&format!("10.{n}.0.1:443")]);
        one.upload(&text, None, from(n), START).expect("waits");
    }
    for n in 11..14 {
        let text = says(n, START, &[&format!("10.11.{n}.1:443")]);
        one.restore(&text, Some(START - 3600), START)
            .expect("taken");
    }
    let probes = one.probes(START);
    let first: Vec<Key> = probes.iter().map(|probe| probe.relay.identity).collect();
    assert_eq!(first, [11, 12, 13].map(public));
}

/// It may be the authority's own network that is not there yet.
#[test]
fn who_had_passed_before_a_restart_is_tried_again_as_long_as_others_who_have() {
    let mut one = one();
    for n in [11, 12] {
        let text = says(n, START, &[&format!("10.{n}.0.1:443")]);
        one.restore(&text, Some(START - 3600), START)
            .expect("taken");
    }
    for probe in one.probes(START) {
        assert_eq!(one.probed(&probe, false, START), None);
    }
    assert!(one.probes(START + 449).is_empty(), "not all the time");
    test(&mut one, START + 450, |probe| {
        probe.relay.identity == public(11)
    });
    assert_eq!(voted(&one), [public(11)]);
    for now in (START + 900..=START + 3600).step_by(450) {
        assert_eq!(one.relays(), 2);
        test(&mut one, now, |probe| probe.relay.identity == public(11));
    }
    assert_eq!(one.relays(), 1);
}

#[test]
fn who_has_copied_a_pin_says_nothing_of_its_relay() {
    let mut one = one();
    let certificates = || {
        let new = Identity::generate(&[]).expect("made");
        let identity = Identity::from_pem(new.certificate.as_bytes(), new.key.as_bytes());
        Certificates::new(&identity.expect("read")).expect("fits")
    };
    let (honest, attacker) = (certificates(), certificates());
    let pin = honest.pin().expect("shown");
    // Both name one pin and one address.
    let signed = |n: u8, published| {
        let relay = Descriptor {
            published,
            addresses: vec![([10, 11, 0, 1], 443).into()],
            pin: Some(pin.into()),
            ..said(n)
        };
        sign_descriptor(relay, &key(n)).expect("signed")
    };
    let proof = |by: &Certificates, signed: &SignedDescriptor| by.prove(&said_by_holder(signed));
    let (own, forged) = (signed(11, START), signed(12, START));
    let mut hand_in = |signed: &SignedDescriptor, proof: Option<Proof>| {
        one.upload(&signed.to_string(), proof.as_ref(), FROM, START)
            .map(|taken| taken.identity)
    };
    // None, by another key, and what the honest one has proven for its own descriptor or another of it.
    let taken = [
        hand_in(&forged, None),
        hand_in(&forged, proof(&attacker, &forged)),
        hand_in(&forged, proof(&honest, &own)),
        hand_in(&own, proof(&honest, &signed(11, START - 1))),
    ];
    assert_eq!(taken, [Err(Rejected::Unproven); 4]);
    assert_eq!(hand_in(&own, proof(&honest, &own)), Ok(public(11)));
    test(&mut one, START, |_| true);
    assert_eq!(voted(&one), [public(11)]);
    // After a restart it needs to prove nothing again.
    let mut again = authorities(1, 1).remove(0);
    again.restore(&own.to_string(), None, START).expect("taken");
}
