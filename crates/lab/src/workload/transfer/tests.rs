//! The transfer protocol's values and machines.

use proptest::prelude::*;

use super::*;

fn stream(seed: u64, sizes: &[u64]) -> Vec<u8> {
    let (mut sender, mut out) = (Sender::new(seed), Vec::new());
    for size in sizes {
        out.extend_from_slice(sender.frame(*size, false).0);
    }
    out.extend_from_slice(sender.end());
    out
}

proptest! {
    #[test]
    fn a_head_that_is_read_is_written_back_and_no_octets_panic(octets in proptest::collection::vec(any::<u8>(), 0..80)) {
        let mut octets = octets;
        octets.iter_mut().zip(b"HLAB\x01\x03\0\0").for_each(|(to, from)| *to = *from);
        if let Ok(head) = Head::parse(&octets) {
            prop_assert_eq!(Head::parse(&head.emit()), Ok(head));
        }
    }

    #[test]
    fn an_answer_is_read_as_written(ip: u32, token: u64) {
        let answer = Answer { status: Status::Unreadable, seen_as: std::net::Ipv4Addr::from(ip).into(), token };
        prop_assert_eq!(Answer::parse(&answer.emit()), Ok(answer));
    }

    #[test]
    fn no_octets_make_a_verdict_fail(octets in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(verdict) = Verdict::parse(&octets) {
            prop_assert!(verdict.passed.deciles.len() <= 9 && verdict.passed.partial.len() <= 9);
        }
    }

    #[test]
    fn frames_are_understood_however_they_are_cut(sizes in proptest::collection::vec(1_u64..5000, 0..8), cut in 1_usize..700) {
        let octets = stream(3, &sizes);
        let mut receiver = Receiver::new(u64::MAX);
        for chunk in octets.chunks(cut) {
            prop_assert_eq!(receiver.take(chunk), Ok(chunk.len()));
        }
        prop_assert_eq!(receiver.verdict(), Some(true));
        prop_assert_eq!(receiver.octets(), sizes.iter().sum::<u64>());
    }

    #[test]
    fn one_changed_octet_of_payload_is_noticed(place in 4_usize..5000, bit in 0_u8..8) {
        let mut octets = stream(3, &[5000]);
        octets[place] ^= 1 << bit;
        let mut receiver = Receiver::new(u64::MAX);
        receiver.take(&octets).unwrap();
        prop_assert_eq!(receiver.verdict(), Some(false));
    }
}

#[test]
fn a_verdict_is_read_as_written() {
    let passed = Passed {
        octets: 30_000,
        first: Some(5),
        last: Some(99),
        deciles: vec![6, 7, 8],
        partial: vec![(PARTIAL[0], 20), (PARTIAL[1], 30)],
    };
    let verdict = Verdict {
        right: true,
        passed,
    };
    let octets = verdict.emit();
    assert_eq!(octets.len(), VERDICT);
    assert_eq!(Verdict::parse(&octets), Ok(verdict));
}

#[test]
fn what_comes_behind_the_end_is_left_alone() {
    let mut octets = stream(1, &[10]);
    let len = octets.len();
    octets.extend([1, 2, 3]);
    assert_eq!(Receiver::new(10).take(&octets), Ok(len));
}

#[test]
fn more_than_agreed_and_frames_that_are_too_long_are_refused() {
    assert!(Receiver::new(9).take(&stream(1, &[10])).is_err());
    assert!(Receiver::new(u64::MAX).take(&[0, 1, 0, 1]).is_err());
}

#[test]
fn heads_that_make_no_sense_say_why() {
    let head = Head {
        up: Some(1),
        down: Some(1),
        rounds: 3,
        ..Head::default()
    };
    assert_eq!(Head::parse(&head.emit()), Ok(head));
    for (wrong, part) in [
        (Head { up: None, ..head }, "round"),
        (
            Head {
                up: None,
                down: None,
                rounds: 0,
                ..head
            },
            "nobody",
        ),
        (
            Head {
                up: Some(0),
                rounds: 0,
                ..head
            },
            "time",
        ),
    ] {
        let error = Head::parse(&wrong.emit()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(Head::parse(b"GET / HTTP/1.1\r\n"), Err(Unreadable::Magic));
}

#[test]
fn the_last_frame_carries_the_end() {
    let mut sender = Sender::new(1);
    let (octets, len) = sender.frame(100, true);
    assert_eq!((octets.len(), len), (4 + 100 + 4 + 32, 100));
}
