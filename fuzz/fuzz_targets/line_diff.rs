//! Differences of documents: commands that somebody made up are obeyed or refused, and what they make is no longer than they and the document together;
//! the commands for two documents make the one of the other.
#![no_main]

use hoplite_wire::{directory::list_diff::ListDiff, line_diff, tor::consensus_diff::ConsensusDiff};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (old, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    let old = format!("{old}\n");
    if let Ok(new) = line_diff::apply(&old, rest) {
        assert!(new.len() <= old.len() + rest.len());
    }
    if let Some(script) = line_diff::make(&old, rest) {
        assert_eq!(line_diff::apply(&old, &script).as_deref(), Ok(rest));
    }
    if let Some(made) = ConsensusDiff::make((&[1; 32], &old), (&[2; 32], rest)) {
        let diff = ConsensusDiff::parse(&made).expect("read");
        assert_eq!(diff.apply(&old).as_deref(), Ok(rest));
    }
    if let Ok(diff) = ConsensusDiff::parse(text) {
        drop(diff.apply(&old));
    }
    if let Ok(diff) = ListDiff::parse(text) {
        drop(diff.apply(&old));
    }
});
