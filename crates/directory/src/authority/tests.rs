//! Authorities that talk in memory, at times that the test hands in: they agree and they fall out. Those that lie are in [`hostile`].

mod admission;
mod hostile;
mod measured;
mod onion_services;

use std::sync::Arc;

use parking_lot::Mutex;

use super::*;
use crate::testing::{descriptor, key, public, said, signed_by, trust};
use crate::{check::check_list, sign_descriptor};
use hoplite_wire::directory::Descriptor;

const INTERVAL: u64 = 3600;
const VOTING: u64 = 300;
/// Who hands descriptors in.
const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// A multiple of the interval.
const START: u64 = 472_222 * INTERVAL;

fn config(n: u8, known: u8, threshold: usize) -> Config {
    Config {
        key: key(n),
        trust: trust(known, threshold),
        interval: INTERVAL,
        voting: VOTING,
        intervals: 3,
        bandwidth_cap: 1_000_000 * u64::from(n),
        hsdir_interval: 4 * INTERVAL / 60,
        hsdir_uptime: 2 * INTERVAL,
        admission: Admission {
            relays: 100,
            per_address: 2,
            per_24: 3,
            per_16: 100,
            per_48: 2,
            per_32: 3,
            untested: 6,
            untested_per_network: 4,
            tests: 4,
            retest: Duration::from_secs(1800),
            reaches: Families { v4: true, v6: true },
            life: Duration::from_secs(18 * 3600),
            private: true,
            only: Vec::new(),
            refuse: Vec::new(),
        },
        flags: FlagRules {
            vote: false,
            ..FlagRules::default()
        },
    }
}

fn authorities(known: u8, threshold: usize) -> Vec<Authority> {
    let new = |n| {
        Authority::new(
            config(n, known, threshold),
            Promise::forgetful(),
            START - INTERVAL,
        )
    };
    (1..=known).map(new).collect()
}

fn place(authorities: &[Authority], who: &Key) -> Option<usize> {
    authorities
        .iter()
        .position(|authority| Key(authority.config.key.public()) == *who)
}

fn answer(authority: &Authority, want: &Want, now: u64) -> Option<String> {
    let mut parts = want.path.split('/').skip(3);
    let at = parts.next()?.parse().ok()?;
    let text = |bytes: Bytes| String::from_utf8(bytes.into()).expect("text");
    match want.what {
        Wanted::Commitments => authority.commitments(at),
        Wanted::Vote => {
            let voter = parts.next()?.parse().ok()?;
            authority.vote(at, &voter, seconds(now)).map(text)
        }
        Wanted::Signatures => authority.signed(at).map(text),
    }
}

/// What is answered, with whatever check it needs.
fn hear(
    authority: &mut Authority,
    want: &Want,
    text: &str,
    now: u64,
) -> Result<Vec<Event>, Refused> {
    match authority.heard(want, text.to_owned(), seconds(now))? {
        Heard::Done(events) => Ok(events),
        Heard::Check(mut events, unchecked) => {
            events.extend(authority.checked(unchecked.check(), seconds(now))?);
            Ok(events)
        }
    }
}

/// All ask each other for what they want; `may` says who reaches whom.
fn exchange(
    authorities: &mut [Authority],
    now: u64,
    may: impl Fn(usize, usize) -> bool,
) -> Vec<Event> {
    let mut events = Vec::new();
    for asking in 0..authorities.len() {
        events.extend(authorities[asking].tick(seconds(now)));
        for want in authorities[asking].wants(seconds(now)) {
            let Some(asked) = place(authorities, &want.from).filter(|asked| may(asking, *asked))
            else {
                continue;
            };
            if let Some(text) = answer(&authorities[asked], &want, now) {
                let heard = hear(&mut authorities[asking], &want, &text, now);
                events.extend(heard.expect("honest"));
            }
        }
    }
    events
}

/// When authorities that have so high a threshold look round: twice in each slice, and then for signatures.
fn times(start: u64, threshold: u64) -> Vec<u64> {
    let slice = VOTING / (threshold + 1);
    let slices = (0..=threshold).flat_map(|n| {
        let begins = start - 2 * VOTING + n * slice;
        [begins + 1, begins + 2]
    });
    let last = [
        start - VOTING,
        start - VOTING + 1,
        start - 1,
        start,
        start + 1,
    ];
    std::iter::once(start - 2 * VOTING)
        .chain(slices)
        .chain(last)
        .collect()
}

/// One period from the first vote to the list.
fn period(
    authorities: &mut [Authority],
    start: u64,
    may: impl Fn(usize, usize) -> bool + Copy,
) -> Vec<Event> {
    let threshold = authorities[0].config.trust.threshold;
    times(start, threshold as u64)
        .into_iter()
        .flat_map(|now| exchange(authorities, now, may))
        .collect()
}

fn seconds(now: u64) -> Duration {
    Duration::from_secs(now)
}

fn everybody(_: usize, _: usize) -> bool {
    true
}

/// What relay `n` says if it has no pin that it would have to prove.
fn of_circuits(n: u8) -> Descriptor {
    Descriptor {
        pin: None,
        onion: Some([n; 32]),
        ..said(n)
    }
}

fn upload(authority: &mut Authority, n: u8) {
    let relay = Descriptor {
        published: START - INTERVAL,
        ..of_circuits(n)
    };
    let signed = sign_descriptor(relay, &key(n)).expect("signed");
    authority
        .upload(&signed.to_string(), None, FROM, START - INTERVAL)
        .expect("taken");
    test(authority, START - INTERVAL, |_| true);
}

/// Tests all that are to be tested until nothing is; `passes` says which are where they say.
fn test(authority: &mut Authority, now: u64, mut passes: impl FnMut(&Probe) -> bool) -> Vec<Key> {
    let mut gone = Vec::new();
    loop {
        let probes = authority.probes(now);
        if probes.is_empty() {
            return gone;
        }
        for probe in probes {
            match authority.probed(&probe, passes(&probe), now) {
                Some(Settled::Forget(relay)) => gone.push(relay),
                Some(Settled::Since(..)) | None => {}
            }
        }
    }
}

fn text(authority: &Authority) -> Option<String> {
    String::from_utf8(authority.list()?.to_vec()).ok()
}

fn names(authority: &Authority, known: u8, threshold: usize) -> Option<Vec<String>> {
    let list = check_list(&text(authority)?, &trust(known, threshold), START).expect("right");
    let mut names: Vec<_> = list
        .list
        .relays
        .into_iter()
        .map(|relay| relay.descriptor.name)
        .collect();
    names.sort();
    Some(names)
}

#[test]
fn what_a_majority_knows_is_listed_and_all_sign_the_same_bytes() {
    let mut three = authorities(3, 2);
    for (authority, relay) in [(0, 11), (1, 11), (2, 11), (0, 12), (1, 12), (2, 13)] {
        upload(&mut three[authority], relay);
    }
    let events = period(&mut three, START, everybody);
    assert_eq!(
        events
            .iter()
            .filter(|event| **event == Event::Published(3))
            .count(),
        3,
        "{events:?}"
    );
    let lists: Vec<_> = three
        .iter()
        .map(|authority| names(authority, 3, 3))
        .collect();
    assert!(
        three
            .iter()
            .all(|authority| names(authority, 3, 2)
                == Some(vec!["relay11".into(), "relay12".into()])),
        "{lists:?}"
    );
    let list = check_list(&text(&three[2]).expect("there"), &trust(3, 2), START).expect("right");
    assert_eq!(list.list.params["bandwidth-cap"], 2_000_000, "the median");
}

#[test]
fn an_authority_gone_leaves_the_others_working() {
    let mut three = authorities(3, 2);
    (0..3).for_each(|authority| upload(&mut three[authority], 11));
    period(&mut three, START, |a, b| a != 2 && b != 2);
    assert_eq!(names(&three[0], 3, 2), Some(vec!["relay11".into()]));
    assert_eq!(names(&three[1], 3, 2), Some(vec!["relay11".into()]));
    assert_eq!(three[2].list(), None);
}

#[test]
fn who_is_alone_signs_nothing_and_says_so() {
    let mut three = authorities(3, 2);
    let events = period(&mut three, START, |_, _| false);
    let alone = Event::TooFew {
        votes: 1,
        needed: 2,
    };
    assert!(events.contains(&alone), "{events:?}");
    assert!(three.iter().all(|authority| authority.list().is_none()));
    let events = period(&mut three, START + INTERVAL, |_, _| false);
    assert!(
        events.contains(&Event::Failed {
            signatures: 0,
            others: 0
        }),
        "{events:?}"
    );
}

#[test]
fn a_vote_reaches_who_cannot_reach_its_voter_through_others() {
    let mut three = authorities(3, 3);
    (0..3).for_each(|authority| upload(&mut three[authority], 11));
    upload(&mut three[0], 12);
    upload(&mut three[1], 12);
    // 1 and 3 do not reach each other.
    period(&mut three, START, |a, b| a + b != 2 || a == b);
    let lists: Vec<_> = three
        .iter()
        .filter_map(|authority| names(authority, 3, 3))
        .collect();
    assert!(
        !lists.is_empty() && lists.iter().all(|list| list.len() == 2),
        "{lists:?}"
    );
}

#[test]
fn signatures_under_another_list_are_counted_as_disagreement_only() {
    let mut three = authorities(3, 2);
    for now in times(START, 2)
        .into_iter()
        .filter(|now| *now < START - VOTING)
    {
        exchange(&mut three, now, everybody);
    }
    let mut one = three.remove(0);
    one.tick(seconds(START - VOTING));
    let want = Want {
        from: public(2),
        path: String::new(),
        what: Wanted::Signatures,
    };
    let other = signed_by(&crate::testing::list(START, &[descriptor(9)]), &[2, 3]);
    assert_eq!(hear(&mut one, &want, &other.to_string(), START), Ok(vec![]));
    let strangers = signed_by(&crate::testing::list(START, &[]), &[8, 9]).to_string();
    let refused = hear(&mut one, &want, &strangers, START);
    assert_eq!(refused, Err(Refused::Forged { good: 0, needed: 1 }));
    let later = signed_by(&crate::testing::list(START + INTERVAL, &[]), &[2]).to_string();
    assert!(hear(&mut one, &want, &later, START).is_err());
    assert_eq!(one.list(), None);
    let events = one.tick(seconds(START + INTERVAL - 2 * VOTING));
    assert_eq!(
        events[0],
        Event::Failed {
            signatures: 1,
            others: 2
        }
    );
}

#[test]
fn an_authority_signs_nothing_in_a_period_that_it_did_not_begin_with() {
    let mut late = Authority::new(config(1, 1, 1), Promise::forgetful(), START - VOTING);
    assert_eq!(late.tick(seconds(START - VOTING)), []);
    assert_eq!(late.tick(seconds(START)), []);
    let next = seconds(START + INTERVAL - 2 * VOTING);
    assert_eq!(late.tick(next), [Event::Voted(0)]);
}

#[test]
fn a_clock_set_back_makes_no_second_list() {
    let mut one = authorities(1, 1).remove(0);
    period(std::slice::from_mut(&mut one), START, everybody);
    let list = text(&one).expect("there");
    upload(&mut one, 11);
    period(std::slice::from_mut(&mut one), START, everybody);
    assert_eq!(text(&one).as_ref(), Some(&list));
    let mut again = Authority::new(config(1, 1, 1), Promise::forgetful(), START - INTERVAL);
    again.resume(&list, START).expect("still good");
    upload(&mut again, 11);
    period(std::slice::from_mut(&mut again), START, everybody);
    assert_eq!(text(&again), Some(list));
}

/// Promises that outlive the authority that gives them.
#[derive(Clone, Default)]
struct Disk(Arc<Mutex<(LastSigned, bool)>>);

impl Disk {
    fn promise(&self) -> Promise {
        let disk = self.clone();
        let (last, _) = *self.0.lock();
        Promise::new(last, move |new| {
            let mut disk = disk.0.lock();
            let (kept, is_full) = &mut *disk;
            if !*is_full {
                *kept = *new;
            }
            !*is_full
        })
    }

    /// The only authority, started so long before the period.
    fn started(&self, before: u64) -> Authority {
        Authority::new(config(1, 1, 1), self.promise(), START - before)
    }
}

#[test]
fn an_authority_that_starts_again_with_its_clock_set_back_signs_nothing_for_what_it_has_signed() {
    let disk = Disk::default();
    let mut one = disk.started(INTERVAL);
    period(std::slice::from_mut(&mut one), START, everybody);
    let vote = one.vote(START, &public(1), seconds(START));
    assert!(vote.is_some() && one.signed(START).is_some());
    // It knows of another relay now, and has lost the list that it published.
    for (before, start) in [(INTERVAL, START), (2 * INTERVAL, START - INTERVAL)] {
        let mut again = disk.started(before);
        let relay = Descriptor {
            published: START - before,
            ..of_circuits(11)
        };
        let text = sign_descriptor(relay, &key(11))
            .expect("signed")
            .to_string();
        again.restore(&text, None, START - before).expect("taken");
        test(&mut again, START - before, |_| true);
        let events = period(std::slice::from_mut(&mut again), start, everybody);
        assert_eq!(events, [Event::Promised(START)]);
        assert_eq!(again.commitments(start), None);
        assert_eq!((again.signed(start), again.list()), (None, None));
        // Its time comes again.
        let events = period(
            std::slice::from_mut(&mut again),
            START + INTERVAL,
            everybody,
        );
        let last = *disk.0.lock();
        assert!(events.contains(&Event::Published(1)), "{events:?}");
        assert_eq!(
            last.0.list.map(|list| list.valid_after),
            Some(START + INTERVAL)
        );
        disk.0.lock().0 = one.promise.last();
    }
}

#[test]
fn an_authority_that_has_voted_and_starts_again_signs_no_list_but_that_of_its_vote() {
    let disk = Disk::default();
    let mut one = disk.started(INTERVAL);
    assert_eq!(one.tick(seconds(START - 2 * VOTING)), [Event::Voted(0)]);
    let mut again = disk.started(INTERVAL);
    upload(&mut again, 11);
    let events = period(std::slice::from_mut(&mut again), START, everybody);
    assert_eq!(events, [Event::Promised(START)]);
    // The same vote is no second one.
    let mut again = disk.started(INTERVAL);
    let events = period(std::slice::from_mut(&mut again), START, everybody);
    assert!(events.contains(&Event::Published(1)), "{events:?}");
}

#[test]
fn an_authority_that_cannot_keep_its_promise_signs_nothing_and_says_so() {
    let disk = Disk::default();
    let mut one = disk.started(INTERVAL);
    disk.0.lock().1 = true;
    let events = period(std::slice::from_mut(&mut one), START, everybody);
    assert_eq!(events, [Event::NotKept]);
    assert_eq!((one.commitments(START), one.list()), (None, None));
    // It fills when the vote is signed and the list is not.
    disk.0.lock().1 = false;
    let next = START + INTERVAL;
    let voted = one.tick(seconds(next - 2 * VOTING));
    disk.0.lock().1 = true;
    let events = period(std::slice::from_mut(&mut one), next, everybody);
    assert_eq!(
        (voted, events),
        (vec![Event::Voted(0)], vec![Event::NotKept])
    );
    assert_eq!((one.signed(next), one.list()), (None, None));
}

/// A descriptor that is about as large as may be.
fn large(n: u16) -> SignedDescriptor {
    let mut seed = [0xa5; 32];
    seed[..2].copy_from_slice(&n.to_be_bytes());
    let key = SigningKey::from_seed(seed.into()).expect("a key");
    let [a, b] = n.to_be_bytes();
    let mut family: Vec<_> = (0..32u8).map(|n| Key([n; 32])).collect();
    family.sort_unstable();
    let ports: Vec<_> = (0..64u16)
        .map(|n| format!("{}-{}", 10_000 + n * 100, 10_050 + n * 100))
        .collect();
    let relay = Descriptor {
        identity: Key(key.public()),
        addresses: vec![([10, a, b, 1], 443).into()],
        family,
        exit: ports.join(",").parse().ok(),
        tokens: Some(hoplite_wire::directory::Tokens {
            issuer: "i".repeat(255),
            origin: "o".repeat(255),
        }),
        ..of_circuits(11)
    };
    sign_descriptor(relay, &key).expect("signed")
}

#[test]
fn relays_that_say_as_much_as_they_may_lose_their_places_and_nobody_else_the_list() {
    let mut all: Vec<_> = (0..2800).map(large).collect();
    let fat: usize = all.iter().map(|relay| relay.to_string().len()).sum();
    assert!(fat > LIST, "{fat}");
    all.extend((11..=13).map(descriptor));
    all.sort_by_key(|relay| relay.descriptor.identity);
    let mut two = authorities(2, 2);
    for now in times(START, 2) {
        for authority in &mut two {
            authority.tick(seconds(now));
            if now == START - 2 * VOTING {
                let relays = Relays {
                    all: all.clone(),
                    opinions: BTreeMap::new(),
                };
                let vote = tally::vote(&authority.config, None, START, relays);
                assert!(vote.relays.len() > 2000);
                authority.period = Some(Period::new(&authority.config, START, vote));
            }
        }
        exchange(&mut two, now, everybody);
    }
    let votes = [0, 1].map(|of| two[0].vote(START, &public(of + 1), seconds(START)));
    assert!(votes.iter().flatten().all(|vote| vote.len() <= LIST));
    let list = check_list(&text(&two[1]).expect("there"), &trust(2, 2), START).expect("right");
    let is_listed = |n: u8| list.list.relays.contains(&descriptor(n));
    assert!((11..=13).all(is_listed), "the small ones stay");
    assert!(list.list.relays.len() > 2000);
}
