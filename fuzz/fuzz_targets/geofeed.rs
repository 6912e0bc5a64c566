//! Geofeeds and the field of a region: what is read is read again from what is written of it.
#![no_main]

use hoplite_wire::{geofeed::Geofeed, region::Shown};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some(shown) = Shown::read(input) {
        assert_eq!(Shown::read(shown.to_string().as_bytes()), Some(shown));
    }
    if let Ok(feed) = Geofeed::parse(input) {
        for (prefix, _) in feed.entries() {
            _ = feed.region(prefix.addr());
        }
        _ = feed.overlaps();
        assert_eq!(Geofeed::parse(feed.to_string().as_bytes()), Ok(feed));
    }
});
