//! Field sections: names and values, compressed with the static table alone.
//! `message` turns them into heads of requests and responses.
//! RFC 9204. We do not use the dynamic table, because what one request teaches the other end is linkable and stalls streams.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

mod huffman;
mod integer;
mod table;

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

/// Decodes a whole field section of at most `limit` octets (32 a field on top of its name and value).
///
/// # Errors
/// See [`QpackError`].
pub fn decode(mut section: &[u8], limit: usize) -> Result<Vec<Field>, QpackError> {
    let input = &mut section;
    // Required Insert Count and Base: "If the section contains no dynamic references" both are zero, but any Base is harmless.
    let (_, required) = integer::read(input, 8).ok_or(QpackError::Decompression)?;
    integer::read(input, 7).ok_or(QpackError::Decompression)?;
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
            let (flags, index) = integer::read(input, 6)?;
            let (name, value) = static_entry(flags & 0x40 != 0, index)?;
            Some((name.into(), value.into()))
        }
        // Literal with name reference: 0 1 N T index(4).
        0x40..0x80 => {
            let (flags, index) = integer::read(input, 4)?;
            let (name, _) = static_entry(flags & 0x10 != 0, index)?;
            Some((name.into(), read_text(input, 7, limit)?))
        }
        // Literal with literal name: 0 0 1 N H length(3).
        0x20..0x40 => Some((read_text(input, 3, limit)?, read_text(input, 7, limit)?)),
        // Post-base references are always dynamic.
        _ => None,
    }
}

fn static_entry(is_static: bool, index: u64) -> Option<table::Entry> {
    let entry = table::STATIC.get(usize::try_from(index).ok()?)?;
    is_static.then_some(*entry)
}

/// A string literal whose length has a prefix of `bits`, the Huffman flag just above it.
/// What is above `limit` is cut one octet behind it: the caller then finds the section too large.
fn read_text(input: &mut &[u8], bits: u32, limit: usize) -> Option<Vec<u8>> {
    let (flags, length) = integer::read(input, bits)?;
    let (text, rest) = input.split_at_checked(usize::try_from(length).ok()?)?;
    *input = rest;
    match flags & 1_u8.checked_shl(bits)? {
        0 => Some(text.get(..limit.saturating_add(1)).unwrap_or(text).to_vec()),
        _ => huffman::decode(text, limit.saturating_add(1)),
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
    let same_name = |entry: &&table::Entry| entry.0.as_bytes() == name;
    let exact = table::STATIC
        .iter()
        .position(|entry| (entry.0.as_bytes(), entry.1.as_bytes()) == (name, value));
    if let Some(index) = exact {
        return integer::write(out, 0xc0, 6, index as u64);
    }
    // "N" asks intermediaries never to index the value (RFC 9204 §7.1.3).
    let secret = matches!(name, b"authorization" | b"proxy-authorization" | b"cookie");
    match table::STATIC.iter().position(|entry| same_name(&entry)) {
        Some(index) => integer::write(out, if secret { 0x70 } else { 0x50 }, 4, index as u64),
        None => {
            integer::write(out, if secret { 0x30 } else { 0x20 }, 3, name.len() as u64);
            out.put_slice(name);
        }
    }
    integer::write(out, 0, 7, value.len() as u64);
    out.put_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn octets(text: &str) -> Vec<u8> {
        text.as_bytes().into()
    }

    #[test]
    fn the_literal_example_of_the_standard_is_read() {
        // RFC 9204 §B.1
        let section = [&[0, 0, 0x51, 0x0b][..], b"/index.html"].concat();
        assert_eq!(
            decode(&section, 4096),
            Ok(vec![(octets(":path"), octets("/index.html"))])
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
            Ok(vec![(octets(":authority"), octets("www.example.com"))])
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
            (0..table::STATIC.len()).prop_map(|i| table::STATIC[i].0.as_bytes().to_vec())
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
        fn any_octets_are_decoded_without_a_panic_and_within_the_limit(section: Vec<u8>, limit in 0_usize..300) {
            if let Ok(fields) = decode(&section, limit) {
                prop_assert!(fields.iter().map(|(n, v)| n.len() + v.len() + 32).sum::<usize>() <= limit);
            }
        }

        #[test]
        fn octets_behind_a_good_prefix_are_decoded_without_a_panic(tail: Vec<u8>) {
            drop(decode(&[&[0, 0][..], &tail].concat(), 4096));
        }
    }
}
