use std::{convert::Infallible, sync::LazyLock};

use blind_rsa_signatures::reexports::rand::{TryCryptoRng, TryRng};
use hoplite_wire::privacy_pass::{ELEMENT_LEN, PROOF_LEN, SIGNATURE_LEN};
use serde::Deserialize;

use super::*;

/// One of each type.
static KEYS: LazyLock<[IssuerKey; 2]> =
    LazyLock::new(|| TokenType::ALL.map(|it| IssuerKey::generate(it).expect("a key")));

/// RFC 9578 appendix B.
#[derive(Deserialize)]
struct Vector {
    #[serde(rename = "skS")]
    secret: String,
    #[serde(rename = "pkS")]
    public: String,
    token_challenge: String,
    nonce: String,
    blind: String,
    /// Of blind RSA alone.
    salt: Option<String>,
    token_request: String,
    token_response: String,
    token: String,
}

/// Gives what a vector says instead of randomness: the salt, then the blind.
struct Told(Vec<Vec<u8>>);

impl TryRng for Told {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        unreachable!("only bytes are asked for")
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        unreachable!("only bytes are asked for")
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Infallible> {
        out.copy_from_slice(&self.0.remove(0));
        Ok(())
    }
}

impl TryCryptoRng for Told {}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(|p| pair(p).expect("hex")).collect()
}

fn vectors(json: &str) -> Vec<Vector> {
    let vectors: Vec<Vector> = serde_json::from_str(json).expect("vectors");
    assert_eq!(vectors.len(), 5);
    vectors
}

impl Vector {
    /// The request that comes of what the vector has as randomness.
    fn request(&self, public: &PublicKey, random: Vec<Vec<u8>>) -> PendingToken {
        let digest = sha256(&bytes(&self.token_challenge));
        let nonce = bytes(&self.nonce).try_into().expect("32 bytes");
        let asked = public.request_with(&mut Told(random), nonce, digest);
        let (request, pending) = asked.expect("a request");
        assert_eq!(request.encode(), bytes(&self.token_request));
        pending
    }
}

#[test]
fn keys_requests_answers_and_tokens_of_blind_rsa_are_those_of_the_standard() {
    for vector in vectors(include_str!("../../tests/rfc9578-b2.json")) {
        let pem = String::from_utf8(bytes(&vector.secret)).expect("PEM");
        let key = IssuerKey::from_text(&pem).expect("a key");
        assert_eq!(key.public().token_key(), bytes(&vector.public));
        let public = PublicKey::from_token_key(TokenType::BlindRsa, &bytes(&vector.public));
        let public = public.expect("a key");
        // The library draws the blind's bytes in little endian.
        let mut blind = bytes(&vector.blind);
        blind.reverse();
        let salt = vector.salt.as_deref().map(bytes).expect("there");
        let pending = vector.request(&public, vec![salt, blind]);
        let request = TokenRequest::decode(&bytes(&vector.token_request)).expect("a request");
        let answer = key.issue(&request.blinded).expect("a signature");
        assert_eq!(answer.encode(), bytes(&vector.token_response));
        let token = pending.finish(&answer).expect("a token");
        assert_eq!(token.encode().to_vec(), bytes(&vector.token));
        assert!(public.verifies(&token) && key.verifies(&token));
    }
}

#[test]
fn keys_requests_answers_and_tokens_of_the_voprf_are_those_of_the_standard() {
    for vector in vectors(include_str!("../../tests/rfc9578-b1.json")) {
        let key = IssuerKey::from_voprf_secret(&bytes(&vector.secret)).expect("a key");
        assert_eq!(key.public().token_key(), bytes(&vector.public));
        let public = PublicKey::from_token_key(TokenType::Voprf, &bytes(&vector.public));
        let public = public.expect("a key");
        let given = TokenResponse::decode(TokenType::Voprf, &bytes(&vector.token_response));
        let request = TokenRequest::decode(&bytes(&vector.token_request)).expect("a request");
        let ours = key.issue(&request.blinded).expect("an answer");
        // The proof has randomness that the vector does not tell: both are right.
        assert_eq!(
            ours.encode()[..ELEMENT_LEN],
            bytes(&vector.token_response)[..ELEMENT_LEN]
        );
        for answer in [given.expect("an answer"), ours] {
            let pending = vector.request(&public, vec![bytes(&vector.blind)]);
            let token = pending.finish(&answer).expect("a token");
            assert_eq!(token.encode().to_vec(), bytes(&vector.token));
            assert!(key.verifies(&token) && !public.verifies(&token));
        }
    }
}

fn token(key: &IssuerKey) -> PrivateToken {
    let (request, pending) = key.public().request(&[1; 32]).expect("a request");
    let answer = key.issue(&request.blinded).expect("an answer");
    pending.finish(&answer).expect("a token")
}

#[test]
fn a_token_of_another_key_or_with_another_bit_is_not_verified() {
    for key in &*KEYS {
        let token = token(key);
        assert!(key.verifies(&token));
        let other = IssuerKey::generate(key.public().token_type()).expect("a key");
        assert!(!other.verifies(&token));
        let bytes = token.encode();
        for place in [2, 40, 70, 98, 120, bytes.len() - 1] {
            let mut forged = bytes.clone();
            forged[place] ^= 1;
            let forged = PrivateToken::decode(&forged).expect("a token");
            assert!(!key.verifies(&forged), "{place}");
        }
    }
}

#[test]
fn an_authenticator_of_one_type_is_none_for_a_key_of_the_other() {
    let [voprf, rsa] = &*KEYS;
    let input = |key: &IssuerKey| TokenInput {
        key_id: *key.public().id(),
        ..*token(key).input()
    };
    let swapped = [
        (
            voprf,
            PrivateToken::new(input(voprf), token(rsa).authenticator().clone()),
        ),
        (
            rsa,
            PrivateToken::new(input(rsa), token(voprf).authenticator().clone()),
        ),
    ];
    for (key, token) in swapped {
        assert!(!key.verifies(&token) && !key.public().verifies(&token));
    }
}

#[test]
fn an_answer_to_something_else_makes_no_token() {
    for key in &*KEYS {
        let (_, pending) = key.public().request(&[1; 32]).expect("a request");
        let (other, _) = key.public().request(&[1; 32]).expect("a request");
        let answer = key.issue(&other.blinded).expect("an answer");
        assert_eq!(pending.finish(&answer), Err(KeyError::BadResponse));
    }
}

#[test]
fn an_answer_of_another_key_or_with_another_bit_or_of_another_type_makes_no_token() {
    let [voprf, rsa] = &*KEYS;
    let other = IssuerKey::generate(TokenType::Voprf).expect("a key");
    let ask = || voprf.public().request(&[1; 32]).expect("a request");
    let (request, pending) = ask();
    let answer = other.issue(&request.blinded).expect("an answer");
    // The proof is right, for a key that is not the published one.
    assert_eq!(pending.finish(&answer), Err(KeyError::BadResponse));
    for place in 0..ELEMENT_LEN + PROOF_LEN {
        let (request, pending) = ask();
        let mut wrong = voprf.issue(&request.blinded).expect("an answer").encode();
        wrong[place] ^= 1;
        let wrong = TokenResponse::decode(TokenType::Voprf, &wrong).expect("long enough");
        assert_eq!(
            pending.finish(&wrong),
            Err(KeyError::BadResponse),
            "{place}"
        );
    }
    let (request, _) = rsa.public().request(&[1; 32]).expect("a request");
    let answer = rsa.issue(&request.blinded).expect("an answer");
    assert_eq!(ask().1.finish(&answer), Err(KeyError::BadResponse));
}

#[test]
fn what_does_not_fit_a_key_is_not_answered() {
    let [voprf, rsa] = &*KEYS;
    let number = BlindedMessage::BlindRsa([0xff; SIGNATURE_LEN]);
    // No point: the infinite one, another form of one (SEC1 §2.3 and "compact"), an abscissa without one, and one beyond the field.
    let points = [0, 4, 5, 2, 3].map(|tag| {
        let mut point = [0xff; ELEMENT_LEN];
        point[0] = tag;
        BlindedMessage::Voprf(point)
    });
    let zeros = BlindedMessage::Voprf([0; ELEMENT_LEN]);
    for wrong in points.iter().chain([&number, &zeros]) {
        for key in [voprf, rsa] {
            assert_eq!(key.issue(wrong), Err(KeyError::Misfit));
        }
    }
    let mut compact = voprf.public().token_key().to_vec();
    compact[0] = 5;
    let compact = BlindedMessage::Voprf(compact.try_into().expect("a point"));
    assert_eq!(voprf.issue(&compact), Err(KeyError::Misfit));
}

#[test]
fn a_key_is_the_same_from_its_file() {
    for key in &*KEYS {
        let text = key.to_text().expect("text");
        let again = IssuerKey::from_text(&text).expect("a key");
        assert_eq!(again.public(), key.public());
        let (cut, _) = text.split_at(text.len() - 4);
        IssuerKey::from_text(cut).expect_err("it was cut");
    }
    for scalar in [[0; 48], [0xff; 48]] {
        IssuerKey::from_voprf_secret(&scalar).expect_err("zero, and beyond the group's order");
    }
}

#[test]
fn rubbish_is_no_key() {
    for key in &*KEYS {
        let (token_type, bytes) = (key.public().token_type(), key.public().token_key());
        for end in 0..bytes.len() {
            PublicKey::from_token_key(token_type, &bytes[..end]).expect_err("it was cut");
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        PublicKey::from_token_key(token_type, &longer).expect_err("it goes on");
        for other in TokenType::ALL {
            let read = PublicKey::from_token_key(other, bytes);
            assert_eq!(read.is_ok(), other == token_type);
        }
    }
}
