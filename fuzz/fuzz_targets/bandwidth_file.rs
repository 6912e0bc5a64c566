//! Bandwidth files of Tor's. What is read is read again from what it writes, and no relay has two lines.
#![no_main]

use std::collections::HashSet;

use hoplite_wire::tor::bandwidth_file::{BandwidthFile, bandwidths};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = bandwidths(text);
    let Ok(file) = BandwidthFile::parse(text) else {
        return;
    };
    let again = BandwidthFile::parse(&file.to_string());
    assert_eq!(again.as_ref(), Ok(&file));
    let mut seen = HashSet::new();
    for relay in file.relays {
        assert!(relay.bandwidth > 0);
        let rsa = relay.relay.rsa_id().map(|id| id.to_vec());
        let ed25519 = relay.relay.ed25519().map(|key| key.to_vec());
        for id in rsa.into_iter().chain(ed25519) {
            assert!(seen.insert(id), "a relay twice");
        }
    }
});
