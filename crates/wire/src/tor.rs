//! Documents of Tor's own directory: a consensus in its microdescriptor flavour, the authorities' key certificates, microdescriptors.
//! `hoplite_directory::tor` checks their signatures and makes relays of them, so that circuits can go through C tor.
//! dir-spec "Network status consensus", "Creating key certificates", "Computing microdescriptors". Only what a client of circuits needs is read;
//! what is not known is skipped, as the specification asks. Texts, items, relays and objects are bounded.

mod certificate;
mod consensus;
mod items;
mod microdescriptor;
#[cfg(test)]
mod tests;
mod time;

pub use certificate::KeyCertificate;
pub use consensus::{Consensus, Flags, Router, Signature};
pub use microdescriptor::Microdescriptor;

/// Forty hexadecimal digits: how Tor names RSA keys.
pub fn fingerprint(text: &str) -> Option<[u8; 20]> {
    items::hex(text)
}

/// Octets of one text: the consensus of the public network has 3 million.
pub const TEXT: usize = 16 << 20;
/// Relays of a consensus.
pub const ROUTERS: usize = 16_384;
/// Signatures of a consensus, and certificates of one text.
pub const AUTHORITIES: usize = 64;
/// Parameters, and weights.
pub const PARAMS: usize = 1024;
/// Octets of one key or signature, in base64.
pub const OBJECT: usize = 8192;
/// Relays that one calls its family.
pub const FAMILY: usize = 512;
