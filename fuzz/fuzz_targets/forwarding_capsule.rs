//! Capsules of forwarded mode: what is accepted is accepted again when it is written, and a stream says the same of them.
#![no_main]

use bytes::{Bytes, BytesMut};
use hoplite_wire::{
    capsule::{CapsuleReader, Item},
    forwarding::Capsule,
    varint,
};
use libfuzzer_sys::fuzz_target;

const FIRST: u64 = 0xff_e600;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, value)) = bytes.split_first() else {
        return;
    };
    let kind = FIRST + u64::from(*kind % 9);
    let Some(parsed) = Capsule::parse(kind, Bytes::copy_from_slice(value)) else {
        assert_eq!(kind, FIRST + 8);
        return;
    };
    let mut stream = BytesMut::new();
    varint::write(&mut stream, kind);
    varint::write(&mut stream, value.len() as u64);
    stream.extend_from_slice(value);
    assert_eq!(read(stream), Item::Forwarding(parsed.clone()));
    if let Ok(capsule) = parsed {
        assert!(
            value.len() <= Capsule::LARGEST + 3 * 6,
            "only a length may be longer than it need be"
        );
        let mut written = BytesMut::new();
        capsule.write(&mut written);
        assert_eq!(read(written), Item::Forwarding(Ok(capsule)));
    }
});

fn read(stream: BytesMut) -> Item {
    let (mut reader, mut stream) = (CapsuleReader::default(), stream.freeze());
    let item = reader.next(&mut stream).expect("a whole capsule");
    assert_eq!(reader.next(&mut stream), None);
    assert!(reader.is_between_capsules());
    item
}
