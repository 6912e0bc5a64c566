//! The ntor-v3 handshake: as ntor, and each side's message, enciphered, travels with it (what congestion control is offered, for one).
//! CREATE2 and EXTEND2 carry it as type 3. tor-spec, "The ntor-v3 handshake"; proposal 332.
//!
//! The client's message has no forward secrecy: who steals the onion key later reads it.

use std::fmt;

use aws_lc_rs::{
    cipher::{AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey},
    digest::{self, SHA3_256},
    iv::FixedLength,
};
use shake::XofReader;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{
    OnionKeys, Refused, RelayKeys, Seed,
    keys::{KeyPair, encap_length, shake256},
};

const PROTOID: &[u8] = b"ntor3-curve25519-sha3_256-1";

const T_MSGKDF: &[u8] = b"ntor3-curve25519-sha3_256-1:kdf_phase1";

const T_MSGMAC: &[u8] = b"ntor3-curve25519-sha3_256-1:msg_mac";

const T_KEY_SEED: &[u8] = b"ntor3-curve25519-sha3_256-1:key_seed";

const T_VERIFY: &[u8] = b"ntor3-curve25519-sha3_256-1:verify";

const T_FINAL: &[u8] = b"ntor3-curve25519-sha3_256-1:kdf_final";

const T_AUTH: &[u8] = b"ntor3-curve25519-sha3_256-1:auth_final";

/// What both ends of a circuit's extension must know.
const VERIFICATION: &[u8] = b"circuit extend";

/// What a request has beside the client's message: node id, key id, the client's key, the proof.
pub const REQUEST: usize = 128;

/// What a reply has beside the relay's message: its key, its proof.
pub const REPLY: usize = 64;

type Secret = Zeroizing<[u8; 32]>;

/// What a client keeps until the reply.
pub struct ClientState {
    relay: RelayKeys,
    own: KeyPair,
    /// `Bx`.
    bound: Secret,
    mac: [u8; 32],
    verification: Vec<u8>,
}

/// Begins a handshake with `relay`, carrying `message` (extensions): what is kept, and the request to be sent.
///
/// # Errors
/// [`Refused::System`]; [`Refused::BadKey`]: the relay's onion key is of small order.
pub fn client(relay: &RelayKeys, message: &[u8]) -> Result<(ClientState, Vec<u8>), Refused> {
    client_with(relay, message, VERIFICATION, KeyPair::generate()?)
}

fn client_with(
    relay: &RelayKeys,
    message: &[u8],
    verification: &[u8],
    own: KeyPair,
) -> Result<(ClientState, Vec<u8>), Refused> {
    let bound = own.agree(&relay.onion)?;
    let head = Head {
        id: &relay.ed25519,
        onion: &relay.onion,
        client: own.public(),
    };
    let keys = head.first_keys(&bound, verification);
    let mut sealed = message.to_vec();
    encipher(&keys.cipher, &mut sealed)?;
    let mac = head.mac(&keys, &sealed);
    let request = [&head.id[..], head.onion, head.client, &sealed, &mac].concat();
    let state = ClientState {
        relay: *relay,
        own,
        bound,
        mac,
        verification: verification.to_vec(),
    };
    Ok((state, request))
}

impl ClientState {
    /// Checks the reply: the relay's message, and the seed.
    ///
    /// # Errors
    /// `Malformed`, `BadKey`, `Unauthentic`. The circuit is closed then.
    pub fn finish(self, reply: &[u8]) -> Result<(Vec<u8>, Seed), Refused> {
        let (server, rest) = reply.split_first_chunk().ok_or(Refused::Malformed)?;
        let (proof, sealed) = rest.split_first_chunk::<32>().ok_or(Refused::Malformed)?;
        let fresh = self.own.agree(server)?;
        let end = End {
            head: Head {
                id: &self.relay.ed25519,
                onion: &self.relay.onion,
                client: self.own.public(),
            },
            server,
            mac: &self.mac,
        };
        let (key, verify) = end.secrets(&fresh, &self.bound, &self.verification);
        if !bool::from(end.proof(&verify, sealed).ct_eq(proof)) {
            return Err(Refused::Unauthentic);
        }
        let mut message = sealed.to_vec();
        encipher(&second_key(&key), &mut message)?;
        Ok((message, seed(key)))
    }
}

impl fmt::Debug for ClientState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ntor3::ClientState(hidden)")
    }
}

/// A relay's answer to a request: the reply to be sent, and the seed. `answer` is given the client's message and says the relay's own;
/// if it gives none, the request is [`Refused::Unacceptable`].
///
/// # Errors
/// Each of [`Refused`].
pub fn server(
    keys: &OnionKeys,
    request: &[u8],
    answer: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
) -> Result<(Vec<u8>, Seed), Refused> {
    server_with(keys, request, VERIFICATION, answer, KeyPair::generate)
}

fn server_with(
    keys: &OnionKeys,
    request: &[u8],
    verification: &[u8],
    answer: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
    own: impl FnOnce() -> Result<KeyPair, Refused>,
) -> Result<(Vec<u8>, Seed), Refused> {
    let (head, sealed, mac) = Head::read(request)?;
    if !bool::from(keys.ed25519.ct_eq(head.id)) {
        return Err(Refused::WrongRelay);
    }
    let bound = keys.find(head.onion)?.agree(head.client)?;
    let message = head.open(&bound, verification, sealed, mac)?;
    let mut sealed = answer(&message).ok_or(Refused::Unacceptable)?;
    let own = own()?;
    let fresh = own.agree(head.client)?;
    let server = own.public();
    let end = End { head, server, mac };
    let (key, verify) = end.secrets(&fresh, &bound, verification);
    encipher(&second_key(&key), &mut sealed)?;
    let proof = end.proof(&verify, &sealed);
    let reply = [&server[..], &proof, &sealed].concat();
    Ok((reply, seed(key)))
}

/// The public part of a request, in the specification's letters: ID, B and X.
#[derive(Clone, Copy)]
struct Head<'a> {
    id: &'a [u8; 32],
    onion: &'a [u8; 32],
    client: &'a [u8; 32],
}

/// `ENC_K1` and `MAC_K1`.
struct FirstKeys {
    cipher: Secret,
    mac: Secret,
}

impl<'a> Head<'a> {
    fn read(request: &'a [u8]) -> Result<(Self, &'a [u8], &'a [u8; 32]), Refused> {
        let (id, rest) = request.split_first_chunk().ok_or(Refused::Malformed)?;
        let (onion, rest) = rest.split_first_chunk().ok_or(Refused::Malformed)?;
        let (client, rest) = rest.split_first_chunk().ok_or(Refused::Malformed)?;
        let (sealed, mac) = rest.split_last_chunk().ok_or(Refused::Malformed)?;
        Ok((Self { id, onion, client }, sealed, mac))
    }

    fn first_keys(&self, bound: &Secret, verification: &[u8]) -> FirstKeys {
        let mut stream = shake256(
            T_MSGKDF,
            &[
                bound.as_slice(),
                self.id,
                self.client,
                self.onion,
                PROTOID,
                &encap_length(verification),
                verification,
            ],
        );
        let mut keys = FirstKeys {
            cipher: Zeroizing::new([0; 32]),
            mac: Zeroizing::new([0; 32]),
        };
        stream.read(keys.cipher.as_mut_slice());
        stream.read(keys.mac.as_mut_slice());
        keys
    }

    fn mac(&self, keys: &FirstKeys, sealed: &[u8]) -> [u8; 32] {
        let key = keys.mac.as_slice();
        let length = encap_length(key);
        let parts: [&[u8]; 6] = [&length, key, self.id, self.onion, self.client, sealed];
        *hash(T_MSGMAC, &parts)
    }

    /// The client's message, if its proof is right.
    fn open(
        &self,
        bound: &Secret,
        verification: &[u8],
        sealed: &[u8],
        mac: &[u8; 32],
    ) -> Result<Zeroizing<Vec<u8>>, Refused> {
        let keys = self.first_keys(bound, verification);
        if !bool::from(self.mac(&keys, sealed).ct_eq(mac)) {
            return Err(Refused::Unauthentic);
        }
        let mut message = Zeroizing::new(sealed.to_vec());
        encipher(&keys.cipher, &mut message)?;
        Ok(message)
    }
}

/// The public part of the whole handshake: the request's, Y and the request's MAC.
struct End<'a> {
    head: Head<'a>,
    server: &'a [u8; 32],
    mac: &'a [u8; 32],
}

impl End<'_> {
    /// `ntor_key_seed` and `verify`.
    fn secrets(&self, fresh: &Secret, bound: &Secret, verification: &[u8]) -> (Secret, Secret) {
        let Head { id, onion, client } = self.head;
        let length = encap_length(verification);
        let secret_input: [&[u8]; 9] = [
            fresh.as_slice(),
            bound.as_slice(),
            id,
            onion,
            client,
            self.server,
            PROTOID,
            &length,
            verification,
        ];
        (
            hash(T_KEY_SEED, &secret_input),
            hash(T_VERIFY, &secret_input),
        )
    }

    /// `AUTH`.
    fn proof(&self, verify: &Secret, sealed: &[u8]) -> [u8; 32] {
        let Head { id, onion, client } = self.head;
        let parts: [&[u8]; 10] = [
            verify.as_slice(),
            id,
            onion,
            self.server,
            client,
            self.mac,
            &encap_length(sealed),
            sealed,
            PROTOID,
            b"Server",
        ];
        *hash(T_AUTH, &parts)
    }
}

/// `ENC_KEY`: the first part of the key stream.
fn second_key(key: &Secret) -> Secret {
    let mut cipher = Zeroizing::new([0; 32]);
    shake256(T_FINAL, &[key.as_slice()]).read(cipher.as_mut_slice());
    cipher
}

/// `KEYSTREAM`: what follows `ENC_KEY`.
fn seed(key: Secret) -> Seed {
    Seed::shake256(key, T_FINAL, 32)
}

/// `H(s, t) = SHA3_256(ENCAP(t) | s)`, where `s` is `parts` one after another.
fn hash(tweak: &[u8], parts: &[&[u8]]) -> Secret {
    let mut context = digest::Context::new(&SHA3_256);
    context.update(&encap_length(tweak));
    context.update(tweak);
    for part in parts {
        context.update(part);
    }
    let mut out = Zeroizing::new([0; 32]);
    out.copy_from_slice(context.finish().as_ref());
    out
}

/// `ENC(k, m)`, which is `DEC` too: AES-256-CTR from a counter of zero; a key is used once.
pub(super) fn encipher(key: &Secret, message: &mut [u8]) -> Result<(), Refused> {
    encipher_from([0; 16], key, message)
}

/// AES-256-CTR from this counter.
pub(super) fn encipher_from(
    counter: [u8; 16],
    key: &Secret,
    message: &mut [u8],
) -> Result<(), Refused> {
    let key = UnboundCipherKey::new(&AES_256, key.as_slice()).map_err(|_| Refused::System)?;
    let key = EncryptingKey::ctr(key).map_err(|_| Refused::System)?;
    let counter = EncryptionContext::Iv128(FixedLength::from(counter));
    let done = key.less_safe_encrypt(message, counter);
    done.map(drop).map_err(|_| Refused::System)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            OnionKey,
            testing::{bytes, hex},
        },
        *,
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
        KeyPair::from_octets(&bytes(secret)).expect("a key")
    }

    fn keys() -> OnionKeys {
        let current = OnionKey::from_secret(&bytes(ONION_SECRET)).expect("a key");
        OnionKeys::new([7; 20], bytes(ID), current, None)
    }

    fn expanded(seed: &Seed) -> [u8; 256] {
        let mut out = [0; 256];
        seed.fill(&mut out).expect("bytes");
        out
    }

    fn greet(message: &[u8]) -> Option<Vec<u8>> {
        (message == CLIENT_MESSAGE).then(|| SERVER_MESSAGE.to_vec())
    }

    #[test]
    fn the_published_handshake_comes_out_byte_for_byte() {
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
        assert_eq!(expanded(&ours), bytes(KEYSTREAM));
        assert_eq!(expanded(&theirs), bytes(KEYSTREAM));
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
    fn any_byte_of_the_reply_that_changed_is_noticed() {
        for at in 0..REPLY + SERVER_MESSAGE.len() {
            let (state, request) = client(&keys().published(), CLIENT_MESSAGE).expect("begun");
            let (mut reply, _) = server(&keys(), &request, greet).expect("answered");
            reply[at] ^= 1;
            assert_eq!(state.finish(&reply).err(), Some(Refused::Unauthentic));
        }
    }

    #[test]
    fn any_byte_of_the_request_that_changed_is_noticed_before_it_is_answered() {
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
        for point in crate::onion::keys::SMALL_ORDER {
            let point: [u8; 32] = bytes(point);
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
}
