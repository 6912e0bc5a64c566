//! What a stranger sends before anything is known of it: requests to build a circuit, certificates, an authentication. It is answered or refused.
#![no_main]

use std::sync::LazyLock;

use hoplite_crypto::onion::{
    OnionKey, OnionKeys,
    identity::{
        Initiator, Proof, RelayIdentity, check_authentication, verify_initiator, verify_responder,
    },
    ntor, ntor3,
};
use hoplite_wire::cell::handshake::Certs;
use libfuzzer_sys::fuzz_target;

const NOW: u64 = 1_798_761_600;

static KEYS: LazyLock<OnionKeys> = LazyLock::new(|| {
    let key = |byte: u8| OnionKey::from_secret(&[byte; 32]).expect("a key");
    OnionKeys::new([1; 20], [2; 32], key(3), Some(key(4)))
});
static RELAY: LazyLock<RelayIdentity> =
    LazyLock::new(|| RelayIdentity::from_secret(&[5; 32], NOW).expect("an identity"));

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    match kind % 4 {
        0 => requests(bytes),
        1 => valid_head(bytes),
        2 => certificates(bytes),
        _ => authentication(bytes),
    }
});

/// As they come.
fn requests(bytes: &[u8]) {
    if let Ok((reply, _)) = ntor::server(&KEYS, bytes) {
        assert_eq!(reply.len(), ntor::REPLY);
    }
    let _ = ntor3::server(&KEYS, bytes, |message| Some(message.to_vec()));
}

/// With the names that are right: what is left is the client's key, the message and the proof.
fn valid_head(bytes: &[u8]) {
    let relay = KEYS.published();
    let request = [&relay.rsa_id[..], &relay.onion, bytes].concat();
    assert!(ntor::server(&KEYS, &request).is_err() || bytes.len() == 32);
    let request = [&relay.ed25519[..], &relay.onion, bytes].concat();
    assert!(ntor3::server(&KEYS, &request, |_| None).is_err());
    if let Ok((state, _)) = ntor::client(&relay) {
        assert!(state.finish(bytes).is_err());
    }
    if let Ok((state, _)) = ntor3::client(&relay, &[]) {
        assert!(state.finish(bytes).is_err());
    }
}

fn certificates(bytes: &[u8]) {
    let Ok(certs) = Certs::parse(bytes) else {
        return;
    };
    let _ = verify_responder(&certs, &[6; 32], None, NOW);
    let _ = verify_initiator(&certs, NOW);
}

fn authentication(bytes: &[u8]) {
    let peer = RELAY.peer();
    let initiator = Initiator { peer, key: [7; 32] };
    let proof = Proof {
        responder_log: [1; 32],
        initiator_log: [2; 32],
        certificate: [3; 32],
        exporter: [4; 32],
    };
    assert!(check_authentication(bytes, &initiator, &peer, &proof).is_err());
}
