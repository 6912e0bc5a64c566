//! Who a relay is and how we know: identities, pins, TLS configurations, tokens;
//! and the handshakes, layers and certificates of onion circuits.
//!
//! # Not in this room
//! QUIC and TLS connections themselves (`link`), when one acknowledges (`quic`), files (the binary), circuits and their cells (`onion`).

mod identity;
mod keystream;
pub mod onion;
mod proof;
mod relay_url;
mod routable;
mod scramble;
pub mod shared_random;
pub mod signing;
mod tls;
mod token;

pub use self::identity::{Pin, PinError};
pub use self::tls::Certificates;
pub use self::tls::is_identity_mismatch;
pub use identity::{Identity, IdentityError, NewIdentity};
pub use keystream::Keystream;
pub use proof::{Proof, ProofError};
pub use relay_url::{RelayUrl, RelayUrlError, is_relay_name};
pub use routable::{RoutableError, RoutableId, RoutableIds, fleet_reset_key};
pub use scramble::{NoCipher, Pair, Scramble, TooShort, Transform};
pub use signing::{SigningError, SigningKey};
pub use tls::{
    ALPN_CHANNEL, ALPN_H2, ALPN_H3, ALPN_HTTP1, Trust, client_tls, provider, server_tls,
};
pub use token::{Token, Tokens};
