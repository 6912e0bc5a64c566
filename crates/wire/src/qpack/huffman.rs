//! The Huffman code of HTTP header compression, decoding only: we send literals, which are as good for tokens and names.
//! RFC 7541 §5.2 and Appendix B. The code is canonical, so its lengths are all of it.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

const SYMBOLS: usize = 257;
const LONGEST: usize = 30;
const END_OF_STRING: u16 = 256;

/// The length of each symbol's code in bits, by symbol; the last one is the end of the string.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

/// The codes of one length: they are consecutive, and so are their symbols in `Tables::symbols`.
#[derive(Clone, Copy)]
struct Length {
    /// One past the last code, moved to the top of 32 bits.
    end: u64,
    /// The first code.
    first: u64,
    /// Where its symbol stands.
    at: u64,
}

struct Tables {
    lengths: [Length; LONGEST + 1],
    symbols: [u16; SYMBOLS],
}

#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "evaluated by the compiler, which refuses what is out of bounds"
)]
const TABLES: Tables = {
    let empty = Length {
        end: 0,
        first: 0,
        at: 0,
    };
    let mut tables = Tables {
        lengths: [empty; LONGEST + 1],
        symbols: [0; SYMBOLS],
    };
    let (mut length, mut code, mut filled) = (1, 0_u64, 0);
    while length <= LONGEST {
        code <<= 1;
        tables.lengths[length].first = code;
        tables.lengths[length].at = filled as u64;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                tables.symbols[filled] = symbol as u16;
                filled += 1;
                code += 1;
            }
            symbol += 1;
        }
        tables.lengths[length].end = code << (32 - length);
        length += 1;
    }
    tables
};
static STATIC_TABLES: Tables = TABLES;

/// Decodes `coded`, at most `limit` octets of it; `None` when it is no valid coding.
pub(super) fn decode(coded: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(limit.min(coded.len().saturating_mul(2)));
    let mut bits = Bits {
        coded,
        window: 0,
        filled: 0,
    };
    while out.len() < limit {
        bits.fill();
        let Some((symbol, length)) = bits.symbol() else {
            return bits.is_padding().then_some(out);
        };
        if length > bits.filled {
            return bits.is_padding().then_some(out);
        }
        // "A Huffman-encoded string literal containing the EOS symbol MUST be treated as a decoding error."
        out.push(
            u8::try_from(symbol)
                .ok()
                .filter(|_| symbol != END_OF_STRING)?,
        );
        bits.skip(length);
    }
    Some(out)
}

/// Unread octets, and up to 64 bits in front of them, the next one on top.
struct Bits<'a> {
    coded: &'a [u8],
    window: u64,
    filled: u32,
}

impl Bits<'_> {
    fn fill(&mut self) {
        while self.filled <= 56
            && let Some((octet, rest)) = self.coded.split_first()
        {
            let shift = 56_u32.saturating_sub(self.filled);
            self.window |= u64::from(*octet) << shift;
            self.filled = self.filled.saturating_add(8);
            self.coded = rest;
        }
    }

    /// The symbol on top and the length of its code.
    fn symbol(&self) -> Option<(u16, u32)> {
        let top = self.window >> 32;
        let (length, entry) = (5_u32..)
            .zip(STATIC_TABLES.lengths.get(5..)?)
            .find(|(_, entry)| top < entry.end)?;
        let code = top >> 32_u32.saturating_sub(length);
        let index = code.checked_sub(entry.first)?.checked_add(entry.at)?;
        let symbol = STATIC_TABLES.symbols.get(usize::try_from(index).ok()?)?;
        Some((*symbol, length))
    }

    fn skip(&mut self, length: u32) {
        self.window = self.window.checked_shl(length).unwrap_or_default();
        self.filled = self.filled.saturating_sub(length);
    }

    /// "A padding strictly longer than 7 bits MUST be treated as a decoding error", as must one of other bits than ones.
    fn is_padding(&self) -> bool {
        let ones = u64::MAX
            .checked_shl(64_u32.saturating_sub(self.filled))
            .unwrap_or_default();
        self.filled < 8 && self.window == ones
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The code of each symbol, from the lengths alone, in another way than the decoder's.
    fn encode(text: &[u8]) -> Vec<u8> {
        let mut order: Vec<usize> = (0..SYMBOLS).collect();
        order.sort_by_key(|symbol| (LENGTHS[*symbol], *symbol));
        let (mut codes, mut code, mut last) = (vec![0_u64; SYMBOLS], 0_u64, 0);
        for symbol in order {
            code <<= LENGTHS[symbol] - last;
            codes[symbol] = code;
            (code, last) = (code + 1, LENGTHS[symbol]);
        }
        let mut bits: Vec<bool> = Vec::new();
        for octet in text {
            let symbol = usize::from(*octet);
            bits.extend(
                (0..LENGTHS[symbol])
                    .rev()
                    .map(|i| codes[symbol] >> i & 1 == 1),
            );
        }
        bits.resize(bits.len().next_multiple_of(8), true);
        bits.chunks(8)
            .map(|bits| {
                bits.iter()
                    .fold(0, |octet, bit| octet << 1 | u8::from(*bit))
            })
            .collect()
    }

    #[test]
    fn the_example_of_the_standard_is_decoded() {
        // RFC 7541 §C.6.1
        let coded = [0xae, 0xc3, 0x77, 0x1a, 0x4b];
        assert_eq!(decode(&coded, 99).as_deref(), Some(&b"private"[..]));
    }

    #[test]
    fn wrong_padding_and_the_end_symbol_are_refused() {
        assert_eq!(decode(&[0x00], 9), None, "'0' and three zero bits");
        assert_eq!(decode(&[0xff], 9), None, "eight bits of padding");
        assert_eq!(decode(&[0xff; 4], 9), None, "the end symbol");
        assert_eq!(decode(&[], 9), Some(Vec::new()));
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(text: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&text), 4096), Some(text));
        }

        #[test]
        fn any_octets_are_decoded_without_a_panic_and_within_the_limit(coded: Vec<u8>, limit in 0_usize..64) {
            prop_assert!(decode(&coded, limit).is_none_or(|text| text.len() <= limit));
        }
    }
}
