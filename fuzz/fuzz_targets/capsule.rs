//! Capsules: however bytes are cut, the reader comes to the same end.
#![no_main]

use bytes::Bytes;
use hoplite_wire::capsule::{CapsuleReader, Item};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    assert_eq!(read(bytes, bytes.len()), read(bytes, 3));
});

fn read(bytes: &[u8], size: usize) -> (Vec<Item>, u64, bool) {
    let (mut reader, mut values) = (CapsuleReader::default(), Vec::new());
    for chunk in bytes.chunks(size.max(1)) {
        let mut input = Bytes::copy_from_slice(chunk);
        while let Some(value) = reader.next(&mut input) {
            values.push(value);
        }
        assert!(input.is_empty(), "it is all taken");
    }
    let skipped = reader.take_oversized();
    (values, skipped, reader.is_between_capsules())
}
