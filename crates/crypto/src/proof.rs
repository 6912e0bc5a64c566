//! Proof that the holder of a TLS key says something: a signature by the key that a pin names, beside any handshake.
//! A relay proves by it under which key it publishes its descriptor; authorities check it before they believe its pin.

use std::{fmt, str::FromStr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rustls::{SignatureScheme, pki_types::SignatureVerificationAlgorithm, sign::CertifiedKey};
use x509_parser::asn1_rs::{Any, BitString, FromDer};

use crate::{Pin, provider};

/// How it is signed: one way for each kind of key.
const SCHEMES: [SignatureScheme; 5] = [
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA256,
];

/// Bytes of a proof's text: keys and signatures of RSA 8192 have room.
const MAX_LENGTH: usize = 3072;

/// A public key (SubjectPublicKeyInfo, DER) and a signature by it. Written as both in base64url, with a point between.
#[derive(Clone, PartialEq, Eq)]
pub struct Proof {
    key: Vec<u8>,
    signature: Vec<u8>,
}

/// The text is no proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a public key and a signature in base64url, with a point between")]
pub struct ProofError;

impl Proof {
    /// By the key of a certificate; none if it is of a kind that signs in no known way.
    pub(crate) fn by(key: &CertifiedKey, message: &[u8]) -> Option<Self> {
        let (_, shown) = x509_parser::parse_x509_certificate(key.end_entity_cert().ok()?).ok()?;
        let signer = key.key.choose_scheme(&SCHEMES)?;
        Some(Self {
            key: shown.public_key().raw.to_vec(),
            signature: signer.sign(message).ok()?,
        })
    }

    /// Whether the holder of the key that `pin` names has signed `message`, whose first 64 bytes must be fixed and say what it is: more than an
    /// end of a TLS handshake can have the other sign as it likes (RFC 8446 §4.4.3, RFC 5246 §7.4.3).
    pub fn is_of(&self, pin: &Pin, message: &[u8]) -> bool {
        pin.matches(&self.pin()) && self.is_signed(message) == Some(true)
    }

    /// Whose it claims to be.
    pub fn pin(&self) -> Pin {
        Pin::of_spki(&self.key)
    }

    fn is_signed(&self, message: &[u8]) -> Option<bool> {
        // SubjectPublicKeyInfo ::= SEQUENCE { algorithm SEQUENCE { … }, subjectPublicKey BIT STRING } (RFC 5280 §4.1).
        let (_, whole) = Any::from_der(&self.key).ok()?;
        let (rest, kind) = Any::from_der(whole.data).ok()?;
        let (_, key) = BitString::from_der(rest).ok()?;
        let known = provider().signature_verification_algorithms.mapping;
        let known = known.iter().filter(|(scheme, _)| SCHEMES.contains(scheme));
        // The first is the one that TLS 1.3 means by the scheme.
        let mut known = known.filter_map(|(_, algorithms)| algorithms.first());
        let algorithm: &&dyn SignatureVerificationAlgorithm =
            known.find(|algorithm| algorithm.public_key_alg_id().as_ref() == kind.data)?;
        let verified = algorithm.verify_signature(&key.data, message, &self.signature);
        Some(verified.is_ok())
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        write!(f, "{}.{}", encode(&self.key), encode(&self.signature))
    }
}

impl FromStr for Proof {
    type Err = ProofError;

    fn from_str(text: &str) -> Result<Self, ProofError> {
        let parts = text.split_once('.').filter(|_| text.len() <= MAX_LENGTH);
        let (key, signature) = parts.ok_or(ProofError)?;
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| ProofError);
        Ok(Self {
            key: decode(key)?,
            signature: decode(signature)?,
        })
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Certificates, Identity};
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, SignatureAlgorithm};

    const SAID: &[u8] = b"what the holder says";

    fn identity(algorithm: &'static SignatureAlgorithm) -> Identity {
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let params = CertificateParams::new(Vec::new()).expect("fine");
        let certificate = params.self_signed(&key).expect("signed");
        let (certificate, key) = (certificate.pem(), key.serialize_pem());
        Identity::from_pem(certificate.as_bytes(), key.as_bytes()).expect("an identity")
    }

    fn proven(identity: &Identity) -> Proof {
        let certificates = Certificates::new(identity).expect("fits");
        certificates.prove(SAID).expect("signs")
    }

    #[test]
    fn the_holder_of_a_pins_key_proves_what_it_says_whatever_kind_of_key_that_is() {
        let kinds = [
            &rcgen::PKCS_ECDSA_P256_SHA256,
            &rcgen::PKCS_ECDSA_P384_SHA384,
            &rcgen::PKCS_ED25519,
        ];
        for kind in kinds {
            let identity = identity(kind);
            let proof: Proof = proven(&identity).to_string().parse().expect("read");
            assert!(proof.is_of(&identity.pin(), SAID), "{kind:?}");
            assert!(!proof.is_of(&identity.pin(), b"something else"), "{kind:?}");
        }
    }

    /// What OpenSSL signs, by a key of RSA too.
    #[test]
    fn anothers_signatures_are_read_the_same_way() {
        let proofs = [
            include_str!("../../../fuzz/seeds/pin_proof/ecdsa"),
            include_str!("../../../fuzz/seeds/pin_proof/ed25519"),
            include_str!("../../../fuzz/seeds/pin_proof/rsa"),
        ];
        for text in proofs {
            let proof: Proof = text.parse().expect("read");
            assert!(proof.is_of(&proof.pin(), b"message"));
            assert!(!proof.is_of(&proof.pin(), b"massage"));
        }
    }

    #[test]
    fn nobody_proves_anything_for_anothers_pin() {
        let kind = &rcgen::PKCS_ECDSA_P256_SHA256;
        let (honest, attacker) = (identity(kind), identity(kind));
        let theirs = proven(&attacker);
        assert!(!theirs.is_of(&honest.pin(), SAID));
        // With the honest one's key, which all handshakes show.
        let mixed = Proof {
            key: proven(&honest).key,
            ..theirs
        };
        assert!(!mixed.is_of(&honest.pin(), SAID));
    }

    #[test]
    fn it_is_by_the_certificate_that_is_shown_now() {
        let kind = &rcgen::PKCS_ECDSA_P256_SHA256;
        let (old, new) = (identity(kind), identity(kind));
        let certificates = Certificates::new(&old).expect("fits");
        certificates.replace(&new).expect("fits");
        assert_eq!(certificates.pin(), Some(new.pin()));
        let proof = certificates.prove(SAID).expect("signs");
        assert!(proof.is_of(&new.pin(), SAID) && !proof.is_of(&old.pin(), SAID));
    }

    proptest! {
        #[test]
        fn any_text_and_any_key_is_judged_without_a_panic(text in ".{0,80}", key: Vec<u8>, signature: Vec<u8>) {
            drop(text.parse::<Proof>());
            let proof = Proof { key, signature };
            prop_assert_eq!(proof.to_string().parse(), Ok(proof.clone()));
            prop_assert!(!proof.is_of(&proof.pin(), SAID));
        }
    }
}
