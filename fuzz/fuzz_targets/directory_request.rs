//! What a directory of Tor's network is asked for: a target and fields. What is read is read again from what it writes.
#![no_main]

use hoplite_wire::{
    content_coding::Encoding,
    tor::directory_request::{DirectoryRequest, diff_from, http_date},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (target, field) = text.split_once('\n').unwrap_or((text, ""));
    if let Some((asked, _)) = DirectoryRequest::parse(target) {
        let again = DirectoryRequest::parse(&asked.target());
        assert_eq!(again, Some((asked, false)));
    }
    drop((
        Encoding::of(Some(field), false),
        diff_from(field),
        http_date(field),
    ));
});
