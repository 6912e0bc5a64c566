//! What a tor says at its control port, or whoever listens where one is expected: what is told belongs to ports that were claimed, and is written
//! and read again as it was. And what a program says at a client's control socket: each answer is whole lines, and repeats nothing that is none.
//!
//! Each line is one of tor's, a second after the one before; `claim PORT` is a transfer of the monitor's. To the socket each is a command.
#![no_main]

use hoplite_lab::monitor::control::{Told, Tracker};
use hoplite_onion::client::control::Session;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut session = Session::default();
    for line in text.lines() {
        let answer = session.command(line).text;
        assert!(answer.ends_with("\r\n") && answer.is_ascii(), "{answer:?}");
        let is_reply = |line: &str| line.starts_with(|c: char| matches!(c, '2' | '5'));
        assert!(answer.split_terminator("\r\n").all(is_reply), "{answer:?}");
    }
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
