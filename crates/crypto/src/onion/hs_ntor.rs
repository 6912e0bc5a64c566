//! The handshake of an onion service's client with the service: the client encrypts what introduces it for the key that the service has at an
//! introduction point, and both agree on the keys of the layer between them. INTRODUCE1 and RENDEZVOUS1 carry it. rend-spec-v3,
//! "NTOR-WITH-EXTRA-DATA".
//!
//! What introduces the client is not forward secret: who gets the service's key for the introduction point reads it. The layer is.

use std::fmt;

use aws_lc_rs::digest::{self, SHA3_256};
use hoplite_wire::cell::onion_service::Introduce;
use shake::{ExtendableOutput, Shake256, Update, XofReader};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{OnionKey, Refused, Seed, keys::KeyPair, ntor3::encipher};

const PROTOID: &[u8] = b"tor-hs-ntor-curve25519-sha3-256-1";
const T_ENC: &[u8] = b"tor-hs-ntor-curve25519-sha3-256-1:hs_key_extract";
const T_VERIFY: &[u8] = b"tor-hs-ntor-curve25519-sha3-256-1:hs_verify";
const T_MAC: &[u8] = b"tor-hs-ntor-curve25519-sha3-256-1:hs_mac";
const M_EXPAND: &[u8] = b"tor-hs-ntor-curve25519-sha3-256-1:hs_key_expand";

/// The client's key before what is encrypted.
const KEY: usize = 32;
/// The MAC behind it.
const MAC: usize = 32;
/// What comes in RENDEZVOUS2: the service's key, its proof.
pub const REPLY: usize = 64;

type Secret = Zeroizing<[u8; 32]>;

/// What a client knows of a service at one introduction point. The descriptor has the first two; the third follows from the service's identity.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IntroductionKeys {
    /// By which the relay knows the service (`AUTH_KEY`), Ed25519.
    pub auth: [u8; 32],
    /// That clients encrypt for (`KP_hss_ntor`), X25519.
    pub encryption: [u8; 32],
    /// Of the service in this time period (`N_hs_subcred`).
    pub subcredential: [u8; 32],
}

/// What a client keeps until the service has answered.
pub struct ClientState {
    point: IntroductionKeys,
    own: KeyPair,
}

/// Begins a handshake: what is kept, and INTRODUCE1 with this plaintext for the service.
///
/// # Errors
/// [`Refused::System`]; [`Refused::BadKey`]: the service's key gives no secret.
pub fn client(
    point: &IntroductionKeys,
    plaintext: &[u8],
) -> Result<(ClientState, Vec<u8>), Refused> {
    client_with(point, plaintext, KeyPair::generate()?)
}

fn client_with(
    point: &IntroductionKeys,
    plaintext: &[u8],
    own: KeyPair,
) -> Result<(ClientState, Vec<u8>), Refused> {
    let shared = own.agree(&point.encryption)?;
    let keys = IntroductionSecrets::derive(&shared, point, own.public());
    let mut encrypted = plaintext.to_vec();
    encipher(&keys.encryption, &mut encrypted)?;
    let mut message = Vec::with_capacity(56 + KEY + plaintext.len() + MAC);
    let introduce = Introduce {
        auth_key: point.auth,
        encrypted: &[own.public(), encrypted.as_slice()].concat(),
    };
    introduce.write(&mut message);
    let mac = mac(keys.mac.as_slice(), &[&message]);
    message.extend_from_slice(mac.as_slice());
    Ok((ClientState { point: *point, own }, message))
}

impl ClientState {
    /// Checks what the service has answered.
    ///
    /// # Errors
    /// `Malformed`, `BadKey`, `Unauthentic`. The circuit is closed then.
    pub fn finish(self, reply: &[u8]) -> Result<Seed, Refused> {
        let reply: &[u8; REPLY] = reply.first_chunk().ok_or(Refused::Malformed)?;
        let (theirs, proof) = reply.split_first_chunk().ok_or(Refused::Malformed)?;
        let fresh = self.own.agree(theirs)?;
        let bound = self.own.agree(&self.point.encryption)?;
        let transcript = Transcript {
            point: &self.point,
            client: self.own.public(),
            service: theirs,
        };
        let (key, expected) = transcript.finish(&fresh, &bound);
        if bool::from(expected.as_slice().ct_eq(proof)) {
            Ok(Seed::shake256_of(key, M_EXPAND))
        } else {
            Err(Refused::Unauthentic)
        }
    }
}

/// What a service has at one introduction point.
#[derive(Clone)]
pub struct IntroductionSecret {
    auth: [u8; 32],
    encryption: OnionKey,
}

/// A client that has introduced itself, and waits at its rendezvous point.
pub struct Introduced {
    point: IntroductionKeys,
    client: [u8; 32],
    bound: Secret,
}

impl IntroductionSecret {
    /// The public key by which the relay knows the service, and the secret half of the one that clients encrypt for.
    pub fn new(auth: [u8; 32], encryption: OnionKey) -> Self {
        Self { auth, encryption }
    }

    /// What clients are told of it, in the time period of this subcredential.
    pub fn published(&self, subcredential: [u8; 32]) -> IntroductionKeys {
        IntroductionKeys {
            auth: self.auth,
            encryption: *self.encryption.public(),
            subcredential,
        }
    }

    /// Reads an INTRODUCE2: the client's plaintext, and what it is answered with. Several subcredentials may be good when periods overlap.
    /// That a message is not answered twice is the caller's care.
    ///
    /// # Errors
    /// `Malformed`; `WrongRelay`: it is for another key; `BadKey`; `Unauthentic`: it was changed, or made for another service.
    pub fn introduced(
        &self,
        message: &[u8],
        subcredentials: &[[u8; 32]],
    ) -> Result<(Zeroizing<Vec<u8>>, Introduced), Refused> {
        let read = Introduce::parse(message).map_err(|_| Refused::Malformed)?;
        if read.auth_key != self.auth {
            return Err(Refused::WrongRelay);
        }
        let (client, rest) = read
            .encrypted
            .split_first_chunk::<KEY>()
            .ok_or(Refused::Malformed)?;
        let (encrypted, shown) = rest.split_last_chunk::<MAC>().ok_or(Refused::Malformed)?;
        let (authenticated, _) = message
            .split_last_chunk::<MAC>()
            .ok_or(Refused::Malformed)?;
        let bound = self.encryption.pair().agree(client)?;
        for subcredential in subcredentials {
            let point = self.published(*subcredential);
            let keys = IntroductionSecrets::derive(&bound, &point, client);
            let expected = mac(keys.mac.as_slice(), &[authenticated]);
            if bool::from(expected.as_slice().ct_eq(shown)) {
                let mut plaintext = Zeroizing::new(encrypted.to_vec());
                encipher(&keys.encryption, &mut plaintext)?;
                let client = *client;
                let introduced = Introduced {
                    point,
                    client,
                    bound,
                };
                return Ok((plaintext, introduced));
            }
        }
        Err(Refused::Unauthentic)
    }
}

impl Introduced {
    /// What RENDEZVOUS1 carries for the client, and the seed of the layer.
    ///
    /// # Errors
    /// [`Refused::System`], `BadKey`.
    pub fn answer(self) -> Result<([u8; REPLY], Seed), Refused> {
        self.answer_with(&KeyPair::generate()?)
    }

    fn answer_with(self, own: &KeyPair) -> Result<([u8; REPLY], Seed), Refused> {
        let fresh = own.agree(&self.client)?;
        let transcript = Transcript {
            point: &self.point,
            client: &self.client,
            service: own.public(),
        };
        let (key, proof) = transcript.finish(&fresh, &self.bound);
        let mut reply = [0; REPLY];
        let (first, second) = reply.split_at_mut(KEY);
        first.copy_from_slice(own.public());
        second.copy_from_slice(proof.as_slice());
        Ok((reply, Seed::shake256_of(key, M_EXPAND)))
    }
}

/// What INTRODUCE1 is encrypted and authenticated with.
struct IntroductionSecrets {
    encryption: Secret,
    mac: Secret,
}

impl IntroductionSecrets {
    /// `hs_keys`.
    fn derive(shared: &Secret, point: &IntroductionKeys, client: &[u8; 32]) -> Self {
        let mut hash = Shake256::default();
        for part in [
            shared.as_slice(),
            &point.auth,
            client,
            &point.encryption,
            PROTOID,
            T_ENC,
            M_EXPAND,
            &point.subcredential,
        ] {
            hash.update(part);
        }
        let mut stream = hash.finalize_xof();
        let (mut encryption, mut mac) = (Secret::default(), Secret::default());
        stream.read(encryption.as_mut_slice());
        stream.read(mac.as_mut_slice());
        Self { encryption, mac }
    }
}

/// The public part of a handshake: AUTH_KEY and B, X and Y in the specification's letters.
struct Transcript<'a> {
    point: &'a IntroductionKeys,
    client: &'a [u8; 32],
    service: &'a [u8; 32],
}

impl Transcript<'_> {
    /// `NTOR_KEY_SEED` and `AUTH_INPUT_MAC`.
    fn finish(&self, fresh: &Secret, bound: &Secret) -> (Secret, Secret) {
        let (auth, encryption) = (&self.point.auth, &self.point.encryption);
        let mut input = Zeroizing::new(Vec::with_capacity(6 * 32 + PROTOID.len()));
        for part in [
            fresh.as_slice(),
            bound.as_slice(),
            auth,
            encryption,
            self.client,
            self.service,
            PROTOID,
        ] {
            input.extend_from_slice(part);
        }
        let verify = mac(&input, &[T_VERIFY]);
        let mut proven = Zeroizing::new(Vec::with_capacity(5 * 32 + PROTOID.len() + 6));
        for part in [
            verify.as_slice(),
            auth,
            encryption,
            self.service,
            self.client,
            PROTOID,
            b"Server",
        ] {
            proven.extend_from_slice(part);
        }
        (mac(&input, &[T_ENC]), mac(&proven, &[T_MAC]))
    }
}

/// `MAC(key, message)`, where `message` is `parts` one after another: SHA3-256 of the key's length, the key and the message.
/// rend-spec-v3, "Cryptographic building blocks".
pub(super) fn mac(key: &[u8], parts: &[&[u8]]) -> Secret {
    let mut context = digest::Context::new(&SHA3_256);
    // No key is longer than what a `u64` counts.
    context.update(&u64::try_from(key.len()).unwrap_or(u64::MAX).to_be_bytes());
    context.update(key);
    parts.iter().for_each(|part| context.update(part));
    let mut out = Secret::default();
    out.copy_from_slice(context.finish().as_ref());
    out
}

impl fmt::Debug for IntroductionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IntroductionKeys(hidden)")
    }
}

impl fmt::Debug for IntroductionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IntroductionSecret(hidden)")
    }
}

impl fmt::Debug for ClientState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hs_ntor::ClientState(hidden)")
    }
}

impl fmt::Debug for Introduced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Introduced(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{bytes, hex},
        *,
    };

    // rend-spec-v3, appendix G.1.

    const AUTH: &str = "34E171E4358E501BFF21ED907E96AC6BFEF697C779D040BBAF49ACC30FC5D21F";
    const ENCRYPTION: &str = "8E5127A40E83AABF6493E41F142B6EE3604B85A3961CD7E38D247239AFF71979";
    const ENCRYPTION_SECRET: &str =
        "A0ED5DBF94EEB2EDB3B514E4CF6ABFF6022051CC5F103391F1970A3FCD15296A";
    const SUBCREDENTIAL: &str = "0085D26A9DEBA252263BF0231AEAC59B17CA11BAD8A218238AD6487CBAD68B57";
    const PLAINTEXT: &str = "
        6BD364C12638DD5C3BE23D76ACA05B04E6CE932C0101000100200DE6130E4FCA
        C4EDDA24E21220CC3EADAE403EF6B7D11C8273AC71908DE565450300067F0000
        0113890214F823C4F8CC085C792E0AEE0283FE00AD7520B37D0320728D5DF39B
        7B7077A0118A900FF4456C382F0041300ACF9C58E51C392795EF870000000000
        0000000000000000000000000000000000000000000000000000000000000000
        000000000000000000000000000000000000000000000000000000000000";
    const CLIENT_SECRET: &str = "60B4D6BF5234DCF87A4E9D7487BDF3F4A69B6729835E825CA29089CFDDA1E341";
    const MESSAGE: &str = "
        000000000000000000000000000000000000000002002034E171E4358E501BFF
        21ED907E96AC6BFEF697C779D040BBAF49ACC30FC5D21F00BF04348B46D09AED
        726F1D66C618FDEA1DE58E8CB8B89738D7356A0C59111D5DADBECCCB38E37830
        4DCC179D3D9E437B452AF5702CED2CCFEC085BC02C4C175FA446525C1B9D5530
        563C362FDFFB802DAB8CD9EBC7A5EE17DA62E37DEEB0EB187FBB48C63298B0E8
        3F391B7566F42ADC97C46BA7588278273A44CE96BC68FFDAE31EF5F0913B9A9C
        7E0F173DBC0BDDCD4ACB4C4600980A7DDD9EAEC6E7F3FA3FC37CD95E5B8BFB3E
        35717012B78B4930569F895CB349A07538E42309C993223AEA77EF8AEA64F25D
        DEE97DA623F1AEC0A47F150002150455845C385E5606E41A9A199E7111D54EF2
        D1A51B7554D8B3692D85AC587FB9E69DF990EFB776D8";
    const SERVICE_SECRET: &str = "68CB5188CA0CD7924250404FAB54EE1392D3D2B9C049A2E446513875952F8F55";
    const REPLY_VECTOR: &str = "
        8FBE0DB4D4A9C7FF46701E3E0EE7FD05CD28BE4F302460ADDEEC9E93354EE700
        4A92E8437B8424D5E5EC279245D5C72B25A0327ACF6DAF902079FCB643D8B208";
    const SEED: &str = "4D0C72FE8AFF35559D95ECC18EB5A36883402B28CDFD48C8A530A5A3D7D578DB";

    fn pair(secret: &str) -> KeyPair {
        KeyPair::from_octets(&bytes(secret)).expect("a key")
    }

    fn secret() -> IntroductionSecret {
        let encryption = OnionKey::from_secret(&bytes(ENCRYPTION_SECRET)).expect("a key");
        IntroductionSecret::new(bytes(AUTH), encryption)
    }

    fn expanded(seed: &Seed) -> [u8; 128] {
        let mut out = [0; 128];
        seed.fill(&mut out).expect("bytes");
        out
    }

    #[test]
    fn the_published_handshake_comes_out_byte_for_byte() {
        let point = secret().published(bytes(SUBCREDENTIAL));
        assert_eq!(point.encryption, bytes(ENCRYPTION));
        let begun = client_with(&point, &hex(PLAINTEXT), pair(CLIENT_SECRET));
        let (state, message) = begun.expect("begun");
        assert_eq!(message, hex(MESSAGE));
        // Of two periods, one is right.
        let periods = [[1; 32], bytes(SUBCREDENTIAL)];
        let (plaintext, introduced) = secret().introduced(&message, &periods).expect("read");
        assert_eq!(*plaintext, hex(PLAINTEXT));
        let answered = introduced.answer_with(&pair(SERVICE_SECRET));
        let (reply, theirs) = answered.expect("answered");
        assert_eq!(reply.to_vec(), hex(REPLY_VECTOR));
        let ours = state.finish(&reply).expect("authentic");
        let published = Seed::shake256_of(Zeroizing::new(bytes(SEED)), M_EXPAND);
        assert_eq!(expanded(&ours), expanded(&published));
        assert_eq!(expanded(&theirs), expanded(&published));
    }

    #[test]
    fn any_byte_that_changed_is_noticed_at_either_end() {
        let point = secret().published([7; 32]);
        let (_, message) = client(&point, b"introduces").expect("begun");
        for at in 0..message.len() {
            let mut changed = message.clone();
            changed[at] ^= 1;
            secret()
                .introduced(&changed, &[[7; 32]])
                .expect_err("changed");
            secret()
                .introduced(&message[..at], &[[7; 32]])
                .expect_err("cut off");
        }
        for at in 0..REPLY {
            let (state, message) = client(&point, b"introduces").expect("begun");
            let (_, introduced) = secret().introduced(&message, &[[7; 32]]).expect("read");
            let (mut reply, _) = introduced.answer().expect("answered");
            reply[at] ^= 1;
            state.finish(&reply).expect_err("changed");
        }
    }

    #[test]
    fn nobody_reads_what_is_for_another_service_or_another_period() {
        let point = secret().published([7; 32]);
        let (_, message) = client(&point, b"introduces").expect("begun");
        let refused = |secret: IntroductionSecret, periods: &[[u8; 32]]| {
            secret.introduced(&message, periods).map(drop).err()
        };
        assert_eq!(refused(secret(), &[[8; 32]]), Some(Refused::Unauthentic));
        assert_eq!(refused(secret(), &[]), Some(Refused::Unauthentic));
        let fresh = OnionKey::fresh_secret().expect("randomness");
        let other = OnionKey::from_secret(&fresh).expect("a key");
        let same_place = IntroductionSecret::new(bytes(AUTH), other.clone());
        assert_eq!(refused(same_place, &[[7; 32]]), Some(Refused::Unauthentic));
        let elsewhere = IntroductionSecret::new([9; 32], other);
        assert_eq!(refused(elsewhere, &[[7; 32]]), Some(Refused::WrongRelay));
    }

    #[test]
    fn keys_of_small_order_give_no_secret_at_either_end() {
        for point in crate::onion::keys::SMALL_ORDER {
            let small: [u8; 32] = bytes(point);
            let mut keys = secret().published([7; 32]);
            keys.encryption = small;
            let refused = client(&keys, b"introduces").map(drop).err();
            assert_eq!(refused, Some(Refused::BadKey));

            let keys = secret().published([7; 32]);
            let (state, mut message) = client(&keys, b"introduces").expect("begun");
            let (_, introduced) = secret().introduced(&message, &[[7; 32]]).expect("read");
            let (mut reply, _) = introduced.answer().expect("answered");
            reply[..32].copy_from_slice(&small);
            assert_eq!(state.finish(&reply).err(), Some(Refused::BadKey));
            message[56..88].copy_from_slice(&small);
            let refused = secret().introduced(&message, &[[7; 32]]).map(drop).err();
            assert_eq!(refused, Some(Refused::BadKey));
        }
    }

    #[test]
    fn nothing_secret_is_printed() {
        let point = secret().published([7; 32]);
        let (state, message) = client(&point, b"introduces").expect("begun");
        let (_, introduced) = secret().introduced(&message, &[[7; 32]]).expect("read");
        let shown = format!("{state:?} {introduced:?} {point:?} {:?}", secret());
        assert!(!shown.bytes().any(|c| c.is_ascii_digit()), "{shown}");
    }
}
