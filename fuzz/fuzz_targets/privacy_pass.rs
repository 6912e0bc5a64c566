//! What clients, relays and issuers say of private tokens of either type: whatever is read is written as it was, fields never stop the reader, and what
//! is no key, point or proof is nothing else.
#![no_main]

use std::sync::{Arc, LazyLock};

use hoplite_tokens::{
    ChallengeDigests, IssuerKey, KeyDirectory, ListedKey, PublicKey, Verifier, VerifierKeys,
};
use hoplite_wire::privacy_pass::{
    PrivateToken, TokenChallenge, TokenRequest, TokenResponse, TokenType, challenges, decode_batch,
    decode_batch_response, encode_batch, encode_batch_response,
};
use libfuzzer_sys::fuzz_target;

const NOW: u64 = 1_800_000_000;

static KEY: LazyLock<Arc<IssuerKey>> = LazyLock::new(|| {
    let key = IssuerKey::from_text(&format!("voprf {}", "A".repeat(63) + "E"));
    Arc::new(key.expect("a key"))
});
static RELAY: LazyLock<Verifier> = LazyLock::new(|| {
    let directory = KeyDirectory {
        request_uri: "/".into(),
        keys: vec![ListedKey {
            key: KEY.public().clone(),
            not_before: 0,
        }],
    };
    let keys = VerifierKeys::new(directory, vec![Arc::clone(&KEY)]).expect("keys");
    Verifier::new("issuer.example", "origin.example", keys).expect("names")
});

fuzz_target!(|bytes: &[u8]| {
    written_as_read(bytes);
    keys(bytes);
    if let Ok(token) = PrivateToken::decode(bytes) {
        RELAY.verify(&token, NOW).expect_err("nobody has made it");
    }
    if let Ok(request) = TokenRequest::decode(bytes)
        && let Ok(answer) = KEY.issue(&request.blinded)
    {
        assert_eq!(answer.token_type(), TokenType::Voprf);
        assert_eq!(request.token_type(), TokenType::Voprf);
    }
    if let Ok(answer) = TokenResponse::decode(TokenType::Voprf, bytes) {
        let digests = ChallengeDigests::ahead("issuer.example", "origin.example");
        let digests = digests.expect("names");
        let asked = KEY.public().request(digests.of(TokenType::Voprf));
        let (_, pending) = asked.expect("a request");
        pending.finish(&answer).expect_err("nobody has proven it");
    }
});

fn keys(bytes: &[u8]) {
    for token_type in TokenType::ALL {
        if let Ok(key) = PublicKey::from_token_key(token_type, bytes) {
            assert_eq!((key.token_type(), key.token_key()), (token_type, bytes));
        }
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(directory) = KeyDirectory::parse(text) {
        let again = KeyDirectory::parse(&directory.to_json());
        assert_eq!(again.expect("a directory"), directory);
    }
    if let Ok(keys) = VerifierKeys::parse(text) {
        assert_eq!(VerifierKeys::parse(&keys.to_json()).expect("keys"), keys);
    }
    drop(IssuerKey::from_text(text));
}

fn written_as_read(bytes: &[u8]) {
    if let Ok(challenge) = TokenChallenge::decode(bytes) {
        assert_eq!(challenge.encode().as_deref(), Ok(bytes));
        let field = challenge.to_field(b"key").expect("a challenge");
        assert_eq!(challenges(field.as_bytes()), [(challenge, b"key".to_vec())]);
    }
    if let Ok(token) = PrivateToken::decode(bytes) {
        assert_eq!(token.encode().as_slice(), bytes);
        assert_eq!(
            PrivateToken::from_field(token.to_field().as_bytes()),
            Some(Ok(token))
        );
    }
    if let Ok(request) = TokenRequest::decode(bytes) {
        assert_eq!(request.encode(), bytes);
    }
    for token_type in TokenType::ALL {
        if let Ok(response) = TokenResponse::decode(token_type, bytes) {
            assert_eq!(response.encode(), bytes);
        }
    }
    if let Ok(batch) = decode_batch(bytes, 8) {
        // A length may be written in more bytes than it needs.
        assert_eq!(decode_batch(&encode_batch(&batch), 8), Ok(batch));
    }
    for asked in 0..4 {
        if let Ok(answer) = decode_batch_response(bytes, asked) {
            assert_eq!(
                decode_batch_response(&encode_batch_response(&answer), asked),
                Ok(answer)
            );
        }
    }
    drop(challenges(bytes));
    if let Some(Ok(token)) = PrivateToken::from_field(bytes) {
        assert_eq!(
            PrivateToken::from_text(token.to_text().as_bytes()),
            Ok(token)
        );
    }
}
