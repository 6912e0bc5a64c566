//! Both ends of a circuit, as far as flow control goes.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    stream::{FlowControlMessage, Taken, XOFF},
    *,
};

fn digest(n: u32) -> SendmeTag {
    let mut digest = [0; 20];
    digest[..4].copy_from_slice(&n.to_be_bytes());
    SendmeTag::Tor1(digest)
}

#[test]
fn a_thousand_cells_and_no_more_before_a_sendme() {
    let mut out = Outgoing::new(Control::Fixed);
    let now = Instant::now();
    for n in 0..1000 {
        assert!(out.may_send(), "after {n}");
        out.sent(digest(n), now);
    }
    assert!(!out.may_send());
    out.acknowledged(Some(digest(99)), now, false)
        .expect("the first hundred");
    for n in 0..100 {
        assert!(out.may_send(), "after {n}");
        out.sent(digest(1000 + n), now);
    }
    assert!(!out.may_send());
}

#[test]
fn a_sendme_too_many_is_a_violation() {
    for control in [Control::Fixed, Control::Vegas { increment: 31 }] {
        let mut out = Outgoing::new(control);
        let now = Instant::now();
        for n in 0..control.increment() - 1 {
            out.sent(digest(n), now);
        }
        let early = out.acknowledged(Some(digest(98)), now, false);
        assert_eq!(early, Err(Violation::SendmeTooMany));
    }
}

#[test]
fn a_sendme_must_show_the_digest_of_the_cell_it_acknowledges() {
    for shown in [None, Some(digest(98))] {
        let mut out = Outgoing::new(Control::Fixed);
        let now = Instant::now();
        for n in 0..100 {
            out.sent(digest(n), now);
        }
        let said = out.acknowledged(shown, now, false);
        assert_eq!(said, Err(Violation::WrongTag));
    }
}

#[test]
fn a_peer_that_overruns_the_window_is_noticed() {
    let mut incoming = Incoming::new(Control::Fixed);
    for _ in 0..1000 {
        incoming.received().expect("within the window");
    }
    assert_eq!(incoming.received(), Err(Violation::Window));
    let mut stream = stream::Incoming::new(Control::Fixed, 1000);
    for _ in 0..500 {
        stream.received(1).expect("within the window");
    }
    assert_eq!(stream.received(1), Err(Violation::Window));
}

const VEGAS: Control = Control::Vegas { increment: 31 };

#[test]
fn a_reader_that_stops_says_xoff_once_and_xon_when_it_has_caught_up() {
    for bytes in [498, 1] {
        let mut stream = stream::Incoming::new(VEGAS, 2000);
        let cells = 600 * 498 / bytes;
        let said: Vec<_> = (0..cells)
            .filter_map(|_| stream.received(bytes).expect("fits"))
            .collect();
        assert_eq!(said, [FlowControlMessage::Xoff], "{bytes} in a cell");
        let taken = Taken { cells: 1, bytes };
        let said: Vec<_> = (0..cells).filter_map(|_| stream.taken(taken)).collect();
        assert_eq!(said, [FlowControlMessage::Xon]);
    }
}

#[test]
fn cells_of_few_bytes_do_not_bring_xoff_early() {
    let mut stream = stream::Incoming::new(VEGAS, 2000);
    for _ in 0..5000 {
        assert_eq!(stream.received(40), Ok(None));
    }
}

#[test]
fn a_peer_that_ignores_xoff_is_noticed() {
    let mut stream = stream::Incoming::new(VEGAS, 700);
    let results: Vec<_> = (0..701).map(|_| stream.received(498)).collect();
    assert_eq!(results.last(), Some(&Err(Violation::Window)));
}

#[test]
fn a_client_hears_no_more_xoffs_and_xons_than_it_has_brought_about() {
    let most = usize::try_from(XOFF).expect("fits");
    let mut stream = stream::Outgoing::new(VEGAS);
    stream.sent(most - 1);
    assert_eq!(stream.told(true, true), Err(Violation::Xon));
    let mut stream = stream::Outgoing::new(VEGAS);
    stream.sent(most);
    assert_eq!(stream.told(true, true), Ok(()));
    assert!(!stream.may_send());
    assert_eq!(stream.told(true, true), Err(Violation::Xon), "said already");
    let mut stream = stream::Outgoing::new(VEGAS);
    stream.sent(most);
    assert_eq!(stream.told(false, true), Ok(()), "a rate");
    assert_eq!(stream.told(false, true), Err(Violation::Xon));
    let mut exit = stream::Outgoing::new(VEGAS);
    assert_eq!(exit.told(false, false), Ok(()));
    assert_eq!(exit.told(true, false), Ok(()));
    let mut fixed = stream::Outgoing::new(Control::Fixed);
    assert_eq!(fixed.told(false, false), Err(Violation::Xon));
}

proptest! {
    /// Whatever order of sending, delivering and acknowledging: honest ends never accuse each other, never pass the window, and all arrives.
    #[test]
    fn honest_ends_agree_in_every_order(
        steps in proptest::collection::vec((0u8..4, 1u32..300), 1..300),
        increment in 1u8..=200,
        fixed: bool,
    ) {
        let control = if fixed { Control::Fixed } else { Control::Vegas { increment } };
        let (mut out, mut incoming) = (Outgoing::new(control), Incoming::new(control));
        let mut now = Instant::now();
        let (mut sent, mut received) = (0, 0);
        let (mut due, mut coming) = (VecDeque::new(), VecDeque::new());
        for (what, count) in steps {
            now += Duration::from_millis(u64::from(count));
            for _ in 0..count {
                match what {
                    0 if out.may_send() => {
                        out.sent(digest(sent), now);
                        sent += 1;
                        prop_assert!(sent - received <= 20_000);
                    }
                    1 if received < sent => {
                        if incoming.received().expect("within the window") {
                            due.push_back(digest(received));
                        }
                        received += 1;
                    }
                    2 => if let Some(digest) = due.pop_front() {
                        incoming.acknowledged();
                        coming.push_back(digest);
                    },
                    3 => if let Some(digest) = coming.pop_front() {
                        out.acknowledged(Some(digest), now, false).expect("honest");
                    },
                    _ => {}
                }
            }
        }
        prop_assert!(sent - received <= out.window().max(1000) + 1000);
    }
}
