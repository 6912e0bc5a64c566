//! Heads and Proxy-Status: what is accepted is accepted again when it is written.
#![no_main]

use hoplite_wire::{ProxyError, RequestHead, ResponseHead, http_head::check_trailers};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|section: &[u8]| {
    if let Ok(head) = RequestHead::decode(section, 4096) {
        assert_eq!(RequestHead::decode(&head.encode(), 8192), Ok(head));
    }
    if let Ok(head) = ResponseHead::decode(section, 4096) {
        assert_eq!(ResponseHead::decode(&head.encode(), 8192), Ok(head));
    }
    check_trailers(section, 4096).ok();
    if let Some(error) = ProxyError::parse(section) {
        assert_eq!(ProxyError::parse(error.to_value().as_bytes()), Some(error));
    }
});
