//! Messages of Conflux, as either end reads them. What is read is written as it was.
#![no_main]

use hoplite_wire::cell::conflux::{Link, Switch, linked_ack};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut out = Vec::new();
    if let Ok(read) = Link::parse(bytes) {
        read.write(&mut out);
        assert_eq!(out, bytes);
    }
    if let Ok(read) = Switch::parse(bytes) {
        out.clear();
        read.write(&mut out);
        assert_eq!(out, bytes);
    }
    let _ = linked_ack(bytes);
});
