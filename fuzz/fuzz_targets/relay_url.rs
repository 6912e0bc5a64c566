//! A relay's URL: whatever somebody hands over is no panic, and what is read is written and read again the same.
#![no_main]

use hoplite_crypto::RelayUrl;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(url) = text.parse::<RelayUrl>() {
        assert!(!format!("{url:?}").contains(|c: char| c.is_control()));
        assert_eq!(url.to_string().parse::<RelayUrl>().as_ref(), Ok(&url));
    }
});
