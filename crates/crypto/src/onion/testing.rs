//! What the tests of this room share.

use std::{hint::black_box, time::Instant};

use hoplite_wire::cell::BODY;

/// The bytes of a vector, as it is printed in hexadecimal; spaces and line ends are left out.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    let pairs = digits.chunks_exact(2);
    pairs
        .map(|pair| u8::try_from(pair[0] * 16 + pair[1]).expect("two digits"))
        .collect()
}

/// Bytes of a known length, written in hexadecimal.
pub(crate) fn bytes<const N: usize>(text: &str) -> [u8; N] {
    hex(text).try_into().expect("the vector's length")
}

/// Prints how fast cells are worked on, one after the other out of the same body.
pub(crate) fn speed_of(what: &str, mut body: [u8; BODY], mut one: impl FnMut(&mut [u8; BODY])) {
    const CELLS: u32 = 400_000;
    let start = Instant::now();
    for _ in 0..CELLS {
        one(black_box(&mut body));
    }
    let bytes = f64::from(CELLS) * 509.0;
    let speed = bytes / start.elapsed().as_secs_f64() / 1e9;
    println!("{what:45} {speed:6.2} GB/s");
}
