//! AUTHENTICATE, made at one end and checked at the other.

use super::*;

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
        let certs = self.initiator.initiator_certs(NOW).expect("certificates");
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
    assert_ne!(channel.authentication(), authentication, "random octets");
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
    shown.key = *thief.authentication.public();
    let by_another = check_authentication(&authentication, &shown, &us, proof);
    assert_eq!(by_another, Err(Why::NotAuthentic));
}

#[test]
fn any_octet_that_changed_is_noticed_and_so_is_what_is_cut_off() {
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
    let signature = key.sign(&longer).expect("signed");
    longer.extend_from_slice(&signature);
    assert_eq!(channel.check(&longer), Ok(()));
}
