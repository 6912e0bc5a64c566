//! Bound UDP: a capsule that is accepted is accepted again when it is written, a stream says the same of it, and so with peers and fields.
#![no_main]

use bytes::{Bytes, BytesMut};
use hoplite_wire::{
    RequestHead, ResponseHead,
    bound_udp::{self, Capsule, FIELD, PUBLIC_ADDRESS},
    capsule::{CapsuleReader, Item},
    varint,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, value)) = bytes.split_first() else {
        return;
    };
    match kind {
        0 => payload(value),
        1 => fields(value),
        kind => capsule(u64::from(0x11 + kind % 3), value),
    }
});

fn payload(value: &[u8]) {
    if let Some((peer, payload)) = bound_udp::split_peer(Bytes::copy_from_slice(value)) {
        let head = bound_udp::head(2, Some(peer));
        assert_eq!([&head[1..], &payload].concat(), value);
    }
}

fn fields(value: &[u8]) {
    let asks = RequestHead::connect_udp("relay", "/").with(FIELD, value).asks_to_bind();
    assert!(!asks || value.contains(&b'1'));
    let head = ResponseHead::new(200).with(FIELD, "?1");
    if let Some(addresses) = head.with(PUBLIC_ADDRESS, value).bound() {
        assert_eq!(ResponseHead::new(200).with_bound(&addresses).bound(), Some(addresses));
    }
}

fn capsule(kind: u64, value: &[u8]) {
    let parsed = Capsule::parse(kind, Bytes::copy_from_slice(value)).expect("a kind of ours");
    let mut stream = BytesMut::new();
    varint::write(&mut stream, kind);
    varint::write(&mut stream, value.len() as u64);
    stream.extend_from_slice(value);
    assert_eq!(read(stream), Item::Bound(parsed));
    if let Ok(capsule) = parsed {
        let mut written = BytesMut::new();
        capsule.write(&mut written);
        assert!(written.len() <= value.len() + 2, "the shortest form");
        assert_eq!(read(written), Item::Bound(Ok(capsule)));
    }
}

fn read(stream: BytesMut) -> Item {
    let (mut reader, mut stream) = (CapsuleReader::default(), stream.freeze());
    let item = reader.next(&mut stream).expect("a whole capsule, or the head of one that is too large");
    assert_eq!(reader.next(&mut stream), None);
    assert!(reader.is_between_capsules());
    item
}
