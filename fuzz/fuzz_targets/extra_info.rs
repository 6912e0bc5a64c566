//! What relays tell of their last days, as whoever collects it reads it; and a relay's own file. What is read is read again from what it writes.
#![no_main]

use hoplite_wire::{
    relay_state::RelayState,
    relay_statistics::RelayStatistics,
    tor::extra_info::{Statistics, Told},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(read) = Statistics::parse(text) {
        let mut written = String::new();
        read.write(&mut written);
        assert_eq!(Statistics::parse(&written), Ok(read));
    }
    if let Ok(read) = RelayState::parse(text) {
        assert_eq!(RelayState::parse(&read.write()), Ok(read));
    }
    for read in RelayStatistics::parse_all(text).flatten() {
        let certificate = read.certificate.as_deref();
        let again = read.told.with(certificate, &read.signature);
        let again = RelayStatistics::parse(&again).expect("it was written");
        assert_eq!(again.told, read.told);
    }
    for told in Told::parse_all(text).flatten() {
        let mut written = String::new();
        told.statistics.write(&mut written);
        assert_eq!(Statistics::parse(&written), Ok(told.statistics));
    }
});
