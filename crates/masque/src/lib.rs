//! MASQUE: one to four nested relays as an overlay.
//! The overlay carries the client's flows; `relay` serves the other end of each hop. Both speak through `http`.
//!
//! # Not in this room
//! How a hop is dialled and authenticated (`link`), how HTTP is spoken (`http`), what a relay permits (`relay`).

mod config;
mod connection;
pub mod forward;
mod gather;
mod hop;
mod inbox;
mod packets;
mod path;
mod paths;
mod pool;
mod request;
mod spare;
mod tunnel;

pub use config::Config;
pub use forward::{Forwarding, Mode, Passed};
pub use hop::{Hop, Relay};
pub use path::{MAX_HOPS, Path};
pub use paths::{Choose, Paths};
