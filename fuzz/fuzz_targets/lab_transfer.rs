//! What the lab's client and server read of each other: heads, answers, datagrams are written back as they were read, and
//! however the frames of a payload are cut, their receiver comes to the same end.
#![no_main]

use hoplite_lab::workload::{
    message,
    transfer::{Answer, Head, Receiver},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|octets: &[u8]| {
    if let Ok(head) = Head::parse(octets) {
        assert_eq!(Head::parse(&head.emit()), Ok(head));
    }
    if let Ok(answer) = Answer::parse(octets) {
        assert_eq!(Answer::parse(&answer.emit()), Ok(answer));
    }
    if let Some((head, body)) = message::Head::parse(octets) {
        assert_eq!(message::Head::parse(&head.emit(body)), Some((head, body)));
    }
    if let Some(hello) = message::Hello::parse(octets) {
        assert_eq!(message::Hello::parse(&hello.emit()), Some(hello));
    }
    assert_eq!(receive(octets, octets.len().max(1)), receive(octets, 1));
});

/// Octets of payload, and the verdict if there is one; `None` if the frames were refused.
fn receive(octets: &[u8], size: usize) -> Option<(u64, Option<bool>)> {
    let mut receiver = Receiver::new(10_000);
    for chunk in octets.chunks(size) {
        if receiver.take(chunk).ok()? < chunk.len() {
            break;
        }
    }
    Some((receiver.octets(), receiver.verdict()))
}
