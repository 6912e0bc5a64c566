//! Tor's certificates: reading never panics, and what is read is read again from what it writes, with its signature.
#![no_main]

use hoplite_wire::cell::cert::{Ed25519Cert, RsaCrossCert};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(parsed) = Ed25519Cert::parse(bytes) {
        assert_eq!([parsed.signed, parsed.signature].concat(), bytes);
        let mut out = Vec::new();
        parsed.cert.write(&mut out);
        out.extend_from_slice(parsed.signature);
        assert_eq!(
            Ed25519Cert::parse(&out).expect("it was written").cert,
            parsed.cert
        );
    }
    if let Ok(parsed) = RsaCrossCert::parse(bytes) {
        let mut out = Vec::new();
        parsed.cert.write(&mut out);
        assert_eq!(parsed.signed, out);
        RsaCrossCert::write_signature(parsed.signature, &mut out);
        assert_eq!(out, bytes);
    }
});
