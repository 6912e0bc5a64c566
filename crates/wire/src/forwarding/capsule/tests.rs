use super::*;
use proptest::prelude::*;

fn octets() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 0..=MAX_ID).prop_map(Bytes::from)
}

fn capsules() -> impl Strategy<Value = Capsule> {
    let sequence = 1..=varint::MAX;
    (0..8, octets(), octets(), octets(), sequence).prop_map(
        |(which, id, virtual_id, reset_token, sequence)| match which {
            0 => Capsule::RegisterClientCid { id },
            1 => Capsule::RegisterTargetCid { id, reset_token },
            2 => Capsule::AckClientCid { id, virtual_id },
            3 => Capsule::AckClientVcid {
                id,
                virtual_id,
                reset_token,
            },
            4 => Capsule::AckTargetCid {
                id,
                virtual_id,
                reset_token,
            },
            5 => Capsule::CloseClientCid { id },
            6 => Capsule::CloseTargetCid { id },
            _ => Capsule::MaxConnectionIds { sequence },
        },
    )
}

/// Type and value of a written capsule.
fn taken_apart(mut written: Bytes) -> (u64, Bytes) {
    let kind = varint::read(&mut written).expect("a type");
    let length = varint::read(&mut written).expect("a length");
    assert_eq!(length, written.len() as u64, "the length is the value's");
    (kind, written)
}

fn parse(kind: u64, value: &[u8]) -> Result<Capsule, Malformed> {
    Capsule::parse(kind, Bytes::copy_from_slice(value)).expect("one of these")
}

#[test]
fn the_code_points_are_those_of_the_draft() {
    let id = Bytes::from_static(b"1234");
    let mut out = Vec::new();
    Capsule::RegisterClientCid { id: id.clone() }.write(&mut out);
    assert_eq!(out, b"\x80\xff\xe6\x00\x041234");
    out.clear();
    let (virtual_id, reset_token) = (Bytes::from_static(b"abcdef"), Bytes::new());
    Capsule::AckTargetCid {
        id,
        virtual_id,
        reset_token,
    }
    .write(&mut out);
    assert_eq!(out, b"\x80\xff\xe6\x04\x0d\x041234\x06abcdef\x00");
    out.clear();
    Capsule::MaxConnectionIds { sequence: 3 }.write(&mut out);
    assert_eq!(out, b"\x80\xff\xe6\x07\x01\x03");
}

#[test]
fn other_types_are_not_ours() {
    for kind in [0, 0xff_e5ff, 0xff_e608, varint::MAX] {
        assert_eq!(Capsule::parse(kind, Bytes::new()), None);
    }
}

#[test]
fn a_value_that_its_type_does_not_allow_is_malformed() {
    let cases: [(u64, &[u8]); 10] = [
        (REGISTER_CLIENT_CID, &[7; MAX_ID + 1]),
        (CLOSE_TARGET_CID, &[7; MAX_ID + 1]),
        (REGISTER_TARGET_CID, b""),
        (REGISTER_TARGET_CID, b"\x01a"),
        (REGISTER_TARGET_CID, b"\x01a\x02t"),
        (REGISTER_TARGET_CID, b"\x01a\x01tx"),
        (ACK_CLIENT_CID, b"\x01a\xff\xff\xff\xff\xff\xff\xff\xff"),
        (MAX_CONNECTION_IDS, b""),
        (MAX_CONNECTION_IDS, b"\x00"),
        (MAX_CONNECTION_IDS, b"\x01\x01"),
    ];
    for (kind, value) in cases {
        assert_eq!(parse(kind, value), Err(Malformed), "{kind:x} {value:?}");
    }
    let long = [&[0x41, 0x00][..], &[7; 256], &[0]].concat();
    assert_eq!(parse(ACK_CLIENT_CID, &long), Err(Malformed));
}

#[test]
fn ids_of_every_length_of_the_invariants_are_read() {
    for length in [0, 1, 20, 21, MAX_ID] {
        let id = Bytes::from(vec![9; length]);
        let read = parse(REGISTER_CLIENT_CID, &id);
        assert_eq!(read, Ok(Capsule::RegisterClientCid { id }));
    }
}

#[test]
fn debug_output_shows_no_id() {
    let id = Bytes::from_static(b"secret");
    let shown = format!("{:?}", Capsule::CloseClientCid { id });
    assert_eq!(shown, "CLOSE_CLIENT_CID");
}

proptest! {
    #[test]
    fn what_was_written_is_read_back(capsule in capsules()) {
        let mut out = Vec::new();
        capsule.write(&mut out);
        let (kind, value) = taken_apart(out.into());
        prop_assert!(value.len() <= Capsule::LARGEST);
        prop_assert_eq!(Capsule::parse(kind, value), Some(Ok(capsule)));
    }

    #[test]
    fn any_value_is_read_without_a_panic(kind in REGISTER_CLIENT_CID..=MAX_CONNECTION_IDS, value: Vec<u8>) {
        if let Some(Ok(capsule)) = Capsule::parse(kind, value.into()) {
            let mut out = Vec::new();
            capsule.write(&mut out);
            let (kind, value) = taken_apart(out.into());
            prop_assert_eq!(Capsule::parse(kind, value), Some(Ok(capsule)));
        }
    }
}
