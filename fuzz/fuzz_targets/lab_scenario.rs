//! Scenarios and subjects: whatever is written, it is refused with a reason, or every run of it resolves.
#![no_main]

use std::path::Path;

use hoplite_lab::experiments::scenario::{self, subject_file::SubjectFile};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match scenario::parse("fuzz.toml", text) {
        Err(failure) => assert!(failure.to_string().starts_with("hoplite-lab: fuzz.toml:")),
        Ok(scenario) if scenario.runs() > 1000 => {}
        Ok(scenario) => {
            for key in scenario.keys() {
                let trial = scenario.trial(&key, Path::new("/attempt"), Path::new("/shared"));
                assert_eq!(trial.expect("a checked scenario resolves").key, key);
            }
        }
    }
    if let Err(failure) = SubjectFile::parse("fuzz.toml", text) {
        assert!(failure.to_string().starts_with("hoplite-lab: fuzz.toml:"));
    }
});
