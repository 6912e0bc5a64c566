//! Reads and writes ACK frames (RFC 9000 §19.3), for those who tell the stack of acknowledgements in another way: [`super::fold`] and [`super::unfold`].

use bytes::{BufMut, BytesMut};
use hoplite_wire::{
    quic::{Ack, Content, Frames, kind},
    varint,
};

/// Packet numbers, both ends included.
pub(super) type Range = (u64, u64);

/// The first ACK frame of a packet.
pub(super) fn first(payload: &[u8]) -> Option<Ack<'_>> {
    Frames::new(payload)
        .flatten()
        .find_map(|frame| match frame.content {
            Content::Ack(ack) => Some(ack),
            _ => None,
        })
}

/// `ranges` from the highest, with a number at least between any two; `marks` are the counts of ECN.
pub(super) fn write(ranges: &[Range], delay: u64, marks: Option<[u64; 3]>, out: &mut BytesMut) {
    let [first, others @ ..] = ranges else { return };
    out.put_u8(0x02 | u8::from(marks.is_some()));
    for number in [first.1, delay, others.len() as u64, first.1 - first.0] {
        varint::write(out, number);
    }
    let mut above = first.0;
    for (lowest, highest) in others {
        varint::write(out, above.saturating_sub(highest + 2));
        varint::write(out, highest - lowest);
        above = *lowest;
    }
    for count in marks.into_iter().flatten() {
        varint::write(out, count);
    }
}

const _: () = assert!(kind::ACK == 0x02 && kind::ACK_ECN == 0x03);
