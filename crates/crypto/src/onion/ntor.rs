//! The ntor handshake: a client and one relay agree on the keys of a layer, and the client knows which relay it is.
//! CREATE2 and EXTEND2 carry it as type 2. tor-spec, "The ntor handshake".
//!
//! A relay's reply to a replayed request has another key each time, so a replay learns nothing; that it is not answered twice is the circuit's care.

use std::fmt;

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{OnionKeys, Refused, RelayKeys, Seed, keys::KeyPair};

const PROTOID: &[u8] = b"ntor-curve25519-sha256-1";

const T_MAC: &[u8] = b"ntor-curve25519-sha256-1:mac";

const T_KEY: &[u8] = b"ntor-curve25519-sha256-1:key_extract";

const T_VERIFY: &[u8] = b"ntor-curve25519-sha256-1:verify";

const M_EXPAND: &[u8] = b"ntor-curve25519-sha256-1:key_expand";

/// What goes into CREATE2: node id, key id, the client's key.
pub const REQUEST: usize = 84;

/// What comes in CREATED2: the relay's key, its proof.
pub const REPLY: usize = 64;

/// What a client keeps until the reply.
pub struct ClientState {
    relay: RelayKeys,
    own: KeyPair,
}

/// Begins a handshake with `relay`: what is kept, and the request to be sent.
///
/// # Errors
/// [`Refused::System`].
pub fn client(relay: &RelayKeys) -> Result<(ClientState, Vec<u8>), Refused> {
    Ok(client_with(relay, KeyPair::generate()?))
}

fn client_with(relay: &RelayKeys, own: KeyPair) -> (ClientState, Vec<u8>) {
    let request = [&relay.rsa_id[..], &relay.onion, own.public()].concat();
    let relay = *relay;
    (ClientState { relay, own }, request)
}

impl ClientState {
    /// Checks the reply.
    ///
    /// # Errors
    /// `Malformed`, `BadKey`, `Unauthentic`. The circuit is closed then.
    pub fn finish(self, reply: &[u8]) -> Result<Seed, Refused> {
        let reply: &[u8; REPLY] = reply.try_into().map_err(|_| Refused::Malformed)?;
        let (theirs, proof) = reply.split_first_chunk().ok_or(Refused::Malformed)?;
        let transcript = Transcript {
            rsa_id: &self.relay.rsa_id,
            onion: &self.relay.onion,
            client: self.own.public(),
            server: theirs,
        };
        let fresh = self.own.agree(theirs)?;
        let bound = self.own.agree(&self.relay.onion)?;
        let (key, expected) = transcript.finish(&fresh, &bound);
        if bool::from(expected.as_slice().ct_eq(proof)) {
            Ok(Seed::rfc5869(key, M_EXPAND))
        } else {
            Err(Refused::Unauthentic)
        }
    }
}

impl fmt::Debug for ClientState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ntor::ClientState(hidden)")
    }
}

/// A relay's answer to a request: the reply to be sent, and the seed.
///
/// # Errors
/// Each of [`Refused`] but `Unauthentic` and `Unacceptable`: a client proves nothing.
pub fn server(keys: &OnionKeys, request: &[u8]) -> Result<(Vec<u8>, Seed), Refused> {
    server_with(keys, request, KeyPair::generate)
}

fn server_with(
    keys: &OnionKeys,
    request: &[u8],
    own: impl FnOnce() -> Result<KeyPair, Refused>,
) -> Result<(Vec<u8>, Seed), Refused> {
    let request: &[u8; REQUEST] = request.try_into().map_err(|_| Refused::Malformed)?;
    let (rsa_id, rest) = request.split_first_chunk().ok_or(Refused::Malformed)?;
    let (onion, client) = rest.split_first_chunk().ok_or(Refused::Malformed)?;
    let client: &[u8; 32] = client.try_into().map_err(|_| Refused::Malformed)?;
    if !bool::from(keys.rsa_id.ct_eq(rsa_id)) {
        return Err(Refused::WrongRelay);
    }
    let pair = keys.find(onion)?;
    let bound = pair.agree(client)?;
    let own = own()?;
    let fresh = own.agree(client)?;
    let server = own.public();
    let transcript = Transcript {
        rsa_id,
        onion,
        client,
        server,
    };
    let (key, proof) = transcript.finish(&fresh, &bound);
    let reply = [&server[..], proof.as_slice()].concat();
    Ok((reply, Seed::rfc5869(key, M_EXPAND)))
}

/// The public part of a handshake, in the specification's letters: ID, B, X and Y.
struct Transcript<'a> {
    rsa_id: &'a [u8; 20],
    onion: &'a [u8; 32],
    client: &'a [u8; 32],
    server: &'a [u8; 32],
}

type Secret = Zeroizing<[u8; 32]>;

impl Transcript<'_> {
    /// `KEY_SEED` and `AUTH`.
    fn finish(&self, fresh: &Secret, bound: &Secret) -> (Secret, Secret) {
        let Self {
            rsa_id,
            onion,
            client,
            server,
        } = *self;
        let secret_input: [&[u8]; 7] = [
            fresh.as_slice(),
            bound.as_slice(),
            rsa_id,
            onion,
            client,
            server,
            PROTOID,
        ];
        let verify = hash(T_VERIFY, &secret_input);
        let auth_input: [&[u8]; 7] = [
            verify.as_slice(),
            rsa_id,
            onion,
            server,
            client,
            PROTOID,
            b"Server",
        ];
        (hash(T_KEY, &secret_input), hash(T_MAC, &auth_input))
    }
}

/// `H(x, t)`: HMAC-SHA256 of `parts` one after another, with key `t`.
fn hash(tweak: &[u8], parts: &[&[u8]]) -> Secret {
    let mut context = hmac::Context::with_key(&hmac::Key::new(HMAC_SHA256, tweak));
    for part in parts {
        context.update(part);
    }
    let mut out = Zeroizing::new([0; 32]);
    out.copy_from_slice(context.sign().as_ref());
    out
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
        KeyPair::from_octets(&bytes(secret)).expect("a key")
    }

    fn keys() -> OnionKeys {
        let current = OnionKey::from_secret(&bytes(ONION_SECRET)).expect("a key");
        OnionKeys::new(bytes(ID), [7; 32], current, None)
    }

    fn expanded(seed: &Seed) -> [u8; 72] {
        let mut out = [0; 72];
        seed.fill(&mut out).expect("bytes");
        out
    }

    #[test]
    fn the_published_handshake_comes_out_byte_for_byte() {
        let relay = keys().published();
        assert_eq!(relay.onion, bytes(ONION));
        let (state, request) = client_with(&relay, pair(CLIENT_SECRET));
        assert_eq!(request, hex(&[ID, ONION, CLIENT].concat()));
        let server = server_with(&keys(), &request, || Ok(pair(SERVER_SECRET)));
        let (reply, theirs) = server.expect("answered");
        assert_eq!(reply, hex(REPLY_VECTOR));
        let ours = state.finish(&reply).expect("authentic");
        assert_eq!(expanded(&ours), bytes(KEYS));
        assert_eq!(expanded(&theirs), bytes(KEYS));
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
    fn any_byte_of_the_reply_that_changed_is_noticed() {
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
        for point in crate::onion::keys::SMALL_ORDER {
            let point: [u8; 32] = bytes(point);
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
}
