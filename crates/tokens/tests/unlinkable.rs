//! Issuer and relays put together all that they have seen, and still do not know which token came of which request.

use std::collections::HashSet;

use hoplite_tokens::IssuerKey;
use hoplite_wire::privacy_pass::{
    Authenticator, BlindedMessage, PrivateToken, TokenRequest, TokenResponse, TokenType,
};
use num_bigint::BigUint;
use p384::{
    NistP384, ProjectivePoint,
    elliptic_curve::{PublicKey, sec1::ToSec1Point},
    hash2curve::GroupDigest,
};
use ring::digest::{Context, SHA384};

struct Transcript {
    request: TokenRequest,
    answer: TokenResponse,
}

fn issued(key: &IssuerKey, number: usize) -> (Vec<Transcript>, Vec<PrivateToken>) {
    let mut all = (Vec::new(), Vec::new());
    for _ in 0..number {
        let (request, pending) = key.public().request(&[7; 32]).expect("a request");
        let answer = key.issue(&request.blinded).expect("an answer");
        all.1.push(pending.finish(&answer).expect("a token"));
        all.0.push(Transcript { request, answer });
    }
    all
}

#[test]
fn every_token_fits_every_request_as_well_as_its_own() {
    let key = IssuerKey::generate(TokenType::BlindRsa).expect("a key");
    let (transcripts, tokens) = issued(&key, 12);
    // The modulus is the longest integer of the key's DER.
    let spki = key.public().token_key();
    let start = spki
        .windows(4)
        .position(|at| at == [2, 0x82, 1, 1])
        .expect("an integer");
    let n = BigUint::from_bytes_be(&spki[start + 4..start + 4 + 257]);
    let e = BigUint::from(65_537u32);
    for transcript in &transcripts {
        let blinded = BigUint::from_bytes_be(transcript.request.blinded.as_bytes());
        let answer = BigUint::from_bytes_be(&transcript.answer.encode());
        for token in &tokens {
            let Authenticator::BlindRsa(signature) = token.authenticator() else {
                panic!("another type")
            };
            let signature = BigUint::from_bytes_be(signature);
            let padded = signature.modpow(&e, &n);
            // The blinding that would make this token of this answer would have made this request, too.
            let blind = answer.clone() * signature.modinv(&n).expect("invertible") % &n;
            assert_eq!(blind.modpow(&e, &n) * padded % &n, blinded);
        }
    }
}

/// `HashToGroup` of RFC 9497 §4.4 for VOPRF(P-384, SHA-384).
fn hash_to_group(input: &[u8]) -> ProjectivePoint {
    let tag: [&[u8]; 2] = [b"HashToGroup-OPRFV1-\x01-", b"P384-SHA384"];
    NistP384::hash_from_bytes(&[input], &tag).expect("a point")
}

fn point(bytes: &[u8]) -> ProjectivePoint {
    let point = PublicKey::<NistP384>::from_sec1_bytes(bytes);
    point.expect("a point").to_projective()
}

/// The last step of `Finalize`, RFC 9497 §3.3.1.
fn output(input: &[u8], unblinded: &ProjectivePoint) -> [u8; 48] {
    let element = unblinded.to_sec1_point(true);
    let mut hash = Context::new(&SHA384);
    for part in [input, element.as_bytes()] {
        hash.update(&u16::try_from(part.len()).expect("short").to_be_bytes());
        hash.update(part);
    }
    hash.update(b"Finalize");
    hash.finish().as_ref().try_into().expect("48 bytes")
}

/// What the key makes of a point, without its proof.
fn evaluate(key: &IssuerKey, element: ProjectivePoint) -> ProjectivePoint {
    let bytes = element.to_sec1_point(true);
    let blinded = BlindedMessage::Voprf(bytes.as_bytes().try_into().expect("49 bytes"));
    let answer = key.issue(&blinded).expect("an answer");
    evaluated(&answer).expect("of its type")
}

fn evaluated(answer: &TokenResponse) -> Option<ProjectivePoint> {
    match answer {
        TokenResponse::Voprf { evaluated, .. } => Some(point(evaluated)),
        TokenResponse::BlindRsa(_) => None,
    }
}

/// A token is made of a point P and of k·P, where k is the key; a request is B, and its answer k·B. The group has a prime order: for each P and B there is
/// one blinding r with r·P = B, and with it r·(k·P) = k·B. So each token may have come of each request, if only one k has made them all.
#[test]
fn every_token_of_the_voprf_fits_every_request_since_one_key_has_made_them_all() {
    let key = IssuerKey::generate(TokenType::Voprf).expect("a key");
    let (transcripts, tokens) = issued(&key, 12);
    for token in &tokens {
        let input = token.input().encode(TokenType::Voprf);
        let element = hash_to_group(&input);
        let made = evaluate(&key, element);
        let authenticator = Authenticator::Voprf(output(&input, &made));
        assert!(*token.authenticator() == authenticator);
        for transcript in &transcripts {
            let asked = point(transcript.request.blinded.as_bytes());
            let both = evaluate(&key, element + asked);
            let answered = evaluated(&transcript.answer).expect("of its type");
            assert_eq!(both, made + answered);
        }
    }
}

#[test]
fn nothing_that_the_issuer_saw_comes_again_in_a_token() {
    for token_type in TokenType::ALL {
        let key = IssuerKey::generate(token_type).expect("a key");
        let (transcripts, tokens) = issued(&key, 50);
        let mut seen = HashSet::new();
        for transcript in &transcripts {
            for bytes in [
                transcript.request.blinded.as_bytes(),
                &transcript.answer.encode(),
            ] {
                seen.extend(bytes.windows(4).map(<[u8]>::to_vec));
            }
        }
        let nonces: HashSet<_> = tokens.iter().map(|token| *token.nonce()).collect();
        assert_eq!(nonces.len(), tokens.len());
        // Eight bytes in a row are not alike by chance; four may be.
        for token in &tokens {
            let bytes = token.encode();
            let own = [token.nonce().as_slice(), &bytes[98..]].concat();
            let runs = own
                .windows(4)
                .map(|bytes| seen.contains(bytes))
                .collect::<Vec<_>>();
            assert!(!runs.windows(5).any(|run| run.iter().all(|same| *same)));
        }
    }
}
