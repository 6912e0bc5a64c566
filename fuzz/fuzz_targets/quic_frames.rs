//! Frames of a decrypted QUIC packet: reading never panics, sizes add up, ranges of acknowledgements go down.
#![no_main]

use hoplite_wire::quic_frames::{Content, Frames};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    let (mut total, mut whole) = (0, true);
    for frame in Frames::new(payload) {
        let Ok(frame) = frame else {
            whole = false;
            continue;
        };
        total += frame.size;
        if let Content::Ack(ack) = frame.content {
            ack.ranges().fold(u64::MAX, |above, (low, high)| {
                assert!(low <= high && high < above);
                low
            });
        }
    }
    assert!(if whole {
        total == payload.len()
    } else {
        total < payload.len()
    });
});
