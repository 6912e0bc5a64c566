//! Privacy Pass with blind RSA and with the VOPRF of P-384 (RFC 9576, RFC 9578): an issuer's keys and what it grants its accounts, a client's stock of
//! tokens, and how a relay verifies one and sees that it is spent once.
//!
//! ```text
//! client                      issuer                        relay
//!   blind a token's bytes ->    knows the account,
//!                        <-     signs or evaluates what it cannot read
//!   unblind, keep in Stock
//!   one token for each connection ------------------------>  Verifier: the issuer's? for us? Spent: never before?
//! ```
//! Issuer and relay may compare all they have seen: a blinded message and the token that came of it have nothing in common.
//!
//! # Not in this room
//! Bytes and fields (`wire::privacy_pass`), HTTP (`hoplite`), whom a relay admits (`relay`).

mod issuer;
mod key;
mod key_directory;
mod openid;
mod private_file;
mod spent;
mod stock;
mod verifier;

pub use issuer::{Allowance, Issuer, IssuerError, Refused};
pub use key::{ChallengeDigests, IssuerKey, KeyError, PendingToken, PublicKey, challenge_digest};
pub use key_directory::{KeyDirectory, KeyDirectoryError, ListedKey, VerifierKeys};
pub use openid::{
    BearerRefused, BearerRules, Holder, KeySet, MOST_BEARER, ProviderError, discovery_uri, keys_uri,
};
pub use private_file::FileError;
pub use spent::{
    AlreadySpent, ServerError, SpentError, SpentOptions, SpentServer, SpentServerError,
    SpentTokens, Told,
};
pub use stock::{Stock, StockError};
pub use verifier::{TokenRefused, Verifier};
