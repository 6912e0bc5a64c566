//! How a service shows a relay that it has the key by which it wants to be introduced, and that it says so on this circuit: a message of another
//! circuit serves nobody who has seen it. rend-spec-v3, "ESTABLISH_INTRO".

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use hoplite_wire::cell::onion_service::{EstablishIntro, IntroductionRate};
use subtle::ConstantTimeEq;

use super::{CircuitNonce, Refused, hs_ntor::mac};
use crate::SigningKey;

const PREFIX: &[u8] = b"Tor establish-intro cell v1";

/// Checks what a service has sent on the circuit of this nonce.
///
/// # Errors
/// [`Refused::Unauthentic`].
pub fn verify(message: &EstablishIntro<'_>, nonce: &CircuitNonce) -> Result<(), Refused> {
    let expected = mac(nonce.as_bytes(), &[message.authenticated]);
    if !bool::from(expected.as_slice().ct_eq(&message.mac)) {
        return Err(Refused::Unauthentic);
    }
    let key = UnparsedPublicKey::new(&ED25519, &message.auth_key);
    key.verify(&[PREFIX, message.signed].concat(), &message.signature)
        .map_err(|_| Refused::Unauthentic)
}

/// ESTABLISH_INTRO for the circuit of this nonce.
pub fn establish(
    key: &SigningKey,
    rate: Option<IntroductionRate>,
    nonce: &CircuitNonce,
) -> Vec<u8> {
    let mut out = Vec::new();
    EstablishIntro::write_authenticated(&key.public(), rate, &mut out);
    let mac = mac(nonce.as_bytes(), &[&out]);
    out.extend(*mac);
    let signature = key.sign(&[PREFIX, &out].concat());
    out.extend([0, 64]);
    out.extend(signature);
    out
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Seed, layers::RelayCrypto},
        *,
    };
    use zeroize::Zeroizing;

    fn nonce(byte: u8) -> CircuitNonce {
        let seed = Seed::rfc5869(Zeroizing::new([byte; 32]), b"of this test");
        CircuitNonce::draw(&seed, RelayCrypto::Tor1).expect("a nonce")
    }

    #[test]
    fn only_the_keys_holder_is_believed_and_only_on_the_circuit_that_he_said_it_on() {
        let key = SigningKey::generate().expect("a key");
        let bytes = establish(&key, None, &nonce(1));
        let message = EstablishIntro::parse(&bytes).expect("reads");
        assert_eq!(message.auth_key, key.public());
        assert_eq!(verify(&message, &nonce(1)), Ok(()));
        assert_eq!(verify(&message, &nonce(2)), Err(Refused::Unauthentic));
        for at in 3..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let Ok(message) = EstablishIntro::parse(&changed) else {
                continue;
            };
            assert_eq!(
                verify(&message, &nonce(1)),
                Err(Refused::Unauthentic),
                "{at}"
            );
        }
    }
}
