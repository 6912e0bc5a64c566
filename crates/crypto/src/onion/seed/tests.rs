//! KDF-RFC5869 with ntor's info against C tor's vectors (src/test/test_crypto.c, made with `ntor_ref.py gen_kdf_vectors`; read in Arti's
//! tor-proto 0.47.0, crypto/ll/kdf.rs), and SHAKE256 against one of NIST's (the same file, `testvec_shake_kdf`).

use aws_lc_rs::hmac::{self, HMAC_SHA256};

use super::*;
use crate::onion::testing::{hex, octets};

fn ntor_kdf(input: &[u8]) -> Vec<u8> {
    let tweak = hmac::Key::new(HMAC_SHA256, b"ntor-curve25519-sha256-1:key_extract");
    let key = hmac::sign(&tweak, input);
    let key = Zeroizing::new(key.as_ref().try_into().expect("32 octets"));
    let seed = Seed::rfc5869(key, b"ntor-curve25519-sha256-1:key_expand");
    let mut out = vec![0; 100];
    seed.fill(&mut out).expect("octets");
    out
}

#[test]
fn ntors_keys_are_expanded_as_c_tor_does() {
    let tor = "5521492a85139a8d9107a2d5c0d9c91610d0f95989975ebee6
        c02a4f8d622a6cfdf9b7c7edd3832e2760ded1eac309b76f8d
        66c4a3c4d6225429b3a016e3c3d45911152fc87bc2de9630c3
        961be9fdb9f93197ea8e5977180801926d3321fa21513e59ac";
    assert_eq!(ntor_kdf(b"Tor"), hex(tor));
    let long = "a2aa9b50da7e481d30463adb8f233ff06e9571a0ca6ab6df0f
        b206fa34e5bc78d063fc291501beec53b36e5a0e434561200c
        5f8bd13e0f88b3459600b4dc21d69363e2895321c06184879d
        94b18f078411be70b767c7fc40679a9440a0c95ea83a23efbf";
    let input = b"AN ALARMING ITEM TO FIND ON YOUR CREDIT-RATING STATEMENT";
    assert_eq!(ntor_kdf(input), hex(long));
}

#[test]
fn shake256_is_nists() {
    let input = hex("76891a7bcc6c04490035b743152f64a8dd2ea18ab472b8d36ecf45858d0b0046");
    let expected: [u8; 34] =
        octets("e8447df87d01beeb724c9a2a38ab00fcc24e9bd17860e673b021222d621a7810e5d3");
    let mut state = Shake256::default();
    state.update(&input);
    let mut out = [0; 34];
    state.finalize_xof().read(&mut out);
    assert_eq!(out, expected);
}

#[test]
fn what_was_skipped_is_not_given_out_and_hkdf_ends() {
    let key = || Zeroizing::new([3; 32]);
    let (mut whole, mut rest) = ([0; 48], [0; 16]);
    Seed::shake256(key(), b"t", 0)
        .fill(&mut whole)
        .expect("octets");
    Seed::shake256(key(), b"t", 32)
        .fill(&mut rest)
        .expect("octets");
    assert_eq!(whole[32..], rest);
    let endless = Seed::rfc5869(key(), b"t").fill(&mut vec![0; 8161]);
    assert_eq!(endless, Err(Refused::System));
}
