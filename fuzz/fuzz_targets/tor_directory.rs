//! Tor's directory documents: whatever comes is read or refused, and what is to be signed or hashed is a part of what came.
#![no_main]

use hoplite_wire::tor::{
    Consensus, KeyCertificate, Microdescriptor,
    server_descriptor::{
        ServerDescriptor, Signed, put_ed25519_signature, put_rsa_signature,
    },
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(consensus) = Consensus::parse(text) {
        assert!(text.starts_with(consensus.signed));
        assert!(consensus.valid_after < consensus.fresh_until);
    }
    if let Ok(found) = KeyCertificate::parse_all(text) {
        assert!(
            found
                .iter()
                .all(|one| text.contains(one.text) && one.text.starts_with(one.signed))
        );
    }
    if let Ok(found) = Microdescriptor::parse_all(text) {
        assert!(
            found
                .iter()
                .all(|one| one.text.starts_with("onion-key") || one.text.starts_with("opt "))
        );
    }
    if let Ok(read) = ServerDescriptor::parse(text) {
        assert!(text.starts_with(read.ed25519_signed) && text.starts_with(read.rsa_signed));
        let mut out = read.descriptor.write();
        let ed25519_signed = out.clone();
        put_ed25519_signature(&read.ed25519_signature, &mut out);
        let rsa_signed = out.clone();
        put_rsa_signature(&read.rsa_signature, &mut out);
        let again = Signed {
            ed25519_signed: &ed25519_signed,
            rsa_signed: &rsa_signed,
            ..read
        };
        assert_eq!(ServerDescriptor::parse(&out), Ok(again));
    }
});
