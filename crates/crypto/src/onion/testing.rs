//! What the tests of this room share.

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
