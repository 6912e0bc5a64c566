//! Variable-length integers, and the type-and-length head that frames and capsules share.
//! RFC 9000 §16; the head: RFC 9114 §7.1 and RFC 9297 §3.2.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use bytes::{Buf, BufMut};

/// The largest value that fits.
pub const MAX: u64 = (1 << 62) - 1;

/// Reads one integer; `None` when `buf` ends too early (then nothing is taken from it).
pub fn read(buf: &mut impl Buf) -> Option<u64> {
    let first = *buf.chunk().first()?;
    let len = 1_usize << (first >> 6);
    if buf.remaining() < len {
        return None;
    }
    Some(match len {
        1 => u64::from(buf.get_u8()),
        2 => u64::from(buf.get_u16() & 0x3fff),
        4 => u64::from(buf.get_u32() & 0x3fff_ffff),
        _ => buf.get_u64() & MAX,
    })
}

/// Writes `value` in its shortest form. What is above [`MAX`] does not exist on the wire: it is written as [`MAX`].
pub fn write(out: &mut impl BufMut, value: u64) {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "each arm's pattern bounds the value"
    )]
    match value {
        0..0x40 => out.put_u8(value as u8),
        0x40..0x4000 => out.put_u16(value as u16 | 0x4000),
        0x4000..0x4000_0000 => out.put_u32(value as u32 | 0x8000_0000),
        _ => out.put_u64(value.min(MAX) | 0xc000_0000_0000_0000),
    }
}

/// How many bytes [`write()`] takes for `value`.
pub const fn len(value: u64) -> usize {
    match value {
        0..0x40 => 1,
        0x40..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    }
}

/// Collects a type and a length that may arrive in pieces.
#[derive(Debug, Default)]
pub(crate) struct HeadReader {
    kept: [u8; 16],
    len: usize,
}

impl HeadReader {
    /// The next type and length, or `None` once all of `input` is taken.
    pub(crate) fn read(&mut self, input: &mut impl Buf) -> Option<(u64, u64)> {
        if self.len == 0
            && let Some((pair, taken)) = Self::parse(input.chunk())
        {
            input.advance(taken);
            return Some(pair);
        }
        while input.has_remaining() {
            *self.kept.get_mut(self.len)? = input.get_u8();
            self.len = self.len.saturating_add(1);
            if let Some((pair, _)) = self.kept.get(..self.len).and_then(Self::parse) {
                self.len = 0;
                return Some(pair);
            }
        }
        None
    }

    fn parse(mut bytes: &[u8]) -> Option<((u64, u64), usize)> {
        let before = bytes.len();
        let pair = (read(&mut bytes)?, read(&mut bytes)?);
        Some((pair, before.saturating_sub(bytes.len())))
    }

    /// Whether a head has begun and not ended.
    pub(crate) fn has_part(&self) -> bool {
        self.len > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_examples_of_the_standard_are_read() {
        let cases: [(&[u8], u64); 5] = [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ];
        for (mut bytes, value) in cases {
            assert_eq!(read(&mut bytes), Some(value));
            assert!(bytes.is_empty());
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(value in 0..=MAX) {
            let mut out = Vec::new();
            write(&mut out, value);
            prop_assert_eq!(out.len(), len(value));
            prop_assert_eq!(read(&mut out.as_slice()), Some(value));
            let short = out.len() - 1;
            prop_assert_eq!(read(&mut &out[..short]), None);
        }

        #[test]
        fn a_head_in_pieces_is_read_like_a_whole_one(kind in 0..=MAX, length in 0..=MAX, cut in 0_usize..16) {
            let mut out = Vec::new();
            write(&mut out, kind);
            write(&mut out, length);
            let (mut a, mut b) = out.split_at(cut.min(out.len() - 1));
            let mut reader = HeadReader::default();
            prop_assert_eq!(reader.read(&mut a), None);
            prop_assert_eq!(reader.read(&mut b), Some((kind, length)));
            prop_assert!(!reader.has_part());
        }
    }
}
