//! The cryptography of onion circuits: circuit handshakes, the layers of relay cells, and who a relay is on a channel.
//! tor-spec: "Setting circuit keys", "The ntor handshake", "Relay cell processing", "CERTS cells", "AUTHENTICATE cells"; proposal 332; cert-spec; rend-spec-v3.
//!
//! Primitives come from aws-lc (X25519, Ed25519, AES, HMAC, SHA-256, SHA-512, SHA3-256), from RustCrypto (`polyval`, `sha1`, `shake`), and, where keys of onion
//! services are blinded, from `curve25519-dalek`. SHA-1 is here because Tor's relay cells have it, as a running digest of which 4 bytes are
//! shown. **None of this is a claim to be as secure as Tor:** nobody has reviewed it, and what Tor does around its cryptography (guards, padding,
//! vanguards, a large network) is not here.
//!
//! # Not in this room
//! Cells and their fields (`wire::cell`), the replay cache of onion skins and circuits (`onion`), TLS and QUIC (`link`), who may be trusted
//! (`directory`).

pub mod cgo;
pub mod client_authorisation;
pub mod create_fast;
pub mod descriptor;
pub mod family;
pub mod hs_ntor;
pub mod identity;
pub mod introduction;
mod key_stream;
mod keys;
pub mod layers;
pub mod ntor;
pub mod ntor3;
pub mod offline;
pub mod rsa;
mod secrets;
pub mod service_keys;
#[cfg(test)]
pub(crate) mod testing;
pub mod time_period;
pub mod tor1;

pub use keys::{CircuitNonce, OnionKey, OnionKeys, RelayKeys, Seed};
pub use secrets::{CertifiedNtor, Secrets, SecretsError};

/// Why a circuit handshake failed. To the other end all of these are one: DESTROY, reason PROTOCOL; nothing more is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The message has not the length that its handshake has.
    #[error("the circuit handshake has another length than its kind")]
    Malformed,
    /// It names another relay.
    #[error("the circuit handshake is meant for another relay")]
    WrongRelay,
    /// It names an onion key that this relay has not, or no longer.
    #[error(
        "the circuit handshake names an onion key that is not accepted: its client has an old directory"
    )]
    UnknownKey,
    /// A public key of small order: the shared secret would be known to all.
    #[error("the circuit handshake has a public key that gives no secret")]
    BadKey,
    /// The proof is wrong: the peer has not the key, or the message was changed.
    #[error("the circuit handshake is not authentic")]
    Unauthentic,
    /// The extensions within are not acceptable.
    #[error("the circuit handshake asks for what is not offered")]
    Unacceptable,
    /// The system has no randomness, or the library not the cipher.
    #[error("a circuit handshake cannot be made: the system has no randomness")]
    System,
}
