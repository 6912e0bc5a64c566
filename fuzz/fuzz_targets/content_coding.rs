//! What comes compressed: any bytes are read within their bound or refused, and what is compressed here is read back, also one behind the other.
#![no_main]

use hoplite_wire::content_coding::{Encoded, Encoding, inflate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let most = 10_000 + 25 * bytes.len();
    if let Ok(read) = inflate(bytes, most) {
        assert!(read.len() <= most);
    }
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let _ = Encoding::of(Some(text), true);
    // What repeats itself more than any directory's text does is refused when it is long.
    if text.len() < 1 << 15 {
        let [zlib, ..] = Encoded::of(text.to_owned()).parts(Encoding::Deflate);
        assert_eq!(inflate(&zlib, text.len()).as_deref(), Ok(bytes));
        let twice = inflate(&zlib.repeat(2), 1 << 17).expect("read");
        assert_eq!(twice, text.repeat(2).as_bytes());
    }
});
