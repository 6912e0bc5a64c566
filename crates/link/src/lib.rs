//! One authenticated hop to one relay: a QUIC connection or a TLS stream, over any overlay; and the listening side of both.
//! `masque` and `channel` dial with it, `relay` listens with it. A second hop is a link over the first hop's overlay.
//!
//! # Not in this room
//! HTTP (`http`), circuits of cells (`channel`), who may connect (`relay`), keys and pins (`crypto`), the device's own sockets (`overlay::direct`).
//! The listening side is Linux's, as relays are.

mod bypass;
mod config;
mod dial;
mod health;
mod losses;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
#[cfg(target_os = "linux")]
pub mod server;
mod socket;

pub use bypass::{Beside, Bypass, SHORTEST_ALIAS};
pub use config::{Config, MTU_SUSPENDED, Pad};
pub use dial::{Dialer, Link, LinkKind, Peer, QuicLink, TlsLink};
pub use health::drawn;
