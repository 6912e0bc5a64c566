//! What the specification says of the link handshake, octet by octet, and round trips.

use proptest::{collection::vec, prelude::*};

use super::*;

fn body(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

#[test]
fn types_of_certificates_and_of_authentication_are_those_of_the_specification() {
    let ours: Vec<_> = CertType::KNOWN.iter().map(|(kind, _)| kind.0).collect();
    assert_eq!(ours, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(CertType::RSA_IDENTITY.0, 2);
    assert_eq!(CertType::ED25519_SIGNING.0, 4);
    assert_eq!(CertType::ED25519_LINK.0, 5);
    assert_eq!(CertType::ED25519_AUTHENTICATE.0, 6);
    assert_eq!(CertType::RSA_CROSS.0, 7);
    let ours: Vec<_> = AuthType::KNOWN.iter().map(|(kind, _)| kind.0).collect();
    assert_eq!(ours, [1, 3]);
}

#[test]
fn an_odd_number_of_octets_is_no_list_of_versions() {
    assert_eq!(Versions::parse(&[0, 3, 0, 4]), Ok(Versions(vec![3, 4])));
    assert_eq!(Versions::parse(&[0, 3, 0]), Err(Malformed("VERSIONS")));
}

#[test]
fn the_highest_common_version_is_chosen_and_none_if_there_is_none() {
    assert_eq!(Versions(vec![5, 3, 4, 9]).common(&[4, 5]), Some(5));
    assert_eq!(Versions(vec![3, 4]).common(&[4, 5]), Some(4));
    assert_eq!(Versions(vec![1, 2, 3]).common(&[4, 5]), None);
}

#[test]
fn a_certs_cell_reads_as_specified_and_what_follows_is_ignored() {
    let octets = [2, 4, 0, 3, 1, 2, 3, 9, 0, 0, 77, 77];
    let certs = Certs::parse(&octets).unwrap();
    assert_eq!(certs.get(CertType::ED25519_SIGNING), Some(&[1, 2, 3][..]));
    assert_eq!(certs.get(CertType(9)), Some(&[][..]));
    assert_eq!(certs.get(CertType::RSA_CROSS), None);
    assert_eq!(body(|out| certs.write(out)), octets[..10]);
}

#[test]
fn two_certificates_of_one_type_are_malformed_and_so_is_a_cut_one() {
    for octets in [&[2, 4, 0, 0, 4, 0, 0][..], &[1, 4, 0, 3, 1, 2], &[1], &[]] {
        assert_eq!(Certs::parse(octets), Err(Malformed("CERTS")), "{octets:?}");
    }
}

#[test]
fn a_challenge_reads_as_specified_and_what_follows_is_ignored() {
    let octets = [&[7; 32][..], &[0, 2, 0, 1, 0, 3, 99]].concat();
    let challenge = AuthChallenge::parse(&octets).unwrap();
    assert_eq!(challenge.challenge, [7; 32]);
    assert_eq!(
        challenge.methods,
        [
            AuthType::RSA_SHA256_TLSSECRET,
            AuthType::ED25519_SHA256_RFC5705
        ]
    );
    assert_eq!(body(|out| challenge.write(out)), octets[..38]);
    assert!(AuthChallenge::parse(&octets[..37]).is_err());
}

#[test]
fn an_ed25519_authentication_has_its_fields_where_the_specification_puts_them() {
    let fields = Ed25519Authentication {
        initiator_rsa: [1; 32],
        responder_rsa: [2; 32],
        initiator_ed25519: [3; 32],
        responder_ed25519: [4; 32],
        responder_log: [5; 32],
        initiator_log: [6; 32],
        certificate: [7; 32],
        exporter: [8; 32],
        random: [9; 24],
    };
    let signed = body(|out| fields.write(out));
    let mut wanted = b"AUTH0003".to_vec();
    (1..=8).for_each(|field| wanted.extend([field; 32]));
    wanted.extend([9; 24]);
    assert_eq!(
        (&signed, signed.len()),
        (&wanted, Ed25519Authentication::LEN)
    );
    let later = [&signed[..], b"later versions"].concat();
    for signed in [&signed, &later] {
        let octets = [signed, &[0xaa; 64][..]].concat();
        let parsed = Ed25519Authentication::parse(&octets);
        assert_eq!(parsed, Ok((fields.clone(), &signed[..], [0xaa; 64])));
    }
    let mut other = [&signed[..], &[0; 64]].concat();
    assert!(Ed25519Authentication::parse(&other[1..]).is_err());
    other[7] = b'1';
    assert!(Ed25519Authentication::parse(&other).is_err());
}

#[test]
fn an_authenticate_cell_is_type_length_and_proof() {
    let octets = [0, 3, 0, 2, 8, 9, 0, 0];
    let wanted = Authenticate {
        method: AuthType::ED25519_SHA256_RFC5705,
        authentication: &[8, 9],
    };
    assert_eq!(Authenticate::parse(&octets), Ok(wanted));
    assert_eq!(body(|out| wanted.write(out)), octets[..6]);
    assert!(Authenticate::parse(&octets[..5]).is_err());
}

#[test]
fn netinfo_reads_as_specified_and_leaves_out_addresses_of_a_wrong_kind_or_length() {
    let octets = [
        &[0x60, 0, 0, 1][..],
        &[4, 4, 192, 0, 2, 1],
        &[4],
        &[4, 4, 198, 51, 100, 7],
        &[6, 4, 1, 2, 3, 4],
        &[0xf0, 2, 1, 2],
        &[
            6, 16, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
        ],
        &[0; 30],
    ]
    .concat();
    let netinfo = Netinfo::parse(&octets).unwrap();
    assert_eq!(netinfo.time, 0x6000_0001);
    assert_eq!(netinfo.other, Some([192, 0, 2, 1].into()));
    let mine = ["198.51.100.7", "2001:db8::1"].map(|text| text.parse::<IpAddr>().unwrap());
    assert_eq!(netinfo.mine, mine);
    assert!(Netinfo::parse(&octets[..20]).is_err());
    assert_eq!(format!("{netinfo:?}"), "Netinfo { .. }");
}

#[test]
fn netinfo_with_more_addresses_than_fit_still_fits_a_cell() {
    let netinfo = Netinfo {
        time: 0,
        other: Some([0xff; 16].into()),
        mine: vec![[0xee; 16].into(); 300],
    };
    let octets = body(|out| netinfo.write(out));
    assert!(octets.len() <= crate::cell::BODY, "{}", octets.len());
    assert_eq!(Netinfo::parse(&octets).unwrap().mine.len(), 26);
}

#[test]
fn padding_is_asked_for_and_refused_as_specified() {
    let start = PaddingNegotiate::Start {
        low: 1500,
        high: 9500,
    };
    assert_eq!(body(|out| start.write(out)), [0, 2, 0x05, 0xdc, 0x25, 0x1c]);
    assert_eq!(
        body(|out| PaddingNegotiate::Stop.write(out)),
        [0, 1, 0, 0, 0, 0]
    );
    for asked in [start, PaddingNegotiate::Stop] {
        let octets = body(|out| asked.write(out));
        assert_eq!(PaddingNegotiate::parse(&octets), Ok(asked));
    }
    for octets in [&[1, 2, 0, 0, 0, 0][..], &[0, 3, 0, 0, 0, 0], &[0, 2, 0]] {
        assert!(PaddingNegotiate::parse(octets).is_err(), "{octets:?}");
    }
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from)
    ]
}

proptest! {
    #[test]
    fn versions_are_read_back(versions in vec(any::<u16>(), 0..20)) {
        let versions = Versions(versions);
        prop_assert_eq!(Versions::parse(&body(|out| versions.write(out))), Ok(versions));
    }

    #[test]
    fn certificates_are_read_back(entries in vec(vec(any::<u8>(), 0..300), 0..20)) {
        let entries = entries.iter().zip(1..).map(|(octets, kind)| (CertType(kind), &octets[..]));
        let certs = Certs(entries.collect());
        let octets = body(|out| certs.write(out));
        prop_assert_eq!(Certs::parse(&octets), Ok(certs));
    }

    #[test]
    fn challenges_are_read_back(challenge: [u8; 32], methods in vec(any::<u16>(), 0..20)) {
        let challenge = AuthChallenge { challenge, methods: methods.into_iter().map(AuthType).collect() };
        prop_assert_eq!(AuthChallenge::parse(&body(|out| challenge.write(out))), Ok(challenge));
    }

    #[test]
    fn netinfo_is_read_back(time: u32, other in proptest::option::of(any_address()), mine in vec(any_address(), 0..26)) {
        let netinfo = Netinfo { time, other, mine };
        prop_assert_eq!(Netinfo::parse(&body(|out| netinfo.write(out))), Ok(netinfo));
    }

    #[test]
    fn any_octets_are_read_without_a_panic(octets: Vec<u8>) {
        drop((Versions::parse(&octets), Certs::parse(&octets), AuthChallenge::parse(&octets), Netinfo::parse(&octets)));
        drop((Authenticate::parse(&octets), Ed25519Authentication::parse(&octets), PaddingNegotiate::parse(&octets)));
    }
}
