//! The handshake against the vector of proposal 332 ("X.2: Test vectors"), and what is refused.

use super::*;
use crate::onion::{
    OnionKey,
    testing::{hex, octets},
};

const ID: &str = "9fad2af287ef942632833d21f946c6260c33fae6172b60006e86e4a6911753a2";
const ONION_SECRET: &str = "4051daa5921cfa2a1c27b08451324919538e79e788a81b38cbed097a5dff454a";
const CLIENT_SECRET: &str = "b825a3719147bcbe5fb1d0b0fcb9c09e51948048e2e3283d2ab7b45b5ef38b49";
const SERVER_SECRET: &str = "4865a5b7689dafd978f529291c7171bc159be076b92186405d13220b80e2a053";
const VERIFICATION_VECTOR: &[u8] = b"xyzzy";
const CLIENT_MESSAGE: &[u8] = b"hello world";
const SERVER_MESSAGE: &[u8] = b"Hola Mundo";
const REQUEST_VECTOR: &str = "9fad2af287ef942632833d21f946c6260c33fae6172b60006e86e4a6911753a2
    f8307a2bc1870b00b828bb74dbb8fd88e632a6375ab3bcd1ae706aaa8b6cdd1d
    252fe9ae91264c91d4ecb8501f79d0387e34ad8ca0f7c995184f7d11d5da4f46
    3bebd9151fd3b47c180abc
    9e044d53565f04d82bbb3bebed3d06cea65db8be9c72b68cd461942088502f67";
const REPLY_VECTOR: &str = "4bf4814326fdab45ad5184f5518bd7fae25dc59374062698201a50a22954246d
    2fc5f8773ca824542bc6cf6f57c7c29bbf4e5476461ab130c5b18ab0a9127665
    1202c3e1e87c0d32054c";
const KEYSTREAM: &str = "9c19b631fd94ed86a817e01f6c80b0743a43f5faebd39cfaa8b00fa8bcc65c3b
    feaa403d91acbd68a821bf6ee8504602b094a254392a07737d5662768c7a9fb1
    b2814bb34780eaee6e867c773e28c212ead563e98a1cd5d5b4576f5ee61c59bd
    e025ff2851bb19b721421694f263818e3531e43a9e4e3e2c661e2ad547d8984c
    aa28ebecd3e4525452299be26b9185a20a90ce1eac20a91f2832d731b54502b0
    9749b5a2a2949292f8cfcbeffb790c7790ed935a9d251e7e336148ea83b063a5
    618fcff674a44581585fd22077ca0e52c59a24347a38d1a1ceebddbf238541f2
    26b8f88d0fb9c07a1bcd2ea764bbbb5dacdaf5312a14c0b9e4f06309b0333b4a";

fn pair(secret: &str) -> KeyPair {
    KeyPair::from_octets(&octets(secret)).expect("a key")
}

fn keys() -> OnionKeys {
    let current = OnionKey::from_secret(&octets(ONION_SECRET)).expect("a key");
    OnionKeys::new([7; 20], octets(ID), current, None)
}

fn expanded(seed: &Seed) -> [u8; 256] {
    let mut out = [0; 256];
    seed.fill(&mut out).expect("octets");
    out
}

fn greet(message: &[u8]) -> Option<Vec<u8>> {
    (message == CLIENT_MESSAGE).then(|| SERVER_MESSAGE.to_vec())
}

#[test]
fn the_published_handshake_comes_out_octet_for_octet() {
    let relay = keys().published();
    let own = pair(CLIENT_SECRET);
    let begun = client_with(&relay, CLIENT_MESSAGE, VERIFICATION_VECTOR, own);
    let (state, request) = begun.expect("begun");
    assert_eq!(request, hex(REQUEST_VECTOR));
    let own = || Ok(pair(SERVER_SECRET));
    let answered = server_with(&keys(), &request, VERIFICATION_VECTOR, greet, own);
    let (reply, theirs) = answered.expect("answered");
    assert_eq!(reply, hex(REPLY_VECTOR));
    let (message, ours) = state.finish(&reply).expect("authentic");
    assert_eq!(message, SERVER_MESSAGE);
    assert_eq!(expanded(&ours), octets(KEYSTREAM));
    assert_eq!(expanded(&theirs), octets(KEYSTREAM));
}

#[test]
fn messages_of_any_length_arrive_at_both_ends() {
    for length in [0, 1, 16, 281] {
        let sent = vec![5; length];
        let (state, request) = client(&keys().published(), &sent).expect("begun");
        assert_eq!(request.len(), REQUEST + length);
        let back = |message: &[u8]| {
            assert_eq!(message, sent);
            Some([message, b"!"].concat())
        };
        let (reply, theirs) = server(&keys(), &request, back).expect("answered");
        assert_eq!(reply.len(), REPLY + length + 1);
        let (message, ours) = state.finish(&reply).expect("authentic");
        assert_eq!(message, [&sent[..], b"!"].concat());
        assert_eq!(expanded(&ours), expanded(&theirs));
    }
}

#[test]
fn any_octet_of_the_reply_that_changed_is_noticed() {
    for at in 0..REPLY + SERVER_MESSAGE.len() {
        let (state, request) = client(&keys().published(), CLIENT_MESSAGE).expect("begun");
        let (mut reply, _) = server(&keys(), &request, greet).expect("answered");
        reply[at] ^= 1;
        assert_eq!(state.finish(&reply).err(), Some(Refused::Unauthentic));
    }
}

#[test]
fn any_octet_of_the_request_that_changed_is_noticed_before_it_is_answered() {
    let (_, request) = client(&keys().published(), CLIENT_MESSAGE).expect("begun");
    for at in 0..request.len() {
        let mut request = request.clone();
        request[at] ^= 1;
        let refused = server(&keys(), &request, |_| panic!("read a changed message"));
        let expected = match at {
            0..32 => Refused::WrongRelay,
            32..64 => Refused::UnknownKey,
            _ => Refused::Unauthentic,
        };
        assert_eq!(refused.err(), Some(expected));
    }
}

#[test]
fn another_verification_string_is_noticed() {
    let own = pair(CLIENT_SECRET);
    let begun = client_with(&keys().published(), b"", b"another use", own);
    let (_, request) = begun.expect("begun");
    let refused = server(&keys(), &request, greet).err();
    assert_eq!(refused, Some(Refused::Unauthentic));
}

#[test]
fn what_the_relay_does_not_offer_is_refused_without_an_answer() {
    let (_, request) = client(&keys().published(), b"congestion").expect("begun");
    let refused = server(&keys(), &request, greet).err();
    assert_eq!(refused, Some(Refused::Unacceptable));
}

#[test]
fn what_is_too_short_is_malformed() {
    for length in [0, 63, 95, 127] {
        let refused = server(&keys(), &vec![9; length], greet).err();
        assert_eq!(refused, Some(Refused::Malformed));
    }
    for length in [0, 31, 63] {
        let (state, _) = client(&keys().published(), b"").expect("begun");
        let refused = state.finish(&vec![9; length]).err();
        assert_eq!(refused, Some(Refused::Malformed));
    }
}

#[test]
fn keys_of_small_order_give_no_secret_at_either_end() {
    for point in crate::onion::x25519::SMALL_ORDER {
        let point: [u8; 32] = octets(point);
        let relay = RelayKeys {
            onion: point,
            ..keys().published()
        };
        assert_eq!(client(&relay, b"").err(), Some(Refused::BadKey));

        let (_, mut request) = client(&keys().published(), b"").expect("begun");
        request[64..96].copy_from_slice(&point);
        let refused = server(&keys(), &request, greet).err();
        assert_eq!(refused, Some(Refused::BadKey));

        let (state, request) = client(&keys().published(), CLIENT_MESSAGE).expect("begun");
        let (mut reply, _) = server(&keys(), &request, greet).expect("answered");
        reply[..32].copy_from_slice(&point);
        assert_eq!(state.finish(&reply).err(), Some(Refused::BadKey));
    }
}
