//! The relay's end: circuits that pass through, and at an exit those that end here.
//! The binary calls [`serve`] for each channel, with one [`Relay`] for all. tor-spec "Creating circuits", "Routing relay cells".

mod circuit;
mod config;
mod driver;
mod exit;
mod extend;
mod handshakes;
mod hop;
mod serve;
mod skins;

pub use circuit::{Circuit, Forward};
pub use config::{Admit, Cells, Config, Counters, Directory, Policy, Relay};
pub use extend::{Refusal, next_relay};
pub use handshakes::{Asker, Limits as Handshakes, Queue};
pub use serve::serve;
pub use skins::{Bucket, Skins};
