//! Integers with a prefix of 3 to 8 bits.
//! RFC 7541 §5.1, used by RFC 9204 §4.1.1.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use bytes::BufMut;

/// Reads the first octet and the integer in its last `bits` bits: `(first octet, integer)`. At most 62 bits are accepted.
pub(super) fn read(input: &mut &[u8], bits: u32) -> Option<(u8, u64)> {
    let (first, mut rest) = input.split_first()?;
    let mask = u8::MAX.checked_shr(8_u32.checked_sub(bits)?)?;
    let mut value = u64::from(first & mask);
    if first & mask == mask {
        let mut shift = 0_u32;
        loop {
            let (octet, tail) = rest.split_first()?;
            rest = tail;
            // Ten octets would pass 62 bits; long runs of zero continuation are refused with them.
            let part = u64::from(octet & 0x7f)
                .checked_shl(shift)
                .filter(|_| shift <= 49)?;
            value = value.checked_add(part)?;
            if octet & 0x80 == 0 {
                break;
            }
            shift = shift.checked_add(7)?;
        }
    }
    *input = rest;
    Some((*first, value))
}

/// Writes `value` behind `flags`, the bits of the first octet above the prefix.
pub(super) fn write(out: &mut impl BufMut, flags: u8, bits: u32, value: u64) {
    let mask = u8::MAX
        .checked_shr(8_u32.saturating_sub(bits))
        .unwrap_or(u8::MAX);
    let Some(mut rest) = value.checked_sub(mask.into()) else {
        return out.put_u8(flags | u8::try_from(value).unwrap_or(mask));
    };
    out.put_u8(flags | mask);
    while rest >= 0x80 {
        out.put_u8(0x80 | u8::try_from(rest & 0x7f).unwrap_or_default());
        rest >>= 7;
    }
    out.put_u8(u8::try_from(rest).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_examples_of_the_standard_are_read() {
        assert_eq!(read(&mut &[0b0000_1010][..], 5), Some((10, 10)));
        assert_eq!(
            read(&mut &[0b0001_1111, 0b1001_1010, 0b0000_1010][..], 5),
            Some((31, 1337))
        );
        assert_eq!(read(&mut &[0xff; 20][..], 5), None);
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(value in 0_u64..1 << 50, bits in 3_u32..=8) {
            let mut out = Vec::new();
            write(&mut out, 0, bits, value);
            let mut input = &out[..];
            prop_assert_eq!(read(&mut input, bits).map(|(_, value)| value), Some(value));
            prop_assert!(input.is_empty());
        }

        #[test]
        fn any_octets_are_read_without_a_panic(octets: Vec<u8>, bits in 3_u32..=8) {
            read(&mut &octets[..], bits);
        }
    }
}
