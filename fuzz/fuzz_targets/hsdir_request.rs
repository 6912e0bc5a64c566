//! What an HSDir is asked for: a method and a target. What is read is read again from what it writes.
#![no_main]

use hoplite_wire::tor::hsdir_request::HsDirRequest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (method, target) = text.split_once(' ').unwrap_or((text, ""));
    if let Some(asked) = HsDirRequest::parse(method, target) {
        let again = HsDirRequest::parse(asked.method(), &asked.target());
        assert_eq!(again, Some(asked));
        assert_eq!(method, asked.method());
    }
});
