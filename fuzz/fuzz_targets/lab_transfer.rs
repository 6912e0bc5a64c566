//! What the lab's client and server read of each other: heads, answers, datagrams are written back as they were read, and
//! however the frames of a payload are cut, their receiver comes to the same end.
#![no_main]

use hoplite_lab::experiments::workload::{
    message,
    transfer::{Answer, Head, Receiver},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(head) = Head::parse(bytes) {
        assert_eq!(Head::parse(&head.emit()), Ok(head));
    }
    if let Ok(answer) = Answer::parse(bytes) {
        assert_eq!(Answer::parse(&answer.emit()), Ok(answer));
    }
    if let Some((head, body)) = message::Head::parse(bytes) {
        assert_eq!(message::Head::parse(&head.emit(body)), Some((head, body)));
    }
    if let Some(hello) = message::Hello::parse(bytes) {
        assert_eq!(message::Hello::parse(&hello.emit()), Some(hello));
    }
    assert_eq!(receive(bytes, bytes.len().max(1)), receive(bytes, 1));
});

/// Bytes of payload, and the verdict if there is one; `None` if the frames were refused.
fn receive(bytes: &[u8], size: usize) -> Option<(u64, Option<bool>)> {
    let mut receiver = Receiver::new(10_000, 7);
    for chunk in bytes.chunks(size) {
        if receiver.take(chunk).ok()? < chunk.len() {
            break;
        }
    }
    Some((receiver.bytes(), receiver.verdict()))
}
