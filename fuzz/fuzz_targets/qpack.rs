//! Field sections: what is decoded keeps to the limit, and is decoded to the same when it is encoded again.
#![no_main]

use hoplite_wire::qpack;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|section: &[u8]| {
    let Ok(fields) = qpack::decode(section, 4096) else {
        return;
    };
    assert!(
        fields
            .iter()
            .map(|(name, value)| name.len() + value.len() + 32)
            .sum::<usize>()
            <= 4096
    );
    let again = qpack::encode(fields.iter().map(|(name, value)| (&name[..], &value[..])));
    assert_eq!(qpack::decode(&again, 4096), Ok(fields));
});
