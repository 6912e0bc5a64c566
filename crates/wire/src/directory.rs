//! The documents of the directory: what a relay says of itself, what an authority votes, by which vote it stands, what all of them sign.
//! `hoplite-directory` makes and judges them; docs/directory.md has the format. Ours alone: no other specification.
//!
//! Each is lines of ASCII, `keyword value`, in one order, and read strictly: what is read is exactly what would be written, so a
//! signature over the text is one over the meaning, and nobody can write the same thing twice.

mod commitment;
mod descriptor;
mod key;
mod lines;
mod list;
mod ports;
#[cfg(test)]
mod tests;

pub use commitment::{Commitment, Commitments};
pub use descriptor::{Descriptor, Roles, SignedDescriptor};
pub use key::{Key, KeyError, Signature};
pub use lines::Malformed;
pub use list::{List, SignedList, Stage, split_signed};
pub use ports::Ports;

/// Addresses of one relay.
pub const ADDRESSES: usize = 4;
/// Relays that one says it shares an operator with.
pub const FAMILY: usize = 32;
/// Octets of a signed descriptor.
pub const DESCRIPTOR: usize = 4096;
/// Relays of a list.
pub const RELAYS: usize = 8192;
/// Octets of a signed list or vote.
pub const LIST: usize = 8 << 20;
/// Authorities that sign a list.
pub const AUTHORITIES: usize = 32;
/// Octets of the commitments of one period: two of each authority, with the signatures of all.
pub const COMMITMENTS: usize = 512 << 10;
/// Parameters of a list.
pub const PARAMS: usize = 32;

/// Whether `text` is 1 to `most` letters, digits, '-', '_' and '.': names, regions, operators.
pub fn is_word(text: &str, most: usize) -> bool {
    let fine = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    (1..=most).contains(&text.len()) && text.bytes().all(fine)
}
