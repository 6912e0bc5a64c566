//! Tor's directory documents: whatever comes is read or refused, and what is to be signed or hashed is a part of what came.
#![no_main]

use hoplite_wire::tor::{Consensus, KeyCertificate, Microdescriptor};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(consensus) = Consensus::parse(text) {
        assert!(text.starts_with(consensus.signed));
        assert!(consensus.valid_after < consensus.fresh_until);
    }
    if let Ok(found) = KeyCertificate::parse_all(text) {
        assert!(
            found
                .iter()
                .all(|one| text.contains(one.text) && one.text.starts_with(one.signed))
        );
    }
    if let Ok(found) = Microdescriptor::parse_all(text) {
        assert!(
            found
                .iter()
                .all(|one| one.text.starts_with("onion-key") || one.text.starts_with("opt "))
        );
    }
});
