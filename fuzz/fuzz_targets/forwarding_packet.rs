//! Packets on a client's road to a relay: ids are found within them, and any of them is scrambled and restored, or left alone.
#![no_main]

use std::sync::LazyLock;

use hoplite_crypto::{Scramble, TooShort};
use hoplite_wire::forwarding::{Key, is_long, is_short, long_header_ids, short_header_id};
use libfuzzer_sys::fuzz_target;

static SCRAMBLE: LazyLock<Scramble> =
    LazyLock::new(|| Scramble::new(&Key::new([7; 32].into())).expect("a cipher"));

fuzz_target!(|bytes: &[u8]| {
    let Some((id_len, packet)) = bytes.split_first() else {
        return;
    };
    let id_len = usize::from(*id_len);
    ids(packet, id_len);
    round(packet, id_len);
});

fn ids(packet: &[u8], id_len: usize) {
    assert!(packet.is_empty() || is_long(packet) != is_short(packet));
    if let Some(ids) = long_header_ids(packet) {
        assert!(is_long(packet));
        let header = 7 + ids.destination.len() + ids.source.len();
        assert!(header <= packet.len());
        assert_eq!(packet[6..6 + ids.destination.len()], *ids.destination);
        assert_eq!(packet[header - ids.source.len()..header], *ids.source);
    }
    if let Some(id) = short_header_id(packet, id_len) {
        assert!(is_short(packet) && id.len() == id_len);
    }
}

/// Sealed and opened, then opened and sealed: both ways it is what it was, but for the form bit.
fn round(packet: &[u8], id_len: usize) {
    let mut clear = packet.to_vec();
    if let Some(first) = clear.first_mut() {
        *first &= 0x7f;
    }
    let ways: [[fn(&Scramble, &mut [u8], usize) -> Result<(), TooShort>; 2]; 2] = [
        [Scramble::seal, Scramble::open],
        [Scramble::open, Scramble::seal],
    ];
    for [forth, back] in ways {
        let mut moved = clear.clone();
        if forth(&SCRAMBLE, &mut moved, id_len).is_ok() {
            assert!(is_short(&moved));
            assert_eq!(
                short_header_id(&moved, id_len),
                short_header_id(&clear, id_len)
            );
            back(&SCRAMBLE, &mut moved, id_len).expect("as long as before");
        } else {
            assert!(packet.len() < 1 + id_len + 16);
        }
        assert_eq!(moved, clear);
    }
}
