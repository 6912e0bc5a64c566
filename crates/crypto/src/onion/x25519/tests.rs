//! RFC 7748 §5.2 and §6.1, and the points that give no secret.

use super::*;
use crate::onion::testing::octets;

/// The points whose multiple by any clamped scalar is zero: RFC 7748 §6.1, "small order"; the list is that of Bernstein's Curve25519 page.
pub(in crate::onion) const SMALL_ORDER: [&str; 7] = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
];

fn pair(secret: &str) -> KeyPair {
    KeyPair::from_octets(&octets(secret)).expect("a key")
}

#[test]
fn the_two_multiples_of_rfc_7748_come_out() {
    let vectors = [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ];
    for (scalar, point, product) in vectors {
        let shared = pair(scalar).agree(&octets(point)).expect("a secret");
        assert_eq!(*shared, octets(product));
    }
}

#[test]
fn alice_and_bob_of_rfc_7748_agree() {
    let alice = pair("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
    let bob = pair("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
    let a = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a";
    let b = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f";
    let k = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742";
    assert_eq!((alice.public(), bob.public()), (&octets(a), &octets(b)));
    assert_eq!(*alice.agree(bob.public()).expect("a secret"), octets(k));
    assert_eq!(*bob.agree(alice.public()).expect("a secret"), octets(k));
}

#[test]
fn a_thousand_rounds_of_rfc_7748_come_out() {
    let mut scalar: [u8; 32] =
        octets("0900000000000000000000000000000000000000000000000000000000000000");
    let mut point = scalar;
    for _ in 0..1000 {
        let pair = KeyPair::from_octets(&scalar).expect("a key");
        let next = *pair.agree(&point).expect("a secret");
        (point, scalar) = (scalar, next);
    }
    let expected = "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51";
    assert_eq!(scalar, octets(expected));
}

#[test]
fn points_of_small_order_give_no_secret() {
    let own = KeyPair::generate().expect("a key");
    for point in SMALL_ORDER {
        let mut point: [u8; 32] = octets(point);
        assert_eq!(own.agree(&point).err(), Some(Refused::BadKey));
        point[31] |= 0x80;
        assert_eq!(own.agree(&point).err(), Some(Refused::BadKey));
    }
}
