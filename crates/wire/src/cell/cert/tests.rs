//! Certificates octet by octet, and round trips.

use proptest::{collection::vec, prelude::*};

use super::*;

/// A certificate with these extensions behind their number.
fn raw(extensions: &[u8]) -> Vec<u8> {
    let head = [&[1, 4, 0, 7, 0x47, 0xdc, 1][..], &[0xcc; 32]].concat();
    [&head[..], extensions, &[0x51; 64]].concat()
}

fn signed_with(key: u8) -> Vec<u8> {
    [&[0, 32, 4, 0][..], &[key; 32]].concat()
}

fn body(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

#[test]
fn kinds_of_certificates_and_keys_are_those_of_the_specification() {
    let kinds: Vec<_> = CertKind::KNOWN.iter().map(|(kind, _)| kind.0).collect();
    assert_eq!(kinds, [4, 5, 6, 8, 9, 10, 11]);
    assert_eq!(CertKind::NTOR_CROSS.0, 0x0a);
    let kinds: Vec<_> = KeyKind::KNOWN.iter().map(|(kind, _)| kind.0).collect();
    assert_eq!(kinds, [1, 2, 3]);
}

#[test]
fn an_ed25519_certificate_reads_as_specified() {
    let octets = raw(&[&[1][..], &signed_with(0xaa)].concat());
    let Signed {
        cert,
        signed,
        signature,
    } = Ed25519Cert::parse(&octets).unwrap();
    let wanted = Ed25519Cert {
        kind: CertKind::SIGNING,
        expires_hours: 477_148,
        key_kind: KeyKind::ED25519,
        key: [0xcc; 32],
        signed_with: Some([0xaa; 32]),
    };
    assert_eq!(cert, wanted);
    assert_eq!(cert.expires(), 1_717_732_800);
    assert_eq!(signed, &octets[..octets.len() - 64]);
    assert_eq!(signature, [0x51; 64]);
    assert_eq!(body(|out| cert.write(out)), signed);
    // As many octets as a certificate with its signing key has.
    assert_eq!(octets.len(), 140);
}

#[test]
fn a_certificate_without_extensions_names_no_signing_key() {
    let octets = raw(&[0]);
    let cert = Ed25519Cert::parse(&octets).unwrap().cert;
    assert_eq!((cert.signed_with, octets.len()), (None, 104));
    assert_eq!(body(|out| cert.write(out)), octets[..40]);
}

#[test]
fn an_unknown_extension_is_left_out_unless_it_affects_validation() {
    let known = signed_with(1);
    for (flags, fine) in [(0, true), (2, true), (1, false), (0xff, false)] {
        let unknown = [0, 3, 9, flags, 7, 7, 7];
        let octets = raw(&[&[2][..], &unknown, &known].concat());
        let parsed = Ed25519Cert::parse(&octets);
        let key = parsed.ok().and_then(|parsed| parsed.cert.signed_with);
        assert_eq!(key, fine.then_some([1; 32]), "{flags}");
    }
}

#[test]
fn a_certificate_that_is_cut_off_longer_or_doubtful_is_malformed() {
    let good = raw(&[&[1][..], &signed_with(1)].concat());
    for cut in 0..good.len() {
        assert!(Ed25519Cert::parse(&good[..cut]).is_err(), "{cut}");
    }
    let mut version = good.clone();
    version[0] = 2;
    let twice = [&[2][..], &signed_with(1), &signed_with(2)].concat();
    let long = [&[1][..], &[0, 33, 4, 0], &[1; 33]].concat();
    for bad in [
        version,
        [&good[..], &[0]].concat(),
        raw(&twice),
        raw(&long),
        raw(&[0, 0]),
        raw(&[2, 0, 0, 9, 0]),
    ] {
        let refused = Err(Malformed("Ed25519 certificate"));
        assert_eq!(Ed25519Cert::parse(&bad), refused);
    }
}

#[test]
fn a_cross_certificate_reads_as_specified() {
    let octets = [&[0xed; 32][..], &[0, 7, 0x47, 0xdc], &[128], &[0x51; 128]].concat();
    let parsed = RsaCrossCert::parse(&octets).unwrap();
    assert_eq!(parsed.cert.key, [0xed; 32]);
    assert_eq!(parsed.cert.expires(), 477_148 * 3600);
    assert_eq!(parsed.signed, &octets[..36]);
    assert_eq!(parsed.signature, [0x51; 128]);
    let again = body(|out| {
        parsed.cert.write(out);
        RsaCrossCert::write_signature(parsed.signature, out);
    });
    assert_eq!(again, octets);
    assert_eq!(CROSS_PREFIX, b"Tor TLS RSA/Ed25519 cross-certificate");
    let longer = [&octets[..], &[0]].concat();
    for bad in [&octets[..octets.len() - 1], &longer, &octets[..36], &[]] {
        let refused = Err(Malformed("RSA cross-certificate"));
        assert_eq!(RsaCrossCert::parse(bad), refused);
    }
}

proptest! {
    #[test]
    fn certificates_are_read_back(kind: u8, expires_hours: u32, key_kind: u8, key: [u8; 32], signed_with: Option<[u8; 32]>, signature in vec(any::<u8>(), 64)) {
        let cert = Ed25519Cert { kind: CertKind(kind), expires_hours, key_kind: KeyKind(key_kind), key, signed_with };
        let signed = body(|out| cert.write(out));
        let octets = [&signed[..], &signature].concat();
        prop_assert_eq!(Ed25519Cert::parse(&octets), Ok(Signed { cert, signed: &signed, signature: &signature }));
    }

    #[test]
    fn cross_certificates_are_read_back(key: [u8; 32], expires_hours: u32, signature in vec(any::<u8>(), 0..256)) {
        let cert = RsaCrossCert { key, expires_hours };
        let signed = body(|out| cert.write(out));
        let octets = body(|out| {
            out.extend(&signed);
            RsaCrossCert::write_signature(&signature, out);
        });
        prop_assert_eq!(RsaCrossCert::parse(&octets), Ok(Signed { cert, signed: &signed, signature: &signature }));
    }

    #[test]
    fn any_octets_are_read_without_a_panic(octets in vec(any::<u8>(), 0..200)) {
        drop((Ed25519Cert::parse(&octets), RsaCrossCert::parse(&octets)));
    }

    #[test]
    fn any_extensions_are_read_without_a_panic(extensions: Vec<u8>) {
        drop(Ed25519Cert::parse(&raw(&extensions)));
    }
}
