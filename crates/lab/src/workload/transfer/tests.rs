//! The transfer protocol's values.

use proptest::prelude::*;

use super::*;

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
