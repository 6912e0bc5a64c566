//! Documents of the directory: what is read is what would be written, byte for byte, and a list is no vote.
#![no_main]

use hoplite_wire::directory::{SignedDescriptor, SignedList, Stage, split_signed};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(signed) = SignedDescriptor::parse(text) {
        assert_eq!(signed.to_string(), text);
        assert_eq!(signed.descriptor.check(), Ok(()));
    }
    let list = SignedList::parse(text, Stage::List);
    let vote = SignedList::parse(text, Stage::Vote);
    assert!(list.is_err() || vote.is_err());
    if let Ok(signed) = list.or(vote) {
        assert_eq!(signed.to_string(), text);
        let (body, signatures) = split_signed(text).expect("it has been read whole");
        assert_eq!(
            (body, signatures),
            (signed.list.text().as_str(), signed.signatures)
        );
    } else {
        drop(split_signed(text));
    }
});
