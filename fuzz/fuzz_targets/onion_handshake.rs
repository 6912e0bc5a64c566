//! What a stranger sends before anything is known of it: requests to build a circuit, certificates, an authentication. It is answered or refused.
#![no_main]

use std::sync::LazyLock;

use hoplite_crypto::onion::{
    OnionKey, OnionKeys,
    identity::{Initiator, Proof, RelayIdentity, check_authentication, verify_initiator, verify_responder},
    ntor, ntor3,
};
use hoplite_wire::cell::handshake::Certs;
use libfuzzer_sys::fuzz_target;

const NOW: u64 = 1_798_761_600;

static KEYS: LazyLock<OnionKeys> = LazyLock::new(|| {
    let key = |octet: u8| OnionKey::from_secret(&[octet; 32]).expect("a key");
    OnionKeys::new([1; 20], [2; 32], key(3), Some(key(4)))
});
static RELAY: LazyLock<RelayIdentity> = LazyLock::new(|| RelayIdentity::from_secret(&[5; 32], NOW).expect("an identity"));

fuzz_target!(|octets: &[u8]| {
    let Some((kind, octets)) = octets.split_first() else {
        return;
    };
    match kind % 4 {
        0 => requests(octets),
        1 => valid_head(octets),
        2 => certificates(octets),
        _ => authentication(octets),
    }
});

/// As they come.
fn requests(octets: &[u8]) {
    if let Ok((reply, _)) = ntor::server(&KEYS, octets) {
        assert_eq!(reply.len(), ntor::REPLY);
    }
    let _ = ntor3::server(&KEYS, octets, |message| Some(message.to_vec()));
}

/// With the names that are right: what is left is the client's key, the message and the proof.
fn valid_head(octets: &[u8]) {
    let relay = KEYS.published();
    let request = [&relay.rsa_id[..], &relay.onion, octets].concat();
    assert!(ntor::server(&KEYS, &request).is_err() || octets.len() == 32);
    let request = [&relay.ed25519[..], &relay.onion, octets].concat();
    assert!(ntor3::server(&KEYS, &request, |_| None).is_err());
    if let Ok((state, _)) = ntor::client(&relay) {
        assert!(state.finish(octets).is_err());
    }
    if let Ok((state, _)) = ntor3::client(&relay, &[]) {
        assert!(state.finish(octets).is_err());
    }
}

fn certificates(octets: &[u8]) {
    let Ok(certs) = Certs::parse(octets) else {
        return;
    };
    let _ = verify_responder(&certs, &[6; 32], None, NOW);
    let _ = verify_initiator(&certs, NOW);
}

fn authentication(octets: &[u8]) {
    let peer = RELAY.peer();
    let initiator = Initiator { peer, key: [7; 32] };
    let proof = Proof {
        responder_log: [1; 32],
        initiator_log: [2; 32],
        certificate: [3; 32],
        exporter: [4; 32],
    };
    assert!(check_authentication(octets, &initiator, &peer, &proof).is_err());
}
