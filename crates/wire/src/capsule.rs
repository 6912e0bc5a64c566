//! Capsules: typed messages on a request stream, of which only DATAGRAM matters here.
//! `masque` reads and writes them over HTTP/3 and HTTP/2 for CONNECT-UDP.
//! RFC 9297 §3.2 and §3.5.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::varint::{self, HeadReader};

const DATAGRAM: u64 = 0x00;

/// The largest DATAGRAM capsule that is kept: a UDP payload and a context id. Larger ones are skipped and counted.
pub const MAX_DATAGRAM: usize = 65_535;

/// Cuts a data stream into capsules and hands out the values of the DATAGRAM ones.
/// "Endpoints MUST silently drop unknown capsules": they are skipped without being kept, however large.
#[derive(Debug, Default)]
pub struct CapsuleReader {
    state: State,
    oversized: u64,
}

#[derive(Debug)]
enum State {
    Head(HeadReader),
    Skip { left: u64 },
    Keep { left: usize, kept: BytesMut },
}

impl Default for State {
    fn default() -> Self {
        Self::Head(HeadReader::default())
    }
}

impl CapsuleReader {
    /// The value of the next DATAGRAM capsule out of `input`: a context id and a payload.
    /// `None` when all of `input` is taken and more is needed. A value that came in one piece is not copied.
    pub fn next(&mut self, input: &mut Bytes) -> Option<Bytes> {
        loop {
            match &mut self.state {
                State::Head(head) => {
                    let (kind, length) = head.read(input)?;
                    self.begin(kind, length);
                }
                State::Skip { left: 0 } => self.state = State::default(),
                State::Keep { left, kept } if kept.is_empty() && *left <= input.len() => {
                    let value = input.split_to(*left);
                    self.state = State::default();
                    return Some(value);
                }
                State::Keep { left: 0, kept } => {
                    let value = std::mem::take(kept).freeze();
                    self.state = State::default();
                    return Some(value);
                }
                _ if input.is_empty() => return None,
                State::Skip { left } => {
                    let now = usize::try_from(*left)
                        .unwrap_or(usize::MAX)
                        .min(input.len());
                    input.advance(now);
                    *left = left.saturating_sub(now as u64);
                }
                State::Keep { left, kept } => {
                    let now = (*left).min(input.len());
                    kept.put(input.split_to(now));
                    *left = left.saturating_sub(now);
                }
            }
        }
    }

    fn begin(&mut self, kind: u64, length: u64) {
        let fits = usize::try_from(length)
            .ok()
            .filter(|left| *left <= MAX_DATAGRAM);
        self.state = match (kind, fits) {
            (DATAGRAM, Some(left)) => State::Keep {
                left,
                kept: BytesMut::new(),
            },
            _ => State::Skip { left: length },
        };
        if kind == DATAGRAM && fits.is_none() {
            self.oversized = self.oversized.saturating_add(1);
        }
    }

    /// How many DATAGRAM capsules were skipped because of their size since the last call.
    pub fn take_oversized(&mut self) -> u64 {
        std::mem::take(&mut self.oversized)
    }

    /// Whether the stream may end here; else "the message is malformed" (RFC 9297 §3.3).
    pub fn is_between_capsules(&self) -> bool {
        match &self.state {
            State::Head(head) => !head.has_part(),
            State::Skip { left } => *left == 0,
            State::Keep { left, kept } => *left == 0 && kept.is_empty(),
        }
    }
}

/// Writes a DATAGRAM capsule with context id 0 around a UDP payload.
pub fn write_udp(out: &mut impl BufMut, payload: &[u8]) {
    varint::write(out, DATAGRAM);
    varint::write(out, (payload.len() as u64).saturating_add(1));
    varint::write(out, 0);
    out.put_slice(payload);
}

/// How many octets [`write_udp`] takes around a payload at most.
pub const UDP_OVERHEAD: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_all(octets: &[u8], piece: usize) -> (Vec<Bytes>, CapsuleReader) {
        let (mut reader, mut values) = (CapsuleReader::default(), Vec::new());
        for chunk in octets.chunks(piece.max(1)) {
            let mut input = Bytes::copy_from_slice(chunk);
            while let Some(value) = reader.next(&mut input) {
                values.push(value);
            }
        }
        (values, reader)
    }

    fn raw(kind: u64, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        varint::write(&mut out, kind);
        varint::write(&mut out, value.len() as u64);
        out.extend_from_slice(value);
        out
    }

    #[test]
    fn unknown_and_oversized_capsules_are_skipped() {
        let octets = [
            raw(0x1234, &[9; 70_000]),
            raw(DATAGRAM, b"a"),
            raw(DATAGRAM, &[1; MAX_DATAGRAM + 1]),
            raw(DATAGRAM, b""),
            raw(0xffe600, b""),
        ]
        .concat();
        for piece in [1, 999, usize::MAX] {
            let (values, mut reader) = read_all(&octets, piece);
            assert_eq!(values, [&b"a"[..], b""]);
            assert_eq!(reader.take_oversized(), 1);
            assert!(reader.is_between_capsules());
        }
    }

    #[test]
    fn an_end_inside_a_capsule_is_noticed() {
        for cut in [
            &[0x00][..],
            &[0x40],
            &[0x00, 2],
            &[0x00, 2, 0],
            &[0x21, 2, 0],
        ] {
            assert!(!read_all(cut, 9).1.is_between_capsules(), "{cut:?}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..8), piece in 1_usize..1000) {
            let mut out = Vec::new();
            for payload in &payloads {
                let before = out.len();
                write_udp(&mut out, payload);
                prop_assert!(out.len() - before <= payload.len() + UDP_OVERHEAD);
            }
            let (values, reader) = read_all(&out, piece);
            let read: Vec<_> = values.iter().map(|value| { prop_assert_eq!(value[0], 0); Ok(value[1..].to_vec()) }).collect::<Result<_, _>>()?;
            prop_assert_eq!(read, payloads);
            prop_assert!(reader.is_between_capsules());
        }

        #[test]
        fn any_octets_are_read_without_a_panic(octets: Vec<u8>, piece in 1_usize..40) {
            drop(read_all(&octets, piece));
        }
    }
}
