//! What a balancer reads of an id: any bytes have a server or are unroutable, and an id that was made has the server that it was made for.
#![no_main]

use hoplite_crypto::RoutableIds;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, [u8; 16], &[u8])| {
    let (config, server, key, id) = input;
    let (config, server) = (config % 8, usize::from(server % 20));
    let nonce = usize::from(id.first().copied().unwrap_or_default() & 0x1f).saturating_sub(server);
    let Ok(ids) = RoutableIds::new(config, server, nonce, &key) else {
        return;
    };
    if let Some(whose) = ids.open(id) {
        assert_eq!(whose.as_bytes().len(), server);
    }
    if let Some(sealed) = id.split_at_checked(server).and_then(|(whose, rest)| {
        let made = ids.seal(whose, rest.get(..nonce)?)?;
        assert_eq!(ids.open(made.as_bytes()).expect("opened").as_bytes(), whose);
        Some(made)
    }) {
        assert_eq!(sealed.as_bytes().len(), ids.id_length());
    }
});
