//! MASQUE: one to four nested relays as an overlay.
//! The overlay carries the client's flows; `relay` serves the other end of each hop. Both speak through `http`.
//!
//! # Not in this room
//! How a hop is dialled and authenticated (`link`), how HTTP is spoken (`http`), what a relay permits (`relay`).

mod bound;
mod config;
mod connection;
mod forward;
mod gather;
mod hop;
mod inbox;
mod packets;
mod path;
mod pool;
mod spare;
mod told;
mod tunnel;

pub use config::{Acks, Config};
pub use forward::{Mode, Passed};
pub use hop::{Hop, Relay, TokenSource, round_trip};
pub use path::{Choose, EntryTrouble, MAX_HOPS, Path, Paths, TakenBack};
pub use told::ShownRegion;
