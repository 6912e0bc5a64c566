//! Cuts the DATAGRAM frames out of a packet, without copying them. What is left elicits an acknowledgement only if it did so itself.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use hoplite_wire::quic::{Content, Frames};

/// Its notes are kept from packet to packet, so that they cost no allocation.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    parts: Vec<Part>,
}

/// A part of a packet from its first datagram on: the octets of a datagram, or another frame.
#[derive(Debug)]
struct Part {
    is_datagram: bool,
    range: Range<usize>,
}

impl Cutter {
    /// Hands each datagram to `take`; `false`, and nothing is done, if there is none or the packet is malformed.
    pub(super) fn cut(&mut self, payload: &mut BytesMut, mut take: impl FnMut(Bytes)) -> bool {
        let Some(first) = self.read(payload) else {
            return false;
        };
        // "An endpoint MUST treat receipt of a packet containing no frames as a connection error": PADDING stays.
        let kept = first.max(1);
        let rest = payload.split_off(kept).freeze();
        if first == 0 {
            payload.fill(0x00);
        }
        for part in &self.parts {
            let range = part.range.start - kept..part.range.end - kept;
            match part.is_datagram {
                true => take(rest.slice(range)),
                false => payload.extend_from_slice(rest.get(range).unwrap_or_default()),
            }
        }
        true
    }

    /// Where the first DATAGRAM frame begins. The parts are noted.
    fn read(&mut self, payload: &[u8]) -> Option<usize> {
        self.parts.clear();
        let (mut first, mut at) = (None, 0);
        for frame in Frames::new(payload) {
            let frame = frame.ok()?;
            let start = at;
            at += frame.size;
            if let Content::Datagram(data) = frame.content {
                first.get_or_insert(start);
                self.note(true, at - data.len()..at);
            } else if first.is_some() && frame.content != Content::Padding {
                self.note(false, start..at);
            }
        }
        first
    }

    fn note(&mut self, is_datagram: bool, range: Range<usize>) {
        self.parts.push(Part { is_datagram, range });
    }
}
