//! What proves a pin: what is read is what would be written, and no key or signature that somebody sends is a panic.
#![no_main]

use hoplite_crypto::Proof;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(proof) = text.parse::<Proof>() {
        assert_eq!(proof.to_string(), text);
        proof.is_of(&proof.pin(), b"message");
    }
});
