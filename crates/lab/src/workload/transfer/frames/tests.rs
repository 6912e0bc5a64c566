//! The transfer protocol's machines.

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
fn what_comes_behind_the_end_is_left_alone() {
    let mut octets = stream(1, &[10]);
    let len = octets.len();
    octets.extend([1, 2, 3]);
    assert_eq!(Receiver::new(10).take(&octets), Ok(len));
}

#[test]
fn more_than_agreed_and_frames_that_are_too_long_are_refused() {
    let refused = |limit, octets: &[u8]| Receiver::new(limit).take(octets).unwrap_err().why;
    assert_eq!(
        refused(9, &stream(1, &[10])),
        "more payload came than was asked for"
    );
    assert_eq!(
        refused(u64::MAX, &[0, 1, 0, 1]),
        "a frame of the payload is too long"
    );
}

#[test]
fn the_last_frame_carries_the_end() {
    let mut sender = Sender::new(1);
    let (octets, len) = sender.frame(100, true);
    assert_eq!((octets.len(), len), (4 + 100 + 4 + 32, 100));
}
