use proptest::{collection::vec, prelude::*};

use super::*;

fn body(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

#[test]
fn handshakes_and_reasons_are_those_of_the_specification() {
    let handshakes: Vec<_> = HandshakeType::KNOWN
        .iter()
        .map(|(kind, name)| (kind.0, *name))
        .collect();
    assert_eq!(handshakes, [(0, "TAP"), (2, "NTOR"), (3, "NTOR_V3")]);
    let specified = [
        "NONE",
        "PROTOCOL",
        "INTERNAL",
        "REQUESTED",
        "HIBERNATING",
        "RESOURCELIMIT",
        "CONNECTFAILED",
        "OR_IDENTITY",
        "CHANNEL_CLOSED",
        "FINISHED",
        "TIMEOUT",
        "DESTROYED",
        "NOSUCHSERVICE",
    ];
    assert_eq!(DestroyReason::KNOWN.len(), specified.len());
    for (number, name) in (0..).zip(specified) {
        assert_eq!(DestroyReason(number).name(), Some(name));
    }
}

#[test]
fn create2_is_type_length_and_data_and_the_rest_is_padding() {
    let create = Create2 {
        handshake: HandshakeType::NTOR,
        data: &[0xab; 84],
    };
    let bytes = body(|out| create.write(out));
    assert_eq!(bytes[..4], [0, 2, 0, 84]);
    assert_eq!(bytes[4..], [0xab; 84]);
    let padded = [&bytes[..], &[9; 100]].concat();
    assert_eq!(Create2::parse(&padded), Ok(create));
    assert_eq!(Create2::parse(&bytes[..87]), Err(Malformed("CREATE2")));
}

#[test]
fn created2_is_length_and_data_and_the_rest_is_padding() {
    let created = Created2 { data: b"answer" };
    let bytes = body(|out| created.write(out));
    assert_eq!(bytes, b"\x00\x06answer");
    let padded = [&bytes[..], &[9; 100]].concat();
    assert_eq!(Created2::parse(&padded), Ok(created));
    assert!(Created2::parse(&bytes[..7]).is_err());
}

#[test]
fn extend2_reads_as_specified() {
    let bytes = [
        &[5][..],
        &[0, 6, 192, 0, 2, 1, 0x23, 0x29],
        &[2, 20],
        &[0x22; 20],
        &[3, 32],
        &[0x33; 32],
        &[
            1, 18, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
        ],
        &[0x01, 0xbb],
        &[0x77, 2, 8, 9],
        &[0, 3, 0, 3, 1, 2, 3],
    ]
    .concat();
    let v4: SocketAddrV4 = "192.0.2.1:9001".parse().unwrap();
    let v6: SocketAddrV6 = "[2001:db8::1]:443".parse().unwrap();
    let wanted = Extend2 {
        specifiers: vec![
            LinkSpecifier::Ipv4(v4),
            LinkSpecifier::Rsa([0x22; 20]),
            LinkSpecifier::Ed25519([0x33; 32]),
            LinkSpecifier::Ipv6(v6),
            LinkSpecifier::Unknown {
                kind: 0x77,
                value: &[8, 9],
            },
        ],
        create: Create2 {
            handshake: HandshakeType::NTOR_V3,
            data: &[1, 2, 3],
        },
    };
    assert_eq!(Extend2::parse(&bytes).as_ref(), Ok(&wanted));
    assert_eq!(body(|out| wanted.write(out)), bytes);
    assert!(!format!("{wanted:?}").contains("192"));
    for cut in 0..bytes.len() {
        assert!(Extend2::parse(&bytes[..cut]).is_err(), "{cut}");
    }
}

#[test]
fn a_specifier_of_a_wrong_length_and_a_second_identity_of_one_kind_are_malformed() {
    let create = [0, 2, 0, 0];
    let rsa = [&[2, 20][..], &[1; 20]].concat();
    let ed25519 = [&[3, 32][..], &[1; 32]].concat();
    let v4 = vec![0, 6, 1, 2, 3, 4, 5, 6];
    let extend = |specifiers: &[&Vec<u8>]| {
        let mut bytes = vec![u8::try_from(specifiers.len()).unwrap()];
        specifiers.iter().for_each(|one| bytes.extend(*one));
        bytes.extend(create);
        Extend2::parse(&bytes).is_ok()
    };
    assert!(extend(&[&v4, &rsa, &ed25519, &v4]));
    assert!(!extend(&[&rsa, &v4, &rsa]));
    assert!(!extend(&[&ed25519, &ed25519]));
    assert!(!extend(&[&vec![0, 5, 1, 2, 3, 4, 5]]));
    assert!(!extend(&[&vec![0, 7, 1, 2, 3, 4, 5, 6, 7]]));
    assert!(!extend(&[&[&[2, 21][..], &[1; 21]].concat()]));
}

#[test]
fn a_reason_is_one_byte_and_later_ones_stay_readable() {
    assert_eq!(
        DestroyReason::parse(&[8, 0, 0]),
        Ok(DestroyReason::CHANNEL_CLOSED)
    );
    assert_eq!(DestroyReason::parse(&[200]), Ok(DestroyReason(200)));
    assert!(DestroyReason::parse(&[]).is_err());
    assert_eq!(body(|out| DestroyReason::PROTOCOL.write(out)), [1]);
}

#[test]
fn a_client_asks_for_congestion_control_and_subprotocols_as_specified() {
    let relay = |capability| Subprotocol {
        protocol: 2,
        capability,
    };
    let asked = ClientExtensions {
        congestion_control: true,
        subprotocols: vec![relay(5), relay(6)],
    };
    let bytes = body(|out| asked.write(out));
    assert_eq!(bytes, [2, 1, 0, 3, 4, 2, 5, 2, 6]);
    assert_eq!(ClientExtensions::parse(&bytes), Ok(asked));
    assert_eq!(body(|out| ClientExtensions::default().write(out)), [0]);
    assert_eq!(
        ClientExtensions::parse(&[]),
        Ok(ClientExtensions::default())
    );
}

#[test]
fn a_relay_answers_with_its_increment_as_specified() {
    let answer = ServerExtensions {
        sendme_increment: Some(31),
    };
    assert_eq!(body(|out| answer.write(out)), [1, 2, 1, 31]);
    assert_eq!(ServerExtensions::parse(&[1, 2, 1, 31]), Ok(answer));
    assert_eq!(body(|out| ServerExtensions::default().write(out)), [0]);
    for none in [&[][..], &[0]] {
        let parsed = ServerExtensions::parse(none);
        assert_eq!(parsed, Ok(ServerExtensions::default()));
    }
}

#[test]
fn unknown_extensions_are_ignored_and_of_several_the_first_counts() {
    let client = ClientExtensions::parse(&[4, 9, 1, 7, 3, 2, 2, 6, 3, 2, 2, 7, 2, 1, 5]).unwrap();
    assert!(!client.congestion_control);
    assert_eq!(client.subprotocols.len(), 1);
    assert_eq!(client.subprotocols[0].capability, 6);
    let server = ServerExtensions::parse(&[3, 1, 0, 2, 1, 31, 2, 1, 99]).unwrap();
    assert_eq!(server.sendme_increment, Some(31));
}

#[test]
fn extensions_that_are_cut_off_or_out_of_order_are_malformed() {
    for client in [
        &[1][..],
        &[1, 1],
        &[2, 1, 0],
        &[1, 3, 2, 2],
        &[1, 3, 1, 2],
        &[1, 3, 4, 2, 6, 2, 5],
        &[1, 3, 4, 2, 6, 2, 6],
    ] {
        assert!(ClientExtensions::parse(client).is_err(), "{client:?}");
    }
    for server in [&[1, 2, 0][..], &[1, 2, 2, 31, 0], &[1, 2, 1]] {
        assert!(ServerExtensions::parse(server).is_err(), "{server:?}");
    }
}

fn any_specifier(bytes: &[u8]) -> LinkSpecifier<'_> {
    let known = match bytes {
        [0, a, b, c, d, ..] => Some(LinkSpecifier::Ipv4(SocketAddrV4::new(
            [*a, *b, *c, *d].into(),
            9001,
        ))),
        [1, a, b, c, ..] => {
            let ip = [0x2001, (*a).into(), 0, 0, 0, 0, (*b).into(), (*c).into()];
            let address = SocketAddrV6::new(ip.into(), 443, 0, 0);
            Some(LinkSpecifier::Ipv6(address))
        }
        _ => None,
    };
    known.unwrap_or_else(|| LinkSpecifier::Unknown {
        kind: 4 | bytes.first().unwrap_or(&0),
        value: bytes,
    })
}

proptest! {
    #[test]
    fn extend2_is_read_back(specifiers in vec(vec(any::<u8>(), 0..40), 0..9), handshake: u16, data: Vec<u8>) {
        let specifiers = specifiers.iter().map(|bytes| any_specifier(bytes)).collect();
        let extend = Extend2 { specifiers, create: Create2 { handshake: HandshakeType(handshake), data: &data } };
        let bytes = body(|out| extend.write(out));
        prop_assert_eq!(Extend2::parse(&bytes), Ok(extend));
    }

    #[test]
    fn extensions_are_read_back(congestion_control: bool, pairs in proptest::collection::btree_set(any::<[u8; 2]>(), 0..127), sendme_increment: Option<u8>) {
        let subprotocols = pairs.into_iter().map(|[protocol, capability]| Subprotocol { protocol, capability }).collect();
        let client = ClientExtensions { congestion_control, subprotocols };
        prop_assert_eq!(ClientExtensions::parse(&body(|out| client.write(out))), Ok(client));
        let server = ServerExtensions { sendme_increment };
        prop_assert_eq!(ServerExtensions::parse(&body(|out| server.write(out))), Ok(server));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
        drop((Create2::parse(&bytes), Created2::parse(&bytes), Extend2::parse(&bytes), DestroyReason::parse(&bytes)));
        drop((ClientExtensions::parse(&bytes), ServerExtensions::parse(&bytes)));
    }
}
