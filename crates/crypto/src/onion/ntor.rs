//! The ntor handshake: a client and one relay agree on the keys of a layer, and the client knows which relay it is.
//! `onion` sends it in CREATE2 and EXTEND2 (type 2). tor-spec, "The ntor handshake".
//!
//! A relay's reply to a replayed request has another key each time, so a replay learns nothing; that it is not answered twice is the circuit's care.

use std::fmt;

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{OnionKeys, Refused, RelayKeys, Seed, x25519::KeyPair};

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
mod tests;
