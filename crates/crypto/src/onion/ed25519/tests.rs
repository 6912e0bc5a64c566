//! RFC 8032 §7.1, and keys that would sign everything.

use super::*;
use crate::onion::testing::{hex, octets};

/// Secret, public key, message, signature: tests 1, 2 and 3.
const VECTORS: [[&str; 4]; 3] = [
    [
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155
         5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ],
    [
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da
         085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ],
    [
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac
         18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ],
];

#[test]
fn the_signatures_of_rfc_8032_come_out_and_are_accepted() {
    for [secret, public, message, signature] in VECTORS {
        let key = SigningKey::from_secret(&octets(secret)).expect("a key");
        assert_eq!(key.public(), &octets(public));
        let message = hex(message);
        assert_eq!(key.sign(&message).expect("signed"), octets(signature));
        assert!(verify(key.public(), &message, &hex(signature)));
    }
}

#[test]
fn another_message_key_or_signature_is_refused() {
    let key = SigningKey::generate().expect("a key");
    let other = SigningKey::generate().expect("a key");
    let signature = key.sign(b"this").expect("signed");
    assert!(verify(key.public(), b"this", &signature));
    assert!(!verify(key.public(), b"that", &signature));
    assert!(!verify(other.public(), b"this", &signature));
    assert!(!verify(key.public(), b"this", &signature[..63]));
    assert!(!verify(key.public(), b"this", &[]));
}

/// With the neutral element as key, R = S·B is a signature of every message: here S = 0, so R is the neutral element too.
#[test]
fn a_key_of_small_order_signs_nothing() {
    let neutral = SMALL_ORDER[1];
    let mut signature = [0; SIGNATURE];
    signature[..32].copy_from_slice(&neutral);
    let accepted = UnparsedPublicKey::new(&ED25519, &neutral).verify(b"all", &signature);
    assert!(accepted.is_ok(), "the library alone accepts it");
    assert!(!verify(&neutral, b"all", &signature));
}

#[test]
fn nothing_secret_is_printed() {
    let key = SigningKey::generate().expect("a key");
    assert_eq!(format!("{key:?}"), "SigningKey(hidden)");
}
