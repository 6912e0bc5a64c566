//! What the kernel says of whose a flow is (sock_diag(7)): any bytes answer a question or do not, what follows the message tells nothing, and no more
//! is believed of a message that was cut than of the whole.
//!
//! The first four bytes are the number of the question; the rest is the message.
#![no_main]

use hoplite_mediator::tun::read_socket_owner;
use libfuzzer_sys::fuzz_target;

/// Where the number of the question is in the answer, and its own length.
const NUMBER: std::ops::Range<usize> = 8..12;
const LEN: std::ops::Range<usize> = 0..4;

fuzz_target!(|bytes: &[u8]| {
    let Some((number, message)) = bytes.split_first_chunk() else {
        return;
    };
    let number = u32::from_ne_bytes(*number);
    let answer = read_socket_owner(message, number);
    let len = message.get(LEN).and_then(|len| len.try_into().ok());
    let len = len.map_or(0, |len| u32::from_ne_bytes(len) as usize);
    let own = &message[..len.min(message.len())];
    assert_eq!(
        answer.is_some(),
        own.get(NUMBER) == Some(&number.to_ne_bytes())
    );
    if (LEN.end..=message.len()).contains(&len) {
        let more = [message, &[0xff; 12]].concat();
        assert_eq!(read_socket_owner(&more, number), answer);
    }
    for cut in 0..message.len() {
        if let Some(Some((state, uid, group))) = read_socket_owner(&message[..cut], number) {
            let whole = answer.flatten().expect("more of the same message");
            assert_eq!((state, uid), (whole.0, whole.1));
            assert!(group == 0 || group == whole.2);
        }
    }
});
