//! Two relays that prove to each other who they are, and all that must not pass as such a proof.

use super::*;
use crate::onion::testing::{hex, octets};
use hoplite_wire::cell::handshake::Certs;
use proptest::prelude::*;

mod channel;
mod legacy;

/// The vectors' certificates are of today then: 1 January 2027.
const NOW: u64 = 1_798_761_600;
const TLS: [u8; 32] = [7; 32];

fn relay() -> RelayIdentity {
    let secret = RelayIdentity::fresh_secret().expect("random");
    RelayIdentity::from_secret(&secret, NOW).expect("an identity")
}

fn view(certs: &Certificates) -> Certs<'_> {
    let certs = certs.iter().map(|(kind, octets)| (*kind, &octets[..]));
    Certs(certs.collect())
}

fn responder(certs: &Certificates, now: u64) -> Result<PeerId, Why> {
    verify_responder(&view(certs), &TLS, None, now)
}

/// The certificate of one type, to be changed.
fn of(certs: &mut Certificates, kind: CertType) -> &mut Vec<u8> {
    let found = certs.iter_mut().find(|(this, _)| *this == kind);
    &mut found.expect("a certificate").1
}

#[test]
fn a_responder_is_known_by_its_certificates_and_an_initiator_shows_its_key() {
    let relay = relay();
    let certs = relay.responder_certs(&TLS, NOW).expect("certificates");
    let kinds: Vec<_> = certs.iter().map(|(kind, _)| kind.0).collect();
    assert_eq!(kinds, [4, 5]);
    let expected = relay.peer().ed25519;
    let peer = verify_responder(&view(&certs), &TLS, Some(&expected), NOW);
    assert!(peer == Ok(relay.peer()));

    let certs = relay.initiator_certs(NOW).expect("certificates");
    let kinds: Vec<_> = certs.iter().map(|(kind, _)| kind.0).collect();
    assert_eq!(kinds, [4, 6]);
    let initiator = verify_initiator(&view(&certs), NOW).expect("verified");
    assert!(initiator.peer == relay.peer());
    assert_eq!(initiator.key, *relay.authentication.public());
}

#[test]
fn another_tls_certificate_or_another_relay_than_expected_is_told_apart() {
    let relay = relay();
    let certs = relay.responder_certs(&TLS, NOW).expect("certificates");
    let other = verify_responder(&view(&certs), &[8; 32], None, NOW);
    assert_eq!(other.err(), Some(Why::OtherCertificate));
    let other = verify_responder(&view(&certs), &TLS, Some(&[9; 32]), NOW);
    assert_eq!(other.err(), Some(Why::OtherIdentity));
}

#[test]
fn any_octet_of_a_certificate_that_changed_is_noticed() {
    let relay = relay();
    let certs = relay.responder_certs(&TLS, NOW).expect("certificates");
    for which in 0..certs.len() {
        for at in 0..certs[which].1.len() {
            let mut certs = certs.clone();
            certs[which].1[at] ^= 1;
            assert!(responder(&certs, NOW).is_err(), "{which}, {at}");
        }
    }
}

#[test]
fn certificates_of_two_relays_do_not_go_together() {
    let (one, other) = (relay(), relay());
    let mut certs = one.responder_certs(&TLS, NOW).expect("certificates");
    let mut others = other.responder_certs(&TLS, NOW).expect("certificates");
    let kind = CertType::ED25519_LINK;
    *of(&mut certs, kind) = std::mem::take(of(&mut others, kind));
    assert_eq!(responder(&certs, NOW).err(), Some(Why::Forged(kind)));
}

#[test]
fn what_certifies_one_use_does_not_serve_another() {
    let relay = relay();
    let mut certs = relay.initiator_certs(NOW).expect("certificates");
    assert_eq!(
        responder(&certs, NOW).err(),
        Some(Why::Missing(CertType::ED25519_LINK))
    );
    certs[1].0 = CertType::ED25519_LINK;
    let wrong = Some(Why::WrongUse(CertType::ED25519_LINK));
    assert_eq!(responder(&certs, NOW).err(), wrong);

    let mut certs = relay.responder_certs(&TLS, NOW).expect("certificates");
    certs.remove(0);
    let missing = Some(Why::Missing(CertType::ED25519_SIGNING));
    assert_eq!(responder(&certs, NOW).err(), missing);
}

#[test]
fn certificates_expire_and_a_renewed_identity_is_the_same_relay() {
    let relay = relay();
    let certs = relay.responder_certs(&TLS, NOW).expect("certificates");
    assert!(responder(&certs, NOW + LINK).is_ok());
    let expired = Some(Why::Expired(CertType::ED25519_LINK));
    assert_eq!(responder(&certs, NOW + LINK + HOUR).err(), expired);

    let later = NOW + SIGNING + HOUR;
    let certs = relay.responder_certs(&TLS, later).expect("certificates");
    let expired = Some(Why::Expired(CertType::ED25519_SIGNING));
    assert_eq!(responder(&certs, later).err(), expired);
    assert!(!relay.is_due(NOW) && relay.is_due(NOW + SIGNING / 2));
    let relay = relay.renewed(later).expect("renewed");
    let certs = relay.responder_certs(&TLS, later).expect("certificates");
    assert!(responder(&certs, later) == Ok(relay.peer()));
}

#[test]
fn a_signing_key_that_names_no_identity_or_one_of_small_order_proves_nothing() {
    let relay = relay();
    let mut certs = relay.responder_certs(&TLS, NOW).expect("certificates");
    let mut nameless = Ed25519Cert::parse(&certs[0].1).expect("parsed").cert;
    nameless.signed_with = None;
    certs[0].1 = sign(&nameless, &relay.master).expect("signed");
    let forged = Some(Why::Forged(CertType::ED25519_SIGNING));
    assert_eq!(responder(&certs, NOW).err(), forged);

    let mut neutral = [0; 32];
    neutral[0] = 1;
    nameless.signed_with = Some(neutral);
    let mut octets = Vec::new();
    nameless.write(&mut octets);
    octets.extend_from_slice(&neutral);
    octets.extend_from_slice(&[0; 32]);
    certs[0].1 = octets;
    assert_eq!(responder(&certs, NOW).err(), forged);
}

/// C tor before 0.4.5.1 says 01 for every certified key.
#[test]
fn the_old_number_for_a_tls_certificate_is_accepted() {
    let relay = relay();
    let mut certs = relay.responder_certs(&TLS, NOW).expect("certificates");
    let mut link = Ed25519Cert::parse(&certs[1].1).expect("parsed").cert;
    assert_eq!(link.key_kind, KeyKind::SHA256_OF_X509);
    link.key_kind = KeyKind::ED25519;
    certs[1].1 = sign(&link, &relay.signing).expect("signed");
    assert!(responder(&certs, NOW).is_ok());
    link.key_kind = KeyKind::SHA256_OF_RSA;
    certs[1].1 = sign(&link, &relay.signing).expect("signed");
    let wrong = Some(Why::WrongUse(CertType::ED25519_LINK));
    assert_eq!(responder(&certs, NOW).err(), wrong);
}

#[test]
fn a_document_is_signed_with_the_identity() {
    let relay = relay();
    let signature = relay.sign(b"descriptor").expect("signed");
    let key = relay.peer().ed25519;
    assert!(crate::onion::ed25519::verify(
        &key,
        b"descriptor",
        &signature
    ));
}

#[test]
fn nothing_of_a_relay_is_printed() {
    let relay = relay();
    let certs = relay.initiator_certs(NOW).expect("certificates");
    let initiator = verify_initiator(&view(&certs), NOW).expect("verified");
    let shown = format!("{relay:?} {:?} {initiator:?}", relay.peer());
    assert_eq!(
        shown,
        "RelayIdentity(hidden) PeerId(hidden) Initiator(hidden)"
    );
}

proptest! {
    #[test]
    fn any_certificates_are_refused_without_a_panic(
        certs in prop::collection::vec((0u8..9, prop::collection::vec(any::<u8>(), 0..200)), 0..6),
    ) {
        let certs: Certificates = certs.into_iter().map(|(kind, octets)| (CertType(kind), octets)).collect();
        prop_assert!(responder(&certs, NOW).is_err());
        prop_assert!(verify_initiator(&view(&certs), NOW).is_err());
    }
}
