//! The Internet checksum (RFC 1071), its pseudo headers (RFC 9293 §3.1, RFC 8200 §8.1) and its update (RFC 1624).

use std::net::IpAddr;

/// The checksum of `parts` laid one after another, ready to be written. Zero for bytes whose own checksum is right.
pub fn of(parts: &[&[u8]]) -> u16 {
    !sum_of(parts)
}

/// The checksum of a TCP or UDP header with its payload, or of ICMPv6, in `parts`.
pub fn transport(source: IpAddr, destination: IpAddr, protocol: u8, parts: &[&[u8]]) -> u16 {
    let len = parts.iter().map(|part| part.len()).sum();
    let pseudo = pseudo(source, destination, protocol, len);
    !add(pseudo, sum_of(parts))
}

/// The sum over the pseudo header, not inverted: what stands in the checksum field of a packet whose checksum is left to the kernel or the
/// network card.
pub fn pseudo(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> u16 {
    let [.., a, b, c, d] = len.to_be_bytes();
    let ends = add(address(source), address(destination));
    add(ends, sum(&[a, b, c, d, 0, 0, 0, protocol]))
}

/// What `checksum` becomes when bytes that stand at an even place change: RFC 1624, HC' = ~(~HC + ~m + m').
pub fn update(checksum: u16, before: &[u8], after: &[u8]) -> u16 {
    !add(add(!checksum, !sum(before)), sum(after))
}

/// The sum of `parts` laid one after another, not inverted.
pub fn sum_of(parts: &[&[u8]]) -> u16 {
    let (mut total, mut odd) = (0, false);
    for part in parts {
        let sum = sum(part);
        total = add(total, if odd { sum.swap_bytes() } else { sum });
        odd ^= part.len() % 2 == 1;
    }
    total
}

/// The sum in one's complement.
pub fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

/// RFC 1071 §2 (B): the sum does not depend on the order of bytes, so that whole words are added as they lie.
fn sum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks();
    let word = |word: &[u8; 4]| u64::from(u32::from_ne_bytes(*word));
    let mut last = [0; 4];
    last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    let total = words.iter().map(word).sum::<u64>() + word(&last);
    u16::from_be(fold(total))
}

fn address(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(v4) => sum(&v4.octets()),
        IpAddr::V6(v6) => sum(&v6.octets()),
    }
}

fn fold(total: u64) -> u16 {
    let [a, b, c, d, e, f, g, h] = total.to_be_bytes();
    let words = [[a, b], [c, d], [e, f], [g, h]].map(u16::from_be_bytes);
    words.into_iter().fold(0, add)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_rfc_1071_sums_up_to_its_result() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(sum_of(&[&bytes]), 0xddf2);
        assert_eq!(of(&[&bytes]), !0xddf2);
    }

    proptest! {
        #[test]
        fn the_sum_is_that_of_sixteen_bit_words_wherever_the_parts_are_cut(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0..300_usize, other in 0..300_usize
        ) {
            let plain = bytes.chunks(2).fold(0, |sum, word| {
                add(sum, u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]))
            });
            let (a, b) = (cut.min(bytes.len()), other.min(bytes.len()));
            let (a, b) = (a.min(b), a.max(b));
            prop_assert_eq!(sum_of(&[&bytes[..a], &bytes[a..b], &bytes[b..]]), plain);
        }

        #[test]
        fn an_updated_checksum_is_right_for_the_changed_bytes(before in any::<[u8; 4]>(), after in any::<[u8; 4]>(), rest in any::<[u8; 6]>()) {
            let checksum = update(of(&[&before, &rest]), &before, &after);
            prop_assert!([0, 0xffff].contains(&of(&[&after, &rest, &checksum.to_be_bytes()])));
        }
    }
}
