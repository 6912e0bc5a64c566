//! What clients, relays and issuers say of private tokens: whatever is read is written as it was, and fields never stop the reader.
#![no_main]

use hoplite_wire::privacy_pass::{
    PrivateToken, TokenChallenge, TokenRequest, challenges, decode_batch, decode_batch_response,
    encode_batch, encode_batch_response,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(challenge) = TokenChallenge::decode(bytes) {
        assert_eq!(challenge.encode().as_deref(), Ok(bytes));
        let field = challenge.to_field(b"key").expect("a challenge");
        assert_eq!(challenges(field.as_bytes()), [(challenge, b"key".to_vec())]);
    }
    if let Ok(token) = PrivateToken::decode(bytes) {
        assert_eq!(token.as_bytes(), bytes);
        assert_eq!(
            PrivateToken::from_field(token.to_field().as_bytes()),
            Some(Ok(token))
        );
    }
    if let Ok(request) = TokenRequest::decode(bytes) {
        assert_eq!(request.encode(), bytes);
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
});
