//! Commitments to votes, as one authority tells another: what is read is what would be written, byte for byte, and bounded.
#![no_main]

use hoplite_wire::directory::{AUTHORITIES, Commitments};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(found) = Commitments::parse(text) {
        assert_eq!(found.to_string(), text);
        assert!(found.all.len() <= 2 * AUTHORITIES);
        assert!(found.all.values().all(|signed| signed.len() <= AUTHORITIES));
    }
});
