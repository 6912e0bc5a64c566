//! Descriptors of onion services: whatever a directory sends is read or refused, what is signed is a part of it, and each of the three texts is read
//! again from what it writes.
#![no_main]

use hoplite_crypto::onion::descriptor::SignedDescriptor;
use hoplite_wire::{
    cell::circuit::LinkSpecifier,
    tor::service_descriptor::{DESCRIPTOR, FirstLayer, SecondLayer, Wrapper},
};
use libfuzzer_sys::fuzz_target;

/// When the seeds were made, and their certificates hold.
const NOW: u64 = 1_795_653_634;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = str::from_utf8(bytes)
        && let Ok(read) = Wrapper::parse(text, DESCRIPTOR)
    {
        assert!(text.starts_with(read.signed));
        let mut out = Wrapper::write_signed(
            read.lifetime,
            &read.certificate,
            read.revision,
            &read.superencrypted,
        );
        let signed = out.clone();
        Wrapper::write_signature(&read.signature, &mut out);
        let again = Wrapper::parse(&out, out.len()).expect("it was written");
        assert_eq!(again.signed, signed);
        assert_eq!(again, Wrapper { signed: &signed, ..read });
        if let Ok(signed) = SignedDescriptor::parse(text, DESCRIPTOR, NOW) {
            // Whoever has signed it: nobody can open it who does not know the address.
            assert!(signed.open(&signed.key(), &[0; 32], None, NOW).is_err());
        }
    }
    if let Ok(read) = FirstLayer::parse(bytes) {
        assert_eq!(FirstLayer::parse(read.write().as_bytes()), Ok(read));
    }
    if let Ok(read) = SecondLayer::parse(bytes) {
        for point in &read.points {
            assert!(LinkSpecifier::parse_all(&point.link_specifiers).is_ok());
        }
        assert_eq!(SecondLayer::parse(read.write().as_bytes()), Ok(read));
    }
});
