//! What a relay asks of a token before it looks whether it is spent: it is for this relay, and an issuer that is trusted has signed it.

use hoplite_wire::privacy_pass::{PrivacyPassError, PrivateToken, TokenChallenge};

use crate::{KeyDirectory, PublicKey, challenge_digest};

/// How far the issuer's clock, the clients' and ours may be apart, in seconds: a key is taken so much earlier than it is used.
const SKEW: u64 = 600;

/// Why a token does not admit anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefused {
    /// It is for another relay, or another issuer's.
    #[error("the token is for another challenge")]
    OtherChallenge,
    /// Its key is not one of the issuer's, any more or yet.
    #[error("the token's key is not in use")]
    UnknownKey,
    /// Nobody has signed it.
    #[error("the token's signature is wrong")]
    Forged,
}

/// The tokens that one relay takes of one issuer.
#[derive(Clone, Debug)]
pub struct Verifier {
    challenge: TokenChallenge,
    digest: [u8; 32],
    keys: KeyDirectory,
}

impl Verifier {
    /// Takes tokens of `issuer` for `origin`, by which a relay is known, or a fleet of them.
    ///
    /// # Errors
    /// A name is empty or too long.
    pub fn new(issuer: &str, origin: &str, keys: KeyDirectory) -> Result<Self, PrivacyPassError> {
        // Without a context tokens can be fetched ahead: what a relay sees then says nothing of when and for what.
        let challenge = TokenChallenge {
            issuer: issuer.to_owned(),
            redemption_context: None,
            origin_info: origin.to_owned(),
        };
        Ok(Self {
            digest: challenge_digest(&challenge)?,
            challenge,
            keys,
        })
    }

    /// SHA-256 of the challenge: what tokens are made for.
    pub fn challenge_digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The issuer's keys.
    pub fn keys(&self) -> &KeyDirectory {
        &self.keys
    }

    /// What a client without a token is told: the value of `WWW-Authenticate` or `Proxy-Authenticate`. None while no key is in use.
    pub fn challenge(&self, now: u64) -> Option<String> {
        let key = self.keys.current(now)?;
        self.challenge.to_field(key.spki()).ok()
    }

    /// Whether the token may be spent; some 20 microseconds.
    ///
    /// # Errors
    /// [`TokenRefused`].
    pub fn verify(&self, token: &PrivateToken, now: u64) -> Result<(), TokenRefused> {
        if token.challenge_digest() != &self.digest {
            return Err(TokenRefused::OtherChallenge);
        }
        let mut keys = self.keys.keys.iter();
        let key = keys.find(|listed| {
            listed.key.id() == token.key_id() && listed.not_before <= now.saturating_add(SKEW)
        });
        let key: &PublicKey = &key.ok_or(TokenRefused::UnknownKey)?.key;
        if key.verifies(token) {
            Ok(())
        } else {
            Err(TokenRefused::Forged)
        }
    }

    /// Whether a key of this id is one of the issuer's: what was spent of others need not be remembered.
    pub fn knows(&self, key_id: &[u8; 32]) -> bool {
        self.keys
            .keys
            .iter()
            .any(|listed| listed.key.id() == key_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IssuerKey, ListedKey};

    const NOW: u64 = 100_000;

    fn directory(key: &IssuerKey, not_before: u64) -> KeyDirectory {
        KeyDirectory {
            request_uri: "/token-request".into(),
            keys: vec![ListedKey {
                key: key.public().clone(),
                not_before,
            }],
        }
    }

    fn token(key: &IssuerKey, digest: &[u8; 32]) -> PrivateToken {
        let (request, pending) = key.public().request(digest).expect("a request");
        let answer = key.sign(&request.blinded).expect("a signature");
        pending.finish(&answer).expect("a token")
    }

    #[test]
    fn a_token_admits_where_it_is_for_and_nowhere_else() {
        let (key, other) = (
            IssuerKey::generate().expect("a key"),
            IssuerKey::generate().expect("a key"),
        );
        let verifier = |issuer, origin, key, from| {
            Verifier::new(issuer, origin, directory(key, from)).expect("names")
        };
        let ours = verifier("issuer.test", "relay.test", &key, NOW);
        let token = token(&key, ours.challenge_digest());
        assert_eq!(ours.verify(&token, NOW), Ok(()));
        assert_eq!(
            ours.verify(&token, NOW - SKEW - 1),
            Err(TokenRefused::UnknownKey),
            "not yet"
        );
        for (issuer, origin) in [("issuer.test", "other.test"), ("other.test", "relay.test")] {
            let elsewhere = verifier(issuer, origin, &key, NOW);
            assert_eq!(
                elsewhere.verify(&token, NOW),
                Err(TokenRefused::OtherChallenge)
            );
        }
        let rotated = verifier("issuer.test", "relay.test", &other, NOW);
        assert_eq!(rotated.verify(&token, NOW), Err(TokenRefused::UnknownKey));
        let mut forged = *token.as_bytes();
        forged[10] ^= 1;
        let forged = PrivateToken::decode(&forged).expect("a token");
        assert_eq!(ours.verify(&forged, NOW), Err(TokenRefused::Forged));
    }

    #[test]
    fn the_challenge_tells_a_client_what_to_ask_for() {
        let key = IssuerKey::generate().expect("a key");
        let verifier =
            Verifier::new("issuer.test", "relay.test", directory(&key, NOW)).expect("names");
        assert_eq!(verifier.challenge(NOW - 1), None);
        let field = verifier.challenge(NOW).expect("a key is in use");
        let found = hoplite_wire::privacy_pass::challenges(field.as_bytes());
        let [(challenge, spki)] = found.as_slice() else {
            panic!("{field}")
        };
        assert_eq!(
            challenge_digest(challenge).as_ref(),
            Ok(verifier.challenge_digest())
        );
        assert_eq!(spki, key.public().spki());
    }
}
