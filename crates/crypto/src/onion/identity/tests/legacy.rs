//! The RSA identity, against certificates that OpenSSL 3.0 made: `openssl req -x509 -sha256` with a key of 1,024 bits, and
//! `openssl pkeyutl -sign` over the hash of the cross-certificate for the key of RFC 8032's test 1, valid until 2089.

use super::*;

const SECRET: &str = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
const CERTIFICATE: &str = include_str!("rsa.cert.hex");
const CROSS: &str = include_str!("rsa.cross.hex");
/// Of the key, by `openssl rsa -RSAPublicKey_out`.
const ID: &str = "d443db60b81bb40aafec801a02ea060a637bbdf3";
const SHA256_ID: &str = "6f5b65403a4dd9c6086351d84b42f17342f3c9a840b8ff4216c9158a669f9807";

fn relay_with_rsa() -> RelayIdentity {
    let relay = RelayIdentity::from_secret(&octets(SECRET), NOW).expect("an identity");
    relay
        .with_rsa(&hex(CERTIFICATE), &hex(CROSS), NOW)
        .expect("accepted")
}

#[test]
fn a_relay_with_an_rsa_identity_shows_it_and_is_known_by_it() {
    let relay = relay_with_rsa().renewed(NOW).expect("renewed");
    let certs = relay.responder_certs(&TLS, NOW).expect("certificates");
    let kinds: Vec<_> = certs.iter().map(|(kind, _)| kind.0).collect();
    assert_eq!(kinds, [2, 4, 5, 7]);
    let peer = responder(&certs, NOW).expect("verified");
    let rsa = peer.rsa.expect("an RSA identity");
    assert_eq!((rsa.id, rsa.sha256), (octets(ID), octets(SHA256_ID)));
    assert!(peer == relay.peer());
    assert_eq!(peer.rsa_id(), rsa.id);
}

/// C tor 0.4.9 answers "Some field in the AUTHENTICATE cell body was not as expected" to what tor-spec says.
#[test]
fn the_exporter_is_asked_about_the_rsa_identity_where_there_is_one() {
    let (with, without) = (relay_with_rsa().peer(), relay().peer());
    assert_eq!(with.exporter_context(), octets(SHA256_ID));
    assert_eq!(without.exporter_context(), without.ed25519);
}

#[test]
fn a_relay_without_one_has_a_stand_in_that_differs_from_others() {
    let (one, other) = (relay().peer(), relay().peer());
    assert_eq!(one.rsa_id(), stand_in(&one.ed25519));
    assert_ne!(one.rsa_id(), other.rsa_id());
}

#[test]
fn one_certificate_without_the_other_is_refused() {
    let relay = relay_with_rsa();
    for kind in [CertType::RSA_IDENTITY, CertType::RSA_CROSS] {
        let mut certs = relay.initiator_certs(NOW).expect("certificates");
        certs.retain(|(this, _)| *this != kind);
        let refused = verify_initiator(&view(&certs), NOW).err();
        assert_eq!(refused, Some(Why::Missing(kind)));
    }
}

/// Of what is signed, and of the signatures; between them X.509 names the algorithm again.
#[test]
fn any_octet_that_changed_is_noticed() {
    let relay = RelayIdentity::from_secret(&octets(SECRET), NOW).expect("an identity");
    let (certificate, cross) = (hex(CERTIFICATE), hex(CROSS));
    let signature = certificate.len() - 128;
    for at in (0..387).chain(signature..certificate.len()) {
        let mut certificate = certificate.clone();
        certificate[at] ^= 1;
        assert!(relay.with_rsa(&certificate, &cross, NOW).is_err(), "{at}");
    }
    for at in 0..cross.len() {
        let mut cross = cross.clone();
        cross[at] ^= 1;
        assert!(relay.with_rsa(&certificate, &cross, NOW).is_err(), "{at}");
    }
}

#[test]
fn it_vouches_for_one_ed25519_identity_and_for_its_time() {
    let refused = relay().with_rsa(&hex(CERTIFICATE), &hex(CROSS), NOW).err();
    assert_eq!(refused, Some(Why::OtherIdentity));
    let relay = relay_with_rsa();
    let [before, after] = [1_500_000_000, 0x0010_0000 * HOUR + 1];
    let early = relay.with_rsa(&hex(CERTIFICATE), &hex(CROSS), before).err();
    assert_eq!(early, Some(Why::Expired(CertType::RSA_IDENTITY)));
    let late = relay.with_rsa(&hex(CERTIFICATE), &hex(CROSS), after).err();
    assert_eq!(late, Some(Why::Expired(CertType::RSA_CROSS)));
}
