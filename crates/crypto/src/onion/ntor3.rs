//! The ntor-v3 handshake: as ntor, and each side's message, enciphered, travels with it (what congestion control is offered, for one).
//! `onion` sends it in CREATE2 and EXTEND2 (type 3). tor-spec, "The ntor-v3 handshake"; proposal 332.
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
    seed::{encap_length, shake256},
    x25519::KeyPair,
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
fn encipher(key: &Secret, message: &mut [u8]) -> Result<(), Refused> {
    let key = UnboundCipherKey::new(&AES_256, key.as_slice()).map_err(|_| Refused::System)?;
    let key = EncryptingKey::ctr(key).map_err(|_| Refused::System)?;
    let counter = EncryptionContext::Iv128(FixedLength::from([0; 16]));
    let done = key.less_safe_encrypt(message, counter);
    done.map(drop).map_err(|_| Refused::System)
}

#[cfg(test)]
mod tests;
