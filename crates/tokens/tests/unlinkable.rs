//! Issuer and relays put together all that they have seen, and still do not know which token came of which request.

use std::collections::HashSet;

use hoplite_tokens::IssuerKey;
use hoplite_wire::privacy_pass::{PrivateToken, TokenRequest};
use num_bigint::BigUint;

struct Transcript {
    request: TokenRequest,
    answer: [u8; 256],
}

fn issued(key: &IssuerKey, number: usize) -> (Vec<Transcript>, Vec<PrivateToken>) {
    let mut all = (Vec::new(), Vec::new());
    for _ in 0..number {
        let (request, pending) = key.public().request(&[7; 32]).expect("a request");
        let answer = key.sign(&request.blinded).expect("a signature");
        all.1.push(pending.finish(&answer).expect("a token"));
        all.0.push(Transcript { request, answer });
    }
    all
}

#[test]
fn every_token_fits_every_request_as_well_as_its_own() {
    let key = IssuerKey::generate().expect("a key");
    let (transcripts, tokens) = issued(&key, 12);
    // The modulus is the longest integer of the key's DER.
    let spki = key.public().spki();
    let start = spki
        .windows(4)
        .position(|at| at == [2, 0x82, 1, 1])
        .expect("an integer");
    let n = BigUint::from_bytes_be(&spki[start + 4..start + 4 + 257]);
    let e = BigUint::from(65_537u32);
    for transcript in &transcripts {
        let blinded = BigUint::from_bytes_be(&transcript.request.blinded);
        let answer = BigUint::from_bytes_be(&transcript.answer);
        for token in &tokens {
            let signature = BigUint::from_bytes_be(token.authenticator());
            let padded = signature.modpow(&e, &n);
            // The blinding that would make this token of this answer would have made this request, too.
            let blind = answer.clone() * signature.modinv(&n).expect("invertible") % &n;
            assert_eq!(blind.modpow(&e, &n) * padded % &n, blinded);
        }
    }
}

#[test]
fn nothing_that_the_issuer_saw_comes_again_in_a_token() {
    let key = IssuerKey::generate().expect("a key");
    let (transcripts, tokens) = issued(&key, 50);
    let mut seen = HashSet::new();
    for transcript in &transcripts {
        for bytes in [transcript.request.blinded, transcript.answer] {
            seen.extend(bytes.windows(4).map(<[u8]>::to_vec));
        }
    }
    let nonces: HashSet<_> = tokens.iter().map(|token| *token.nonce()).collect();
    assert_eq!(nonces.len(), tokens.len());
    // Eight bytes in a row are not alike by chance; four may be.
    for token in &tokens {
        let own = [token.nonce().as_slice(), token.authenticator()].concat();
        let runs = own
            .windows(4)
            .map(|bytes| seen.contains(bytes))
            .collect::<Vec<_>>();
        assert!(!runs.windows(5).any(|run| run.iter().all(|same| *same)));
    }
}
