//! Addresses of onion services as anybody may type them, and the files of services and their clients: what is read is written again so.
#![no_main]

use hoplite_crypto::onion::{
    client_authorisation::{ClientKey, ClientSecret},
    service_keys::{OnionAddress, ServiceIdentity},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(identity) = ServiceIdentity::from_file(bytes) {
        assert_eq!(identity.file().as_slice(), bytes);
    }
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    if let Ok(address) = text.parse::<OnionAddress>() {
        assert_eq!(address.to_string(), text.to_ascii_lowercase());
    }
    if let Ok(key) = ClientKey::from_file(text) {
        assert_eq!(ClientKey::from_file(&key.file()), Ok(key));
    }
    if let Ok((address, secret)) = ClientSecret::from_file(text) {
        let file = secret.file(&address);
        let (service, again) = ClientSecret::from_file(&file).expect("it was written");
        assert_eq!((service, again.public()), (address, secret.public()));
    }
});
