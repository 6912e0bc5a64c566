//! Field sections: names and values, compressed with the static table alone.
//! RFC 9204. We do not use the dynamic table, because what one request teaches the other end is linkable and stalls streams.

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use bytes::{BufMut, Bytes, BytesMut};

/// One field line. Pseudo-header names begin with a colon.
pub type Field = (Vec<u8>, Vec<u8>);

/// Why a field section is not readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QpackError {
    /// It is cut short, badly coded, or refers to a dynamic table that does not exist: QPACK_DECOMPRESSION_FAILED.
    #[error("the field section cannot be decompressed")]
    Decompression,
    /// Its fields are larger than the limit, counted as RFC 9114 §4.2.2 does.
    #[error("the field section is larger than allowed")]
    TooLarge,
}

/// Decodes a whole field section of at most `limit` bytes (32 a field on top of its name and value).
///
/// # Errors
/// See [`QpackError`].
pub fn decode(mut section: &[u8], limit: usize) -> Result<Vec<Field>, QpackError> {
    let input = &mut section;
    // Required Insert Count and Base: "If the section contains no dynamic references" both are zero, but any Base is harmless.
    let (_, required) = read_integer(input, 8).ok_or(QpackError::Decompression)?;
    read_integer(input, 7).ok_or(QpackError::Decompression)?;
    if required != 0 {
        return Err(QpackError::Decompression);
    }
    let (mut fields, mut left) = (Vec::new(), limit);
    while !input.is_empty() {
        let (name, value) = read_line(input, left).ok_or(QpackError::Decompression)?;
        let size = name.len().saturating_add(value.len()).saturating_add(32);
        left = left.checked_sub(size).ok_or(QpackError::TooLarge)?;
        fields.push((name, value));
    }
    Ok(fields)
}

fn read_line(input: &mut &[u8], limit: usize) -> Option<Field> {
    match *input.first()? {
        // Indexed field line: 1 T index(6).
        0x80.. => {
            let (flags, index) = read_integer(input, 6)?;
            let (name, value) = static_entry(flags & 0x40 != 0, index)?;
            Some((name.into(), value.into()))
        }
        // Literal with name reference: 0 1 N T index(4).
        0x40..0x80 => {
            let (flags, index) = read_integer(input, 4)?;
            let (name, _) = static_entry(flags & 0x10 != 0, index)?;
            Some((name.into(), read_text(input, 7, limit)?))
        }
        // Literal with literal name: 0 0 1 N H length(3).
        0x20..0x40 => Some((read_text(input, 3, limit)?, read_text(input, 7, limit)?)),
        // Post-base references are always dynamic.
        _ => None,
    }
}

fn static_entry(is_static: bool, index: u64) -> Option<Entry> {
    let entry = STATIC.get(usize::try_from(index).ok()?)?;
    is_static.then_some(*entry)
}

/// A string literal whose length has a prefix of `bits`, the Huffman flag just above it.
/// What is above `limit` is cut one byte behind it: the caller then finds the section too large.
fn read_text(input: &mut &[u8], bits: u32, limit: usize) -> Option<Vec<u8>> {
    let (flags, length) = read_integer(input, bits)?;
    let (text, rest) = input.split_at_checked(usize::try_from(length).ok()?)?;
    *input = rest;
    match flags & 1_u8.checked_shl(bits)? {
        0 => Some(text.get(..limit.saturating_add(1)).unwrap_or(text).to_vec()),
        _ => decode_huffman(text, limit.saturating_add(1)),
    }
}

/// Encodes a field section. Values of credentials are marked as never to be indexed.
pub fn encode<'a>(fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Bytes {
    let mut out = BytesMut::with_capacity(128);
    out.put_slice(&[0, 0]);
    for (name, value) in fields {
        write_line(&mut out, name, value);
    }
    out.freeze()
}

fn write_line(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    let same_name = |entry: &&Entry| entry.0.as_bytes() == name;
    let exact = STATIC
        .iter()
        .position(|entry| (entry.0.as_bytes(), entry.1.as_bytes()) == (name, value));
    if let Some(index) = exact {
        return write_integer(out, 0xc0, 6, index as u64);
    }
    // "N" asks intermediaries never to index the value (RFC 9204 §7.1.3).
    let secret = matches!(name, b"authorization" | b"proxy-authorization" | b"cookie");
    match STATIC.iter().position(|entry| same_name(&entry)) {
        Some(index) => write_integer(out, if secret { 0x70 } else { 0x50 }, 4, index as u64),
        None => {
            write_integer(out, if secret { 0x30 } else { 0x20 }, 3, name.len() as u64);
            out.put_slice(name);
        }
    }
    write_integer(out, 0, 7, value.len() as u64);
    out.put_slice(value);
}

// Integers with a prefix of 3 to 8 bits.
// RFC 7541 §5.1, which RFC 9204 §4.1.1 takes over.

/// Reads the first byte and the integer in its last `bits` bits: `(first byte, integer)`. At most 62 bits are accepted.
fn read_integer(input: &mut &[u8], bits: u32) -> Option<(u8, u64)> {
    let (first, mut rest) = input.split_first()?;
    let mask = u8::MAX.checked_shr(8_u32.checked_sub(bits)?)?;
    let mut value = u64::from(first & mask);
    if first & mask == mask {
        let mut shift = 0_u32;
        loop {
            let (byte, tail) = rest.split_first()?;
            rest = tail;
            // Ten bytes would pass 62 bits; long runs of zero continuation are refused with them.
            let part = u64::from(byte & 0x7f)
                .checked_shl(shift)
                .filter(|_| shift <= 49)?;
            value = value.checked_add(part)?;
            if byte & 0x80 == 0 {
                break;
            }
            shift = shift.checked_add(7)?;
        }
    }
    *input = rest;
    Some((*first, value))
}

/// Writes `value` behind `flags`, the bits of the first byte above the prefix.
fn write_integer(out: &mut impl BufMut, flags: u8, bits: u32, value: u64) {
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

// The Huffman code of HTTP header compression, decoding only: we send literals, which are as good for tokens and names.
// RFC 7541 §5.2 and Appendix B. The code is canonical, so its lengths are all of it.

const SYMBOLS: usize = 257;

const MAX_CODE_LEN: usize = 30;

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
    lengths: [Length; MAX_CODE_LEN + 1],
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
        lengths: [empty; MAX_CODE_LEN + 1],
        symbols: [0; SYMBOLS],
    };
    let (mut length, mut code, mut filled) = (1, 0_u64, 0);
    while length <= MAX_CODE_LEN {
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

/// Decodes `coded`, at most `limit` bytes of it; `None` when it is no valid coding.
fn decode_huffman(coded: &[u8], limit: usize) -> Option<Vec<u8>> {
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

/// Unread bytes, and up to 64 bits in front of them, the next one on top.
struct Bits<'a> {
    coded: &'a [u8],
    window: u64,
    filled: u32,
}

impl Bits<'_> {
    fn fill(&mut self) {
        while self.filled <= 56
            && let Some((byte, rest)) = self.coded.split_first()
        {
            let shift = 56_u32.saturating_sub(self.filled);
            self.window |= u64::from(*byte) << shift;
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

// The static table.
// RFC 9204, Appendix A.

/// A name and a value.
type Entry = (&'static str, &'static str);

#[rustfmt::skip]
static STATIC: [Entry; 99] = [
    (":authority", ""),
    (":path", "/"),
    ("age", "0"),
    ("content-disposition", ""),
    ("content-length", "0"),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("referer", ""),
    ("set-cookie", ""),
    (":method", "CONNECT"),
    (":method", "DELETE"),
    (":method", "GET"),
    (":method", "HEAD"),
    (":method", "OPTIONS"),
    (":method", "POST"),
    (":method", "PUT"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "103"),
    (":status", "200"),
    (":status", "304"),
    (":status", "404"),
    (":status", "503"),
    ("accept", "*/*"),
    ("accept", "application/dns-message"),
    ("accept-encoding", "gzip, deflate, br"),
    ("accept-ranges", "bytes"),
    ("access-control-allow-headers", "cache-control"),
    ("access-control-allow-headers", "content-type"),
    ("access-control-allow-origin", "*"),
    ("cache-control", "max-age=0"),
    ("cache-control", "max-age=2592000"),
    ("cache-control", "max-age=604800"),
    ("cache-control", "no-cache"),
    ("cache-control", "no-store"),
    ("cache-control", "public, max-age=31536000"),
    ("content-encoding", "br"),
    ("content-encoding", "gzip"),
    ("content-type", "application/dns-message"),
    ("content-type", "application/javascript"),
    ("content-type", "application/json"),
    ("content-type", "application/x-www-form-urlencoded"),
    ("content-type", "image/gif"),
    ("content-type", "image/jpeg"),
    ("content-type", "image/png"),
    ("content-type", "text/css"),
    ("content-type", "text/html; charset=utf-8"),
    ("content-type", "text/plain"),
    ("content-type", "text/plain;charset=utf-8"),
    ("range", "bytes=0-"),
    ("strict-transport-security", "max-age=31536000"),
    ("strict-transport-security", "max-age=31536000; includesubdomains"),
    ("strict-transport-security", "max-age=31536000; includesubdomains; preload"),
    ("vary", "accept-encoding"),
    ("vary", "origin"),
    ("x-content-type-options", "nosniff"),
    ("x-xss-protection", "1; mode=block"),
    (":status", "100"),
    (":status", "204"),
    (":status", "206"),
    (":status", "302"),
    (":status", "400"),
    (":status", "403"),
    (":status", "421"),
    (":status", "425"),
    (":status", "500"),
    ("accept-language", ""),
    ("access-control-allow-credentials", "FALSE"),
    ("access-control-allow-credentials", "TRUE"),
    ("access-control-allow-headers", "*"),
    ("access-control-allow-methods", "get"),
    ("access-control-allow-methods", "get, post, options"),
    ("access-control-allow-methods", "options"),
    ("access-control-expose-headers", "content-length"),
    ("access-control-request-headers", "content-type"),
    ("access-control-request-method", "get"),
    ("access-control-request-method", "post"),
    ("alt-svc", "clear"),
    ("authorization", ""),
    ("content-security-policy", "script-src 'none'; object-src 'none'; base-uri 'none'"),
    ("early-data", "1"),
    ("expect-ct", ""),
    ("forwarded", ""),
    ("if-range", ""),
    ("origin", ""),
    ("purpose", "prefetch"),
    ("server", ""),
    ("timing-allow-origin", "*"),
    ("upgrade-insecure-requests", "1"),
    ("user-agent", ""),
    ("x-forwarded-for", ""),
    ("x-frame-options", "deny"),
    ("x-frame-options", "sameorigin"),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        text.as_bytes().into()
    }

    #[test]
    fn the_literal_example_of_the_standard_is_read() {
        // RFC 9204 §B.1
        let section = [&[0, 0, 0x51, 0x0b][..], b"/index.html"].concat();
        assert_eq!(
            decode(&section, 4096),
            Ok(vec![(bytes(":path"), bytes("/index.html"))])
        );
    }

    #[test]
    fn huffman_strings_are_read() {
        // RFC 7541 §C.4.1: "www.example.com", as the value of :authority (static index 0).
        let coded = [
            0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
        ];
        let section = [&[0, 0, 0x50, 0x80 | 12][..], &coded].concat();
        assert_eq!(
            decode(&section, 4096),
            Ok(vec![(bytes(":authority"), bytes("www.example.com"))])
        );
    }

    #[test]
    fn dynamic_references_cannot_be_decompressed() {
        for section in [
            &[2, 0, 0x80][..],
            &[0, 0, 0x80],
            &[0, 0, 0x40, 0],
            &[0, 0, 0x10],
            &[0, 0, 0x00, 0],
        ] {
            assert_eq!(
                decode(section, 4096),
                Err(QpackError::Decompression),
                "{section:?}"
            );
        }
    }

    #[test]
    fn an_index_beyond_the_static_table_cannot_be_decompressed() {
        assert!(decode(&[0, 0, 0xff, 35], 4096).is_ok(), "98 is the last");
        assert_eq!(
            decode(&[0, 0, 0xff, 36], 4096),
            Err(QpackError::Decompression)
        );
    }

    #[test]
    fn large_sections_are_refused_without_being_kept() {
        let section = encode([(&b"x"[..], &[b'a'; 200][..])]);
        assert_eq!(decode(&section, 232), Err(QpackError::TooLarge));
        assert!(decode(&section, 233).is_ok());
        let bomb = [&[0, 0][..], &[0xd1; 1000]].concat();
        assert_eq!(decode(&bomb, 4096), Err(QpackError::TooLarge));
    }

    #[test]
    fn a_credential_is_marked_as_never_indexed() {
        let section = encode([(&b"authorization"[..], &b"Bearer x"[..])]);
        assert_eq!(section.get(2), Some(&0x7f), "N is set");
    }

    fn fields() -> impl Strategy<Value = Vec<Field>> {
        let name = prop_oneof![
            "[a-z-]{1,40}".prop_map(String::into_bytes),
            (0..STATIC.len()).prop_map(|i| STATIC[i].0.as_bytes().to_vec())
        ];
        proptest::collection::vec((name, any::<Vec<u8>>()), 0..12)
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(fields in fields()) {
            let section = encode(fields.iter().map(|(name, value)| (&name[..], &value[..])));
            prop_assert_eq!(decode(&section, 1 << 20), Ok(fields));
        }

        #[test]
        fn any_bytes_are_decoded_without_a_panic_and_within_the_limit(section: Vec<u8>, limit in 0_usize..300) {
            if let Ok(fields) = decode(&section, limit) {
                prop_assert!(fields.iter().map(|(n, v)| n.len() + v.len() + 32).sum::<usize>() <= limit);
            }
        }

        #[test]
        fn bytes_behind_a_good_prefix_are_decoded_without_a_panic(tail: Vec<u8>) {
            drop(decode(&[&[0, 0][..], &tail].concat(), 4096));
        }
    }

    #[test]
    fn the_examples_of_the_standard_are_read() {
        assert_eq!(read_integer(&mut &[0b0000_1010][..], 5), Some((10, 10)));
        assert_eq!(
            read_integer(&mut &[0b0001_1111, 0b1001_1010, 0b0000_1010][..], 5),
            Some((31, 1337))
        );
        assert_eq!(read_integer(&mut &[0xff; 20][..], 5), None);
    }

    proptest! {
        #[test]
        fn an_integer_that_was_written_is_read_back(value in 0_u64..1 << 50, bits in 3_u32..=8) {
            let mut out = Vec::new();
            write_integer(&mut out, 0, bits, value);
            let mut input = &out[..];
            prop_assert_eq!(read_integer(&mut input, bits).map(|(_, value)| value), Some(value));
            prop_assert!(input.is_empty());
        }

        #[test]
        fn any_bytes_are_read_as_integers_without_a_panic(bytes: Vec<u8>, bits in 3_u32..=8) {
            read_integer(&mut &bytes[..], bits);
        }
    }

    /// The code of each symbol, from the lengths alone, in another way than the decoder's.
    fn encode_huffman(text: &[u8]) -> Vec<u8> {
        let mut order: Vec<usize> = (0..SYMBOLS).collect();
        order.sort_by_key(|symbol| (LENGTHS[*symbol], *symbol));
        let (mut codes, mut code, mut last) = (vec![0_u64; SYMBOLS], 0_u64, 0);
        for symbol in order {
            code <<= LENGTHS[symbol] - last;
            codes[symbol] = code;
            (code, last) = (code + 1, LENGTHS[symbol]);
        }
        let mut bits: Vec<bool> = Vec::new();
        for byte in text {
            let symbol = usize::from(*byte);
            bits.extend(
                (0..LENGTHS[symbol])
                    .rev()
                    .map(|i| codes[symbol] >> i & 1 == 1),
            );
        }
        bits.resize(bits.len().next_multiple_of(8), true);
        bits.chunks(8)
            .map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit)))
            .collect()
    }

    #[test]
    fn the_example_of_the_standard_is_decoded() {
        // RFC 7541 §C.6.1
        let coded = [0xae, 0xc3, 0x77, 0x1a, 0x4b];
        assert_eq!(decode_huffman(&coded, 99).as_deref(), Some(&b"private"[..]));
    }

    #[test]
    fn wrong_padding_and_the_end_symbol_are_refused() {
        assert_eq!(decode_huffman(&[0x00], 9), None, "'0' and three zero bits");
        assert_eq!(decode_huffman(&[0xff], 9), None, "eight bits of padding");
        assert_eq!(decode_huffman(&[0xff; 4], 9), None, "the end symbol");
        assert_eq!(decode_huffman(&[], 9), Some(Vec::new()));
    }

    proptest! {
        #[test]
        fn huffman_coded_text_is_decoded(text: Vec<u8>) {
            prop_assert_eq!(decode_huffman(&encode_huffman(&text), 4096), Some(text));
        }

        #[test]
        fn any_huffman_code_is_decoded_without_a_panic_and_within_the_limit(coded: Vec<u8>, limit in 0_usize..64) {
            prop_assert!(decode_huffman(&coded, limit).is_none_or(|text| text.len() <= limit));
        }
    }
}
