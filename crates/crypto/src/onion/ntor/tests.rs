//! The handshake against Arti's vector (tor-proto 0.47.0, crypto/handshake/ntor.rs, `testvec`; made with C tor's `ntor_ref.py`), and what is refused.

use super::*;
use crate::onion::{
    OnionKey,
    testing::{hex, octets},
};

const ID: &str = "69546f6c64596f7541626f75745374616972732e";
const ONION_SECRET: &str = "4820544f4c4420594f5520444f474954204b454550532048415050454e494e47";
const ONION: &str = "ccbc8541904d18af08753eae967874749e6149f873de937f57f8fd903a21c471";
const CLIENT_SECRET: &str = "706f6461792069207075742e2e2e2e2e2e2e2e4a454c4c59206f6e2074686973";
const CLIENT: &str = "e65dfdbef8b2635837fe2cebc086a8096eae3213e6830dc407516083d412b078";
const SERVER_SECRET: &str = "70686520737175697272656c2e2e2e2e2e2e2e2e686173206869732067616d65";
const REPLY_VECTOR: &str = "390480a14362761d6aec1fea840f6e9e928fb2adb7b25c670be1045e35133a37
    1cbdf68b89923e1f85e8e18ee6e805ea333fe4849c790ffd2670bd80fec95cc8";
const KEYS: &str = "0c62dee7f48893370d0ef896758d35729867beef1a5121df80e00f79ed349af3
    9b51cae125719182f19d932a667dae1afbf2e336e6910e7822223e763afad0a13342157969dc6b79";

fn pair(secret: &str) -> KeyPair {
    KeyPair::from_octets(&octets(secret)).expect("a key")
}

fn keys() -> OnionKeys {
    let current = OnionKey::from_secret(&octets(ONION_SECRET)).expect("a key");
    OnionKeys::new(octets(ID), [7; 32], current, None)
}

fn expanded(seed: &Seed) -> [u8; 72] {
    let mut out = [0; 72];
    seed.fill(&mut out).expect("octets");
    out
}

#[test]
fn the_published_handshake_comes_out_octet_for_octet() {
    let relay = keys().published();
    assert_eq!(relay.onion, octets(ONION));
    let (state, request) = client_with(&relay, pair(CLIENT_SECRET));
    assert_eq!(request, hex(&[ID, ONION, CLIENT].concat()));
    let server = server_with(&keys(), &request, || Ok(pair(SERVER_SECRET)));
    let (reply, theirs) = server.expect("answered");
    assert_eq!(reply, hex(REPLY_VECTOR));
    let ours = state.finish(&reply).expect("authentic");
    assert_eq!(expanded(&ours), octets(KEYS));
    assert_eq!(expanded(&theirs), octets(KEYS));
}

#[test]
fn a_fresh_handshake_agrees_and_no_two_are_alike() {
    let seeds = [(); 2].map(|()| {
        let (state, request) = client(&keys().published()).expect("begun");
        let (reply, theirs) = server(&keys(), &request).expect("answered");
        let ours = expanded(&state.finish(&reply).expect("authentic"));
        assert_eq!(ours, expanded(&theirs));
        ours
    });
    assert_ne!(seeds[0], seeds[1]);
}

#[test]
fn any_octet_of_the_reply_that_changed_is_noticed() {
    for at in 0..REPLY {
        let (state, request) = client(&keys().published()).expect("begun");
        let (mut reply, _) = server(&keys(), &request).expect("answered");
        reply[at] ^= 1;
        assert_eq!(state.finish(&reply).err(), Some(Refused::Unauthentic));
    }
}

#[test]
fn a_reply_of_another_length_is_malformed() {
    for length in [0, REPLY - 1, REPLY + 1] {
        let (state, _) = client(&keys().published()).expect("begun");
        let refused = state.finish(&vec![9; length]).err();
        assert_eq!(refused, Some(Refused::Malformed));
    }
}

#[test]
fn a_request_for_another_relay_or_key_or_of_another_length_is_refused() {
    let (_, request) = client(&keys().published()).expect("begun");
    let changed = |at: usize| {
        let mut request = request.clone();
        request[at] ^= 1;
        server(&keys(), &request).err()
    };
    assert_eq!(changed(0), Some(Refused::WrongRelay));
    assert_eq!(changed(20), Some(Refused::UnknownKey));
    let short = server(&keys(), &request[..83]).err();
    assert_eq!(short, Some(Refused::Malformed));
    let long = [&request[..], &[0]].concat();
    assert_eq!(server(&keys(), &long).err(), Some(Refused::Malformed));
}

#[test]
fn keys_of_small_order_give_no_secret_at_either_end() {
    for point in crate::onion::x25519::SMALL_ORDER {
        let point: [u8; 32] = octets(point);
        let (_, mut request) = client(&keys().published()).expect("begun");
        request[52..].copy_from_slice(&point);
        assert_eq!(server(&keys(), &request).err(), Some(Refused::BadKey));

        let (state, request) = client(&keys().published()).expect("begun");
        let (mut reply, _) = server(&keys(), &request).expect("answered");
        reply[..32].copy_from_slice(&point);
        assert_eq!(state.finish(&reply).err(), Some(Refused::BadKey));
    }
}

#[test]
fn nothing_secret_is_printed() {
    let (state, request) = client(&keys().published()).expect("begun");
    let (_, seed) = server(&keys(), &request).expect("answered");
    let shown = format!("{state:?} {seed:?} {:?} {:?}", keys(), keys().published());
    assert!(!shown.bytes().any(|c| c.is_ascii_digit()), "{shown}");
}
