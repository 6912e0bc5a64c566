//! TCP by template: however bytes are cut, the reader comes to the same payload and the same end.
#![no_main]

use bytes::Bytes;
use hoplite_wire::connect_tcp::{AfterEnd, Draft, Reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for draft in Draft::ALL {
        assert_eq!(read(draft, bytes, bytes.len()), read(draft, bytes, 3));
    }
});

fn read(draft: Draft, bytes: &[u8], size: usize) -> Result<(Vec<u8>, bool), AfterEnd> {
    let (mut reader, mut payload) = (Reader::new(draft), Vec::new());
    for chunk in bytes.chunks(size.max(1)) {
        let mut input = Bytes::copy_from_slice(chunk);
        while let Some(part) = reader.next(&mut input)? {
            payload.extend_from_slice(&part);
        }
        assert!(input.is_empty(), "it is all taken");
    }
    Ok((payload, reader.has_ended()))
}
