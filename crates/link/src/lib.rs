//! One authenticated hop to one relay: a QUIC connection or a TLS stream, over any overlay; and the listening side of both.
//! `masque` dials with it, `relay` listens with it; `onion` carries circuits over its [`channel`]s. A second hop is a link over the first hop's overlay.
//!
//! # Not in this room
//! HTTP (`masque`), who may connect (`relay`), keys and pins (`crypto`), the device's own sockets (`overlay::direct`).

mod bypass;
pub mod channel;
pub mod coalesce;
mod config;
mod congestion;
mod connection_controller;
mod dial;
mod failure;
mod health;
pub mod quic;
pub mod server;
mod socket;
mod timer;

pub use bypass::{Beside, Bypass, SHORTEST_ALIAS};
pub use config::{Config, MTU_SUSPENDED};
pub use connection_controller::ConnectionController;
pub use dial::{Dialer, Link, Peer, QuicLink, TlsLink};
pub use hoplite_wire::tuning::{AckPolicy, Agreed, Congestion, TuningGrant, TuningRequest};
