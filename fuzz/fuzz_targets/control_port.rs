//! What a tor says at its control port, or whoever listens where one is expected: what is told belongs to ports that were claimed, and is written
//! and read again as it was.
//!
//! Each line is one of tor's, a second after the one before; `claim PORT` is a transfer of the monitor's.
#![no_main]

use hoplite_lab::monitor::control::{Told, Tracker};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (mut tracker, mut claimed) = (Tracker::default(), false);
    for (at, line) in (0u32..).zip(text.lines()) {
        match line.strip_prefix("claim ").map(str::parse) {
            Some(Ok(port)) => {
                tracker.claim(port);
                claimed = true;
            }
            _ => tracker.line(line, at.into()),
        }
        for told in tracker.take() {
            assert!(claimed, "{told:?}");
            let text = serde_json::to_string(&told).expect("it can be written");
            let read: Told = serde_json::from_str(&text).expect("and read");
            assert_eq!(read, told);
        }
    }
});
