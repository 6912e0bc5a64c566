//! What a relay asks of a token before it looks whether it is spent: it is for this relay, and an issuer that is trusted has made it.

use hoplite_wire::privacy_pass::{PrivacyPassError, PrivateToken, TokenChallenge, TokenType};

use crate::{ChallengeDigests, KeyDirectory, VerifierKeys};

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
    /// The key has not made it.
    #[error("the token's authenticator is wrong")]
    Forged,
}

/// The tokens that one relay takes of one issuer.
#[derive(Clone, Debug)]
pub struct Verifier {
    issuer: String,
    origin: String,
    digests: ChallengeDigests,
    keys: VerifierKeys,
}

impl Verifier {
    /// Takes tokens of `issuer` for `origin`, by which a relay is known, or a fleet of them.
    ///
    /// # Errors
    /// A name is empty or too long.
    pub fn new(issuer: &str, origin: &str, keys: VerifierKeys) -> Result<Self, PrivacyPassError> {
        Ok(Self {
            issuer: issuer.to_owned(),
            origin: origin.to_owned(),
            digests: ChallengeDigests::ahead(issuer, origin)?,
            keys,
        })
    }

    /// SHA-256 of the challenge: what tokens of this type are made for.
    pub const fn challenge_digest(&self, token_type: TokenType) -> &[u8; 32] {
        self.digests.of(token_type)
    }

    /// What tokens are verified with.
    pub const fn keys(&self) -> &VerifierKeys {
        &self.keys
    }

    const fn directory(&self) -> &KeyDirectory {
        self.keys.directory()
    }

    /// What a client without a token is told: the value of `WWW-Authenticate` or `Proxy-Authenticate`. None while no key is in use.
    pub fn challenge(&self, now: u64) -> Option<String> {
        let key = self.directory().current(now)?;
        let challenge = TokenChallenge::ahead(key.token_type(), &self.issuer, &self.origin);
        challenge.to_field(key.token_key()).ok()
    }

    /// Whether the token may be spent; what it costs is in `docs/tokens.md`.
    ///
    /// # Errors
    /// [`TokenRefused`].
    pub fn verify(&self, token: &PrivateToken, now: u64) -> Result<(), TokenRefused> {
        if token.challenge_digest() != self.challenge_digest(token.token_type()) {
            return Err(TokenRefused::OtherChallenge);
        }
        let mut keys = self.directory().keys.iter();
        let key = keys.find(|listed| {
            listed.key.id() == token.key_id() && listed.not_before <= now.saturating_add(SKEW)
        });
        let key = &key.ok_or(TokenRefused::UnknownKey)?.key;
        if self.keys.verifies(key, token) {
            Ok(())
        } else {
            Err(TokenRefused::Forged)
        }
    }

    /// Whether a key of this id is one of the issuer's: what was spent of others need not be remembered.
    pub fn knows(&self, key_id: &[u8; 32]) -> bool {
        let mut keys = self.directory().keys.iter();
        keys.any(|listed| listed.key.id() == key_id)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{IssuerKey, ListedKey, challenge_digest};

    const NOW: u64 = 100_000;

    fn generate(token_type: TokenType) -> Arc<IssuerKey> {
        Arc::new(IssuerKey::generate(token_type).expect("a key"))
    }

    /// A relay with this key and its secret.
    fn verifier(issuer: &str, origin: &str, key: &Arc<IssuerKey>, not_before: u64) -> Verifier {
        let listed = ListedKey {
            key: key.public().clone(),
            not_before,
        };
        let directory = KeyDirectory {
            request_uri: "/token-request".into(),
            keys: vec![listed],
        };
        let keys = VerifierKeys::new(directory, vec![Arc::clone(key)]).expect("keys");
        Verifier::new(issuer, origin, keys).expect("names")
    }

    fn token(key: &IssuerKey, verifier: &Verifier) -> PrivateToken {
        let digest = verifier.challenge_digest(key.public().token_type());
        let (request, pending) = key.public().request(digest).expect("a request");
        let answer = key.issue(&request.blinded).expect("an answer");
        pending.finish(&answer).expect("a token")
    }

    #[test]
    fn a_token_admits_where_it_is_for_and_nowhere_else() {
        for token_type in TokenType::ALL {
            let [key, other] = [(); 2].map(|()| generate(token_type));
            let ours = verifier("issuer.test", "relay.test", &key, NOW);
            let token = token(&key, &ours);
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
            let mut forged = token.encode();
            forged[10] ^= 1;
            let forged = PrivateToken::decode(&forged).expect("a token");
            assert_eq!(ours.verify(&forged, NOW), Err(TokenRefused::Forged));
        }
    }

    #[test]
    fn a_token_of_one_type_is_not_taken_for_one_of_the_other() {
        let [voprf, rsa] = TokenType::ALL.map(generate);
        let [by_voprf, by_rsa] =
            [&voprf, &rsa].map(|key| verifier("issuer.test", "relay.test", key, NOW));
        let (first, second) = (token(&voprf, &by_voprf), token(&rsa, &by_rsa));
        assert_ne!(first.challenge_digest(), second.challenge_digest());
        assert_eq!(by_voprf.verify(&second, NOW), Err(TokenRefused::UnknownKey));
        assert_eq!(by_rsa.verify(&first, NOW), Err(TokenRefused::UnknownKey));
        // The other's authenticator, with all else as it should be.
        let mixed = PrivateToken::new(*first.input(), second.authenticator().clone());
        let refused = by_voprf.verify(&mixed, NOW);
        assert_eq!(refused, Err(TokenRefused::OtherChallenge));
    }

    #[test]
    fn the_challenge_tells_a_client_what_to_ask_for() {
        for token_type in TokenType::ALL {
            let key = generate(token_type);
            let verifier = verifier("issuer.test", "relay.test", &key, NOW);
            assert_eq!(verifier.challenge(NOW - 1), None);
            let field = verifier.challenge(NOW).expect("a key is in use");
            let found = hoplite_wire::privacy_pass::challenges(field.as_bytes());
            let [(challenge, token_key)] = found.as_slice() else {
                panic!("{field}")
            };
            assert_eq!(challenge.token_type, token_type);
            assert_eq!(
                challenge_digest(challenge).as_ref(),
                Ok(verifier.challenge_digest(token_type))
            );
            assert_eq!(token_key, key.public().token_key());
        }
    }
}
