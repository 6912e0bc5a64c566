//! Onion keys: what a relay publishes for circuit handshakes, the pairs it answers with, and how they rotate.
//! A relay has [`OnionKeys`], a client [`RelayKeys`].
//! tor-spec, "Keys and names": "old ntor keys MUST be accepted for at least one week after they are no longer advertised".

use std::{fmt, sync::Arc};

use aws_lc_rs::{
    agreement::{PrivateKey, UnparsedPublicKey, X25519, agree},
    hkdf::{HKDF_SHA256, KeyType, Prk},
};
use ring::rand::{SecureRandom, SystemRandom};
use shake::{ExtendableOutput, Shake256, Update, XofReader};
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroizing;

#[cfg(test)]
pub(super) use self::tests::SMALL_ORDER;
use super::{Refused, create_fast, identity::stand_in, layers::RelayCrypto};

/// What a client knows of a relay when it extends a circuit to it. All of it is public.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RelayKeys {
    /// SHA-1 of its RSA identity, which [`ntor`](super::ntor) binds to; of a relay without one: [`stand_in`](super::identity::stand_in).
    pub rsa_id: [u8; 20],
    /// Its Ed25519 identity, which [`ntor3`](super::ntor3) binds to.
    pub ed25519: [u8; 32],
    /// Its current onion key, X25519.
    pub onion: [u8; 32],
}

/// One onion key pair.
#[derive(Clone)]
pub struct OnionKey(Arc<KeyPair>);

/// The onion keys that a relay accepts, the current one and the last, with the identities they are bound to.
/// It does not change: a rotation makes another, so that circuits being built are not waited for.
#[derive(Clone)]
pub struct OnionKeys {
    pub(super) rsa_id: [u8; 20],
    pub(super) ed25519: [u8; 32],
    current: OnionKey,
    last: Option<OnionKey>,
}

impl From<hoplite_wire::OnionKey> for RelayKeys {
    /// Of a relay without RSA identity.
    fn from(key: hoplite_wire::OnionKey) -> Self {
        Self {
            rsa_id: stand_in(&key.identity),
            ed25519: key.identity,
            onion: key.ntor,
        }
    }
}

impl From<RelayKeys> for hoplite_wire::OnionKey {
    fn from(keys: RelayKeys) -> Self {
        Self {
            identity: keys.ed25519,
            ntor: keys.onion,
        }
    }
}

impl OnionKey {
    /// A secret that nobody has, for [`OnionKey::from_secret`].
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn fresh_secret() -> Result<Zeroizing<[u8; 32]>, Refused> {
        let mut bytes = Zeroizing::new([0; 32]);
        let filled = SystemRandom::new().fill(bytes.as_mut_slice());
        filled.map_err(|_| Refused::System)?;
        Ok(bytes)
    }

    /// The pair of a stored secret.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn from_secret(secret: &[u8; 32]) -> Result<Self, Refused> {
        Ok(Self(Arc::new(KeyPair::from_octets(secret)?)))
    }

    /// What is published.
    pub fn public(&self) -> &[u8; 32] {
        self.0.public()
    }

    pub(super) fn pair(&self) -> &KeyPair {
        &self.0
    }
}

impl OnionKeys {
    /// Keys of the relay with these identities; `last` is still accepted.
    pub fn new(
        rsa_id: [u8; 20],
        ed25519: [u8; 32],
        current: OnionKey,
        last: Option<OnionKey>,
    ) -> Self {
        Self {
            rsa_id,
            ed25519,
            current,
            last,
        }
    }

    /// After a rotation: `fresh` is current, and what was current is the last.
    #[must_use]
    pub fn rotated(&self, fresh: OnionKey) -> Self {
        let last = Some(self.current.clone());
        Self::new(self.rsa_id, self.ed25519, fresh, last)
    }

    /// After the last key's time: only the current one is accepted.
    #[must_use]
    pub fn retired(&self) -> Self {
        Self::new(self.rsa_id, self.ed25519, self.current.clone(), None)
    }

    /// What is published of this relay now.
    pub fn published(&self) -> RelayKeys {
        RelayKeys {
            rsa_id: self.rsa_id,
            ed25519: self.ed25519,
            onion: *self.current.public(),
        }
    }

    /// The pair with this public key. Both are compared, whichever it is.
    pub(super) fn find(&self, public: &[u8; 32]) -> Result<&KeyPair, Refused> {
        let current = self.current.public().ct_eq(public);
        let last = self.last.as_ref();
        let is_last = last.map(|key| key.public().ct_eq(public));
        let is_last = is_last.unwrap_or_else(|| Choice::from(0));
        match (bool::from(current), bool::from(is_last), last) {
            (true, ..) => Ok(&self.current.0),
            (false, true, Some(key)) => Ok(&key.0),
            _ => Err(Refused::UnknownKey),
        }
    }
}

impl fmt::Debug for RelayKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelayKeys(hidden)")
    }
}

impl fmt::Debug for OnionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnionKey(hidden)")
    }
}

impl fmt::Debug for OnionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnionKeys(hidden)")
    }
}

// X25519 key pairs that can be used more than once, as ntor needs them.
// RFC 7748; tor-spec, "The ntor handshake": "check that none of the EXP() operations produced the point at infinity".

/// A private key with its public half. The library wipes it when it is dropped.
pub(super) struct KeyPair {
    private: PrivateKey,
    public: [u8; 32],
}

impl KeyPair {
    pub(super) fn generate() -> Result<Self, Refused> {
        let private = PrivateKey::generate(&X25519).map_err(|_| Refused::System)?;
        Self::new(private)
    }

    pub(super) fn from_octets(bytes: &[u8; 32]) -> Result<Self, Refused> {
        let private = PrivateKey::from_private_key(&X25519, bytes).map_err(|_| Refused::System)?;
        Self::new(private)
    }

    fn new(private: PrivateKey) -> Result<Self, Refused> {
        let public = private.compute_public_key().map_err(|_| Refused::System)?;
        let public = public.as_ref().try_into().map_err(|_| Refused::System)?;
        Ok(Self { private, public })
    }

    pub(super) fn public(&self) -> &[u8; 32] {
        &self.public
    }

    /// `EXP(peer, self)`, unless it is all zero, as a point of small order makes it.
    pub(super) fn agree(&self, peer: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, Refused> {
        let mut shared = Zeroizing::new([0; 32]);
        let peer = UnparsedPublicKey::new(&X25519, peer);
        agree(&self.private, peer, Refused::BadKey, |bytes| {
            let bytes: &[u8; 32] = bytes.try_into().map_err(|_| Refused::BadKey)?;
            shared.copy_from_slice(bytes);
            Ok(())
        })?;
        if shared.ct_eq(&[0; 32]).into() {
            return Err(Refused::BadKey);
        }
        Ok(shared)
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyPair(hidden)")
    }
}

// What a circuit handshake leaves at both ends: a seed, expanded into the keys of a layer.
// tor-spec, "KDF-RFC5869"; proposal 332, "Instantiation" (SHAKE256).

/// A secret that only the client and one relay have. It is wiped when dropped and never printed.
pub struct Seed(Expansion);

enum Expansion {
    /// By a function with a key.
    Keyed {
        kind: Kind,
        key: Zeroizing<[u8; 32]>,
    },
    /// KDF-TOR of both halves of CREATE_FAST, behind its first block.
    KdfTor(Zeroizing<[u8; 2 * create_fast::HALF]>),
}

/// Which function expands it.
#[derive(Clone, Copy)]
enum Kind {
    /// HKDF-SHA256's second half, with this info.
    Rfc5869(&'static [u8]),
    /// SHAKE256 of the tweak and the key, from `skip` on.
    Shake256 { tweak: &'static [u8], skip: usize },
    /// SHAKE256 of the key and then this.
    Shake256Of(&'static [u8]),
}

impl Seed {
    /// `key` is `KEY_SEED`, that is HKDF's PRK; `info` is `m_expand`.
    pub(super) fn rfc5869(key: Zeroizing<[u8; 32]>, info: &'static [u8]) -> Self {
        let kind = Kind::Rfc5869(info);
        Self(Expansion::Keyed { kind, key })
    }

    /// `key` is `ntor_key_seed`; the first `skip` bytes are the handshake's own.
    pub(super) fn shake256(key: Zeroizing<[u8; 32]>, tweak: &'static [u8], skip: usize) -> Self {
        let kind = Kind::Shake256 { tweak, skip };
        Self(Expansion::Keyed { kind, key })
    }

    /// `key` is `NTOR_KEY_SEED` of a service's handshake, `info` is `m_hsexpand`. rend-spec-v3, "Cryptographic building blocks" (`KDF`).
    pub(super) fn shake256_of(key: Zeroizing<[u8; 32]>, info: &'static [u8]) -> Self {
        let kind = Kind::Shake256Of(info);
        Self(Expansion::Keyed { kind, key })
    }

    /// `secret` is both halves, the client's first. tor-spec, "KDF-TOR".
    pub(super) fn kdf_tor(secret: Zeroizing<[u8; 2 * create_fast::HALF]>) -> Self {
        Self(Expansion::KdfTor(secret))
    }

    /// The first bytes of the key stream.
    ///
    /// # Errors
    /// [`Refused::System`]: more than 8,160 bytes are wanted of HKDF, or more than 5,100 of KDF-TOR.
    pub fn fill(&self, out: &mut [u8]) -> Result<(), Refused> {
        match &self.0 {
            Expansion::Keyed { kind, key } => kind.fill(key, out),
            Expansion::KdfTor(secret) => {
                for (number, chunk) in (1_usize..).zip(out.chunks_mut(create_fast::HALF)) {
                    let number = u8::try_from(number).map_err(|_| Refused::System)?;
                    let block = create_fast::block(secret, number);
                    chunk.copy_from_slice(block.split_at(chunk.len()).0);
                }
                Ok(())
            }
        }
    }
}

impl Kind {
    fn fill(self, key: &Zeroizing<[u8; 32]>, out: &mut [u8]) -> Result<(), Refused> {
        match self {
            Self::Rfc5869(info) => {
                let prk = Prk::new_less_safe(HKDF_SHA256, key.as_slice());
                let info = [info];
                let stream = prk.expand(&info, Length(out.len()));
                let filled = stream.and_then(|stream| stream.fill(out));
                filled.map_err(|_| Refused::System)
            }
            Self::Shake256 { tweak, skip } => {
                let mut stream = shake256(tweak, &[key.as_slice()]);
                let mut skipped = Zeroizing::new(vec![0; skip]);
                stream.read(&mut skipped);
                stream.read(out);
                Ok(())
            }
            Self::Shake256Of(info) => {
                let mut state = Shake256::default();
                state.update(key.as_slice());
                state.update(info);
                state.finalize_xof().read(out);
                Ok(())
            }
        }
    }
}

/// What only a client and one relay of its circuit know, and nothing is enciphered with: it binds messages to the circuit.
/// tor-spec, "KDF-RFC5869" (`KH`).
#[derive(Clone)]
pub struct CircuitNonce(Zeroizing<[u8; 20]>);

impl CircuitNonce {
    /// Behind the keys of the relay's layer, which has this encryption.
    ///
    /// # Errors
    /// [`Refused::System`].
    pub fn draw(seed: &Seed, crypto: RelayCrypto) -> Result<Self, Refused> {
        let mut bytes = Zeroizing::new(vec![0; crypto.keys().saturating_add(20)]);
        seed.fill(&mut bytes)?;
        let nonce = bytes.last_chunk().ok_or(Refused::System)?;
        Ok(Self(Zeroizing::new(*nonce)))
    }

    /// These bytes.
    pub(super) fn of(bytes: Zeroizing<[u8; 20]>) -> Self {
        Self(bytes)
    }

    pub(super) fn as_bytes(&self) -> &[u8; 20] {
        &self.0
    }
}

impl fmt::Debug for CircuitNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CircuitNonce(hidden)")
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(hidden)")
    }
}

/// How much HKDF is asked for.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// `KDF(s, t) = SHAKE_256(ENCAP(t) | s)`, where `s` is `parts` one after another.
pub(super) fn shake256(tweak: &[u8], parts: &[&[u8]]) -> impl XofReader + use<> {
    let mut state = Shake256::default();
    state.update(&encap_length(tweak));
    state.update(tweak);
    for part in parts {
        state.update(part);
    }
    state.finalize_xof()
}

/// What stands before `s` in `ENCAP(s)`: its length, 8 bytes.
pub(super) fn encap_length(text: &[u8]) -> [u8; 8] {
    u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::hmac::{self, HMAC_SHA256};

    use super::{
        super::{
            ntor,
            testing::{bytes, hex},
        },
        *,
    };

    fn key() -> OnionKey {
        OnionKey::from_secret(&OnionKey::fresh_secret().expect("random")).expect("a key")
    }

    #[test]
    fn the_last_key_is_accepted_until_it_is_retired() {
        let first = OnionKeys::new([1; 20], [2; 32], key(), None);
        let (_, old) = ntor::client(&first.published()).expect("begun");
        let second = first.rotated(key());
        let (_, new) = ntor::client(&second.published()).expect("begun");
        assert_eq!(ntor::server(&first, &new).err(), Some(Refused::UnknownKey));
        ntor::server(&second, &old).expect("the last is accepted");
        ntor::server(&second, &new).expect("the current is accepted");

        let third = second.rotated(key());
        assert_eq!(ntor::server(&third, &old).err(), Some(Refused::UnknownKey));
        ntor::server(&third, &new).expect("the last is accepted");

        let retired = third.retired();
        assert_eq!(
            ntor::server(&retired, &new).err(),
            Some(Refused::UnknownKey)
        );
        assert_eq!(retired.published().onion, third.published().onion);
    }

    #[test]
    fn a_stored_secret_gives_the_same_key_again() {
        let secret = OnionKey::fresh_secret().expect("random");
        let [one, two] = [(); 2].map(|()| OnionKey::from_secret(&secret).expect("a key"));
        assert_eq!(one.public(), two.public());
        assert_ne!(one.public(), key().public());
    }

    /// The points whose multiple by any clamped scalar is zero: RFC 7748 §6.1, "small order"; the list is that of Bernstein's Curve25519 page.
    pub(in super::super) const SMALL_ORDER: [&str; 7] = [
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    ];

    fn pair(secret: &str) -> KeyPair {
        KeyPair::from_octets(&bytes(secret)).expect("a key")
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
            let shared = pair(scalar).agree(&bytes(point)).expect("a secret");
            assert_eq!(*shared, bytes(product));
        }
    }

    #[test]
    fn alice_and_bob_of_rfc_7748_agree() {
        let alice = pair("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
        let bob = pair("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
        let a = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a";
        let b = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f";
        let k = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742";
        assert_eq!((alice.public(), bob.public()), (&bytes(a), &bytes(b)));
        assert_eq!(*alice.agree(bob.public()).expect("a secret"), bytes(k));
        assert_eq!(*bob.agree(alice.public()).expect("a secret"), bytes(k));
    }

    #[test]
    fn a_thousand_rounds_of_rfc_7748_come_out() {
        let mut scalar: [u8; 32] =
            bytes("0900000000000000000000000000000000000000000000000000000000000000");
        let mut point = scalar;
        for _ in 0..1000 {
            let pair = KeyPair::from_octets(&scalar).expect("a key");
            let next = *pair.agree(&point).expect("a secret");
            (point, scalar) = (scalar, next);
        }
        let expected = "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51";
        assert_eq!(scalar, bytes(expected));
    }

    #[test]
    fn points_of_small_order_give_no_secret() {
        let own = KeyPair::generate().expect("a key");
        for point in SMALL_ORDER {
            let mut point: [u8; 32] = bytes(point);
            assert_eq!(own.agree(&point).err(), Some(Refused::BadKey));
            point[31] |= 0x80;
            assert_eq!(own.agree(&point).err(), Some(Refused::BadKey));
        }
    }

    fn ntor_kdf(input: &[u8]) -> Vec<u8> {
        let tweak = hmac::Key::new(HMAC_SHA256, b"ntor-curve25519-sha256-1:key_extract");
        let key = hmac::sign(&tweak, input);
        let key = Zeroizing::new(key.as_ref().try_into().expect("32 bytes"));
        let seed = Seed::rfc5869(key, b"ntor-curve25519-sha256-1:key_expand");
        let mut out = vec![0; 100];
        seed.fill(&mut out).expect("bytes");
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
            bytes("e8447df87d01beeb724c9a2a38ab00fcc24e9bd17860e673b021222d621a7810e5d3");
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
            .expect("bytes");
        Seed::shake256(key(), b"t", 32)
            .fill(&mut rest)
            .expect("bytes");
        assert_eq!(whole[32..], rest);
        let endless = Seed::rfc5869(key(), b"t").fill(&mut vec![0; 8161]);
        assert_eq!(endless, Err(Refused::System));
    }
}
