//! Two ends of a set with nothing between them: what one sends, the other is handed in whatever order the legs bring it.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const A: LegId = LegId(0);
const B: LegId = LegId(1);
const BOUNDS: Bounds = Bounds { hold: 8, most: 32 };

fn nonce() -> Nonce {
    Nonce([7; 32])
}

fn set(side: Side) -> Set<u64> {
    Set::new(side, nonce(), BOUNDS)
}

fn hello() -> Link {
    Link {
        nonce: nonce(),
        last_sent: 0,
        last_received: 0,
        wish: DesiredUx::NO_OPINION,
    }
}

/// A client and an exit with two legs, of 20 ms and 60 ms.
fn linked() -> (Set<u64>, Set<u64>) {
    let (mut client, mut exit) = (set(Side::Client), set(Side::Exit));
    let start = Instant::now();
    for (leg, rtt) in [(A, 20), (B, 60)] {
        let rtt = Duration::from_millis(rtt);
        let link = client.ask(leg, start).expect("a leg");
        let answer = exit.answer(leg, &link, start + rtt / 2).expect("a leg");
        client.linked(leg, &answer, start + rtt).expect("linked");
        exit.acknowledged(leg, start + rtt * 3 / 2).expect("linked");
    }
    assert!(
        [A, B]
            .iter()
            .all(|leg| client.is_linked(*leg) && exit.is_linked(*leg))
    );
    (client, exit)
}

/// What is on its way on one leg.
#[derive(Clone, Copy, Debug)]
enum OnWay {
    Switch(Switch),
    Message(u64),
}

/// Sends these messages on the legs that `way` says, and hands them to the other end.
fn put(from: &mut Set<u64>, ways: &mut [VecDeque<OnWay>; 2], leg: LegId, message: u64) {
    let way = &mut ways[usize::from(leg.0)];
    way.extend(from.send(leg).map(OnWay::Switch));
    way.push_back(OnWay::Message(message));
}

/// What comes out when the next of a leg has come.
fn take(to: &mut Set<u64>, way: &mut VecDeque<OnWay>, leg: LegId) -> Vec<u64> {
    match way.pop_front() {
        None => Vec::new(),
        Some(OnWay::Switch(switch)) => {
            to.switched(leg, switch).expect("an honest one");
            Vec::new()
        }
        Some(OnWay::Message(message)) => {
            let next = to.receive(leg, message).expect("an honest one");
            let mut out: Vec<u64> = next.into_iter().collect();
            if !out.is_empty() {
                out.extend(std::iter::from_fn(|| to.due()));
            }
            out
        }
    }
}

#[test]
fn both_ends_measure_each_leg_by_the_handshake() {
    let (client, exit) = linked();
    let long = Duration::from_millis(90);
    let room = |may_send, rtt| {
        Some(Room {
            may_send,
            full_for: if may_send { Duration::ZERO } else { long },
            rtt,
        })
    };
    let full = |full: LegId| move |leg| room(leg != full, None);
    let free = |_| room(true, None);
    assert_eq!(client.choose(free), Some(A), "the shorter one");
    // The client wishes throughput, so the exit sends on the other while that is full; the exit wishes latency.
    assert_eq!(exit.choose(full(A)), Some(B));
    assert_eq!(client.choose(full(A)), None);
    // What congestion control has measured since counts more.
    let now = |leg| room(true, (leg == A).then_some(long));
    assert_eq!(exit.choose(now), Some(B));
}

#[test]
fn the_numbers_are_those_of_the_proposals_example() {
    let (_, mut exit) = linked();
    for _ in 0..10 {
        assert_eq!(exit.send(A), None);
    }
    assert_eq!(exit.send(B), Some(Switch { relative: 10 }));
    for _ in 1..21 {
        assert_eq!(exit.send(B), None);
    }
    assert_eq!(exit.send(A), Some(Switch { relative: 21 }));
}

#[test]
fn an_exit_answers_on_the_leg_that_it_knows_before_the_other_was_acknowledged() {
    let mut exit = set(Side::Exit);
    let start = Instant::now();
    for leg in [A, B] {
        exit.answer(leg, &hello(), start).expect("a leg");
    }
    exit.acknowledged(B, start + Duration::from_millis(20))
        .expect("linked");
    let room = Room {
        may_send: true,
        full_for: Duration::ZERO,
        rtt: None,
    };
    assert_eq!(exit.choose(|_| Some(room)), Some(B));
    assert_eq!(exit.receive(A, 1), Err(Violation::Unlinked));
    assert_eq!(exit.receive(B, 1), Ok(Some(1)));
}

#[test]
fn a_handshake_that_is_not_due_is_refused() {
    let start = Instant::now();
    let mut client = set(Side::Client);
    assert_eq!(
        client.linked(A, &hello(), start),
        Err(Violation::Handshake),
        "nobody asked"
    );
    client.ask(A, start).expect("a leg");
    let other = Link {
        nonce: Nonce([8; 32]),
        ..hello()
    };
    assert_eq!(client.linked(A, &other, start), Err(Violation::Nonce));
    let used = Link {
        last_sent: 1,
        ..hello()
    };
    assert_eq!(client.linked(A, &used, start), Err(Violation::Lost));
    assert_eq!(client.linked(A, &hello(), start), Ok(()));
    assert_eq!(
        client.linked(A, &hello(), start),
        Err(Violation::Handshake),
        "twice"
    );
    assert_eq!(client.acknowledged(A, start), Err(Violation::Handshake));
    assert_eq!(client.answer(B, &hello(), start), Err(Violation::Handshake));

    let mut exit = set(Side::Exit);
    assert_eq!(exit.answer(A, &other, start), Err(Violation::Nonce));
    assert_eq!(exit.acknowledged(A, start), Err(Violation::Handshake));
    exit.answer(A, &hello(), start).expect("a leg");
    assert_eq!(
        exit.answer(A, &hello(), start),
        Err(Violation::Handshake),
        "a second LINK"
    );
    assert_eq!(
        exit.answer(B, &used, start),
        Err(Violation::Lost),
        "what was sent on a leg that is gone"
    );
    exit.acknowledged(A, start).expect("linked");
    assert_eq!(exit.acknowledged(A, start), Err(Violation::Handshake));
    exit.answer(B, &hello(), start).expect("a leg");
    assert_eq!(exit.answer(LegId(2), &hello(), start), Err(Violation::Legs));
}

#[test]
fn a_switch_that_leads_nowhere_twice_or_too_far_is_refused() {
    let switch = |relative| Switch { relative };
    // C tor's exits say 0 when the first leg that they choose is not the first that they knew; nobody has reason to say it later.
    let (mut client, _) = linked();
    assert_eq!(client.switched(B, switch(0)), Ok(()));
    assert_eq!(
        client.switched(B, switch(1)),
        Err(Violation::Switch),
        "nothing came after the last"
    );
    let (mut client, _) = linked();
    client.receive(A, 1).expect("the first");
    assert_eq!(client.switched(B, switch(0)), Err(Violation::Switch));
    let (mut client, _) = linked();
    assert_eq!(client.switched(B, switch(u32::MAX)), Err(Violation::Switch));
    let mut alone = set(Side::Client);
    alone.ask(A, Instant::now()).expect("a leg");
    assert_eq!(alone.switched(A, switch(1)), Err(Violation::Unlinked));
    assert_eq!(alone.receive(A, 1), Err(Violation::Unlinked));
}

#[test]
fn numbers_that_have_passed_are_refused() {
    let (mut client, _) = linked();
    client.receive(A, 1).expect("the first");
    assert_eq!(
        client.receive(B, 1),
        Err(Violation::Passed),
        "the first again"
    );
    let (mut client, _) = linked();
    client.switched(A, Switch { relative: 5 }).expect("a gap");
    client.receive(A, 6).expect("early");
    for _ in 1..=5 {
        client.receive(B, 0).expect("what was missing");
    }
    assert_eq!(client.due(), Some(6));
    assert_eq!(client.receive(B, 6), Err(Violation::Passed), "twice");
}

#[test]
fn what_waits_is_bounded_and_who_is_ahead_is_held_before() {
    let (mut client, _) = linked();
    client.switched(B, Switch { relative: 1 }).expect("a gap");
    for n in 0..32 {
        assert_eq!(client.holds(B), n >= 8, "{n}");
        assert!(!client.holds(A), "it is to bring what is missing");
        assert_eq!(client.receive(B, n), Ok(None));
    }
    assert_eq!(client.receive(B, 33), Err(Violation::OutOfOrder));
    assert_eq!(client.waiting(), 32);
}

#[test]
fn a_gap_that_nothing_can_fill_is_seen_at_once() {
    let (mut client, _) = linked();
    client.switched(B, Switch { relative: 1 }).expect("a gap");
    client.receive(B, 2).expect("early");
    assert_eq!(
        client.switched(A, Switch { relative: 2 }),
        Err(Violation::Lost),
        "nobody has sent the first"
    );
    let (mut client, _) = linked();
    client.switched(B, Switch { relative: 1 }).expect("a gap");
    client.receive(B, 2).expect("early");
    assert_eq!(client.close(A, false), Fate::Over, "the first was on it");
}

#[test]
fn a_leg_that_carried_nothing_may_go_and_another_come() {
    let (mut client, mut exit) = linked();
    for n in 1..=4 {
        assert_eq!(client.send(A), None);
        assert_eq!(exit.receive(A, n), Ok(Some(n)));
    }
    assert_eq!(exit.send(A), None);
    assert_eq!(exit.close(B, false), Fate::GoesOn);
    let again = Link {
        last_sent: 4,
        ..hello()
    };
    let answer = exit.answer(LegId(2), &again, Instant::now());
    let answer = answer.expect("nothing was lost");
    assert_eq!((answer.last_sent, answer.last_received), (1, 4));
    exit.acknowledged(LegId(2), Instant::now()).expect("linked");
    assert_eq!(exit.receive(LegId(2), 5), Ok(Some(5)));
    assert_eq!(exit.send(LegId(2)), None, "it goes on where the other was");
    assert_eq!(client.close(B, false), Fate::GoesOn);
    assert_eq!(client.close(A, false), Fate::Over, "it was the last");
}

#[test]
fn a_leg_that_carried_what_may_be_lost_ends_the_set() {
    let (mut client, _) = linked();
    client.send(A);
    assert_eq!(client.close(A, false), Fate::Over, "the present one");
    let (mut client, _) = linked();
    client.send(B);
    client.send(A);
    assert_eq!(client.close(B, true), Fate::Over, "much was under way");
    let (mut client, _) = linked();
    client.send(B);
    client.send(A);
    assert_eq!(client.close(B, false), Fate::GoesOn);
    let (mut client, _) = linked();
    client.receive(A, 1).expect("the first");
    assert_eq!(
        client.close(A, false),
        Fate::Over,
        "the far end's present one"
    );
    let mut client = set(Side::Client);
    for leg in [A, B] {
        client.ask(leg, Instant::now()).expect("a leg");
    }
    assert_eq!(client.close(B, false), Fate::Over, "it was never linked");
}

proptest! {
    /// Whatever legs are chosen and however they are delayed, all comes out once and in order.
    #[test]
    fn everything_comes_out_once_and_in_order(turns in proptest::collection::vec((any::<bool>(), any::<bool>()), 1..400)) {
        let (mut client, mut exit) = linked();
        let (mut ways, mut out, mut sent) = ([VecDeque::new(), VecDeque::new()], Vec::new(), 0);
        for (sends, first) in turns {
            let leg = if first { A } else { B };
            // So few are under way that no bound is met.
            if sends && sent - (out.len() as u64) < 30 {
                sent += 1;
                put(&mut exit, &mut ways, leg, sent);
            } else {
                out.extend(take(&mut client, &mut ways[usize::from(leg.0)], leg));
            }
        }
        for leg in [A, B] {
            while !ways[usize::from(leg.0)].is_empty() {
                out.extend(take(&mut client, &mut ways[usize::from(leg.0)], leg));
            }
        }
        prop_assert_eq!(out, (1..=sent).collect::<Vec<_>>());
        prop_assert_eq!(client.waiting(), 0);
    }

    /// Whatever a far end says, what waits is bounded, and nothing comes out twice.
    #[test]
    fn a_liar_is_refused_or_bounded(said in proptest::collection::vec((0..3_u8, any::<bool>(), 0..40_u32), 1..300)) {
        let (mut client, _) = linked();
        let (mut delivered, mut number) = (Vec::new(), 0);
        for (what, first, relative) in said {
            let leg = if first { A } else { B };
            number += 1;
            let told = match what {
                0 => client.switched(leg, Switch { relative }).map(|()| None),
                1 | 2 => client.receive(leg, number),
                _ => Ok(None),
            };
            match told {
                Ok(next) => delivered.extend(next),
                Err(_) => break,
            }
            delivered.extend(std::iter::from_fn(|| client.due()));
            prop_assert!(client.waiting() <= BOUNDS.most);
        }
        delivered.sort_unstable();
        let before = delivered.len();
        delivered.dedup();
        prop_assert_eq!(delivered.len(), before);
    }
}
