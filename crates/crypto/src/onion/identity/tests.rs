use proptest::prelude::*;

use super::{
    super::testing::{bytes, hex},
    *,
};

/// The vectors' certificates are of today then: 1 January 2027.
const NOW: u64 = 1_798_761_600;

const TLS: [u8; 32] = [7; 32];

fn relay() -> RelayIdentity {
    let secret = RelayIdentity::fresh_secret().expect("random");
    RelayIdentity::from_secret(&secret, NOW).expect("an identity")
}

fn view(certs: &Certificates) -> Certs<'_> {
    let certs = certs.iter().map(|(kind, bytes)| (*kind, &bytes[..]));
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
    let certs = relay.responder_certs(&TLS, NOW);
    let kinds: Vec<_> = certs.iter().map(|(kind, _)| kind.0).collect();
    assert_eq!(kinds, [4, 5]);
    let expected = relay.peer().ed25519;
    let peer = verify_responder(&view(&certs), &TLS, Some(&expected), NOW);
    assert!(peer == Ok(relay.peer()));

    let certs = relay.initiator_certs(NOW);
    let kinds: Vec<_> = certs.iter().map(|(kind, _)| kind.0).collect();
    assert_eq!(kinds, [4, 6]);
    let initiator = verify_initiator(&view(&certs), NOW).expect("verified");
    assert!(initiator.peer == relay.peer());
    assert_eq!(initiator.key, relay.authentication.public());
}

#[test]
fn another_tls_certificate_or_another_relay_than_expected_is_told_apart() {
    let relay = relay();
    let certs = relay.responder_certs(&TLS, NOW);
    let other = verify_responder(&view(&certs), &[8; 32], None, NOW);
    assert_eq!(other.err(), Some(Why::OtherCertificate));
    let other = verify_responder(&view(&certs), &TLS, Some(&[9; 32]), NOW);
    assert_eq!(other.err(), Some(Why::OtherIdentity));
}

#[test]
fn any_byte_of_a_certificate_that_changed_is_noticed() {
    let relay = relay();
    let certs = relay.responder_certs(&TLS, NOW);
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
    let mut certs = one.responder_certs(&TLS, NOW);
    let mut others = other.responder_certs(&TLS, NOW);
    let kind = CertType::ED25519_LINK;
    *of(&mut certs, kind) = std::mem::take(of(&mut others, kind));
    assert_eq!(responder(&certs, NOW).err(), Some(Why::Forged(kind)));
}

#[test]
fn what_certifies_one_use_does_not_serve_another() {
    let relay = relay();
    let mut certs = relay.initiator_certs(NOW);
    assert_eq!(
        responder(&certs, NOW).err(),
        Some(Why::Missing(CertType::ED25519_LINK))
    );
    certs[1].0 = CertType::ED25519_LINK;
    let wrong = Some(Why::WrongUse(CertType::ED25519_LINK));
    assert_eq!(responder(&certs, NOW).err(), wrong);

    let mut certs = relay.responder_certs(&TLS, NOW);
    certs.remove(0);
    let missing = Some(Why::Missing(CertType::ED25519_SIGNING));
    assert_eq!(responder(&certs, NOW).err(), missing);
}

#[test]
fn certificates_expire_and_a_renewed_identity_is_the_same_relay() {
    let relay = relay();
    let certs = relay.responder_certs(&TLS, NOW);
    assert!(responder(&certs, NOW + LINK).is_ok());
    let expired = Some(Why::Expired(CertType::ED25519_LINK));
    assert_eq!(responder(&certs, NOW + LINK + HOUR).err(), expired);

    let later = NOW + SIGNING + HOUR;
    let certs = relay.responder_certs(&TLS, later);
    let expired = Some(Why::Expired(CertType::ED25519_SIGNING));
    assert_eq!(responder(&certs, later).err(), expired);
    assert!(!relay.is_due(NOW) && relay.is_due(NOW + SIGNING / 2));
    let relay = relay.renewed(later).expect("renewed");
    let certs = relay.responder_certs(&TLS, later);
    assert!(responder(&certs, later) == Ok(relay.peer()));
}

#[test]
fn a_signing_key_that_names_no_identity_or_one_of_small_order_proves_nothing() {
    let relay = relay();
    let mut certs = relay.responder_certs(&TLS, NOW);
    let mut nameless = Ed25519Cert::parse(&certs[0].1).expect("parsed").cert;
    nameless.signed_with = None;
    let Master::Here(master) = &relay.master else {
        unreachable!("its secret is here")
    };
    certs[0].1 = sign(&nameless, master);
    let forged = Some(Why::Forged(CertType::ED25519_SIGNING));
    assert_eq!(responder(&certs, NOW).err(), forged);

    let mut neutral = [0; 32];
    neutral[0] = 1;
    nameless.signed_with = Some(neutral);
    let mut bytes = Vec::new();
    nameless.write(&mut bytes);
    bytes.extend_from_slice(&neutral);
    bytes.extend_from_slice(&[0; 32]);
    certs[0].1 = bytes;
    assert_eq!(responder(&certs, NOW).err(), forged);
}

/// C tor before 0.4.5.1 says 01 for every certified key.
#[test]
fn the_old_number_for_a_tls_certificate_is_accepted() {
    let relay = relay();
    let mut certs = relay.responder_certs(&TLS, NOW);
    let mut link = Ed25519Cert::parse(&certs[1].1).expect("parsed").cert;
    assert_eq!(link.key_kind, KeyKind::SHA256_OF_X509);
    link.key_kind = KeyKind::ED25519;
    certs[1].1 = sign(&link, &relay.signing);
    assert!(responder(&certs, NOW).is_ok());
    link.key_kind = KeyKind::SHA256_OF_RSA;
    certs[1].1 = sign(&link, &relay.signing);
    let wrong = Some(Why::WrongUse(CertType::ED25519_LINK));
    assert_eq!(responder(&certs, NOW).err(), wrong);
}

#[test]
fn nothing_of_a_relay_is_printed() {
    let relay = relay();
    let certs = relay.initiator_certs(NOW);
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
        let certs: Certificates = certs.into_iter().map(|(kind, bytes)| (CertType(kind), bytes)).collect();
        prop_assert!(responder(&certs, NOW).is_err());
        prop_assert!(verify_initiator(&view(&certs), NOW).is_err());
    }
}

// AUTHENTICATE, made at one end and checked at the other.

struct Channel {
    initiator: RelayIdentity,
    responder: RelayIdentity,
    proof: Proof,
}

fn channel() -> Channel {
    Channel {
        initiator: relay(),
        responder: relay(),
        proof: Proof {
            responder_log: [1; 32],
            initiator_log: [2; 32],
            certificate: TLS,
            exporter: [4; 32],
        },
    }
}

impl Channel {
    fn shown(&self) -> Initiator {
        let certs = self.initiator.initiator_certs(NOW);
        verify_initiator(&view(&certs), NOW).expect("verified")
    }

    fn authentication(&self) -> Vec<u8> {
        let made = self
            .initiator
            .authenticate(&self.responder.peer(), &self.proof);
        made.expect("made")
    }

    fn check(&self, authentication: &[u8]) -> Result<(), Why> {
        let us = self.responder.peer();
        check_authentication(authentication, &self.shown(), &us, &self.proof)
    }
}

#[test]
fn an_initiator_is_believed_on_its_own_connection() {
    let channel = channel();
    let authentication = channel.authentication();
    assert_eq!(authentication.len(), 352);
    assert!(authentication.starts_with(b"AUTH0003"));
    assert_eq!(channel.check(&authentication), Ok(()));
    assert_ne!(channel.authentication(), authentication, "random bytes");
}

#[test]
fn it_proves_nothing_on_another_connection() {
    let channel = channel();
    let authentication = channel.authentication();
    let changes: [fn(&mut Proof); 4] = [
        |proof| proof.responder_log[0] ^= 1,
        |proof| proof.initiator_log[31] ^= 1,
        |proof| proof.certificate[5] ^= 1,
        |proof| proof.exporter[9] ^= 1,
    ];
    for change in changes {
        let mut proof = channel.proof.clone();
        change(&mut proof);
        let us = channel.responder.peer();
        let checked = check_authentication(&authentication, &channel.shown(), &us, &proof);
        assert_eq!(checked, Err(Why::OtherConnection));
    }
}

#[test]
fn it_cannot_be_passed_on_to_another_relay_nor_by_another() {
    let channel = channel();
    let authentication = channel.authentication();
    let proof = &channel.proof;
    let to_another =
        check_authentication(&authentication, &channel.shown(), &relay().peer(), proof);
    assert_eq!(to_another, Err(Why::OtherConnection));
    let thief = relay();
    let mut shown = channel.shown();
    shown.peer = thief.peer();
    let us = channel.responder.peer();
    let by_another = check_authentication(&authentication, &shown, &us, proof);
    assert_eq!(by_another, Err(Why::OtherConnection));
    let mut shown = channel.shown();
    shown.key = thief.authentication.public();
    let by_another = check_authentication(&authentication, &shown, &us, proof);
    assert_eq!(by_another, Err(Why::NotAuthentic));
}

#[test]
fn any_byte_that_changed_is_noticed_and_so_is_what_is_cut_off() {
    let channel = channel();
    let authentication = channel.authentication();
    for at in 0..authentication.len() {
        let mut changed = authentication.clone();
        changed[at] ^= 1;
        assert!(channel.check(&changed).is_err(), "{at}");
        assert!(channel.check(&authentication[..at]).is_err(), "{at}");
    }
}

/// "The server MUST ignore any extra bytes in the signed data after the RAND field."
#[test]
fn what_an_initiator_signed_beyond_the_fields_is_ignored() {
    let channel = channel();
    let authentication = channel.authentication();
    let mut longer = authentication[..288].to_vec();
    longer.extend_from_slice(b"later");
    let key = &channel.initiator.authentication;
    let signature = key.sign(&longer);
    longer.extend_from_slice(&signature);
    assert_eq!(channel.check(&longer), Ok(()));
}

// The RSA identity, against certificates that OpenSSL 3.0 made: `openssl req -x509 -sha256` with a key of 1,024 bits, and
// `openssl pkeyutl -sign` over the hash of the cross-certificate for the key of RFC 8032's test 1, valid until 2089.

const SECRET: &str = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";

const CERTIFICATE: &str = include_str!("tests/rsa.cert.hex");

const CROSS: &str = include_str!("tests/rsa.cross.hex");

/// Of the key, by `openssl rsa -RSAPublicKey_out`.
const ID: &str = "d443db60b81bb40aafec801a02ea060a637bbdf3";

const SHA256_ID: &str = "6f5b65403a4dd9c6086351d84b42f17342f3c9a840b8ff4216c9158a669f9807";

fn relay_with_rsa() -> RelayIdentity {
    let relay = RelayIdentity::from_secret(&bytes(SECRET), NOW).expect("an identity");
    relay
        .with_rsa(&hex(CERTIFICATE), &hex(CROSS), NOW)
        .expect("accepted")
}

#[test]
fn a_relay_with_an_rsa_identity_shows_it_and_is_known_by_it() {
    let relay = relay_with_rsa().renewed(NOW).expect("renewed");
    let certs = relay.responder_certs(&TLS, NOW);
    let kinds: Vec<_> = certs.iter().map(|(kind, _)| kind.0).collect();
    assert_eq!(kinds, [2, 4, 5, 7]);
    let peer = responder(&certs, NOW).expect("verified");
    let rsa = peer.rsa.expect("an RSA identity");
    assert_eq!((rsa.id, rsa.sha256), (bytes(ID), bytes(SHA256_ID)));
    assert!(peer == relay.peer());
    assert_eq!(peer.rsa_id(), rsa.id);
}

/// C tor 0.4.9 answers "Some field in the AUTHENTICATE cell body was not as expected" to what tor-spec says.
#[test]
fn the_exporter_is_asked_about_the_rsa_identity_where_there_is_one() {
    let (with, without) = (relay_with_rsa().peer(), relay().peer());
    assert_eq!(with.exporter_context(), bytes(SHA256_ID));
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
        let mut certs = relay.initiator_certs(NOW);
        certs.retain(|(this, _)| *this != kind);
        let refused = verify_initiator(&view(&certs), NOW).err();
        assert_eq!(refused, Some(Why::Missing(kind)));
    }
}

/// Of what is signed, and of the signatures; between them X.509 names the algorithm again.
#[test]
fn any_byte_that_changed_is_noticed() {
    let relay = RelayIdentity::from_secret(&bytes(SECRET), NOW).expect("an identity");
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

#[test]
fn an_rsa_identity_of_ones_own_key_is_what_peers_believe_and_is_renewed() {
    let key = Arc::new(SecretKey::generate().expect("made"));
    let mut relay = relay()
        .with_rsa_key(Arc::clone(&key), NOW)
        .expect("certified");
    let rsa = relay.peer().rsa.expect("an RSA identity");
    assert_eq!(rsa.id, key.public().id());
    let year = NOW + 365 * DAY;
    for now in [NOW, year] {
        let peer = responder(&relay.responder_certs(&TLS, now), now).expect("believed");
        assert!(peer == relay.peer() && peer.rsa == Some(rsa));
        // Of a peer whose clock is behind.
        responder(&relay.responder_certs(&TLS, now), now - DAY / 2).expect("believed");
        relay = relay.renewed(year).expect("renewed");
    }
}

#[test]
fn an_rsa_identity_vouches_for_no_other_relay() {
    let key = Arc::new(SecretKey::generate().expect("made"));
    let (one, other) = (relay(), relay());
    let certified = one.with_rsa_key(key, NOW).expect("certified");
    let mut certs = other.responder_certs(&TLS, NOW);
    let theirs = certified.responder_certs(&TLS, NOW);
    let rsa = [CertType::RSA_IDENTITY, CertType::RSA_CROSS];
    certs.extend(theirs.into_iter().filter(|(kind, _)| rsa.contains(kind)));
    assert_eq!(responder(&certs, NOW).err(), Some(Why::OtherIdentity));
}
