//! MASQUE: one to four nested relays as an overlay, and the HTTP connections that both ends of a hop share.
//! The overlay carries the client's flows; `relay` serves the other end with the same [`h3`] and [`h2`].
//!
//! # Not in this room
//! How a hop is dialled and authenticated (`link`), what a relay permits (`relay`), the octets of frames and capsules (`wire`).

mod choose;
mod config;
pub mod forward;
mod gather;
pub mod h2;
pub mod h3;
mod held;
mod hop;
mod inbox;
mod keeper;
mod live;
mod packets;
mod path;
mod paths;
mod pool;
mod request;
pub mod sink;
mod spare;
mod tunnel;

pub use choose::{Candidate, Wish, choose};
pub use config::Config;
pub use forward::{Forwarding, Mode, Passed};
pub use hop::{Hop, Relay};
pub use path::{MAX_HOPS, Path};
pub use paths::{Choose, Paths, Random};
pub use sink::DatagramSink;
