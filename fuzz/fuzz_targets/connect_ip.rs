//! IP proxying: a capsule that is accepted is accepted again when it is written, a stream says the same of it, and so with paths.
#![no_main]

use bytes::{Bytes, BytesMut};
use hoplite_wire::{
    capsule::{CapsuleReader, Item},
    connect_ip::{Capsule, Scope},
    varint,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, value)) = bytes.split_first() else {
        return;
    };
    match kind % 6 {
        0 => path(value),
        4 => capsule(0x1ace_79ec, value),
        5 => capsule(0x274c_0fbc, value),
        kind => capsule(u64::from(kind), value),
    }
});

fn path(value: &[u8]) {
    let path = String::from_utf8_lossy(value);
    for path in [path.to_string(), format!("/.well-known/masque/ip/{path}")] {
        if let Ok(scope) = Scope::read_path(&path) {
            assert_eq!(Scope::read_path(&scope.path()), Ok(scope));
        }
    }
}

fn capsule(kind: u64, value: &[u8]) {
    let parsed = Capsule::parse(kind, Bytes::copy_from_slice(value)).expect("a kind of ours");
    let mut stream = BytesMut::new();
    varint::write(&mut stream, kind);
    varint::write(&mut stream, value.len() as u64);
    stream.extend_from_slice(value);
    if value.len() <= Capsule::LARGEST {
        assert_eq!(read(stream), Item::Ip(parsed.clone()));
    }
    if let Ok(capsule) = parsed {
        let mut written = BytesMut::new();
        capsule.write(&mut written);
        assert!(
            written.len() <= value.len() + 8,
            "only a number may be longer than it need be"
        );
        if written.len() <= Capsule::LARGEST {
            assert_eq!(read(written), Item::Ip(Ok(capsule)));
        }
    }
}

fn read(stream: BytesMut) -> Item {
    let (mut reader, mut stream) = (CapsuleReader::default(), stream.freeze());
    let item = reader.next(&mut stream).expect("a whole capsule");
    assert_eq!(reader.next(&mut stream), None);
    assert!(reader.is_between_capsules());
    item
}
